//! Wrapped paragraphs behind a label, for lists and help.

use std::fmt::Write;

use super::clean;

/// Writes words on lines of at most `width` cells; the first begins with a label, the others are indented by as much.
pub fn write_wrapped(text: &mut String, label: &str, words: &str, width: usize) {
    let room = width.saturating_sub(label.len()).max(16);
    let mut line = String::new();
    let mut lead = label.to_owned();
    let cleaned = clean(words);
    for word in cleaned.split_whitespace() {
        let is_full = !line.is_empty() && line.chars().count() + 1 + word.chars().count() > room;
        if is_full {
            writeln!(text, "{lead}{line}").ok();
            lead = " ".repeat(label.len());
            line.clear();
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    writeln!(text, "{lead}{line}").ok();
}
