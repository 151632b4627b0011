//! The live state of a run, rebuilt from its Events, for presenters.

use serde::Deserialize;
use serde_json::Value;

use super::replay::reused_steps;
use crate::base::names::names;
use crate::record::event::{WorkflowEvent, WorkflowEventKind};

/// A run as a presenter shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WatchedRun {
    /// The id of the run.
    pub id: String,
    /// The name of its Workflow.
    pub name: String,
    /// In the order of the Workflow.
    pub steps: Vec<WatchedStep>,
    /// Its outcome, once it has ended.
    pub outcome: Option<String>,
}

/// A step of a watched run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WatchedStep {
    /// Its id in the Workflow.
    pub id: String,
    /// Its task, in one line.
    pub about: String,
    /// Whether it merges another step's changes instead of running a Subagent.
    pub applies: bool,
    /// Its state.
    pub state: StepState,
    /// The reason why it is not ready, and the first line of its summary.
    pub detail: String,
}

/// A step in the `started` or `resumed` Event of a run.
#[derive(Deserialize)]
struct AnnouncedStep {
    #[serde(default)]
    id: String,
    task: Option<String>,
    apply: Option<String>,
}

/// The state of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepState {
    /// Not started yet.
    Waiting,
    /// Started, and not ended.
    Running,
    /// Ended; other steps may rely on it.
    Ready,
    /// Ended, but the result is unchecked or a decision is needed.
    Partial,
    /// Ended with a failure.
    Failed,
    /// Will not start.
    Held,
}

names!(StepState {
    Waiting = "waiting", Running = "running", Ready = "ready", Partial = "partial",
    Failed = "failed", Held = "held",
});

impl WatchedRun {
    /// The run that a `started` or `resumed` Event begins; `None` for other Events.
    pub fn from_event(event: &WorkflowEvent) -> Option<Self> {
        let steps = match event.kind {
            WorkflowEventKind::Started => event.extra.get("spec")?.get("steps")?,
            WorkflowEventKind::Resumed => event.extra.get("steps")?,
            _ => return None,
        };
        let steps: Vec<AnnouncedStep> = serde_json::from_value(steps.clone()).ok()?;
        let reused = reused_steps(event);
        let step = |step: AnnouncedStep| WatchedStep {
            about: match &step.apply {
                None => step
                    .task
                    .as_deref()
                    .and_then(|task| task.lines().next())
                    .unwrap_or_default()
                    .to_owned(),
                Some(source) => format!("apply what {source} changed"),
            },
            applies: step.apply.is_some(),
            state: if reused.contains(&step.id.as_str()) {
                StepState::Ready
            } else {
                StepState::Waiting
            },
            id: step.id,
            detail: String::new(),
        };
        let name = event.extra.get("workflow_name").and_then(Value::as_str).unwrap_or_default();
        Some(Self {
            id: event.workflow_id.clone(),
            name: name.to_owned(),
            steps: steps.into_iter().map(step).collect(),
            outcome: None,
        })
    }

    /// Applies an Event of this run; returns the index of the step that it changed.
    pub fn apply_event(&mut self, event: &WorkflowEvent) -> Option<usize> {
        if event.workflow_id != self.id {
            return None;
        }
        if event.kind == WorkflowEventKind::Finished {
            let status = event.extra.get("status").and_then(Value::as_str);
            self.outcome = status.map(str::to_owned);
            return None;
        }
        if event.kind == WorkflowEventKind::Resumed {
            self.outcome = None;
            let reused = reused_steps(event);
            for step in self.steps.iter_mut().filter(|step| !reused.contains(&step.id.as_str())) {
                step.state = StepState::Waiting;
                step.detail.clear();
            }
            return None;
        }
        let place = self.steps.iter().position(|step| Some(&step.id) == event.step_id.as_ref())?;
        let step = self.steps.get_mut(place)?;
        match event.kind {
            WorkflowEventKind::StepScheduled => step.state = StepState::Running,
            WorkflowEventKind::CheckpointDecided => {
                let status = event.extra.get("checkpoint_status").and_then(Value::as_str);
                step.state = match status {
                    Some("checkpoint_ready") => StepState::Ready,
                    Some("held") => StepState::Held,
                    Some("failed") => StepState::Failed,
                    _ => StepState::Partial,
                };
                let bundle = event.extra.get("checkpoint");
                let field = |key: &str| bundle.and_then(|own| own.get(key)).and_then(Value::as_str);
                let summary = field("summary").unwrap_or_default();
                let first =
                    summary.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
                step.detail = match (step.state, field("reason")) {
                    (StepState::Ready, _) | (_, None) => first.to_owned(),
                    (_, Some(reason)) => format!("{}: {first}", reason.replace('_', " ")),
                };
            }
            _ => return None,
        }
        Some(place)
    }

    /// How many steps are in a state.
    pub fn count_steps(&self, state: StepState) -> usize {
        self.steps.iter().filter(|step| step.state == state).count()
    }
}
