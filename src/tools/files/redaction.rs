//! Redaction markers in text that a model writes: restores the hidden values, or refuses the text.
//!
//! A model reads a known Secret as `[redacted:NAME]`. When it writes that text back, the marker
//! stands for the value that the file has at that place; a marker without one is refused, because
//! it would overwrite the Secret. Text of a file that only looks like a marker is kept as it is.

use std::collections::HashMap;
use std::ops::Range;
use std::time::{Duration, Instant};

use serde_json::json;
use similar::{Algorithm, DiffOp, capture_diff_slices_deadline};

use crate::base::error::Kind;
use crate::base::secret::{SecretSpan, Secrets, find_markers};
use crate::base::tool_error::ToolError;

/// How long two contents are compared before the comparison becomes coarse.
const COMPARE_TIME: Duration = Duration::from_secs(2);

/// A file with its known Secrets replaced by markers, which can be turned back into the values.
pub struct MaskedFile<'f> {
    original: &'f [u8],
    text: Vec<u8>,
    /// Every marker in the text, in order: replaced Secrets and text that looks like a marker.
    markers: Vec<FileMarker>,
}

/// A marker in the text of a [`MaskedFile`].
#[derive(Debug, Clone)]
struct FileMarker {
    /// The marker itself.
    text: Range<usize>,
    /// How many line ends after it stand for those inside the value.
    line_ends: usize,
    /// The range of the value in the original.
    original: Range<usize>,
}

/// Parts of a new text, and the markers of the old one that it may repeat.
#[derive(Debug, Default)]
pub struct TextCorrespondence {
    /// The parts of the new text.
    pub new: Vec<Range<usize>>,
    /// The ranges of the masked text whose markers the new parts may repeat.
    pub old: Vec<Range<usize>>,
    /// Further ranges, used for markers that are not in `old`.
    pub nearby: Vec<Range<usize>>,
}

impl TextCorrespondence {
    /// One part of the new text for one part of the old text.
    pub fn one_to_one(old: Range<usize>, new: Range<usize>) -> Self {
        Self { new: vec![new], old: vec![old], nearby: Vec::new() }
    }
}

impl<'f> MaskedFile<'f> {
    /// Replaces the known Secrets of a file.
    pub fn new(original: &'f [u8], secrets: &Secrets) -> Self {
        let spans = secrets.find_spans(original);
        let mut text = Vec::with_capacity(original.len());
        let mut hidden = Vec::with_capacity(spans.len());
        let mut done = 0;
        for span in spans {
            text.extend_from_slice(&original[done..span.range.start]);
            let start = text.len();
            text.extend_from_slice(span.marker.as_bytes());
            let marker = start..text.len();
            text.resize(text.len() + span.line_ends, b'\n');
            done = span.range.end;
            let line_ends = span.line_ends;
            hidden.push(FileMarker { text: marker, line_ends, original: span.range });
        }
        text.extend_from_slice(&original[done..]);
        let markers = add_literal_markers(&text, hidden);
        Self { original, text, markers }
    }

    /// The text as a model reads it.
    pub fn text(&self) -> &[u8] {
        &self.text
    }

    /// Restores the values in a new text for the whole file, aligned with the old text line by line.
    pub fn restore_values(&self, new: &[u8]) -> Result<Vec<u8>, ToolError> {
        let old_lines = line_ranges(&self.text);
        let new_lines = line_ranges(new);
        let olds: Vec<&[u8]> = old_lines.iter().map(|line| &self.text[line.clone()]).collect();
        let news: Vec<&[u8]> = new_lines.iter().map(|line| &new[line.clone()]).collect();
        let deadline = Instant::now() + COMPARE_TIME;
        let ops = capture_diff_slices_deadline(Algorithm::Myers, &olds, &news, Some(deadline));
        let mut pairs = Vec::new();
        let mut changed: Option<TextCorrespondence> = None;
        for op in ops {
            if let DiffOp::Equal { old_index, new_index, len } = op {
                pairs.extend(changed.take());
                let lines = (0..len).map(|at| (old_index + at, new_index + at));
                pairs.extend(lines.map(|(old, new)| {
                    TextCorrespondence::one_to_one(old_lines[old].clone(), new_lines[new].clone())
                }));
            } else {
                let region = changed.get_or_insert_default();
                region.old.extend_from_slice(&old_lines[op.old_range()]);
                region.new.extend_from_slice(&new_lines[op.new_range()]);
            }
        }
        pairs.extend(changed);
        self.restore_values_in_parts(new, &pairs)
    }

