//! Locates a chunk of a patch in the lines of a file.
//!
//! Lines are compared exactly first, then without trailing blanks, then with typographic punctuation
//! replaced by its plain form. A chunk must match exactly one place; after an anchor, the first match
//! below counts.

use std::borrow::Cow;
use std::collections::BTreeSet;

use serde_json::json;

use super::super::similar_line::find_similar_line;
use super::parser::{LineMark, PatchChunk, PatchLine};
use crate::base::error::Kind;
use crate::base::text::truncate_chars;
use crate::base::tool_error::ToolError;

/// How many places are listed in an error.
const MAX_NAMED_PLACES: usize = 20;
/// The maximum number of anchors of a chunk; each is searched in the whole file.
const MAX_ANCHORS: usize = 64;
/// How many characters of an anchor are shown in an error.
const MAX_ANCHOR_CHARS: usize = 80;

/// The place of a chunk in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChunkPlace<'c> {
    /// The first line, from 0.
    pub start: usize,
    /// The chunk's lines without blank separator lines around them.
    pub lines: &'c [PatchLine],
    /// The differences that were ignored, if the chunk did not match exactly.
    pub ignored: Option<&'static str>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LineMatching {
    Exact,
    NoTrailingBlanks,
    PlainPunctuation,
}

impl LineMatching {
    const ALL: [Self; 3] = [Self::Exact, Self::NoTrailingBlanks, Self::PlainPunctuation];

    /// The key by which two lines are compared.
    fn key(self, line: &[u8]) -> Cow<'_, [u8]> {
        match self {
            Self::Exact => line.into(),
            Self::NoTrailingBlanks => line.trim_ascii_end().into(),
            Self::PlainPunctuation => {
                let plain = plain_punctuation(line).map(String::into_bytes);
                plain.map_or_else(|| line.trim_ascii_end().into(), Cow::Owned)
            }
        }
    }

    fn ignored(self) -> Option<&'static str> {
        match self {
            Self::Exact => None,
            Self::NoTrailingBlanks => Some("blanks at the ends of lines"),
            Self::PlainPunctuation => Some("typographic punctuation"),
        }
    }
}

/// A line with plain quotes, dashes and blanks; `None` if it is ASCII or not UTF-8.
fn plain_punctuation(line: &[u8]) -> Option<String> {
    if line.is_ascii() {
        return None;
    }
    let plain = std::str::from_utf8(line).ok()?.chars().map(|c| match c {
        '\u{2010}'..='\u{2015}' | '\u{2212}' => '-',
        '\u{2018}'..='\u{201b}' => '\'',
        '\u{201c}'..='\u{201f}' => '"',
        '\u{a0}' | '\u{2002}'..='\u{200a}' | '\u{202f}' | '\u{205f}' | '\u{3000}' => ' ',
        c => c,
    });
    Some(plain.collect::<String>().trim_end().to_owned())
}

/// Finds the only place that a chunk matches.
pub fn locate_chunk<'c>(
    lines: &[&[u8]],
    chunk: &'c PatchChunk,
) -> Result<ChunkPlace<'c>, ToolError> {
    let whole = chunk.lines.as_slice();
    let is_bare = |line: &PatchLine| line.mark == LineMark::Blank;
    let tail = whole.iter().rev().take_while(|line| is_bare(line)).count();
    let head = whole.iter().take_while(|line| is_bare(line)).count();
    let mut readings = vec![whole];
    if tail > 0 {
        readings.push(&whole[..whole.len() - tail]);
    }
    if head > 0 && head < whole.len() {
        readings.push(&whole[head..whole.len() - tail]);
    }
    if chunk.anchors.len() > MAX_ANCHORS {
        let message =
            format!("the chunk at line {} of the patch has too many anchors", chunk.number);
        return Err(ToolError::invalid_args(message)
            .with_next_action("name the one or two lines above the change"));
    }
    let anchors = anchor_starts(lines, chunk)?;
    for reading in readings {
        if let Some(place) = locate_lines(lines, chunk, reading, anchors.as_deref())? {
            return Ok(place);
        }
    }
    Err(no_match(lines, chunk))
}

/// The lines that a chunk expects to find.
fn expected_lines(lines: &[PatchLine]) -> Vec<&[u8]> {
    lines
        .iter()
        .filter(|line| line.mark != LineMark::Add)
        .map(|line| line.text.as_bytes())
        .collect()
}

