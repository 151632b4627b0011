//! A control group of either version with little memory, for the program under test.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Number of control groups made so far.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// A control group with a limit on memory; removed when it is dropped.
pub struct MemoryCgroup {
    folder: PathBuf,
    events: &'static str,
}

impl MemoryCgroup {
    /// Makes a control group; `None` if this machine or this user cannot.
    pub fn new(bytes: u64) -> Option<Self> {
        let first = Path::new("/sys/fs/cgroup/memory");
        let second = Path::new("/sys/fs/cgroup");
        let children = fs::read_to_string(second.join("cgroup.subtree_control"));
        let has_memory =
            children.is_ok_and(|list| list.split_whitespace().any(|name| name == "memory"));
        let (parent, limits, events): (_, &[&str], _) =
            if first.join("memory.limit_in_bytes").exists() {
                let limits = &["memory.limit_in_bytes", "memory.memsw.limit_in_bytes"];
                (first, limits, "memory.oom_control")
            } else if has_memory {
                (second, &["memory.max", "memory.swap.max"], "memory.events")
            } else {
                return None;
            };
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder = parent.join(format!("pixir-story-{}-{number}", std::process::id()));
        fs::create_dir(&folder).ok()?;
        let cgroup = Self { folder, events };
        for (place, name) in limits.iter().enumerate() {
            // Without swap, the second file may not exist.
            let is_written = fs::write(cgroup.folder.join(name), bytes.to_string()).is_ok();
            if place == 0 && !is_written {
                return None;
            }
        }
        Some(cgroup)
    }

    /// Adds a process, and all processes that it will start.
    pub fn add_process(&self, process: u32) {
        fs::write(self.folder.join("cgroup.procs"), process.to_string()).unwrap();
    }

    /// Number of processes in the group that the kernel killed because it was out of memory.
    pub fn oom_kills(&self) -> u64 {
        let text = fs::read_to_string(self.folder.join(self.events)).unwrap();
        let count = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        count.map_or(0, |count| count.trim().parse().unwrap())
    }

    /// The processes in the group.
    pub fn processes(&self) -> Vec<String> {
        let list = fs::read_to_string(self.folder.join("cgroup.procs")).unwrap();
        list.lines().map(str::to_owned).collect()
    }
}

impl Drop for MemoryCgroup {
    fn drop(&mut self) {
        fs::remove_dir(&self.folder).ok();
    }
}
