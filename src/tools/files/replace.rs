//! Replaces a text in the bytes of a file.
//!
//! A replacement is exact or refused: no other bytes change, and encodings are never mixed.

use std::borrow::Cow;
use std::ops::Range;

use memchr::memmem;
use serde_json::json;

use super::hint::hint;
use super::write;
use crate::base::error::Kind;
use crate::base::tool_error::ToolError;

/// How many places are listed in an error.
const TOLD_PLACES: usize = 20;
/// How many places are counted when there should be only one.
const COUNTED_PLACES: usize = 100;
/// How many bytes are examined to detect an encoding without a byte order mark.
const SNIFFED: usize = 8 * 1024;
/// The lowest trailing byte of any multi-byte encoding.
const LOWEST_TRAIL: u8 = 0x30;

/// A replacement of an old text by a new one.
#[derive(Debug, Clone, Copy)]
pub struct Replacement<'a> {
    pub old: &'a str,
    pub new: &'a str,
    pub count: Count,
}

/// How often the old text may occur.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Count {
    Once,
    Any,
}

/// A content after one replacement.
#[derive(Debug)]
pub struct Replaced {
    pub bytes: Vec<u8>,
    /// The ranges that were replaced, in the old content and in the new one.
    pub places: Vec<(Range<usize>, Range<usize>)>,
}

/// Makes one replacement.
pub fn replace(content: &[u8], change: Replacement<'_>) -> Result<Replaced, ToolError> {
    if change.old.is_empty() {
        return Err(ToolError::invalid("old_string is empty").next("use write for a new file"));
    }
    if change.old == change.new {
        return Err(ToolError::invalid("old_string and new_string are the same"));
    }
    let is_utf8 = std::str::from_utf8(content).is_ok();
    if !is_utf8 {
        refuse_mixing(content, change.new, "new_string")?;
    }
    let search = Search::of(content, change);
    if change.count == Count::Once {
        let places: Vec<_> = search.places(Overlap::Counts).take(COUNTED_PLACES).collect();
        if places.len() > 1 {
            return Err(not_unique(content, &places));
        }
    }
    let new = New::of(content, change);
    let mut replaced = Vec::with_capacity(content.len() + change.new.len());
    let mut places = Vec::new();
    let mut done = 0;
    for place in search.places(Overlap::Skips) {
        if !is_utf8 {
            refuse_inside_character(content, &place)?;
        }
        replaced.extend_from_slice(&content[done..place.start]);
        let start = replaced.len();
        replaced.extend_from_slice(new.at(&content[place.clone()]).as_bytes());
        done = place.end;
        places.push((place, start..replaced.len()));
    }
    if places.is_empty() {
        return Err(no_match(content, change));
    }
    replaced.extend_from_slice(&content[done..]);
    if replaced == content {
        return Err(ToolError::invalid(
            "nothing would change: the file already has new_string there",
        )
        .next("read the file again; it may already be as wanted"));
    }
    Ok(Replaced { bytes: replaced, places })
}

