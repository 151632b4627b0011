//! A terminal that wraps lines again when its width changes, as most do, and keeps everything that scrolls out. It
//! knows what the chat writes and refuses the rest. Every character takes one cell.

use crate::frontends::chat::screen::ScreenSize;

/// Lines as they were written, however wide the window was.
pub struct ReflowTerminal {
    size: ScreenSize,
    lines: Vec<Vec<char>>,
    /// Line and place in it.
    cursor: (usize, usize),
    /// The last column was written, and the next character goes to the next row.
    is_pending: bool,
    /// How many rows there are above the lower edge of the window.
    bottom: usize,
}

impl ReflowTerminal {
    pub fn new(size: ScreenSize) -> Self {
        Self { size, lines: vec![Vec::new()], cursor: (0, 0), is_pending: false, bottom: 1 }
    }

    pub fn resize(&mut self, size: ScreenSize) {
        if size == self.size {
            return;
        }
        if size.width != self.size.width {
            self.is_pending = false;
        }
        self.size = size;
        while self.lines.len() > self.cursor.0 + 1 && self.lines.last().is_some_and(Vec::is_empty) {
            self.lines.pop();
        }
        // The cursor stays in the window: what does not fit below it is dropped.
        let below = size.height - 1;
        let kept = self.row_start() + (below + 1) * size.width;
        let mut rows = self.lines[self.cursor.0].len().min(kept).saturating_sub(self.row_start());
        self.lines[self.cursor.0].truncate(kept);
        rows = rows.div_ceil(size.width).max(1);
        let mut last = self.cursor.0;
        while last + 1 < self.lines.len() && rows + self.rows_of(last + 1) <= size.height {
            last += 1;
            rows += self.rows_of(last);
        }
        self.lines.truncate(last + 1);
        self.bottom = self.all_rows();
    }

    fn all_rows(&self) -> usize {
        (0..self.lines.len()).map(|line| self.rows_of(line)).sum()
    }

    pub fn lines(&self) -> Vec<String> {
        self.lines
            .iter()
            .map(|line| line.iter().collect::<String>().trim_end().to_owned())
            .collect()
    }

    pub fn write(&mut self, text: &str) {
        let mut rest = text;
        while let Some(c) = rest.chars().next() {
            rest = &rest[c.len_utf8()..];
            match c {
                '\r' => self.set_column(0),
                '\n' => self.line_feed(),
                '\x1b' => {
                    let body = rest.strip_prefix('[').expect("only CSI is written");
                    let end = body.find(|c: char| c.is_ascii_alphabetic()).unwrap();
                    self.control(&body[..end], body.as_bytes()[end]);
                    rest = &body[end + 1..];
                }
                c => self.put(c),
            }
            self.bottom = self.bottom.max(self.all_rows());
        }
    }

    fn control(&mut self, parameters: &str, letter: u8) {
        let count = parameters.parse().unwrap_or(1);
        match letter {
            b'A' => (0..count).for_each(|_| self.up()),
            b'B' => (0..count).for_each(|_| self.down()),
            b'C' => self.set_column(self.column() + count),
            b'J' => {
                assert_eq!(parameters, "");
                self.lines.truncate(self.cursor.0 + 1);
                self.lines[self.cursor.0].truncate(self.cursor.1);
            }
            b'K' => {
                let (line, place) = self.cursor;
                let end = (self.row_start() + self.size.width).min(self.lines[line].len());
                (place..end.max(place)).for_each(|place| self.lines[line][place] = ' ');
                if end == self.lines[line].len() {
                    self.lines[line].truncate(place);
                }
            }
            b'h' | b'l' => assert!(["?2026", "?25", "?7"].contains(&parameters), "{parameters}"),
            b'm' => {}
            other => panic!("{parameters} {other}"),
        }
    }

    fn column(&self) -> usize {
        if self.is_pending { self.size.width - 1 } else { self.cursor.1 % self.size.width }
    }

    fn row_start(&self) -> usize {
        self.cursor.1 - if self.is_pending { self.size.width } else { self.column() }
    }

    fn set_column(&mut self, column: usize) {
        self.cursor.1 = self.row_start() + column.min(self.size.width - 1);
        self.is_pending = false;
    }

    fn rows_of(&self, line: usize) -> usize {
        self.lines[line].len().div_ceil(self.size.width).max(1)
    }

    /// How many rows are above the cursor on the screen, whose end is the end of everything.
    fn row_on_screen(&self) -> usize {
        let own = self.row_start() / self.size.width;
        let before: usize = (0..self.cursor.0).map(|line| self.rows_of(line)).sum();
        let top = self.bottom.saturating_sub(self.size.height);
        (before + own).saturating_sub(top)
    }

    fn up(&mut self) {
        if self.row_on_screen() == 0 {
            return;
        }
        let (column, start) = (self.column(), self.row_start());
        self.is_pending = false;
        if start >= self.size.width {
            self.cursor.1 = start - self.size.width + column;
        } else if self.cursor.0 > 0 {
            self.cursor.0 -= 1;
            let rows = self.rows_of(self.cursor.0);
            self.cursor.1 = (rows - 1) * self.size.width + column;
        }
    }

    fn down(&mut self) {
        if self.row_on_screen() + 1 < self.size.height {
            self.line_feed();
        }
    }

    fn line_feed(&mut self) {
        let (column, start) = (self.column(), self.row_start());
        self.is_pending = false;
        if start + self.size.width < self.lines[self.cursor.0].len() {
            self.cursor.1 = start + self.size.width + column;
        } else {
            self.cursor = (self.cursor.0 + 1, column);
            if self.cursor.0 == self.lines.len() {
                self.lines.push(Vec::new());
            }
        }
    }

    fn put(&mut self, c: char) {
        let (line, place) = self.cursor;
        self.is_pending = false;
        let line = &mut self.lines[line];
        line.resize(line.len().max(place + 1), ' ');
        line[place] = c;
        self.cursor.1 += 1;
        self.is_pending = self.cursor.1.is_multiple_of(self.size.width);
    }
}
