//! Rewriting: what the tools that change files share, from the old content to the new and its diff.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::Stat;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::difference::{Difference, Versions};
use super::editor::Handed;
use super::seen::{Print, Seen};
use super::{Plan, ToolContext, ToolError};
use crate::disk::Gate;
use crate::error::{Kind, counted};
use crate::snapshot::Tracker;
use crate::workspace::{OpenFile, WorkspaceError, identity};

/// The largest file that is rewritten; it is held in memory twice.
pub const LARGEST: u64 = 64 << 20;
/// The largest file whose change is tried in a plan, which has no thread of its own.
pub const LARGEST_PLANNED: u64 = 1 << 20;
/// How many bytes a plan may go through, all steps of the change together.
const PLANNED_WORK: u64 = 16 << 20;
/// How long a comparison may take before it becomes coarse.
pub const COMPARE_TIME: Duration = Duration::from_millis(300);
/// The same, in a plan.
pub const PLAN_COMPARE_TIME: Duration = Duration::from_millis(50);

/// Rewrites files for one Session.
#[derive(Debug, Clone, Default)]
pub struct Rewriter {
    seen: Seen,
}

/// What a change makes of a file's content, and what it says about that; the content of a file that
/// is not there yet is `None`.
pub type Change<'a, T> = &'a dyn Fn(Option<&[u8]>) -> Result<(Vec<u8>, T), ToolError>;

/// What was done.
pub struct Rewritten {
    pub path: PathBuf,
    pub bytes: usize,
    pub is_new: bool,
    pub difference: Difference,
    /// What else is to be known about it.
    pub notes: Vec<String>,
    print: Print,
}

impl Rewriter {
    /// A rewriter that knows what the Session has seen.
    pub fn new(seen: Seen) -> Self {
        Self { seen }
    }

    /// Says what a change of so many `steps` would do, and changes nothing. Of a large file it
    /// says only that it would be changed: what that takes belongs into the run.
    pub fn plan<T>(
        &self,
        context: &ToolContext,
        path: &Path,
        steps: usize,
        change: Change<'_, T>,
    ) -> Result<Plan, ToolError> {
        let workspace = &context.workspace;
        workspace.check_writable(path)?;
        let shown = workspace.display(path).to_owned();
        let name = shown.display();
        let size = workspace.metadata(path).map_or(0, |stat| stat.st_size);
        let size = u64::try_from(size).unwrap_or_default();
        if size > LARGEST_PLANNED || size.saturating_mul(steps as u64) > PLANNED_WORK {
            let summary = format!("change {name}, {size} bytes, too many for a preview");
            let paths = vec![shown];
            return Ok(Plan::edit(summary, paths));
        }
        let current = self.current(context, path)?;
        let old = current.as_ref().map(|current| current.bytes.as_slice());
        let (new, _) = change(old)?;
        let verb = if current.is_some() { "change" } else { "create" };
        let versions =
            Versions { path: &shown, old_path: None, old: old.unwrap_or_default(), new: &new };
        let difference = Difference::between(versions, &context.secrets, PLAN_COMPARE_TIME);
        let counts = difference.counts();
        let others = current.as_ref().and_then(|current| other_names(&current.stat));
        let others = others.map(|note| format!("; {note}")).unwrap_or_default();
        let summary = format!("{verb} {name}{counts}{others}");
        let diff_is_cut = difference.is_cut;
        let diff = Some(difference.text);
        let bytes_digest = Some(digest_of([(old, Some(new.as_slice()))]));
        let paths = vec![shown];
        Ok(Plan { diff, diff_is_cut, bytes_digest, ..Plan::edit(summary, paths) })
    }

