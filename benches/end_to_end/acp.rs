//! Benchmark of `pixir acp`: time to initialize, memory per Session, and updates per second.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::model::Model;
use super::table::{median, time};
use super::{Report, measured_process, megabytes};

/// The argument that measures only these rows.
pub const ROLE: &str = "acp";
/// The role of a process that answers one line and ends.
pub const ANSWER: &str = "__answer";

/// Limit of the time by which `initialize` is slower than an answer of a trivial process.
const INITIALIZE_OVERHEAD: Duration = Duration::from_millis(15);
/// Limit of the memory of one more idle Session, in bytes.
const SESSION_BYTES: u64 = 300_000;
/// Number of deltas in the long answer.
const PIECES: usize = 20_000;

/// Answers one line, as the fastest possible process would.
pub fn answer_one_line() {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    println!("{{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{{}}}}");
}

pub fn measure(report: &mut Report) {
    let env = BenchEnv::new();
    let greeting = measure_initialize(&env);
    report.times("acp: spawn to initialize answered", greeting[0], greeting[1], None);
    let later = greeting[1].saturating_sub(greeting[0]);
    report.promise(
        format!(
            "acp: initialize {} over the baseline ≤ {}",
            time(later),
            time(INITIALIZE_OVERHEAD)
        ),
        later <= INITIALIZE_OVERHEAD,
    );
    measure_session_new(&env, report);
    measure_memory(&env, report);
    measure_prompts(&env, report);
}

/// Time from before `exec` to the first answer, of the trivial process and of Pixir, alternating.
fn measure_initialize(env: &BenchEnv) -> [Duration; 2] {
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..40 {
        let mut baseline = measured_process::role(ANSWER);
        let mut pixir = env.pixir();
        for (times, command) in times.iter_mut().zip([&mut baseline, &mut pixir]) {
            let began = Instant::now();
            let mut client = BenchAcpClient::start(command);
            client.initialize();
            times.push(began.elapsed());
            client.end();
        }
    }
    times.map(|mut times| median(&mut times))
}

fn measure_session_new(env: &BenchEnv, report: &mut Report) {
    let mut client = BenchAcpClient::start(&mut env.pixir());
    client.initialize();
    let mut times: Vec<Duration> = (0..60)
        .map(|_| {
            let began = Instant::now();
            client.new_session(env);
            began.elapsed()
        })
        .collect();
    client.end();
    single_row(report, "acp: session/new", time(median(&mut times)));
}

/// A row without a comparison.
fn single_row(report: &mut Report, name: &str, value: String) {
    report.row(name, [String::new(), value, String::new()], String::new());
}

fn measure_memory(env: &BenchEnv, report: &mut Report) {
    let mut client = BenchAcpClient::start(&mut env.pixir());
    client.initialize();
    let idle = client.resident_bytes();
    single_row(report, "acp: memory idle", megabytes(idle));
    let (mut open, mut one, mut most) = (0, 0, 0);
    for count in [1_u64, 20, 200] {
        while open < count {
            client.new_session(env);
            open += 1;
        }
        most = client.resident_bytes();
        if count == 1 {
            one = most;
        }
        let name = format!("acp: memory, {count} idle Sessions");
        single_row(report, &name, megabytes(most));
    }
    client.end();
    let each = most.saturating_sub(one) / 199;
    single_row(report, "acp: memory, one more idle Session", kilobytes(each));
    report.promise(
        format!(
            "acp: one more idle Session takes {} ≤ {}",
            kilobytes(each),
            kilobytes(SESSION_BYTES)
        ),
        each <= SESSION_BYTES,
    );
}

fn kilobytes(bytes: u64) -> String {
    format!("{} kB", bytes / 1000)
}

