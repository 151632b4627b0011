//! `grep` tool: searches the contents of files, with ripgrep's libraries.
//!
//! A page shows the first matches in the order of paths, whatever order the threads found them in;
//! once there are enough, later paths are not searched.

use std::fmt::Write as _;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use grep_matcher::LineTerminator;
use grep_regex::{RegexMatcher, RegexMatcherBuilder};
use grep_searcher::{BinaryDetection, Searcher, SearcherBuilder};
use ignore::overrides::Override;
use rustix::io::Errno;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use crate::base::error::counted;
use crate::base::secret::Secrets;
use crate::base::tool_error::ToolError;
use crate::host::workspace::{OpenFile, Place, Wanted, Workspace};
use crate::tools::search;
use crate::tools::search::{
    Firsts, Hits, InFile, Interest, NOTES_ROOM, Names, Page, Sort, Stop, Tally, Walk, Window,
    visible, walk, while_wanted,
};
use crate::tools::tool::open_spilled;
use crate::tools::tool::{Plan, Tool, ToolContext, ToolOutput};

/// Results per page by default.
const DEFAULT_RESULTS: u64 = 100;
/// The maximum number of context lines around a match.
const MOST_CONTEXT: u64 = 10;
/// The longest line that can be searched, in bytes; the search of a file stops at a longer one.
const LONGEST_LINE: usize = 16 << 20;
/// How many binary files are named.
const NAMED: usize = 3;

/// The `grep` tool.
#[derive(Debug)]
pub struct Grep;

/// The arguments of `grep`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Args {
    /// Rust regex.
    pattern: String,
    /// File or folder.
    path: Option<PathBuf>,
    /// Like `*.rs`, `src/**`; `!` excludes.
    globs: Option<Vec<String>>,
    /// Pattern is plain text.
    #[serde(default)]
    literal: bool,
    #[serde(default)]
    ignore_case: bool,
    /// Default lines.
    #[serde(default)]
    show: Show,
    /// Lines around a match.
    #[schemars(with = "Option<i64>")]
    context: Option<u64>,
    /// Skip nothing.
    #[serde(default)]
    all: bool,
    /// First result, from 1.
    #[schemars(with = "Option<i64>")]
    offset: Option<u64>,
    /// Default 100.
    #[schemars(with = "Option<i64>")]
    limit: Option<u64>,
}

/// What is shown of the files that match.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Show {
    #[default]
    Lines,
    Files,
    Counts,
}

impl Tool for Grep {
    type Args = Args;
    const NAME: &'static str = "grep";
    const MANUAL: &'static str = "Searches files line by line: a path, then `number: line` for \
        each match. Skips hidden, git-ignored and binary files.";

    fn plan(&self, args: &Args, context: &ToolContext) -> Result<Plan, ToolError> {
        let path = search::shown_path(context, args.path.as_deref());
        let pattern = crate::base::text::first_chars(&args.pattern.replace('\n', " "), 100);
        let summary = format!("grep {pattern:?} in {}", path.display());
        Ok(Plan::read(summary, path))
    }

    async fn run(&self, args: Args, context: ToolContext) -> Result<ToolOutput, ToolError> {
        while_wanted(context, move |context, stop| Search::new(&args, context)?.run(stop)).await
    }
}

/// The file or folder to search.
enum Start {
    Workspace(Place),
    /// The full output of a command.
    SpilledOutput(OpenFile),
}

impl Start {
    fn new(context: &ToolContext, path: Option<&Path>) -> Result<Self, ToolError> {
        if let Some(output) = path.and_then(|path| open_spilled(context, path)) {
            return Ok(Self::SpilledOutput(output));
        }
        search::start(&context.workspace, path).map(Self::Workspace)
    }

    fn path(&self) -> &Path {
        match self {
            Self::Workspace(place) => &place.path,
            Self::SpilledOutput(output) => &output.path,
        }
    }
}

/// One search: the pattern, the start and the page.
struct Search<'c> {
    context: &'c ToolContext,
    matcher: RegexMatcher,
    start: Start,
    globs: Override,
    all: bool,
    show: Show,
    around: u64,
    window: Window,
}

/// The results of one thread.
struct Findings<'s> {
    searcher: Searcher,
    matcher: RegexMatcher,
    secrets: Option<&'s Secrets>,
    files: Firsts<InFile>,
    binary: u64,
    /// The first binary files by path.
    first_binary: Vec<Box<[u8]>>,
}

