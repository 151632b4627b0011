//! Binary file format of a Manifest: a short row for each path, and the hashes that no segment of the
//! store has.
//!
//! Paths are sorted and omit the prefix shared with the previous path, times and inodes are differences to
//! those of the previous path, and a hash that is in the table of a segment is a row number. So the Manifest
//! of 100,000 files takes about one megabyte. Earlier versions wrote a line of JSON for each path; such
//! Manifests are still read.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::byte_encoding::{
    ByteReader, damaged_file_error, put_bytes, put_compressed, put_number, put_signed,
};
use super::manifest::{FileFingerprint, ManifestEntry};
use super::store::OpenSegment;
use super::{ContentHash, ContentStore, FileState, Manifest, RawPath};

/// The first bytes of a Manifest in this format.
pub const MAGIC: &[u8] = b"pixir-manifest 2\n";
/// The maximum size of a decompressed Manifest, in bytes.
const LARGEST: u64 = 4 << 30;

const FILE: u8 = 0;
const FILE_IN_SEGMENT: u8 = 1;
const LINK: u8 = 2;
const FOLDER: u8 = 3;
const NOT_KEPT: u8 = 4;

/// Encodes a Manifest for this store.
pub fn encode(manifest: &Manifest, store: &ContentStore) -> io::Result<Vec<u8>> {
    let mut segments = store.segments()?;
    // The largest segment comes first, because it has most of the hashes.
    segments.sort_by_key(|segment| std::cmp::Reverse(segment.table().hashes.len()));
    let mut writer = ManifestWriter { segments, ..ManifestWriter::default() };
    for (path, entry) in &manifest.entries {
        writer.put_entry(path, entry);
    }
    writer.begin_list();
    for (path, mode) in &manifest.folders {
        writer.put_path(path, FOLDER);
        put_number(&mut writer.rows, u64::from(*mode));
    }
    writer.begin_list();
    for (path, fingerprint) in &manifest.too_large {
        writer.put_path(path, NOT_KEPT);
        writer.put_fingerprint(fingerprint);
    }
    let mut out = MAGIC.to_vec();
    put_number(&mut out, writer.segments.len() as u64);
    writer.segments.iter().for_each(|segment| put_bytes(&mut out, segment.name().as_bytes()));
    put_compressed(&mut out, &writer.rows)?;
    put_bytes(&mut out, &writer.hashes);
    Ok(out)
}

/// Decodes a Manifest of this store.
pub fn decode(bytes: &[u8], store: &ContentStore) -> io::Result<Manifest> {
    let mut reader = ByteReader::new(bytes.strip_prefix(MAGIC).ok_or_else(damaged_file_error)?);
    let known: HashMap<String, Arc<OpenSegment>> =
        store.segments()?.into_iter().map(|own| (own.name().to_owned(), own)).collect();
    let mut segments = Vec::new();
    for _ in 0..reader.read_number()? {
        let name = std::str::from_utf8(reader.read_bytes()?).map_err(|_| damaged_file_error())?;
        segments.push(known.get(name).cloned());
    }
    let rows = reader.read_compressed(LARGEST)?;
    let hashes = reader.read_bytes()?;
    let rows = ByteReader::new(&rows);
    let hashes = ByteReader::new(hashes);
    ManifestReader { rows, hashes, segments, path: Vec::new(), before: ZERO_FINGERPRINT }
        .read_manifest()
}

/// The hashes of all file contents in a Manifest.
pub fn content_hashes(bytes: &[u8], store: &ContentStore) -> io::Result<Vec<ContentHash>> {
    let entries = decode(bytes, store)?.entries;
    let hashes = entries.into_values().filter_map(|entry| match entry.state {
        FileState::File { sha256, .. } => Some(sha256),
        FileState::Link { .. } => None,
    });
    Ok(hashes.collect())
}

/// The fingerprint from which differences of the first row are computed.
const ZERO_FINGERPRINT: FileFingerprint =
    FileFingerprint { size: 0, mode: 0, inode: 0, modified: 0, changed: 0 };

struct ManifestWriter {
    segments: Vec<Arc<OpenSegment>>,
    rows: Vec<u8>,
    hashes: Vec<u8>,
    path: Vec<u8>,
    before: FileFingerprint,
}

impl Default for ManifestWriter {
    fn default() -> Self {
        let (segments, path) = (Vec::new(), Vec::new());
        Self { segments, rows: Vec::new(), hashes: Vec::new(), path, before: ZERO_FINGERPRINT }
    }
}

impl ManifestWriter {
    fn begin_list(&mut self) {
        self.path.clear();
        self.before = ZERO_FINGERPRINT;
    }

    fn put_entry(&mut self, path: &Path, ManifestEntry { state, fingerprint }: &ManifestEntry) {
        match state {
            FileState::Link { target } => {
                self.put_path(path, LINK);
                put_bytes(&mut self.rows, target.0.as_os_str().as_bytes());
            }
            FileState::File { sha256, mode } => {
                let found = self
                    .segments
                    .iter()
                    .enumerate()
                    .find_map(|(number, segment)| Some((number, segment.table().row(sha256)?)));
                if let Some((number, row)) = found {
                    self.put_path(path, FILE_IN_SEGMENT);
                    put_number(&mut self.rows, number as u64);
                    put_number(&mut self.rows, row as u64);
                } else {
                    self.put_path(path, FILE);
                    self.hashes.extend_from_slice(&sha256.0);
                }
                put_number(&mut self.rows, u64::from(*mode));
            }
        }
        self.put_fingerprint(fingerprint);
    }

