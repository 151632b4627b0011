//! The answer of a delegation for the calling program, with the children in the order of their tasks.

use std::fmt::Write;
use std::path::Path;

use serde_json::{Value, json};

use super::CONTRACT_VERSION;
use super::read::Delegation;
use crate::agent::workflow::checkpoint::{CheckpointBundle, NOT_STATED};
use crate::agent::workflow::outcome::{HaltReason, Readiness, RunOutcome, StepStatus};
use crate::agent::workflow::plan::plan_waves;
use crate::agent::workflow::run::FinishedRun;
use crate::agent::workflow::spec::{Step, WorkspaceMode};
use crate::base::id::SessionId;
use crate::base::text::bound_text;
use crate::record::event::SubagentUsage;
use crate::record::state_dir::StateRoot;

/// How much of a task is repeated, in bytes.
const MAX_TASK_BYTES: usize = 1024;

/// How much of a summary the text for people includes, in bytes.
const MAX_SUMMARY_BYTES: usize = 4 * 1024;

/// Builds command lines that work in the caller's current folder.
pub struct DelegateCommands<'a> {
    /// The command line of a subcommand for a Session, from the subcommand and the id.
    pub session: &'a dyn Fn(&str, &str) -> String,
    /// The command line that resumes a run.
    pub run: &'a dyn Fn(&str) -> String,
}

/// The answer, as JSON and as text.
pub struct DelegateAnswer {
    /// The `output` of the envelope.
    pub output: Value,
    /// The answer as text, for people.
    pub text: String,
}

/// The answer of a dry run.
pub fn plan_answer(delegation: &Delegation, workspace: &Path) -> DelegateAnswer {
    let workflow = &delegation.workflow;
    let children: Vec<Value> = workflow
        .steps
        .iter()
        .enumerate()
        .map(|(index, step)| child_frame(index, step, "planned", &SubagentUsage::default()))
        .collect();
    let mut output = answer_frame(delegation, workspace, "planned", 0);
    output["dry_run"] = json!(true);
    output["counts"] = json!({ "total": children.len(), "planned": children.len() });
    output["children"] = json!(children);
    let waves = plan_waves(workflow);
    output["waves"] = json!(waves);
    let count = workflow.steps.len();
    let mut text = format!("{count} children would run; nothing was started.\n");
    for (number, wave) in waves.iter().enumerate() {
        let ids: Vec<&str> = wave.iter().map(|place| workflow.steps[*place].id.as_str()).collect();
        // Writing to a String cannot fail.
        writeln!(text, "wave {}: {}", number + 1, ids.join(", ")).ok();
    }
    DelegateAnswer { output, text }
}

/// The answer of a finished run.
pub fn finished_answer(
    delegation: &Delegation,
    finished: &FinishedRun,
    root: &StateRoot,
    exit_code: u8,
    commands: &DelegateCommands<'_>,
) -> DelegateAnswer {
    let status = finished.outcome.name();
    let mut output = answer_frame(delegation, root.workspace(), status, exit_code);
    let is_done = finished.outcome == RunOutcome::Completed;
    let reason = finished.halt.as_ref().map(HaltReason::name);
    output["reason"] = json!(reason.or((!is_done).then_some("children_not_completed")));
    output["session_id"] = json!(finished.session_id);
    output["workflow_id"] = json!(finished.run_id);
    output["diagnose_command"] =
        json!((commands.session)("diagnose", finished.session_id.as_str()));
    let mut children = Vec::new();
    for (index, (step, bundle)) in
        delegation.workflow.steps.iter().zip(&finished.bundles).enumerate()
    {
        let mut own = child_frame(index, step, child_status(bundle), &bundle.usage);
        fill_child(&mut own, step, bundle, root, commands);
        children.push(own);
    }
    let mut counts = json!({ "total": children.len() });
    for word in ["completed", "partial", "failed", "timed_out", "cancelled", "held"] {
        let found: Vec<&Value> =
            children.iter().filter(|own| own["status"] == word).map(|own| &own["index"]).collect();
        counts[word] = json!(found.len());
        output[word] = json!(found);
    }
    output["counts"] = counts;
    output["usage"] = json!(finished.usage());
    output["waves"] = json!(finished.waves);
    let mut actions = Vec::new();
    if !is_done {
        actions
            .push(format!("run the missing children again: {}", (commands.run)(&finished.run_id)));
    }
    for own in &children {
        let first = own["next_actions"].as_array().and_then(|actions| actions.first());
        let id = own["id"].as_str().unwrap_or_default();
        actions.extend(first.and_then(Value::as_str).map(|action| format!("{id}: {action}")));
    }
    output["next_actions"] = json!(actions);
    let text = answer_text(finished, &children, &actions);
    output["children"] = json!(children);
    DelegateAnswer { output, text }
}

