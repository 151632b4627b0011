//! Scripted model of a parent, by a list of replies, and of its children, by their tasks.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use pixir::scripted::{ModelScript, ReceivedRequest, Reply};
use pixir::verify_log;
use serde_json::{Value, json};

use crate::support::test_env::log_files;

/// The prompt of the parent.
pub const GO: &str = "share the work";

/// A reply of the parent, which may depend on the request.
pub type ParentReply = Box<dyn Fn(&ReceivedRequest) -> Reply + Send + Sync>;

/// A reply that is always the same.
pub fn always(reply: Reply) -> ParentReply {
    Box::new(move |_| reply.clone())
}

/// A model that gives the parent's replies in order, and the children's by task and step.
pub fn scripted_family(
    lines: impl IntoIterator<Item = ParentReply>,
    child: impl Fn(&str, usize) -> Reply + Send + Sync + 'static,
) -> ModelScript {
    let lines: Vec<ParentReply> = lines.into_iter().collect();
    let next = AtomicUsize::new(0);
    ModelScript::answering(move |request| match last_task(request) {
        Some(task) => child(&task, outputs_since_user_message(request)),
        None => match lines.get(next.fetch_add(1, Ordering::SeqCst)) {
            Some(line) => line(request),
            None => Reply::status(500, r#"{"error": {"code": "script_is_over"}}"#),
        },
    })
}

/// The last message to a child; `None` when the request is not from a child.
pub fn last_task(request: &ReceivedRequest) -> Option<String> {
    let is_child = request.input().iter().any(|item| {
        let text = item["content"][0]["text"].as_str().unwrap_or_default();
        item["role"] == "developer" && text.contains("You are a Subagent")
    });
    let task = request.user_texts().into_iter().rfind(|text| !text.starts_with("[Subagent"));
    task.filter(|_| is_child).map(str::to_owned)
}

/// Number of outputs since the last user message.
fn outputs_since_user_message(request: &ReceivedRequest) -> usize {
    let outputs = request.input().iter().rev().take_while(|item| {
        let text = item["content"][0]["text"].as_str().unwrap_or_default();
        item["role"] != "user" || text.starts_with("[Subagent")
    });
    outputs.filter(|item| item["type"] == "function_call_output").count()
}

/// Spawns children of these tasks in one response.
pub fn spawn_reply(tasks: &[&str], role: &str) -> ParentReply {
    let reply = tasks.iter().fold(Reply::new(), |reply, task| {
        reply.call("spawn_agent", json!({"task": task, "role": role}))
    });
    always(reply)
}

pub fn wait_reply() -> ParentReply {
    always(Reply::calls("wait_agent", json!({})))
}

pub fn text_reply(text: &str) -> ParentReply {
    always(Reply::says(text))
}

/// The id of the first Subagent in a request.
pub fn first_id(request: &ReceivedRequest) -> String {
    let text = serde_json::to_string(request.input()).unwrap();
    let place = text.find("sub_").unwrap();
    text[place..place + 14].to_owned()
}

/// The Events of a Log.
pub fn read_events(path: &Path) -> Vec<Value> {
    let bytes = std::fs::read(path).unwrap();
    bytes
        .split(|byte| *byte == b'\n')
        .filter_map(|line| serde_json::from_slice(line).ok())
        .collect()
}

/// The `subagent_event`s of a Log.
pub fn subagent_events(path: &Path) -> Vec<Value> {
    let all = read_events(path).into_iter();
    all.filter(|event| event["type"] == "subagent_event")
        .map(|event| event["data"].clone())
        .collect()
}

/// Number of `subagent_event`s of one kind in a Log.
pub fn count_subagent_events(path: &Path, event: &str) -> usize {
    subagent_events(path).iter().filter(|life| life["event"] == event).count()
}

/// Counter of the children that have a request at the same time.
#[derive(Clone, Default)]
pub struct ConcurrencyGauge(Arc<Mutex<(usize, usize)>>);

impl ConcurrencyGauge {
    pub fn enter(&self) {
        let mut counts = self.0.lock().unwrap();
        counts.0 += 1;
        counts.1 = counts.1.max(counts.0);
    }
    pub fn leave(&self) {
        self.0.lock().unwrap().0 -= 1;
    }
    pub fn most(&self) -> usize {
        self.0.lock().unwrap().1
    }
}

const ENDS: [&str; 5] = ["finished", "failed", "timed_out", "cancelled", "detached"];

/// Checks that the Logs of parents and children agree. Gives the number of
/// children.
pub fn check_family_logs(workspace: &Path) -> usize {
    let all: Vec<(String, Vec<Value>)> = log_files(workspace)
        .into_iter()
        .map(|path| (path.file_stem().unwrap().to_string_lossy().into_owned(), read_events(&path)))
        .collect();
    let log = |id: &str| all.iter().find(|(own, _)| own == id).map(|(_, events)| events);
    let mut named = Vec::new();
    let mut children = 0;
    for (parent, events) in &all {
        let id = pixir::SessionId::parse(parent).unwrap();
        let seen = verify_log(workspace, &id).unwrap();
        assert!(seen.ok, "{parent}: {:?}", seen.breaks);
        let lives = events.iter().filter(|event| event["type"] == "subagent_event");
        let lives: Vec<&Value> = lives.map(|event| &event["data"]).collect();
        let mut ids: Vec<&str> =
            lives.iter().filter_map(|life| life["subagent_id"].as_str()).collect();
        ids.sort_unstable();
        ids.dedup();
        for id in ids {
            children += 1;
            let own: Vec<&&Value> = lives.iter().filter(|life| life["subagent_id"] == id).collect();
            named.extend(check_life(parent, id, &own, &log));
        }
    }
    for (id, events) in &all {
        let Some(first) = events.first() else { continue };
        if let Some(parent) = first["data"]["parent_session_id"].as_str() {
            assert!(named.contains(id), "{id} is a child that {parent} does not know");
        }
    }
    children
}

/// Checks one child: every run has one end, and the child's Log has the same. Gives its Sessions.
fn check_life<'a>(
    parent: &str,
    id: &str,
    life: &[&&Value],
    log: &impl Fn(&str) -> Option<&'a Vec<Value>>,
) -> Vec<String> {
    let mut open = false;
    let mut sessions = Vec::new();
    let kinds: Vec<&str> = life.iter().filter_map(|event| event["event"].as_str()).collect();
    for event in life {
        let name = event["event"].as_str().unwrap();
        match name {
            "queued" | "input" => {
                assert!(!open, "{id}: a run began within another: {kinds:?}");
                open = true;
            }
            // The child's Log may be created after this Event, or never.
            "starting" => {
                assert!(open, "{id}: outside of a run: {kinds:?}");
                sessions.push(event["child_session_id"].as_str().unwrap().to_owned());
            }
            "started" | "retrying" => {
                assert!(open, "{id}: outside of a run: {kinds:?}");
                let child = event["child_session_id"].as_str().unwrap();
                let first = &log(child).unwrap_or_else(|| panic!("{child} has no Log"))[0]["data"];
                assert_eq!(first["parent_session_id"], parent, "{id}");
                assert_eq!(first["subagent_id"], id);
                assert!(sessions.iter().any(|own| own == child), "{id}: {child} was not announced");
            }
            "merged" | "merge_taken_back" => {}
            "closed" => assert!(!open, "{id}: closed within a run: {kinds:?}"),
            end if ENDS.contains(&end) => {
                assert!(open, "{id}: an end without a run: {kinds:?}");
                open = false;
                check_end(event, log);
            }
            other => panic!("{id}: {other}"),
        }
    }
    assert!(!open, "{id}: no end: {kinds:?}");
    sessions
}

