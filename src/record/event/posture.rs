//! Posture: mode, role, model and limits of a Session, as facts of the Log.

#![expect(missing_docs, reason = "field names are the wire contract; docs/events.md shows them")]

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::open_enum::open_enum;
use super::{Extra, PermissionAnswer};
use crate::base::id::CallId;

open_enum! {
    /// Permission modes: what the harness may do without asking.
    PermissionMode {
        /// Everything is allowed that the rules of every permission mode do not forbid.
        Auto = "auto",
        /// The user is asked before changes.
        Ask = "ask",
        /// Nothing is changed.
        ReadOnly = "read_only",
    }
}

// Role, mode, model and limits of a Session when its Log begins. Not a doc comment: the schemas of both facts would
// have it as their description.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct InitialPosture {
    pub pixir_version: String,
    pub log_version: u32,
    pub workspace: String,
    pub role: String,
    pub permission_mode: PermissionMode,
    pub sandbox_mode: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effort: Option<String>,
    /// Globs of paths that tools may write; empty means everything in the Workspace.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allow_write: Vec<String>,
    /// Globs of paths that tools may not write.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub deny_write: Vec<String>,
}

/// The identity of the Session and what it may do.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SessionStarted {
    #[serde(flatten)]
    pub posture: InitialPosture,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_session_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subagent_id: Option<String>,
    #[serde(flatten)]
    pub extra: Extra,
}

/// The mode of a Session for which none was chosen.
impl Default for PermissionMode {
    fn default() -> Self {
        Self::Auto
    }
}

/// The origin of a fork; carries the same posture as `session_started`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct SessionFork {
    pub parent_session_id: String,
    pub fork_root_session_id: String,
    pub forked_to_seq: u64,
    #[serde(flatten)]
    pub posture: InitialPosture,
    #[serde(flatten)]
    pub extra: Extra,
}

/// A change of posture; absent fields stay as they were.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct PostureChanged {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permission_mode: Option<PermissionMode>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effort: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// The sandbox profile of commands from now on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox_mode: Option<String>,
    /// One more set of globs that written paths must match; earlier sets stay.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allow_write: Vec<String>,
    /// More globs of paths that tools may not write.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub deny_write: Vec<String>,
    #[serde(flatten)]
    pub extra: Extra,
}

/// Why a call was allowed or denied.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PermissionDecision {
    pub call_id: CallId,
    pub decision: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<PermissionMode>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answered_by: Option<String>,
    /// The user's answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<PermissionAnswer>,
    /// The message to the model that came with the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub words: Option<String>,
    /// The digest that an answer is bound to: of tool, arguments, resolved paths and directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// A notice for the user, such as that an answer could not be stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notice: Option<String>,
    #[serde(flatten)]
    pub extra: Extra,
}
