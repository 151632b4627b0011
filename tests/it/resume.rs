//! Resuming: after a move, with Logs of the first Pixir, over damage, and across versions.

use std::fs;
use std::path::Path;

use pixir::scripted::{ModelScript, ReceivedRequest, Reply};
use pixir::{SessionId, verify_log};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::support::BinaryEnv;
use crate::support::binary_env::{ProcessOutput, RunningProcess};

const FIRST_PIXIR: &[u8] = include_bytes!("../fixtures/first-pixir.ndjson");
const FIRST_ID: &str = "20260721T101112-abcdef";

/// Length in bytes of `,"h":"…"}` and a newline.
const PROOF: usize = 25;

/// Replies of a model that runs one command in every Turn, and then answers.
fn reply(request: &ReceivedRequest) -> Reply {
    match request.outputs().len() {
        0 => Reply::new()
            .reasoning("Hm.")
            .text("Let me see.")
            .call("bash", json!({"command": format!("echo {}", request.user_texts().len())})),
        _ => Reply::says("So it is."),
    }
}

async fn new_binary_env() -> BinaryEnv {
    BinaryEnv::new(BinaryEnv::new_mark(), ModelScript::answering(reply)).await
}

/// A test environment with a Session of one Turn.
async fn env_with_session() -> (BinaryEnv, SessionId) {
    let env = new_binary_env().await;
    env.run(&["what is it?"]).expect_code(0);
    let (id, _) = env.session().unwrap();
    (env, id)
}

/// Writes a Log into the Workspace.
fn place_log(env: &BinaryEnv, id: &str, bytes: &[u8]) {
    let sessions = env.workspace().join(".pixir/sessions");
    fs::create_dir_all(&sessions).unwrap();
    fs::write(sessions.join(format!("{id}.ndjson")), bytes).unwrap();
}

fn last_request(env: &BinaryEnv) -> ReceivedRequest {
    env.server.requests().pop().unwrap()
}

fn run_in(env: &BinaryEnv, folder: &Path, args: &[&str]) -> ProcessOutput {
    RunningProcess::start(env.command(args).current_dir(folder)).end()
}

#[track_caller]
fn assert_answered(ended: &ProcessOutput) {
    ended.expect_code(0);
    assert_eq!(ended.stdout, "So it is.\n");
}

/// The proof of a line, computed from the documented format and not by the code under test.
fn proof(previous: &str, line: &str) -> String {
    let digest = Sha256::digest(format!("{previous}{line}"));
    let start = u64::from_be_bytes(digest[..8].try_into().unwrap());
    format!("{start:016x}")
}

