//! Packs (`.pack`, version 2 or 3): many objects in one file, most of them as deltas.
//!
//! A delta chain is followed from the wanted object to its base, and every size is checked before
//! anything is built; then the object is built from the base upwards, in two alternating buffers.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::unix::fs::FileExt;

use flate2::bufread::ZlibDecoder;

use super::delta::Delta;
use super::inflate::{FileSection, inflate_to_end};
use super::{
    CHAIN_TOO_LARGE, MALFORMED_DELTA, NOT_A_BLOB, ObjectFormat, ObjectId, PackIndex,
    blob_too_large, invalid_data,
};

const MALFORMED_HEADER: &str = "the header of a pack entry is malformed";
/// The signature, the version and the number of objects.
const HEADER_LENGTH: usize = 12;
/// The offset of the first object.
const OBJECTS_START: u64 = HEADER_LENGTH as u64;
/// The maximum length of a delta chain; git makes at most 4095 links.
const DEEPEST_CHAIN: usize = 4096;
/// The largest base of a delta in bytes, unless the caller's limit is larger.
const LARGEST_BASE: u64 = 256 << 20;
/// The work limit for one blob, in objects as large as the caller's limit. A chain of git's default
/// depth (50) fits when none of its objects exceeds that limit.
const WORK_FACTOR: u64 = 64;
/// The minimum, in bytes, of the limit from which those for deltas and work are computed.
const LEAST_BUDGET: u64 = 64 << 20;

/// A pack with its index, which several threads may read at once.
#[derive(Debug)]
pub struct Pack {
    file: File,
    index: PackIndex,
    /// The end of the objects, where the checksum of the pack begins.
    end: u64,
}

impl Pack {
    /// Opens a pack of version 2 or 3 with its index.
    pub fn open(pack: File, index: PackIndex) -> io::Result<Self> {
        let mut header = [0; HEADER_LENGTH];
        pack.read_exact_at(&mut header, 0)?;
        let [b'P', b'A', b'C', b'K', 0, 0, 0, 2 | 3, count @ ..] = header else {
            return Err(invalid_data("not a pack of version 2 or 3"));
        };
        let count = u32::from_be_bytes(count);
        if count != index.object_count() {
            let objects = index.object_count();
            return Err(invalid_data(format!(
                "the pack has {count} objects and its index {objects}"
            )));
        }
        let mut checksum = vec![0; index.format().id_length()];
        let end = pack.metadata()?.len().checked_sub(checksum.len() as u64);
        let end = end.filter(|&end| end >= OBJECTS_START).ok_or(io::ErrorKind::UnexpectedEof)?;
        pack.read_exact_at(&mut checksum, end)?;
        if checksum != index.pack_checksum()? {
            return Err(invalid_data("the index belongs to another pack"));
        }
        Ok(Self { file: pack, index, end })
    }

    /// The index of the pack.
    #[must_use]
    pub fn index(&self) -> &PackIndex {
        &self.index
    }

    /// Reads the blob at a position of the index, if it has at most `limit` bytes.
    pub fn read_blob(&self, position: u32, limit: u64) -> io::Result<Vec<u8>> {
        let mut offset = self.index.offset(position)?;
        let mut chain = DeltaChain::new(limit);
        loop {
            let entry = self.read_entry(offset)?;
            let base = match entry.kind {
                PackEntryKind::Other => return Err(invalid_data(NOT_A_BLOB)),
                PackEntryKind::Blob => {
                    chain.check_size(entry.size)?;
                    return chain.build(entry.inflate()?);
                }
                PackEntryKind::OffsetDelta(distance) => {
                    // The distance is not zero, so such a chain always moves to the front.
                    let base = offset.checked_sub(distance);
                    base.ok_or_else(|| no_such_offset(offset))?
                }
                PackEntryKind::IdDelta(id) => self.base_offset(&id)?,
            };
            chain.check_link(offset, base)?;
            chain.check_delta(entry.size)?;
            chain.push(offset, Delta::parse(entry.inflate()?)?)?;
            offset = base;
        }
    }

    fn base_offset(&self, id: &ObjectId) -> io::Result<u64> {
        let missing = || invalid_data(format!("the delta base {id} is not in the pack"));
        let position = self.index.find(id)?.ok_or_else(missing)?;
        self.index.offset(position)
    }

    /// Reads the header of the entry at an offset.
    fn read_entry(&self, offset: u64) -> io::Result<PackEntry<'_>> {
        if !(OBJECTS_START..self.end).contains(&offset) {
            return Err(no_such_offset(offset));
        }
        let mut source = FileSection::new(&self.file, offset, self.end);
        let (number, size) = read_kind_and_size(&mut source)?;
        let kind = match number {
            1 | 2 | 4 => PackEntryKind::Other,
            3 => PackEntryKind::Blob,
            6 => PackEntryKind::OffsetDelta(read_distance(&mut source)?),
            7 => PackEntryKind::IdDelta(read_id(&mut source, self.index.format())?),
            _ => return Err(invalid_data(MALFORMED_HEADER)),
        };
        Ok(PackEntry { kind, size, source })
    }
}

/// The kind of an entry of a pack.
#[derive(Debug)]
enum PackEntryKind {
    Blob,
    /// A commit, a tree or a tag.
    Other,
    /// A delta whose base is this many bytes nearer to the front.
    OffsetDelta(u64),
    /// A delta whose base has this id.
    IdDelta(ObjectId),
}

