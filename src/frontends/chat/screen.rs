//! Placement on the screen: finished lines go into the terminal's own scrollback and are never touched again; the
//! live part below them is redrawn. Pure: it gives the bytes to write.
//!
//! Finished lines are written unwrapped, so that the terminal wraps them again when the window changes. Rows of the
//! live part never wrap. Nothing is cleared but what lies below the start of the live part, and room for it is made
//! by line ends at the bottom, which scroll as any program's output does.

use std::fmt::Write;

use super::cells::{LinePiece, fit_line, line_pieces, line_width, safe_line, wrap_line};

/// Width and height of a terminal in cells, at least one each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScreenSize {
    pub width: usize,
    pub height: usize,
}

/// The live part: rows of at most the screen's width, and where the cursor is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LiveFrame {
    pub rows: Vec<String>,
    /// Row and column.
    pub cursor: (usize, usize),
}

/// What is on the screen below the finished lines.
#[derive(Debug, Clone)]
pub struct Screen {
    size: ScreenSize,
    /// Whether the terminal wraps rows again when its width changes.
    reflows: bool,
    drawn: LiveFrame,
    /// Where the live part is once the window has changed.
    moved: Option<MovedFrame>,
}

/// The live part after a change of the window.
#[derive(Debug, Clone, Copy)]
struct MovedFrame {
    /// How many rows it has above the cursor.
    above: usize,
    /// It no longer fits, so that a part of it may have left the window.
    is_cut: bool,
}

const BEGIN_UPDATE: &str = "\x1b[?2026h\x1b[?25l";
const END_UPDATE: &str = "\x1b[?25h\x1b[?2026l";
const WRAP_OFF: &str = "\x1b[?7l";
const WRAP_ON: &str = "\x1b[?7h";
const ERASE_BELOW: &str = "\x1b[J";
const ERASE_RIGHT: &str = "\x1b[K";

impl Screen {
    pub fn new(size: ScreenSize, reflows: bool) -> Self {
        Self { size, reflows, drawn: LiveFrame::default(), moved: None }
    }

    pub fn size(&self) -> ScreenSize {
        self.size
    }

    /// Notes a new size of the window; the next drawing repairs the live part.
    pub fn resize(&mut self, size: ScreenSize) {
        if size == self.size {
            return;
        }
        self.moved = Some(self.moved_frame(size));
        self.size = size;
    }

    /// Where the live part is after the window got this size.
    fn moved_frame(&self, size: ScreenSize) -> MovedFrame {
        let (row, column) = self.drawn.cursor;
        let rows_of =
            |drawn: &String| if self.reflows { wrap_line(drawn, size.width).len() } else { 1 };
        let all: usize = self.drawn.rows.iter().map(rows_of).sum();
        let above: usize = self.drawn.rows.iter().take(row).map(rows_of).sum();
        let within = if self.reflows { column / size.width.max(1) } else { 0 };
        let was_cut = self.moved.is_some_and(|moved| moved.is_cut);
        let above = above + within;
        MovedFrame { above, is_cut: was_cut || all.max(above + 1) > size.height }
    }

    /// Writes finished lines and the live part below them; empty when nothing has changed.
    pub fn draw(&mut self, finished: &[String], frame: LiveFrame) -> String {
        let frame = fit_frame(frame, self.size);
        let mut out = String::new();
        if finished.is_empty() && self.moved.is_none() && !self.drawn.rows.is_empty() {
            self.update_rows(&frame, &mut out);
        } else {
            self.start_anew(&mut out);
            for line in finished {
                out.push_str(&safe_line(line));
                out.push_str("\r\n");
            }
            push_rows(&frame.rows, &mut out);
            move_cursor((frame.rows.len().saturating_sub(1), usize::MAX), frame.cursor, &mut out);
        }
        self.drawn = frame;
        if out.is_empty() { out } else { format!("{BEGIN_UPDATE}{out}{END_UPDATE}") }
    }

    /// Removes the live part; the cursor is where it began.
    pub fn erase(&mut self) -> String {
        let mut out = String::new();
        self.start_anew(&mut out);
        self.drawn = LiveFrame::default();
        out
    }

    /// Forgets the live part, because something else was written in its place.
    pub fn forget(&mut self) {
        self.drawn = LiveFrame::default();
        self.moved = None;
    }

