//! Fuzz test: thousands of messages, whole, broken, out of order, over eight Sessions at once.
//!
//! Every request is answered exactly once, nothing panics, no request waits for ever, and the process exits
//! with success at the end of its input.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use fastrand::Rng;
use serde_json::{Value, json};

use super::{malformed, schema, scripted_model};
use crate::support::BinaryEnv;
use crate::support::leaks;
use crate::support::test_env::DEADLINE;
use crate::support::torture::{self, SuiteSize};

/// Number of Sessions that are used at the same time.
const SESSIONS: usize = 8;

/// Number of messages between two liveness checks.
const LIVENESS_INTERVAL: usize = 100;

/// Pause after each liveness check, in which Turns run undisturbed.
const PAUSE: Duration = Duration::from_millis(80);

/// A client that sends random messages.
struct FuzzClient {
    rng: Rng,
    stdin: ChildStdin,
    lines: Receiver<String>,
    sessions: Vec<String>,
    /// For each id, the number of expected and of received answers.
    owed: HashMap<String, (usize, usize)>,
    /// The method of each well-formed request, by id.
    methods: HashMap<String, String>,
    /// Requests of the agent that are not answered yet.
    open: Vec<Value>,
    received: Vec<Value>,
    next: u64,
    broken: usize,
    cwd: String,
}

impl FuzzClient {
    fn write(&mut self, bytes: &[u8]) {
        self.stdin.write_all(bytes).and_then(|()| self.stdin.write_all(b"\n")).expect("it reads");
    }

    /// Sends a well-formed request, and expects an answer.
    fn ask(&mut self, method: &str, params: &Value) -> String {
        self.next += 1;
        let id = if self.next.is_multiple_of(3) {
            json!(format!("s{}", self.next))
        } else {
            json!(self.next)
        };
        let line = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        let key = id.to_string();
        self.owed.insert(key.clone(), (1, 0));
        self.methods.insert(key.clone(), method.to_owned());
        self.write(line.to_string().as_bytes());
        key
    }

    fn session(&mut self) -> String {
        let some = self.rng.choice(&self.sessions).cloned();
        match self.rng.u8(..) {
            0..8 => "20260101T000000-abcdef".to_owned(),
            8..12 => "nonsense".to_owned(),
            _ => some.unwrap_or_default(),
        }
    }

    /// Sends one random message.
    fn say_something(&mut self) {
        let session = self.session();
        let named = json!({"sessionId": session});
        let mut open = json!({"sessionId": session, "cwd": self.cwd, "mcpServers": []});
        match self.rng.u8(0..100) {
            0..30 => {
                let prompt = malformed::prompt(&mut self.rng);
                self.ask("session/prompt", &json!({"sessionId": session, "prompt": prompt}));
            }
            30..40 => self.notify("session/cancel", &named),
            40..45 => {
                let mode = *self.rng.choice(&["ask", "auto", "read_only", "plan", "yolo"]).unwrap();
                self.ask("session/set_mode", &json!({"sessionId": session, "modeId": mode}));
            }
            45..49 => {
                let (id, value) = *self.rng.choice(&malformed::OPTIONS).unwrap();
                self.ask(
                    "session/set_config_option",
                    &json!({"sessionId": session, "configId": id, "value": value}),
                );
            }
            49..53 => {
                let params = malformed::listing(&mut self.rng, &self.cwd);
                self.ask("session/list", &params);
            }
            53..57 => {
                self.ask("session/resume", &open);
            }
            57 => {
                self.ask("session/load", &open);
            }
            58..61 => {
                self.ask("session/close", &named);
                // The Session is opened again at once, perhaps before it is closed.
                self.ask("session/resume", &open);
            }
            61 => {
                self.ask("session/delete", &named);
                self.sessions.retain(|own| *own != session);
                open = json!({"cwd": self.cwd, "mcpServers": []});
                self.ask("session/new", &open);
            }
            62..64 => {
                let (method, params) = malformed::odd_request(&mut self.rng);
                self.ask(method, &params);
            }
            64..70 => {
                let id = self.rng.u64(1..=self.next.max(1));
                let id = if id.is_multiple_of(3) { json!(format!("s{id}")) } else { json!(id) };
                self.notify("$/cancel_request", &json!({"requestId": id}));
            }
            70..82 => self.answer_something(),
            _ => self.say_something_broken(),
        }
    }

