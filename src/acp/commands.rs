//! Slash commands: a table. A prompt that begins with one of them is an order to Pixir; any other
//! text with a slash is for the model.

use agent_client_protocol_schema::v1::{
    AvailableCommand, AvailableCommandInput, AvailableCommandsUpdate, SessionUpdate,
    UnstructuredCommandInput,
};

use crate::conversation::Named;

/// A command of the client's user.
struct Command {
    name: &'static str,
    words: &'static str,
    hint: &'static str,
    order: fn(&str) -> Order,
}

/// What a command asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Order {
    /// Goes into mode `plan`; the rest, if any, is the prompt.
    Plan { rest: String },
    /// Tells older Turns in short; the last so many stay, or as many as usual where nothing is said.
    Compact { keep: String },
    /// Asks another model, or says which one is asked.
    Model { name: String },
    /// Takes Turns back, the last one where nothing else is said.
    Undo { turns: String },
    /// Brings back what was taken back.
    Redo { rest: String },
    /// Makes another Session from here.
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
        words: "Tell older Turns in short, to make room in the model's window",
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
        words: "Branch off another Session from here",
        hint: "",
        order: |_| Order::Fork,
    },
];

/// The order in a text, if it begins with one.
pub fn order(text: &str) -> Option<Order> {
    let words = text.trim_start().strip_prefix('/')?;
    let (name, rest) = words.split_once(char::is_whitespace).unwrap_or((words, ""));
    let command = COMMANDS.iter().find(|command| command.name == name)?;
    Some((command.order)(rest.trim()))
}

/// The longest description in the list, in characters.
const LONGEST: usize = 200;

/// The list, as the client is told it: Pixir's own commands, then prompts and Skills.
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
