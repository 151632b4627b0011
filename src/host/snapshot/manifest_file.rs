//! The binary file format of a Manifest: a short row for each path, and the hashes that no segment of the
//! store has.
//!
//! Paths are sorted and omit the prefix shared with the path before, times and inodes are differences to
//! those of the path before, and a hash that is in the table of a segment is a row number. So the Manifest
//! of 100,000 files takes about one megabyte. Earlier versions wrote a line of JSON for each path; those
//! are still read.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::bytes::{ByteReader, invalid, put_bytes, put_compressed, put_number, put_signed};
use super::manifest::{Entry, Look};
use super::store::OpenSegment;
use super::{Hash, Manifest, RawPath, State, Store};

/// The first bytes of a Manifest in this form.
pub const MAGIC: &[u8] = b"pixir-manifest 2\n";
/// The largest Manifest that is read, unpacked.
const LARGEST: u64 = 4 << 30;

const FILE: u8 = 0;
const FILE_IN_SEGMENT: u8 = 1;
const LINK: u8 = 2;
const FOLDER: u8 = 3;
const NOT_KEPT: u8 = 4;

/// Encodes a Manifest for this store.
pub fn encode(manifest: &Manifest, store: &Store) -> io::Result<Vec<u8>> {
    let mut segments = store.segments()?;
    // The largest first, because it has most of the hashes.
    segments.sort_by_key(|segment| std::cmp::Reverse(segment.table().hashes.len()));
    let mut writer = Writer { segments, ..Writer::default() };
    for (path, entry) in &manifest.entries {
        writer.entry(path, entry);
    }
    writer.begin_list();
    for (path, mode) in &manifest.folders {
        writer.path(path, FOLDER);
        put_number(&mut writer.rows, u64::from(*mode));
    }
    writer.begin_list();
    for (path, look) in &manifest.left_out {
        writer.path(path, NOT_KEPT);
        writer.look(look);
    }
    let mut out = MAGIC.to_vec();
    put_number(&mut out, writer.segments.len() as u64);
    writer.segments.iter().for_each(|segment| put_bytes(&mut out, segment.name().as_bytes()));
    put_compressed(&mut out, &writer.rows)?;
    put_bytes(&mut out, &writer.hashes);
    Ok(out)
}

/// Decodes a Manifest of this store.
pub fn decode(bytes: &[u8], store: &Store) -> io::Result<Manifest> {
    let mut reader = ByteReader::new(bytes.strip_prefix(MAGIC).ok_or_else(invalid)?);
    let known: HashMap<String, Arc<OpenSegment>> =
        store.segments()?.into_iter().map(|own| (own.name().to_owned(), own)).collect();
    let mut segments = Vec::new();
    for _ in 0..reader.number()? {
        let name = std::str::from_utf8(reader.bytes()?).map_err(|_| invalid())?;
        segments.push(known.get(name).cloned());
    }
    let rows = reader.compressed(LARGEST)?;
    let hashes = reader.bytes()?;
    let rows = ByteReader::new(&rows);
    let hashes = ByteReader::new(hashes);
    Reader { rows, hashes, segments, path: Vec::new(), before: NO_LOOK }.manifest()
}

/// The hashes of all contents that a Manifest names.
pub fn hashes(bytes: &[u8], store: &Store) -> io::Result<Vec<Hash>> {
    let entries = decode(bytes, store)?.entries;
    let hashes = entries.into_values().filter_map(|entry| match entry.state {
        State::File { sha256, .. } => Some(sha256),
        State::Link { .. } => None,
    });
    Ok(hashes.collect())
}

/// The fingerprint that the first row is a difference to.
const NO_LOOK: Look = Look { size: 0, mode: 0, inode: 0, modified: 0, changed: 0 };

struct Writer {
    segments: Vec<Arc<OpenSegment>>,
    rows: Vec<u8>,
    hashes: Vec<u8>,
    path: Vec<u8>,
    before: Look,
}

impl Default for Writer {
    fn default() -> Self {
        let (segments, path) = (Vec::new(), Vec::new());
        Self { segments, rows: Vec::new(), hashes: Vec::new(), path, before: NO_LOOK }
    }
}

impl Writer {
    fn begin_list(&mut self) {
        self.path.clear();
        self.before = NO_LOOK;
    }

    fn entry(&mut self, path: &Path, Entry { state, look }: &Entry) {
        match state {
            State::Link { target } => {
                self.path(path, LINK);
                put_bytes(&mut self.rows, target.0.as_os_str().as_bytes());
            }
            State::File { sha256, mode } => {
                let found = self
                    .segments
                    .iter()
                    .enumerate()
                    .find_map(|(number, segment)| Some((number, segment.table().row(sha256)?)));
                if let Some((number, row)) = found {
                    self.path(path, FILE_IN_SEGMENT);
                    put_number(&mut self.rows, number as u64);
                    put_number(&mut self.rows, row as u64);
                } else {
                    self.path(path, FILE);
                    self.hashes.extend_from_slice(&sha256.0);
                }
                put_number(&mut self.rows, u64::from(*mode));
            }
        }
        self.look(look);
    }

