//! Blobs of git's object database, read from its files without starting any program.
//!
//! Starting git would cost more than reading, and a repository can make git start programs. The
//! files may be hostile: sizes are checked before memory is taken, and nothing is mapped, because
//! a file that is cut short under a mapping would kill the process. Contents are not compared with
//! their ids here; `ObjectFormat::blob_id` lets the caller do that where it matters.

mod delta;
mod id;
mod inflate;
pub mod loose;
mod pack;
mod pack_index;
#[cfg(test)]
mod tests;

use std::io;

pub use id::{ObjectFormat, ObjectId};
pub use pack::Pack;
pub use pack_index::PackIndex;

/// Why an object, or the file that holds it, cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum GitObjectError {
    /// The system refuses to read the file.
    #[error("cannot read the file: {0}")]
    Io(#[source] io::Error),
    /// The file ends where more must follow.
    #[error("the file is truncated")]
    Truncated,
    /// The index is of another version than 2, or no index at all.
    #[error("not a pack index of version 2")]
    UnsupportedIndex,
    /// The index has more objects than are read.
    #[error("the pack index has {objects} objects, which is more than {most}")]
    TooLarge {
        /// How many it has.
        objects: u32,
        /// How many it may have.
        most: u32,
    },
    /// The fan-out table of the index counts down.
    #[error("the fan-out table of the pack index is not monotonic")]
    FanOutNotMonotonic,
    /// The length of the index is not what its number of objects implies.
    #[error("the pack index has {length} bytes, which does not fit its {objects} objects")]
    IndexLength {
        /// How many bytes it has.
        length: u64,
        /// How many objects it has.
        objects: u32,
    },
    /// The ids of the index are not in order, so that a search would miss some.
    #[error("the ids of the pack index are not sorted")]
    UnsortedIds,
    /// The index has no object at this position.
    #[error("the pack index has no object at position {position}")]
    NoSuchPosition {
        /// The position that was asked for.
        position: u32,
    },
    /// An offset of the index points outside its table of 64-bit offsets.
    #[error("the pack index lacks a 64-bit offset")]
    MissingLargeOffset,
    /// The pack is of another version than 2 or 3, or no pack at all.
    #[error("not a pack of version 2 or 3")]
    UnsupportedPack,
    /// The pack and the index do not have the same number of objects.
    #[error("the pack has {pack} objects and its index {index}")]
    CountMismatch {
        /// How many the pack has.
        pack: u32,
        /// How many the index has.
        index: u32,
    },
    /// The index was made for a pack with another checksum.
    #[error("the index belongs to another pack")]
    OtherPack,
    /// An offset points to where the pack has no object.
    #[error("the pack has no object at offset {offset}")]
    OffsetOutside {
        /// The offset in the pack.
        offset: u64,
    },
    /// The header of a pack entry has an unknown type or a number that is too long.
    #[error("the header of a pack entry is malformed")]
    MalformedEntry,
    /// The header of a loose object is not a known type and a size.
    #[error("the header of a loose object is malformed")]
    MalformedLoose,
    /// The object is a commit, a tree or a tag.
    #[error("the object is not a blob")]
    NotABlob,
    /// The blob is larger than the caller wants.
    #[error("the blob has {size} bytes, which is more than {limit}")]
    BlobTooLarge {
        /// The size that the file announces.
        size: u64,
        /// The limit that the caller set.
        limit: u64,
    },
    /// What a delta chain needs is more than is built for one blob.
    #[error("the delta chain needs too much memory or work")]
    ChainTooLarge,
    /// The delta chain has more links than git makes.
    #[error("the delta chain is too deep")]
    ChainTooDeep,
    /// The delta chain comes back to one of its links.
    #[error("the delta chain is a cycle")]
    DeltaCycle,
    /// The base of a delta is not in this pack.
    #[error("the delta base {id} is not in the pack")]
    MissingBase {
        /// The id of the base.
        id: ObjectId,
    },
    /// The instructions of a delta do not fit its base or its result.
    #[error("a delta is malformed")]
    MalformedDelta,
    /// The compressed data is damaged.
    #[error("the compressed data is corrupt")]
    CorruptData,
    /// The compressed data does not have the size that its header announces.
    #[error("the compressed data does not have the announced size")]
    WrongSize,
    /// Something follows a loose object in its file.
    #[error("the loose object is followed by other data")]
    TrailingData,
}

impl From<io::Error> for GitObjectError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => Self::Truncated,
            _ => Self::Io(error),
        }
    }
}
