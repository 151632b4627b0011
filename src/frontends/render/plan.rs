//! The model's plan on a terminal: a heading and a bounded number of lines.

use super::sanitise::one_line;
use super::text_view::Surface;
use crate::record::event::{Plan, PlanEntry};

/// How many steps are shown.
const MAX_STEPS: usize = 10;
/// The widest step, in cells; wider ones are cut, because they would wrap.
const MAX_STEP_WIDTH: usize = 96;

/// Passes the lines to `line`. In a long plan, completed steps are only counted.
pub fn show_plan(plan: &Plan, surface: Surface, mut line: impl FnMut(&str)) {
    let is_done = |entry: &&PlanEntry| entry.status == "completed";
    let (count, done) = (plan.entries.len(), plan.entries.iter().filter(is_done).count());
    let words = plan.explanation.as_deref().map(|words| one_line(words, MAX_STEP_WIDTH - 20));
    let words = words.map(|words| format!(": {words}")).unwrap_or_default();
    line(&format!("plan {done}/{count}{words}"));
    let is_long = count > MAX_STEPS;
    if is_long && done > 0 {
        line(&format!("  {} {done} done", status_mark("completed", surface)));
    }
    let shown: Vec<_> = plan.entries.iter().filter(|entry| !(is_long && is_done(entry))).collect();
    for entry in shown.iter().take(MAX_STEPS) {
        let text = one_line(&entry.content, MAX_STEP_WIDTH);
        line(&format!("  {} {text}", status_mark(&entry.status, surface)));
    }
    if shown.len() > MAX_STEPS {
        line(&format!("  … {} more", shown.len() - MAX_STEPS));
    }
}

fn status_mark(status: &str, surface: Surface) -> &'static str {
    match (surface, status) {
        (Surface::Terminal, "completed") => "✓",
        (Surface::Terminal, "in_progress") => "▸",
        (Surface::Terminal, _) => "·",
        (_, "completed") => "[x]",
        (_, "in_progress") => "[>]",
        (_, _) => "[ ]",
    }
}