    /// Restores the values in a new text whose parts correspond to parts of the old text. A marker that its
    /// corresponding part does not have is refused.
    pub fn restore_values_in_parts(
        &self,
        new: &[u8],
        parts: &[TextCorrespondence],
    ) -> Result<Vec<u8>, ToolError> {
        let found = find_markers(new);
        let mut sources: Vec<Option<usize>> = vec![None; found.len()];
        for part in parts {
            let wanted = part.new.iter().flat_map(|range| markers_within(&found, range)).collect();
            self.assign_sources(new, &found, wanted, part, &mut sources);
        }
        let mut filled = Vec::with_capacity(new.len());
        let mut done = 0;
        for (marker, source) in found.iter().zip(sources) {
            let Some(source) = source else { return Err(misplaced_marker_error(new, marker)) };
            let source = &self.markers[source];
            filled.extend_from_slice(&new[done..marker.start]);
            filled.extend_from_slice(&self.original[source.original.clone()]);
            done = marker.end + self.covered_line_ends(source, &new[marker.end..]);
        }
        filled.extend_from_slice(&new[done..]);
        Ok(filled)
    }

    /// Finds the value of each marker in a part. Several markers of one name must have one value, or be as
    /// many as in the old part.
    fn assign_sources(
        &self,
        new: &[u8],
        found: &[Range<usize>],
        wanted: Vec<usize>,
        part: &TextCorrespondence,
        sources: &mut [Option<usize>],
    ) {
        let mut by_text: HashMap<&[u8], Vec<usize>> = HashMap::new();
        for at in wanted {
            by_text.entry(&new[found[at].clone()]).or_default().push(at);
        }
        let bytes = |marker: usize| &self.original[self.markers[marker].original.clone()];
        for (text, repeated) in by_text {
            let mut known = self.matching_markers(&part.old, text);
            if known.is_empty() {
                known = self.matching_markers(&part.nearby, text);
            }
            let is_one_value = known.windows(2).all(|two| bytes(two[0]) == bytes(two[1]));
            for (nth, at) in repeated.iter().enumerate() {
                sources[*at] = match known.as_slice() {
                    all if all.len() == repeated.len() => Some(all[nth]),
                    [first, ..] if is_one_value => Some(*first),
                    _ => None,
                };
            }
        }
    }

    /// The markers with this text in parts of the masked file.
    fn matching_markers(&self, parts: &[Range<usize>], text: &[u8]) -> Vec<usize> {
        let has_text = |at: &usize| &self.text[self.markers[*at].text.clone()] == text;
        parts.iter().flat_map(|part| self.markers_in(part)).filter(has_text).collect()
    }

    fn markers_in(&self, part: &Range<usize>) -> Range<usize> {
        let first = self.markers.partition_point(|marker| marker.text.start < part.start);
        let end = self.markers.partition_point(|marker| marker.text.start < part.end);
        first..end.max(first)
    }

    /// Whether a part of the masked text begins or ends inside a marker, or begins among the line ends
    /// that belong to one.
    pub fn cuts_marker(&self, part: &Range<usize>) -> bool {
        let before = |at: usize| {
            let next = self.markers.partition_point(|marker| marker.text.start < at);
            next.checked_sub(1).map(|last| &self.markers[last])
        };
        let begins_inside =
            before(part.start).is_some_and(|last| part.start < last.text.end + last.line_ends);
        let ends_inside = before(part.end).is_some_and(|last| part.end < last.text.end);
        begins_inside || ends_inside
    }

    /// How many bytes after a marker are line ends that the value itself contains. They may be missing
    /// in the new text; line ends that follow the value in the file are kept.
    fn covered_line_ends(&self, source: &FileMarker, behind: &[u8]) -> usize {
        if source.line_ends == 0 {
            return 0;
        }
        let own = line_ends(&self.text[source.text.end + source.line_ends..]).len();
        let ends = line_ends(behind);
        let covered = source.line_ends.min(ends.len().saturating_sub(own));
        ends[..covered].iter().sum()
    }
}

