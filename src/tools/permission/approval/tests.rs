//! Tests of the scope, the lifetime and the removal of approvals.

use proptest::prelude::*;

use super::*;

/// A step of the user between two calls.
#[derive(Debug, Clone)]
enum ApprovalStep {
    Answer {
        call: usize,
        session: usize,
        project: usize,
        answer: PermissionAnswer,
    },
    /// Forgets a project's approvals.
    Forget {
        project: usize,
    },
    /// A restart of the process, in which the Sessions are opened again.
    Restart,
}

const CALLS: usize = 6;

fn call(which: usize) -> (Value, bool) {
    let commands =
        ["cargo test", "cargo test --all", "cargo build", "rm x", "cargo test; rm x", "bash x"];
    (json!({ "command": commands[which] }), which == 2)
}

fn subject(which: usize, project: &Path) -> ApprovalSubject {
    let (args, network) = call(which);
    let command = args["command"].as_str().unwrap().to_owned();
    ApprovalSubject {
        tool: "bash".into(),
        digest: approval_digest("bash", &args, &[], &project.display().to_string()),
        summary: format!("run {command}"),
        command: Some(command),
        network,
        is_unsandboxed: false,
        may_last: true,
        kind: None,
    }
}

fn project(which: usize) -> PathBuf {
    PathBuf::from(["/home/me/app", "/home/me/app_evil"][which])
}

fn session(which: usize) -> SessionId {
    SessionId::parse(["20261116T101112-abcdef", "20261116T101112-abcde0"][which]).unwrap()
}

fn step() -> impl Strategy<Value = ApprovalStep> {
    let answer = prop_oneof![
        Just(PermissionAnswer::Once),
        Just(PermissionAnswer::Session),
        Just(PermissionAnswer::SessionTool),
        Just(PermissionAnswer::SessionEdits),
        Just(PermissionAnswer::Project),
        Just(PermissionAnswer::Prefix),
        Just(PermissionAnswer::No),
    ];
    prop_oneof![
        8 => (0..CALLS, 0..2usize, 0..2usize, answer)
            .prop_map(|(call, session, project, answer)| ApprovalStep::Answer { call, session, project, answer }),
        1 => (0..2usize).prop_map(|project| ApprovalStep::Forget { project }),
        1 => Just(ApprovalStep::Restart),
    ]
}

/// A naive model of approvals.
#[derive(Default)]
struct ApprovalModel {
    sessions: HashSet<(usize, usize, usize)>,
    exact: HashSet<(usize, usize)>,
    /// Project, prefix, and whether it may use the network.
    prefixes: HashSet<(usize, &'static str, bool)>,
}

impl ApprovalModel {
    fn prefix_of(call: usize) -> Option<&'static str> {
        [Some("cargo test"), Some("cargo test"), Some("cargo build"), Some("rm"), None, None][call]
    }

    fn apply_step(&mut self, step: &ApprovalStep) {
        match step {
            ApprovalStep::Answer { call, session, project, answer } => match answer {
                PermissionAnswer::Once | PermissionAnswer::No => {}
                // A command has no kind, so these answers allow exactly this call.
                PermissionAnswer::Session
                | PermissionAnswer::SessionTool
                | PermissionAnswer::SessionEdits => {
                    self.sessions.insert((*session, *project, *call));
                }
                PermissionAnswer::Project => {
                    self.exact.insert((*project, *call));
                }
                PermissionAnswer::Prefix => match Self::prefix_of(*call) {
                    Some(prefix) => {
                        self.prefixes.insert((*project, prefix, *call == 2));
                    }
                    None => {
                        self.exact.insert((*project, *call));
                    }
                },
            },
            ApprovalStep::Forget { project } => {
                self.exact.retain(|(own, _)| own != project);
                self.prefixes.retain(|(own, ..)| own != project);
            }
            ApprovalStep::Restart => self.sessions.clear(),
        }
    }

