//! Process descendants, read from `/proc`.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use rustix::process::{Pid, Signal, kill_process};

/// A process that is alive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveProcess {
    pub pid: i32,
    pub name: String,
}

/// Whether `/proc` is mounted for the pid namespace of this process. In the `/proc` of another pid
/// namespace, each number means a different process.
pub fn is_proc_usable() -> bool {
    let own = rustix::process::getpid().as_raw_nonzero().to_string();
    std::fs::read_link("/proc/self").is_ok_and(|link| link == Path::new(&own))
        && std::fs::read("/proc/thread-self/children").is_ok()
}

/// Every living descendant of this process, parents before children; zombies do not count.
///
/// The walk starts at `/proc/self`, so it finds the right processes in any pid namespace.
pub fn own_descendants() -> Vec<LiveProcess> {
    collect_descendants(child_pids(Path::new("/proc/self")))
}

/// Every living descendant of another process in this pid namespace.
pub fn descendants_of(pid: Pid) -> Vec<LiveProcess> {
    collect_descendants(child_pids(&proc_folder(pid.as_raw_nonzero().get())))
}

/// Every living process of a Unix session, regardless of its current parent.
pub fn session_processes(leader: Pid) -> Vec<LiveProcess> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let session = leader.as_raw_nonzero().to_string();
    let members = pids
        .filter(|pid: &i32| stat_field(&proc_folder(*pid), STAT_SESSION) == Some(session.clone()));
    members.filter_map(read_live_process).collect()
}

/// Whether a process is a child of this one, alive or a zombie.
pub fn has_child(pid: Pid) -> bool {
    child_pids(Path::new("/proc/self")).contains(&pid.as_raw_nonzero().get())
}

/// Sends a signal to each process.
pub fn signal_processes(processes: &[LiveProcess], signal: Signal) {
    for pid in processes.iter().filter_map(|process| Pid::from_raw(process.pid)) {
        kill_process(pid, signal).ok();
    }
}

fn collect_descendants(mut pending: Vec<i32>) -> Vec<LiveProcess> {
    let mut found = Vec::new();
    let mut visited = HashSet::new();
    while let Some(pid) = pending.pop() {
        if visited.insert(pid) {
            pending.extend(child_pids(&proc_folder(pid)));
            found.extend(read_live_process(pid));
        }
    }
    found
}

fn proc_folder(pid: i32) -> PathBuf {
    Path::new("/proc").join(pid.to_string())
}

fn child_pids(process: &Path) -> Vec<i32> {
    let Ok(threads) = std::fs::read_dir(process.join("task")) else { return Vec::new() };
    let of_thread = |thread: std::fs::DirEntry| {
        let list = std::fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        list.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<i32>>()
    };
    threads.filter_map(Result::ok).flat_map(of_thread).collect()
}

/// Indices of fields of `/proc/<pid>/stat`, counted after the name.
const STAT_STATE: usize = 0;
const STAT_SESSION: usize = 3;

fn stat_field(process: &Path, index: usize) -> Option<String> {
    let stat = std::fs::read(process.join("stat")).ok()?;
    let stat = String::from_utf8_lossy(&stat);
    let behind = stat.get(stat.rfind(')')? + 2..)?;
    behind.split(' ').nth(index).map(str::to_owned)
}

/// Reads `/proc/<pid>/stat`, unless the process is a zombie. The name is in brackets and may contain
/// brackets.
fn read_live_process(pid: i32) -> Option<LiveProcess> {
    let folder = proc_folder(pid);
    if matches!(stat_field(&folder, STAT_STATE)?.as_str(), "Z" | "X") {
        return None;
    }
    let stat = std::fs::read(folder.join("stat")).ok()?;
    let stat = String::from_utf8_lossy(&stat);
    let name = stat.get(stat.find('(')? + 1..stat.rfind(')')?)?;
    let name = name.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
    Some(LiveProcess { pid, name })
}