fn measure_prompts(env: &BenchEnv, report: &mut Report) {
    let mut client = BenchAcpClient::start(&mut env.pixir());
    client.initialize();
    let session = client.new_session(env);
    client.run_prompt(&session, "answer");
    let mut times: Vec<Duration> = (0..60)
        .map(|_| {
            let began = Instant::now();
            client.run_prompt(&session, "answer");
            began.elapsed()
        })
        .collect();
    single_row(report, "acp: prompt round trip", time(median(&mut times)));
    let mut rates: Vec<u64> = (0..8)
        .map(|_| {
            let began = Instant::now();
            client.run_prompt(&session, &format!("deltas {PIECES}"));
            per_second(PIECES, began.elapsed())
        })
        .collect();
    single_row(report, "acp: pieces of an answer per second", median(&mut rates).to_string());
    // Deltas that arrive together become one update; a loaded Session sends one update for each entry.
    for _ in 0..10 {
        client.run_prompt(&session, "read 50");
    }
    let mut rates: Vec<u64> = (0..8)
        .map(|_| {
            let began = Instant::now();
            let params = json!({"sessionId": session, "cwd": env.workspace(), "mcpServers": []});
            let (_, updates) = client.call("session/load", &params);
            per_second(updates, began.elapsed())
        })
        .collect();
    client.end();
    single_row(report, "acp: updates per second", median(&mut rates).to_string());
}

fn per_second(count: usize, taken: Duration) -> u64 {
    let nanos = taken.as_nanos().max(1);
    u64::try_from(count as u128 * 1_000_000_000 / nanos).unwrap_or(u64::MAX)
}

/// A home folder, a Workspace and a scripted model.
struct BenchEnv {
    folder: TempDir,
    model: Model,
}

impl BenchEnv {
    fn new() -> Self {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        std::fs::create_dir_all(folder.path().join("work/.git")).unwrap();
        let lines = "one more line of a small file\n".repeat(60);
        std::fs::write(folder.path().join("work/file.txt"), lines).unwrap();
        Self { folder, model: Model::start(None) }
    }

    fn workspace(&self) -> PathBuf {
        self.folder.path().join("work")
    }

    fn pixir(&self) -> Command {
        let mut command = measured_process::pixir();
        command
            .args(["acp", "--auto"])
            .current_dir(self.workspace())
            .env("HOME", self.folder.path())
            .env("OPENAI_API_KEY", "sk-of-the-benchmark")
            .env("OPENAI_BASE_URL", &self.model.base_url)
            .env("PIXIR_DURABILITY", "none");
        command
    }
}

/// A minimal ACP client.
struct BenchAcpClient {
    process: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    next: u64,
}

impl BenchAcpClient {
    fn start(command: &mut Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = command.spawn().unwrap();
        let stdin = process.stdin.take().unwrap();
        let stdout = BufReader::with_capacity(64 * 1024, process.stdout.take().unwrap());
        Self { process, stdin, stdout, next: 0 }
    }

    /// Sends a request and reads until its answer; returns the answer and the number of other lines.
    fn call(&mut self, method: &str, params: &Value) -> (Value, usize) {
        self.next += 1;
        let question =
            json!({"jsonrpc": "2.0", "id": self.next, "method": method, "params": params});
        self.stdin.write_all(format!("{question}\n").as_bytes()).unwrap();
        let answer = format!("{{\"jsonrpc\":\"2.0\",\"id\":{},", self.next);
        let mut others = 0;
        let mut line = String::new();
        loop {
            line.clear();
            assert_ne!(self.stdout.read_line(&mut line).unwrap(), 0, "it ended");
            if line.starts_with(&answer) {
                let answer: Value = serde_json::from_str(&line).unwrap();
                assert!(answer.get("result").is_some(), "{answer}");
                return (answer["result"].clone(), others);
            }
            others += 1;
        }
    }

    fn initialize(&mut self) {
        self.call("initialize", &json!({"protocolVersion": 1}));
    }

    fn new_session(&mut self, env: &BenchEnv) -> String {
        let params = json!({"cwd": env.workspace(), "mcpServers": []});
        self.call("session/new", &params).0["sessionId"].as_str().unwrap().to_owned()
    }

    /// Runs one prompt to its end; returns the number of its updates.
    fn run_prompt(&mut self, session: &str, text: &str) -> usize {
        let prompt = json!([{"type": "text", "text": text}]);
        self.call("session/prompt", &json!({"sessionId": session, "prompt": prompt})).1
    }

    /// Resident memory of the idle process, in bytes.
    fn resident_bytes(&self) -> u64 {
        // Sessions are announced a moment after they are created.
        std::thread::sleep(Duration::from_millis(500));
        let status =
            std::fs::read_to_string(format!("/proc/{}/status", self.process.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
    }

    fn end(self) {
        let Self { mut process, stdin, mut stdout, .. } = self;
        drop(stdin);
        std::io::copy(&mut stdout, &mut std::io::sink()).unwrap();
        assert!(process.wait().unwrap().success());
    }
}