    fn covers(&self, call: usize, session: usize, project: usize) -> bool {
        let by_prefix = Self::prefix_of(call).is_some_and(|prefix| {
            self.prefixes.contains(&(project, prefix, true))
                || (call != 2 && self.prefixes.contains(&(project, prefix, false)))
        });
        self.sessions.contains(&(session, project, call))
            || self.exact.contains(&(project, call))
            || by_prefix
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// An approval lasts as long as its answer says or until it is removed, and covers no other call,
    /// Session or project.
    #[test]
    fn approvals_do_what_was_said(steps in proptest::collection::vec(step(), 1..12)) {
        let folder = tempfile::tempdir().unwrap();
        let home = Home::new(folder.path());
        let mut approvals = ApprovalStore::new(&home);
        let mut model = ApprovalModel::default();
        for step in &steps {
            model.apply_step(step);
            match step {
                ApprovalStep::Answer { call, session: own, project: place, answer } => {
                    let place = project(*place);
                    let subject = subject(*call, &place);
                    approvals.remember(&session(*own), &place, &subject, *answer).unwrap();
                }
                ApprovalStep::Forget { project: place } => {
                    approvals.remove(|approval| approval.project == project(*place)).unwrap();
                }
                ApprovalStep::Restart => approvals = ApprovalStore::new(&home),
            }
            for call in 0..CALLS {
                for (own, place) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                    let found = approvals.find(&session(own), &project(place), &subject(call, &project(place)));
                    prop_assert_eq!(
                        found.is_some(), model.covers(call, own, place),
                        "call {} in Session {} of project {} after {:?}", call, own, place, steps
                    );
                }
            }
        }
    }

    /// Any difference of tool, arguments, paths or directory changes the digest.
    #[test]
    fn a_digest_binds_everything(
        tool in "[a-z]{1,6}", text in ".{0,12}", path in "[a-z/]{0,12}", directory in "/[a-z]{0,6}",
        other in ".{1,12}",
    ) {
        let args = json!({ "a": text, "b": [1, { "y": 2, "x": text }] });
        let own = approval_digest(&tool, &args, std::slice::from_ref(&path), &directory);
        let same = json!({ "b": [1, { "x": text, "y": 2 }], "a": text });
        prop_assert_eq!(&own, &approval_digest(&tool, &same, std::slice::from_ref(&path), &directory));
        let more = format!("{text}{other}");
        prop_assert_ne!(&own, &approval_digest(&tool, &json!({ "a": more }), std::slice::from_ref(&path), &directory));
        prop_assert_ne!(&own, &approval_digest(&format!("{tool}x"), &args, std::slice::from_ref(&path), &directory));
        prop_assert_ne!(&own, &approval_digest(&tool, &args, &[format!("{path}x")], &directory));
        prop_assert_ne!(&own, &approval_digest(&tool, &args, &[path.clone(), path.clone()], &directory));
        prop_assert_ne!(&own, &approval_digest(&tool, &args, &[path], &format!("{directory}x")));
    }
}

#[test]
fn a_file_that_cannot_be_kept_still_means_this_session() {
    let approvals = ApprovalStore::new(&Home::new("/proc/nowhere"));
    let (here, own) = (project(0), session(0));
    let subject = subject(0, &here);
    assert!(approvals.remember(&own, &here, &subject, PermissionAnswer::Project).is_err());
    assert_eq!(approvals.find(&own, &here, &subject), Some(ApprovalSource::Session));
    assert_eq!(approvals.find(&session(1), &here, &subject), None);
}

#[test]
fn a_damaged_file_allows_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let home = Home::new(folder.path());
    let approvals = ApprovalStore::new(&home);
    let (here, own) = (project(0), session(0));
    approvals.remember(&own, &here, &subject(0, &here), PermissionAnswer::Prefix).unwrap();
    assert_eq!(approvals.find(&own, &here, &subject(1, &here)), Some(ApprovalSource::Prefix));
    let text = std::fs::read_to_string(home.permissions_file()).unwrap();
    std::fs::write(home.permissions_file(), text.replace("cargo", "\u{0}")).unwrap();
    assert_eq!(approvals.find(&own, &here, &subject(1, &here)), None);
}