/// Checks that the end in the parent's Log is the end in the child's.
fn check_end<'a>(end: &Value, log: &impl Fn(&str) -> Option<&'a Vec<Value>>) {
    let (Some(child), Some(seq)) = (end["child_session_id"].as_str(), end["child_seq"].as_u64())
    else {
        assert_ne!(end["event"], "finished", "{end}");
        return;
    };
    let events = log(child).unwrap();
    let last = events.iter().find(|event| event["seq"] == seq).unwrap();
    match end["event"].as_str().unwrap() {
        "finished" => {
            assert_eq!(last["type"], "assistant_message", "{end}");
            let text = last["data"]["text"].as_str();
            let summary = end["summary"].as_str();
            assert_eq!(text.unwrap().get(..40), summary.unwrap().get(..40));
        }
        // A child that answered before its own children ended also has a final message.
        _ => assert!(
            last["type"] == "turn_failed" || last["data"]["phase"] == "final",
            "{end}: {last}"
        ),
    }
}

/// Appends an Event to a closed Log, as its writer would.
pub fn append(path: &Path, kind: &str, data: &Value) {
    use sha2::Digest;
    let last = read_events(path).pop().unwrap();
    let body = json!({
        "id": "00000000000000aa",
        "session_id": last["session_id"],
        "seq": last["seq"].as_u64().unwrap() + 1,
        "ts": last["ts"],
        "type": kind,
        "data": data,
    });
    let body = body.to_string();
    let body = &body[..body.len() - 1];
    let chained = format!("{}{body}", last["h"].as_str().unwrap());
    let digest = sha2::Sha256::digest(chained);
    let proof = digest.iter().take(8).fold(String::new(), |hex, byte| format!("{hex}{byte:02x}"));
    let mut bytes = std::fs::read(path).unwrap();
    bytes.extend_from_slice(format!("{body},\"h\":\"{proof}\"}}\n").as_bytes());
    std::fs::write(path, bytes).unwrap();
}
