//! Content sniffing: the type of a file by its first bytes, never by its name. Pure.

use super::{AttachmentProblem, LONGEST_SIDE, MAX_IMAGE_BYTES};

/// The kind of a file's content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContentKind {
    /// An image that a model can view.
    Image(ImageHeader),
    /// UTF-8 without NUL.
    Text,
    /// Anything else, by its media type.
    File(&'static str),
}

/// Type and size of an image, from its header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageHeader {
    pub media_type: &'static str,
    pub width: u32,
    pub height: u32,
}

/// Whether a file with this beginning is of an image type that models accept.
pub fn is_image(head: &[u8]) -> bool {
    image_format(head).is_some()
}

/// Detects the kind of a whole file. An image that is broken, too large, or of a type that no Provider accepts is
/// refused, because it was attached to be seen.
pub fn detect_content(bytes: &[u8]) -> Result<ContentKind, AttachmentProblem> {
    if let Some((media_type, size)) = image_format(bytes) {
        let (width, height) = size(bytes)
            .filter(|(width, height)| *width > 0 && *height > 0)
            .filter(|_| !is_truncated_png(bytes))
            .ok_or(AttachmentProblem::Broken(media_type))?;
        if width > LONGEST_SIDE || height > LONGEST_SIDE {
            return Err(AttachmentProblem::TooWide { width, height });
        }
        if bytes.len() as u64 > MAX_IMAGE_BYTES {
            let bytes = bytes.len() as u64;
            return Err(AttachmentProblem::TooLarge {
                bytes,
                limit: MAX_IMAGE_BYTES,
                what: "an image",
            });
        }
        return Ok(ContentKind::Image(ImageHeader { media_type, width, height }));
    }
    if let Some(media_type) = unsupported_image(bytes) {
        return Err(AttachmentProblem::Unsupported(media_type));
    }
    Ok(match known_binary(bytes) {
        Some(media_type) => ContentKind::File(media_type),
        None if is_text(bytes) => ContentKind::Text,
        None => ContentKind::File("application/octet-stream"),
    })
}

fn is_text(bytes: &[u8]) -> bool {
    memchr::memchr(0, bytes).is_none() && std::str::from_utf8(bytes).is_ok()
}

type ReadDimensions = fn(&[u8]) -> Option<(u32, u32)>;

/// The media type of an image that every Provider accepts, and the function that reads its dimensions.
fn image_format(bytes: &[u8]) -> Option<(&'static str, ReadDimensions)> {
    if bytes.starts_with(b"\x89PNG\r\n\x1a\n") {
        Some(("image/png", png))
    } else if bytes.starts_with(b"\xff\xd8\xff") {
        Some(("image/jpeg", jpeg))
    } else if bytes.starts_with(b"GIF87a") || bytes.starts_with(b"GIF89a") {
        Some(("image/gif", gif))
    } else if bytes.starts_with(b"RIFF") && bytes.get(8..12) == Some(b"WEBP") {
        Some(("image/webp", webp))
    } else {
        None
    }
}

/// The media type of an image that must be converted first.
fn unsupported_image(bytes: &[u8]) -> Option<&'static str> {
    const BRANDS: [(&[u8], &str); 7] = [
        (b"heic", "image/heic"),
        (b"heix", "image/heic"),
        (b"hevc", "image/heic"),
        (b"heif", "image/heif"),
        (b"mif1", "image/heif"),
        (b"avif", "image/avif"),
        (b"avis", "image/avif"),
    ];
    if bytes.get(4..8) == Some(b"ftyp") {
        let brand = bytes.get(8..12)?;
        return BRANDS.iter().find(|(own, _)| *own == brand).map(|(_, media_type)| *media_type);
    }
    if bytes.starts_with(b"II*\0") || bytes.starts_with(b"MM\0*") {
        return Some("image/tiff");
    }
    // Two letters are no proof: the header also has the size of the file, and four zeros.
    let is_bitmap = bytes.starts_with(b"BM")
        && bytes.get(6..10) == Some(&[0; 4])
        && le32(bytes, 2) == u32::try_from(bytes.len()).ok();
    is_bitmap.then_some("image/bmp")
}

