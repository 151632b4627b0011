//! Cells: how wide text is on a terminal, and how a line is cut into rows.
//!
//! Lines may contain colours (`ESC [ … m`) and nothing else that a terminal obeys: everything else is dropped here,
//! also when it was dropped before.

use unicode_segmentation::UnicodeSegmentation;
use unicode_width::UnicodeWidthStr;

/// How far tabs reach.
const TAB: usize = 8;

/// The sequence that ends all colours.
pub const RESET: &str = "\x1b[0m";

/// A piece of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinePiece<'a> {
    /// A colour sequence.
    Style(&'a str),
    /// What the user sees as one character.
    Grapheme(&'a str),
}

/// The width of what the user sees as one character: none, one or two cells.
pub fn grapheme_width(grapheme: &str) -> usize {
    if grapheme.len() == 1 {
        return usize::from(!grapheme.as_bytes()[0].is_ascii_control());
    }
    if grapheme.chars().any(is_invisible) { 0 } else { grapheme.width().min(2) }
}

/// Whether a character is obeyed by terminals or reorders text.
fn is_invisible(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200b}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}')
        || matches!(c, '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// The pieces of a line; what a terminal would obey is left out.
pub fn line_pieces(line: &str) -> Vec<LinePiece<'_>> {
    let mut pieces = Vec::new();
    let mut rest = line;
    while let Some(place) = rest.find('\x1b') {
        push_graphemes(&rest[..place], &mut pieces);
        rest = &rest[place..];
        let length = style_length(rest);
        if length > 0 {
            pieces.push(LinePiece::Style(&rest[..length]));
        }
        rest = &rest[length.max(1)..];
    }
    push_graphemes(rest, &mut pieces);
    pieces
}

fn push_graphemes<'a>(text: &'a str, pieces: &mut Vec<LinePiece<'a>>) {
    let shown =
        text.graphemes(true).filter(|grapheme| *grapheme == "\t" || grapheme_width(grapheme) > 0);
    pieces.extend(shown.map(LinePiece::Grapheme));
}

/// The length of the colour sequence at the start of a text; zero when it is none.
fn style_length(text: &str) -> usize {
    let Some(body) = text.strip_prefix("\x1b[") else { return 0 };
    let end = body.find(|c: char| !c.is_ascii_digit() && c != ';');
    match end {
        Some(end) if body[end..].starts_with('m') => "\x1b[".len() + end + 1,
        _ => 0,
    }
}

/// The line without anything that a terminal obeys, except colours and tabs.
pub fn safe_line(line: &str) -> String {
    let mut safe = String::with_capacity(line.len());
    for piece in line_pieces(line) {
        match piece {
            LinePiece::Style(text) | LinePiece::Grapheme(text) => safe.push_str(text),
        }
    }
    safe
}

/// The width of a line in cells.
pub fn line_width(line: &str) -> usize {
    let mut cells = 0;
    for piece in line_pieces(line) {
        if let LinePiece::Grapheme(grapheme) = piece {
            cells += cells_at(grapheme, cells);
        }
    }
    cells
}

/// The cells that a character takes in this column.
fn cells_at(grapheme: &str, column: usize) -> usize {
    if grapheme == "\t" { TAB - column % TAB } else { grapheme_width(grapheme) }
}

/// Cuts a line into rows of at most `width` cells, each with the colours that hold in it. There is at least one row.
pub fn wrap_line(line: &str, width: usize) -> Vec<String> {
    let width = width.max(1);
    let mut rows = Vec::new();
    let (mut row, mut cells, mut style) = (String::new(), 0, String::new());
    for piece in line_pieces(line) {
        match piece {
            LinePiece::Style(sequence) => {
                if matches!(sequence, RESET | "\x1b[m") {
                    style.clear();
                } else {
                    style.push_str(sequence);
                }
                row.push_str(sequence);
            }
            LinePiece::Grapheme(grapheme) => {
                let wide = cells_at(grapheme, cells);
                if cells > 0 && cells + wide > width {
                    if !style.is_empty() {
                        row.push_str(RESET);
                    }
                    rows.push(std::mem::replace(&mut row, style.clone()));
                    cells = 0;
                }
                cells += push_fitting(grapheme, cells, width, &mut row);
            }
        }
    }
    if !style.is_empty() {
        row.push_str(RESET);
    }
    rows.push(row);
    rows
}

/// Adds a character to a row that may be narrower than it, and gives its cells.
fn push_fitting(grapheme: &str, column: usize, width: usize, row: &mut String) -> usize {
    let room = width.saturating_sub(column);
    let wide = cells_at(grapheme, column);
    if grapheme == "\t" {
        let wide = wide.min(room);
        row.push_str(&" ".repeat(wide));
        return wide;
    }
    if wide > room {
        row.push('?');
        return 1;
    }
    row.push_str(grapheme);
    wide
}

/// The line in at most `width` cells; one that is longer ends with a mark.
pub fn fit_line(line: &str, width: usize) -> String {
    if line_width(line) <= width {
        return wrap_line(line, width.max(1)).swap_remove(0);
    }
    match width {
        0 => String::new(),
        1 => "…".to_owned(),
        _ => {
            let mut first = wrap_line(line, width - 1).swap_remove(0);
            first.push('…');
            first
        }
    }
}
