//! Flags that several commands share, and the one table of the commands to which each applies.

use std::path::PathBuf;

use clap::parser::ValueSource;
use clap::{ArgMatches, Args, ValueEnum};

use super::arguments::{RUN_COMMAND, whole_number_parser};
use super::bad_argument;
use crate::base::error::Report;
use crate::record::event::PermissionMode;

/// Heading of the flags that apply to every command.
const COMMON: &str = "Common options";
const MODEL: &str = "Model";
const LIMITS: &str = "Limits";
const PERMISSIONS: &str = "Permissions and sandbox";
const IN_AND_OUT: &str = "Input and output";

/// The shared flags. The parser accepts each of them before and after any command; `refuse_inapplicable` then refuses
/// those without effect.
#[derive(Debug, Clone, Default, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of the command line")]
pub struct CliFlags {
    /// Use this model
    #[arg(long, global = true, help_heading = MODEL, value_name = "NAME")]
    pub model: Option<String>,
    /// Reasoning effort, such as low, medium or high
    #[arg(long, global = true, help_heading = MODEL, value_name = "LEVEL")]
    pub effort: Option<String>,
    /// Use the ChatGPT subscription or the API key
    #[arg(long, global = true, help_heading = MODEL, value_name = "KIND", value_enum)]
    pub credential: Option<CredentialChoice>,
    /// Use this provider from `providers` in the config
    #[arg(long, global = true, help_heading = MODEL, value_name = "NAME", conflicts_with = "credential")]
    pub provider: Option<String>,
    /// Allow the Provider to search the web
    #[arg(long, global = true, help_heading = MODEL)]
    pub web_search: bool,
    /// Give the Session this role: build, plan, worker, explorer, reviewer, or one of `pixir agents`
    #[arg(long, global = true, help_heading = MODEL, value_name = "NAME")]
    pub role: Option<String>,
    /// Ask before anything is changed
    #[arg(long, global = true, help_heading = PERMISSIONS, conflicts_with_all = ["read_only", "auto"])]
    pub ask: bool,
    /// Change nothing; commands run in a sandbox without write access
    #[arg(long, global = true, help_heading = PERMISSIONS, conflicts_with = "auto")]
    pub read_only: bool,
    /// Do not ask, even in a Session that was started with --ask or --read-only
    #[arg(long, global = true, help_heading = PERMISSIONS)]
    pub auto: bool,
    /// Show what would be changed, and change nothing
    #[arg(long, global = true, help_heading = PERMISSIONS)]
    pub dry_run: bool,
    /// Allow tools to write only to paths that match this glob, such as 'src/**'; may be repeated
    #[arg(long, global = true, help_heading = PERMISSIONS, value_name = "GLOB")]
    pub allow_write: Vec<String>,
    /// Forbid tools to write to paths that match this glob; may be repeated
    #[arg(long, global = true, help_heading = PERMISSIONS, value_name = "GLOB")]
    pub deny_write: Vec<String>,
    /// Sandbox level for commands: workspace, read-only, required or off
    #[arg(long, global = true, help_heading = PERMISSIONS, value_name = "LEVEL")]
    pub sandbox: Option<String>,
    /// Stop after this many model calls; 0 for no limit
    #[arg(long, global = true, help_heading = LIMITS, value_name = "N")]
    #[arg(value_parser = whole_number_parser::<i64, u32>(0))]
    pub max_iterations: Option<u32>,
    /// Stop when the Session has used this many tokens
    #[arg(long, global = true, help_heading = LIMITS, value_name = "N")]
    #[arg(value_parser = whole_number_parser::<u64, u64>(1))]
    pub max_tokens_total: Option<u64>,
    /// Stop when the Session has cost this much; needs the model's price in the config
    #[arg(long, global = true, help_heading = LIMITS, value_name = "USD")]
    pub max_cost: Option<String>,
    /// Stop after this many requests to the Provider, retries included
    #[arg(long, global = true, help_heading = LIMITS, value_name = "N")]
    #[arg(value_parser = whole_number_parser::<u64, u64>(1))]
    pub max_requests: Option<u64>,
    /// Stop after this long, such as 90s, 10m or 1h30m
    #[arg(long, global = true, help_heading = LIMITS, value_name = "DURATION")]
    pub timeout: Option<String>,
    /// Attach this file to the prompt; may be repeated
    #[arg(long, global = true, help_heading = IN_AND_OUT, value_name = "PATH")]
    #[arg(value_hint = clap::ValueHint::FilePath)]
    pub attach: Vec<PathBuf>,
    /// Require an answer that matches the JSON Schema in this file
    #[arg(long, global = true, help_heading = IN_AND_OUT, value_name = "FILE")]
    pub output_schema: Option<PathBuf>,
    /// Print every Event as a line of JSON on stdout
    #[arg(long, global = true, help_heading = IN_AND_OUT, conflicts_with = "json")]
    pub events: bool,
    /// Show all output of commands and the model's reasoning on stderr
    #[arg(long, short, global = true, help_heading = IN_AND_OUT, conflicts_with = "quiet")]
    pub verbose: bool,
    /// Work in this directory
    #[arg(long, global = true, help_heading = COMMON, value_name = "DIR")]
    pub cwd: Option<PathBuf>,
    /// Print one JSON envelope on stdout at the end
    #[arg(long, global = true, help_heading = COMMON)]
    pub json: bool,
    /// Show only errors on stderr
    #[arg(long, short, global = true, help_heading = COMMON)]
    pub quiet: bool,
    /// When to colour stderr
    #[arg(long, global = true, help_heading = COMMON, value_name = "WHEN")]
    #[arg(value_enum, default_value_t = Colour::Auto)]
    pub color: Colour,
    /// Write a debug trace to this file; `PIXIR_LOG=debug` writes it to stderr
    #[arg(long, global = true, help_heading = COMMON, value_name = "PATH")]
    pub log_file: Option<PathBuf>,
}

