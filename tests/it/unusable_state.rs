//! State that cannot be used any more, or whose Workspace is gone: its Sessions stay in sight.

use std::fs;
use std::os::unix::fs::{chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use pixir::scripted::{Received, Reply, Script};
use serde_json::{Value, json};

use crate::support::House;
use crate::support::desk::{Ran, ran};
use crate::support::house::logs;

const ANOTHER_USER: u32 = 4_242;
const ORDINARY_USER: u32 = 65_534;

/// What makes the state of a Workspace unusable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    /// Git tracks it.
    Tracked,
    /// It belongs to another user.
    OtherOwner,
    /// A folder of it is a link.
    LinkedContents,
    /// A file in one of its folders is a link.
    LinkInside,
}

impl Change {
    fn make(self, house: &House) {
        let state = house.workspace().join(".pixir");
        match self {
            Self::Tracked => {
                git(house, &["init", "-q"]);
                git(house, &["add", "-f", ".pixir/sessions"]);
            }
            Self::OtherOwner => {
                for path in
                    [state.clone(), state.join("sessions"), logs(&house.workspace()).remove(0)]
                {
                    chown(path, Some(ANOTHER_USER), None).unwrap();
                }
            }
            Self::LinkedContents => {
                fs::rename(state.join("snapshots"), state.join("elsewhere")).unwrap();
                symlink("elsewhere", state.join("snapshots")).unwrap();
            }
            Self::LinkInside => {
                fs::remove_file(state.join("snapshots/last")).ok();
                symlink("/nowhere", state.join("snapshots/last")).unwrap();
            }
        }
    }

    fn reason(self) -> &'static str {
        match self {
            Self::Tracked => "tracked by git",
            Self::OtherOwner => "owned by another user",
            Self::LinkedContents | Self::LinkInside => "a symbolic link",
        }
    }
}

fn git(house: &House, words: &[&str]) {
    let mut command = Command::new("git");
    command.current_dir(house.workspace()).args(["-c", "user.name=a", "-c", "user.email=a@b"]);
    let ran = command.args(words).env("GIT_CONFIG_GLOBAL", "/dev/null").output().unwrap();
    assert!(ran.status.success(), "{words:?}: {}", String::from_utf8_lossy(&ran.stderr));
}

/// A test environment whose model runs one command in each Turn.
async fn house() -> House {
    let script = Script::answering(|request: &Received| {
        if request.outputs().len() % 2 == 1 {
            return Reply::says("done");
        }
        Reply::calls("bash", json!({ "command": "ls" }))
    });
    let house = House::scripted(script).await;
    house.write("README.md", "read me\n");
    house
}

fn sessions(ran: &Ran) -> Vec<Value> {
    ran.envelope()["output"].as_array().unwrap().clone()
}

fn id_of(session: &Value) -> String {
    session["session_id"].as_str().unwrap().to_owned()
}

