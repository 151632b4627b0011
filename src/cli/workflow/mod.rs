//! `pixir workflow`: graphs of steps, checked, drawn and listed.

mod list;
mod plan;
mod source;
mod validate;

use clap::{Args, Subcommand};

use super::Context;
use super::exit::Exit;
use crate::error::Report;

/// Check, draw and list workflows
#[derive(Debug, Args)]
#[command(
    long_about = "Check, draw and list workflows.\n\n\
        A workflow is a graph of steps in a JSON file: tasks for subagents, what they may read and write, \
        what must be checked, and who waits for whom. docs/workflows.md has every key.",
    after_long_help = "Examples:\n  pixir workflow validate release.json\n  \
        pixir workflow plan release-notes/by-area --arg 'areas=[\"src\"]'\n  \
        pixir workflow list --json"
)]
pub struct WorkflowArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Check a workflow, and say everything that is wrong with it
    Validate(NamedArgs),
    /// Show what would run when, and why
    Plan(NamedArgs),
    /// List the workflows that can be named here
    List,
}

/// Which workflow, and with what.
#[derive(Debug, Args)]
pub struct NamedArgs {
    /// A file, `-` for stdin, skill/template, or a name of `pixir workflow list`
    #[arg(value_name = "WORKFLOW")]
    pub what: String,
    /// Give a parameter a value; JSON, unless it is text. May be given many times
    #[arg(long, value_name = "NAME=VALUE")]
    pub arg: Vec<String>,
}

pub fn workflow(args: WorkflowArgs, context: &Context) -> Result<Exit, Report> {
    match args.action {
        Action::Validate(named) => validate::validate(&named, context),
        Action::Plan(named) => plan::plan(&named, context),
        Action::List => list::list(context),
    }
}