    /// Writes the part of a path that differs from the one before, and the kind of the entry.
    fn path(&mut self, path: &Path, kind: u8) {
        let path = path.as_os_str().as_bytes();
        let pairs = self.path.iter().zip(path);
        let shared = pairs.take_while(|(one, other)| one == other).count();
        let rest = path.get(shared..).unwrap_or_default();
        put_number(&mut self.rows, shared as u64);
        put_bytes(&mut self.rows, rest);
        self.rows.push(kind);
        self.path.truncate(shared);
        self.path.extend_from_slice(rest);
    }

    fn look(&mut self, look: &Look) {
        put_number(&mut self.rows, look.size);
        put_number(&mut self.rows, u64::from(look.mode));
        put_signed(&mut self.rows, look.inode.wrapping_sub(self.before.inode).cast_signed());
        put_signed(&mut self.rows, time(look.modified).wrapping_sub(time(self.before.modified)));
        put_signed(&mut self.rows, time(look.changed).wrapping_sub(time(look.modified)));
        self.before = *look;
    }
}

/// Nanoseconds as they are written; an invalid time has the smallest value, as in memory.
fn time(nanoseconds: i128) -> i64 {
    i64::try_from(nanoseconds).unwrap_or(i64::MIN)
}

fn from_time(written: i64) -> i128 {
    if written == i64::MIN { i128::MIN } else { i128::from(written) }
}

struct Reader<'b> {
    rows: ByteReader<'b>,
    hashes: ByteReader<'b>,
    segments: Vec<Option<Arc<OpenSegment>>>,
    path: Vec<u8>,
    before: Look,
}

impl Reader<'_> {
    fn manifest(mut self) -> io::Result<Manifest> {
        let (mut entries, mut folders, mut left_out) = (Vec::new(), Vec::new(), Vec::new());
        let mut list = FILE;
        while !self.rows.is_at_end() {
            let (path, kind) = self.path(&mut list)?;
            match kind {
                FOLDER => folders.push((path, self.rows.number_as()?)),
                NOT_KEPT => left_out.push((path, self.look()?)),
                kind => {
                    let state = self.state(kind)?;
                    entries.push((path, Entry { state, look: self.look()? }));
                }
            }
        }
        Ok(Manifest {
            entries: entries.into_iter().collect(),
            folders: folders.into_iter().collect(),
            left_out: left_out.into_iter().collect(),
            unread: BTreeMap::new(),
        })
    }

    /// Reads the next path and its kind; prefixes and differences start over for each list.
    fn path(&mut self, list: &mut u8) -> io::Result<(PathBuf, u8)> {
        let shared: usize = self.rows.number_as()?;
        let rest = self.rows.bytes()?;
        let [kind] = *self.rows.exactly(1)? else { return Err(invalid()) };
        let own_list = if kind < FOLDER { FILE } else { kind };
        if own_list != *list {
            *list = own_list;
            self.path.clear();
            self.before = NO_LOOK;
        }
        if shared > self.path.len() {
            return Err(invalid());
        }
        self.path.truncate(shared);
        self.path.extend_from_slice(rest);
        Ok((PathBuf::from(OsStr::from_bytes(&self.path)), kind))
    }

    fn state(&mut self, kind: u8) -> io::Result<State> {
        let sha256 = match kind {
            LINK => {
                let target = PathBuf::from(OsStr::from_bytes(self.rows.bytes()?));
                return Ok(State::Link { target: RawPath(target) });
            }
            FILE => Hash(self.hashes.exactly(32)?.try_into().map_err(|_| invalid())?),
            FILE_IN_SEGMENT => {
                let number: usize = self.rows.number_as()?;
                let row: usize = self.rows.number_as()?;
                let segment = self.segments.get(number).and_then(Option::as_ref);
                let hash = segment.and_then(|segment| segment.table().hashes.get(row));
                *hash.ok_or_else(invalid)?
            }
            _ => return Err(invalid()),
        };
        Ok(State::File { sha256, mode: self.rows.number_as()? })
    }

    fn look(&mut self) -> io::Result<Look> {
        let size = self.rows.number()?;
        let mode = self.rows.number_as()?;
        let inode = self.before.inode.wrapping_add(self.rows.signed()?.cast_unsigned());
        let modified = time(self.before.modified).wrapping_add(self.rows.signed()?);
        let changed = modified.wrapping_add(self.rows.signed()?);
        let modified = from_time(modified);
        let look = Look { size, mode, inode, modified, changed: from_time(changed) };
        self.before = look;
        Ok(look)
    }
}
