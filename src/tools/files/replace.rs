//! Replaces a text in the bytes of a file.
//!
//! A replacement is exact or refused: no other bytes change, and encodings are never mixed.

use std::borrow::Cow;
use std::ops::Range;

use memchr::memmem;
use serde_json::json;

use super::similar_line::find_similar_line;
use super::write;
use crate::base::error::Kind;
use crate::base::tool_error::ToolError;

/// How many places are listed in an error.
const MAX_NAMED_PLACES: usize = 20;
/// How many places are counted when there should be only one.
const MAX_COUNTED_PLACES: usize = 100;
/// How many bytes are examined to detect an encoding without a byte order mark.
const SNIFF_BYTES: usize = 8 * 1024;
/// The lowest trailing byte of any multi-byte encoding.
const LOWEST_TRAIL: u8 = 0x30;

/// A replacement of an old text by a new one.
#[derive(Debug, Clone, Copy)]
pub struct TextReplacement<'a> {
    pub old: &'a str,
    pub new: &'a str,
    pub count: ExpectedCount,
}

/// How often the old text may occur.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExpectedCount {
    Once,
    Any,
}

/// A content after one replacement.
#[derive(Debug)]
pub struct ReplacedText {
    pub bytes: Vec<u8>,
    /// The ranges that were replaced, in the old content and in the new one.
    pub places: Vec<(Range<usize>, Range<usize>)>,
}

/// Makes one replacement.
pub fn replace_text(
    content: &[u8],
    change: TextReplacement<'_>,
) -> Result<ReplacedText, ToolError> {
    if change.old.is_empty() {
        return Err(ToolError::invalid_args("old_string is empty")
            .with_next_action("use write for a new file"));
    }
    if change.old == change.new {
        return Err(ToolError::invalid_args("old_string and new_string are the same"));
    }
    let is_utf8 = std::str::from_utf8(content).is_ok();
    if !is_utf8 {
        refuse_mixing(content, change.new, "new_string")?;
    }
    let search = TextSearch::new(content, change);
    if change.count == ExpectedCount::Once {
        let places: Vec<_> =
            search.find_places(OverlapRule::Include).take(MAX_COUNTED_PLACES).collect();
        if places.len() > 1 {
            return Err(not_unique(content, &places));
        }
    }
    let new = NewText::new(content, change);
    let mut replaced = Vec::with_capacity(content.len() + change.new.len());
    let mut places = Vec::new();
    let mut done = 0;
    for place in search.find_places(OverlapRule::Skip) {
        if !is_utf8 {
            refuse_inside_character(content, &place)?;
        }
        replaced.extend_from_slice(&content[done..place.start]);
        let start = replaced.len();
        replaced.extend_from_slice(new.for_region(&content[place.clone()]).as_bytes());
        done = place.end;
        places.push((place, start..replaced.len()));
    }
    if places.is_empty() {
        return Err(no_match(content, change));
    }
    replaced.extend_from_slice(&content[done..]);
    if replaced == content {
        return Err(ToolError::invalid_args(
            "nothing would change: the file already has new_string there",
        )
        .with_next_action("read the file again; it may already be as wanted"));
    }
    Ok(ReplacedText { bytes: replaced, places })
}

