//! Reading a Log: every readable line is loaded, every damaged one is reported, and neither stops the reader.
//!
//! Lines split on byte 0x0A alone. The file is streamed once, a line at a time, so the cost is
//! linear in its bytes and the memory is that of the Events.

use std::io::{BufRead, BufReader, Read};
use std::sync::Arc;

use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

use super::blob;
use super::line::{self, Proof, ProofStatus, UnreadableLine};
use crate::base::id::{SessionId, hex, sha256};
use crate::record::event::{Canonical, Event, Seq, SharedEvent};
use crate::record::state_dir::SessionFolder;

/// The longest line that Pixir writes, in bytes; a longer one is damage, and is skipped without being held in memory.
const LONGEST_LINE: usize = 64 << 20;

/// The contents of a Log: its Events, its damage, and the state of its proof chain.
#[derive(Debug, Default)]
pub struct LogContents {
    /// Every readable Event, in file order.
    pub events: Vec<SharedEvent>,
    /// The position of each Event, parallel to `events`.
    pub places: Vec<LinePosition>,
    pub damage: Vec<LogDamage>,
    /// The proof of the last line that carries one.
    pub proof: Proof,
    pub next_seq: Seq,
    /// The file's length.
    pub end: u64,
    pub lines: u64,
    /// How many lines carry a proof that holds.
    pub proven: u64,
    /// How many lines carry a proof that does not follow from the line before.
    pub broken: u64,
    /// The first line that carries a proof, whether the proof holds or not.
    pub first_proven: Option<u64>,
    /// The last line, when its newline is missing.
    pub torn: Option<TornLine>,
    /// Torn lines at the end without a `log_repaired`. More than one when a process was killed while it closed the
    /// tail that an earlier one had left.
    pub unrecorded: Vec<TornLine>,
}

/// The position of a line: number from 1, byte offset, length without the newline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinePosition {
    pub line: u64,
    pub offset: u64,
    pub length: u64,
}

/// A last line without its newline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TornLine {
    pub place: LinePosition,
    pub sha256: String,
    /// Whether the line could be read: only the newline is missing.
    pub whole: bool,
}

/// Damage at one line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogDamage {
    pub place: LinePosition,
    pub kind: DamageKind,
}

/// The kind of damage of a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DamageKind {
    /// The line cannot be read and is skipped; the hash is of its bytes.
    Unreadable { reason: String, sha256: String },
    /// The proof does not follow from the line before.
    BrokenProof,
    /// The line carries no proof although lines before it do.
    Unproven,
    /// The payload is in a blob that is missing or changed.
    Blob { reason: String },
    /// The payload does not fit its type.
    Payload { reason: String },
}

/// Reads an open Log to its end; `folder` has its blobs.
pub fn read_log(
    file: impl Read,
    owner: &SessionId,
    folder: &SessionFolder,
) -> std::io::Result<LogContents> {
    let mut scan = LogScan::new(file, owner, folder);
    let mut events = Vec::new();
    let mut places = Vec::new();
    while let Some((event, place)) = scan.next_event()? {
        events.push(Arc::new(event));
        places.push(place);
    }
    Ok(LogContents { events, places, ..scan.reading })
}

/// A Log read one Event at a time; returned Events are not kept.
#[derive(Debug)]
pub struct LogScan<R> {
    lines: LogLineReader<R>,
    /// The contents so far, without the Events and their positions.
    pub reading: LogContents,
    owner: SessionId,
    folder: SessionFolder,
}

impl<R: Read> LogScan<R> {
    pub fn new(file: R, owner: &SessionId, folder: &SessionFolder) -> Self {
        Self {
            lines: LogLineReader::new(file),
            reading: LogContents::default(),
            owner: owner.clone(),
            folder: folder.clone(),
        }
    }

    /// The next readable Event and its position; `None` at the end.
    pub fn next_event(&mut self) -> std::io::Result<Option<(Event, LinePosition)>> {
        while let Some(found) = self.lines.next()? {
            let bytes = &self.lines.buffer;
            let event = self.reading.add_line(&found, bytes, &self.owner, &self.folder);
            self.reading.end = self.lines.offset;
            if let Some(event) = event {
                return Ok(Some((event, found.place)));
            }
        }
        Ok(None)
    }
}

