//! Cases: small tables of requirements, each played against the real `pixir acp`.
//!
//! The cases of a topic share a process and a test environment; each has its own Sessions. Every process that
//! a case starts is held against the schema when it ends.

use std::ops::{Deref, DerefMut};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::time::Instant;

use serde_json::{Value, json};

use super::actor;
use super::schema::Record;
use crate::support::editor::{Editor, text_of};
use crate::support::{Stage, torture};

/// One requirement.
pub struct Case {
    pub name: &'static str,
    pub run: fn(&mut Scene),
}

/// A case of a table.
pub const fn case(name: &'static str, run: fn(&mut Scene)) -> Case {
    Case { name, run }
}

/// A table of cases, and the process that they share.
pub struct Topic {
    pub name: &'static str,
    pub cases: &'static [Case],
    pub args: &'static [&'static str],
    pub capabilities: fn() -> Value,
}

impl Topic {
    /// A topic whose client can do nothing special, and whose user is asked.
    pub const fn new(name: &'static str, cases: &'static [Case]) -> Self {
        Self { name, cases, args: &[], capabilities: || json!({}) }
    }

    /// The same, started with arguments.
    pub const fn with_args(mut self, args: &'static [&'static str]) -> Self {
        self.args = args;
        self
    }

    /// Plays every case, and names all that fail.
    pub async fn play(&self) {
        let began = Instant::now();
        let mut scene = Scene::new(self).await;
        let mut failed = Vec::new();
        for case in self.cases {
            // What belongs to the case before is not for this one.
            scene.probe.drain();
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| (case.run)(&mut scene))) {
                let words = panic.downcast_ref::<String>().map(String::as_str);
                let words = words.or_else(|| panic.downcast_ref::<&str>().copied());
                let words: String = words.unwrap_or("no words").chars().take(2000).collect();
                failed.push(format!("{}: {words}", case.name));
                // What it left behind is not for the next one.
                scene.replace();
            }
        }
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| scene.probe.finish())) {
            let words = panic.downcast_ref::<String>().cloned().unwrap_or_default();
            failed.push(format!("all lines of {}: {words}", self.name));
        }
        assert!(failed.is_empty(), "{} of {}:\n{}", failed.len(), self.name, failed.join("\n"));
        torture::say(&format!(
            "acp, {}: {} cases, {:.1} s",
            self.name,
            self.cases.len(),
            began.elapsed().as_secs_f64()
        ));
    }
}

/// A process whose every line is kept and judged.
pub struct Probe {
    editor: Option<Editor>,
    is_cut: bool,
    next_odd: u64,
}

impl Probe {
    /// Starts `pixir acp` with arguments, ungreeted.
    pub fn start(stage: &Stage, args: &[&str]) -> Self {
        Self::of(Editor::start(stage, args))
    }

    pub fn of(editor: Editor) -> Self {
        Self { editor: Some(editor), is_cut: false, next_odd: 1_000_000 }
    }

    /// The same, greeted by a client that can do these things.
    pub fn greeted(stage: &Stage, args: &[&str], capabilities: Value) -> Self {
        let mut probe = Self::start(stage, args);
        probe.initialize(capabilities);
        probe
    }

    /// Asks for what the schema forbids; gives the error, or the result that came all the same.
    #[track_caller]
    pub fn odd(&mut self, method: &str, params: &Value) -> Result<Value, Value> {
        self.next_odd += 1;
        let id = self.next_odd;
        let line = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        self.raw(format!("{line}\n").as_bytes());
        self.answer(id)
    }

    /// Writes a line as it is, and gives the next message that answers nothing we know.
    #[track_caller]
    pub fn line(&mut self, line: &[u8], wished: impl Fn(&Value) -> bool) -> Value {
        let mut bytes = line.to_vec();
        bytes.push(b'\n');
        self.raw(&bytes);
        self.wait("an answer to the line", |message| {
            message.get("method").is_none() && wished(message)
        })
    }

    /// The code of an error.
    #[track_caller]
    pub fn code_of(&mut self, line: &[u8]) -> i64 {
        let told = self.line(line, |message| message.get("error").is_some());
        told["error"]["code"].as_i64().unwrap()
    }

    /// It is alive and well.
    #[track_caller]
    pub fn still_answers(&mut self) {
        self.call("session/list", json!({})).unwrap();
    }

    /// From here on, not everything needs an answer.
    pub fn cut(&mut self) {
        self.is_cut = true;
    }

    /// Gives it up: it was killed, and nothing is judged.
    pub fn abandon(&mut self) -> Option<Editor> {
        self.editor.take()
    }

    /// Ends it by closing stdin, and judges every line.
    #[track_caller]
    pub fn finish(&mut self) {
        let Some(mut editor) = self.editor.take() else { return };
        let sent = std::mem::take(&mut editor.sent);
        let (status, received) = editor.end();
        assert_eq!(status.code(), Some(0), "it ends well");
        let record = Record { sent: &sent, received: &received, is_cut: self.is_cut };
        let problems = record.problems();
        assert!(problems.is_empty(), "{} lines: {:#?}", problems.len(), problems);
    }
}

impl Deref for Probe {
    type Target = Editor;
    fn deref(&self) -> &Editor {
        self.editor.as_ref().unwrap()
    }
}

