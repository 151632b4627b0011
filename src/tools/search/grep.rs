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
use crate::host::workspace::{OpenFile, OpenKind, ResolvedPath, Workspace};
use crate::tools::search;
use crate::tools::search::{
    FileMatches, FirstResults, MatchCollector, MatchInterest, MatchPage, NOTES_RESERVE, NamePage,
    ResultWindow, WalkEntryKind, WalkOptions, WalkStop, WalkSummary, printable, run_search, walk,
};
use crate::tools::tool::open_spilled_output;
use crate::tools::tool::{CallPlan, Tool, ToolContext, ToolOutput};

/// Results per page by default.
const DEFAULT_RESULTS: u64 = 100;
/// The maximum number of context lines around a match.
const MAX_CONTEXT: u64 = 10;
/// The longest line that can be searched, in bytes; the search of a file stops at a longer one.
const MAX_LINE_BYTES: usize = 16 << 20;
/// How many binary files are named.
const MAX_NAMED_FILES: usize = 3;

/// The `grep` tool.
#[derive(Debug)]
pub struct GrepTool;

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
    /// Default `lines`.
    #[serde(default)]
    show: GrepShow,
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

/// Output for matching files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum GrepShow {
    #[default]
    Lines,
    Files,
    Counts,
}

impl Tool for GrepTool {
    type Args = Args;
    const NAME: &'static str = "grep";
    const DESCRIPTION: &'static str = "Searches files line by line: a path, then `number: line` for \
        each match. Skips hidden, git-ignored and binary files.";

    fn plan(&self, args: &Args, context: &ToolContext) -> Result<CallPlan, ToolError> {
        let path = search::shown_path(context, args.path.as_deref());
        let pattern = crate::base::text::truncate_chars(&args.pattern.replace('\n', " "), 100);
        let summary = format!("grep {pattern:?} in {}", path.display());
        Ok(CallPlan::for_read(summary, path))
    }

    async fn run(&self, args: Args, context: ToolContext) -> Result<ToolOutput, ToolError> {
        run_search(context, move |context, stop| GrepSearch::new(&args, context)?.run(stop)).await
    }
}

/// The file or folder to search.
enum GrepStart {
    Workspace(ResolvedPath),
    /// The full output of a command.
    SpilledOutput(OpenFile),
}

impl GrepStart {
    fn new(context: &ToolContext, path: Option<&Path>) -> Result<Self, ToolError> {
        if let Some(output) = path.and_then(|path| open_spilled_output(context, path)) {
            return Ok(Self::SpilledOutput(output));
        }
        search::locate_start(&context.workspace, path).map(Self::Workspace)
    }

    fn path(&self) -> &Path {
        match self {
            Self::Workspace(place) => &place.path,
            Self::SpilledOutput(output) => &output.path,
        }
    }
}

/// One search: the pattern, the start and the page.
struct GrepSearch<'c> {
    context: &'c ToolContext,
    matcher: RegexMatcher,
    start: GrepStart,
    globs: Override,
    all: bool,
    show: GrepShow,
    context_lines: u64,
    window: ResultWindow,
}

/// The results of one thread.
struct GrepFindings<'s> {
    searcher: Searcher,
    matcher: RegexMatcher,
    secrets: Option<&'s Secrets>,
    files: FirstResults<FileMatches>,
    binary: u64,
    /// The first binary files by path.
    first_binary: Vec<Box<[u8]>>,
}

impl<'c> GrepSearch<'c> {
    fn new(args: &Args, context: &'c ToolContext) -> Result<Self, ToolError> {
        Ok(Self {
            context,
            matcher: build_matcher(args)?,
            start: GrepStart::new(context, args.path.as_deref())?,
            globs: search::compile_globs(args.globs.iter().flatten().map(String::as_str))?,
            all: args.all,
            show: args.show,
            context_lines: args.context.unwrap_or(0).min(MAX_CONTEXT),
            window: ResultWindow::new(args.offset, args.limit, DEFAULT_RESULTS)?,
        })
    }

