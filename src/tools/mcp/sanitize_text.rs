//! Sanitizes text of a server for a model: plain, without hidden characters, and short.
//!
//! The text that a server gives about its tools is in every request and untrusted, so it is
//! strictly bounded.

use crate::base::text::{is_invisible, strip_ansi};

/// The longest description of a tool, in bytes.
const MAX_DESCRIPTION_BYTES: usize = 2048;

/// A text without escape sequences and hidden characters, cut to so many bytes.
pub fn clean_text(text: &str, longest: usize) -> String {
    // Only a bounded part is cleaned: more than `longest`, because removed characters leave room.
    let head = &text[..text.floor_char_boundary(longest.saturating_mul(4))];
    let mut kept: String = strip_ansi(head.as_bytes());
    kept.retain(|c| !is_invisible(c));
    let kept = kept.trim();
    if kept.len() <= longest {
        return kept.to_owned();
    }
    let end = kept.floor_char_boundary(longest.saturating_sub('…'.len_utf8()));
    format!("{}…", kept[..end].trim_end())
}

/// The sanitized text, on one line.
pub fn clean_line(text: &str, longest: usize) -> String {
    let joined: Vec<&str> = text.split_whitespace().take(longest).collect();
    clean_text(&joined.join(" "), longest).replace('\n', " ")
}

/// The description of a tool for the model.
pub fn tool_description(server: &str, description: &str) -> String {
    let description = clean_text(description, MAX_DESCRIPTION_BYTES);
    let server = clean_line(server, 64);
    if description.is_empty() {
        return format!("A tool of the MCP server {server}.");
    }
    format!("[MCP server {server}] {description}")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn words_are_plain_and_short() {
        assert_eq!(clean_text("a\u{1b}[31mb\u{202e}c\u{e0041} \n", 100), "abc");
        assert_eq!(clean_text(&"é".repeat(100), 10).len(), 9);
        assert_eq!(clean_line(" a\n\tb ", 100), "a b");
        assert_eq!(tool_description("s", ""), "A tool of the MCP server s.");
        assert!(tool_description("s", &"x ".repeat(5000)).len() < MAX_DESCRIPTION_BYTES + 40);
    }

    proptest! {
        #[test]
        fn whatever_comes_is_cut(text in "\\PC{0,300}", longest in 4usize..64) {
            let cleaned = clean_text(&text, longest);
            prop_assert!(cleaned.len() <= longest.max('…'.len_utf8()));
            prop_assert!(!cleaned.chars().any(is_invisible));
            prop_assert_eq!(clean_text(&cleaned, longest), cleaned);
        }
    }
}
