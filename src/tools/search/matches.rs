//! Matches in files: collects the matching lines of a file from the searcher, and renders a page of them.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io;

use grep_matcher::Matcher;
use grep_regex::RegexMatcher;
use grep_searcher::{Searcher, Sink, SinkContext, SinkMatch};

use super::{PathResult, ResultWindow, printable, printable_line};
use crate::base::secret::Secrets;

/// A matching line or a context line.
#[derive(Debug)]
struct MatchLine {
    number: u64,
    is_match: bool,
    text: String,
}

/// The matches in one file.
#[derive(Debug)]
pub struct FileMatches {
    pub count: usize,
    lines: Vec<MatchLine>,
}

/// How much of a file's matches is collected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MatchInterest {
    /// This many matching lines, with their context.
    Lines(usize),
    /// Only the number of matching lines.
    Count,
    /// Only whether any line matches.
    Any,
}

/// The sink for the matches in one file.
pub struct MatchCollector<'h> {
    pub matcher: &'h RegexMatcher,
    /// `None` if there are no Secrets.
    pub secrets: Option<&'h Secrets>,
    pub interest: MatchInterest,
    lines: Vec<MatchLine>,
    pub count: usize,
    pub is_binary: bool,
}

impl<'h> MatchCollector<'h> {
    /// A sink without matches.
    pub fn new(
        matcher: &'h RegexMatcher,
        secrets: Option<&'h Secrets>,
        interest: MatchInterest,
    ) -> Self {
        Self { matcher, secrets, interest, lines: Vec::new(), count: 0, is_binary: false }
    }

    /// The matches, at the end of the file.
    pub fn into_matches(self) -> FileMatches {
        FileMatches { count: self.count, lines: self.lines }
    }

    fn push_line(&mut self, number: Option<u64>, line: &[u8], is_match: bool) {
        let found = |line: &[u8]| self.matcher.find(line).ok().flatten().map(|found| found.start());
        let text = printable_line(line, |line| if is_match { found(line) } else { None });
        self.lines.push(MatchLine { number: number.unwrap_or_default(), is_match, text });
    }

    /// A line without Secrets, which are removed before the line is cut.
    fn clean_line<'l>(&self, line: &'l [u8]) -> Cow<'l, [u8]> {
        self.secrets.map_or(Cow::Borrowed(line), |secrets| secrets.redact_file(line))
    }
}

impl Sink for MatchCollector<'_> {
    type Error = io::Error;

    fn matched(&mut self, _: &Searcher, found: &SinkMatch<'_>) -> io::Result<bool> {
        let line = self.clean_line(found.bytes());
        // A search for parts of a Secret must not reveal that they occur.
        let is_secret = matches!(line, Cow::Owned(_))
            && !self.matcher.is_match(&line).map_err(io::Error::other)?;
        self.count += usize::from(!is_secret);
        match self.interest {
            MatchInterest::Any => Ok(is_secret),
            MatchInterest::Count => Ok(true),
            MatchInterest::Lines(most) => {
                self.push_line(found.line_number(), &line, !is_secret);
                Ok(self.count < most)
            }
        }
    }

    fn context(&mut self, _: &Searcher, around: &SinkContext<'_>) -> io::Result<bool> {
        if matches!(self.interest, MatchInterest::Lines(_)) {
            let line = self.clean_line(around.bytes());
            self.push_line(around.line_number(), &line, false);
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
pub struct MatchPage {
    pub text: String,
    /// How many matches the page contains.
    pub shown: usize,
    pub files: usize,
}

impl MatchPage {
    /// The matches of a window, in at most `room` bytes; the first is always included.
    pub fn new(
        files: &[PathResult<FileMatches>],
        window: ResultWindow,
        context: u64,
        room: usize,
    ) -> Self {
        let mut page = Self::default();
        let mut place = 0;
        for file in files {
            let skipped = window.skip.saturating_sub(place);
            place += file.count;
            if skipped < file.count && !page.add_file(file, skipped, window.limit, context, room) {
                break;
            }
        }
        page
    }

    /// Adds the matches of a file after the first `skipped`; returns whether there is space for more.
    fn add_file(
        &mut self,
        file: &PathResult<FileMatches>,
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
            let near = |other: &&MatchLine| {
                !other.is_match && other.number.abs_diff(line.number) <= context
            };
            let is_new = |other: &&MatchLine| last.is_none_or(|last| other.number > last);
            let before = lines[..index].iter().rev().take_while(near).take_while(is_new).count();
            let after = lines[index + 1..].iter().take_while(near).count();
            let block = &lines[index - before..=index + after];
            let mut text = String::new();
            match (last, block.first()) {
                (None, _) => {
                    let gap = if self.text.is_empty() { "" } else { "\n" };
                    writeln!(text, "{gap}{}", printable(&file.path)).ok();
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
