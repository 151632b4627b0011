//! Conflicts between steps: which may not run at the same time, by their read and write sets.
//!
//! Only writes to the shared Workspace conflict. Steps that work in their own copy conflict with no other, but the
//! copy must not be made while another step writes files that go into it.

use std::collections::HashMap;
use std::sync::OnceLock;

use super::glob::GlobAutomaton;
use super::spec::{Step, Workflow, WorkspaceMode};

/// The budget for all comparisons of a Workflow, in pairs of globs and of states: more than hand-written sets need,
/// and still fast.
const MAX_WORK: usize = 20_000_000;

/// The conflicts between the steps of a Workflow. Two steps are compared on the first query, because most could
/// never run at the same time; the same queries in the same order give the same answers.
#[derive(Debug)]
pub struct Conflicts {
    sets: Vec<StepSets>,
    /// Cached answers, by the indices of both steps, the smaller one first.
    known: HashMap<(usize, usize), bool>,
    budget: usize,
}

impl Conflicts {
    pub fn new(workflow: &Workflow) -> Self {
        let sets = workflow.steps.iter().map(StepSets::new).collect();
        Self { sets, known: HashMap::new(), budget: MAX_WORK }
    }

    /// Whether the steps with these indices must not run at the same time.
    pub fn has_conflict(&mut self, one: usize, other: usize) -> bool {
        let pair = (one.min(other), one.max(other));
        let (Some(first), Some(second)) = (self.sets.get(pair.0), self.sets.get(pair.1)) else {
            return false;
        };
        if !first.writes_shared && !second.writes_shared {
            return false;
        }
        let work = &mut self.budget;
        *self.known.entry(pair).or_insert_with(|| first.conflicts_with(second, work))
    }

    /// Whether the budget was used up; steps that were not compared then count as conflicting.
    pub fn is_approximate(&self) -> bool {
        self.budget == 0
    }
}

/// The read and write set of a step, ready to be compared.
#[derive(Debug)]
struct StepSets {
    writes_shared: bool,
    has_copy: bool,
    read: PathSet,
    write: PathSet,
}

impl StepSets {
    fn new(step: &Step) -> Self {
        Self {
            writes_shared: step.writes_shared(),
            has_copy: step.workspace != WorkspaceMode::Shared,
            read: PathSet::new(&step.read_set),
            write: PathSet::new(&step.write_set),
        }
    }

    fn conflicts_with(&self, other: &StepSets, work: &mut usize) -> bool {
        match (self.writes_shared, other.writes_shared) {
            (true, true) => self.write.intersects(&other.write, work),
            (true, false) => other.is_disturbed_by(self, work),
            (false, true) => self.is_disturbed_by(other, work),
            (false, false) => false,
        }
    }

    /// Whether a step that does not write the shared Workspace conflicts with one that does.
    fn is_disturbed_by(&self, writer: &StepSets, work: &mut usize) -> bool {
        writer.write.intersects(&self.read, work)
            || self.has_copy && writer.write.intersects(&self.write, work)
    }
}

/// The paths that match any of some globs, ready to be compared.
#[derive(Debug)]
struct PathSet {
    /// Whether it contains `**`, the usual case, which needs no comparison.
    is_all: bool,
    globs: Vec<LazyGlob>,
}

/// A glob that is compiled on first use, with its literal prefix and suffix for a cheap test before that.
#[derive(Debug)]
struct LazyGlob {
    /// The literal prefix of every path that it matches.
    prefix: String,
    /// The literal suffix of every such path.
    suffix: String,
    text: String,
    /// Compiled on first use; `None` when it cannot be compiled.
    glob: OnceLock<Option<GlobAutomaton>>,
}

impl LazyGlob {
    fn new(glob: &str) -> Self {
        let (prefix, suffix) = (literal_prefix(glob).to_owned(), literal_suffix(glob).to_owned());
        Self { prefix, suffix, text: glob.to_owned(), glob: OnceLock::new() }
    }

    fn compiled(&self) -> Option<&GlobAutomaton> {
        self.glob.get_or_init(|| GlobAutomaton::new(&self.text).ok()).as_ref()
    }

    /// Whether prefixes and suffixes allow a path that both match.
    fn may_intersect(&self, other: &LazyGlob) -> bool {
        (self.prefix.starts_with(&other.prefix) || other.prefix.starts_with(&self.prefix))
            && (self.suffix.ends_with(&other.suffix) || other.suffix.ends_with(&self.suffix))
    }