/// The search for an old text in a content.
#[derive(Clone, Copy)]
struct Search<'a> {
    content: &'a [u8],
    old: &'a [u8],
    endings: Endings,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Endings {
    /// Matches byte for byte.
    Exact,
    /// `\n` also matches CRLF and CR, because models write only `\n`.
    Any,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Overlap {
    Counts,
    Skips,
}

impl<'a> Search<'a> {
    /// Prefers an exact match; to replace all places in a file of mixed endings, any ending matches.
    fn of(content: &'a [u8], change: Replacement<'a>) -> Self {
        let old = change.old.as_bytes();
        let exact = Self { content, old, endings: Endings::Exact };
        let may_differ = change.old.contains('\n')
            && !change.old.contains('\r')
            && memchr::memchr(b'\r', content).is_some();
        let wants_exact =
            change.count == Count::Once && exact.places(Overlap::Skips).next().is_some();
        if may_differ && !wants_exact {
            return Self { endings: Endings::Any, ..exact };
        }
        exact
    }

    fn places(self, overlap: Overlap) -> impl Iterator<Item = Range<usize>> + 'a {
        let first_line = self.old.split(|byte| *byte == b'\n').next().unwrap_or_default();
        let needle = if self.endings == Endings::Exact { self.old } else { first_line };
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
                    if overlap == Overlap::Skips {
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
        if self.endings == Endings::Exact {
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
struct New<'a> {
    text: &'a str,
    crlf: Cow<'a, str>,
    cr: Cow<'a, str>,
    /// The ending to use if the replaced text has none.
    usual: &'static str,
}

impl<'a> New<'a> {
    fn of(content: &[u8], change: Replacement<'a>) -> Self {
        let text = change.new;
        // A CR in either text is intended, so endings are not adapted.
        if change.old.contains('\r') || text.contains('\r') || !text.contains('\n') {
            return Self { text, crlf: text.into(), cr: text.into(), usual: "\n" };
        }
        let (crlf, cr) = (text.replace('\n', "\r\n").into(), text.replace('\n', "\r").into());
        Self { text, crlf, cr, usual: write::file_ending(content) }
    }

    fn at(&self, region: &[u8]) -> &str {
        match ending_in(region).unwrap_or(self.usual) {
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
fn ending_in(region: &[u8]) -> Option<&'static str> {
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
    has_mark || looks_wide(&content[..content.len().min(SNIFFED)])
}

/// Refuses UTF-16 and UTF-32 files, in which a byte match means nothing.
pub fn refuse_wide(content: &[u8]) -> Result<(), ToolError> {
    if !is_wide(content) {
        return Ok(());
    }
    let message = "the file is UTF-16 or UTF-32, which cannot be changed as text";
    Err(ToolError::new(Kind::BinaryFile, message).next("convert it with bash and iconv"))
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
    let line = line_of(content, at);
    let message =
        format!("the file is not valid UTF-8 (line {line}), and {what} is not plain ASCII");
    Err(ToolError::invalid(message)
        .details(json!({ "line": line }))
        .next("convert the file with bash and iconv, or make the change there"))
}

/// Refuses a match after a high byte in a file of unknown encoding: it may begin inside a character.
fn refuse_inside_character(content: &[u8], place: &Range<usize>) -> Result<(), ToolError> {
    let is_high = |at: usize| content.get(at).is_some_and(|byte| *byte >= 0x80);
    let begins_inside = place.start > 0 && is_high(place.start - 1);
    if !begins_inside || content[place.start] < LOWEST_TRAIL {
        return Ok(());
    }
    let line = line_of(content, place.start);
    let message = format!(
        "the file is not UTF-8, and old_string at line {line} may begin inside a character"
    );
    Err(ToolError::invalid(message)
        .details(json!({ "line": line }))
        .next("begin old_string behind a blank or at the start of a line, or use bash"))
}

fn line_of(content: &[u8], at: usize) -> usize {
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
    let told = places.iter().take(TOLD_PLACES);
    let lines: Vec<usize> = told.map(|place| line_of(content, place.start)).collect();
    let named: Vec<String> = lines.iter().map(usize::to_string).collect();
    let more = if count > TOLD_PLACES { ", …" } else { "" };
    let least = if count == COUNTED_PLACES { "at least " } else { "" };
    let lines_named = named.join(", ");
    let message = format!("old_string occurs {least}{count} times, at lines {lines_named}{more}");
    ToolError::new(Kind::NotUnique, message)
        .details(json!({"count": count, "lines": lines}))
        .next("add surrounding lines to old_string, or set replace_all")
}

fn no_match(content: &[u8], change: Replacement<'_>) -> ToolError {
    let error = ToolError::new(Kind::NoMatch, "old_string does not occur in the file");
    let new = change.new.as_bytes();
    if !new.is_empty()
        && let Some(at) = memmem::find(content, new)
    {
        let line = line_of(content, at);
        return error.next(format!("new_string is already there, at line {line}; read the file"));
    }
    let text = String::from_utf8_lossy(content);
    match hint(&text, change.old) {
        Some((line, found, reason)) => error
            .details(json!({"line": line, "found": found}))
            .next(format!("line {line} {reason}: {found:?}; copy it exactly")),
        None => error.next("read the file and copy the text exactly, without line numbers"),
    }
}
