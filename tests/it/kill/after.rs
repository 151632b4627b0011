//! Checks that must hold after a kill at any moment.

use std::collections::{HashMap, HashSet};
use std::fs;

use pixir::scripted::ReceivedRequest;
use pixir::verify_log;
use serde_json::Value;

use super::point::{KillPoint, KilledRun};
use super::turns::{FILE, GO_ON, SessionBeforeTurn, WENT_ON, content, read};
use crate::support::BinaryEnv;

/// The end of the Log after a kill, for the summary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogEnd {
    /// The process was killed before there was a Session.
    NoSession,
    /// The Log ended with a complete line.
    Whole,
    /// The Log ended in the middle of a line.
    Torn,
}

/// Checks the state after a kill, before the Session is resumed.
pub fn check_state_after_kill(
    env: &BinaryEnv,
    before: &SessionBeforeTurn,
    point: &KillPoint,
    killed_run: &KilledRun,
) -> LogEnd {
    env.assert_nothing_survives();
    let Some((_, path)) = env.session() else {
        assert!(before.id.is_none(), "{point:?}: the Log is gone");
        return LogEnd::NoSession;
    };
    let log = fs::read(&path).unwrap();
    for (what, earlier) in
        [("before the Turn", &before.log), ("before the kill", &killed_run.durable)]
    {
        assert!(log.starts_with(earlier), "{point:?}: the Log from {what} is not a prefix");
    }
    let found = check_honesty(env, point, &log);
    check_published(point, killed_run, &log);
    check_file(env, point, &log);
    found
}

/// Resumes the Session, and checks its Turns, its requests and its Log.
pub fn resume(env: &BinaryEnv, point: &KillPoint, found: LogEnd) {
    let (id, path) = env.session().unwrap();
    let log = fs::read(&path).unwrap();
    let ended = env.run(&["resume", id.as_str(), GO_ON]);
    assert_eq!(ended.status.code(), Some(0), "{point:?}: {ended:?}");
    assert_eq!(ended.stdout, format!("{WENT_ON}\n"), "{point:?}");
    let is_reported = ended.stderr.contains("the Log's last line was torn");
    assert_eq!(is_reported, found == LogEnd::Torn, "{point:?}: {}", ended.stderr);
    let resumed = fs::read(&path).unwrap();
    assert!(resumed.starts_with(&log), "{point:?}: resuming only appends");
    check_turns(point, &events(&resumed));
    check_pairs(point, env.server.requests().last().unwrap());
    let verified = env.run(&["verify", id.as_str(), "--json"]);
    assert_eq!(verified.status.code(), Some(0), "{point:?}: {verified:?}");
    let envelope: Value = serde_json::from_str(&verified.stdout).unwrap();
    assert_eq!(envelope["output"]["ok"], true, "{point:?}: {envelope}");
    env.assert_nothing_survives();
}

/// Checks that `verify` reports exactly the incomplete lines of the Log.
fn check_honesty(env: &BinaryEnv, point: &KillPoint, log: &[u8]) -> LogEnd {
    let (id, _) = env.session().unwrap();
    let seen = verify_log(&env.workspace(), &id).unwrap();
    let reported: Vec<_> = seen.breaks.iter().map(|b| (b.line, b.offset, b.length)).collect();
    let accounted: Vec<u64> = events(log)
        .iter()
        .filter(|event| event["type"] == "log_repaired")
        .map(|event| event["data"]["offset"].as_u64().unwrap())
        .collect();
    let mut expected = Vec::new();
    let mut offset = 0;
    for (line, number) in log.split_inclusive(|byte| *byte == b'\n').zip(1..) {
        let is_sound = line.ends_with(b"\n") && serde_json::from_slice::<Value>(line).is_ok();
        if !is_sound && !accounted.contains(&offset) {
            expected.push((number, offset, line.strip_suffix(b"\n").unwrap_or(line).len() as u64));
        }
        offset += line.len() as u64;
    }
    assert_eq!(
        (seen.ok, reported),
        (expected.is_empty(), expected),
        "{point:?}: {:?}",
        seen.breaks
    );
    if log.is_empty() || log.ends_with(b"\n") { LogEnd::Whole } else { LogEnd::Torn }
}

