//! Lints: findings about a Workflow that is valid but probably wrong.

use std::collections::HashSet;

use super::plan::WorkflowPlan;
use super::spec::{SpecDiagnostic, StepPosture, Workflow, WorkspaceMode};

/// Lints a valid Workflow.
pub fn lint_workflow(workflow: &Workflow, plan: &WorkflowPlan) -> Vec<SpecDiagnostic> {
    let steps = &workflow.steps;
    let applied: HashSet<&str> = steps.iter().filter_map(|step| step.apply.as_deref()).collect();
    let reviewed: HashSet<&str> = steps.iter().filter_map(|step| step.gate.as_deref()).collect();
    let awaited: HashSet<&str> =
        steps.iter().flat_map(|step| step.depends_on.iter().map(String::as_str)).collect();
    let mut found = Vec::new();
    for (place, step) in steps.iter().enumerate() {
        let id = step.id.as_str();
        let is_copy = step.workspace != WorkspaceMode::Shared;
        if step.posture == StepPosture::Write && is_copy && !applied.contains(id) {
            let message =
                format!("no step applies what `{id}` changes; it stays in its own Workspace");
            found.push(SpecDiagnostic::new(format!("/steps/{place}"), message));
        }
        let is_review = step.role == "reviewer" && step.apply.is_none();
        if is_review && awaited.contains(id) && !reviewed.contains(id) && step.output.is_none() {
            let message =
                format!("steps wait for the review `{id}`, but none has it as its `gate`");
            found.push(SpecDiagnostic::new(format!("/steps/{place}"), message));
        }
    }
    if plan.is_approximate {
        let message = "the read and write sets of its steps are too complex to compare; steps that could not be \
        compared run one after the other";
        found.push(SpecDiagnostic::new("/steps", message));
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::agent::workflow::SpecContext;
    use crate::settings::config::SubagentLimits;

    #[test]
    fn unapplied_changes_and_unused_reviews_are_reported() {
        let written = json!({"id": "x", "steps": [
            {"id": "make", "task": "x"},
            {"id": "more", "task": "x"},
            {"id": "look", "task": "x", "role": "reviewer", "depends_on": "make"},
            {"id": "land", "apply": "make", "depends_on": "look"},
        ]});
        let context = SpecContext::with_built_in_roles(SubagentLimits::default());
        let workflow = Workflow::from_json(&written, &context).unwrap();
        let findings = lint_workflow(&workflow, &WorkflowPlan::new(&workflow));
        let findings: Vec<&str> = findings.iter().map(|flaw| flaw.pointer.as_str()).collect();
        assert_eq!(findings, ["/steps/1", "/steps/2"]);
    }
}
