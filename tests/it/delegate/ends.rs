//! Delegations that end early: the time limit, signals, and refusals.

use std::io::Write;
use std::process::Stdio;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use pixir::scripted::{ModelScript, Reply};
use serde_json::{Value, json};

use super::{adds_up, fits, hand_over, new_test_env, statuses};
use crate::subagents::scripted_family::check_family_logs;
use crate::support::TestEnv;
use crate::support::sign_in_env::{RunOutput, run_command};
use crate::support::test_env::log_files;
use crate::workflows::scripted_steps::{root_log, workflow_facts};

/// Whether a process with this mark in its arguments is alive.
fn is_alive(mark: &str) -> bool {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let mut processes = entries.filter_map(|entry| {
        let name = entry.file_name().to_string_lossy().parse::<u32>().ok()?;
        std::fs::read(format!("/proc/{name}/cmdline")).ok()
    });
    processes.any(|words| String::from_utf8_lossy(&words).contains(mark))
}

/// Tasks that never end by themselves.
const SLEEPERS: [&str; 3] = ["one", "two", "three"];

/// A test environment whose children run a command that never ends, and report that in a file of their folder.
async fn sleepers(mark: &str) -> TestEnv {
    let mark = mark.to_owned();
    let env = new_test_env(move |request| match request.step() {
        "quick" => Reply::says("Done."),
        step => {
            let command = format!("touch {step}/here; sleep 6{mark} & sleep 6{mark}; wait");
            Reply::calls("bash", json!({"command": command}))
        }
    })
    .await;
    for id in SLEEPERS {
        std::fs::create_dir(env.workspace().join(id)).unwrap();
    }
    env
}

/// Whether all of them run their commands.
fn all_sleep(env: &TestEnv) -> bool {
    SLEEPERS.iter().all(|id| env.workspace().join(id).join("here").exists())
}

fn sleeping_tasks() -> Value {
    let writer = |id: &str| {
        json!({"id": id, "task": id, "posture": "write", "workspace": "shared", "read_set": [],
            "write_set": format!("{id}/")})
    };
    let [one, two, three] = SLEEPERS.map(writer);
    json!([{"id": "quick", "task": "quick", "read_set": "docs/**"}, one, two, three])
}

