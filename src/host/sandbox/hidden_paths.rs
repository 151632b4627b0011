//! Explains to a command why it did not find a path: hidden paths that its output names. `visibility`
//! decides what is hidden.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::spec::SandboxSpec;
use super::visibility::is_unseen;

/// The maximum number of paths of an output that are checked.
const MOST_PATHS: usize = 64;
/// Characters that end a path in a message.
const PATH_ENDS: &[char] =
    &['\'', '"', '`', ':', ';', ',', '(', ')', '<', '>', '|', '\u{2018}', '\u{2019}'];

/// The paths that were hidden from one command.
#[derive(Debug, Clone, Default)]
pub struct HiddenPaths {
    /// Credentials, and paths that the user hides.
    pub hidden: Vec<PathBuf>,
    closed_homes: Vec<PathBuf>,
    visible: Vec<PathBuf>,
    credentials: Arc<[PathBuf]>,
    home: Option<PathBuf>,
}

/// A hidden path, by the reason why it is hidden.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HiddenPath {
    /// The path holds credentials, or the user hides it.
    Credential(PathBuf),
    /// The path is in a home folder.
    InHome(PathBuf),
}

impl HiddenPaths {
    /// The hidden paths of a command with this spec. `credentials` are known places, which need not exist.
    pub fn new(spec: &SandboxSpec, home: Option<&Path>, credentials: Arc<[PathBuf]>) -> Self {
        let is_there = |path: &&PathBuf| path.symlink_metadata().is_ok();
        let seen = [&spec.writable, &spec.shown, &spec.viewed, &spec.caches.places];
        Self {
            hidden: spec.hidden.iter().filter(is_there).cloned().collect(),
            closed_homes: spec.closed_homes.clone(),
            visible: seen.into_iter().flatten().cloned().collect(),
            credentials,
            home: home.map(Path::to_owned),
        }
    }

    /// The first hidden path that an output names and that exists.
    pub fn find(&self, output: &str) -> Option<HiddenPath> {
        let words =
            output.split(|letter: char| letter.is_whitespace() || PATH_ENDS.contains(&letter));
        let named = words.filter_map(|word| self.expand_home(word));
        named.take(MOST_PATHS).find_map(|path| self.hidden_path(path))
    }

    fn expand_home(&self, word: &str) -> Option<PathBuf> {
        let path = match word.strip_prefix("~/") {
            Some(rest) => self.home.as_deref()?.join(rest),
            None => PathBuf::from(word),
        };
        path.is_absolute().then_some(path)
    }

    fn hidden_path(&self, path: PathBuf) -> Option<HiddenPath> {
        let is_in = |list: &[PathBuf]| list.iter().any(|own| path.starts_with(own));
        if is_in(&self.hidden) {
            return Some(HiddenPath::Credential(path));
        }
        let is_unseen = is_unseen(&self.closed_homes, &[&self.visible], &path);
        // A closed home itself is visible, as an empty folder.
        if !is_unseen || self.closed_homes.contains(&path) || path.symlink_metadata().is_err() {
            return None;
        }
        if is_in(&self.credentials) {
            return Some(HiddenPath::Credential(path));
        }
        Some(HiddenPath::InHome(path))
    }
}
