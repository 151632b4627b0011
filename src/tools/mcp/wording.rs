//! Sanitizes text of a server for a model: plain, without hidden characters, and short.
//!
//! The text that a server gives about its tools is in every request and untrusted, so it is
//! strictly bounded.

use crate::base::text::{is_hidden, plain};

/// The longest description of a tool, in bytes.
const LONGEST_MANUAL: usize = 2048;

/// A text without escape sequences and hidden characters, cut to so many bytes.
pub fn clean(text: &str, longest: usize) -> String {
    // Only a bounded part is cleaned: more than `longest`, because removed characters leave room.
    let head = &text[..text.floor_char_boundary(longest.saturating_mul(4))];
    let mut kept: String = plain(head.as_bytes());
    kept.retain(|c| !is_hidden(c));
    let kept = kept.trim();
    if kept.len() <= longest {
        return kept.to_owned();
    }
    let end = kept.floor_char_boundary(longest.saturating_sub('…'.len_utf8()));
    format!("{}…", kept[..end].trim_end())
}

/// The sanitized text, on one line.
pub fn line(text: &str, longest: usize) -> String {
    let joined: Vec<&str> = text.split_whitespace().take(longest).collect();
    clean(&joined.join(" "), longest).replace('\n', " ")
}

/// The description of a tool for the model.
pub fn manual(server: &str, description: &str) -> String {
    let description = clean(description, LONGEST_MANUAL);
    let server = line(server, 64);
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
        assert_eq!(clean("a\u{1b}[31mb\u{202e}c\u{e0041} \n", 100), "abc");
        assert_eq!(clean(&"é".repeat(100), 10).len(), 9);
        assert_eq!(line(" a\n\tb ", 100), "a b");
        assert_eq!(manual("s", ""), "A tool of the MCP server s.");
        assert!(manual("s", &"x ".repeat(5000)).len() < LONGEST_MANUAL + 40);
    }

    proptest! {
        #[test]
        fn whatever_comes_is_cut(text in "\\PC{0,300}", longest in 4usize..64) {
            let cleaned = clean(&text, longest);
            prop_assert!(cleaned.len() <= longest.max('…'.len_utf8()));
            prop_assert!(!cleaned.chars().any(is_hidden));
            prop_assert_eq!(clean(&cleaned, longest), cleaned);
        }
    }
}
