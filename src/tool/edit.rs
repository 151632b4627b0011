//! `edit`: replaces exact text in a file and touches no other byte of it.

use std::ops::Range;
use std::path::PathBuf;

use memchr::memmem;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use super::rewrite::{Rewriter, on_disk};
use super::write::is_crlf;
use super::{Plan, Tool, ToolContext, ToolError, ToolOutput, first_chars};
use crate::error::Kind;

/// How many places are named.
const TOLD_PLACES: usize = 20;
/// How many lines are compared for a hint.
const COMPARED_LINES: usize = 3000;
/// Lines longer than this are not compared for a hint.
const COMPARED_LENGTH: usize = 200;
/// How alike a line must be to be worth a hint.
const ALIKE: f64 = 0.6;

/// The tool.
#[derive(Debug)]
pub struct Edit(Rewriter);

/// The arguments of `edit`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Args {
    /// File, relative to the workspace.
    path: PathBuf,
    /// Applied in order, all or none.
    #[schemars(length(min = 1))]
    edits: Vec<Replacement>,
}

/// One replacement.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Replacement {
    /// Exact text, without line numbers; must occur once, unless `replace_all`.
    old_string: String,
    new_string: String,
    #[serde(default)]
    replace_all: bool,
}

impl Edit {
    /// An `edit` that knows what the Session has seen.
    pub fn new(rewriter: Rewriter) -> Self {
        Self(rewriter)
    }
}

impl Tool for Edit {
    type Args = Args;
    const NAME: &'static str = "edit";
    const MANUAL: &'static str = "Replaces exact text in an existing file. Give enough \
        surrounding lines to make each old_string unique.";

    fn plan(&self, args: &Args, context: &ToolContext) -> Result<Plan, ToolError> {
        self.0.plan(context, &args.path, &|old| Ok(apply(args, old)?.0))
    }

    async fn run(&self, args: Args, context: ToolContext) -> Result<ToolOutput, ToolError> {
        let rewriter = self.0.clone();
        on_disk(move || {
            let count = std::cell::Cell::new(0);
            let change = |old: Option<&[u8]>| {
                let (bytes, replaced) = apply(&args, old)?;
                count.set(replaced);
                Ok(bytes)
            };
            let done = rewriter.run(&context.workspace, &args.path, &change)?;
            let (count, counts) = (count.get(), done.difference.counts());
            let text = format!("edited {}: {count} replaced{counts}", done.path.display());
            Ok(ToolOutput { ok: true, text, details: done.facts() })
        })
        .await
    }
}

/// The content after every edit, and how many places were replaced.
fn apply(args: &Args, old: Option<&[u8]>) -> Result<(Vec<u8>, usize), ToolError> {
    let Some(old) = old else {
        let message = format!("{} does not exist", args.path.display());
        return Err(ToolError::new(Kind::NotFound, message).next("create it with write"));
    };
    if args.edits.is_empty() {
        return Err(ToolError::invalid("edits is empty"));
    }
    let mut content = old.to_vec();
    let mut replaced = 0;
    for (index, edit) in args.edits.iter().enumerate() {
        let (next, count) = replace(&content, edit).map_err(|error| {
            let many = args.edits.len();
            if many == 1 {
                return error;
            }
            let message = format!("edit {} of {many}: {}", index + 1, error.message).into();
            ToolError { message, ..error }.next("no edit was applied; repeat all of them")
        })?;
        content = next;
        replaced += count;
    }
    Ok((content, replaced))
}

fn replace(content: &[u8], edit: &Replacement) -> Result<(Vec<u8>, usize), ToolError> {
    if edit.old_string.is_empty() {
        return Err(ToolError::invalid("old_string is empty").next("use write for a new file"));
    }
    if edit.old_string == edit.new_string {
        return Err(ToolError::invalid("old_string and new_string are the same"));
    }
    let old = edit.old_string.as_bytes();
    // A match that begins in the middle of a CRLF would leave half of it behind.
    let splits = |start: usize| content[..start].ends_with(b"\r") && old.starts_with(b"\n");
    let mut places: Vec<Range<usize>> = memmem::find_iter(content, old)
        .filter(|start| !splits(*start))
        .map(|start| start..start + old.len())
        .collect();
    let is_exact = !places.is_empty();
    if !is_exact {
        places = matches_with_other_endings(content, &edit.old_string);
    }
    if places.is_empty() {
        return Err(no_match(content, edit));
    }
    if places.len() > 1 && !edit.replace_all {
        return Err(not_unique(content, &places));
    }
    let mut replaced = Vec::with_capacity(content.len() + edit.new_string.len());
    let mut done = 0;
    for place in &places {
        replaced.extend_from_slice(&content[done..place.start]);
        let ending =
            if is_exact { file_ending(content) } else { ending_in(&content[place.clone()]) };
        replaced.extend_from_slice(with_ending(&edit.new_string, ending).as_bytes());
        done = place.end;
    }
    replaced.extend_from_slice(&content[done..]);
    Ok((replaced, places.len()))
}

