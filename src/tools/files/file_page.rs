//! A page of a text file: the numbered lines that fit, and the offset of the next page.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::path::Path;

use serde_json::json;

use super::read::Args;
use crate::base::error::counted;
use crate::base::text::printable::{is_unprintable, printable};
use crate::base::tool_error::ToolError;
use crate::tools::tool::ToolOutput;

/// Lines per page by default.
const DEFAULT_LINES: u64 = 2000;

/// A page of a file, filled while the file is streamed through it.
#[derive(Default)]
#[expect(clippy::struct_excessive_bools, reason = "independent properties of the file")]
pub struct FilePage {
    first: u64,
    max_lines: u64,
    /// How many bytes of the first line are skipped.
    skipped_bytes: u64,
    room: usize,
    text: String,
    shown: u64,
    is_full: bool,
    /// The next column of a first line that did not fit.
    cut_at: Option<u64>,
    /// The length of the first line, if the requested column is beyond its end.
    too_short: Option<u64>,
    /// The current line: its number, its length so far, and the part that may be shown.
    number: u64,
    length: u64,
    part: Vec<u8>,
    pub has_bom: bool,
    has_crlf: bool,
    has_bad_utf8: bool,
    has_control: bool,
}

impl FilePage {
    /// An empty page with the range of the call, of at most `room` bytes.
    pub fn new(args: &Args, room: usize) -> Self {
        Self {
            first: args.offset.unwrap_or(1).max(1),
            max_lines: args.limit.unwrap_or(DEFAULT_LINES).max(1),
            skipped_bytes: args.column.unwrap_or(1).max(1) - 1,
            room,
            number: 1,
            ..Self::default()
        }
    }

    /// Appends the next bytes of the file.
    pub fn push(&mut self, mut chunk: &[u8]) {
        while !chunk.is_empty() {
            if self.is_full {
                return self.count_lines(chunk);
            }
            let end = memchr::memchr(b'\n', chunk);
            let piece = &chunk[..end.unwrap_or(chunk.len())];
            if self.number >= self.first {
                self.buffer_line(piece);
            }
            self.length += piece.len() as u64;
            let Some(end) = end else { return };
            self.end_line(LineEnd::ByNewline);
            self.number += 1;
            self.length = 0;
            chunk = &chunk[end + 1..];
        }
    }

    /// Only counts lines, when the page is full.
    fn count_lines(&mut self, chunk: &[u8]) {
        self.number += memchr::memchr_iter(b'\n', chunk).count() as u64;
        self.length = match memchr::memrchr(b'\n', chunk) {
            Some(last) => (chunk.len() - last - 1) as u64,
            None => self.length + chunk.len() as u64,
        };
    }

    /// Buffers as much of the line as can be shown.
    fn buffer_line(&mut self, piece: &[u8]) {
        let skipped = if self.number == self.first { self.skipped_bytes } else { 0 };
        let skip = usize::try_from(skipped.saturating_sub(self.length)).unwrap_or(usize::MAX);
        let rest = piece.get(skip..).unwrap_or_default();
        // A few bytes more than fit, so that a character at the limit is complete.
        let room = (self.room + 8).saturating_sub(self.part.len());
        self.part.extend_from_slice(&rest[..rest.len().min(room)]);
    }