/// The search for an old text in a content.
#[derive(Clone, Copy)]
struct TextSearch<'a> {
    content: &'a [u8],
    old: &'a [u8],
    endings: EndingMatch,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum EndingMatch {
    /// Matches byte for byte.
    Exact,
    /// `\n` also matches CRLF and CR, because models write only `\n`.
    Any,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum OverlapRule {
    Include,
    Skip,
}

impl<'a> TextSearch<'a> {
    /// Prefers an exact match; to replace all places in a file of mixed endings, any ending matches.
    fn new(content: &'a [u8], change: TextReplacement<'a>) -> Self {
        let old = change.old.as_bytes();
        let exact = Self { content, old, endings: EndingMatch::Exact };
        let may_differ = change.old.contains('\n')
            && !change.old.contains('\r')
            && memchr::memchr(b'\r', content).is_some();
        let wants_exact = change.count == ExpectedCount::Once
            && exact.find_places(OverlapRule::Skip).next().is_some();
        if may_differ && !wants_exact {
            return Self { endings: EndingMatch::Any, ..exact };
        }
        exact
    }

    fn find_places(self, overlap: OverlapRule) -> impl Iterator<Item = Range<usize>> + 'a {
        let first_line = self.old.split(|byte| *byte == b'\n').next().unwrap_or_default();
        let needle = if self.endings == EndingMatch::Exact { self.old } else { first_line };
        let finder = memmem::Finder::new(needle).into_owned();
        let mut from = 0;
        std::iter::from_fn(move || {
            loop {
                let rest = self.content.get(from..)?;
                let start = from
                    + match needle {
                        [] => line_ends(rest).next(),
                        _ => finder.find(rest),
                    }?;
                from = start + 1;
                if let Some(end) = self.match_at(start) {
                    if overlap == OverlapRule::Skip {
                        from = end;
                    }
                    return Some(start..end);
                }
            }
        })
    }

    /// The end of a match at `start`. A match must not begin inside a CRLF, of which it would leave half.
    fn match_at(self, start: usize) -> Option<usize> {
        if self.old.starts_with(b"\n") && self.content[..start].ends_with(b"\r") {
            return None;
        }
        if self.endings == EndingMatch::Exact {
            return Some(start + self.old.len());
        }
        let mut at = start;
        for wanted in self.old {
            at += match (wanted, self.content.get(at..)?) {
                (b'\n', [b'\r', b'\n', ..]) => 2,
                (b'\n', [b'\r' | b'\n', ..]) => 1,
                (wanted, [found, ..]) if wanted == found => 1,
                _ => return None,
            };
        }
        Some(at)
    }
}

/// The new text with each kind of line ending.
struct NewText<'a> {
    text: &'a str,
    crlf: Cow<'a, str>,
    cr: Cow<'a, str>,
    /// The ending to use if the replaced text has none.
    default_ending: &'static str,
}

impl<'a> NewText<'a> {
    fn new(content: &[u8], change: TextReplacement<'a>) -> Self {
        let text = change.new;
        // A CR in either text is intended, so endings are not adapted.
        if change.old.contains('\r') || text.contains('\r') || !text.contains('\n') {
            return Self { text, crlf: text.into(), cr: text.into(), default_ending: "\n" };
        }
        let (crlf, cr) = (text.replace('\n', "\r\n").into(), text.replace('\n', "\r").into());
        Self { text, crlf, cr, default_ending: write::file_ending(content) }
    }

    fn for_region(&self, region: &[u8]) -> &str {
        match first_ending(region).unwrap_or(self.default_ending) {
            "\r\n" => &self.crlf,
            "\r" => &self.cr,
            _ => self.text,
        }
    }
}

/// The offsets of line endings; CRLF counts once.
fn line_ends(content: &[u8]) -> impl Iterator<Item = usize> + '_ {
    memchr::memchr2_iter(b'\n', b'\r', content)
        .filter(|at| content[*at] == b'\r' || *at == 0 || content[at - 1] != b'\r')
}

/// The first line ending in a matched region.
fn first_ending(region: &[u8]) -> Option<&'static str> {
    match &region[line_ends(region).next()?..] {
        [b'\r', b'\n', ..] => Some("\r\n"),
        [b'\r', ..] => Some("\r"),
        _ => Some("\n"),
    }
}

/// Whether a file is UTF-16 or UTF-32.
pub fn is_wide(content: &[u8]) -> bool {
    let has_mark = [&b"\xff\xfe"[..], b"\xfe\xff", b"\0\0\xfe\xff"]
        .iter()
        .any(|mark| content.starts_with(mark));
    has_mark || looks_wide(&content[..content.len().min(SNIFF_BYTES)])
}

/// Refuses UTF-16 and UTF-32 files, in which a byte match means nothing.
pub fn refuse_wide(content: &[u8]) -> Result<(), ToolError> {
    if !is_wide(content) {
        return Ok(());
    }
    let message = "the file is UTF-16 or UTF-32, which cannot be changed as text";
    Err(ToolError::new(Kind::BinaryFile, message)
        .with_next_action("convert it with bash and iconv"))
}

