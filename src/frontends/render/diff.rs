//! A unified diff on a terminal: coloured, up to a given number of lines.

use super::sanitise::clean;
use crate::base::error::counted;
use crate::record::event::spell_hidden;

/// How many lines of a tool result's diff are shown.
pub const MAX_RESULT_LINES: usize = 60;

/// Passes at most `most` lines to `line`.
pub fn show_diff(diff: &str, colour: bool, most: usize, mut line: impl FnMut(&str)) {
    let total = diff.lines().count();
    for text in diff.lines().take(most) {
        let text = if is_header(text) { spell_hidden(&clean(text)) } else { clean(text) };
        match colour_code(&text).filter(|_| colour) {
            Some(code) => line(&format!("  \x1b[{code}m{text}\x1b[0m")),
            None => line(&format!("  {text}")),
        }
    }
    if total > most {
        line(&format!("  … {} of this diff", counted(total - most, "more line")));
    }
}

/// Whether a line is a header that names a file.
fn is_header(line: &str) -> bool {
    line.starts_with("--- ") || line.starts_with("+++ ") || line.starts_with("diff ")
}

fn colour_code(line: &str) -> Option<&'static str> {
    match line.as_bytes() {
        [b'+', b'+', b'+', ..] | [b'-', b'-', b'-', ..] => Some("1"),
        [b'+', ..] => Some("32"),
        [b'-', ..] => Some("31"),
        [b'@', b'@', ..] => Some("36"),
        _ => None,
    }
}
