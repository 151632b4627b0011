//! Control groups of version 2 for commands: limits on all processes of a command together.
//!
//! Control groups are used only where another program has delegated a part of the hierarchy to this user with
//! the controllers `memory` and `pids` switched on for its children. Pixir itself is never moved, and
//! no controller is switched on: a group that holds processes may not do so for its children. So a
//! group for commands is created in Pixir's own group where that is possible (the root of the
//! hierarchy), else next to it, as in the user's part of a systemd session.
//!
//! A supervisor joins the group before it starts anything, so that all of the command inherits it.
//! Every operation may fail; commands then run without a control group.
#![expect(clippy::disallowed_methods, reason = "files of the kernel")]

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use rustix::fs::{Access, access};

use super::limits::CommandLimits;
use super::memory::{self, CGROUP_ROOT};

/// The prefix of the names of Pixir's groups; the process id and a number follow.
const GROUP_PREFIX: &str = "pixir-";
/// Controllers that the limits need.
const CONTROLLERS: [&str; 2] = ["memory", "pids"];
/// The number of supervisor processes, which are in the group as well.
const SUPERVISOR_PROCESSES: u64 = 2;

/// Counts of how often limits of a control group were reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LimitEvents {
    /// Processes that the kernel killed because memory was used up.
    pub oom_kills: u64,
    /// Processes that the kernel refused to start.
    pub refused_processes: u64,
}

impl LimitEvents {
    /// The events since an earlier reading.
    pub fn since(self, earlier: Self) -> Self {
        Self {
            oom_kills: self.oom_kills.saturating_sub(earlier.oom_kills),
            refused_processes: self.refused_processes.saturating_sub(earlier.refused_processes),
        }
    }
}

/// A control group in which groups for commands can be created.
#[derive(Debug)]
pub struct DelegatedGroup {
    folder: PathBuf,
    made: AtomicU64,
    /// Groups that could not be removed, because processes in them were still ending.
    retired: Arc<Mutex<Vec<PathBuf>>>,
}

impl DelegatedGroup {
    /// Finds the group that this process may use.
    pub fn for_this_process() -> Option<Self> {
        Self::find(Path::new(CGROUP_ROOT), &fs::read_to_string("/proc/self/cgroup").ok()?)
    }

    /// Finds the group for the process of `list` (`/proc/<pid>/cgroup`), in the hierarchy that is
    /// mounted at `groups`.
    fn find(groups: &Path, list: &str) -> Option<Self> {
        let path = list.lines().find_map(|line| line.strip_prefix("0::"))?;
        let own = groups.join(path.trim_start_matches('/'));
        let around = own.parent().filter(|around| around.starts_with(groups));
        let folder = if has_controllers(&own) {
            own
        } else {
            around.filter(|around| is_delegated(around) && has_controllers(around))?.to_owned()
        };
        remove_abandoned(&folder);
        Some(Self { folder, made: AtomicU64::new(0), retired: Arc::default() })
    }

    /// Creates a group for a supervisor and its commands.
    pub fn create(&self, limits: &CommandLimits) -> io::Result<CommandGroup> {
        self.retired.lock().retain(|folder| !try_remove(folder));
        let number = self.made.fetch_add(1, Ordering::Relaxed);
        let folder = self.folder.join(format!("{GROUP_PREFIX}{}-{number}", std::process::id()));
        fs::create_dir(&folder)?;
        let group = CommandGroup { folder, retired: Arc::clone(&self.retired) };
        group.write("memory.max", limits.memory_bytes)?;
        group.write("memory.oom.group", 1)?;
        group.write("pids.max", limits.processes.saturating_add(SUPERVISOR_PROCESSES))?;
        Ok(group)
    }
}

/// Whether a group limits its children, and this user may create children and move processes there.
fn has_controllers(folder: &Path) -> bool {
    let switched_on = fs::read_to_string(folder.join("cgroup.subtree_control"));
    let switched_on = switched_on.unwrap_or_default();
    let has = |name: &str| switched_on.split_whitespace().any(|own| own == name);
    let may_write = |path: &Path| access(path, Access::WRITE_OK).is_ok();
    CONTROLLERS.into_iter().all(has) && may_write(folder) && may_write(&folder.join("cgroup.procs"))
}

/// Whether a group was delegated to this user. Never true for root, which may write everywhere.
fn is_delegated(folder: &Path) -> bool {
    let user = rustix::process::geteuid();
    !user.is_root() && fs::metadata(folder).is_ok_and(|found| found.uid() == user.as_raw())
}

/// Removes groups of processes that have ended.
fn remove_abandoned(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok) {
        let name = entry.file_name();
        let name =
            name.to_str().and_then(|name| name.strip_prefix(GROUP_PREFIX)).unwrap_or_default();
        let process = name.split_once('-').and_then(|(process, _)| process.parse::<u32>().ok());
        if process.is_some_and(|process| !Path::new("/proc").join(process.to_string()).exists()) {
            fs::remove_dir(entry.path()).ok();
        }
    }
}

/// Tries to remove a group; true when it does not exist any more.
fn try_remove(folder: &Path) -> bool {
    fs::remove_dir(folder).is_ok() || !folder.exists()
}

