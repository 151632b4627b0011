//! The terminal renderer: a subscriber that shows a Turn on stdout and stderr; it keeps no state of the Session.

mod ascii;
mod ask;
mod child;
mod diff;
mod events;
mod footnote;
mod graph;
mod json;
mod line;
mod live_output;
mod paper;
mod plan;
mod sanitise;
mod sheet;
mod status;
mod tally;
#[cfg(test)]
mod tests;
mod title;

use std::time::{Duration, Instant};

pub use ascii::{is_needed as is_ascii_needed, use_ascii, with_symbols};
pub use ask::{Reply, on_one_line, understand};
pub use json::{Envelope, envelope_schema, escape_hidden};
pub use line::{Look, Surface};
pub use paper::{Gone, Paper, Signalled};
pub use sanitise::{clean, name_on_one_line, one_line};
pub use tally::{Ending, Tally};

use line::Line;
use sheet::Sheet;
use status::StatusLine;

use crate::agent::harness::ChildView;
use crate::base::error::Report;
use crate::record::event::{Ephemeral, EventKind, Heard, PermissionRequest, Plan};

/// How often to check whether the reader of a pipe is gone.
const LOOK_FOR_READER: Duration = Duration::from_millis(500);

/// The output format of a Turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// For a person.
    Text(Look),
    /// `--json`: activity as for a person, the envelope at the end.
    Json(Look),
    /// `--events`: Events on stdout.
    Events,
}

/// Shows the Session of one run.
pub struct View {
    mode: Mode,
    paper: Paper,
    line: Line,
    status: Option<StatusLine>,
    sheet: Sheet,
    /// Nothing more is shown, because the reader of stdout is gone.
    silent: bool,
    /// Live Events that `--events` could not show.
    missed: u64,
    /// Whether permission questions are shown here in full, one at a time.
    can_ask: bool,
    /// Whether a question waits for its answer: then nothing may be drawn after it.
    is_asking: bool,
}

impl View {
    /// A view that has shown nothing yet.
    pub fn new(mode: Mode, paper: Paper) -> Self {
        let look = match mode {
            Mode::Text(look) => look,
            Mode::Json(look) => Look { answer: Surface::Hidden, ..look },
            Mode::Events => Look { quiet: true, ..Look::default() },
        };
        let is_live = look.activity == Surface::Terminal && !look.quiet;
        Self {
            mode,
            paper,
            line: Line::new(look),
            status: is_live.then(|| StatusLine::new(Instant::now())),
            sheet: Sheet::default(),
            silent: false,
            missed: 0,
            can_ask: false,
            is_asking: false,
        }
    }

    /// Shows permission questions in full, because they are answered here.
    pub fn will_ask(&mut self) {
        self.can_ask = true;
    }

    /// Shows a question, with the cursor after it for the answer; `--quiet` does not hide it.
    pub fn question(&mut self, request: &PermissionRequest) {
        self.erase_status();
        self.line.break_line(&mut self.sheet);
        self.write_sheet().ok();
        let colour = matches!(self.mode, Mode::Text(look) | Mode::Json(look) if look.colour);
        let text = ask::text(request, colour);
        self.paper.flush().ok();
        self.paper.activity(text.as_bytes());
        self.is_asking = true;
    }

    /// Repeats the choices of a question.
    pub fn ask_again(&mut self, request: &PermissionRequest) {
        self.paper.activity(ask::choices(request).as_bytes());
    }

    /// Ends the question, which was answered here or elsewhere.
    pub fn answered(&mut self) {
        self.is_asking = false;
    }

    /// Erases the status line after the terminal echoed Enter.
    pub fn entered(&mut self) {
        if let Some(status) = &mut self.status {
            let strokes = status.erase_above();
            self.paper.activity(strokes.as_bytes());
        }
    }

    /// How often to call `tick` while no Event arrives.
    pub fn tick_every(&self) -> Duration {
        let is_live = self.status.is_some() || self.mode == Mode::Events;
        if is_live { status::TICK } else { LOOK_FOR_READER }
    }

    /// Whether deltas are needed: to be shown, or as a sign of activity.
    pub fn wants_pieces(&self) -> bool {
        let streams = matches!(self.mode, Mode::Text(look) if look.answer == Surface::Terminal);
        let is_verbose = matches!(self.mode, Mode::Text(look) | Mode::Json(look) if look.verbose);
        streams || is_verbose || self.mode == Mode::Events || self.status.is_some()
    }

