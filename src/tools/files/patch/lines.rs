//! Applies the chunks of a patch to a file, line by line.
//!
//! Context lines keep the bytes of the file; added lines are written as in the patch, with the line
//! ending of their neighbours.

use super::super::redaction::{MaskedFile, TextCorrespondence, refuse_near_markers};
use super::super::replace::{refuse_mixing, refuse_wide};
use super::super::write::file_ending;
use super::parser::{LineMark, PatchChunk};
use super::place::{ChunkPlace, locate_chunk};
use crate::base::secret::{Secrets, has_marker};
use crate::base::text::BOM;
use crate::base::tool_error::ToolError;

/// A line and its ending, which is empty if the last line has none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FileLine<'c> {
    text: &'c [u8],
    ending: &'c [u8],
}

/// A file's content after its chunks were applied.
#[derive(Debug)]
pub struct PatchedContent {
    pub bytes: Vec<u8>,
    pub notes: Vec<String>,
}

/// Applies all chunks, each matched against the original content. Redaction markers in a chunk match
/// the hidden values of the file, and its added lines may repeat them.
pub fn apply_chunks(
    content: &[u8],
    chunks: &[PatchChunk],
    secrets: &Secrets,
) -> Result<PatchedContent, ToolError> {
    refuse_wide(content)?;
    let texts = |chunk: &PatchChunk| chunk.lines.iter().any(|line| has_marker(&line.text));
    let anchors = |chunk: &PatchChunk| chunk.anchors.iter().any(|anchor| has_marker(anchor));
    if !chunks.iter().any(|chunk| texts(chunk) || anchors(chunk)) {
        let applied = apply_chunks_to(content, chunks)?.0;
        refuse_near_markers(content, &applied.bytes, secrets)?;
        return Ok(applied);
    }
    let masked = MaskedFile::new(content, secrets);
    let (applied, parts) = apply_chunks_to(masked.text(), chunks)?;
    let bytes = masked.restore_values_in_parts(&applied.bytes, &parts)?;
    refuse_near_markers(content, &bytes, secrets)?;
    Ok(PatchedContent { bytes, ..applied })
}

/// Applies all chunks; also returns which parts of the new content correspond to which old ones.
fn apply_chunks_to(
    content: &[u8],
    chunks: &[PatchChunk],
) -> Result<(PatchedContent, Vec<TextCorrespondence>), ToolError> {
    if std::str::from_utf8(content).is_err() {
        let added = chunks.iter().flat_map(|chunk| &chunk.lines);
        for line in added.filter(|line| line.mark == LineMark::Add) {
            refuse_mixing(content, &line.text, "an added line")?;
        }
    }
    let mark_length = if content.starts_with(BOM) { BOM.len() } else { 0 };
    let (mark, text) = content.split_at(mark_length);
    let lines = split_lines(text);
    let texts: Vec<&[u8]> = lines.iter().map(|line| line.text).collect();
    let mut draft = LineEdits::new(&lines, text, chunks.len());
    let mut notes = Vec::new();
    for (index, chunk) in chunks.iter().enumerate() {
        let place = locate_chunk(&texts, chunk)?;
        draft.add_chunk(&place, chunk, index)?;
        if let Some(what) = place.ignored {
            notes.push(format!("line {} was matched ignoring {what}", place.start + 1));
        }
    }
    let (body, mut parts) = draft.finish();
    let bytes = [mark, &body].concat();
    for part in &mut parts {
        shift_ranges(part, mark_length);
    }
    if bytes == content && !chunks.is_empty() {
        return Err(ToolError::invalid_args(
            "nothing would change: the file already has the new lines",
        )
        .with_next_action("read the file again; it may already be as wanted"));
    }
    Ok((PatchedContent { bytes, notes }, parts))
}

/// Shifts all ranges of a correspondence by a prefix that both texts have.
fn shift_ranges(part: &mut TextCorrespondence, length: usize) {
    for range in part.new.iter_mut().chain(&mut part.old).chain(&mut part.nearby) {
        *range = range.start + length..range.end + length;
    }
}