/// A line with its proof, to be appended to the Log.
fn proven(log: &str, event: &Value) -> String {
    let last: Value = serde_json::from_str(log.lines().last().unwrap()).unwrap();
    let text = event.to_string();
    let body = text.strip_suffix('}').unwrap();
    format!("{body},\"h\":\"{}\"}}\n", proof(last["h"].as_str().unwrap(), body))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_is_chained_as_the_contract_says() {
    let (env, id) = env_with_session().await;
    env.run(&["resume", id.as_str(), "and now?"]).expect_code(0);
    let log = fs::read_to_string(env.session().unwrap().1).unwrap();
    let mut previous = String::new();
    for line in log.split_inclusive('\n') {
        let event: Value = serde_json::from_str(line).unwrap();
        let proven = proof(&previous, &line[..line.len() - PROOF]);
        assert_eq!(event["h"], proven, "{line}");
        assert!(line.ends_with(&format!(",\"h\":\"{proven}\"}}\n")), "{line}");
        previous = proven;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_workspace_that_moved_keeps_its_sessions() {
    let (env, id) = env_with_session().await;
    let moved = env.workspace().with_file_name("elsewhere");
    fs::rename(env.workspace(), &moved).unwrap();
    let ended = run_in(&env, &moved, &["resume", id.as_str(), "and here?"]);
    assert_answered(&ended);
    assert_eq!(last_request(&env).user_texts(), ["what is it?", "and here?"]);
    let verified = verify_log(&moved, &id).unwrap();
    assert!(verified.ok && verified.turns == 2, "{:?}", verified.breaks);
    assert!(!env.workspace().exists(), "no file is made at the old path");
    // The Workspace is known from its use, so the Session is found from any folder.
    fs::create_dir(env.workspace()).unwrap();
    assert_answered(&env.run(&["resume", id.as_str(), "and from afar?"]));
    assert_eq!(verify_log(&moved, &id).unwrap().turns, 3);
    assert!(!env.workspace().join(".pixir/sessions").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn every_command_opens_a_log_of_the_first_pixir() {
    const EVERY: &[(&[&str], &str)] = &[
        (&["tree", "ID"], "count the files"),
        (&["tree", "--last"], "count the files"),
        (&["export", "ID"], "and now delegate"),
        (&["export", "--last", "--format", "json"], "and now delegate"),
        (&["inspect-replay", "ID", "--items"], "[Checkpoint"),
        (&["inspect-replay", "--last", "--after-seq", "4"], "tokens"),
        (&["diagnose", "--last"], "Turns"),
        (&["verify", "--last"], FIRST_ID),
        (&["usage", "ID"], "gpt-5.5"),
        (&["compact", "ID", "--dry-run"], ""),
        (&["compact", "--last", "--keep-turns", "1"], ""),
        (&["fork", "ID", "--dry-run"], ""),
        (&["fork", "ID", "--at", "1", "--summarize"], "resume"),
        (&["undo", "ID", "--dry-run"], "and now delegate"),
        (&["undo", "--yes", "ID"], "and now delegate"),
        (&["redo", "--yes", "ID"], "and now delegate"),
        (&["repair", "ID"], "was copied to"),
    ];
    for (words, expected) in EVERY {
        let env = new_binary_env().await;
        place_log(&env, FIRST_ID, FIRST_PIXIR);
        if words[0] == "redo" {
            env.run(&["undo", "--yes", FIRST_ID]).expect_code(0);
        }
        let args: Vec<&str> =
            words.iter().map(|word| if *word == "ID" { FIRST_ID } else { word }).collect();
        let ended = env.run(&args);
        ended.expect_code(0);
        assert!(!ended.stderr.contains("panicked"), "{words:?}: {}", ended.stderr);
        let all = format!("{}{}", ended.stdout, ended.stderr);
        assert!(all.contains(expected), "{words:?}: {all}");
        let path = env.workspace().join(format!(".pixir/sessions/{FIRST_ID}.ndjson"));
        let now = fs::read(&path).unwrap();
        assert!(now.starts_with(FIRST_PIXIR), "{words:?}: the old lines are as they were");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_of_the_first_pixir_goes_on() {
    let env = new_binary_env().await;
    place_log(&env, FIRST_ID, FIRST_PIXIR);
    let ended = env.run(&["resume", FIRST_ID, "and today?"]);
    assert_answered(&ended);
    assert!(!ended.stderr.contains("of the Log"), "no damage is reported: {}", ended.stderr);
    let (id, path) = env.session().unwrap();
    assert!(fs::read(path).unwrap().starts_with(FIRST_PIXIR), "the old lines are as they were");
    let verified = verify_log(&env.workspace(), &id).unwrap();
    assert!(verified.ok && verified.proven_lines > 0, "{:?}", verified.breaks);
    let request = last_request(&env);
    assert_eq!(request.user_texts().last(), Some(&"and today?"));
    // The checkpoint replaces the first Turn; later Turns are replayed unchanged.
    for text in ["Counted files.", "and now delegate", "All fine.", "Earlier branch."] {
        assert!(request.body_text.contains(text), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn damage_in_the_middle_is_reported_and_does_not_stop_a_resume() {
    let (env, id) = env_with_session().await;
    let path = env.session().unwrap().1;
    let log = fs::read_to_string(&path).unwrap();
    let damaged = log.replacen("\"type\":\"tool_result\"", "\"type\"?\"tool_result\"", 1);
    let line = damaged.lines().position(|line| line.contains("\"type\"?")).unwrap() + 1;
    fs::write(&path, &damaged).unwrap();
    let ended = env.run(&["resume", id.as_str(), "still there?"]);
    assert_answered(&ended);
    assert!(ended.stderr.contains(&format!("line {line} of the Log")), "{}", ended.stderr);
    assert!(fs::read_to_string(&path).unwrap().starts_with(&damaged), "nothing is touched");
    let run = env.run(&["verify", id.as_str()]);
    run.expect_code(1);
    assert!(run.stdout.contains(&format!("line {line}, offset ")), "{}", run.stdout);
    let repaired = env.run(&["repair", id.as_str(), "--json"]);
    repaired.expect_code(0);
    let envelope: Value = serde_json::from_str(&repaired.stdout).unwrap();
    let copy = envelope["session_id"].as_str().unwrap();
    env.run(&["verify", copy]).expect_code(0);
    assert_answered(&env.run(&["resume", copy, "and the copy?"]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_torn_tail_is_reported_once_and_closed() {
    let (env, id) = env_with_session().await;
    let path = env.session().unwrap().1;
    let log = fs::read(&path).unwrap();
    let torn = &log[..log.len() - 30];
    fs::write(&path, torn).unwrap();
    env.run(&["verify", id.as_str()]).expect_code(1);
    let ended = env.run(&["resume", id.as_str(), "go on from there"]);
    assert_answered(&ended);
    assert!(ended.stderr.contains("last line was torn"), "{}", ended.stderr);
    env.run(&["verify", id.as_str()]).expect_code(0);
    assert!(fs::read(&path).unwrap().starts_with(torn), "nothing is deleted");
    let again = env.run(&["resume", id.as_str(), "and again"]);
    assert_answered(&again);
    assert!(!again.stderr.contains("last line was torn"), "{}", again.stderr);
}

#[tokio::test(flavor = "multi_thread")]
async fn events_of_a_later_version_pass_unharmed() {
    let (env, id) = env_with_session().await;
    let path = env.session().unwrap().1;
    let mut log = fs::read_to_string(&path).unwrap();
    let future = json!({
        "id": "00000000000000ff", "session_id": id, "seq": log.lines().count(),
        "ts": "2027-01-01T00:00:00.000000Z", "type": "from_the_future",
        "data": {"z": 1, "a": [2.5, {"deep": "\u{2028}"}]}, "colour": "blue",
    });
    log.push_str(&proven(&log, &future));
    fs::write(&path, &log).unwrap();
    env.run(&["verify", id.as_str()]).expect_code(0);
    let ended = env.run(&["resume", id.as_str(), "did you see it?"]);
    assert_answered(&ended);
    assert!(!ended.stderr.contains("of the Log"), "not damage: {}", ended.stderr);
    assert!(fs::read_to_string(&path).unwrap().starts_with(&log));
    let verified = verify_log(&env.workspace(), &id).unwrap();
    assert!(verified.ok && verified.turns == 2, "{:?}", verified.breaks);
    assert!(!last_request(&env).body_text.contains("from_the_future"));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_log_is_a_session_that_has_not_begun() {
    // The process was killed between creating the file and writing the first line.
    let env = new_binary_env().await;
    place_log(&env, FIRST_ID, b"");
    env.run(&["verify", FIRST_ID]).expect_code(0);
    assert_answered(&env.run(&["resume", FIRST_ID, "begin now"]));
    env.run(&["verify", FIRST_ID]).expect_code(0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_does_not_exist_is_a_wrong_argument() {
    let env = new_binary_env().await;
    for id in ["20260101T000000-000000", "../../etc/passwd", "..", "a/b", ""] {
        for command in ["resume", "verify", "repair"] {
            let mut args = vec![command, id];
            args.extend((command == "resume").then_some("hello"));
            let ended = env.run(&args);
            assert_eq!(ended.status.code(), Some(2), "{args:?}: {ended:?}");
            assert!(ended.stdout.is_empty() && !ended.stderr.is_empty(), "{args:?}: {ended:?}");
        }
    }
    assert!(env.server.requests().is_empty());
    assert!(!env.workspace().join(".pixir").exists(), "a refused resume leaves no files");
}

/// A file that changed between two runs is not overwritten because of an earlier read.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_read_before_a_resume_is_still_known() {
    let edit = json!({"path": "a", "edits": [{"old_string": "one", "new_string": "two"}]});
    let script = ModelScript::new([
        Reply::calls("read", json!({"path": "a"})),
        Reply::says("Seen."),
        Reply::calls("edit", edit),
        Reply::says("Refused."),
    ]);
    let env = BinaryEnv::new(BinaryEnv::new_mark(), script).await;
    fs::write(env.workspace().join("a"), "one\n").unwrap();
    env.run(&["read it"]).expect_code(0);
    fs::write(env.workspace().join("a"), "theirs: one\n").unwrap();
    env.run(&["resume", "--last", "edit it"]).expect_code(0);
    assert_eq!(fs::read_to_string(env.workspace().join("a")).unwrap(), "theirs: one\n");
    let last = last_request(&env);
    let outputs = last.outputs();
    assert!(outputs.last().unwrap().contains("file_changed"), "{outputs:?}");
}
