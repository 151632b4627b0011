//! Bounded text: head and tail of a long text for the model, with a marker for the omitted part.

use std::borrow::Cow;

use crate::base::text::strip_ansi::strip_ansi;

/// Bytes of the limit reserved for the marker.
const MARKER_RESERVE: usize = 96;

/// How many times the limit is collected, because stripping escape sequences may shrink raw output a lot.
const RAW_FACTOR: usize = 4;

/// A bounded text, and how much of it was omitted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BoundedText {
    pub text: String,
    pub omitted_bytes: u64,
    pub omitted_lines: u64,
}

/// Strips escape sequences and keeps head and tail of the text within `limit` bytes.
///
/// Plain and short text is returned unchanged, so bounding twice changes nothing.
pub fn bound_text(text: &str, limit: usize) -> Cow<'_, str> {
    let odd = |byte: u8| (byte < 0x20 && byte != b'\n' && byte != b'\t') || byte == 0x7f;
    let text = if text.bytes().any(odd) || text.chars().any(|c| c.is_control() && c > '\u{7f}') {
        Cow::Owned(strip_ansi(text.as_bytes()))
    } else {
        Cow::Borrowed(text)
    };
    match text {
        Cow::Borrowed(text) => cut_text(text, limit),
        Cow::Owned(text) => Cow::Owned(cut_text(&text, limit).into_owned()),
    }
}

/// Keeps head and tail within `limit` bytes, and all characters unchanged.
pub fn cut_text(text: &str, limit: usize) -> Cow<'_, str> {
    if text.len() <= limit {
        return Cow::Borrowed(text);
    }
    let whole = TextSize { bytes: text.len() as u64, newlines: count_newlines(text.as_bytes()) };
    Cow::Owned(join_head_tail(text, text, whole, limit).text)
}

/// Collects the head and tail of a stream of any length in bounded memory.
#[derive(Debug)]
pub struct HeadTailBuffer {
    limit: usize,
    capacity: usize,
    head: Vec<u8>,
    tail: Vec<u8>,
    total: TextSize,
}

/// The size of the whole text, with its omitted part.
#[derive(Debug, Clone, Copy, Default)]
struct TextSize {
    bytes: u64,
    newlines: u64,
}

impl HeadTailBuffer {
    /// A buffer that collects enough to fill `limit` bytes of plain text.
    pub fn new(limit: usize) -> Self {
        let capacity = limit.max(1024) * RAW_FACTOR;
        Self { limit, capacity, head: Vec::new(), tail: Vec::new(), total: TextSize::default() }
    }

    /// Appends a chunk.
    pub fn push(&mut self, chunk: &[u8]) {
        self.total.bytes += chunk.len() as u64;
        self.total.newlines += count_newlines(chunk);
        let (to_head, rest) = chunk.split_at(chunk.len().min(self.capacity - self.head.len()));
        self.head.extend_from_slice(to_head);
        // Only the end of a huge chunk can end up in the tail.
        self.tail.extend_from_slice(&rest[rest.len().saturating_sub(self.capacity)..]);
        if self.tail.len() > 2 * self.capacity {
            self.tail.drain(..self.tail.len() - self.capacity);
        }
    }

    /// How many bytes were pushed.
    pub fn total_bytes(&self) -> u64 {
        self.total.bytes
    }

    /// The bounded text for the model.
    pub fn finish(mut self) -> BoundedText {
        if self.total.bytes == (self.head.len() + self.tail.len()) as u64 {
            self.head.append(&mut self.tail);
            let text = strip_ansi(&self.head);
            if text.len() <= self.limit {
                return BoundedText { text, omitted_bytes: 0, omitted_lines: 0 };
            }
            let whole =
                TextSize { bytes: text.len() as u64, newlines: count_newlines(text.as_bytes()) };
            return join_head_tail(&text, &text, whole, self.limit);
        }
        // The tail begins somewhere inside a line, perhaps inside an escape sequence.
        let line = memchr::memchr(b'\n', &self.tail[..self.tail.len() / 4]);
        let tail = &self.tail[line.map_or(0, |newline| newline + 1)..];
        join_head_tail(&strip_ansi(&self.head), &strip_ansi(tail), self.total, self.limit)
    }
}

