//! The terminal sanitiser: removes escape sequences and hidden characters from text.
//!
//! Escape sequences (CSI, OSC, DCS and their 8-bit twins), control characters but newline and tab,
//! bidi controls and tag characters are dropped. Joiners stay: scripts
//! and emoji need them. Text arrives in chunks, so an unfinished sequence is remembered.

use crate::record::event::{is_bidi_control, spell_hidden};

/// A filter for one stream of text.
#[derive(Debug, Clone, Default)]
pub struct Sanitiser {
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum State {
    #[default]
    Text,
    /// After ESC.
    Escape,
    /// After ESC and an intermediate byte, as in `ESC ( B`.
    Intermediate,
    /// In a control sequence, up to its final byte.
    Control,
    /// In a string (OSC, DCS, PM, APC, SOS), up to BEL or ST.
    String,
    /// In a string, after ESC: perhaps ST.
    StringEscape,
}

impl Sanitiser {
    /// Appends the sanitised chunk to `shown`.
    pub fn push(&mut self, chunk: &str, shown: &mut String) {
        if self.state == State::Text && chunk.bytes().all(is_plainly_harmless) {
            shown.push_str(chunk);
            return;
        }
        for c in chunk.chars() {
            if self.admits(c) {
                shown.push(c);
            }
        }
    }

