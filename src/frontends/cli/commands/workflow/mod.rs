//! `pixir workflow`: graphs of steps, checked, drawn, run and resumed.

mod list;
mod plan;
mod run;
mod source;
mod status;
mod validate;

use clap::{Args, Subcommand};

pub use list::broken_templates;
pub use run::{attend_run, exit_of, run_example};
pub use source::LARGEST;

use crate::agent::workflow::{Found, Outcome, all, find, session_named};
use crate::base::error::{Kind, Report};
use crate::frontends::cli::Context;
use crate::frontends::cli::exit::Exit;
use crate::frontends::cli::session_lookup::{ambiguous, is_part};
use crate::record::state_dir::StateRoot;

/// Check, draw, run and resume graphs of steps
#[derive(Debug, Args)]
#[command(
    long_about = "Check, draw, run and resume graphs of steps.\n\n\
        A workflow is a JSON file: tasks for subagents, what they may read and write, what must be checked, and \
        the order of the steps. docs/workflows.md has every key.",
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
    /// Check a workflow and report all its errors
    Validate(source::SourceArgs),
    /// Show which steps would run when, and why
    Plan(source::SourceArgs),
    /// List the workflows that can be named here
    List,
    Run(run::RunArgs),
    Resume(run::ResumeArgs),
    Status(status::StatusArgs),
}

impl WorkflowArgs {
    /// Whether a workflow is run.
    pub fn is_run(&self) -> bool {
        matches!(self.action, Action::Run(_) | Action::Resume(_))
    }
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

/// The run that an argument names, and the state root with its Log.
fn found(id: &str, context: &Context) -> Result<(StateRoot, Found), Report> {
    let (places, id_there) = match session_named(id).map(|_| context.session_named(id)) {
        Some(Ok((session, root))) => (vec![root], session.to_string()),
        Some(Err(report)) => {
            let is_unknown = report.kind == Kind::NotFound.name();
            let refusal = if is_unknown { no_run(id) } else { report };
            return run_by_part(id, context)?.ok_or(refusal);
        }
        None => ([context.state_roots(false)?, context.state_roots(true)?].concat(), id.to_owned()),
    };
    for root in places {
        if let Some(found) = find(&root, &id_there)? {
            return Ok((root, found));
        }
    }
    if let Some(found) = run_by_part(id, context)? {
        return Ok(found);
    }
    Err(no_run(id))
}

/// The error for an unknown run id.
fn no_run(id: &str) -> Report {
    Report::new(Kind::NotFound, format!("there is no run {id}")).with_next_actions(vec![
        "list the runs of this Workspace: pixir workflow status".into(),
        "if it was taken back with `pixir undo`, bring it back: pixir redo".into(),
    ])
}

/// The only run of this Workspace whose id begins or ends with a text.
fn run_by_part(text: &str, context: &Context) -> Result<Option<(StateRoot, Found)>, Report> {
    let mut matching = runs(context)?;
    matching.retain(|(_, found)| is_part(text, &found.past.id));
    if matching.len() > 1 {
        let ids = matching.iter().map(|(_, found)| found.past.id.as_str());
        return Err(ambiguous("runs", text, ids));
    }
    Ok(matching.pop())
}

/// The runs of this Workspace, the newest Session first.
fn runs(context: &Context) -> Result<Vec<(StateRoot, Found)>, Report> {
    let roots = context.state_roots(false)?.into_iter();
    let found = |root: StateRoot| all(&root).into_iter().map(move |found| (root.clone(), found));
    Ok(roots.flat_map(found).collect())
}

/// The last run of this Workspace that is not complete.
fn last_incomplete(context: &Context) -> Result<(StateRoot, Found), Report> {
    let mut runs = runs(context)?.into_iter();
    runs.find(|(_, found)| found.past.outcome != Some(Outcome::Completed)).ok_or_else(|| {
        Report::new(Kind::NotFound, "there is no run in this Workspace that is not complete")
            .with_next_actions(vec!["list the runs: pixir workflow status".into()])
    })
}
