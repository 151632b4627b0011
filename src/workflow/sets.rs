//! Who may run beside whom: what one step writes and another one reads or writes.
//!
//! Only the Workspace that all share can be torn. Whoever works in a copy of its own is in nobody's
//! way, but the copy must not be taken while somebody writes what goes into it.

use super::glob::Glob;
use super::spec::{Step, Workflow, Workspace};

/// How much work all comparisons of a Workflow may be, in pairs of states: more than any sets that
/// somebody would write, and a moment for a machine.
const MOST_WORK: usize = 20_000_000;

/// Who of a Workflow is in whose way. It is all looked at beforehand, in the order of the file, so
/// that the answers depend on nothing that happens later.
#[derive(Debug)]
pub struct Conflicts {
    /// For each step that writes what all share, whether each other one is in its way.
    rows: Vec<Option<Vec<bool>>>,
    is_cut: bool,
}

impl Conflicts {
    pub fn of(workflow: &Workflow) -> Self {
        let sets: Vec<Sets> = workflow.steps.iter().map(Sets::of).collect();
        let mut work = MOST_WORK;
        let mut rows: Vec<Option<Vec<bool>>> = vec![None; sets.len()];
        for (place, own) in sets.iter().enumerate().filter(|(_, own)| own.writes_shared) {
            let known = |other: usize| rows.get(other).and_then(Option::as_ref);
            let row = sets.iter().enumerate().map(|(other, theirs)| match known(other) {
                Some(known) => known[place],
                None => own.conflict(theirs, &mut work),
            });
            let row: Vec<bool> = row.collect();
            rows[place] = Some(row);
        }
        Self { rows, is_cut: work == 0 }
    }

    /// Whether the steps at these places must not run at the same time.
    pub fn between(&self, one: usize, other: usize) -> bool {
        let row = |place: usize| self.rows.get(place).and_then(Option::as_ref);
        let found = match (row(one), row(other)) {
            (Some(row), _) => row.get(other),
            (None, Some(row)) => row.get(one),
            (None, None) => None,
        };
        found.copied().unwrap_or(false)
    }

    /// Whether the sets were too much to be compared: steps of which nothing is known then count as
    /// being in each other's way.
    pub fn is_cut(&self) -> bool {
        self.is_cut
    }
}

/// What a step reads and writes.
#[derive(Debug)]
struct Sets {
    writes_shared: bool,
    has_copy: bool,
    read: Set,
    write: Set,
}

impl Sets {
    fn of(step: &Step) -> Self {
        Self {
            writes_shared: step.writes_shared(),
            has_copy: step.workspace != Workspace::Shared,
            read: Set::of(&step.read_set),
            write: Set::of(&step.write_set),
        }
    }

    fn conflict(&self, other: &Sets, work: &mut usize) -> bool {
        match (self.writes_shared, other.writes_shared) {
            (true, true) => self.write.meets(&other.write, work),
            (true, false) => other.is_disturbed_by(self, work),
            (false, true) => self.is_disturbed_by(other, work),
            (false, false) => false,
        }
    }

    /// Whether a step that does not write the shared Workspace minds one that does.
    fn is_disturbed_by(&self, writer: &Sets, work: &mut usize) -> bool {
        writer.write.meets(&self.read, work)
            || self.has_copy && writer.write.meets(&self.write, work)
    }
}

/// A set of globs, ready to be compared.
#[derive(Debug)]
struct Set {
    /// Whether `**` is among them, which most sets say and which needs no thought.
    is_all: bool,
    /// What every path begins with that a glob matches, and the glob.
    globs: Vec<(String, Option<Glob>)>,
}

impl Set {
    fn of(globs: &[String]) -> Self {
        let is_all = globs.iter().any(|glob| glob == "**");
        let read = |glob: &String| (beginning(glob).to_owned(), Glob::new(glob).ok());
        let globs = if is_all { Vec::new() } else { globs.iter().map(read).collect() };
        Self { is_all, globs }
    }

