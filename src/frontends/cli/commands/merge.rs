//! `pixir merge`: merge a child's changes into the Workspace of its parent, or undo a merge.

use std::fmt::Write;
use std::path::Path;

use clap::Args;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::changes::{Named, named_or_only};
use super::undo::manners;
use crate::agent::child_workspace;
use crate::agent::child_workspace::{Annex, AnnexError, Changes, Deed, Done, Merge, Step, shown};
use crate::agent::harness::bounds_of;
use crate::agent::session::Session;
use crate::base::error::{Kind, Report};
use crate::frontends::cli::Context;
use crate::frontends::cli::exit::Exit;
use crate::frontends::cli::runner::in_runtime;
use crate::frontends::cli::terminal::confirm::{Agreed, Confirmation, Question};
use crate::host::snapshot::{Change, Hash};
use crate::host::workspace::Workspace;
use crate::record::event::{Canonical, SubagentEventKind};
use crate::record::history::History;
use crate::record::log::Log;

/// Shown files.
const SHOWN: usize = 50;

/// Merge a child's changes into the Workspace of its parent
#[derive(Debug, Args)]
#[command(
    // The name of the model's tool, which people copy from a Log.
    visible_alias = "merge_child",
    alias = "merge-child",
    override_usage = "pixir merge [FLAGS] [ID] [--undo]",
    long_about = "Merge what a child Session changed in its own Workspace into the Workspace of its parent.\n\n\
        Files that the parent has not changed since are copied; text that both changed is merged line by line. If \
        anything conflicts, all conflicts are listed and nothing is written. The merge is recorded in the parent's \
        Log, and --undo takes it back. (A merge that the model made in a Turn is undone with that Turn: `pixir undo`.) \
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

pub fn merge(args: &MergeArgs, context: &Context) -> Result<Exit, Report> {
    let named = named_or_only(args.id.as_deref(), context)?;
    if context.flags.dry_run {
        let reading = Log::read(&named.logs, named.annex.parent())?;
        let history = History::from_events(reading.events);
        let parent = parent_workspace(&named.annex, &history, context)?;
        let done = if args.undo {
            let (deed, _) = last_merge(&named.annex, &history)?;
            Told::of_deed(&deed.inverse(), true)
        } else {
            Told::of_merge(&plan(&named.annex, &parent)?.0, true)
        };
        return told(&done, context);
    }
    in_runtime(async {
        let (logs, id) = (&named.logs, named.annex.parent());
        let (session, _) = Session::open(logs, id, manners(&named.config))?;
        let history = session.history().await?;
        let parent = parent_workspace(&named.annex, &history, context)?;
        recover(&named.annex, &parent, context)?;
        let command = if args.undo { "merge --undo" } else { "merge" };
        let command = format!("{command} {}", named.annex.child());
        let agree = |told: &Told, words: &str| {
            let question = Question { plan: &told.text(), words, command: &command };
            args.confirmation.ask(&question, context)
        };
        let (what, done) = if args.undo {
            take_back(&named, &parent, &history, &agree)?
        } else {
            bring(&named, &parent, &agree)?
        };
        if let Some(done) = done {
            let fact =
                if args.undo { child_workspace::taken_back } else { child_workspace::merged };
            session.record(fact(&named.annex, &done)).await?;
            done.recorded();
        }
        told(&what, context)
    })
}

/// The parent's Workspace, with the bounds that its Session has.
fn parent_workspace(
    annex: &Annex,
    history: &History,
    context: &Context,
) -> Result<Workspace, Report> {
    let roster = context.roster(annex.parent_workspace())?;
    let bounds = bounds_of(history, &roster)?;
    let opened = Workspace::open(annex.parent_workspace());
    Ok(opened?.bounded(bounds))
}

/// Rolls back what an interrupted merge had written.
fn recover(annex: &Annex, parent: &Workspace, context: &Context) -> Result<(), Report> {
    let recovered = child_workspace::recover(parent, &annex.store(), &annex.parent_folder());
    let recovered = recovered.map_err(|error| Report::describe(&AnnexError::Keep(error)))?;
    if let Some(recovered) = recovered {
        context.notice(&recovered.to_string());
    }
    Ok(())
}

fn plan(annex: &Annex, parent: &Workspace) -> Result<(Merge, Changes), Report> {
    let changes = annex.changes(parent)?;
    let merge = annex.merge(&changes, parent, &|_| false);
    Ok((merge?, changes))
}

/// Asks the user to confirm a merge or its undo.
type Agree<'a> = &'a dyn Fn(&Told, &str) -> Result<Agreed, Report>;

fn bring(
    named: &Named,
    parent: &Workspace,
    agree: Agree<'_>,
) -> Result<(Told, Option<Done>), Report> {
    let Named { annex, .. } = named;
    let (merge, changes) = plan(annex, parent)?;
    let mut what = Told::of_merge(&merge, false);
    if merge.is_done() {
        return Ok((what, None));
    }
    if merge.conflicts.is_empty() {
        what.is_shown = agree(&what, "Merge this?")? == Agreed::OnTerminal;
    }
    let carried = annex.carry_out(&merge, &changes, parent, None, &CancellationToken::new());
    Ok((what, Some(carried?)))
}