/// Detects UTF-16 without a byte order mark: nearly every second byte is NUL, and the others are not.
fn looks_wide(bytes: &[u8]) -> bool {
    let nul = |first: usize| bytes.iter().skip(first).step_by(2).filter(|byte| **byte == 0).count();
    let (even, odd, pairs) = (nul(0), nul(1), bytes.len() / 2);
    pairs >= 2 && even.max(odd) * 10 >= pairs * 9 && even.min(odd) * 10 <= pairs
}

/// Refuses text that would mix another encoding into a file that is not UTF-8.
pub fn refuse_mixing(content: &[u8], new: &str, what: &str) -> Result<(), ToolError> {
    if new.is_ascii() {
        return Ok(());
    }
    let at = std::str::from_utf8(content).err().map_or(0, |error| error.valid_up_to());
    let line = line_number(content, at);
    let message =
        format!("the file is not valid UTF-8 (line {line}), and {what} is not plain ASCII");
    Err(ToolError::invalid_args(message)
        .with_details(json!({ "line": line }))
        .with_next_action("convert the file with bash and iconv, or make the change there"))
}

/// Refuses a match after a high byte in a file of unknown encoding: it may begin inside a character.
fn refuse_inside_character(content: &[u8], place: &Range<usize>) -> Result<(), ToolError> {
    let is_high = |at: usize| content.get(at).is_some_and(|byte| *byte >= 0x80);
    let begins_inside = place.start > 0 && is_high(place.start - 1);
    if !begins_inside || content[place.start] < LOWEST_TRAIL {
        return Ok(());
    }
    let line = line_number(content, place.start);
    let message = format!(
        "the file is not UTF-8, and old_string at line {line} may begin inside a character"
    );
    Err(ToolError::invalid_args(message)
        .with_details(json!({ "line": line }))
        .with_next_action("begin old_string after a blank or at the start of a line, or use bash"))
}

fn line_number(content: &[u8], at: usize) -> usize {
    let before = &content[..at];
    let newlines = memchr::memchr_iter(b'\n', before).count();
    // A file without any LF has CR lines.
    let lines = if newlines == 0 && memchr::memchr(b'\n', content).is_none() {
        memchr::memchr_iter(b'\r', before).count()
    } else {
        newlines
    };
    lines + 1
}

fn not_unique(content: &[u8], places: &[Range<usize>]) -> ToolError {
    let count = places.len();
    let named_places = places.iter().take(MAX_NAMED_PLACES);
    let lines: Vec<usize> = named_places.map(|place| line_number(content, place.start)).collect();
    let named: Vec<String> = lines.iter().map(usize::to_string).collect();
    let more = if count > MAX_NAMED_PLACES { ", …" } else { "" };
    let least = if count == MAX_COUNTED_PLACES { "at least " } else { "" };
    let lines_named = named.join(", ");
    let message = format!("old_string occurs {least}{count} times, at lines {lines_named}{more}");
    ToolError::new(Kind::NotUnique, message)
        .with_details(json!({"count": count, "lines": lines}))
        .with_next_action("add surrounding lines to old_string, or set replace_all")
}

fn no_match(content: &[u8], change: TextReplacement<'_>) -> ToolError {
    let error = ToolError::new(Kind::NoMatch, "old_string does not occur in the file");
    let new = change.new.as_bytes();
    if !new.is_empty()
        && let Some(at) = memmem::find(content, new)
    {
        let line = line_number(content, at);
        return error.with_next_action(format!(
            "new_string is already there, at line {line}; read the file"
        ));
    }
    let text = String::from_utf8_lossy(content);
    match find_similar_line(&text, change.old) {
        Some((line, found, reason)) => error
            .with_details(json!({"line": line, "found": found}))
            .with_next_action(format!("line {line} {reason}: {found:?}; copy it exactly")),
        None => {
            error.with_next_action("read the file and copy the text exactly, without line numbers")
        }
    }
}
