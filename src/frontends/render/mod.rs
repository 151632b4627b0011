//! The terminal renderer: a subscriber that shows a Turn on stdout and stderr; it keeps no state of the Session.

mod ascii;
mod call_title;
mod child;
mod diff;
mod events;
mod footnote;
mod json;
mod live_output;
mod output;
mod plan;
mod question;
mod sanitise;
mod status;
#[cfg(test)]
mod tests;
mod text_view;
mod turn_summary;
mod workflow_view;
mod wrap;
mod write_queue;

use std::time::{Duration, Instant};

pub use ascii::{is_needed as is_ascii_needed, use_ascii, with_symbols};
pub use child::child_rows;
pub use json::{JsonEnvelope, envelope_schema, escape_hidden};
pub use output::{SignalCount, StdioOutput, StdoutClosed};
pub use question::{TypedAnswer, choice_text, on_one_line, parse_answer, question_body};
pub use sanitise::{clean, name_on_one_line, one_line};
pub use status::{StatusLine, format_count, format_elapsed};
pub use text_view::{Surface, TextView, ViewStyle};
pub use turn_summary::{TurnOutcome, TurnSummary};
pub use wrap::write_wrapped;
pub use write_queue::WriteQueue;

use crate::agent::harness::ChildView;
use crate::base::error::Report;
use crate::record::event::{Ephemeral, EventKind, ListenerItem, PermissionRequest, Plan};

/// How often to check whether the reader of a pipe is gone.
const READER_CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// The output format of a Turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputMode {
    /// For a person.
    Text(ViewStyle),
    /// `--json`: activity as for a person, the envelope at the end.
    Json(ViewStyle),
    /// `--events`: Events on stdout.
    Events,
}

/// Shows the Session of one run.
pub struct TurnView {
    mode: OutputMode,
    output: StdioOutput,
    text: TextView,
    status: Option<StatusLine>,
    queue: WriteQueue,
    /// Nothing more is shown, because the reader of stdout is gone.
    is_silenced: bool,
    /// Live Events that `--events` could not show.
    missed: u64,
    /// Whether permission questions are shown here in full, one at a time.
    can_ask: bool,
    /// Whether a question waits for its answer: then nothing may be drawn after it.
    is_asking: bool,
}

impl TurnView {
    /// A view that has shown nothing yet.
    pub fn new(mode: OutputMode, output: StdioOutput) -> Self {
        let style = match mode {
            OutputMode::Text(style) => style,
            OutputMode::Json(style) => ViewStyle { answer: Surface::Hidden, ..style },
            OutputMode::Events => ViewStyle { quiet: true, ..ViewStyle::default() },
        };
        let is_live = style.activity == Surface::Terminal && !style.quiet;
        Self {
            mode,
            output,
            text: TextView::new(style),
            status: is_live.then(|| StatusLine::new(Instant::now())),
            queue: WriteQueue::default(),
            is_silenced: false,
            missed: 0,
            can_ask: false,
            is_asking: false,
        }
    }

    /// Shows permission questions in full, because they are answered here.
    pub fn enable_questions(&mut self) {
        self.can_ask = true;
    }

    /// Shows a question, with the cursor after it for the answer; `--quiet` does not hide it.
    pub fn show_question(&mut self, request: &PermissionRequest) {
        self.erase_status();
        self.text.break_line(&mut self.queue);
        self.write_queued().ok();
        let colour =
            matches!(self.mode, OutputMode::Text(style) | OutputMode::Json(style) if style.colour);
        let text = question::question_text(request, colour);
        self.output.flush().ok();
        self.output.write_activity(text.as_bytes());
        self.is_asking = true;
    }

    /// Repeats the choices of a question.
    pub fn repeat_choices(&mut self, request: &PermissionRequest) {
        self.output.write_activity(question::choices_text(request).as_bytes());
    }

    /// Ends the question, which was answered here or elsewhere.
    pub fn end_question(&mut self) {
        self.is_asking = false;
    }

    /// Erases the status line after the terminal echoed Enter.
    pub fn erase_after_enter(&mut self) {
        if let Some(status) = &mut self.status {
            let strokes = status.erase_above();
            self.output.write_activity(strokes.as_bytes());
        }
    }

    /// How often to call `tick` while no Event arrives.
    pub fn tick_interval(&self) -> Duration {
        let is_live = self.status.is_some() || self.mode == OutputMode::Events;
        if is_live { status::TICK } else { READER_CHECK_INTERVAL }
    }

    /// Whether deltas are needed: to be shown, or as a sign of activity.
    pub fn wants_deltas(&self) -> bool {
        let streams =
            matches!(self.mode, OutputMode::Text(style) if style.answer == Surface::Terminal);
        let is_verbose =
            matches!(self.mode, OutputMode::Text(style) | OutputMode::Json(style) if style.verbose);
        streams || is_verbose || self.mode == OutputMode::Events || self.status.is_some()
    }

    /// Shows an Event.
    pub fn show(&mut self, item: &ListenerItem) -> Result<(), StdoutClosed> {
        if self.is_silenced {
            return Ok(());
        }
        if self.mode == OutputMode::Events {
            return match item {
                ListenerItem::Event(event) => events::write_event(event, &mut self.output),
                ListenerItem::Missed(count) => {
                    self.missed += count;
                    Ok(())
                }
            };
        }
        if !(self.can_ask && is_question(item)) {
            self.text.show(item, &mut self.queue);
        }
        if let Some(status) = &mut self.status {
            status.update(item, Instant::now());
        }
        self.write_queued()
    }