fn take_back(
    named: &Named,
    parent: &Workspace,
    history: &History,
    agree: Agree<'_>,
) -> Result<(Told, Option<Done>), Report> {
    let Named { annex, .. } = named;
    let (deed, record) = last_merge(annex, history)?;
    deed.refuse_strangers(parent)?;
    let mut what = Told::of_deed(&deed.inverse(), false);
    what.is_shown = agree(&what, "Take this back?")? == Agreed::OnTerminal;
    let carried = deed.take_back(record, parent, &annex.store(), &annex.parent_folder(), None);
    let done = carried.map_err(|broken| Report::describe(&AnnexError::Broken(broken)))?;
    Ok((what, Some(done)))
}

/// The last merge of this child that was not undone.
fn last_merge(annex: &Annex, history: &History) -> Result<(Deed, Hash), Report> {
    let mut records: Vec<Hash> = Vec::new();
    let child = annex.child().to_string();
    for fact in history.facts() {
        let Canonical::SubagentEvent(event) = fact else { continue };
        if event.child_session_id.as_deref() != Some(&*child) {
            continue;
        }
        let record =
            || -> Option<Hash> { serde_json::from_value(event.extra.get("record")?.clone()).ok() };
        match event.event {
            SubagentEventKind::Merged => records.extend(record()),
            SubagentEventKind::MergeTakenBack => drop(records.pop()),
            _ => {}
        }
    }
    let Some(record) = records.pop() else {
        return Err(Report::new(Kind::NotFound, format!("no merge of {child} can be taken back")));
    };
    let deed = Deed::kept(&record, &annex.store()).map_err(AnnexError::Lost);
    Ok((deed?, record))
}

/// A merge, or the undo of one, as shown to the user.
struct Told {
    is_dry: bool,
    lines: Vec<String>,
    conflicts: Vec<String>,
    facts: Value,
    is_back: bool,
    /// Whether the confirmation question has shown the lines.
    is_shown: bool,
}

impl Told {
    fn of_merge(merge: &Merge, is_dry: bool) -> Self {
        let mut lines = Vec::new();
        for change in &merge.files {
            let verb = match (&change.from, &change.to) {
                (_, None) => "remove",
                (None, Some(_)) => "make  ",
                (Some(_), Some(_)) if merge.woven.contains(&change.path) => "merge ",
                (Some(_), Some(_)) => "change",
            };
            lines.push(format!("{verb} {}", shown(&change.path)));
        }
        let folders = merge.folders.iter().map(|folder| format!("folder {}/", shown(&folder.path)));
        lines.extend(folders);
        let conflict =
            |it: &child_workspace::Conflict| format!("{}: {}", shown(&it.path), it.reason);
        let conflicts = merge.conflicts.iter().map(conflict).collect();
        Self { is_dry, lines, conflicts, facts: merge.json(), is_back: false, is_shown: false }
    }

    fn of_deed(back: &Deed, is_dry: bool) -> Self {
        let files: Vec<_> = back.files().map(Path::to_string_lossy).collect();
        let line = |step: &Step| match step {
            Step::File(Change { path, to: None, .. }) => Some(format!("remove  {}", shown(path))),
            Step::File(Change { path, from: None, .. }) => Some(format!("make    {}", shown(path))),
            Step::File(Change { path, .. }) => Some(format!("restore {}", shown(path))),
            Step::Folder(_) => None,
        };
        let lines = back.steps.iter().filter_map(line).collect();
        let facts = json!({ "files": files });
        let conflicts = Vec::new();
        Self { is_dry, lines, conflicts, facts, is_back: true, is_shown: false }
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for line in self.lines.iter().take(SHOWN) {
            writeln!(text, "  {line}").ok();
        }
        if self.lines.len() > SHOWN {
            writeln!(text, "  and {} more", self.lines.len() - SHOWN).ok();
        }
        for conflict in &self.conflicts {
            writeln!(text, "  ! {conflict}").ok();
        }
        text
    }
}

fn told(told: &Told, context: &Context) -> Result<Exit, Report> {
    let mut output = told.facts.clone();
    output["dry_run"] = json!(told.is_dry);
    output["undo"] = json!(told.is_back);
    let mut text = if told.is_shown { String::new() } else { told.text() };
    text.push_str(match (told.lines.is_empty() && told.conflicts.is_empty(), told.is_dry) {
        (true, _) => "there is nothing to merge\n",
        (_, true) if !told.conflicts.is_empty() => {
            "nothing would be merged, because of the conflicts (dry run)\n"
        }
        (_, true) => "nothing was changed (dry run)\n",
        (_, false) if told.is_back => "taken back\n",
        (_, false) => "merged\n",
    });
    context.told("merge", &text, output)
}
