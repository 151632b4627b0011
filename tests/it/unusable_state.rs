//! State that can no longer be used, or whose Workspace is gone: its Sessions are still listed and readable.

use std::fs;
use std::os::unix::fs::{chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use pixir::scripted::{ModelScript, ReceivedRequest, Reply};
use serde_json::{Value, json};

use crate::support::TestEnv;
use crate::support::sign_in_env::{RunOutput, run_command};
use crate::support::test_env::log_files;
use crate::support::torture::print_summary;

const ANOTHER_USER: u32 = 4_242;
const ORDINARY_USER: u32 = 65_534;

/// Reasons for which the state of a Workspace is unusable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unusable {
    /// The state is tracked by git.
    Tracked,
    /// The state belongs to another user.
    OtherOwner,
    /// A folder of the state is a link.
    LinkedContents,
    /// A file in a folder of the state is a link.
    LinkInside,
}

impl Unusable {
    fn make(self, env: &TestEnv) {
        let state = env.workspace().join(".pixir");
        match self {
            Self::Tracked => {
                git(env, &["init", "-q"]);
                git(env, &["add", "-f", ".pixir/sessions"]);
            }
            Self::OtherOwner => {
                for path in
                    [state.clone(), state.join("sessions"), log_files(&env.workspace()).remove(0)]
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

fn git(env: &TestEnv, words: &[&str]) {
    let mut command = Command::new("git");
    command.current_dir(env.workspace()).args(["-c", "user.name=a", "-c", "user.email=a@b"]);
    let ran = command.args(words).env("GIT_CONFIG_GLOBAL", "/dev/null").output().unwrap();
    assert!(ran.status.success(), "{words:?}: {}", String::from_utf8_lossy(&ran.stderr));
}

/// A test environment whose model runs one command in each Turn.
async fn new_test_env() -> TestEnv {
    let script = ModelScript::answering(|request: &ReceivedRequest| {
        if request.outputs().len() % 2 == 1 {
            return Reply::says("done");
        }
        Reply::calls("bash", json!({ "command": "ls" }))
    });
    let env = TestEnv::with_script(script).await;
    env.write("README.md", "read me\n");
    env
}

fn sessions(ran: &RunOutput) -> Vec<Value> {
    ran.envelope()["output"].as_array().unwrap().clone()
}

fn id_of(session: &Value) -> String {
    session["session_id"].as_str().unwrap().to_owned()
}

/// Checks all commands on a read-only Session; `run` runs the binary.
fn can_be_read_and_forked(env: &TestEnv, run: &dyn Fn(&[&str]) -> RunOutput, reason: &str) {
    let log = log_files(&env.workspace()).remove(0);
    let before = fs::read(&log).unwrap();
    let listed = sessions(&run(&["sessions", "--json"]).assert_exit_code(0));
    assert_eq!(listed.len(), 1, "{reason}: {listed:?}");
    let id = id_of(&listed[0]);
    assert_eq!(listed[0]["title"], "look around");
    assert!(listed[0]["read_only"].as_str().unwrap().contains(reason), "{listed:?}");
    let listing = run(&["sessions"]).assert_exit_code(0);
    assert!(listing.out.contains("read-only"), "{}", listing.out);
    assert!(listing.err.contains(reason) && listing.err.contains("pixir fork"), "{}", listing.err);
    assert!(run(&["export", &id]).assert_exit_code(0).out.contains("look around"));
    run(&["verify", &id]).assert_exit_code(0);
    run(&["verify", "--all"]).assert_exit_code(0);
    run(&["diagnose", &id]).assert_exit_code(0);

    for args in [&["resume", &id, "go on"][..], &["resume", "--last", "go on"]] {
        let refused = run(args).assert_exit_code(1);
        assert!(refused.err.contains(reason), "{args:?}: {}", refused.err);
        assert!(refused.err.contains(&format!("pixir fork {id}")), "{args:?}: {}", refused.err);
    }
    // A fork would not help these commands.
    for args in [
        &["undo", "--yes", &id][..],
        &["redo", "--yes", &id],
        &["sessions", "delete", &id],
        &["repair", &id],
    ] {
        let refused = run(args).assert_exit_code(1);
        assert!(refused.err.contains(reason), "{args:?}: {}", refused.err);
        assert!(refused.err.contains("then run this again"), "{args:?}: {}", refused.err);
        assert!(!refused.err.contains("pixir fork"), "{args:?}: {}", refused.err);
        assert!(!refused.err.contains("free some space"), "{args:?}: {}", refused.err);
        if reason == "tracked by git" {
            let state = env.workspace().canonicalize().unwrap().join(".pixir/sessions");
            let words = format!("git rm -r --cached {}`", state.display());
            assert!(refused.err.contains(&words), "{args:?}: {}", refused.err);
        }
    }
    let looked = run(&["fork", &id, "--dry-run"]).assert_exit_code(0);
    assert!(looked.err.contains("the fork would be kept in"), "{}", looked.err);
    let long_ago = SystemTime::now() - Duration::from_hours(1000);
    fs::File::open(&log).unwrap().set_modified(long_ago).unwrap();
    run(&["gc", "--apply", "--older-than", "1h"]).assert_exit_code(0);

    let forked = run(&["fork", &id, "--json"]).assert_exit_code(0).envelope();
    let child = id_of(&forked["output"]);
    let path = PathBuf::from(forked["output"]["path"].as_str().unwrap());
    assert!(path.starts_with(env.home().join(".pixir/workspaces")), "{}", path.display());
    let resumed = run(&["resume", &child, "go on"]).assert_exit_code(0);
    assert_eq!(resumed.out, "done\n", "{reason}");
    run(&["verify", &child]).assert_exit_code(0);
    // `--last` takes the Session that can be continued, although the other Log is newer.
    fs::File::open(&log)
        .unwrap()
        .set_modified(SystemTime::now() + Duration::from_hours(1))
        .unwrap();
    run(&["resume", "--last", "go on"]).assert_exit_code(0);
    assert_eq!(sessions(&run(&["sessions", "--json"]).assert_exit_code(0)).len(), 2, "{reason}");
    assert_eq!(fs::read(&log).unwrap(), before, "{reason}: the Log was changed");
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_stay_in_sight_when_their_state_becomes_unusable() {
    let is_root = rustix::process::geteuid().is_root();
    for change in
        [Unusable::Tracked, Unusable::OtherOwner, Unusable::LinkedContents, Unusable::LinkInside]
    {
        if change == Unusable::OtherOwner && !is_root {
            continue;
        }
        let env = new_test_env().await;
        env.run_pixir(&["look", "around"]).assert_exit_code(0);
        change.make(&env);
        can_be_read_and_forked(&env, &|args| env.run_pixir(args), change.reason());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_stay_in_sight_when_their_folder_becomes_read_only() {
    if !rustix::process::geteuid().is_root() {
        return print_summary("skipped: only root can run Pixir as an ordinary user");
    }
    let env = new_test_env().await;
    let top = env.workspace().parent().unwrap().to_owned();
    fs::create_dir(env.home()).unwrap();
    let open = <fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o755);
    fs::set_permissions(&top, open).unwrap();
    for path in [env.home(), env.workspace()] {
        chown(path, Some(ORDINARY_USER), Some(ORDINARY_USER)).unwrap();
    }
    let run = |args: &[&str]| {
        let mut command = env.command(args);
        run_command(command.uid(ORDINARY_USER).gid(ORDINARY_USER))
    };
    if run(&["--version"]).code != Some(0) {
        return print_summary("skipped: another user cannot run the program where it was built");
    }
    run(&["look", "around"]).assert_exit_code(0);
    let read_only = <fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o500);
    for name in [".pixir/sessions", ".pixir"] {
        fs::set_permissions(env.workspace().join(name), read_only.clone()).unwrap();
    }
    can_be_read_and_forked(&env, &run, "cannot be written");
}

/// Checks all commands on a Session whose Log belongs to another user; `run` runs the binary.
fn names_the_owner(run: &dyn Fn(&[&str]) -> RunOutput, id: &str) {
    let listed = run(&["sessions"]).assert_exit_code(0);
    assert!(listed.err.contains("owned by another user"), "{}{}", listed.out, listed.err);
    for args in [
        &["resume", id, "go on"][..],
        &["sessions", "delete", id],
        &["undo", "--yes", id],
        &["export", id],
        &["fork", id],
        &["verify", id],
    ] {
        let refused = run(args).assert_exit_code(1);
        let words = format!("{id}.ndjson is owned by another user: Pixir does not use it");
        assert!(refused.err.contains(&words), "{args:?}: {}", refused.err);
        assert!(refused.err.contains("chown"), "{args:?}: {}", refused.err);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_of_another_user_is_named_as_such() {
    if !rustix::process::geteuid().is_root() {
        return print_summary("skipped: only root can give files to another user");
    }
    let env = new_test_env().await;
    env.run_pixir(&["look", "around"]).assert_exit_code(0);
    let log = log_files(&env.workspace()).remove(0);
    let id = log.file_stem().unwrap().to_str().unwrap().to_owned();
    chown(&log, Some(ANOTHER_USER), None).unwrap();
    names_the_owner(&|args| env.run_pixir(args), &id);

    // An ordinary user may not even open it.
    let top = env.workspace().parent().unwrap().to_owned();
    let open = <fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o755);
    fs::set_permissions(&top, open).unwrap();
    let words = ["-R".to_owned(), format!("{ORDINARY_USER}:{ORDINARY_USER}")];
    for path in [env.home(), env.workspace()] {
        assert!(Command::new("chown").args(&words).arg(path).status().unwrap().success());
    }
    chown(&log, Some(ANOTHER_USER), Some(ANOTHER_USER)).unwrap();
    let run = |args: &[&str]| {
        let mut command = env.command(args);
        run_command(command.uid(ORDINARY_USER).gid(ORDINARY_USER))
    };
    if run(&["--version"]).code == Some(0) {
        names_the_owner(&run, &id);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_undo_cannot_read_is_named_once() {
    let env = new_test_env().await;
    env.run_pixir(&["look", "around"]).assert_exit_code(0);
    let log = log_files(&env.workspace()).remove(0);
    let id = log.file_stem().unwrap().to_str().unwrap().to_owned();
    let folder = log.with_extension("");
    let records = folder.join("snapshots");
    let record = fs::read_dir(&records).unwrap().next().unwrap().unwrap().path();
    let line = json!({ "found": { "path": "../outside", "state": null, "at": 1 } });
    let text = fs::read_to_string(&record).unwrap();
    let first = text.lines().next().unwrap();
    fs::write(&record, format!("{first}\n{line}\n{line}\n")).unwrap();
    let refused = env.run_pixir(&["undo", "--yes", &id]).assert_exit_code(1);
    assert_eq!(refused.err.matches("outside the Workspace").count(), 1, "{}", refused.err);
    assert!(!refused.err.contains("check the permissions"), "{}", refused.err);

    fs::remove_dir_all(&folder).unwrap();
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, &folder, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    let refused = env.run_pixir(&["undo", "--yes", &id]).assert_exit_code(1);
    assert_eq!(refused.err.matches("a named pipe").count(), 1, "{}", refused.err);
    assert!(refused.err.contains("remove it"), "{}", refused.err);
    assert!(!refused.err.contains("check the permissions"), "{}", refused.err);
}

/// Runs the binary in another folder than the Workspace.
fn run_in_folder(env: &TestEnv, folder: &Path, args: &[&str]) -> RunOutput {
    run_command(env.command(args).current_dir(folder))
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_of_a_workspace_that_is_gone_are_listed_read_and_cleared() {
    let env = new_test_env().await;
    let top = env.workspace().parent().unwrap().to_owned();
    let other = top.join("other");
    fs::create_dir(&other).unwrap();
    symlink(&other, env.workspace().join(".pixir")).unwrap();
    let workspace = env.workspace().canonicalize().unwrap();
    env.run_pixir(&["look", "around"]).assert_exit_code(0);
    fs::rename(env.workspace(), top.join("moved")).unwrap();
    // The list of Workspaces forgets it.
    run_in_folder(&env, &other, &["gc", "--apply"]).assert_exit_code(0);

    let listed = sessions(
        &run_in_folder(&env, &other, &["sessions", "--all", "--json"]).assert_exit_code(0),
    );
    assert_eq!(listed.len(), 1, "{listed:?}");
    assert_eq!(listed[0]["workspace"], workspace.to_str().unwrap());
    assert_eq!(listed[0]["workspace_gone"], true);
    let id = id_of(&listed[0]);
    let run = run_in_folder(&env, &other, &["sessions", "--all"]).assert_exit_code(0);
    assert!(run.out.contains("gone: "), "{}", run.out);
    assert!(
        run_in_folder(&env, &other, &["export", &id])
            .assert_exit_code(0)
            .out
            .contains("look around")
    );
    run_in_folder(&env, &other, &["verify", &id]).assert_exit_code(0);
    let refused = run_in_folder(&env, &other, &["resume", &id, "go on"]).assert_exit_code(2);
    assert!(refused.err.contains("is gone"), "{}", refused.err);
    assert!(refused.err.contains(&format!("pixir export {id}")), "{}", refused.err);

    for args in [&["undo", "--yes", &id][..], &["redo", "--yes", &id], &["inspect-replay", &id]] {
        let refused = run_in_folder(&env, &other, args).assert_exit_code(2);
        assert!(refused.err.contains("is gone"), "{args:?}: {}", refused.err);
        assert!(refused.err.contains("move the folder back"), "{args:?}: {}", refused.err);
    }
    let mut copies = Vec::new();
    for word in ["fork", "repair"] {
        let shown = run_in_folder(&env, &other, &[word, &id]).assert_exit_code(0);
        assert!(!shown.out.contains("resume"), "{word}: {}", shown.out);
        assert!(shown.err.contains("is gone"), "{word}: {}", shown.err);
        let command = shown.out.lines().find_map(|line| line.trim().split_once("export ")).unwrap();
        run_in_folder(&env, &other, &["export", command.1]).assert_exit_code(0);
        copies.push(command.1.to_owned());
    }
    let exported =
        run_in_folder(&env, &other, &["export", &id, "--json"]).assert_exit_code(0).envelope();
    assert_eq!(exported["resume_command"], Value::Null);

    run_in_folder(&env, &other, &["sessions", "delete", &copies[0]]).assert_exit_code(0);
    let gone = workspace.to_str().unwrap();
    run_in_folder(&env, &other, &["sessions", "delete", &copies[0], "--cwd", gone])
        .assert_exit_code(2);
    run_in_folder(&env, &other, &["sessions", "delete", &copies[1], "--cwd", gone])
        .assert_exit_code(0);
    let log = PathBuf::from(listed[0]["path"].as_str().unwrap());
    let state = log.ancestors().nth(2).unwrap().to_owned();
    run_in_folder(&env, &other, &["gc", "--all", "--apply"]).assert_exit_code(0);
    assert!(state.exists(), "a Session is left");
    let long_ago = SystemTime::now() - Duration::from_hours(1000);
    fs::File::open(&log).unwrap().set_modified(long_ago).unwrap();
    run_in_folder(&env, &other, &["gc", "--all", "--older-than", "1h", "--apply"])
        .assert_exit_code(0);
    assert!(!log.exists());
    assert!(!state.exists(), "nothing is left in it");
    fs::rename(top.join("moved"), env.workspace()).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_is_continued_where_a_link_leads_to_its_moved_workspace() {
    let env = new_test_env().await;
    let top = env.workspace().parent().unwrap().to_owned();
    let other = top.join("other");
    fs::create_dir(&other).unwrap();
    symlink(&other, env.workspace().join(".pixir")).unwrap();
    env.run_pixir(&["look", "around"]).assert_exit_code(0);
    let moved = top.join("moved");
    fs::rename(env.workspace(), &moved).unwrap();
    symlink(&moved, env.workspace()).unwrap();
    let listed = sessions(
        &run_in_folder(&env, &other, &["sessions", "--all", "--json"]).assert_exit_code(0),
    );
    let id = id_of(&listed[0]);
    let old = env.workspace();
    let old = old.to_str().unwrap();
    for (folder, args) in [
        (&other, &["resume", &id, "go on"][..]),
        (&other, &["resume", &id, "go on", "--cwd", old]),
        (&moved, &["resume", &id, "go on"]),
        (&moved, &["undo", "--yes", &id]),
        (&other, &["inspect-replay", &id]),
    ] {
        run_in_folder(&env, folder, args).assert_exit_code(0);
    }
    let forked =
        run_in_folder(&env, &other, &["fork", &id, "--json"]).assert_exit_code(0).envelope();
    let resume = forked["resume_command"].as_str().unwrap().to_owned();
    let words: Vec<&str> = resume.split(' ').skip(1).chain(["go on"]).collect();
    run_in_folder(&env, &other, &words).assert_exit_code(0);
    run_in_folder(&env, &moved, &["sessions", "delete", &id]).assert_exit_code(0);
    fs::remove_file(env.workspace()).unwrap();
    fs::rename(&moved, env.workspace()).unwrap();
}
