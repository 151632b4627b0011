//! Benchmarks of large Workspaces: the wait before the first command, and the cost of an unchanged Workspace.
//!
//! The baseline of a first recording is reading every file; the baseline of the other rows is one `stat` per file.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use pixir::bench::TrackedSession;

use super::Report;
use super::table::{median, time};

/// Measures these rows alone: `cargo bench --bench end_to_end -- large [FILES]`.
pub const ROLE: &str = "large";

const FILES_IN_FOLDER: usize = 20;
const RUNS: usize = 7;

/// A size with the times that are promised for it.
struct Size {
    files: usize,
    first: Duration,
    unchanged: Duration,
}

/// Measures these sizes, or the given one.
pub fn measure(report: &mut Report, asked: Option<String>) {
    let millis = Duration::from_millis;
    let mut sizes = vec![
        Size { files: 10_000, first: millis(150), unchanged: millis(25) },
        Size { files: 100_000, first: millis(1_500), unchanged: millis(250) },
    ];
    if let Some(files) = asked.and_then(|files| files.parse().ok()) {
        let long = Duration::from_mins(1);
        sizes = vec![Size { files, first: long, unchanged: long }];
    }
    for size in sizes {
        in_git(report, &size);
        without_git(report, &size);
    }
}

fn in_git(report: &mut Report, size: &Size) {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    write_files(folder.path(), size.files);
    for args in [&["init", "-q"][..], &["add", "-A"], &["commit", "-qm", "all"], &["gc", "-q"]] {
        let mut git = Command::new("git");
        git.arg("-C").arg(folder.path()).args(["-c", "user.name=a", "-c", "user.email=a@b.c"]);
        // A background gc would interfere with the `gc` below.
        git.args(["-c", "gc.auto=0"]);
        git.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1").args(args);
        assert!(git.status().unwrap().success());
    }
    std::thread::sleep(Duration::from_millis(200));
    let baseline = timed(|| read_all(folder.path()));
    let (mut firsts, mut stored) = (Vec::new(), 0);
    for _ in 0..3 {
        fs::remove_dir_all(folder.path().join(".pixir")).ok();
        let mut followed = TrackedSession::new(folder.path()).unwrap();
        followed.begin_turn().unwrap();
        firsts.push(timed(|| followed.before_command().unwrap()));
        followed.end_turn().unwrap();
        stored = stored_bytes(&folder.path().join(".pixir"));
    }
    let first = median(&mut firsts);
    let count = size.files;
    report.times(&format!("first recording of {count} files in git"), baseline, first, None);
    let held = first <= size.first;
    report.promise(format!("{count} files in git: {} ≤ {}", time(first), time(size.first)), held);
    let megabytes = stored.div_ceil(1_000_000);
    let held = stored <= 5_000_000;
    report.promise(format!("{count} files in git take {megabytes} MB ≤ 5 MB"), held);
    let (unchanged, ended) = unchanged(folder.path());
    let baseline = timed(|| drop(names(folder.path())));
    report.times(&format!("end of a Turn, {count} unchanged files"), baseline, ended, None);
    report.times(&format!("survey of {count} unchanged files"), baseline, unchanged, None);
    let held = unchanged <= size.unchanged;
    let limit = time(size.unchanged);
    report.promise(format!("{count} unchanged files: {} ≤ {limit}", time(unchanged)), held);
}

/// Rows without git, and without a promise: above the limit on files nothing is recorded.
fn without_git(report: &mut Report, size: &Size) {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    write_files(folder.path(), size.files);
    std::thread::sleep(Duration::from_millis(200));
    let baseline = timed(|| read_all(folder.path()));
    let mut followed = TrackedSession::new(folder.path()).unwrap();
    followed.begin_turn().unwrap();
    let first = timed(|| followed.before_command().unwrap());
    followed.end_turn().unwrap();
    report.times(
        &format!("first recording of {} files without git", size.files),
        baseline,
        first,
        None,
    );
}

/// Times of the survey after the first command of a Session, and of the one at the end of its Turn, which
/// does not rely on the file watch.
fn unchanged(folder: &Path) -> (Duration, Duration) {
    let mut survey_times = Vec::new();
    let mut ends = Vec::new();
    for _ in 0..RUNS {
        let mut followed = TrackedSession::new(folder).unwrap();
        followed.begin_turn().unwrap();
        followed.before_command().unwrap();
        survey_times.push(timed(|| followed.after_command().unwrap()));
        ends.push(timed(|| followed.end_turn().unwrap()));
    }
    (median(&mut survey_times), median(&mut ends))
}

fn write_files(folder: &Path, count: usize) {
    let mut text = String::new();
    for number in 0..count {
        let inner = number / FILES_IN_FOLDER;
        let inner = folder.join(format!("src/part{}/module{inner}", inner / 50));
        if number % FILES_IN_FOLDER == 0 {
            fs::create_dir_all(&inner).unwrap();
        }
        text.clear();
        for line in 0..5 + number % 60 {
            writeln!(text, "let value{line} = compute({number}, {line})?;").unwrap();
        }
        fs::write(inner.join(format!("file{number}.rs")), &text).unwrap();
    }
}

fn names(folder: &Path) -> Vec<std::path::PathBuf> {
    let (mut files, mut waiting) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(folder) = waiting.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            let is_state = entry.file_name() == ".git" || entry.file_name() == ".pixir";
            match entry.metadata().unwrap().is_dir() {
                true if is_state => {}
                true => waiting.push(entry.path()),
                false => files.push(entry.path()),
            }
        }
    }
    files
}

fn read_all(folder: &Path) {
    for file in names(folder) {
        drop(fs::read(file).unwrap());
    }
}

/// Disk usage of Pixir's state in bytes, without the objects pinned in git.
fn stored_bytes(folder: &Path) -> u64 {
    let mut bytes = 0;
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let stat = entry.metadata().unwrap();
        if stat.is_file() {
            bytes += stat.blocks() * 512;
        } else if entry.file_name() != "git" {
            bytes += stored_bytes(&entry.path());
        }
    }
    bytes
}

fn timed(work: impl FnOnce()) -> Duration {
    let began = Instant::now();
    work();
    began.elapsed()
}
