//! Slash commands: the table and its parser. A prompt that begins with one of them is handled by Pixir;
//! any other text with a slash is for the model.

use agent_client_protocol_schema::v1::{
    AvailableCommand, AvailableCommandInput, AvailableCommandsUpdate, SessionUpdate,
    UnstructuredCommandInput,
};

use crate::agent::conversation::Named;

/// A slash command that users of the client can type.
struct Command {
    name: &'static str,
    words: &'static str,
    hint: &'static str,
    order: fn(&str) -> Order,
}

/// A parsed slash command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Order {
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

const COMMANDS: &[Command] = &[
    Command {
        name: "plan",
        words: "Plan without changing anything",
        hint: "what to plan",
        order: |rest| Order::Plan { rest: rest.to_owned() },
    },
    Command {
        name: "compact",
        words: "Summarise older Turns to free space in the model's context window",
        hint: "how many Turns to keep",
        order: |rest| Order::Compact { keep: rest.to_owned() },
    },
    Command {
        name: "model",
        words: "Show or change the model",
        hint: "name of a model",
        order: |rest| Order::Model { name: rest.to_owned() },
    },
    Command {
        name: "undo",
        words: "Take back the last Turn, conversation and files",
        hint: "number of Turns, --force",
        order: |rest| Order::Undo { turns: rest.to_owned() },
    },
    Command {
        name: "redo",
        words: "Bring back what /undo took back",
        hint: "--force",
        order: |rest| Order::Redo { rest: rest.to_owned() },
    },
    Command {
        name: "fork",
        words: "Fork this Session into a new one",
        hint: "",
        order: |_| Order::Fork,
    },
];

/// Parses the slash command at the start of a text, if there is one.
pub fn order(text: &str) -> Option<Order> {
    let words = text.trim_start().strip_prefix('/')?;
    let (name, rest) = words.split_once(char::is_whitespace).unwrap_or((words, ""));
    let command = COMMANDS.iter().find(|command| command.name == name)?;
    Some((command.order)(rest.trim()))
}

/// The longest description of a command, in characters.
const LONGEST: usize = 200;

/// The update with all commands: Pixir's own, then prompts and Skills.
pub fn update(named: &[Named]) -> SessionUpdate {
    let command = |command: &Command| {
        let told = AvailableCommand::new(command.name, command.words);
        if command.hint.is_empty() {
            return told;
        }
        let hint = UnstructuredCommandInput::new(command.hint);
        told.input(AvailableCommandInput::Unstructured(hint))
    };
    let is_free = |named: &&Named| !COMMANDS.iter().any(|command| command.name == named.name);
    let other = |named: &Named| {
        let words: String = named.description.chars().take(LONGEST).collect();
        let hint = UnstructuredCommandInput::new(named.hint.clone());
        AvailableCommand::new(named.name.clone(), words)
            .input(AvailableCommandInput::Unstructured(hint))
    };
    let others = named.iter().filter(is_free).map(other);
    let commands = COMMANDS.iter().map(command).chain(others).collect();
    SessionUpdate::AvailableCommandsUpdate(AvailableCommandsUpdate::new(commands))
}
