//! The published schema: every line in either direction is validated against it.
//!
//! Rules that a schema cannot express are checked too: one answer per request, no update of a tool call
//! that was not announced, and no request that the client does not support.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, LazyLock, Mutex};

use jsonschema::Validator;
use serde_json::{Map, Value, json};

/// From npm `@agentclientprotocol/sdk` 2.4.0; its licence stands beside it.
const PUBLISHED: &str = include_str!("../../../fixtures/acp/schema-v1.json");

/// Requests outside the schema that Pixir answers.
const BESIDE: &[&str] = &["session/set_model"];

static SCHEMA: LazyLock<Value> = LazyLock::new(|| serde_json::from_str(PUBLISHED).unwrap());
static VALIDATORS: LazyLock<Mutex<HashMap<String, Arc<Validator>>>> = LazyLock::new(Mutex::default);

/// The part of the protocol that a definition describes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MessageRole {
    Request,
    Response,
    Notification,
}

/// The definition of a method on the side that serves it: `agent`, `client` or `protocol`.
fn definition(method: &str, side: &str, role: MessageRole) -> Option<&'static str> {
    let definitions = SCHEMA["$defs"].as_object().unwrap();
    let ending = match role {
        MessageRole::Request => "Request",
        MessageRole::Response => "Response",
        MessageRole::Notification => "Notification",
    };
    let found = definitions.iter().find(|(name, definition)| {
        definition["x-method"] == method && definition["x-side"] == side && name.ends_with(ending)
    });
    found.map(|(name, _)| name.as_str())
}

/// Violations of a definition. In strict mode, unknown keys are violations too.
fn schema_violations(name: &str, value: &Value, is_strict: bool) -> Vec<String> {
    let key = format!("{name} {is_strict}");
    let known = VALIDATORS.lock().unwrap().get(&key).cloned();
    let validator = known.unwrap_or_else(|| {
        let mut schema = json!({
            "$schema": SCHEMA["$schema"],
            "$ref": format!("#/$defs/{name}"),
            "$defs": SCHEMA["$defs"],
        });
        if is_strict {
            schema["unevaluatedProperties"] = json!(false);
        }
        let made = Arc::new(jsonschema::validator_for(&schema).unwrap());
        VALIDATORS.lock().unwrap().insert(key, Arc::clone(&made));
        made
    });
    let describe = |error: jsonschema::ValidationError<'_>| {
        format!("{name}{}: {}", error.instance_path(), cut(&error.to_string()))
    };
    validator.iter_errors(value).map(describe).collect()
}

fn cut(text: &str) -> String {
    text.chars().take(300).collect()
}

/// The lines of a connection, to be validated.
pub struct LineRecord<'a> {
    pub sent: &'a [Value],
    pub received: &'a [Value],
    /// Requests that need no answer, because the connection was cut.
    pub is_cut: bool,
}

impl LineRecord<'_> {
    /// Descriptions of all violations.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let asked_by_us = methods(self.sent);
        let asked_by_them = methods(self.received);
        for message in self.sent {
            problems.extend(client_line(message, &asked_by_them));
        }
        for message in self.received {
            problems.extend(agent_line(message, &asked_by_us));
        }
        problems.extend(self.unanswered());
        problems.extend(protocol_violations(self));
        problems
    }

    /// Requests without exactly one answer, and notifications with one.
    fn unanswered(&self) -> Vec<String> {
        let mut answers: HashMap<String, usize> = HashMap::new();
        for answer in self.received.iter().filter(|message| message.get("method").is_none()) {
            *answers.entry(answer["id"].to_string()).or_default() += 1;
        }
        let mut problems = Vec::new();
        for (id, method) in methods(self.sent) {
            match answers.get(&id).copied().unwrap_or_default() {
                1 => {}
                0 if self.is_cut => {}
                count => problems.push(format!("{method} {id} has {count} answers")),
            }
        }
        problems
    }
}

/// Violations in the agent's lines alone; `asked` has the methods of the client's requests.
pub fn agent_problems(received: &[Value], asked: &HashMap<String, String>) -> Vec<String> {
    received.iter().flat_map(|message| agent_line(message, asked)).collect()
}

