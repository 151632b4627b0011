//! Segment: contents that one survey stored together. A data file has their bytes, an index file the
//! table of their locations by hash.
//!
//! One file for thousands of small contents is written in a fraction of the time that separate files take.

use std::collections::{BTreeSet, HashMap};
use std::io;

use sha2::{Digest, Sha256};

use crate::host::git_objects::ObjectId;
use crate::host::snapshot::ContentHash;
use crate::host::snapshot::byte_encoding::{
    ByteReader, damaged_file_error, put_bytes, put_compressed, put_number,
};

/// The first bytes of an index file.
const MAGIC: &[u8] = b"pixir-contents 2\n";
/// The first bytes of an index file of the earlier version, which is still read: rows are sorted by hash
/// and have absolute locations.
const MAGIC_BY_HASH: &[u8] = b"pixir-contents 1\n";
/// The maximum size of a decompressed table, in bytes.
const LARGEST: u64 = 256 << 20;

/// The location of a content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Location {
    /// Location in the data file of the segment.
    Data { offset: u64, length: u64 },
    /// Location in a pinned pack: its number in the list of the segment, and the object's position in its index.
    Pack { pack: usize, position: u32 },
    /// Location in a pinned loose object: its number in the list of the segment.
    Loose { object: usize },
}

/// The table of a segment.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Segment {
    /// The names of pinned packs.
    pub packs: Vec<String>,
    /// The names of pinned loose objects.
    pub loose: Vec<ObjectId>,
    /// Hashes without duplicates, sorted by location, so that a location differs little from the previous one.
    pub hashes: Vec<ContentHash>,
    /// The location of each hash.
    pub locations: Vec<Location>,
    /// Row numbers sorted by hash, for binary search.
    by_hash: Vec<u32>,
}

impl Segment {
    /// A table of these contents; packs without a content are left out.
    pub fn new(
        mut packs: Vec<String>,
        loose: Vec<ObjectId>,
        mut rows: HashMap<ContentHash, Location>,
    ) -> Self {
        keep_used_packs(&mut packs, &mut rows);
        let mut rows: Vec<(ContentHash, Location)> = rows.into_iter().collect();
        rows.sort_unstable_by_key(|(_, location)| *location);
        let (hashes, locations): (Vec<ContentHash>, Vec<Location>) = rows.into_iter().unzip();
        let by_hash = rows_by_hash(&hashes);
        Self { packs, loose, hashes, locations, by_hash }
    }

    /// The row of a hash.
    pub fn row(&self, hash: &ContentHash) -> Option<usize> {
        let own = |row: &u32| self.hashes.get(*row as usize);
        let place = self.by_hash.binary_search_by(|row| own(row).cmp(&Some(hash))).ok()?;
        self.by_hash.get(place).map(|row| *row as usize)
    }

    pub fn location(&self, hash: &ContentHash) -> Option<Location> {
        self.locations.get(self.row(hash)?).copied()
    }

    /// The length that the data file must have, in bytes.
    pub fn data_end(&self) -> u64 {
        let ends = self.locations.iter().map(|location| match location {
            Location::Data { offset, length } => offset.saturating_add(*length),
            Location::Pack { .. } | Location::Loose { .. } => 0,
        });
        ends.max().unwrap_or_default()
    }

    pub fn encode(&self) -> io::Result<Vec<u8>> {
        let mut rows = Vec::new();
        let mut before = PreviousLocation::default();
        self.locations.iter().for_each(|location| before.put_location(&mut rows, location));
        let mut out = MAGIC.to_vec();
        put_number(&mut out, self.packs.len() as u64);
        self.packs.iter().for_each(|name| put_bytes(&mut out, name.as_bytes()));
        put_number(&mut out, self.loose.len() as u64);
        self.loose.iter().for_each(|id| put_bytes(&mut out, id.as_bytes()));
        put_number(&mut out, self.hashes.len() as u64);
        put_compressed(&mut out, &rows)?;
        self.hashes.iter().for_each(|hash| out.extend_from_slice(&hash.0));
        let digest = Sha256::digest(&out);
        out.extend_from_slice(&digest);
        Ok(out)
    }

