//! The command line: arguments in, exit code out, and the one place that reads the environment.
//!
//! One command per file. A command answers with an [`Exit`] or a `Report`; this file turns either
//! into words, an envelope and a number, so that no command can forget one of them.

mod answer;
mod arguments;
mod commands;
mod exit;
mod markdown;
mod named_server;
mod relay;
mod runner;
mod session_arg;
mod session_lookup;
mod setup;
mod terminal;
#[cfg(test)]
mod tests;
mod trace;
mod typo_guard;
mod unreadable;
mod usage_error;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};

use crate::base::error::{Kind, Report};
use crate::frontends::render::{
    JsonEnvelope, SignalCount, StdioOutput, clean, error_text, use_ascii, with_symbols,
};
use crate::record::event::PermissionMode;
use arguments::{ParsedArguments, whole_number_parser};
use commands::{
    acp, agents, changes, compact, completions, config, delegate, demo, diagnose, doctor, export,
    fork, gc, inspect_replay, login, logout, mcp, merge, models, permissions, repair, resume, run,
    sessions, skills, tree, trust, undo, usage, verify, workflow,
};
use exit::Exit;
use setup::Environment;
use terminal::signals;

/// A local-first coding agent: any UI, one supervised runtime, and the Log is the truth
#[derive(Debug, Parser)]
#[command(
    name = "pixir",
    version,
    override_usage = "pixir [FLAGS] [PROMPT]...\n       pixir [FLAGS] <COMMAND>",
    max_term_width = 100,
    subcommand_value_name = "COMMAND",
    long_about = "A local-first coding agent: any UI, one supervised runtime, and the Log is the truth.\n\n\
        Words that are no command are a prompt: they are joined by spaces and sent to the model, which \
        works in the current directory. Piped input is the prompt, or is appended to it. Without a \
        prompt, on a terminal, prompts are read line by line until Ctrl-D or /quit; what is pasted at once is one \
        prompt.\n\n\
        stdout carries the answer alone; everything else goes to stderr.",
    after_long_help = "Examples:\n  \
        pixir demo                                 see it work, without any account\n  \
        pixir \"why does the parser test fail?\"     one Turn in the current directory\n  \
        git diff | pixir review this               piped input is appended to the prompt\n  \
        pixir resume --last \"now add a test\"       go on where you stopped\n  \
        pixir --json \"count the TODOs\" | jq .output\n  \
        pixir -- --help is broken, fix it          after `--` everything is prompt\n\n\
        Exit codes:\n  \
        0 answered, 1 error, 2 bad arguments or unknown Session, 3 denied, 4 not signed in,\n  \
        5 Session open in another process, 6 ended without an answer, 7 the Log cannot be written,\n  \
        124 timed out, 130 interrupted"
)]
pub struct Cli {
    #[command(flatten)]
    pub flags: GlobalFlags,
    #[command(subcommand)]
    pub command: Command,
}