    fn notify(&mut self, method: &str, params: &Value) {
        let line = json!({"jsonrpc": "2.0", "method": method, "params": params});
        self.write(line.to_string().as_bytes());
    }

    /// Answers a request of the agent correctly, wrongly, or one that was never sent.
    fn answer_something(&mut self) {
        let id = if self.open.is_empty() || self.rng.u8(0..10) == 0 {
            json!(self.rng.u64(0..1000))
        } else {
            let place = self.rng.usize(..self.open.len());
            self.open.swap_remove(place)["id"].clone()
        };
        let line = match malformed::reply(&mut self.rng) {
            Ok(result) => json!({"jsonrpc": "2.0", "id": id, "result": result}),
            Err(error) => json!({"jsonrpc": "2.0", "id": id, "error": error}),
        };
        self.write(line.to_string().as_bytes());
    }

    fn say_something_broken(&mut self) {
        let session = self.session();
        // No changed byte turns this id into the id of another request.
        let id = format!("broken {}", self.next);
        self.next += 1;
        self.broken += 1;
        let bytes = malformed::broken(&mut self.rng, &id, &session);
        self.write(&bytes);
    }

    /// Reads messages until none arrives within `patience`.
    fn listen(&mut self, patience: Duration) -> bool {
        match self.lines.recv_timeout(patience) {
            Ok(line) => self.record_line(&line),
            Err(RecvTimeoutError::Timeout) => return false,
            Err(RecvTimeoutError::Disconnected) => panic!("it ended in the middle"),
        }
        true
    }

    fn record_line(&mut self, line: &str) {
        leaks::check_stream(line);
        let message: Value =
            serde_json::from_str(line).unwrap_or_else(|_| panic!("no JSON: {line}"));
        let is_question = message.get("id").is_some() && message.get("method").is_some();
        if is_question {
            self.open.push(message.clone());
        } else if message.get("method").is_none() {
            let key = message["id"].to_string();
            if let Some((_, came)) = self.owed.get_mut(&key) {
                *came += 1;
            }
            if let Some(id) = message["result"]["sessionId"].as_str() {
                self.sessions.push(id.to_owned());
            }
        }
        self.received.push(message);
    }

    fn waiting(&self) -> Vec<&str> {
        let owed = self.owed.iter().filter(|(_, (owed, came))| came < owed);
        owed.map(|(id, _)| self.methods[id].as_str()).collect()
    }

    /// Checks that a request without dependencies is still answered.
    fn check_liveness(&mut self, place: &str) {
        let key = self.ask("session/list", &json!({"cwd": "/no/such/place"}));
        let end = Instant::now() + DEADLINE;
        while self.owed[&key].1 == 0 {
            self.listen(Duration::from_millis(50));
            assert!(Instant::now() < end, "{place}: no answer to {:?}", self.waiting());
        }
    }

    /// Lets Turns run for a moment, and answers their requests.
    fn pause_and_drain(&mut self) {
        let end = Instant::now() + PAUSE;
        while Instant::now() < end {
            if !self.open.is_empty() {
                self.answer_something();
            }
            self.listen(Duration::from_millis(5));
        }
    }