    /// Whether some path is in both. Every glob that a spec may have matches some path. What there is
    /// no work left for may be anywhere.
    fn meets(&self, other: &Set, work: &mut usize) -> bool {
        if self.is_all || other.is_all {
            let is_empty = |set: &Set| !set.is_all && set.globs.is_empty();
            return !is_empty(self) && !is_empty(other);
        }
        self.globs.iter().any(|(begins, ours)| {
            other.globs.iter().any(|(other_begins, theirs)| match (ours, theirs) {
                _ if !begins.starts_with(other_begins) && !other_begins.starts_with(begins) => {
                    false
                }
                (Some(ours), Some(theirs)) => {
                    ours.meets_within(theirs, work).unwrap_or_else(|| {
                        *work = 0;
                        true
                    })
                }
                // What cannot be compared may be anywhere.
                _ => true,
            })
        })
    }
}

/// The plain letters that a glob begins with.
fn beginning(glob: &str) -> &str {
    let end = glob.find(['*', '?', '[', ']', '{', '}', '\\']).unwrap_or(glob.len());
    &glob[..end]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::super::glob::tests::torture;
    use super::super::spec::{Budget, Limits, OnFailure, Posture};
    use super::*;

    fn conflict(one: &Step, other: &Step) -> bool {
        let mut enough = usize::MAX;
        let is_said = Sets::of(one).conflict(&Sets::of(other), &mut enough);
        let workflow = Workflow { steps: vec![one.clone(), other.clone()], ..empty() };
        let all = Conflicts::of(&workflow);
        assert_eq!((all.between(0, 1), all.between(1, 0)), (is_said, is_said));
        assert!(!all.is_cut());
        is_said
    }

    fn empty() -> Workflow {
        Workflow {
            id: "x".into(),
            name: "x".into(),
            description: String::new(),
            limits: Limits { max_concurrency: 1, timeout_ms: 1 },
            budget: Budget::default(),
            steps: Vec::new(),
        }
    }

    fn step(posture: Posture, workspace: Workspace, read: &[&str], write: &[&str]) -> Step {
        let owned = |globs: &[&str]| globs.iter().map(|glob| (*glob).to_owned()).collect();
        Step {
            id: "x".into(),
            task: Some("x".into()),
            apply: None,
            role: "worker".into(),
            model: None,
            effort: None,
            depends_on: Vec::new(),
            posture,
            workspace,
            read_set: owned(read),
            write_set: owned(write),
            timeout_ms: None,
            retries: 0,
            optional: false,
            on_failure: OnFailure::Hold,
            needs: BTreeMap::new(),
            output: None,
            verify: Vec::new(),
            gate: None,
            answer_is_enough: false,
        }
    }

    fn apply(write: &[&str]) -> Step {
        Step {
            task: None,
            apply: Some("y".into()),
            ..step(Posture::Write, Workspace::Shared, write, write)
        }
    }

    #[test]
    fn only_the_shared_workspace_is_kept_from_being_torn() {
        use Posture::{ReadOnly, Write};
        use Workspace::{Isolated, Shared, Worktree};
        let writer = |globs: &[&str]| step(Write, Shared, &["**"], globs);
        let reader = |globs: &[&str]| step(ReadOnly, Shared, globs, &[]);
        for (one, other, expected) in [
            (writer(&["lib/**"]), writer(&["lib/a.ex"]), true),
            (writer(&["lib/**"]), writer(&["docs/**"]), false),
            (writer(&["lib/**"]), reader(&["lib/a"]), true),
            (writer(&["lib/**"]), reader(&["docs/**"]), false),
            (reader(&["**"]), reader(&["**"]), false),
            (apply(&["src/**"]), writer(&["src/a"]), true),
            (apply(&["src/**"]), apply(&["docs/**"]), false),
            (apply(&["src/**"]), reader(&["**"]), true),
            // A copy is in nobody's way,
            (
                step(Write, Isolated, &["**"], &["**"]),
                step(Write, Worktree, &["**"], &["**"]),
                false,
            ),
            (step(Write, Isolated, &["**"], &["**"]), reader(&["**"]), false),
            // but it is not taken while somebody writes what goes into it.
            (step(Write, Isolated, &["docs/**"], &["docs/**"]), writer(&["src/**"]), false),
            (step(Write, Isolated, &["src/**"], &["docs/**"]), writer(&["src/**"]), true),
            (step(Write, Worktree, &["docs/**"], &["src/a"]), apply(&["src/**"]), true),
            (step(ReadOnly, Isolated, &["src/**"], &[]), apply(&["src/**"]), true),
        ] {
            assert_eq!(conflict(&one, &other), expected, "{one:?} and {other:?}");
            assert_eq!(conflict(&other, &one), expected);
        }
    }

    #[test]
    fn sets_that_are_too_much_to_compare_count_as_meeting_and_that_is_said() {
        let globs = |own: usize| -> Vec<String> {
            (0..64).map(|place| format!("**/{}{own}_{place}", "*a".repeat(110))).collect()
        };
        let steps = (0..12).map(|own| Step {
            write_set: globs(own),
            ..step(Posture::Write, Workspace::Shared, &[], &[])
        });
        let workflow = Workflow { steps: steps.collect(), ..empty() };
        let (first, again) = (Conflicts::of(&workflow), Conflicts::of(&workflow));
        assert!(first.is_cut() && first.between(10, 11) && first.between(11, 10));
        assert_eq!(first.rows, again.rows, "the answers depend on nothing else");
    }

    fn any_step() -> impl Strategy<Value = Step> {
        let globs = || {
            let glob =
                prop::sample::select(vec!["**", "a/**", "a/*", "b/x", "*/x", "a/b", "{a,b}/y"]);
            prop::collection::vec(glob, 1..3)
        };
        let mode =
            prop::sample::select(vec![Workspace::Shared, Workspace::Isolated, Workspace::Worktree]);
        (any::<bool>(), mode, globs(), globs(), any::<bool>()).prop_map(
            |(writes, mode, read, write, applies)| match (applies, writes) {
                (true, _) => apply(&write),
                (false, true) => step(Posture::Write, mode, &read, &write),
                (false, false) => step(Posture::ReadOnly, mode, &read, &[]),
            },
        )
    }

    /// Every path that the globs above can tell apart.
    fn paths() -> Vec<String> {
        let names = ["a", "b", "c", "x", "y"];
        let deeper = |paths: &[String]| -> Vec<String> {
            paths.iter().flat_map(|path| names.map(|name| format!("{path}/{name}"))).collect()
        };
        let one: Vec<String> = names.map(str::to_owned).to_vec();
        let two = deeper(&one);
        let three = deeper(&two);
        [one, two, three].concat()
    }

    fn set(globs: &[String]) -> globset::GlobSet {
        let mut set = globset::GlobSetBuilder::new();
        for glob in globs {
            set.add(globset::GlobBuilder::new(glob).literal_separator(true).build().unwrap());
        }
        set.build().unwrap()
    }

    /// The rules of `docs/workflows.md`, path by path.
    fn torn(one: &Step, other: &Step) -> bool {
        let hurts = |writer: &Step, other: &Step| {
            let (own, written, read) =
                (set(&writer.write_set), set(&other.write_set), set(&other.read_set));
            let touches = |path: &String| match other.workspace {
                Workspace::Shared if other.writes_shared() => written.is_match(path),
                Workspace::Shared => read.is_match(path),
                Workspace::Isolated | Workspace::Worktree => {
                    read.is_match(path) || written.is_match(path)
                }
            };
            writer.writes_shared() && paths().iter().any(|path| own.is_match(path) && touches(path))
        };
        hurts(one, other) || hurts(other, one)
    }

    proptest! {
        #![proptest_config(torture(500, 5_000))]
        #[test]
        fn what_is_said_is_what_brute_force_finds(one in any_step(), other in any_step()) {
            prop_assert_eq!(conflict(&one, &other), torn(&one, &other), "{:?} {:?}", one, other);
        }

        #[test]
        fn it_does_not_matter_who_is_asked(one in any_step(), other in any_step()) {
            prop_assert_eq!(conflict(&one, &other), conflict(&other, &one));
            if !one.writes_shared() && !other.writes_shared() {
                prop_assert!(!conflict(&one, &other));
            }
            if one.writes_shared() {
                prop_assert!(conflict(&one, &one.clone()));
            }
        }

        #[test]
        fn a_narrower_set_never_makes_a_conflict(one in any_step(), other in any_step()) {
            let narrowed = Step {
                read_set: one.read_set.iter().skip(1).cloned().collect(),
                write_set: one.write_set.iter().skip(1).cloned().collect(),
                ..one.clone()
            };
            prop_assert!(conflict(&one, &other) || !conflict(&narrowed, &other));
        }
    }
}
