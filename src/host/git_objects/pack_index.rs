//! Pack index (`.idx`, version 2): the ids and offsets of the objects in a pack.

use std::cmp::Ordering;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;

use super::{ObjectFormat, ObjectId, invalid_data};

/// The maximum number of objects whose ids are kept in memory; a larger index is searched in its file.
const MOST_CACHED: u32 = 4_000_000;
/// The magic number, and version 2.
const HEADER: [u8; 8] = *b"\xfftOc\0\0\0\x02";
const FAN_OUT_LENGTH: usize = 256 * 4;
/// The offset of the ids, after the header and the fan-out table.
const IDS_START: u64 = (HEADER.len() + FAN_OUT_LENGTH) as u64;
const CRC_LENGTH: u64 = 4;
const OFFSET_LENGTH: u64 = 4;
const LARGE_OFFSET_LENGTH: u64 = 8;
/// The bit that makes an offset an index into the table of 64-bit offsets.
const IS_LARGE: u32 = 1 << 31;

/// The index of a pack, which several threads may search at once.
///
/// Ids are read when the first id with the same first byte is searched, and then kept: most
/// searches cost no system call. The ids of a very large index are not kept.
#[derive(Debug)]
pub struct PackIndex {
    file: File,
    format: ObjectFormat,
    /// The number of ids whose first byte is at most the position in this array.
    fan_out: Box<[u32; 256]>,
    /// The concatenated ids of each first byte, once they have been read.
    buckets: Box<[OnceLock<Vec<u8>>; 256]>,
    large_offsets: u64,
}

impl PackIndex {
    /// Opens an index of version 2 whose ids have this format.
    pub fn open(file: File, format: ObjectFormat) -> io::Result<Self> {
        let mut header = HEADER;
        file.read_exact_at(&mut header, 0)?;
        if header != HEADER {
            return Err(invalid_data("not a pack index of version 2"));
        }
        let fan_out = read_fan_out(&file)?;
        let [.., objects] = *fan_out;
        let length = file.metadata()?.len();
        let size_mismatch = || {
            format!("the pack index has {length} bytes, which does not fit its {objects} objects")
        };
        let large_offsets = count_large_offsets(length, objects, format)
            .ok_or_else(|| invalid_data(size_mismatch()))?;
        let buckets = Box::new([const { OnceLock::new() }; 256]);
        Ok(Self { file, format, fan_out, buckets, large_offsets })
    }

    /// The hash function of the ids.
    #[must_use]
    pub fn format(&self) -> ObjectFormat {
        self.format
    }

    /// The number of objects.
    #[must_use]
    pub fn object_count(&self) -> u32 {
        let [.., objects] = *self.fan_out;
        objects
    }

    /// The position of an object; `None` when the pack does not have it.
    pub fn find(&self, id: &ObjectId) -> io::Result<Option<u32>> {
        if id.as_bytes().len() != self.format.id_length() {
            return Ok(None);
        }
        if self.object_count() > MOST_CACHED {
            return self.find_in_file(id);
        }
        let (start, ids) = self.bucket(id.first_byte())?;
        let (mut low, mut high) = (0, ids.len() / self.format.id_length());
        while low < high {
            let middle = usize::midpoint(low, high);
            match self.nth_id(ids, middle).cmp(&Some(id.as_bytes())) {
                Ordering::Less => low = middle + 1,
                Ordering::Greater => high = middle,
                // A bucket has no more ids than the fan-out table counts, which is a `u32`.
                Ordering::Equal => {
                    return Ok(u32::try_from(middle).ok().and_then(|n| start.checked_add(n)));
                }
            }
        }
        Ok(None)
    }

    /// The position of an object, by a binary search that keeps nothing in memory.
    pub(super) fn find_in_file(&self, id: &ObjectId) -> io::Result<Option<u32>> {
        let (mut low, mut high) = self.bucket_range(id.first_byte());
        let mut found = vec![0; self.format.id_length()];
        while low < high {
            let middle = u32::midpoint(low, high);
            let place = IDS_START + u64::from(middle) * found.len() as u64;
            self.file.read_exact_at(&mut found, place)?;
            match found.as_slice().cmp(id.as_bytes()) {
                Ordering::Less => low = middle + 1,
                Ordering::Greater => high = middle,
                Ordering::Equal => return Ok(Some(middle)),
            }
        }
        Ok(None)
    }

    /// The id of the object at a position.
    #[cfg(test)]
    pub fn id_at(&self, position: u32) -> io::Result<ObjectId> {
        let missing = no_such_position(position);
        let first_byte = self.fan_out.partition_point(|&end| end <= position);
        let Ok(first_byte) = u8::try_from(first_byte) else { return Err(missing) };
        let (start, ids) = self.bucket(first_byte)?;
        let place = position.checked_sub(start).and_then(|place| usize::try_from(place).ok());
        place
            .and_then(|place| self.nth_id(ids, place))
            .and_then(ObjectId::from_bytes)
            .ok_or(missing)
    }

