//! The difference between two contents, for people and models.

use std::path::Path;
use std::time::Duration;

use similar::{ChangeTag, TextDiff};

use super::bound::cut;
use crate::secret::Secrets;

/// The largest content that is compared line by line.
const LARGEST_COMPARED: usize = 4 << 20;
/// How much of a diff is kept.
pub const DIFF_LIMIT: usize = 64 * 1024;

/// What differs between two contents.
pub struct Difference {
    /// A unified diff, cut when it is huge.
    pub text: String,
    pub added: usize,
    pub removed: usize,
    /// Whether the text does not tell everything.
    pub is_cut: bool,
    is_counted: bool,
}

/// Two contents of one file.
#[derive(Clone, Copy)]
pub struct Versions<'a> {
    pub path: &'a Path,
    /// Another name that it had before.
    pub old_path: Option<&'a Path>,
    pub old: &'a [u8],
    pub new: &'a [u8],
}

impl Difference {
    /// Compares, for `time` at most before it becomes coarse. Secrets are taken out first, because
    /// the marks of a diff would take one with several lines apart.
    pub fn between(versions: Versions<'_>, secrets: &Secrets, time: Duration) -> Self {
        let Versions { path, old_path, old, new } = versions;
        let uncounted = |text: &str| Self {
            text: text.to_owned(),
            added: 0,
            removed: 0,
            is_cut: true,
            is_counted: false,
        };
        if old.len().max(new.len()) > LARGEST_COMPARED {
            return uncounted("(too large to compare)\n");
        }
        if memchr::memchr(0, old).or_else(|| memchr::memchr(0, new)).is_some() {
            return uncounted("(binary content)\n");
        }
        let (old, new) = (secrets.clean_file(old), secrets.clean_file(new));
        let (old, new) = (String::from_utf8_lossy(&old), String::from_utf8_lossy(&new));
        let diff = TextDiff::configure().timeout(time).diff_lines(&*old, &*new);
        let (old_name, name) = (old_path.unwrap_or(path).display(), path.display());
        let unified = diff
            .unified_diff()
            .context_radius(3)
            .header(&format!("a/{old_name}"), &format!("b/{name}"))
            .to_string();
        let (mut added, mut removed) = (0, 0);
        for change in diff.iter_all_changes() {
            match change.tag() {
                ChangeTag::Insert => added += 1,
                ChangeTag::Delete => removed += 1,
                ChangeTag::Equal => {}
            }
        }
        let is_cut = unified.len() > DIFF_LIMIT;
        let text = cut(&unified, DIFF_LIMIT).into_owned();
        Self { text, added, removed, is_cut, is_counted: true }
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
