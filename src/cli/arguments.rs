//! Reading the command line: which word is a command, and which words are a prompt.
//!
//! Flags may stand anywhere, also before a command, and a prompt may contain the name of one. So
//! the first bare word decides: a command of this build, or else the prompt. clap is then told
//! which of the two it is, by a hidden command that takes a prompt.

use std::ffi::{OsStr, OsString};

use clap::error::ErrorKind;
use clap::{Args, CommandFactory, FromArgMatches};

use super::run::RunArgs;
use super::{Cli, Command, Flags, guard, usage_error};
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
pub fn parse(args: &[OsString]) -> Parsed {
    let json = flags_of(args).any(|arg| arg == "--json");
    let cli = match bare_words(args).or_else(|| plain_prompt(args)) {
        Some(cli) => cli,
        None => match by_the_whole_grammar(args.to_vec()) {
            Ok(cli) => cli,
            Err(error) => return refused(&error, args, json),
        },
    };
    if let Command::Run(run) = &cli.command
        && let Err(report) = guard::check(&run.words, &run.literal)
    {
        let text = crate::render::error_text(&report);
        return Parsed::Refused { report, text, json };
    }
    Parsed::Command(Box::new(cli))
}

fn by_the_whole_grammar(args: Vec<OsString>) -> Result<Cli, clap::Error> {
    let grammar = Cli::command();
    let args = with_command(attachments_first(args, &grammar), &grammar);
    Cli::from_arg_matches(&grammar.try_get_matches_from(args)?)
}

/// A prompt without any flag needs no grammar at all.
fn bare_words(args: &[OsString]) -> Option<Cli> {
    let words: Vec<String> = args
        .get(1..)?
        .iter()
        .map(|word| word.to_str().map(str::to_owned))
        .collect::<Option<_>>()?;
    if guard::is_reserved(words.first()?) || words.iter().any(|word| word.starts_with('-')) {
        return None;
    }
    let command = Command::Run(RunArgs { words, literal: Vec::new() });
    Some(Cli { flags: Flags::default(), command })
}

