//! `pixir workflow status`: how far a run is, from its Log alone.

use std::fmt::Write;

use clap::Args;
use serde_json::{Value, json};

use crate::agent::inspect;
use crate::agent::workflow::{Found, line_of};
use crate::base::error::{Report, counted};
use crate::frontends::cli::Context;
use crate::frontends::cli::exit::Exit;
use crate::frontends::render::{clean, one_line};
use crate::record::state_dir::StateRoot;

/// The widest line.
const WIDTH: usize = 160;

/// Show how far a run is, or list the runs of this Workspace
#[derive(Debug, Args)]
#[command(
    long_about = "Show how far a run is, or list the runs of this Workspace.\n\n\
        Everything is read from the Logs, also while another process runs it; nothing is changed.",
    after_long_help = "Examples:\n  pixir workflow status\n  pixir workflow status wf_0123456789 --json"
)]
pub struct StatusArgs {
    /// Id of the run or of its Session, or the beginning or end of one; default: list all runs
    #[arg(value_name = "RUN")]
    id: Option<String>,
}

pub fn status(args: &StatusArgs, context: &Context) -> Result<Exit, Report> {
    let Some(id) = &args.id else { return list(context) };
    let (root, found) = super::found(id, context)?;
    let is_open = is_open(&root, &found);
    context.told("workflow_status", &text(&found, is_open), value(&found, is_open))
}

fn list(context: &Context) -> Result<Exit, Report> {
    let runs = super::runs(context)?;
    if runs.is_empty() && !context.flags.json {
        context.notice("no workflow was run here");
    }
    let mut words = String::new();
    let mut values = Vec::new();
    for (root, found) in &runs {
        let is_open = is_open(root, found);
        let (ready, count) = ready(found);
        let line = format!(
            "{}  {:<11}  {ready}/{count} ready  {}  {}",
            found.past.id,
            state(found, is_open),
            found.session,
            clean(&found.past.workflow.name)
        );
        words.extend([&one_line(&line, WIDTH), "\n"]);
        values.push(value(found, is_open));
    }
    context.told("workflow_status", &words, json!({ "runs": values }))
}

/// Whether a process has the Session of a run open.
fn is_open(root: &StateRoot, found: &Found) -> bool {
    inspect::holder_of(root, &found.session).is_some()
}

/// The status of a run as one word.
fn state(found: &Found, is_open: bool) -> &'static str {
    match found.past.outcome {
        Some(outcome) => outcome.name(),
        None if is_open => "running",
        None => "interrupted",
    }
}

fn ready(found: &Found) -> (usize, usize) {
    let is_ready = |own: &&crate::agent::workflow::Bundle| own.dependent_safe;
    let bundles = found.past.steps.iter().filter_map(|step| step.bundle.as_ref());
    (bundles.filter(is_ready).count(), found.past.steps.len())
}

fn text(found: &Found, is_open: bool) -> String {
    let (ready, count) = ready(found);
    let mut text = format!(
        "{} ({}) {}: {ready} of {} ready, Session {}\n",
        clean(&found.past.workflow.name),
        found.past.id,
        state(found, is_open),
        counted(count, "step"),
        found.session
    );
    for (step, past) in found.past.workflow.steps.iter().zip(&found.past.steps) {
        let line = match &past.bundle {
            Some(bundle) => line_of(bundle),
            None if past.is_scheduled && is_open => format!("{}: running", step.id),
            None if past.is_scheduled => format!("{}: cut off", step.id),
            None => format!("{}: waiting", step.id),
        };
        // Writing to a String cannot fail.
        writeln!(text, "  {}", one_line(&clean(&line), WIDTH)).ok();
    }
    if found.past.outcome.is_none_or(|outcome| outcome.name() != "completed") && !is_open {
        writeln!(text, "try: pixir workflow resume {}", found.past.id).ok();
    }
    text
}

fn value(found: &Found, is_open: bool) -> Value {
    let past = &found.past;
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
        "status": state(found, is_open),
        "spec_sha256": past.spec_sha256,
        "resumes": past.resumes,
        "steps": steps,
    })
}
