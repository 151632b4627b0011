//! The report of a finished run: text for people and models, JSON for programs.

use std::fmt::Write;

use serde_json::{Value, json};

use super::checkpoint::CheckpointBundle;
use super::outcome::{HaltReason, Readiness, RunOutcome, StepStatus};
use super::run::FinishedRun;
use crate::base::error::counted;
use crate::base::text::bound_text;
use crate::record::event::SubagentUsage;

/// The least that is shown of each step, in bytes.
const SMALLEST_SHARE: usize = 200;

/// The most that is shown of each step, in bytes.
const LARGEST_SHARE: usize = 4 * 1024;

impl FinishedRun {
    /// The usage of all steps together.
    pub fn usage(&self) -> SubagentUsage {
        let mut all = SubagentUsage::default();
        for bundle in &self.bundles {
            all.add(&bundle.usage);
        }
        all
    }

    /// The ids of the steps whose bundles satisfy a condition.
    fn steps_where(&self, is: impl Fn(&CheckpointBundle) -> bool) -> Vec<&str> {
        self.bundles.iter().filter(|bundle| is(bundle)).map(|own| own.step_id.as_str()).collect()
    }

    /// The safe next actions: words that a program can match, and the command that resumes the run.
    pub fn safe_next_actions(&self) -> Vec<String> {
        let mut actions: Vec<String> = Vec::new();
        if self.outcome == RunOutcome::Completed {
            return actions;
        }
        actions.push(format!("resume: pixir workflow resume {}", self.run_id));
        for bundle in &self.bundles {
            for action in &bundle.safe_next_actions {
                if !actions.contains(action) {
                    actions.push(action.clone());
                }
            }
        }
        actions
    }

    /// The fields of the run's `finished` Event.
    pub(super) fn event_fields(&self) -> Value {
        let mut facts = self.to_json();
        if let Value::Object(fields) = &mut facts {
            // Each step has its own Event, and every Event names the run.
            fields.remove("steps");
            fields.remove("workflow_id");
        }
        facts
    }

    /// The run as JSON.
    pub fn to_json(&self) -> Value {
        let id = |place: &usize| self.workflow.steps.get(*place).map(|step| step.id.as_str());
        let halt = self.halt.as_ref().map(HaltReason::name);
        let of = |readiness: Readiness| {
            self.steps_where(move |bundle| bundle.checkpoint_status == readiness)
        };
        json!({
            "workflow_id": self.run_id,
            "workflow_name": self.workflow.name,
            "session_id": self.session_id,
            "status": self.outcome,
            "ok": self.outcome == RunOutcome::Completed,
            "reason": halt,
            "steps": self.bundles,
            "waves": self.waves.iter().map(|wave| wave.iter().filter_map(id).collect::<Vec<_>>()).collect::<Vec<_>>(),
            "reused_steps": self.reused.iter().filter_map(id).collect::<Vec<_>>(),
            "usable_checkpoints": of(Readiness::CheckpointReady),
            "partial_steps": of(Readiness::Partial),
            "needs_orchestrator_steps": of(Readiness::NeedsOrchestrator),
            "failed_steps": of(Readiness::Failed),
            "held_steps": of(Readiness::Held),
            "timed_out_steps": self.steps_where(|bundle| bundle.status == StepStatus::TimedOut),
            "usage": self.usage(),
            "safe_next_actions": self.safe_next_actions(),
        })
    }

    /// One line: the outcome, and how many steps are ready.
    pub fn headline(&self) -> String {
        let count = |readiness: Readiness| {
            self.bundles.iter().filter(|bundle| bundle.checkpoint_status == readiness).count()
        };
        let mut line = format!(
            "Workflow `{}` {}: {} of {} ready",
            self.workflow.name,
            self.outcome.name(),
            count(Readiness::CheckpointReady),
            counted(self.bundles.len(), "step")
        );
        for readiness in
            [Readiness::Partial, Readiness::NeedsOrchestrator, Readiness::Failed, Readiness::Held]
        {
            let some = count(readiness);
            if some > 0 {
                // Writing to a String cannot fail.
                write!(line, ", {some} {}", readiness.name().replace('_', " ")).ok();
            }
        }
        if let Some(halt) = &self.halt {
            write!(line, " ({})", halt.name().replace('_', " ")).ok();
        }
        line.push('.');
        line
    }