/// A prompt and its flags, which is what most other command lines are, read without building the
/// commands: every flag of every command would cost half a millisecond before the first request.
/// Whatever is not plain, or plainly wrong, is left to the whole grammar and its words.
fn plain_prompt(args: &[OsString]) -> Option<Cli> {
    let grammar = clap::Command::new("pixir").disable_help_flag(true);
    let grammar = RunArgs::augment_args(Flags::augment_args(grammar));
    let may_be_command = |place: usize| args[place].to_str().is_none_or(guard::is_reserved);
    if args.is_empty() || first_word(args, &grammar).is_some_and(may_be_command) {
        return None;
    }
    let matches = grammar.try_get_matches_from(args).ok()?;
    let flags = Flags::from_arg_matches(&matches).ok()?;
    let command = Command::Run(RunArgs::from_arg_matches(&matches).ok()?);
    Some(Cli { flags, command })
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

/// Puts what may be given many times before everything else: clap keeps such values only of the
/// level where the last one stands.
fn attachments_first(args: Vec<OsString>, grammar: &clap::Command) -> Vec<OsString> {
    let is_attached = |arg: &OsString| {
        let text = arg.as_encoded_bytes();
        text == b"--attach" || text.starts_with(b"--attach=")
    };
    if !flags_of(&args).any(is_attached) {
        return args;
    }
    let mut left = args.into_iter();
    let mut first: Vec<OsString> = left.next().into_iter().collect();
    let mut rest = Vec::new();
    while let Some(arg) = left.next() {
        let is_over = arg == "--";
        let value = if takes_value(&arg, grammar) { left.next() } else { None };
        let is_whole = value.is_some() || arg != "--attach";
        let list = if is_attached(&arg) && is_whole { &mut first } else { &mut rest };
        list.push(arg);
        list.extend(value);
        if is_over {
            rest.extend(left);
            break;
        }
    }
    first.append(&mut rest);
    first
}

/// Whether a flag is followed by its value.
pub fn takes_value(flag: &OsStr, grammar: &clap::Command) -> bool {
    let name = flag.to_str().and_then(|flag| flag.strip_prefix("--"));
    grammar.get_arguments().any(|argument| {
        argument.get_long().is_some_and(|long| Some(long) == name)
            && argument.get_action().takes_values()
    })
}

/// Where the first bare word stands, if there is one before `--`.
fn first_word(args: &[OsString], grammar: &clap::Command) -> Option<usize> {
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
        place += if takes_value(arg, grammar) { 2 } else { 1 };
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

/// Help that was asked for, or why the command line makes no sense.
fn refused(error: &clap::Error, args: &[OsString], json: bool) -> Parsed {
    let asked = matches!(
        error.kind(),
        ErrorKind::DisplayHelp
            | ErrorKind::DisplayVersion
            | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
    );
    if asked {
        return Parsed::Say(error.render().to_string());
    }
    let grammar = Cli::command();
    let place = first_word(args, &grammar).filter(|place| is_command(args, *place, &grammar));
    let words = place.map(|place| &args[place..]).unwrap_or_default();
    let report = usage_error::explain(error, words, &grammar);
    Parsed::Refused { text: crate::render::error_text(&report), report, json }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What stands on command lines: flags of every shape, words, commands, dividers.
    const PIECES: [&str; 27] = [
        "fix",
        "the",
        "sessions",
        "resume",
        "help",
        "--",
        "-",
        "--json",
        "--events",
        "--model",
        "m",
        "--model=m",
        "--quiet",
        "-q",
        "-qq",
        "--help",
        "-h",
        "-V",
        "--version",
        "--unknown",
        "-x",
        "--color",
        "always",
        "__run",
        "--attach",
        "--attach=f",
        "",
    ];

    proptest! {
        #[test]
        fn the_short_way_reads_a_prompt_as_the_whole_grammar_does(
            pieces in proptest::collection::vec(proptest::sample::select(&PIECES[..]), 0..7)
        ) {
            let args: Vec<OsString> =
                std::iter::once("pixir").chain(pieces).map(OsString::from).collect();
            for quick in [bare_words(&args), plain_prompt(&args)].into_iter().flatten() {
                let whole = by_the_whole_grammar(args.clone());
                prop_assert_eq!(format!("{quick:?}"), format!("{:?}", whole.unwrap()));
            }
        }
    }

    #[test]
    fn attachments_are_gathered_from_everywhere_in_their_order() {
        for line in [
            "--attach a fix --attach=b --attach c it",
            "--attach a resume --attach=b --last --attach c it",
            "resume --attach a --model m --attach=b --last it --attach c -- --attach d",
            "--model m --attach a --attach=b sessions --attach c",
        ] {
            let args = line.split(' ').map(OsString::from);
            let parsed = parse(&std::iter::once("pixir".into()).chain(args).collect::<Vec<_>>());
            let Parsed::Command(cli) = parsed else { panic!("{line}: {parsed:?}") };
            let attached: Vec<&str> =
                cli.flags.attach.iter().filter_map(|path| path.to_str()).collect();
            assert_eq!(attached, ["a", "b", "c"], "{line}");
        }
        for line in ["fix --attach", "--attach --json fix"] {
            let args = line.split(' ').map(OsString::from);
            let parsed = parse(&std::iter::once("pixir".into()).chain(args).collect::<Vec<_>>());
            assert!(matches!(parsed, Parsed::Refused { .. }), "{line}");
        }
    }

    #[test]
    fn an_ordinary_prompt_goes_the_short_way() {
        for line in ["fix it", "--model m explain this --quiet", "-- resume x", "", "- --json"] {
            let args = line.split(' ').filter(|word| !word.is_empty()).map(OsString::from);
            let args: Vec<OsString> = std::iter::once("pixir".into()).chain(args).collect();
            assert!(plain_prompt(&args).is_some(), "{line}");
        }
        let bare = ["pixir", "fix it", "now"].map(OsString::from);
        assert!(bare_words(&bare).is_some());
    }
}
