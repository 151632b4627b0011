//! Inflation of zlib data in a file, in pieces and never beyond the announced size.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::unix::fs::FileExt;

use flate2::bufread::ZlibDecoder;

use super::invalid_data;

/// Read buffer in bytes; most entries of a pack are far smaller.
const BUFFER_SIZE: usize = 8 << 10;
const WRONG_SIZE: &str = "the compressed data does not have the announced size";
/// The most memory to reserve before the data is inflated, in bytes.
const RESERVED_UNSEEN: u64 = 1 << 20;

/// A part of a file, read from its start to its end without moving the file's own cursor.
#[derive(Debug)]
pub(super) struct FileSection<'f> {
    file: &'f File,
    next: u64,
    end: u64,
}

impl<'f> FileSection<'f> {
    /// A buffered reader of the part from `start` up to `end`.
    pub(super) fn new(file: &'f File, start: u64, end: u64) -> BufReader<Self> {
        BufReader::with_capacity(BUFFER_SIZE, Self { file, next: start, end })
    }
}

impl Read for FileSection<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let rest = usize::try_from(self.end.saturating_sub(self.next)).unwrap_or(usize::MAX);
        let wanted = rest.min(buffer.len());
        let target = buffer.get_mut(..wanted).unwrap_or_default();
        let count = self.file.read_at(target, self.next)?;
        self.next = self.next.saturating_add(count as u64);
        Ok(count)
    }
}

/// Appends the rest of a zlib stream to `content`, which must then have exactly `size` bytes.
pub(super) fn inflate_to_end(
    decoder: &mut ZlibDecoder<BufReader<FileSection<'_>>>,
    mut content: Vec<u8>,
    size: u64,
) -> io::Result<Vec<u8>> {
    let rest = size.checked_sub(content.len() as u64).ok_or_else(|| invalid_data(WRONG_SIZE))?;
    // One byte more, so that the decoder reaches the end of the stream and its checksum.
    let wanted = rest.saturating_add(1);
    // `read_to_end` grows the vector only as data arrives.
    let reserved = usize::try_from(wanted.min(RESERVED_UNSEEN)).unwrap_or_default();
    content.try_reserve_exact(reserved).map_err(io::Error::from)?;
    decoder.take(wanted).read_to_end(&mut content).map_err(inflate_error)?;
    if content.len() as u64 == size { Ok(content) } else { Err(invalid_data(WRONG_SIZE)) }
}

/// Translates an error of the decoder, which reports corrupt data as invalid input.
pub(super) fn inflate_error(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::InvalidInput => invalid_data("the compressed data is corrupt"),
        _ => error,
    }
}