/// The fields that every answer has.
fn answer_frame(delegation: &Delegation, workspace: &Path, status: &str, exit_code: u8) -> Value {
    let workflow = &delegation.workflow;
    json!({
        "contract_version": CONTRACT_VERSION,
        "status": status,
        "reason": null,
        "exit_code": exit_code,
        "name": workflow.name,
        "source": delegation.source.name(),
        "session_id": null,
        "workflow_id": null,
        "workspace": workspace.to_string_lossy(),
        "dry_run": false,
        "limits": {
            "max_concurrency": workflow.limits.max_concurrency,
            "timeout_ms": workflow.limits.timeout_ms,
            "child_timeout_ms": delegation.child_timeout_ms,
        },
        "budget": workflow.budget,
        "counts": {},
        "children": [],
        "completed": [],
        "partial": [],
        "failed": [],
        "timed_out": [],
        "cancelled": [],
        "held": [],
        "waves": [],
        "usage": SubagentUsage::default(),
        "diagnose_command": null,
        "next_actions": [],
    })
}

/// The fields of a child before it has run.
fn child_frame(index: usize, step: &Step, status: &str, usage: &SubagentUsage) -> Value {
    let task = match (&step.task, &step.apply) {
        // In a terminal, a lone carriage return would overwrite the text before it.
        (Some(task), _) => {
            bound_text(&task.replace("\r\n", "\n").replace('\r', "\n"), MAX_TASK_BYTES).into_owned()
        }
        (None, Some(source)) => format!("apply what {source} changed"),
        (None, None) => String::new(),
    };
    json!({
        "index": index,
        "id": step.id,
        "task": task,
        "role": step.role,
        "posture": step.posture,
        "workspace": step.workspace,
        "status": status,
        "checkpoint_status": null,
        "reason": null,
        "summary": "",
        "output": null,
        "verification": [],
        "written": [],
        "attempts": 0,
        "elapsed_ms": 0,
        "usage": usage,
        "child_session_id": null,
        "log_path": null,
        "resume_command": null,
        "diagnose_command": null,
        "changes_command": null,
        "next_actions": [],
    })
}

fn fill_child(
    own: &mut Value,
    step: &Step,
    bundle: &CheckpointBundle,
    root: &StateRoot,
    commands: &DelegateCommands<'_>,
) {
    let is_silent = bundle.known_limitations.iter().any(|own| own == NOT_STATED);
    let is_ready = bundle.checkpoint_status == Readiness::CheckpointReady;
    let stated = if is_silent { "not_stated" } else { bundle.checkpoint_status.name() };
    own["checkpoint_status"] = json!(stated);
    own["reason"] = json!(bundle.reason);
    own["summary"] = json!(bundle.summary);
    own["output"] = json!(bundle.typed_payloads.first().map(|payload| &payload.payload));
    own["verification"] = json!(bundle.verification);
    own["written"] = json!(bundle.written);
    own["attempts"] = json!(bundle.attempts);
    own["elapsed_ms"] = json!(bundle.elapsed_ms);
    let mut actions = Vec::new();
    if let Some(id) = &bundle.child_session_id {
        let command = |word: &str| (commands.session)(word, id);
        own["child_session_id"] = json!(id);
        own["log_path"] =
            json!(SessionId::parse(id).ok().map(|id| root.log(&id).to_string_lossy().into_owned()));
        own["resume_command"] = json!(command("resume"));
        own["diagnose_command"] = json!(command("diagnose"));
        if !is_ready {
            actions.push(format!("continue it: {} PROMPT", command("resume")));
            actions.push(format!("see what happened: {}", command("diagnose")));
        }
        if step.workspace != WorkspaceMode::Shared {
            own["changes_command"] = json!(command("changes"));
            actions.push(format!("see what it changed: {}", command("changes")));
            actions.push(format!("merge it: {}", command("merge")));
        }
    }
    own["next_actions"] = json!(actions);
}

/// The status of a child in the answer.
fn child_status(bundle: &CheckpointBundle) -> &'static str {
    match (bundle.checkpoint_status, bundle.status) {
        (Readiness::CheckpointReady, _) => "completed",
        (Readiness::Partial | Readiness::NeedsOrchestrator, _) => "partial",
        (Readiness::Held, _) => "held",
        (Readiness::Failed, StepStatus::TimedOut) => "timed_out",
        (Readiness::Failed, StepStatus::Cancelled) => "cancelled",
        (Readiness::Failed, _) => "failed",
    }
}

fn answer_text(finished: &FinishedRun, children: &[Value], actions: &[String]) -> String {
    let done = children.iter().filter(|own| own["status"] == "completed").count();
    let mut text = format!("{}: {done} of {} completed", finished.outcome.name(), children.len());
    if let Some(halt) = &finished.halt {
        write!(text, " ({})", halt.name().replace('_', " ")).ok();
    }
    text.push_str(".\n");
    for (own, bundle) in children.iter().zip(&finished.bundles) {
        let word = |key: &str| own[key].as_str().unwrap_or_default();
        write!(text, "\n[{}] {}: {}", own["index"], word("id"), word("status")).ok();
        if let Some(reason) = &bundle.reason {
            write!(text, " ({})", reason.replace('_', " ")).ok();
        }
        if !word("child_session_id").is_empty() {
            write!(text, " [Log {}]", word("child_session_id")).ok();
        }
        text.push('\n');
        if !bundle.summary.is_empty() {
            writeln!(text, "{}", bound_text(&bundle.summary, MAX_SUMMARY_BYTES)).ok();
        }
    }
    if !actions.is_empty() {
        text.push('\n');
    }
    for action in actions {
        writeln!(text, "- {action}").ok();
    }
    text
}
