//! `read`: shows a text file with line numbers, a page at a time.
//!
//! The file is streamed: its size decides how long a read takes, never how much memory.

use std::borrow::Cow;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use sha2::{Digest, Sha256};
use tokio_util::sync::CancellationToken;

use super::rewrite::on_disk;
use super::seen::{HASHED_SIZE, Print, Seen};
use super::write::BOM;
use super::{Effect, Plan, Tool, ToolContext, ToolError, ToolOutput};
use crate::error::Kind;
use crate::workspace::{OpenFile, Workspace, WorkspaceError};

/// Lines per page when the call does not say.
const DEFAULT_LINES: u64 = 2000;
/// What the notes after the lines may take of the bound.
const NOTES_ROOM: usize = 512;
/// A NUL in the first bytes makes a file binary.
const SNIFFED: usize = 8 * 1024;
const CHUNK: usize = 64 * 1024;
/// How alike a name must be to be suggested.
const ALIKE: f64 = 0.75;

/// The tool.
#[derive(Debug)]
pub struct Read(Seen);

/// The arguments of `read`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Args {
    /// File, relative to the workspace.
    path: PathBuf,
    /// First line, from 1.
    #[schemars(range(min = 1))]
    offset: Option<u64>,
    /// Number of lines, default 2000.
    #[schemars(range(min = 1))]
    limit: Option<u64>,
    /// First byte of the first line, from 1; pages through a very long line.
    #[schemars(range(min = 1))]
    column: Option<u64>,
}

impl Read {
    /// A `read` that remembers what was seen.
    pub fn new(seen: Seen) -> Self {
        Self(seen)
    }
}

impl Tool for Read {
    type Args = Args;
    const NAME: &'static str = "read";
    const MANUAL: &'static str = "Shows a text file; each line has its number and a tab before it.";

    fn plan(&self, args: &Args, context: &ToolContext) -> Result<Plan, ToolError> {
        let path = context.workspace.display(&args.path).to_owned();
        let summary = format!("read {}", path.display());
        Ok(Plan { effect: Effect::Read, summary, paths: vec![path], diff: None })
    }

    async fn run(&self, args: Args, context: ToolContext) -> Result<ToolOutput, ToolError> {
        let seen = self.0.clone();
        on_disk(move || {
            let mut opened = open(&context.workspace, &args.path)?;
            let room = context.output_limit.saturating_sub(NOTES_ROOM);
            let mut page = Page::new(&args, room);
            let print = scan(&mut opened, &mut page, &context.cancel)
                .map_err(|error| error.explained(&args.path))?;
            page.finish();
            seen.note(&opened.path, print);
            page.told(&args, &opened.path)
        })
        .await
    }
}

fn open(workspace: &Workspace, path: &Path) -> Result<OpenFile, ToolError> {
    workspace.open_file(path).map_err(|error| {
        let explained = ToolError::from(&error);
        match error {
            WorkspaceError::Missing { .. } => {
                let near = near_names(path, workspace.names_beside(path));
                near.into_iter().fold(explained, |error, name| {
                    error.next(format!("read {}", path.with_file_name(name).display()))
                })
            }
            WorkspaceError::NotRegular { .. } => explained.next("look at it with bash and ls"),
            _ => explained,
        }
    })
}

/// Up to three names like the one that is missing, the most alike first.
fn near_names(path: &Path, names: Vec<OsString>) -> Vec<String> {
    let wanted = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
    let mut scored: Vec<(f64, String)> = names
        .into_iter()
        .filter_map(|name| name.into_string().ok())
        .filter(|name| name != "." && name != "..")
        .map(|name| (strsim::jaro_winkler(&name.to_lowercase(), &wanted), name))
        .filter(|(alike, _)| *alike >= ALIKE)
        .collect();
    scored.sort_by(|(one, a), (other, b)| other.total_cmp(one).then_with(|| a.cmp(b)));
    scored.into_iter().take(3).map(|(_, name)| name).collect()
}

