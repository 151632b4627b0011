//! The editor: a text of several lines with a cursor, exact in characters as the user sees them; pure.
//!
//! A large paste is one character of a private range in the text and a label on the screen, so that every motion and
//! deletion treats it as one; it is replaced by what was pasted when the text is sent.

use std::borrow::Cow;

use unicode_segmentation::{GraphemeCursor, UnicodeSegmentation};

use super::cells::grapheme_width;
use super::kill_ring::KillRing;

/// The first character that stands for a paste; the private range behind it has room for 65,000.
const FIRST_PASTE: u32 = 0x10_0000;
const LAST_PASTE: u32 = 0x10_FFFD;

/// From here on a paste is shown by its label.
const LONG_PASTE_LINES: usize = 10;
const LONG_PASTE_BYTES: usize = 1_000;

/// How many states undo can bring back, and how many bytes they may hold.
const MOST_UNDO: usize = 200;
const MOST_UNDO_BYTES: usize = 4 * 1024 * 1024;

/// How far tabs reach in the editor.
const TAB: usize = 4;

/// What the last key did, because some keys join with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum LastEdit {
    #[default]
    Other,
    Typed,
    Killed,
    /// Something was put back from the kill ring: where it begins, and how far back in the ring it is.
    Yanked {
        start: usize,
        back: usize,
    },
}

/// A row of the editor on the screen.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EditorRow {
    pub text: String,
    /// The part of the text that it shows.
    start: usize,
    end: usize,
    cells: usize,
}

/// The editor as rows of a given width.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EditorLayout {
    pub rows: Vec<EditorRow>,
    /// Row and column of the cursor.
    pub cursor: (usize, usize),
}

/// The text that is being written.
#[derive(Debug, Clone, Default)]
pub struct PromptEditor {
    text: String,
    /// A byte position at the edge of a character as the user sees it.
    cursor: usize,
    /// The column that vertical motions aim at.
    goal: Option<usize>,
    pastes: Vec<String>,
    undo: Vec<(String, usize)>,
    kills: KillRing,
    last: LastEdit,
}

impl PromptEditor {
    /// The text to send, with everything that was pasted.
    pub fn text(&self) -> String {
        self.expand(&self.text)
    }

    /// The text with the labels of long pastes, as the user sees it.
    pub fn shown_text(&self) -> String {
        let mut shown = String::with_capacity(self.text.len());
        for c in self.text.chars() {
            match self.label_of(c.encode_utf8(&mut [0; 4])) {
                Some(label) => shown.push_str(&label),
                None => shown.push(c),
            }
        }
        shown
    }

    fn expand(&self, text: &str) -> String {
        let mut whole = String::with_capacity(text.len());
        for c in text.chars() {
            match self.paste_of(c) {
                Some(pasted) => whole.push_str(pasted),
                None => whole.push(c),
            }
        }
        whole
    }

    fn paste_of(&self, c: char) -> Option<&str> {
        let place = u32::from(c).checked_sub(FIRST_PASTE)?;
        self.pastes.get(usize::try_from(place).ok()?).map(String::as_str)
    }

    pub fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    /// The text before the cursor, with a character for each paste.
    pub fn before_cursor(&self) -> &str {
        &self.text[..self.cursor]
    }

    /// Empties the editor and gives its text. Undo brings it back.
    pub fn take(&mut self) -> String {
        let whole = self.text();
        self.save();
        self.text.clear();
        self.cursor = 0;
        self.last = LastEdit::Other;
        self.goal = None;
        whole
    }

    /// Replaces the text; the cursor goes to its end. Undo brings the old one back.
    pub fn replace_all(&mut self, text: &str) {
        self.save();
        self.text.clear();
        self.cursor = 0;
        self.insert_raw(&typeable(text));
        self.last = LastEdit::Other;
    }

    /// Replaces what is between `start` and the cursor.
    pub fn replace_before_cursor(&mut self, start: usize, text: &str) {
        self.save();
        let start = start.min(self.cursor);
        self.text.replace_range(start..self.cursor, "");
        self.cursor = start;
        self.insert_raw(&typeable(text));
        self.last = LastEdit::Other;
    }

