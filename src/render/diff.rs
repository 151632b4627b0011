//! A unified diff on a terminal: coloured, and short enough to stay a side remark.

use super::sanitise::clean;

/// How many lines of a diff are shown.
const LINES: usize = 60;

/// Hands out the lines to show.
pub fn show(diff: &str, colour: bool, mut line: impl FnMut(&str)) {
    let total = diff.lines().count();
    for text in diff.lines().take(LINES) {
        let text = clean(text);
        match code(&text).filter(|_| colour) {
            Some(code) => line(&format!("  \x1b[{code}m{text}\x1b[0m")),
            None => line(&format!("  {text}")),
        }
    }
    if total > LINES {
        line(&format!("  … {} more lines of this diff", total - LINES));
    }
}

fn code(line: &str) -> Option<&'static str> {
    match line.as_bytes() {
        [b'+', b'+', b'+', ..] | [b'-', b'-', b'-', ..] => Some("1"),
        [b'+', ..] => Some("32"),
        [b'-', ..] => Some("31"),
        [b'@', b'@', ..] => Some("36"),
        _ => None,
    }
}
