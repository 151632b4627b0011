//! Three-way merge of texts by line, with the rules of diff3.
//!
//! Lines that both sides kept divide the text into regions. A region that one side changed, or both in the
//! same way, takes the change; any other is an overlap, and then nothing is merged. A line includes its
//! ending, so line endings are kept.

use std::ops::Range;
use std::time::{Duration, Instant};

use similar::{Algorithm, DiffOp, capture_diff_slices_deadline};

/// How long one comparison may take before it becomes coarse. A coarse comparison is correct too: it only
/// finds more overlaps.
const COMPARE_TIME: Duration = Duration::from_millis(500);

/// Lines of the base, counted from 1, that both sides changed differently.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LineOverlap {
    pub first: usize,
    pub last: usize,
}

/// Merges the changes that `ours` and `theirs` made to `base`, or returns all overlaps.
pub fn merge_lines(base: &[u8], ours: &[u8], theirs: &[u8]) -> Result<Vec<u8>, Vec<LineOverlap>> {
    let (base, ours, theirs) = (split_lines(base), split_lines(ours), split_lines(theirs));
    let (in_ours, in_theirs) = (matching_lines(&base, &ours), matching_lines(&base, &theirs));
    let mut merged = Vec::new();
    let mut overlaps = Vec::new();
    let (mut base_from, mut ours_from, mut theirs_from) = (0, 0, 0);
    for at in 0..=base.len() {
        let end = at == base.len();
        let (our_place, their_place) =
            if end { (Some(ours.len()), Some(theirs.len())) } else { (in_ours[at], in_theirs[at]) };
        let (Some(our_place), Some(their_place)) = (our_place, their_place) else { continue };
        let region = MergeRegion {
            base: &base[base_from..at],
            ours: &ours[ours_from..our_place],
            theirs: &theirs[theirs_from..their_place],
        };
        match region.resolve() {
            Some(settled) => merged.extend(settled.concat()),
            None => overlaps.push(overlap_of_region(base_from..at, base.len())),
        }
        if !end {
            merged.extend_from_slice(base[at]);
        }
        (base_from, ours_from, theirs_from) = (at + 1, our_place + 1, their_place + 1);
    }
    if overlaps.is_empty() { Ok(merged) } else { Err(overlaps) }
}

/// One region of a merge, in all three texts.
struct MergeRegion<'s, 't> {
    base: &'s [&'t [u8]],
    ours: &'s [&'t [u8]],
    theirs: &'s [&'t [u8]],
}

impl<'s, 't> MergeRegion<'s, 't> {
    fn resolve(&self) -> Option<&'s [&'t [u8]]> {
        if self.ours == self.base {
            Some(self.theirs)
        } else if self.theirs == self.base || self.ours == self.theirs {
            Some(self.ours)
        } else {
            None
        }
    }
}

fn split_lines(text: &[u8]) -> Vec<&[u8]> {
    text.split_inclusive(|byte| *byte == b'\n').collect()
}

/// The index of each line of the base in another text; `None` when it was not kept.
fn matching_lines(base: &[&[u8]], other: &[&[u8]]) -> Vec<Option<usize>> {
    let deadline = Some(Instant::now() + COMPARE_TIME);
    let mut places = vec![None; base.len()];
    for op in capture_diff_slices_deadline(Algorithm::Myers, base, other, deadline) {
        if let DiffOp::Equal { old_index, new_index, len } = op {
            for step in 0..len {
                places[old_index + step] = Some(new_index + step);
            }
        }
    }
    places
}

