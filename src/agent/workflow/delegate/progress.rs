//! Progress of a delegation: a line of JSON whenever a child starts, is retried or ends.

use std::time::Instant;

use serde_json::{Value, json};

use super::CONTRACT_VERSION;
use crate::agent::workflow::watch::{StepState, WatchedRun};
use crate::record::event::{WorkflowEvent, WorkflowEventKind};

/// Turns Events of a run into lines of progress.
pub struct DelegateProgress {
    began: Instant,
    sequence: u64,
    session: String,
    watch: Option<WatchedRun>,
}

impl DelegateProgress {
    /// A progress stream without a run yet.
    pub fn new(began: Instant, session: String) -> Self {
        Self { began, sequence: 0, session, watch: None }
    }

    /// Applies an Event; returns the line of progress for it, if there is one.
    pub fn apply_event(&mut self, event: &WorkflowEvent) -> Option<String> {
        if let Some(begun) = WatchedRun::from_event(event) {
            let steps: Vec<Value> =
                (0..begun.steps.len()).map(|place| child_json(&begun, place)).collect();
            self.watch = Some(begun);
            return Some(self.format_line("delegate_started", json!({ "children": steps })));
        }
        let watch = self.watch.as_mut()?;
        let place = watch.apply_event(event);
        let kind = match event.kind {
            WorkflowEventKind::StepScheduled => "child_started",
            WorkflowEventKind::StepRetrying => "child_retrying",
            WorkflowEventKind::CheckpointDecided => "child_ended",
            _ => return None,
        };
        let named = watch.steps.iter().position(|own| Some(&own.id) == event.step_id.as_ref());
        let own = child_json(watch, place.or(named)?);
        Some(self.format_line(kind, json!({ "child": own })))
    }

    /// The last line.
    pub fn finished_line(&mut self, status: &str, exit_code: u8) -> String {
        self.format_line("delegate_finished", json!({ "status": status, "exit_code": exit_code }))
    }

    /// The last line when the delegation was refused.
    pub fn refused_line(&mut self, error: &Value, exit_code: u8) -> String {
        self.format_line("delegate_refused", json!({ "error": error, "exit_code": exit_code }))
    }

    fn format_line(&mut self, kind: &str, particulars: Value) -> String {
        let watch = self.watch.as_ref();
        let count = |state: StepState| watch.map_or(0, |watch| watch.count_steps(state));
        let mut line = json!({
            "type": kind,
            "sequence": self.sequence,
            "contract_version": CONTRACT_VERSION,
            "session_id": Some(&self.session).filter(|id| !id.is_empty()),
            "workflow_id": watch.map(|watch| &watch.id),
            "elapsed_ms": u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX),
            "counts": {
                "total": watch.map_or(0, |watch| watch.steps.len()),
                "waiting": count(StepState::Waiting),
                "running": count(StepState::Running),
                "completed": count(StepState::Ready),
                "partial": count(StepState::Partial),
                "failed": count(StepState::Failed),
                "held": count(StepState::Held),
            },
        });
        self.sequence += 1;
        if let (Value::Object(line), Value::Object(mut own)) = (&mut line, particulars) {
            line.append(&mut own);
        }
        format!("{line}\n")
    }
}

/// A child and its state, as JSON.
fn child_json(watch: &WatchedRun, place: usize) -> Value {
    let Some(own) = watch.steps.get(place) else { return Value::Null };
    let state = match own.state {
        StepState::Ready => "completed",
        state => state.name(),
    };
    json!({ "index": place, "id": own.id, "state": state })
}