    /// Whether some path matches both; `true` when the budget is used up.
    fn intersects(&self, other: &LazyGlob, work: &mut usize) -> bool {
        if *work == 0 {
            return true;
        }
        if !self.may_intersect(other) {
            return false;
        }
        match (self.compiled(), other.compiled()) {
            (Some(ours), Some(theirs)) => {
                ours.intersects_within(theirs, work).unwrap_or_else(|| {
                    *work = 0;
                    true
                })
            }
            // A glob that cannot be compiled could match anything.
            _ => true,
        }
    }
}

impl PathSet {
    fn new(globs: &[String]) -> Self {
        let is_all = globs.iter().any(|glob| glob == "**");
        let read = |glob: &String| LazyGlob::new(glob);
        let globs = if is_all { Vec::new() } else { globs.iter().map(read).collect() };
        Self { is_all, globs }
    }

    /// Whether some path is in both sets. Relies on every glob of a spec matching some path.
    fn intersects(&self, other: &PathSet, work: &mut usize) -> bool {
        if self.is_all || other.is_all {
            let is_empty = |set: &PathSet| !set.is_all && set.globs.is_empty();
            return !is_empty(self) && !is_empty(other);
        }
        // Comparing prefixes and suffixes is cheaper than comparing states, but not free.
        *work = work.saturating_sub(1 + self.globs.len() * other.globs.len() / 8);
        self.globs.iter().any(|ours| other.globs.iter().any(|theirs| ours.intersects(theirs, work)))
    }
}

/// The characters with a special meaning in a glob.
const SPECIAL: [char; 7] = ['*', '?', '[', ']', '{', '}', '\\'];

/// The literal characters at the start of a glob.
fn literal_prefix(glob: &str) -> &str {
    let end = glob.find(SPECIAL).unwrap_or(glob.len());
    &glob[..end]
}

