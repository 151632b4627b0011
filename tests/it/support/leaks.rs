//! Leak checks: planted secrets are searched for wherever a run could have left them.
//!
//! The home, Workspace, streams and process arguments of every test are checked when its environment
//! is dropped, so new tests are covered without further code.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, Once};
use std::time::Duration;

use memchr::memmem;

/// Keys and tokens in the environment of runs.
pub const PLANTED_SECRETS: &[&str] = &[
    "sk-test-of-test-env",
    "secret-of-test-env",
    "sk-test-of-binary-env",
    "sk-of-the-keyed-server",
    "sk-planted-key",
];

/// Output of runs, for secrets that are known only at the end of their test.
static STREAMS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Arguments of all processes seen so far.
static ARGUMENTS: Mutex<Option<HashSet<Vec<u8>>>> = Mutex::new(None);

/// Interval between scans of process arguments.
const PROCESS_SCAN_INTERVAL: Duration = Duration::from_millis(50);

pub fn planted_secrets() -> Vec<String> {
    PLANTED_SECRETS.iter().map(|secret| (*secret).to_owned()).collect()
}

/// Starts the scan of process arguments, once for all tests.
pub fn start_process_scan() {
    static WATCH: Once = Once::new();
    WATCH.call_once(|| {
        std::thread::spawn(|| {
            loop {
                scan_process_arguments();
                std::thread::sleep(PROCESS_SCAN_INTERVAL);
            }
        });
    });
}

/// Records the arguments of every process below this one; other processes are ignored.
pub fn scan_process_arguments() {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let parents: HashMap<u32, u32> = processes
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
            // The name in brackets may hold anything; behind it come the state and the parent.
            let parent = stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()?;
            Some((pid, parent))
        })
        .collect();
    let is_ours = |pid: &u32| {
        let line = std::iter::successors(Some(*pid), |pid| parents.get(pid).copied());
        line.skip(1).take(100).any(|parent| parent == std::process::id())
    };
    let lines = parents.keys().filter(|pid| is_ours(pid));
    let lines = lines.filter_map(|pid| fs::read(format!("/proc/{pid}/cmdline")).ok());
    ARGUMENTS.lock().unwrap().get_or_insert_default().extend(lines);
}

/// Checks the output of a run for planted secrets.
#[track_caller]
pub fn check_stream(text: &str) {
    if let Some(secret) = first_secret_in(text.as_bytes(), &planted_secrets()) {
        panic!("{secret} is in what a run printed: {text}");
    }
}

/// Like `check_stream`, and keeps the output for secrets that are known only at the end of the test.
#[track_caller]
pub fn check_and_keep_stream(text: &str) {
    check_stream(text);
    STREAMS.lock().unwrap().push(text.to_owned());
}

/// Fails when a secret is anywhere but in the token store and the files that may hold it.
#[track_caller]
pub fn check_folder(folder: &Path, secrets: &[String], may_hold: &[PathBuf]) {
    // A failed test has already reported its reason.
    if std::thread::panicking() {
        return;
    }
    let found = find_leaks(folder, secrets, may_hold);
    assert!(found.is_empty(), "secrets were leaked: {found:#?}");
}

fn find_leaks(folder: &Path, secrets: &[String], may_hold: &[PathBuf]) -> Vec<String> {
    let mut found = Vec::new();
    let mut files = Vec::new();
    files_below(folder, &mut files);
    let is_spared =
        |path: &PathBuf| is_store(path) || is_snapshot_content(path) || may_hold.contains(path);
    for path in files.iter().filter(|path| !is_spared(path)) {
        let bytes = fs::read(path).unwrap_or_default();
        if let Some(secret) = first_secret_in(&bytes, secrets) {
            found.push(format!("{secret} in {}", path.display()));
        }
    }
    let streams = STREAMS.lock().unwrap();
    let seen = ARGUMENTS.lock().unwrap();
    let arguments = seen.iter().flatten().map(|line| ("arguments", line.as_slice()));
    let printed = streams.iter().map(|text| ("a stream", text.as_bytes()));
    for (place, bytes) in arguments.chain(printed) {
        if let Some(secret) = first_secret_in(bytes, secrets) {
            found.push(format!("{secret} in {place}: {}", String::from_utf8_lossy(bytes)));
        }
    }
    found
}

fn first_secret_in<'a>(bytes: &[u8], secrets: &'a [String]) -> Option<&'a str> {
    let is_in = |secret: &&String| memmem::find(bytes, secret.as_bytes()).is_some();
    secrets.iter().find(is_in).map(String::as_str)
}

/// The token store, its damaged predecessor, and temporary files of a killed renewal.
fn is_store(path: &Path) -> bool {
    let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
    let is_ours = path.parent().and_then(Path::file_name) == Some(OsStr::new(".pixir"));
    is_ours && (name.starts_with("auth.json") || name.starts_with(".auth."))
}

/// The content of a file of the Workspace in the snapshot store.
fn is_snapshot_content(path: &Path) -> bool {
    let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
    let above = path.ancestors().nth(2).is_some_and(|folder| folder.ends_with(".pixir/snapshots"));
    above && name.len() == 64
}

fn files_below(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => files_below(&entry.path(), found),
            Ok(kind) if kind.is_file() => found.push(entry.path()),
            _ => {}
        }
    }
}

/// A leaked value is found at every place that is searched.
#[test]
fn a_secret_that_gets_out_is_found_wherever_it_is() {
    let secrets = vec![format!("escaped-{:016x}", fastrand::u64(..))];
    let secret = secrets[0].as_str();
    let folder = tempfile::tempdir().unwrap();
    let deep = folder.path().join("work/.pixir/sessions");
    fs::create_dir_all(&deep).unwrap();
    let count = |may_hold: &[PathBuf]| find_leaks(folder.path(), &secrets, may_hold).len();
    // The token store may hold the secret, at its own path only.
    fs::write(folder.path().join("work/.pixir/auth.json"), secret).unwrap();
    assert_eq!(count(&[]), 0);
    fs::write(folder.path().join("auth.json"), secret).unwrap();
    assert_eq!(count(&[]), 1);
    assert_eq!(count(&[folder.path().join("auth.json")]), 0);
    fs::write(deep.join("x.ndjson"), [b"\xff\0\"", secret.as_bytes(), b"\"\n"].concat()).unwrap();
    assert_eq!(count(&[]), 2);
    check_and_keep_stream(&format!("Bearer {secret}"));
    assert_eq!(count(&[]), 3);
    let mut child = std::process::Command::new("sh")
        .args(["-c", "read line; true", secret])
        .stdin(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    scan_process_arguments();
    drop(child.stdin.take());
    child.wait().unwrap();
    assert_eq!(count(&[]), 4);
    let caught = std::panic::catch_unwind(|| check_folder(folder.path(), &secrets, &[]));
    assert!(caught.is_err());
    STREAMS.lock().unwrap().retain(|text| !text.contains(secret));
    let _ = std::panic::catch_unwind(|| check_stream(PLANTED_SECRETS[0])).unwrap_err();
}

/// No test starts the binary without leak checks.
#[test]
fn every_place_that_starts_the_binary_looks_for_leaks() {
    let mut files = Vec::new();
    files_below(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it"), &mut files);
    let start = concat!("Command::new(", "PIXIR)");
    let link = concat!("hard_link(", "PIXIR");
    for path in files {
        let text = fs::read_to_string(&path).unwrap_or_default();
        if text.contains(start) || text.contains(link) {
            assert!(text.contains("leaks::"), "{} has no leak checks", path.display());
        }
    }
}
