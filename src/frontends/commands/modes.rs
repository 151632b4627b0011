//! The modes that users choose from: a permission mode with the role for it.

use crate::agent::conversation::Conversation;
use crate::agent::harness::SettingsChange;
use crate::record::event::PermissionMode;

/// A mode that can be chosen.
#[derive(Debug)]
pub struct ModeOption {
    pub id: &'static str,
    pub name: &'static str,
    pub description: &'static str,
    role: &'static str,
    permission: PermissionMode,
}

/// The role that users see as a mode.
const PLAN_MODE: &str = "plan";

/// All modes.
pub const MODES: &[ModeOption] = &[
    ModeOption {
        id: "ask",
        name: "Ask",
        description: "Asks before changing anything",
        role: "build",
        permission: PermissionMode::Ask,
    },
    ModeOption {
        id: "auto",
        name: "Auto",
        description: "Works without asking: commands in the sandbox, MCP servers outside it",
        role: "build",
        permission: PermissionMode::Auto,
    },
    ModeOption {
        id: "read_only",
        name: "Read only",
        description: "Reads without changing anything",
        role: "build",
        permission: PermissionMode::ReadOnly,
    },
    ModeOption {
        id: PLAN_MODE,
        name: "Plan",
        description: "Reads, and answers with a plan",
        role: PLAN_MODE,
        permission: PermissionMode::ReadOnly,
    },
];

impl ModeOption {
    /// The change that selects it.
    pub fn to_change(&self) -> SettingsChange {
        SettingsChange {
            mode: Some(self.permission.clone()),
            role: Some(self.role),
            ..SettingsChange::default()
        }
    }
}

/// The mode of an id; a person may write a hyphen.
pub fn find_mode(id: &str) -> Option<&'static ModeOption> {
    MODES.iter().find(|mode| mode.id == id || mode.id.replace('_', "-") == id)
}

/// The id of the current mode of a Session.
pub fn mode_name(conversation: &Conversation) -> &'static str {
    if conversation.role() == PLAN_MODE {
        return PLAN_MODE;
    }
    match conversation.mode() {
        PermissionMode::Ask => "ask",
        PermissionMode::Auto => "auto",
        PermissionMode::ReadOnly | PermissionMode::Other(_) => "read_only",
    }
}
