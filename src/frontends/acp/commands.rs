//! Slash commands of editors: those of the table that they offer. A prompt that begins with one of them is handled by
//! Pixir; any other text with a slash is for the model.

use agent_client_protocol_schema::v1::{
    AvailableCommand, AvailableCommandInput, AvailableCommandsUpdate, SessionUpdate,
    UnstructuredCommandInput,
};

use crate::agent::conversation::SlashName;
use crate::frontends::commands::{CommandId, SlashCommand, editor_commands, parse_slash_command};

/// A parsed slash command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommandAction {
    /// Switch to mode `plan`; the rest, if any, is the prompt.
    Plan { rest: String },
    /// Compact older Turns; `keep` is the number of last Turns to keep, or empty for the default.
    Compact { keep: String },
    /// Change the model, or show the current one when the name is empty.
    Model { name: String },
    /// Undo Turns: the last one, or a given number.
    Undo { turns: String },
    /// Redo what was undone.
    Redo { rest: String },
    /// Fork the Session.
    Fork,
}

/// Parses the slash command at the start of a text, if there is one for editors.
pub fn parse_command(text: &str) -> Option<CommandAction> {
    let (command, rest) = parse_slash_command(text)?;
    let rest = rest.to_owned();
    match command.id {
        CommandId::Plan => Some(CommandAction::Plan { rest }),
        CommandId::Compact => Some(CommandAction::Compact { keep: rest }),
        CommandId::Model => Some(CommandAction::Model { name: rest }),
        CommandId::Undo => Some(CommandAction::Undo { turns: rest }),
        CommandId::Redo => Some(CommandAction::Redo { rest }),
        CommandId::Fork => Some(CommandAction::Fork),
        CommandId::Help
        | CommandId::Effort
        | CommandId::Mode
        | CommandId::New
        | CommandId::Resume
        | CommandId::Sessions
        | CommandId::Status
        | CommandId::Usage
        | CommandId::Quit => None,
    }
}

/// The longest description of a command, in characters.
const MAX_DESCRIPTION_CHARS: usize = 200;

/// The update with all commands: Pixir's own, then prompts and Skills.
pub fn commands_update(named: &[SlashName]) -> SessionUpdate {
    let command = |command: &SlashCommand| {
        let available = AvailableCommand::new(command.name, command.description);
        if command.hint.is_empty() {
            return available;
        }
        let hint = UnstructuredCommandInput::new(command.hint);
        available.input(AvailableCommandInput::Unstructured(hint))
    };
    let is_free = |named: &&SlashName| !editor_commands().any(|command| command.name == named.name);
    let other = |named: &SlashName| {
        let words: String = named.description.chars().take(MAX_DESCRIPTION_CHARS).collect();
        let hint = UnstructuredCommandInput::new(named.hint.clone());
        AvailableCommand::new(named.name.clone(), words)
            .input(AvailableCommandInput::Unstructured(hint))
    };
    let others = named.iter().filter(is_free).map(other);
    let commands = editor_commands().map(command).chain(others).collect();
    SessionUpdate::AvailableCommandsUpdate(AvailableCommandsUpdate::new(commands))
}
