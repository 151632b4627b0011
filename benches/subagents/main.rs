//! Benchmark `subagents`: N children of one parent, in the release binary, against a model in another
//! process. Every run is scored strictly: files, Logs and usage must be right, or it does not count.
//!
//! `cargo bench --bench subagents` runs the whole ladder; `-- 1 50` only these N. Results are
//! under `target/benchmarks/subagents`; `docs/benchmarks/subagents.md` explains them.
//!
//! `-- --real-network` measures a few children with the user's own credential instead, and spends a little;
//! `-- --real-network --rehearse` does the same on loopback and spends nothing.

#![expect(clippy::unwrap_used, reason = "a benchmark stops at its first error")]
#![expect(clippy::print_stdout, reason = "the tables are the output")]
#![expect(clippy::disallowed_methods, reason = "the benchmark starts the measured processes")]
#![expect(clippy::cast_precision_loss, reason = "megabytes and milliseconds need no more digits")]

mod real;

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use pixir::scripted::{ModelScript, ReceivedRequest, Reply, ScriptedServer};
use serde_json::{Value, json};

/// The role of the model's process.
const MODEL: &str = "__model";

/// The numbers of children that are measured.
const LADDER: [usize; 8] = [1, 5, 10, 25, 50, 100, 500, 1000];

/// Limit of the marginal memory of a child that is held open, in bytes.
const PER_CHILD: f64 = 300_000.0;

/// Limit of the time until 50 isolated children have started, in milliseconds.
const SPAWNED_MS: f64 = 100.0;

/// Files of a small Workspace; `MORE_FILES` are those of a larger one.
const FILES: usize = 10;
const MORE_FILES: usize = 40;

/// Limit of the ratio of the times of 64 children and of one.
const CROWD_RATIO: f64 = 1.2;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|first| first == MODEL) {
        serve();
        return ExitCode::SUCCESS;
    }
    let asked: Vec<usize> = arguments.iter().filter_map(|word| word.parse().ok()).collect();
    let has = |flag: &str| arguments.iter().any(|word| word == flag);
    if has("--real-network") {
        return real::measure(&asked, has("--rehearse"));
    }
    let counts = measure(if asked.is_empty() { &LADDER } else { &asked });
    if counts { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Serves the scripted model until the process is killed.
fn serve() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let server = ScriptedServer::start(ModelScript::answering(answer)).await.unwrap();
        println!("{}", server.base_url());
        std::io::stdout().flush().unwrap();
        std::future::pending::<()>().await;
    });
}

