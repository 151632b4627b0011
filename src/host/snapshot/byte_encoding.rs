//! Encoding of numbers and byte strings in the binary files of the content store: numbers have a variable
//! length, and every read is checked, because a file may be truncated or forged.

use std::io::{self, Read, Write};

use flate2::Compression;
use flate2::read::DeflateDecoder;
use flate2::write::DeflateEncoder;

/// Appends a number as a varint: groups of seven bits, the lowest first.
pub fn put_number(out: &mut Vec<u8>, mut number: u64) {
    loop {
        let [low, ..] = number.to_le_bytes();
        number >>= 7;
        if number == 0 {
            return out.push(low);
        }
        out.push(low | 0x80);
    }
}

/// Appends a signed number in zigzag form, in which numbers near zero are short.
pub fn put_signed(out: &mut Vec<u8>, number: i64) {
    put_number(out, ((number << 1) ^ (number >> 63)).cast_unsigned());
}

/// Appends a byte string with its length before it.
pub fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_number(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Appends bytes in compressed form, with both lengths before them.
pub fn put_compressed(out: &mut Vec<u8>, bytes: &[u8]) -> io::Result<()> {
    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes)?;
    let packed = encoder.finish()?;
    put_number(out, bytes.len() as u64);
    put_bytes(out, &packed);
    Ok(())
}

/// Reads values from the front of a byte slice.
#[derive(Debug)]
pub struct ByteReader<'b> {
    left: &'b [u8],
}

impl<'b> ByteReader<'b> {
    pub fn new(bytes: &'b [u8]) -> Self {
        Self { left: bytes }
    }

    /// Whether all bytes were read.
    pub fn is_at_end(&self) -> bool {
        self.left.is_empty()
    }

    /// The next `count` bytes.
    pub fn take_bytes(&mut self, count: usize) -> io::Result<&'b [u8]> {
        let (taken, left) = self.left.split_at_checked(count).ok_or_else(damaged_file_error)?;
        self.left = left;
        Ok(taken)
    }

    pub fn read_number(&mut self) -> io::Result<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let [byte] = *self.take_bytes(1)? else { return Err(damaged_file_error()) };
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(damaged_file_error())
    }

    /// A number that must fit another type.
    pub fn read_number_as<T: TryFrom<u64>>(&mut self) -> io::Result<T> {
        T::try_from(self.read_number()?).map_err(|_| damaged_file_error())
    }

    pub fn read_signed(&mut self) -> io::Result<i64> {
        let number = self.read_number()?;
        Ok((number >> 1).cast_signed() ^ -(number & 1).cast_signed())
    }

    pub fn read_bytes(&mut self) -> io::Result<&'b [u8]> {
        let length = self.read_number_as()?;
        self.take_bytes(length)
    }

    /// Decompresses bytes, at most `limit` of them.
    pub fn read_compressed(&mut self, limit: u64) -> io::Result<Vec<u8>> {
        let length = self.read_number()?;
        if length > limit {
            return Err(damaged_file_error());
        }
        let packed = self.read_bytes()?;
        let mut bytes = Vec::new();
        DeflateDecoder::new(packed).take(length + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 == length { Ok(bytes) } else { Err(damaged_file_error()) }
    }
}

/// The error for a damaged file.
pub fn damaged_file_error() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the file is damaged")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_written_is_read_again(
            numbers in proptest::collection::vec(any::<u64>(), 0..20),
            signed in proptest::collection::vec(any::<i64>(), 0..20),
            text in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            let mut out = Vec::new();
            for number in &numbers {
                put_number(&mut out, *number);
            }
            for number in &signed {
                put_signed(&mut out, *number);
            }
            put_bytes(&mut out, &text);
            put_compressed(&mut out, &text).unwrap();
            let mut reader = ByteReader::new(&out);
            for number in numbers {
                prop_assert_eq!(reader.read_number().unwrap(), number);
            }
            for number in signed {
                prop_assert_eq!(reader.read_signed().unwrap(), number);
            }
            prop_assert_eq!(reader.read_bytes().unwrap(), text.as_slice());
            prop_assert_eq!(reader.read_compressed(200).unwrap(), text);
            prop_assert!(reader.is_at_end());
        }

        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            let mut reader = ByteReader::new(&bytes);
            while !reader.is_at_end() {
                let before = reader.left.len();
                drop(reader.read_compressed(1 << 16));
                drop(reader.read_bytes());
                drop(reader.read_signed());
                if reader.left.len() == before {
                    break;
                }
            }
        }
    }
}
