//! Object ids, and the hash functions of repositories.

use std::fmt;
use std::fs::File;
use std::io::{self, BufRead};
use std::os::unix::fs::FileExt;

use sha1::{Digest, Sha1};
use sha2::Sha256;

use super::inflate::FileSection;

/// The hash function of a repository.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ObjectFormat {
    /// SHA-1, with ids of 20 bytes.
    Sha1,
    /// SHA-256, with ids of 32 bytes.
    Sha256,
}

impl ObjectFormat {
    /// The number of bytes in an id.
    #[must_use]
    pub const fn id_length(self) -> usize {
        match self {
            Self::Sha1 => 20,
            Self::Sha256 => 32,
        }
    }

    /// The id of a blob with this content.
    #[must_use]
    pub fn blob_id(self, content: &[u8]) -> ObjectId {
        let header = format!("blob {}\0", content.len());
        match self {
            Self::Sha1 => ObjectId(IdBytes::Sha1(hash_object::<Sha1>(&header, content).into())),
            Self::Sha256 => {
                ObjectId(IdBytes::Sha256(hash_object::<Sha256>(&header, content).into()))
            }
        }
    }

    /// Whether a file ends with the hash of its other bytes, as packs and their indexes do.
    pub fn has_valid_checksum(self, file: &File) -> io::Result<bool> {
        let mut checksum = vec![0; self.id_length()];
        let end = file.metadata()?.len().checked_sub(checksum.len() as u64);
        let Some(end) = end else { return Ok(false) };
        file.read_exact_at(&mut checksum, end)?;
        let found = match self {
            Self::Sha1 => hash_file::<Sha1>(file, end)?,
            Self::Sha256 => hash_file::<Sha256>(file, end)?,
        };
        Ok(found == checksum)
    }
}

/// The hash of a file up to an offset.
fn hash_file<D: Digest>(file: &File, end: u64) -> io::Result<Vec<u8>> {
    let mut source = FileSection::new(file, 0, end);
    let mut hash = D::new();
    loop {
        let piece = source.fill_buf()?;
        if piece.is_empty() {
            return Ok(hash.finalize().to_vec());
        }
        hash.update(piece);
        let length = piece.len();
        source.consume(length);
    }
}

fn hash_object<D: Digest>(header: &str, content: &[u8]) -> sha1::digest::Output<D> {
    D::new().chain_update(header).chain_update(content).finalize()
}

/// The id of an object: the hash of its header and content.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectId(IdBytes);

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum IdBytes {
    Sha1([u8; 20]),
    Sha256([u8; 32]),
}

impl ObjectId {
    /// The id with these bytes; `None` unless there are 20 or 32.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let sha1 = bytes.try_into().map(IdBytes::Sha1);
        sha1.or_else(|_| bytes.try_into().map(IdBytes::Sha256)).ok().map(Self)
    }

    /// The bytes of the id.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8] {
        match &self.0 {
            IdBytes::Sha1(bytes) => bytes,
            IdBytes::Sha256(bytes) => bytes,
        }
    }

    /// The first byte of the id, which selects an entry of a fan-out table.
    pub(super) const fn first_byte(&self) -> u8 {
        match &self.0 {
            IdBytes::Sha1([first, ..]) | IdBytes::Sha256([first, ..]) => *first,
        }
    }
}

impl fmt::Display for ObjectId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_bytes().iter().try_for_each(|byte| write!(formatter, "{byte:02x}"))
    }
}

impl fmt::Debug for ObjectId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}