    /// Updates the status line and flushes stdout.
    pub fn tick(&mut self) -> Result<(), StdoutClosed> {
        self.output.flush()?;
        if self.output.is_reader_gone() {
            return Err(StdoutClosed);
        }
        if self.is_silenced {
            return Ok(());
        }
        let Some(status) = &mut self.status else { return Ok(()) };
        if self.text.is_mid_line() || self.is_asking {
            return Ok(());
        }
        let strokes = status.draw(Instant::now(), terminal_size());
        self.output.write_activity(strokes.as_bytes());
        Ok(())
    }

    /// Shows the state of the child Sessions, with the next tick.
    pub fn show_children(&mut self, children: &[ChildView]) {
        if let Some(status) = &mut self.status {
            let (width, height) = terminal_size();
            // One cell stays free: a full line would wrap on many terminals.
            let graph = self.text.workflow_row(width - 1);
            // The status line and the Workflow take rows too, and one row stays free.
            let most = height.saturating_sub(2 + usize::from(graph.is_some()));
            let rows = child::child_rows(children, width, most);
            status.set_children(graph.into_iter().chain(rows).collect());
        }
    }

    /// Whether running child Sessions are drawn.
    pub fn draws_children(&self) -> bool {
        self.status.is_some()
    }

    /// Whether stdout failed for another reason than a closed pipe.
    pub fn has_failed(&self) -> bool {
        self.output.has_failed()
    }

    /// Stops showing anything.
    pub fn silence(&mut self) {
        self.erase_status();
        self.is_silenced = true;
    }

    /// Prints a notice to stderr; `--quiet` hides it.
    pub fn print_notice(&mut self, text: &str) {
        if self.is_silenced {
            return;
        }
        self.text.show_activity(&clean(text), &mut self.queue);
        // A closed stdout is reported when the answer is written.
        self.write_queued().ok();
    }

    /// Prints a message to stderr that the user asked for or must see; `--quiet` does not hide it.
    pub fn print_message(&mut self, text: &str) {
        self.erase_status();
        self.output.flush().ok();
        self.output.write_activity(format!("{}\n", clean(text)).as_bytes());
    }

    /// Shows the last plan of a resumed Session.
    pub fn show_plan(&mut self, plan: &Plan) {
        if self.is_silenced || self.mode == OutputMode::Events {
            return;
        }
        self.text.show_plan(plan, &mut self.queue);
        self.write_queued().ok();
    }

    /// Prints a prompt for a line of input.
    pub fn prompt(&mut self, text: &str) {
        self.erase_status();
        self.output.flush().ok();
        self.output.write_activity(text.as_bytes());
    }

    /// Writes text to stdout that is not part of a Turn.
    pub fn write_answer(&mut self, text: &str) -> Result<(), StdoutClosed> {
        self.erase_status();
        self.output.write_answer(text.as_bytes())?;
        self.output.flush()
    }

    /// Erases the status line and flushes stdout.
    pub fn finish(&mut self) -> Result<(), StdoutClosed> {
        self.erase_status();
        let missed = std::mem::take(&mut self.missed);
        if missed > 0 && !self.is_silenced {
            // Every durable Event was written; the dropped live ones are reported.
            let words = format!("{missed} live Events were dropped; nothing durable is missing\n");
            self.output.write_activity(words.as_bytes());
        }
        self.output.flush()
    }

    fn write_queued(&mut self) -> Result<(), StdoutClosed> {
        if self.queue.is_empty() {
            self.queue.clear();
            return Ok(());
        }
        self.erase_status();
        let written = self.output.write_queue(&self.queue);
        self.queue.clear();
        written?;
        // Deltas are shown as they arrive only on a terminal, so flushing each time is cheap.
        self.output.flush()
    }

    fn erase_status(&mut self) {
        if let Some(status) = &mut self.status {
            let strokes = status.erase();
            self.output.write_activity(strokes.as_bytes());
        }
    }
}

fn is_question(item: &ListenerItem) -> bool {
    let ListenerItem::Event(event) = item else { return false };
    matches!(event.kind(), EventKind::Ephemeral(Ephemeral::PermissionRequest(_)))
}

/// The text form of an error.
pub fn error_text(report: &Report) -> String {
    let mut lines = vec![format!("error: {}", clean(&report.message))];
    lines.extend(report.next_actions().iter().map(|action| format!("  try: {}", clean(action))));
    lines.join("\n") + "\n"
}

/// The width of the terminal on stderr, in cells.
pub fn terminal_width() -> usize {
    terminal_size().0
}

/// The width and height of the terminal on stderr, in cells; read each time, because windows change.
fn terminal_size() -> (usize, usize) {
    let size = rustix::termios::tcgetwinsize(rustix::stdio::stderr());
    let (width, height) =
        size.map_or((0, 0), |size| (usize::from(size.ws_col), usize::from(size.ws_row)));
    // Some terminals do not know their size and say zero.
    let width = if width == 0 { 80 } else { width.clamp(2, 400) };
    (width, if height == 0 { 24 } else { height })
}
