//! `pixir changes`: list and show what child Sessions changed in their own Workspaces.

use std::fmt::Write;

use clap::Args;
use serde_json::{Value, json};

use super::resume::refuse_read_only;
use crate::agent::child_workspace::{
    ChildWorkspace, ChildWorkspaceError, ChildWorkspaces, full_diff,
};
use crate::base::error::{Kind, Report};
use crate::base::secret::Secrets;
use crate::frontends::cli::exit::Exit;
use crate::frontends::cli::{CliContext, bad_argument};
use crate::host::process::{CommandRunner, Containment, HostEnvironment};
use crate::host::workspace::Workspace;
use crate::record::history::History;
use crate::record::log::Log;
use crate::record::state_dir::StateRoot;
use crate::settings::config::Config;

/// Show what a child Session changed in its own Workspace
#[derive(Debug, Args)]
#[command(
    override_usage = "pixir changes [OPTIONS] [ID] [--diff]",
    long_about = "Show what a child Session changed in its own Workspace, a copy or a worktree, since it was made.\n\n\
        A is added, M changed, D removed, ? unreadable; a path that ends with / is a folder. Without an \
        id, the children of this Workspace that have their own are listed. This command changes nothing; `pixir merge` applies the \
        changes.",
    after_long_help = "Examples:\n  pixir changes\n  pixir changes 20260721T101112-abcdef --diff"
)]
pub struct ChangesArgs {
    /// Child Session, by its name in the parent's Log, its Session id, or the beginning or end of that id
    #[arg(value_name = "ID")]
    id: Option<String>,
    /// Show the diffs too
    #[arg(long, requires = "id")]
    diff: bool,
}

/// A child that was named on the command line, and what is needed to work with it.
pub struct NamedChild {
    pub child_workspace: ChildWorkspace,
    pub config: Config,
    /// The state root with its Log.
    pub state_root: StateRoot,
}

/// Finds a child by name or Session id. Fails if it is still running.
pub fn find_child(id: &str, context: &CliContext) -> Result<NamedChild, Report> {
    let here = context.current_folder()?;
    let config = context.load_settings(Some(&here))?.config;
    let roots = context.state_roots(false)?;
    let own = child_workspaces(context, &config);
    let of_name = roots.iter().find_map(|root| {
        let mut child_workspaces = own.list_for_workspace(root).into_iter();
        Some((child_workspaces.rfind(|it| it.subagent() == Some(id))?, root.clone()))
    });
    let (child_workspace, config, logs) = if let Some((child_workspace, root)) = of_name {
        (child_workspace, config, root)
    } else {
        let (child, logs) = context.find_session(id)?;
        let config = context.load_settings(Some(logs.workspace()))?.config;
        let child_workspaces = child_workspaces(context, &config);
        let found = child_workspaces.find(&logs, &child)?;
        // The Log says whether the child ever had a Workspace of its own.
        let none = || {
            let history = Log::read(&logs, &child).map(|log| History::from_events(log.events));
            let placed = history
                .ok()
                .map(|history| child_workspaces.find_for_session(&logs, &child, &history));
            let closed = placed.and_then(Result::err);
            Report::from(
                closed.unwrap_or_else(|| ChildWorkspaceError::NoChildWorkspace(id.to_owned())),
            )
        };
        (found.ok_or_else(none)?, config, logs)
    };
    child_workspace.refuse_busy()?;
    // Reading the changes stores the child's current files, which would change that state.
    refuse_read_only(child_workspace.child(), &logs)?;
    Ok(NamedChild { child_workspace, config, state_root: logs })
}