/// Splits a text into lines, which end with LF or CRLF; a file without any LF has CR lines.
fn split_lines(text: &[u8]) -> Vec<FileLine<'_>> {
    let has_lf = memchr::memchr(b'\n', text).is_some();
    let end = if has_lf { b'\n' } else { b'\r' };
    let mut lines = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let length = memchr::memchr(end, rest).map_or(rest.len(), |at| at + 1);
        let (line, after) = rest.split_at(length);
        let ending = match line {
            [.., b'\r', b'\n'] => 2,
            [.., last] if *last == end => 1,
            _ => 0,
        };
        let (text, ending) = line.split_at(line.len() - ending);
        lines.push(FileLine { text, ending });
        rest = after;
    }
    lines
}

/// The edits of all chunks, line by line.
struct LineEdits<'l, 'c> {
    lines: &'l [FileLine<'c>],
    default_ending: &'static str,
    actions: Vec<LineAction>,
    /// The text to add before each line, and after the last, with the index of its chunk.
    added: Vec<Vec<(usize, String)>>,
    /// The lines that each chunk removes and keeps.
    chunk_lines: Vec<(Vec<usize>, Vec<usize>)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LineAction {
    Unknown,
    Kept,
    Removed,
}

impl<'l, 'c> LineEdits<'l, 'c> {
    fn new(lines: &'l [FileLine<'c>], text: &[u8], chunks: usize) -> Self {
        let count = lines.len();
        let (actions, added) = (vec![LineAction::Unknown; count], vec![Vec::new(); count + 1]);
        let chunk_lines = vec![<(Vec<usize>, Vec<usize>)>::default(); chunks];
        Self { lines, default_ending: file_ending(text), actions, added, chunk_lines }
    }

    /// Adds the changes of a chunk. Two chunks may share context, but not contradict each other.
    fn add_chunk(
        &mut self,
        place: &ChunkPlace<'_>,
        chunk: &PatchChunk,
        index: usize,
    ) -> Result<(), ToolError> {
        let mut at = place.start;
        for line in place.lines {
            let action = match line.mark {
                LineMark::Add => {
                    self.added[at].push((index, line.text.clone()));
                    continue;
                }
                LineMark::Keep | LineMark::Blank => LineAction::Kept,
                LineMark::Remove => LineAction::Removed,
            };
            let (removed, kept) = &mut self.chunk_lines[index];
            if action == LineAction::Removed { removed } else { kept }.push(at);
            let before = std::mem::replace(&mut self.actions[at], action);
            if before == LineAction::Removed
                || (before == LineAction::Kept && action == LineAction::Removed)
            {
                let (line, number) = (at + 1, chunk.number);
                let message = format!(
                    "the chunk at line {number} of the patch overlaps another one at line {line}"
                );
                return Err(
                    ToolError::invalid_args(message).with_next_action("merge both into one chunk")
                );
            }
            at += 1;
        }
        Ok(())
    }

    fn finish(self) -> (Vec<u8>, Vec<TextCorrespondence>) {
        let ends_open = self.lines.last().is_some_and(|line| line.ending.is_empty());
        let mut bytes = Vec::new();
        let starts = self.line_offsets();
        let whole = |at: &usize| starts[*at]..starts[*at] + self.lines[*at].text.len();
        let mut parts: Vec<TextCorrespondence> = self
            .chunk_lines
            .iter()
            .map(|(removed, kept)| TextCorrespondence {
                new: Vec::new(),
                old: removed.iter().map(whole).collect(),
                nearby: kept.iter().map(whole).collect(),
            })
            .collect();
        // The ending that the last written line still needs, and whether that line is new.
        let mut open: Option<&[u8]> = None;
        let mut is_new = false;
        for at in 0..=self.lines.len() {
            let ending = self.ending_at(at);
            for (chunk, text) in &self.added[at] {
                bytes.extend_from_slice(open.take().unwrap_or_default());
                // A line of a patch with CRLF already ends with CR.
                let text = text.as_bytes();
                let text =
                    if ending == b"\r\n" { text.strip_suffix(b"\r").unwrap_or(text) } else { text };
                parts[*chunk].new.push(bytes.len()..bytes.len() + text.len());
                bytes.extend_from_slice(text);
                (open, is_new) = (Some(ending), true);
            }
            let Some(line) = self.lines.get(at).filter(|_| self.actions[at] != LineAction::Removed)
            else {
                continue;
            };
            bytes.extend_from_slice(open.take().unwrap_or_default());
            let kept = bytes.len()..bytes.len() + line.text.len();
            parts.push(TextCorrespondence::one_to_one(whole(&at), kept));
            bytes.extend_from_slice(line.text);
            let is_open = line.ending.is_empty();
            bytes.extend_from_slice(line.ending);
            (open, is_new) = (is_open.then(|| self.ending_at(at)), false);
        }
        // A file without a final newline stays without one.
        if let Some(ending) = open.filter(|_| is_new && !ends_open) {
            bytes.extend_from_slice(ending);
        }
        (bytes, parts)
    }

    /// The byte offset of each line.
    fn line_offsets(&self) -> Vec<usize> {
        let mut next = 0;
        let start = |line: &FileLine<'_>| {
            let start = next;
            next += line.text.len() + line.ending.len();
            start
        };
        self.lines.iter().map(start).collect()
    }

    /// The ending of a line that is added before line `at`: its neighbour's, else the file's usual one.
    fn ending_at(&self, at: usize) -> &'l [u8] {
        let above = at.checked_sub(1).and_then(|above| self.lines.get(above));
        let near = above.into_iter().chain(self.lines.get(at)).map(|line| line.ending);
        near.into_iter().find(|ending| !ending.is_empty()).unwrap_or(self.default_ending.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::parser::{SectionAction, parse_patch};
    use super::*;
    use crate::base::error::Kind;

    fn patched(content: &[u8], body: &str) -> Result<PatchedContent, ToolError> {
        let patch = format!("*** Begin Patch\n*** Update File: f\n{body}*** End Patch\n");
        match parse_patch(&patch).unwrap().remove(0).action {
            SectionAction::Update { chunks, .. } => {
                apply_chunks(content, &chunks, &Secrets::default())
            }
            _ => unreachable!(),
        }
    }

    #[track_caller]
    fn check(content: &[u8], body: &str, expected: &[u8]) {
        let applied = patched(content, body).unwrap();
        let (found, wanted) =
            (String::from_utf8_lossy(&applied.bytes), String::from_utf8_lossy(expected));
        assert_eq!(found, wanted, "{body}");
    }

    #[track_caller]
    fn check_refused(content: &[u8], body: &str, kind: Kind, reason: &str) {
        let error = patched(content, body).unwrap_err();
        assert_eq!(error.kind, kind, "{body}: {}", error.message);
        assert!(error.message.contains(reason), "{body}: {}", error.message);
    }

    #[test]
    fn lines_are_replaced_added_and_removed() {
        check(b"a\nb\nc\n", " a\n-b\n+x\n+y\n c\n", b"a\nx\ny\nc\n");
        check(b"a\nb\nc\n", "-b\n", b"a\nc\n");
        check(b"a\nb\n", "+x\n a\n", b"x\na\nb\n");
        check(b"a\nb\n", " b\n+x\n", b"a\nb\nx\n");
        check(b"", "+x\n", b"x\n");
        check(b"a\n", "-a\n", b"");
        check(b"a\nb\nc\nd\ne\n", "@@\n-a\n+1\n b\n@@\n b\n c\n-d\n+4\n", b"1\nb\nc\n4\ne\n");
        // Chunks that mean one place each may come in any order.
        check(b"a\nb\nc\n", "@@\n-c\n+3\n@@\n-a\n+1\n", b"1\nb\n3\n");
    }

    #[test]
    fn endings_and_the_final_newline_stay() {
        check(b"a\r\nb\r\n", " a\n-b\n+x\n+y\n", b"a\r\nx\r\ny\r\n");
        check(b"a\rb\r", " a\n-b\n+x\n", b"a\rx\r");
        check(b"a\r\nb\nc\r\n", " b\n+x\n", b"a\r\nb\nx\nc\r\n");
        check(b"a\r\nb\nc\r\n", " a\n+x\n", b"a\r\nx\r\nb\nc\r\n");
        check(b"a\nb", "-b\n+x\n+y\n", b"a\nx\ny");
        check(b"a\nb", " b\n+x\n", b"a\nb\nx");
        check(b"a\r\nb", " b\n+x\n", b"a\r\nb\r\nx");
        check(b"a\nb", "-b\n", b"a\n");
        check(b"a\nb", "+x\n b\n", b"a\nx\nb");
        check(b"a", "-a\n+b\n", b"b");
        check(b"\xef\xbb\xbfa\nb\n", "-a\n+x\n", b"\xef\xbb\xbfx\nb\n");
        check(b"a\r\nb\r\n", " a\r\n-b\r\n+x\r\n", b"a\r\nx\r\n");
        check(b"50%\r100%\nb\n", "-b\n+x\n", b"50%\r100%\nx\n");
    }

    #[test]
    fn anchors_choose_among_places() {
        let content = b"class A\n  fn f\n    x\nclass B\n  fn g\n    x\n  fn f\n    x\n";
        check_refused(content, "-    x\n+    y\n", Kind::NotUnique, "at lines 3, 6, 8");
        let first = b"class A\n  fn f\n    y\nclass B\n  fn g\n    x\n  fn f\n    x\n";
        let last = b"class A\n  fn f\n    x\nclass B\n  fn g\n    x\n  fn f\n    y\n";
        check(content, "@@ class A\n-    x\n+    y\n", first);
        check(content, "@@ class B\n@@   fn f\n-    x\n+    y\n", last);
        // The anchor may be a part of its line, and be repeated as context.
        check(content, "@@ ss B\n@@ fn f\n   fn f\n-    x\n+    y\n", last);
        check_refused(content, "@@   fn f\n-    x\n+    y\n", Kind::NotUnique, "lines 3, 8");
        check_refused(content, "@@ class C\n-    x\n+    y\n", Kind::NoMatch, "class C");
        check_refused(content, "@@ class B\n@@ class A\n-    x\n", Kind::NoMatch, "class A");
    }

    #[test]
    fn the_end_of_the_file_is_a_place() {
        check(b"x\ny\nx\n", " x\n+z\n*** End of File\n", b"x\ny\nx\nz\n");
        check(b"x\ny\nx\n\n\n", "-x\n+z\n*** End of File\n", b"x\ny\nz\n\n\n");
        check(b"x\ny\n", "+z\n*** End of File\n", b"x\ny\nz\n");
        check(b"x\ny", "+z\n*** End of File\n", b"x\ny\nz");
        // The marker is wrong, but the place is unambiguous.
        check(b"x\ny\n", "-x\n+z\n*** End of File\n", b"z\ny\n");
        check_refused(b"x\n", "+z\n", Kind::InvalidArgs, "where to add");
        check_refused(b"x\n", "@@ x\n+z\n", Kind::InvalidArgs, "where to add");
    }

    #[test]
    fn matching_ignores_trailing_blanks_and_punctuation() {
        let applied = patched(b"a  \nb\t\nc\n", " a\n-b\n+x  \n c\n").unwrap();
        assert_eq!(applied.bytes, b"a  \nx  \nc\n");
        assert_eq!(applied.notes, ["line 1 was matched ignoring blanks at the ends of lines"]);
        let content = "say \u{201c}hi\u{201d} \u{2013} he said\nb\n";
        check(
            content.as_bytes(),
            " say \"hi\" - he said\n-b\n+\u{2019}\n",
            "say \u{201c}hi\u{201d} \u{2013} he said\n\u{2019}\n".as_bytes(),
        );
        check(b"say \"hi\"\nb\n", " say \u{201c}hi\u{201d}\n-b\n", b"say \"hi\"\n");
        // An exact match is preferred to a similar one.
        check(b"a \nb\na\nb\n", " a\n-b\n", b"a \nb\na\n");
        check_refused(b"a \nb\na\t\nb\n", " a\n-b\n", Kind::NotUnique, "lines 1, 3");
        // Indentation is never ignored.
        check_refused(b"    x\n", "-  x\n+  y\n", Kind::NoMatch, "does not fit");
    }

    #[test]
    fn blank_lines_between_chunks_are_no_context() {
        check(b"a\nb\n", "\n-a\n+x\n\n@@\n-b\n+y\n\n\n", b"x\ny\n");
        check(b"a\n\nb\n", " a\n\n-b\n", b"a\n\n");
        check(b"a\n\nx\na\ny\n", "-a\n\n", b"\nx\na\ny\n");
    }

    #[test]
    fn lines_that_do_not_fit_are_reported() {
        let error = patched(b"one\n\ttwo\n", "-  two\n+three\n").unwrap_err();
        assert!(error.next_actions[0].contains("white space"), "{:?}", error.next_actions);
        let error = patched(b"one\nthree\n", " one\n-two\n+three\n").unwrap_err();
        assert!(error.next_actions[0].contains("already there, at line 1"));
        check_refused(b"a\n", "-b\n", Kind::NoMatch, "does not fit");
        check_refused(b"a\nb\n", "@@\n-a\n b\n@@\n-b\n", Kind::InvalidArgs, "overlaps");
        check_refused(b"a\nb\n", "-a\n+a\n", Kind::InvalidArgs, "nothing would change");
        check_refused(b"\xff\xfea\0\n\0", "-a\n", Kind::BinaryFile, "UTF-16");
        check_refused(b"caf\xe9\nb\n", "-b\n+\u{e9}\n", Kind::InvalidArgs, "not plain ASCII");
    }

    proptest! {
        /// For any content and patch: no panic, and no byte that is in neither of them.
        #[test]
        fn nothing_comes_from_nowhere(
            content in prop::collection::vec(prop::sample::select(b"ab \t\n\r\xe9\0".to_vec()), 0..24),
            lines in prop::collection::vec(prop::sample::select(vec![
                " a", " b", "-a", "-b", "-", "+NEW", "+", "", " ", "@@", "@@ a", "*** End of File",
            ]), 1..8),
        ) {
            let body: String = lines.iter().flat_map(|line| [*line, "\n"]).collect();
            let patch = format!("*** Begin Patch\n*** Update File: f\n{body}*** End Patch\n");
            let Ok(mut sections) = parse_patch(&patch) else { return Ok(()) };
            let SectionAction::Update { chunks, .. } = sections.remove(0).action else { unreachable!() };
            if let Ok(applied) = apply_chunks(&content, &chunks, &Secrets::default()) {
                let count = |bytes: &[u8], byte| memchr::memchr_iter(byte, bytes).count();
                for byte in [b'a', b'b', 0xe9, 0] {
                    prop_assert!(count(&applied.bytes, byte) <= count(&content, byte));
                }
                let added = lines.iter().filter(|line| **line == "+NEW").count();
                prop_assert_eq!(count(&applied.bytes, b'N'), added);
            }
        }

        /// One changed line with some context: exact where the context occurs once, else refused.
        #[test]
        fn a_chunk_means_one_place_or_is_refused(
            lines in prop::collection::vec("[ab]{0,2} ?", 1..14),
            at in any::<prop::sample::Index>(),
            context in 0_usize..3,
            crlf in any::<bool>(),
        ) {
            let at = at.index(lines.len());
            let (first, end) = (at.saturating_sub(context), (at + context + 1).min(lines.len()));
            let wanted = &lines[first..end];
            let body: String = (first..end)
                .flat_map(|line| {
                    let mark = if line == at { "-" } else { " " };
                    let added = if line == at { "+NEW\n" } else { "" };
                    [mark, &lines[line], "\n", added]
                })
                .collect();
            let ending = if crlf { "\r\n" } else { "\n" };
            let whole = |lines: &[String]| lines.iter().fold(String::new(), |text, line| text + line + ending);
            let applied = patched(whole(&lines).as_bytes(), &body);
            let places = lines.windows(wanted.len()).filter(|window| *window == wanted).count();
            if places == 1 {
                let mut expected = lines.clone();
                expected[at] = "NEW".to_owned();
                prop_assert_eq!(String::from_utf8(applied.unwrap().bytes).unwrap(), whole(&expected));
            } else {
                prop_assert_eq!(applied.unwrap_err().kind, Kind::NotUnique);
            }
        }

        /// A patch made from two contents turns the one into the other, or is refused.
        #[test]
        fn a_patch_made_of_two_files_is_exact(
            old in prop::collection::vec("[a-d ]{0,2}", 0..12),
            new in prop::collection::vec("[a-d ]{0,2}", 0..12),
            crlf in any::<bool>(),
        ) {
            let (old, new) = (old.join("\n") + "\n", new.join("\n") + "\n");
            prop_assume!(old != new);
            let diff = similar::TextDiff::from_lines(&old, &new);
            let mut body = String::new();
            for change in diff.iter_all_changes() {
                let mark = match change.tag() {
                    similar::ChangeTag::Equal => ' ',
                    similar::ChangeTag::Delete => '-',
                    similar::ChangeTag::Insert => '+',
                };
                body.push(mark);
                body.push_str(change.value());
            }
            let ended = |text: &str| if crlf { text.replace('\n', "\r\n") } else { text.to_owned() };
            let applied = patched(ended(&old).as_bytes(), &body).unwrap();
            prop_assert_eq!(String::from_utf8(applied.bytes).unwrap(), ended(&new));
        }
    }
}
