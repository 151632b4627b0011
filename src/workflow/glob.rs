//! Whether two globs can mean the same path.
//!
//! A glob says what the expression says that `globset` makes of it. That expression becomes a small
//! automaton over bytes, and two automata run side by side, next to a third that knows what a path
//! is: a way through all three is a path that both globs match, and no way is a proof that there is none.

use std::collections::VecDeque;

use globset::GlobBuilder;
use regex_syntax::ParserBuilder;
use regex_syntax::hir::{Class, Hir, HirKind, Look};

/// More states than any glob of a set has that somebody wrote by hand; it bounds what a comparison
/// can cost.
const MOST_STATES: usize = 4_000;

/// A glob, ready to be compared.
#[derive(Debug, Clone)]
pub struct Glob {
    states: Vec<State>,
    start: usize,
}

#[derive(Debug, Clone)]
enum State {
    /// Goes on with any byte of a set.
    Byte(Bytes, usize),
    /// Goes on without a byte.
    Free(Vec<usize>),
    /// The end.
    Match,
}

/// A set of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Bytes([u128; 2]);

impl Bytes {
    const NONE: Bytes = Bytes([0; 2]);

    fn only(byte: u8) -> Self {
        Self::NONE.with(byte)
    }

    fn with(mut self, byte: u8) -> Self {
        self.0[usize::from(byte >> 7)] |= 1 << (byte & 127);
        self
    }

    fn and(self, other: Self) -> Self {
        Self([self.0[0] & other.0[0], self.0[1] & other.0[1]])
    }

    fn without(self, other: Self) -> Self {
        Self([self.0[0] & !other.0[0], self.0[1] & !other.0[1]])
    }

    fn is_empty(self) -> bool {
        self == Self::NONE
    }
}

impl Glob {
    /// Reads a glob, relative and without odd slashes; says why it cannot be used.
    pub fn new(glob: &str) -> Result<Self, String> {
        let built = GlobBuilder::new(glob).literal_separator(true).backslash_escape(true).build();
        let built = built.map_err(|error| error.kind().to_string())?;
        let parsed = ParserBuilder::new()
            .utf8(false)
            .dot_matches_new_line(true)
            .build()
            .parse(built.regex())
            .map_err(|_| "it cannot be read".to_owned())?;
        let mut own = Self { states: vec![State::Match], start: 0 };
        own.start = own.add(&parsed, 0)?;
        Ok(own)
    }

    /// Whether there is a path that both match.
    pub fn meets(&self, other: &Glob) -> bool {
        let mut enough = usize::MAX;
        self.meets_within(other, &mut enough).unwrap_or(true)
    }

    /// The same with only so much work left; `None` when that was not enough.
    pub fn meets_within(&self, other: &Glob, work: &mut usize) -> Option<bool> {
        let size = self.states.len() * other.states.len() * Walk::COUNT;
        // Making room is cheaper than looking, and not free.
        *work = work.checked_sub(size / 256)?;
        let mut seen = vec![false; size];
        let mut waiting = VecDeque::from([(self.start, other.start, Walk::NewName)]);
        while let Some((one, two, walk)) = waiting.pop_front() {
            *work = work.checked_sub(1)?;
            let place = (one * other.states.len() + two) * Walk::COUNT + walk as usize;
            if std::mem::replace(&mut seen[place], true) {
                continue;
            }
            match (&self.states[one], &other.states[two]) {
                (State::Free(ways), _) => {
                    waiting.extend(ways.iter().map(|way| (*way, two, walk)));
                }
                (_, State::Free(ways)) => {
                    waiting.extend(ways.iter().map(|way| (one, *way, walk)));
                }
                (State::Match, State::Match) if walk == Walk::Name => return Some(true),
                (State::Match, _) | (_, State::Match) => {}
                (State::Byte(ours, one), State::Byte(theirs, two)) => {
                    let both = ours.and(*theirs);
                    let next = walk.steps().into_iter().filter(|(on, _)| !both.and(*on).is_empty());
                    waiting.extend(next.map(|(_, walk)| (*one, *two, walk)));
                }
            }
        }
        Some(false)
    }

