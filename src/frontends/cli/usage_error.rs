//! Errors for invalid command lines: what is wrong, what was probably meant, and the help of the command.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};

use super::arguments::takes_value;
use super::bad_argument;
use crate::base::error::Report;
use crate::base::paths::quote_shell_word;
use crate::frontends::render::one_line;

/// The longest prompt that is repeated in an offered command, in terminal cells.
const OFFERED_WIDTH: usize = 200;

/// The command line that sends `prompt` behind `command`, such as `pixir --`, safe to paste into a shell. A prompt
/// that is long, or that a terminal would not show as it is, is not repeated.
pub fn prompt_command(command: &str, prompt: &str) -> String {
    if one_line(prompt, OFFERED_WIDTH) == prompt {
        format!("{command} {}", quote_shell_word(prompt))
    } else {
        format!("{command} '<the prompt>'")
    }
}

/// Explains an error of clap. `words` is the command line from its command on, empty for a prompt.
pub fn explain_clap_error(
    error: &clap::Error,
    words: &[OsString],
    grammar: &clap::Command,
) -> Report {
    let path = command_path(words, grammar);
    let name = std::iter::once("pixir").chain(path.iter().map(|command| command.get_name()));
    let name = name.collect::<Vec<_>>().join(" ");
    let command = path.last().copied().unwrap_or(grammar);
    let mut message = first_sentence(error);
    if let Some(meant) = suggestion(error).or_else(|| near_flag(error, command)) {
        message = format!("{message}, did you mean `{meant}`?");
    }
    let accepted = accepted_values(error, command);
    if !accepted.is_empty() {
        let end = if message.ends_with('?') { "" } else { ";" };
        message = format!("{message}{end} accepted here: {}", accepted.join(", "));
    }
    let mut actions: Vec<String> = prompt_suggestion(error, words, &path).into_iter().collect();
    actions.push(format!("see `{name} --help`"));
    bad_argument(message).with_next_actions(actions)
}

/// The command and subcommands that stand on the command line, such as `workflow` and `run`.
fn command_path<'g>(words: &[OsString], grammar: &'g clap::Command) -> Vec<&'g clap::Command> {
    let mut path: Vec<&clap::Command> = Vec::new();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        if word == "--" {
            break;
        }
        let command = path.last().copied().unwrap_or(grammar);
        if word.as_encoded_bytes().starts_with(b"-") {
            if takes_value(word, command) || takes_value(word, grammar) {
                words.next();
            }
            continue;
        }
        match word.to_str().and_then(|word| command.find_subcommand(word)) {
            Some(command) => path.push(command),
            None => break,
        }
    }
    path
}

/// The first sentence of an error of clap, with the missing arguments that clap lists on further lines.
fn first_sentence(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let first = text.lines().next().unwrap_or_default();
    let message = first.strip_prefix("error: ").unwrap_or(first).to_owned();
    if !message.ends_with(':') {
        return message;
    }
    let named = text.lines().skip(1).take_while(|line| !line.trim().is_empty());
    named.fold(message, |message, line| format!("{message} {}", line.trim()))
}

/// The argument, subcommand or value that was probably meant.
fn suggestion(error: &clap::Error) -> Option<String> {
    let kinds =
        [ContextKind::SuggestedArg, ContextKind::SuggestedSubcommand, ContextKind::SuggestedValue];
    kinds.into_iter().flat_map(|kind| context_texts(error, kind)).next()
}

/// The flag that is one typo away, for errors in which clap suggests none.
fn near_flag(error: &clap::Error, command: &clap::Command) -> Option<String> {
    let wrong = context_texts(error, ContextKind::InvalidArg).into_iter().next()?;
    let wrong = wrong.strip_prefix("--")?;
    let mut names = command.get_arguments().filter_map(clap::Arg::get_long);
    let near = names.find(|name| strsim::damerau_levenshtein(wrong, name) == 1)?;
    Some(format!("--{near}"))
}

/// The values that an argument takes, or the subcommands of a command.
fn accepted_values(error: &clap::Error, command: &clap::Command) -> Vec<String> {
    if error.kind() == ErrorKind::InvalidSubcommand {
        let visible = command.get_subcommands().filter(|command| !command.is_hide_set());
        return visible.map(|command| command.get_name().to_owned()).collect();
    }
    context_texts(error, ContextKind::ValidValue)
}

fn context_texts(error: &clap::Error, kind: ContextKind) -> Vec<String> {
    match error.get(kind) {
        Some(ContextValue::String(text)) => vec![text.clone()],
        Some(ContextValue::Strings(texts)) => texts.clone(),
        _ => Vec::new(),
    }
}

/// How to send the words as a prompt, where they can be meant as one: unknown flags before a prompt, and words
/// that a command does not take. A wrong flag of another command is a mistake and no prompt.
fn prompt_suggestion(
    error: &clap::Error,
    words: &[OsString],
    path: &[&clap::Command],
) -> Option<String> {
    if !matches!(error.kind(), ErrorKind::UnknownArgument | ErrorKind::InvalidSubcommand) {
        return None;
    }
    let kinds = [ContextKind::InvalidArg, ContextKind::InvalidSubcommand];
    let wrong = kinds.into_iter().flat_map(|kind| context_texts(error, kind)).next()?;
    let command = match path.first().map(|command| command.get_name()) {
        None => prompt_command("pixir --", &wrong),
        Some("resume") => prompt_command("pixir resume --last --", &wrong),
        Some(_) if wrong.starts_with('-') => return None,
        Some(_) => {
            let words = words.iter().map(|word| word.to_string_lossy());
            prompt_command("pixir --", &words.collect::<Vec<_>>().join(" "))
        }
    };
    Some(format!("put `--` before a prompt that looks like this: {command}"))
}
