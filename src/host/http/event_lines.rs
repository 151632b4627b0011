//! Line splitter for server-sent event streams, whose chunks are cut anywhere.
//!
//! An SSE parser gets whole lines only: the parsers that exist search an unfinished line again with
//! every chunk, which takes quadratic time for a line of a megabyte in small chunks. This splitter
//! searches each byte once, and limits the length of an event.

use bytes::{Bytes, BytesMut};
use memchr::memchr2;

use super::HttpError;

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Splits an event stream into lines, and buffers the bytes that were not returned yet.
#[derive(Debug)]
pub struct EventLines {
    buffer: BytesMut,
    /// The length of the prefix of the buffer that is known to hold no line end.
    searched: usize,
    /// Whether the last line ended with CR; an LF after it belongs to the same line end.
    is_after_cr: bool,
    is_past_first_line: bool,
    /// Total length of the lines of the current event that were returned.
    event_length: usize,
    longest_event: usize,
}

impl EventLines {
    /// An empty splitter, to which an event of more than `longest_event` bytes is an error.
    pub fn new(longest_event: usize) -> Self {
        Self {
            buffer: BytesMut::new(),
            searched: 0,
            is_after_cr: false,
            is_past_first_line: false,
            event_length: 0,
            longest_event,
        }
    }

    /// Adds a chunk of the stream.
    pub fn push(&mut self, chunk: Bytes) {
        if self.buffer.is_empty() {
            self.buffer = BytesMut::from(chunk);
        } else {
            self.buffer.extend_from_slice(&chunk);
        }
    }

    /// The bytes of a line whose end has not arrived.
    pub fn unfinished(&self) -> &[u8] {
        &self.buffer
    }

    /// Takes the next whole line: valid UTF-8 that ends with LF, without a byte order mark. A line is
    /// cut before the first byte that is not UTF-8, so that its reader finds it incomplete.
    pub fn next_line(&mut self) -> Result<Option<Bytes>, HttpError> {
        if self.is_after_cr && !self.buffer.is_empty() {
            self.is_after_cr = false;
            if self.buffer.starts_with(b"\n") {
                drop(self.buffer.split_to(1));
            }
        }
        let unsearched = self.buffer.get(self.searched..).unwrap_or_default();
        let Some(end) = memchr2(b'\n', b'\r', unsearched).map(|end| end + self.searched) else {
            self.searched = self.buffer.len();
            self.check_length(self.buffer.len())?;
            return Ok(None);
        };
        self.searched = 0;
        let mut line = self.buffer.split_to(end + 1);
        if let Some(last) = line.last_mut()
            && *last == b'\r'
        {
            self.is_after_cr = true;
            *last = b'\n';
        }
        self.check_length(line.len())?;
        self.event_length = if end == 0 { 0 } else { self.event_length + line.len() };
        let is_first = !std::mem::replace(&mut self.is_past_first_line, true);
        if is_first && line.starts_with(BYTE_ORDER_MARK) {
            drop(line.split_to(BYTE_ORDER_MARK.len()));
        }
        if let Err(error) = std::str::from_utf8(&line) {
            line.truncate(error.valid_up_to());
            line.extend_from_slice(b"\n");
        }
        Ok(Some(line.freeze()))
    }

    fn check_length(&self, line: usize) -> Result<(), HttpError> {
        if self.event_length.saturating_add(line) <= self.longest_event {
            return Ok(());
        }
        let limit = self.longest_event >> 20;
        Err(HttpError::TooLong(format!("an event of the stream is longer than {limit} MiB")))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn lines<'a>(chunks: impl IntoIterator<Item = &'a [u8]>) -> Vec<String> {
        let mut lines = EventLines::new(8 << 20);
        let mut found = Vec::new();
        for chunk in chunks {
            lines.push(Bytes::copy_from_slice(chunk));
            while let Some(line) = lines.next_line().unwrap() {
                found.push(String::from_utf8(line.into()).unwrap());
            }
        }
        found
    }

    #[test]
    fn every_line_end_is_a_line_feed() {
        for end in ["\n", "\r\n", "\r"] {
            let stream = ["event: a", "data: 1", "", "data: x", "", "cut"].join(end);
            let expected = ["event: a\n", "data: 1\n", "\n", "data: x\n", "\n"];
            assert_eq!(lines([stream.as_bytes()]), expected, "{end:?}");
        }
        assert_eq!(lines(["\u{feff}data: x\n".as_bytes()]), ["data: x\n"]);
        assert_eq!(lines([&b"data: {\xff}\n\n"[..]]), ["data: {\n", "\n"]);
    }

    #[test]
    fn a_megabyte_in_single_bytes_stays_linear() {
        let stream = format!("data: {}\n", "x".repeat(1 << 20));
        assert_eq!(lines(stream.as_bytes().chunks(1)), [stream]);
    }

    #[test]
    fn an_event_without_end_is_an_error_and_many_small_ones_are_not() {
        let mut endless = EventLines::new(1 << 20);
        endless.push(vec![b'x'; (1 << 20) + 1].into());
        assert!(matches!(endless.next_line(), Err(HttpError::TooLong(_))));
        let mut many_lines = EventLines::new(1 << 20);
        let line = Bytes::from(format!("data: {}\n", "x".repeat(1 << 18)));
        let mut taken = 0;
        let ended = loop {
            many_lines.push(line.clone());
            match many_lines.next_line() {
                Ok(_) => taken += 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(ended, HttpError::TooLong(_)) && taken == 3, "{taken}");
        let mut events = EventLines::new(1 << 20);
        for _ in 0..20 {
            events.push(line.clone());
            events.push(Bytes::from_static(b"\n"));
            assert!(events.next_line().unwrap().is_some() && events.next_line().unwrap().is_some());
        }
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
            prop_assert_eq!(lines(chunks), lines([stream.as_bytes()]));
        }
    }
}
