//! File changes of the tools `write` and `edit`: load a file, apply a change, write it and compare.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::Stat;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::diff::{FileDiff, FileVersions};
use crate::base::blocking::BlockingLimit;
use crate::base::error::{Kind, counted};
use crate::base::tool_error::ToolError;
use crate::host::snapshot::TurnTracker;
use crate::host::workspace::{OpenFile, WorkspaceError, file_version};
use crate::tools::files::read_tracker::{ReadFingerprint, ReadTracker};
use crate::tools::tool::editor::EditorWrite;
use crate::tools::tool::{CallPlan, ToolContext};

/// The largest file that can be changed, in bytes; it is held in memory twice.
pub const MAX_FILE_BYTES: u64 = 64 << 20;
/// The largest file whose change is computed for a plan, which runs on the caller's thread.
pub const MAX_PLANNED_BYTES: u64 = 1 << 20;
/// How many bytes a plan may process, over all steps of the change.
const MAX_PLANNED_WORK: u64 = 16 << 20;
/// How long a comparison may take before it becomes coarse.
pub const COMPARE_TIME: Duration = Duration::from_millis(300);
/// How long a comparison in a plan may take before it becomes coarse.
pub const PLAN_COMPARE_TIME: Duration = Duration::from_millis(50);

/// The writer of file changes of one Session.
#[derive(Debug, Clone, Default)]
pub struct FileRewriter {
    read_tracker: ReadTracker,
}

/// Computes the new content of a file from the old one (`None` if there is no file), with a result for the
/// caller.
pub type ContentChange<'a, T> = &'a dyn Fn(Option<&[u8]>) -> Result<(Vec<u8>, T), ToolError>;

/// The result of a change to a file.
pub struct RewrittenFile {
    pub path: PathBuf,
    pub bytes: usize,
    pub is_new: bool,
    pub difference: FileDiff,
    /// Notes for the model.
    pub notes: Vec<String>,
    fingerprint: ReadFingerprint,
}

impl FileRewriter {
    /// A rewriter that knows which files the Session has read.
    pub fn new(read_tracker: ReadTracker) -> Self {
        Self { read_tracker }
    }

    /// Plans a change of `steps` steps, without making it. The plan of a large file has no diff, because
    /// computing it would take too long.
    pub fn plan<T>(
        &self,
        context: &ToolContext,
        path: &Path,
        steps: usize,
        change: ContentChange<'_, T>,
    ) -> Result<CallPlan, ToolError> {
        let workspace = &context.workspace;
        workspace.check_writable(path)?;
        let shown = workspace.display(path).to_owned();
        let name = shown.display();
        let size = workspace.metadata(path).map_or(0, |stat| stat.st_size);
        let size = u64::try_from(size).unwrap_or_default();
        if size > MAX_PLANNED_BYTES || size.saturating_mul(steps as u64) > MAX_PLANNED_WORK {
            let summary = format!("change {name}, {size} bytes, too many for a preview");
            let paths = vec![shown];
            return Ok(CallPlan::for_edit(summary, paths));
        }
        let current = self.load_current(context, path)?;
        let old = current.as_ref().map(|current| current.bytes.as_slice());
        let (new, _) = change(old)?;
        let verb = if current.is_some() { "change" } else { "create" };
        let versions =
            FileVersions { path: &shown, old_path: None, old: old.unwrap_or_default(), new: &new };
        let difference = FileDiff::compare(versions, &context.secrets, PLAN_COMPARE_TIME);
        let counts = difference.change_counts();
        let others = current.as_ref().and_then(|current| other_names_note(&current.stat));
        let others = others.map(|note| format!("; {note}")).unwrap_or_default();
        let summary = format!("{verb} {name}{counts}{others}");
        let diff_is_cut = difference.is_cut;
        let diff = Some(difference.text);
        let bytes_digest = Some(digest_changes([(old, Some(new.as_slice()))]));
        let paths = vec![shown];
        Ok(CallPlan { diff, diff_is_cut, bytes_digest, ..CallPlan::for_edit(summary, paths) })
    }