/// The control group of one supervisor and its commands; removed on drop, or later if processes are left.
#[derive(Debug)]
pub struct CommandGroup {
    folder: PathBuf,
    retired: Arc<Mutex<Vec<PathBuf>>>,
}

impl CommandGroup {
    /// The folder of the group, which a supervisor [`join`]s.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Counts of how often limits of the group were reached so far.
    pub fn events(&self) -> LimitEvents {
        let read = |file: &str, name: &str| {
            let text = fs::read_to_string(self.folder.join(file)).unwrap_or_default();
            memory::parse_count(&text, name).unwrap_or(0)
        };
        LimitEvents {
            oom_kills: read("memory.events", "oom_kill"),
            refused_processes: read("pids.events", "max"),
        }
    }

    fn write(&self, file: &str, value: u64) -> io::Result<()> {
        fs::write(self.folder.join(file), value.to_string())
    }
}

impl Drop for CommandGroup {
    fn drop(&mut self) {
        if !try_remove(&self.folder) {
            let mut retired = self.retired.lock();
            retired.push(std::mem::take(&mut self.folder));
        }
    }
}

/// Moves this process into a group.
pub fn join(folder: &Path) -> io::Result<()> {
    fs::write(folder.join("cgroup.procs"), std::process::id().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A part of a hierarchy, with ordinary files. Unlike files of the kernel, they do not
    /// vanish with their folder.
    fn hierarchy(switched_on: &str) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let slice = folder.path().join("slice");
        fs::create_dir_all(slice.join("own.scope")).unwrap();
        fs::write(slice.join("cgroup.subtree_control"), switched_on).unwrap();
        fs::write(slice.join("cgroup.procs"), "").unwrap();
        folder
    }

    fn empty(folder: &Path) {
        for entry in fs::read_dir(folder).unwrap() {
            fs::remove_file(entry.unwrap().path()).unwrap();
        }
    }

    #[test]
    fn a_group_has_its_limits_counts_and_is_removed() {
        let root = hierarchy("cpu memory pids\n");
        // The list puts this process in the slice itself, which a test as root may use too.
        let parent = DelegatedGroup::find(root.path(), "1:cpu:/\n0::/slice\n").unwrap();
        let limits = CommandLimits { memory_bytes: 700, processes: 10, ..CommandLimits::default() };
        let group = parent.create(&limits).unwrap();
        let folder = group.folder().to_owned();
        assert!(folder.starts_with(root.path().join("slice")), "{folder:?}");
        let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap();
        assert_eq!([read("memory.max"), read("memory.oom.group")], ["700", "1"]);
        assert_eq!(read("pids.max"), "12");
        join(&folder).unwrap();
        assert_eq!(read("cgroup.procs"), std::process::id().to_string());
        assert_eq!(group.events(), LimitEvents::default());
        fs::write(folder.join("memory.events"), "oom 2\noom_kill 3\n").unwrap();
        fs::write(folder.join("pids.events"), "max 4\n").unwrap();
        assert_eq!(group.events(), LimitEvents { oom_kills: 3, refused_processes: 4 });
        let since = group.events().since(LimitEvents { oom_kills: 1, refused_processes: 9 });
        assert_eq!(since, LimitEvents { oom_kills: 2, refused_processes: 0 });
        drop(group);
        assert!(folder.exists(), "as if processes were in it");
        empty(&folder);
        let next = parent.create(&limits).unwrap();
        assert!(!folder.exists(), "the next one takes it away");
        empty(next.folder());
        let folder = next.folder().to_owned();
        drop(next);
        assert!(!folder.exists());
    }

    #[test]
    fn a_group_is_made_only_where_both_controllers_are_switched_on() {
        for (switched_on, list) in [
            ("memory\n", "0::/slice\n"),
            ("\n", "0::/slice\n"),
            ("memory pids\n", "4:memory:/slice\n"),
            ("memory pids\n", "0::/elsewhere/deep\n"),
        ] {
            let root = hierarchy(switched_on);
            assert!(DelegatedGroup::find(root.path(), list).is_none(), "{switched_on} {list}");
        }
    }

    #[test]
    fn a_user_has_groups_beside_its_own_and_root_has_not() {
        let root = hierarchy("memory pids\n");
        let found = DelegatedGroup::find(root.path(), "0::/slice/own.scope\n");
        assert_eq!(found.is_none(), rustix::process::geteuid().is_root());
    }

    #[test]
    fn groups_of_processes_that_have_ended_are_removed() {
        let root = hierarchy("memory pids\n");
        let slice = root.path().join("slice");
        let own = format!("{GROUP_PREFIX}{}-7", std::process::id());
        // No process has a number as large as this.
        for name in ["pixir-4194999-0", &own, "other-4194999-0"] {
            fs::create_dir(slice.join(name)).unwrap();
        }
        DelegatedGroup::find(root.path(), "0::/slice\n").unwrap();
        assert!(!slice.join("pixir-4194999-0").exists());
        assert!(slice.join(own).exists() && slice.join("other-4194999-0").exists());
    }
}