/// Every way to a Session that can only be read; `run` runs the binary.
fn can_be_read_and_forked(house: &House, run: &dyn Fn(&[&str]) -> Ran, reason: &str) {
    let log = logs(&house.workspace()).remove(0);
    let before = fs::read(&log).unwrap();
    let listed = sessions(&run(&["sessions", "--json"]).exits(0));
    assert_eq!(listed.len(), 1, "{reason}: {listed:?}");
    let id = id_of(&listed[0]);
    assert_eq!(listed[0]["title"], "look around");
    assert!(listed[0]["read_only"].as_str().unwrap().contains(reason), "{listed:?}");
    let told = run(&["sessions"]).exits(0);
    assert!(told.out.contains("read-only"), "{}", told.out);
    assert!(told.err.contains(reason) && told.err.contains("pixir fork"), "{}", told.err);
    assert!(run(&["export", &id]).exits(0).out.contains("look around"));
    run(&["verify", &id]).exits(0);
    run(&["verify", "--all"]).exits(0);
    run(&["diagnose", &id]).exits(0);

    for args in [&["resume", &id, "go on"][..], &["resume", "--last", "go on"]] {
        let refused = run(args).exits(1);
        assert!(refused.err.contains(reason), "{args:?}: {}", refused.err);
        assert!(refused.err.contains(&format!("pixir fork {id}")), "{args:?}: {}", refused.err);
    }
    // A copy helps none of these.
    for args in [
        &["undo", "--yes", &id][..],
        &["redo", "--yes", &id],
        &["sessions", "delete", &id],
        &["repair", &id],
    ] {
        let refused = run(args).exits(1);
        assert!(refused.err.contains(reason), "{args:?}: {}", refused.err);
        assert!(refused.err.contains("then run this again"), "{args:?}: {}", refused.err);
        assert!(!refused.err.contains("pixir fork"), "{args:?}: {}", refused.err);
        assert!(!refused.err.contains("free some space"), "{args:?}: {}", refused.err);
        if reason == "tracked by git" {
            let state = house.workspace().canonicalize().unwrap().join(".pixir/sessions");
            let words = format!("git rm -r --cached {}`", state.display());
            assert!(refused.err.contains(&words), "{args:?}: {}", refused.err);
        }
    }
    let looked = run(&["fork", &id, "--dry-run"]).exits(0);
    assert!(looked.err.contains("the fork would be kept in"), "{}", looked.err);
    let long_ago = SystemTime::now() - Duration::from_hours(1000);
    fs::File::open(&log).unwrap().set_modified(long_ago).unwrap();
    run(&["gc", "--apply", "--older-than", "1h"]).exits(0);

    let forked = run(&["fork", &id, "--json"]).exits(0).envelope();
    let child = id_of(&forked["output"]);
    let path = PathBuf::from(forked["output"]["path"].as_str().unwrap());
    assert!(path.starts_with(house.home().join(".pixir/workspaces")), "{}", path.display());
    let resumed = run(&["resume", &child, "go on"]).exits(0);
    assert_eq!(resumed.out, "done\n", "{reason}");
    run(&["verify", &child]).exits(0);
    // The one that can be continued is the last one, whatever the times of the other say.
    fs::File::open(&log)
        .unwrap()
        .set_modified(SystemTime::now() + Duration::from_hours(1))
        .unwrap();
    run(&["resume", "--last", "go on"]).exits(0);
    assert_eq!(sessions(&run(&["sessions", "--json"]).exits(0)).len(), 2, "{reason}");
    assert_eq!(fs::read(&log).unwrap(), before, "{reason}: the Log was changed");
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_stay_in_sight_when_their_state_becomes_unusable() {
    let is_root = rustix::process::geteuid().is_root();
    for change in [Change::Tracked, Change::OtherOwner, Change::LinkedContents, Change::LinkInside]
    {
        if change == Change::OtherOwner && !is_root {
            continue;
        }
        let house = house().await;
        house.pixir(&["look", "around"]).exits(0);
        change.make(&house);
        can_be_read_and_forked(&house, &|args| house.pixir(args), change.reason());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_stay_in_sight_when_their_folder_becomes_read_only() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let house = house().await;
    let top = house.workspace().parent().unwrap().to_owned();
    fs::create_dir(house.home()).unwrap();
    let open = <fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o755);
    fs::set_permissions(&top, open).unwrap();
    for path in [house.home(), house.workspace()] {
        chown(path, Some(ORDINARY_USER), Some(ORDINARY_USER)).unwrap();
    }
    let run = |args: &[&str]| {
        let mut command = house.command(args);
        ran(command.uid(ORDINARY_USER).gid(ORDINARY_USER))
    };
    if run(&["--version"]).code != Some(0) {
        return;
    }
    run(&["look", "around"]).exits(0);
    let read_only = <fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o500);
    for name in [".pixir/sessions", ".pixir"] {
        fs::set_permissions(house.workspace().join(name), read_only.clone()).unwrap();
    }
    can_be_read_and_forked(&house, &run, "cannot be written");
}

