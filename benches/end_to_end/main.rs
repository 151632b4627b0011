//! End-to-end benchmarks: the release binary against the scripted model, compared with a minimal client.
//!
//! Model, minimal client and Pixir are separate processes; the first two are this program again, under
//! another role. Pixir and the minimal client alternate, so that noise of the machine affects both, and
//! only their ratios are compared.

#![expect(clippy::unwrap_used, reason = "a benchmark stops at its first error")]
#![expect(clippy::print_stdout, reason = "the tables are the output")]
#![expect(clippy::disallowed_methods, reason = "the benchmark starts the measured processes")]

mod acp;
mod earlier_binary;
mod files;
mod large;
mod measured_process;
mod minimal_client;
mod model;
mod reqwest_client;
mod sandbox;
mod scenario;
mod search;
#[path = "../support/table.rs"]
mod table;

use std::time::{Duration, Instant};

use measured_process::Run;
use scenario::{Durability, Scenario, SyncCost};
use table::{median, time, verdict};

/// Limit of the peak memory of a Turn with 50 calls, in bytes.
const PEAK: u64 = 25_000_000;
/// Limit of the memory that a flood of output adds to that peak, in bytes.
const FLOOD: u64 = 30_000_000;

fn main() {
    let mut arguments = std::env::args().skip(1);
    match arguments.next().as_deref() {
        Some(model::ROLE) => model::serve(arguments.next()),
        Some(minimal_client::ROLE) => minimal_client::run(arguments),
        Some(reqwest_client::ROLE) => reqwest_client::run(arguments),
        Some(measured_process::NOTHING) => {}
        Some(acp::ANSWER) => acp::answer_one_line(),
        Some(acp::ROLE) => {
            let mut report = Report::default();
            acp::measure(&mut report);
            report.show();
        }
        Some(earlier_binary::ROLE) => {
            let mut report = Report::default();
            earlier_binary::measure(&mut report, arguments.next());
            report.show();
        }
        Some(measured_process::PEAK) => measured_process::print_peak(arguments),
        Some(search::ROLE) => {
            let mut report = Report::default();
            search::measure(&mut report);
            report.show();
        }
        Some(files::ROLE) => {
            let mut report = Report::default();
            files::measure(&mut report);
            report.show();
        }
        Some(large::ROLE) => {
            let mut report = Report::default();
            large::measure(&mut report, arguments.next());
            report.show();
        }
        _ => measure(),
    }
}

fn measure() {
    let began = Instant::now();
    let mut report = Report::default();
    let sync = SyncCost::measured();
    version(&mut report);
    first_byte(&mut report, sync.new_file);
    sandboxed(&mut report);
    calls(&mut report);
    deltas(&mut report);
    resume(&mut report);
    memory(&mut report);
    uploads(&mut report);
    acp::measure(&mut report);
    search::measure(&mut report);
    files::measure(&mut report);
    report.show();
    println!(
        "\nSyncing in this run: {} for a small append, {} for a new file and its name.",
        time(sync.append),
        time(sync.new_file)
    );
    let taken = began.elapsed();
    println!("{} in all, at most 300 s: {}", time(taken), verdict(taken.as_secs() < 300));
}

fn version(report: &mut Report) {
    let mut walls = [Vec::new(), Vec::new()];
    for _ in 0..40 {
        walls[0].push(measured_process::run(&mut measured_process::nothing()).wall);
        walls[1].push(measured_process::run(measured_process::pixir().arg("--version")).wall);
    }
    let [baseline, pixir] = walls.map(|mut walls| median(&mut walls));
    report.times("--version", baseline, pixir, None);
}

fn first_byte(report: &mut Report, sync: Duration) {
    let scenario = Scenario::new("answer");
    let [baseline, none, synced] = scenario.run_alternating(40).map(|mut runs| {
        let first_byte = |run: &Run| run.first_byte.unwrap();
        median(&mut runs.iter_mut().map(|run| first_byte(run)).collect::<Vec<_>>())
    });
    report.times("exec to first request byte", baseline, none, Some(synced));
    report.promise(
        format!(
            "exec to first request byte {} ≤ 2 × {} + {}",
            time(synced),
            time(baseline),
            time(sync)
        ),
        synced <= baseline * 2 + sync,
    );
}

/// A command with and without the sandbox; the baseline is Pixir without the sandbox.
fn sandboxed(report: &mut Report) {
    let sandbox::Cost { next: [without, within], first } = sandbox::measure_sandbox();
    report.times("one command, in the sandbox", without, within, None);
    report.times("the first command, in the sandbox", first[0], first[1], None);
    let cost = within.saturating_sub(without);
    report.promise(
        format!("the sandbox costs {} ≤ 4 ms per command", time(cost)),
        cost <= Duration::from_millis(4),
    );
}

/// Turns of 0, 10 and 50 calls of each kind, and the cost of one call.
fn calls(report: &mut Report) {
    let walls = |prompt: &str, runs| {
        Scenario::new(prompt).run_alternating(runs).map(|runs| median_wall(&runs))
    };
    let none = walls("answer", 30);
    report.times("0 calls", none[0], none[1], Some(none[2]));
    for tool in ["bash", "read"] {
        let ten = walls(&format!("{tool} 10"), 10);
        report.times(&format!("10 calls of {tool}"), ten[0], ten[1], Some(ten[2]));
        let fifty = walls(&format!("{tool} 50"), 12);
        report.times(&format!("50 calls of {tool}"), fifty[0], fifty[1], Some(fifty[2]));
        let each: [Duration; 3] =
            std::array::from_fn(|which| fifty[which].saturating_sub(none[which]) / 50);
        report.times(&format!("one call of {tool}"), each[0], each[1], Some(each[2]));
        if tool == "bash" {
            let text = format!(
                "one call of bash {} ≤ 1.5 × {} without syncing; {} with the default durability",
                time(each[1]),
                time(each[0]),
                time(each[2])
            );
            report.promise(text, each[1] <= each[0].mul_f64(1.5));
        }
    }
}

