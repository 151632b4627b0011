//! Benchmark of `grep` and `glob` over a large tree, compared with ripgrep.
//!
//! Pixir's time is the whole call of the tool in this process, from the arguments to the text for
//! the model; ripgrep's is its process, from its start to the last byte it prints. Both use the
//! same number of threads and print the same number of results.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use pixir::workbench::{Workbench, WorkbenchSetup};
use serde_json::{Value, json};

use super::table::{median, time};
use super::{Report, measured_process};

/// Measures these rows alone: `cargo bench --bench end_to_end -- search`.
pub const ROLE: &str = "search";

/// How many files are searched; some more are ignored.
const FILES: usize = 20_000;
const FOLDERS: usize = 500;
const IGNORED: usize = 2_000;
/// Runs of each program, alternating.
const RUNS: usize = 41;

pub fn measure(report: &mut Report) {
    if Command::new("rg").arg("--version").output().is_err() {
        println!("grep and glob: not measured, because there is no `rg` on PATH");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    write_source_tree(folder.path());
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(12);
    let rg = |arguments: &[&str]| {
        let mut command = Command::new("rg");
        command.args(["--no-config", "--no-require-git", &format!("-j{threads}")]);
        command.args(arguments).current_dir(folder.path());
        command
    };
    let rare = r"fn needle_\d+\(";
    let rows = [
        ("grep, 20,000 files", "grep", json!({"pattern": rare}), rg(&["-n", "--heading", rare])),
        (
            "grep -i, 20,000 files",
            "grep",
            json!({"pattern": "NEEDLE_", "ignore_case": true}),
            rg(&["-n", "--heading", "-i", "NEEDLE_"]),
        ),
        (
            "glob, 20,000 files",
            "glob",
            json!({"pattern": "*.toml"}),
            rg(&["--files", "-g", "*.toml"]),
        ),
    ];
    let bench = ToolBench::new(folder.path());
    for (name, tool, args, mut command) in rows {
        let printed = String::from_utf8(command.output().unwrap().stdout).unwrap();
        let is_result = |line: &&str| tool == "glob" || line.contains(':');
        let results = printed.lines().filter(is_result).count();
        assert_eq!(bench.call(tool, &args).1, results, "{name}: both find the same");
        let mut times = [Vec::new(), Vec::new()];
        for _ in 0..RUNS {
            times[0].push(measured_process::run(&mut command).wall);
            times[1].push(bench.call(tool, &args).0);
        }
        let [baseline, pixir] = times.map(|mut times| median(&mut times));
        report.times(&format!("{name}; baseline: rg"), baseline, pixir, None);
        report.promise(
            format!("{name} {} ≤ 1.3 × {} of rg", time(pixir), time(baseline)),
            pixir <= baseline.mul_f64(1.3),
        );
    }
}

/// The tools, opened on one folder.
struct ToolBench {
    tools: Workbench,
    runtime: tokio::runtime::Runtime,
}

impl ToolBench {
    fn new(folder: &Path) -> Self {
        let tools = Workbench::new(WorkbenchSetup {
            own_binary: env!("CARGO_BIN_EXE_pixir").into(),
            folder,
            environment: Vec::new(),
            subreaper: false,
            drain: Duration::from_millis(100),
            grace: Duration::from_millis(100),
        });
        Self { tools: tools.unwrap(), runtime: tokio::runtime::Runtime::new().unwrap() }
    }

    /// Runs a call; returns its duration and the number of its results.
    fn call(&self, tool: &str, args: &Value) -> (Duration, usize) {
        let began = Instant::now();
        let answer = self.runtime.block_on(self.tools.call(tool, args.clone())).unwrap();
        let taken = began.elapsed();
        (taken, usize::try_from(answer.details["results"].as_u64().unwrap()).unwrap())
    }
}

/// Writes a tree like a large project: sources of some kilobytes, forty per folder, a few ignore
/// rules, and an ignored folder. Every 250th file has a match.
fn write_source_tree(root: &Path) {
    let line = |n: usize| format!("    let value_{n} = compute(value_{}, {n}); // {n}\n", n / 2);
    let body: Vec<String> = (0..120).map(line).collect();
    std::fs::write(root.join(".gitignore"), "target/\n*.log\n/dist\n!keep.log\n").unwrap();
    for folder in 0..FOLDERS {
        let path = root.join(format!("crate_{}/src/module_{folder}", folder % 25));
        std::fs::create_dir_all(&path).unwrap();
        if folder % 50 == 0 {
            std::fs::write(path.join(".gitignore"), "*.tmp\n").unwrap();
        }
        for file in 0..FILES / FOLDERS {
            let number = folder * (FILES / FOLDERS) + file;
            let mut text = body[..20 + number % 100].concat();
            if number.is_multiple_of(250) {
                writeln!(text, "fn needle_{number}() {{}}").unwrap();
            }
            let kind = if number % 250 == 1 { "toml" } else { "rs" };
            std::fs::write(path.join(format!("file_{file}.{kind}")), text).unwrap();
        }
    }
    let ignored = root.join("target/debug");
    std::fs::create_dir_all(&ignored).unwrap();
    for file in 0..IGNORED {
        std::fs::write(ignored.join(format!("out_{file}.rs")), "fn needle_0() {}\n").unwrap();
    }
}
