//! A scripted model that answers for every step of a Workflow by its id.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use pixir::scripted::{ModelScript, ReceivedRequest, Reply};
use serde_json::{Value, json};

use crate::subagents::scripted_family::read_events;
use crate::support::test_env::log_files;

/// A request of the Subagent of a step.
#[derive(Debug, Clone)]
pub struct StepRequest {
    id: String,
    /// The task, including values from earlier steps.
    pub task: String,
    /// The last user message.
    pub last: String,
    /// Number of tool results so far.
    pub turn: usize,
    /// Number of earlier Subagents of this step.
    pub session: usize,
    /// Working directory of the step.
    pub workspace: PathBuf,
    pub subagent: String,
}

impl StepRequest {
    /// Reads a request; `None` when it is not from a step.
    pub fn from_request(request: &ReceivedRequest) -> Option<Self> {
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

/// A model that answers the request of each step by a function.
pub fn scripted_steps(
    answer: impl Fn(&StepRequest) -> Reply + Send + Sync + 'static,
) -> ModelScript {
    let seen: Mutex<HashMap<String, Vec<String>>> = Mutex::default();
    ModelScript::answering(move |request| {
        let Some(mut step_request) = StepRequest::from_request(request) else {
            return Reply::status(500, r#"{"error": {"code": "no_step"}}"#);
        };
        {
            let mut seen = seen.lock().unwrap();
            let own = seen.entry(step_request.id.clone()).or_default();
            if !own.contains(&step_request.subagent) {
                own.push(step_request.subagent.clone());
            }
            step_request.session =
                own.iter().position(|own| *own == step_request.subagent).unwrap();
        }
        answer(&step_request)
    })
}

/// A Workflow spec with these steps.
#[expect(clippy::needless_pass_by_value, reason = "steps are written down where they are used")]
pub fn workflow_spec(steps: Value) -> Value {
    json!({"id": "test", "name": "a test", "steps": steps})
}

/// The Log of the Session that a run belongs to.
pub fn root_log(workspace: &Path) -> PathBuf {
    let roots = log_files(workspace).into_iter().filter(|path| {
        let first = read_events(path).into_iter().next();
        first.is_some_and(|first| first["data"]["parent_session_id"].is_null())
    });
    // A process killed before its run began leaves a Session without a run, maybe with a later name.
    roots.max_by_key(|path| (!workflow_facts(path).is_empty(), path.clone())).unwrap()
}

/// The `workflow_event`s of a Log.
pub fn workflow_facts(log: &Path) -> Vec<Value> {
    let all = read_events(log).into_iter();
    all.filter(|event| event["type"] == "workflow_event")
        .map(|event| event["data"].clone())
        .collect()
}

/// The kinds of the `workflow_event`s, in order.
pub fn workflow_fact_kinds(log: &Path) -> Vec<String> {
    let word = |fact: &Value| {
        let kind = fact["kind"].as_str().unwrap_or_default();
        match fact["step_id"].as_str() {
            Some(step) => format!("{kind} {step}"),
            None => kind.to_owned(),
        }
    };
    workflow_facts(log).iter().map(word).collect()
}

/// The last Checkpoint Bundle of a step.
pub fn last_checkpoint(log: &Path, step: &str) -> Value {
    let found = workflow_facts(log)
        .into_iter()
        .rfind(|fact| fact["kind"] == "checkpoint_decided" && fact["step_id"] == step);
    found.unwrap_or_else(|| panic!("{step} was not decided"))["checkpoint"].clone()
}
