//! Packs (`.pack`, version 2 or 3): many objects in one file, most of them as deltas.
//!
//! A delta chain is followed from the wanted object to its base, and every size is checked before
//! anything is built; then the object is built from the base upwards, in two alternating buffers.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use flate2::bufread::ZlibDecoder;

use super::delta::Delta;
use super::inflate::{FileSection, inflate_error, inflate_to_end};
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
/// The maximum length of the two sizes at the start of a delta, in bytes.
const DELTA_SIZES_LENGTH: u64 = 20;

/// A pack with its index, which several threads may read at once.
#[derive(Debug)]
pub struct Pack {
    file: File,
    index: PackIndex,
    /// The end of the objects, where the checksum of the pack begins.
    end: u64,
    /// The cost of the delta chain at each offset that was checked.
    costs: Mutex<HashMap<u64, ChainCost>>,
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
        Ok(Self { file: pack, index, end, costs: Mutex::default() })
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
            let Some(base) = self.find_base(offset, &entry.kind)? else {
                chain.check_size(entry.size)?;
                return chain.build(entry.inflate()?);
            };
            chain.check_link(offset, base)?;
            chain.check_delta(entry.size)?;
            chain.push(offset, Delta::parse(entry.inflate()?)?)?;
            offset = base;
        }
    }

    /// Checks that the delta chain of a blob is within the limits of `read_blob`. Only headers are read, each once.
    pub fn check_blob(&self, position: u32, limit: u64) -> io::Result<()> {
        let mut offset = self.index.offset(position)?;
        let mut chain = DeltaChain::new(limit);
        let mut delta_sizes = Vec::new();
        let mut cost = loop {
            let known = self.lock_costs().get(&offset).copied();
            if let Some(known) = known {
                break known;
            }
            let entry = self.read_entry(offset)?;
            let Some(base) = self.find_base(offset, &entry.kind)? else {
                break ChainCost::of_base(entry.size);
            };
            chain.check_link(offset, base)?;
            chain.check_delta(entry.size)?;
            delta_sizes.push(entry.size);
            chain.push(offset, Delta::parse(entry.inflate_delta_sizes()?)?)?;
            offset = base;
        };
        chain.check_rest(&cost)?;
        let links = chain.offsets.iter().zip(&chain.deltas).zip(delta_sizes).rev();
        let mut costs = self.lock_costs();
        for ((offset, delta), delta_size) in links {
            cost = cost.with_link(delta_size, delta.result_size);
            costs.insert(*offset, cost);
        }
        Ok(())
    }

    fn lock_costs(&self) -> MutexGuard<'_, HashMap<u64, ChainCost>> {
        self.costs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The offset of the base of the delta at `offset`; `None` for a whole blob.
    fn find_base(&self, offset: u64, kind: &PackEntryKind) -> io::Result<Option<u64>> {
        match kind {
            PackEntryKind::Other => Err(invalid_data(NOT_A_BLOB)),
            PackEntryKind::Blob => Ok(None),
            PackEntryKind::OffsetDelta(distance) => {
                // The distance is not zero, so such a chain always moves to the front.
                offset.checked_sub(*distance).map(Some).ok_or_else(|| no_such_offset(offset))
            }
            PackEntryKind::IdDelta(id) => self.base_offset(id).map(Some),
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

    /// The start of a delta, with the sizes of its base and its result.
    fn inflate_delta_sizes(self) -> io::Result<Vec<u8>> {
        let mut start = Vec::new();
        let mut data = ZlibDecoder::new(self.source).take(DELTA_SIZES_LENGTH.min(self.size));
        data.read_to_end(&mut start).map_err(inflate_error)?;
        Ok(start)
    }
}

/// The cost of building an object from its delta chain, in the units that `DeltaChain` limits.
#[derive(Debug, Clone, Copy)]
struct ChainCost {
    /// The size of the object itself, in bytes.
    size: u64,
    links: usize,
    delta_bytes: u64,
    /// The size of the object and of all objects below it.
    built_bytes: u64,
    /// The size of the largest of these objects.
    largest: u64,
}

impl ChainCost {
    fn of_base(size: u64) -> Self {
        Self { size, links: 0, delta_bytes: 0, built_bytes: size, largest: size }
    }

    /// The cost of the object that a delta makes from this one. The sums are within the budget of a chain, so they
    /// do not overflow.
    fn with_link(self, delta_size: u64, size: u64) -> Self {
        Self {
            size,
            links: self.links.saturating_add(1),
            delta_bytes: self.delta_bytes.saturating_add(delta_size),
            built_bytes: self.built_bytes.saturating_add(size),
            largest: self.largest.max(size),
        }
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

    /// Refuses the rest of a chain that exceeds what may still be spent.
    fn check_rest(&mut self, rest: &ChainCost) -> io::Result<()> {
        self.check_size(rest.size)?;
        self.check_delta(rest.delta_bytes)?;
        let is_small = rest.largest <= self.largest_base
            && rest.built_bytes.saturating_sub(rest.size) <= self.work_budget
            && self.deltas.len().saturating_add(rest.links) <= DEEPEST_CHAIN;
        if is_small { Ok(()) } else { Err(invalid_data(CHAIN_TOO_LARGE)) }
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
