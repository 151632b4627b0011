//! `pixir gc`: shows before it removes, keeps what is still needed, and is safe to kill.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use super::{log_of, new_test_env, state};
use crate::support::TestEnv;
use crate::support::leaks;
use crate::support::test_env::log_files;
use crate::support::torture::{self, SuiteSize};

const DAY: u64 = 86_400;

fn aged(path: &Path, days: u64) {
    let then = SystemTime::now() - Duration::from_secs(days * DAY + 60);
    fs::File::open(path).unwrap().set_modified(then).unwrap();
}

fn gc(env: &TestEnv, args: &[&str]) -> Value {
    let run = env.run_pixir(&[&["gc", "--json"], args].concat()).assert_exit_code(0);
    run.envelope()["output"].clone()
}

/// Kinds and file names in a plan.
fn named_garbage(output: &Value) -> Vec<(String, String)> {
    let plans = output["plans"].as_array().unwrap().iter();
    let garbage = plans.flat_map(|plan| plan["waste"].as_array().unwrap());
    let name = |path: &Value| path.as_str().unwrap().rsplit('/').next().unwrap().to_owned();
    let mut all: Vec<(String, String)> = garbage
        .map(|thing| (thing["kind"].as_str().unwrap().to_owned(), name(&thing["path"])))
        .collect();
    all.sort();
    all
}

