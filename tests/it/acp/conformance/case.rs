//! Conformance cases: small tables of requirements, each run against the real `pixir acp`.
//!
//! The cases of a topic share a process and a test environment; each has its own Sessions. The lines of every
//! process that a case starts are validated against the schema when the process ends.

use std::ops::{Deref, DerefMut};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::time::Instant;

use serde_json::{Value, json};

use super::schema::LineRecord;
use super::scripted_model;
use crate::support::acp_client::{AcpClient, joined_text};
use crate::support::{BinaryEnv, torture};

/// One requirement and the function that checks it.
pub struct ConformanceCase {
    pub name: &'static str,
    pub run: fn(&mut CaseEnv),
}

/// A case of a table.
pub const fn case(name: &'static str, run: fn(&mut CaseEnv)) -> ConformanceCase {
    ConformanceCase { name, run }
}

/// A table of cases, and the process that they share.
pub struct ConformanceTopic {
    pub name: &'static str,
    pub cases: &'static [ConformanceCase],
    pub args: &'static [&'static str],
    pub capabilities: fn() -> Value,
}

impl ConformanceTopic {
    /// A topic whose client has no capabilities, in a mode that asks for permission.
    pub const fn new(name: &'static str, cases: &'static [ConformanceCase]) -> Self {
        Self { name, cases, args: &[], capabilities: || json!({}) }
    }

    /// Starts the agent with arguments.
    pub const fn with_args(mut self, args: &'static [&'static str]) -> Self {
        self.args = args;
        self
    }

    /// Runs every case, and names all that fail.
    pub async fn run_cases(&self) {
        let began = Instant::now();
        let mut env = CaseEnv::new(self).await;
        let mut failed = Vec::new();
        for case in self.cases {
            // Messages of the case before must not reach this one.
            env.client.drain();
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| (case.run)(&mut env))) {
                let words = panic.downcast_ref::<String>().map(String::as_str);
                let words = words.or_else(|| panic.downcast_ref::<&str>().copied());
                let words: String = words.unwrap_or("no words").chars().take(2000).collect();
                failed.push(format!("{}: {words}", case.name));
                // A failed case may leave messages for the next one.
                env.replace();
            }
        }
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| env.client.finish())) {
            let words = panic.downcast_ref::<String>().cloned().unwrap_or_default();
            failed.push(format!("all lines of {}: {words}", self.name));
        }
        assert!(failed.is_empty(), "{} of {}:\n{}", failed.len(), self.name, failed.join("\n"));
        torture::print_summary(&format!(
            "acp, {}: {} cases, {:.1} s",
            self.name,
            self.cases.len(),
            began.elapsed().as_secs_f64()
        ));
    }
}

/// A client of one process; every line is kept and validated.
pub struct ValidatingClient {
    client: Option<AcpClient>,
    is_cut: bool,
    next_odd: u64,
}

impl ValidatingClient {
    /// Starts `pixir acp` with arguments, without `initialize`.
    pub fn start(binary_env: &BinaryEnv, args: &[&str]) -> Self {
        Self::new(AcpClient::start(binary_env, args))
    }

    pub fn new(client: AcpClient) -> Self {
        Self { client: Some(client), is_cut: false, next_odd: 1_000_000 }
    }

    /// Starts `pixir acp` and initializes it with these client capabilities.
    pub fn initialized(binary_env: &BinaryEnv, args: &[&str], capabilities: Value) -> Self {
        let mut client = Self::start(binary_env, args);
        client.initialize(capabilities);
        client
    }

    /// Sends a request that the schema forbids; gives the error, or the result if there is one.
    #[track_caller]
    pub fn send_invalid(&mut self, method: &str, params: &Value) -> Result<Value, Value> {
        self.next_odd += 1;
        let id = self.next_odd;
        let line = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        self.write_raw(format!("{line}\n").as_bytes());
        self.wait_for_answer(id)
    }

