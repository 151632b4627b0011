//! A merge as a transaction: reversible steps, and a journal that lets another process roll them back.
//!
//! The journal is on disk before the first step and is removed once the Log has the merge. A process that
//! finds a journal of a merge that is not in the Log rolls it back: the process died or the call was ended.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tokio::sync::{Mutex, MutexGuard};
use tokio_util::sync::CancellationToken;

use super::ChildWorkspaceError;
use super::changes::escape_path;
use super::merge_plan::MergePlan;
use crate::base::files::{StateDir, StatePath};
use crate::base::id::{SessionId, is_hex};
use crate::host::snapshot::{
    ContentHash, ContentStore, FileChange, FolderChange, RawPath, RestorePlan, TurnTracker,
    read_state, restore,
};
use crate::host::workspace::Workspace;
use crate::record::event::{Canonical, EventKind, SubagentEventKind};
use crate::record::log::Log;
use crate::record::state_dir::SessionFolder;

/// The journal, in the folder of a Session's snapshots: contents that a file there names are kept by
/// garbage collection.
const JOURNAL: &str = "merge.json";
/// The folder of the journal, in the folder of a Session.
const JOURNAL_FOLDER: &str = "snapshots";
/// The largest journal that is read, in bytes.
const MAX_JOURNAL_BYTES: u64 = 256 << 20;
/// The temporary name of the journal while it is written.
const JOURNAL_DRAFT: &str = "merge.draft";

/// The suffix of the temporary names of restored files.
const RESTORE_DRAFT_SUFFIX: &str = ".pixir-undo";

/// Serialises merges and rollbacks in this process: a Session has one journal, and a task that waited for
/// its lock would block a thread that the holder of the lock may need.
static MERGE_LOCK: Mutex<()> = Mutex::const_new(());

/// Waits for the lock on merges in this process, and holds it until the guard is dropped.
pub async fn merge_lock() -> MutexGuard<'static, ()> {
    MERGE_LOCK.lock().await
}

/// Whether a Session has the journal of a merge that may be missing in its Log.
pub fn has_pending_merge(session_folder: &SessionFolder) -> bool {
    let folder = session_folder.join(JOURNAL_FOLDER).open().ok().flatten();
    folder.is_some_and(|folder| folder.stat(JOURNAL).is_ok_and(|found| found.is_some()))
}

/// All steps of one merge.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MergeTransaction {
    /// Distinguishes transactions with the same steps.
    #[serde(default)]
    name: String,
    pub child: SessionId,
    /// The Workspace whose files are changed.
    pub workspace: RawPath,
    pub steps: Vec<MergeStep>,
}

/// The content of the journal file.
#[derive(Debug, Serialize, Deserialize)]
struct MergeJournal {
    #[serde(flatten)]
    transaction: MergeTransaction,
    /// The kind of the Event that confirms the merge in the Log, and the record that the Event names.
    #[serde(default)]
    fact: Option<(SubagentEventKind, ContentHash)>,
}

/// A merge that is applied but not yet in the Log. The journal stays, and so the merge is rolled back
/// later, unless `mark_recorded` is called.
#[must_use]
#[derive(Debug)]
pub struct AppliedMerge {
    pub transaction: MergeTransaction,
    /// The hash of the merge's `MergeTransaction` in the store.
    pub record: ContentHash,
    journal: StatePath,
    /// The locked journal: while it is locked, no other process rolls the merge back.
    _lock: File,
}

impl AppliedMerge {
    /// Removes the journal, because the merge is in the Log.
    pub fn mark_recorded(self) {
        remove_journal(&self.journal).ok();
    }
}

/// One reversible step of a merge.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MergeStep {
    File(FileChange),
    Folder(FolderChange),
}

/// A merge that failed and was rolled back.
#[derive(Debug)]
pub struct MergeFailure {
    pub path: PathBuf,
    pub reason: String,
    /// Paths that could not be rolled back, with the reason.
    pub left: Vec<(PathBuf, String)>,
}