    /// Makes the change, all of it or nothing.
    pub fn run<T>(
        &self,
        context: &ToolContext,
        path: &Path,
        change: Change<'_, T>,
    ) -> Result<(Rewritten, T), ToolError> {
        let workspace = &context.workspace;
        workspace.check_writable(path)?;
        let current = self.current(context, path)?;
        let old = current.as_ref().map(|current| current.bytes.as_slice());
        let (new, said) = change(old)?;
        refuse_large(path, new.len() as u64)?;
        let place = match &current {
            Some(current) => current.path.clone(),
            None => workspace.place_of(path),
        };
        if old != Some(new.as_slice()) {
            keep_before(context, &place, current.as_ref());
        }
        // Only now that the change is known to work are folders made.
        let mut target = workspace.target(path)?;
        let found = target.existing().map(|existing| existing.stat);
        if found.as_ref().map(identity) != current.as_ref().map(|current| identity(&current.stat)) {
            return Err(file_changed(path));
        }
        let real = target.path().to_owned();
        let is_new = current.is_none();
        let mut notes = Vec::new();
        let print = match found {
            Some(stat) if old == Some(new.as_slice()) => Print::of(&new, &stat),
            _ => {
                notes.extend(found.as_ref().and_then(other_names));
                let handed = hand_over(context, &real, current.as_ref(), &new)?;
                notes.extend(handed.notes);
                if handed.is_taken {
                    Print::of_text(&new)
                } else {
                    let replaced = target.replace(&new)?;
                    notes.extend(replaced.notes);
                    Print::of(&new, &replaced.stat)
                }
            }
        };
        keep_after(context, &real, Some(&new));
        self.seen.note(&real, print.clone());
        let versions =
            Versions { path: &real, old_path: None, old: old.unwrap_or_default(), new: &new };
        let difference = Difference::between(versions, &context.secrets, COMPARE_TIME);
        let done = Rewritten { path: real, bytes: new.len(), is_new, difference, notes, print };
        Ok((done, said))
    }

    /// What the Session has seen.
    pub fn seen(&self) -> &Seen {
        &self.seen
    }

    /// The content as it is now, refused when it is not what the Session has seen.
    pub fn current(
        &self,
        context: &ToolContext,
        path: &Path,
    ) -> Result<Option<Current>, ToolError> {
        let workspace = &context.workspace;
        let mut opened = match workspace.open_file(path) {
            Ok(opened) => opened,
            Err(WorkspaceError::Missing { .. }) if self.seen.knows(&workspace.place_of(path)) => {
                return Err(file_gone(path));
            }
            Err(WorkspaceError::Missing { .. }) => return Ok(None),
            Err(error) => return Err(ToolError::from(error)),
        };
        let mut bytes = load(&mut opened, path)?;
        let stat = opened.stat;
        let unsaved = context.desk.unsaved(&workspace.root().join(&opened.path), &bytes);
        let is_unsaved = unsaved.is_some();
        bytes = unsaved.map_or(bytes, String::into_bytes);
        if self.seen.is_stale(&opened.path, &Print::of(&bytes, &stat)) {
            return Err(file_changed(path));
        }
        Ok(Some(Current { bytes, stat, path: opened.path, is_unsaved }))
    }
}

/// The SHA-256 of the true bytes of files before and after a change; `None` is no file.
pub fn digest_of<'b>(
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

/// A file as it is.
#[derive(Debug)]
pub struct Current {
    pub bytes: Vec<u8>,
    pub stat: Stat,
    /// Where it really is.
    pub path: PathBuf,
    /// The bytes are those of an editor, and the disk has others.
    pub is_unsaved: bool,
}

/// Who follows a file. What is told by its absolute path lies beside the Workspace, and is not
/// taken back with it.
fn tracker<'c>(context: &'c ToolContext, real: &Path) -> Option<&'c Tracker> {
    context.tracker.as_ref().filter(|_| real.is_relative())
}

/// Keeps what a file was. That it cannot be taken back later stops nobody from changing it now.
pub fn keep_before(context: &ToolContext, real: &Path, current: Option<&Current>) {
    let Some(tracker) = tracker(context, real) else { return };
    let found = current.map(|current| (current.bytes.as_slice(), current.stat.st_mode));
    if let Err(error) = tracker.before_write(real, found) {
        tracing::warn!(path = %real.display(), %error, "what a file was is not kept");
    }
}

/// Keeps what a file is now, or that it is gone.
pub fn keep_after(context: &ToolContext, real: &Path, new: Option<&[u8]>) {
    let Some(tracker) = tracker(context, real) else { return };
    let mode = context.workspace.metadata(real).map_or(0o644, |stat| stat.st_mode);
    if let Err(error) = tracker.after_write(real, new.map(|new| (new, mode))) {
        tracing::warn!(path = %real.display(), %error, "what a file became is not kept");
    }
}

/// Whether the editor took a changed file; if it did not, the disk is the place to write.
#[derive(Debug, Default)]
pub struct HandedOver {
    pub is_taken: bool,
    /// What is to be known about it.
    pub notes: Vec<String>,
}