/// Checks that every published Event is in the Log.
fn check_published(point: &KillPoint, killed_run: &KilledRun, log: &[u8]) {
    if !point.events {
        return;
    }
    let ids: HashSet<String> = events(log).iter().map(|event| event["id"].to_string()).collect();
    for line in killed_run.ended.stdout.lines() {
        // The kill may cut the last line.
        let Ok(event) = serde_json::from_str::<Value>(line) else { continue };
        let is_durable = event["seq"].is_null() || ids.contains(&event["id"].to_string());
        assert!(is_durable, "{point:?}: published and not recorded: {line}");
    }
}

/// Checks that the file is old or new: new only after a recorded call, and always after a recorded success.
fn check_file(env: &BinaryEnv, point: &KillPoint, log: &[u8]) {
    let old = point.turn;
    let new = point.turn + 1;
    let version = match read(&env.workspace()) {
        None => 0,
        Some(text) => {
            let version = [old, new].into_iter().find(|version| content(*version) == text);
            version.unwrap_or_else(|| panic!("{point:?}: {FILE} has {} bytes", text.len()))
        }
    };
    assert!(version == old || version == new, "{point:?}: version {version}");
    let events = events(log);
    // Only the first change of each Turn changes the file, so the n-th change makes version n.
    let changes: Vec<&Value> = events
        .iter()
        .filter(|event| event["type"] == "tool_call" && event["data"]["args"]["path"] == FILE)
        .filter(|event| event["data"]["name"] != "read")
        .map(|event| &event["data"]["call_id"])
        .collect();
    assert!(version <= changes.len(), "{point:?}: changed before it was recorded");
    if let Some(call_id) = changes.get(old) {
        let is_done = events.iter().any(|event| {
            event["type"] == "tool_result"
                && event["data"]["call_id"] == **call_id
                && event["data"]["ok"] == true
        });
        assert!(!is_done || version == new, "{point:?}: recorded as done, but the file is old");
    }
}

/// Checks that every Turn has one end, and that only killed Turns were interrupted.
fn check_turns(point: &KillPoint, events: &[Value]) {
    let mut open = false;
    let mut interrupted = 0;
    for event in events {
        let is_final = event["data"]["phase"] == "final";
        match event["type"].as_str().unwrap() {
            "user_message" => {
                assert!(!open, "{point:?}: a Turn began within another");
                open = true;
            }
            "turn_failed" => {
                assert!(open, "{point:?}: an end without a Turn");
                assert_eq!(event["data"]["terminal_status"], "interrupted", "{point:?}");
                interrupted += 1;
                open = false;
            }
            "assistant_message" if is_final => {
                assert!(open, "{point:?}: an end without a Turn");
                open = false;
            }
            _ => {}
        }
    }
    let deaths = 1 + usize::from(point.again.is_some());
    assert!(!open && interrupted <= deaths, "{point:?}: {interrupted} interrupted");
}

/// Checks that every call in the last request has one output after it.
fn check_pairs(point: &KillPoint, request: &ReceivedRequest) {
    let mut open: HashMap<&str, usize> = HashMap::new();
    for item in request.input() {
        let call_id = item["call_id"].as_str().unwrap_or_default();
        match item["type"].as_str() {
            Some("function_call") => *open.entry(call_id).or_default() += 1,
            Some("function_call_output") => {
                let left = open.get_mut(call_id).filter(|left| **left > 0);
                *left.unwrap_or_else(|| panic!("{point:?}: {call_id} has no call")) -= 1;
            }
            _ => {}
        }
    }
    open.retain(|_, left| *left > 0);
    assert!(open.is_empty(), "{point:?}: no output for {open:?}");
    assert_eq!(request.user_texts().last(), Some(&GO_ON), "{point:?}");
}

fn events(log: &[u8]) -> Vec<Value> {
    log.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect()
}