    /// Writes the part of a path that differs from the previous path, and the kind of the entry.
    fn put_path(&mut self, path: &Path, kind: u8) {
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

    fn put_fingerprint(&mut self, fingerprint: &FileFingerprint) {
        put_number(&mut self.rows, fingerprint.size);
        put_number(&mut self.rows, u64::from(fingerprint.mode));
        put_signed(&mut self.rows, fingerprint.inode.wrapping_sub(self.before.inode).cast_signed());
        put_signed(
            &mut self.rows,
            encode_time(fingerprint.modified).wrapping_sub(encode_time(self.before.modified)),
        );
        put_signed(
            &mut self.rows,
            encode_time(fingerprint.changed).wrapping_sub(encode_time(fingerprint.modified)),
        );
        self.before = *fingerprint;
    }
}

/// Encodes a time in nanoseconds; an invalid time has the smallest value, as in memory.
fn encode_time(nanoseconds: i128) -> i64 {
    i64::try_from(nanoseconds).unwrap_or(i64::MIN)
}

fn decode_time(written: i64) -> i128 {
    if written == i64::MIN { i128::MIN } else { i128::from(written) }
}

struct ManifestReader<'b> {
    rows: ByteReader<'b>,
    hashes: ByteReader<'b>,
    segments: Vec<Option<Arc<OpenSegment>>>,
    path: Vec<u8>,
    before: FileFingerprint,
}

impl ManifestReader<'_> {
    fn read_manifest(mut self) -> io::Result<Manifest> {
        let (mut entries, mut folders, mut left_out) = (Vec::new(), Vec::new(), Vec::new());
        let mut list = FILE;
        while !self.rows.is_at_end() {
            let (path, kind) = self.read_path(&mut list)?;
            match kind {
                FOLDER => folders.push((path, self.rows.read_number_as()?)),
                NOT_KEPT => left_out.push((path, self.read_fingerprint()?)),
                kind => {
                    let state = self.read_state(kind)?;
                    entries.push((
                        path,
                        ManifestEntry { state, fingerprint: self.read_fingerprint()? },
                    ));
                }
            }
        }
        Ok(Manifest {
            entries: entries.into_iter().collect(),
            folders: folders.into_iter().collect(),
            too_large: left_out.into_iter().collect(),
            unreadable: BTreeMap::new(),
        })
    }

    /// Reads the next path and its kind; prefixes and differences start over for each list.
    fn read_path(&mut self, list: &mut u8) -> io::Result<(PathBuf, u8)> {
        let shared: usize = self.rows.read_number_as()?;
        let rest = self.rows.read_bytes()?;
        let [kind] = *self.rows.take_bytes(1)? else { return Err(damaged_file_error()) };
        let own_list = if kind < FOLDER { FILE } else { kind };
        if own_list != *list {
            *list = own_list;
            self.path.clear();
            self.before = ZERO_FINGERPRINT;
        }
        if shared > self.path.len() {
            return Err(damaged_file_error());
        }
        self.path.truncate(shared);
        self.path.extend_from_slice(rest);
        Ok((PathBuf::from(OsStr::from_bytes(&self.path)), kind))
    }

    fn read_state(&mut self, kind: u8) -> io::Result<FileState> {
        let sha256 = match kind {
            LINK => {
                let target = PathBuf::from(OsStr::from_bytes(self.rows.read_bytes()?));
                return Ok(FileState::Link { target: RawPath(target) });
            }
            FILE => ContentHash(
                self.hashes.take_bytes(32)?.try_into().map_err(|_| damaged_file_error())?,
            ),
            FILE_IN_SEGMENT => {
                let number: usize = self.rows.read_number_as()?;
                let row: usize = self.rows.read_number_as()?;
                let segment = self.segments.get(number).and_then(Option::as_ref);
                let hash = segment.and_then(|segment| segment.table().hashes.get(row));
                *hash.ok_or_else(damaged_file_error)?
            }
            _ => return Err(damaged_file_error()),
        };
        Ok(FileState::File { sha256, mode: self.rows.read_number_as()? })
    }

    fn read_fingerprint(&mut self) -> io::Result<FileFingerprint> {
        let size = self.rows.read_number()?;
        let mode = self.rows.read_number_as()?;
        let inode = self.before.inode.wrapping_add(self.rows.read_signed()?.cast_unsigned());
        let modified = encode_time(self.before.modified).wrapping_add(self.rows.read_signed()?);
        let changed = modified.wrapping_add(self.rows.read_signed()?);
        let modified = decode_time(modified);
        let fingerprint =
            FileFingerprint { size, mode, inode, modified, changed: decode_time(changed) };
        self.before = fingerprint;
        Ok(fingerprint)
    }
}
