//! Descendants: who lives beneath this process, as `/proc` tells it.

use std::collections::HashSet;
use std::path::Path;

/// One living process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    pub pid: i32,
    pub name: String,
}

/// Every living descendant of this process, parents before children; zombies are no longer alive.
///
/// The walk starts at `/proc/self`, so it is right in any pid namespace whose `/proc` it sees.
pub fn of_this_process() -> Vec<Process> {
    let mut found = Vec::new();
    let mut visited = HashSet::new();
    let mut pending = children(Path::new("/proc/self"));
    while let Some(pid) = pending.pop() {
        if !visited.insert(pid) {
            continue;
        }
        let folder = Path::new("/proc").join(pid.to_string());
        pending.extend(children(&folder));
        if let Some(name) = living_name(&folder) {
            found.push(Process { pid, name });
        }
    }
    found
}

fn children(process: &Path) -> Vec<i32> {
    let Ok(threads) = std::fs::read_dir(process.join("task")) else { return Vec::new() };
    let of_thread = |thread: std::fs::DirEntry| {
        let list = std::fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        list.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<i32>>()
    };
    threads.filter_map(Result::ok).flat_map(of_thread).collect()
}

/// The name in `/proc/<pid>/stat`, which stands in brackets and may itself hold brackets.
fn living_name(process: &Path) -> Option<String> {
    let stat = std::fs::read(process.join("stat")).ok()?;
    let stat = String::from_utf8_lossy(&stat);
    let (open, close) = (stat.find('(')?, stat.rfind(')')?);
    let state = stat.get(close + 2..)?.chars().next()?;
    if matches!(state, 'Z' | 'X') {
        return None;
    }
    let name = stat.get(open + 1..close)?;
    Some(name.chars().map(|c| if c.is_control() { '?' } else { c }).collect())
}