    /// Types text at the cursor.
    pub fn insert(&mut self, text: &str) {
        let text = typeable(text);
        if text.is_empty() {
            return;
        }
        let joins = self.last == LastEdit::Typed && !text.contains(char::is_whitespace);
        if !joins {
            self.save();
        }
        self.insert_raw(&text);
        self.last = LastEdit::Typed;
    }

    /// Inserts a paste: as it is when it is short, by its label when it is long.
    pub fn paste(&mut self, text: &str) {
        let text = typeable(text);
        let lines = text.lines().count();
        let code = FIRST_PASTE + u32::try_from(self.pastes.len()).unwrap_or(LAST_PASTE);
        let mark = char::from_u32(code).filter(|_| code < LAST_PASTE);
        let is_long = lines > LONG_PASTE_LINES || text.len() > LONG_PASTE_BYTES;
        self.save();
        match mark.filter(|_| is_long) {
            Some(mark) => {
                self.pastes.push(text.into_owned());
                self.insert_raw(mark.encode_utf8(&mut [0; 4]));
            }
            None => self.insert_raw(&text),
        }
        self.last = LastEdit::Other;
    }

    /// Replaces a backslash before the cursor by a new line; false when there is none.
    pub fn break_after_backslash(&mut self) -> bool {
        if !self.before_cursor().ends_with('\\') {
            return false;
        }
        self.replace_before_cursor(self.cursor - 1, "\n");
        true
    }

    pub fn delete_backward(&mut self) {
        let start = self.boundary_before(self.cursor);
        self.delete(start, self.cursor);
    }

    pub fn delete_forward(&mut self) {
        let end = self.boundary_after(self.cursor);
        self.delete(self.cursor, end);
    }

    pub fn kill_word_backward(&mut self) {
        let start = self.word_start_before(self.cursor);
        self.kill(start, self.cursor, true);
    }

    /// Cuts back to the blank before the cursor, as a shell does.
    pub fn kill_blank_word_backward(&mut self) {
        let before = self.before_cursor().trim_end();
        let start = before.rfind(char::is_whitespace);
        let start = start.map_or(0, |place| self.boundary_after(place));
        self.kill(start, self.cursor, true);
    }

    pub fn kill_word_forward(&mut self) {
        let end = self.word_end_after(self.cursor);
        self.kill(self.cursor, end, false);
    }

    /// Cuts to the end of the line, or the line end itself.
    pub fn kill_to_line_end(&mut self) {
        let end = self.line_end_from(self.cursor);
        let end = if end == self.cursor { self.boundary_after(end) } else { end };
        self.kill(self.cursor, end, false);
    }

    /// Cuts to the start of the line, or the line end before it.
    pub fn kill_to_line_start(&mut self) {
        let start = self.line_start_from(self.cursor);
        let start = if start == self.cursor { self.boundary_before(start) } else { start };
        self.kill(start, self.cursor, true);
    }

    /// Puts the last cut back.
    pub fn yank(&mut self) {
        let Some(text) = self.kills.nth_newest(0).map(str::to_owned) else { return };
        self.save();
        let start = self.cursor;
        self.insert_raw(&text);
        self.last = LastEdit::Yanked { start, back: 0 };
    }

    /// Replaces what was just put back by the cut before it.
    pub fn yank_earlier(&mut self) {
        let LastEdit::Yanked { start, back } = self.last else { return };
        let Some(text) = self.kills.nth_newest(back + 1).map(str::to_owned) else { return };
        self.text.replace_range(start..self.cursor, "");
        self.cursor = start;
        self.insert_raw(&text);
        self.last = LastEdit::Yanked { start, back: back + 1 };
    }

    pub fn undo(&mut self) {
        let Some((text, cursor)) = self.undo.pop() else { return };
        self.text = text;
        self.cursor = cursor;
        self.last = LastEdit::Other;
        self.goal = None;
    }

    pub fn move_left(&mut self) {
        let to = self.boundary_before(self.cursor);
        self.move_to(to);
    }

    pub fn move_right(&mut self) {
        let to = self.boundary_after(self.cursor);
        self.move_to(to);
    }

    pub fn move_word_left(&mut self) {
        let to = self.word_start_before(self.cursor);
        self.move_to(to);
    }

    pub fn move_word_right(&mut self) {
        let to = self.word_end_after(self.cursor);
        self.move_to(to);
    }

    pub fn move_to_line_start(&mut self) {
        let to = self.line_start_from(self.cursor);
        self.move_to(to);
    }

