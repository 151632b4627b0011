//! Help: the grammar with each flag where it applies, the overview of the program, and topics.

mod page_text;

use std::fmt::Write;

use clap::{Arg, Args, CommandFactory};

use super::flags::{self, CliFlags};
use super::usage_error::prompt_command;
use super::{Cli, bad_argument};
use crate::base::error::Report;
use crate::frontends::render::terminal_width;
use page_text::{page_section, page_text};

/// The widest help text, in cells.
const WIDEST: usize = 100;

/// Groups of commands in the overview. A row has the names of its commands, and a text unless it is that of the first.
type OverviewGroup = (&'static str, &'static [(&'static str, &'static str)]);
const GROUPS: [OverviewGroup; 4] = [
    (
        "Run",
        &[
            ("resume", ""),
            ("chat", ""),
            ("workflow", ""),
            ("delegate", ""),
            ("acp", ""),
            ("demo", ""),
        ],
    ),
    (
        "Sessions",
        &[
            ("sessions, tree", "List or delete Sessions, or draw them with their forks"),
            ("undo, redo", "Undo the last Turn of a Session, or bring it back"),
            ("fork", ""),
            ("compact", ""),
            ("changes, merge", "Show what a child Session changed, or merge it"),
            ("gc", ""),
        ],
    ),
    (
        "Evidence",
        &[
            ("usage", ""),
            ("export", ""),
            ("verify, repair", "Check a Log, or write a cleaned copy of a damaged one"),
            ("diagnose", ""),
            ("inspect-replay", ""),
        ],
    ),
    (
        "Setup",
        &[
            ("login, logout", "Sign in with a ChatGPT subscription, or sign out"),
            ("doctor", ""),
            ("config", ""),
            ("models", ""),
            ("permissions", ""),
            ("trust, untrust", "Trust files of this Workspace, or stop trusting them"),
            ("mcp", ""),
            ("skills, agents", "Show and check Skills, or roles"),
            ("completions", ""),
        ],
    ),
];

/// The flags of the overview.
const OVERVIEW_FLAGS: [&str; 4] = ["model", "read_only", "cwd", "json"];

/// A topic of `pixir help`: pages of the documentation, or sections of them.
struct HelpTopic {
    name: &'static str,
    parts: &'static [(&'static str, Option<&'static str>)],
}

const RUNNING: &str = include_str!("../../../../docs/running.md");
const SECURITY: &str = include_str!("../../../../docs/security.md");

/// The topic that is generated from the flags.
const OPTIONS: &str = "options";

const TOPICS: [HelpTopic; 6] = [
    HelpTopic { name: OPTIONS, parts: &[] },
    HelpTopic { name: "prompts", parts: &[(RUNNING, None)] },
    HelpTopic {
        name: "sandbox",
        parts: &[
            (RUNNING, Some("Preview and permissions")),
            (SECURITY, Some("Boundaries")),
            (SECURITY, Some("What each sandbox level enforces")),
        ],
    },
    HelpTopic { name: "output", parts: &[(include_str!("../../../../docs/scripting.md"), None)] },
    HelpTopic {
        name: "environment",
        parts: &[(include_str!("../../../../docs/settings.md"), None)],
    },
    HelpTopic { name: "limits", parts: &[(include_str!("../../../../docs/limits.md"), None)] },
];

/// The grammar for help, completions and documentation: each command has the flags that apply to it. The parser has
/// them all at every command, so that a flag without effect is refused with its own error.
pub fn command_grammar() -> clap::Command {
    let grammar = Cli::command().mut_args(|flag| flag.global(false));
    let flags = shared_flags();
    let overview = overview(&grammar, &flags);
    grammar.override_help(overview).mut_subcommands(|command| add_flags(command, &[], &flags))
}

fn shared_flags() -> Vec<Arg> {
    let flags = CliFlags::augment_args(clap::Command::new("pixir"));
    flags.get_arguments().map(|flag| flag.clone().global(false)).collect()
}

/// Adds the flags that apply to a command and to its subcommands. `-h` does not show them.
fn add_flags(command: clap::Command, parents: &[String], flags: &[Arg]) -> clap::Command {
    let names = [parents, &[command.get_name().to_owned()]].concat();
    let path = flags::command_path(names.iter().map(String::as_str));
    let applying = flags.iter().filter(|flag| flags::applies_to(flag.get_id().as_str(), &path));
    let command = command.args(applying.map(|flag| flag.clone().hide_short_help(true)));
    command.mut_subcommands(|inner| add_flags(inner, &names, flags))
}