enum ScanError {
    Binary { utf16: bool },
    Cancelled,
    Io(std::io::Error),
}

impl ScanError {
    fn explained(self, path: &Path) -> ToolError {
        let shown = path.display();
        match self {
            Self::Binary { utf16: true } => {
                ToolError::new(Kind::BinaryFile, format!("{shown} is UTF-16, not UTF-8 text"))
                    .next("convert it with bash and iconv")
            }
            Self::Binary { utf16: false } => {
                ToolError::new(Kind::BinaryFile, format!("{shown} is a binary file"))
                    .next("look at it with bash, for example with file or xxd")
            }
            Self::Cancelled => ToolError::new(Kind::Interrupted, "the read was interrupted"),
            Self::Io(source) => {
                ToolError::from(&WorkspaceError::Read { path: path.to_owned(), source })
            }
        }
    }
}

/// Streams the whole file through the page, and answers with what was seen.
fn scan(
    opened: &mut OpenFile,
    page: &mut Page,
    cancel: &CancellationToken,
) -> Result<Print, ScanError> {
    let size = u64::try_from(opened.stat.st_size).unwrap_or_default();
    let mut hash = (size <= HASHED_SIZE).then(Sha256::new);
    let mut buffer = vec![0; CHUNK];
    let mut is_first = true;
    loop {
        let count = match opened.file.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(ScanError::Io(error)),
        };
        let chunk = &buffer[..count];
        if is_first && memchr::memchr(0, &chunk[..count.min(SNIFFED)]).is_some() {
            let utf16 = chunk.starts_with(b"\xff\xfe") || chunk.starts_with(b"\xfe\xff");
            return Err(ScanError::Binary { utf16 });
        }
        if cancel.is_cancelled() {
            return Err(ScanError::Cancelled);
        }
        if let Some(hash) = &mut hash {
            hash.update(chunk);
        }
        let bom = is_first && chunk.starts_with(BOM);
        page.has_bom |= bom;
        page.push(if bom { &chunk[BOM.len()..] } else { chunk });
        is_first = false;
    }
    Ok(hash.map_or_else(
        || Print::of_large(&opened.stat),
        |hash| Print::Content(hash.finalize().into()),
    ))
}

/// The lines that are shown, and what was met on the way.
#[expect(clippy::struct_excessive_bools, reason = "each is one thing that may be met")]
struct Page {
    first: u64,
    lines: u64,
    /// Bytes of the first line that are left out.
    skipped: u64,
    room: usize,
    text: String,
    shown: u64,
    is_full: bool,
    /// The next column of a line that did not fit.
    cut_at: Option<u64>,
    /// The line that is being read: its number, its length so far, and the part that may be shown.
    number: u64,
    length: u64,
    part: Vec<u8>,
    has_bom: bool,
    has_crlf: bool,
    has_bad_utf8: bool,
    has_control: bool,
}

impl Page {
    fn new(args: &Args, room: usize) -> Self {
        Self {
            first: args.offset.unwrap_or(1).max(1),
            lines: args.limit.unwrap_or(DEFAULT_LINES).max(1),
            skipped: args.column.unwrap_or(1).max(1) - 1,
            room,
            text: String::new(),
            shown: 0,
            is_full: false,
            cut_at: None,
            number: 1,
            length: 0,
            part: Vec::new(),
            has_bom: false,
            has_crlf: false,
            has_bad_utf8: false,
            has_control: false,
        }
    }

    fn push(&mut self, mut chunk: &[u8]) {
        while !chunk.is_empty() {
            if self.is_full {
                return self.count(chunk);
            }
            let end = memchr::memchr(b'\n', chunk);
            let piece = &chunk[..end.unwrap_or(chunk.len())];
            if self.number >= self.first {
                self.gather(piece);
            }
            self.length += piece.len() as u64;
            let Some(end) = end else { return };
            self.end_line(Ended::ByNewline);
            self.number += 1;
            self.length = 0;
            chunk = &chunk[end + 1..];
        }
    }