fn deltas(report: &mut Report) {
    let runs = Scenario::with_baseline(reqwest_client::ROLE, "deltas 20000").run_alternating(20);
    let [baseline, none, synced] = runs.map(|runs| {
        let wall = median_wall(&runs);
        (wall, median(&mut runs.iter().map(|run| run.cpu).collect::<Vec<_>>()))
    });
    report.times("20,000 deltas", baseline.0, none.0, Some(synced.0));
    report.times("20,000 deltas, CPU", baseline.1, none.1, Some(synced.1));
    report.promise(
        format!("20,000 deltas {} ≤ 1.25 × {} of CPU", time(none.1), time(baseline.1)),
        none.1 <= baseline.1.mul_f64(1.25),
    );
}

fn resume(report: &mut Report) {
    let scenario = Scenario::resuming("bash 50", "answer");
    let [baseline, none, synced] = scenario.run_alternating(20).map(|runs| median_wall(&runs));
    report.times("resume after 50 calls", baseline, none, Some(synced));
}

fn memory(report: &mut Report) {
    let scenario = Scenario::new("bash 50");
    let [baseline, none, synced] = scenario.peaks(3).map(|mut peaks| median(&mut peaks));
    report.row(
        "peak memory, 50 calls",
        [baseline, none, synced].map(megabytes),
        ratio(none, baseline),
    );
    let peak = none.max(synced);
    report.promise(
        format!("peak memory of a Turn with 50 calls {} ≤ {}", megabytes(peak), megabytes(PEAK)),
        peak <= PEAK,
    );
    let flood = Scenario::new("flood 300000000");
    let [baseline, none, synced] = flood.peaks(1).map(|mut peaks| median(&mut peaks));
    let shown = [baseline, none, synced].map(megabytes);
    report.row("peak memory, 300 MB of output", shown, ratio(none, baseline));
    let cost = none.max(synced).saturating_sub(peak);
    report.promise(
        format!("300 MB of output cost {} ≤ {} of memory", megabytes(cost), megabytes(FLOOD)),
        cost <= FLOOD,
    );
}

/// Uploaded bytes of a Turn with 50 calls; here the baseline is the upload over SSE.
fn uploads(report: &mut Report) {
    let scenario = Scenario::new("pages 50");
    let [sse_bytes, websocket_bytes] =
        ["sse", "websocket"].map(|transport| scenario.uploaded_bytes(transport));
    let shown = [megabytes(sse_bytes), megabytes(websocket_bytes), String::new()];
    report.row("upload, 50 calls, SSE and WebSocket", shown, ratio(websocket_bytes, sse_bytes));
    report.promise(
        format!(
            "a WebSocket uploads {} ≤ 1/5 × {}",
            megabytes(websocket_bytes),
            megabytes(sse_bytes)
        ),
        websocket_bytes * 5 <= sse_bytes,
    );
}

fn median_wall(runs: &[Run]) -> Duration {
    median(&mut runs.iter().map(|run| run.wall).collect::<Vec<_>>())
}

fn megabytes(bytes: u64) -> String {
    #[expect(clippy::cast_precision_loss, reason = "one decimal is shown")]
    let value = bytes as f64 / 1e6;
    format!("{value:.1} MB")
}

#[expect(clippy::cast_precision_loss, reason = "two decimals are shown")]
fn ratio(pixir: u64, baseline: u64) -> String {
    format!("{:.2}", pixir as f64 / baseline as f64)
}

/// Rows and promised limits, shown at the end.
#[derive(Default)]
struct Report {
    rows: Vec<[String; 5]>,
    promises: Vec<(String, bool)>,
}

impl Report {
    /// A row of times: the baseline, Pixir without syncing, Pixir with its defaults.
    fn times(&mut self, name: &str, baseline: Duration, none: Duration, default: Option<Duration>) {
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let ratio = ratio(nanos(none), nanos(baseline));
        self.row(name, [time(baseline), time(none), default.map_or_else(String::new, time)], ratio);
    }

    fn row(&mut self, name: &str, [baseline, none, default]: [String; 3], ratio: String) {
        // Printed at once too, because the whole run takes minutes.
        println!("{name}: baseline {baseline}, pixir {none}, ratio {ratio}");
        self.rows.push([name.to_owned(), baseline, none, ratio, default]);
    }

    fn promise(&mut self, text: String, holds: bool) {
        self.promises.push((text, holds));
    }

    fn show(&self) {
        println!();
        let head = ["row", "baseline", "pixir, durability none", "ratio", "pixir, default"];
        table::print(head, &self.rows);
        println!("\nPromises:");
        for (text, holds) in &self.promises {
            println!("- {text}: {}", verdict(*holds));
        }
    }
}

impl From<Durability> for &'static str {
    fn from(durability: Durability) -> Self {
        match durability {
            Durability::None => "none",
            Durability::Turn => "turn",
        }
    }
}
