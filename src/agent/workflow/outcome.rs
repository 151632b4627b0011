//! Statuses of steps and outcomes of runs: pure decisions, and their names in the Log.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::spec::{OnFailure, Step, Workflow};
use crate::base::names::names;

/// The reason of a step that could not start because the run has reached its limit of Subagents.
pub const SUBAGENT_LIMIT: &str = "subagent_limit_reached";

/// How a step ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StepStatus {
    /// The Subagent of the step answered, or its merge was applied.
    Completed,
    Failed,
    TimedOut,
    Cancelled,
    /// The step never started.
    Held,
}

/// How far other steps may rely on a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Readiness {
    /// The output was checked, or the Subagent states that the task is done.
    CheckpointReady,
    /// Perhaps usable, but neither checked nor stated to be done.
    Partial,
    /// A user or the orchestrating program must decide something first.
    NeedsOrchestrator,
    Failed,
    Held,
}

names!(Readiness {
    CheckpointReady = "checkpoint_ready", Partial = "partial",
    NeedsOrchestrator = "needs_orchestrator", Failed = "failed", Held = "held",
});

impl Readiness {
    /// Parses the readiness that a Subagent states: the last `checkpoint_status:` line of its answer.
    pub fn parse_answer(answer: &str) -> Option<Self> {
        answer.lines().rev().find_map(|line| {
            let line = line.trim().trim_matches(['*', '`', '-', ' ']).to_ascii_lowercase();
            let word = line.strip_prefix("checkpoint_status")?.trim_start_matches(['*', '`', ' ']);
            let word = word.strip_prefix(':')?.trim().trim_matches(['*', '`', '.', ' ']);
            match word {
                "checkpoint_ready" | "ready" => Some(Readiness::CheckpointReady),
                "partial" => Some(Readiness::Partial),
                "needs_orchestrator" => Some(Readiness::NeedsOrchestrator),
                "failed" => Some(Readiness::Failed),
                _ => None,
            }
        })
    }
}

/// Why a run starts no more steps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HaltReason {
    /// The time limit of the run.
    Deadline,
    /// The run was cancelled.
    Cancelled,
    /// This step failed, and its `on_failure` is `abort`.
    Aborted(String),
    /// The budget is used up.
    Budget,
}

impl HaltReason {
    /// The reason in the Log.
    pub fn name(&self) -> &'static str {
        match self {
            HaltReason::Deadline => "deadline",
            HaltReason::Cancelled => "cancelled",
            HaltReason::Aborted(_) => "aborted",
            HaltReason::Budget => "budget_exhausted",
        }
    }
}

/// Why a step was not started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HoldReason {
    /// These dependencies did not get ready.
    Dependencies(Vec<String>),
    /// The review did not approve.
    Gate {
        step: String,
        verdict: String,
    },
    /// An earlier step delivered no such value.
    Need {
        name: String,
        step: String,
    },
    Halted(HaltReason),
}

impl HoldReason {
    /// The reason in the Log.
    pub fn name(&self) -> &'static str {
        match self {
            HoldReason::Dependencies(_) => "dependency_not_ready",
            HoldReason::Gate { .. } => "gate_closed",
            HoldReason::Need { .. } => "need_missing",
            HoldReason::Halted(halt) => halt.name(),
        }
    }

    /// The details of the reason, for the Log.
    pub fn details(&self) -> Value {
        match self {
            HoldReason::Dependencies(steps) => json!({ "steps": steps }),
            HoldReason::Gate { step, verdict } => json!({ "gate": step, "verdict": verdict }),
            HoldReason::Need { name, step } => json!({ "need": name, "step": step }),
            HoldReason::Halted(HaltReason::Aborted(step)) => json!({ "by": step }),
            HoldReason::Halted(_) => Value::Null,
        }
    }

    /// The reason in words, for people.
    pub fn message(&self) -> String {
        match self {
            HoldReason::Dependencies(steps) => format!("not ready: {}", steps.join(", ")),
            HoldReason::Gate { step, verdict } => {
                format!("the review {step} did not approve: {verdict}")
            }
            HoldReason::Need { name, step } => format!("{step} delivered no `{name}`"),
            HoldReason::Halted(HaltReason::Deadline) => {
                "the time limit of the run was reached".to_owned()
            }
            HoldReason::Halted(HaltReason::Cancelled) => "the run was cancelled".to_owned(),
            HoldReason::Halted(HaltReason::Aborted(step)) => format!("{step} ended the run"),
            HoldReason::Halted(HaltReason::Budget) => {
                "the budget of the run was used up".to_owned()
            }
        }
    }
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunOutcome {
    /// Every step that is not optional is ready.
    Completed,
    /// Some steps are ready.
    Partial,
    /// No step is ready, or a step with `on_failure: abort` failed.
    Failed,
    Cancelled,
}

names!(RunOutcome {
    Completed = "completed", Partial = "partial", Failed = "failed", Cancelled = "cancelled",
});

impl RunOutcome {
    /// The outcome of a run from the readiness of all its steps; `has_met_limit` when a step could not start because
    /// the limit of Subagents was reached.
    pub fn from_steps(
        workflow: &Workflow,
        ends: &[Readiness],
        halt: Option<&HaltReason>,
        has_met_limit: bool,
    ) -> Self {
        let counting = || {
            let steps = workflow.steps.iter().zip(ends);
            steps.filter(|(step, _)| !step.optional).map(|(_, end)| *end)
        };
        let is_ready = |end: Readiness| end == Readiness::CheckpointReady;
        match halt {
            Some(HaltReason::Cancelled) => return RunOutcome::Cancelled,
            Some(HaltReason::Aborted(_)) => return RunOutcome::Failed,
            Some(HaltReason::Deadline | HaltReason::Budget) | None => {}
        }
        // A run that its budget cut short is not complete, even when only optional steps are missing.
        let has_budget_ended = has_met_limit || halt == Some(&HaltReason::Budget);
        let is_cut_short = has_budget_ended && !ends.iter().copied().all(is_ready);
        if counting().all(is_ready) && !is_cut_short {
            return RunOutcome::Completed;
        }
        if ends.iter().copied().any(is_ready) { RunOutcome::Partial } else { RunOutcome::Failed }
    }
}

/// Whether dependents of a step may start after it ended with this readiness.
pub fn permits_dependents(step: &Step, end: Readiness) -> bool {
    end == Readiness::CheckpointReady || step.on_failure == OnFailure::Continue
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_what_it_states_last_and_silence_states_nothing() {
        let table = [
            ("done\ncheckpoint_status: checkpoint_ready", Some(Readiness::CheckpointReady)),
            ("**checkpoint_status:** ready.", Some(Readiness::CheckpointReady)),
            ("- `checkpoint_status: partial`\n", Some(Readiness::Partial)),
            ("Checkpoint_Status : needs_orchestrator", Some(Readiness::NeedsOrchestrator)),
            ("checkpoint_status: ready\nno:\ncheckpoint_status: failed", Some(Readiness::Failed)),
            ("all is done", None),
            ("checkpoint_status: splendid", None),
            ("print checkpoint_status: ready when you are", None),
            ("", None),
        ];
        for (answer, expected) in table {
            assert_eq!(Readiness::parse_answer(answer), expected, "{answer:?}");
        }
    }
}
