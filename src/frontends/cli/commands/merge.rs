//! `pixir merge`: merge a child's changes into the Workspace of its parent, or undo a merge.

use std::fmt::Write;
use std::path::Path;

use clap::Args;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::changes::{NamedChild, find_child_or_only};
use super::undo::session_options;
use crate::agent::child_workspace;
use crate::agent::child_workspace::{
    AppliedMerge, ChildChanges, ChildWorkspace, ChildWorkspaceError, MergePlan, MergeStep,
    MergeTransaction, escape_path,
};
use crate::agent::harness::recorded_bounds;
use crate::agent::session::Session;
use crate::base::error::{Kind, Report};
use crate::frontends::cli::CliContext;
use crate::frontends::cli::exit::Exit;
use crate::frontends::cli::runner::in_runtime;
use crate::frontends::cli::terminal::confirm::{Confirmation, ConfirmationPrompt, ConfirmedBy};
use crate::host::snapshot::{ContentHash, FileChange};
use crate::host::workspace::Workspace;
use crate::record::event::{Canonical, SubagentEventKind};
use crate::record::history::History;
use crate::record::log::Log;

/// Shown files.
const SHOWN_ROWS: usize = 50;

/// Merge a child's changes into the Workspace of its parent
#[derive(Debug, Args)]
#[command(
    // The name of the model's tool, which people copy from a Log.
    visible_alias = "merge_child",
    alias = "merge-child",
    override_usage = "pixir merge [OPTIONS] [ID] [--undo]",
    long_about = "Merge what a child Session changed in its own Workspace into the Workspace of its parent.\n\n\
        Files that the parent has not changed since are copied; text that both changed is merged line by line. If \
        anything conflicts, all conflicts are listed and nothing is written. The merge is recorded in the parent's \
        Log, and --undo reverts it. (A merge that the model made in a Turn is undone with that Turn: `pixir undo`.) \
        On a terminal you are asked first; elsewhere --yes is needed.",
    after_long_help = "Examples:\n  pixir merge 20260721T101112-abcdef --dry-run\n  \
        pixir merge 20260721T101112-abcdef --yes\n  pixir merge 20260721T101112-abcdef --undo"
)]
pub struct MergeArgs {
    /// Child Session, by its name in the parent's Log, its Session id, or the beginning or end of that id; default: the
    /// only child of this Workspace that has its own
    #[arg(value_name = "ID")]
    id: Option<String>,
    /// Undo the last merge of this child
    #[arg(long)]
    undo: bool,
    #[command(flatten)]
    confirmation: Confirmation,
}

pub fn merge(args: &MergeArgs, context: &CliContext) -> Result<Exit, Report> {
    let named = find_child_or_only(args.id.as_deref(), context)?;
    if context.flags.dry_run {
        let reading = Log::read(&named.state_root, named.child_workspace.parent())?;
        let history = History::from_events(reading.events);
        let parent = parent_workspace(&named.child_workspace, &history, context)?;
        let done = if args.undo {
            let (transaction, _) = last_merge(&named.child_workspace, &history)?;
            MergeSummary::from_transaction(&transaction.inverse(), true)
        } else {
            MergeSummary::from_merge(&plan_merge(&named.child_workspace, &parent)?.0, true)
        };
        return print_summary(&done, context);
    }
    in_runtime(async {
        let (logs, id) = (&named.state_root, named.child_workspace.parent());
        let (session, _) = Session::open(logs, id, session_options(&named.config))?;
        let history = session.history().await?;
        let parent = parent_workspace(&named.child_workspace, &history, context)?;
        recover_merge(&named.child_workspace, &parent, context)?;
        let command = if args.undo { "merge --undo" } else { "merge" };
        let command = format!("{command} {}", named.child_workspace.child());
        let confirm = |summary: &MergeSummary, words: &str| {
            let question =
                ConfirmationPrompt { plan: &summary.text(), question: words, command: &command };
            args.confirmation.ask_user(&question, context)
        };
        let (what, done) = if args.undo {
            undo_merge(&named, &parent, &history, &confirm)?
        } else {
            merge_into_parent(&named, &parent, &confirm)?
        };
        if let Some(done) = done {
            let fact = if args.undo {
                child_workspace::merge_taken_back_event
            } else {
                child_workspace::merged_event
            };
            session.record(fact(&named.child_workspace, &done)).await?;
            done.mark_recorded();
        }
        print_summary(&what, context)
    })
}

