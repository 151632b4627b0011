//! Parser of the patch format: sections, chunks and lines, without access to any file.
//!
//! Mistakes of models that do not change the meaning are accepted: a here-document or a fence around
//! the patch, CRLF, line numbers of a unified diff, blank lines between sections. Anything ambiguous
//! is refused, with its line number.

use std::borrow::Cow;
use std::path::PathBuf;

use crate::base::tool_error::ToolError;

const BEGIN: &str = "*** Begin Patch";
const END: &str = "*** End Patch";
const ADD: &str = "*** Add File:";
const DELETE: &str = "*** Delete File:";
const UPDATE: &str = "*** Update File:";
const MOVE: &str = "*** Move to:";
const END_OF_FILE: &str = "*** End of File";

/// A section of a patch: what it does to one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PatchSection {
    pub path: PathBuf,
    pub action: SectionAction,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SectionAction {
    Add { content: String },
    Delete,
    Update { to: Option<PathBuf>, chunks: Vec<PatchChunk> },
}

/// A change to adjacent lines.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PatchChunk {
    /// The line of the patch where it begins, from 1.
    pub number: usize,
    /// Lines above the change, the outermost first.
    pub anchors: Vec<String>,
    pub lines: Vec<PatchLine>,
    /// Whether the chunk ends with `*** End of File`.
    pub is_at_end: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PatchLine {
    pub mark: LineMark,
    pub text: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LineMark {
    Keep,
    /// An empty line without the leading blank: context, or only a separator.
    Blank,
    Remove,
    Add,
}

impl PatchChunk {
    fn is_change(&self) -> bool {
        self.lines.iter().any(|line| matches!(line.mark, LineMark::Remove | LineMark::Add))
    }
}

/// Parses a patch.
pub fn parse_patch(whole: &str) -> Result<Vec<PatchSection>, ToolError> {
    let text = normalize_crlf(whole);
    let all: Vec<&str> = text.split('\n').collect();
    let mut parser = PatchParser::new(&all)?;
    let mut sections = Vec::new();
    while let Some(line) = parser.next_line() {
        if line.trim().is_empty() {
            continue;
        }
        let number = parser.number;
        let section = if let Some(path) = line.strip_prefix(ADD) {
            let path = parse_path(path, number)?;
            PatchSection { path, action: parser.parse_add()? }
        } else if let Some(path) = line.strip_prefix(DELETE) {
            PatchSection { path: parse_path(path, number)?, action: SectionAction::Delete }
        } else if let Some(path) = line.strip_prefix(UPDATE) {
            let path = parse_path(path, number)?;
            PatchSection { path, action: parser.parse_update()? }
        } else {
            return Err(unexpected_line(line, number, "a line such as `*** Update File: path`"));
        };
        sections.push(section);
    }
    if sections.is_empty() {
        return Err(ToolError::invalid_args("the patch has no section").with_next_action(
            "begin each file with *** Add File:, *** Update File: or *** Delete File:",
        ));
    }
    Ok(sections)
}

/// Converts CRLF to LF if every line of the patch ends with CRLF.
fn normalize_crlf(patch: &str) -> Cow<'_, str> {
    let mut lines = patch.trim_end().split('\n').peekable();
    let mut is_crlf = patch.contains("\r\n");
    while let Some(line) = lines.next() {
        is_crlf &= line.ends_with('\r') || lines.peek().is_none();
    }
    if is_crlf { patch.replace("\r\n", "\n").into() } else { patch.into() }
}

struct PatchParser<'p> {
    lines: &'p [&'p str],
    /// The number of the line returned last, from 1 in the whole text.
    number: usize,
}

