//! Rewriting: what `write` and `edit` share, from the old content to the new one and its diff.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::Stat;
use serde_json::{Value, json};
use similar::TextDiff;

use super::bound::cut;
use super::seen::{Print, Seen};
use super::{Effect, Plan, ToolContext, ToolError};
use crate::error::Kind;
use crate::workspace::{OpenFile, Workspace, WorkspaceError};

/// The largest file that is rewritten; it is held in memory twice.
const LARGEST: u64 = 64 << 20;
/// The largest content that is compared line by line.
const LARGEST_COMPARED: usize = 4 << 20;
/// How long a comparison may take before it becomes coarse.
const COMPARE_TIME: Duration = Duration::from_millis(300);
/// How much of a diff is kept.
const DIFF_LIMIT: usize = 64 * 1024;

/// Rewrites files for one Session.
#[derive(Debug, Clone, Default)]
pub struct Rewriter {
    seen: Seen,
}

/// What a change makes of a file's content; `None` is a file that is not there yet.
pub type Change<'a> = &'a dyn Fn(Option<&[u8]>) -> Result<Vec<u8>, ToolError>;

/// What was done.
pub struct Rewritten {
    pub path: PathBuf,
    pub bytes: usize,
    pub is_new: bool,
    pub difference: Difference,
}

impl Rewriter {
    /// A rewriter that knows what the Session has seen.
    pub fn new(seen: Seen) -> Self {
        Self { seen }
    }

    /// Says what a change would do, and changes nothing.
    pub fn plan(
        &self,
        context: &ToolContext,
        path: &Path,
        change: Change<'_>,
    ) -> Result<Plan, ToolError> {
        context.workspace.check_writable(path).map_err(|error| ToolError::from(&error))?;
        let current = self.current(&context.workspace, path)?;
        let old = current.as_ref().map(|current| current.bytes.as_slice());
        let new = change(old)?;
        let shown = context.workspace.display(path).to_owned();
        let verb = if current.is_some() { "change" } else { "create" };
        let difference = Difference::between(&shown, old.unwrap_or_default(), &new);
        let counts = difference.counts();
        Ok(Plan {
            effect: Effect::Write,
            summary: format!("{verb} {}{counts}", shown.display()),
            paths: vec![shown],
            diff: Some(difference.text),
        })
    }

    /// Makes the change, all of it or nothing.
    pub fn run(
        &self,
        workspace: &Workspace,
        path: &Path,
        change: Change<'_>,
    ) -> Result<Rewritten, ToolError> {
        let explain = |error: WorkspaceError| ToolError::from(&error);
        workspace.check_writable(path).map_err(explain)?;
        let current = self.current(workspace, path)?;
        let old = current.as_ref().map(|current| current.bytes.as_slice());
        let new = change(old)?;
        // Only now that the change is known to work are folders made.
        let mut target = workspace.target(path).map_err(explain)?;
        let found = target.existing().map(|existing| identity(&existing.stat));
        if found != current.as_ref().map(|current| identity(&current.stat)) {
            return Err(file_changed(path));
        }
        let real = target.path().to_owned();
        let is_new = current.is_none();
        if is_new || old != Some(new.as_slice()) {
            let stat = target.replace(&new).map_err(explain)?;
            self.seen.note(&real, Print::of(&new, &stat));
        }
        let difference = Difference::between(&real, old.unwrap_or_default(), &new);
        Ok(Rewritten { path: real, bytes: new.len(), is_new, difference })
    }

    /// The content as it is now, refused when it is not what the Session has seen.
    fn current(&self, workspace: &Workspace, path: &Path) -> Result<Option<Current>, ToolError> {
        let mut opened = match workspace.open_file(path) {
            Ok(opened) => opened,
            Err(WorkspaceError::Missing { .. }) => return Ok(None),
            Err(error) => return Err(ToolError::from(&error)),
        };
        let bytes = load(&mut opened, path)?;
        let stat = opened.stat;
        if self.seen.is_stale(&opened.path, &Print::of(&bytes, &stat)) {
            return Err(file_changed(path));
        }
        Ok(Some(Current { bytes, stat }))
    }
}

struct Current {
    bytes: Vec<u8>,
    stat: Stat,
}

fn load(opened: &mut OpenFile, path: &Path) -> Result<Vec<u8>, ToolError> {
    let size = u64::try_from(opened.stat.st_size).unwrap_or_default();
    if size > LARGEST {
        let message = format!("{} is too large to be changed: {size} bytes", path.display());
        return Err(ToolError::new(Kind::ReadFailed, message)
            .details(json!({"size": size, "limit": LARGEST}))
            .next("change it with a command such as sed, through bash"));
    }
    let mut bytes = Vec::new();
    opened.file.by_ref().take(LARGEST + 1).read_to_end(&mut bytes).map_err(|source| {
        ToolError::from(&WorkspaceError::Read { path: path.to_owned(), source })
    })?;
    Ok(bytes)
}

fn identity(stat: &Stat) -> (u64, u64, i64, i64, u64) {
    (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime, stat.st_mtime_nsec)
}

fn file_changed(path: &Path) -> ToolError {
    ToolError::new(Kind::FileChanged, format!("{} changed since it was read", path.display()))
        .details(json!({ "path": path.to_string_lossy() }))
        .next("read it again, then repeat the change")
}

/// What differs between two contents.
pub struct Difference {
    /// A unified diff, cut when it is huge.
    pub text: String,
    pub added: usize,
    pub removed: usize,
    is_counted: bool,
}

impl Difference {
    fn between(path: &Path, old: &[u8], new: &[u8]) -> Self {
        let uncounted =
            |text: &str| Self { text: text.to_owned(), added: 0, removed: 0, is_counted: false };
        if old.len().max(new.len()) > LARGEST_COMPARED {
            return uncounted("(too large to compare)\n");
        }
        if memchr::memchr(0, old).or_else(|| memchr::memchr(0, new)).is_some() {
            return uncounted("(binary content)\n");
        }
        let (old, new) = (String::from_utf8_lossy(old), String::from_utf8_lossy(new));
        let diff = TextDiff::configure().timeout(COMPARE_TIME).diff_lines(&*old, &*new);
        let name = path.display();
        let unified = diff
            .unified_diff()
            .context_radius(3)
            .header(&format!("a/{name}"), &format!("b/{name}"))
            .to_string();
        let (mut added, mut removed) = (0, 0);
        for change in diff.iter_all_changes() {
            match change.tag() {
                similar::ChangeTag::Insert => added += 1,
                similar::ChangeTag::Delete => removed += 1,
                similar::ChangeTag::Equal => {}
            }
        }
        Self { text: cut(&unified, DIFF_LIMIT).into_owned(), added, removed, is_counted: true }
    }

    /// Counts for a summary, such as ` (+3 -1)`.
    pub fn counts(&self) -> String {
        if self.is_counted {
            format!(" (+{} -{})", self.added, self.removed)
        } else {
            String::new()
        }
    }
}

impl Rewritten {
    /// Facts for presenters and audits.
    pub fn facts(&self) -> Value {
        json!({
            "path": self.path.to_string_lossy(),
            "created": self.is_new,
            "bytes": self.bytes,
            "added": self.difference.added,
            "removed": self.difference.removed,
            "diff": self.difference.text,
        })
    }
}

/// Runs file work where it may block.
pub async fn on_disk<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ToolError> + Send + 'static,
) -> Result<T, ToolError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => Err(ToolError::new(Kind::Crashed, format!("the tool crashed: {error}"))),
    }
}