/// Joins the beginning of `head` and the end of `tail` around a marker with the exact omitted size.
fn join_head_tail(head: &str, tail: &str, whole: TextSize, limit: usize) -> BoundedText {
    let room = limit.saturating_sub(MARKER_RESERVE);
    let head = &head[..head.floor_char_boundary(room / 2)];
    // Prefer whole lines, if that costs at most half of the head.
    let head = match head.rfind('\n') {
        Some(newline) if newline >= head.len() / 2 => &head[..=newline],
        _ => head,
    };
    let tail = &tail[tail.ceil_char_boundary(tail.len().saturating_sub(room - room / 2))..];
    let tail = match tail.find('\n') {
        Some(newline) if newline < tail.len() / 2 => &tail[newline + 1..],
        _ => tail,
    };
    let shown_bytes = (head.len() + tail.len()) as u64;
    let shown_lines = count_newlines(head.as_bytes()) + count_newlines(tail.as_bytes());
    let omitted_bytes = whole.bytes.saturating_sub(shown_bytes);
    let omitted_lines = whole.newlines.saturating_sub(shown_lines);
    let gap = if head.is_empty() || head.ends_with('\n') { "" } else { "\n" };
    let text =
        format!("{head}{gap}[… {omitted_bytes} bytes, {omitted_lines} lines omitted …]\n{tail}");
    BoundedText { text, omitted_bytes, omitted_lines }
}

fn count_newlines(bytes: &[u8]) -> u64 {
    memchr::memchr_iter(b'\n', bytes).count() as u64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn collected(bytes: &[u8], limit: usize, size: usize) -> BoundedText {
        let mut collector = HeadTailBuffer::new(limit);
        bytes.chunks(size).for_each(|chunk| collector.push(chunk));
        collector.finish()
    }

    #[test]
    fn short_text_is_not_copied() {
        assert!(matches!(bound_text("short\n", 100), Cow::Borrowed("short\n")));
    }

    #[test]
    fn head_and_tail_stay_with_true_counts() {
        let lines: Vec<String> = (0..10_000).map(|n| format!("line {n}\n")).collect();
        let lines = lines.concat();
        let cut = collected(lines.as_bytes(), 1000, 7000);
        assert!(cut.text.starts_with("line 0\nline 1\n") && cut.text.ends_with("line 9999\n"));
        let shown: u64 = cut.text.lines().filter(|line| line.starts_with("line ")).count() as u64;
        assert_eq!(shown + cut.omitted_lines, 10_000);
        let marker = format!("[… {} bytes, {} lines", cut.omitted_bytes, cut.omitted_lines);
        assert!(cut.text.contains(&marker), "{}", cut.text);
        assert_eq!(bound_text(&lines, 1000), cut.text);
    }

    #[test]
    fn a_flood_costs_bounded_memory() {
        let mut collector = HeadTailBuffer::new(16 * 1024);
        let chunk = vec![b'x'; 1 << 20];
        (0..64).for_each(|_| collector.push(&chunk));
        assert!(collector.head.capacity() + collector.tail.capacity() < 1 << 20);
        assert_eq!(collector.total_bytes(), 64 << 20);
        assert!(collector.finish().text.len() <= 16 * 1024);
    }

    proptest! {
        #[test]
        fn bounded_text_fits_and_bounding_again_changes_nothing(
            text in "(\\PC|\n|\u{1b}\\[3m|\r){0,400}", limit in 0_usize..600,
        ) {
            let once = bound_text(&text, limit).into_owned();
            prop_assert!(once.len() <= limit.max(MARKER_RESERVE), "{} > {limit}", once.len());
            if limit >= MARKER_RESERVE {
                prop_assert_eq!(&bound_text(&once, limit), &once);
            }
        }

        #[test]
        fn collected_output_fits(
            bytes in prop::collection::vec(any::<u8>(), 0..20_000), size in 1_usize..5000,
        ) {
            prop_assert!(collected(&bytes, 1000, size).text.len() <= 1000);
        }
    }
}