    /// Adds what leads over `hir` to `next`, and gives its first state.
    fn add(&mut self, hir: &Hir, next: usize) -> Result<usize, String> {
        match hir.kind() {
            HirKind::Empty | HirKind::Look(Look::Start | Look::End) => Ok(next),
            HirKind::Literal(literal) => {
                literal.0.iter().rev().try_fold(next, |next, byte| self.byte(*byte, next))
            }
            HirKind::Class(class) => {
                let bytes = bytes_of(class)?;
                self.push(State::Byte(bytes, next))
            }
            HirKind::Concat(parts) => {
                parts.iter().rev().try_fold(next, |next, part| self.add(part, next))
            }
            HirKind::Alternation(parts) => {
                let ways: Result<Vec<usize>, String> =
                    parts.iter().map(|part| self.add(part, next)).collect();
                self.push(State::Free(ways?))
            }
            HirKind::Capture(capture) => self.add(&capture.sub, next),
            HirKind::Repetition(again) => match (again.min, again.max) {
                (0, Some(1)) => {
                    let once = self.add(&again.sub, next)?;
                    self.push(State::Free(vec![once, next]))
                }
                (0, None) => {
                    let hub = self.push(State::Free(vec![next]))?;
                    let once = self.add(&again.sub, hub)?;
                    self.states[hub] = State::Free(vec![once, next]);
                    Ok(hub)
                }
                (1, None) => {
                    let hub = self.push(State::Free(vec![next]))?;
                    let once = self.add(&again.sub, hub)?;
                    self.states[hub] = State::Free(vec![once, next]);
                    Ok(once)
                }
                (least, Some(most)) if least == most => {
                    (0..least).try_fold(next, |next, _| self.add(&again.sub, next))
                }
                _ => Err("it repeats in a way that is not known".to_owned()),
            },
            HirKind::Look(_) => Err("it looks around in a way that is not known".to_owned()),
        }
    }

    fn byte(&mut self, byte: u8, next: usize) -> Result<usize, String> {
        self.push(State::Byte(Bytes::only(byte), next))
    }

    fn push(&mut self, state: State) -> Result<usize, String> {
        if self.states.len() >= MOST_STATES {
            return Err("it is too long".to_owned());
        }
        self.states.push(state);
        Ok(self.states.len() - 1)
    }
}

fn bytes_of(class: &Class) -> Result<Bytes, String> {
    match class {
        Class::Bytes(class) => Ok(class
            .iter()
            .flat_map(|range| range.start()..=range.end())
            .fold(Bytes::NONE, Bytes::with)),
        // Only a class of plain letters comes out as one of characters.
        Class::Unicode(class) => class
            .iter()
            .flat_map(|range| range.start()..=range.end())
            .try_fold(Bytes::NONE, |bytes, letter| {
                u8::try_from(letter).ok().filter(u8::is_ascii).map(|byte| bytes.with(byte))
            })
            .ok_or_else(|| "it has a class that is not known".to_owned()),
    }
}

/// How far a path has come: names without `.` and `..`, and one slash between two of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Walk {
    NewName,
    Dot,
    DotDot,
    Name,
}

impl Walk {
    const COUNT: usize = 4;

    /// Where which bytes lead.
    fn steps(self) -> [(Bytes, Walk); 3] {
        let (slash, dot) = (Bytes::only(b'/'), Bytes::only(b'.'));
        let other = Bytes([u128::MAX; 2]).without(slash).without(dot).without(Bytes::only(0));
        let (after_slash, after_dot) = match self {
            Walk::NewName => (Bytes::NONE, Walk::Dot),
            Walk::Dot => (Bytes::NONE, Walk::DotDot),
            Walk::DotDot => (Bytes::NONE, Walk::Name),
            Walk::Name => (slash, Walk::Name),
        };
        [(after_slash, Walk::NewName), (dot, after_dot), (other, Walk::Name)]
    }
}

#[cfg(test)]
pub mod tests {
    use globset::GlobMatcher;
    use proptest::prelude::*;

    use super::*;

    fn meet(one: &str, other: &str) -> bool {
        let [one, other] = [one, other].map(|glob| Glob::new(glob).unwrap());
        let (there, back) = (one.meets(&other), other.meets(&one));
        assert_eq!(there, back);
        there
    }

    #[test]
    fn globs_meet_where_a_path_is_both() {
        for (one, other, expected) in [
            ("**", "a", true),
            ("lib/**", "lib/a.ex", true),
            ("lib/**", "lib", false),
            ("lib/**", "libs/a", false),
            ("*.rs", "src/*.rs", false),
            ("**/*.rs", "src/*.rs", true),
            ("**/*.rs", "src/**/*.md", false),
            ("src/*/a", "src/**/b", false),
            ("src/*/a", "src/b/?", true),
            ("a[0-9].txt", "a[!0-9].txt", false),
            ("a[0-9].txt", "a[5-z].txt", true),
            ("{src,docs}/**", "docs/x", true),
            ("{src,docs}/**", "tests/{a,b}", false),
            ("a/{b,c/d}/*", "a/c/*/e", true),
            (r"a\*", "a*", true),
            (r"a\*", "ab", false),
            ("**/a/**", "b/**/c", true),
            ("x*y", "*xy*", true),
            ("?", "ab", false),
            ("ü*", "?*", true),
        ] {
            assert_eq!(meet(one, other), expected, "{one} and {other}");
        }
    }

