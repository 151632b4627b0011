//! Comparison with an earlier binary: the cost of a change, as a ratio from one run.
//!
//! `cargo bench --bench end_to_end -- before PATH`, where PATH is a release binary of the earlier state.

use std::path::Path;
use std::time::Duration;

use super::scenario::Scenario;
use super::table::{median, time};
use super::{Report, median_wall, megabytes, ratio};

/// The argument that runs this comparison.
pub const ROLE: &str = "before";

/// Numbers of extra files in the compared Workspaces.
const SIZES: [usize; 2] = [0, 2000];
/// Runs of each binary.
const RUNS: usize = 25;
/// Limit of the growth of the peak memory, in bytes.
const GROWTH: u64 = 3_000_000;

pub fn measure(report: &mut Report, earlier: Option<String>) {
    let earlier = earlier.unwrap();
    let binaries = [Path::new(&earlier), Path::new(env!("CARGO_BIN_EXE_pixir"))];
    first_byte(report, binaries);
    deltas(report, binaries);
    memory(report, binaries);
    for files in SIZES {
        let walls = |prompt: &str| {
            let scenario = Scenario::among_files(prompt, files);
            scenario.run_binaries_alternating(binaries, RUNS).map(|runs| median_wall(&runs))
        };
        let none = walls("answer");
        let one = walls("bash 1");
        let fifty = walls("bash 50");
        let row = |what: &str| format!("{what}, {files} files, earlier and now");
        report.times(&row("no call"), none[0], none[1], None);
        report.times(&row("a Turn with one command"), one[0], one[1], None);
        let next: [Duration; 2] = [0, 1].map(|which| fifty[which].saturating_sub(one[which]) / 49);
        report.times(&row("one call of bash"), next[0], next[1], None);
        promise(report, &row("one call of bash"), next, 1.15);
        promise(report, &row("the first command of a Session"), one, 1.3);
    }
}

fn first_byte(report: &mut Report, binaries: [&Path; 2]) {
    let times = Scenario::new("answer").run_binaries_alternating(binaries, 2 * RUNS).map(|runs| {
        median(&mut runs.iter().map(|run| run.first_byte.unwrap()).collect::<Vec<_>>())
    });
    let row = "exec to first request byte, earlier and now";
    report.times(row, times[0], times[1], None);
    promise(report, row, times, 1.25);
}

fn deltas(report: &mut Report, binaries: [&Path; 2]) {
    let times = Scenario::new("deltas 20000")
        .run_binaries_alternating(binaries, RUNS)
        .map(|runs| median(&mut runs.iter().map(|run| run.cpu).collect::<Vec<_>>()));
    report.times("20,000 deltas, CPU, earlier and now", times[0], times[1], None);
}

fn memory(report: &mut Report, binaries: [&Path; 2]) {
    let [earlier, now] =
        Scenario::new("bash 50").peaks_of(binaries, 5).map(|mut peaks| median(&mut peaks));
    let shown = [megabytes(earlier), megabytes(now), String::new()];
    report.row("peak memory, 50 calls, earlier and now", shown, ratio(now, earlier));
    let text =
        format!("peak memory {} ≤ {} + {}", megabytes(now), megabytes(earlier), megabytes(GROWTH));
    report.promise(text, now <= earlier + GROWTH);
}

fn promise(report: &mut Report, what: &str, [earlier, now]: [Duration; 2], factor: f64) {
    let text = format!("{what}: {} ≤ {factor} × {}", time(now), time(earlier));
    report.promise(text, now <= earlier.mul_f64(factor));
}