fn locate_lines<'c>(
    lines: &[&[u8]],
    chunk: &PatchChunk,
    reading: &'c [PatchLine],
    anchors: Option<&[usize]>,
) -> Result<Option<ChunkPlace<'c>>, ToolError> {
    let old = expected_lines(reading);
    let place = |start, matching: LineMatching| {
        Ok(Some(ChunkPlace { start, lines: reading, ignored: matching.ignored() }))
    };
    if old.is_empty() {
        let is_free = lines.is_empty() || chunk.is_at_end;
        if is_free && anchors.is_none() {
            return place(lines.len(), LineMatching::Exact);
        }
        return Err(no_place(chunk));
    }
    for matching in LineMatching::ALL {
        let matches = find_matches(lines, &old, matching);
        if chunk.is_at_end
            && let Some(last) = matches.last().copied()
            && lines[last + old.len()..].iter().all(|line| line.trim_ascii().is_empty())
        {
            return place(last, matching);
        }
        let places: BTreeSet<usize> = match anchors {
            None => matches.into_iter().collect(),
            Some(anchors) => anchors
                .iter()
                .filter_map(|anchor| matches.get(matches.partition_point(|at| at < anchor)))
                .copied()
                .collect(),
        };
        match places.first() {
            None => {}
            Some(only) if places.len() == 1 => return place(*only, matching),
            Some(_) => return Err(not_unique(chunk, &places)),
        }
    }
    Ok(None)
}

/// The positions at which all wanted lines follow each other; none if there are no wanted lines. Linear
/// time, also if the wanted lines repeat themselves (Knuth-Morris-Pratt).
fn find_matches(lines: &[&[u8]], wanted: &[&[u8]], matching: LineMatching) -> Vec<usize> {
    let wanted: Vec<Cow<'_, [u8]>> = wanted.iter().map(|line| matching.key(line)).collect();
    let Some(most) = wanted.len().checked_sub(1) else { return Vec::new() };
    // The failure function: how many lines still match if the line after this one does not.
    let mut failure_table: Vec<usize> = vec![0];
    for line in &wanted[1..] {
        let fits = matched_prefix(
            &wanted,
            &failure_table,
            failure_table.last().copied().unwrap_or(0),
            line,
        );
        failure_table.push(fits);
    }
    let mut found = Vec::new();
    let mut fits = 0;
    for (at, line) in lines.iter().enumerate() {
        if fits == wanted.len() {
            fits = failure_table[most];
        }
        fits = matched_prefix(&wanted, &failure_table, fits, &matching.key(line));
        if fits == wanted.len() {
            found.push(at - most);
        }
    }
    found
}