    #[test]
    fn only_paths_count() {
        for odd in [".", "a/..", "a/../b", "a//b", "/a", "a/", "[/]a", "a[/]"] {
            assert!(!meet(odd, "**"), "{odd}");
        }
        assert!(
            meet("...", "**") && meet(".a", "**") && meet("..a/b", "**") && meet("a[/]b", "a/b")
        );
    }

    #[test]
    fn a_glob_that_is_none_or_too_much_is_refused() {
        for bad in ["[", "a{b", "[z-a]", "a}"] {
            assert!(Glob::new(bad).is_err(), "{bad}");
        }
        assert!(Glob::new(&"a".repeat(MOST_STATES)).is_err());
        let nested = format!("{}a{}", "{".repeat(200), "}".repeat(200));
        // Whatever is said of it, it is said.
        let _ = Glob::new(&nested);
    }

    /// Every path of up to five letters of a tiny alphabet.
    fn paths() -> Vec<String> {
        let mut all: Vec<String> = Vec::new();
        let mut longest = vec![String::new()];
        for _ in 0..5 {
            let grown =
                |path: &String| ["a", "b", ".", "/"].map(|letter| format!("{path}{letter}"));
            longest = longest.iter().flat_map(grown).collect();
            all.extend(longest.iter().cloned());
        }
        let is_name = |name: &str| !name.is_empty() && name != "." && name != "..";
        all.retain(|path| path.split('/').all(is_name));
        all
    }

    /// Pieces of globs whose shortest common paths are short.
    fn glob() -> impl Strategy<Value = String> {
        let piece = prop::sample::select(vec![
            "a", "b", ".", "/", "/", "*", "?", "**", "**/", "/**", "[ab]", "[!a]", "[a-b]",
            "{a,b}", "{a/b,b}", "{a,**}", "{*,b}/", r"\a", "[.]", "{,a}",
        ]);
        prop::collection::vec(piece, 1..4).prop_map(|pieces| pieces.concat())
    }

    /// So many cases every time, or so many with `PIXIR_TORTURE=full`, by the seed of `PIXIR_SEED`.
    #[expect(clippy::disallowed_methods, reason = "how much a test does is no setting")]
    #[expect(clippy::print_stdout, reason = "a seed is said")]
    pub fn torture(sample: u32, full: u32) -> ProptestConfig {
        let is_full = std::env::var("PIXIR_TORTURE").is_ok_and(|size| size == "full");
        let seed = std::env::var("PIXIR_SEED").ok().and_then(|seed| seed.parse().ok());
        let (seed, cases) = (seed.unwrap_or(4711), if is_full { full } else { sample });
        println!("torture: globs and sets: {cases} cases, seed={seed}");
        let mut config = ProptestConfig::with_cases(cases);
        config.rng_seed = proptest::test_runner::RngSeed::Fixed(seed);
        config.failure_persistence = None;
        config
    }

    fn judge(glob: &str) -> Option<GlobMatcher> {
        let built = GlobBuilder::new(glob).literal_separator(true).backslash_escape(true).build();
        built.ok().map(|glob| glob.compile_matcher())
    }

    proptest! {
        #![proptest_config(torture(2_000, 20_000))]
        #[test]
        fn what_is_said_is_what_brute_force_finds(one in glob(), other in glob()) {
            let (Some(first), Some(second)) = (judge(&one), judge(&other)) else {
                return Ok(());
            };
            let found = paths().into_iter().find(|path| first.is_match(path) && second.is_match(path));
            let said = meet(&one, &other);
            if let Some(path) = found {
                prop_assert!(said, "{} and {} meet in {}", one, other, path);
            } else if said {
                // The shortest common path may be longer than those tried, but not by much.
                let longer = paths().into_iter().flat_map(|path| {
                    ["aa", "ab", "ba", "bb", "/a", "/b", "a/a", "b/b", "a/b", "b/a", "/a/b", "/b/a", "/a/a", "/b/b"]
                        .map(|more| format!("{path}{more}"))
                });
                let is_both = |path: &String| first.is_match(path) && second.is_match(path);
                let found = longer.into_iter().find(is_both);
                prop_assert!(found.is_some(), "{} and {} meet nowhere", one, other);
            }
        }
    }
}