    /// Makes the change, completely or not at all.
    pub fn run<T>(
        &self,
        context: &ToolContext,
        path: &Path,
        change: ContentChange<'_, T>,
    ) -> Result<(RewrittenFile, T), ToolError> {
        let workspace = &context.workspace;
        workspace.check_writable(path)?;
        let current = self.load_current(context, path)?;
        let old = current.as_ref().map(|current| current.bytes.as_slice());
        let (new, message) = change(old)?;
        refuse_large(path, new.len() as u64)?;
        let place = match &current {
            Some(current) => current.path.clone(),
            None => workspace.resolve_missing(path),
        };
        if old != Some(new.as_slice()) {
            snapshot_before(context, &place, current.as_ref());
        }
        // Folders are created only now that the change is known to work.
        let mut target = workspace.open_target(path)?;
        let found = target.existing().map(|existing| existing.stat);
        if found.as_ref().map(file_version)
            != current.as_ref().map(|current| file_version(&current.stat))
        {
            return Err(file_changed_error(path));
        }
        let real = target.path().to_owned();
        let is_new = current.is_none();
        let mut notes = Vec::new();
        let print = match found {
            Some(stat) if old == Some(new.as_slice()) => ReadFingerprint::new(&new, &stat),
            _ => {
                notes.extend(found.as_ref().and_then(other_names_note));
                let handover = write_through_editor(context, &real, current.as_ref(), &new)?;
                notes.extend(handover.notes);
                if handover.is_accepted {
                    ReadFingerprint::from_content(&new)
                } else {
                    let replaced = target.replace(&new)?;
                    notes.extend(replaced.notes);
                    ReadFingerprint::new(&new, &replaced.stat)
                }
            }
        };
        snapshot_after(context, &real, Some(&new));
        self.read_tracker.record_file(&real, print.clone());
        let versions =
            FileVersions { path: &real, old_path: None, old: old.unwrap_or_default(), new: &new };
        let difference = FileDiff::compare(versions, &context.secrets, COMPARE_TIME);
        let done = RewrittenFile {
            path: real,
            bytes: new.len(),
            is_new,
            difference,
            notes,
            fingerprint: print,
        };
        Ok((done, message))
    }

    /// The files that the Session has read or written.
    pub fn read_tracker(&self) -> &ReadTracker {
        &self.read_tracker
    }

    /// The current content; an error if it is not what the Session has last read or written.
    pub fn load_current(
        &self,
        context: &ToolContext,
        path: &Path,
    ) -> Result<Option<CurrentFile>, ToolError> {
        let workspace = &context.workspace;
        let mut opened = match workspace.open_file(path) {
            Ok(opened) => opened,
            Err(WorkspaceError::Missing { .. })
                if self.read_tracker.contains(&workspace.resolve_missing(path)) =>
            {
                return Err(file_gone_error(path));
            }
            Err(WorkspaceError::Missing { .. }) => return Ok(None),
            Err(error) => return Err(ToolError::from(error)),
        };
        let mut bytes = load_bytes(&mut opened, path)?;
        let stat = opened.stat;
        let unsaved = context.editor.unsaved_text(&workspace.root().join(&opened.path), &bytes);
        let is_unsaved = unsaved.is_some();
        bytes = unsaved.map_or(bytes, String::into_bytes);
        if self.read_tracker.is_stale(&opened.path, &ReadFingerprint::new(&bytes, &stat)) {
            return Err(file_changed_error(path));
        }
        Ok(Some(CurrentFile { bytes, stat, path: opened.path, is_unsaved }))
    }
}

/// The SHA-256 of the real bytes of files before and after a change; `None` stands for no file.
pub fn digest_changes<'b>(
    files: impl IntoIterator<Item = (Option<&'b [u8]>, Option<&'b [u8]>)>,
) -> [u8; 32] {
    let mut whole = Sha256::new();
    for side in files.into_iter().flat_map(|(old, new)| [old, new]) {
        let own = side.map(Sha256::digest);
        whole.update([u8::from(own.is_some())]);
        whole.update(own.unwrap_or_default());
    }
    whole.finalize().into()
}

/// The current content and metadata of a file.
#[derive(Debug)]
pub struct CurrentFile {
    pub bytes: Vec<u8>,
    pub stat: Stat,
    /// The real path.
    pub path: PathBuf,
    /// Whether the bytes are unsaved text of an editor.
    pub is_unsaved: bool,
}

/// The snapshot tracker for a file of the Workspace. Files with an absolute path are in extra roots,
/// which are not rewound.
fn workspace_tracker<'c>(context: &'c ToolContext, real: &Path) -> Option<&'c TurnTracker> {
    context.tracker.as_ref().filter(|_| real.is_relative())
}

/// Snapshots a file before a change. A failure is only logged: the change goes on, but cannot be undone.
pub fn snapshot_before(context: &ToolContext, real: &Path, current: Option<&CurrentFile>) {
    let Some(tracker) = workspace_tracker(context, real) else { return };
    let found = current.map(|current| (current.bytes.as_slice(), current.stat.st_mode));
    if let Err(error) = tracker.before_write(real, found) {
        tracing::warn!(path = %real.display(), %error, "cannot snapshot a file before its change");
    }
}

/// Snapshots a file after a change, or its removal.
pub fn snapshot_after(context: &ToolContext, real: &Path, new: Option<&[u8]>) {
    let Some(tracker) = workspace_tracker(context, real) else { return };
    let mode = context.workspace.metadata(real).map_or(0o644, |stat| stat.st_mode);
    if let Err(error) = tracker.after_write(real, new.map(|new| (new, mode))) {
        tracing::warn!(path = %real.display(), %error, "cannot snapshot a file after its change");
    }
}

/// Whether the editor accepted a changed file; otherwise it must be written to disk.
#[derive(Debug, Default)]
pub struct EditorHandover {
    pub is_accepted: bool,
    /// Notes for the model.
    pub notes: Vec<String>,
}

