//! Snapshots of the files of a Workspace, so that a Turn can be undone.
//!
//! Contents are stored by hash in the `snapshots` folder of the Workspace's state, shared by all Sessions.
//! Each Turn has a Record beside the Log: the state of each file before and after a file tool wrote it, a
//! Manifest of everything before the first command, and the changes seen by the surveys around each
//! command. None of it is needed to read a Log; without it less can be undone, and the user is told so.

mod bytes;
mod claims;
mod content;
mod crew;
mod delta;
mod line;
mod manifest;
pub mod manifest_file;
mod plan;
mod progress;
mod record;
mod restore;
mod store;
mod survey;
#[cfg(test)]
mod tests;
mod touches;
mod tracker;
mod watch;

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub use claims::{OtherSessions, Unread};
pub use content::state_of;
pub use delta::{Change, FolderChange, ManifestDelta};
pub use manifest::Manifest;
pub use plan::{Conflict, Direction, Plan, Reason};
pub use record::{Record, last_manifest};
pub use restore::{Here, Restored, in_the_way, missing, restore, staying};
pub use store::{Hold, OpenSegment, Store};
pub use survey::{Limits, Refused, Survey};
pub use tracker::{RunningCommand, Tracker};

/// The state of a file or link; a path that does not exist has no state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    File { sha256: Hash, mode: u32 },
    Link { target: RawPath },
}

/// The SHA-256 of a content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Hash(pub [u8; 32]);

impl Hash {
    /// Hashes these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        use sha2::Digest;
        Self(sha2::Sha256::digest(bytes).into())
    }
}

impl std::fmt::Display for Hash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl Serialize for Hash {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Hash {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(deserializer)?;
        let wrong = || serde::de::Error::custom("no SHA-256");
        let digits = text.as_bytes();
        if digits.len() != 64 {
            return Err(wrong());
        }
        let mut hash = [0; 32];
        for (byte, pair) in hash.iter_mut().zip(digits.chunks(2)) {
            let pair = std::str::from_utf8(pair).map_err(|_| wrong())?;
            *byte = u8::from_str_radix(pair, 16).map_err(|_| wrong())?;
        }
        Ok(Self(hash))
    }
}

/// A path that need not be UTF-8: serialised as text if it is, else as bytes.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RawPath(pub PathBuf);

impl AsRef<Path> for RawPath {
    fn as_ref(&self) -> &Path {
        &self.0
    }
}

impl Serialize for RawPath {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        write_raw(&self.0, serializer)
    }
}

fn write_raw<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    match path.to_str() {
        Some(text) => serializer.serialize_str(text),
        None => serializer.collect_seq(path.as_os_str().as_bytes()),
    }
}

fn read_raw<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PathBuf, D::Error> {
    RawPath::deserialize(deserializer).map(|path| path.0)
}

impl<'de> Deserialize<'de> for RawPath {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Text(String),
            Bytes(Vec<u8>),
        }
        Ok(Self(match Written::deserialize(deserializer)? {
            Written::Text(text) => PathBuf::from(text),
            Written::Bytes(bytes) => PathBuf::from(OsString::from_vec(bytes)),
        }))
    }
}