/// The parent's Workspace, with the bounds that its Session has.
fn parent_workspace(
    child_workspace: &ChildWorkspace,
    history: &History,
    context: &CliContext,
) -> Result<Workspace, Report> {
    let roles = context.roles(child_workspace.parent_workspace())?;
    let bounds = recorded_bounds(history, &roles)?;
    let opened = Workspace::open(child_workspace.parent_workspace());
    Ok(opened?.with_bounds(bounds))
}

/// Rolls back what an interrupted merge had written.
fn recover_merge(
    child_workspace: &ChildWorkspace,
    parent: &Workspace,
    context: &CliContext,
) -> Result<(), Report> {
    let recovered = child_workspace::recover_merge(
        parent,
        &child_workspace.store(),
        &child_workspace.parent_folder(),
    );
    let recovered =
        recovered.map_err(|error| Report::describe(&ChildWorkspaceError::Storage(error)))?;
    if let Some(recovered) = recovered {
        context.print_notice(&recovered.to_string());
    }
    Ok(())
}

fn plan_merge(
    child_workspace: &ChildWorkspace,
    parent: &Workspace,
) -> Result<(MergePlan, ChildChanges), Report> {
    let changes = child_workspace.find_changes(parent)?;
    let merge = child_workspace.plan_merge(&changes, parent, &|_| false);
    Ok((merge?, changes))
}

/// Asks the user to confirm a merge or its undo.
type ConfirmMerge<'a> = &'a dyn Fn(&MergeSummary, &str) -> Result<ConfirmedBy, Report>;

fn merge_into_parent(
    named: &NamedChild,
    parent: &Workspace,
    confirm: ConfirmMerge<'_>,
) -> Result<(MergeSummary, Option<AppliedMerge>), Report> {
    let NamedChild { child_workspace, .. } = named;
    let (merge, changes) = plan_merge(child_workspace, parent)?;
    let mut what = MergeSummary::from_merge(&merge, false);
    if merge.is_up_to_date() {
        return Ok((what, None));
    }
    if merge.conflicts.is_empty() {
        what.is_shown = confirm(&what, "Merge this?")? == ConfirmedBy::Terminal;
    }
    let carried =
        child_workspace.apply_merge(&merge, &changes, parent, None, &CancellationToken::new());
    Ok((what, Some(carried?)))
}

fn undo_merge(
    named: &NamedChild,
    parent: &Workspace,
    history: &History,
    confirm: ConfirmMerge<'_>,
) -> Result<(MergeSummary, Option<AppliedMerge>), Report> {
    let NamedChild { child_workspace, .. } = named;
    let (transaction, record) = last_merge(child_workspace, history)?;
    transaction.refuse_foreign_changes(parent)?;
    let mut what = MergeSummary::from_transaction(&transaction.inverse(), false);
    what.is_shown = confirm(&what, "Take this back?")? == ConfirmedBy::Terminal;
    let carried = transaction.roll_back(
        record,
        parent,
        &child_workspace.store(),
        &child_workspace.parent_folder(),
        None,
    );
    let done =
        carried.map_err(|broken| Report::describe(&ChildWorkspaceError::MergeFailed(broken)))?;
    Ok((what, Some(done)))
}

