//! Strips ANSI escape sequences and control bytes from the output of programs; the result is valid UTF-8.

/// How much of an unterminated escape string is dropped before the rest counts as text again.
const ESCAPE_LIMIT: usize = 4096;

/// How much of a line a carriage return can still overwrite.
const LINE_LIMIT: usize = 8192;

/// The meaning of a carriage return inside a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CarriageReturn {
    /// Restarts the line, as on a terminal: a progress bar leaves its last state.
    RestartLine,
    /// Ends the line: live output shows every state as it comes.
    EndLine,
}

/// Strips escape sequences from a stream, chunk by chunk.
#[derive(Debug)]
pub struct AnsiStripper {
    carriage_return: CarriageReturn,
    state: EscapeState,
    /// The first bytes of a character that the next chunk completes.
    partial: Vec<u8>,
    /// The part of the current line that a carriage return may overwrite.
    line: String,
    has_carriage_return: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EscapeState {
    Text,
    Escape,
    /// After `ESC` and an intermediate byte: one more byte ends the sequence.
    Charset,
    /// `ESC [` parameters, until a letter.
    ControlSequence,
    /// `ESC ]` and similar, until BEL or `ESC \`; a line end or [`ESCAPE_LIMIT`] ends it as well.
    StringSequence(usize),
}

/// Strips escape sequences from a whole text, as it would look on a terminal.
pub fn strip_ansi(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    let mut plain = AnsiStripper::new(CarriageReturn::RestartLine);
    plain.push(bytes, &mut text);
    plain.finish(&mut text);
    text
}

/// Whether a character is invisible: controls, direction marks, joiners, tags, fillers and
/// variation selectors beyond the one that emoji use.
pub fn is_invisible(c: char) -> bool {
    let is_whitespace = matches!(c, '\n' | '\t' | '\r');
    (c.is_control() && !is_whitespace)
        || matches!(c,
            '\u{00ad}' | '\u{034f}' | '\u{061c}' | '\u{115f}'..='\u{1160}'
            | '\u{17b4}'..='\u{17b5}' | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{3164}'
            | '\u{fe00}'..='\u{fe0e}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}'
            | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
}

impl AnsiStripper {
    /// An empty stream.
    pub fn new(carriage_return: CarriageReturn) -> Self {
        let (partial, line) = (Vec::new(), String::new());
        Self {
            carriage_return,
            state: EscapeState::Text,
            partial,
            line,
            has_carriage_return: false,
        }
    }

    /// Takes a chunk and appends the text that can no longer change.
    pub fn push(&mut self, chunk: &[u8], text: &mut String) {
        let mut joined = std::mem::take(&mut self.partial);
        let bytes = if joined.is_empty() {
            chunk
        } else {
            joined.extend_from_slice(chunk);
            &joined
        };
        let mut parts = bytes.utf8_chunks().peekable();
        while let Some(part) = parts.next() {
            self.push_valid(part.valid(), text);
            let bad = part.invalid();
            let is_begun = |error: std::str::Utf8Error| error.error_len().is_none();
            if parts.peek().is_none() && std::str::from_utf8(bad).is_err_and(is_begun) {
                self.partial = bad.to_vec();
            } else if !bad.is_empty() {
                self.push_char(char::REPLACEMENT_CHARACTER, text);
            }
        }
        if self.carriage_return == CarriageReturn::EndLine || self.line.len() > LINE_LIMIT {
            text.push_str(&std::mem::take(&mut self.line));
        }
    }

    /// Appends the held-back text, at the end of the stream.
    pub fn finish(&mut self, text: &mut String) {
        if !self.partial.is_empty() {
            self.push_char(char::REPLACEMENT_CHARACTER, text);
        }
        text.push_str(&self.line);
    }

    fn push_valid(&mut self, mut valid: &str, text: &mut String) {
        while !valid.is_empty() {
            // Printable ASCII is appended in one piece, because most output consists of it.
            let ordinary = if self.state == EscapeState::Text {
                printable_prefix_len(valid.as_bytes())
            } else {
                0
            };
            let room = LINE_LIMIT + 1 - self.line.len().min(LINE_LIMIT);
            let (letters, rest) = valid.split_at(ordinary.min(room));
            if !letters.is_empty() {
                self.push_text(letters, text);
                valid = rest;
                continue;
            }
            let mut characters = valid.chars();
            if let Some(character) = characters.next() {
                self.push_char(character, text);
            }
            valid = characters.as_str();
        }
    }

    fn push_char(&mut self, character: char, text: &mut String) {
        self.state = match (self.state, character) {
            (_, '\u{1b}') => EscapeState::Escape,
            (EscapeState::Text, _) => {
                return self.push_text(character.encode_utf8(&mut [0; 4]), text);
            }
            (EscapeState::Escape, '[') | (EscapeState::ControlSequence, ' '..='?') => {
                EscapeState::ControlSequence
            }
            (EscapeState::Escape, ']' | 'P' | 'X' | '^' | '_') => EscapeState::StringSequence(0),
            (EscapeState::Escape, ' '..='/') => EscapeState::Charset,
            (EscapeState::Escape | EscapeState::Charset, '0'..='~')
            | (EscapeState::ControlSequence, '@'..='~')
            | (EscapeState::StringSequence(_), '\u{7}') => EscapeState::Text,
            (EscapeState::StringSequence(length), other)
                if other != '\n' && length < ESCAPE_LIMIT =>
            {
                EscapeState::StringSequence(length + 1)
            }
            // An invalid sequence: the rest is text again.
            _ => {
                self.state = EscapeState::Text;
                return self.push_text(character.encode_utf8(&mut [0; 4]), text);
            }
        };
    }

    /// Appends one character, or several printable ASCII ones.
    fn push_text(&mut self, letters: &str, text: &mut String) {
        if letters == "\r" {
            self.has_carriage_return = true;
            return;
        }
        let returned = std::mem::take(&mut self.has_carriage_return);
        if letters == "\n" {
            self.line.push('\n');
            text.push_str(&self.line);
            self.line.clear();
            return;
        }
        if letters != "\t" && letters.chars().next().is_some_and(char::is_control) {
            return;
        }
        match self.carriage_return {
            CarriageReturn::RestartLine if returned => self.line.clear(),
            CarriageReturn::EndLine if returned => self.line.push('\n'),
            CarriageReturn::RestartLine | CarriageReturn::EndLine => {}
        }
        self.line.push_str(letters);
        if self.line.len() > LINE_LIMIT {
            text.push_str(&self.line);
            self.line.clear();
        }
    }
}

/// How many of the first bytes are printable ASCII.
fn printable_prefix_len(bytes: &[u8]) -> usize {
    bytes.iter().take_while(|byte| (0x20..0x7f).contains(*byte)).count()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn check(raw: &[u8], expected: &str) {
        assert_eq!(strip_ansi(raw), expected);
    }

    #[test]
    fn escapes_and_control_bytes_vanish() {
        check(b"\x1b[1;31mred\x1b[0m\x07\x08 \x1b]0;title\x07x\x1b]8;;u\x1b\\y\x1b(Bz", "red xyz");
        check("a\u{9b}b\u{7f}c\td\n".as_bytes(), "abc\td\n");
    }

    #[test]
    fn a_progress_bar_leaves_its_last_state() {
        check(b"10%\r50%\r100%\ndone\r\nend\r", "100%\ndone\nend");
    }

    #[test]
    fn an_unfinished_escape_does_not_swallow_what_follows() {
        check(b"\x1b]0;never ends\nnext line", "\nnext line");
        check(b"\x1b[31\xc3\xa9x", "\u{e9}x");
    }

    #[test]
    fn invalid_bytes_are_replaced() {
        check(b"a\xffb\xe2\x82", "a\u{fffd}b\u{fffd}");
    }

    #[test]
    fn live_output_shows_every_state() {
        let (mut text, mut live) = (String::new(), AnsiStripper::new(CarriageReturn::EndLine));
        live.push(b"10%\r20%", &mut text);
        assert_eq!(text, "10%\n20%");
    }

    #[test]
    fn every_byte_is_ordinary_or_not_in_any_place() {
        for byte in 0..=u8::MAX {
            for place in 0..20 {
                let mut bytes = [b'x'; 24];
                bytes[place] = byte;
                let expected = if (0x20..0x7f).contains(&byte) { 24 } else { place };
                assert_eq!(printable_prefix_len(&bytes), expected, "{byte:#x} at {place}");
            }
        }
    }

    #[test]
    fn a_very_long_line_is_taken_in_pieces_of_the_same_size() {
        let long = [&b"x".repeat(LINE_LIMIT * 3)[..], b"\ry"].concat();
        let mut streamed = String::new();
        let mut stream = AnsiStripper::new(CarriageReturn::RestartLine);
        long.chunks(7).for_each(|chunk| stream.push(chunk, &mut streamed));
        stream.finish(&mut streamed);
        assert_eq!(streamed, strip_ansi(&long));
    }

    proptest! {
        #[test]
        fn chunks_do_not_matter(bytes in prop::collection::vec(any::<u8>(), 0..80), at in 0_usize..80) {
            let at = at.min(bytes.len());
            let (mut text, mut stream) = (String::new(), AnsiStripper::new(CarriageReturn::RestartLine));
            stream.push(&bytes[..at], &mut text);
            stream.push(&bytes[at..], &mut text);
            stream.finish(&mut text);
            prop_assert_eq!(text, strip_ansi(&bytes));
        }

        #[test]
        fn plain_text_stays_plain(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            let once = strip_ansi(&bytes);
            let control = |c: char| c.is_control() && c != '\n' && c != '\t';
            prop_assert!(!once.contains(control));
            prop_assert_eq!(strip_ansi(once.as_bytes()), once);
        }
    }
}
