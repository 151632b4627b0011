//! Slash commands: one table for the chat and for editors, and the parser of what is typed behind a slash.

mod modes;

pub use modes::{MODES, ModeOption, find_mode, mode_name};

/// What a slash command does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommandId {
    Help,
    Plan,
    Compact,
    Model,
    Effort,
    Mode,
    Undo,
    Redo,
    Fork,
    New,
    Resume,
    Sessions,
    Status,
    Usage,
    Quit,
}

/// A slash command that users can type.
#[derive(Debug)]
pub struct SlashCommand {
    pub id: CommandId,
    pub name: &'static str,
    pub description: &'static str,
    /// What may follow the name; empty when nothing may.
    pub hint: &'static str,
    /// Whether editors offer it too. They have other means for the rest.
    pub is_for_editors: bool,
    /// Whether it may run during a Turn.
    pub runs_during_turn: bool,
}

/// All commands, in the order in which they are listed.
pub const COMMANDS: &[SlashCommand] = &[
    command(CommandId::Help, "help", "Show all commands and keys", "").chat_only().at_any_time(),
    command(CommandId::Plan, "plan", "Plan without changing anything", "what to plan"),
    command(
        CommandId::Compact,
        "compact",
        "Summarise older Turns to free space in the model's context window",
        "how many Turns to keep",
    ),
    command(CommandId::Model, "model", "Show or change the model", "name of a model"),
    command(CommandId::Effort, "effort", "Show or change the reasoning effort", "level")
        .chat_only(),
    command(CommandId::Mode, "mode", "Show or change what may be done without asking", "mode")
        .chat_only()
        .at_any_time(),
    command(
        CommandId::Undo,
        "undo",
        "Take back the last Turn, conversation and files",
        "number of Turns, --force",
    ),
    command(CommandId::Redo, "redo", "Bring back what /undo took back", "--force"),
    command(CommandId::Fork, "fork", "Fork this Session into a new one", ""),
    command(CommandId::New, "new", "Begin a new Session", "").chat_only(),
    command(CommandId::Resume, "resume", "Go on with another Session", "id or part of it")
        .chat_only(),
    command(CommandId::Sessions, "sessions", "List the Sessions of this project", "")
        .chat_only()
        .at_any_time(),
    command(CommandId::Status, "status", "Show Session, model, mode and folder", "")
        .chat_only()
        .at_any_time(),
    command(CommandId::Usage, "usage", "Show tokens and cost of this Session", "")
        .chat_only()
        .at_any_time(),
    command(CommandId::Quit, "quit", "Leave", "").chat_only().at_any_time(),
];

const fn command(
    id: CommandId,
    name: &'static str,
    description: &'static str,
    hint: &'static str,
) -> SlashCommand {
    SlashCommand { id, name, description, hint, is_for_editors: true, runs_during_turn: false }
}

impl SlashCommand {
    const fn chat_only(mut self) -> Self {
        self.is_for_editors = false;
        self
    }

    const fn at_any_time(mut self) -> Self {
        self.runs_during_turn = true;
        self
    }
}

/// The commands that editors offer.
pub fn editor_commands() -> impl Iterator<Item = &'static SlashCommand> {
    COMMANDS.iter().filter(|command| command.is_for_editors)
}

/// The command at the start of a text, and what follows it.
pub fn parse_slash_command(text: &str) -> Option<(&'static SlashCommand, &str)> {
    let (name, rest) = split_slash_name(text)?;
    let name = if name == "exit" { "quit" } else { name };
    COMMANDS.iter().find(|command| command.name == name).map(|command| (command, rest))
}

/// The name behind a slash at the start of a text, and what follows it. A path is no name.
pub fn split_slash_name(text: &str) -> Option<(&str, &str)> {
    let words = text.trim_start().strip_prefix('/')?;
    let (name, rest) = words.split_once(char::is_whitespace).unwrap_or((words, ""));
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ':');
    (!name.is_empty() && name.chars().all(is_name)).then(|| (name, rest.trim()))
}

/// The arguments without `--force`, and whether it was given.
pub fn split_force(rest: &str) -> (&str, bool) {
    let rest = rest.trim();
    let others = rest.strip_suffix("--force").or_else(|| rest.strip_prefix("--force"));
    others.map_or((rest, false), |others| (others.trim(), true))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_and_paths_are_none() {
        let parsed = |text| parse_slash_command(text).map(|(command, rest)| (command.name, rest));
        assert_eq!(parsed("/undo 2 --force "), Some(("undo", "2 --force")));
        assert_eq!(parsed(" /exit"), Some(("quit", "")));
        assert_eq!(parsed("/unknown"), None);
        assert_eq!(split_slash_name("/reviw the diff"), Some(("reviw", "the diff")));
        for text in ["/", "/usr/bin is full", "// x", "a /review", "/ x", "/é"] {
            assert_eq!(split_slash_name(text), None, "{text}");
        }
    }

    #[test]
    fn every_command_has_a_name_of_its_own() {
        for command in COMMANDS {
            let same = COMMANDS.iter().filter(|other| other.name == command.name).count();
            assert_eq!(same, 1, "{}", command.name);
            assert!(!command.description.is_empty() && !command.description.ends_with('.'));
        }
    }
}
