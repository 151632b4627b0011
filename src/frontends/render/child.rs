//! Child Sessions on a terminal: a line when a Subagent ends, and a small tree while some run.

use super::sanitise::{name_on_one_line, one_line};
use super::status::{format_count, format_elapsed};
use crate::agent::harness::{ChildStatus, ChildView};
use crate::record::event::SubagentEvent;

/// How many children are drawn; the others are counted.
const MOST_ROWS: usize = 6;

/// How much of a summary a line shows, in cells.
const SUMMARY_WIDTH: usize = 100;

/// How much of a child's current activity is shown, in cells.
const ACTIVITY_WIDTH: usize = 200;

/// The line for a Subagent that ended; `None` for other Events.
pub fn end_line(event: &SubagentEvent) -> Option<String> {
    if !event.ends_run() {
        return None;
    }
    let name = event.subagent_id.as_deref().unwrap_or("Subagent");
    let role = event.agent.as_deref().unwrap_or("no role");
    let status = event.status.as_deref().unwrap_or(event.event.as_str());
    let time = event.elapsed_ms.map(|time| format!(" after {}", format_elapsed(time / 1000)));
    let summary = event.summary.as_deref().unwrap_or_default();
    let first = summary.lines().find(|line| !line.trim().is_empty());
    let first = first.map(|first| format!(": {}", one_line(first, SUMMARY_WIDTH)));
    let (time, first) = (time.unwrap_or_default(), first.unwrap_or_default());
    Some(one_line(&format!("{name} ({role}) {status}{time}{first}"), 200))
}

/// A tree of the running children and the number of others, in `most` rows at most.
pub fn child_rows(children: &[ChildView], width: usize, most: usize) -> Vec<String> {
    let is = |wanted: ChildStatus| move |view: &&ChildView| view.record.status == wanted;
    let running: Vec<&ChildView> = children.iter().filter(is(ChildStatus::Running)).collect();
    let queued = children.iter().filter(is(ChildStatus::Queued)).count();
    if most == 0 || running.is_empty() && queued == 0 {
        return Vec::new();
    }
    // One row is for the counts.
    let drawn = MOST_ROWS.min(most - 1);
    let mut rows: Vec<String> = running.iter().take(drawn).map(|view| child_row(view)).collect();
    let more = running.len() - rows.len();
    let over = children.len() - running.len() - queued;
    let at_work = if rows.is_empty() { "at work" } else { "more at work" };
    let counts = [(more, at_work), (queued, "queued"), (over, "ended")];
    let counts: Vec<String> = counts
        .into_iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, word)| format!("{count} {word}"))
        .collect();
    if !counts.is_empty() {
        rows.push(counts.join(", "));
    }
    let last = rows.len() - 1;
    let stem = |place| if place == last { "  └ " } else { "  ├ " };
    let drawn = rows.into_iter().enumerate();
    drawn
        .map(|(place, row)| one_line(&format!("{}{row}", stem(place)), width.saturating_sub(1)))
        .collect()
}

fn child_row(view: &ChildView) -> String {
    let record = &view.record;
    let mut parts =
        vec![format!("{} {} {}", record.id, record.role, format_elapsed(record.elapsed.as_secs()))];
    if record.usage.total_tokens > 0 {
        parts.push(format!("{} tokens", format_count(record.usage.total_tokens)));
    }
    // The activity may be a command, so hidden characters are spelled.
    parts.extend(
        (!view.activity.is_empty()).then(|| name_on_one_line(&view.activity, ACTIVITY_WIDTH)),
    );
    parts.join(" · ")
}
