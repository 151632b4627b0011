//! Arguments as tables, and the promises of the exit codes.

mod readme;

use std::ffi::OsString;

use super::arguments::{ParsedArguments, parse_arguments};
use super::exit::{self, Exit};
use super::*;
use crate::base::paths::quote_shell_word;

fn parsed(line: &str) -> ParsedArguments {
    let words = line.split(' ').filter(|word| !word.is_empty());
    parse_arguments(&std::iter::once("pixir").chain(words).map(OsString::from).collect::<Vec<_>>())
}

#[track_caller]
fn command_of(line: &str) -> Cli {
    match parsed(line) {
        ParsedArguments::Command(cli) => *cli,
        other => panic!("{line}: {other:?}"),
    }
}

#[track_caller]
fn prompt_of(line: &str) -> (Vec<String>, Vec<String>) {
    match command_of(line).command {
        Command::Run(run) => (run.words, run.literal),
        other => panic!("{line}: {other:?}"),
    }
}

#[track_caller]
fn refusal_of(line: &str) -> (Report, bool) {
    match parsed(line) {
        ParsedArguments::Invalid { report, json, .. } => (report, json),
        other => panic!("{line}: {other:?}"),
    }
}

#[test]
fn words_that_are_no_command_are_a_prompt() {
    let table: [(&str, &[&str], &[&str]); 9] = [
        ("", &[], &[]),
        ("fix the demo", &["fix", "the", "demo"], &[]),
        ("--model m explain sessions", &["explain", "sessions"], &[]),
        ("explain --model m this --quiet", &["explain", "this"], &[]),
        ("-- --help me", &[], &["--help", "me"]),
        ("fix -- resume x", &["fix"], &["resume", "x"]),
        ("-", &["-"], &[]),
        ("help me with this", &["help", "me", "with", "this"], &[]),
        ("the delegate page is broken", &["the", "delegate", "page", "is", "broken"], &[]),
    ];
    for (line, words, literal) in table {
        let (own_words, own_literal) = prompt_of(line);
        assert_eq!(own_words, words, "{line}");
        assert_eq!(own_literal, literal, "{line}");
    }
}

#[test]
fn flags_may_stand_before_and_after_the_command() {
    for line in ["--json sessions --all", "sessions --json --all", "sessions --all --json"] {
        let cli = command_of(line);
        assert!(cli.flags.json && matches!(cli.command, Command::Sessions(_)), "{line}");
    }
    let cli = command_of("--model m --cwd /x resume --last --effort low go on");
    assert_eq!(cli.flags.model.as_deref(), Some("m"));
    assert_eq!(cli.flags.effort.as_deref(), Some("low"));
    assert!(matches!(cli.command, Command::Resume(_)));
    let cli =
        command_of("do it --max-iterations 3 --dry-run --color never --log-file t.log --events");
    assert_eq!(cli.flags.max_iterations, Some(3));
    assert!(cli.flags.dry_run && cli.flags.events);
    assert_eq!(cli.flags.color, Colour::Never);
    // The value of a flag is not a command.
    assert!(matches!(command_of("--model sessions hello there").command, Command::Run(_)));
}

#[test]
fn a_flag_is_refused_where_it_has_no_effect() {
    let table = [
        ("--model m sessions", "--model has no effect on `pixir sessions`"),
        ("sessions --model m", "--model has no effect on `pixir sessions`"),
        ("login --ask", "--ask has no effect on `pixir login`"),
        ("login status --read-only", "--read-only has no effect on `pixir login status`"),
        ("workflow --timeout 1m list", "--timeout has no effect on `pixir workflow list`"),
        ("sessions --dry-run", "--dry-run has no effect on `pixir sessions`"),
        ("demo --model m", "--model has no effect on `pixir demo`"),
        ("acp -v", "--verbose has no effect on `pixir acp`"),
    ];
    for (line, message) in table {
        let (report, _) = refusal_of(line);
        assert_eq!(report.kind, "invalid_args", "{line}");
        assert!(report.message.starts_with(message), "{line}: {report:?}");
        assert_eq!(exit::exit_for_report(&report), Exit::Usage);
    }
    for line in [
        "--model m models refresh",
        "doctor --sandbox required",
        "mcp test x --timeout 3s",
        "sessions delete x --dry-run",
        "config --max-cost 1 get model",
        "--credential api-key login status",
        "-v demo --events",
        "acp --output-schema s.json --auto",
    ] {
        command_of(line);
    }
}

