//! Reading the command line: which word is a command, and which words are a prompt.
//!
//! Flags may stand before a command, and a prompt may contain the name of one. So the first bare word
//! decides: a command of this build, or else the beginning of a prompt. A hidden command that takes a
//! prompt is then inserted before it, so that clap has a command in either case.

use std::ffi::{OsStr, OsString};
use std::fmt::Display;
use std::num::{IntErrorKind, ParseIntError};
use std::str::FromStr;

use clap::error::ErrorKind;
use clap::{Args, CommandFactory, FromArgMatches};

use super::commands::run::RunArgs;
use super::flags::CliFlags;
use super::{Cli, Command, flags, help, typo_guard, usage_error};
use crate::base::error::Report;
use crate::frontends::render::error_text;

/// The hidden command that takes a prompt.
pub const RUN_COMMAND: &str = "__run";

/// Error text for a number that is too large.
const NUMBER_TOO_LARGE: &str = "the number is too large";

/// The parsed command line.
#[derive(Debug)]
pub enum ParsedArguments {
    Command(Box<Cli>),
    /// The text of `--help` or `--version`.
    Print(String),
    /// The arguments are invalid; `text` is the error as a person reads it.
    Invalid {
        report: Report,
        text: String,
        json: bool,
    },
}

/// Reads the command line, the program's name first.
pub fn parse_arguments(args: &[OsString]) -> ParsedArguments {
    if let Some(cli) = parse_plain_prompt(args) {
        return ParsedArguments::Command(Box::new(cli));
    }
    let json = args_before_separator(args).any(|arg| arg == "--json");
    let mut grammar = Cli::command();
    if let Some(topic) = find_help_topic(args, &grammar) {
        return match help::topic_text(topic) {
            Ok(text) => ParsedArguments::Print(text),
            Err(report) => invalid(report, json),
        };
    }
    let words = insert_run_command(move_attachments_first(args.to_vec(), &grammar), &grammar);
    let parsed = grammar.try_get_matches_from_mut(&words).and_then(|matches| {
        let cli = Cli::from_arg_matches(&matches)?;
        Ok((cli, matches))
    });
    let (cli, matches) = match parsed {
        Ok(parsed) => parsed,
        Err(error) => return report_clap_error(error, &words, args, json),
    };
    let checked = match &cli.command {
        Command::Run(run) => typo_guard::check_prompt_words(&run.words, &run.literal, &grammar),
        _ => flags::refuse_inapplicable(&matches),
    };
    match checked {
        Ok(()) => ParsedArguments::Command(Box::new(cli)),
        Err(report) => invalid(report, json),
    }
}

fn invalid(report: Report, json: bool) -> ParsedArguments {
    ParsedArguments::Invalid { text: error_text(&report), report, json }
}

/// A prompt with its flags, read without the grammar of the commands: building that takes more than two milliseconds,
/// half of the time until the first request is sent. Everything else is left to the full grammar.
fn parse_plain_prompt(args: &[OsString]) -> Option<Cli> {
    let grammar = clap::Command::new("pixir").disable_help_flag(true);
    let grammar = RunArgs::augment_args(CliFlags::augment_args(grammar));
    let first = args[find_first_word(args, &grammar)?].to_str()?;
    if !typo_guard::is_surely_a_prompt(first) {
        return None;
    }
    let matches = grammar.try_get_matches_from(args).ok()?;
    let flags = CliFlags::from_arg_matches(&matches).ok()?;
    let command = Command::Run(RunArgs::from_arg_matches(&matches).ok()?);
    Some(Cli { flags, command })
}

/// Arguments that may be flags: those before `--`.
fn args_before_separator(args: &[OsString]) -> impl Iterator<Item = &OsString> {
    args.iter().skip(1).take_while(|arg| *arg != "--")
}

/// Puts the hidden command before a prompt.
fn insert_run_command(mut args: Vec<OsString>, grammar: &clap::Command) -> Vec<OsString> {
    if args.is_empty() {
        args.push("pixir".into());
    }
    let place = find_first_word(&args, grammar);
    if place.is_some_and(|place| is_command(&args, place, grammar)) {
        return args;
    }
    let asks = |arg: &&OsString| matches!(arg.to_str(), Some("-h" | "--help" | "-V" | "--version"));
    let question = args_before_separator(&args).find(asks).cloned();
    if let Some(question) = question {
        args.truncate(1);
        args.push(question);
        return args;
    }
    let end = args_before_separator(&args).count() + 1;
    args.insert(place.unwrap_or(end), RUN_COMMAND.into());
    args
}

