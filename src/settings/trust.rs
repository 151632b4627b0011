//! Trust: the user's decisions about files of Workspaces that have more effect than text, such as skills
//! and settings.
//!
//! A decision is for one path and content: after a change the user is asked again, and a copy is another
//! file. Decisions are kept in the user's own folder, where nothing of a Workspace can write.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::base::locked_file::{Ledger, LedgerError};
use crate::base::paths::Home;

/// The user's decision about one file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Word {
    pub file: PathBuf,
    /// The SHA-256 of the content that the user saw, in hex.
    pub digest: String,
    pub trusted: bool,
    pub said_at: String,
}

/// The user's trust decisions; cheap to make.
#[derive(Debug, Clone)]
pub struct Trust(Ledger<Word>);

impl Trust {
    /// The trust decisions of this user.
    pub fn new(home: &Home) -> Self {
        Self(Ledger::at(home.trust()))
    }

    /// The decision about a file with this content; `None` when the user was not asked.
    pub fn of(&self, file: &Path, digest: &str) -> Result<Option<bool>, LedgerError> {
        let words = self.0.read()?;
        let found = words.iter().find(|word| word.file == file && word.digest == digest);
        Ok(found.map(|word| word.trusted))
    }

    /// All decisions, to look up many files at once; empty when they cannot be read.
    pub fn words(&self) -> Vec<Word> {
        let words = self.0.read();
        words.inspect_err(|error| tracing::warn!(%error, "nothing is trusted")).unwrap_or_default()
    }

    /// Stores a decision; it replaces any earlier one about the file.
    pub fn say(&self, file: &Path, digest: &str, trusted: bool) -> Result<(), LedgerError> {
        let word = Word {
            file: file.to_owned(),
            digest: digest.to_owned(),
            trusted,
            said_at: jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        };
        self.0.change(|words| {
            words.retain(|other| other.file != word.file);
            words.push(word);
        })
    }

    /// Removes the decision about a file; true when the file was trusted.
    pub fn forget(&self, file: &Path) -> Result<bool, LedgerError> {
        let words = self.0.read()?;
        let Some(was_trusted) =
            words.iter().find(|word| word.file == file).map(|word| word.trusted)
        else {
            return Ok(false);
        };
        self.0.change(|words| words.retain(|word| word.file != file))?;
        Ok(was_trusted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trust_is_for_one_path_and_one_content() {
        let folder = tempfile::tempdir().unwrap();
        let trust = Trust::new(&Home::new(folder.path()));
        let (file, other) =
            (Path::new("/a/.pixir/config.json"), Path::new("/b/.pixir/config.json"));
        assert_eq!(trust.of(file, "one").unwrap(), None);
        trust.say(file, "one", true).unwrap();
        assert_eq!(trust.of(file, "one").unwrap(), Some(true));
        assert_eq!(trust.of(file, "two").unwrap(), None, "changed content asks again");
        assert_eq!(trust.of(other, "one").unwrap(), None, "a copy is another file");
        trust.say(file, "two", false).unwrap();
        assert_eq!(trust.of(file, "two").unwrap(), Some(false));
        assert_eq!(trust.of(file, "one").unwrap(), None, "going back asks again, too");
        assert!(!trust.forget(file).unwrap());
        trust.say(file, "two", true).unwrap();
        assert!(trust.forget(file).unwrap() && !trust.forget(file).unwrap());
    }
}
