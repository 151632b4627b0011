//! `pixir workflow`: graphs of steps, checked, drawn, run and gone on with.

mod list;
mod plan;
mod run;
mod source;
mod status;
mod validate;

use clap::{Args, Subcommand};

pub use list::broken_templates;
pub use run::run_example;

use super::Context;
use super::exit::Exit;
use crate::error::{Kind, Report};
use crate::id::SessionId;
use crate::projection::{self, Standing};
use crate::state::StateRoot;
use crate::workflow::{Found, find, session_named};

/// Check, draw, run and resume graphs of steps
#[derive(Debug, Args)]
#[command(
    long_about = "Check, draw, run and resume graphs of steps.\n\n\
        A workflow is a JSON file: tasks for subagents, what they may read and write, what must be checked, and \
        who waits for whom. docs/workflows.md has every key.",
    after_long_help = "Examples:\n  pixir workflow validate release.json\n  \
        pixir workflow plan release-notes/by-area --arg 'areas=[\"src/\"]'\n  \
        pixir workflow run release.json --json"
)]
pub struct WorkflowArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Check a workflow, and say everything that is wrong with it
    Validate(source::SourceArgs),
    /// Show what would run when, and why
    Plan(source::SourceArgs),
    /// List the workflows that can be named here
    List,
    Run(run::RunArgs),
    Resume(run::ResumeArgs),
    Status(status::StatusArgs),
}

pub fn workflow(args: &WorkflowArgs, context: &Context) -> Result<Exit, Report> {
    match &args.action {
        Action::Validate(args) => validate::validate(args, context),
        Action::Plan(args) => plan::plan(args, context),
        Action::List => list::list(context),
        Action::Run(args) => run::run(args, context),
        Action::Resume(args) => run::resume(args, context),
        Action::Status(args) => status::status(args, context),
    }
}

/// The run that an argument names, and the state that it is a part of.
fn found(id: &str, context: &Context) -> Result<(StateRoot, Found), Report> {
    let places = match session_named(id) {
        Some(session) => vec![context.state_of(&session)?],
        None => [context.state_roots(false)?, context.state_roots(true)?].concat(),
    };
    for root in places {
        if let Some(found) = find(&root, id).map_err(|error| Report::from(&error))? {
            return Ok((root, found));
        }
    }
    Err(Report::new(Kind::NotFound, format!("there is no run {id}")).with_next_actions(vec![
        "list the runs of this Workspace: pixir workflow status".into(),
        "if it was taken back with `pixir undo`, bring it back: pixir redo".into(),
    ]))
}

/// Whether a process has the Session open.
fn is_open(root: &StateRoot, id: &SessionId) -> bool {
    let found = projection::list(std::slice::from_ref(root), usize::MAX).into_iter();
    let mut own = found.filter(|summary| summary.session_id == *id);
    own.any(|summary| matches!(summary.standing, Standing::Running { .. }))
}