impl<'p> PatchParser<'p> {
    /// Finds the patch inside fences and here-documents.
    fn new(all: &'p [&'p str]) -> Result<Self, ToolError> {
        let is_blank = |line: &&str| line.trim().is_empty();
        let mut first = all.iter().take_while(|line| is_blank(line)).count();
        let mut end = all.len() - all.iter().rev().take_while(|line| is_blank(line)).count();
        while first + 1 < end && is_wrapping(all[first].trim(), all[end - 1].trim()) {
            first += 1;
            end -= 1;
            first += all[first..end].iter().take_while(|line| is_blank(line)).count();
            end -= all[first..end].iter().rev().take_while(|line| is_blank(line)).count();
        }
        if all.get(first).map(|line| line.trim()) != Some(BEGIN) || first >= end {
            return Err(ToolError::invalid_args(format!(
                "the patch does not begin with `{BEGIN}`"
            ))
            .with_next_action(format!("wrap all sections in `{BEGIN}` and `{END}`")));
        }
        let inner = &all[first + 1..end];
        match inner.iter().position(|line| line.trim_end() == END) {
            None if inner.last().is_some_and(|line| line.trim() == END) => {
                Ok(Self { lines: &all[..end - 1], number: first + 1 })
            }
            None => {
                Err(ToolError::invalid_args(format!("the patch has no `{END}`; it may be cut off"))
                    .with_next_action("send the whole patch again"))
            }
            Some(at) if first + 1 + at + 1 < end => {
                let line = first + at + 3;
                let message = format!("line {line} of the patch comes after `{END}`");
                Err(ToolError::invalid_args(message)
                    .with_next_action("send one patch and nothing else"))
            }
            Some(_) => Ok(Self { lines: &all[..end - 1], number: first + 1 }),
        }
    }

    fn next_line(&mut self) -> Option<&'p str> {
        let line = self.lines.get(self.number).copied()?;
        self.number += 1;
        Some(line)
    }

    /// The next line, if it still belongs to the section.
    fn next_in_section(&mut self) -> Option<&'p str> {
        let line = *self.lines.get(self.number)?;
        if [ADD, DELETE, UPDATE].iter().any(|marker| line.starts_with(marker)) {
            return None;
        }
        self.number += 1;
        Some(line)
    }

    fn parse_add(&mut self) -> Result<SectionAction, ToolError> {
        let mut content = String::new();
        // An empty line may separate sections, but is not a line of the file.
        let mut separator = None;
        while let Some(line) = self.next_in_section() {
            match line.strip_prefix('+') {
                Some(text) => {
                    if let Some(number) = separator {
                        return Err(unexpected_line(
                            "",
                            number,
                            "`+` before every line of a new file",
                        ));
                    }
                    content.push_str(text);
                    content.push('\n');
                }
                None if line.trim().is_empty() => {
                    separator.get_or_insert(self.number);
                }
                None if line.trim_end() == END_OF_FILE => {}
                None => {
                    return Err(unexpected_line(
                        line,
                        self.number,
                        "`+` before every line of a new file",
                    ));
                }
            }
        }
        Ok(SectionAction::Add { content })
    }

    fn parse_update(&mut self) -> Result<SectionAction, ToolError> {
        let mut to = None;
        let mut chunks = Vec::new();
        let mut chunk = PatchChunk::default();
        while let Some(line) = self.next_in_section() {
            let number = self.number;
            if let Some(path) = line.strip_prefix(MOVE) {
                if to.is_some() || !chunks.is_empty() || chunk != PatchChunk::default() {
                    return Err(unexpected_line(
                        line,
                        number,
                        "`*** Move to:` only after its header",
                    ));
                }
                to = Some(parse_path(path, number)?);
            } else if line.trim_end() == END_OF_FILE {
                chunk.is_at_end = true;
                end_chunk(&mut chunk, &mut chunks)?;
            } else if let Some(anchor) = line.strip_prefix("@@") {
                if !chunk.lines.is_empty() {
                    end_chunk(&mut chunk, &mut chunks)?;
                }
                chunk.set_number(number);
                chunk.anchors.extend(parse_anchor(anchor));
            } else {
                chunk.set_number(number);
                let (mark, text) = parse_line(line).ok_or_else(|| {
                    unexpected_line(line, number, "a blank, `-` or `+` before every line, or `@@`")
                })?;
                chunk.lines.push(PatchLine { mark, text: text.to_owned() });
            }
        }
        if chunk.lines.iter().any(|line| line.mark != LineMark::Blank) || !chunk.anchors.is_empty()
        {
            end_chunk(&mut chunk, &mut chunks)?;
        }
        chunks.retain(PatchChunk::is_change);
        if chunks.is_empty() && to.is_none() {
            let number = self.number;
            let message =
                format!("the section that ends at line {number} of the patch changes nothing");
            return Err(
                ToolError::invalid_args(message).with_next_action("give it `-` and `+` lines")
            );
        }
        Ok(SectionAction::Update { to, chunks })
    }
}