    /// Adds the buffered line if it fits. The first line is always added, as far as it fits.
    fn end_line(&mut self, ended: LineEnd) {
        let mut part = std::mem::take(&mut self.part);
        if self.number < self.first || self.is_full {
            return;
        }
        let skipped =
            if self.number == self.first { self.skipped_bytes.min(self.length) } else { 0 };
        if self.number == self.first && self.skipped_bytes > self.length {
            self.too_short = Some(self.length);
        }
        let is_whole = part.len() as u64 == self.length - skipped;
        if is_whole && ended == LineEnd::ByNewline && part.last() == Some(&b'\r') {
            self.has_crlf = true;
            part.pop();
        }
        // A column inside a character starts at the next one.
        let torn = if skipped > 0 {
            part.iter().take(3).take_while(|b| **b & 0xc0 == 0x80).count()
        } else {
            0
        };
        let line = self.printable_text(&part[torn..]);
        let numbered = format!("{:>6}\t{line}\n", self.number);
        let room = self.room - self.text.len().min(self.room);
        if is_whole && numbered.len() <= room {
            self.text.push_str(&numbered);
            self.shown += 1;
            self.is_full = self.shown == self.max_lines;
            return;
        }
        self.is_full = true;
        if self.shown > 0 {
            return;
        }
        let fits = largest_prefix(&part[torn..], room.saturating_sub(8));
        let line = self.printable_text(&part[torn..torn + fits]);
        let next = skipped + (torn + fits) as u64 + 1;
        writeln!(self.text, "{:>6}\t{line}", self.number).ok();
        self.shown = 1;
        self.cut_at = Some(next);
    }

    /// Ends the last line, at the end of the file.
    pub fn finish(&mut self) {
        if self.length > 0 {
            self.end_line(LineEnd::ByFile);
        }
    }

    /// The text for the model, in which control characters are visible symbols.
    fn printable_text(&mut self, bytes: &[u8]) -> String {
        let text = String::from_utf8_lossy(bytes);
        self.has_bad_utf8 |= matches!(text, Cow::Owned(_));
        self.has_control |= text.contains(is_unprintable);
        printable(bytes)
    }

    fn total_lines(&self) -> u64 {
        if self.length > 0 { self.number } else { self.number - 1 }
    }

    /// The tool output: the lines, and notes about them.
    pub fn into_output(mut self, args: &Args, path: &Path) -> Result<ToolOutput, ToolError> {
        let (total, first) = (self.total_lines(), self.first);
        if total == 0 && first == 1 {
            self.text.push_str("(empty file)");
        } else if self.shown == 0 {
            let lines = counted(total, "line");
            let message = format!("{} has only {lines}", args.path.display());
            return Err(ToolError::invalid_args(message).with_details(json!({"lines": total})));
        }
        if let Some(length) = self.too_short {
            let message = format!("line {first} has only {length} bytes");
            return Err(ToolError::invalid_args(message).with_details(json!({"bytes": length})));
        }
        let last = first + self.shown.max(1) - 1;
        let mut notes = Vec::new();
        if let Some(column) = self.cut_at {
            notes.push(format!("line {first} goes on; next: offset {first}, column {column}"));
        } else if last < total {
            notes.push(format!("lines {first}-{last} of {total}; next: offset {}", last + 1));
        } else if first > 1 {
            notes.push(format!("lines {first}-{last} of {total}"));
        }
        if self.has_bad_utf8 {
            notes.push("not valid UTF-8; \u{fffd} stands for bytes that edit cannot match".into());
        }
        if self.has_control {
            notes.push("control characters are shown as symbols such as \u{240d}".into());
        }
        if self.length > 0 && last >= total && self.cut_at.is_none() {
            notes.push("no newline at the end".into());
        }
        for note in notes {
            writeln!(self.text, "[{note}]").ok();
        }
        let details = json!({
            "path": path.to_string_lossy(),
            "first_line": first,
            "last_line": last,
            "total_lines": total,
            "bom": self.has_bom,
            "crlf": self.has_crlf,
        });
        Ok(ToolOutput::new(true, self.text, details))
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum LineEnd {
    ByNewline,
    ByFile,
}

/// How many bytes of a line fit into `room` once they are visible; whole characters only.
fn largest_prefix(bytes: &[u8], room: usize) -> usize {
    let mut taken = 0;
    let mut used = 0;
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            // A control character becomes a symbol of three bytes.
            used += if is_unprintable(character) { 3 } else { character.len_utf8() };
            if used > room {
                return taken;
            }
            taken += character.len_utf8();
        }
        if !chunk.invalid().is_empty() {
            used += char::REPLACEMENT_CHARACTER.len_utf8();
            if used > room {
                return taken;
            }
            taken += chunk.invalid().len();
        }
    }
    taken
}