/// An entry of a pack, up to its compressed data.
struct PackEntry<'p> {
    kind: PackEntryKind,
    /// The size of the inflated data in bytes.
    size: u64,
    source: BufReader<FileSection<'p>>,
}

impl PackEntry<'_> {
    fn inflate(self) -> io::Result<Vec<u8>> {
        inflate_to_end(&mut ZlibDecoder::new(self.source), Vec::new(), self.size)
    }
}

/// The deltas between a wanted blob and its base, and the memory and work that may still be spent on them.
struct DeltaChain {
    limit: u64,
    largest_base: u64,
    /// The number of bytes of deltas that may still be kept.
    delta_budget: u64,
    /// The number of bytes of objects that may still be built.
    work_budget: u64,
    /// The offsets of the deltas, to find a cycle.
    offsets: Vec<u64>,
    deltas: Vec<Delta>,
}

impl DeltaChain {
    fn new(limit: u64) -> Self {
        let delta_budget = limit.max(LEAST_BUDGET);
        Self {
            limit,
            largest_base: limit.max(LARGEST_BASE),
            delta_budget,
            work_budget: delta_budget.saturating_mul(WORK_FACTOR),
            offsets: Vec::new(),
            deltas: Vec::new(),
        }
    }

    /// Refuses a link that would make the chain too deep or a cycle.
    fn check_link(&self, offset: u64, base: u64) -> io::Result<()> {
        if self.deltas.len() >= DEEPEST_CHAIN {
            return Err(invalid_data("the delta chain is too deep"));
        }
        // Every cycle has a link that does not move to the front, so only those are checked.
        if base == offset || base > offset && self.offsets.contains(&base) {
            return Err(invalid_data("the delta chain is a cycle"));
        }
        Ok(())
    }

    /// Refuses a delta whose data has more bytes than may still be kept.
    fn check_delta(&mut self, size: u64) -> io::Result<()> {
        let rest = self.delta_budget.checked_sub(size);
        self.delta_budget = rest.ok_or_else(|| invalid_data(CHAIN_TOO_LARGE))?;
        Ok(())
    }

    /// Refuses an object that is too large, or not of the size that the delta above it needs.
    fn check_size(&mut self, size: u64) -> io::Result<()> {
        match self.deltas.last() {
            None if size > self.limit => {
                return Err(blob_too_large(size, self.limit));
            }
            Some(_) if size > self.largest_base => return Err(invalid_data(CHAIN_TOO_LARGE)),
            Some(above) if size != above.base_size => return Err(invalid_data(MALFORMED_DELTA)),
            _ => {}
        }
        let rest = self.work_budget.checked_sub(size);
        self.work_budget = rest.ok_or_else(|| invalid_data(CHAIN_TOO_LARGE))?;
        Ok(())
    }

    fn push(&mut self, offset: u64, delta: Delta) -> io::Result<()> {
        self.check_size(delta.result_size)?;
        self.offsets.push(offset);
        self.deltas.push(delta);
        Ok(())
    }

    /// Applies all deltas to the base at the end of the chain.
    fn build(mut self, mut content: Vec<u8>) -> io::Result<Vec<u8>> {
        let mut result = Vec::new();
        while let Some(delta) = self.deltas.pop() {
            delta.apply(&content, &mut result)?;
            std::mem::swap(&mut content, &mut result);
        }
        // A small blob may have been built in the buffer of a large base.
        content.shrink_to_fit();
        Ok(content)
    }
}

fn no_such_offset(offset: u64) -> io::Error {
    invalid_data(format!("the pack has no object at offset {offset}"))
}

fn read_byte(source: &mut impl Read) -> io::Result<u8> {
    let mut byte = [0];
    source.read_exact(&mut byte)?;
    let [byte] = byte;
    Ok(byte)
}

/// The type of an entry and the size of its inflated data, in groups of bits, the lowest first.
fn read_kind_and_size(source: &mut impl Read) -> io::Result<(u8, u64)> {
    let mut byte = read_byte(source)?;
    let kind = byte >> 4 & 0x07;
    let mut size = u64::from(byte & 0x0f);
    let mut shift = 4;
    while byte & 0x80 != 0 {
        // More than nine groups would not fit in 64 bits.
        if shift > 57 {
            return Err(invalid_data(MALFORMED_HEADER));
        }
        byte = read_byte(source)?;
        size |= u64::from(byte & 0x7f) << shift;
        shift += 7;
    }
    Ok((kind, size))
}

/// The distance to the base, in groups of bits, the highest first. Each group but the last counts
/// one more than its bits say, so that no distance can be written in two ways.
fn read_distance(source: &mut impl Read) -> io::Result<u64> {
    let mut byte = read_byte(source)?;
    let mut distance = u64::from(byte & 0x7f);
    while byte & 0x80 != 0 {
        byte = read_byte(source)?;
        let shifted = distance.checked_add(1).and_then(|distance| distance.checked_mul(1 << 7));
        distance = shifted.ok_or_else(|| invalid_data(MALFORMED_HEADER))? | u64::from(byte & 0x7f);
    }
    if distance == 0 { Err(invalid_data(MALFORMED_HEADER)) } else { Ok(distance) }
}

fn read_id(source: &mut impl Read, format: ObjectFormat) -> io::Result<ObjectId> {
    let mut bytes = vec![0; format.id_length()];
    source.read_exact(&mut bytes)?;
    ObjectId::from_bytes(&bytes).ok_or_else(|| invalid_data(MALFORMED_HEADER))
}