#[tokio::test(flavor = "multi_thread")]
async fn at_the_horizon_everything_is_cancelled_and_recorded() {
    // On a slow machine a near time limit may pass before the commands start; then a later one is tried.
    for (number, horizon) in [4_000, 12_000, 36_000].into_iter().enumerate() {
        let mark = format!("{}1{number}", std::process::id());
        let env = sleepers(&mark).await;
        let spec = json!({"tasks": sleeping_tasks(), "limits": {"timeout_ms": horizon}});
        let envelope = hand_over(&env, &spec, &[], 124);
        let output = &envelope["output"];
        assert_eq!(
            (&envelope["status"], &envelope["error"]["kind"]),
            (&json!("timed_out"), &json!("timeout"))
        );
        assert_eq!(output["reason"], "deadline");
        assert!(!is_alive(&format!("sleep 6{mark}")), "nothing survives");
        check_family_logs(&env.workspace());
        let log = root_log(&env.workspace());
        let last = workflow_facts(&log).pop().unwrap();
        assert_eq!((&last["kind"], &last["reason"]), (&json!("finished"), &json!("deadline")));
        let decided =
            workflow_facts(&log).into_iter().filter(|fact| fact["kind"] == "checkpoint_decided");
        assert_eq!(decided.count(), 4, "every child has its end in the Log");
        if all_sleep(&env) {
            assert_eq!(statuses(output)[1..], ["timed_out"; 3]);
            return;
        }
    }
    panic!("the commands never started");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_cancels_all_children_and_still_answers() {
    for (number, signal) in [Signal::SIGINT, Signal::SIGTERM].into_iter().enumerate() {
        let mark = format!("{}2{number}", std::process::id());
        let env = sleepers(&mark).await;
        env.write("spec.json", json!({"tasks": sleeping_tasks()}).to_string());
        let mut command = env.command(&["delegate", "--spec", "spec.json", "--json", "--progress"]);
        let child = command.spawn().unwrap();
        let deadline = Instant::now() + Duration::from_mins(1);
        while !all_sleep(&env) {
            assert!(Instant::now() < deadline, "the commands never started");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        kill(Pid::from_raw(i32::try_from(child.id()).unwrap()), signal).unwrap();
        let run = RunOutput::from_output(child.wait_with_output().unwrap()).assert_exit_code(130);
        let envelope = run.envelope();
        fits("envelope", &envelope);
        let output = &envelope["output"];
        adds_up(output);
        assert_eq!(
            (&output["status"], &output["reason"]),
            (&json!("cancelled"), &json!("cancelled"))
        );
        assert_eq!(statuses(output)[1..], ["cancelled"; 3]);
        assert!(!run.err.is_empty(), "no line of progress");
        for line in run.err.lines() {
            fits("progress", &serde_json::from_str(line).expect(line));
        }
        assert!(!is_alive(&format!("sleep 6{mark}")), "nothing survives");
        check_family_logs(&env.workspace());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_left_causes_no_more_spending() {
    let mark = format!("{}3", std::process::id());
    let env = sleepers(&mark).await;
    env.write("spec.json", json!({"tasks": sleeping_tasks()}).to_string());
    env.write("flow.json", json!({"id": "w", "steps": sleeping_tasks()}).to_string());
    let delegate = ["delegate", "--spec", "spec.json", "--json", "--progress"];
    let workflow = ["workflow", "run", "flow.json"];
    for args in [&delegate[..], &workflow[..]] {
        for id in SLEEPERS {
            std::fs::remove_file(env.workspace().join(id).join("here")).ok();
        }
        let mut child = env.command(args).spawn().unwrap();
        let deadline = Instant::now() + Duration::from_mins(1);
        while !all_sleep(&env) {
            assert!(Instant::now() < deadline, "the commands never started");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        drop(child.stdout.take());
        let deadline = Instant::now() + Duration::from_mins(1);
        while child.try_wait().unwrap().is_none() {
            if Instant::now() > deadline {
                child.kill().unwrap();
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let run = RunOutput::from_output(child.wait_with_output().unwrap()).assert_exit_code(130);
        assert!(!is_alive(&format!("sleep 6{mark}")), "nothing survives");
        assert!(run.err.contains("workflow status wf_"), "{}", run.err);
        if args == delegate {
            let last = run.err.lines().last().unwrap();
            let last: Value = serde_json::from_str(last).expect(last);
            fits("progress", &last);
            assert_eq!(
                (&last["type"], &last["error"]["message"]),
                (&json!("delegate_refused"), &json!("stdout was closed"))
            );
            let last = workflow_facts(&root_log(&env.workspace())).pop().unwrap();
            assert_eq!((&last["kind"], &last["reason"]), (&json!("finished"), &json!("cancelled")));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_cannot_be_written_is_said_once_and_can_be_had_again() {
    let env = new_test_env(|_| Reply::says("Done.")).await;
    env.write("spec.json", r#"{"tasks": ["one"]}"#);
    let mut command = env.command(&["delegate", "--spec", "spec.json", "--json", "--quiet"]);
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let run = run_command(command.stdout(full)).assert_exit_code(1);
    assert_eq!(run.err.matches("stdout cannot be written").count(), 1, "{}", run.err);
    let status = run.err.split("workflow status ").nth(1).expect(&run.err).trim();
    let status_run = env.run_pixir(&["workflow", "status", status]).assert_exit_code(0);
    assert!(status_run.out.contains("1 of 1 step ready"), "{}", status_run.out);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_may_only_read_cannot_have_others_write() {
    let env = new_test_env(|_| Reply::says("never asked")).await;
    let spec = json!({"tasks": ["look", {"task": "change it", "posture": "write"}]});
    // A read-only role has the same effect as the flag.
    for flags in [&["--read-only"][..], &["--role", "plan"]] {
        let envelope = hand_over(&env, &spec, flags, 3);
        assert_eq!(envelope["error"]["kind"], "permission_denied");
        assert_eq!(envelope["error"]["details"]["children"], json!([1]));
    }
    assert!(env.requests().is_empty() && log_files(&env.workspace()).is_empty());
    // A delegation that only reads is accepted.
    let output = hand_over(&env, &json!({"tasks": ["look"]}), &["--read-only"], 0);
    assert_eq!(output["output"]["status"], "completed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_credential_that_is_missing_or_refused_is_told_apart_from_bad_work() {
    let refusing = ModelScript::answering(|_| {
        Reply::status(401, r#"{"error": {"code": "invalid_api_key", "message": "no"}}"#)
    });
    let env = TestEnv::with_script(refusing).await;
    let spec = json!({"tasks": ["one", "two"]});
    let envelope = hand_over(&env, &spec, &[], 4);
    assert_eq!(
        (&envelope["status"], &envelope["error"]["kind"]),
        (&json!("error"), &json!("auth_refused"))
    );
    assert_eq!(statuses(&envelope["output"]), ["failed"; 2]);
    let before = log_files(&env.workspace()).len();
    let mut command = env.command(&["delegate", "--spec", "spec.json", "--json"]);
    command.env_remove("OPENAI_API_KEY").env_remove("OPENAI_BASE_URL");
    let envelope = run_command(&mut command).assert_exit_code(4).envelope();
    fits("envelope", &envelope);
    assert_eq!(envelope["output"], Value::Null);
    assert_eq!(log_files(&env.workspace()).len(), before, "nothing was started");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_cannot_be_written_is_its_own_end() {
    let env = new_test_env(|_| Reply::says("never asked")).await;
    let mut command =
        env.command(&["delegate", "--cwd", "/proc", "--spec", "-", "--json", "--progress"]);
    command.env("PIXIR_HOME", "/proc/pixir");
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(br#"{"tasks": ["one"]}"#).unwrap();
    let run = RunOutput::from_output(child.wait_with_output().unwrap()).assert_exit_code(7);
    let envelope = run.envelope();
    fits("envelope", &envelope);
    assert_eq!(envelope["error"]["kind"], "log_write_failed");
    let line: Value = serde_json::from_str(run.err.trim_end()).unwrap();
    fits("progress", &line);
    assert_eq!((&line["type"], &line["exit_code"]), (&json!("delegate_refused"), &json!(7)));
    assert!(env.requests().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreadable_answer_is_not_taken_for_a_good_one() {
    let env = new_test_env(|request| {
        if request.step() == "lost" {
            // The Log is removed right before the last message.
            let is_own = |path: &std::path::PathBuf| {
                std::fs::read_to_string(path).unwrap().contains("\"text\":\"the lost one")
            };
            let own = log_files(&request.workspace).into_iter().find(is_own).unwrap();
            std::fs::rename(&own, own.with_extension("away")).unwrap();
        }
        Reply::says("It did not work.\ncheckpoint_status: failed")
    })
    .await;
    let spec = json!({"tasks": [{"id": "lost", "task": "the lost one"}]});
    let output = hand_over(&env, &spec, &[], 6)["output"].clone();
    assert_eq!(statuses(&output), ["failed"]);
    assert_eq!(output["children"][0]["reason"], "tool_error", "its answer was not recorded");
}