    /// Decodes a table; a truncated one is an error.
    pub fn decode(bytes: &[u8]) -> io::Result<Self> {
        let (text, digest) = bytes.split_last_chunk::<32>().ok_or_else(damaged_file_error)?;
        if Sha256::digest(text).as_slice() != digest {
            return Err(damaged_file_error());
        }
        let is_by_hash = text.starts_with(MAGIC_BY_HASH);
        let magic = if is_by_hash { MAGIC_BY_HASH } else { MAGIC };
        let mut reader = ByteReader::new(text.strip_prefix(magic).ok_or_else(damaged_file_error)?);
        let mut packs = Vec::new();
        for _ in 0..reader.read_number()? {
            let name =
                std::str::from_utf8(reader.read_bytes()?).map_err(|_| damaged_file_error())?;
            packs.push(name.to_owned());
        }
        let mut loose = Vec::new();
        for _ in 0..reader.read_number()? {
            loose.push(ObjectId::from_bytes(reader.read_bytes()?).ok_or_else(damaged_file_error)?);
        }
        let count: usize = reader.read_number_as()?;
        let rows = reader.read_compressed(LARGEST)?;
        let mut rows = ByteReader::new(&rows);
        let (mut hashes, mut locations) = (Vec::new(), Vec::new());
        let mut before = PreviousLocation::default();
        for _ in 0..count {
            let hash = reader.take_bytes(32)?.try_into().map_err(|_| damaged_file_error())?;
            hashes.push(ContentHash(hash));
            // In the earlier version locations are absolute.
            if is_by_hash {
                before = PreviousLocation::default();
            }
            locations.push(before.read_location(&mut rows)?);
        }
        let by_hash = rows_by_hash(&hashes);
        let is_once = by_hash.is_sorted_by_key(|row| hashes.get(*row as usize))
            && by_hash.windows(2).all(|pair| match pair {
                [one, other] => hashes.get(*one as usize) != hashes.get(*other as usize),
                _ => true,
            });
        let segment = Self { packs, loose, hashes, locations, by_hash };
        if is_once && reader.is_at_end() { Ok(segment) } else { Err(damaged_file_error()) }
    }
}

/// Removes packs without a content, and numbers the others again.
fn keep_used_packs(packs: &mut Vec<String>, rows: &mut HashMap<ContentHash, Location>) {
    let used: BTreeSet<usize> = rows
        .values()
        .filter_map(|location| match location {
            Location::Pack { pack, .. } => Some(*pack),
            Location::Data { .. } | Location::Loose { .. } => None,
        })
        .collect();
    let numbers: HashMap<usize, usize> =
        used.iter().enumerate().map(|(new, old)| (*old, new)).collect();
    for location in rows.values_mut() {
        if let Location::Pack { pack, .. } = location
            && let Some(number) = numbers.get(pack)
        {
            *pack = *number;
        }
    }
    *packs = used.iter().filter_map(|number| packs.get(*number).cloned()).collect();
}

/// Row numbers sorted by hash.
fn rows_by_hash(hashes: &[ContentHash]) -> Vec<u32> {
    // More rows than fit in a `u32` would exceed the maximum size of a table.
    let mut rows: Vec<u32> = (0..).take(hashes.len()).collect();
    rows.sort_unstable_by_key(|row| hashes.get(*row as usize));
    rows
}

/// The location of the previous row; the next location is written as a difference to it.
#[derive(Debug, Default)]
struct PreviousLocation {
    /// The end of the previous content in the data file.
    end: u64,
    pack: usize,
    /// The previous position in the pack.
    position: u32,
    object: usize,
}

impl PreviousLocation {
    fn put_location(&mut self, rows: &mut Vec<u8>, location: &Location) {
        match *location {
            Location::Data { offset, length } => {
                rows.push(0);
                put_number(rows, offset.wrapping_sub(self.end));
                put_number(rows, length);
                self.end = offset.wrapping_add(length);
            }
            Location::Pack { pack, position } => {
                rows.push(1);
                put_number(rows, pack as u64);
                self.enter_pack(pack);
                put_number(rows, u64::from(position.wrapping_sub(self.position)));
                self.position = position;
            }
            Location::Loose { object } => {
                rows.push(2);
                put_number(rows, (object as u64).wrapping_sub(self.object as u64));
                self.object = object;
            }
        }
    }

    fn read_location(&mut self, rows: &mut ByteReader<'_>) -> io::Result<Location> {
        Ok(match rows.take_bytes(1)? {
            [0] => {
                let offset = self.end.wrapping_add(rows.read_number()?);
                let length = rows.read_number()?;
                self.end = offset.wrapping_add(length);
                Location::Data { offset, length }
            }
            [1] => {
                let pack = rows.read_number_as()?;
                self.enter_pack(pack);
                self.position = self.position.wrapping_add(rows.read_number_as()?);
                Location::Pack { pack, position: self.position }
            }
            [2] => {
                self.object = self.object.wrapping_add(rows.read_number_as()?);
                Location::Loose { object: self.object }
            }
            _ => return Err(damaged_file_error()),
        })
    }

    fn enter_pack(&mut self, pack: usize) {
        if pack != self.pack {
            self.pack = pack;
            self.position = 0;
        }
    }
}