/// The method of each request among messages, by id.
fn methods(messages: &[Value]) -> HashMap<String, String> {
    let requests = messages.iter().filter(|message| message.get("id").is_some());
    requests
        .filter_map(|message| {
            Some((message["id"].to_string(), message.get("method")?.as_str()?.to_owned()))
        })
        .collect()
}

/// Violations in a line of the client.
fn client_line(message: &Value, asked: &HashMap<String, String>) -> Vec<String> {
    let mut problems = envelope(message);
    let none = json!({});
    let params = message.get("params").filter(|params| !params.is_null()).unwrap_or(&none);
    match (message["method"].as_str(), message.get("id")) {
        (Some(method), _) if method.starts_with('_') || BESIDE.contains(&method) => {}
        (Some(method), Some(_)) => match definition(method, "agent", MessageRole::Request) {
            Some(name) => problems.extend(schema_violations(name, params, true)),
            None => problems.push(format!("we asked {method}, which nobody knows")),
        },
        (Some(method), None) => {
            let known = definition(method, "agent", MessageRole::Notification)
                .or_else(|| definition(method, "protocol", MessageRole::Notification));
            match known {
                Some(name) => problems.extend(schema_violations(name, params, true)),
                None => problems.push(format!("we said {method}, which nobody knows")),
            }
        }
        (None, id) => {
            let id = id.unwrap_or(&Value::Null).to_string();
            let method = asked.get(&id).map(String::as_str);
            problems.extend(outcome(message, method, "client", false));
        }
    }
    problems
}

/// Violations in a line of the agent.
fn agent_line(message: &Value, asked: &HashMap<String, String>) -> Vec<String> {
    let mut problems = envelope(message);
    match (message["method"].as_str(), message.get("id")) {
        (Some(method), Some(_)) => match definition(method, "client", MessageRole::Request) {
            Some(name) => problems.extend(schema_violations(name, &message["params"], true)),
            None => problems.push(format!("it asked {method}, which no client knows")),
        },
        (Some(method), None) => {
            let known = definition(method, "client", MessageRole::Notification)
                .or_else(|| definition(method, "protocol", MessageRole::Notification));
            match known {
                Some(name) => problems.extend(schema_violations(name, &message["params"], true)),
                None => problems.push(format!("it said {method}, which no client knows")),
            }
            if method == "session/update" {
                problems.extend(schema_violations(
                    "SessionUpdate",
                    &message["params"]["update"],
                    true,
                ));
            }
        }
        (None, id) => {
            let id = id.unwrap_or(&Value::Null).to_string();
            let method = asked.get(&id).map(String::as_str);
            problems.extend(outcome(message, method, "agent", true));
        }
    }
    problems
        .into_iter()
        .map(|problem| format!("{problem} in {}", cut(&message.to_string())))
        .collect()
}

/// Violations in an answer; without a method, only an error can be checked.
fn outcome(message: &Value, method: Option<&str>, side: &str, is_strict: bool) -> Vec<String> {
    match (message.get("result"), message.get("error")) {
        (None, Some(error)) => {
            let mut problems = schema_violations("Error", error, is_strict);
            let words = error["message"].as_str().unwrap_or_default();
            if words.trim().is_empty() || words.contains('\n') {
                problems.push(format!("an error is one line of words, not {words:?}"));
            }
            problems
        }
        (Some(result), None) => {
            let name = method.and_then(|method| definition(method, side, MessageRole::Response));
            name.map(|name| schema_violations(name, result, is_strict)).unwrap_or_default()
        }
        _ => vec!["an answer is either a result or an error".to_owned()],
    }
}

fn envelope(message: &Value) -> Vec<String> {
    const KEYS: &[&str] = &["jsonrpc", "id", "method", "params", "result", "error"];
    let mut problems = Vec::new();
    if message["jsonrpc"] != "2.0" {
        problems.push("it does not say jsonrpc 2.0".to_owned());
    }
    let none = Map::new();
    let keys = message.as_object().unwrap_or(&none).keys();
    problems.extend(
        keys.filter(|key| !KEYS.contains(&key.as_str())).map(|key| format!("the key {key}")),
    );
    if let Some(id) = message.get("id") {
        problems.extend(schema_violations("RequestId", id, false));
    }
    problems
}

