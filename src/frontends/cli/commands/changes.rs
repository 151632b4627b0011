//! `pixir changes`: list and show what child Sessions changed in their own Workspaces.

use std::fmt::Write;

use clap::Args;
use serde_json::{Value, json};

use super::resume::refuse_read_only;
use crate::agent::child_workspace::{Annex, AnnexError, Annexes, diff};
use crate::base::error::{Kind, Report};
use crate::base::secret::Secrets;
use crate::frontends::cli::exit::Exit;
use crate::frontends::cli::{Context, bad_argument};
use crate::host::process::{Commands, Containment, Host};
use crate::host::workspace::Workspace;
use crate::record::history::History;
use crate::record::log::Log;
use crate::record::state_dir::StateRoot;
use crate::settings::config::Config;

/// Show what a child Session changed in its own Workspace
#[derive(Debug, Args)]
#[command(
    override_usage = "pixir changes [FLAGS] [ID] [--diff]",
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
pub struct Named {
    pub annex: Annex,
    pub config: Config,
    /// The state root with its Log.
    pub logs: StateRoot,
}

/// Finds a child by name or Session id. Fails if it is still running.
pub fn named(id: &str, context: &Context) -> Result<Named, Report> {
    let here = context.folder()?;
    let config = context.settings(Some(&here))?.config;
    let roots = context.state_roots(false)?;
    let own = annexes(context, &config);
    let of_name = roots.iter().find_map(|root| {
        let mut annexes = own.of_workspace(root).into_iter();
        Some((annexes.rfind(|it| it.subagent() == Some(id))?, root.clone()))
    });
    let (annex, config, logs) = if let Some((annex, root)) = of_name {
        (annex, config, root)
    } else {
        let (child, logs) = context.session_named(id)?;
        let config = context.settings(Some(logs.workspace()))?.config;
        let annexes = annexes(context, &config);
        let found = annexes.find(&logs, &child)?;
        // The Log says whether the child ever had a Workspace of its own.
        let none = || {
            let history = Log::read(&logs, &child).map(|log| History::from_events(log.events));
            let placed = history.ok().map(|history| annexes.place(&logs, &child, &history));
            let closed = placed.and_then(Result::err);
            Report::from(closed.unwrap_or_else(|| AnnexError::NoAnnex(id.to_owned())))
        };
        (found.ok_or_else(none)?, config, logs)
    };
    annex.refuse_busy()?;
    // Reading the changes stores the child's current files, which would change that state.
    refuse_read_only(annex.child(), &logs)?;
    Ok(Named { annex, config, logs })
}

/// Like `find_child`; without a name, the only child of this Workspace that has a Workspace of its own.
pub fn named_or_only(id: Option<&str>, context: &Context) -> Result<Named, Report> {
    if let Some(id) = id {
        return named(id, context);
    }
    let config = context.settings(Some(&context.folder()?))?.config;
    let own = annexes(context, &config);
    let roots = context.state_roots(false)?;
    let children: Vec<Annex> = roots.iter().flat_map(|root| own.of_workspace(root)).collect();
    match children.as_slice() {
        [only] => named(only.child().as_str(), context),
        [] => Err(Report::new(Kind::NotFound, "no child has a Workspace of its own here")),
        several => {
            let ids: Vec<&str> = several.iter().map(|child| child.child().as_str()).collect();
            let message = format!("which child? there are {}: {}", ids.len(), ids.join(", "));
            Err(bad_argument(message).with_next_actions(vec!["list them: pixir changes".into()]))
        }
    }
}

/// The child Workspaces of this user.
pub fn annexes(context: &Context, config: &Config) -> Annexes {
    let host = Host {
        own_binary: "/proc/self/exe".into(),
        environment: context.environment.all(),
        containment: Containment::Best,
    };
    Annexes::new(config, Commands::new(host, config))
}

pub fn changes(args: &ChangesArgs, context: &Context) -> Result<Exit, Report> {
    let Some(id) = &args.id else { return list(context) };
    let Named { annex, .. } = named(id, context)?;
    let parent = Workspace::open(annex.parent_workspace())?;
    let changes = annex.changes(&parent)?;
    let secrets = Secrets::from_environment(context.environment.all());
    let (text, left_out) =
        if args.diff { diff(&changes, &annex.store(), &secrets) } else { (String::new(), 0) };
    let mut output = changes.json();
    output["annex"] = about(&annex);
    if args.diff {
        output["diff"] = json!(text);
        output["diffs_left_out"] = json!(left_out);
    }
    let mut told = changes.told();
    if changes.is_empty() {
        told.push_str("nothing was changed\n");
    }
    if args.diff {
        write!(told, "\n{text}").ok();
    }
    if left_out > 0 {
        writeln!(told, "# the diffs of {left_out} more files are left out").ok();
    }
    context.told("changes", &told, output)
}

/// Lists the children of this Workspace that have a Workspace of their own.
fn list(context: &Context) -> Result<Exit, Report> {
    let config = context.settings(Some(&context.folder()?))?.config;
    let own = annexes(context, &config);
    let roots = context.state_roots(false)?;
    let annexes: Vec<Annex> = roots.iter().flat_map(|root| own.of_workspace(root)).collect();
    let mut told = String::new();
    for annex in &annexes {
        let (child, mode) = (annex.child(), annex.mode().name());
        let name = annex.subagent().map(|name| format!("  {name}")).unwrap_or_default();
        let branch = annex.branch().map(|branch| format!("  on {branch}")).unwrap_or_default();
        writeln!(told, "{child}  {mode}{name}{branch}  {}", annex.folder().display()).ok();
    }
    if annexes.is_empty() && !context.flags.json {
        context.notice("no child has a Workspace of its own here");
    }
    context.told("changes", &told, annexes.iter().map(about).collect::<Vec<_>>())
}

fn about(annex: &Annex) -> Value {
    json!({
        "session_id": annex.child(),
        "parent_session_id": annex.parent(),
        "subagent_id": annex.subagent(),
        "workspace_mode": annex.mode().name(),
        "folder": annex.folder().to_string_lossy(),
        "branch": annex.branch(),
    })
}