/// Every way to a Session whose Log belongs to another user; `run` runs the binary.
fn names_the_owner(run: &dyn Fn(&[&str]) -> Ran, id: &str) {
    let listed = run(&["sessions"]).exits(0);
    assert!(listed.err.contains("owned by another user"), "{}{}", listed.out, listed.err);
    for args in [
        &["resume", id, "go on"][..],
        &["sessions", "delete", id],
        &["undo", "--yes", id],
        &["export", id],
        &["fork", id],
        &["verify", id],
    ] {
        let refused = run(args).exits(1);
        let words = format!("{id}.ndjson is owned by another user: Pixir does not use it");
        assert!(refused.err.contains(&words), "{args:?}: {}", refused.err);
        assert!(refused.err.contains("chown"), "{args:?}: {}", refused.err);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_of_another_user_is_named_as_such() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let house = house().await;
    house.pixir(&["look", "around"]).exits(0);
    let log = logs(&house.workspace()).remove(0);
    let id = log.file_stem().unwrap().to_str().unwrap().to_owned();
    chown(&log, Some(ANOTHER_USER), None).unwrap();
    names_the_owner(&|args| house.pixir(args), &id);

    // An ordinary user may not even open it.
    let top = house.workspace().parent().unwrap().to_owned();
    let open = <fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o755);
    fs::set_permissions(&top, open).unwrap();
    let words = ["-R".to_owned(), format!("{ORDINARY_USER}:{ORDINARY_USER}")];
    for path in [house.home(), house.workspace()] {
        assert!(Command::new("chown").args(&words).arg(path).status().unwrap().success());
    }
    chown(&log, Some(ANOTHER_USER), Some(ANOTHER_USER)).unwrap();
    let run = |args: &[&str]| {
        let mut command = house.command(args);
        ran(command.uid(ORDINARY_USER).gid(ORDINARY_USER))
    };
    if run(&["--version"]).code == Some(0) {
        names_the_owner(&run, &id);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_undo_cannot_read_is_named_once() {
    let house = house().await;
    house.pixir(&["look", "around"]).exits(0);
    let log = logs(&house.workspace()).remove(0);
    let id = log.file_stem().unwrap().to_str().unwrap().to_owned();
    let folder = log.with_extension("");
    let records = folder.join("snapshots");
    let record = fs::read_dir(&records).unwrap().next().unwrap().unwrap().path();
    let line = json!({ "found": { "path": "../outside", "state": null, "at": 1 } });
    let text = fs::read_to_string(&record).unwrap();
    let first = text.lines().next().unwrap();
    fs::write(&record, format!("{first}\n{line}\n{line}\n")).unwrap();
    let refused = house.pixir(&["undo", "--yes", &id]).exits(1);
    assert_eq!(refused.err.matches("outside the Workspace").count(), 1, "{}", refused.err);
    assert!(!refused.err.contains("check the permissions"), "{}", refused.err);

    fs::remove_dir_all(&folder).unwrap();
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, &folder, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    let refused = house.pixir(&["undo", "--yes", &id]).exits(1);
    assert_eq!(refused.err.matches("a named pipe").count(), 1, "{}", refused.err);
    assert!(refused.err.contains("remove it"), "{}", refused.err);
    assert!(!refused.err.contains("check the permissions"), "{}", refused.err);
}

/// Runs the binary in another folder than the Workspace.
fn elsewhere(house: &House, folder: &Path, args: &[&str]) -> Ran {
    ran(house.command(args).current_dir(folder))
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_of_a_workspace_that_is_gone_are_listed_read_and_cleared() {
    let house = house().await;
    let top = house.workspace().parent().unwrap().to_owned();
    let other = top.join("other");
    fs::create_dir(&other).unwrap();
    symlink(&other, house.workspace().join(".pixir")).unwrap();
    let workspace = house.workspace().canonicalize().unwrap();
    house.pixir(&["look", "around"]).exits(0);
    fs::rename(house.workspace(), top.join("moved")).unwrap();
    // The list of Workspaces forgets it.
    elsewhere(&house, &other, &["gc", "--apply"]).exits(0);

    let listed = sessions(&elsewhere(&house, &other, &["sessions", "--all", "--json"]).exits(0));
    assert_eq!(listed.len(), 1, "{listed:?}");
    assert_eq!(listed[0]["workspace"], workspace.to_str().unwrap());
    assert_eq!(listed[0]["workspace_gone"], true);
    let id = id_of(&listed[0]);
    let told = elsewhere(&house, &other, &["sessions", "--all"]).exits(0);
    assert!(told.out.contains("gone: "), "{}", told.out);
    assert!(elsewhere(&house, &other, &["export", &id]).exits(0).out.contains("look around"));
    elsewhere(&house, &other, &["verify", &id]).exits(0);
    let refused = elsewhere(&house, &other, &["resume", &id, "go on"]).exits(2);
    assert!(refused.err.contains("is gone"), "{}", refused.err);
    assert!(refused.err.contains(&format!("pixir export {id}")), "{}", refused.err);

    for args in [&["undo", "--yes", &id][..], &["redo", "--yes", &id], &["inspect-replay", &id]] {
        let refused = elsewhere(&house, &other, args).exits(2);
        assert!(refused.err.contains("is gone"), "{args:?}: {}", refused.err);
        assert!(refused.err.contains("move the folder back"), "{args:?}: {}", refused.err);
    }
    let mut copies = Vec::new();
    for word in ["fork", "repair"] {
        let said = elsewhere(&house, &other, &[word, &id]).exits(0);
        assert!(!said.out.contains("resume"), "{word}: {}", said.out);
        assert!(said.err.contains("is gone"), "{word}: {}", said.err);
        let command = said.out.lines().find_map(|line| line.trim().split_once("export ")).unwrap();
        elsewhere(&house, &other, &["export", command.1]).exits(0);
        copies.push(command.1.to_owned());
    }
    let exported = elsewhere(&house, &other, &["export", &id, "--json"]).exits(0).envelope();
    assert_eq!(exported["resume_command"], Value::Null);

    elsewhere(&house, &other, &["sessions", "delete", &copies[0]]).exits(0);
    let gone = workspace.to_str().unwrap();
    elsewhere(&house, &other, &["sessions", "delete", &copies[0], "--cwd", gone]).exits(2);
    elsewhere(&house, &other, &["sessions", "delete", &copies[1], "--cwd", gone]).exits(0);
    let log = PathBuf::from(listed[0]["path"].as_str().unwrap());
    let state = log.ancestors().nth(2).unwrap().to_owned();
    elsewhere(&house, &other, &["gc", "--all", "--apply"]).exits(0);
    assert!(state.exists(), "a Session is left");
    let long_ago = SystemTime::now() - Duration::from_hours(1000);
    fs::File::open(&log).unwrap().set_modified(long_ago).unwrap();
    elsewhere(&house, &other, &["gc", "--all", "--older-than", "1h", "--apply"]).exits(0);
    assert!(!log.exists());
    assert!(!state.exists(), "nothing is left in it");
    fs::rename(top.join("moved"), house.workspace()).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_is_continued_where_a_link_leads_to_its_moved_workspace() {
    let house = house().await;
    let top = house.workspace().parent().unwrap().to_owned();
    let other = top.join("other");
    fs::create_dir(&other).unwrap();
    symlink(&other, house.workspace().join(".pixir")).unwrap();
    house.pixir(&["look", "around"]).exits(0);
    let moved = top.join("moved");
    fs::rename(house.workspace(), &moved).unwrap();
    symlink(&moved, house.workspace()).unwrap();
    let listed = sessions(&elsewhere(&house, &other, &["sessions", "--all", "--json"]).exits(0));
    let id = id_of(&listed[0]);
    let old = house.workspace();
    let old = old.to_str().unwrap();
    for (folder, args) in [
        (&other, &["resume", &id, "go on"][..]),
        (&other, &["resume", &id, "go on", "--cwd", old]),
        (&moved, &["resume", &id, "go on"]),
        (&moved, &["undo", "--yes", &id]),
        (&other, &["inspect-replay", &id]),
    ] {
        elsewhere(&house, folder, args).exits(0);
    }
    let forked = elsewhere(&house, &other, &["fork", &id, "--json"]).exits(0).envelope();
    let resume = forked["resume_command"].as_str().unwrap().to_owned();
    let words: Vec<&str> = resume.split(' ').skip(1).chain(["go on"]).collect();
    elsewhere(&house, &other, &words).exits(0);
    elsewhere(&house, &moved, &["sessions", "delete", &id]).exits(0);
    fs::remove_file(house.workspace()).unwrap();
    fs::rename(&moved, house.workspace()).unwrap();
}
