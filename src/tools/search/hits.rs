//! Matches in files: collects the matching lines of a file from the searcher, and renders a page of them.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io;

use grep_matcher::Matcher;
use grep_regex::RegexMatcher;
use grep_searcher::{Searcher, Sink, SinkContext, SinkMatch};

use super::{First, Window, line_of, visible};
use crate::base::secret::Secrets;

/// A matching line or a context line.
#[derive(Debug)]
struct Line {
    number: u64,
    is_match: bool,
    text: String,
}

/// The matches in one file.
#[derive(Debug)]
pub struct InFile {
    pub count: usize,
    lines: Vec<Line>,
}

/// How much of a file's matches is collected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interest {
    /// This many matching lines, with their context.
    Lines(usize),
    /// Only their number.
    Count,
    /// Only whether there are any.
    Any,
}

/// The sink for the matches in one file.
pub struct Hits<'h> {
    pub matcher: &'h RegexMatcher,
    /// `None` if there are no Secrets.
    pub secrets: Option<&'h Secrets>,
    pub interest: Interest,
    lines: Vec<Line>,
    pub count: usize,
    pub is_binary: bool,
}

impl<'h> Hits<'h> {
    /// A sink without matches.
    pub fn new(
        matcher: &'h RegexMatcher,
        secrets: Option<&'h Secrets>,
        interest: Interest,
    ) -> Self {
        Self { matcher, secrets, interest, lines: Vec::new(), count: 0, is_binary: false }
    }

    /// The matches, at the end of the file.
    pub fn found(self) -> InFile {
        InFile { count: self.count, lines: self.lines }
    }

    fn keep(&mut self, number: Option<u64>, line: &[u8], is_match: bool) {
        let found = |line: &[u8]| self.matcher.find(line).ok().flatten().map(|found| found.start());
        let text = line_of(line, |line| if is_match { found(line) } else { None });
        self.lines.push(Line { number: number.unwrap_or_default(), is_match, text });
    }

    /// A line without Secrets, which are removed before the line is cut.
    fn cleaned<'l>(&self, line: &'l [u8]) -> Cow<'l, [u8]> {
        self.secrets.map_or(Cow::Borrowed(line), |secrets| secrets.clean_file(line))
    }
}

impl Sink for Hits<'_> {
    type Error = io::Error;

    fn matched(&mut self, _: &Searcher, found: &SinkMatch<'_>) -> io::Result<bool> {
        let line = self.cleaned(found.bytes());
        // A search for parts of a Secret must not reveal that they occur.
        let is_secret = matches!(line, Cow::Owned(_))
            && !self.matcher.is_match(&line).map_err(io::Error::other)?;
        self.count += usize::from(!is_secret);
        match self.interest {
            Interest::Any => Ok(is_secret),
            Interest::Count => Ok(true),
            Interest::Lines(most) => {
                self.keep(found.line_number(), &line, !is_secret);
                Ok(self.count < most)
            }
        }
    }

    fn context(&mut self, _: &Searcher, around: &SinkContext<'_>) -> io::Result<bool> {
        if matches!(self.interest, Interest::Lines(_)) {
            let line = self.cleaned(around.bytes());
            self.keep(around.line_number(), &line, false);
        }
        Ok(true)
    }

    fn binary_data(&mut self, _: &Searcher, _: u64) -> io::Result<bool> {
        self.is_binary = true;
        Ok(false)
    }
}

/// The text of a page of matches.
#[derive(Debug, Default)]
pub struct Page {
    pub text: String,
    /// How many matches it contains.
    pub shown: usize,
    pub files: usize,
}

impl Page {
    /// The matches of a window, in at most `room` bytes; the first is always included.
    pub fn of(files: &[First<InFile>], window: Window, context: u64, room: usize) -> Self {
        let mut page = Self::default();
        let mut place = 0;
        for file in files {
            let skipped = window.skip.saturating_sub(place);
            place += file.count;
            if skipped < file.count && !page.add(file, skipped, window.limit, context, room) {
                break;
            }
        }
        page
    }

    /// Adds the matches of a file after the first `skipped`; returns whether there is space for more.
    fn add(
        &mut self,
        file: &First<InFile>,
        skipped: usize,
        limit: usize,
        context: u64,
        room: usize,
    ) -> bool {
        let lines = &file.value.lines;
        let matches = lines.iter().enumerate().filter(|(_, line)| line.is_match).skip(skipped);
        let mut last = None;
        for (index, line) in matches {
            if self.shown == limit {
                return false;
            }
            let near =
                |other: &&Line| !other.is_match && other.number.abs_diff(line.number) <= context;
            let is_new = |other: &&Line| last.is_none_or(|last| other.number > last);
            let before = lines[..index].iter().rev().take_while(near).take_while(is_new).count();
            let after = lines[index + 1..].iter().take_while(near).count();
            let block = &lines[index - before..=index + after];
            let mut text = String::new();
            match (last, block.first()) {
                (None, _) => {
                    let gap = if self.text.is_empty() { "" } else { "\n" };
                    writeln!(text, "{gap}{}", visible(&file.path)).ok();
                }
                (Some(last), Some(first)) if context > 0 && first.number > last + 1 => {
                    text.push_str("--\n");
                }
                _ => {}
            }
            for line in block {
                let mark = if line.is_match { ':' } else { '-' };
                writeln!(text, "{}{mark} {}", line.number, line.text).ok();
            }
            if self.shown > 0 && self.text.len() + text.len() > room {
                return false;
            }
            self.files += usize::from(last.is_none());
            self.text.push_str(&text);
            self.shown += 1;
            last = block.last().map(|line| line.number);
        }
        true
    }
}
