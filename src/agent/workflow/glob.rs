//! Intersection test of globs: whether some path matches both.
//!
//! `globset` turns a glob into a regular expression, which becomes an automaton over bytes (NFA). The product of two
//! such automata and of a third one that accepts well-formed paths is searched: if it accepts a path, both globs
//! match that path; if it accepts none, there is no such path.

use std::collections::VecDeque;
use std::slice::from_ref;

use globset::GlobBuilder;
use regex_automata::nfa::thompson::{NFA, State, Transition, WhichCaptures};
use regex_automata::util::look::Look;
use regex_automata::util::primitives::StateID;
use regex_automata::util::syntax;

/// The most states of an automaton, which bounds the cost of a comparison; no glob written by hand needs so many.
const MAX_STATES: usize = 4_000;

/// A glob compiled to an automaton over bytes.
#[derive(Debug, Clone)]
pub struct GlobAutomaton(NFA);

impl GlobAutomaton {
    /// Compiles a glob that is relative and has no empty parts; the error is the reason why it cannot be used.
    pub fn new(glob: &str) -> Result<Self, String> {
        let built = GlobBuilder::new(glob).literal_separator(true).backslash_escape(true).build();
        let built = built.map_err(|error| error.kind().to_string())?;
        let nfa = NFA::compiler()
            .configure(NFA::config().utf8(false).which_captures(WhichCaptures::None))
            .syntax(syntax::Config::new().utf8(false).dot_matches_new_line(true))
            .build(built.regex())
            .map_err(|_| "it cannot be read".to_owned())?;
        if nfa.states().len() > MAX_STATES {
            return Err("it is too long".to_owned());
        }
        // Only anchors at the start and the end of the path are supported; other look-arounds are refused.
        if nfa.look_set_any().iter().any(|look| !matches!(look, Look::Start | Look::End)) {
            return Err("it uses an unsupported look-around".to_owned());
        }
        Ok(Self(nfa))
    }

    /// Whether some path matches both globs.
    pub fn intersects(&self, other: &GlobAutomaton) -> bool {
        let mut enough = usize::MAX;
        self.intersects_within(other, &mut enough).unwrap_or(true)
    }

    /// Like `intersects`, with a budget of steps in `work` that is counted down; `None` when it did not suffice.
    pub fn intersects_within(&self, other: &GlobAutomaton, work: &mut usize) -> Option<bool> {
        let ours = self.0.states();
        let theirs = other.0.states();
        let size = ours.len() * theirs.len() * PathState::COUNT;
        // Allocating the table is cheaper than visiting its cells, but not free.
        *work = work.checked_sub(size / 256)?;
        let mut seen = vec![false; size];
        let start = (self.0.start_anchored(), other.0.start_anchored(), PathState::NewName);
        let mut waiting = VecDeque::from([start]);
        while let Some((one, two, walk)) = waiting.pop_front() {
            *work = work.checked_sub(1)?;
            let place = (one.as_usize() * theirs.len() + two.as_usize()) * PathState::COUNT;
            if std::mem::replace(&mut seen[place + walk as usize], true) {
                continue;
            }
            let our = &ours[one];
            let their = &theirs[two];
            if follow_epsilon(our, |next| waiting.push_back((next, two, walk)))
                || follow_epsilon(their, |next| waiting.push_back((one, next, walk)))
            {
                continue;
            }
            if let (State::Match { .. }, State::Match { .. }, PathState::Name) = (our, their, walk)
            {
                return Some(true);
            }
            for (our, their) in byte_transitions(our)
                .iter()
                .flat_map(|our| byte_transitions(their).iter().map(move |their| (our, their)))
            {
                let next = walk.next_states(our.start.max(their.start), our.end.min(their.end));
                waiting.extend(next.map(|walk| (our.next, their.next, walk)));
            }
        }
        Some(false)
    }
}

/// Calls `go` for every state reachable without a byte; `false` for a state that needs a byte or accepts.
fn follow_epsilon(state: &State, mut go: impl FnMut(StateID)) -> bool {
    match state {
        State::Look { next, .. } | State::Capture { next, .. } => go(*next),
        State::Union { alternates } => alternates.iter().copied().for_each(go),
        State::BinaryUnion { alt1, alt2 } => [*alt1, *alt2].into_iter().for_each(go),
        _ => return false,
    }
    true
}

/// The transitions of a state that consume a byte.
fn byte_transitions(state: &State) -> &[Transition] {
    match state {
        State::ByteRange { trans } => from_ref(trans),
        State::Sparse(ways) => &ways.transitions,
        _ => &[],
    }
}

/// The state of the automaton of well-formed paths: names other than `.` and `..`, separated by single slashes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PathState {
    NewName,
    Dot,
    DotDot,
    Name,
}

impl PathState {
    const COUNT: usize = 4;

    /// The states after one byte of a range.
    fn next_states(self, first: u8, last: u8) -> impl Iterator<Item = PathState> {
        let has = |byte: u8| (first..=last).contains(&byte);
        let has_other = (first..=last).any(|byte| !matches!(byte, 0 | b'.' | b'/'));
        let after_dot = match self {
            PathState::NewName => PathState::Dot,
            PathState::Dot => PathState::DotDot,
            PathState::DotDot | PathState::Name => PathState::Name,
        };
        let after_slash = (self == PathState::Name && has(b'/')).then_some(PathState::NewName);
        let after_dot = has(b'.').then_some(after_dot);
        [after_slash, after_dot, has_other.then_some(PathState::Name)].into_iter().flatten()
    }
}

#[cfg(test)]
pub mod tests {
    use globset::GlobMatcher;
    use proptest::prelude::*;

    use super::*;

    fn meet(one: &str, other: &str) -> bool {
        let [one, other] = [one, other].map(|glob| GlobAutomaton::new(glob).unwrap());
        let (there, back) = (one.intersects(&other), other.intersects(&one));
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
            assert!(GlobAutomaton::new(bad).is_err(), "{bad}");
        }
        assert!(GlobAutomaton::new(&"a".repeat(MAX_STATES)).is_err());
        let nested = format!("{}a{}", "{".repeat(200), "}".repeat(200));
        // Either result is fine, as long as it returns.
        let _ = GlobAutomaton::new(&nested);
    }

    /// Every well-formed path of up to five characters of a small alphabet.
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

    /// `sample` cases, or `full` cases with `PIXIR_TORTURE=full`; the seed is `PIXIR_SEED` or a fixed one.
    #[expect(clippy::disallowed_methods, reason = "the size of a test is not a setting")]
    #[expect(clippy::print_stdout, reason = "the seed is printed")]
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
            let is_overlapping = meet(&one, &other);
            if let Some(path) = found {
                prop_assert!(is_overlapping, "{} and {} meet in {}", one, other, path);
            } else if is_overlapping {
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
