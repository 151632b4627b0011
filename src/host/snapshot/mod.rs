//! Snapshots of the files of a Workspace, so that a Turn can be undone.
//!
//! Contents are stored by hash in the `snapshots` folder of the state folder, shared by all Sessions. Each
//! Turn has a Record in a folder next to the Log: the state of each file before and after a file tool wrote
//! it, a Manifest of the Workspace before the first command, and the changes that surveys found around each
//! command. Logs can be read without Records; less can be undone then, which is reported to the user.

mod byte_encoding;
mod content;
mod delta;
mod folder_watch;
mod git_state;
mod known_manifest;
mod manifest;
pub mod manifest_file;
mod other_sessions;
mod parallel;
mod path_order;
mod record;
mod record_line;
mod restore;
mod restore_plan;
mod store;
mod survey;
mod survey_progress;
#[cfg(test)]
mod tests;
mod tracker;
mod turn_changes;

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub use content::read_state;
pub use delta::{FileChange, FolderChange, ManifestDelta};
pub use manifest::{Manifest, ManifestEntry};
pub use other_sessions::{OtherSessions, UnreadRecords};
pub use parallel::parallel_map;
pub use record::{TurnRecord, load_last_manifest};
pub use restore::{
    CurrentFiles, RestoreOutcome, find_nonempty_folders, find_obstacles, missing_contents, restore,
};
pub use restore_plan::{Direction, RestoreConflict, RestoreConflictReason, RestorePlan};
pub use store::{ContentStore, OpenSegment, SegmentLocation, StoreLock};
pub use survey::{Survey, SurveyError, SurveyLimits};
pub use tracker::{RunningCommand, TurnTracker};

/// The state of a file or link; a path that does not exist has no state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileState {
    File { sha256: ContentHash, mode: u32 },
    Link { target: RawPath },
}

/// The SHA-256 of a content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ContentHash(pub [u8; 32]);

impl ContentHash {
    /// Hashes these bytes.
    pub fn digest(bytes: &[u8]) -> Self {
        use sha2::Digest;
        Self(sha2::Sha256::digest(bytes).into())
    }
}

impl std::fmt::Display for ContentHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl Serialize for ContentHash {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ContentHash {
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
        serialize_raw_path(&self.0, serializer)
    }
}

fn serialize_raw_path<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    match path.to_str() {
        Some(text) => serializer.serialize_str(text),
        None => serializer.collect_seq(path.as_os_str().as_bytes()),
    }
}

fn deserialize_raw_path<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PathBuf, D::Error> {
    RawPath::deserialize(deserializer).map(|path| path.0)
}

impl<'de> Deserialize<'de> for RawPath {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum RawPathRepr {
            Text(String),
            Bytes(Vec<u8>),
        }
        Ok(Self(match RawPathRepr::deserialize(deserializer)? {
            RawPathRepr::Text(text) => PathBuf::from(text),
            RawPathRepr::Bytes(bytes) => PathBuf::from(OsString::from_vec(bytes)),
        }))
    }
}
