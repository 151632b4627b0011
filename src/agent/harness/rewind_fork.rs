//! Undo and redo of Turns, and forks, for a front-end that has the Session open.

use std::path::{Path, PathBuf};

use super::Harness;
use crate::agent::conversation::Conversation;
use crate::agent::fork::{ForkPoint, fork_session, refuse_child_workspace};
use crate::agent::inspect;
use crate::agent::rewind::{Rewind, RewindContext};
use crate::base::blocking;
use crate::base::error::{Kind, Report, counted};
use crate::base::id::SessionId;
use crate::host::snapshot::{FileChange, SurveyLimits};
use crate::record::history::History;

/// How many Subagents an error names.
const NAMED: usize = 10;

/// The direction of a rewind: undo or redo.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RewindDirection {
    /// Undo this many of the last Turns.
    Back(usize),
    /// Redo what was undone last.
    Forward,
}

/// The Turns and files that an undo or redo changed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RewindReport {
    /// The user's message of each Turn, oldest first.
    pub turns: Vec<String>,
    /// The changed files, each with the kind of change.
    pub files: Vec<(RewoundFileChange, PathBuf)>,
    /// Notes on changes that are not covered.
    pub notes: Vec<String>,
}

/// The kind of change to a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RewoundFileChange {
    Removed,
    Created,
    Restored,
}

impl Harness {
    /// Undoes or redoes Turns, files and conversation, as `pixir undo` does. Changes made outside
    /// this session, or while a command ran, are conflicts: they are named, and nothing is changed
    /// unless `force` is set. No Turn may run meanwhile, nor may children, which could write what
    /// was just undone.
    pub async fn rewind(
        &self,
        conversation: &Conversation,
        way: RewindDirection,
        force: bool,
    ) -> Result<RewindReport, Report> {
        let session = conversation.session();
        let children = self.children(conversation).await;
        let at_work = children.iter().filter(|view| !view.record.status.is_over());
        let at_work: Vec<&str> = at_work.map(|view| view.record.id.as_str()).collect();
        if !at_work.is_empty() {
            return Err(busy_report(&at_work));
        }
        let history = session.history().await?;
        let settings = conversation.settings();
        let workspace = settings.workspace.clone();
        let session_folder = settings.session_folder.clone();
        let (home, own) = (&self.config.home, session_folder.root());
        let other_roots = inspect::roots_around(home, workspace.root(), own);
        let limits = SurveyLimits::from_undo_settings(self.config.undo);
        let context = RewindContext { workspace, session_folder, limits, other_roots };
        let done =
            blocking::run_blocking(move || rewind_files(&history, way, force, &context)).await;
        let (rewind, fact) =
            done.map_err(|error| Report::new(Kind::Crashed, error.to_string()))??;
        session.record(fact).await?;
        let done = |change: &FileChange| {
            let done = match (&change.from, &change.to) {
                (_, None) => RewoundFileChange::Removed,
                (None, Some(_)) => RewoundFileChange::Created,
                (Some(_), Some(_)) => RewoundFileChange::Restored,
            };
            (done, change.path.clone())
        };
        let conflicts = rewind.plan.conflicts.iter().map(|conflict| &conflict.change);
        let all = rewind.plan.changes.iter().chain(conflicts);
        Ok(RewindReport {
            turns: rewind.turns.iter().map(|(_, words)| words.clone()).collect(),
            files: all.map(done).collect(),
            notes: rewind.plan.notes,
        })
    }

    /// Forks a Session of a Workspace at its end, also while it is open; returns the id of the
    /// fork.
    pub async fn fork(&self, workspace: &Path, parent: &SessionId) -> Result<SessionId, Report> {
        let workspace = workspace.canonicalize().unwrap_or_else(|_| workspace.to_owned());
        let parent = parent.clone();
        let root = self.resolve_state(&workspace).root_for_session(&parent);
        refuse_child_workspace(&self.child_workspaces, &root, &parent)?;
        let to = root.for_fork(&self.config.home);
        let forking = move || fork_session(&root, &to, &parent, ForkPoint::End, false, false);
        let forked = blocking::run_blocking(forking).await;
        let forked = forked.map_err(|error| Report::new(Kind::Crashed, error.to_string()))??;
        let nameless = || Report::new(Kind::Internal, "the fork has no Session id");
        forked.session_id.ok_or_else(nameless)
    }
}

/// The error for a rewind while Subagents are running.
fn busy_report(ids: &[&str]) -> Report {
    let (shown, count) = (ids.iter().take(NAMED).copied().collect::<Vec<_>>(), ids.len());
    let more = count - shown.len();
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let message = format!("Subagents are at work: {}{more}", shown.join(", "));
    let next = "wait until they are done, or cancel them first".to_owned();
    Report::new(Kind::Busy, message).with_next_actions(vec![next])
}

/// Changes the files, and returns the Event to be recorded. Blocks on the disk.
fn rewind_files(
    history: &History,
    way: RewindDirection,
    force: bool,
    context: &RewindContext,
) -> Result<(Rewind, crate::record::event::Canonical), Report> {
    let rewind = match way {
        RewindDirection::Back(count) => Rewind::plan_undo(history, count, context),
        RewindDirection::Forward => Rewind::plan_redo(history, context),
    }?;
    rewind.check_conflicts(force, context)?;
    let restored = rewind.restore(context)?;
    if let Some((path, reason)) = restored.failed.first() {
        let (files, path) = (counted(restored.failed.len(), "file"), path.display());
        let message = format!(
            "{files} could not be changed, such as {path}: {reason}; the conversation was left as it is"
        );
        return Err(Report::new(Kind::WriteFailed, message));
    }
    let fact = rewind.rewound_event(&restored);
    Ok((rewind, fact))
}