/// Refuses text that resembles a marker, such as `[REDACTED]`, if the file would lose a known Secret:
/// a model writes it when it does not repeat the marker exactly. Lines that the file already had may
/// contain such text, at any place.
pub fn refuse_near_markers(old: &[u8], new: &[u8], secrets: &Secrets) -> Result<(), ToolError> {
    if find_near_marker(new).is_none() || !secrets.matches_bytes(old) {
        return Ok(());
    }
    let before = secrets.find_spans(old);
    let mut counts: HashMap<&[u8], usize> = HashMap::new();
    for span in secrets.find_spans(new) {
        *counts.entry(&new[span.range]).or_default() += 1;
    }
    let is_lost = |span: &&SecretSpan| !take_one(&mut counts, &old[span.range.clone()]);
    let Some(lost) = before.iter().find(is_lost) else { return Ok(()) };
    let mut known: HashMap<&[u8], usize> = HashMap::new();
    for line in line_ranges(old) {
        *known.entry(&old[line]).or_default() += 1;
    }
    for line in line_ranges(new) {
        if let Some(at) = find_near_marker(&new[line.clone()])
            && !take_one(&mut known, &new[line.clone()])
        {
            return Err(near_marker_error(new, line.start + at, &lost.marker));
        }
    }
    Ok(())
}

/// Decrements a count; false if it is zero.
fn take_one(counts: &mut HashMap<&[u8], usize>, what: &[u8]) -> bool {
    match counts.get_mut(what).filter(|count| **count > 0) {
        None => false,
        Some(count) => {
            *count -= 1;
            true
        }
    }
}

/// The offset of the word `redacted`, in any case.
fn find_near_marker(text: &[u8]) -> Option<usize> {
    const WORD: &[u8] = b"redacted";
    memchr::memchr2_iter(b'r', b'R', text).find(|at| {
        text.get(*at..at + WORD.len()).is_some_and(|found| found.eq_ignore_ascii_case(WORD))
    })
}

fn near_marker_error(new: &[u8], at: usize, marker: &str) -> ToolError {
    let line = memchr::memchr_iter(b'\n', &new[..at]).count() + 1;
    let message = format!(
        "line {line} of the new text says that a value is redacted, and a hidden value of the file would be lost, \
         so nothing was written"
    );
    ToolError::new(Kind::RedactionMarker, message)
        .with_details(json!({ "marker": marker, "line": line }))
        .with_next_action(format!(
            "write exactly {marker}, at its place in the file, to keep the hidden value"
        ))
        .with_next_action("or remove the value first, with an edit that puts nothing in its place")
}

/// Refuses markers in a new file, which has no hidden values.
pub fn refuse_markers(new: &[u8]) -> Result<(), ToolError> {
    match find_markers(new).first() {
        None => Ok(()),
        Some(marker) => Err(misplaced_marker_error(new, marker)),
    }
}

/// The error for a marker that stands for no value at its place.
pub fn misplaced_marker_error(new: &[u8], marker: &Range<usize>) -> ToolError {
    let text = String::from_utf8_lossy(&new[marker.clone()]);
    let line = memchr::memchr_iter(b'\n', &new[..marker.start]).count() + 1;
    let message = format!(
        "{text} stands for a hidden value that the file does not have at this place (line {line} of the new \
         text), so nothing was written"
    );
    ToolError::new(Kind::RedactionMarker, message)
        .with_details(json!({ "marker": text, "line": line }))
        .with_next_action("keep the line as it is in the file, and where it is")
        .with_next_action("or use an edit that does not touch it")
        .with_next_action(
            "read the file again if it may have changed; hidden values cannot be copied elsewhere",
        )
}

/// The error for an old text that begins or ends inside a marker.
pub fn cut_marker_error() -> ToolError {
    let message = "the text to replace begins or ends inside a redaction marker";
    ToolError::new(Kind::RedactionMarker, message).with_next_action(
        "keep the line as it is, or name the whole marker with the text around it",
    )
}