/// Moves `--attach` flags before everything else: clap keeps the values of a repeated flag only from the command
/// level of the last one.
fn move_attachments_first(args: Vec<OsString>, grammar: &clap::Command) -> Vec<OsString> {
    let is_attached = |arg: &OsString| {
        let text = arg.as_encoded_bytes();
        text == b"--attach" || text.starts_with(b"--attach=")
    };
    if !args_before_separator(&args).any(is_attached) {
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

/// Position of the first word that is no flag, before `--`.
fn find_first_word(args: &[OsString], grammar: &clap::Command) -> Option<usize> {
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
    let exists = |name: &str| name != RUN_COMMAND && grammar.find_subcommand(name).is_some();
    match name(place) {
        // `help me` is a prompt; `help` and `help sessions` are questions about Pixir.
        Some("help") => name(place + 1).is_none_or(|next| next.starts_with('-') || exists(next)),
        Some(word) => exists(word),
        None => false,
    }
}

/// The word after `help`, unless it is a command; more words than one are a prompt.
fn find_help_topic<'a>(args: &'a [OsString], grammar: &clap::Command) -> Option<&'a str> {
    let place = find_first_word(args, grammar).filter(|place| args[*place] == "help")?;
    let topic = args.get(place + 1)?.to_str()?;
    let is_flag = |word: &str| word.starts_with('-');
    let rest = args.get(place + 2..)?;
    let is_alone = rest.iter().all(|word| word.to_str().is_some_and(is_flag));
    let is_topic = is_alone && !is_flag(topic) && grammar.find_subcommand(topic).is_none();
    is_topic.then_some(topic)
}

/// Turns an error of clap into help text or an error report. Both are those of the grammar that has flags only where
/// they apply.
fn report_clap_error(
    error: clap::Error,
    words: &[OsString],
    args: &[OsString],
    json: bool,
) -> ParsedArguments {
    if error.kind() == ErrorKind::DisplayVersion {
        return ParsedArguments::Print(error.render().to_string());
    }
    let grammar = &help::command_grammar();
    let error = match grammar.clone().try_get_matches_from(words) {
        Err(shown) if shown.kind() == error.kind() => shown,
        _ => error,
    };
    let asked = matches!(
        error.kind(),
        ErrorKind::DisplayHelp | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
    );
    if asked {
        return ParsedArguments::Print(error.render().to_string());
    }
    let place = find_first_word(args, grammar).filter(|place| is_command(args, *place, grammar));
    let words = place.map(|place| &args[place..]).unwrap_or_default();
    invalid(usage_error::explain_clap_error(&error, words, grammar), json)
}

/// A clap value parser for a whole number of at least `lowest`. Parses as `P`, whose range may be wider than that of
/// `N`.
pub fn whole_number_parser<P, N>(lowest: P) -> impl Fn(&str) -> Result<N, String> + Clone
where
    P: FromStr<Err = ParseIntError> + PartialOrd + Display + Copy,
    N: TryFrom<P>,
{
    move |text| match text.parse::<P>() {
        Ok(number) if number < lowest => Err(format!("it must be {lowest} or more")),
        Ok(number) => number.try_into().map_err(|_| NUMBER_TOO_LARGE.to_owned()),
        Err(error) if *error.kind() == IntErrorKind::PosOverflow => {
            Err(NUMBER_TOO_LARGE.to_owned())
        }
        Err(_) => Err(format!("it must be a whole number, {lowest} or more")),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Words of generated command lines: flags of every shape, words, commands, dividers.
    const PIECES: [&str; 29] = [
        "fix",
        "fix the bug",
        "resume the work on it",
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
        fn a_plain_prompt_is_read_as_the_whole_grammar_reads_it(
            pieces in proptest::collection::vec(proptest::sample::select(&PIECES[..]), 0..7)
        ) {
            let args: Vec<OsString> =
                std::iter::once("pixir").chain(pieces).map(OsString::from).collect();
            if let Some(quick) = parse_plain_prompt(&args) {
                let mut grammar = Cli::command();
                let words = insert_run_command(move_attachments_first(args, &grammar), &grammar);
                let matches = grammar.try_get_matches_from_mut(words).unwrap();
                let whole = Cli::from_arg_matches(&matches).unwrap();
                prop_assert_eq!(format!("{quick:?}"), format!("{whole:?}"));
            }
        }
    }

    #[test]
    fn an_ordinary_prompt_goes_the_short_way() {
        for args in [
            &["fix the bug"][..],
            &["fix", "it"],
            &["--model", "m", "explain this code", "--quiet"],
        ] {
            let args = std::iter::once("pixir").chain(args.iter().copied());
            assert!(parse_plain_prompt(&args.map(OsString::from).collect::<Vec<_>>()).is_some());
        }
    }

    #[test]
    fn attachments_are_gathered_from_everywhere_in_their_order() {
        for line in [
            "--attach a fix --attach=b --attach c it",
            "--attach a resume --attach=b --last --attach c it",
            "resume --attach a --model m --attach=b --last it --attach c -- --attach d",
            "--model m --attach a --attach=b resume --attach c",
        ] {
            let args = line.split(' ').map(OsString::from);
            let parsed =
                parse_arguments(&std::iter::once("pixir".into()).chain(args).collect::<Vec<_>>());
            let ParsedArguments::Command(cli) = parsed else { panic!("{line}: {parsed:?}") };
            let attached: Vec<&str> =
                cli.flags.attach.iter().filter_map(|path| path.to_str()).collect();
            assert_eq!(attached, ["a", "b", "c"], "{line}");
        }
        for line in ["fix --attach", "--attach --json fix"] {
            let args = line.split(' ').map(OsString::from);
            let parsed =
                parse_arguments(&std::iter::once("pixir".into()).chain(args).collect::<Vec<_>>());
            assert!(matches!(parsed, ParsedArguments::Invalid { .. }), "{line}");
        }
    }
}
