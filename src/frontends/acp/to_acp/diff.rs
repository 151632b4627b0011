//! Unified diffs as ACP diff content with old and new text.
//!
//! Each hunk becomes a separate diff: both sides are the real text of the file around the change, and
//! a file that existed never looks new.

use std::path::{Path, PathBuf};

use agent_client_protocol_schema::v1::{Diff, ToolCallContent};

/// A hunk of a diff.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Hunk {
    /// The path in the diff, without `a/` or `b/`.
    pub path: PathBuf,
    /// `None` when the file is new.
    pub old: Option<String>,
    pub new: String,
    /// The line of the first change in the new file, from 1, without the context lines before it.
    pub line: u32,
}

/// Whether the files of a diff existed before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileBefore {
    /// The files existed, perhaps empty.
    Existed,
    /// Known from the diff only.
    Unknown,
}

/// The hunks of a diff as content.
pub fn diff_content(diff: &str, root: &Path, before: FileBefore) -> Vec<ToolCallContent> {
    let piece = |hunk: Hunk| {
        let old = hunk.old.or_else(|| (before == FileBefore::Existed).then(String::new));
        ToolCallContent::Diff(Diff::new(root.join(&hunk.path), hunk.new).old_text(old))
    };
    parse_hunks(diff).into_iter().map(piece).collect()
}

/// The line of the first change in the new file.
pub fn first_line(diff: &str) -> Option<u32> {
    parse_hunks(diff).first().map(|hunk| hunk.line)
}

/// Parses a unified diff. A hunk that was cut is left out, because half of it would be wrong.
pub fn parse_hunks(diff: &str) -> Vec<Hunk> {
    let mut hunks: Vec<Hunk> = Vec::new();
    let (mut path, mut open) = (PathBuf::new(), None::<OpenHunk>);
    let mut lines = diff.split_inclusive('\n').peekable();
    while let Some(line) = lines.next() {
        let is_inside = open.as_ref().is_some_and(OpenHunk::is_unfinished);
        if !is_inside && line.starts_with("--- ") {
            hunks.extend(open.take().and_then(|open| open.into_hunk(&path)));
            let old = header_path(line);
            let new = lines.next_if(|next| next.starts_with("+++ ")).map(header_path);
            path = new.flatten().or(old).unwrap_or_default();
            continue;
        }
        if !is_inside && let Some(next) = OpenHunk::parse_header(line) {
            hunks.extend(open.replace(next).and_then(|open| open.into_hunk(&path)));
            continue;
        }
        if let Some(open) = &mut open {
            open.push_line(line);
        }
    }
    hunks.extend(open.and_then(|open| open.into_hunk(&path)));
    hunks
}

/// The path of a header line; `None` for `/dev/null`.
fn header_path(line: &str) -> Option<PathBuf> {
    let rest = line.get(4..)?.trim_end_matches(['\n', '\r']);
    let rest = rest.split('\t').next().unwrap_or(rest);
    if rest == "/dev/null" {
        return None;
    }
    let plain = rest.strip_prefix("a/").or_else(|| rest.strip_prefix("b/")).unwrap_or(rest);
    Some(PathBuf::from(plain))
}

/// A hunk that is being parsed.
struct OpenHunk {
    old: String,
    new: String,
    line: u32,
    is_changed: bool,
    /// Lines that its header announces and that have not been read.
    old_left: u32,
    new_left: u32,
    /// Whether its header says that the file is new.
    is_new: bool,
    /// Whether the last line belongs to the old and to the new side.
    last: (bool, bool),
}

impl OpenHunk {
    /// Parses a header such as `@@ -1,3 +1,4 @@`.
    fn parse_header(line: &str) -> Option<Self> {
        let ranges = line.strip_prefix("@@ -")?.split_once(" @@")?.0;
        let (old, new) = ranges.split_once(" +")?;
        let range = |text: &str| -> Option<(u32, u32)> {
            let (start, count) = text.split_once(',').unwrap_or((text, "1"));
            Some((start.parse().ok()?, count.parse().ok()?))
        };
        let ((old_start, old_left), (line, new_left)) = (range(old)?, range(new)?);
        Some(Self {
            old: String::new(),
            new: String::new(),
            line: line.max(1),
            is_changed: false,
            old_left,
            new_left,
            is_new: old_start == 0 && old_left == 0,
            last: (false, false),
        })
    }

    fn is_unfinished(&self) -> bool {
        self.old_left > 0 || self.new_left > 0
    }

    fn push_line(&mut self, line: &str) {
        let (mark, text) = match line.chars().next() {
            Some(mark @ (' ' | '+' | '-' | '\\')) => (mark, line.get(1..).unwrap_or_default()),
            // Some tools leave out the space of an empty context line.
            _ if line.trim_end_matches(['\n', '\r']).is_empty() => (' ', line),
            _ => return,
        };
        if mark == '\\' {
            // "No newline at end of file" refers to the line before.
            let cut = |text: &mut String| {
                text.truncate(text.trim_end_matches(['\n', '\r']).len().max(text.len() - 1));
            };
            if self.last.0 {
                cut(&mut self.old);
            }
            if self.last.1 {
                cut(&mut self.new);
            }
            return;
        }
        self.last = (mark != '+', mark != '-');
        self.is_changed |= mark != ' ';
        if !self.is_changed {
            self.line += 1;
        }
        if self.last.0 {
            self.old.push_str(text);
            self.old_left = self.old_left.saturating_sub(1);
        }
        if self.last.1 {
            self.new.push_str(text);
            self.new_left = self.new_left.saturating_sub(1);
        }
    }

    fn into_hunk(self, path: &Path) -> Option<Hunk> {
        if self.is_unfinished() {
            return None;
        }
        let old = (!self.is_new).then_some(self.old);
        Some(Hunk { path: path.to_owned(), old, new: self.new, line: self.line })
    }
}
