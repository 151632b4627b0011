//! Benchmark `workflows`: the cost of the scheduler beyond its steps, and the memory of 64 tasks of
//! `delegate`; the release binary against a model in another process. Every run is scored strictly:
//! answers, Logs and usage must be right, or it does not count.
//!
//! `cargo bench --bench workflows` runs all of it; `-- 100` with 100 steps instead of 1,000.
//! Results are under `target/benchmarks/workflows`; `docs/benchmarks/workflows.md` explains them.

#![expect(clippy::unwrap_used, reason = "a benchmark stops at its first error")]
#![expect(clippy::print_stdout, reason = "the tables are the output")]
#![expect(clippy::disallowed_methods, reason = "the benchmark starts the measured processes")]
#![expect(clippy::cast_precision_loss, reason = "megabytes and milliseconds need no more digits")]

mod model;
mod process;
mod score;

use std::fmt::Write as _;
use std::path::Path;

use serde_json::{Value, json};

use model::MODEL;
use process::{BenchEnv, idle_session};
use score::Spans;

/// Default number of steps.
const STEPS: usize = 1_000;

/// Limit of the children that run at once.
const WIDTH: usize = 64;

/// How often each case is run; the median counts.
const TIMES: usize = 3;

/// How long each call of the fan-out takes, so that all tasks are open together.
const PAUSE_MS: u64 = 1_500;

/// Limit of the cost of a step beyond its child, in milliseconds.
const PER_STEP: f64 = 2.0;

/// Limit of the memory of a fan-out beyond one idle Session, in bytes.
const ABOVE_IDLE: u64 = 40_000_000;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|first| first == MODEL) {
        return model::serve();
    }
    let asked = arguments.iter().find_map(|word| word.parse().ok());
    measure(asked.unwrap_or(STEPS));
}

/// The measurements of one run.
#[derive(Debug, Clone)]
struct CaseResult {
    case: &'static str,
    count: usize,
    spans: Spans,
    peak: u64,
    faults: Vec<String>,
}

fn measure(steps: usize) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/benchmarks/workflows");
    std::fs::create_dir_all(&folder).unwrap();
    let mut runs = Vec::new();
    for _ in 0..TIMES {
        runs.push(workflow("chain", steps, true));
        runs.push(workflow("wide", steps, false));
        runs.push(spawned(steps));
        runs.push(fan_out());
        runs.push(idle());
    }
    let lines: Vec<String> = runs.iter().map(|run| run.json().to_string()).collect();
    std::fs::write(folder.join("runs.jsonl"), lines.join("\n") + "\n").unwrap();
    let summary = summary(&runs);
    std::fs::write(folder.join("summary.json"), format!("{summary:#}\n")).unwrap();
    let report = report(&runs, &summary);
    std::fs::write(folder.join("report.md"), &report).unwrap();
    println!("{report}");
}

/// A Workflow of steps that do nothing, in a chain or all free to start.
fn workflow(case: &'static str, count: usize, is_chain: bool) -> CaseResult {
    let steps: Vec<Value> = (0..count)
        .map(|place| {
            let mut step = json!({
                "id": format!("s{place}"), "role": "explorer", "task": format!("noop {place}"),
            });
            if is_chain && place > 0 {
                step["depends_on"] = json!(format!("s{}", place - 1));
            }
            step
        })
        .collect();
    let limits = json!({ "max_concurrency": WIDTH });
    let spec = json!({ "id": case, "limits": limits, "steps": steps });
    let env = BenchEnv::new(WIDTH);
    env.write("spec.json", &spec);
    let ran = env.pixir(&["workflow", "run", "spec.json", "--json", "--quiet"]);
    let mut taken = CaseResult::new(case, count, ran.peak);
    let bundles = ran.envelope["output"]["steps"].as_array().cloned().unwrap_or_default();
    let answers = bundles.iter().map(|bundle| bundle["summary"].as_str().unwrap_or_default());
    score::check_answers(answers, count, &mut taken.faults);
    taken.spans = score::check_logs(&env.work(), &ran.envelope, count, &mut taken.faults);
    taken.print_progress(&ran.stderr)
}

/// The children of `workflow` without a graph: a model spawns all of them and waits.
fn spawned(count: usize) -> CaseResult {
    let env = BenchEnv::new(WIDTH);
    let ran = env.pixir(&["--json", "--quiet", &format!("fan {count}")]);
    let mut taken = CaseResult::new("spawned", count, ran.peak);
    taken.spans = score::check_logs(&env.work(), &ran.envelope, count, &mut taken.faults);
    taken.print_progress(&ran.stderr)
}

