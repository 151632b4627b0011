//! A segment: the contents that one survey kept together. One file has the bytes of those that are
//! kept here, another the table of all: by hash, where the content is.
//!
//! One file for thousands of small contents is written in a fraction of the time that a file for each takes.

use std::collections::HashMap;
use std::io;

use sha2::{Digest, Sha256};

use crate::git_objects::ObjectId;
use crate::snapshot::Hash;
use crate::snapshot::bytes::{ByteReader, invalid, put_bytes, put_compressed, put_number};

/// The first bytes of a table.
const MAGIC: &[u8] = b"pixir-contents 1\n";
/// The largest table that is read, as its locations take when they are unpacked.
const LARGEST: u64 = 256 << 20;

/// Where a content of a segment is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Location {
    /// In the data file of the segment.
    Data { offset: u64, length: u64 },
    /// In a pinned pack of git: its number in the list of the segment, and the object's position in its index.
    Pack { pack: usize, position: u32 },
    /// In a pinned loose object of git: its number in the list of the segment.
    Loose { object: usize },
}

/// The table of a segment.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Segment {
    /// The names of pinned packs.
    pub packs: Vec<String>,
    /// The names of pinned loose objects.
    pub loose: Vec<ObjectId>,
    /// In order, each once.
    pub hashes: Vec<Hash>,
    /// One for each hash.
    pub locations: Vec<Location>,
}

impl Segment {
    /// A table of these contents.
    pub fn new(packs: Vec<String>, loose: Vec<ObjectId>, rows: HashMap<Hash, Location>) -> Self {
        let mut rows: Vec<(Hash, Location)> = rows.into_iter().collect();
        rows.sort_unstable_by_key(|(hash, _)| *hash);
        let (hashes, locations) = rows.into_iter().unzip();
        Self { packs, loose, hashes, locations }
    }

    /// The row of a hash.
    pub fn row(&self, hash: &Hash) -> Option<usize> {
        self.hashes.binary_search(hash).ok()
    }

    pub fn location(&self, hash: &Hash) -> Option<Location> {
        self.locations.get(self.row(hash)?).copied()
    }

    pub fn encode(&self) -> io::Result<Vec<u8>> {
        let mut rows = Vec::new();
        for location in &self.locations {
            match location {
                Location::Data { offset, length } => {
                    rows.push(0);
                    put_number(&mut rows, *offset);
                    put_number(&mut rows, *length);
                }
                Location::Pack { pack, position } => {
                    rows.push(1);
                    put_number(&mut rows, *pack as u64);
                    put_number(&mut rows, u64::from(*position));
                }
                Location::Loose { object } => {
                    rows.push(2);
                    put_number(&mut rows, *object as u64);
                }
            }
        }
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

    /// Reads a table; one that was cut by a power failure is an error.
    pub fn decode(bytes: &[u8]) -> io::Result<Self> {
        let (text, digest) = bytes.split_last_chunk::<32>().ok_or_else(invalid)?;
        if Sha256::digest(text).as_slice() != digest {
            return Err(invalid());
        }
        let mut reader = ByteReader::new(text.strip_prefix(MAGIC).ok_or_else(invalid)?);
        let mut packs = Vec::new();
        for _ in 0..reader.number()? {
            let name = std::str::from_utf8(reader.bytes()?).map_err(|_| invalid())?;
            packs.push(name.to_owned());
        }
        let mut loose = Vec::new();
        for _ in 0..reader.number()? {
            loose.push(ObjectId::from_bytes(reader.bytes()?).ok_or_else(invalid)?);
        }
        let count: usize = reader.number_as()?;
        let rows = reader.compressed(LARGEST)?;
        let mut rows = ByteReader::new(&rows);
        let (mut hashes, mut locations) = (Vec::new(), Vec::new());
        for _ in 0..count {
            let hash = reader.exactly(32)?.try_into().map_err(|_| invalid())?;
            hashes.push(Hash(hash));
            locations.push(read_location(&mut rows)?);
        }
        let is_sorted = hashes.is_sorted_by(|one, other| one < other);
        let segment = Self { packs, loose, hashes, locations };
        if is_sorted && reader.is_at_end() { Ok(segment) } else { Err(invalid()) }
    }
}

fn read_location(rows: &mut ByteReader<'_>) -> io::Result<Location> {
    Ok(match rows.exactly(1)? {
        [0] => Location::Data { offset: rows.number()?, length: rows.number()? },
        [1] => Location::Pack { pack: rows.number_as()?, position: rows.number_as()? },
        [2] => Location::Loose { object: rows.number_as()? },
        _ => return Err(invalid()),
    })
}