/// Every flag of the table is one of the program, and every path that of a command.
#[test]
fn the_table_of_flags_names_flags_and_commands_that_exist() {
    let grammar = command_grammar();
    for (flags, commands) in flags::SCOPES {
        for flag in *flags {
            assert!(grammar.get_arguments().any(|known| known.get_id() == *flag), "{flag}");
        }
        for path in commands.concat() {
            let mut names = path.split(' ').filter(|name| !name.is_empty());
            let found = names.try_fold(&grammar, |command, name| command.find_subcommand(name));
            assert!(found.is_some(), "{path}");
        }
    }
    assert!(flags::applies_to_line("provider", "resume 2026"));
    assert!(!flags::applies_to_line("provider", "workflow status wf_1"));
}

#[test]
fn what_makes_no_sense_is_refused_and_mentions_the_way_out() {
    for line in [
        "fix --frobnicate",
        "--jsno fix",
        "-x",
        "resume --last --nope",
        "login page is broken",
        "login staus",
    ] {
        let (report, json) = refusal_of(line);
        assert_eq!(report.kind, "invalid_args", "{line}");
        assert!(report.next_actions()[0].contains("`--`"), "{line}: {report:?}");
        assert!(!json);
        assert_eq!(exit::exit_for_report(&report), Exit::Usage);
    }
    assert!(refusal_of("--json fix --frobnicate").1);
    assert!(refusal_of("sesions --json").1);
    assert!(!refusal_of("--frobnicate -- --json").1);
    assert!(refusal_of("help nonsense").0.message.contains("topics: options, prompts"));
    for line in [
        "--json --events x y",
        "--max-iterations -1 x y",
        "verify x --all",
        "--quiet --verbose x y",
    ] {
        refusal_of(line);
    }
    assert!(refusal_of("delegate").0.message.contains("--spec"));
}

#[test]
fn a_wrong_argument_is_answered_with_the_help_of_its_own_command() {
    let table = [
        ("undo --turn 2", "did you mean `--turns`?", "see `pixir undo --help`"),
        ("--quiet undo --turn 2", "did you mean `--turns`?", "see `pixir undo --help`"),
        ("--model m undo --turn 2", "did you mean `--turns`?", "see `pixir undo --help`"),
        ("export --format xml", "accepted here: markdown, json", "see `pixir export --help`"),
        ("workflow runn", "did you mean `run`?", "see `pixir workflow --help`"),
        ("workflow run --agr x", "did you mean `--arg`?", "see `pixir workflow run --help`"),
        ("delegate", "--spec", "see `pixir delegate --help`"),
        ("--colour red x y", "did you mean `--color`?", "see `pixir --help`"),
    ];
    for (line, message, action) in table {
        let (report, _) = refusal_of(line);
        assert!(report.message.contains(message), "{line}: {report:?}");
        let actions = report.next_actions();
        assert_eq!(actions.last().map(String::as_str), Some(action), "{line}: {report:?}");
        let is_prompt = line.starts_with("--colour") || line == "workflow runn";
        assert_eq!(actions.iter().any(|it| it.contains("pixir -- ")), is_prompt, "{report:?}");
    }
}