/// The last merge of this child that was not undone.
fn last_merge(
    child_workspace: &ChildWorkspace,
    history: &History,
) -> Result<(MergeTransaction, ContentHash), Report> {
    let mut records: Vec<ContentHash> = Vec::new();
    let child = child_workspace.child().to_string();
    for fact in history.facts() {
        let Canonical::SubagentEvent(event) = fact else { continue };
        if event.child_session_id.as_deref() != Some(&*child) {
            continue;
        }
        let record = || -> Option<ContentHash> {
            serde_json::from_value(event.extra.get("record")?.clone()).ok()
        };
        match event.event {
            SubagentEventKind::Merged => records.extend(record()),
            SubagentEventKind::MergeTakenBack => drop(records.pop()),
            _ => {}
        }
    }
    let Some(record) = records.pop() else {
        return Err(Report::new(Kind::NotFound, format!("no merge of {child} can be taken back")));
    };
    let transaction = MergeTransaction::load(&record, &child_workspace.store())
        .map_err(ChildWorkspaceError::BaseMissing);
    Ok((transaction?, record))
}

/// A merge, or the undo of one, as shown to the user.
struct MergeSummary {
    is_dry: bool,
    lines: Vec<String>,
    conflicts: Vec<String>,
    json: Value,
    is_undo: bool,
    /// Whether the confirmation question has shown the lines.
    is_shown: bool,
}

impl MergeSummary {
    fn from_merge(merge: &MergePlan, is_dry: bool) -> Self {
        let mut lines = Vec::new();
        for change in &merge.files {
            let verb = match (&change.from, &change.to) {
                (_, None) => "remove",
                (None, Some(_)) => "make  ",
                (Some(_), Some(_)) if merge.merged_by_line.contains(&change.path) => "merge ",
                (Some(_), Some(_)) => "change",
            };
            lines.push(format!("{verb} {}", escape_path(&change.path)));
        }
        let folders =
            merge.folders.iter().map(|folder| format!("folder {}/", escape_path(&folder.path)));
        lines.extend(folders);
        let conflict = |it: &child_workspace::MergeConflict| {
            format!("{}: {}", escape_path(&it.path), it.reason)
        };
        let conflicts = merge.conflicts.iter().map(conflict).collect();
        Self { is_dry, lines, conflicts, json: merge.to_json(), is_undo: false, is_shown: false }
    }

    fn from_transaction(back: &MergeTransaction, is_dry: bool) -> Self {
        let files: Vec<_> = back.files().map(Path::to_string_lossy).collect();
        let line = |step: &MergeStep| match step {
            MergeStep::File(FileChange { path, to: None, .. }) => {
                Some(format!("remove  {}", escape_path(path)))
            }
            MergeStep::File(FileChange { path, from: None, .. }) => {
                Some(format!("make    {}", escape_path(path)))
            }
            MergeStep::File(FileChange { path, .. }) => {
                Some(format!("restore {}", escape_path(path)))
            }
            MergeStep::Folder(_) => None,
        };
        let lines = back.steps.iter().filter_map(line).collect();
        let json = json!({ "files": files });
        let conflicts = Vec::new();
        Self { is_dry, lines, conflicts, json, is_undo: true, is_shown: false }
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for line in self.lines.iter().take(SHOWN_ROWS) {
            writeln!(text, "  {line}").ok();
        }
        if self.lines.len() > SHOWN_ROWS {
            writeln!(text, "  and {} more", self.lines.len() - SHOWN_ROWS).ok();
        }
        for conflict in &self.conflicts {
            writeln!(text, "  ! {conflict}").ok();
        }
        text
    }
}

fn print_summary(summary: &MergeSummary, context: &CliContext) -> Result<Exit, Report> {
    let mut output = summary.json.clone();
    output["dry_run"] = json!(summary.is_dry);
    output["undo"] = json!(summary.is_undo);
    let mut text = if summary.is_shown { String::new() } else { summary.text() };
    text.push_str(
        match (summary.lines.is_empty() && summary.conflicts.is_empty(), summary.is_dry) {
            (true, _) => "there is nothing to merge\n",
            (_, true) if !summary.conflicts.is_empty() => {
                "nothing would be merged, because of the conflicts (dry run)\n"
            }
            (_, true) => "nothing was changed (dry run)\n",
            (_, false) if summary.is_undo => "taken back\n",
            (_, false) => "merged\n",
        },
    );
    context.print_result("merge", &text, output)
}
