//! `pixir workflow plan`: the waves of a workflow, drawn.

use std::fmt::Write;

use serde_json::{Value, json};

use super::source::{SourceArgs, SourcePurpose, read_workflow};
use crate::agent::workflow::{
    OnFailure, SpecDiagnostic, Step, StepPosture, WaitReason, Workflow, WorkflowPlan,
    WorkspaceMode, lint_workflow,
};
use crate::base::error::{Report, counted};
use crate::frontends::cli::CliContext;
use crate::frontends::cli::exit::Exit;
use crate::frontends::render::{name_on_one_line, one_line, terminal_width, write_wrapped};

/// The widest drawing; longer lines are harder to read.
const WIDEST: usize = 110;

pub fn plan(args: &SourceArgs, context: &CliContext) -> Result<Exit, Report> {
    let workflow =
        read_workflow(args, &context.current_folder()?, context, SourcePurpose::Inspect)?.workflow;
    let plan = WorkflowPlan::new(&workflow);
    let warnings = lint_workflow(&workflow, &plan);
    for flaw in &warnings {
        context.print_notice(&format!("warning: {flaw}"));
    }
    let text = draw_plan(&workflow, &plan, terminal_width().min(WIDEST));
    context.print_result("workflow", &text, plan_json(&workflow, &plan, &warnings))
}

fn plan_json(workflow: &Workflow, plan: &WorkflowPlan, warnings: &[SpecDiagnostic]) -> Value {
    let id = |place: &usize| workflow.steps[*place].id.as_str();
    let waves: Vec<Vec<&str>> =
        plan.waves.iter().map(|wave| wave.iter().map(id).collect()).collect();
    let waits: Vec<Value> = plan
        .waits
        .iter()
        .enumerate()
        .filter_map(|(place, wait)| {
            let (reason, other) = match wait.as_ref()? {
                WaitReason::After(other) => ("depends_on", Some(id(other))),
                WaitReason::Conflict(other) => ("conflicts_with", Some(id(other))),
                WaitReason::NoSlot => ("no_slot", None),
            };
            Some(json!({ "step": id(&place), "reason": reason, "other": other }))
        })
        .collect();
    json!({
        "mode": "plan",
        "hash": workflow.hash(),
        "workflow": workflow,
        "waves": waves,
        "waits": waits,
        "warnings": warnings.iter().map(SpecDiagnostic::to_json).collect::<Vec<_>>(),
    })
}

/// The waves, one step below the other, narrow enough for any terminal.
fn draw_plan(workflow: &Workflow, plan: &WorkflowPlan, width: usize) -> String {
    let mut text = String::new();
    let title = if workflow.name == workflow.id {
        workflow.id.clone()
    } else {
        format!("{}: {}", workflow.id, workflow.name)
    };
    // Writing to a String cannot fail.
    writeln!(text, "{}", one_line(&title, width)).ok();
    if !workflow.description.is_empty() {
        write_wrapped(&mut text, "", &workflow.description, width);
    }
    let (steps, waves) = (workflow.steps.len(), plan.waves.len());
    let limits = &workflow.limits;
    let mut facts = vec![
        counted(steps, "step"),
        counted(waves, "wave"),
        format!("at most {} at once", limits.max_concurrency),
        format!("{} in all", display_duration(limits.timeout_ms)),
    ];
    facts.extend(workflow.budget.tokens.map(|tokens| format!("{tokens} tokens")));
    facts.extend(workflow.budget.cost_usd.map(|cost| format!("{cost} USD")));
    write_wrapped(&mut text, "", &facts.join(", "), width);
    for (number, wave) in plan.waves.iter().enumerate() {
        text.push('\n');
        writeln!(text, "wave {}", number + 1).ok();
        for (nth, place) in wave.iter().enumerate() {
            let is_last = nth + 1 == wave.len();
            let branch = if is_last { "`-- " } else { "|-- " };
            let margin = if is_last { "      " } else { "|     " };
            let step = &workflow.steps[*place];
            let mut lines = Vec::new();
            lines.push(format!("{branch}{}", step_title(step)));
            for (label, value) in step_details(workflow, plan, *place) {
                let mut detail = String::new();
                write_wrapped(&mut detail, &format!("{label:9}"), &value, width.saturating_sub(6));
                lines.extend(detail.lines().map(|line| format!("{margin}{line}")));
            }
            for line in lines {
                writeln!(text, "{}", truncate_line(&line, width)).ok();
            }
        }
    }
    text
}

