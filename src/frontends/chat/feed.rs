//! The feed: turns Events into finished lines, and keeps the line that is still being written; pure.

use std::time::Instant;

use crate::frontends::render::{
    TextView, TurnOutcome, TurnSummary, ViewStyle, WriteQueue, clean, format_count, format_elapsed,
};
use crate::record::event::{Canonical, Ephemeral, EventKind, ListenerItem, Plan, SessionStatus};

/// How many lines of a prompt that was not typed here are shown.
const FOREIGN_PROMPT_LINES: usize = 12;

/// Turns the Events of a Session into lines.
pub struct ChatFeed {
    view: TextView,
    queue: WriteQueue,
    /// The last line, which has no end yet.
    tail: String,
    finished: Vec<String>,
    /// What was typed for the Turn that begins next, as the editor showed it.
    echo: Option<String>,
    summary: TurnSummary,
    turn_since: Instant,
    colour: bool,
}

impl ChatFeed {
    /// A feed that has shown nothing yet.
    pub fn new(style: ViewStyle, now: Instant) -> Self {
        Self {
            view: TextView::new(style),
            queue: WriteQueue::default(),
            tail: String::new(),
            finished: Vec::new(),
            echo: None,
            summary: TurnSummary::default(),
            turn_since: now,
            colour: style.colour,
        }
    }

    /// The lines that became final since the last call.
    pub fn take_finished(&mut self) -> Vec<String> {
        std::mem::take(&mut self.finished)
    }

    /// The line that is still being written.
    pub fn tail(&self) -> &str {
        &self.tail
    }

    /// The status row of the running Workflow.
    pub fn workflow_row(&self, width: usize) -> Option<String> {
        self.view.workflow_row(width)
    }

    /// Sets what the next prompt looks like.
    pub fn expect_prompt(&mut self, shown: String) {
        self.echo = Some(shown);
    }

    /// Takes back what the next prompt looks like.
    pub fn forget_prompt(&mut self) {
        self.echo = None;
    }

    /// Shows an Event; gives the outcome of the Turn that it ends.
    pub fn record(&mut self, heard: &ListenerItem, now: Instant) -> Option<TurnOutcome> {
        if let ListenerItem::Event(event) = heard
            && let EventKind::Canonical(Canonical::UserMessage(message)) = event.kind()
        {
            self.turn_since = now;
            self.show_prompt(&message.text);
        }
        let is_over = self.summary.record(heard);
        if !is_question(heard) {
            self.view.show(heard, &mut self.queue);
            self.move_queued();
        }
        is_over.then(|| self.end_turn(now))
    }

    /// Adds lines that are no Event, such as the answer of a command.
    pub fn push_text(&mut self, text: &str) {
        self.end_line();
        self.finished.extend(clean(text).trim_end_matches('\n').split('\n').map(str::to_owned));
    }

    /// Adds lines that may have colours, and were sanitised.
    pub fn push_painted(&mut self, text: &str) {
        self.end_line();
        self.finished.extend(text.trim_end_matches('\n').split('\n').map(str::to_owned));
    }

    /// Adds lines in a fainter colour.
    pub fn push_faint(&mut self, text: &str) {
        self.end_line();
        for line in clean(text).trim_end_matches('\n').split('\n') {
            self.finished.push(self.painted("2", line));
        }
    }

    fn painted(&self, code: &str, line: &str) -> String {
        if self.colour { format!("\x1b[{code}m{line}\x1b[0m") } else { line.to_owned() }
    }

    /// Shows the plan of a resumed Session.
    pub fn show_plan(&mut self, plan: &Plan) {
        self.view.show_plan(plan, &mut self.queue);
        self.move_queued();
    }

    /// Shows a prompt with its sign.
    pub fn show_prompt(&mut self, recorded: &str) {
        let shown = self.echo.take().unwrap_or_else(|| shortened(recorded));
        self.end_line();
        self.finished.push(String::new());
        for (place, line) in clean(shown.trim_end()).split('\n').enumerate() {
            let sign = if place == 0 { "› " } else { "  " };
            let line = format!("{sign}{line}");
            self.finished.push(self.painted("1", &line));
        }
        self.finished.push(String::new());
    }

    fn end_turn(&mut self, now: Instant) -> TurnOutcome {
        self.end_line();
        let outcome = std::mem::take(&mut self.summary).into_outcome();
        let seconds = now.saturating_duration_since(self.turn_since).as_secs();
        let mut facts = vec![format_elapsed(seconds)];
        if outcome.usage.total_tokens > 0 {
            facts.push(format!("{} tokens", format_count(outcome.usage.total_tokens)));
        }
        let sign = if outcome.status == SessionStatus::Done { "✓" } else { "✗" };
        self.push_faint(&format!("{sign} {}", facts.join(" · ")));
        outcome
    }

    fn end_line(&mut self) {
        self.view.break_line(&mut self.queue);
        self.move_queued();
        if !self.tail.is_empty() {
            self.finished.push(std::mem::take(&mut self.tail));
        }
    }

    fn move_queued(&mut self) {
        for (_, text) in self.queue.writes() {
            let mut lines = text.split('\n');
            self.tail.push_str(lines.next().unwrap_or_default());
            for line in lines {
                self.finished.push(std::mem::replace(&mut self.tail, line.to_owned()));
            }
        }
        self.queue.clear();
    }
}

fn is_question(heard: &ListenerItem) -> bool {
    let ListenerItem::Event(event) = heard else { return false };
    matches!(event.kind(), EventKind::Ephemeral(Ephemeral::PermissionRequest(_)))
}

fn shortened(text: &str) -> String {
    let mut lines: Vec<&str> = text.trim().lines().take(FOREIGN_PROMPT_LINES + 1).collect();
    if lines.len() > FOREIGN_PROMPT_LINES {
        lines[FOREIGN_PROMPT_LINES] = "…";
    }
    lines.join("\n")
}