#[test]
fn what_was_allowed_in_a_sandbox_is_asked_again_without_one() {
    let folder = tempfile::tempdir().unwrap();
    let approvals = ApprovalStore::new(&Home::new(folder.path()));
    let project = Path::new("/p");
    let session = SessionId::parse("20261116T101112-abcdef").unwrap();
    let held = subject(0, project);
    let unheld = ApprovalSubject { is_unsandboxed: true, ..held.clone() };
    for answer in [PermissionAnswer::Project, PermissionAnswer::Prefix] {
        approvals.remember(&session, project, &held, answer).unwrap();
        assert!(approvals.find(&session, project, &held).is_some());
        assert_eq!(approvals.find(&session, project, &unheld), None);
    }
    approvals.remember(&session, project, &unheld, PermissionAnswer::Prefix).unwrap();
    assert_eq!(approvals.find(&session, project, &unheld), Some(ApprovalSource::Prefix));
    assert!(approvals.find(&session, project, &held).is_some());
}

#[test]
fn a_kind_of_calls_is_allowed_in_one_session_and_no_other_kind_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let home = Home::new(folder.path());
    let approvals = ApprovalStore::new(&home);
    let (own, other, here) = (session(0), session(1), project(0));
    let of_kind = |number: u32, kind: Option<CallKind>| ApprovalSubject {
        digest: number.to_string(),
        command: None,
        kind,
        ..subject(3, &here)
    };
    let tool = |name: &str, identity: &str| {
        Some(CallKind::McpTool { name: name.into(), identity: identity.into() })
    };
    let find =
        |session: &SessionId, subject: &ApprovalSubject| approvals.find(session, &here, subject);
    let keep = |subject: &ApprovalSubject, answer| {
        approvals.remember(&own, &here, subject, answer).unwrap();
    };
    keep(&of_kind(1, tool("mcp__s__look", "a")), PermissionAnswer::SessionTool);
    let table = [
        (tool("mcp__s__look", "a"), Some(ApprovalSource::SessionTool)),
        (tool("mcp__s__drop", "a"), None),
        (tool("mcp__s__look", "b"), None),
        (Some(CallKind::Edits), None),
        (None, None),
    ];
    for (kind, expected) in table {
        let subject = of_kind(2, kind);
        assert_eq!(find(&own, &subject), expected, "{subject:?}");
        assert_eq!(find(&other, &subject), None);
    }
    keep(&of_kind(3, Some(CallKind::Edits)), PermissionAnswer::SessionEdits);
    assert_eq!(find(&own, &of_kind(4, Some(CallKind::Edits))), Some(ApprovalSource::SessionEdits));
    assert_eq!(find(&own, &of_kind(4, None)), None, "a command is no edit");
    // An answer that does not fit the call allows exactly this call.
    keep(&of_kind(5, None), PermissionAnswer::SessionEdits);
    assert_eq!(find(&own, &of_kind(5, None)), Some(ApprovalSource::Session));
    assert_eq!(find(&own, &of_kind(6, None)), None);
    keep(&of_kind(7, tool("mcp__s__drop", "a")), PermissionAnswer::SessionEdits);
    assert_eq!(find(&own, &of_kind(8, tool("mcp__s__drop", "a"))), None);
    assert!(approvals.list(None).unwrap().is_empty(), "nothing of it is kept on the disk");
}

#[test]
fn the_order_of_keys_does_not_matter_and_that_of_values_does() {
    let one: Value = serde_json::from_str(r#"{"a": [1, {"x": 1, "y": 2}], "b": 1}"#).unwrap();
    let other: Value = serde_json::from_str(r#"{"b": 1, "a": [1, {"y": 2, "x": 1}]}"#).unwrap();
    assert_eq!(canonical_digest(&one), canonical_digest(&other));
    assert_ne!(canonical_digest(&json!([1, 2])), canonical_digest(&json!([2, 1])));
    assert_ne!(canonical_digest(&json!("1")), canonical_digest(&json!(1)));
}