    pub fn move_to_line_end(&mut self) {
        let to = self.line_end_from(self.cursor);
        self.move_to(to);
    }

    pub fn move_to_start(&mut self) {
        self.move_to(0);
    }

    pub fn move_to_end(&mut self) {
        self.move_to(self.text.len());
    }

    /// Moves one row up or down on a screen of this width; false at the first or last row.
    pub fn move_vertically(&mut self, is_up: bool, width: usize) -> bool {
        let layout = self.layout(width);
        let (row, column) = layout.cursor;
        let target = if is_up { row.checked_sub(1) } else { Some(row + 1) };
        let Some(target) = target.and_then(|target| layout.rows.get(target)) else { return false };
        let goal = *self.goal.get_or_insert(column);
        let mut place = target.start;
        let mut cells = 0;
        for grapheme in self.text[target.start..target.end].graphemes(true) {
            let wide = self.shown_width(grapheme, cells);
            if cells + wide > goal {
                break;
            }
            cells += wide;
            place += grapheme.len();
        }
        // Behind the last cell of a full row is the next row.
        if place == target.end && target.cells >= width && place > target.start {
            place = self.boundary_before(place);
        }
        self.cursor = place;
        self.last = LastEdit::Other;
        true
    }

    fn shown_width(&self, grapheme: &str, column: usize) -> usize {
        match self.label_of(grapheme) {
            Some(label) => label.len(),
            None if grapheme == "\t" => TAB - column % TAB,
            None => grapheme_width(grapheme),
        }
    }

    /// The label of a paste.
    fn label_of(&self, grapheme: &str) -> Option<String> {
        let first = grapheme.chars().next()?;
        let pasted = self.paste_of(first)?;
        let number = u32::from(first) - FIRST_PASTE + 1;
        let more = match pasted.lines().count() {
            0 | 1 => format!("{} characters", pasted.chars().count()),
            lines => format!("+{lines} lines"),
        };
        Some(format!("[Pasted text #{number} {more}]"))
    }

    /// The rows of the editor on a screen of this width.
    pub fn layout(&self, width: usize) -> EditorLayout {
        let width = width.max(1);
        let mut rows = vec![EditorRow::default()];
        let mut cursor = None;
        for (place, grapheme) in self.text.grapheme_indices(true) {
            if grapheme == "\n" {
                if place == self.cursor {
                    cursor = Some(position(&rows, width));
                }
                let start = place + 1;
                rows.push(EditorRow { start, end: start, ..EditorRow::default() });
                continue;
            }
            let label = self.label_of(grapheme);
            let wide =
                if label.is_some() { 1 } else { self.shown_width(grapheme, cells_of(&rows)) };
            begin_row_for(wide, place, width, &mut rows);
            if place == self.cursor {
                cursor = Some(position(&rows, width));
            }
            match label {
                Some(label) => push_label(&label, place, width, &mut rows),
                None => push_shown(grapheme, width, &mut rows),
            }
            if let Some(row) = rows.last_mut() {
                row.end = place + grapheme.len();
            }
        }
        let cursor = cursor.unwrap_or_else(|| {
            begin_row_for(1, self.text.len(), width, &mut rows);
            position(&rows, width)
        });
        EditorLayout { rows, cursor }
    }

    fn move_to(&mut self, place: usize) {
        self.cursor = place;
        self.goal = None;
        self.last = LastEdit::Other;
    }

    fn insert_raw(&mut self, text: &str) {
        self.text.insert_str(self.cursor, text);
        self.cursor += text.len();
        self.snap();
    }

    fn delete(&mut self, start: usize, end: usize) {
        if start == end {
            return;
        }
        self.save();
        self.text.replace_range(start..end, "");
        self.cursor = start;
        self.snap();
        self.last = LastEdit::Other;
    }

    fn kill(&mut self, start: usize, end: usize, is_before: bool) {
        if start == end {
            return;
        }
        let cut = self.text[start..end].to_owned();
        let joins = self.last == LastEdit::Killed;
        self.delete(start, end);
        if joins {
            self.kills.extend(&cut, is_before);
        } else {
            self.kills.push(cut);
        }
        self.last = LastEdit::Killed;
    }

