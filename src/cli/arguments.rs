//! Reading the command line: which word is a command, and which words are a prompt.
//!
//! Flags may stand anywhere, also before a command, and a prompt may contain the name of one. So
//! the first bare word decides: a command of this build, or else the prompt. clap is then told
//! which of the two it is, by a hidden command that takes a prompt.

use std::ffi::{OsStr, OsString};

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, FromArgMatches};

use super::{Cli, Command, bad_argument, guard};
use crate::error::Report;

/// The hidden command that takes a prompt.
pub const RUN: &str = "__run";

/// What the command line says.
#[derive(Debug)]
pub enum Parsed {
    Command(Box<Cli>),
    /// Help or version was asked for.
    Say(String),
    /// It makes no sense; `text` is for people.
    Refused {
        report: Report,
        text: String,
        json: bool,
    },
}

/// Reads the command line, the program's name first.
pub fn parse(args: Vec<OsString>) -> Parsed {
    let json = flags_of(&args).any(|arg| arg == "--json");
    let grammar = Cli::command();
    let args = with_command(args, &grammar);
    let cli = match grammar.try_get_matches_from(args) {
        Ok(matches) => Cli::from_arg_matches(&matches),
        Err(error) => Err(error),
    };
    let cli = match cli {
        Ok(cli) => cli,
        Err(error) => return refused(&error, json),
    };
    if let Command::Run(run) = &cli.command
        && let Err(report) = guard::check(&run.words, &run.literal)
    {
        let text = crate::render::error_text(&report);
        return Parsed::Refused { report, text, json };
    }
    Parsed::Command(Box::new(cli))
}

/// Arguments that may be flags: those before `--`.
fn flags_of(args: &[OsString]) -> impl Iterator<Item = &OsString> {
    args.iter().skip(1).take_while(|arg| *arg != "--")
}

/// Puts the hidden command before a prompt.
fn with_command(mut args: Vec<OsString>, grammar: &clap::Command) -> Vec<OsString> {
    if args.is_empty() {
        args.push("pixir".into());
    }
    let place = first_word(&args, grammar);
    if place.is_some_and(|place| is_command(&args, place, grammar)) {
        return args;
    }
    let asks = |arg: &&OsString| matches!(arg.to_str(), Some("-h" | "--help" | "-V" | "--version"));
    let question = flags_of(&args).find(asks).cloned();
    if let Some(question) = question {
        args.truncate(1);
        args.push(question);
        return args;
    }
    let end = flags_of(&args).count() + 1;
    args.insert(place.unwrap_or(end), RUN.into());
    args
}

/// Where the first bare word stands, if there is one before `--`.
fn first_word(args: &[OsString], grammar: &clap::Command) -> Option<usize> {
    let takes_value = |flag: &OsStr| {
        let name = flag.to_str().and_then(|flag| flag.strip_prefix("--"));
        grammar.get_arguments().any(|argument| {
            argument.get_long().is_some_and(|long| Some(long) == name)
                && argument.get_action().takes_values()
        })
    };
    let mut place = 1;
    loop {
        let arg = args.get(place)?;
        if arg == "--" {
            return None;
        }
        let is_flag = arg.as_encoded_bytes().starts_with(b"-") && arg != "-";
        if !is_flag {
            return Some(place);
        }
        place += if takes_value(arg) { 2 } else { 1 };
    }
}

fn is_command(args: &[OsString], place: usize, grammar: &clap::Command) -> bool {
    let name = |place: usize| args.get(place).and_then(|word| word.to_str());
    let exists = |name: &str| name != RUN && grammar.find_subcommand(name).is_some();
    match name(place) {
        // `help me` is a prompt; `help` and `help sessions` are questions about Pixir.
        Some("help") => name(place + 1).is_none_or(|next| next.starts_with('-') || exists(next)),
        Some(word) => exists(word),
        None => false,
    }
}

fn refused(error: &clap::Error, json: bool) -> Parsed {
    let text = error.render().to_string();
    let asked = matches!(
        error.kind(),
        ErrorKind::DisplayHelp
            | ErrorKind::DisplayVersion
            | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
    );
    if asked {
        return Parsed::Say(text);
    }
    let first = text.lines().next().unwrap_or_default();
    let message = first.strip_prefix("error: ").unwrap_or(first).to_owned();
    let mut actions = Vec::new();
    if matches!(error.kind(), ErrorKind::UnknownArgument | ErrorKind::InvalidSubcommand) {
        let word = match error.get(ContextKind::InvalidArg) {
            Some(ContextValue::String(word)) => word.as_str(),
            _ => "…",
        };
        actions.push(format!("put `--` before a prompt that looks like this: pixir -- {word}"));
    }
    actions.push("see `pixir --help`".to_owned());
    let report = bad_argument(message).with_next_actions(actions);
    Parsed::Refused { text: crate::render::error_text(&report), report, json }
}
