//! Trust: the user's decisions about files of Workspaces that have more effect than text, such as skills
//! and settings.
//!
//! A decision is for one path and content: after a change the user is asked again, and a copy is another
//! file. Decisions are kept in the user's own folder, where nothing of a Workspace can write.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::base::locked_file::{LockedFile, LockedFileError};
use crate::base::paths::Home;

/// The user's decision about one file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrustDecision {
    pub file: PathBuf,
    /// The SHA-256 of the content that the user saw, in hex.
    pub digest: String,
    pub trusted: bool,
    #[serde(rename = "said_at")]
    pub decided_at: String,
}

/// The user's trust decisions; cheap to make.
#[derive(Debug, Clone)]
pub struct TrustStore(LockedFile<TrustDecision>);

impl TrustStore {
    /// The trust decisions of this user.
    pub fn new(home: &Home) -> Self {
        Self(LockedFile::new(home.trust_file()))
    }

    /// The decision about a file with this content; `None` when the user was not asked.
    pub fn find_decision(
        &self,
        file: &Path,
        digest: &str,
    ) -> Result<Option<bool>, LockedFileError> {
        let words = self.0.read()?;
        let found =
            words.iter().find(|decision| decision.file == file && decision.digest == digest);
        Ok(found.map(|decision| decision.trusted))
    }

    /// All decisions, to look up many files at once; empty when they cannot be read.
    pub fn read_decisions(&self) -> Vec<TrustDecision> {
        let words = self.0.read();
        words.inspect_err(|error| tracing::warn!(%error, "nothing is trusted")).unwrap_or_default()
    }

    /// Stores a decision; it replaces any earlier one about the file.
    pub fn record_decision(
        &self,
        file: &Path,
        digest: &str,
        trusted: bool,
    ) -> Result<(), LockedFileError> {
        let decision = TrustDecision {
            file: file.to_owned(),
            digest: digest.to_owned(),
            trusted,
            decided_at: jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        };
        self.0.update(|words| {
            words.retain(|other| other.file != decision.file);
            words.push(decision);
        })
    }

    /// Removes the decision about a file; true when the file was trusted.
    pub fn remove_decision(&self, file: &Path) -> Result<bool, LockedFileError> {
        let words = self.0.read()?;
        let Some(was_trusted) =
            words.iter().find(|decision| decision.file == file).map(|decision| decision.trusted)
        else {
            return Ok(false);
        };
        self.0.update(|words| words.retain(|decision| decision.file != file))?;
        Ok(was_trusted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trust_is_for_one_path_and_one_content() {
        let folder = tempfile::tempdir().unwrap();
        let trust = TrustStore::new(&Home::new(folder.path()));
        let (file, other) =
            (Path::new("/a/.pixir/config.json"), Path::new("/b/.pixir/config.json"));
        assert_eq!(trust.find_decision(file, "one").unwrap(), None);
        trust.record_decision(file, "one", true).unwrap();
        assert_eq!(trust.find_decision(file, "one").unwrap(), Some(true));
        assert_eq!(trust.find_decision(file, "two").unwrap(), None, "changed content asks again");
        assert_eq!(trust.find_decision(other, "one").unwrap(), None, "a copy is another file");
        trust.record_decision(file, "two", false).unwrap();
        assert_eq!(trust.find_decision(file, "two").unwrap(), Some(false));
        assert_eq!(trust.find_decision(file, "one").unwrap(), None, "going back asks again, too");
        assert!(!trust.remove_decision(file).unwrap());
        trust.record_decision(file, "two", true).unwrap();
        assert!(trust.remove_decision(file).unwrap() && !trust.remove_decision(file).unwrap());
    }
}
