//! The chat: prompts from a person on a terminal, with an editor below what has happened so far.
//!
//! What is final is written once into the terminal's own scrollback; only the part below it is redrawn. The state is
//! changed by keys and Events alone, drawing is a function of state and size, and one file talks to the terminal.

mod cells;
mod chat_command;
mod completion;
mod drive;
mod drive_results;
mod editor;
mod editor_keys;
mod external_editor;
mod feed;
mod footer;
mod input_history;
mod input_reader;
mod kill_ring;
mod live_view;
mod popup;
mod questions;
mod recap;
mod screen;
mod session_work;
mod state;
mod state_keys;
mod terminal;
#[cfg(test)]
mod tests;

use std::path::PathBuf;

use tokio::sync::oneshot;

pub use drive::run_chat;
pub use footer::SessionFacts;

use crate::agent::conversation::{Attachment, Conversation, SlashName};
use crate::agent::harness::{Harness, SessionTarget};
use crate::agent::inspect::StateRoot;
use crate::frontends::render::{TurnOutcome, ViewStyle};
use crate::frontends::signals::StopRequest;

/// What a chat begins with.
pub struct ChatOptions {
    pub harness: Harness,
    pub workspace: PathBuf,
    pub session: SessionTarget,
    /// Attachments of the first prompt.
    pub attachments: Vec<Attachment>,
    /// Notices before the first Turn.
    pub notices: Vec<String>,
    pub style: ViewStyle,
    /// Model, mode and folder until a Session says more.
    pub facts: SessionFacts,
    /// The state of this Workspace, for lists of Sessions.
    pub state_roots: Vec<StateRoot>,
    /// What is read while the editor is shown already.
    pub project: oneshot::Receiver<ProjectFacts>,
    /// The editor of the user for long texts: a command for the shell.
    pub external_editor: Option<String>,
    /// Whether the terminal wraps lines again when its width changes.
    pub reflows: bool,
}

/// Prompts and Skills of a project, and what was typed in its Sessions, the oldest first.
#[derive(Debug, Default)]
pub struct ProjectFacts {
    pub slash_names: Vec<SlashName>,
    pub earlier_prompts: Vec<String>,
}

/// How a chat ended.
pub struct ChatOutcome {
    /// The last Session, if there was one.
    pub conversation: Option<Conversation>,
    /// The signal that ended it.
    pub stopped_by: Option<StopRequest>,
    /// The Turn after which it could not go on.
    pub last_turn: Option<TurnOutcome>,
}