/// A delegation of 64 tasks, all open at once.
fn fan_out() -> CaseResult {
    let tasks: Vec<String> = (0..WIDTH).map(|place| format!("slow {place} {PAUSE_MS}")).collect();
    let env = BenchEnv::new(WIDTH);
    env.write("spec.json", &json!({ "tasks": tasks }));
    let ran = env.pixir(&["delegate", "--spec", "spec.json", "--json", "--quiet"]);
    let mut taken = CaseResult::new("fan-out", WIDTH, ran.peak);
    let children = ran.envelope["output"]["children"].as_array().cloned().unwrap_or_default();
    let answers = children.iter().map(|child| child["summary"].as_str().unwrap_or_default());
    score::check_answers(answers, WIDTH, &mut taken.faults);
    taken.spans = score::check_logs(&env.work(), &ran.envelope, WIDTH, &mut taken.faults);
    if taken.spans.most_at_once < WIDTH {
        taken.faults.push(format!("only {} were open at once", taken.spans.most_at_once));
    }
    taken.print_progress(&ran.stderr)
}

/// An idle Session.
fn idle() -> CaseResult {
    let mut taken = CaseResult::new("idle Session", 1, idle_session(&BenchEnv::new(WIDTH)));
    if taken.peak == 0 {
        taken.faults.push("its memory could not be read".to_owned());
    }
    taken.print_progress("")
}

impl CaseResult {
    fn new(case: &'static str, count: usize, peak: u64) -> Self {
        Self { case, count, spans: Spans::default(), peak, faults: Vec::new() }
    }

    /// Prints the result of a case.
    fn print_progress(mut self, complaint: &str) -> Self {
        if !self.faults.is_empty() && !complaint.is_empty() {
            self.faults.push(complaint.to_owned());
        }
        println!(
            "{} {}: {:.2} s, peak {:.1} MB{}",
            self.case,
            self.count,
            self.spans.whole_ms / 1e3,
            self.peak as f64 / 1e6,
            if self.faults.is_empty() { "" } else { " FAULTS" }
        );
        self
    }

    fn json(&self) -> Value {
        json!({
            "case": self.case,
            "count": self.count,
            "whole_ms": self.spans.whole_ms,
            "children_ms": self.spans.children_ms,
            "most_at_once": self.spans.most_at_once,
            "peak_bytes": self.peak,
            "faults": self.faults,
        })
    }
}

/// The median of a number over the runs of a case. Runs with a fault do not count; without any other
/// run the result is NaN, for which no promise holds.
fn middle(runs: &[CaseResult], case: &str, of: impl Fn(&CaseResult) -> f64) -> f64 {
    let counts = |run: &&CaseResult| run.case == case && run.faults.is_empty();
    let mut values: Vec<f64> = runs.iter().filter(counts).map(of).collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn summary(runs: &[CaseResult]) -> Value {
    let count = runs.iter().find(|run| run.case == "chain").map_or(1, |run| run.count) as f64;
    let chain = middle(runs, "chain", |run| run.spans.whole_ms - run.spans.children_ms) / count;
    let whole = |case: &str| middle(runs, case, |run| run.spans.whole_ms);
    let wide = (whole("wide") - whole("spawned")) / count;
    let peak = |case: &str| middle(runs, case, |run| run.peak as f64);
    let above = peak("fan-out") - peak("idle Session");
    // With a fault, the numbers do not measure what they should.
    let faults: usize = runs.iter().map(|run| run.faults.len()).sum();
    json!({
        "chain_ms_per_step": chain,
        "wide_ms_per_step": wide,
        "steps_hold": faults == 0 && chain <= PER_STEP && wide <= PER_STEP,
        "fan_out_bytes_above_idle": above,
        "fan_out_holds": faults == 0 && above <= ABOVE_IDLE as f64,
        "faults": faults,
    })
}

fn report(runs: &[CaseResult], summary: &Value) -> String {
    let mut text = "# Workflows\n\n| case | N | whole ms | in children ms | most at once | peak MB | faults |\n\
        |---|--:|--:|--:|--:|--:|--:|\n"
        .to_owned();
    for run in runs {
        writeln!(
            text,
            "| {} | {} | {:.0} | {:.0} | {} | {:.1} | {} |",
            run.case,
            run.count,
            run.spans.whole_ms,
            run.spans.children_ms,
            run.spans.most_at_once,
            run.peak as f64 / 1e6,
            run.faults.len()
        )
        .unwrap();
    }
    // JSON has no NaN: the summary has null instead.
    let number = |name: &str| summary[name].as_f64().unwrap_or(f64::NAN);
    let verdict = |name: &str| if summary[name] == true { "holds" } else { "MISSED" };
    writeln!(
        text,
        "\nA step costs {:.2} ms beyond its child in a chain, {:.2} ms in parallel, at most {PER_STEP}: {}.\n\
         {WIDTH} tasks take {:.1} MB above one idle Session, at most {}: {}.\nFaults: {}.",
        number("chain_ms_per_step"),
        number("wide_ms_per_step"),
        verdict("steps_hold"),
        number("fan_out_bytes_above_idle") / 1e6,
        ABOVE_IDLE / 1_000_000,
        verdict("fan_out_holds"),
        summary["faults"],
    )
    .unwrap();
    text
}
