//! [`CoveredPaths`]: the paths that the sandbox has covered by mounts, and a check that they still are.
//!
//! A mount belongs to a file, not to a name. When the file is replaced from outside, the kernel removes
//! the mount; when its folder is moved, the mount moves along. In both cases the name then resolves to
//! an uncovered file, so each name is compared with the mount to which it resolved at the start.

use std::path::PathBuf;
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statx};

use crate::base::files::MountWatch;
use crate::host::sandbox::{EnforcementLevel, SandboxSpec, is_private};

/// The paths that must stay covered while commands of one supervisor run.
pub struct CoveredPaths {
    mounts: MountWatch,
    paths: Vec<(PathBuf, PathIdentity)>,
    /// Whether the paths are covered by mounts (not by Landlock alone).
    is_mounted: bool,
}

/// The file to which a path resolves; `None` if there is none.
type PathIdentity = Option<MountIdentity>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct MountIdentity {
    mount: u64,
    device: (u32, u32),
    inode: u64,
    /// Whether the path is the root of a mount.
    is_mount: bool,
    /// Whether the file is being removed or replaced.
    is_leaving: bool,
}

/// Time limit for the removal of a file, in milliseconds.
const REMOVAL_WAIT_MS: usize = 20;

impl CoveredPaths {
    /// Records the paths of a supervisor that has just been confined.
    pub fn new(spec: Option<&SandboxSpec>, level: EnforcementLevel) -> Self {
        let lists = match (spec, level) {
            (Some(spec), EnforcementLevel::Full) => {
                vec![&spec.writable, &spec.protected, &spec.hidden, &spec.closed_homes]
            }
            // Landlock rights belong to files; protected files are compared by Pixir itself.
            (Some(spec), EnforcementLevel::Partial) => vec![&spec.writable, &spec.hidden],
            (_, EnforcementLevel::Off) | (None, _) => Vec::new(),
        };
        let places = lists.into_iter().flatten();
        let places = places.map(|path| (path.clone(), path_identity(path)));
        // Another supervisor may create files in a private folder of the command; they do not resolve to files outside.
        let is_outside = |(path, found): &(PathBuf, PathIdentity)| {
            found.is_some() || level != EnforcementLevel::Full || !is_private(path)
        };
        let paths = places.filter(is_outside).collect();
        Self { mounts: MountWatch::start(), paths, is_mounted: level == EnforcementLevel::Full }
    }

    /// Whether no further command may start with these mounts.
    pub fn is_stale(&self) -> bool {
        self.is_mounted && self.mounts.has_changed() || !self.changed_paths().is_empty()
    }

    /// Watches for mounts and unmounts.
    pub fn mount_watch(&self) -> &MountWatch {
        &self.mounts
    }

    /// The paths that lost their cover while a command ran. Removed files, such as a socket whose
    /// server has ended, need no cover.
    pub fn uncovered_paths(&self) -> Vec<PathBuf> {
        let mut moved = if self.is_mounted { self.changed_paths() } else { Vec::new() };
        // The kernel removes the mount shortly before the name.
        for _ in 0..REMOVAL_WAIT_MS {
            let is_leaving =
                |path: &PathBuf| path_identity(path).is_some_and(|found| found.is_leaving);
            if !moved.iter().any(is_leaving) {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        moved.retain(|path| path_identity(path).is_some_and(|found| !found.is_leaving));
        moved
    }

    fn changed_paths(&self) -> Vec<PathBuf> {
        let has_moved = |(path, was): &&(PathBuf, PathIdentity)| {
            let found = path_identity(path);
            // The path may have been replaced before its identity was recorded.
            let is_bare = self.is_mounted && found.is_some_and(|found| !found.is_mount);
            is_bare || found != *was
        };
        self.paths.iter().filter(has_moved).map(|(path, _)| path.clone()).collect()
    }
}

fn path_identity(path: &PathBuf) -> PathIdentity {
    let wanted = StatxFlags::MNT_ID | StatxFlags::INO | StatxFlags::NLINK;
    let found = statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, wanted).ok()?;
    Some(MountIdentity {
        mount: found.stx_mnt_id,
        device: (found.stx_dev_major, found.stx_dev_minor),
        inode: found.stx_ino,
        is_leaving: found.stx_nlink == 0,
        is_mount: found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT),
    })
}