/// The model's reply: `fan N pause_ms workspace` is the parent's prompt, `child N pause_ms` a task.
fn answer(request: &ReceivedRequest) -> Reply {
    let texts = request.user_texts();
    let words: Vec<&str> =
        texts.iter().rfind(|text| !text.starts_with('[')).unwrap().split(' ').collect();
    let number = |place: usize| words.get(place).and_then(|word| word.parse().ok()).unwrap_or(0);
    let (count, pause) = (number(1), number(2) as u64);
    // A report about children that ended is no new prompt.
    let is_prompt = |item: &Value| {
        let text = item["content"][0]["text"].as_str().unwrap_or_default();
        item["role"] == "user" && !text.starts_with('[')
    };
    let since = request.input().iter().rev().take_while(|item| !is_prompt(item));
    let done = since.filter(|item| item["type"] == "function_call_output").count();
    match words[0] {
        "fan" if done == 0 => (0..count).fold(Reply::new(), |reply, child| {
            let task = format!("child {child} {pause}");
            reply.call("spawn_agent", json!({"task": task, "workspace": words[3]}))
        }),
        "fan" if done == count => Reply::calls("wait_agent", json!({})),
        "child" if done == 0 => {
            let args = json!({"path": format!("child_{count}.txt"), "content": words.join(" ")});
            Reply::new().pause(Duration::from_millis(pause)).call("write", args)
        }
        "Deliver" => Reply::says(r#"{"word": "pong"}"#),
        "child" => Reply::new()
            .pause(Duration::from_millis(pause))
            .text(&format!("I wrote child_{count}.txt.")),
        _ => Reply::says("All done."),
    }
}

/// A case of the benchmark.
#[derive(Debug, Clone, Copy)]
struct Case {
    name: &'static str,
    children: usize,
    pause_ms: u64,
    durability: &'static str,
    workspace: &'static str,
    files: usize,
}

impl Case {
    fn shared(name: &'static str, children: usize, pause_ms: u64) -> Self {
        Self { name, children, pause_ms, durability: "none", workspace: "shared", files: FILES }
    }
}

/// The measurements of one run.
#[derive(Debug)]
struct CaseResult {
    case: Case,
    wall: Duration,
    first_started: Duration,
    all_queued: Duration,
    all_started: Duration,
    all_done: Duration,
    peak: u64,
    threads: u64,
    processes: u64,
    completed: usize,
    faults: Vec<String>,
}

/// Runs all cases; returns whether every run counts.
fn measure(ladder: &[usize]) -> bool {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/benchmarks/subagents");
    std::fs::create_dir_all(&folder).unwrap();
    let mut cases: Vec<Case> = Vec::new();
    for &children in ladder {
        cases.push(Case::shared("ladder", children, 0));
    }
    let default = Case::shared("ladder, default durability", 50, 0);
    cases.push(Case { durability: "turn", ..default });
    // The pause keeps the children idle, so that their work is not part of the time to start the others.
    let isolated = Case { workspace: "isolated", ..Case::shared("isolated", 50, 2000) };
    cases.push(isolated);
    let name = "isolated, default durability";
    cases.push(Case { name, durability: "turn", ..isolated });
    cases.push(Case { name: "isolated, at work at once", pause_ms: 0, ..isolated });
    cases.push(Case { name: "isolated, 40 files", files: MORE_FILES, ..isolated });
    for children in [1, 50, 100, 200, 400] {
        let pause_ms = 1000 + children as u64 * 10;
        cases.push(Case::shared("held open", children, pause_ms));
    }
    for children in [1, 64] {
        cases.push(Case::shared("2 s per call", children, 2000));
    }
    let runs: Vec<CaseResult> = cases.into_iter().map(run).collect();
    let lines: Vec<String> = runs.iter().map(|run| run.json().to_string()).collect();
    std::fs::write(folder.join("runs.jsonl"), lines.join("\n") + "\n").unwrap();
    let summary = summary(&runs);
    std::fs::write(folder.join("summary.json"), format!("{summary:#}\n")).unwrap();
    let report = report(&runs, &summary);
    std::fs::write(folder.join("report.md"), &report).unwrap();
    println!("{report}");
    runs.iter().all(CaseResult::counts)
}

fn run(case: Case) -> CaseResult {
    let model = Model::start();
    let place = tempfile::tempdir().unwrap();
    let (home, work) = (place.path().join("home"), place.path().join("work"));
    std::fs::create_dir_all(home.join(".pixir")).unwrap();
    std::fs::create_dir_all(work.join("src")).unwrap();
    for file in 0..case.files {
        let text = format!("// file {file}\n").repeat(10 + file * 5);
        std::fs::write(work.join(format!("src/file_{file}.rs")), text).unwrap();
    }
    let limits = json!({"max_running": case.children, "max_in_process": case.children});
    let config = json!({"durability": case.durability, "subagents": limits});
    std::fs::write(home.join(".pixir/config.json"), config.to_string()).unwrap();
    let prompt = format!("fan {} {} {}", case.children, case.pause_ms, case.workspace);
    let began = Instant::now();
    // Each child opens a Log and a connection; some shells allow too few open files.
    let mut child = Command::new("/bin/sh")
        .args(["-c", r#"ulimit -n 65536 2>/dev/null || ulimit -n 4096; exec "$@""#, "sh"])
        .arg(env!("CARGO_BIN_EXE_pixir"))
        .args(["--json", "--quiet", &prompt])
        .current_dir(&work)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap())
        .env("HOME", &home)
        .env("OPENAI_API_KEY", "sk-bench")
        .env("OPENAI_BASE_URL", &model.url)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (peak, threads, processes) = watch(&mut child);
    let output = child.wait_with_output().unwrap();
    let wall = began.elapsed();
    let envelope: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let mut taken = CaseResult {
        case,
        wall,
        first_started: Duration::ZERO,
        all_queued: Duration::ZERO,
        all_started: Duration::ZERO,
        all_done: Duration::ZERO,
        peak,
        threads,
        processes,
        completed: 0,
        faults: Vec::new(),
    };
    if envelope["ok"] != true {
        taken.faults.push(format!("{envelope}: {}", String::from_utf8_lossy(&output.stderr)));
        return taken;
    }
    score(&mut taken, &work, &home.join(".pixir/workspaces"), &envelope);
    println!(
        "{} {}: {} of {} in {:.2} s, peak {:.1} MB{}",
        case.name,
        case.children,
        taken.completed,
        case.children,
        taken.all_done.as_secs_f64(),
        peak as f64 / 1e6,
        if taken.faults.is_empty() { "" } else { " FAULTS" }
    );
    taken
}

/// Samples a process until it ends; returns its peak memory, most threads and most processes.
fn watch(child: &mut Child) -> (u64, u64, u64) {
    let status = format!("/proc/{}/status", child.id());
    let (mut peak, mut threads, mut processes) = (0, 0, 0);
    while child.try_wait().unwrap().is_none() {
        let text = std::fs::read_to_string(&status).unwrap_or_default();
        let field = |name: &str| {
            let line = text.lines().find(|line| line.starts_with(name));
            let word = line.and_then(|line| line.split_whitespace().nth(1));
            word.and_then(|word| word.parse::<u64>().ok()).unwrap_or_default()
        };
        peak = peak.max(field("VmHWM:") * 1024);
        threads = threads.max(field("Threads:"));
        let path = format!("/proc/{0}/task/{0}/children", child.id());
        let own = std::fs::read_to_string(path).unwrap_or_default();
        processes = processes.max(own.split_whitespace().count() as u64);
        std::thread::sleep(Duration::from_millis(5));
    }
    (peak, threads, processes + 1)
}

/// Checks files, Logs and usage, and takes the times from the parent's Log.
fn score(taken: &mut CaseResult, work: &Path, child_workspaces: &Path, envelope: &Value) {
    let count = taken.case.children;
    let parent = envelope["session_id"].as_str().unwrap();
    let own = pixir::SessionId::parse(parent).unwrap();
    if !pixir::verify_log(work, &own).unwrap().ok {
        taken.faults.push(format!("the Log of {parent} is not whole"));
    }
    let events = events(&log(work, parent));
    let began =
        events.iter().find(|event| event["type"] == "user_message").map(event_seconds).unwrap();
    let subagent_events: Vec<&Value> =
        events.iter().filter(|event| event["type"] == "subagent_event").collect();
    let of = |name: &str| {
        let own = subagent_events.iter().filter(move |life| life["data"]["event"] == name);
        own.map(|life| event_seconds(life) - began).collect::<Vec<_>>()
    };
    let (queued, started, finished) = (of("queued"), of("started"), of("finished"));
    taken.completed = finished.len();
    for (child, life) in
        subagent_events.iter().filter(|life| life["data"]["event"] == "queued").enumerate()
    {
        let place = match taken.case.workspace {
            "isolated" => {
                let of = |other: &&&Value| {
                    other["data"]["event"] == "started"
                        && other["data"]["subagent_id"] == life["data"]["subagent_id"]
                };
                let started =
                    subagent_events.iter().find(of).map(|life| &life["data"]["child_session_id"]);
                child_workspaces.join(started.and_then(Value::as_str).unwrap_or("missing"))
            }
            _ => work.to_owned(),
        };
        let text = std::fs::read_to_string(place.join(format!("child_{child}.txt")));
        let expected = format!("child {child} {}", taken.case.pause_ms);
        let copied = (0..taken.case.files)
            .filter(|file| place.join(format!("src/file_{file}.rs")).is_file());
        if text.ok().as_deref() != Some(expected.as_str()) || copied.count() != taken.case.files {
            taken.faults.push(format!("the files of child {child} are wrong"));
        }
    }
    for (name, times) in [("queued", &queued), ("started", &started), ("finished", &finished)] {
        if times.len() != count {
            taken.faults.push(format!("{} of {count} {name}", times.len()));
        }
    }
    let millis = |time: Option<f64>| Duration::from_secs_f64(time.unwrap_or_default().max(0.0));
    let last = |times: &[f64]| millis(times.iter().copied().reduce(f64::max));
    taken.first_started = millis(started.iter().copied().reduce(f64::min));
    taken.all_queued = last(&queued);
    taken.all_started = last(&started);
    taken.all_done = last(&finished);
    let mut billed = own_tokens(&events);
    for life in subagent_events.iter().filter(|life| life["data"]["event"] == "finished") {
        let id = life["data"]["child_session_id"].as_str().unwrap();
        let session = pixir::SessionId::parse(id).unwrap();
        let proof = pixir::verify_log(work, &session).unwrap();
        let spent = own_tokens(&self::events(&log(work, id)));
        if !proof.ok || Some(spent) != life["data"]["usage"]["total_tokens"].as_u64() {
            taken.faults.push(format!("{id} does not add up"));
        }
        billed += spent;
    }
    if Some(billed) != envelope["usage"]["total_tokens"].as_u64() {
        taken.faults.push(format!("{billed} tokens are in the Logs: {}", envelope["usage"]));
    }
}

fn own_tokens(events: &[Value]) -> u64 {
    let usage_records = events.iter().filter(|event| event["type"] == "provider_usage");
    usage_records
        .filter_map(|usage_record| usage_record["data"]["usage"]["total_tokens"].as_u64())
        .sum()
}

fn log(work: &Path, id: &str) -> PathBuf {
    work.join(format!(".pixir/sessions/{id}.ndjson"))
}

fn events(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Seconds of the day; a run must not cross midnight.
fn event_seconds(event: &Value) -> f64 {
    let clock = event["ts"].as_str().unwrap().split_once('T').unwrap().1.trim_end_matches('Z');
    clock.split(':').fold(0.0, |sum, part| sum * 60.0 + part.parse::<f64>().unwrap())
}

impl CaseResult {
    /// Whether the run did everything that it should; only then its numbers count.
    fn counts(&self) -> bool {
        self.faults.is_empty() && self.completed == self.case.children
    }

    fn json(&self) -> Value {
        json!({
            "case": self.case.name,
            "children": self.case.children,
            "pause_ms": self.case.pause_ms,
            "durability": self.case.durability,
            "workspace": self.case.workspace,
            "files": self.case.files,
            "wall_ms": self.wall.as_secs_f64() * 1e3,
            "first_started_ms": self.first_started.as_secs_f64() * 1e3,
            "all_queued_ms": self.all_queued.as_secs_f64() * 1e3,
            "all_started_ms": self.all_started.as_secs_f64() * 1e3,
            "all_done_ms": self.all_done.as_secs_f64() * 1e3,
            "peak_bytes": self.peak,
            "threads": self.threads,
            "processes": self.processes,
            "completed": self.completed,
            "faults": self.faults,
        })
    }
}

/// The slope of peak memory over children that are held open, by least squares.
fn slope(runs: &[CaseResult]) -> f64 {
    let points: Vec<(f64, f64)> = runs
        .iter()
        .filter(|run| run.case.name == "held open")
        .map(|run| (run.case.children as f64, run.peak as f64))
        .collect();
    let count = points.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
    let (x, y) = (mean(|point| point.0), mean(|point| point.1));
    let above: f64 = points.iter().map(|point| (point.0 - x) * (point.1 - y)).sum();
    let below: f64 = points.iter().map(|point| (point.0 - x).powi(2)).sum();
    above / below
}

fn summary(runs: &[CaseResult]) -> Value {
    let wall = |children: usize| {
        let mut own = runs.iter().filter(|run| run.case.name == "2 s per call");
        own.find(|run| run.case.children == children).map_or(0.0, |run| run.wall.as_secs_f64())
    };
    // A failed run is fast and small, so its numbers must not count.
    let counts = |name: &str| {
        let mut own = runs.iter().filter(|run| run.case.name == name).peekable();
        own.peek().is_some() && own.all(CaseResult::counts)
    };
    let lost: usize = runs.iter().map(|run| run.case.children.saturating_sub(run.completed)).sum();
    let ladder = runs.iter().filter(|run| run.case.name == "ladder");
    let (threads, processes): (Vec<u64>, Vec<u64>) =
        ladder.map(|run| (run.threads, run.processes)).unzip();
    let mut isolated = runs.iter().filter(|run| run.case.name == "isolated");
    let spawned = isolated.next().map_or(f64::NAN, |run| run.all_started.as_secs_f64() * 1e3);
    json!({
        "isolated_spawned_ms": spawned,
        "isolated_holds": counts("isolated") && spawned <= SPAWNED_MS,
        "marginal_bytes_per_child": slope(runs),
        "marginal_holds": counts("held open") && slope(runs) <= PER_CHILD,
        "crowd_ratio": wall(64) / wall(1),
        "crowd_holds": counts("2 s per call") && wall(64) / wall(1) <= CROWD_RATIO,
        "lost": lost,
        "faults": runs.iter().map(|run| run.faults.len()).sum::<usize>(),
        "threads_min": threads.iter().min(),
        "threads_max": threads.iter().max(),
        "processes_max": processes.iter().max(),
    })
}

fn report(runs: &[CaseResult], summary: &Value) -> String {
    let mut text =
        "# Subagents\n\n| case | N | first started ms | all queued ms | all started ms | \
        all done ms | peak MB | threads | processes | completed | faults |\n\
        |---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n"
            .to_owned();
    for run in runs {
        let ms = |time: Duration| format!("{:.1}", time.as_secs_f64() * 1e3);
        writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} | {:.1} | {} | {} | {} | {} |",
            run.case.name,
            run.case.children,
            ms(run.first_started),
            ms(run.all_queued),
            ms(run.all_started),
            ms(run.all_done),
            run.peak as f64 / 1e6,
            run.threads,
            run.processes,
            run.completed,
            run.faults.len()
        )
        .unwrap();
    }
    let holds = |name: &str| verdict(summary[name] == true);
    writeln!(
        text,
        "\nMarginal memory of a child that is held open: {:.0} kB, at most 300: {}.\n\
         64 children with 2 s per call take {:.2} times as long as one, at most 1.2: {}.\n\
         50 isolated children have started after {:.0} ms, at most 100: {}.\n\
         Lost: {}. Faults: {}.",
        summary["marginal_bytes_per_child"].as_f64().unwrap_or_default() / 1e3,
        holds("marginal_holds"),
        summary["crowd_ratio"].as_f64().unwrap_or_default(),
        holds("crowd_holds"),
        summary["isolated_spawned_ms"].as_f64().unwrap_or_default(),
        holds("isolated_holds"),
        summary["lost"],
        summary["faults"],
    )
    .unwrap();
    text
}

/// The word for whether a promised limit holds.
fn verdict(holds: bool) -> &'static str {
    if holds { "holds" } else { "MISSED" }
}

/// The model in a separate process, killed on drop.
struct Model {
    child: Child,
    url: String,
}

impl Model {
    fn start() -> Self {
        let mut child = Command::new("/bin/sh")
            .args(["-c", r#"ulimit -n 65536 2>/dev/null || ulimit -n 4096; exec "$@""#, "sh"])
            .arg(std::env::current_exe().unwrap())
            .arg(MODEL)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut url = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut url).unwrap();
        Self { child, url: url.trim().to_owned() }
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