/// Writes a changed file through the editor, if that is possible.
pub fn write_through_editor(
    context: &ToolContext,
    real: &Path,
    current: Option<&CurrentFile>,
    new: &[u8],
) -> Result<EditorHandover, ToolError> {
    // An editor may save by replacing the file, and its other hard links would keep the old content.
    let is_one = current.is_none_or(|current| current.stat.st_nlink < 2);
    let old = current.map_or(&[][..], |current| &current.bytes);
    // Secrets must not be sent to the client.
    let is_asked = context.editor.may_hold(new.len() as u64);
    let is_secret =
        is_asked && (context.secrets.matches_bytes(old) || context.secrets.matches_bytes(new));
    let outcome = if is_one && !is_secret {
        context.editor.write_text(&context.workspace.root().join(real), old, new)
    } else {
        EditorWrite::NotAsked
    };
    let is_unsaved = current.is_some_and(|current| current.is_unsaved);
    match outcome {
        EditorWrite::Accepted => {
            let saved = context.workspace.open_file(real);
            let saved = saved.ok().and_then(|mut file| load_bytes(&mut file, real).ok());
            let is_saved = saved.as_deref() == Some(new);
            let note = (!is_saved).then(|| "the editor has not saved it yet".to_owned());
            Ok(EditorHandover { is_accepted: true, notes: note.into_iter().collect() })
        }
        EditorWrite::NotAsked | EditorWrite::Refused(_) if is_unsaved => Err(unsaved_error(real)),
        EditorWrite::NotAsked if is_secret => {
            let note = "it has hidden values, so it was written to disk and not through the editor";
            Ok(EditorHandover { is_accepted: false, notes: vec![note.to_owned()] })
        }
        EditorWrite::NotAsked => Ok(EditorHandover::default()),
        EditorWrite::Refused(reason) => {
            let note = format!("the editor refused it ({reason}), so it was written to disk");
            Ok(EditorHandover { is_accepted: false, notes: vec![note] })
        }
    }
}

/// A note about the other hard links of a file, which change with it.
pub fn other_names_note(stat: &Stat) -> Option<String> {
    let others = stat.st_nlink.checked_sub(1).filter(|others| *others > 0)?;
    Some(format!("also changes {} of this file", counted(others, "other name")))
}

fn load_bytes(opened: &mut OpenFile, path: &Path) -> Result<Vec<u8>, ToolError> {
    refuse_large(path, u64::try_from(opened.stat.st_size).unwrap_or_default())?;
    let mut bytes = Vec::new();
    opened.file.by_ref().take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(|source| {
        ToolError::from(WorkspaceError::Read { path: path.to_owned(), source })
    })?;
    Ok(bytes)
}

/// Refuses a file that is too large to be held in memory.
pub fn refuse_large(path: &Path, size: u64) -> Result<(), ToolError> {
    if size <= MAX_FILE_BYTES {
        return Ok(());
    }
    let message = format!("{} is too large to be changed: {size} bytes", path.display());
    Err(ToolError::new(Kind::ReadFailed, message)
        .with_details(json!({"size": size, "limit": MAX_FILE_BYTES}))
        .with_next_action("change it with a command such as sed, through bash"))
}

/// The error for a file that was changed outside this Session.
pub fn file_changed_error(path: &Path) -> ToolError {
    ToolError::new(Kind::FileChanged, format!("{} changed since it was read", path.display()))
        .with_details(json!({ "path": path.to_string_lossy() }))
        .with_next_action("read it again, then repeat the change")
}

/// The error for a file with unsaved text in the editor that cannot be changed through it.
pub fn unsaved_error(path: &Path) -> ToolError {
    let message = format!("{} has unsaved changes in the editor", path.display());
    ToolError::new(Kind::FileChanged, message)
        .with_details(json!({ "path": path.to_string_lossy() }))
        .with_next_action("ask the user to save or to discard them")
}

fn file_gone_error(path: &Path) -> ToolError {
    let message = format!("{} was deleted since it was read", path.display());
    ToolError::new(Kind::FileChanged, message)
        .with_details(json!({ "path": path.to_string_lossy() }))
        .with_next_action("read it once more to confirm that, then write it again")
}

impl RewrittenFile {
    /// The details for presenters and audits; the hash lets a resumed Session notice a later change.
    pub fn details(&self) -> Value {
        let mut facts = json!({
            "path": self.path.to_string_lossy(),
            "created": self.is_new,
            "bytes": self.bytes,
            "added": self.difference.added,
            "removed": self.difference.removed,
            "diff": self.difference.text,
            "sha256": self.fingerprint.sha256(),
        });
        if !self.notes.is_empty() {
            facts["notes"] = json!(self.notes);
        }
        facts
    }

    /// The notes as the end of a sentence, each after `; `.
    pub fn notes_suffix(&self) -> String {
        self.notes.iter().flat_map(|note| ["; ", note]).collect()
    }
}

/// Threads for file work, separate from those that write Logs, because file work may wait for an editor.
static FILE_WORK: BlockingLimit = BlockingLimit::new();

/// Runs file work on a thread that may block.
pub async fn run_file_work<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ToolError> + Send + 'static,
) -> Result<T, ToolError> {
    match FILE_WORK.run_blocking(work).await {
        Ok(result) => result,
        Err(error) => Err(ToolError::new(Kind::Crashed, format!("the tool crashed: {error}"))),
    }
}
