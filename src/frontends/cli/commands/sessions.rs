//! `pixir sessions`: list and delete Sessions.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;

use clap::{Args, Subcommand};
use serde_json::json;

use super::resume::refuse_read_only;
use crate::agent::inspect;
use crate::agent::inspect::{SessionSummary, SummaryStatus};
use crate::base::error::{Report, counted};
use crate::base::id::SessionId;
use crate::base::paths::as_texts;
use crate::frontends::cli::CliContext;
use crate::frontends::cli::arguments::whole_number_parser;
use crate::frontends::cli::exit::Exit;
use crate::frontends::cli::session_lookup::unique_part;
use crate::frontends::cli::terminal::confirm::{Confirmation, ConfirmationPrompt};
use crate::frontends::cli::unreadable::owner_text;
use crate::frontends::render::one_line;
use crate::record::state_dir;
use crate::record::state_dir::StateRoot;

/// Shown Sessions without `--limit`.
const FIRST_SCREEN: usize = 50;

/// List Sessions, the one used last first
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    override_usage = "pixir sessions [OPTIONS]\n       pixir sessions delete [ID]",
    after_long_help = "Examples:\n  pixir sessions --all\n  pixir sessions --json | jq '.output[0]'\n  \
        pixir sessions delete 20260721T101112-abcdef"
)]
pub struct SessionsArgs {
    #[command(subcommand)]
    command: Option<SessionsCommand>,
    /// List the Sessions of every Workspace that was used
    #[arg(long)]
    all: bool,
    /// List at most this many, 0 for all; 50 unless --json is given
    #[arg(long, value_name = "N", value_parser = whole_number_parser::<usize, usize>(0))]
    limit: Option<usize>,
}

#[derive(Debug, Subcommand)]
enum SessionsCommand {
    Delete(DeleteArgs),
}

/// Delete a Session: its Log, its blobs, its Resources, its spilled output
#[derive(Debug, Args)]
#[command(
    after_long_help = "A deleted Session cannot be restored. A Session that a process has open is refused. A whole id is deleted without a \
        question; otherwise the Session that was found is shown first, and --yes is needed where there is no terminal."
)]
struct DeleteArgs {
    /// Session id, or the beginning or end of one; default: the last used Session of this Workspace, after a question
    #[arg(value_name = "ID")]
    id: Option<String>,
    #[command(flatten)]
    confirmation: Confirmation,
}

pub fn sessions(args: &SessionsArgs, context: &CliContext) -> Result<Exit, Report> {
    if let Some(SessionsCommand::Delete(delete_args)) = &args.command {
        return delete(delete_args, context);
    }
    let limit = match args.limit {
        Some(0) => usize::MAX,
        Some(limit) => limit,
        None if context.flags.json => usize::MAX,
        None => FIRST_SCREEN,
    };
    let found = inspect::list_sessions(&context.state_roots(args.all)?, limit);
    if let Some(notice) = context.current_state()?.notice() {
        context.print_notice(&notice);
    }
    explain_read_only(&found, context);
    explain_unreadable(&found, context);
    context.explain_closed_folders(args.all, !found.is_empty())?;
    let is_for_person = !context.flags.json;
    if found.is_empty() && is_for_person {
        context.print_notice("there are no Sessions yet");
    }
    let now = jiff::Timestamp::now().as_second();
    let widest = found.iter().map(|summary| summary.session_id.as_str().len()).max().unwrap_or(0);
    let rows = found.iter().map(|summary| session_row(summary, widest, now, args.all));
    let exit = context.print_result("sessions", &rows.collect::<String>(), &found)?;
    if found.len() == limit && is_for_person {
        context.print_notice(&format!("these are the last {limit}; `--limit 0` lists all"));
    }
    Ok(exit)
}

fn delete(args: &DeleteArgs, context: &CliContext) -> Result<Exit, Report> {
    let (id, root) = session_to_delete(args.id.as_deref(), context)?;
    let is_dry_run = context.flags.dry_run;
    if is_dry_run || args.id.as_deref() != Some(id.as_str()) {
        let title = inspect::list_sessions(std::slice::from_ref(&root), usize::MAX).into_iter();
        let title = title.filter(|summary| summary.session_id == id).map(|summary| summary.title);
        let title = one_line(&title.collect::<String>(), 60);
        let plan = format!("deletes {id}  {title}\n");
        if is_dry_run {
            let output = json!({ "session_id": id, "deleted": [], "dry_run": true });
            return context.print_result("sessions", &plan, output);
        }
        let command = format!("sessions delete {id}");
        let words = "Delete it for good?";
        args.confirmation.ask_user(
            &ConfirmationPrompt { plan: &plan, question: words, command: &command },
            context,
        )?;
    }
    refuse_read_only(&id, &root)?;
    let deleted = inspect::delete_session(&root, &id)?;
    let lines = deleted.iter().map(|path| format!("deleted {}\n", path.display()));
    let output = json!({ "session_id": id, "deleted": as_texts(&deleted) });
    context.print_result("sessions", &lines.collect::<String>(), output)
}