    fn admits(&mut self, c: char) -> bool {
        // A line break ends every sequence: an unterminated one may hide a line, never the rest.
        if c == '\n' {
            self.state = State::Text;
            return true;
        }
        let (next, admitted) = match self.state {
            State::Text => match sequence_start(c) {
                Some(state) => (state, false),
                None => (State::Text, !is_forbidden(c)),
            },
            State::Escape => (state_after_escape(c), false),
            State::Intermediate => match c {
                ' '..='/' => (State::Intermediate, false),
                '\x1b' => (State::Escape, false),
                _ => (State::Text, false),
            },
            State::Control => match c {
                ' '..='?' => (State::Control, false),
                '\x1b' => (State::Escape, false),
                '@'..='~' => (State::Text, false),
                // Not a valid sequence; what follows is text again.
                _ => (State::Text, !is_forbidden(c)),
            },
            State::String => match c {
                '\x07' | '\u{9c}' => (State::Text, false),
                '\x1b' => (State::StringEscape, false),
                _ => (State::String, false),
            },
            State::StringEscape => match c {
                '\\' => (State::Text, false),
                '\x1b' => (State::StringEscape, false),
                _ => (State::String, false),
            },
        };
        self.state = next;
        admitted
    }
}

/// The sanitised text.
pub fn clean(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    Sanitiser::default().push(text, &mut shown);
    shown
}

/// The text on one line of at most `width` cells, blanks folded, cut with an ellipsis.
pub fn one_line(text: &str, width: usize) -> String {
    let mut sanitiser = Sanitiser::default();
    fold_blanks(text.chars().filter(|c| sanitiser.admits(*c)), width)
}

/// A command, a path or a name on one line like [`one_line`], but hidden characters are spelled and not
/// dropped, so that none of them acts on what follows it.
pub fn name_on_one_line(text: &str, width: usize) -> String {
    let spelled = |c: char| spell_hidden(c.encode_utf8(&mut [0; 4])).chars().collect::<Vec<_>>();
    fold_blanks(text.chars().flat_map(spelled), width)
}

/// Folds blanks, and reads no more than the line can hold.
fn fold_blanks(text: impl Iterator<Item = char>, width: usize) -> String {
    use unicode_width::UnicodeWidthChar;

    let most = width.saturating_mul(8) + 64;
    let mut line = String::new();
    let mut cells = 0;
    let mut count = 0;
    let mut is_parted = false;
    for c in text {
        if c.is_whitespace() {
            is_parted = !line.is_empty();
            continue;
        }
        let blank = std::mem::take(&mut is_parted).then_some(' ');
        for c in blank.into_iter().chain([c]) {
            line.push(c);
            cells += c.width().unwrap_or(0);
            count += 1;
        }
        // One cell can hold many characters.
        if cells > width || count > most {
            while cells + 1 > width {
                let Some(last) = line.pop() else { break };
                cells -= last.width().unwrap_or(0);
            }
            line.push('…');
            return line;
        }
    }
    line
}

/// Whether a byte cannot be part of a forbidden character: printable ASCII, and the lead and trail
/// bytes of characters outside the ranges below.
fn is_plainly_harmless(byte: u8) -> bool {
    match byte {
        // C2: C1 controls. D8, E2: bidi controls. EF: the byte order mark. F3: tags.
        0xC2 | 0xD8 | 0xE2 | 0xEF | 0xF3 => false,
        b'\n' | b'\t' | b' '..=b'~' | 0x80.. => true,
        _ => false,
    }
}

fn sequence_start(c: char) -> Option<State> {
    match c {
        '\x1b' => Some(State::Escape),
        '\u{9b}' => Some(State::Control),
        '\u{90}' | '\u{98}' | '\u{9d}' | '\u{9e}' | '\u{9f}' => Some(State::String),
        _ => None,
    }
}

fn state_after_escape(c: char) -> State {
    match c {
        '[' => State::Control,
        ']' | 'P' | 'X' | '^' | '_' => State::String,
        ' '..='/' => State::Intermediate,
        '\x1b' => State::Escape,
        _ => State::Text,
    }
}

fn is_forbidden(c: char) -> bool {
    let is_control = c.is_control() && c != '\n' && c != '\t';
    // The byte order mark, interlinear annotations and tags are invisible.
    let is_hidden = matches!(c, '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}');
    is_control || is_bidi_control(c) || is_hidden
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn check(text: &str, expected: &str) {
        assert_eq!(clean(text), expected, "{text:?}");
    }

    #[test]
    fn sequences_disappear_and_text_stays() {
        check("plain\ttext\n", "plain\ttext\n");
        check("\x1b[31mred\x1b[0m", "red");
        check("\x1b]0;title\x07after", "after");
        check("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link");
        check("\x1bPq#0\x1b\\x", "x");
        check("\x1b(Bx", "x");
        check("\u{9b}31mred", "red");
        check("\u{9d}0;title\u{9c}x", "x");
        check("a\rb\x07c\x7fd\u{85}e", "abcde");
        check("\x1b", "");
    }

    #[test]
    fn an_open_string_hides_a_line_and_no_more() {
        check("\x1b]0;never closed\nvisible", "\nvisible");
    }

    #[test]
    fn hidden_and_reordering_characters_disappear_and_joiners_stay() {
        check("a\u{202e}b\u{2066}c\u{e0041}d\u{feff}", "abcd");
        check("a\u{61c}b\u{200e}c\u{200f}d", "abcd");
        check("👩\u{200d}💻 می\u{200c}خواهم", "👩\u{200d}💻 می\u{200c}خواهم");
        check("“naïve” 漢字 ¿", "“naïve” 漢字 ¿");
    }

    #[test]
    fn one_line_is_as_wide_as_allowed() {
        assert_eq!(one_line("a\n  b\tc", 10), "a b c");
        assert_eq!(one_line("abcdef", 4), "abc…");
        assert_eq!(one_line("漢字漢字", 5), "漢字…");
        assert_eq!(one_line("abc", 3), "abc");
        assert_eq!(one_line("\x1b[2Jboo", 9), "boo");
        let spelled = name_on_one_line("\x1b[2Jr\u{200b}m\u{3164}  x", 60);
        assert_eq!(spelled, "<U+001B>[2Jr<U+200B>m<U+3164> x");
    }

    #[test]
    fn nothing_of_a_command_vanishes_from_its_title() {
        for (evil, mark) in [
            ("echo \x1b]0;; rm -rf x", "<U+001B>"),
            ("echo \x1b[; rm -rf x", "<U+001B>"),
            ("echo \x1bP rm -rf x\x1b\\ ok", "<U+001B>"),
            ("echo \u{9d}0; rm -rf x\u{9c} ok", "<U+009D>"),
            ("rm -rf x\recho all good", "<U+000D>"),
            ("echo \u{e0041} rm -rf x", "<U+E0041>"),
        ] {
            let shown = name_on_one_line(evil, 100);
            assert!(shown.contains("rm -rf x") && shown.contains(mark), "{evil:?}: {shown}");
        }
        let padded = format!("ls{}; rm -rf x", " ".repeat(5000));
        assert_eq!(name_on_one_line(&padded, 40), "ls ; rm -rf x");
        assert_eq!(one_line(&padded, 40), "ls ; rm -rf x");
        let marked = format!("ls{}; rm -rf x", "\u{301}".repeat(5000));
        assert!(name_on_one_line(&marked, 40).ends_with('…'), "what is left out is not hidden");
    }

    proptest! {
        #[test]
        fn chunks_do_not_matter(text in ".{0,40}", cuts in proptest::collection::vec(0usize..60, 0..5)) {
            let noisy: String = text.chars().flat_map(|c| match c {
                'a'..='f' => vec!['\x1b', '['], 'g'..='k' => vec!['\x1b', ']'], 'l' => vec!['\x07'], c => vec![c],
            }).collect();
            let mut sanitiser = Sanitiser::default();
            let mut shown = String::new();
            let chars: Vec<char> = noisy.chars().collect();
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(chars.len())).collect();
            cuts.extend([0, chars.len()]);
            cuts.sort_unstable();
            for pair in cuts.windows(2) {
                sanitiser.push(&chars[pair[0]..pair[1]].iter().collect::<String>(), &mut shown);
            }
            prop_assert_eq!(&shown, &clean(&noisy));
            prop_assert!(shown.chars().all(|c| !is_forbidden(c)));
            prop_assert_eq!(clean(&shown), shown);
        }

        #[test]
        fn harmless_text_is_untouched(text in "[ -~\n\tä-ÿα-ω漢字]{0,60}") {
            prop_assert_eq!(clean(&text), text);
        }

        #[test]
        fn a_line_never_exceeds_its_width(text in ".{0,60}", width in 1usize..30) {
            let line = one_line(&text, width);
            prop_assert!(unicode_width::UnicodeWidthStr::width(line.as_str()) <= width.max(1) + 1);
            prop_assert!(!line.contains('\n'));
        }
    }
}