impl MergeTransaction {
    /// The steps of a merge plan, in an order in which no step obstructs another.
    pub fn from_merge(merge: &MergePlan, child: &SessionId, workspace: &Workspace) -> Self {
        let (gone, put): (Vec<&FileChange>, Vec<&FileChange>) =
            merge.files.iter().partition(|change| change.to.is_none());
        let file = |change: &&FileChange| MergeStep::File((*change).clone());
        let (mut opened, mut removed, mut new, mut changed) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for FolderChange { path, from, to } in &merge.folders {
            let step = |from, to| MergeStep::Folder(FolderChange { path: path.clone(), from, to });
            match (*from, *to) {
                (_, None) => removed.push(step(*from, None)),
                (Some(old), Some(mode)) if old & 0o700 == 0o700 => {
                    changed.push(step(Some(old), Some(mode)));
                }
                // Files are written into the folder before its mode may forbid writing, or after it did.
                (from, Some(mode)) => {
                    let open = mode | 0o700;
                    let first = if from.is_some() { &mut opened } else { &mut new };
                    first.push(step(from, Some(open)));
                    changed.extend((open != mode).then(|| step(Some(open), Some(mode))));
                }
            }
        }
        removed.reverse();
        changed.reverse();
        let steps = opened.into_iter().chain(gone.iter().map(file)).chain(removed).chain(new);
        let steps = steps.chain(put.iter().map(file)).chain(changed).collect();
        let workspace = RawPath(workspace.root().to_owned());
        Self { name: random_name(), child: child.clone(), workspace, steps }
    }

    /// The transaction that undoes this one.
    #[must_use]
    pub fn inverse(&self) -> Self {
        let steps = self.steps.iter().rev().cloned().map(|step| match step {
            MergeStep::File(FileChange { path, from, to }) => {
                MergeStep::File(FileChange { path, from: to, to: from })
            }
            MergeStep::Folder(FolderChange { path, from, to }) => {
                MergeStep::Folder(FolderChange { path, from: to, to: from })
            }
        });
        Self { name: random_name(), steps: steps.collect(), ..self.clone() }
    }

