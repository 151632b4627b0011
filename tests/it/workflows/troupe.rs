//! A scripted model that answers for every step of a Workflow by its id.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use pixir::scripted::{Received, Reply, Script};
use serde_json::{Value, json};

use crate::subagents::cast::events;
use crate::support::house::logs;

/// A request of the Subagent of a step.
#[derive(Debug, Clone)]
pub struct Told {
    id: String,
    /// The task, with everything that was handed on.
    pub task: String,
    /// The last message.
    pub last: String,
    /// Tool results so far.
    pub turn: usize,
    /// Subagents of this step before this one.
    pub session: usize,
    /// Its working directory.
    pub workspace: PathBuf,
    pub subagent: String,
}

impl Told {
    /// Reads a request; `None` when it is not from a step.
    pub fn of(request: &Received) -> Option<Self> {
        let late = request.input().iter().find_map(|item| {
            let text = item["content"][0]["text"].as_str().unwrap_or_default();
            (item["role"] == "developer" && text.contains("\"step_id\"")).then(|| text.to_owned())
        })?;
        let value = |name: &str| {
            let line = late.lines().find(|line| line.contains(&format!("\"{name}\": ")));
            let text = line.and_then(|line| line.split_once(": ")).map(|(_, text)| text);
            text.and_then(|text| serde_json::from_str::<String>(text).ok()).unwrap_or_default()
        };
        let folder = request.input().iter().find_map(|item| {
            let text = item["content"][0]["text"].as_str().unwrap_or_default();
            text.lines().find_map(|line| line.strip_prefix("Workspace: ")).map(PathBuf::from)
        });
        Some(Self {
            id: value("step_id"),
            task: request.user_texts().first().copied().unwrap_or_default().to_owned(),
            last: request.user_texts().last().copied().unwrap_or_default().to_owned(),
            turn: request.outputs().len(),
            session: 0,
            workspace: folder.unwrap_or_default(),
            subagent: value("subagent_id"),
        })
    }

    pub fn step(&self) -> &str {
        &self.id
    }
}

/// A model that answers each step.
pub fn troupe(answer: impl Fn(&Told) -> Reply + Send + Sync + 'static) -> Script {
    let seen: Mutex<HashMap<String, Vec<String>>> = Mutex::default();
    Script::answering(move |request| {
        let Some(mut told) = Told::of(request) else {
            return Reply::status(500, r#"{"error": {"code": "no_step"}}"#);
        };
        {
            let mut seen = seen.lock().unwrap();
            let own = seen.entry(told.id.clone()).or_default();
            if !own.contains(&told.subagent) {
                own.push(told.subagent.clone());
            }
            told.session = own.iter().position(|own| *own == told.subagent).unwrap();
        }
        answer(&told)
    })
}

/// A Workflow spec with these steps.
#[expect(clippy::needless_pass_by_value, reason = "steps are written down where they are used")]
pub fn workflow(steps: Value) -> Value {
    json!({"id": "test", "name": "a test", "steps": steps})
}

/// The Log of the Session that a run belongs to.
pub fn root_log(workspace: &Path) -> PathBuf {
    let roots = logs(workspace).into_iter().filter(|path| {
        let first = events(path).into_iter().next();
        first.is_some_and(|first| first["data"]["parent_session_id"].is_null())
    });
    // Whoever was killed before the run began has left a Session without one, maybe with a later name.
    roots.max_by_key(|path| (!facts(path).is_empty(), path.clone())).unwrap()
}

/// The Workflow facts of a Log.
pub fn facts(log: &Path) -> Vec<Value> {
    let all = events(log).into_iter();
    all.filter(|event| event["type"] == "workflow_event")
        .map(|event| event["data"].clone())
        .collect()
}

/// The kinds of the Workflow facts, in order.
pub fn kinds(log: &Path) -> Vec<String> {
    let word = |fact: &Value| {
        let kind = fact["kind"].as_str().unwrap_or_default();
        match fact["step_id"].as_str() {
            Some(step) => format!("{kind} {step}"),
            None => kind.to_owned(),
        }
    };
    facts(log).iter().map(word).collect()
}

/// The last bundle of a step.
pub fn decided(log: &Path, step: &str) -> Value {
    let found = facts(log)
        .into_iter()
        .rfind(|fact| fact["kind"] == "checkpoint_decided" && fact["step_id"] == step);
    found.unwrap_or_else(|| panic!("{step} was not decided"))["checkpoint"].clone()
}
