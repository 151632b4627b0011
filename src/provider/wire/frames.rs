//! Frames: server-sent events out of a stream of bytes, cut anywhere.
//!
//! Our own splitter, because the usual crate scans an unfinished line again with every chunk: a
//! reasoning item of a megabyte that trickles in would cost quadratic time. This one looks at each
//! byte once and hands out borrowed text.

use memchr::memchr2;

use crate::error::Kind;
use crate::provider::ProviderError;

/// The largest event that is accepted; a server that never ends its line must not eat the memory.
const LIMIT: usize = 64 * 1024 * 1024;

/// One event: its name, which may be empty, and its data lines joined by newlines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame<'a> {
    pub event: &'a [u8],
    pub data: &'a [u8],
}

/// Cuts bytes into frames; comments, ids and retry hints are skipped.
#[derive(Debug, Default)]
pub struct Splitter {
    /// A line whose end has not arrived.
    line: Vec<u8>,
    event: Vec<u8>,
    data: Vec<u8>,
    has_data: bool,
    /// The last byte was a CR: an LF right behind it belongs to the same line end.
    after_cr: bool,
    is_past_first_line: bool,
}

impl Splitter {
    /// Takes a chunk and calls `each` for every frame that it completes.
    pub fn feed(
        &mut self,
        chunk: &[u8],
        mut each: impl FnMut(Frame<'_>),
    ) -> Result<(), ProviderError> {
        let mut rest = chunk;
        while let [first, ..] = rest {
            if std::mem::replace(&mut self.after_cr, false) && *first == b'\n' {
                rest = &rest[1..];
                continue;
            }
            let Some(end) = memchr2(b'\n', b'\r', rest) else {
                self.line.extend_from_slice(rest);
                break;
            };
            self.after_cr = rest[end] == b'\r';
            if self.line.is_empty() {
                self.take_line(&rest[..end], &mut each);
            } else {
                let mut line = std::mem::take(&mut self.line);
                line.extend_from_slice(&rest[..end]);
                self.take_line(&line, &mut each);
                line.clear();
                self.line = line;
            }
            rest = &rest[end + 1..];
        }
        if self.line.len() + self.data.len() > LIMIT {
            return Err(ProviderError::terminal(
                Kind::InvalidResponse,
                "the Provider sent an event without end",
            ));
        }
        Ok(())
    }

    fn take_line(&mut self, line: &[u8], each: &mut impl FnMut(Frame<'_>)) {
        let is_first = !std::mem::replace(&mut self.is_past_first_line, true);
        let line = if is_first { line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line) } else { line };
        if line.is_empty() {
            if self.has_data {
                each(Frame { event: &self.event, data: &self.data });
            }
            self.event.clear();
            self.data.clear();
            self.has_data = false;
            return;
        }
        let (name, value) = match memchr::memchr(b':', line) {
            Some(colon) => (&line[..colon], &line[colon + 1..]),
            None => (line, &b""[..]),
        };
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match name {
            b"data" => {
                if self.has_data {
                    self.data.push(b'\n');
                }
                self.data.extend_from_slice(value);
                self.has_data = true;
            }
            b"event" => {
                self.event.clear();
                self.event.extend_from_slice(value);
            }
            // A comment has an empty name.
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn split<'a>(chunks: impl IntoIterator<Item = &'a [u8]>) -> Vec<(String, String)> {
        let mut splitter = Splitter::default();
        let mut frames = Vec::new();
        for chunk in chunks {
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            splitter
                .feed(chunk, |frame| frames.push((text(frame.event), text(frame.data))))
                .unwrap();
        }
        frames
    }

    #[track_caller]
    fn check(stream: &str, expected: &[(&str, &str)]) {
        let frames = split([stream.as_bytes()]);
        let frames: Vec<(&str, &str)> =
            frames.iter().map(|(e, d)| (e.as_str(), d.as_str())).collect();
        assert_eq!(frames, expected, "{stream:?}");
    }

    #[test]
    fn frames_come_out_whatever_ends_the_lines() {
        for end in ["\n", "\r\n", "\r"] {
            let stream = ["event: a", "data: 1", "data: 2", "", ": hi", "data:x", "", ""].join(end);
            check(&stream, &[("a", "1\n2"), ("", "x")]);
        }
    }

    #[test]
    fn what_is_no_frame_is_skipped() {
        check("", &[]);
        check(": comment\n\n\n\n", &[]);
        check("event: a\n\n", &[]);
        check("data\n\n", &[("", "")]);
        check("id: 1\nretry: 5\nnonsense\ndata: x\n\n", &[("", "x")]);
        check("\u{feff}data: x\n\n", &[("", "x")]);
        check("data: unfinished\n", &[]);
        check("data:  two blanks\n\n", &[("", " two blanks")]);
    }

    #[test]
    fn a_megabyte_that_trickles_in_stays_linear() {
        let stream = format!("data: {}\n\n", "x".repeat(1 << 20));
        let frames = split(stream.as_bytes().chunks(1));
        assert_eq!(frames.len(), 1);
        assert_eq!(frames[0].1.len(), 1 << 20);
    }

    proptest! {
        #[test]
        fn cuts_change_nothing(stream in "(event|data|:|: |\n|\r|\r\n|é|x){0,60}", cuts in proptest::collection::vec(1usize..8, 0..60)) {
            let mut rest = stream.as_bytes();
            let mut chunks = Vec::new();
            for cut in cuts {
                let (chunk, tail) = rest.split_at(cut.min(rest.len()));
                chunks.push(chunk);
                rest = tail;
            }
            chunks.push(rest);
            prop_assert_eq!(split(chunks), split([stream.as_bytes()]));
        }
    }
}