impl CliFlags {
    /// The permission mode of the flags, if any.
    pub fn permission_mode(&self) -> Option<PermissionMode> {
        let named = [
            (self.ask, PermissionMode::Ask),
            (self.read_only, PermissionMode::ReadOnly),
            (self.auto, PermissionMode::Auto),
        ];
        named.into_iter().find(|(is_named, _)| *is_named).map(|(_, mode)| mode)
    }
}

/// When stderr is coloured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Colour {
    /// On a terminal, unless `NO_COLOR` is set
    #[default]
    Auto,
    Always,
    Never,
}

/// The credential to use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum CredentialChoice {
    /// The subscription of `pixir login`
    #[value(name = "chatgpt")]
    ChatGpt,
    /// `OPENAI_API_KEY`
    #[value(name = "api-key")]
    ApiKey,
}

/// The path of a prompt, which names no command.
const PROMPT: &str = "";
/// The commands that run Turns with the user's settings.
pub const RUNS: &[&str] =
    &[PROMPT, "resume", "chat", "workflow run", "workflow resume", "delegate", "acp"];
/// The commands that show the settings that a run would have.
const CONFIG: &[&str] = &["config", "config list", "config get"];
/// The commands that build or check the request of a Turn.
const CHECKS: &[&str] = &["doctor", "inspect-replay"];
const MODELS: &[&str] = &["models", "models refresh"];