/// Plants garbage of every kind, an hour old or more; gives kinds and file names.
fn plant_garbage(env: &TestEnv, id: &str) -> Vec<(String, String)> {
    let sessions = env.workspace().join(".pixir/sessions");
    let own = sessions.join(id);
    let hash = "ab".repeat(32);
    let mut planted = Vec::new();
    let mut plant = |kind: &str, path: PathBuf| {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, "rubbish").unwrap();
        aged(&path, 1);
        planted.push((kind.to_owned(), path.file_name().unwrap().to_str().unwrap().to_owned()));
    };
    plant("blob", own.join("blobs").join(&hash));
    plant("leftover", own.join("blobs").join(format!("{hash}.01234567")));
    plant("resource", own.join("resources").join(&hash));
    plant("output", own.join("output/call_nobody.txt"));
    plant("snapshot", env.workspace().join(".pixir/snapshots/ab").join(&hash));
    plant("leftover", env.workspace().join(".pixir/snapshots/ab/draft-0123456789abcdef"));
    plant("leftover", env.workspace().join("deep/down/.0123456789abcdef.pixir-new"));
    plant("leftover", env.home().join(".pixir/.config.0123456789abcdef"));
    for name in [".fork-20200101T000000-000000", "20200101T000000-000001"] {
        let folder = sessions.join(name);
        fs::create_dir_all(folder.join("inner")).unwrap();
        fs::write(folder.join("inner/file"), "x").unwrap();
        aged(&folder, 1);
        let kind = if name.starts_with('.') { "leftover" } else { "session_folder" };
        planted.push((kind.to_owned(), name.to_owned()));
    }
    planted.sort();
    planted
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage_is_shown_first_and_removed_on_request_and_nothing_else_is() {
    let (env, id) = new_test_env().await;
    // Needed files are made old, so that only a reference protects them.
    let mut needed = Vec::new();
    for (path, (mode, ..)) in state(&env.workspace()) {
        if mode & 0o170_000 == 0o100_000 {
            aged(&path, 3);
            needed.push(path);
        }
    }
    assert!(
        needed.iter().any(|path| path.to_str().unwrap().contains("/.pixir/snapshots/")),
        "undo keeps contents"
    );
    assert_eq!(named_garbage(&gc(&env, &[])), [], "an ordinary Session leaves no garbage");
    let planted = plant_garbage(&env, &id);
    let before = state(&env.workspace());
    let shown = gc(&env, &[]);
    assert_eq!(named_garbage(&shown), planted);
    assert_eq!((&shown["applied"], &shown["removed"]["count"]), (&json!(false), &json!(0)));
    assert_eq!(state(&env.workspace()), before, "a preview changes nothing");
    let words = env.run_pixir(&["gc"]).assert_exit_code(0).out;
    assert!(words.contains("nothing was removed (add --apply)"), "{words}");

    let done = gc(&env, &["--apply"]);
    assert_eq!((&done["removed"]["count"], &done["failed"]), (&json!(planted.len()), &json!([])));
    assert_eq!(named_garbage(&gc(&env, &[])), []);
    for path in &needed {
        assert!(path.exists(), "{}", path.display());
    }
    env.run_pixir(&["verify", &id]).assert_exit_code(0);
    env.run_pixir(&["undo", "--yes", &id, "--turns", "3"]).assert_exit_code(0);
    assert_eq!(env.read("poem.txt"), "roses are red\nviolets are blue\n", "undo still can");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_log_that_is_too_large_to_be_read_stays_and_is_not_called_open() {
    let (env, id) = new_test_env().await;
    let log = log_of(&env, &id);
    fs::File::options().append(true).open(&log).unwrap().set_len(17 << 30).unwrap();
    aged(&log, 9);
    let kept = &gc(&env, &["--older-than", "7d"])["plans"][0]["kept"][0];
    assert_eq!(kept["session_id"], id, "{kept}");
    assert_eq!(kept["reason"], "its Log cannot be read", "{kept}");
    // The leak check reads every remaining file.
    fs::remove_file(log).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_are_removed_only_on_request_and_only_if_nothing_needs_them() {
    let (env, parent) = new_test_env().await;
    let fork =
        env.run_pixir(&["fork", &parent, "--json"]).assert_exit_code(0).envelope()["session_id"]
            .as_str()
            .unwrap()
            .to_owned();
    let others: Vec<String> = (0..4)
        .map(|number| {
            let run = env.run_pixir(&["--json", "answer", &number.to_string()]).assert_exit_code(0);
            run.envelope()["session_id"].as_str().unwrap().to_owned()
        })
        .collect();
    for (place, id) in others.iter().enumerate() {
        aged(&log_of(&env, id), 100 + place as u64);
    }
    aged(&log_of(&env, &parent), 400);
    assert_eq!(named_garbage(&gc(&env, &[])), [], "Sessions are removed only with --older-than");
    env.run_pixir(&["gc", "--keep", "2"]).assert_exit_code(2);
    env.run_pixir(&["gc", "--older-than", "soon"]).assert_exit_code(2);

    let held = fs::File::options().append(true).open(log_of(&env, &others[3])).unwrap();
    held.lock().unwrap();
    // Of six Sessions, the fork is new, and `--keep` protects the newest two.
    let plan = gc(&env, &["--older-than", "30d", "--keep", "2"]);
    let going: Vec<String> = named_garbage(&plan).into_iter().map(|(_, name)| name).collect();
    let mut expected: Vec<String> = others[1..3].iter().map(|id| format!("{id}.ndjson")).collect();
    expected.sort();
    assert_eq!(going, expected);
    let kept = plan["plans"][0]["kept"].to_string();
    for reason in ["has it open", "among the newest", &format!("Session {fork} names it")] {
        assert!(kept.contains(reason), "{reason}: {kept}");
    }
    gc(&env, &["--older-than", "30d", "--keep", "2", "--apply"]);
    let left: Vec<String> = log_files(&env.workspace())
        .iter()
        .map(|log| log.file_stem().unwrap().to_str().unwrap().to_owned())
        .collect();
    for id in [&parent, &fork, &others[0], &others[3]] {
        assert!(left.contains(id), "{id}");
    }
    assert_eq!(left.len(), 4);
    drop(held);
    env.run_pixir(&["verify", "--all"]).assert_exit_code(0);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_link_is_followed_and_a_damaged_log_keeps_everything() {
    let (env, id) = new_test_env().await;
    let outside = env.home().join("precious");
    fs::create_dir_all(&outside).unwrap();
    let hash = "cd".repeat(32);
    fs::write(outside.join(&hash), "precious").unwrap();
    aged(&outside.join(&hash), 9);
    let own = env.workspace().join(".pixir/sessions").join(&id);
    fs::create_dir_all(&own).unwrap();
    symlink(&outside, own.join("blobs")).unwrap();
    symlink(&outside, own.join("output")).unwrap();
    let ownerless = env.workspace().join(".pixir/sessions/20200101T000000-000001");
    fs::create_dir(&ownerless).unwrap();
    symlink(&outside, ownerless.join("inner")).unwrap();
    aged(&ownerless, 2);
    symlink(&outside, env.workspace().join(".pixir/sessions/20200101T000000-000002")).unwrap();
    let done = gc(&env, &["--apply"]);
    assert_eq!(
        named_garbage(&done),
        [("session_folder".to_owned(), "20200101T000000-000001".to_owned())]
    );
    assert_eq!(fs::read_to_string(outside.join(&hash)).unwrap(), "precious");
    assert!(!ownerless.exists());

    fs::remove_file(own.join("blobs")).unwrap();
    fs::create_dir(own.join("blobs")).unwrap();
    fs::write(own.join("blobs").join(&hash), "may be needed").unwrap();
    aged(&own.join("blobs").join(&hash), 2);
    let log = fs::read(log_of(&env, &id)).unwrap();
    fs::write(log_of(&env, &id), [&log[..], b"{\"torn"].concat()).unwrap();
    assert_eq!(named_garbage(&gc(&env, &[])), [], "its lost line may have named it");
    // A state folder that is a link is not read.
    fs::rename(env.workspace().join(".pixir"), env.workspace().join("moved")).unwrap();
    symlink("moved", env.workspace().join(".pixir")).unwrap();
    let done = env.run_pixir(&["gc", "--apply", "--json"]).assert_exit_code(0).envelope();
    assert_eq!(done["output"]["removed"]["count"], 0, "{done}");
}

#[tokio::test(flavor = "multi_thread")]
async fn copies_of_the_first_pixir_go_by_age_and_their_logs_stay() {
    let (env, id) = new_test_env().await;
    let state = env.workspace().join(".pixir");
    let plant = |child: &str, days: u64| {
        let folder = state.join("subagents").join(child);
        let sessions = folder.join("workspace/.pixir/sessions");
        fs::create_dir_all(&sessions).unwrap();
        fs::create_dir_all(folder.join("workspace/src")).unwrap();
        let own =
            ["workspace/src/a.rs", "workspace/notes.ndjson", "workspace/.pixir/sessions/x.ndjson"];
        for name in own {
            fs::write(folder.join(name), "words").unwrap();
            aged(&folder.join(name), days);
        }
        for name in
            ["workspace/src", "workspace/.pixir/sessions", "workspace/.pixir", "workspace", ""]
        {
            aged(&folder.join(name), days);
        }
        folder
    };
    let log = log_of(&env, &id);
    let tell = |child: &str, event: &str| {
        let fact = json!({"event": event, "subagent_id": child, "status": event});
        crate::subagents::scripted_family::append(&log, "subagent_event", &fact);
    };
    let done = plant("sub_done", 50);
    let lost = plant("sub_lost", 50);
    let new = plant("sub_new", 2);
    let nobodys = plant("sub_nobody", 50);
    for (child, event) in
        [("sub_done", "started"), ("sub_done", "finished"), ("sub_lost", "started")]
    {
        tell(child, event);
    }
    assert_eq!(named_garbage(&gc(&env, &[])), [], "old items are removed only with --older-than");
    let plan = gc(&env, &["--older-than", "30d"]);
    let expected =
        ["sub_done", "sub_nobody"].map(|name| ("subagent_folder".to_owned(), name.to_owned()));
    assert_eq!(named_garbage(&plan), expected);
    assert!(done.join("workspace/src/a.rs").exists(), "a preview changes nothing");
    let cleared = gc(&env, &["--older-than", "30d", "--apply"]);
    assert_eq!((&cleared["removed"]["count"], &cleared["failed"]), (&json!(2), &json!([])));
    for folder in [&done, &nobodys] {
        assert!(
            !folder.join("workspace/src").exists()
                && !folder.join("workspace/notes.ndjson").exists()
        );
        assert_eq!(
            fs::read_to_string(folder.join("workspace/.pixir/sessions/x.ndjson")).unwrap(),
            "words"
        );
    }
    for folder in [&lost, &new] {
        assert!(folder.join("workspace/src/a.rs").exists(), "{}", folder.display());
    }
    assert_eq!(named_garbage(&gc(&env, &["--older-than", "30d"])), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn workspaces_that_are_gone_leave_the_list() {
    let (env, _) = new_test_env().await;
    let list = env.home().join(".pixir/workspaces.json");
    let here = env.workspace().canonicalize().unwrap();
    fs::write(&list, json!({"version": 1, "workspaces": ["/nowhere/at/all", here]}).to_string())
        .unwrap();
    assert_eq!(gc(&env, &["--all"])["gone_workspaces"], json!(["/nowhere/at/all"]));
    gc(&env, &["--all", "--apply"]);
    let left: Value = serde_json::from_slice(&fs::read(&list).unwrap()).unwrap();
    assert_eq!(left["workspaces"], json!([here]));
}

/// Two collections at once, one of them killed: remaining Sessions are whole, and the next run removes the rest.
#[tokio::test(flavor = "multi_thread")]
async fn killed_in_the_middle_and_run_twice_at_once_it_does_no_harm() {
    let (env, id) = new_test_env().await;
    let rounds = SuiteSize::from_environment().choose(8, 80);
    let seed = torture::seed();
    let mut random = fastrand::Rng::with_seed(seed);
    let whole = fs::read(log_of(&env, &id)).unwrap();
    let sessions = env.workspace().join(".pixir/sessions");
    let mut killed = 0;
    for _ in 0..rounds {
        for number in 0..60 {
            let name = format!("20200101T000000-{number:06x}");
            fs::write(sessions.join(format!("{name}.ndjson")), &whole).unwrap();
            fs::create_dir_all(sessions.join(&name).join("output")).unwrap();
            fs::write(sessions.join(&name).join("output/x"), "x").unwrap();
            aged(&sessions.join(format!("{name}.ndjson")), 50);
        }
        let args = ["gc", "--apply", "--older-than", "30d", "--json"];
        let start = || env.command(&args).spawn().unwrap();
        let mut one = start();
        let other = start();
        std::thread::sleep(Duration::from_micros(random.u64(0..60_000)));
        one.kill().unwrap();
        killed += usize::from(one.wait().unwrap().code().is_none());
        let other = other.wait_with_output().unwrap();
        leaks::check_stream(&String::from_utf8_lossy(&[other.stdout, other.stderr].concat()));
        assert!(other.status.success());
        gc(&env, &["--apply", "--older-than", "30d"]);
        assert_eq!(log_files(&env.workspace()).len(), 1, "seed {seed}");
        // Folders whose Log was removed before the kill are too young; an hour later they are removed.
        for entry in fs::read_dir(&sessions).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() && !path.ends_with(&id) {
                aged(&path, 1);
            }
        }
        gc(&env, &["--apply"]);
        let left: Vec<_> =
            fs::read_dir(&sessions).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert!(left.len() <= 2, "seed {seed}: {left:?}");
    }
    env.run_pixir(&["verify", &id]).assert_exit_code(0);
    assert!(killed > 0, "every one of {rounds} collections ended before its kill");
    torture::print_summary(&format!("{killed} of {rounds} collections killed, seed {seed}"));
}
