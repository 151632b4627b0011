//! Replay of workflow runs from the Log: the Workflow, how far each step came, and what an interrupted run left.

use serde_json::Value;

use super::checkpoint::CheckpointBundle;
use super::outcome::RunOutcome;
use super::spec::Workflow;
use crate::base::id::SessionId;
use crate::record::event::{Canonical, SubagentEvent, WorkflowEvent, WorkflowEventKind};

/// A run, rebuilt from the Log.
#[derive(Debug, Clone, PartialEq)]
pub struct RecordedRun {
    pub id: String,
    pub workflow: Workflow,
    /// The hash of the normalised spec.
    pub spec_sha256: String,
    /// In the order of the Workflow.
    pub steps: Vec<RecordedStep>,
    /// `None` while the run is under way, and when it was interrupted.
    pub outcome: Option<RunOutcome>,
    /// How often it was resumed.
    pub resumes: u32,
    /// How many starts of steps are recorded.
    starts: usize,
}

/// A step of a recorded run.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RecordedStep {
    /// Whether it was started, in this or an earlier part of the run.
    pub is_scheduled: bool,
    /// The ordinal of its last start among all starts of the run; 0 if it never started.
    pub start_order: usize,
    /// In which part of the run it last started: how often the run had been resumed by then.
    pub part: u32,
    /// Its result.
    pub bundle: Option<CheckpointBundle>,
    /// The child Sessions of its attempts, the oldest first.
    pub children: Vec<SessionId>,
}

impl RecordedStep {
    /// Whether it started and has no recorded result.
    pub fn is_interrupted(&self) -> bool {
        self.is_scheduled && self.bundle.is_none()
    }
}

/// All runs of a Session, the oldest first. A `started` event that cannot be parsed is skipped.
pub fn replay_runs<'f>(facts: impl Iterator<Item = &'f Canonical>) -> Vec<RecordedRun> {
    let mut runs: Vec<RecordedRun> = Vec::new();
    for fact in facts {
        match fact {
            Canonical::WorkflowEvent(event) if event.kind == WorkflowEventKind::Started => {
                runs.extend(RecordedRun::from_started(event));
            }
            Canonical::WorkflowEvent(event) => {
                if let Some(run) = runs.iter_mut().rfind(|run| run.id == event.workflow_id) {
                    run.apply_event(event);
                }
            }
            Canonical::SubagentEvent(event) => {
                let id = event.extra.get("workflow_id").and_then(Value::as_str);
                if let Some(run) = id.and_then(|id| runs.iter_mut().rfind(|run| run.id == id)) {
                    run.apply_child_event(event);
                }
            }
            _ => {}
        }
    }
    runs
}

/// The ids of the steps that an earlier part of the run had finished, from the first Event of this part.
pub fn reused_steps(event: &WorkflowEvent) -> Vec<&str> {
    let ids = event.extra.get("reused").and_then(Value::as_array);
    ids.into_iter().flatten().filter_map(Value::as_str).collect()
}

/// The notice for a Session whose last run was interrupted.
pub fn interrupted_run_notice<'f>(facts: impl Iterator<Item = &'f Canonical>) -> Option<String> {
    let last = replay_runs(facts).pop().filter(|run| run.outcome.is_none())?;
    Some(last.resume_hint())
}

impl RecordedRun {
    /// The sentence that says how to resume the run.
    pub fn resume_hint(&self) -> String {
        let Self { id, workflow, .. } = self;
        format!(
            "the run {id} of workflow {} was cut off: resume it with `pixir workflow resume {id}`",
            workflow.name
        )
    }

    fn from_started(event: &WorkflowEvent) -> Option<Self> {
        let spec = event.extra.get("spec")?.clone();
        let workflow: Workflow = serde_json::from_value(spec).ok()?;
        let spec_sha256 = event.extra.get("spec_sha256")?.as_str()?.to_owned();
        Some(Self {
            id: event.workflow_id.clone(),
            steps: vec![RecordedStep::default(); workflow.steps.len()],
            workflow,
            spec_sha256,
            outcome: None,
            resumes: 0,
            starts: 0,
        })
    }

    fn step_mut(&mut self, id: Option<&str>) -> Option<&mut RecordedStep> {
        let place = self.workflow.steps.iter().position(|step| Some(step.id.as_str()) == id)?;
        self.steps.get_mut(place)
    }

    fn apply_event(&mut self, event: &WorkflowEvent) {
        match event.kind {
            WorkflowEventKind::Resumed => {
                self.outcome = None;
                self.resumes += 1;
                let reused = reused_steps(event);
                for (step, past) in self.workflow.steps.iter().zip(&mut self.steps) {
                    if !reused.contains(&step.id.as_str()) {
                        past.bundle = None;
                    }
                }
            }
            WorkflowEventKind::StepScheduled => {
                self.starts += 1;
                let (turn, part) = (self.starts, self.resumes);
                if let Some(step) = self.step_mut(event.step_id.as_deref()) {
                    step.is_scheduled = true;
                    step.start_order = turn;
                    step.part = part;
                    step.bundle = None;
                }
            }
            WorkflowEventKind::CheckpointDecided => {
                let bundle = event.extra.get("checkpoint").cloned();
                let bundle = bundle.and_then(|bundle| serde_json::from_value(bundle).ok());
                if let Some(step) = self.step_mut(event.step_id.as_deref()) {
                    step.bundle = bundle;
                }
            }
            // The changes of its children were rolled back.
            WorkflowEventKind::StepTakenBack => {
                if let Some(step) = self.step_mut(event.step_id.as_deref()) {
                    step.is_scheduled = false;
                    step.children.clear();
                }
            }
            WorkflowEventKind::Finished => {
                let outcome = event.extra.get("status").cloned();
                self.outcome = outcome.and_then(|outcome| serde_json::from_value(outcome).ok());
            }
            _ => {}
        }
    }

    fn apply_child_event(&mut self, event: &SubagentEvent) {
        let Some(child) = &event.child_session_id else { return };
        let Ok(child) = SessionId::parse(child) else { return };
        let id = event.extra.get("step_id").and_then(Value::as_str).map(str::to_owned);
        if let Some(step) = self.step_mut(id.as_deref())
            && !step.children.contains(&child)
        {
            step.children.push(child);
        }
    }
}