    /// The paths of all file steps.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        self.steps.iter().filter_map(|step| match step {
            MergeStep::File(change) => Some(change.path.as_path()),
            MergeStep::Folder(_) => None,
        })
    }

    /// Refuses to roll back when a file is neither in its old nor in its merged state.
    pub fn refuse_foreign_changes(&self, workspace: &Workspace) -> Result<(), ChildWorkspaceError> {
        let is_changed_elsewhere = |step: &&MergeStep| match step {
            MergeStep::File(FileChange { path, from, to }) => {
                !read_state(workspace, path, None).is_ok_and(|now| now == *from || now == *to)
            }
            MergeStep::Folder(_) => false,
        };
        let changed_elsewhere: Vec<PathBuf> = self
            .steps
            .iter()
            .filter(is_changed_elsewhere)
            .map(|step| step.path().to_owned())
            .collect();
        if changed_elsewhere.is_empty() {
            Ok(())
        } else {
            Err(ChildWorkspaceError::ForeignChanges(changed_elsewhere))
        }
    }

    /// Reads the transaction that is stored under a hash.
    pub fn load(hash: &ContentHash, store: &ContentStore) -> io::Result<Self> {
        Ok(serde_json::from_slice(&store.get(hash)?)?)
    }

    /// Applies all steps, or none when one fails or `stop` is cancelled. The transaction is kept in the
    /// store, so that the merge can be rolled back later.
    pub fn apply(
        self,
        workspace: &Workspace,
        store: &ContentStore,
        session_folder: &SessionFolder,
        tracker: Option<&TurnTracker>,
        stop: &CancellationToken,
    ) -> Result<AppliedMerge, MergeFailure> {
        let kept = serde_json::to_vec(&self).map_err(io::Error::from);
        let record = kept.and_then(|text| store.put(&text));
        let record = record.map_err(|error| failure_at(&session_folder.path(), &error))?;
        self.apply_steps(
            (SubagentEventKind::Merged, record),
            (workspace, store),
            session_folder,
            tracker,
            stop,
        )
    }

    /// Rolls this transaction back, all steps or none; `record` is its hash in the store.
    pub fn roll_back(
        &self,
        record: ContentHash,
        workspace: &Workspace,
        store: &ContentStore,
        session_folder: &SessionFolder,
        tracker: Option<&TurnTracker>,
    ) -> Result<AppliedMerge, MergeFailure> {
        let (back, fact) = (self.inverse(), (SubagentEventKind::MergeTakenBack, record));
        let never = CancellationToken::new();
        let done = back.apply_steps(fact, (workspace, store), session_folder, tracker, &never)?;
        Ok(AppliedMerge { transaction: self.clone(), ..done })
    }

    fn apply_steps(
        self,
        fact: (SubagentEventKind, ContentHash),
        (workspace, store): (&Workspace, &ContentStore),
        session_folder: &SessionFolder,
        tracker: Option<&TurnTracker>,
        stop: &CancellationToken,
    ) -> Result<AppliedMerge, MergeFailure> {
        let place = session_folder.join(JOURNAL_FOLDER);
        let record = fact.1;
        let journal = MergeJournal { transaction: self, fact: Some(fact) };
        let lock = journal
            .write(&place)
            .map_err(|error| failure_at(&place.path().join(JOURNAL), &error))?;
        let MergeJournal { transaction, .. } = journal;
        if let Some(tracker) = tracker {
            transaction
                .files()
                .for_each(|path| log_tracking_error(tracker.before_write(path, None), path));
        }
        let mut done = Self { steps: Vec::new(), ..transaction.clone() };
        for step in &transaction.steps {
            let taken = if stop.is_cancelled() {
                Err(io::Error::other("the merge was stopped"))
            } else {
                step.apply(workspace, store)
            };
            match taken {
                Ok(true) => done.steps.push(step.clone()),
                Ok(false) => {}
                Err(error) => {
                    let left = done.inverse().apply_best_effort(workspace, store);
                    remove_journal(&place).ok();
                    return Err(MergeFailure { left, ..failure_at(step.path(), &error) });
                }
            }
        }
        if let Some(tracker) = tracker {
            transaction
                .files()
                .for_each(|path| log_tracking_error(tracker.after_change(path), path));
            for step in &done.steps {
                if let MergeStep::Folder(folder) = step {
                    log_tracking_error(tracker.folder_changed(folder.clone()), &folder.path);
                }
            }
        }
        Ok(AppliedMerge { transaction, record, journal: place, _lock: lock })
    }

    /// Applies every step that works, and returns the others with the reason.
    fn apply_best_effort(
        &self,
        workspace: &Workspace,
        store: &ContentStore,
    ) -> Vec<(PathBuf, String)> {
        let failed = |step: &MergeStep| {
            let error = step.apply(workspace, store).err()?;
            Some((step.path().to_owned(), error.to_string()))
        };
        self.steps.iter().filter_map(failed).collect()
    }

    /// Removes temporary files that a killed process left next to the files.
    fn remove_drafts(&self, workspace: &Workspace) {
        let folders: std::collections::BTreeSet<PathBuf> =
            self.files().map(|path| path.parent().unwrap_or(Path::new("")).to_owned()).collect();
        for folder in folders {
            for name in workspace.sibling_names(&folder.join("any")) {
                let middle = name.to_str().and_then(|name| {
                    name.strip_prefix('.').and_then(|it| it.strip_suffix(RESTORE_DRAFT_SUFFIX))
                });
                if middle.is_some_and(|middle| is_hex(middle, 16))
                    && let Ok((folder, name)) = workspace.open_parent_no_follow(&folder.join(&name))
                {
                    rustix::fs::unlinkat(folder, name, rustix::fs::AtFlags::empty()).ok();
                }
            }
        }
    }
}

impl MergeJournal {
    /// Writes the journal. It is locked before it has its name, and until the returned file is closed.
    fn write(&self, place: &StatePath) -> io::Result<File> {
        let folder = place.create()?;
        let text = serde_json::to_vec(self)?;
        let mut file = lock_draft(&folder)?;
        let written = file.write_all(&text).and_then(|()| file.sync_data());
        // An existing journal is not replaced.
        let written = written.and_then(|()| Ok(folder.link(JOURNAL_DRAFT, JOURNAL)?));
        folder.remove_file(JOURNAL_DRAFT).ok();
        written?;
        folder.sync().ok();
        Ok(file)
    }

    /// Whether the Session's Log has the merge.
    fn is_recorded(&self, session_folder: &SessionFolder) -> io::Result<bool> {
        let Some((name, record)) = &self.fact else { return Ok(false) };
        let reading = Log::read(session_folder.root(), session_folder.id());
        let reading = reading.map_err(io::Error::other)?;
        Ok(reading.events.iter().any(|event| match event.kind() {
            EventKind::Canonical(Canonical::SubagentEvent(life)) if life.event == *name => {
                life.extra.get("record").and_then(|it| it.as_str()) == Some(&*record.to_string())
            }
            _ => false,
        }))
    }
}