    /// Moves the cursor to the edge of a character: an edit may have joined two.
    fn snap(&mut self) {
        self.goal = None;
        let mut cursor = GraphemeCursor::new(self.cursor, self.text.len(), true);
        if !cursor.is_boundary(&self.text, 0).unwrap_or(true) {
            self.cursor = self.boundary_after(self.cursor);
        }
    }

    fn save(&mut self) {
        self.undo.push((self.text.clone(), self.cursor));
        let bytes =
            |undo: &[(String, usize)]| undo.iter().map(|(text, _)| text.len()).sum::<usize>();
        while self.undo.len() > MOST_UNDO
            || (self.undo.len() > 1 && bytes(&self.undo) > MOST_UNDO_BYTES)
        {
            self.undo.remove(0);
        }
    }

    fn boundary_before(&self, place: usize) -> usize {
        let mut cursor = GraphemeCursor::new(place, self.text.len(), true);
        cursor.prev_boundary(&self.text, 0).ok().flatten().unwrap_or(0)
    }

    fn boundary_after(&self, place: usize) -> usize {
        let mut cursor = GraphemeCursor::new(place, self.text.len(), true);
        cursor.next_boundary(&self.text, 0).ok().flatten().unwrap_or(self.text.len())
    }

    fn line_start_from(&self, place: usize) -> usize {
        self.text[..place].rfind('\n').map_or(0, |end| end + 1)
    }

    fn line_end_from(&self, place: usize) -> usize {
        self.text[place..].find('\n').map_or(self.text.len(), |length| place + length)
    }

    fn word_start_before(&self, place: usize) -> usize {
        let mut words = self.text[..place].unicode_word_indices();
        let start = words.next_back().map_or(0, |(start, _)| start);
        // A paste is a word too.
        let mark =
            self.text[..place].char_indices().rev().find(|(_, c)| self.paste_of(*c).is_some());
        mark.map_or(start, |(at, _)| start.max(at))
    }

    fn word_end_after(&self, place: usize) -> usize {
        let mut words = self.text[place..].unicode_word_indices();
        let end = words.next().map_or(self.text.len(), |(start, word)| place + start + word.len());
        let mark = self.text[place..].char_indices().find(|(_, c)| self.paste_of(*c).is_some());
        mark.map_or(end, |(at, c)| end.min(place + at + c.len_utf8()))
    }
}

/// The text without what a terminal cannot show and without characters that stand for pastes; line ends are `\n`.
fn typeable(text: &str) -> Cow<'_, str> {
    let is_typed = |c: char| {
        (c == '\n' || c == '\t' || !c.is_control())
            && !(FIRST_PASTE..=LAST_PASTE).contains(&u32::from(c))
    };
    if text.chars().all(is_typed) {
        return Cow::Borrowed(text);
    }
    let lines = text.replace("\r\n", "\n").replace('\r', "\n");
    Cow::Owned(lines.chars().filter(|c| is_typed(*c)).collect())
}

fn cells_of(rows: &[EditorRow]) -> usize {
    rows.last().map_or(0, |row| row.cells)
}

/// Where the next character would be.
fn position(rows: &[EditorRow], width: usize) -> (usize, usize) {
    (rows.len().saturating_sub(1), cells_of(rows).min(width - 1))
}

/// Begins a row when so many cells do not fit the present one.
fn begin_row_for(wide: usize, place: usize, width: usize, rows: &mut Vec<EditorRow>) {
    let cells = cells_of(rows);
    if cells > 0 && cells + wide > width {
        rows.push(EditorRow { start: place, end: place, ..EditorRow::default() });
    }
}

fn push_label(label: &str, place: usize, width: usize, rows: &mut Vec<EditorRow>) {
    for letter in label.graphemes(true) {
        begin_row_for(1, place, width, rows);
        push_shown(letter, width, rows);
    }
}

fn push_shown(grapheme: &str, width: usize, rows: &mut [EditorRow]) {
    let Some(row) = rows.last_mut() else { return };
    let room = width.saturating_sub(row.cells);
    if grapheme == "\t" {
        let wide = (TAB - row.cells % TAB).min(room);
        row.text.push_str(&" ".repeat(wide));
        row.cells += wide;
        return;
    }
    match grapheme_width(grapheme) {
        0 => {}
        wide if wide > room => {
            row.text.push('?');
            row.cells += 1;
        }
        wide => {
            row.text.push_str(grapheme);
            row.cells += wide;
        }
    }
}
