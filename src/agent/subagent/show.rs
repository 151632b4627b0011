//! Text and JSON about Subagents, for the parent's model and for front-ends.

use std::fmt::Write;

use serde_json::{Value, json};

use super::record::{SubagentRecord, SubagentStatus, SubagentView, whole_millis};
use crate::base::error::Kind;
use crate::base::names::names;
use crate::base::text::{bound_text, on_one_line, truncate_chars};
use crate::base::tool_error::ToolError;

/// The largest part of an answer for one child, in bytes.
const LARGEST_SHARE: usize = 4096;

/// The smallest part of an answer for one child, in bytes.
const SMALLEST_SHARE: usize = 160;

/// The largest part of a list for one summary, in bytes.
const LARGEST_MENTION: usize = 300;

/// The smallest summary that a list shows, in bytes.
const SMALLEST_MENTION: usize = 80;

/// The space for the lines around summaries, in bytes.
const FRAME: usize = 220;

/// The outcome of a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitOutcome {
    /// All children answered.
    Completed,
    /// All children have ended, some without an answer.
    Partial,
    /// Some children are still running.
    Incomplete,
}

names!(WaitOutcome { Completed = "completed", Partial = "partial", Incomplete = "incomplete" });

impl WaitOutcome {
    /// The outcome for children by their status; a child that was closed after its end keeps that end.
    pub fn from_views(views: &[SubagentView]) -> Self {
        let mut statuses = views.iter().map(|view| view.record.status);
        if statuses.clone().any(|status| !status.is_over()) {
            return WaitOutcome::Incomplete;
        }
        if statuses.all(|status| status == SubagentStatus::Completed) {
            return WaitOutcome::Completed;
        }
        WaitOutcome::Partial
    }
}

/// The status line of a child.
pub fn status_line(view: &SubagentView) -> String {
    let SubagentRecord { id, role, status, elapsed, usage, child, child_seq, .. } = &view.record;
    let mut line = format!("{id} ({role}) {}", status.name());
    match status {
        SubagentStatus::Queued if view.position > 0 => {
            write!(line, ", place {}", view.position).ok()
        }
        SubagentStatus::Queued => None,
        _ => write!(line, ", {:.1} s, {} tokens", elapsed.as_secs_f64(), usage.total_tokens).ok(),
    };
    if *status == SubagentStatus::Running && !view.activity.is_empty() {
        line.extend([", ", &view.activity]);
    }
    if let Some(reason) =
        view.record.reason.as_ref().filter(|_| *status != SubagentStatus::Completed)
    {
        line.extend([", reason ", reason]);
    }
    if let Some(child) = child {
        write!(line, " [Log {child}").ok();
        if let Some(seq) = child_seq {
            write!(line, " seq {seq}").ok();
        }
        line.push(']');
    }
    line
}

/// The text of a wait, and the ids of the children whose ends it reports.
pub struct WaitReport {
    pub text: String,
    pub ids: Vec<String>,
}

/// The children and their summaries, each with its fair share of `limit` bytes. Those that ended
/// come first; those that do not fit are left for the next wait.
pub fn wait_report(views: &[SubagentView], limit: usize) -> WaitReport {
    let (over, busy): (Vec<&SubagentView>, Vec<&SubagentView>) =
        views.iter().partition(|view| view.record.status.is_over());
    let mut text = match WaitOutcome::from_views(views) {
        WaitOutcome::Completed => format!("All {} completed.", views.len()),
        WaitOutcome::Partial => format!("All {} ended, but not all completed.", views.len()),
        WaitOutcome::Incomplete => {
            format!("{} of {} ended; wait again for the rest.", over.len(), views.len())
        }
    };
    let room = limit.saturating_sub(FRAME);
    let frames: usize = views.iter().map(|view| report_entry(view, 0).len()).sum();
    let fair = room.saturating_sub(frames + over.len()) / over.len().max(1);
    let share = fair.clamp(SMALLEST_SHARE, LARGEST_SHARE);
    let (mut ids, mut left) = (Vec::new(), views.len());
    for view in over.into_iter().chain(busy) {
        let entry = report_entry(view, share);
        if left < views.len() && text.len() + entry.len() > room {
            let words = "are not shown here: call `wait_agent` again, without ids";
            write!(text, "\n\n{left} more {words}").ok();
            break;
        }
        text.push_str(&entry);
        left -= 1;
        ids.extend(view.record.status.is_over().then(|| view.record.id.clone()));
    }
    WaitReport { text, ids }
}

/// A child with `share` bytes of its summary.
fn report_entry(view: &SubagentView, share: usize) -> String {
    let mut entry = format!("\n\n{}", status_line(view));
    let summary = view.record.summary.as_ref().filter(|text| !text.is_empty() && share > 0);
    if let Some(summary) = summary {
        entry.extend(["\n", &bound_text(summary, share)]);
    }
    for action in view.record.next_actions() {
        entry.extend(["\n- ", &action]);
    }
    entry
}

