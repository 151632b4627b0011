//! Deltas: an object encoded as copies from a base object and new bytes.

use std::io;

use super::{CHAIN_TOO_LARGE, MALFORMED_DELTA, invalid_data};

/// The size of a copy instruction whose size field is zero.
const DEFAULT_COPY: usize = 0x1_0000;

/// A delta whose sizes have been read, but not yet its instructions.
#[derive(Debug)]
pub(super) struct Delta {
    /// The size that the base must have.
    pub(super) base_size: u64,
    /// The size of the resulting object.
    pub(super) result_size: u64,
    data: Vec<u8>,
    instructions: usize,
}

impl Delta {
    /// Parses the inflated data of a delta.
    pub(super) fn parse(data: Vec<u8>) -> io::Result<Self> {
        let mut rest = data.iter();
        let sizes = read_size(&mut rest).zip(read_size(&mut rest));
        let (base_size, result_size) = sizes.ok_or_else(|| invalid_data(MALFORMED_DELTA))?;
        let instructions = data.len().saturating_sub(rest.len());
        Ok(Self { base_size, result_size, data, instructions })
    }

    /// Applies the delta to `base`, and replaces `result` by the object.
    pub(super) fn apply(&self, base: &[u8], result: &mut Vec<u8>) -> io::Result<()> {
        let size = usize::try_from(self.result_size).map_err(|_| invalid_data(CHAIN_TOO_LARGE))?;
        result.clear();
        result.try_reserve_exact(size).map_err(io::Error::from)?;
        let mut rest = self.data.get(self.instructions..).unwrap_or_default();
        while let Some((&opcode, after)) = rest.split_first() {
            let (bytes, after) =
                next_bytes(opcode, after, base).ok_or_else(|| invalid_data(MALFORMED_DELTA))?;
            if bytes.len() > size.saturating_sub(result.len()) {
                return Err(invalid_data(MALFORMED_DELTA));
            }
            result.extend_from_slice(bytes);
            rest = after;
        }
        if result.len() == size { Ok(()) } else { Err(invalid_data(MALFORMED_DELTA)) }
    }
}

/// The bytes that one instruction adds, and the data after the instruction. Each instruction adds at least
/// one byte, so the size of the result bounds their number.
fn next_bytes<'b>(opcode: u8, after: &'b [u8], base: &'b [u8]) -> Option<(&'b [u8], &'b [u8])> {
    match opcode {
        0 => None, // git reserves it
        1..=0x7f => after.split_at_checked(usize::from(opcode)),
        0x80.. => {
            let (start, after) = read_number(opcode & 0x0f, 4, after)?;
            let (size, after) = read_number(opcode >> 4 & 0x07, 3, after)?;
            let size = if size == 0 { DEFAULT_COPY } else { size };
            Some((base.get(start..start.checked_add(size)?)?, after))
        }
    }
}

/// A little-endian number; only the bytes whose bit is set in `present` are stored.
fn read_number(present: u8, width: u32, mut rest: &[u8]) -> Option<(usize, &[u8])> {
    let mut number = 0_u32;
    for place in (0..width).filter(|place| present >> place & 1 == 1) {
        let (&byte, after) = rest.split_first()?;
        number |= u32::from(byte) << (8 * place);
        rest = after;
    }
    Some((usize::try_from(number).ok()?, rest))
}

/// A size in groups of seven bits, the lowest first; `None` when it ends early or is too large.
fn read_size<'b>(bytes: &mut impl Iterator<Item = &'b u8>) -> Option<u64> {
    let mut size = 0_u64;
    for shift in (0..=56).step_by(7) {
        let byte = *bytes.next()?;
        size |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(size);
        }
    }
    None
}