/// Adds markers for text that looks like a marker and stands for itself.
fn add_literal_markers(text: &[u8], hidden: Vec<FileMarker>) -> Vec<FileMarker> {
    let mut hidden = hidden.into_iter().peekable();
    let mut all = Vec::new();
    // How much longer the masked text is than the original so far.
    let mut moved_to = 0_usize;
    let mut moved_from = 0_usize;
    for found in find_markers(text) {
        while let Some(before) = hidden.next_if(|hidden| hidden.text.start <= found.start) {
            moved_to = before.text.end + before.line_ends;
            moved_from = before.original.end;
            all.push(before);
        }
        if all.last().is_none_or(|last: &FileMarker| last.text.end <= found.start) {
            let original = found.start - moved_to + moved_from..found.end - moved_to + moved_from;
            all.push(FileMarker { text: found, line_ends: 0, original });
        }
    }
    all.extend(hidden);
    all
}

/// The markers inside a part of a text.
fn markers_within(found: &[Range<usize>], part: &Range<usize>) -> Range<usize> {
    let first = found.partition_point(|marker| marker.start < part.start);
    let end = found.partition_point(|marker| marker.end <= part.end);
    first..end.max(first)
}

/// The lines of a text without their ends, which may be LF, CRLF, or CR where there is no LF.
fn line_ranges(text: &[u8]) -> Vec<Range<usize>> {
    let end = if memchr::memchr(b'\n', text).is_some() { b'\n' } else { b'\r' };
    let mut lines = Vec::new();
    let mut start = 0;
    for at in memchr::memchr_iter(end, text).chain([text.len()]) {
        let is_crlf = end == b'\n' && at > start && text[at - 1] == b'\r';
        lines.push(start..at - usize::from(is_crlf));
        start = at + 1;
    }
    lines
}