/// The literal characters at the end of a glob, without a slash right behind a special character: `**/a` also
/// matches `a`.
fn literal_suffix(glob: &str) -> &str {
    let plain = glob.rsplit(SPECIAL).next().unwrap_or_default();
    plain.strip_prefix('/').unwrap_or(plain)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::super::glob::tests::torture;
    use super::super::plan::WorkflowPlan;
    use super::super::spec::{OnFailure, RunLimits, StepPosture, WorkflowBudget};
    use super::*;

    fn conflict(one: &Step, other: &Step) -> bool {
        let mut enough = usize::MAX;
        let is_conflict = StepSets::new(one).conflicts_with(&StepSets::new(other), &mut enough);
        let workflow = Workflow { steps: vec![one.clone(), other.clone()], ..empty() };
        let mut all = Conflicts::new(&workflow);
        assert_eq!((all.has_conflict(0, 1), all.has_conflict(1, 0)), (is_conflict, is_conflict));
        assert!(!all.is_approximate());
        is_conflict
    }

    fn empty() -> Workflow {
        Workflow {
            id: "x".into(),
            name: "x".into(),
            description: String::new(),
            limits: RunLimits { max_concurrency: 1, timeout_ms: 1 },
            budget: WorkflowBudget::default(),
            steps: Vec::new(),
        }
    }

    fn step(posture: StepPosture, workspace: WorkspaceMode, read: &[&str], write: &[&str]) -> Step {
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
            ..step(StepPosture::Write, WorkspaceMode::Shared, write, write)
        }
    }

    #[test]
    fn only_the_shared_workspace_is_kept_from_being_torn() {
        use StepPosture::{ReadOnly, Write};
        use WorkspaceMode::{Isolated, Shared, Worktree};
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
            // A step in a copy conflicts with no other,
            (
                step(Write, Isolated, &["**"], &["**"]),
                step(Write, Worktree, &["**"], &["**"]),
                false,
            ),
            (step(Write, Isolated, &["**"], &["**"]), reader(&["**"]), false),
            // but the copy is not made while another step writes files that go into it.
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
        // Only the last character shows that they do not intersect.
        let globs = |own: char| vec![format!("**/{}[{own}]", "*a".repeat(110)); 4];
        let workflow = writers(('b'..'n').map(globs));
        let (mut first, mut again) = (Conflicts::new(&workflow), Conflicts::new(&workflow));
        let mut answers = Vec::new();
        for one in 0..12 {
            answers.extend((0..one).map(|other| first.has_conflict(one, other)));
        }
        assert!(!answers[0] && answers[65] && first.is_approximate());
        for one in 0..12 {
            let same = (0..one).map(|other| again.has_conflict(other, one));
            assert!(same.eq(answers.drain(..one)), "the same questions have the same answers");
        }
    }

    fn writers(sets: impl Iterator<Item = Vec<String>>) -> Workflow {
        let one = step(StepPosture::Write, WorkspaceMode::Shared, &[], &[]);
        let steps = sets.map(|write_set| Step { write_set, ..one.clone() }).collect();
        let limits = RunLimits { max_concurrency: 8, timeout_ms: 1 };
        Workflow { limits, steps, ..empty() }
    }

    #[test]
    fn steps_without_conflicts_run_at_the_same_time_for_any_form_of_globs() {
        let sets: [&dyn Fn(usize) -> Vec<String>; 4] = [
            &|own| vec![format!("src/**/module_{own:04}.rs")],
            &|own| vec![format!("packages/*/pkg_{own:04}/**/*.{{ts,tsx}}")],
            &|own| (0..64).map(|file| format!("src/part_{own:04}/file_{file}.rs")).collect(),
            &|own| vec![format!("**/test_{own:04}_*.py"), format!("**/*_{own:04}/*.[ch]")],
        ];
        for set in sets {
            let plan = WorkflowPlan::new(&writers((0..1_000).map(set)));
            assert!(!plan.is_approximate, "{:?}", set(0));
            assert_eq!(plan.waves.len(), 125, "{:?}", set(0));
        }
    }

    #[test]
    fn endings_that_differ_cannot_meet_and_others_may() {
        for (one, other, may) in [
            ("src/**/a.rs", "src/**/b.rs", false),
            ("**/a", "a", true),
            ("**/a", "*a", true),
            ("**/b/a", "a", true),
            ("x/{a,b}", "x/b", true),
            ("x\\a", "xa", true),
            ("x/[ab]c", "x/bc", true),
            ("x/**", "x/y", true),
        ] {
            assert_eq!(
                LazyGlob::new(one).may_intersect(&LazyGlob::new(other)),
                may,
                "{one} {other}"
            );
            assert_eq!(
                LazyGlob::new(other).may_intersect(&LazyGlob::new(one)),
                may,
                "{one} {other}"
            );
        }
    }

    fn any_step() -> impl Strategy<Value = Step> {
        let globs = || {
            let glob =
                prop::sample::select(vec!["**", "a/**", "a/*", "b/x", "*/x", "a/b", "{a,b}/y"]);
            prop::collection::vec(glob, 1..3)
        };
        let mode = prop::sample::select(vec![
            WorkspaceMode::Shared,
            WorkspaceMode::Isolated,
            WorkspaceMode::Worktree,
        ]);
        (any::<bool>(), mode, globs(), globs(), any::<bool>()).prop_map(
            |(writes, mode, read, write, applies)| match (applies, writes) {
                (true, _) => apply(&write),
                (false, true) => step(StepPosture::Write, mode, &read, &write),
                (false, false) => step(StepPosture::ReadOnly, mode, &read, &[]),
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

    /// The conflict rules of `docs/workflows.md`, checked path by path.
    fn conflicts_by_brute_force(one: &Step, other: &Step) -> bool {
        let hurts = |writer: &Step, other: &Step| {
            let (own, written, read) =
                (set(&writer.write_set), set(&other.write_set), set(&other.read_set));
            let touches = |path: &String| match other.workspace {
                WorkspaceMode::Shared if other.writes_shared() => written.is_match(path),
                WorkspaceMode::Shared => read.is_match(path),
                WorkspaceMode::Isolated | WorkspaceMode::Worktree => {
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
            prop_assert_eq!(conflict(&one, &other), conflicts_by_brute_force(&one, &other), "{:?} {:?}", one, other);
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
            let narrower = Step {
                read_set: one.read_set.iter().skip(1).cloned().collect(),
                write_set: one.write_set.iter().skip(1).cloned().collect(),
                ..one.clone()
            };
            prop_assert!(conflict(&one, &other) || !conflict(&narrower, &other));
        }
    }
}