/// How many wanted lines match up to this line, if `fits` matched before it.
fn matched_prefix(
    wanted: &[Cow<'_, [u8]>],
    failure_table: &[usize],
    mut fits: usize,
    line: &[u8],
) -> usize {
    while fits > 0 && *wanted[fits] != *line {
        fits = failure_table[fits - 1];
    }
    fits + usize::from(*wanted[fits] == *line)
}

/// The possible lines of the innermost anchor: for each line of the outer one, the first match below.
fn anchor_starts(lines: &[&[u8]], chunk: &PatchChunk) -> Result<Option<Vec<usize>>, ToolError> {
    let mut starts: Option<Vec<usize>> = None;
    for anchor in &chunk.anchors {
        let found = anchor_lines(lines, anchor);
        let next: BTreeSet<usize> = match starts {
            None => found.into_iter().collect(),
            Some(above) => above
                .iter()
                .filter_map(|start| found.get(found.partition_point(|at| at <= start)))
                .copied()
                .collect(),
        };
        if next.is_empty() {
            return Err(no_anchor(lines, chunk, anchor));
        }
        starts = Some(next.into_iter().collect());
    }
    Ok(starts)
}

/// The lines that an anchor matches: whole lines, else lines that contain it.
fn anchor_lines(lines: &[&[u8]], anchor: &str) -> Vec<usize> {
    let anchor = anchor.as_bytes();
    let whole = |matching: LineMatching| find_matches(lines, &[anchor], matching);
    let found = LineMatching::ALL.into_iter().map(whole).find(|found| !found.is_empty());
    found.unwrap_or_else(|| {
        let finder = memchr::memmem::Finder::new(anchor.trim_ascii());
        let holds = |line: &&[u8]| finder.find(line).is_some();
        let numbered = lines.iter().enumerate();
        numbered.filter(|(_, line)| holds(line)).map(|(at, _)| at).collect()
    })
}

fn not_unique(chunk: &PatchChunk, places: &BTreeSet<usize>) -> ToolError {
    let (number, count) = (chunk.number, places.len());
    let line_numbers: Vec<usize> = places.iter().take(MAX_NAMED_PLACES).map(|at| at + 1).collect();
    let named: Vec<String> = line_numbers.iter().map(usize::to_string).collect();
    let more = if count > MAX_NAMED_PLACES { ", …" } else { "" };
    let message = format!(
        "the chunk at line {number} of the patch fits {count} places, at lines {}{more}",
        named.join(", ")
    );
    ToolError::new(Kind::NotUnique, message)
        .with_details(json!({"count": count, "lines": line_numbers, "patch_line": number}))
        .with_next_action(
            "add context lines, or an `@@` with a line above the change that occurs once",
        )
}

fn no_place(chunk: &PatchChunk) -> ToolError {
    let number = chunk.number;
    let message = format!("the chunk at line {number} of the patch does not say where to add");
    ToolError::invalid_args(message)
        .with_details(json!({ "patch_line": number }))
        .with_next_action("add a context line, or `*** End of File` after it to append")
}

fn no_anchor(lines: &[&[u8]], chunk: &PatchChunk, anchor: &str) -> ToolError {
    let (shown, number) = (truncate_chars(anchor, MAX_ANCHOR_CHARS), chunk.number);
    let message = format!("the anchor `{shown}` of the chunk at line {number} is not in the file");
    with_hint(ToolError::new(Kind::NoMatch, message), lines, anchor)
}

fn no_match(lines: &[&[u8]], chunk: &PatchChunk) -> ToolError {
    let number = chunk.number;
    let below = if chunk.anchors.is_empty() { "" } else { " below its anchor" };
    let message = format!("the chunk at line {number} of the patch does not fit{below}");
    let error =
        ToolError::new(Kind::NoMatch, message).with_details(json!({ "patch_line": number }));
    let kept = |line: &&PatchLine| line.mark != LineMark::Remove;
    let new: Vec<&[u8]> =
        chunk.lines.iter().filter(kept).map(|line| line.text.as_bytes()).collect();
    let has_added = chunk.lines.iter().any(|line| line.mark == LineMark::Add);
    let at = find_matches(lines, &new, LineMatching::Exact).first().map(|at| at + 1);
    if let Some(line) = at.filter(|_| has_added) {
        return error
            .with_next_action(format!("it is already there, at line {line}; read the file"));
    }
    let old = expected_lines(&chunk.lines).join(&b'\n');
    with_hint(error, lines, &String::from_utf8_lossy(&old))
}

fn with_hint(error: ToolError, lines: &[&[u8]], wanted: &str) -> ToolError {
    let text = lines.join(&b'\n');
    match find_similar_line(&String::from_utf8_lossy(&text), wanted) {
        Some((line, found, reason)) => {
            error.with_next_action(format!("line {line} {reason}: {found:?}; copy it exactly"))
        }
        None => {
            error.with_next_action("read the file and copy its lines exactly, without line numbers")
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn naive(lines: &[&[u8]], wanted: &[&[u8]], matching: LineMatching) -> Vec<usize> {
        let same = |(one, other): (&&[u8], &&[u8])| matching.key(one) == matching.key(other);
        let windows = lines.windows(wanted.len()).enumerate();
        let fits = windows.filter(|(_, window)| window.iter().zip(wanted).all(same));
        fits.map(|(at, _)| at).collect()
    }

    proptest! {
        #[test]
        fn every_place_is_found_and_no_other(
            lines in proptest::collection::vec("[ab]( |\u{2013}|-)?", 0..40),
            wanted in proptest::collection::vec("[ab]( |\u{2013}|-)?", 1..5),
        ) {
            let bytes = |texts: &[String]| -> Vec<Vec<u8>> {
                texts.iter().map(|text| text.clone().into_bytes()).collect()
            };
            let (lines, wanted) = (bytes(&lines), bytes(&wanted));
            let lines: Vec<&[u8]> = lines.iter().map(Vec::as_slice).collect();
            let wanted: Vec<&[u8]> = wanted.iter().map(Vec::as_slice).collect();
            for matching in LineMatching::ALL {
                prop_assert_eq!(find_matches(&lines, &wanted, matching), naive(&lines, &wanted, matching));
            }
        }
    }

    #[test]
    fn lines_that_repeat_themselves_cost_no_more_than_others() {
        let same: Vec<&[u8]> = vec!["“a”".as_bytes(); 200_000];
        let mut wanted = same[..20_000].to_vec();
        assert_eq!(find_matches(&same, &wanted, LineMatching::PlainPunctuation).len(), 180_001);
        wanted.push(b"b");
        // A naive search would make billions of comparisons.
        assert!(find_matches(&same, &wanted, LineMatching::PlainPunctuation).is_empty());
    }
}