/// Like `find_child`; without a name, the only child of this Workspace that has a Workspace of its own.
pub fn find_child_or_only(id: Option<&str>, context: &CliContext) -> Result<NamedChild, Report> {
    if let Some(id) = id {
        return find_child(id, context);
    }
    let config = context.load_settings(Some(&context.current_folder()?))?.config;
    let own = child_workspaces(context, &config);
    let roots = context.state_roots(false)?;
    let children: Vec<ChildWorkspace> =
        roots.iter().flat_map(|root| own.list_for_workspace(root)).collect();
    match children.as_slice() {
        [only] => find_child(only.child().as_str(), context),
        [] => Err(Report::new(Kind::NotFound, "no child of this Workspace has its own Workspace")),
        several => {
            let ids: Vec<&str> = several.iter().map(|child| child.child().as_str()).collect();
            let message = format!("which child? there are {}: {}", ids.len(), ids.join(", "));
            Err(bad_argument(message).with_next_actions(vec!["list them: pixir changes".into()]))
        }
    }
}

/// The child Workspaces of this user.
pub fn child_workspaces(context: &CliContext, config: &Config) -> ChildWorkspaces {
    let host = HostEnvironment {
        own_binary: "/proc/self/exe".into(),
        environment: context.environment.variables(),
        containment: Containment::Best,
    };
    ChildWorkspaces::new(config, CommandRunner::new(host, config))
}

pub fn changes(args: &ChangesArgs, context: &CliContext) -> Result<Exit, Report> {
    let Some(id) = &args.id else { return list_child_workspaces(context) };
    let NamedChild { child_workspace, .. } = find_child(id, context)?;
    let parent = Workspace::open(child_workspace.parent_workspace())?;
    let changes = child_workspace.find_changes(&parent)?;
    let secrets = Secrets::from_environment(context.environment.variables());
    let (text, left_out) = if args.diff {
        full_diff(&changes, &child_workspace.store(), &secrets)
    } else {
        (String::new(), 0)
    };
    let mut output = changes.to_json();
    output["annex"] = child_workspace_json(&child_workspace);
    if args.diff {
        output["diff"] = json!(text);
        output["diffs_left_out"] = json!(left_out);
    }
    let mut listing = changes.format_list();
    if changes.is_empty() {
        listing.push_str("nothing was changed\n");
    }
    if args.diff {
        write!(listing, "\n{text}").ok();
    }
    if left_out > 0 {
        writeln!(listing, "# the diffs of {left_out} more files are left out").ok();
    }
    context.print_result("changes", &listing, output)
}

/// Lists the children of this Workspace that have a Workspace of their own.
fn list_child_workspaces(context: &CliContext) -> Result<Exit, Report> {
    let config = context.load_settings(Some(&context.current_folder()?))?.config;
    let own = child_workspaces(context, &config);
    let roots = context.state_roots(false)?;
    let child_workspaces: Vec<ChildWorkspace> =
        roots.iter().flat_map(|root| own.list_for_workspace(root)).collect();
    let mut listing = String::new();
    for child_workspace in &child_workspaces {
        let (child, mode) = (child_workspace.child(), child_workspace.mode().name());
        let name = child_workspace.subagent().map(|name| format!("  {name}")).unwrap_or_default();
        let branch =
            child_workspace.branch().map(|branch| format!("  on {branch}")).unwrap_or_default();
        writeln!(listing, "{child}  {mode}{name}{branch}  {}", child_workspace.folder().display())
            .ok();
    }
    if child_workspaces.is_empty() && !context.flags.json {
        context.print_notice("no child of this Workspace has its own Workspace");
    }
    context.print_result(
        "changes",
        &listing,
        child_workspaces.iter().map(child_workspace_json).collect::<Vec<_>>(),
    )
}

fn child_workspace_json(child_workspace: &ChildWorkspace) -> Value {
    json!({
        "session_id": child_workspace.child(),
        "parent_session_id": child_workspace.parent(),
        "subagent_id": child_workspace.subagent(),
        "workspace_mode": child_workspace.mode().name(),
        "folder": child_workspace.folder().to_string_lossy(),
        "branch": child_workspace.branch(),
    })
}