impl PatchChunk {
    fn set_number(&mut self, number: usize) {
        if self.number == 0 {
            self.number = number;
        }
    }
}

fn end_chunk(chunk: &mut PatchChunk, chunks: &mut Vec<PatchChunk>) -> Result<(), ToolError> {
    let ended = std::mem::take(chunk);
    if ended.lines.is_empty() {
        let number = ended.number;
        let message = format!("the chunk at line {number} of the patch has no lines");
        return Err(ToolError::invalid_args(message)
            .with_next_action("follow each `@@` with context and changes"));
    }
    chunks.push(ended);
    Ok(())
}

fn parse_line(line: &str) -> Option<(LineMark, &str)> {
    match line.as_bytes().first() {
        None => Some((LineMark::Blank, "")),
        Some(b' ') => Some((LineMark::Keep, &line[1..])),
        Some(b'-') => Some((LineMark::Remove, &line[1..])),
        Some(b'+') => Some((LineMark::Add, &line[1..])),
        // A blank line of a file with CRLF.
        Some(b'\r') if line.len() == 1 => Some((LineMark::Blank, "")),
        Some(_) => None,
    }
}

/// The line that an `@@` names; `None` for the header of a unified diff, whose line numbers are not
/// reliable and whose text may be cut.
fn parse_anchor(text: &str) -> Option<String> {
    let text = text.strip_prefix(' ').unwrap_or(text).trim_end();
    let has_numbers = text.split_once(" @@").map(|(numbers, _)| numbers).is_some_and(|numbers| {
        let is_number = |c: char| c.is_ascii_digit() || c == ',';
        let mut words = numbers.split(' ');
        let (old, new) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
        old.strip_prefix('-').is_some_and(|rest| rest.chars().all(is_number))
            && new.strip_prefix('+').is_some_and(|rest| rest.chars().all(is_number))
    });
    (!text.is_empty() && !has_numbers).then(|| text.to_owned())
}

/// Whether two lines are the delimiters of a fence or a here-document.
fn is_wrapping(first: &str, last: &str) -> bool {
    if first.starts_with("```") {
        return last == "```";
    }
    let Some((_, word)) = first.rsplit_once("<<") else { return false };
    let word = word.trim_start_matches('-').trim().trim_matches(['\'', '"']);
    !word.is_empty() && !first.starts_with("***") && last == word
}

fn parse_path(text: &str, number: usize) -> Result<PathBuf, ToolError> {
    let path = text.trim();
    if path.is_empty() {
        return Err(ToolError::invalid_args(format!("line {number} of the patch names no file")));
    }
    Ok(path.into())
}

