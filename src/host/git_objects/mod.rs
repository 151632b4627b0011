//! Reader for blobs of git's object database, without starting git.
//!
//! Starting git would cost more than reading, and a repository can make git start programs. The
//! files may be hostile: sizes are checked before memory is allocated, and nothing is mapped, because
//! a file that is cut short under a mapping would kill the process. Contents are not compared with
//! their ids here; `ObjectFormat::blob_id` lets the caller do that where it matters.

mod delta;
mod id;
mod inflate;
pub mod loose;
mod pack;
mod pack_index;
#[cfg(test)]
pub(crate) mod tests;

use std::io;

pub use id::{ObjectFormat, ObjectId};
pub use pack::Pack;
pub use pack_index::PackIndex;

/// The error when a delta does not fit its base or its result.
const MALFORMED_DELTA: &str = "a delta is malformed";
/// The error when a delta chain exceeds the limits of memory or work for one blob.
const CHAIN_TOO_LARGE: &str = "the delta chain needs too much memory or work";
/// The error for a commit, a tree or a tag.
const NOT_A_BLOB: &str = "the object is not a blob";

/// An error about the content of a file: git would not write it, or it exceeds a limit.
fn invalid_data(message: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message.into())
}

fn blob_too_large(size: u64, limit: u64) -> io::Error {
    invalid_data(format!("the blob has {size} bytes, which is more than {limit}"))
}

/// Converts an error of reading these files into one about their content, with a message for the user.
pub fn into_invalid_data(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::InvalidData => error,
        io::ErrorKind::UnexpectedEof => invalid_data("the file is truncated"),
        _ => invalid_data(format!("cannot read the file: {error}")),
    }
}
