//! What a Workspace's file asks for beyond what any Workspace may have, and needs trust for.

use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::keys::Key;
use super::tree::{Leaf, leaves};
use super::{Config, read};
use crate::paths;

/// A file of a Workspace that wants trust.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    pub file: PathBuf,
    /// Of the whole content, as it is now.
    pub digest: String,
    /// Each setting that needs trust, with its value as JSON.
    pub settings: Vec<(String, String)>,
}

/// What the Workspace's config wants trust for beside what the user has set, if anything. A file that cannot be read wants
/// nothing, and gets nothing.
pub fn wanted(workspace: &Path, config: &Config) -> Option<Wanted> {
    let text = read::workspace_file(workspace).ok().flatten()?;
    let found = leaves(&text).ok()?;
    let settings: Vec<(String, String)> = found
        .iter()
        .filter(|leaf| wants_trust(leaf) || widens_sandbox(leaf, config))
        .map(|leaf| (leaf.path.clone(), leaf.value.to_string()))
        .collect();
    let file = paths::workspace_config(workspace);
    (!settings.is_empty()).then(|| Wanted { file, digest: digest(&text), settings })
}

/// Whether a setting could widen what strangers may do; unknown ones are merely unknown.
pub fn wants_trust(leaf: &Leaf) -> bool {
    Key::find(&leaf.path).is_some_and(|key| !key.in_workspace)
}

/// Whether a setting that may narrow the sandbox would widen what the user has.
fn widens_sandbox(leaf: &Leaf, config: &Config) -> bool {
    let mut attempt = config.clone();
    let is_set =
        Key::find(&leaf.path).is_some_and(|key| (key.set)(&mut attempt, &leaf.value).is_ok());
    is_set && attempt.sandbox.is_wider_than(&config.sandbox)
}

/// The SHA-256 of a file's text.
pub fn digest(text: &str) -> String {
    use std::fmt::Write;
    Sha256::digest(text).iter().fold(String::with_capacity(64), |mut hex, byte| {
        // Writing to a String cannot fail.
        write!(hex, "{byte:02x}").ok();
        hex
    })
}
