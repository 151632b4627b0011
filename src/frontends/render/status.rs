//! The live status line: what runs, for how long, and how many tokens were used.
//!
//! It is drawn on stderr, only on a terminal, at most ten times a second, and erased before
//! anything else is written.

use std::time::{Duration, Instant};

use unicode_width::UnicodeWidthStr;

use super::call_title::call_title;
use super::sanitise::one_line;
use crate::base::id::CallId;
use crate::record::event::{
    Canonical, Ephemeral, EventKind, ListenerItem, RecordedFiles, SessionStatus,
    WAITING_FOR_BUDGET, starting_servers_text,
};

/// How often the line may change.
pub const TICK: Duration = Duration::from_millis(100);

/// How long the Provider may be silent before the line says so.
const SILENCE: Duration = Duration::from_secs(10);

/// Moves to the first column and clears the line.
pub const ERASE: &str = "\r\x1b[2K";

/// The status line, and what is drawn of it.
pub struct StatusLine {
    since: Instant,
    last_item_at: Instant,
    is_thinking: bool,
    is_over: bool,
    running: Vec<(CallId, String)>,
    /// The call that waits, and why it does not run yet.
    waiting: Option<(CallId, String)>,
    /// The call for which files are recorded, and the text for that.
    recording: Option<(CallId, String)>,
    /// What the Turn waits for before the model is called.
    starting: Option<String>,
    tokens: u64,
    /// Rows for the child Sessions, below the line.
    children: Vec<String>,
    drawn: Option<String>,
}

impl StatusLine {
    /// A line for a Turn that begins now.
    pub fn new(now: Instant) -> Self {
        Self {
            since: now,
            last_item_at: now,
            is_thinking: false,
            is_over: true,
            running: Vec::new(),
            waiting: None,
            recording: None,
            starting: None,
            tokens: 0,
            children: Vec::new(),
            drawn: None,
        }
    }

    /// Updates the line from an Event.
    pub fn update(&mut self, item: &ListenerItem, now: Instant) {
        self.last_item_at = now;
        let ListenerItem::Event(event) = item else { return };
        match event.kind() {
            EventKind::Canonical(fact) => self.update_from_fact(fact, now),
            EventKind::Ephemeral(Ephemeral::Status(status)) => {
                self.is_over = status.is_terminal() || *status == SessionStatus::Idle;
                self.is_thinking = matches!(status, SessionStatus::Thinking { .. });
                self.starting = match status {
                    SessionStatus::Starting { servers } => Some(starting_servers_text(servers)),
                    SessionStatus::WaitingForBudget { .. } => Some(WAITING_FOR_BUDGET.to_owned()),
                    SessionStatus::Compacting { .. } => {
                        Some("compacting the conversation".to_owned())
                    }
                    _ => None,
                };
                self.recording = match status {
                    SessionStatus::Recording { call_id, files } => {
                        Some((call_id.clone(), RecordedFiles::progress_text(*files)))
                    }
                    _ => None,
                };
                self.waiting = match status {
                    SessionStatus::Working { call_id, waiting: Some(reason), .. } => {
                        Some((call_id.clone(), reason.clone()))
                    }
                    _ => None,
                };
            }
            EventKind::Ephemeral(_) => {}
        }
    }

    fn update_from_fact(&mut self, fact: &Canonical, now: Instant) {
        match fact {
            Canonical::UserMessage(_) => {
                let (drawn, children) = (self.drawn.take(), std::mem::take(&mut self.children));
                *self = Self { drawn, children, is_over: false, ..Self::new(now) };
            }
            // A Workflow run from the command line has no Turn of a model to wait for.
            Canonical::WorkflowEvent(_) if self.running.is_empty() => self.is_over = true,
            Canonical::ToolCall(call) => {
                self.running.push((call.call_id.clone(), call_title(call, 200)));
            }
            Canonical::ToolResult(result) => {
                self.running.retain(|(call_id, _)| *call_id != result.call_id);
            }
            Canonical::ProviderUsage(usage) => {
                self.tokens += usage.usage.as_ref().map_or(0, |tokens| {
                    tokens.total_tokens.max(tokens.input_tokens + tokens.output_tokens)
                });
            }
            _ => {}
        }
    }