type FlagScope = (&'static [&'static str], &'static [&'static [&'static str]]);

/// The table of flags that apply to some commands only: ids of flags, and paths of commands. A flag that is not here
/// applies to every command.
pub const SCOPES: &[FlagScope] = &[
    (&["model"], &[RUNS, CONFIG, CHECKS, MODELS, &["compact"]]),
    (&["effort"], &[RUNS, CONFIG, CHECKS, &["compact"]]),
    (&["credential", "provider"], &[RUNS, CONFIG, CHECKS, MODELS, &["compact", "login status"]]),
    (&["web_search", "ask", "read_only", "auto"], &[RUNS, CONFIG, &["inspect-replay"]]),
    (&["role"], &[RUNS, CONFIG, CHECKS]),
    (&["sandbox"], &[RUNS, CONFIG, CHECKS, &["gc"]]),
    (&["allow_write", "deny_write"], &[RUNS, &["inspect-replay"]]),
    (
        &["dry_run"],
        &[RUNS, &["demo", "sessions delete", "undo", "redo", "fork", "compact", "merge"]],
    ),
    (&["max_iterations"], &[RUNS, CONFIG]),
    (&["max_tokens_total", "max_requests"], &[RUNS, CONFIG, &["compact"]]),
    (&["max_cost"], &[RUNS, CONFIG, &["compact", "doctor"]]),
    (&["timeout"], &[RUNS, CONFIG, &["compact", "mcp test"]]),
    (&["attach"], &[&[PROMPT, "resume", "chat"]]),
    (&["output_schema"], &[&[PROMPT, "resume", "chat", "acp"]]),
    (&["events"], &[&[PROMPT, "resume", "demo", "workflow run", "workflow resume"]]),
    (
        &["verbose"],
        &[&[PROMPT, "resume", "chat", "demo", "workflow run", "workflow resume", "delegate"]],
    ),
];

fn find_scope(flag: &str) -> Option<&'static [&'static [&'static str]]> {
    SCOPES.iter().find(|(flags, _)| flags.contains(&flag)).map(|(_, commands)| *commands)
}

/// Whether a flag, by its id, applies to the command with this path, such as `workflow run`.
pub fn applies_to(flag: &str, path: &str) -> bool {
    find_scope(flag).is_none_or(|commands| commands.concat().contains(&path))
}

/// Whether a flag applies to the command with which a command line begins, such as `resume ID`.
pub fn applies_to_line(flag: &str, line: &str) -> bool {
    let begins = |path: &&str| {
        let rest = line.strip_prefix(path).filter(|_| !path.is_empty());
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
    };
    find_scope(flag).is_none_or(|commands| commands.concat().iter().any(begins))
}

/// The commands to which a flag applies, as text; `None` for all. `a run` stands for those of `RUNS`.
pub fn describe_scope(flag: &str) -> Option<String> {
    let mut names = Vec::new();
    for group in find_scope(flag)? {
        match *group {
            group if group == RUNS => names.push("a run"),
            // The subcommands of a command go without saying.
            [command, inner @ ..]
                if *command != PROMPT && inner.iter().all(|path| path.starts_with(command)) =>
            {
                names.push(command);
            }
            group => names.extend(group),
        }
    }
    Some(names.iter().map(|path| display_path(path)).collect::<Vec<_>>().join(", "))
}

/// The path of a command as text.
pub fn display_path(path: &str) -> &str {
    if path == PROMPT { "a prompt" } else { path }
}

/// Path of a command in the tables of flags, from the names of its levels.
pub fn command_path<'n>(names: impl IntoIterator<Item = &'n str>) -> String {
    let names = names.into_iter().filter(|name| *name != RUN_COMMAND);
    names.collect::<Vec<_>>().join(" ")
}

/// Refuses the first flag of the command line that has no effect on its command.
pub fn refuse_inapplicable(matches: &ArgMatches) -> Result<(), Report> {
    let levels = std::iter::successors(matches.subcommand(), |(_, inner)| inner.subcommand());
    let path = command_path(levels.map(|(name, _)| name));
    let is_given = |id: &&str| matches.value_source(id) == Some(ValueSource::CommandLine);
    let mut ids = matches.ids().map(clap::Id::as_str).filter(is_given);
    let Some(id) = ids.find(|id| !applies_to(id, &path)) else { return Ok(()) };
    let flag = format!("--{}", id.replace('_', "-"));
    let scope = describe_scope(id).unwrap_or_default();
    let mut actions = vec![format!("leave out {flag}: it applies to {scope}")];
    actions.extend(replacement(id, &path).map(str::to_owned));
    actions.push("see `pixir help options`".to_owned());
    let message = format!("{flag} has no effect on `pixir {path}`, so nothing was done");
    Err(bad_argument(message).with_next_actions(actions))
}

/// What has the wanted effect instead of a flag.
fn replacement(flag: &str, path: &str) -> Option<&'static str> {
    match (flag, path) {
        ("output_schema", "delegate") => Some("state the `output` of each task in the spec"),
        ("output_schema", _) if path.starts_with("workflow") => {
            Some("state the `output` of each step in the workflow")
        }
        ("events", "delegate") => Some("use --progress for JSON lines on stderr"),
        _ => None,
    }
}