/// Opens and locks the draft of the journal, empty; a draft that a dead process left is reused.
fn lock_draft(folder: &StateDir) -> io::Result<File> {
    loop {
        let file = folder.open_lock(JOURNAL_DRAFT)?;
        file.lock()?;
        // The previous holder may have removed the draft meanwhile.
        let own = file.metadata()?;
        let now = folder.stat(JOURNAL_DRAFT)?;
        if now.is_some_and(|now| (own.dev(), own.ino()) == (now.device, now.inode)) {
            file.set_len(0)?;
            return Ok(file);
        }
    }
}

fn remove_journal(place: &StatePath) -> io::Result<()> {
    if let Some(folder) = place.open()? {
        folder.remove_file(JOURNAL)?;
    }
    Ok(())
}

fn random_name() -> String {
    format!("{:016x}", fastrand::u64(..))
}

fn failure_at(path: &Path, error: &io::Error) -> MergeFailure {
    MergeFailure { path: path.to_owned(), reason: error.to_string(), left: Vec::new() }
}

/// Logs a tracking error: a merge is not stopped because it cannot be undone later.
fn log_tracking_error(kept: io::Result<()>, path: &Path) {
    if let Err(error) = kept {
        tracing::warn!(path = %path.display(), %error, "the previous state of a file was not saved");
    }
}

/// A merge that was interrupted and has been rolled back.
#[derive(Debug, PartialEq, Eq)]
pub struct RecoveredMerge {
    pub child: SessionId,
    /// Paths that were not rolled back, because they were changed since or could not be written.
    pub left: Vec<(PathBuf, String)>,
}

impl std::fmt::Display for RecoveredMerge {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a merge of {} was interrupted and rolled back", self.child)?;
        let left: Vec<String> =
            self.left.iter().map(|(path, why)| format!("{} ({why})", escape_path(path))).collect();
        if left.is_empty() { Ok(()) } else { write!(f, ", except {}", left.join(", ")) }
    }
}

/// Rolls back an interrupted merge, if there is one; waits for a merge that is still running.
pub fn recover_merge(
    workspace: &Workspace,
    store: &ContentStore,
    session_folder: &SessionFolder,
) -> io::Result<Option<RecoveredMerge>> {
    let place = session_folder.join(JOURNAL_FOLDER);
    let file = place.open()?.map(|folder| folder.open_file(JOURNAL)).transpose()?;
    let Some(mut file) = file.flatten() else { return Ok(None) };
    file.lock()?;
    if file.metadata()?.len() > MAX_JOURNAL_BYTES {
        return Err(io::Error::other(
            "the journal of a merge is larger than any that Pixir writes",
        ));
    }
    let mut text = Vec::new();
    file.read_to_end(&mut text)?;
    if file.metadata()?.nlink() == 0 {
        return Ok(None);
    }
    // An incomplete journal means that no step was taken.
    let Ok(journal) = serde_json::from_slice::<MergeJournal>(&text) else {
        remove_journal(&place)?;
        return Ok(None);
    };
    if journal.is_recorded(session_folder)? {
        remove_journal(&place)?;
        return Ok(None);
    }
    let MergeJournal { transaction, .. } = journal;
    transaction.remove_drafts(workspace);
    let left = transaction.inverse().apply_best_effort(workspace, store);
    remove_journal(&place)?;
    Ok(Some(RecoveredMerge { child: transaction.child, left }))
}

impl MergeStep {
    fn path(&self) -> &Path {
        match self {
            MergeStep::File(FileChange { path, .. })
            | MergeStep::Folder(FolderChange { path, .. }) => path,
        }
    }

    /// Applies the step; false when there was nothing to do.
    fn apply(&self, workspace: &Workspace, store: &ContentStore) -> io::Result<bool> {
        let mut plan = RestorePlan::default();
        match self {
            MergeStep::File(change) => {
                let now = read_state(workspace, &change.path, None)?;
                if now == change.to {
                    return Ok(false);
                }
                if now != change.from {
                    return Err(io::Error::other("it was changed meanwhile"));
                }
                plan.changes.push(change.clone());
            }
            MergeStep::Folder(FolderChange { path, from, to }) => match (from, to) {
                (None, to) => plan.make_folders.push((path.clone(), *to)),
                // Removal fails for a folder that is not empty, so foreign files stay.
                (Some(_), None) => plan.remove_folders.push(path.clone()),
                (Some(_), Some(mode)) => plan.folder_modes.push((path.clone(), *mode)),
            },
        }
        match restore(&plan, workspace, store).failed.pop() {
            Some((_, reason)) => Err(io::Error::other(reason)),
            None => Ok(true),
        }
    }
}