fn step_title(step: &Step) -> String {
    if let Some(source) = &step.apply {
        return format!("{}  (applies {source})", step.id);
    }
    let posture = match step.posture {
        StepPosture::ReadOnly => "reads",
        StepPosture::Write => "writes",
    };
    let place = match step.workspace {
        WorkspaceMode::Shared => "shared",
        WorkspaceMode::Isolated => "isolated",
        WorkspaceMode::Worktree => "worktree",
    };
    let optional = if step.optional { ", optional" } else { "" };
    format!("{}  ({}, {posture}, {place}{optional})", step.id, step.role)
}

/// The details of a step, each with a label.
fn step_details(
    workflow: &Workflow,
    plan: &WorkflowPlan,
    place: usize,
) -> Vec<(&'static str, String)> {
    let step = &workflow.steps[place];
    let mut all: Vec<(&str, String)> = Vec::new();
    if let Some(task) = &step.task {
        all.push(("task", one_line(task, 160)));
    }
    let model: Vec<&str> =
        [&step.model, &step.effort].into_iter().flatten().map(String::as_str).collect();
    if !model.is_empty() {
        all.push(("model", model.join(", ")));
    }
    let after: Vec<&str> = step
        .depends_on
        .iter()
        .map(String::as_str)
        .filter(|id| step.apply.as_deref() != Some(*id) && step.gate.as_deref() != Some(*id))
        .collect();
    if !after.is_empty() {
        all.push(("after", after.join(", ")));
    }
    if let Some(gate) = &step.gate {
        all.push(("gate", format!("{gate} must approve")));
    }
    for (name, need) in &step.needs {
        all.push(("needs", format!("{name} = {}{}", need.step, need.pointer)));
    }
    let is_all = step.read_set == ["**"];
    if !is_all && step.apply.is_none() {
        let none = "nothing".to_owned();
        all.push(("reads", if step.read_set.is_empty() { none } else { step.read_set.join(", ") }));
    }
    if !step.write_set.is_empty() {
        all.push(("writes", step.write_set.join(", ")));
    }
    if let Some(output) = &step.output {
        let names = output.get("properties").and_then(Value::as_object);
        let names: Vec<&str> = names.into_iter().flatten().map(|(name, _)| name.as_str()).collect();
        let words = if names.is_empty() { "an object".to_owned() } else { names.join(", ") };
        all.push(("output", words));
    }
    all.extend(step.verify.iter().map(|check| ("verify", name_on_one_line(&check.command, 160))));
    let mut limits = Vec::new();
    limits.extend(step.timeout_ms.map(display_duration));
    if step.retries > 0 {
        let noun = if step.retries == 1 { "retry" } else { "retries" };
        limits.push(format!("{} {noun}", step.retries));
    }
    match step.on_failure {
        OnFailure::Hold => {}
        OnFailure::Continue => limits.push("others continue when it fails".to_owned()),
        OnFailure::Abort => limits.push("the run ends when it fails".to_owned()),
    }
    if !limits.is_empty() {
        all.push(("limits", limits.join(", ")));
    }
    // Dependencies are listed under `after` already.
    match plan.waits[place] {
        Some(WaitReason::Conflict(other)) => {
            let other = &workflow.steps[other].id;
            all.push(("waits", format!("for {other}, whose files overlap with its own")));
        }
        Some(WaitReason::NoSlot) => all.push(("waits", "for one of the others to end".to_owned())),
        Some(WaitReason::After(_)) | None => {}
    }
    all
}

/// Cuts a line to the width; blanks are kept.
fn truncate_line(line: &str, width: usize) -> String {
    let line = line.trim_end();
    if line.chars().count() <= width {
        return line.to_owned();
    }
    let mut cut: String = line.chars().take(width.saturating_sub(3)).collect();
    cut.push_str("...");
    cut
}

/// A duration in its largest whole unit.
fn display_duration(ms: u64) -> String {
    match ms {
        ms if ms % 3_600_000 == 0 => format!("{} h", ms / 3_600_000),
        ms if ms % 60_000 == 0 => format!("{} min", ms / 60_000),
        ms if ms % 1_000 == 0 => format!("{} s", ms / 1_000),
        ms => format!("{ms} ms"),
    }
}