/// Only Sessions of the working directory can be deleted. A Workspace that is gone has no directory, so its
/// Sessions are found by id.
fn session_to_delete(
    id: Option<&str>,
    context: &CliContext,
) -> Result<(SessionId, StateRoot), Report> {
    let Some(text) = id else { return context.last_session() };
    let id = SessionId::parse(text)?;
    let here = context.current_state().map(|here| here.root_for_session(&id));
    if here.as_ref().is_ok_and(|root| root.has_log(&id)) {
        return Ok((id, here?));
    }
    let named = context.flags.cwd.as_ref().and_then(|cwd| std::path::absolute(cwd).ok());
    let is_meant = |root: &StateRoot| {
        let workspace = root.workspace();
        !workspace.is_dir() && named.as_ref().is_none_or(|named| named == workspace)
    };
    let gone = state_dir::home_roots(&context.home()?).into_iter().filter(is_meant);
    let gone: Vec<StateRoot> = gone.collect();
    if let Some(root) = gone.iter().find(|root| root.has_log(&id)) {
        return Ok((id, root.clone()));
    }
    let roots = [context.state_roots(false).unwrap_or_default(), gone].concat();
    match unique_part(text, &roots)? {
        Some(found) => Ok(found),
        None => Ok((id, here?)),
    }
}

fn session_row(summary: &SessionSummary, widest: usize, now: i64, with_workspace: bool) -> String {
    let turns = counted(summary.turns, "Turn");
    let title = one_line(&summary.title, 60);
    let title = if title.is_empty() { "(no prompt yet)".to_owned() } else { title };
    let age = display_age(now.saturating_sub(summary.updated));
    let status = status_text(&summary.status);
    let id = summary.session_id.as_str();
    let mut row = format!("{id:<widest$}  {age:>9}  {turns:>9}  {status:<16}  {title}");
    if summary.read_only.is_some() {
        row.push_str("  [read-only]");
    }
    if with_workspace {
        let gone = if summary.workspace_gone { "gone: " } else { "" };
        write!(row, "  ({gone}{})", display_workspace(&summary.workspace)).ok();
    }
    row + "\n"
}

/// Says why Sessions of this list cannot be continued, and what to do.
fn explain_read_only(found: &[SessionSummary], context: &CliContext) {
    let reasons = found.iter().filter_map(|summary| summary.read_only.as_deref());
    for reason in reasons.collect::<BTreeSet<&str>>() {
        context.print_notice(&format!(
            "{reason}: Sessions there are [read-only]; continue with a copy: `pixir fork ID`"
        ));
    }
}

/// Prints which Sessions cannot be read, and who owns their files.
fn explain_unreadable(found: &[SessionSummary], context: &CliContext) {
    for summary in found {
        if let SummaryStatus::Unreadable { message } = &summary.status {
            let (id, owner) = (&summary.session_id, owner_text(&summary.path));
            context.print_notice(&format!("Session {id} cannot be read: {message}{owner}"));
        }
    }
}

fn display_workspace(workspace: &Path) -> String {
    one_line(&workspace.display().to_string(), 80)
}

pub fn status_text(status: &SummaryStatus) -> String {
    match status {
        SummaryStatus::New => "new".to_owned(),
        SummaryStatus::Answered => "answered".to_owned(),
        SummaryStatus::Failed { terminal_status, .. } => {
            format!("failed: {}", one_line(terminal_status, 30))
        }
        SummaryStatus::Interrupted => "interrupted".to_owned(),
        SummaryStatus::Open => "open".to_owned(),
        SummaryStatus::Running { pid } => format!("running ({pid})"),
        SummaryStatus::Unreadable { .. } => "unreadable".to_owned(),
    }
}

/// How long ago, in one unit.
pub fn display_age(seconds: i64) -> String {
    match seconds {
        ..60 => "now".to_owned(),
        60..3_600 => format!("{} min", seconds / 60),
        3_600..86_400 => format!("{} h", seconds / 3_600),
        86_400..172_800 => "1 day".to_owned(),
        172_800..5_184_000 => format!("{} days", seconds / 86_400),
        _ => format!("{} months", seconds / 2_592_000),
    }
}
