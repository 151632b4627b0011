//! Other ways: Turns taken back and brought back, and another Session from here, for a front-end
//! that has the Session open.

use std::path::{Path, PathBuf};

use super::Harness;
use crate::conversation::Conversation;
use crate::disk;
use crate::error::{Kind, Report, counted};
use crate::fork::{Cut, check_place, fork};
use crate::history::History;
use crate::id::SessionId;
use crate::projection;
use crate::rewind::{Rewind, Site};
use crate::snapshot::{Change, Limits};

/// How many Subagents an error names.
const NAMED: usize = 10;

/// Which way a Session is taken through its Turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// So many of the last Turns are taken back.
    Back(usize),
    /// What was taken back last comes back.
    Forward,
}

/// What was taken back or brought back.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rewound {
    /// What the user had said in each Turn, the oldest first.
    pub turns: Vec<String>,
    /// What was done to which file.
    pub files: Vec<(Done, PathBuf)>,
    /// What is not covered.
    pub notes: Vec<String>,
}

/// What was done to a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Done {
    Removed,
    Made,
    Restored,
}

impl Harness {
    /// Takes Turns back or brings them back, files and conversation, as `pixir undo` does. What
    /// was changed outside this session, or while a command ran, is named, and then nothing happens unless
    /// the user insists with `force`. No Turn may run meanwhile, nor may
    /// children, which could write what was just taken back.
    pub async fn rewind(
        &self,
        conversation: &Conversation,
        way: Way,
        force: bool,
    ) -> Result<Rewound, Report> {
        let session = conversation.session();
        let children = self.children(conversation).await;
        let at_work = children.iter().filter(|view| !view.record.status.is_over());
        let at_work: Vec<&str> = at_work.map(|view| view.record.id.as_str()).collect();
        if !at_work.is_empty() {
            return Err(busy(&at_work));
        }
        let history = session.history().await?;
        let settings = conversation.settings();
        let workspace = settings.workspace.clone();
        let session_folder = settings.session_folder.clone();
        let (home, own) = (&self.config.home, session_folder.root());
        let neighbours = projection::roots_around(home, workspace.root(), own);
        let limits = Limits::of(self.config.undo);
        let site = Site { workspace, session_folder, limits, neighbours };
        let done = disk::work(move || take(&history, way, force, &site)).await;
        let (rewind, fact) =
            done.map_err(|error| Report::new(Kind::Crashed, error.to_string()))??;
        session.record(fact).await?;
        let done = |change: &Change| {
            let done = match (&change.from, &change.to) {
                (_, None) => Done::Removed,
                (None, Some(_)) => Done::Made,
                (Some(_), Some(_)) => Done::Restored,
            };
            (done, change.path.clone())
        };
        let conflicts = rewind.plan.conflicts.iter().map(|conflict| &conflict.change);
        let all = rewind.plan.changes.iter().chain(conflicts);
        Ok(Rewound {
            turns: rewind.turns.iter().map(|(_, words)| words.clone()).collect(),
            files: all.map(done).collect(),
            notes: rewind.plan.notes,
        })
    }

    /// Branches off a Session of a Workspace at its end, which may be open meanwhile; gives the
    /// name of the new one.
    pub async fn branch(&self, workspace: &Path, parent: &SessionId) -> Result<SessionId, Report> {
        let workspace = workspace.canonicalize().unwrap_or_else(|_| workspace.to_owned());
        let parent = parent.clone();
        let root = self.state(&workspace).root_of(&parent);
        check_place(&self.annexes, &root, &parent)?;
        let to = root.for_fork(&self.config.home);
        let forking = move || fork(&root, &to, &parent, Cut::End, false, false);
        let forked = disk::work(forking).await;
        let forked = forked.map_err(|error| Report::new(Kind::Crashed, error.to_string()))??;
        let nameless = || Report::new(Kind::Internal, "the branch has no name");
        forked.session_id.ok_or_else(nameless)
    }
}

/// Subagents are at work.
fn busy(ids: &[&str]) -> Report {
    let (shown, count) = (ids.iter().take(NAMED).copied().collect::<Vec<_>>(), ids.len());
    let more = count - shown.len();
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let message = format!("Subagents are at work: {}{more}", shown.join(", "));
    let next = "wait until they are done, or cancel them first".to_owned();
    Report::new(Kind::Busy, message).with_next_actions(vec![next])
}

/// Changes the files, and says what the Log is told; reads and writes the disk.
fn take(
    history: &History,
    way: Way,
    force: bool,
    site: &Site,
) -> Result<(Rewind, crate::event::Canonical), Report> {
    let rewind = match way {
        Way::Back(count) => Rewind::back(history, count, site),
        Way::Forward => Rewind::forward(history, site),
    }?;
    rewind.check(force, site)?;
    let restored = rewind.restore(site)?;
    if let Some((path, reason)) = restored.failed.first() {
        let (files, path) = (counted(restored.failed.len(), "file"), path.display());
        let message = format!(
            "{files} could not be changed, such as {path}: {reason}; the conversation was left as it is"
        );
        return Err(Report::new(Kind::WriteFailed, message));
    }
    let fact = rewind.fact(&restored);
    Ok((rewind, fact))
}
