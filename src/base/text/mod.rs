//! Text from outside: strips escape sequences, bounds its size, makes it printable.

pub mod bounded;
pub mod printable;
pub mod strip_ansi;

pub use bounded::bound_text;
pub use strip_ansi::{is_invisible, strip_ansi};

/// The byte order mark of UTF-8.
pub const BOM: &[u8] = b"\xef\xbb\xbf";

/// The first `count` characters of a text, with an ellipsis if it is longer.
pub fn truncate_chars(text: &str, count: usize) -> String {
    match text.char_indices().nth(count) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// The words of a text on one line, with one blank between them.
pub fn on_one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Removes invisible characters from a text.
pub fn strip_invisible(text: &str) -> String {
    text.chars().filter(|letter| !is_invisible(*letter)).collect()
}
