//! Lines in: a thread that waits for the other side, so that nobody else has to.

use std::io::{self, BufRead, BufReader, Read};

use tokio::sync::mpsc;

/// The longest line; images and whole files come on one.
const LONGEST: usize = 128 << 20;

/// How many lines may wait to be handled.
const WAITING: usize = 32;

/// A line that came, or how much of one that was too long.
#[derive(Debug, PartialEq, Eq)]
pub enum Line {
    Whole(Vec<u8>),
    TooLong,
}

/// The lines of the other side, until it is gone.
pub struct Lines(mpsc::Receiver<Line>);

impl Lines {
    /// The next line; `None` when the other side is gone.
    pub async fn next(&mut self) -> Option<Line> {
        self.0.recv().await
    }
}

/// Starts to read. The thread ends with its stream, or with whoever listens; nobody waits for it.
pub fn read_lines(input: impl Read + Send + 'static) -> io::Result<Lines> {
    let (lines, waiting) = mpsc::channel(WAITING);
    std::thread::Builder::new().name("pixir-in".to_owned()).spawn(move || {
        let mut input = BufReader::with_capacity(64 * 1024, input);
        while let Some(line) = next_line(&mut input, LONGEST) {
            if lines.blocking_send(line).is_err() {
                return;
            }
        }
    })?;
    Ok(Lines(waiting))
}

/// Reads one line without its end. Of one that is too long nothing is kept.
pub fn next_line(input: &mut impl BufRead, longest: usize) -> Option<Line> {
    let mut line = Vec::new();
    let mut is_too_long = false;
    loop {
        let piece = match input.fill_buf() {
            Ok(piece) => piece,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            // A stream that cannot be read any more is one that has ended.
            Err(_) => &[],
        };
        if piece.is_empty() {
            // What the other side did not finish, it did not say; but a last line may lack its end.
            return match (is_too_long, line.is_empty()) {
                (true, _) => Some(Line::TooLong),
                (false, true) => None,
                (false, false) => Some(Line::Whole(line)),
            };
        }
        let end = memchr::memchr(b'\n', piece);
        let taken = end.map_or(piece.len(), |end| end + 1);
        let words = piece.get(..end.unwrap_or(taken)).unwrap_or_default();
        if line.len() + words.len() > longest {
            is_too_long = true;
            line = Vec::new();
        }
        if !is_too_long {
            line.extend_from_slice(words);
        }
        input.consume(taken);
        if end.is_some() {
            return Some(if is_too_long { Line::TooLong } else { Line::Whole(line) });
        }
    }
}
