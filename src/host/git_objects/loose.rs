//! Loose objects: files that hold one object, with its header, as a zlib stream.

use std::fs::File;
use std::io::{self, BufRead, Read};

use flate2::bufread::ZlibDecoder;

use super::inflate::{FileSection, inflate_error, inflate_to_end};
use super::{NOT_A_BLOB, blob_too_large, invalid_data};

/// The longest header, with its final NUL; git has the same limit.
const LONGEST_HEADER: u64 = 32;
const MALFORMED_HEADER: &str = "the header of a loose object is malformed";
const OTHER_TYPES: [&[u8]; 3] = [b"commit", b"tree", b"tag"];

/// Reads a loose blob of at most `limit` bytes.
pub fn read_blob(file: &File, limit: u64) -> io::Result<Vec<u8>> {
    let length = file.metadata()?.len();
    let mut decoder = ZlibDecoder::new(FileSection::new(file, 0, length));
    let mut start = Vec::new();
    decoder.by_ref().take(LONGEST_HEADER).read_to_end(&mut start).map_err(inflate_error)?;
    let nul =
        start.iter().position(|&byte| byte == 0).ok_or_else(|| invalid_data(MALFORMED_HEADER))?;
    let content = start.split_off(nul.saturating_add(1));
    let size = announced_size(start.get(..nul).unwrap_or_default())?;
    if size > limit {
        return Err(blob_too_large(size, limit));
    }
    let mut content = inflate_to_end(&mut decoder, content, size)?;
    content.shrink_to_fit();
    if decoder.into_inner().fill_buf()?.is_empty() {
        Ok(content)
    } else {
        Err(invalid_data("the loose object is followed by other data"))
    }
}

/// The size in a header such as `blob 12`.
fn announced_size(header: &[u8]) -> io::Result<u64> {
    let mut parts = header.splitn(2, |&byte| byte == b' ');
    let (kind, size) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let has_leading_zero = size.len() > 1 && size.starts_with(b"0");
    if has_leading_zero || !size.iter().all(u8::is_ascii_digit) {
        return Err(invalid_data(MALFORMED_HEADER));
    }
    let size = str::from_utf8(size).ok().and_then(|size| size.parse().ok());
    let size = size.ok_or_else(|| invalid_data(MALFORMED_HEADER))?;
    match kind {
        b"blob" => Ok(size),
        kind if OTHER_TYPES.contains(&kind) => Err(invalid_data(NOT_A_BLOB)),
        _ => Err(invalid_data(MALFORMED_HEADER)),
    }
}