/// Hands a changed file to the editor.
pub fn hand_over(
    context: &ToolContext,
    real: &Path,
    current: Option<&Current>,
    new: &[u8],
) -> Result<HandedOver, ToolError> {
    // An editor may save a file anew, and its other names would keep the old content.
    let is_one = current.is_none_or(|current| current.stat.st_nlink < 2);
    let old = current.map_or(&[][..], |current| &current.bytes);
    // What the client is told is no place for Secrets.
    let is_asked = context.desk.may_hold(new.len() as u64);
    let is_secret = is_asked && (context.secrets.is_in(old) || context.secrets.is_in(new));
    let handed = if is_one && !is_secret {
        context.desk.hand_over(&context.workspace.root().join(real), old, new)
    } else {
        Handed::NotAsked
    };
    let is_unsaved = current.is_some_and(|current| current.is_unsaved);
    match handed {
        Handed::Over => {
            let saved = context.workspace.open_file(real);
            let saved = saved.ok().and_then(|mut file| load(&mut file, real).ok());
            let is_saved = saved.as_deref() == Some(new);
            let note = (!is_saved).then(|| "the editor has not saved it yet".to_owned());
            Ok(HandedOver { is_taken: true, notes: note.into_iter().collect() })
        }
        Handed::NotAsked | Handed::Refused(_) if is_unsaved => Err(unsaved(real)),
        Handed::NotAsked if is_secret => {
            let note = "it has hidden values, so it was written to disk and not through the editor";
            Ok(HandedOver { is_taken: false, notes: vec![note.to_owned()] })
        }
        Handed::NotAsked => Ok(HandedOver::default()),
        Handed::Refused(reason) => {
            let note = format!("the editor did not take it ({reason}), so it was written to disk");
            Ok(HandedOver { is_taken: false, notes: vec![note] })
        }
    }
}

/// A file with several names is the same under all of them.
pub fn other_names(stat: &Stat) -> Option<String> {
    let others = stat.st_nlink.checked_sub(1).filter(|others| *others > 0)?;
    Some(format!("also changes {} of this file", counted(others, "other name")))
}

fn load(opened: &mut OpenFile, path: &Path) -> Result<Vec<u8>, ToolError> {
    refuse_large(path, u64::try_from(opened.stat.st_size).unwrap_or_default())?;
    let mut bytes = Vec::new();
    opened.file.by_ref().take(LARGEST + 1).read_to_end(&mut bytes).map_err(|source| {
        ToolError::from(WorkspaceError::Read { path: path.to_owned(), source })
    })?;
    Ok(bytes)
}

/// Refuses what is too large to be held in memory.
pub fn refuse_large(path: &Path, size: u64) -> Result<(), ToolError> {
    if size <= LARGEST {
        return Ok(());
    }
    let message = format!("{} is too large to be changed: {size} bytes", path.display());
    Err(ToolError::new(Kind::ReadFailed, message)
        .details(json!({"size": size, "limit": LARGEST}))
        .next("change it with a command such as sed, through bash"))
}

/// Somebody else changed the file.
pub fn file_changed(path: &Path) -> ToolError {
    ToolError::new(Kind::FileChanged, format!("{} changed since it was read", path.display()))
        .details(json!({ "path": path.to_string_lossy() }))
        .next("read it again, then repeat the change")
}

/// The disk is not the place to change it.
pub fn unsaved(path: &Path) -> ToolError {
    let message = format!("{} has unsaved changes in the editor", path.display());
    ToolError::new(Kind::FileChanged, message)
        .details(json!({ "path": path.to_string_lossy() }))
        .next("ask the user to save or to discard them")
}

fn file_gone(path: &Path) -> ToolError {
    let message = format!("{} was there when it was read, and is gone", path.display());
    ToolError::new(Kind::FileChanged, message)
        .details(json!({ "path": path.to_string_lossy() }))
        .next("read it once more to confirm that, then write it anew")
}

impl Rewritten {
    /// Facts for presenters and audits; the hash lets a resumed Session notice a later change.
    pub fn facts(&self) -> Value {
        let mut facts = json!({
            "path": self.path.to_string_lossy(),
            "created": self.is_new,
            "bytes": self.bytes,
            "added": self.difference.added,
            "removed": self.difference.removed,
            "diff": self.difference.text,
            "sha256": self.print.sha256(),
        });
        if !self.notes.is_empty() {
            facts["notes"] = json!(self.notes);
        }
        facts
    }

    /// The notes, as the end of a sentence.
    pub fn told_notes(&self) -> String {
        self.notes.iter().flat_map(|note| ["; ", note]).collect()
    }
}

/// File work has threads of its own: it may wait for an Editor, and Logs do not wait with it.
static FILES: Gate = Gate::new();

/// Runs file work where it may block.
pub async fn on_disk<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ToolError> + Send + 'static,
) -> Result<T, ToolError> {
    match FILES.work(work).await {
        Ok(result) => result,
        Err(error) => Err(ToolError::new(Kind::Crashed, format!("the tool crashed: {error}"))),
    }
}
