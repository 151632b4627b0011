//! Tests of the choice of the state folder, for everything that can be in a Workspace.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Command;

use tempfile::TempDir;

use super::resolve::StateProblem;
use super::*;
use crate::base::files::UnsafeEntry;

struct StateRootFixture {
    folder: TempDir,
    home: Home,
}

impl StateRootFixture {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("work")).unwrap();
        fs::create_dir(folder.path().join("home")).unwrap();
        fs::create_dir(folder.path().join("outside")).unwrap();
        let home = Home::new(folder.path().join("home"));
        Self { folder, home }
    }

    fn work(&self) -> PathBuf {
        self.folder.path().join("work")
    }

    fn make(&self, name: &str) -> PathBuf {
        let path = self.work().join(name);
        fs::create_dir_all(&path).unwrap();
        path
    }

    #[expect(clippy::disallowed_methods, reason = "git itself makes the index that is read")]
    fn git(&self, below: &str, words: &[&str]) {
        let who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "protocol.file.allow=always"];
        let mut command = Command::new("git");
        let ran = command.current_dir(self.folder.path().join(below)).args(who).args(words);
        let ran = ran.env("GIT_CONFIG_GLOBAL", "/dev/null").output().unwrap();
        assert!(ran.status.success(), "{words:?}: {}", String::from_utf8_lossy(&ran.stderr));
    }

    fn problem(&self) -> Option<StateProblem> {
        resolve_state(&self.home, &self.work()).problem
    }

    /// The path of the problem below the Workspace, and the entry that was found there.
    fn found(&self) -> Option<(String, UnsafeEntry)> {
        match self.problem()? {
            StateProblem::Unsafe { path, found } => {
                let path = path.strip_prefix(self.work()).unwrap().to_str().unwrap().to_owned();
                Some((path, found))
            }
            StateProblem::Unwritable { path } => panic!("{} is unwritable", path.display()),
        }
    }
}

#[test]
fn a_workspace_without_state_and_one_with_its_own_are_used() {
    let place = StateRootFixture::new();
    let own = StateRoot::in_workspace(place.work());
    assert_eq!(resolve_state(&place.home, &place.work()).root, own);
    place.make(".pixir/skills");
    fs::write(place.work().join(".pixir/config.json"), "{}").unwrap();
    assert_eq!(place.problem(), None);
    own.create_sessions().unwrap();
    place.make(".pixir/snapshots/ab");
    fs::write(place.work().join(".pixir/snapshots/last"), "x").unwrap();
    let resolved = resolve_state(&place.home, &place.work());
    assert_eq!((resolved.problem, resolved.earlier, resolved.root), (None, None, own.clone()));
    assert_eq!(readable_roots(&place.home, &place.work()), [own]);
}

#[test]
fn links_and_special_files_in_the_place_of_state_move_it_to_the_home() {
    for name in
        ["", "/sessions", "/snapshots", "/blobs", "/subagents", "/snapshots/ab", "/snapshots/last"]
    {
        for kind in ["link", "fifo", "socket"] {
            let place = StateRootFixture::new();
            let at = place.work().join(format!(".pixir{name}"));
            fs::create_dir_all(at.parent().unwrap()).unwrap();
            let expected = match kind {
                "link" => {
                    symlink(place.folder.path().join("outside"), &at).unwrap();
                    UnsafeEntry::Link
                }
                "fifo" => {
                    let mode = rustix::fs::Mode::from_raw_mode(0o600);
                    let kind = rustix::fs::FileType::Fifo;
                    rustix::fs::mknodat(rustix::fs::CWD, &at, kind, mode, 0).unwrap();
                    UnsafeEntry::Fifo
                }
                _ => {
                    drop(std::os::unix::net::UnixListener::bind(&at).unwrap());
                    UnsafeEntry::Socket
                }
            };
            assert_eq!(place.found(), Some((format!(".pixir{name}"), expected)), "{kind} {name}");
            let resolved = resolve_state(&place.home, &place.work());
            assert_eq!(resolved.root, StateRoot::in_home(&place.home, place.work()));
            assert_eq!(resolved.earlier, None, "{kind} {name}");
            if !matches!(name, "" | "/sessions") {
                // Sessions in the same folder can still be read, and both checks agree on that.
                fs::create_dir(place.work().join(".pixir/sessions")).unwrap();
                let earlier = resolve_state(&place.home, &place.work()).earlier.unwrap();
                assert_eq!(earlier.problem(), resolved.problem.as_ref());
                assert!(earlier.create_sessions().unwrap().create_new("x").is_err());
                assert_eq!(readable_roots(&place.home, &place.work()), [earlier]);
            }
            let notice = resolved.notice().unwrap();
            assert!(notice.contains(expected.description()), "{notice}");
            resolved.root.create_sessions().unwrap();
            let readable = readable_roots(&place.home, &place.work());
            assert!(readable.contains(&resolved.root), "{kind} {name}");
            let name = resolved.root.folder().path().join("workspace");
            assert_eq!(fs::read_to_string(name).unwrap(), place.work().to_str().unwrap());
        }
    }
}