    /// The run as text of about `limit` bytes, divided equally between the steps.
    pub fn report(&self, limit: usize) -> String {
        let frame = 160 * self.bundles.len();
        let room = limit.saturating_sub(frame) / self.bundles.len().max(1);
        let share = room.clamp(SMALLEST_SHARE, LARGEST_SHARE);
        let mut text = self.headline();
        for bundle in &self.bundles {
            text.push_str("\n\n");
            text.push_str(&step_line(bundle));
            if !bundle.summary.is_empty() {
                text.extend(["\n", &bound_text(&bundle.summary, share)]);
            }
        }
        let advice = self.advice();
        if !advice.is_empty() {
            text.push('\n');
        }
        for sentence in advice {
            text.extend(["\n- ", &sentence]);
        }
        text
    }

    /// Next actions, in sentences for people and models.
    fn advice(&self) -> Vec<String> {
        if self.outcome == RunOutcome::Completed {
            return Vec::new();
        }
        let again =
            format!("Run the steps that are not ready: pixir workflow resume {}", self.run_id);
        let mut sentences = vec![again];
        sentences.extend(self.bundles.iter().filter_map(advice_for));
        let held = self.steps_where(|bundle| bundle.checkpoint_status == Readiness::Held);
        if !held.is_empty() {
            let held = held.join(", ");
            sentences.push(format!("Not started because of other steps or the time limit: {held}"));
        }
        sentences
    }
}

/// Advice about a step that ran and is not ready.
fn advice_for(bundle: &CheckpointBundle) -> Option<String> {
    let advice = match (bundle.checkpoint_status, bundle.status) {
        (Readiness::CheckpointReady | Readiness::Held, _) => return None,
        (Readiness::Partial, _) => {
            "did not state that its task is done; read its answer, and use it as it is or run it again"
        }
        (Readiness::NeedsOrchestrator, _) => "needs a decision, which its answer names",
        (Readiness::Failed, StepStatus::TimedOut) => {
            "ran out of time; give it a larger `timeout_ms` before you run it again"
        }
        (Readiness::Failed, StepStatus::Cancelled) => "was cancelled",
        (Readiness::Failed, _) => "failed; find out why before you run it again",
    };
    let look = bundle.child_session_id.as_ref();
    let look = look.map(|id| format!(" (see what it did: pixir diagnose {id})"));
    Some(format!("{} {advice}{}", bundle.step_id, look.unwrap_or_default()))
}

/// The readiness in words, for people.
fn readiness_label(readiness: Readiness) -> &'static str {
    match readiness {
        Readiness::CheckpointReady => "ready",
        Readiness::NeedsOrchestrator => "needs a decision",
        Readiness::Partial | Readiness::Failed | Readiness::Held => readiness.name(),
    }
}

/// The result of a step in one line.
pub fn step_line(bundle: &CheckpointBundle) -> String {
    let mut line = format!("{}: {}", bundle.step_id, readiness_label(bundle.checkpoint_status));
    if let Some(reason) = &bundle.reason {
        line.extend([" (", &reason.replace('_', " "), ")"]);
    }
    if bundle.elapsed_ms > 0 {
        let seconds = std::time::Duration::from_millis(bundle.elapsed_ms).as_secs_f64();
        write!(line, ", {seconds:.1} s, {} tokens", bundle.usage.total_tokens).ok();
    }
    let passed = bundle.verification.iter().filter(|verified| verified.ok).count();
    if !bundle.verification.is_empty() {
        write!(line, ", {passed} of {} checks passed", bundle.verification.len()).ok();
    }
    if let Some(child) = &bundle.child_session_id {
        line.extend([" [Log ", child, "]"]);
    }
    line
}