impl DerefMut for Probe {
    fn deref_mut(&mut self) -> &mut Editor {
        self.editor.as_mut().unwrap()
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.finish();
        }
    }
}

/// The environment of a case.
pub struct Scene {
    pub stage: Stage,
    pub probe: Probe,
    args: &'static [&'static str],
    capabilities: fn() -> Value,
}

impl Scene {
    pub async fn new(topic: &Topic) -> Self {
        let stage = Stage::new(Stage::mark(), actor::script()).await;
        let probe = Probe::greeted(&stage, topic.args, (topic.capabilities)());
        Self { stage, probe, args: topic.args, capabilities: topic.capabilities }
    }

    fn replace(&mut self) {
        let fresh = Probe::greeted(&self.stage, self.args, (self.capabilities)());
        let mut old = std::mem::replace(&mut self.probe, fresh);
        drop(old.abandon());
    }

    pub fn workspace(&self) -> PathBuf {
        self.stage.workspace().canonicalize().unwrap()
    }

    /// A new Session of the shared process.
    #[track_caller]
    pub fn session(&mut self) -> String {
        let cwd = self.workspace();
        self.probe.session(&cwd)
    }

    /// Another process of the same user, for a client that can do these things.
    pub fn other(&self, args: &[&str], capabilities: Value) -> Probe {
        Probe::greeted(&self.stage, args, capabilities)
    }

    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.workspace().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        path
    }

    /// The next update of a kind about a Session.
    #[track_caller]
    pub fn told(&mut self, session: &str, kind: &str) -> Value {
        let found = self.probe.wait(kind, |message| {
            message["params"]["sessionId"] == session
                && message["params"]["update"]["sessionUpdate"] == kind
        });
        found["params"]["update"].clone()
    }

    /// One prompt to its end; every question of the agent is an error of the case.
    #[track_caller]
    pub fn turn(&mut self, session: &str, text: &str) -> Turn {
        turn(&mut self.probe, session, text)
    }

    /// A new Session and one prompt to its end.
    #[track_caller]
    pub fn once(&mut self, text: &str) -> Turn {
        let session = self.session();
        self.turn(&session, text)
    }

    /// The Log of a Session.
    pub fn log(&self, session: &str) -> Vec<Value> {
        let path = self.workspace().join(format!(".pixir/sessions/{session}.ndjson"));
        let text = std::fs::read_to_string(path).unwrap();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }
}

/// One prompt to its end.
#[track_caller]
pub fn turn(editor: &mut Editor, session: &str, text: &str) -> Turn {
    turn_with(editor, session, text, |asked| panic!("nobody may ask: {asked}"))
}

/// One prompt to its end; questions of the agent are answered with these results.
#[track_caller]
pub fn turn_with(
    editor: &mut Editor,
    session: &str,
    text: &str,
    reply: impl FnMut(&Value) -> Value,
) -> Turn {
    let id = editor.prompt(session, text);
    finished(editor, session, id, reply)
}

/// Waits for the end of a prompt, and answers what is asked until then.
#[track_caller]
pub fn finished(
    editor: &mut Editor,
    session: &str,
    id: u64,
    mut reply: impl FnMut(&Value) -> Value,
) -> Turn {
    let mut asked = Vec::new();
    let answer = loop {
        let message = editor.wait("the end of the prompt", |message| {
            let is_question = message.get("method").is_some() && message.get("id").is_some();
            is_question || message.get("method").is_none() && message["id"] == id
        });
        if message.get("method").is_none() {
            break message;
        }
        let result = reply(&message);
        editor.reply(&message, result);
        asked.push(message);
    };
    let all = editor.drain().into_iter();
    let updates = all
        .filter(|message| message["params"]["sessionId"] == session)
        .map(|message| message["params"]["update"].clone())
        .filter(|update| !update.is_null())
        .collect();
    let outcome = match answer.get("error") {
        Some(error) => Err(error.clone()),
        None => Ok(answer["result"].clone()),
    };
    Turn { outcome, updates, asked }
}

/// What a client saw of a prompt.
#[derive(Debug)]
pub struct Turn {
    pub outcome: Result<Value, Value>,
    pub updates: Vec<Value>,
    pub asked: Vec<Value>,
}

impl Turn {
    /// Why it stopped.
    #[track_caller]
    pub fn stop(&self) -> &str {
        self.outcome.as_ref().expect("no error")["stopReason"].as_str().unwrap()
    }

    /// The code of its error.
    #[track_caller]
    pub fn code(&self) -> i64 {
        self.outcome.as_ref().expect_err("an error")["code"].as_i64().unwrap()
    }

    /// All that was said.
    pub fn text(&self) -> String {
        text_of(&self.updates, "agent_message_chunk")
    }

    /// The updates of a kind.
    pub fn of(&self, kind: &str) -> Vec<&Value> {
        self.updates.iter().filter(|update| update["sessionUpdate"] == kind).collect()
    }

    /// The first call, and all that became of it, as a client merges it.
    #[track_caller]
    pub fn call(&self) -> Value {
        let first = self.of("tool_call");
        merged(&self.updates, first.first().expect("a call")["toolCallId"].as_str().unwrap())
    }
}

/// A call as a client has it after all updates.
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
