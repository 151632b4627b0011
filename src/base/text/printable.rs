//! File names and lines as text for the model: control characters become visible, long lines are cut.

use std::fmt::Write as _;
use std::ops::Range;

/// The maximum length of a shown line, in bytes.
const MAX_LINE_BYTES: usize = 320;
/// How many bytes of a long line are shown before the match.
const BYTES_BEFORE_MATCH: usize = 80;

/// Replaces control characters by visible symbols and invalid UTF-8 by U+FFFD.
pub fn printable(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    if !text.contains(is_unprintable) {
        return text.into_owned();
    }
    text.chars().map(|c| if is_unprintable(c) { control_picture(c) } else { c }).collect()
}

/// The symbol that stands for a control character.
pub fn control_picture(control: char) -> char {
    match control {
        '\u{7f}' => '\u{2421}',
        c if c < ' ' => char::from_u32(0x2400 + c as u32).unwrap_or('?'),
        _ => '?',
    }
}

/// Whether a character is a control character other than a tab.
pub fn is_unprintable(c: char) -> bool {
    c.is_control() && c != '\t'
}

/// A line without its ending; a long line is cut around the match, with the number of omitted bytes.
pub fn printable_line(bytes: &[u8], found: impl FnOnce(&[u8]) -> Option<usize>) -> String {
    let line = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    if line.len() <= MAX_LINE_BYTES {
        return printable(line);
    }
    let Range { start, end } = shown_range(line, found(line).unwrap_or(0));
    let mut text = String::with_capacity(MAX_LINE_BYTES + 64);
    if start > 0 {
        write!(text, "[… {start} bytes]").ok();
    }
    text.push_str(&printable(&line[start..end]));
    if end < line.len() {
        write!(text, "[… {} bytes]", line.len() - end).ok();
    }
    text
}

/// The part of a long line that is shown; it begins and ends between characters.
fn shown_range(line: &[u8], found: usize) -> Range<usize> {
    let inside = |place: usize| line.get(place).is_some_and(|byte| byte & 0xc0 == 0x80);
    let wished =
        if found + BYTES_BEFORE_MATCH <= MAX_LINE_BYTES { 0 } else { found - BYTES_BEFORE_MATCH };
    let mut start = wished.min(line.len() - MAX_LINE_BYTES);
    let mut end = start + MAX_LINE_BYTES;
    // A character has at most four bytes; further continuation bytes are invalid.
    for _ in 0..3 {
        start += usize::from(start > 0 && inside(start));
        end -= usize::from(inside(end));
    }
    start..end
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_cannot_be_seen_is_made_visible() {
        assert_eq!(
            printable(b"a\tb\x1b[31m\x07\xff\r"),
            "a\tb\u{241b}[31m\u{2407}\u{fffd}\u{240d}"
        );
        assert_eq!(printable_line(b"plain\r\n", |_| None), "plain");
    }

    #[test]
    fn a_long_line_is_cut_around_what_was_found() {
        let mut line = vec![b'x'; 5000];
        line[3000..3006].copy_from_slice(b"needle");
        let shown = printable_line(&line, |line| memchr::memmem::find(line, b"needle"));
        assert!(shown.starts_with("[… 2920 bytes]xxx") && shown.contains("needle"), "{shown}");
        assert!(shown.ends_with("xxx[… 1760 bytes]"), "{shown}");
        let shown = printable_line(&line, |_| Some(4999));
        assert!(shown.starts_with("[… 4680 bytes]") && shown.ends_with('x'), "{shown}");
    }

    proptest! {
        #[test]
        fn no_character_is_torn_and_the_counts_are_true(
            text in "[aé€😀]{100,300}", place in 0_usize..1200,
        ) {
            let shown = printable_line(text.as_bytes(), |line| Some(place.min(line.len())));
            prop_assert!(!shown.contains('\u{fffd}'), "{}", shown);
            let letters = |text: &str| text.bytes().filter(|b| *b == b'a' || *b >= 0x80).count();
            let marks: Vec<usize> = shown.split("[… ").skip(1)
                .map(|rest| rest.split(' ').next().unwrap().parse().unwrap()).collect();
            // The marker itself brings one character of three bytes.
            let kept = letters(&shown) - marks.len() * 3;
            prop_assert_eq!(kept + marks.iter().sum::<usize>(), text.len());
        }
    }
}
