//! Tests of the limits of surveys: what is refused, what is said, and what is not done in vain.

use std::process::Command;

use super::*;
use crate::base::id::SessionId;
use crate::record::state_dir::StateRoot;
use crate::settings::config::UndoLimits;

/// The number of files, enough for a batch.
const FILES: usize = 100;

struct LimitFixture {
    folder: tempfile::TempDir,
    workspace: Workspace,
}

impl LimitFixture {
    /// A repository whose files all differ from what was committed.
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let workspace = Workspace::open(folder.path()).unwrap();
        let fixture = Self { folder, workspace };
        fixture.git(&["init", "-q"]);
        fixture.write_files(FILES, "one");
        fixture.git(&["add", "-A"]);
        fixture.write_files(FILES, "another");
        fixture
    }

    fn write_files(&self, count: usize, text: &str) {
        for number in 0..count {
            let content = format!("{text} {number}\n");
            std::fs::write(self.folder.path().join(format!("file{number}")), content).unwrap();
        }
    }

    fn git(&self, args: &[&str]) {
        let mut git = Command::new("git");
        git.arg("-C").arg(self.folder.path()).args(args);
        git.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1");
        assert!(git.output().unwrap().status.success(), "{args:?}");
    }

    /// A tracker of one Session, as each process that resumes it has one.
    fn tracker(&self, files: usize, bytes: u64) -> TurnTracker {
        let root = StateRoot::in_workspace(self.workspace.root());
        let session = root.session_folder(&SessionId::parse("s").unwrap());
        let settings = UndoLimits { max_files: files, max_bytes: bytes, ..UndoLimits::default() };
        let limits = SurveyLimits::from_undo_settings(settings);
        TurnTracker::new(self.workspace.clone(), session, limits)
    }
}

/// Runs a Turn with one command; returns its notices about what undo does not cover.
fn notices_of_turn(tracker: &TurnTracker, turn: u64) -> Vec<String> {
    tracker.begin_turn(turn);
    tracker.before_command().unwrap();
    tracker.end_turn().unwrap();
    let notices = tracker.take_notices().into_iter();
    notices.filter(|notice| notice.starts_with("undo covers only")).collect()
}

#[test]
fn each_reason_is_said_once_in_a_session_also_after_it_was_resumed() {
    let fixture = LimitFixture::new();
    let tracker = fixture.tracker(FILES / 2, 1 << 30);
    let notices = notices_of_turn(&tracker, 1);
    assert!(notices.len() == 1 && notices[0].contains("undo.max_files"), "{notices:?}");
    assert_eq!(notices_of_turn(&tracker, 2), [""; 0]);
    let full = fixture.tracker(FILES, 10);
    let notices = notices_of_turn(&full, 3);
    assert!(notices.len() == 1 && notices[0].contains("undo.max_bytes"), "{notices:?}");
    for tracker in [fixture.tracker(FILES / 2, 1 << 30), fixture.tracker(FILES, 10)] {
        assert_eq!(notices_of_turn(&tracker, 4), [""; 0]);
    }
}

#[test]
fn a_survey_with_too_many_files_is_repeated_only_when_it_may_succeed() {
    let fixture = LimitFixture::new();
    let tracker = fixture.tracker(FILES / 2, 1 << 30);
    // Whether files were read, and whether the survey succeeded.
    let survey = || {
        tracker.with_progress(|progress| {
            let taken = tracker.survey_everything(None, &[], progress);
            (progress.files().is_some(), taken.is_ok())
        })
    };
    assert_eq!(survey(), (true, false));
    assert_eq!(survey(), (false, false), "the same files are not read again");
    std::fs::remove_file(fixture.folder.path().join("file0")).unwrap();
    assert_eq!(survey(), (true, false), "fewer files may be few enough");
    assert_eq!(survey(), (false, false));
    fixture.git(&["add", "-A"]);
    assert_eq!(survey(), (true, true), "git has them now");
}
