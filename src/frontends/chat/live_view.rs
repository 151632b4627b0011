//! Drawing of the live part: the line that is being written, what runs, questions, the editor and the footer. A
//! function of state and size; pure.

use std::time::Instant;

use super::cells::{fit_line, line_width, wrap_line};
use super::editor::{EditorRow, PromptEditor};
use super::popup::Popup;
use super::questions::QuestionQueue;
use super::screen::{LiveFrame, ScreenSize};
use super::state::{ChatPhase, ChatState};
use crate::frontends::render::{choice_text, clean, name_on_one_line};

/// Below this height the editor has one row, and there is no footer.
const COMPACT_HEIGHT: usize = 8;

/// How many rows the popup, the queue and the children may have.
const POPUP_ROWS: usize = 8;
const QUEUE_ROWS: usize = 3;
const CHILD_ROWS: usize = 7;

/// Where the sign of the editor and of continued rows leaves room for text.
const SIGN: &str = "› ";
const INDENT: &str = "  ";

const BOLD: &str = "1";
const FAINT: &str = "2";
const YELLOW: &str = "1;33";
const CYAN: &str = "36";

/// The width of the editor's text on a screen.
pub fn editor_width(size: ScreenSize) -> usize {
    if size.width >= 8 { size.width - SIGN.chars().count() } else { size.width.max(1) }
}

/// Rows of a part, with the place of the cursor in them, if it has the cursor.
#[derive(Debug, Default)]
struct Part {
    rows: Vec<String>,
    cursor: Option<(usize, usize)>,
}

/// The live part of the screen.
pub fn live_frame(state: &ChatState, size: ScreenSize, now: Instant) -> LiveFrame {
    let view = LiveView { state, size, is_compact: size.height < COMPACT_HEIGHT };
    let editor = view.editor_part();
    let below = view.below_editor();
    let question = view.question_part();
    let mut room = size.height.saturating_sub(editor.rows.len() + below.len());
    let question = fit_part(question, room);
    room -= question.rows.len();
    let activity = view.activity_rows(now, room);
    room -= activity.len();
    let tail = view.tail_rows(room);
    let mut frame = LiveFrame::default();
    frame.rows.extend(tail);
    frame.rows.extend(activity);
    for part in [question, editor] {
        if let Some((row, column)) = part.cursor {
            frame.cursor = (frame.rows.len() + row, column);
        }
        frame.rows.extend(part.rows);
    }
    frame.rows.extend(below);
    frame
}

/// Keeps the rows around the cursor of a part that is too high.
fn fit_part(mut part: Part, most: usize) -> Part {
    if part.rows.len() <= most {
        return part;
    }
    let at = part.cursor.map_or(0, |(row, _)| row);
    let first = (at + 1).saturating_sub(most).min(part.rows.len() - most);
    part.rows.drain(..first);
    part.rows.truncate(most);
    part.cursor = part.cursor.filter(|_| most > 0).map(|(row, column)| (row - first, column));
    part
}

struct LiveView<'a> {
    state: &'a ChatState,
    size: ScreenSize,
    is_compact: bool,
}