    /// Moves to the start of the live part and clears it.
    fn start_anew(&mut self, out: &mut String) {
        let unmoved = MovedFrame { above: self.drawn.cursor.0, is_cut: false };
        let MovedFrame { above, is_cut } = self.moved.take().unwrap_or(unmoved);
        let above = above.min(self.size.height.saturating_sub(1));
        if above > 0 {
            write!(out, "\x1b[{above}A").ok();
        }
        out.push('\r');
        out.push_str(ERASE_BELOW);
        if is_cut {
            // This row may belong to one that has left the window, and a new line must not.
            out.push_str("\r\n");
        }
    }

    /// Writes what differs from the rows on the screen.
    fn update_rows(&self, frame: &LiveFrame, out: &mut String) {
        let mut at = self.drawn.cursor;
        for (row, text) in frame.rows.iter().enumerate() {
            match self.drawn.rows.get(row) {
                Some(old) if old == text => {}
                Some(old) => {
                    let (column, rest) = changed_part(old, text);
                    move_cursor(at, (row, column), out);
                    push_row(rest, out);
                    if line_width(text) < self.size.width {
                        out.push_str(ERASE_RIGHT);
                    }
                    at = (row, usize::MAX);
                }
                None => {
                    move_cursor(at, (row - 1, 0), out);
                    out.push_str("\r\n");
                    push_row(text, out);
                    at = (row, usize::MAX);
                }
            }
        }
        if frame.rows.len() < self.drawn.rows.len() {
            move_cursor(at, (frame.rows.len(), 0), out);
            out.push_str(ERASE_BELOW);
            at = (frame.rows.len(), 0);
        }
        if at != frame.cursor {
            move_cursor(at, frame.cursor, out);
        }
    }
}

/// The part of a row that has to be written again, and its column. Rows with colours are written whole.
fn changed_part<'t>(old: &str, text: &'t str) -> (usize, &'t str) {
    if old.contains('\x1b') || text.contains('\x1b') {
        return (0, text);
    }
    let (mut column, mut place) = (0, 0);
    for (before, now) in line_pieces(old).into_iter().zip(line_pieces(text)) {
        match now {
            // Only where every terminal agrees on the column.
            LinePiece::Grapheme(grapheme)
                if before == now && grapheme.is_ascii() && grapheme != "\t" =>
            {
                column += 1;
                place += 1;
            }
            _ => break,
        }
    }
    (column, &text[place..])
}

/// Cuts a frame that was made for another size.
fn fit_frame(mut frame: LiveFrame, size: ScreenSize) -> LiveFrame {
    if frame.rows.is_empty() {
        frame.rows.push(String::new());
    }
    let surplus = frame.rows.len().saturating_sub(size.height.max(1));
    // The row of the cursor stays.
    let hidden = surplus.min(frame.cursor.0);
    frame.rows.drain(..hidden);
    frame.rows.truncate(size.height.max(1));
    for row in &mut frame.rows {
        *row = fit_line(row, size.width);
    }
    let row = (frame.cursor.0 - hidden).min(frame.rows.len() - 1);
    frame.cursor = (row, frame.cursor.1.min(size.width.saturating_sub(1)));
    frame
}

fn push_rows(rows: &[String], out: &mut String) {
    for (place, row) in rows.iter().enumerate() {
        if place > 0 {
            out.push_str("\r\n");
        }
        push_row(row, out);
    }
}

/// Writes a row. The terminal may take other characters for wider than we do, and must not wrap then.
fn push_row(row: &str, out: &mut String) {
    if row.is_ascii() {
        out.push_str(row);
    } else {
        write!(out, "{WRAP_OFF}{row}{WRAP_ON}").ok();
    }
}

/// Moves the cursor within the live part; a column of `usize::MAX` is unknown.
fn move_cursor(from: (usize, usize), to: (usize, usize), out: &mut String) {
    match from.0.cmp(&to.0) {
        std::cmp::Ordering::Greater => write!(out, "\x1b[{}A", from.0 - to.0).ok(),
        std::cmp::Ordering::Less => write!(out, "\x1b[{}B", to.0 - from.0).ok(),
        std::cmp::Ordering::Equal => None,
    };
    if from.1 == to.1 {
        return;
    }
    out.push('\r');
    if to.1 > 0 {
        write!(out, "\x1b[{}C", to.1).ok();
    }
}
