//! A long Session in a small window: every Turn succeeds, every request is valid and fits,
//! and the process does not grow.

use std::fs;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use pixir::scripted::{ModelScript, ReceivedRequest, Reply};
use serde_json::{Value, json};

use super::{of_type, tokens, too_long};
use crate::support::BinaryEnv;
use crate::support::acp_client::AcpClient;
use crate::support::torture::{SuiteSize, print_summary};

/// A small context window that still fits instructions and tools.
const WINDOW: u64 = 16_000;

/// Problems of requests, and their sizes.
#[derive(Default)]
struct RequestProblems {
    problems: Mutex<Vec<String>>,
    largest: AtomicU64,
    requests: AtomicUsize,
    overflows: AtomicUsize,
}

impl RequestProblems {
    fn check(&self, request: &ReceivedRequest, size: u64) {
        let number = self.requests.fetch_add(1, Ordering::Relaxed);
        self.largest.fetch_max(size, Ordering::Relaxed);
        let mut problems = self.problems.lock().unwrap();
        let mut open: Vec<&str> = Vec::new();
        for item in request.input() {
            let id = item["call_id"].as_str().unwrap_or_default();
            match item["type"].as_str().unwrap_or_default() {
                "function_call" => open.push(id),
                "function_call_output" => match open.iter().position(|own| *own == id) {
                    Some(place) => drop(open.remove(place)),
                    None => problems.push(format!("request {number}: output {id} stands alone")),
                },
                _ => {}
            }
        }
        if !open.is_empty() {
            problems.push(format!("request {number}: {open:?} have no output"));
        }
        let first = &request.input()[0];
        if first["role"] != "developer" {
            problems.push(format!("request {number} begins with {first}"));
        }
        if !request.user_texts().last().is_some_and(|text| text.starts_with("turn ")) {
            problems.push(format!("request {number} has lost the user's message"));
        }
    }
}

fn answer(request: &ReceivedRequest, seen: &RequestProblems) -> Reply {
    let size = tokens(request);
    seen.check(request, size);
    if size > WINDOW {
        seen.overflows.fetch_add(1, Ordering::Relaxed);
        return too_long();
    }
    let turn: usize = request
        .user_texts()
        .last()
        .and_then(|text| text[5..].split(':').next()?.parse().ok())
        .unwrap_or(0);
    let reply = match request.outputs().len() {
        0 => Reply::new()
            .reasoning("I look at it first.")
            .call("read", json!({"path": format!("file{}.txt", turn % 7)}))
            .call(
                "bash",
                json!({"command": format!("echo turn {turn}; seq {turn} {}", turn + 300)}),
            ),
        2 if turn.is_multiple_of(10) => {
            let content = format!("written in turn {turn}\n").repeat(40);
            Reply::calls(
                "write",
                json!({"path": format!("out{}.txt", turn % 5), "content": content}),
            )
        }
        _ => {
            let reasons = "It matters because the next one depends on it. ".repeat(12);
            Reply::says(&format!("Turn {turn} is done. {reasons}"))
        }
    };
    reply.usage(size, size / 2, 60)
}

/// Resident memory of a process in KiB.
fn resident(pid: u32) -> f64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// The slope of the regression line through these points.
#[expect(clippy::cast_precision_loss, reason = "counts of a test")]
fn slope(values: &[f64]) -> f64 {
    let count = values.len() as f64;
    let mean_x = (count - 1.0) / 2.0;
    let mean_y = values.iter().sum::<f64>() / count;
    let mut covariance = 0.0;
    let mut variance = 0.0;
    for (place, value) in values.iter().enumerate() {
        let x = place as f64 - mean_x;
        covariance += x * (value - mean_y);
        variance += x * x;
    }
    covariance / variance
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_of_hundreds_of_turns_runs_to_its_end_in_a_small_window() {
    let turns = SuiteSize::from_environment().choose(50, 500);
    let seen = Arc::new(RequestProblems::default());
    let watching = Arc::clone(&seen);
    let script = ModelScript::answering(move |request| answer(request, &watching));
    let env = BinaryEnv::new(BinaryEnv::new_mark(), script).await;
    env.configure(
        &json!({"durability": "none", "context_window": WINDOW, "acp": {"mode": "auto"}}),
    );
    for number in 0..7 {
        let text = format!("line of file {number} with a few words in it\n").repeat(60);
        fs::write(env.workspace().join(format!("file{number}.txt")), text).unwrap();
    }
    let capabilities = json!({"session": {"notices": {}, "compaction": {}}});
    let mut client = AcpClient::initialized(&env, capabilities);
    let id = client.new_session(&env.workspace());
    let mut memory = Vec::new();
    let mut begun = 0;
    let mut compactions = 0;
    let mut pressures = 0;
    for turn in 0..turns {
        let ended = client.run_prompt(&id, &format!("turn {turn}: look at the next file"));
        assert_eq!(ended, Ok(json!({"stopReason": "end_turn"})), "turn {turn}");
        for update in client.updates() {
            if update["sessionUpdate"] == "compaction_update" {
                begun += usize::from(update["status"] == "in_progress");
                compactions += usize::from(update["status"] == "completed");
            }
            let is_pressure =
                update["title"].as_str().is_some_and(|title| title.contains("window"));
            pressures += usize::from(is_pressure);
        }
        client.received.clear();
        client.sent.clear();
        env.server.take_requests();
        memory.push(resident(client.child.id()));
    }
    let pid_log = env.session().unwrap().1;
    assert!(client.close_and_wait().0.success());
    assert_eq!(*seen.problems.lock().unwrap(), Vec::<String>::new());
    let events = env.events();
    let recorded = of_type(&events, "history_compaction");
    assert_eq!((begun, compactions), (recorded.len(), recorded.len()), "each one is reported");
    assert!(compactions >= turns / 25, "{compactions}");
    assert!(pressures >= compactions, "{pressures} {compactions}");
    assert_eq!(of_type(&events, "turn_failed"), Vec::<Value>::new());
    // Compaction is early enough: no request is refused for its length.
    assert_eq!(seen.overflows.load(Ordering::Relaxed), 0);
    for event in &recorded {
        let data = &event["data"];
        assert!(data["tokens_after"].as_u64() < data["tokens_before"].as_u64(), "{data}");
    }
    // The summary still contains the topic of the Session.
    let last = recorded.last().unwrap()["data"]["summary"].as_str().unwrap().to_owned();
    assert!(last.contains("turn 0: look at the next file"), "{last}");
    env.run(&["verify", &id]).expect_code(0);
    // Compacted facts are dropped from memory. A short run has not settled yet, so only a long one
    // has a strict limit.
    #[expect(clippy::cast_precision_loss, reason = "counts of a test")]
    let log = fs::metadata(pid_log).unwrap().len() as f64 / 1024.0 / turns as f64;
    let steady = &memory[memory.len() / 3..];
    let slope = slope(steady);
    print_summary(&format!(
        "{turns} Turns, {} requests, {compactions} compactions, largest request {} of {WINDOW} tokens; \
         memory {:.0} KiB, slope {slope:.1} KiB per Turn where the Log grows by {log:.1}",
        seen.requests.load(Ordering::Relaxed),
        seen.largest.load(Ordering::Relaxed),
        memory.last().unwrap(),
    ));
    let most = if turns >= 500 { log / 2.0 } else { 6.0 * log + 64.0 };
    assert!(slope < most, "{slope} KiB per Turn");
}