fn unexpected_line(line: &str, number: usize, expected: &str) -> ToolError {
    let shown = crate::base::text::truncate_chars(line, 60);
    ToolError::invalid_args(format!("line {number} of the patch is {shown:?}; expected {expected}"))
        .with_details(serde_json::json!({ "patch_line": number }))
        .with_next_action("nothing was changed; send the whole patch again")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn chunk(anchors: &[&str], lines: &[&str]) -> PatchChunk {
        let line = |line: &&str| {
            let (mark, text) = parse_line(line).unwrap();
            PatchLine { mark, text: text.to_owned() }
        };
        PatchChunk {
            number: 0,
            anchors: anchors.iter().map(|&anchor| anchor.to_owned()).collect(),
            lines: lines.iter().map(line).collect(),
            is_at_end: false,
        }
    }

    fn parsed(patch: &str) -> Vec<PatchSection> {
        let mut sections = parse_patch(patch).unwrap();
        for section in &mut sections {
            if let SectionAction::Update { chunks, .. } = &mut section.action {
                for chunk in chunks {
                    chunk.number = 0;
                }
            }
        }
        sections
    }

    const PATCH: &str = "*** Begin Patch\n*** Add File: new.txt\n+one\n+\n*** Delete File: old.txt\n\
        *** Update File: a.rs\n*** Move to: b.rs\n@@ mod x\n@@ fn y\n keep\n-old\n+new\n@@\n\
        \n-last\n*** End of File\n*** End Patch\n";

    #[test]
    fn every_part_of_the_envelope_is_read() {
        let last = PatchChunk { is_at_end: true, ..chunk(&[], &["", "-last"]) };
        let chunks = vec![chunk(&["mod x", "fn y"], &[" keep", "-old", "+new"]), last];
        let expected = [
            PatchSection {
                path: "new.txt".into(),
                action: SectionAction::Add { content: "one\n\n".into() },
            },
            PatchSection { path: "old.txt".into(), action: SectionAction::Delete },
            PatchSection {
                path: "a.rs".into(),
                action: SectionAction::Update { to: Some("b.rs".into()), chunks },
            },
        ];
        assert_eq!(parsed(PATCH), expected);
    }

    #[test]
    fn harmless_wrappings_and_endings_change_nothing() {
        let expected = parsed(PATCH);
        let plain = PATCH.trim_end();
        for wrapped in [
            plain.to_owned(),
            format!("\n\n  {plain}  \n\n"),
            format!("<<'EOF'\n{plain}\nEOF\n"),
            format!("apply_patch <<\"PATCH\"\n{plain}\nPATCH"),
            format!("cat <<-X\n\n{plain}\nX"),
            format!("```diff\n{plain}\n```"),
            format!("```\napply_patch <<EOF\n{plain}\nEOF\n```\n"),
            PATCH.replace('\n', "\r\n"),
            plain.replace('\n', "\r\n"),
            PATCH.replace("*** Update", "\n*** Update"),
            PATCH.replace("@@\n", "@@ -10,3 +10,4 @@ fn somewhere\n"),
        ] {
            assert_eq!(parsed(&wrapped), expected, "{wrapped}");
        }
    }

    #[track_caller]
    fn check_refused(body: &str, reason: &str) {
        let error = parse_patch(&format!("*** Begin Patch\n{body}*** End Patch\n")).unwrap_err();
        assert!(error.message.contains(reason), "{body:?}: {}", error.message);
    }

    #[test]
    fn whatever_would_be_guessed_is_refused() {
        check_refused("", "no section");
        check_refused("*** Add File:\n", "names no file");
        check_refused("*** Add File: a\n+x\n\n+y\n", "line 4 of the patch");
        check_refused("*** Add File: a\nx\n", "line 3 of the patch is \"x\"");
        check_refused("*** Update File: a\n@@ x\n", "no lines");
        check_refused("*** Update File: a\n keep\n", "changes nothing");
        check_refused("*** Update File: a\n-x\n*** Move to: b\n", "Move to");
        check_refused("*** Update File: a\nx\n", "line 3 of the patch");
        check_refused("*** Update File: a\n-x\n\\ No newline at end of file\n", "line 4");
        check_refused("*** Rename File: a\n", "line 2 of the patch");
        for text in ["", "x", "*** Begin Patch", "*** Begin Patch\n*** Delete File: a\n"] {
            assert!(parse_patch(text).is_err(), "{text:?}");
        }
        let twice = "*** Begin Patch\n*** Delete File: a\n*** End Patch\n".repeat(2);
        assert!(parse_patch(&twice).unwrap_err().message.contains("line 4"));
    }

    proptest! {
        #[test]
        fn no_text_makes_the_parser_panic(lines in prop::collection::vec(
            prop::sample::select(vec![
                BEGIN, END, "*** Add File: a", "*** Delete File: a", "*** Update File: a",
                "*** Move to: b", END_OF_FILE, "@@", "@@ x", "@@ -1 +1 @@", " a", "-a", "+a", "", "x",
                "<<EOF", "EOF", "```", "+\u{e9}", "\u{e9}", "\r",
            ]), 0..12), crlf in any::<bool>())
        {
            parse_patch(&lines.join(if crlf { "\r\n" } else { "\n" })).ok();
        }
    }
}