impl<'c> Search<'c> {
    fn new(args: &Args, context: &'c ToolContext) -> Result<Self, ToolError> {
        Ok(Self {
            context,
            matcher: matcher(args)?,
            start: Start::new(context, args.path.as_deref())?,
            globs: search::globs(args.globs.iter().flatten().map(String::as_str))?,
            all: args.all,
            show: args.show,
            around: args.context.unwrap_or(0).min(MOST_CONTEXT),
            window: Window::new(args.offset, args.limit, DEFAULT_RESULTS)?,
        })
    }

    fn run(&self, stop: &Stop) -> Result<ToolOutput, ToolError> {
        let (findings, tally) = self.findings(stop)?;
        let (mut binary, mut first_binary) = (0, Vec::new());
        let mut total = 0;
        let files = Firsts::merged(findings.into_iter().map(|found| {
            binary += found.binary;
            first_binary.extend(found.first_binary);
            total += found.files.total;
            found.files
        }));
        let what = if self.show == Show::Lines { "matches" } else { "files" };
        // Paths after the page were not searched, so their matches and binary files are unknown.
        let is_all = total <= self.window.end();
        let mut notes = search::notes(&tally, self.context)?;
        if is_all {
            self.window.check(total, what)?;
            notes.extend(binary_note(binary, first_binary));
        } else {
            notes.truncate(usize::from(tally.stopped.is_some()));
        }
        let room = self.context.output_limit.saturating_sub(NOTES_ROOM);
        let (mut text, shown) = match self.show {
            Show::Lines => {
                let page = Page::of(&files, self.window, self.around, room);
                (page.text, page.shown)
            }
            Show::Files => {
                let names = Names::of(&files, self.window, room, |file| visible(&file.path));
                (names.text, names.shown)
            }
            Show::Counts => {
                let names = Names::of(&files, self.window, room, |file| {
                    format!("{}: {}", visible(&file.path), file.value.count)
                });
                (names.text, names.shown)
            }
        };
        if total == 0 {
            text.push_str("no matches\n");
            notes.extend(search::left_out(&tally));
        }
        let known = is_all.then_some(total);
        notes.splice(0..0, self.window.note(shown, known, what));
        for note in notes {
            writeln!(text, "[{note}]").ok();
        }
        let last = self.window.skip + shown;
        let details = json!({
            "path": self.start.path().to_string_lossy(),
            "results": shown,
            "total": known,
            "next_offset": (known != Some(last)).then_some(last + 1),
            "left_out": is_all.then_some(tally.left_out),
            "binary": is_all.then_some(binary),
        });
        Ok(ToolOutput::new(true, text, details))
    }

    /// The results of all threads.
    fn findings(&self, stop: &Stop) -> Result<(Vec<Findings<'c>>, Tally), ToolError> {
        let workspace = &self.context.workspace;
        let place = match &self.start {
            Start::Workspace(place) if place.is_folder() => place,
            Start::Workspace(place) => return self.in_file(place, stop),
            Start::SpilledOutput(output) => return Ok(self.in_output(output, stop)),
        };
        let plan = Walk {
            workspace,
            stop,
            start: &place.path,
            all: self.all,
            hidden: false,
            globs: &self.globs,
            depth: usize::MAX,
            shares_files: true,
        };
        Ok(walk(
            &plan,
            || self.nothing_yet(),
            |found, tally, entry| match entry.sort {
                Sort::Folder => !found.files.is_too_late(entry.path),
                Sort::File => {
                    self.look_into(found, tally, workspace, entry.path, stop);
                    true
                }
                Sort::Link | Sort::Other => true,
            },
        ))
    }

    /// Searches a file that the call names, even if it is hidden or ignored.
    fn in_file(&self, place: &Place, stop: &Stop) -> Result<(Vec<Findings<'c>>, Tally), ToolError> {
        let path = place.path.as_os_str().as_encoded_bytes();
        if let Some(what) = place.irregular() {
            let message = format!("{} is {what}, not a file or folder", visible(path));
            return Err(ToolError::invalid(message));
        }
        let (mut found, mut tally) = (self.nothing_yet(), Tally::default());
        self.look_into(&mut found, &mut tally, &self.context.workspace, path, stop);
        tally.stopped = stop.reason();
        Ok((vec![found], tally))
    }

