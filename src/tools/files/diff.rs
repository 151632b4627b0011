//! Unified diff between two versions of a file, without Secrets.
//!
//! The real bytes are compared, and the diff shows them without Secrets: a line whose hidden part
//! differs is a change, although both of its sides look the same.

use std::borrow::Cow;
use std::fmt::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use similar::udiff::UnifiedHunkHeader;
use similar::{Algorithm, DiffOp, DiffTag, capture_diff_slices_deadline, group_diff_ops};

use crate::base::secret::Secrets;
use crate::base::text::bounded::cut_text;

/// The largest content that is compared line by line, in bytes.
const MAX_COMPARED_BYTES: usize = 4 << 20;
/// The maximum size of a diff, in bytes.
pub const MAX_DIFF_BYTES: usize = 64 * 1024;
/// Appended to a new line that looks like the old one.
const HIDDEN_PART_DIFFERS: &str = " (hidden part differs)";

/// The diff between two versions of a file.
pub struct FileDiff {
    /// A unified diff, cut if it is too large.
    pub text: String,
    pub added: usize,
    pub removed: usize,
    /// Whether the text is incomplete.
    pub is_cut: bool,
    is_counted: bool,
}

/// Two versions of one file.
#[derive(Clone, Copy)]
pub struct FileVersions<'a> {
    pub path: &'a Path,
    /// The name of the old version, if it was different.
    pub old_path: Option<&'a Path>,
    pub old: &'a [u8],
    pub new: &'a [u8],
}

impl FileDiff {
    /// Compares two versions; after `time` the comparison becomes coarse.
    pub fn compare(versions: FileVersions<'_>, secrets: &Secrets, time: Duration) -> Self {
        let FileVersions { path, old_path, old, new } = versions;
        let uncounted = |text: &str| Self {
            text: text.to_owned(),
            added: 0,
            removed: 0,
            is_cut: true,
            is_counted: false,
        };
        if old.len().max(new.len()) > MAX_COMPARED_BYTES {
            return uncounted("(too large to compare)\n");
        }
        if memchr::memchr(0, old).or_else(|| memchr::memchr(0, new)).is_some() {
            return uncounted("(binary content)\n");
        }
        let names = [old_path.unwrap_or(path), path].map(|name| name.display().to_string());
        let (old_shown, new_shown) = (secrets.redact_file(old), secrets.redact_file(new));
        let shown =
            ShownVersions { old: text_lines(&old_shown), new: text_lines(&new_shown), names };
        let (mut old, mut new) = (split_lines(old), split_lines(new));
        // A Secret with other line ends may have a different number of lines than its marker; then
        // the contents without Secrets are compared.
        if old.len() != shown.old.len() || new.len() != shown.new.len() {
            (old, new) = (split_lines(&old_shown), split_lines(&new_shown));
        }
        let deadline = Instant::now().checked_add(time);
        shown.unified_diff(capture_diff_slices_deadline(Algorithm::Myers, &old, &new, deadline))
    }

    /// The counts for a summary, such as ` (+3 -1)`; empty if nothing was counted.
    pub fn change_counts(&self) -> String {
        if self.is_counted {
            format!(" (+{} -{})", self.added, self.removed)
        } else {
            String::new()
        }
    }
}

/// The lines of both versions without Secrets, and the names for the header.
struct ShownVersions<'a> {
    old: Vec<Cow<'a, str>>,
    new: Vec<Cow<'a, str>>,
    names: [String; 2],
}

impl ShownVersions<'_> {
    /// The unified diff of these operations.
    fn unified_diff(&self, ops: Vec<DiffOp>) -> FileDiff {
        let mut difference =
            FileDiff { text: String::new(), added: 0, removed: 0, is_cut: false, is_counted: true };
        for group in group_diff_ops(ops, 3).iter().filter(|group| !group.is_empty()) {
            let text = &mut difference.text;
            if text.is_empty() {
                let [old_name, name] = &self.names;
                // Writing to a String cannot fail.
                let _ = write!(text, "--- a/{old_name}\n+++ b/{name}\n");
            }
            let _ = writeln!(text, "{}", UnifiedHunkHeader::new(group));
            for op in group {
                self.push_op(*op, &mut difference);
            }
        }
        difference.is_cut = difference.text.len() > MAX_DIFF_BYTES;
        difference.text = cut_text(&difference.text, MAX_DIFF_BYTES).into_owned();
        difference
    }

    /// Appends the lines of one operation.
    fn push_op(&self, op: DiffOp, difference: &mut FileDiff) {
        let (old, new) = (&self.old[op.old_range()], &self.new[op.new_range()]);
        if op.tag() == DiffTag::Equal {
            for line in old {
                push_line(&mut difference.text, ' ', line, "");
            }
            return;
        }
        difference.removed += old.len();
        difference.added += new.len();
        for line in old {
            push_line(&mut difference.text, '-', line, "");
        }
        for (nth, line) in new.iter().enumerate() {
            let note = if old.get(nth) == Some(line) { HIDDEN_PART_DIFFERS } else { "" };
            push_line(&mut difference.text, '+', line, note);
        }
    }
}