/// The help of the program: its commands in groups, the most used flags, and the topics.
fn overview(grammar: &clap::Command, flags: &[Arg]) -> String {
    let mut text = "A local-first coding agent. Words that are no command are a prompt.\n\
        Usage: pixir [OPTIONS] [PROMPT]...\n       pixir [OPTIONS] <COMMAND>       (help: pixir <COMMAND> -h)\n\n"
        .to_owned();
    let about = |names: &str| {
        let command = names.split(',').next().and_then(|name| grammar.find_subcommand(name));
        command.and_then(clap::Command::get_about).map(ToString::to_string).unwrap_or_default()
    };
    // Writing to a String cannot fail.
    for (title, rows) in GROUPS {
        writeln!(text, "{title}:").ok();
        for (names, own) in rows {
            let own = if own.is_empty() { about(names) } else { (*own).to_owned() };
            writeln!(text, "  {names:<16}{own}").ok();
        }
    }
    text.push_str("Options:\n");
    let shown = flags.iter().filter(|flag| OVERVIEW_FLAGS.contains(&flag.get_id().as_str()));
    for flag in shown {
        let help = flag.get_help().map(ToString::to_string).unwrap_or_default();
        writeln!(text, "  {:<16}{help}", flag_usage(flag)).ok();
    }
    writeln!(text, "`pixir help <TOPIC>`: {}", topic_names()).ok();
    text
}

/// A flag with its value, such as `--model <NAME>`.
fn flag_usage(flag: &Arg) -> String {
    let name = format!("--{}", flag.get_long().unwrap_or_default());
    match flag.get_value_names() {
        Some([value, ..]) if flag.get_action().takes_values() => format!("{name} <{value}>"),
        _ => name,
    }
}

fn topic_names() -> String {
    TOPICS.map(|topic| topic.name).join(", ")
}

/// The text of a topic for this terminal; an error with all topics for an unknown one.
pub fn topic_text(name: &str) -> Result<String, Report> {
    let Some(topic) = TOPICS.iter().find(|topic| topic.name == name) else {
        let prompt = prompt_command("pixir --", &format!("help {name}"));
        let actions = vec![
            "see `pixir --help` for the commands".to_owned(),
            format!("if it is meant as a prompt: {prompt}"),
        ];
        let message = format!("there is no help on `{name}`; topics: {}", topic_names());
        return Err(bad_argument(message).with_next_actions(actions));
    };
    if topic.name == OPTIONS {
        return Ok(options_text());
    }
    let width = terminal_width().min(WIDEST);
    let parts = topic.parts.iter().map(|(page, heading)| match heading {
        Some(heading) => page_text(page_section(page, heading), width),
        None => page_text(page, width),
    });
    Ok(parts.collect::<Vec<_>>().join("\n"))
}

/// All shared flags, with the commands to which they apply.
pub fn options_text() -> String {
    let runs: Vec<&str> = flags::RUNS.iter().map(|path| flags::display_path(path)).collect();
    let about = format!(
        "Options stand before or after the command. Each is refused where it has no effect; \
         [brackets] name the commands that it applies to. A run is one of: {}.",
        runs.join(", ")
    );
    let flags = shared_flags().into_iter().map(|flag| {
        let scope = flags::describe_scope(flag.get_id().as_str());
        let help = flag.get_help().map(ToString::to_string).unwrap_or_default();
        match scope {
            Some(scope) => flag.help(format!("{help} [{scope}]")),
            None => flag,
        }
    });
    let mut page = clap::Command::new("pixir")
        .about(about)
        .disable_help_flag(true)
        .help_template("{about}\n\n{all-args}")
        .max_term_width(WIDEST)
        .args(flags);
    page.render_help().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_overview_has_every_command_and_fits_a_small_terminal() {
        let grammar = command_grammar();
        let text = overview(&grammar, &shared_flags());
        assert!(text.lines().count() <= 40, "{}", text.lines().count());
        for line in text.lines() {
            assert!(line.chars().count() <= 80, "{line}");
        }
        let rows = GROUPS.iter().flat_map(|(_, rows)| rows.iter());
        let listed: Vec<&str> = rows.flat_map(|(names, _)| names.split(", ")).collect();
        let visible = grammar.get_subcommands().filter(|command| !command.is_hide_set());
        for command in visible.filter(|command| command.get_name() != "help") {
            assert!(listed.contains(&command.get_name()), "{}", command.get_name());
        }
        assert!(listed.iter().all(|name| grammar.find_subcommand(name).is_some()), "{listed:?}");
    }

    #[test]
    fn every_topic_has_a_text_and_no_command_has_its_name() {
        let grammar = command_grammar();
        for topic in &TOPICS {
            let text = topic_text(topic.name).unwrap();
            assert!(text.len() > 500, "{}: {text}", topic.name);
            let is_plain = !text.contains("](") && !text.contains("**");
            assert!(is_plain || topic.name == OPTIONS, "{}: {text}", topic.name);
            let headings = topic.parts.iter().filter_map(|(_, heading)| *heading);
            for heading in headings {
                assert!(text.contains(&heading.to_uppercase()), "{heading}");
            }
            assert!(grammar.find_subcommand(topic.name).is_none(), "{}", topic.name);
        }
    }
}