    /// Cancels everything, and waits until every request has its answer.
    fn settle(&mut self, place: &str) {
        let end = Instant::now() + DEADLINE;
        while !self.waiting().is_empty() {
            for session in self.sessions.clone() {
                self.notify("session/cancel", &json!({"sessionId": session}));
            }
            let round = Instant::now();
            while !self.waiting().is_empty() && round.elapsed() < Duration::from_millis(200) {
                self.listen(Duration::from_millis(20));
            }
            assert!(Instant::now() < end, "{place}: without an answer: {:?}", self.waiting());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_request_of_a_fuzzed_stream_is_answered_once() {
    let size = SuiteSize::from_environment();
    let seed = torture::seed();
    let began = Instant::now();
    let count = size.choose(2_000, 20_000);
    let env = BinaryEnv::new(BinaryEnv::new_mark(), scripted_model::script()).await;
    let mut command = Command::new(env.program());
    command.arg("acp");
    env.configure_command(&mut command);
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    let (sender, lines) = channel();
    let stdout = child.stdout.take().unwrap();
    let reader = std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines() {
            sender.send(line.expect("stdout is text")).ok();
        }
    });
    let mut stderr = child.stderr.take().unwrap();
    let complaints = std::thread::spawn(move || {
        let mut text = String::new();
        stderr.read_to_string(&mut text).ok();
        text
    });
    let mut client = FuzzClient {
        rng: Rng::with_seed(seed),
        stdin: child.stdin.take().unwrap(),
        lines,
        sessions: Vec::new(),
        owed: HashMap::new(),
        methods: HashMap::new(),
        open: Vec::new(),
        received: Vec::new(),
        next: 0,
        broken: 0,
        cwd: env.workspace().to_str().unwrap().to_owned(),
    };
    client.ask("initialize", &json!({"protocolVersion": 1}));
    for _ in 0..SESSIONS {
        let params = json!({"cwd": client.cwd, "mcpServers": []});
        client.ask("session/new", &params);
    }
    client.settle("at the start");
    for number in 0..count {
        client.say_something();
        while client.listen(Duration::ZERO) {}
        if number % LIVENESS_INTERVAL == LIVENESS_INTERVAL - 1 {
            client.check_liveness(&format!("seed {seed}, message {number}"));
            client.pause_and_drain();
        }
    }
    client.settle(&format!("seed {seed}, at the end"));
    let turns = client.methods.values().filter(|method| *method == "session/prompt").count();
    assert!(turns > 0 && client.broken > 0, "{turns} prompts, {} broken lines", client.broken);
    // End of input while a few Turns are running.
    for session in client.sessions.clone() {
        let params = json!({"sessionId": session, "prompt": [{"type": "text", "text": "go » pause 600000"}]});
        client.ask("session/prompt", &params);
    }
    let FuzzClient { stdin, lines, owed, methods, mut received, broken, .. } = client;
    drop(stdin);
    while let Ok(line) = lines.recv_timeout(DEADLINE) {
        received.push(serde_json::from_str(&line).expect("JSON to the last line"));
    }
    assert_eq!(child.wait().unwrap().code(), Some(0), "seed {seed}");
    reader.join().unwrap();
    let complaints = complaints.join().unwrap();
    assert!(!complaints.contains("panicked"), "seed {seed}: {complaints}");
    env.assert_nothing_survives();
    let is_owed = |message: &&Value| {
        owed.get(&message["id"].to_string()).is_some_and(|(owed, came)| came > owed)
    };
    let twice: Vec<&Value> =
        received.iter().filter(|message| message.get("method").is_none()).filter(is_owed).collect();
    assert!(twice.is_empty(), "seed {seed}: answered more than once: {twice:?}");
    let lost = received
        .iter()
        .filter(|message| message.to_string().contains("dropped without an answer"))
        .count();
    assert_eq!(lost, 0, "seed {seed}: a request was dropped");
    // A fractional id is sent back as it came, although the schema does not allow it.
    received.retain(|message| !message["id"].is_f64());
    let problems = schema::agent_problems(&received, &methods);
    assert!(problems.is_empty(), "seed {seed}: {:#?}", &problems[..problems.len().min(5)]);
    torture::print_summary(&format!(
        "acp, fuzz: {count} messages ({broken} broken, {turns} prompts, {SESSIONS} Sessions), {} lines back, seed={seed}, {:.1} s",
        received.len(),
        began.elapsed().as_secs_f64(),
    ));
}