    /// The offset in the pack of the object at a position.
    pub fn offset(&self, position: u32) -> io::Result<u64> {
        if position >= self.object_count() {
            return Err(no_such_position(position));
        }
        let id_length = self.format.id_length() as u64;
        let objects = u64::from(self.object_count());
        let offsets_start = IDS_START + objects * (id_length + CRC_LENGTH);
        let mut offset = [0; 4];
        let place = offsets_start + u64::from(position) * OFFSET_LENGTH;
        self.file.read_exact_at(&mut offset, place)?;
        let offset = u32::from_be_bytes(offset);
        if offset & IS_LARGE == 0 {
            return Ok(u64::from(offset));
        }
        let number = u64::from(offset & !IS_LARGE);
        if number >= self.large_offsets {
            return Err(invalid_data("the pack index lacks a 64-bit offset"));
        }
        let mut offset = [0; 8];
        let table = offsets_start + objects * OFFSET_LENGTH;
        self.file.read_exact_at(&mut offset, table + number * LARGE_OFFSET_LENGTH)?;
        Ok(u64::from_be_bytes(offset))
    }

    /// The checksum of the pack to which this index belongs.
    pub(super) fn pack_checksum(&self) -> io::Result<Vec<u8>> {
        let id_length = self.format.id_length();
        let objects = u64::from(self.object_count());
        let per_object = id_length as u64 + CRC_LENGTH + OFFSET_LENGTH;
        let tables = objects * per_object + self.large_offsets * LARGE_OFFSET_LENGTH;
        let mut checksum = vec![0; id_length];
        self.file.read_exact_at(&mut checksum, IDS_START + tables)?;
        Ok(checksum)
    }

    /// The positions of the ids that begin with a byte: the first of them, and the one after the last.
    fn bucket_range(&self, first_byte: u8) -> (u32, u32) {
        let number = usize::from(first_byte);
        // A byte is always within the 256 entries of the table.
        let start = number.checked_sub(1).map_or(0, |before| self.fan_out[before]);
        (start, self.fan_out[number])
    }

    /// The ids that begin with a byte, and the position of the first of them.
    fn bucket(&self, first_byte: u8) -> io::Result<(u32, &[u8])> {
        let (start, end) = self.bucket_range(first_byte);
        let bucket = &self.buckets[usize::from(first_byte)];
        if let Some(ids) = bucket.get() {
            return Ok((start, ids));
        }
        // An error is not cached, because it may be transient. Two threads may read the same ids.
        let ids = self.read_ids(first_byte, start, end)?;
        Ok((start, bucket.get_or_init(|| ids)))
    }

    fn read_ids(&self, first_byte: u8, start: u32, end: u32) -> io::Result<Vec<u8>> {
        let id_length = self.format.id_length();
        // The fan-out table is monotonic and small, so neither of these is ever out of range.
        let count = end.saturating_sub(start) as usize;
        let mut ids = vec![0; count.saturating_mul(id_length)];
        self.file.read_exact_at(&mut ids, IDS_START + u64::from(start) * id_length as u64)?;
        let is_here = ids.chunks_exact(id_length).all(|id| id.first() == Some(&first_byte));
        // Equal neighbours are allowed, because git reads packs that have an object twice.
        if !is_here || !ids.chunks_exact(id_length).is_sorted() {
            return Err(invalid_data("the ids of the pack index are not sorted"));
        }
        Ok(ids)
    }

    fn nth_id<'i>(&self, ids: &'i [u8], number: usize) -> Option<&'i [u8]> {
        let start = number.checked_mul(self.format.id_length())?;
        ids.get(start..start.checked_add(self.format.id_length())?)
    }
}

fn no_such_position(position: u32) -> io::Error {
    invalid_data(format!("the pack index has no object at position {position}"))
}

fn read_fan_out(file: &File) -> io::Result<Box<[u32; 256]>> {
    let mut bytes = [0; FAN_OUT_LENGTH];
    file.read_exact_at(&mut bytes, HEADER.len() as u64)?;
    let mut fan_out = Box::new([0; 256]);
    let (entries, _) = bytes.as_chunks();
    for (number, entry) in fan_out.iter_mut().zip(entries) {
        *number = u32::from_be_bytes(*entry);
    }
    if fan_out.is_sorted() {
        Ok(fan_out)
    } else {
        Err(invalid_data("the fan-out table of the pack index is not monotonic"))
    }
}

/// The number of 64-bit offsets in an index of this length; `None` when no number fits.
fn count_large_offsets(length: u64, objects: u32, format: ObjectFormat) -> Option<u64> {
    let id_length = format.id_length() as u64;
    let objects = u64::from(objects);
    let tables = objects * (id_length + CRC_LENGTH + OFFSET_LENGTH);
    // At the end: the checksum of the pack and that of the index.
    let rest = length.checked_sub(IDS_START + tables + 2 * id_length)?;
    let count = rest / LARGE_OFFSET_LENGTH;
    // The first object of a pack is at its start, so it never needs a large offset.
    let fits = rest % LARGE_OFFSET_LENGTH == 0 && count <= objects.saturating_sub(1);
    fits.then_some(count)
}