    fn run(&self, stop: &WalkStop) -> Result<ToolOutput, ToolError> {
        let (findings, summary) = self.collect_findings(stop)?;
        let (mut binary, mut first_binary) = (0, Vec::new());
        let mut total = 0;
        let files = FirstResults::merge(findings.into_iter().map(|found| {
            binary += found.binary;
            first_binary.extend(found.first_binary);
            total += found.files.total;
            found.files
        }));
        let what = if self.show == GrepShow::Lines { "matches" } else { "files" };
        // Paths after the page were not searched, so their matches and binary files are unknown.
        let is_all = total <= self.window.end();
        let mut notes = search::search_notes(&summary, self.context)?;
        if is_all {
            self.window.check_total(total, what)?;
            notes.extend(binary_note(binary, first_binary));
        } else {
            notes.truncate(usize::from(summary.stopped.is_some()));
        }
        let room = self.context.output_limit.saturating_sub(NOTES_RESERVE);
        let (mut text, shown) = match self.show {
            GrepShow::Lines => {
                let page = MatchPage::new(&files, self.window, self.context_lines, room);
                (page.text, page.shown)
            }
            GrepShow::Files => {
                let names = NamePage::new(&files, self.window, room, |file| printable(&file.path));
                (names.text, names.shown)
            }
            GrepShow::Counts => {
                let names = NamePage::new(&files, self.window, room, |file| {
                    format!("{}: {}", printable(&file.path), file.value.count)
                });
                (names.text, names.shown)
            }
        };
        if total == 0 {
            text.push_str("no matches\n");
            notes.extend(search::left_out_note(&summary));
        }
        let known = is_all.then_some(total);
        notes.splice(0..0, self.window.page_note(shown, known, what));
        for note in notes {
            writeln!(text, "[{note}]").ok();
        }
        let last = self.window.skip + shown;
        let details = json!({
            "path": self.start.path().to_string_lossy(),
            "results": shown,
            "total": known,
            "next_offset": (known != Some(last)).then_some(last + 1),
            "left_out": is_all.then_some(summary.left_out),
            "binary": is_all.then_some(binary),
        });
        Ok(ToolOutput::new(true, text, details))
    }