/// The media type of other well-known binary files.
fn known_binary(bytes: &[u8]) -> Option<&'static str> {
    const KNOWN: [(&[u8], &str); 7] = [
        (b"%PDF-", "application/pdf"),
        (b"PK\x03\x04", "application/zip"),
        (b"\x1f\x8b", "application/gzip"),
        (b"\x28\xb5\x2f\xfd", "application/zstd"),
        (b"\x7fELF", "application/x-elf"),
        (b"SQLite format 3\0", "application/vnd.sqlite3"),
        (b"OggS", "audio/ogg"),
    ];
    KNOWN.iter().find(|(magic, _)| bytes.starts_with(magic)).map(|(_, media_type)| *media_type)
}

fn png(bytes: &[u8]) -> Option<(u32, u32)> {
    let is_header = bytes.get(12..16) == Some(b"IHDR");
    is_header.then_some((be32(bytes, 16)?, be32(bytes, 20)?))
}

/// Whether the end of a PNG is missing: its chunks have lengths, and the last one is named `IEND`. A Provider would
/// refuse such an image in every request that shows it.
fn is_truncated_png(bytes: &[u8]) -> bool {
    let mut place = 8;
    while bytes.starts_with(b"\x89PNG") {
        let (Some(length), Some(name)) = (be32(bytes, place), array::<4>(bytes, place + 4)) else {
            return true;
        };
        place = place.saturating_add(length as usize).saturating_add(12);
        if place > bytes.len() {
            return true;
        }
        if &name == b"IEND" {
            return false;
        }
    }
    false
}

fn gif(bytes: &[u8]) -> Option<(u32, u32)> {
    Some((le16(bytes, 6)?, le16(bytes, 8)?))
}

/// The dimensions of a JPEG, from its first frame segment.
fn jpeg(bytes: &[u8]) -> Option<(u32, u32)> {
    let mut place = 2;
    loop {
        while bytes.get(place) == Some(&0xff) && bytes.get(place + 1) == Some(&0xff) {
            place += 1;
        }
        if bytes.get(place) != Some(&0xff) {
            return None;
        }
        let marker = *bytes.get(place + 1)?;
        let is_frame = matches!(marker, 0xc0..=0xcf) && !matches!(marker, 0xc4 | 0xc8 | 0xcc);
        if is_frame {
            return Some((be16(bytes, place + 7)?, be16(bytes, place + 5)?));
        }
        // Stand-alone markers have no length; pictures do not begin before their frame.
        if matches!(marker, 0x01 | 0xd0..=0xd7) {
            place += 2;
            continue;
        }
        if matches!(marker, 0xd9 | 0xda) {
            return None;
        }
        let length = usize::try_from(be16(bytes, place + 2)?).ok().filter(|length| *length >= 2)?;
        place += 2 + length;
    }
}

fn webp(bytes: &[u8]) -> Option<(u32, u32)> {
    match bytes.get(12..16)? {
        b"VP8 " => {
            let is_frame = bytes.get(23..26) == Some(&[0x9d, 0x01, 0x2a]);
            is_frame.then_some((le16(bytes, 26)? & 0x3fff, le16(bytes, 28)? & 0x3fff))
        }
        b"VP8L" => {
            let bits = le32(bytes, 21).filter(|_| bytes.get(20) == Some(&0x2f))?;
            Some(((bits & 0x3fff) + 1, ((bits >> 14) & 0x3fff) + 1))
        }
        b"VP8X" => {
            let three = |place: usize| Some(le32(bytes, place)? & 0x00ff_ffff);
            // The height ends the header; one more byte follows in any real file.
            Some((three(24)? + 1, three(27)? + 1))
        }
        _ => None,
    }
}

fn array<const N: usize>(bytes: &[u8], place: usize) -> Option<[u8; N]> {
    bytes.get(place..place.checked_add(N)?)?.try_into().ok()
}

fn be16(bytes: &[u8], place: usize) -> Option<u32> {
    array(bytes, place).map(u16::from_be_bytes).map(u32::from)
}

fn le16(bytes: &[u8], place: usize) -> Option<u32> {
    array(bytes, place).map(u16::from_le_bytes).map(u32::from)
}

fn be32(bytes: &[u8], place: usize) -> Option<u32> {
    array(bytes, place).map(u32::from_be_bytes)
}

fn le32(bytes: &[u8], place: usize) -> Option<u32> {
    array(bytes, place).map(u32::from_le_bytes)
}