/// Flags that may stand anywhere on the command line.
#[derive(Debug, Clone, Default, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of the command line")]
pub struct GlobalFlags {
    /// Print one JSON envelope on stdout at the end
    #[arg(long, global = true, conflicts_with = "events")]
    pub json: bool,
    /// Print every Event as a line of JSON on stdout
    #[arg(long, global = true)]
    pub events: bool,
    /// Use this model
    #[arg(long, global = true, value_name = "NAME")]
    pub model: Option<String>,
    /// Reasoning effort, such as low, medium or high
    #[arg(long, global = true, value_name = "LEVEL")]
    pub effort: Option<String>,
    /// Use the ChatGPT subscription or the API key
    #[arg(long, global = true, value_name = "KIND", value_enum)]
    pub credential: Option<CredentialChoice>,
    /// Work in this directory
    #[arg(long, global = true, value_name = "DIR")]
    pub cwd: Option<PathBuf>,
    /// Stop after this many model calls; 0 for no limit
    #[arg(long, global = true, value_name = "N", value_parser = whole_number_parser::<i64, u32>(0))]
    pub max_iterations: Option<u32>,
    /// Stop when the Session has used this many tokens
    #[arg(long, global = true, value_name = "N", value_parser = whole_number_parser::<u64, u64>(1))]
    pub max_tokens_total: Option<u64>,
    /// Stop when the Session has cost this much; needs the model's price in the config
    #[arg(long, global = true, value_name = "USD")]
    pub max_cost: Option<String>,
    /// Stop after this many requests to the Provider, retries included
    #[arg(long, global = true, value_name = "N", value_parser = whole_number_parser::<u64, u64>(1))]
    pub max_requests: Option<u64>,
    /// Stop after this long, such as 90s, 10m or 1h30m
    #[arg(long, global = true, value_name = "DURATION")]
    pub timeout: Option<String>,
    /// Attach this file to the prompt; may be repeated
    #[arg(long, global = true, value_name = "PATH", value_hint = clap::ValueHint::FilePath)]
    pub attach: Vec<PathBuf>,
    /// Allow the Provider to search the web
    #[arg(long, global = true)]
    pub web_search: bool,
    /// Require an answer that matches the JSON Schema in this file
    #[arg(long, global = true, value_name = "FILE")]
    pub output_schema: Option<PathBuf>,
    /// Use this provider from `providers` in the config
    #[arg(long, global = true, value_name = "NAME", conflicts_with = "credential")]
    pub provider: Option<String>,
    /// Ask before anything is changed
    #[arg(long, global = true, conflicts_with_all = ["read_only", "auto"])]
    pub ask: bool,
    /// Change nothing; commands run in a sandbox without write access
    #[arg(long, global = true, conflicts_with = "auto")]
    pub read_only: bool,
    /// Do not ask, even in a Session that was started with --ask or --read-only
    #[arg(long, global = true)]
    pub auto: bool,
    /// Give the Session this role: build, plan, worker, explorer, reviewer, or one of `pixir agents`
    #[arg(long, global = true, value_name = "NAME")]
    pub role: Option<String>,
    /// Allow tools to write only to paths that match this glob, such as 'src/**'; may be repeated
    #[arg(long, global = true, value_name = "GLOB")]
    pub allow_write: Vec<String>,
    /// Forbid tools to write to paths that match this glob; may be repeated
    #[arg(long, global = true, value_name = "GLOB")]
    pub deny_write: Vec<String>,
    /// Sandbox level for commands: workspace, read-only, required or off
    #[arg(long, global = true, value_name = "LEVEL")]
    pub sandbox: Option<String>,
    /// Plan tool calls without running those that change something
    #[arg(long, global = true)]
    pub dry_run: bool,
    /// Show only errors on stderr
    #[arg(long, short, global = true)]
    pub quiet: bool,
    /// Show all output of commands and the model's reasoning on stderr
    #[arg(long, short, global = true, conflicts_with = "quiet")]
    pub verbose: bool,
    /// When to colour stderr
    #[arg(long, global = true, value_name = "WHEN", value_enum, default_value_t = Colour::Auto)]
    pub color: Colour,
    /// Write a debug trace to this file; `PIXIR_LOG=debug` writes it to stderr
    #[arg(long, global = true, value_name = "PATH")]
    pub log_file: Option<PathBuf>,
}

