//! Benchmarks with many files: the list of 10,000 Sessions, the survey before a command, and undo.
//!
//! The baseline of a row is the least work that any program must do: stat every name, or write every file.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use pixir::bench::{TrackedSession, first_page};

use super::table::{median, time};
use super::{Report, measured_process};

/// Measures these rows alone: `cargo bench --bench end_to_end -- files`.
pub const ROLE: &str = "files";

const MANY: usize = 10_000;
const FOLDERS: usize = 200;
const PAGE: usize = 20;
const RUNS: usize = 15;

pub fn measure(report: &mut Report) {
    measure_session_list(report);
    measure_walk_and_undo(report);
}

/// The first page of a list of Sessions, each with a Turn in it.
fn measure_session_list(report: &mut Report) {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let sessions = folder.path().join(".pixir/sessions");
    fs::create_dir_all(&sessions).unwrap();
    let line = |seq: usize, name: &str, data: &str| {
        format!(
            "{{\"id\":\"{seq:016x}\",\"session_id\":\"x\",\"seq\":{seq},\"ts\":\"2026-01-01T00:00:00.000000Z\",\"type\":\"{name}\",\"data\":{data}}}\n"
        )
    };
    let text = "a sentence that says something. ".repeat(100);
    let log = [
        line(0, "session_started", "{}"),
        line(1, "user_message", "{\"text\":\"fix the parser\"}"),
        line(2, "assistant_message", &format!("{{\"text\":\"{text}\",\"phase\":\"final\"}}")),
    ]
    .concat();
    for number in 0..MANY {
        fs::write(sessions.join(format!("20260101T000000-{number:06x}.ndjson")), &log).unwrap();
    }
    let mut times = [Vec::new(), Vec::new(), Vec::new()];
    for _ in 0..RUNS {
        times[0].push(timed(|| assert_eq!(stats(&sessions), MANY)));
        times[1].push(timed(|| assert_eq!(first_page(folder.path(), PAGE), PAGE)));
        let mut command = measured_process::pixir();
        command.arg("sessions").current_dir(folder.path());
        times[2].push(measured_process::run(&mut command).wall);
    }
    let [baseline, room, whole] = times.map(|mut times| median(&mut times));
    report.times("first page of 10,000 Sessions", baseline, room, None);
    report.times("`pixir sessions` of 10,000", baseline, whole, None);
    report.promise(
        format!("the first page of 10,000 Sessions {} ≤ 100 ms", time(whole)),
        whole <= Duration::from_millis(100),
    );
}

/// The survey before a command that finds nothing new, and the undo of a Turn that changed every file.
fn measure_walk_and_undo(report: &mut Report) {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let write_files = |colour: &str| {
        for number in 0..MANY {
            let home = folder.path().join(format!("folder-{}", number % FOLDERS));
            fs::create_dir_all(&home).unwrap();
            let text = format!("{colour} {number}\n").repeat(40);
            fs::write(home.join(format!("file-{number}.txt")), text).unwrap();
        }
    };
    write_files("blue");
    // A survey reads files again that were written a moment ago; that is not measured here.
    std::thread::sleep(Duration::from_millis(200));
    let mut followed = TrackedSession::new(folder.path()).unwrap();
    followed.begin_turn().unwrap();
    followed.before_command().unwrap();
    followed.end_turn().unwrap();
    let mut survey_times = [Vec::new(), Vec::new()];
    for _ in 0..RUNS {
        survey_times[0].push(timed(|| assert_eq!(everything(folder.path()), MANY)));
        followed.begin_turn().unwrap();
        survey_times[1].push(timed(|| followed.before_command().unwrap()));
        followed.end_turn().unwrap();
    }
    let [baseline, survey_time] = survey_times.map(|mut survey_times| median(&mut survey_times));
    report.times("survey of 10,000 files before a command", baseline, survey_time, None);
    report.promise(
        format!("the survey of 10,000 files {} ≤ 50 ms", time(survey_time)),
        survey_time <= Duration::from_millis(50),
    );
    let mut undo_times = [Vec::new(), Vec::new()];
    for _ in 0..3 {
        followed.begin_turn().unwrap();
        followed.before_command().unwrap();
        undo_times[0].push(timed(|| write_files("red")));
        followed.end_turn().unwrap();
        undo_times[1].push(timed(|| assert_eq!(followed.undo().unwrap(), MANY)));
    }
    let [baseline, undo_time] = undo_times.map(|mut undo_times| median(&mut undo_times));
    report.times("undo of 10,000 files; baseline: write them", baseline, undo_time, None);
    report.promise(
        format!("undo over 10,000 files {} ≤ 1 s", time(undo_time)),
        undo_time <= Duration::from_secs(1),
    );
}

fn timed(work: impl FnOnce()) -> Duration {
    let began = Instant::now();
    work();
    began.elapsed()
}

/// The number of files in a folder, with one `stat` for each.
fn stats(folder: &Path) -> usize {
    let entries = fs::read_dir(folder).unwrap().map(Result::unwrap);
    entries.filter(|entry| entry.metadata().unwrap().is_file()).count()
}

fn everything(folder: &Path) -> usize {
    let mut count = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let facts = entry.metadata().unwrap();
        if facts.is_file() {
            count += 1;
        } else if entry.file_name() != ".pixir" {
            count += everything(&entry.path());
        }
    }
    count
}
