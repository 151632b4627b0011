//! Runs as the Log tells of them: what was asked for, how far each step came, and what is left of
//! a run that was cut off.

use serde_json::Value;

use super::checkpoint::Bundle;
use super::outcome::Outcome;
use super::spec::Workflow;
use crate::event::{Canonical, SubagentEvent, WorkflowEvent, WorkflowEventKind};
use crate::id::SessionId;

/// A run, as far as its Log tells.
#[derive(Debug, Clone, PartialEq)]
pub struct Past {
    pub id: String,
    pub workflow: Workflow,
    /// Of the normalised spec.
    pub spec_sha256: String,
    /// In the order of the Workflow.
    pub steps: Vec<PastStep>,
    /// `None` when it is under way, or was cut off.
    pub outcome: Option<Outcome>,
    /// How often it was gone on with.
    pub resumes: u32,
    /// How many steps were started.
    starts: usize,
}

/// A step of such a run.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PastStep {
    /// It was started, now or in an earlier part of the run.
    pub is_scheduled: bool,
    /// Which start of the run it was, the last time.
    pub turn: usize,
    /// In which part of the run that was: how often it had been gone on with.
    pub part: u32,
    /// What it came to.
    pub bundle: Option<Bundle>,
    /// The Sessions that worked for it, the oldest first.
    pub children: Vec<SessionId>,
}

impl PastStep {
    /// It began, and nobody knows what it came to.
    pub fn is_cut_off(&self) -> bool {
        self.is_scheduled && self.bundle.is_none()
    }
}

/// All runs of a Session, the oldest first. A `started` that cannot be understood is no run.
pub fn runs<'f>(facts: impl Iterator<Item = &'f Canonical>) -> Vec<Past> {
    let mut runs: Vec<Past> = Vec::new();
    for fact in facts {
        match fact {
            Canonical::WorkflowEvent(event) if event.kind == WorkflowEventKind::Started => {
                runs.extend(Past::begun(event));
            }
            Canonical::WorkflowEvent(event) => {
                if let Some(run) = runs.iter_mut().rfind(|run| run.id == event.workflow_id) {
                    run.apply(event);
                }
            }
            Canonical::SubagentEvent(event) => {
                let id = event.extra.get("workflow_id").and_then(Value::as_str);
                if let Some(run) = id.and_then(|id| runs.iter_mut().rfind(|run| run.id == id)) {
                    run.apply_child(event);
                }
            }
            _ => {}
        }
    }
    runs
}

/// The steps that an earlier part of the run had finished, as the first Event of this part says.
pub fn reused(event: &WorkflowEvent) -> Vec<&str> {
    let ids = event.extra.get("reused").and_then(Value::as_array);
    ids.into_iter().flatten().filter_map(Value::as_str).collect()
}

/// What to tell whoever comes back to a Session with a run that was cut off.
pub fn cut_off<'f>(facts: impl Iterator<Item = &'f Canonical>) -> Option<String> {
    let last = runs(facts).pop().filter(|run| run.outcome.is_none())?;
    Some(last.offer())
}

impl Past {
    /// How to go on with it.
    pub fn offer(&self) -> String {
        let Self { id, workflow, .. } = self;
        format!(
            "the run {id} of workflow {} was cut off: go on with `pixir workflow resume {id}`",
            workflow.name
        )
    }

    fn begun(event: &WorkflowEvent) -> Option<Self> {
        let spec = event.extra.get("spec")?.clone();
        let workflow: Workflow = serde_json::from_value(spec).ok()?;
        let spec_sha256 = event.extra.get("spec_sha256")?.as_str()?.to_owned();
        Some(Self {
            id: event.workflow_id.clone(),
            steps: vec![PastStep::default(); workflow.steps.len()],
            workflow,
            spec_sha256,
            outcome: None,
            resumes: 0,
            starts: 0,
        })
    }

    fn step(&mut self, id: Option<&str>) -> Option<&mut PastStep> {
        let place = self.workflow.steps.iter().position(|step| Some(step.id.as_str()) == id)?;
        self.steps.get_mut(place)
    }

    fn apply(&mut self, event: &WorkflowEvent) {
        match event.kind {
            WorkflowEventKind::Resumed => {
                self.outcome = None;
                self.resumes += 1;
                let reused = reused(event);
                for (step, past) in self.workflow.steps.iter().zip(&mut self.steps) {
                    if !reused.contains(&step.id.as_str()) {
                        past.bundle = None;
                    }
                }
            }
            WorkflowEventKind::StepScheduled => {
                self.starts += 1;
                let (turn, part) = (self.starts, self.resumes);
                if let Some(step) = self.step(event.step_id.as_deref()) {
                    step.is_scheduled = true;
                    step.turn = turn;
                    step.part = part;
                    step.bundle = None;
                }
            }
            WorkflowEventKind::CheckpointDecided => {
                let bundle = event.extra.get("checkpoint").cloned();
                let bundle = bundle.and_then(|bundle| serde_json::from_value(bundle).ok());
                if let Some(step) = self.step(event.step_id.as_deref()) {
                    step.bundle = bundle;
                }
            }
            // What its children did is gone.
            WorkflowEventKind::StepTakenBack => {
                if let Some(step) = self.step(event.step_id.as_deref()) {
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

    fn apply_child(&mut self, event: &SubagentEvent) {
        let Some(child) = &event.child_session_id else { return };
        let Ok(child) = SessionId::parse(child) else { return };
        let id = event.extra.get("step_id").and_then(Value::as_str).map(str::to_owned);
        if let Some(step) = self.step(id.as_deref())
            && !step.children.contains(&child)
        {
            step.children.push(child);
        }
    }
}
