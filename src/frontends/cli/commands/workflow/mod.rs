//! `pixir workflow`: graphs of steps, checked, drawn, run and resumed.

mod list;
mod plan;
mod run;
mod source;
mod status;
mod validate;

use clap::{Args, Subcommand};

pub use list::broken_templates;
pub use run::{exit_for_workflow, run_attended_workflow, run_example};
pub use source::LARGEST_SPEC;

use crate::agent::workflow::{FoundRun, RunOutcome, all_runs, parse_session_id};
use crate::base::error::{Kind, Report};
use crate::frontends::cli::CliContext;
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
    action: WorkflowAction,
}

#[derive(Debug, Subcommand)]
enum WorkflowAction {
    /// Check a workflow and report all its errors
    Validate(source::SourceArgs),
    /// Show which steps would run when, and why
    Plan(source::SourceArgs),
    /// List the workflows that can be named here
    List,
    Run(run::WorkflowRunArgs),
    Resume(run::WorkflowResumeArgs),
    Status(status::WorkflowStatusArgs),
}

pub fn workflow(args: &WorkflowArgs, context: &CliContext) -> Result<Exit, Report> {
    match &args.action {
        WorkflowAction::Validate(args) => validate::validate(args, context),
        WorkflowAction::Plan(args) => plan::plan(args, context),
        WorkflowAction::List => list::list_workflows(context),
        WorkflowAction::Run(args) => run::run(args, context),
        WorkflowAction::Resume(args) => run::resume(args, context),
        WorkflowAction::Status(args) => status::status(args, context),
    }
}

/// The run that an argument names, and the state root with its Log.
fn find_run(id: &str, context: &CliContext) -> Result<(StateRoot, FoundRun), Report> {
    let (places, id_there) = match parse_session_id(id).map(|_| context.find_session(id)) {
        Some(Ok((session, root))) => (vec![root], session.to_string()),
        Some(Err(report)) => {
            let is_unknown = report.kind == Kind::NotFound.name();
            let refusal = if is_unknown { unknown_run(id) } else { report };
            return find_run_by_part(id, context)?.ok_or(refusal);
        }
        None => ([context.state_roots(false)?, context.state_roots(true)?].concat(), id.to_owned()),
    };
    for root in places {
        if let Some(found) = crate::agent::workflow::find_run(&root, &id_there)? {
            return Ok((root, found));
        }
    }
    if let Some(found) = find_run_by_part(id, context)? {
        return Ok(found);
    }
    Err(unknown_run(id))
}

/// The error for an unknown run id.
fn unknown_run(id: &str) -> Report {
    Report::new(Kind::NotFound, format!("there is no run {id}")).with_next_actions(vec![
        "list the runs of this Workspace: pixir workflow status".into(),
        "if it was taken back with `pixir undo`, bring it back: pixir redo".into(),
    ])
}

/// The only run of this Workspace whose id begins or ends with a text.
fn find_run_by_part(
    text: &str,
    context: &CliContext,
) -> Result<Option<(StateRoot, FoundRun)>, Report> {
    let mut matching = list_runs(context)?;
    matching.retain(|(_, found)| is_part(text, &found.run.id));
    if matching.len() > 1 {
        let ids = matching.iter().map(|(_, found)| found.run.id.as_str());
        return Err(ambiguous("runs", text, ids));
    }
    Ok(matching.pop())
}

/// The runs of this Workspace, the newest Session first.
fn list_runs(context: &CliContext) -> Result<Vec<(StateRoot, FoundRun)>, Report> {
    let roots = context.state_roots(false)?.into_iter();
    let found =
        |root: StateRoot| all_runs(&root).into_iter().map(move |found| (root.clone(), found));
    Ok(roots.flat_map(found).collect())
}

/// The last run of this Workspace that is not complete.
fn find_last_incomplete_run(context: &CliContext) -> Result<(StateRoot, FoundRun), Report> {
    let mut runs = list_runs(context)?.into_iter();
    runs.find(|(_, found)| found.run.outcome != Some(RunOutcome::Completed)).ok_or_else(|| {
        Report::new(Kind::NotFound, "there is no run in this Workspace that is not complete")
            .with_next_actions(vec!["list the runs: pixir workflow status".into()])
    })
}
