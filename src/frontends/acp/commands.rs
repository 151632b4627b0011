//! Slash commands: the table and its parser. A prompt that begins with one of them is handled by Pixir;
//! any other text with a slash is for the model.

use agent_client_protocol_schema::v1::{
    AvailableCommand, AvailableCommandInput, AvailableCommandsUpdate, SessionUpdate,
    UnstructuredCommandInput,
};

use crate::agent::conversation::SlashName;

/// A slash command that users of the client can type.
struct SlashCommand {
    name: &'static str,
    description: &'static str,
    hint: &'static str,
    action: fn(&str) -> CommandAction,
}

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

const COMMANDS: &[SlashCommand] = &[
    SlashCommand {
        name: "plan",
        description: "Plan without changing anything",
        hint: "what to plan",
        action: |rest| CommandAction::Plan { rest: rest.to_owned() },
    },
    SlashCommand {
        name: "compact",
        description: "Summarise older Turns to free space in the model's context window",
        hint: "how many Turns to keep",
        action: |rest| CommandAction::Compact { keep: rest.to_owned() },
    },
    SlashCommand {
        name: "model",
        description: "Show or change the model",
        hint: "name of a model",
        action: |rest| CommandAction::Model { name: rest.to_owned() },
    },
    SlashCommand {
        name: "undo",
        description: "Undo the last Turn, conversation and files",
        hint: "number of Turns, --force",
        action: |rest| CommandAction::Undo { turns: rest.to_owned() },
    },
    SlashCommand {
        name: "redo",
        description: "Redo the Turns that /undo took back",
        hint: "--force",
        action: |rest| CommandAction::Redo { rest: rest.to_owned() },
    },
    SlashCommand {
        name: "fork",
        description: "Fork this Session into a new one",
        hint: "",
        action: |_| CommandAction::Fork,
    },
];

/// Parses the slash command at the start of a text, if there is one.
pub fn parse_command(text: &str) -> Option<CommandAction> {
    let words = text.trim_start().strip_prefix('/')?;
    let (name, rest) = words.split_once(char::is_whitespace).unwrap_or((words, ""));
    let command = COMMANDS.iter().find(|command| command.name == name)?;
    Some((command.action)(rest.trim()))
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
    let is_free = |named: &&SlashName| !COMMANDS.iter().any(|command| command.name == named.name);
    let other = |named: &SlashName| {
        let words: String = named.description.chars().take(MAX_DESCRIPTION_CHARS).collect();
        let hint = UnstructuredCommandInput::new(named.hint.clone());
        AvailableCommand::new(named.name.clone(), words)
            .input(AvailableCommandInput::Unstructured(hint))
    };
    let others = named.iter().filter(is_free).map(other);
    let commands = COMMANDS.iter().map(command).chain(others).collect();
    SessionUpdate::AvailableCommandsUpdate(AvailableCommandsUpdate::new(commands))
}