impl LiveView<'_> {
    fn paint(&self, code: &str, text: &str) -> String {
        if self.state.colour && !text.is_empty() {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }

    fn fit(&self, text: &str) -> String {
        fit_line(text, self.size.width)
    }

    /// The editor, or the search in the history in its place.
    fn editor_part(&self) -> Part {
        let most = if self.is_compact { 1 } else { (self.size.height / 3).max(1) };
        if let Some(search) = &self.state.search {
            let found = search.found(self.state.history()).unwrap_or_default();
            let first = found.lines().next().unwrap_or_default();
            let before = format!("search: {}", search.words());
            let column = line_width(&before);
            let row = self.fit(&format!("{before} {} {}", self.paint(FAINT, "·"), clean(first)));
            let column = column.min(self.size.width.saturating_sub(1));
            return Part { rows: vec![row], cursor: Some((0, column)) };
        }
        let mut part = self.text_part(&self.state.editor, most);
        if !self.is_compact {
            part.rows.insert(0, String::new());
            part.cursor = part.cursor.map(|(row, column)| (row + 1, column));
        }
        if self.state.questions.is_focused() {
            part.cursor = None;
        }
        part
    }

    /// Rows of an editor with the sign before them, around the cursor.
    fn text_part(&self, editor: &PromptEditor, most: usize) -> Part {
        let width = editor_width(self.size);
        let layout = editor.layout(width);
        let has_sign = width < self.size.width;
        let row = |(place, row): (usize, &EditorRow)| match (has_sign, place) {
            (false, _) => row.text.clone(),
            (true, 0) => format!("{}{}", self.paint(CYAN, SIGN), row.text),
            (true, _) => format!("{INDENT}{}", row.text),
        };
        let rows = layout.rows.iter().enumerate().map(row).collect();
        let (line, column) = layout.cursor;
        let column = column + if has_sign { SIGN.chars().count() } else { 0 };
        fit_part(Part { rows, cursor: Some((line, column)) }, most)
    }

    /// The popup, or the footer, or a hint in its place.
    fn below_editor(&self) -> Vec<String> {
        if let Some(popup) = &self.state.popup {
            return self.popup_rows(popup);
        }
        if let Some(hint) = self.state.hint() {
            return vec![self.fit(&self.paint(YELLOW, &clean(hint)))];
        }
        if self.is_compact {
            return Vec::new();
        }
        vec![self.paint(FAINT, &self.state.facts.footer_row(self.size.width))]
    }

    fn popup_rows(&self, popup: &Popup) -> Vec<String> {
        let most = POPUP_ROWS.min(self.size.height.saturating_sub(2) / 2);
        let first = (popup.selected + 1).saturating_sub(most);
        let shown = popup.candidates.iter().enumerate().skip(first).take(most);
        let names = shown.clone().map(|(_, candidate)| line_width(&candidate.insert));
        let widest = names.max().unwrap_or(0).min(self.size.width / 2);
        let row = |(place, candidate): (usize, &super::popup::Candidate)| {
            let name = name_on_one_line(&candidate.insert, self.size.width);
            let gap = " ".repeat(widest.saturating_sub(line_width(&name)) + 2);
            let (mark, name) = if place == popup.selected {
                (self.paint(CYAN, SIGN), self.paint(BOLD, &name))
            } else {
                (INDENT.to_owned(), name)
            };
            self.fit(&format!("{mark}{name}{gap}{}", self.paint(FAINT, &candidate.detail)))
        };
        shown.map(row).collect()
    }

    /// The choices of the shown question, or a word that one waits.
    fn question_part(&self) -> Part {
        let questions = &self.state.questions;
        let Some(request) = questions.first() else { return Part::default() };
        if !questions.is_focused() {
            let is_writing = !self.state.editor.is_empty();
            let words = if is_writing { "? a question waits: Tab answers it" } else { "? …" };
            return Part { rows: vec![self.fit(&self.paint(YELLOW, words))], cursor: None };
        }
        if let Some(instead) = questions.instead() {
            return self.instead_part(instead);
        }
        let choices = request.answers.iter().enumerate();
        let choices = choices.map(|(place, answer)| (place, choice_text(*answer, request)));
        self.choice_part(choices, questions)
    }

    fn choice_part(
        &self,
        choices: impl Iterator<Item = (usize, String)>,
        questions: &QuestionQueue,
    ) -> Part {
        let mut part = Part::default();
        for (place, choice) in choices {
            let is_selected = place == questions.selected();
            let mark = if is_selected { SIGN } else { INDENT };
            let line = format!("{mark}{} {choice}", place + 1);
            let line = if is_selected { self.paint(BOLD, &line) } else { line };
            if is_selected {
                part.cursor = Some((part.rows.len(), 0));
            }
            part.rows.extend(wrap_line(&line, self.size.width));
        }
        part
    }

    fn instead_part(&self, instead: &PromptEditor) -> Part {
        let words = "no; what should it do instead? (Enter sends, Esc goes back)";
        let mut part = self.text_part(instead, 3);
        part.rows.insert(0, self.fit(&self.paint(YELLOW, words)));
        part.cursor = part.cursor.map(|(row, column)| (row + 1, column));
        part
    }

    /// What runs, the Subagents, and what waits for the end of the Turn.
    fn activity_rows(&self, now: Instant, most: usize) -> Vec<String> {
        let mut rows = Vec::new();
        rows.extend(self.status_row(now).map(|row| self.paint(FAINT, &row)));
        let width = self.size.width;
        rows.extend(self.state.feed.workflow_row(width).map(|row| self.fit(&row)));
        rows.extend(self.state.children.iter().take(CHILD_ROWS).map(|row| self.fit(row)));
        let queue = &self.state.queue;
        for queued in queue.iter().take(QUEUE_ROWS) {
            let text = name_on_one_line(&queued.shown, width.saturating_sub(10));
            rows.push(self.fit(&self.paint(FAINT, &format!("queued: {text}"))));
        }
        if queue.len() > QUEUE_ROWS {
            let more = queue.len() - QUEUE_ROWS;
            rows.push(
                self.fit(
                    &self.paint(FAINT, &format!("and {more} more; Alt+Up takes the last back")),
                ),
            );
        } else if !queue.is_empty() && !self.is_compact {
            rows.push(self.fit(&self.paint(FAINT, "Alt+Up takes it back")));
        }
        rows.truncate(most);
        rows
    }

    fn status_row(&self, now: Instant) -> Option<String> {
        let (words, keys) = match self.state.phase {
            ChatPhase::Idle => return self.children_row(),
            ChatPhase::Command => ("… working".to_owned(), ""),
            ChatPhase::Turn { is_stopping: true } => ("… stopping".to_owned(), ""),
            ChatPhase::Turn { is_stopping: false } => {
                let room = self.size.width.saturating_sub(" · Esc stops".len());
                let running = self.state.status.status_text(now, room);
                let running = running.unwrap_or_else(|| "… starting".to_owned());
                (running, if self.is_compact { "" } else { " · Esc stops" })
            }
        };
        Some(self.fit(&format!("{words}{keys}")))
    }

    fn children_row(&self) -> Option<String> {
        let are_at_work = !self.state.children.is_empty();
        are_at_work.then(|| self.fit("… Subagents are at work"))
    }

    /// The end of the line that is being written.
    fn tail_rows(&self, room: usize) -> Vec<String> {
        let tail = self.state.feed.tail();
        let most = room.min(self.size.height / 2);
        if tail.is_empty() || most == 0 {
            return Vec::new();
        }
        let rows = wrap_line(end_of(tail, most * self.size.width * 4), self.size.width);
        let hidden = rows.len().saturating_sub(most);
        rows.into_iter().skip(hidden).collect()
    }
}

/// The last bytes of a text, from the start of a character.
fn end_of(text: &str, most: usize) -> &str {
    let start = text.len().saturating_sub(most);
    let start = (start..=text.len()).find(|place| text.is_char_boundary(*place));
    &text[start.unwrap_or(0)..]
}
