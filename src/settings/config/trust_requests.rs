//! Trust requests: settings in files of a Workspace that apply only if the user trusts the file.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::keys::SettingKey;
use super::tree::{SettingLeaf, read_leaves};
use super::{Config, read};
use crate::base::id::sha256;
use crate::base::paths;

/// A file of a Workspace with settings that need trust.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrustRequest {
    pub file: PathBuf,
    /// The SHA-256 of the whole content.
    pub digest: String,
    /// Each setting that needs trust, with its value as JSON.
    pub settings: Vec<(String, String)>,
}

/// The trust requests of a Workspace's files, given the user's own settings. A file that cannot be read requests
/// nothing.
pub fn trust_requests(workspace: &Path, config: &Config) -> Vec<TrustRequest> {
    settings_request(workspace, config).into_iter().chain(servers_request(workspace)).collect()
}

/// The trust request of `.mcp.json`: programs that would be started, and addresses that would be called.
fn servers_request(workspace: &Path) -> Option<TrustRequest> {
    let text = read::read_mcp_json(workspace).ok().flatten()?;
    let value: Value = serde_json::from_str(&text).ok()?;
    let table = value.get("mcpServers")?.as_object()?.iter();
    let settings = table.map(|(name, entry)| (format!("mcpServers.{name}"), entry.to_string()));
    TrustRequest::new(paths::workspace_mcp_file(workspace), &text, settings.collect())
}

fn settings_request(workspace: &Path, config: &Config) -> Option<TrustRequest> {
    let text = read::read_workspace_file(workspace).ok().flatten()?;
    let leaves = read_leaves(&text).ok()?.into_iter();
    let settings = leaves
        .filter(|leaf| needs_trust(leaf) || widens_sandbox(leaf, config))
        .map(|leaf| (leaf.path, leaf.value.to_string()));
    TrustRequest::new(paths::workspace_config_file(workspace), &text, settings.collect())
}

impl TrustRequest {
    fn new(file: PathBuf, text: &str, settings: Vec<(String, String)>) -> Option<Self> {
        (!settings.is_empty()).then(|| Self { file, digest: sha256(text.as_bytes()), settings })
    }
}

/// Whether the user trusts a file with exactly this content.
pub fn is_trusted(trusted: &[TrustRequest], file: &Path, text: &str) -> bool {
    trusted.iter().any(|own| own.file == file && own.digest == sha256(text.as_bytes()))
}

/// Whether a known setting may not be set by an untrusted Workspace.
pub fn needs_trust(leaf: &SettingLeaf) -> bool {
    SettingKey::find(&leaf.path).is_some_and(|key| !key.in_workspace)
}

/// Whether a setting would make the sandbox wider than the user's settings.
fn widens_sandbox(leaf: &SettingLeaf, config: &Config) -> bool {
    let mut attempt = config.clone();
    let is_set =
        SettingKey::find(&leaf.path).is_some_and(|key| key.set(&mut attempt, &leaf.value).is_ok());
    is_set && attempt.sandbox.is_wider_than(&config.sandbox)
}