    /// The results of all threads.
    fn collect_findings(
        &self,
        stop: &WalkStop,
    ) -> Result<(Vec<GrepFindings<'c>>, WalkSummary), ToolError> {
        let workspace = &self.context.workspace;
        let place = match &self.start {
            GrepStart::Workspace(place) if place.is_folder() => place,
            GrepStart::Workspace(place) => return self.search_one_file(place, stop),
            GrepStart::SpilledOutput(output) => return Ok(self.search_output(output, stop)),
        };
        let plan = WalkOptions {
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
            || self.new_findings(),
            |found, summary, entry| match entry.kind {
                WalkEntryKind::Folder => !found.files.is_past_last(entry.path),
                WalkEntryKind::File => {
                    self.open_and_search(found, summary, workspace, entry.path, stop);
                    true
                }
                WalkEntryKind::Link | WalkEntryKind::Other => true,
            },
        ))
    }

    /// Searches a file that the call names, even if it is hidden or ignored.
    fn search_one_file(
        &self,
        place: &ResolvedPath,
        stop: &WalkStop,
    ) -> Result<(Vec<GrepFindings<'c>>, WalkSummary), ToolError> {
        let path = place.path.as_os_str().as_encoded_bytes();
        if let Some(what) = place.irregular_kind() {
            let message = format!("{} is {what}, not a file or folder", printable(path));
            return Err(ToolError::invalid_args(message));
        }
        let (mut found, mut summary) = (self.new_findings(), WalkSummary::default());
        self.open_and_search(&mut found, &mut summary, &self.context.workspace, path, stop);
        summary.stopped = stop.reason();
        Ok((vec![found], summary))
    }

    fn search_output(
        &self,
        output: &OpenFile,
        stop: &WalkStop,
    ) -> (Vec<GrepFindings<'c>>, WalkSummary) {
        let path = output.path.as_os_str().as_encoded_bytes();
        let (mut found, mut summary) = (self.new_findings(), WalkSummary::default());
        match output.file.try_clone() {
            Ok(file) => self.search_file(&mut found, &mut summary, file, path, stop),
            Err(error) => summary.add_unreadable(path, errno_of(&error)),
        }
        summary.stopped = stop.reason();
        (vec![found], summary)
    }

    fn new_findings(&self) -> GrepFindings<'c> {
        let around =
            usize::try_from(if self.show == GrepShow::Lines { self.context_lines } else { 0 });
        let around = around.unwrap_or_default();
        let searcher = SearcherBuilder::new()
            .line_terminator(LineTerminator::crlf())
            .line_number(self.show == GrepShow::Lines)
            .binary_detection(BinaryDetection::quit(0))
            .heap_limit(Some(MAX_LINE_BYTES))
            .before_context(around)
            .after_context(around)
            .build();
        let secrets = &*self.context.secrets;
        GrepFindings {
            searcher,
            matcher: self.matcher.clone(),
            secrets: (!secrets.is_empty()).then_some(secrets),
            files: FirstResults::new(self.window.end()),
            binary: 0,
            first_binary: Vec::new(),
        }
    }

    fn open_and_search(
        &self,
        found: &mut GrepFindings<'_>,
        summary: &mut WalkSummary,
        workspace: &Workspace,
        path: &[u8],
        stop: &WalkStop,
    ) {
        if found.files.is_past_last(path) {
            return;
        }
        match workspace.open_no_follow(path, OpenKind::File) {
            Ok(descriptor) => self.search_file(found, summary, File::from(descriptor), path, stop),
            Err(errno) => summary.add_unreadable(path, errno),
        }
    }

    fn search_file(
        &self,
        found: &mut GrepFindings<'_>,
        summary: &mut WalkSummary,
        file: File,
        path: &[u8],
        stop: &WalkStop,
    ) {
        let interest = match self.show {
            GrepShow::Lines => MatchInterest::Lines(self.window.end() + 1),
            GrepShow::Files => MatchInterest::Any,
            GrepShow::Counts => MatchInterest::Count,
        };
        let mut hits = MatchCollector::new(&found.matcher, found.secrets, interest);
        let searched =
            found.searcher.search_reader(&found.matcher, stop.stoppable_reader(file), &mut hits);
        match searched {
            Ok(()) if hits.is_binary => {
                found.binary += 1;
                search::insert_first(&mut found.first_binary, path, MAX_NAMED_FILES);
            }
            Ok(()) => {}
            // Results from before the search was stopped are still valid.
            Err(_) if stop.is_set() => {}
            Err(error) => return summary.add_unreadable(path, errno_of(&error)),
        }
        if hits.count > 0 && !hits.is_binary {
            // The results are lines, or files.
            let count = if self.show == GrepShow::Lines { hits.count } else { 1 };
            found.files.push(path, count, hits.into_matches());
        }
    }
}

/// The error number; a searcher that gives up on a too long line has none.
fn errno_of(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::FBIG)
}

fn build_matcher(args: &Args) -> Result<RegexMatcher, ToolError> {
    if args.pattern.is_empty() {
        return Err(ToolError::invalid_args("the pattern is empty")
            .with_next_action("use glob or list for names"));
    }
    let unusable = |error: &dyn std::fmt::Display| {
        ToolError::invalid_args(format!("this pattern cannot be used: {error}"))
    };
    // The builder wraps the pattern, and its error would show the wrong position.
    if !args.literal
        && let Err(error) = regex_syntax::parse(&args.pattern)
    {
        let next = "correct it, or set literal: true to search for it as plain text";
        return Err(unusable(&error).with_next_action(next));
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
        unusable(&error).with_next_action(next)
    })
}

fn binary_note(count: u64, mut first: Vec<Box<[u8]>>) -> Option<String> {
    first.sort_unstable();
    let named: Vec<String> =
        first.iter().take(MAX_NAMED_FILES).map(|path| printable(path)).collect();
    let more = if count > named.len() as u64 { ", …" } else { "" };
    let files = counted(count, "binary file");
    (count > 0).then(|| format!("{files} skipped: {}{more}", named.join(", ")))
}
