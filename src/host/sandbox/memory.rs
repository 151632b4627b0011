//! Memory of this machine or container: its size, and the number of out-of-memory kills.
//!
//! Control groups of both versions are read, each from the group of this process up to the
//! outermost one that is visible here.

use std::fs;
use std::io::{Read, Seek};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use parking_lot::Mutex;

/// The file that names the control groups of this process.
const OWN_GROUPS: &str = "/proc/self/cgroup";
/// The conventional mount point of control groups.
pub const CGROUP_ROOT: &str = "/sys/fs/cgroup";
/// The assumed size in bytes when `/proc/meminfo` cannot be read.
const UNKNOWN_MEMORY: u64 = 4 << 30;

/// The memory that this process and its children can use together.
pub fn machine_memory() -> u64 {
    static MEMORY: OnceLock<u64> = OnceLock::new();
    *MEMORY.get_or_init(|| {
        let list = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let total = parse_total(&list).unwrap_or(UNKNOWN_MEMORY);
        own_group().and_then(|group| group.limit()).map_or(total, |limit| limit.min(total))
    })
}

/// The total of `/proc/meminfo`, in bytes.
fn parse_total(list: &str) -> Option<u64> {
    let line = list.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|kibibytes| kibibytes << 10)
}

fn own_group() -> Option<MemoryGroup> {
    MemoryGroup::find(Path::new(CGROUP_ROOT), &fs::read_to_string(OWN_GROUPS).ok()?)
}

/// The control group that counts the memory of a process.
#[derive(Debug, PartialEq, Eq)]
struct MemoryGroup {
    folder: PathBuf,
    /// The mount point of its hierarchy.
    top: PathBuf,
    version: CgroupVersion,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CgroupVersion {
    V1,
    V2,
}

impl CgroupVersion {
    /// The files of a group with its limit and with the number of out-of-memory kills.
    fn files(self) -> (&'static str, &'static str) {
        match self {
            CgroupVersion::V1 => ("memory.limit_in_bytes", "memory.oom_control"),
            CgroupVersion::V2 => ("memory.max", "memory.events"),
        }
    }
}

impl MemoryGroup {
    /// The group that `list` (`/proc/<pid>/cgroup`) names, below the folder of all control groups.
    fn find(groups: &Path, list: &str) -> Option<Self> {
        let fields = |line: &'_ str| {
            let mut fields = line.splitn(3, ':').map(str::to_owned);
            Some((fields.next()?, fields.next()?, fields.next()?))
        };
        let lines: Vec<_> = list.lines().filter_map(fields).collect();
        let is_memory = |controllers: &str| controllers.split(',').any(|name| name == "memory");
        let first = lines.iter().find(|(_, controllers, _)| is_memory(controllers));
        let second = lines.iter().find(|(number, ..)| number == "0");
        let (top, path, version) = match (first, second) {
            (Some((_, _, path)), _) => (groups.join("memory"), path, CgroupVersion::V1),
            (None, Some((_, _, path))) => (groups.to_owned(), path, CgroupVersion::V2),
            (None, None) => return None,
        };
        let folder = top.join(path.trim_start_matches('/'));
        // In a container the path may be that of the machine, and its own group the outermost visible one.
        let folder = if folder.is_dir() { folder } else { top.clone() };
        Some(Self { folder, top, version })
    }

    /// The lowest limit of the group and its parent groups.
    fn limit(&self) -> Option<u64> {
        let (name, _) = self.version.files();
        let folders = self.folder.ancestors().take_while(|folder| folder.starts_with(&self.top));
        let limits = folders.filter_map(|folder| fs::read_to_string(folder.join(name)).ok());
        limits.filter_map(|limit| limit.trim().parse().ok()).min()
    }

    /// The file with the number of out-of-memory kills.
    fn events(&self) -> PathBuf {
        self.folder.join(self.version.files().1)
    }
}

/// Reader for the number of out-of-memory kills in a control group.
#[derive(Debug, Default)]
pub struct OomKillCounter(Option<Mutex<fs::File>>);

impl OomKillCounter {
    /// The counter of this process's group; without a group it stays at zero.
    pub fn for_own_group() -> Self {
        own_group().map_or_else(Self::default, |group| Self::open(&group.events()))
    }

    fn open(events: &Path) -> Self {
        Self(fs::File::open(events).ok().map(Mutex::new))
    }

    /// Reads the current number.
    pub fn read(&self) -> u64 {
        let Some(file) = &self.0 else { return 0 };
        let mut file = file.lock();
        let mut text = String::new();
        let is_read = file.rewind().and_then(|()| file.read_to_string(&mut text)).is_ok();
        drop(file);
        if is_read { parse_count(&text, "oom_kill").unwrap_or(0) } else { 0 }
    }
}

/// The number after a name in a file with lines of names and numbers.
pub fn parse_count(text: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().map(|line| line.split_once(' ').unwrap_or((line, "")));
    lines.find(|(own, _)| *own == name)?.1.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(folder: &Path, files: &[(&str, &str)]) {
        fs::create_dir_all(folder).unwrap();
        for (name, content) in files {
            fs::write(folder.join(name), content).unwrap();
        }
    }

    #[test]
    fn the_lowest_limit_of_all_groups_around_counts() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        group(root, &[]);
        group(&root.join("a"), &[("memory.max", "700\n")]);
        group(&root.join("a/b"), &[("memory.max", "max\n"), ("memory.events", "oom_kill 3\n")]);
        let found = MemoryGroup::find(root, "0::/a/b\n").unwrap();
        assert_eq!(found.version, CgroupVersion::V2);
        assert_eq!(found.limit(), Some(700));
        let counter = OomKillCounter::open(&found.events());
        assert_eq!(counter.read(), 3);
        group(&root.join("a/b"), &[("memory.events", "low 0\noom 9\noom_kill 14\n")]);
        assert_eq!(counter.read(), 14, "it is read again");
        let hidden = MemoryGroup::find(root, "0::/elsewhere\n").unwrap();
        assert_eq!((&*hidden.folder, hidden.limit()), (root, None));
    }

    #[test]
    fn the_first_version_is_read_where_it_counts_memory() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        group(&root.join("memory/x"), &[("memory.limit_in_bytes", "900\n")]);
        group(&root.join("memory"), &[("memory.limit_in_bytes", "9223372036854771712\n")]);
        let found = MemoryGroup::find(root, "4:memory:/x\n1:cpu:/\n0::/\n").unwrap();
        assert_eq!((found.version, found.limit()), (CgroupVersion::V1, Some(900)));
        assert_eq!(MemoryGroup::find(root, ""), None);
        assert_eq!(OomKillCounter::open(&found.events()).read(), 0, "there is no such file");
    }

    #[test]
    fn the_total_is_read_in_bytes() {
        assert_eq!(
            parse_total("MemTotal:       24684000 kB\nMemFree: 1 kB\n"),
            Some(24_684_000 << 10)
        );
        assert_eq!(parse_total("MemFree: 1 kB\n"), None);
        assert!(machine_memory() > 1 << 20);
    }
}