#[test]
fn state_of_another_user_moves_to_the_home() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    for name in [".pixir", ".pixir/sessions", ".pixir/snapshots", ".pixir/snapshots/ab"] {
        let place = StateRootFixture::new();
        let at = place.make(name);
        std::os::unix::fs::chown(&at, Some(12_345), None).unwrap();
        assert_eq!(place.found(), Some((name.to_owned(), UnsafeEntry::OtherOwner)));
    }
    // The Workspace itself may be another user's.
    let place = StateRootFixture::new();
    std::os::unix::fs::chown(place.work(), Some(12_345), None).unwrap();
    assert_eq!(place.problem(), None);
}

#[test]
fn state_that_git_tracks_moves_to_the_home_in_every_version_of_the_index() {
    for state in ["sessions/a.ndjson", "snapshots/ab/c", "blobs/x", "subagents/y/z", "sessions"] {
        for version in ["2", "3", "4"] {
            let place = StateRootFixture::new();
            place.git("work", &["init", "-q"]);
            fs::write(place.work().join(".pixhawk"), "a name that begins alike").unwrap();
            fs::write(place.work().join("zebra"), "x").unwrap();
            let at = place.work().join(".pixir").join(state);
            fs::create_dir_all(at.parent().unwrap()).unwrap();
            fs::write(&at, "x").unwrap();
            place.git("work", &["add", "-f", "."]);
            place.git("work", &["update-index", "--index-version", version]);
            if state == "sessions" {
                // The entry is a folder now; git tracks a file.
                fs::remove_file(&at).unwrap();
                fs::create_dir(&at).unwrap();
            }
            let expected = Some((format!(".pixir/{state}"), UnsafeEntry::Tracked));
            assert_eq!(place.found(), expected, "{state} {version}");
            place.git("work", &["rm", "-rq", "--cached", ".pixir"]);
            assert_eq!(place.problem(), None, "{state} {version}");
        }
    }
}

#[test]
fn settings_and_skills_that_git_tracks_are_no_state() {
    let place = StateRootFixture::new();
    place.git("work", &["init", "-q"]);
    for name in ["skills/one", "agents", "prompts", "sessionsish", "sessions"] {
        fs::write(place.make(&format!(".pixir/{name}")).join("x"), "x").unwrap();
    }
    fs::write(place.work().join(".pixir/config.json"), "{}").unwrap();
    for name in ["skills", "agents", "prompts", "sessionsish", "config.json"] {
        place.git("work", &["add", "-f", &format!(".pixir/{name}")]);
    }
    assert_eq!(place.problem(), None);
}

#[test]
fn an_enclosing_repository_a_worktree_a_submodule_and_a_split_index_count() {
    // A Workspace below the top of a repository.
    let place = StateRootFixture::new();
    fs::write(place.make(".pixir/snapshots/ab").join("x"), "x").unwrap();
    place.git("", &["init", "-q"]);
    place.git("", &["add", "-f", "work"]);
    assert_eq!(place.found().unwrap().1, UnsafeEntry::Tracked);

    // A worktree, whose `.git` is a file.
    let place = StateRootFixture::new();
    fs::create_dir(place.folder.path().join("main")).unwrap();
    place.git("main", &["init", "-q"]);
    let state = place.folder.path().join("main/.pixir/sessions");
    fs::create_dir_all(&state).unwrap();
    fs::write(state.join("a.ndjson"), "x").unwrap();
    place.git("main", &["add", "-f", "."]);
    place.git("main", &["commit", "-qm", "x"]);
    place.git("main", &["worktree", "add", "-q", "../work"]);
    assert_eq!(place.found().unwrap().1, UnsafeEntry::Tracked);

    // A submodule in the place of `.pixir`.
    let place = StateRootFixture::new();
    fs::create_dir_all(place.folder.path().join("other/sessions")).unwrap();
    place.git("other", &["init", "-q"]);
    fs::write(place.folder.path().join("other/sessions/a.ndjson"), "x").unwrap();
    place.git("other", &["add", "."]);
    place.git("other", &["commit", "-qm", "x"]);
    place.git("work", &["init", "-q"]);
    place.git("work", &["submodule", "--quiet", "add", "../other", ".pixir"]);
    assert_eq!(place.found().unwrap().1, UnsafeEntry::Tracked);

    // An index that is kept in two files.
    let place = StateRootFixture::new();
    place.git("work", &["init", "-q"]);
    fs::write(place.make(".pixir/sessions").join("a.ndjson"), "x").unwrap();
    place.git("work", &["add", "-f", "."]);
    place.git("work", &["update-index", "--split-index"]);
    assert_eq!(place.found().unwrap().1, UnsafeEntry::Tracked);
}

