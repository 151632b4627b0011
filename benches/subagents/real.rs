//! Subagents over the real network: how long a few children of one delegation take, with the user's own
//! credential. Bounded, because it costs money: few children, one small answer each, and a limit on requests,
//! tokens and time that Pixir itself enforces.
//!
//! Only `--real-network` starts it, and never where `CI` is set. `--rehearse` does the same against Pixir's own
//! model on loopback, in a temporary home.

use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::Model;

/// Default numbers of children that run at once.
const LADDER: [usize; 3] = [1, 2, 4];

/// The most children of one run, and of all of them.
const MOST_AT_ONCE: usize = 8;
const MOST_IN_ALL: usize = 16;

/// Limits of one child: a request and one retry, and far more tokens than it needs.
const REQUESTS_PER_CHILD: usize = 2;
const TOKENS_PER_CHILD: usize = 50_000;

/// How long one run may take.
const RUN_TIMEOUT_MS: u64 = 120_000;

/// The result of one run.
struct Run {
    children: usize,
    wall: Duration,
    envelope: Value,
    requests: u64,
}

/// Runs all numbers of children, and prints a report.
pub fn measure(asked: &[usize], is_rehearsal: bool) -> ExitCode {
    let ladder = if asked.is_empty() { &LADDER[..] } else { asked };
    let all: usize = ladder.iter().sum();
    if ladder.iter().any(|count| !(1..=MOST_AT_ONCE).contains(count)) || all > MOST_IN_ALL {
        println!("at most {MOST_AT_ONCE} children at once, and {MOST_IN_ALL} in all");
        return ExitCode::from(2);
    }
    if !is_rehearsal && std::env::var_os("CI").is_some_and(|value| !value.is_empty()) {
        println!("CI is set, so the real network is not used; add --rehearse");
        return ExitCode::from(2);
    }
    let most = all * REQUESTS_PER_CHILD;
    let whose = if is_rehearsal { "Pixir's own model" } else { "your credential" };
    println!("{all} children, at most {most} requests, with {whose}");
    let model = is_rehearsal.then(Model::start);
    let runs: Vec<Run> = ladder.iter().map(|count| run(*count, model.as_ref())).collect();
    report(&runs, is_rehearsal)
}

/// The delegation: tasks that need no tool and one short answer, whose shape Pixir checks.
fn spec(children: usize) -> Value {
    let shape = json!({"type": "object", "required": ["word"], "additionalProperties": false,
        "properties": {"word": {"type": "string"}}});
    let task = |number: usize| {
        json!({"id": format!("child{number}"), "output": shape,
            "task": "Deliver the word `pong` as `word`. Use no tool."})
    };
    json!({
        "contract_version": 1,
        "name": "real network",
        "tasks": (0..children).map(task).collect::<Vec<_>>(),
        "limits": {"max_concurrency": children, "timeout_ms": RUN_TIMEOUT_MS},
        "budget": {"tokens": children * TOKENS_PER_CHILD},
    })
}

fn run(children: usize, model: Option<&Model>) -> Run {
    let place = tempfile::tempdir().unwrap();
    let (home, work) = (place.path().join("home"), place.path().join("work"));
    std::fs::create_dir_all(&work).unwrap();
    std::fs::create_dir_all(&home).unwrap();
    std::fs::write(work.join("spec.json"), spec(children).to_string()).unwrap();
    let most = (children * REQUESTS_PER_CHILD).to_string();
    let mut command = Command::new(env!("CARGO_BIN_EXE_pixir"));
    if let Some(model) = model {
        command
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap())
            .env("HOME", &home)
            .env("OPENAI_API_KEY", "sk-bench")
            .env("OPENAI_BASE_URL", &model.url);
    }
    command
        .args(["delegate", "--spec", "spec.json", "--json", "--quiet", "--max-requests", &most])
        .current_dir(&work)
        .stdin(Stdio::null());
    let began = Instant::now();
    let output = command.output().unwrap();
    let wall = began.elapsed();
    let envelope = serde_json::from_slice(&output.stdout).unwrap_or_else(
        |_| json!({"error": {"message": String::from_utf8_lossy(&output.stderr).trim()}}),
    );
    Run { children, wall, envelope, requests: requests(&work) }
}

/// The number of requests in the Logs of a Workspace, including failed ones.
fn requests(work: &Path) -> u64 {
    let logs = std::fs::read_dir(work.join(".pixir/sessions")).into_iter().flatten().flatten();
    let logs = logs.map(|entry| entry.path());
    let logs = logs.filter(|path| path.extension().is_some_and(|end| end == "ndjson"));
    let usage_records = logs.flat_map(|path| super::events(&path));
    let usage_records = usage_records.filter(|event| event["type"] == "provider_usage");
    usage_records
        .map(|usage_record| 1 + usage_record["data"]["retries"].as_u64().unwrap_or(0))
        .sum()
}

impl Run {
    fn completed(&self) -> u64 {
        self.envelope["output"]["counts"]["completed"].as_u64().unwrap_or(0)
    }

    /// Whether every child delivered and the limit on requests was kept.
    fn counts(&self) -> bool {
        let most = (self.children * REQUESTS_PER_CHILD) as u64;
        self.completed() == self.children as u64 && (1..=most).contains(&self.requests)
    }

    fn slowest_ms(&self) -> u64 {
        let children = self.envelope["output"]["children"].as_array().into_iter().flatten();
        children.filter_map(|child| child["elapsed_ms"].as_u64()).max().unwrap_or(0)
    }

    fn json(&self) -> Value {
        json!({
            "children": self.children,
            "completed": self.completed(),
            "wall_ms": self.wall.as_secs_f64() * 1e3,
            "slowest_child_ms": self.slowest_ms(),
            "requests": self.requests,
            "usage": self.envelope["usage"],
            "error": self.envelope["error"],
        })
    }
}

fn report(runs: &[Run], is_rehearsal: bool) -> ExitCode {
    println!("\n| children | completed | wall ms | slowest child ms | requests | tokens |");
    println!("|--:|--:|--:|--:|--:|--:|");
    for run in runs {
        let (wall, tokens) = (run.wall.as_secs_f64() * 1e3, &run.envelope["usage"]["total_tokens"]);
        let (children, completed, slowest) = (run.children, run.completed(), run.slowest_ms());
        println!(
            "| {children} | {completed} | {wall:.0} | {slowest} | {} | {tokens} |",
            run.requests
        );
        if !run.envelope["error"].is_null() {
            println!("\nerror: {}\n", run.envelope["error"]["message"]);
        }
    }
    let name = if is_rehearsal { "rehearsal.json" } else { "real.json" };
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/benchmarks/subagents");
    std::fs::create_dir_all(&folder).unwrap();
    let rows: Vec<Value> = runs.iter().map(Run::json).collect();
    std::fs::write(folder.join(name), format!("{:#}\n", json!(rows))).unwrap();
    if runs.iter().all(Run::counts) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