/// The lengths of the line ends at the beginning of a text.
fn line_ends(text: &[u8]) -> Vec<usize> {
    let mut lengths = Vec::new();
    let mut rest = text;
    loop {
        let length = match rest {
            [b'\r', b'\n', ..] => 2,
            [b'\n', ..] => 1,
            _ => return lengths,
        };
        lengths.push(length);
        rest = &rest[length..];
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PEM: &str = "-----BEGIN-----\nabcdefghijklmnop\nqrstuvwxyzabcdef\n-----END-----";

    fn secrets() -> Secrets {
        let known =
            [("A", "value-of-a-1"), ("A", "value-of-a-2"), ("B", "value-of-b"), ("PEM", PEM)];
        Secrets::new(known.map(|(name, value)| (name.to_owned(), value.to_owned())))
    }

    /// The file after a model has written this text; `None` if it is refused.
    fn filled(old: &str, new: &str) -> Option<String> {
        let secrets = secrets();
        match MaskedFile::new(old.as_bytes(), &secrets).restore_values(new.as_bytes()) {
            Ok(bytes) => Some(String::from_utf8(bytes).unwrap()),
            Err(error) => {
                assert_eq!(error.kind, Kind::RedactionMarker);
                assert!(!error.message.contains("value-of"), "{}", error.message);
                None
            }
        }
    }

    #[test]
    fn a_marker_stands_for_the_value_of_its_place() {
        for (old, new, expected) in [
            ("x=value-of-b\n", "x=[redacted:B]\n", Some("x=value-of-b\n")),
            ("x=value-of-b", "x = '[redacted:B]'\ny\n", Some("x = 'value-of-b'\ny\n")),
            ("x=value-of-b\ny\n", "y\n", Some("y\n")),
            // A value may be repeated in the changed part that had it.
            ("x=value-of-b\n", "x=[redacted:B]\nz=[redacted:B]\n", None),
            (
                "x=value-of-b\n",
                "y=[redacted:B]\nz=[redacted:B]\n",
                Some("y=value-of-b\nz=value-of-b\n"),
            ),
            ("x=value-of-b\n", "x=[redacted:A]\n", None),
            ("x\n", "x=[redacted:B]\n", None),
            ("", "[redacted:B]", None),
            // Values of one name keep their order, or must be distinguishable.
            (
                "x=value-of-a-1\ny=value-of-a-2\n",
                "X=[redacted:A]\nY=[redacted:A]\n",
                Some("X=value-of-a-1\nY=value-of-a-2\n"),
            ),
            ("x=value-of-a-1\ny=value-of-a-2\n", "X=[redacted:A]\n", None),
            ("x=value-of-a-1\ny=value-of-a-2\n", "x=[redacted:A]\n", Some("x=value-of-a-1\n")),
            // Text that only looks like a marker.
            ("see [redacted:NAME]\n", "see [redacted:NAME]!\n", Some("see [redacted:NAME]!\n")),
            ("see [redacted:NAME]\n", "see [redacted:OTHER]\n", None),
            (
                "see [redacted:B]: value-of-b\n",
                "see [redacted:B] is [redacted:B]\n",
                Some("see [redacted:B] is value-of-b\n"),
            ),
            ("x=value-of-b\r\ny\r\n", "x=[redacted:B]\r\nz\r\n", Some("x=value-of-b\r\nz\r\n")),
            ("a\rx=value-of-b\r", "a\rx=[redacted:B]\r", Some("a\rx=value-of-b\r")),
        ] {
            assert_eq!(filled(old, new).as_deref(), expected, "{old:?} {new:?}");
        }
    }

    #[test]
    fn a_value_of_several_lines_comes_back_with_and_without_the_lines_it_hides() {
        let old = format!("a\n{PEM}\nb\n");
        for (new, expected) in [
            ("a\n[redacted:PEM]\n\n\n\nb\n", old.clone()),
            ("a\n[redacted:PEM]\nb\n", old.clone()),
            ("a\nkey: [redacted:PEM]\n\n\n\nB\n", format!("a\nkey: {PEM}\nB\n")),
            ("a\n[redacted:PEM]\n\n\n\n\nb\n", format!("a\n{PEM}\n\nb\n")),
        ] {
            assert_eq!(filled(&old, new), Some(expected), "{new:?}");
        }
        assert_eq!(filled(PEM, "[redacted:PEM]\n\n\n").as_deref(), Some(PEM));
        let crlf = old.replace('\n', "\r\n");
        let new = "a\r\n[redacted:PEM]\r\n\r\n\r\n\r\nB\r\n";
        assert_eq!(filled(&crlf, new), Some(crlf.replace("b\r\n", "B\r\n")));
    }

    #[test]
    fn a_part_that_cuts_a_marker_is_reported() {
        let secrets = secrets();
        let old = format!("x=value-of-b;\n{PEM}\nend");
        let masked = MaskedFile::new(old.as_bytes(), &secrets);
        assert_eq!(masked.text(), b"x=[redacted:B];\n[redacted:PEM]\n\n\n\nend");
        for (part, expected) in [
            (0..15, false),
            (2..14, false),
            (0..13, true),
            (3..15, true),
            (0..30, false),
            (31..35, true),
            (34..37, false),
        ] {
            assert_eq!(masked.cuts_marker(&part), expected, "{part:?}");
        }
    }

    proptest! {
        /// A file that is read and written back is unchanged, whatever it contains.
        #[test]
        fn a_file_that_is_written_back_is_the_same(
            pieces in prop::collection::vec(prop::sample::select(vec![
                "value-of-a-1", "value-of-a-2", "value-of-b", PEM, "[redacted:A]", "[redacted:X]",
                "[redacted:", "]", "x", "\n", "\r\n", "=", "\u{e9}",
            ]), 0..24),
            line in "[a-z]{0,3}",
        ) {
            let old = pieces.concat();
            let secrets = secrets();
            let masked = MaskedFile::new(old.as_bytes(), &secrets);
            prop_assert_eq!(masked.restore_values(masked.text()).unwrap(), old.as_bytes());
            // A line before it makes no difference.
            let more = [format!("{line}-\n").as_bytes(), masked.text()].concat();
            if let Ok(filled) = masked.restore_values(&more) {
                prop_assert_eq!(filled, [format!("{line}-\n").as_bytes(), old.as_bytes()].concat());
            }
        }
    }
}
