//! Processes that carry a mark, in their command line or in their environment.

use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::binary_env::wait_for;

/// Time limit for processes to end on a busy machine.
const GONE_WITHIN: Duration = Duration::from_mins(1);

/// A mark that is unique to one test.
pub fn new_mark() -> String {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    format!("marked-{}-{}-", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

/// The running processes that carry the mark, without this one.
pub fn find_marked_processes(mark: &str) -> Vec<String> {
    let own = std::process::id().to_string();
    let processes = fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    processes
        .filter_map(|process| {
            let pid = process.file_name().into_string().ok()?;
            if pid == own || !pid.bytes().all(|byte| byte.is_ascii_digit()) {
                return None;
            }
            let text = |name: &str| fs::read(process.path().join(name)).unwrap_or_default();
            let line = String::from_utf8_lossy(&text("cmdline")).replace('\0', " ");
            let environment = text("environ");
            let is_marked = line.contains(mark) || contains(&environment, mark.as_bytes());
            is_marked.then(|| format!("{pid} {line}"))
        })
        .collect()
}

fn contains(text: &[u8], word: &[u8]) -> bool {
    text.windows(word.len()).any(|window| window == word)
}

/// Waits until no process with the mark is left.
#[track_caller]
pub fn assert_gone(mark: &str, what: &str) {
    let left = wait_for(GONE_WITHIN, || find_marked_processes(mark), Vec::is_empty);
    assert_eq!(left, Vec::<String>::new(), "{what}");
}

/// Like `assert_gone`, without blocking the runtime.
pub async fn wait_until_gone(mark: &str, what: &str) {
    let end = std::time::Instant::now() + GONE_WITHIN;
    while !find_marked_processes(mark).is_empty() && std::time::Instant::now() < end {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(find_marked_processes(mark), Vec::<String>::new(), "{what}");
}
