//! A Workflow on a terminal: a line when a step ends, and a status row while the Workflow runs.

use super::sanitise::{name_on_one_line, one_line};
use super::text_view::Surface;
use crate::agent::harness::{StepState, WatchedStep, WorkflowWatch};
use crate::base::error::counted;
use crate::record::event::{WorkflowEvent, WorkflowEventKind};

/// The widest line, in cells.
const WIDTH: usize = 160;

/// How many running steps are named.
const MOST_NAMED: usize = 6;

/// The Workflow run that is shown.
#[derive(Debug, Default)]
pub struct WorkflowView(Option<WorkflowWatch>);

impl WorkflowView {
    /// Applies an Event; returns the line to print for it, if any.
    pub fn show_event(&mut self, event: &WorkflowEvent, surface: Surface) -> Option<String> {
        if let Some(begun) = WorkflowWatch::from_event(event) {
            let (count, ready) = (begun.steps.len(), begun.count_steps(StepState::Ready));
            let how = match event.kind {
                WorkflowEventKind::Resumed => {
                    format!("resumed, {ready} of {} ready", counted(count, "step"))
                }
                _ => counted(count, "step"),
            };
            let line = format!("workflow {} ({}): {how}", begun.name, begun.id);
            self.0 = Some(begun);
            return Some(one_line(&line, WIDTH));
        }
        let watch = self.0.as_mut()?;
        let changed = watch.apply_event(event);
        if event.kind == WorkflowEventKind::CheckpointDecided {
            let step = watch.steps.get(changed?)?;
            let line = format!("{} {}", state_mark(step.state, surface), step_text(step));
            return Some(one_line(&line, WIDTH));
        }
        match event.kind {
            WorkflowEventKind::Finished => {
                let outcome = watch.outcome.clone().unwrap_or_default();
                let ready = watch.count_steps(StepState::Ready);
                let line = format!(
                    "workflow {} {outcome}: {ready} of {} ready",
                    watch.name,
                    counted(watch.steps.len(), "step")
                );
                Some(one_line(&line, WIDTH))
            }
            WorkflowEventKind::Verification => {
                let text = |key: &str| event.extra.get(key).and_then(serde_json::Value::as_str);
                let is_ok = event.extra.get("ok") == Some(&serde_json::Value::Bool(true));
                let how = if is_ok { "passed" } else { "did not pass" };
                let step = event.step_id.as_deref().unwrap_or_default();
                let command = text("command").unwrap_or_default();
                Some(name_on_one_line(&format!("{step}: `{command}` {how}"), WIDTH))
            }
            // Undoing a step changes files of the user, so it is shown.
            WorkflowEventKind::StepTakenBack => {
                let count = event.extra.get("files").and_then(serde_json::Value::as_u64);
                let count = count.filter(|count| *count > 0)?;
                let files = if count == 1 { "file" } else { "files" };
                let step = event.step_id.as_deref().unwrap_or_default();
                let line = format!("  {step}: its changes were undone ({count} {files})");
                Some(one_line(&line, WIDTH))
            }
            WorkflowEventKind::StepRetrying => {
                let step = event.step_id.as_deref().unwrap_or_default();
                Some(one_line(&format!("  {step}: tried again"), WIDTH))
            }
            _ => None,
        }
    }

    /// The status of a running Workflow, in one row of `width` cells: counts first, because the names of
    /// the running steps are cut where there is no room.
    pub fn status_row(&self, width: usize) -> Option<String> {
        let watch = self.0.as_ref().filter(|watch| watch.outcome.is_none())?;
        let running: Vec<&str> = watch
            .steps
            .iter()
            .filter(|step| step.state == StepState::Running)
            .map(|step| step.id.as_str())
            .collect();
        let mut parts = Vec::new();
        let counts = [
            (StepState::Ready, "✓", ""),
            (StepState::Partial, "~", " partial"),
            (StepState::Failed, "✗", " failed"),
            (StepState::Held, "‖", " held"),
            (StepState::Waiting, "·", " waiting"),
        ];
        for (state, mark, word) in counts {
            let count = watch.count_steps(state);
            if count > 0 {
                parts.push(format!("{mark} {count}{word}"));
            }
        }
        if !running.is_empty() {
            let named = running.iter().take(MOST_NAMED).copied().collect::<Vec<_>>().join(" ");
            let more = running.len().saturating_sub(MOST_NAMED);
            let more = if more > 0 { format!(" +{more}") } else { String::new() };
            parts.push(format!("▸ {named}{more}"));
        }
        let name = one_line(&watch.name, width / 4);
        Some(one_line(&format!("  {name}: {}", parts.join("  ")), width))
    }
}

fn step_text(step: &WatchedStep) -> String {
    let state = step.state.name();
    if step.detail.is_empty() {
        return format!("{} {state}", step.id);
    }
    format!("{} {state}: {}", step.id, step.detail)
}

fn state_mark(state: StepState, surface: Surface) -> &'static str {
    match (surface, state) {
        (Surface::Terminal, StepState::Ready) => "✓",
        (Surface::Terminal, StepState::Failed) => "✗",
        (Surface::Terminal, StepState::Partial) => "~",
        (Surface::Terminal, _) => "‖",
        (_, StepState::Ready) => "[x]",
        (_, StepState::Failed) => "[!]",
        (_, StepState::Partial) => "[~]",
        (_, _) => "[ ]",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use unicode_width::UnicodeWidthStr;

    use super::*;

    fn event(kind: &str, step: Option<&str>, facts: &Value) -> WorkflowEvent {
        let mut event = json!({"kind": kind, "workflow_id": "wf_1", "step_id": step});
        for (key, value) in facts.as_object().into_iter().flatten() {
            event[key] = value.clone();
        }
        serde_json::from_value(event).unwrap()
    }

    #[test]
    fn counts_are_seen_however_long_the_names_and_narrow_the_terminal() {
        let id = |place: usize| format!("a-step-with-a-name-that-is-long-{place}");
        let steps: Vec<Value> = (0..9).map(|place| json!({"id": id(place), "task": "x"})).collect();
        let facts = json!({"workflow_name": "A graph of many steps", "spec": {"steps": steps}});
        let mut graph = WorkflowView::default();
        graph.show_event(&event("started", None, &facts), Surface::Terminal);
        for place in 0..7 {
            let event = event("step_scheduled", Some(&id(place)), &json!({}));
            graph.show_event(&event, Surface::Terminal);
        }
        for (place, status) in [(0, "checkpoint_ready"), (1, "failed")] {
            let facts = json!({"checkpoint_status": status});
            let event = event("checkpoint_decided", Some(&id(place)), &facts);
            graph.show_event(&event, Surface::Terminal);
        }
        for width in [31, 79, 119] {
            let row = graph.status_row(width).unwrap();
            assert!(row.width() <= width, "{row}");
            assert!(row.contains("✓ 1 ✗ 1 failed"), "{row}");
        }
        assert!(
            graph.status_row(79).unwrap().contains("· 2 waiting ▸ a-step"),
            "{:?}",
            graph.status_row(79)
        );
    }
}