    /// The text of the line; `None` when nothing runs.
    pub fn status_text(&self, now: Instant, width: usize) -> Option<String> {
        if self.is_over {
            return None;
        }
        let seconds = now.saturating_duration_since(self.since).as_secs();
        let mut facts = vec![format_elapsed(seconds)];
        if self.tokens > 0 {
            facts.push(format!("{} tokens", format_count(self.tokens)));
        }
        let silence = now.saturating_duration_since(self.last_item_at);
        if self.is_thinking && self.running.is_empty() && silence >= SILENCE {
            facts.push(format!("no data for {} s", silence.as_secs()));
        }
        let tail = format!(" · {}", facts.join(" · "));
        let what = match self.running.as_slice() {
            [] => self.starting.clone().unwrap_or_else(|| "thinking".to_owned()),
            [(_, only)] => only.clone(),
            [.., (_, last)] => format!("{last} (+{} more)", self.running.len() - 1),
        };
        let runs = |waiter: &CallId| self.running.iter().any(|(id, _)| id == waiter);
        let what = match (&self.recording, &self.waiting) {
            (Some((waiter, words)), _) if runs(waiter) => words.clone(),
            (_, Some((waiter, reason))) if runs(waiter) => format!("waiting {reason}: {what}"),
            _ => what,
        };
        // One cell stays free: a full line would wrap on many terminals.
        let room = width.saturating_sub(tail.width() + 3);
        if room < 8 {
            return Some(one_line(&what, width.saturating_sub(1)));
        }
        Some(format!("… {}{tail}", one_line(&what, room)))
    }

    /// Sets the rows below the line.
    pub fn set_children(&mut self, rows: Vec<String>) {
        self.children = rows;
    }

    /// The line with the children below it, also when only children run. It must fit the terminal: a row
    /// that has scrolled off or wrapped cannot be erased.
    fn compose(&self, now: Instant, (width, height): (usize, usize)) -> Option<String> {
        let alone = "… Subagents are at work";
        let alone = (!self.children.is_empty()).then(|| one_line(alone, width.saturating_sub(1)));
        let first = self.status_text(now, width).or(alone)?;
        let rows = self.children.iter().take(height.saturating_sub(2));
        let rows = rows.map(|row| format!("\n{}", fit_row(row, width.saturating_sub(1))));
        Some(std::iter::once(first).chain(rows).collect())
    }

    /// What to write so that the line is up to date; empty when it is.
    pub fn draw(&mut self, now: Instant, size: (usize, usize)) -> String {
        let wanted = self.compose(now, size);
        if wanted == self.drawn {
            return String::new();
        }
        let erase = erase_sequence(self.drawn.as_deref().unwrap_or_default());
        let strokes = match &wanted {
            Some(text) => format!("{erase}\x1b[2m{text}\x1b[0m"),
            None => erase,
        };
        self.drawn = wanted;
        strokes
    }

    /// What to write after the terminal has echoed Enter: the cursor is on the row below the line.
    pub fn erase_above(&mut self) -> String {
        let drawn = self.drawn.take();
        drawn.map(|drawn| format!("{ERASE}\x1b[1A{}", erase_sequence(&drawn))).unwrap_or_default()
    }

    /// What to write before anything else may be written.
    pub fn erase(&mut self) -> String {
        self.drawn.take().map(|drawn| erase_sequence(&drawn)).unwrap_or_default()
    }
}

/// Cuts a row that was made for a wider window.
fn fit_row(row: &str, width: usize) -> String {
    if row.width() <= width { row.to_owned() } else { one_line(row, width) }
}

/// The sequence that erases what was drawn, line by line from below.
fn erase_sequence(drawn: &str) -> String {
    let above = drawn.matches('\n').count();
    format!("{ERASE}{}", "\x1b[1A\x1b[2K".repeat(above))
}

pub fn format_elapsed(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        _ => format!("{}h{:02}m", seconds / 3600, seconds / 60 % 60),
    }
}

#[expect(clippy::cast_precision_loss, reason = "one decimal of a rounded count")]
pub fn format_count(count: u64) -> String {
    match count {
        0..1_000 => count.to_string(),
        1_000..1_000_000 => format!("{:.1}k", count as f64 / 1e3),
        _ => format!("{:.1}M", count as f64 / 1e6),
    }
}