/// A region in line numbers; an empty one has the number of the line after it.
fn overlap_of_region(region: Range<usize>, count: usize) -> LineOverlap {
    let first = (region.start + 1).min(count.max(1));
    LineOverlap { first, last: region.end.max(first) }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn check(base: &str, ours: &str, theirs: &str, expected: Option<&str>) {
        let merged = merge_lines(base.as_bytes(), ours.as_bytes(), theirs.as_bytes());
        let text = merged.as_ref().ok().map(|text| String::from_utf8_lossy(text).into_owned());
        assert_eq!(text.as_deref(), expected, "{merged:?}");
    }

    #[test]
    fn changes_that_a_kept_line_divides_come_together() {
        check("a\nb\nc\n", "A\nb\nc\n", "a\nb\nC\n", Some("A\nb\nC\n"));
        check("a\nb\nc\n", "b\nc\n", "a\nb\nc\nd\n", Some("b\nc\nd\n"));
        check("a\n", "a\n", "", Some(""));
        check("", "", "new\n", Some("new\n"));
    }

    #[test]
    fn changes_of_the_same_or_of_neighbouring_lines_overlap() {
        check("a\nb\nc\n", "a\nX\nc\n", "a\nY\nc\n", None);
        check("a\nb\nc\n", "A\nb\nc\n", "a\nB\nc\n", None);
        check("", "one\n", "two\n", None);
        let overlaps = merge_lines(b"a\nb\nc\n", b"a\nX\nc\n", b"a\nY\nc\n").unwrap_err();
        assert_eq!(overlaps, [LineOverlap { first: 2, last: 2 }]);
    }

    #[test]
    fn what_both_did_is_done_once_and_endings_stay() {
        check("a\nb\n", "a\nX\n", "a\nX\n", Some("a\nX\n"));
        check("a\r\nb\r\nc\r\n", "1\r\nb\r\nc\r\n", "a\r\nb\r\n3\r\n", Some("1\r\nb\r\n3\r\n"));
        check("a\nb\nc", "a\nb\nc\n", "A\nb\nc", Some("A\nb\nc\n"));
    }

    /// The changes of one side to a base whose lines are all different: a line is kept or not, and new
    /// lines stand before it.
    #[derive(Debug, Clone)]
    struct Side {
        kept: Vec<bool>,
        /// New lines before each line and at the end: one entry more than lines.
        before: Vec<Vec<u8>>,
    }

    fn side(count: usize) -> impl Strategy<Value = Side> {
        let kept = prop::collection::vec(prop::bool::weighted(0.75), count);
        let new = prop_oneof![
            5 => Just(Vec::new()),
            2 => prop::collection::vec(0..4_u8, 1..3),
        ];
        (kept, prop::collection::vec(new, count + 1))
            .prop_map(|(kept, before)| Side { kept, before })
    }

    impl Side {
        fn stretch(&self, range: Range<usize>, out: &mut String) {
            for at in range {
                for new in &self.before[at] {
                    writeln!(out, "new {new}").unwrap();
                }
                if at < self.kept.len() && self.kept[at] {
                    writeln!(out, "old {at}").unwrap();
                }
            }
        }
    }

    /// The expected merge, from the known changes of both sides instead of a comparison.
    fn oracle(count: usize, ours: &Side, theirs: &Side) -> Option<String> {
        let untouched = Side { kept: vec![true; count], before: vec![Vec::new(); count + 1] };
        let mut merged = String::new();
        let mut from = 0;
        for at in 0..=count {
            if at < count && !(ours.kept[at] && theirs.kept[at]) {
                continue;
            }
            let [mut base, mut our, mut their] = [String::new(), String::new(), String::new()];
            for (side, text) in [(&untouched, &mut base), (ours, &mut our), (theirs, &mut their)] {
                side.stretch(from..at, text);
                for new in &side.before[at] {
                    writeln!(text, "new {new}").unwrap();
                }
            }
            if our == base {
                merged.push_str(&their);
            } else if their == base || our == their {
                merged.push_str(&our);
            } else {
                return None;
            }
            if at < count {
                writeln!(merged, "old {at}").unwrap();
            }
            from = at + 1;
        }
        Some(merged)
    }

    fn few() -> impl Strategy<Value = Vec<u8>> {
        let line = prop::sample::select(vec!["a\n", "b\n", "c\r\n", "\n"]);
        let end = prop::sample::select(vec!["", "z"]);
        (prop::collection::vec(line, 0..6), end)
            .prop_map(|(lines, end)| format!("{}{end}", lines.concat()).into_bytes())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn the_merge_agrees_with_the_known_changes(
            (count, ours, theirs) in (0..6_usize)
                .prop_flat_map(|count| (Just(count), side(count), side(count)))
        ) {
            let whole = |side: &Side| {
                let mut text = String::new();
                side.stretch(0..(count + 1), &mut text);
                text
            };
            let base = whole(&Side { kept: vec![true; count], before: vec![Vec::new(); count + 1] });
            let merged = merge_lines(base.as_bytes(), whole(&ours).as_bytes(), whole(&theirs).as_bytes());
            let merged = merged.ok().map(|text| String::from_utf8(text).unwrap());
            prop_assert_eq!(merged, oracle(count, &ours, &theirs));
        }

        #[test]
        fn laws_hold_for_any_text(base in few(), ours in few(), theirs in few()) {
            prop_assert_eq!(merge_lines(&base, &ours, &base), Ok(ours.clone()));
            prop_assert_eq!(merge_lines(&base, &base, &theirs), Ok(theirs.clone()));
            prop_assert_eq!(merge_lines(&base, &ours, &ours), Ok(ours.clone()));
            let (one, other) = (merge_lines(&base, &ours, &theirs), merge_lines(&base, &theirs, &ours));
            prop_assert_eq!(&one, &other);
        }
    }
}