    fn in_output(&self, output: &OpenFile, stop: &Stop) -> (Vec<Findings<'c>>, Tally) {
        let path = output.path.as_os_str().as_encoded_bytes();
        let (mut found, mut tally) = (self.nothing_yet(), Tally::default());
        match output.file.try_clone() {
            Ok(file) => self.search_file(&mut found, &mut tally, file, path, stop),
            Err(error) => tally.note_unreadable(path, errno_of(&error)),
        }
        tally.stopped = stop.reason();
        (vec![found], tally)
    }

    fn nothing_yet(&self) -> Findings<'c> {
        let around = usize::try_from(if self.show == Show::Lines { self.around } else { 0 });
        let around = around.unwrap_or_default();
        let searcher = SearcherBuilder::new()
            .line_terminator(LineTerminator::crlf())
            .line_number(self.show == Show::Lines)
            .binary_detection(BinaryDetection::quit(0))
            .heap_limit(Some(LONGEST_LINE))
            .before_context(around)
            .after_context(around)
            .build();
        let secrets = &*self.context.secrets;
        Findings {
            searcher,
            matcher: self.matcher.clone(),
            secrets: (!secrets.is_empty()).then_some(secrets),
            files: Firsts::new(self.window.end()),
            binary: 0,
            first_binary: Vec::new(),
        }
    }

    fn look_into(
        &self,
        found: &mut Findings<'_>,
        tally: &mut Tally,
        workspace: &Workspace,
        path: &[u8],
        stop: &Stop,
    ) {
        if found.files.is_too_late(path) {
            return;
        }
        match workspace.open_exact(path, Wanted::File) {
            Ok(descriptor) => self.search_file(found, tally, File::from(descriptor), path, stop),
            Err(errno) => tally.note_unreadable(path, errno),
        }
    }

    fn search_file(
        &self,
        found: &mut Findings<'_>,
        tally: &mut Tally,
        file: File,
        path: &[u8],
        stop: &Stop,
    ) {
        let interest = match self.show {
            Show::Lines => Interest::Lines(self.window.end() + 1),
            Show::Files => Interest::Any,
            Show::Counts => Interest::Count,
        };
        let mut hits = Hits::new(&found.matcher, found.secrets, interest);
        let searched = found.searcher.search_reader(&found.matcher, stop.reader(file), &mut hits);
        match searched {
            Ok(()) if hits.is_binary => {
                found.binary += 1;
                search::keep_first(&mut found.first_binary, path, NAMED);
            }
            Ok(()) => {}
            // Results from before the search was stopped are still valid.
            Err(_) if stop.is_set() => {}
            Err(error) => return tally.note_unreadable(path, errno_of(&error)),
        }
        if hits.count > 0 && !hits.is_binary {
            // The results are lines, or files.
            let count = if self.show == Show::Lines { hits.count } else { 1 };
            found.files.push(path, count, hits.found());
        }
    }
}

/// The error number; a searcher that gives up on a too long line has none.
fn errno_of(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::FBIG)
}

fn matcher(args: &Args) -> Result<RegexMatcher, ToolError> {
    if args.pattern.is_empty() {
        return Err(ToolError::invalid("the pattern is empty").next("use glob or list for names"));
    }
    let unusable = |error: &dyn std::fmt::Display| {
        ToolError::invalid(format!("this pattern cannot be used: {error}"))
    };
    // The builder wraps the pattern, and its error would show the wrong position.
    if !args.literal
        && let Err(error) = regex_syntax::parse(&args.pattern)
    {
        let next = "correct it, or set literal: true to search for it as plain text";
        return Err(unusable(&error).next(next));
    }
    let mut builder = RegexMatcherBuilder::new();
    builder
        .fixed_strings(args.literal)
        .case_insensitive(args.ignore_case)
        .multi_line(true)
        .crlf(true)
        .ban_byte(Some(0));
    builder.build(&args.pattern).map_err(|error| {
        let next = match error.kind() {
            grep_regex::ErrorKind::NotAllowed(_) => {
                "search for a part that is on one line, with context around it"
            }
            _ => "make it simpler",
        };
        unusable(&error).next(next)
    })
}

fn binary_note(count: u64, mut first: Vec<Box<[u8]>>) -> Option<String> {
    first.sort_unstable();
    let named: Vec<String> = first.iter().take(NAMED).map(|path| visible(path)).collect();
    let more = if count > named.len() as u64 { ", …" } else { "" };
    let files = counted(count, "binary file");
    (count > 0).then(|| format!("{files} skipped: {}{more}", named.join(", ")))
}