#[test]
fn the_error_for_a_refused_number_names_the_lowest_one() {
    let table = [
        ("--max-requests 0 x y", "it must be 1 or more"),
        ("--max-requests=-1 x y", "it must be a whole number, 1 or more"),
        ("--max-requests 1.5 x y", "it must be a whole number, 1 or more"),
        ("--max-requests= x y", "it must be a whole number, 1 or more"),
        ("--max-tokens-total 0 x y", "it must be 1 or more"),
        ("--max-tokens-total 99999999999999999999 x y", "the number is too large"),
        ("--max-iterations=-1 x y", "it must be 0 or more"),
        ("--max-iterations many x y", "it must be a whole number, 0 or more"),
        ("--max-iterations 99999999999 x y", "the number is too large"),
        ("undo --turns 0", "it must be 1 or more"),
        ("undo --turns two", "it must be a whole number, 1 or more"),
        ("compact --keep-turns 0", "it must be 1 or more"),
        ("sessions --limit=-1", "it must be a whole number, 0 or more"),
        ("gc --older-than 1d --keep=-1", "it must be a whole number, 0 or more"),
    ];
    for (line, words) in table {
        let message = refusal_of(line).0.message;
        assert!(message.ends_with(&format!(": {words}")), "{line}: {message}");
    }
}

#[test]
fn help_and_version_are_answers() {
    for line in [
        "--help",
        "-h",
        "--version",
        "fix it --help",
        "help",
        "help sessions",
        "resume --help",
        "sessions delete --help",
        "--json --help",
        "help login status",
        "help limits",
        "workflow --json run --help",
    ] {
        let ParsedArguments::Print(text) = parsed(line) else { panic!("{line}") };
        assert!(!text.is_empty() && !text.contains(arguments::RUN_COMMAND), "{line}: {text}");
    }
}

#[test]
fn the_grammar_is_sound_and_every_command_and_flag_has_help() {
    let mut grammar = command_grammar();
    grammar.build();
    grammar.clone().debug_assert();
    <Cli as clap::CommandFactory>::command().debug_assert();
    let visible = grammar.get_subcommands().filter(|command| !command.is_hide_set());
    for command in visible.chain([&grammar]) {
        assert!(command.get_about().is_some(), "{}", command.get_name());
        for argument in command.get_arguments().filter(|argument| !argument.is_hide_set()) {
            assert!(argument.get_help().is_some(), "{} {}", command.get_name(), argument.get_id());
        }
    }
}

#[test]
fn quoting_survives_a_shell() {
    assert_eq!(quote_shell_word("/tmp/plain-1.0"), "/tmp/plain-1.0");
    assert_eq!(quote_shell_word("/tmp/a b"), "'/tmp/a b'");
    assert_eq!(quote_shell_word("it's"), r"'it'\''s'");
    assert_eq!(quote_shell_word("$(rm)"), "'$(rm)'");
    assert_eq!(quote_shell_word(""), "''");
}

#[test]
fn kinds_have_the_exit_codes_of_the_contract() {
    use crate::base::error::Kind;
    let table = [
        (Kind::Internal, 1),
        (Kind::InvalidConfig, 2),
        (Kind::NoPrompt, 2),
        (Kind::NotFound, 2),
        (Kind::PermissionDenied, 3),
        (Kind::NotAuthenticated, 4),
        (Kind::AuthRefused, 4),
        (Kind::SessionBusy, 5),
        (Kind::ProviderRefusal, 6),
        (Kind::LogWriteFailed, 7),
        (Kind::Interrupted, 130),
    ];
    for (kind, code) in table {
        assert_eq!(exit::exit_for_report(&Report::new(kind, "x")) as u8, code, "{kind}");
    }
}

#[test]
fn an_age_has_one_unit() {
    let table =
        [(-5, "now"), (61, "1 min"), (7200, "2 h"), (90_000, "1 day"), (6_000_000, "2 months")];
    for (seconds, expected) in table {
        assert_eq!(sessions::display_age(seconds), expected);
    }
}