/// Violations of rules that hold for every connection.
fn protocol_violations(record: &LineRecord<'_>) -> Vec<String> {
    let mut problems = Vec::new();
    let mut calls: HashSet<(String, String)> = HashSet::new();
    let allows = |path: &str| {
        let greetings = record.sent.iter().filter(|message| message["method"] == "initialize");
        let mut given = greetings.map(|greeting| &greeting["params"]["clientCapabilities"]);
        given.any(|given| given.pointer(path).is_some_and(|v| *v == true || v.is_object()))
    };
    for message in record.received {
        let params = &message["params"];
        let update = &message["params"]["update"];
        let session = params["sessionId"].as_str().unwrap_or_default().to_owned();
        let capability = match message["method"].as_str().unwrap_or_default() {
            "fs/read_text_file" => "/fs/readTextFile",
            "fs/write_text_file" => "/fs/writeTextFile",
            method if method.starts_with("terminal/") => "/terminal",
            method if method.starts_with("elicitation/") => "/elicitation/form",
            _ => match update["sessionUpdate"].as_str().unwrap_or_default() {
                "notice" => "/session/notices",
                "compaction_update" | "compaction_summary_chunk" => "/session/compaction",
                _ => "",
            },
        };
        if !capability.is_empty() && !allows(capability) {
            problems.push(format!("nobody allowed {capability}: {}", cut(&message.to_string())));
        }
        let id = update["toolCallId"].as_str().or(params["toolCall"]["toolCallId"].as_str());
        let is_first = update["sessionUpdate"] == "tool_call";
        match id.map(|id| (session, id.to_owned())) {
            Some(call) if is_first => {
                calls.insert(call);
            }
            Some(call) if !calls.contains(&call) => {
                problems
                    .push(format!("a call that was not announced: {}", cut(&message.to_string())));
            }
            _ => {}
        }
    }
    problems
}

/// The check reports violations.
#[test]
fn what_breaks_the_schema_is_found() {
    let ask = |params: Value| json!({"jsonrpc": "2.0", "id": 1, "method": "session/new", "params": params});
    let good = ask(json!({"cwd": "/", "mcpServers": []}));
    let answer = |result: Value| json!({"jsonrpc": "2.0", "id": 1, "result": result});
    let update = |update: Value| json!({"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": "s", "update": update}});
    let text = json!({"type": "text", "text": "x"});
    let problems = |sent: &[Value], received: &[Value]| {
        LineRecord { sent, received, is_cut: false }.problems().len()
    };
    let sent = [good];
    let made = answer(json!({"sessionId": "s"}));
    assert_eq!(problems(&sent, std::slice::from_ref(&made)), 0);
    let message = update(json!({"sessionUpdate": "agent_message_chunk", "content": text}));
    assert_eq!(problems(&sent, &[made.clone(), message]), 0);
    let broken: &[&[Value]] = &[
        &[],
        &[made.clone(), made.clone()],
        &[answer(json!({}))],
        &[answer(json!({"sessionId": "s", "models": []}))],
        &[json!({"jsonrpc": "2.0", "id": 1, "error": {"code": 1, "message": ""}})],
        &[made.clone(), update(json!({"sessionUpdate": "agent_message_chunk", "content": "x"}))],
        &[made.clone(), update(json!({"sessionUpdate": "no_such_thing"}))],
        &[
            made.clone(),
            update(json!({"sessionUpdate": "agent_message_chunk", "content": text, "odd": 1})),
        ],
        &[made.clone(), update(json!({"sessionUpdate": "tool_call_update", "toolCallId": "c"}))],
        &[
            made.clone(),
            update(json!({"sessionUpdate": "notice", "severity": "info", "title": "t"})),
        ],
        &[
            made.clone(),
            json!({"jsonrpc": "2.0", "id": 0, "method": "fs/read_text_file", "params": {"sessionId": "s", "path": "/a"}}),
        ],
        &[made.clone(), json!({"id": 7, "result": {}})],
    ];
    for received in broken {
        assert_ne!(problems(&sent, received), 0, "{received:?}");
    }
    assert_ne!(problems(&[ask(json!({"cwd": 3}))], &[made]), 0);
}