    /// Writes a line as it is, and gives the next message that answers no request of the client.
    #[track_caller]
    pub fn send_line(&mut self, line: &[u8], wished: impl Fn(&Value) -> bool) -> Value {
        let mut bytes = line.to_vec();
        bytes.push(b'\n');
        self.write_raw(&bytes);
        self.wait_for_message("an answer to the line", |message| {
            message.get("method").is_none() && wished(message)
        })
    }

    /// Writes a line; gives the code of the error that answers it.
    #[track_caller]
    pub fn code_of(&mut self, line: &[u8]) -> i64 {
        let answer = self.send_line(line, |message| message.get("error").is_some());
        answer["error"]["code"].as_i64().unwrap()
    }

    /// Checks that the process still answers requests.
    #[track_caller]
    pub fn still_answers(&mut self) {
        self.call("session/list", json!({})).unwrap();
    }

    /// Marks the connection as cut: requests may stay without an answer from now on.
    pub fn mark_cut(&mut self) {
        self.is_cut = true;
    }

    /// Takes the client of a killed process; its lines are not validated.
    pub fn take_client(&mut self) -> Option<AcpClient> {
        self.client.take()
    }

    /// Ends the process by closing stdin, and validates every line.
    #[track_caller]
    pub fn finish(&mut self) {
        let Some(mut client) = self.client.take() else { return };
        let sent = std::mem::take(&mut client.sent);
        let (status, received) = client.close_and_wait();
        assert_eq!(status.code(), Some(0), "the process exits with success");
        let record = LineRecord { sent: &sent, received: &received, is_cut: self.is_cut };
        let problems = record.problems();
        assert!(problems.is_empty(), "{} lines: {:#?}", problems.len(), problems);
    }
}

impl Deref for ValidatingClient {
    type Target = AcpClient;
    fn deref(&self) -> &AcpClient {
        self.client.as_ref().unwrap()
    }
}

impl DerefMut for ValidatingClient {
    fn deref_mut(&mut self) -> &mut AcpClient {
        self.client.as_mut().unwrap()
    }
}

impl Drop for ValidatingClient {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.finish();
        }
    }
}

/// The environment of a case.
pub struct CaseEnv {
    pub binary_env: BinaryEnv,
    pub client: ValidatingClient,
    args: &'static [&'static str],
    capabilities: fn() -> Value,
}

impl CaseEnv {
    pub async fn new(topic: &ConformanceTopic) -> Self {
        let binary_env = BinaryEnv::new(BinaryEnv::new_mark(), scripted_model::script()).await;
        let client = ValidatingClient::initialized(&binary_env, topic.args, (topic.capabilities)());
        Self { binary_env, client, args: topic.args, capabilities: topic.capabilities }
    }

    fn replace(&mut self) {
        let fresh =
            ValidatingClient::initialized(&self.binary_env, self.args, (self.capabilities)());
        let mut old = std::mem::replace(&mut self.client, fresh);
        drop(old.take_client());
    }

    pub fn workspace(&self) -> PathBuf {
        self.binary_env.workspace().canonicalize().unwrap()
    }

    /// A new Session of the shared process.
    #[track_caller]
    pub fn session(&mut self) -> String {
        let cwd = self.workspace();
        self.client.new_session(&cwd)
    }

    /// Another process of the same user, initialized with these client capabilities.
    pub fn start_other(&self, args: &[&str], capabilities: Value) -> ValidatingClient {
        ValidatingClient::initialized(&self.binary_env, args, capabilities)
    }

    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.workspace().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        path
    }

    /// The next update of a kind about a Session.
    #[track_caller]
    pub fn wait_for_update(&mut self, session: &str, kind: &str) -> Value {
        let found = self.client.wait_for_message(kind, |message| {
            message["params"]["sessionId"] == session
                && message["params"]["update"]["sessionUpdate"] == kind
        });
        found["params"]["update"].clone()
    }

    /// Runs one prompt to its end; a question of the agent fails the case.
    #[track_caller]
    pub fn run_prompt(&mut self, session: &str, text: &str) -> RecordedTurn {
        run_prompt(&mut self.client, session, text)
    }

    /// Runs one prompt to its end in a new Session.
    #[track_caller]
    pub fn run_in_new_session(&mut self, text: &str) -> RecordedTurn {
        let session = self.session();
        self.run_prompt(&session, text)
    }

    /// The Log of a Session.
    pub fn log(&self, session: &str) -> Vec<Value> {
        let path = self.workspace().join(format!(".pixir/sessions/{session}.ndjson"));
        let text = std::fs::read_to_string(path).unwrap();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }
}