impl LogContents {
    /// Adds a line, and returns its Event.
    fn add_line(
        &mut self,
        found: &RawLine,
        bytes: &[u8],
        owner: &SessionId,
        folder: &SessionFolder,
    ) -> Option<Event> {
        self.lines += 1;
        let place = found.place;
        if found.is_blank {
            self.record_torn(found, bytes, true);
            return None;
        }
        let decoded = if found.too_long {
            Err("it is longer than 64 MiB".into())
        } else {
            line::decode_line(bytes, place.line, self.proof)
        };
        self.record_torn(found, bytes, decoded.is_ok());
        let decoded = match decoded {
            Ok(decoded) => decoded,
            Err(UnreadableLine { reason, stops_short }) => {
                let sha256 = found.sha256.clone().unwrap_or_else(|| sha256(bytes));
                if stops_short || found.is_torn {
                    self.unrecorded.push(TornLine { place, sha256: sha256.clone(), whole: false });
                }
                self.damage
                    .push(LogDamage { place, kind: DamageKind::Unreadable { reason, sha256 } });
                return None;
            }
        };
        if decoded.proof != ProofStatus::Unproven {
            self.first_proven.get_or_insert(place.line);
        }
        match decoded.proof {
            ProofStatus::Proven(proof) => {
                self.proof = proof;
                self.proven += 1;
            }
            ProofStatus::Broken(proof) => {
                self.proof = proof;
                self.broken += 1;
                self.damage.push(LogDamage { place, kind: DamageKind::BrokenProof });
            }
            ProofStatus::Unproven if self.first_proven.is_some() => {
                self.damage.push(LogDamage { place, kind: DamageKind::Unproven });
            }
            ProofStatus::Unproven => {}
        }
        if let Some(seq) = decoded.fields.seq {
            self.next_seq = self.next_seq.max(seq + 1);
        }
        let fetched: Box<RawValue>;
        let data = match blob::fetch_blob(decoded.fields.data, folder) {
            Ok(None) => decoded.fields.data,
            Ok(Some(payload)) => {
                fetched = payload;
                &fetched
            }
            Err(reason) => {
                self.damage.push(LogDamage { place, kind: DamageKind::Blob { reason } });
                decoded.fields.data
            }
        };
        let event = decoded.fields.into_event(owner, data);
        if let Some(Canonical::Unknown(unknown)) = event.fact()
            && let Some(problem) = &unknown.problem
        {
            let reason = format!("{}: {problem}", unknown.type_name);
            self.damage.push(LogDamage { place, kind: DamageKind::Payload { reason } });
        }
        self.clear_recorded_repair(&event);
        Some(event)
    }

    /// A `log_repaired` comes first after the torn line that it records; any other Event shows that no record is due.
    fn clear_recorded_repair(&mut self, event: &Event) {
        match event.fact() {
            Some(Canonical::LogRepaired(repaired)) => {
                self.unrecorded.retain(|torn| torn.place.offset != repaired.offset);
            }
            _ => self.unrecorded.clear(),
        }
    }

    fn record_torn(&mut self, found: &RawLine, bytes: &[u8], whole: bool) {
        if found.is_torn {
            let sha256 = found.sha256.clone().unwrap_or_else(|| sha256(bytes));
            self.torn = Some(TornLine { place: found.place, sha256, whole });
        }
    }
}

struct RawLine {
    place: LinePosition,
    is_torn: bool,
    is_blank: bool,
    too_long: bool,
    /// The hash of the line; set only when the bytes were not kept.
    sha256: Option<String>,
}

/// A reader of lines that keeps at most one of them in memory.
#[derive(Debug)]
struct LogLineReader<R> {
    reader: BufReader<R>,
    buffer: Vec<u8>,
    offset: u64,
    line: u64,
}

impl<R: Read> LogLineReader<R> {
    fn new(file: R) -> Self {
        let reader = BufReader::with_capacity(256 << 10, file);
        Self { reader, buffer: Vec::new(), offset: 0, line: 0 }
    }

    fn next(&mut self) -> std::io::Result<Option<RawLine>> {
        self.buffer.clear();
        let start = self.offset;
        let mut overlong: Option<Sha256> = None;
        let mut terminated = false;
        while !terminated {
            let available = match self.reader.fill_buf() {
                Ok(available) => available,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            if available.is_empty() {
                break;
            }
            let newline = memchr::memchr(b'\n', available);
            terminated = newline.is_some();
            let piece = &available[..newline.unwrap_or(available.len())];
            match &mut overlong {
                Some(hasher) => hasher.update(piece),
                None if self.buffer.len() + piece.len() > LONGEST_LINE => {
                    let mut hasher = Sha256::new();
                    hasher.update(&self.buffer);
                    hasher.update(piece);
                    overlong = Some(hasher);
                    self.buffer = Vec::new();
                }
                None => self.buffer.extend_from_slice(piece),
            }
            let consumed = piece.len() + usize::from(terminated);
            self.reader.consume(consumed);
            self.offset += consumed as u64;
        }
        if self.offset == start {
            return Ok(None);
        }
        self.line += 1;
        let length = self.offset - start - u64::from(terminated);
        Ok(Some(RawLine {
            place: LinePosition { line: self.line, offset: start, length },
            is_torn: !terminated,
            is_blank: length == 0,
            too_long: overlong.is_some(),
            sha256: overlong.map(|hasher| hex(&hasher.finalize())),
        }))
    }
}
