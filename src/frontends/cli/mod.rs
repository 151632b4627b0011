//! The command line: arguments in, exit code out, and the one place that reads the environment.
//!
//! One command per file. A command answers with an [`Exit`] or a `Report`; this file turns either
//! into text, an envelope and an exit code, so that no command can forget one of them.

mod answer;
mod arguments;
mod commands;
mod exit;
mod flags;
mod help;
mod markdown;
mod named_server;
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
use std::process::ExitCode;
use std::time::Instant;

use clap::{Parser, Subcommand};

use crate::base::error::{Kind, Report};
use crate::frontends::render::{
    JsonEnvelope, SignalCount, StdioOutput, clean, error_text, use_ascii, with_symbols,
};
use crate::frontends::signals;
use arguments::ParsedArguments;
use commands::{
    acp, agents, changes, chat, compact, completions, config, delegate, demo, diagnose, doctor,
    export, fork, gc, inspect_replay, login, logout, mcp, merge, models, permissions, repair,
    resume, run, sessions, skills, tree, trust, undo, usage, verify, workflow,
};
use exit::Exit;
use flags::{CliFlags, Colour, CredentialChoice};
pub use help::{command_grammar, options_text};
use setup::Environment;

/// A local-first coding agent
#[derive(Debug, Parser)]
#[command(
    name = "pixir",
    version,
    override_usage = "pixir [OPTIONS] [PROMPT]...\n       pixir [OPTIONS] <COMMAND>",
    max_term_width = 100,
    subcommand_value_name = "COMMAND"
)]
pub struct Cli {
    #[command(flatten)]
    pub flags: CliFlags,
    #[command(subcommand)]
    pub command: Command,
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
    #[command(name = arguments::RUN_COMMAND, hide = true, override_usage = "pixir [OPTIONS] [PROMPT]...")]
    Run(run::RunArgs) = "turn": run::run,
    Resume(resume::ResumeArgs) = "turn": resume::resume,
    Chat(chat::ChatArgs) = "chat": chat::chat,
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

/// The flags, environment and start time of a command.
#[derive(Clone)]
pub struct CliContext {
    pub flags: CliFlags,
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
    match trace::set_up(&context).and_then(|()| cli.command.run(&context)) {
        Ok(exit) => exit.into(),
        Err(report) => print_error(&report, &error_text(&report), json, kind, started),
    }
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