    /// Nothing more is shown; only the number of lines still matters.
    fn count(&mut self, chunk: &[u8]) {
        self.number += memchr::memchr_iter(b'\n', chunk).count() as u64;
        self.length = match memchr::memrchr(b'\n', chunk) {
            Some(last) => (chunk.len() - last - 1) as u64,
            None => self.length + chunk.len() as u64,
        };
    }

    /// Keeps as much of the line as could be shown.
    fn gather(&mut self, piece: &[u8]) {
        let skipped = if self.number == self.first { self.skipped } else { 0 };
        let skip = usize::try_from(skipped.saturating_sub(self.length)).unwrap_or(usize::MAX);
        let rest = piece.get(skip..).unwrap_or_default();
        // A few bytes more than fit, so that a character at the edge is whole.
        let room = (self.room + 8).saturating_sub(self.part.len());
        self.part.extend_from_slice(&rest[..rest.len().min(room)]);
    }

    /// Shows the gathered line if it fits. The first line is shown in any case, as far as it goes.
    fn end_line(&mut self, ended: Ended) {
        let mut part = std::mem::take(&mut self.part);
        if self.number < self.first || self.is_full {
            return;
        }
        let skipped = if self.number == self.first { self.skipped.min(self.length) } else { 0 };
        let is_whole = part.len() as u64 == self.length - skipped;
        if is_whole && ended == Ended::ByNewline && part.last() == Some(&b'\r') {
            self.has_crlf = true;
            part.pop();
        }
        // A column inside a character begins with the next one.
        let torn = if skipped > 0 {
            part.iter().take(3).take_while(|b| **b & 0xc0 == 0x80).count()
        } else {
            0
        };
        let line = self.visible(&part[torn..]);
        let numbered = format!("{:>6}\t{line}\n", self.number);
        let room = self.room - self.text.len().min(self.room);
        if is_whole && numbered.len() <= room {
            self.text.push_str(&numbered);
            self.shown += 1;
            self.is_full = self.shown == self.lines;
            return;
        }
        self.is_full = true;
        if self.shown > 0 {
            return;
        }
        let fits = largest_prefix(&part[torn..], room.saturating_sub(8));
        let line = self.visible(&part[torn..torn + fits]);
        let next = skipped + (torn + fits) as u64 + 1;
        writeln!(self.text, "{:>6}\t{line}", self.number).ok();
        self.shown = 1;
        self.cut_at = Some(next);
    }

    fn finish(&mut self) {
        if self.length > 0 {
            self.end_line(Ended::ByFile);
        }
    }

    /// Text for the model: what could not be seen or would be taken for a command is made visible.
    fn visible(&mut self, bytes: &[u8]) -> String {
        let text = String::from_utf8_lossy(bytes);
        self.has_bad_utf8 |= matches!(text, Cow::Owned(_));
        let odd = |c: char| c.is_control() && c != '\t';
        if !text.contains(odd) {
            return text.into_owned();
        }
        self.has_control = true;
        let picture = |c: char| match c {
            '\t' => '\t',
            '\u{7f}' => '\u{2421}',
            c if c < ' ' => char::from_u32(0x2400 + c as u32).unwrap_or('?'),
            c if c.is_control() => '?',
            c => c,
        };
        text.chars().map(picture).collect()
    }

    fn total(&self) -> u64 {
        if self.length > 0 { self.number } else { self.number - 1 }
    }

    fn told(mut self, args: &Args, path: &Path) -> Result<ToolOutput, ToolError> {
        let (total, first) = (self.total(), self.first);
        if total == 0 && first == 1 {
            self.text.push_str("(empty file)");
        } else if self.shown == 0 {
            let message = format!("{} has only {total} lines", args.path.display());
            return Err(ToolError::invalid(message).details(json!({"lines": total})));
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
        Ok(ToolOutput { ok: true, text: self.text, details })
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Ended {
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
            used +=
                if character.is_control() && character != '\t' { 3 } else { character.len_utf8() };
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