    /// Shows an Event.
    pub fn hear(&mut self, heard: &Heard) -> Result<(), Gone> {
        if self.silent {
            return Ok(());
        }
        if self.mode == Mode::Events {
            return match heard {
                Heard::Event(event) => events::write(event, &mut self.paper),
                Heard::Missed(count) => {
                    self.missed += count;
                    Ok(())
                }
            };
        }
        if !(self.can_ask && is_question(heard)) {
            self.line.hear(heard, &mut self.sheet);
        }
        if let Some(status) = &mut self.status {
            status.hear(heard, Instant::now());
        }
        self.write_sheet()
    }

    /// Updates the status line and flushes stdout.
    pub fn tick(&mut self) -> Result<(), Gone> {
        self.paper.flush()?;
        if self.paper.is_unread() {
            return Err(Gone);
        }
        if self.silent {
            return Ok(());
        }
        let Some(status) = &mut self.status else { return Ok(()) };
        if self.line.is_mid_line() || self.is_asking {
            return Ok(());
        }
        let strokes = status.draw(Instant::now(), terminal_size());
        self.paper.activity(strokes.as_bytes());
        Ok(())
    }

    /// Shows the state of the child Sessions, with the next tick.
    pub fn children(&mut self, children: &[ChildView]) {
        if let Some(status) = &mut self.status {
            let (width, height) = terminal_size();
            // One cell stays free: a full line would wrap on many terminals.
            let graph = self.line.graph_row(width - 1);
            // The status line and the Workflow take rows too, and one row stays free.
            let most = height.saturating_sub(2 + usize::from(graph.is_some()));
            let rows = child::rows(children, width, most);
            status.children(graph.into_iter().chain(rows).collect());
        }
    }

    /// Whether running child Sessions are drawn.
    pub fn draws_children(&self) -> bool {
        self.status.is_some()
    }

    /// Whether stdout failed for another reason than a closed pipe.
    pub fn has_failed(&self) -> bool {
        self.paper.has_failed()
    }

    /// Stops showing anything.
    pub fn fall_silent(&mut self) {
        self.erase_status();
        self.silent = true;
    }

    /// Prints a notice to stderr; `--quiet` hides it.
    pub fn notice(&mut self, text: &str) {
        if self.silent {
            return;
        }
        self.line.activity(&clean(text), &mut self.sheet);
        // A closed stdout is reported when the answer is written.
        self.write_sheet().ok();
    }

    /// Prints a message to stderr that the user asked for or must see; `--quiet` does not hide it.
    pub fn tell(&mut self, text: &str) {
        self.erase_status();
        self.paper.flush().ok();
        self.paper.activity(format!("{}\n", clean(text)).as_bytes());
    }

    /// Shows the last plan of a resumed Session.
    pub fn remind(&mut self, plan: &Plan) {
        if self.silent || self.mode == Mode::Events {
            return;
        }
        self.line.plan(plan, &mut self.sheet);
        self.write_sheet().ok();
    }

    /// Prints a prompt for a line of input.
    pub fn ask(&mut self, text: &str) {
        self.erase_status();
        self.paper.flush().ok();
        self.paper.activity(text.as_bytes());
    }

    /// Writes text to stdout that is not part of a Turn.
    pub fn answer(&mut self, text: &str) -> Result<(), Gone> {
        self.erase_status();
        self.paper.answer(text.as_bytes())?;
        self.paper.flush()
    }

    /// Erases the status line and flushes stdout.
    pub fn finish(&mut self) -> Result<(), Gone> {
        self.erase_status();
        let missed = std::mem::take(&mut self.missed);
        if missed > 0 && !self.silent {
            // Every durable Event was written; the reader of the stream is told about the dropped ones.
            let words = format!("{missed} live Events were dropped; nothing durable is missing\n");
            self.paper.activity(words.as_bytes());
        }
        self.paper.flush()
    }

    fn write_sheet(&mut self) -> Result<(), Gone> {
        if self.sheet.is_empty() {
            self.sheet.clear();
            return Ok(());
        }
        self.erase_status();
        let written = self.paper.put(&self.sheet);
        self.sheet.clear();
        written?;
        // Deltas are shown as they arrive only on a terminal, so flushing each time is cheap.
        self.paper.flush()
    }

    fn erase_status(&mut self) {
        if let Some(status) = &mut self.status {
            let strokes = status.erase();
            self.paper.activity(strokes.as_bytes());
        }
    }
}

fn is_question(heard: &Heard) -> bool {
    let Heard::Event(event) = heard else { return false };
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
