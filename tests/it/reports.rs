//! Output of reading commands: unreadable Sessions, changed lines, missing objects, and
//! singular and plural.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use pixir::scripted::{ModelScript, Reply, ScriptedIssuer};
use serde_json::{Value, json};

use crate::support::sign_in_env::{RunOutput, run_command};
use crate::support::test_env::{PIXIR, log_files};
use crate::support::{BinaryEnv, TestEnv, leaks, torture};

const NOBODY: u32 = 65_534;

fn allow(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// Runs the binary as a user who may not read `closed`; `None` where that is not possible.
fn as_other_user(env: &TestEnv, closed: &Path, args: &[&str]) -> Option<RunOutput> {
    let home = tempfile::tempdir().unwrap();
    as_other_user_in(home.path(), env, closed, args)
}

/// Runs the binary as a user who may not read `closed`, with this home.
fn as_other_user_in(home: &Path, env: &TestEnv, closed: &Path, args: &[&str]) -> Option<RunOutput> {
    let mut command = env.command(args);
    command.env("HOME", home);
    if rustix::process::geteuid().is_root() {
        let can_run = Command::new(PIXIR).arg("--version").uid(NOBODY).output();
        if !can_run.is_ok_and(|output| output.status.success()) {
            torture::print_summary("another user cannot run the program where it was built");
            return None;
        }
        chown(home, Some(NOBODY), Some(NOBODY)).unwrap();
        for folder in [env.workspace(), env.workspace().parent().unwrap().to_owned()] {
            allow(&folder, 0o755);
        }
        command.uid(NOBODY).gid(NOBODY);
        return Some(run_command(&mut command));
    }
    allow(closed, 0o000);
    let run = run_command(&mut command);
    allow(closed, 0o700);
    Some(run)
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_that_may_not_be_read_are_named_with_their_owner() {
    let env = TestEnv::with_replies([Reply::says("ok"), Reply::says("ok")]).await;
    env.run_pixir(&["hi"]).assert_exit_code(0);
    // The files belong to the user who runs this test; root reads them as another user.
    let owner = if rustix::process::geteuid().is_root() { "root" } else { "you" };
    let is_named = |text: &str| text.contains(&format!("(it belongs to {owner})"));
    let state = env.workspace().join(".pixir");
    let sessions = state.join("sessions");
    for closed in [&state, &sessions] {
        allow(&state, if closed == &state { 0o700 } else { 0o755 });
        let commands: [&[&str]; 7] = [
            &["sessions"],
            &["sessions", "--json"],
            &["verify", "--all"],
            &["tree", "--all"],
            &["usage"],
            &["resume", "--last", "go on"],
            &["diagnose"],
        ];
        for args in commands {
            let Some(run) = as_other_user(&env, closed, args) else { return };
            let run = run.assert_exit_code(1);
            let text = format!("{args:?}: {} {}", run.err, run.out);
            assert!(text.contains("cannot be read: permission denied"), "{text}");
            let place = closed.canonicalize().unwrap();
            assert!(text.contains(place.to_str().unwrap()), "{text}");
            assert!(is_named(&text), "{text}");
            let chmod = format!("chmod u+rwx {}", place.display());
            assert_eq!(text.contains(&chmod), owner == "you", "{text}");
            assert_eq!(
                text.contains("run pixir as the owner of the folder"),
                owner != "you",
                "{text}"
            );
            assert!(!text.contains("there are no Sessions"), "{text}");
        }
    }
    // One unreadable Log in a readable folder.
    allow(&sessions, 0o755);
    let log = log_files(&env.workspace()).pop().unwrap();
    let run = as_other_user(&env, &log, &["sessions"]).unwrap().assert_exit_code(0);
    let id = log.file_stem().unwrap().to_str().unwrap();
    assert!(run.out.contains(id) && run.out.contains("unreadable"), "{}", run.out);
    assert!(run.err.contains("cannot be read") && is_named(&run.err), "{}", run.err);
    // Without state, the message says that there are no Sessions.
    fs::remove_dir_all(&state).unwrap();
    let run = as_other_user(&env, &env.home(), &["--version"]).unwrap();
    assert_eq!(run.code, Some(0));
    assert!(
        env.run_pixir(&["sessions"]).assert_exit_code(0).err.contains("there are no Sessions yet")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_own_folder_that_is_closed_needs_no_other_user() {
    let env = TestEnv::with_replies([Reply::says("ok")]).await;
    env.run_pixir(&["hi"]).assert_exit_code(0);
    let state = env.workspace().join(".pixir");
    if rustix::process::geteuid().is_root() {
        chown(&state, Some(NOBODY), Some(NOBODY)).unwrap();
        allow(&state, 0o000);
    }
    let Some(text) = as_other_user(&env, &state, &["sessions"]) else { return };
    let text = text.assert_exit_code(1).err;
    let place = state.canonicalize().unwrap();
    assert!(text.contains("(it belongs to you)"), "{text}");
    assert!(text.contains(&format!("permissions: chmod u+rwx {}\n", place.display())), "{text}");
    assert!(!text.contains("run pixir as"), "{text}");
    allow(&state, 0o700);
}

/// A second user has Sessions of this Workspace in their home, beside those that they may not read.
#[tokio::test(flavor = "multi_thread")]
async fn a_tree_names_closed_folders_once_and_only_where_it_looks_into_them() {
    let env = TestEnv::with_replies((0..3).map(|_| Reply::says("ok"))).await;
    env.run_pixir(&["hi"]).assert_exit_code(0);
    let state = env.workspace().join(".pixir");
    let home = tempfile::tempdir().unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    if rustix::process::geteuid().is_root() {
        chown(elsewhere.path(), Some(NOBODY), Some(NOBODY)).unwrap();
    }
    let run = |args: &[&str]| as_other_user_in(home.path(), &env, &state, args);
    let Some(own) = run(&["own", "work"]) else { return };
    own.assert_exit_code(0);
    let folder = elsewhere.path().to_str().unwrap();
    let away =
        run(&["--cwd", folder, "--json", "work", "away"]).unwrap().assert_exit_code(0).envelope();
    let away = away["session_id"].as_str().unwrap().to_owned();
    for (args, times) in [(&["tree"][..], 1), (&["tree", "--all"], 1), (&["tree", &away], 0)] {
        let listed = run(args).unwrap().assert_exit_code(0);
        let count = listed.err.matches("cannot be read: permission denied").count();
        assert_eq!(count, times, "{args:?}: {}", listed.err);
    }
}

/// An environment whose Log has one Turn, with a word of its answer changed.
async fn changed_log() -> (TestEnv, String, usize) {
    let env = TestEnv::with_replies([Reply::says("four apples")]).await;
    env.run_pixir(&["how many?"]).assert_exit_code(0);
    let log = log_files(&env.workspace()).pop().unwrap();
    let text = fs::read_to_string(&log).unwrap();
    let line = text.lines().position(|line| line.contains("four apples")).unwrap() + 1;
    fs::write(&log, text.replace("four apples", "nine apples")).unwrap();
    let id = log.file_stem().unwrap().to_str().unwrap().to_owned();
    (env, id, line)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_line_is_not_called_proven_and_a_repair_says_that_it_kept_it() {
    let (env, id, line) = changed_log().await;
    let found = env.run_pixir(&["verify", &id, "--json"]).assert_exit_code(1).envelope();
    let output = &found["output"];
    let lines = output["lines"].as_u64().unwrap();
    assert_eq!(output["proven_lines"], lines - 1, "{output}");
    assert_eq!((&output["broken_lines"], &output["unproven_lines"]), (&json!(1), &json!(0)));
    assert_eq!(output["breaks"][0]["line"], line, "{output}");
    assert_eq!(found["error"]["message"], "1 of 1 Log does not hold");
    let run = env.run_pixir(&["verify", &id]).assert_exit_code(1).out;
    assert!(run.contains(&format!("{lines} lines, {} proven, 1 not proven", lines - 1)), "{run}");

    let run = env.run_pixir(&["repair", &id]).assert_exit_code(0).out;
    assert!(run.contains(&format!("line {line}, although its proof does not hold")), "{run}");
    let repaired = env.run_pixir(&["repair", &id, "--json"]).assert_exit_code(0).envelope();
    assert_eq!(repaired["output"]["unproven_lines_kept"], json!([line]), "{repaired}");
    let copy = repaired["session_id"].as_str().unwrap();
    let report = env.workspace().join(format!(".pixir/sessions/{copy}/repair.json"));
    let report: Value = serde_json::from_slice(&fs::read(report).unwrap()).unwrap();
    assert_eq!(report["unproven_lines_kept"], json!([line]));
    // Without a change, the output does not mention proofs.
    let sound = env.run_pixir(&["repair", copy]).assert_exit_code(0).out;
    assert!(!sound.contains("although"), "{sound}");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_thing_is_one_thing() {
    let env = TestEnv::with_replies([
        Reply::calls("bash", json!({"command": "true"})),
        Reply::says("ok"),
    ]);
    let env = env.await;
    env.run_pixir(&["hi"]).assert_exit_code(0);
    let log = log_files(&env.workspace()).pop().unwrap();
    let id = log.file_stem().unwrap().to_str().unwrap();
    let drafts = env.workspace().join(".pixir/sessions");
    fs::write(drafts.join(".x.pixir-new"), "left").unwrap();
    let texts = [
        env.run_pixir(&["gc"]).out,
        env.run_pixir(&["diagnose", id]).assert_exit_code(0).out,
        env.run_pixir(&["usage", id]).assert_exit_code(0).out,
        env.run_pixir(&["verify", id]).assert_exit_code(0).out,
    ];
    for text in texts {
        let words: Vec<&str> = text.split_whitespace().collect();
        for pair in words.windows(2) {
            let noun = pair[1].trim_matches(|c: char| !c.is_alphanumeric());
            let is_plural = noun.ends_with('s') && noun.len() > 3 && noun != "Unless";
            assert!(!(pair[0] == "1" && is_plural), "\"1 {noun}\" in {text}");
        }
    }
}

fn doctor(home: &Path, args: &[&str], variables: &[(&str, &str)]) -> Value {
    let work = home.join("work");
    fs::create_dir_all(&work).unwrap();
    let mut command = Command::new(PIXIR);
    command
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap())
        .env("HOME", home)
        .env("OPENAI_API_KEY", "sk-planted-key")
        .envs(variables.iter().copied())
        .current_dir(work)
        .args(["doctor", "--json"])
        .args(args);
    let run = run_command(&mut command);
    leaks::check_stream(&format!("{}{}", run.out, run.err));
    run.envelope()["output"]["checks"].clone()
}

fn message<'a>(checks: &'a Value, id: &str) -> Option<&'a str> {
    let found = checks.as_array().unwrap().iter().find(|check| check["id"] == id);
    found.map(|check| check["message"].as_str().unwrap())
}

#[test]
fn the_doctor_does_not_praise_what_is_not_there() {
    let home = tempfile::tempdir().unwrap();
    let checks = doctor(home.path(), &[], &[]);
    for (id, expected) in [
        ("logs", "no Logs yet"),
        ("git", "not a git repository"),
        ("instructions", "no AGENTS.md"),
        ("setting", "no setting names a file or program"),
        ("environment", "no PIXIR_ variable is set"),
        ("mcp", "no MCP servers"),
    ] {
        assert_eq!(message(&checks, id), Some(expected));
    }
    let work = home.path().join("work");
    fs::write(work.join("AGENTS.md"), "Be brief.").unwrap();
    fs::create_dir(work.join(".git")).unwrap();
    fs::write(work.join(".git/HEAD"), "ref: refs/heads/main\n").unwrap();
    let own = [("OPENAI_BASE_URL", "http://127.0.0.1:9/v1"), ("OPENAI_API_KEY", "")];
    let checks = doctor(home.path(), &[], &own);
    assert_eq!(message(&checks, "credential"), Some("none, this server needs no key"));
    let checks = doctor(home.path(), &[], &[("PIXIR_MODEL", "gpt-5.5")]);
    assert_eq!(message(&checks, "instructions"), Some("AGENTS.md is used whole"));
    assert_eq!(message(&checks, "environment"), Some("the one PIXIR_ variable is known"));
    assert!(message(&checks, "git").unwrap().starts_with("HEAD is there"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_of_ones_own_says_what_to_ask_and_nothing_about_openai() {
    let binary_env = BinaryEnv::new(BinaryEnv::new_mark(), ModelScript::new([])).await;
    let local = binary_env.server.portable_url();
    binary_env.configure(&json!({"providers": {
        "empty": {"base_url": local},
        "named": {"base_url": local, "models": ["m"]},
    }}));
    for (name, words) in [
        ("empty", "provider `empty` has not been asked yet"),
        ("named", "the models that the settings name for provider `named`"),
    ] {
        let run = binary_env.run(&["models", "--provider", name]);
        run.expect_code(0);
        assert!(run.stderr.contains(words), "{}", run.stderr);
        let refresh = format!("`pixir models refresh --provider {name}`");
        assert!(run.stderr.contains(&refresh), "{}", run.stderr);
    }
    binary_env.run(&["models", "refresh", "--provider", "named"]).expect_code(0);
    let run = binary_env.run(&["models", "--provider", "named"]);
    assert!(!run.stderr.contains("refresh"), "{}", run.stderr);

    // An issuer that does not answer would be a warning or a failure.
    let issuer = ScriptedIssuer::start().await.unwrap();
    let gone = issuer.base_url();
    drop(issuer);
    let online = |args: &[&str]| -> Value {
        let mut command = binary_env.command(&[&["doctor", "--online", "--json"], args].concat());
        command.env("PIXIR_AUTH_ISSUER", &gone);
        let ended = crate::support::binary_env::RunningProcess::start(&mut command).end();
        serde_json::from_str::<Value>(&ended.stdout).unwrap()["output"]["checks"].clone()
    };
    let own = online(&["--provider", "named"]);
    assert!(message(&own, "endpoint").unwrap().contains("answers"), "{own}");
    assert_eq!(message(&own, "issuer"), None);
    // With OPENAI_BASE_URL no sign-in is used.
    assert_eq!(message(&online(&[]), "issuer"), None);
}

#[test]
fn a_demo_says_how_to_remove_what_it_leaves() {
    let home = tempfile::tempdir().unwrap();
    let demo = |args: &[&str]| {
        let mut command = Command::new(PIXIR);
        command
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap())
            .env("HOME", home.path())
            .env("TMPDIR", home.path())
            .current_dir(home.path())
            .stdin(std::process::Stdio::null())
            .args(args);
        run_command(&mut command).assert_exit_code(0)
    };
    for args in [&["demo"][..], &["demo", "--json"]] {
        let run = demo(args);
        let text = format!("{}{}", run.out, run.err);
        let command = text.lines().find(|line| line.trim().starts_with("rm -r ")).unwrap();
        let folder = command.trim().trim_start_matches("rm -r ");
        assert!(folder.contains("pixir-demo-") && Path::new(folder).is_dir(), "{text}");
        // The command can be pasted into a shell.
        let pasted = Command::new("/bin/sh").args(["-c", command.trim()]).status().unwrap();
        assert!(pasted.success() && !Path::new(folder).exists(), "{command}");
    }
}