#[test]
fn a_tracked_folder_whose_name_has_other_letters_is_another_folder() {
    for name in [".PIXIR/sessions/a.ndjson", ".pixir/Sessions/a.ndjson", ".Pixir"] {
        let place = StateRootFixture::new();
        place.git("work", &["init", "-q"]);
        let at = place.work().join(name);
        fs::create_dir_all(at.parent().unwrap()).unwrap();
        fs::write(&at, "x").unwrap();
        place.git("work", &["add", "-f", "."]);
        if fs::symlink_metadata(place.work().join(name.to_lowercase())).is_ok() {
            // The file system ignores case, so it is the same folder.
            return;
        }
        place.make(".pixir/sessions");
        assert_eq!(place.problem(), None, "{name}");
    }
}

#[test]
fn letters_count_unless_the_file_system_ignores_them() {
    for (path, prefix, is_exact, ignoring_case) in [
        (".pixir/sessions/x", ".pixir", true, true),
        (".PIXIR/sessions/x", ".pixir", false, true),
        (".pixir/SESSIONS/x", ".pixir", false, true),
        ("a/.Pixir/blobs", "a/.pixir", false, true),
        (".pixir", ".pixir", true, true),
        (".PIXIR", ".pixir", false, true),
        ("sessions/x", "", true, true),
        ("Sessions/x", "", false, true),
        (".pixir/skills/x", ".pixir", false, false),
        (".pixirs/sessions", ".pixir", false, false),
        (".PIXIR/skills/x", ".pixir", false, false),
    ] {
        let judge = |ignores_case: bool| {
            let is_same =
                |one: &[u8], other: &[u8]| ignores_case && one.eq_ignore_ascii_case(other);
            resolve::is_state(path.as_bytes(), prefix.as_bytes(), is_same)
        };
        assert_eq!((judge(false), judge(true)), (is_exact, ignoring_case), "{path}");
    }
}

#[test]
fn a_repository_with_longer_hashes_counts() {
    let place = StateRootFixture::new();
    place.git("work", &["init", "-q", "--object-format=sha256"]);
    fs::write(place.work().join("zebra"), "x").unwrap();
    fs::write(place.make(".pixir/sessions").join("a.ndjson"), "x").unwrap();
    place.git("work", &["add", "-f", "."]);
    assert_eq!(place.found(), Some((".pixir/sessions/a.ndjson".into(), UnsafeEntry::Tracked)));
}

#[test]
fn a_pipe_in_the_place_of_an_index_is_not_waited_for() {
    for name in ["work/.git", "work/.git/index"] {
        let place = StateRootFixture::new();
        place.make(".pixir/sessions");
        let at = place.folder.path().join(name);
        fs::create_dir_all(at.parent().unwrap()).unwrap();
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, &at, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        assert_eq!(place.problem(), None, "{name}");
    }
}

#[test]
fn sessions_of_the_other_place_are_still_found() {
    let place = StateRootFixture::new();
    let own = StateRoot::in_workspace(place.work());
    let other = StateRoot::in_home(&place.home, place.work());
    let id = SessionId::mint();
    other.create_sessions().unwrap().create_new(log_name(&id)).unwrap();
    let resolved = resolve_state(&place.home, &place.work());
    assert_eq!((&resolved.root, resolved.root_for_session(&id)), (&own, other.clone()));
    assert_eq!(resolved.root_for_session(&SessionId::parse("unknown").unwrap()), own);
    assert_eq!(readable_roots(&place.home, &place.work()), [other]);
}

#[test]
fn state_in_the_home_names_its_workspace_and_no_other() {
    let place = StateRootFixture::new();
    let other = StateRoot::in_home(&place.home, place.work());
    other.create_sessions().unwrap();
    let named = place.home.child_workspaces();
    fs::create_dir_all(named.join("child")).unwrap();
    fs::create_dir_all(named.join("ab12/sessions")).unwrap();
    fs::write(named.join("ab12/workspace"), "/etc").unwrap();
    fs::remove_dir_all(place.work()).unwrap();
    assert_eq!(home_roots(&place.home), std::slice::from_ref(&other));
    assert_eq!(readable_roots(&place.home, &place.work()), [other]);
}

#[test]
fn a_folder_that_cannot_be_written_keeps_its_sessions_and_gets_no_new_ones() {
    if rustix::process::geteuid().is_root() {
        // Nothing is forbidden to root; a test as an ordinary user covers this.
        return;
    }
    let place = StateRootFixture::new();
    let own = StateRoot::in_workspace(place.work());
    own.create_sessions().unwrap();
    let state = own.folder().path();
    fs::set_permissions(&state, fs::Permissions::from_mode(0o500)).unwrap();
    let resolved = resolve_state(&place.home, &place.work());
    assert!(matches!(resolved.problem, Some(StateProblem::Unwritable { .. })));
    let earlier = resolved.earlier.unwrap();
    assert_eq!(
        (earlier.folder().path(), earlier.problem()),
        (state.clone(), resolved.problem.as_ref())
    );
    fs::set_permissions(&state, fs::Permissions::from_mode(0o700)).unwrap();
}