impl GlobalFlags {
    /// The permission mode of the flags, if any.
    fn permission_mode(&self) -> Option<PermissionMode> {
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

/// The table of commands: each with its arguments, the `kind` of its envelope, and the function that runs it.
macro_rules! commands {
    ($($(#[$meta:meta])* $name:ident($args:ty) = $kind:literal: $run:path,)*) => {
        /// The commands of this build.
        #[derive(Debug, Subcommand)]
        pub enum Command { $($(#[$meta])* $name($args),)* }

        impl Command {
            /// The `kind` of its envelope.
            fn kind(&self) -> &'static str {
                match self { $(Command::$name(_) => $kind,)* }
            }

            fn run(&self, context: &CliContext) -> Result<Exit, Report> {
                match self { $(Command::$name(args) => $run(args, context),)* }
            }
        }
    };
}

commands! {
    #[command(name = arguments::RUN_COMMAND, hide = true, override_usage = "pixir [FLAGS] [PROMPT]...")]
    Run(run::RunArgs) = "turn": run::run,
    Resume(resume::ResumeArgs) = "turn": resume::resume,
    Sessions(sessions::SessionsArgs) = "sessions": sessions::sessions,
    Verify(verify::VerifyArgs) = "verify": verify::verify,
    Repair(repair::RepairArgs) = "repair": repair::repair,
    Usage(usage::UsageArgs) = "usage": usage::usage,
    Models(models::ModelsArgs) = "models": models::models,
    Permissions(permissions::PermissionsArgs) = "permissions": permissions::permissions,
    Mcp(mcp::McpArgs) = "mcp": mcp::mcp,
    Skills(skills::SkillsArgs) = "skills": skills::skills,
    Agents(agents::AgentsArgs) = "agents": agents::agents,
    Workflow(workflow::WorkflowArgs) = "workflow": workflow::workflow,
    Delegate(delegate::DelegateArgs) = "delegate": delegate::delegate,
    Trust(trust::TrustArgs) = "trust": trust::trust,
    Untrust(trust::UntrustArgs) = "untrust": trust::untrust,
    Undo(undo::UndoArgs) = "undo": undo::undo,
    Redo(undo::RedoArgs) = "redo": undo::redo,
    Fork(fork::ForkArgs) = "fork": fork::fork_session,
    Compact(compact::CompactArgs) = "compact": compact::compact,
    Tree(tree::TreeArgs) = "tree": tree::tree,
    Changes(changes::ChangesArgs) = "changes": changes::changes,
    Merge(merge::MergeArgs) = "merge": merge::merge,
    Acp(acp::AcpArgs) = "acp": acp::acp,
    Login(login::LoginArgs) = "login": login::login,
    Logout(logout::LogoutArgs) = "logout": logout::logout,
    Doctor(doctor::DoctorArgs) = "doctor": doctor::doctor,
    Demo(demo::DemoArgs) = "demo": demo::demo,
    Config(config::ConfigArgs) = "config": config::config,
    Gc(gc::GcArgs) = "gc": gc::gc,
    Export(export::ExportArgs) = "export": export::export,
    Diagnose(diagnose::DiagnoseArgs) = "diagnose": diagnose::diagnose,
    InspectReplay(inspect_replay::InspectReplayArgs) = "inspect-replay":
        inspect_replay::inspect_replay,
    Completions(completions::CompletionsArgs) = "completions": completions::completions,
}

impl Command {
    /// Whether the command accepts `--events`. `delegate` refuses it with its own message.
    fn streams_events(&self) -> bool {
        match self {
            Command::Run(_) | Command::Resume(_) | Command::Demo(_) | Command::Delegate(_) => true,
            Command::Workflow(args) => args.is_run(),
            _ => false,
        }
    }

    /// Whether the command supports `--dry-run`.
    fn has_dry_run(&self) -> bool {
        matches!(
            self,
            Command::Run(_)
                | Command::Resume(_)
                | Command::Demo(_)
                | Command::Sessions(_)
                | Command::Workflow(_)
                | Command::Delegate(_)
                | Command::Undo(_)
                | Command::Redo(_)
                | Command::Fork(_)
                | Command::Compact(_)
                | Command::Merge(_)
                | Command::Acp(_)
        )
    }
}

/// The whole grammar, for completions and generated documentation.
pub fn command_grammar() -> clap::Command {
    Cli::command()
}

/// The flags, environment and start time of a command.
#[derive(Clone)]
pub struct CliContext {
    pub flags: GlobalFlags,
    pub environment: Environment,
    pub started: Instant,
}

/// Runs Pixir with these arguments, the program's name first.
pub fn run(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let started = Instant::now();
    signals::block_file_size_signal();
    let cli = match arguments::parse_arguments(&args.into_iter().collect::<Vec<_>>()) {
        ParsedArguments::Command(cli) => *cli,
        ParsedArguments::Print(text) => {
            print_stdout(&text);
            return Exit::Answered.into();
        }
        ParsedArguments::Invalid { report, text, json } => {
            return print_error(&report, &text, json, "arguments", started);
        }
    };
    let kind = cli.command.kind();
    let context =
        CliContext { flags: cli.flags, environment: Environment::from_process(), started };
    if context.is_ascii() {
        use_ascii();
    }
    let json = context.flags.json;
    match trace::set_up(&context).and_then(|()| dispatch(&cli.command, &context)) {
        Ok(exit) => exit.into(),
        Err(report) => print_error(&report, &error_text(&report), json, kind, started),
    }
}

fn dispatch(command: &Command, context: &CliContext) -> Result<Exit, Report> {
    if !context.flags.attach.is_empty() && command.kind() != "turn" {
        return Err(bad_argument("--attach goes with a prompt, not with this command"));
    }
    if context.flags.output_schema.is_some() && command.kind() == "workflow" {
        let message = "--output-schema goes with a prompt; a step states its own `output`";
        return Err(bad_argument(message));
    }
    if context.flags.events && !command.streams_events() {
        let message = "--events goes with a prompt, `resume`, `demo`, `workflow run` or `workflow resume`, \
                       not with this command";
        return Err(bad_argument(message));
    }
    if context.flags.dry_run && !command.has_dry_run() {
        return Err(bad_argument("this command has no --dry-run, so nothing was done"));
    }
    command.run(context)
}

/// Prints an error as text on stderr, and with `--json` as an envelope on stdout; gives the exit code.
fn print_error(
    report: &Report,
    text: &str,
    json: bool,
    kind: &'static str,
    started: Instant,
) -> ExitCode {
    let mut output = StdioOutput::stdio(SignalCount::default());
    if json {
        let envelope = JsonEnvelope::failure(kind, report.clone(), started.elapsed());
        // If stdout is closed, the text on stderr must do.
        output.write_answer(envelope.to_line().as_bytes()).and_then(|()| output.flush()).ok();
    }
    output.write_activity(clean(text).as_bytes());
    exit::exit_for_report(report).into()
}

/// Prints text on stdout; a closed stdout is no error.
fn print_stdout(text: &str) {
    let mut output = StdioOutput::stdio(SignalCount::default());
    // JSON is for programs, and stays as it is.
    let text = if text.starts_with('{') { text.into() } else { with_symbols(text) };
    output.write_answer(text.as_bytes()).and_then(|()| output.flush()).ok();
}

/// The report for an invalid argument.
fn bad_argument(message: impl Into<String>) -> Report {
    Report::new(Kind::InvalidArgs, message)
}
