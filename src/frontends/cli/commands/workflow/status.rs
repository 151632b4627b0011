//! `pixir workflow status`: how far a run is, from its Log alone.

use std::fmt::Write;

use clap::Args;
use serde_json::{Value, json};

use crate::agent::inspect;
use crate::agent::workflow::{FoundRun, step_line};
use crate::base::error::{Report, counted};
use crate::frontends::cli::CliContext;
use crate::frontends::cli::exit::Exit;
use crate::frontends::render::{clean, one_line};
use crate::record::state_dir::StateRoot;

/// The widest line.
const LINE_WIDTH: usize = 160;

/// Show how far a run is, or list the runs of this Workspace
#[derive(Debug, Args)]
#[command(
    long_about = "Show how far a run is, or list the runs of this Workspace.\n\n\
        Everything is read from the Logs, also while another process runs it; nothing is changed.",
    after_long_help = "Examples:\n  pixir workflow status\n  pixir workflow status wf_0123456789 --json"
)]
pub struct WorkflowStatusArgs {
    /// Id of the run or of its Session, or the beginning or end of one; default: list all runs
    #[arg(value_name = "RUN")]
    id: Option<String>,
}

pub fn status(args: &WorkflowStatusArgs, context: &CliContext) -> Result<Exit, Report> {
    let Some(id) = &args.id else { return list_run_statuses(context) };
    let (root, found) = super::find_run(id, context)?;
    let is_open = is_open(&root, &found);
    context.print_result("workflow_status", &run_text(&found, is_open), run_json(&found, is_open))
}

fn list_run_statuses(context: &CliContext) -> Result<Exit, Report> {
    let runs = super::list_runs(context)?;
    if runs.is_empty() && !context.flags.json {
        context.print_notice("no workflow was run here");
    }
    let mut words = String::new();
    let mut values = Vec::new();
    for (root, found) in &runs {
        let is_open = is_open(root, found);
        let (ready, count) = count_ready(found);
        let line = format!(
            "{}  {:<11}  {ready}/{count} ready  {}  {}",
            found.run.id,
            status_word(found, is_open),
            found.session,
            clean(&found.run.workflow.name)
        );
        words.extend([&one_line(&line, LINE_WIDTH), "\n"]);
        values.push(run_json(found, is_open));
    }
    context.print_result("workflow_status", &words, json!({ "runs": values }))
}

/// Whether a process has the Session of a run open.
fn is_open(root: &StateRoot, found: &FoundRun) -> bool {
    inspect::session_holder(root, &found.session).is_some()
}

/// The status of a run as one word.
fn status_word(found: &FoundRun, is_open: bool) -> &'static str {
    match found.run.outcome {
        Some(outcome) => outcome.name(),
        None if is_open => "running",
        None => "interrupted",
    }
}

fn count_ready(found: &FoundRun) -> (usize, usize) {
    let is_ready = |own: &&crate::agent::workflow::CheckpointBundle| own.dependent_safe;
    let bundles = found.run.steps.iter().filter_map(|step| step.bundle.as_ref());
    (bundles.filter(is_ready).count(), found.run.steps.len())
}

fn run_text(found: &FoundRun, is_open: bool) -> String {
    let (ready, count) = count_ready(found);
    let mut text = format!(
        "{} ({}) {}: {ready} of {} ready, Session {}\n",
        clean(&found.run.workflow.name),
        found.run.id,
        status_word(found, is_open),
        counted(count, "step"),
        found.session
    );
    for (step, past) in found.run.workflow.steps.iter().zip(&found.run.steps) {
        let line = match &past.bundle {
            Some(bundle) => step_line(bundle),
            None if past.is_scheduled && is_open => format!("{}: running", step.id),
            None if past.is_scheduled => format!("{}: cut off", step.id),
            None => format!("{}: waiting", step.id),
        };
        // Writing to a String cannot fail.
        writeln!(text, "  {}", one_line(&clean(&line), LINE_WIDTH)).ok();
    }
    if found.run.outcome.is_none_or(|outcome| outcome.name() != "completed") && !is_open {
        writeln!(text, "try: pixir workflow resume {}", found.run.id).ok();
    }
    text
}

fn run_json(found: &FoundRun, is_open: bool) -> Value {
    let past = &found.run;
    let steps: Vec<Value> = past
        .workflow
        .steps
        .iter()
        .zip(&past.steps)
        .map(|(step, was)| {
            json!({
                "step_id": step.id,
                "is_scheduled": was.is_scheduled,
                "children": was.children,
                "checkpoint": was.bundle,
            })
        })
        .collect();
    json!({
        "workflow_id": past.id,
        "workflow_name": past.workflow.name,
        "session_id": found.session,
        "status": status_word(found, is_open),
        "spec_sha256": past.spec_sha256,
        "resumes": past.resumes,
        "steps": steps,
    })
}