/// Where the text occurs if its `\n` may be CRLF or CR in the file: models write `\n` only.
fn matches_with_other_endings(content: &[u8], old: &str) -> Vec<Range<usize>> {
    if !old.contains('\n') || old.contains('\r') || memchr::memchr(b'\r', content).is_none() {
        return Vec::new();
    }
    let first_line = old.split('\n').next().unwrap_or_default().as_bytes();
    let starts: Vec<usize> = if first_line.is_empty() {
        line_ends(content).collect()
    } else {
        memmem::find_iter(content, first_line).collect()
    };
    let mut places: Vec<Range<usize>> = Vec::new();
    for start in starts {
        if places.last().is_some_and(|last| start < last.end) {
            continue;
        }
        if let Some(end) = match_at(content, start, old.as_bytes()) {
            places.push(start..end);
        }
    }
    places
}

/// Where line endings begin: CRLF counts once.
fn line_ends(content: &[u8]) -> impl Iterator<Item = usize> + '_ {
    memchr::memchr2_iter(b'\n', b'\r', content)
        .filter(|at| content[*at] == b'\r' || *at == 0 || content[at - 1] != b'\r')
}

fn match_at(content: &[u8], start: usize, old: &[u8]) -> Option<usize> {
    let mut at = start;
    for wanted in old {
        let rest = content.get(at..)?;
        at += match (wanted, rest) {
            (b'\n', [b'\r', b'\n', ..]) => 2,
            (b'\n', [b'\r' | b'\n', ..]) => 1,
            (wanted, [found, ..]) if wanted == found => 1,
            _ => return None,
        };
    }
    Some(at)
}

/// The first line ending in a matched region.
fn ending_in(region: &[u8]) -> &'static str {
    match line_ends(region).next().map(|at| &region[at..]) {
        Some([b'\r', b'\n', ..]) => "\r\n",
        Some([b'\r', ..]) => "\r",
        _ => "\n",
    }
}

/// The ending that every line of the file has; a mixed file takes new text as it is.
fn file_ending(content: &[u8]) -> &'static str {
    if is_crlf(content) {
        return "\r\n";
    }
    let has = |byte| memchr::memchr(byte, content).is_some();
    if has(b'\r') && !has(b'\n') { "\r" } else { "\n" }
}

fn with_ending(text: &str, ending: &str) -> String {
    if ending == "\n" || text.contains('\r') {
        return text.to_owned();
    }
    text.replace('\n', ending)
}

fn line_of(content: &[u8], at: usize) -> usize {
    let before = &content[..at];
    let newlines = memchr::memchr_iter(b'\n', before).count();
    // A file without any LF has CR lines.
    let lines = if newlines == 0 && memchr::memchr(b'\n', content).is_none() {
        memchr::memchr_iter(b'\r', before).count()
    } else {
        newlines
    };
    lines + 1
}

fn not_unique(content: &[u8], places: &[Range<usize>]) -> ToolError {
    let count = places.len();
    let told = places.iter().take(TOLD_PLACES);
    let lines: Vec<usize> = told.map(|place| line_of(content, place.start)).collect();
    let named: Vec<String> = lines.iter().map(usize::to_string).collect();
    let more = if count > TOLD_PLACES { ", …" } else { "" };
    let message = format!("old_string occurs {count} times, at lines {}{more}", named.join(", "));
    ToolError::new(Kind::NotUnique, message)
        .details(json!({"count": count, "lines": lines}))
        .next("add surrounding lines to old_string, or set replace_all")
}

fn no_match(content: &[u8], edit: &Replacement) -> ToolError {
    let error = ToolError::new(Kind::NoMatch, "old_string does not occur in the file");
    let new = edit.new_string.as_bytes();
    if !new.is_empty()
        && let Some(at) = memmem::find(content, new)
    {
        let line = line_of(content, at);
        return error.next(format!("new_string is already there, at line {line}; read the file"));
    }
    let text = String::from_utf8_lossy(content);
    match hint(&text, &edit.old_string) {
        Some((line, found, reason)) => error
            .details(json!({"line": line, "found": found}))
            .next(format!("line {line} {reason}: {found:?}; copy it exactly")),
        None => error.next("read the file and copy the text exactly, without line numbers"),
    }
}

/// The line that the caller may have meant: number, text, and how it differs.
fn hint<'t>(text: &'t str, old: &str) -> Option<(usize, String, &'t str)> {
    let squeezed = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    // Of several lines, the first that is nowhere in the file is the one that is wrong.
    let wanted = old.lines().find(|line| !line.trim().is_empty() && !text.contains(*line))?;
    let wanted_squeezed = squeezed(wanted);
    let lines = || text.lines().enumerate().map(|(index, line)| (index + 1, line));
    if let Some((number, line)) = lines().find(|(_, line)| squeezed(line) == wanted_squeezed) {
        return Some((number, line.to_owned(), "differs in white space only"));
    }
    let nearest = lines()
        .take(COMPARED_LINES)
        .filter(|(_, line)| line.len() <= COMPARED_LENGTH && wanted.len() <= COMPARED_LENGTH)
        .map(|(number, line)| (strsim::normalized_levenshtein(line, wanted), number, line))
        .filter(|(alike, ..)| *alike >= ALIKE)
        .max_by(|(one, ..), (other, ..)| one.total_cmp(other))?;
    Some((nearest.1, first_chars(nearest.2, COMPARED_LENGTH), "is the closest"))
}