/// All children, each with the beginning of its summary if it fits into `limit` bytes. If not all
/// children fit, those that have ended are only counted.
pub fn list_text(views: &[SubagentView], limit: usize) -> String {
    if views.is_empty() {
        return "No Subagents.".to_owned();
    }
    let room = limit.saturating_sub(FRAME * views.len()) / views.len();
    let share = Some(room.min(LARGEST_MENTION)).filter(|share| *share >= SMALLEST_MENTION);
    let lines: Vec<String> = views.iter().map(|view| list_entry(view, share)).collect();
    let mut left = limit.saturating_sub(FRAME);
    let mut is_shown = vec![false; views.len()];
    let is_over = |place: &usize| views[*place].record.status.is_over();
    let (over, busy): (Vec<usize>, Vec<usize>) = (0..views.len()).partition(is_over);
    for place in busy.into_iter().chain(over.into_iter().rev()) {
        let Some(rest) = left.checked_sub(lines[place].len()) else { break };
        (left, is_shown[place]) = (rest, true);
    }
    let shown = lines.iter().zip(&is_shown).filter(|(_, is_shown)| **is_shown);
    let mut text: String = shown.map(|(line, _)| line.as_str()).collect();
    let hidden = is_shown.iter().filter(|is_shown| !**is_shown).count();
    if hidden > 0 {
        write!(
            text,
            "{hidden} more are not listed here: `wait_agent` with their ids tells of them"
        )
        .ok();
    }
    text.truncate(text.trim_end().len());
    text
}

/// One child in a list.
fn list_entry(view: &SubagentView, share: Option<usize>) -> String {
    let mut text = format!("{}\n", status_line(view));
    let ended = view.record.summary.as_ref().filter(|_| view.record.status.is_over());
    if let (Some(summary), Some(share)) = (ended, share) {
        let words = on_one_line(summary);
        let end = words.floor_char_boundary(share);
        let more = if end < words.len() { "…" } else { "" };
        text.extend(["  ", &words[..end], more, "\n"]);
    }
    text
}

/// The details of a result, for front-ends and audits.
pub fn result_details(views: &[SubagentView]) -> Value {
    let over = |view: &&SubagentView| view.record.status.is_over();
    let over_ids: Vec<&str> =
        views.iter().filter(over).map(|view| view.record.id.as_str()).collect();
    let count =
        |status: SubagentStatus| views.iter().filter(|view| view.record.status == status).count();
    let statuses = [
        SubagentStatus::Queued,
        SubagentStatus::Running,
        SubagentStatus::Completed,
        SubagentStatus::Failed,
        SubagentStatus::TimedOut,
        SubagentStatus::Cancelled,
        SubagentStatus::Detached,
    ];
    let counts: serde_json::Map<String, Value> = statuses
        .into_iter()
        .filter(|status| count(*status) > 0)
        .map(|status| (status.name().to_owned(), json!(count(status))))
        .collect();
    json!({
        "outcome": WaitOutcome::from_views(views).name(),
        "counts": counts,
        "subagents": views.iter().map(child_json).collect::<Vec<_>>(),
        "told": over_ids,
    })
}

/// One child as JSON; the summary is in its Event.
pub fn child_json(view: &SubagentView) -> Value {
    let record = &view.record;
    json!({
        "id": record.id,
        "role": record.role,
        "status": record.status.name(),
        "child_session_id": record.child,
        "child_seq": record.child_seq,
        "elapsed_ms": whole_millis(record.elapsed),
        "usage": record.usage,
        "reason": record.reason,
        "closed": record.is_closed,
    })
}

/// The verdict at the end of a review.
pub fn parse_verdict(text: &str) -> Option<&'static str> {
    let text = text.trim_end().trim_end_matches('`').trim_end();
    let starts = text.match_indices('{').map(|(place, _)| place);
    let mut found = starts.filter_map(|place| serde_json::from_str::<Value>(&text[place..]).ok());
    let verdict = found.next_back()?.get("verdict")?.as_str()?.to_owned();
    ["approve", "request_changes", "unclear"].into_iter().find(|known| *known == verdict)
}

/// The error for an unknown id.
pub fn unknown_subagent_error(id: &str) -> ToolError {
    let message = format!("there is no Subagent `{}` of this Session", truncate_chars(id, 40));
    ToolError::new(Kind::NotFound, message).with_next_action("call `list_agents`")
}

/// The error for a child that is running.
pub fn busy_subagent_error(record: &SubagentRecord) -> ToolError {
    let message = format!("{} is {}", record.id, record.status.name());
    ToolError::new(Kind::Busy, message)
        .with_next_action("wait for it with `wait_agent`, or close it")
}