/// Runs one prompt to its end.
#[track_caller]
pub fn run_prompt(client: &mut AcpClient, session: &str, text: &str) -> RecordedTurn {
    run_prompt_with(client, session, text, |asked| panic!("an unexpected question: {asked}"))
}

/// Runs one prompt to its end; questions of the agent are answered with these results.
#[track_caller]
pub fn run_prompt_with(
    client: &mut AcpClient,
    session: &str,
    text: &str,
    reply: impl FnMut(&Value) -> Value,
) -> RecordedTurn {
    let id = client.send_prompt(session, text);
    wait_for_turn_end(client, session, id, reply)
}

/// Waits for the end of a prompt, and answers questions of the agent until then.
#[track_caller]
pub fn wait_for_turn_end(
    client: &mut AcpClient,
    session: &str,
    id: u64,
    mut reply: impl FnMut(&Value) -> Value,
) -> RecordedTurn {
    let mut asked = Vec::new();
    let answer = loop {
        let message = client.wait_for_message("the end of the prompt", |message| {
            let is_question = message.get("method").is_some() && message.get("id").is_some();
            is_question || message.get("method").is_none() && message["id"] == id
        });
        if message.get("method").is_none() {
            break message;
        }
        let result = reply(&message);
        client.send_reply(&message, result);
        asked.push(message);
    };
    let all = client.drain().into_iter();
    let updates = all
        .filter(|message| message["params"]["sessionId"] == session)
        .map(|message| message["params"]["update"].clone())
        .filter(|update| !update.is_null())
        .collect();
    let outcome = match answer.get("error") {
        Some(error) => Err(error.clone()),
        None => Ok(answer["result"].clone()),
    };
    RecordedTurn { outcome, updates, asked }
}

/// The updates, questions and outcome of a prompt, as a client received them.
#[derive(Debug)]
pub struct RecordedTurn {
    pub outcome: Result<Value, Value>,
    pub updates: Vec<Value>,
    pub asked: Vec<Value>,
}

impl RecordedTurn {
    /// The stop reason of the prompt.
    #[track_caller]
    pub fn stop(&self) -> &str {
        self.outcome.as_ref().expect("no error")["stopReason"].as_str().unwrap()
    }

    /// The code of the error that answered the prompt.
    #[track_caller]
    pub fn code(&self) -> i64 {
        self.outcome.as_ref().expect_err("an error")["code"].as_i64().unwrap()
    }

    /// The text of the answer.
    pub fn text(&self) -> String {
        joined_text(&self.updates, "agent_message_chunk")
    }

    /// The updates of a kind.
    pub fn updates_of_kind(&self, kind: &str) -> Vec<&Value> {
        self.updates.iter().filter(|update| update["sessionUpdate"] == kind).collect()
    }

    /// The first tool call, merged with its updates as a client does it.
    #[track_caller]
    pub fn call(&self) -> Value {
        let first = self.updates_of_kind("tool_call");
        merged(&self.updates, first.first().expect("a call")["toolCallId"].as_str().unwrap())
    }
}

/// A tool call merged with all its updates.
pub fn merged(updates: &[Value], id: &str) -> Value {
    let mut call = json!({});
    for update in updates.iter().filter(|update| update["toolCallId"] == id) {
        for (key, value) in update.as_object().unwrap() {
            if !value.is_null() && key != "sessionUpdate" {
                call[key] = value.clone();
            }
        }
    }
    call
}
