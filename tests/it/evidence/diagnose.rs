//! `pixir diagnose`: ends of Turns, damage and its place, and next actions.

use std::fs;
use std::io::Write;

use serde_json::{Value, json};

use super::{log_of, new_test_env};
use crate::support::TestEnv;

fn diagnosed(env: &TestEnv, id: &str, more: &[&str]) -> (Option<i32>, Value) {
    let run = env.run_pixir(&[&["diagnose", id, "--json"], more].concat());
    (run.code, run.envelope())
}

fn check<'a>(envelope: &'a Value, id: &str) -> &'a Value {
    let checks = envelope["output"]["checks"].as_array().unwrap();
    checks.iter().find(|check| check["id"] == id).unwrap_or_else(|| panic!("{id}: {envelope}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sound_session_is_explained_turn_by_turn() {
    let (env, id) = new_test_env().await;
    let (code, found) = diagnosed(&env, &id, &[]);
    let output = &found["output"];
    assert_eq!((code, &found["ok"]), (Some(0), &json!(true)), "{found}");
    let statuses: Vec<&str> = output["turns"]
        .as_array()
        .unwrap()
        .iter()
        .map(|turn| turn["status"].as_str().unwrap())
        .collect();
    assert_eq!(statuses, ["answered", "provider_error", "answered"]);
    assert_eq!(output["turns"][0]["tool_calls"], 3);
    assert_eq!(output["turns"][0]["tool_failures"], 1, "bash exited with 3");
    assert_eq!(output["last_success"], 3);
    // A failure before a later successful answer is reported without a warning.
    let failures = check(&found, "failures");
    assert_eq!((&failures["status"], &failures["details"]["past"]), (&json!("passed"), &json!(1)));
    assert_eq!(output["usage"]["calls"], 5);
    assert_eq!(check(&found, "replay")["status"], "passed");
    let (_, since) = diagnosed(&env, &id, &["--since-success"]);
    assert_eq!(since["output"]["turns"], json!([]));
    let words = env.run_pixir(&["diagnose", &id]).assert_exit_code(0).out;
    for expected in ["3 Turns", "provider_error", "ok      replay", "ok      tool_pairing"] {
        assert!(words.contains(expected), "{words}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_that_nothing_has_overtaken_says_what_to_do() {
    let (env, id) = new_test_env().await;
    env.run_pixir(&["resume", &id, "fail"]).assert_exit_code(1);
    let (code, found) = diagnosed(&env, &id, &["--since-success"]);
    assert_eq!(code, Some(0), "nothing is damaged: {found}");
    let failures = check(&found, "failures");
    assert_eq!(failures["status"], "warning");
    assert_eq!(failures["details"]["since_success"], json!([4]));
    assert_eq!(found["output"]["turns"].as_array().unwrap().len(), 1);
    assert!(found["output"]["next_actions"].to_string().contains("pixir resume"), "{found}");
}

#[tokio::test(flavor = "multi_thread")]
async fn damage_is_named_with_its_place() {
    let (env, id) = new_test_env().await;
    let path = log_of(&env, &id);
    let whole = fs::read(&path).unwrap();
    let line_ends: Vec<usize> = whole
        .iter()
        .enumerate()
        .filter(|(_, byte)| **byte == b'\n')
        .map(|(place, _)| place)
        .collect();
    let at = line_ends[3] + 1;
    let harmed = [&whole[..at], b"{rubbish\n", &whole[at..]].concat();
    fs::write(&path, harmed).unwrap();
    let (code, found) = diagnosed(&env, &id, &[]);
    assert_eq!((code, &found["error"]["kind"]), (Some(1), &json!("log_damaged")));
    let first = &check(&found, "log")["details"]["breaks"][0];
    assert_eq!(
        (&first["line"], &first["offset"], &first["kind"]),
        (&json!(5), &json!(at), &json!("unreadable_line"))
    );
    assert!(
        found["output"]["next_actions"][0].as_str().unwrap().contains("pixir verify"),
        "{found}"
    );
    // The rest of the Log is still checked.
    assert_eq!(found["output"]["turns"].as_array().unwrap().len(), 3);
    assert_eq!(check(&found, "replay")["status"], "passed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cut_turn_an_open_lock_and_the_future_are_told_apart() {
    let (env, id) = new_test_env().await;
    let path = log_of(&env, &id);
    let whole = fs::read_to_string(&path).unwrap();
    let call = whole.lines().position(|line| line.contains("\"type\":\"tool_call\"")).unwrap();
    let cut: String = whole.split_inclusive('\n').take(call + 1).collect();
    fs::write(&path, &cut).unwrap();
    let (code, found) = diagnosed(&env, &id, &[]);
    assert_eq!(code, Some(0), "{found}");
    assert_eq!(check(&found, "turn_end")["status"], "warning");
    assert_eq!(
        check(&found, "tool_pairing")["details"]["calls_without_result"].as_array().unwrap().len(),
        1
    );
    assert_eq!(check(&found, "replay")["status"], "passed", "the fold closes it");

    let mut held = fs::File::options().append(true).open(&path).unwrap();
    held.lock().unwrap();
    let (_, found) = diagnosed(&env, &id, &[]);
    assert_eq!(found["output"]["holder_pid"], std::process::id());
    assert_eq!(check(&found, "turn_end")["message"], "Turn 1 is running");
    assert_eq!(check(&found, "tool_pairing")["status"], "passed");

    held.write_all(b"{\"id\":\"0\",\"session_id\":\"x\",\"seq\":90,\"ts\":\"x\",\"type\":\"hologram\",\"data\":{}}\n").unwrap();
    let (_, found) = diagnosed(&env, &id, &[]);
    assert_eq!(check(&found, "unknown_events")["details"]["types"], json!({"hologram": 1}));
}

#[tokio::test(flavor = "multi_thread")]
async fn where_it_comes_from_and_what_came_of_it() {
    let (env, id) = new_test_env().await;
    let made = env.run_pixir(&["fork", &id, "--at", "1", "--json"]).assert_exit_code(0).envelope();
    let child = made["session_id"].as_str().unwrap();
    let (_, parent) = diagnosed(&env, &id, &[]);
    assert_eq!(parent["output"]["lineage"]["forks"], json!([child]));
    let (_, fork) = diagnosed(&env, child, &[]);
    assert_eq!(fork["output"]["lineage"]["parent_session_id"], json!(id));
    assert_eq!(fork["output"]["lineage"]["parent_is_here"], true);
}
