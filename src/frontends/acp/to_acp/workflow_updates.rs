//! A Workflow as ACP updates: its steps are the plan, and a step without a Subagent is a tool call.

use agent_client_protocol_schema::v1::{
    Plan, PlanEntry, PlanEntryPriority, PlanEntryStatus, SessionUpdate, ToolCall, ToolCallStatus,
    ToolCallUpdate, ToolCallUpdateFields, ToolKind,
};

use super::call;
use crate::agent::harness::{StepState, WatchedStep, WorkflowWatch};
use crate::base::error::counted;
use crate::record::event::{WorkflowEvent, WorkflowEventKind};

/// The Workflow run that is shown.
#[derive(Debug, Default)]
pub struct WorkflowUpdates(Option<WorkflowWatch>);

impl WorkflowUpdates {
    /// Renders an Event of the run.
    pub fn render_event(&mut self, event: &WorkflowEvent) -> Vec<SessionUpdate> {
        if let Some(begun) = WorkflowWatch::from_event(event) {
            let updates = vec![workflow_plan_update(&begun)];
            self.0 = Some(begun);
            return updates;
        }
        let Some(watch) = &mut self.0 else { return Vec::new() };
        let changed = watch.apply_event(event);
        if event.kind == WorkflowEventKind::Resumed {
            return vec![workflow_plan_update(watch)];
        }
        let Some(step) = changed.and_then(|place| watch.steps.get(place)) else {
            return Vec::new();
        };
        let mut updates = vec![workflow_plan_update(watch)];
        if step.applies {
            updates.extend(apply_step_update(&watch.id, step));
        }
        updates
    }
}

/// The title of a step: its description, or its id in words.
fn step_title(step: &WatchedStep) -> String {
    let words = match super::title_text(&step.about) {
        about if about.is_empty() => step.id.replace(['_', '-'], " "),
        about => about,
    };
    super::capitalised(&words)
}

/// The longest plan; each change sends the whole plan again.
const MAX_PLAN_ENTRIES: usize = 40;

fn workflow_plan_update(watch: &WorkflowWatch) -> SessionUpdate {
    if watch.steps.len() > MAX_PLAN_ENTRIES {
        return summary_plan_update(watch);
    }
    let entry = |step: &WatchedStep| {
        let status = match step.state {
            StepState::Waiting | StepState::Held => PlanEntryStatus::Pending,
            StepState::Running => PlanEntryStatus::InProgress,
            StepState::Ready | StepState::Partial | StepState::Failed => PlanEntryStatus::Completed,
        };
        let mark = match step.state {
            StepState::Partial | StepState::Failed | StepState::Held => {
                format!(" ({})", step.state.name())
            }
            StepState::Waiting | StepState::Running | StepState::Ready => String::new(),
        };
        PlanEntry::new(format!("{}{mark}", step_title(step)), PlanEntryPriority::Medium, status)
    };
    SessionUpdate::Plan(Plan::new(watch.steps.iter().map(entry).collect()))
}

/// The plan of a long Workflow: counts, and the running steps.
fn summary_plan_update(watch: &WorkflowWatch) -> SessionUpdate {
    // Held steps will not start, so they are not waiting.
    let left = watch.count_steps(StepState::Waiting);
    let running: Vec<&WatchedStep> =
        watch.steps.iter().filter(|step| step.state == StepState::Running).collect();
    let done = watch.steps.len() - left - running.len();
    let entry = |words: String, status: PlanEntryStatus| {
        PlanEntry::new(words, PlanEntryPriority::Medium, status)
    };
    let states =
        [(StepState::Partial, "partial"), (StepState::Failed, "failed"), (StepState::Held, "held")];
    let counts: Vec<String> = states
        .into_iter()
        .map(|(state, word)| (watch.count_steps(state), word))
        .filter(|(count, _)| *count > 0)
        .map(|(count, word)| format!("{count} {word}"))
        .collect();
    let counts =
        if counts.is_empty() { String::new() } else { format!(" ({})", counts.join(", ")) };
    let over = format!("{done} of {} over{counts}", counted(watch.steps.len(), "step"));
    let mut entries = vec![entry(over, PlanEntryStatus::Completed)];
    for step in running.iter().take(MAX_PLAN_ENTRIES - 2) {
        entries.push(entry(step_title(step), PlanEntryStatus::InProgress));
    }
    entries.push(entry(format!("{} waiting", counted(left, "step")), PlanEntryStatus::Pending));
    SessionUpdate::Plan(Plan::new(entries))
}

/// The tool call that shows a step without a Subagent.
fn apply_step_update(run: &str, step: &WatchedStep) -> Option<SessionUpdate> {
    let id = format!("{run}/{}", step.id);
    let status = match step.state {
        StepState::Running => {
            let first = ToolCall::new(id, step_title(step))
                .kind(ToolKind::Edit)
                .status(ToolCallStatus::InProgress);
            return Some(SessionUpdate::ToolCall(first));
        }
        StepState::Ready => ToolCallStatus::Completed,
        StepState::Partial | StepState::Failed => ToolCallStatus::Failed,
        // It has not begun, so the client has no call to update.
        StepState::Waiting | StepState::Held => return None,
    };
    let fields =
        ToolCallUpdateFields::new().status(status).content(vec![call::text_content(&step.detail)]);
    Some(SessionUpdate::ToolCallUpdate(ToolCallUpdate::new(id, fields)))
}
