//! A small ACP client that talks to the real `pixir acp` in raw lines, and keeps all of them.

#![expect(clippy::needless_pass_by_value, reason = "stories read best with a bare `json!`")]

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::binary_env::{BinaryEnv, wait_for};
use super::leaks;
use super::test_env::DEADLINE;

/// A running `pixir acp`, and every message in both directions.
pub struct AcpClient {
    pub child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    next_id: u64,
    /// Messages that were received and not consumed yet.
    unread: VecDeque<Value>,
    /// Every message in either direction, in order.
    pub sent: Vec<Value>,
    pub received: Vec<Value>,
    /// Lines of stdout that are not JSON, of which there must be none.
    pub junk: Vec<String>,
    stderr: Arc<Mutex<String>>,
}

impl AcpClient {
    /// Starts `pixir acp` in an environment, with these further arguments.
    pub fn start(env: &BinaryEnv, args: &[&str]) -> Self {
        let mut all = vec!["acp"];
        all.extend(args);
        Self::spawn(&mut env.command(&all))
    }

    /// Starts any command that speaks the protocol.
    pub fn spawn(command: &mut std::process::Command) -> Self {
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let stdout = child.stdout.take().unwrap();
        let stderr_text = Arc::<Mutex<String>>::default();
        let stderr = child.stderr.take().unwrap();
        let kept = Arc::clone(&stderr_text);
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                leaks::check_stream(&line);
                kept.lock().unwrap().push_str(&(line + "\n"));
            }
        });
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines() {
                let Ok(line) = line else { break };
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Self {
            stdin: child.stdin.take(),
            child,
            lines,
            next_id: 0,
            unread: VecDeque::new(),
            sent: Vec::new(),
            received: Vec::new(),
            junk: Vec::new(),
            stderr: stderr_text,
        }
    }

    /// Starts `pixir acp` and initializes it with these client capabilities.
    pub fn initialized(env: &BinaryEnv, capabilities: Value) -> Self {
        let mut editor = Self::start(env, &[]);
        editor.initialize(capabilities);
        editor
    }

    pub fn initialize(&mut self, capabilities: Value) -> Value {
        let params = json!({"protocolVersion": 1, "clientCapabilities": capabilities});
        self.call("initialize", params).unwrap()
    }

    /// Writes bytes as they are. Errors are ignored, because a test may close the pipe.
    pub fn write_raw(&mut self, bytes: &[u8]) {
        let stdin = self.stdin.as_mut().expect("stdin is open");
        stdin.write_all(bytes).and_then(|()| stdin.flush()).ok();
    }

    /// Writes one message.
    pub fn send_message(&mut self, message: &Value) {
        self.write_raw(format!("{message}\n").as_bytes());
        self.sent.push(message.clone());
    }

    /// Sends a request; gives its id.
    pub fn send_request(&mut self, method: &str, params: Value) -> u64 {
        self.next_id += 1;
        let id = self.next_id;
        self.send_message(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
        id
    }

    pub fn notify(&mut self, method: &str, params: Value) {
        self.send_message(&json!({"jsonrpc": "2.0", "method": method, "params": params}));
    }

    /// Sends a request and waits for its answer; messages that came before it stay unread.
    pub fn call(&mut self, method: &str, params: Value) -> Result<Value, Value> {
        let id = self.send_request(method, params);
        self.wait_for_answer(id)
    }

    /// Waits for the answer to a request.
    #[track_caller]
    pub fn wait_for_answer(&mut self, id: u64) -> Result<Value, Value> {
        let message = self.wait_for_message(&format!("the answer to {id}"), |message| {
            message.get("method").is_none() && message["id"] == id
        });
        match message.get("error") {
            Some(error) => Err(error.clone()),
            None => Ok(message["result"].clone()),
        }
    }

    /// Waits for the next request of the agent for a method.
    #[track_caller]
    pub fn wait_for_request(&mut self, method: &str) -> Value {
        self.wait_for_message(method, |message| {
            message["method"] == method && message.get("id").is_some()
        })
    }

    /// Waits for the next update of a kind.
    #[track_caller]
    pub fn wait_for_update(&mut self, kind: &str) -> Value {
        let found = self.wait_for_message(kind, |message| {
            message["method"] == "session/update"
                && message["params"]["update"]["sessionUpdate"] == kind
        });
        found["params"]["update"].clone()
    }

    /// Waits for the first message that matches and takes it; the others stay unread.
    #[track_caller]
    pub fn wait_for_message(&mut self, what: &str, wished: impl Fn(&Value) -> bool) -> Value {
        let mut looked_at = 0;
        let end = Instant::now() + DEADLINE;
        loop {
            while let Some(message) = self.unread.get(looked_at) {
                if wished(message) {
                    return self.unread.remove(looked_at).unwrap();
                }
                looked_at += 1;
            }
            let left = end.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) => self.receive_line(&line),
                Err(RecvTimeoutError::Timeout) => panic!("no {what} in {:#?}", self.unread),
                Err(RecvTimeoutError::Disconnected) => {
                    panic!("it ended before {what}; unread: {:#?}", self.unread)
                }
            }
        }
    }

    fn receive_line(&mut self, line: &str) {
        leaks::check_stream(line);
        match serde_json::from_str::<Value>(line) {
            Ok(message) => {
                self.received.push(message.clone());
                self.unread.push_back(message);
            }
            Err(_) => self.junk.push(line.to_owned()),
        }
    }

    /// All unread messages received so far, without waiting.
    pub fn drain(&mut self) -> Vec<Value> {
        while let Ok(line) = self.lines.try_recv() {
            self.receive_line(&line);
        }
        self.unread.drain(..).collect()
    }

    /// All unread updates received so far, of all Sessions.
    pub fn updates(&mut self) -> Vec<Value> {
        let all = self.drain().into_iter();
        all.filter(|message| message["method"] == "session/update")
            .map(|message| message["params"]["update"].clone())
            .collect()
    }

    /// Creates a Session in a directory.
    #[track_caller]
    pub fn new_session(&mut self, cwd: &Path) -> String {
        let made = self.call("session/new", json!({"cwd": cwd, "mcpServers": []})).unwrap();
        made["sessionId"].as_str().unwrap().to_owned()
    }

    /// Sends a prompt of text; gives the id of the request.
    pub fn send_prompt(&mut self, session: &str, text: &str) -> u64 {
        let prompt = json!([{"type": "text", "text": text}]);
        self.send_request("session/prompt", json!({"sessionId": session, "prompt": prompt}))
    }

    /// Runs one prompt to its end.
    #[track_caller]
    pub fn run_prompt(&mut self, session: &str, text: &str) -> Result<Value, Value> {
        let id = self.send_prompt(session, text);
        self.wait_for_answer(id)
    }

    /// Answers a request of the agent.
    pub fn send_reply(&mut self, request: &Value, result: Value) {
        self.send_message(&json!({"jsonrpc": "2.0", "id": request["id"], "result": result}));
    }

    /// Chooses an option of a permission request.
    pub fn choose(&mut self, request: &Value, option: &str) {
        self.send_reply(request, json!({"outcome": {"outcome": "selected", "optionId": option}}));
    }

    /// Waits for a line on stderr with this beginning.
    #[track_caller]
    pub fn wait_for_stderr_line(&self, beginning: &str) -> String {
        let look = || {
            let stderr_text = self.stderr.lock().unwrap().clone();
            stderr_text
                .lines()
                .map(str::trim)
                .find(|line| line.starts_with(beginning))
                .map(str::to_owned)
        };
        wait_for(DEADLINE, look, Option::is_some).expect("it was said aside")
    }

    /// Closes stdin.
    pub fn close_stdin(&mut self) {
        self.stdin = None;
    }

    /// Closes stdin and waits for the end; checks that stdout was nothing but JSON.
    #[track_caller]
    pub fn close_and_wait(mut self) -> (ExitStatus, Vec<Value>) {
        self.close_stdin();
        let status = wait_for(DEADLINE, || self.child.try_wait().unwrap(), Option::is_some);
        let status = status.expect("it ends in time");
        // The pipe is closed with the process, so this reads to the end.
        while let Ok(line) = self.lines.recv_timeout(Duration::from_secs(10)) {
            self.receive_line(&line);
        }
        assert_eq!(self.junk, Vec::<String>::new(), "stdout contains only JSON");
        (status, std::mem::take(&mut self.received))
    }
}

impl Drop for AcpClient {
    fn drop(&mut self) {
        // The process is still running only if the test failed.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// The text of all chunks of a kind, joined.
pub fn joined_text(updates: &[Value], kind: &str) -> String {
    let of_kind = updates.iter().filter(|update| update["sessionUpdate"] == kind);
    of_kind.filter_map(|update| update["content"]["text"].as_str()).collect()
}