/// Splits a content into lines with their endings: LF, CRLF or CR.
fn split_lines(content: &[u8]) -> Vec<&[u8]> {
    let mut lines = Vec::new();
    let mut start = 0;
    for at in memchr::memchr2_iter(b'\n', b'\r', content) {
        let is_half = content[at] == b'\r' && content.get(at + 1) == Some(&b'\n');
        if !is_half {
            lines.push(&content[start..=at]);
            start = at + 1;
        }
    }
    if start < content.len() {
        lines.push(&content[start..]);
    }
    lines
}

fn text_lines(content: &[u8]) -> Vec<Cow<'_, str>> {
    split_lines(content).into_iter().map(String::from_utf8_lossy).collect()
}

/// Appends one line of a diff.
fn push_line(text: &mut String, mark: char, line: &str, note: &str) {
    let body = line.trim_end_matches(['\r', '\n']);
    let end = &line[body.len()..];
    // Writing to a String cannot fail.
    let _ = write!(text, "{mark}{body}{note}{end}");
    if end.is_empty() {
        text.push_str("\n\\ No newline at end of file\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn between(old: &str, new: &str, secrets: &Secrets) -> FileDiff {
        let path = Path::new("f");
        let versions =
            FileVersions { path, old_path: None, old: old.as_bytes(), new: new.as_bytes() };
        FileDiff::compare(versions, secrets, Duration::from_secs(5))
    }

    #[test]
    fn without_secrets_it_is_the_usual_unified_diff() {
        for (old, new) in [
            ("a\nb\nc\n", "a\nx\nc\n"),
            ("a\nb", "a\nb\n"),
            ("a\nb\n", "a\nb"),
            ("", "a\n"),
            ("a\n", ""),
            ("a\r\nb\r\n", "a\nb\r\n"),
            ("1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n11\n12\n", "0\n2\n3\n4\n5\n6\n7\n8\n9\n10\n11\n0\n"),
            ("a\rb\r", "a\rc\r"),
            ("same\n", "same\n"),
        ] {
            let usual = similar::TextDiff::from_lines(old, new);
            let usual = usual.unified_diff().context_radius(3).header("a/f", "b/f").to_string();
            assert_eq!(between(old, new, &Secrets::default()).text, usual, "{old:?} {new:?}");
        }
    }

    #[test]
    fn a_hidden_part_that_differs_is_a_change_and_one_that_does_not_is_none() {
        let one = |value: &str| ("A".to_owned(), value.to_owned());
        let secrets = Secrets::new([one("first-value-of-a"), one("second-value-of-a")]);
        let difference = between("T=first-value-of-a\nx\n", "T=second-value-of-a\ny\n", &secrets);
        assert_eq!((difference.added, difference.removed), (2, 2));
        assert_eq!(
            difference.text,
            "--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n-T=[redacted:A]\n-x\n+T=[redacted:A] (hidden part differs)\n+y\n"
        );
        let same = between("T=first-value-of-a\nx\n", "T=first-value-of-a\ny\n", &secrets);
        assert_eq!((same.added, same.removed), (1, 1));
        assert!(same.text.contains("\n T=[redacted:A]\n"), "{}", same.text);
    }

    #[test]
    fn a_secret_of_several_lines_stays_hidden_line_by_line() {
        let value = "-----BEGIN-----\nabcdefghijklmnop\nqrstuvwxyzabcdef\n-----END-----";
        let secrets = Secrets::new([("PEM".to_owned(), value.to_owned())]);
        let text = between(&format!("a\n{value}\nb\n"), &format!("x\n{value}\ny\n"), &secrets).text;
        assert!(!text.contains("abcdefghij"), "{text}");
        assert_eq!(text.matches("[redacted:PEM]").count(), 1, "{text}");
        let text = between(&format!("a\n{value}\nb\n"), "a\nb\n", &secrets).text;
        assert_eq!(text.matches("-[redacted:PEM]").count(), 1, "{text}");
    }
}
