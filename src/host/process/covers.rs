//! [`CoveredPaths`]: the paths that the sandbox has mounted over, and a check that they still are.
//!
//! A mount belongs to a file, not to a name. When the file is replaced from outside, the kernel removes
//! the mount; when its folder is moved, the mount moves along. Either way the name then leads to an
//! uncovered file, so each name is compared with the mount that it led to at the start.

use std::path::PathBuf;
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statx};

use crate::base::files::MountWatch;
use crate::host::sandbox::{Level, Spec, is_private};

/// The paths that must stay covered while commands of one supervisor run.
pub struct Covers {
    mounts: MountWatch,
    places: Vec<(PathBuf, Identity)>,
    /// Whether the paths are covered by mounts (not by Landlock alone).
    is_mounted: bool,
}

/// The file that a path leads to; `None` if there is none.
type Identity = Option<Found>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Found {
    mount: u64,
    device: (u32, u32),
    inode: u64,
    /// Whether the path is the root of a mount.
    is_mount: bool,
    /// Whether the file is being removed or replaced.
    is_leaving: bool,
}

/// How many milliseconds the removal of a file may take.
const SETTLING: usize = 20;

impl Covers {
    /// Records the paths of a supervisor that has just been confined.
    pub fn new(spec: Option<&Spec>, level: Level) -> Self {
        let lists = match (spec, level) {
            (Some(spec), Level::Full) => {
                vec![&spec.writable, &spec.kept, &spec.hidden, &spec.closed]
            }
            // Landlock rights belong to files; kept files are compared by Pixir itself.
            (Some(spec), Level::Partial) => vec![&spec.writable, &spec.hidden],
            (_, Level::Off) | (None, _) => Vec::new(),
        };
        let places = lists.into_iter().flatten();
        let places = places.map(|path| (path.clone(), identity(path)));
        // In a private folder of the command, another supervisor may create files; they do not lead outside.
        let is_outside = |(path, found): &(PathBuf, Identity)| {
            found.is_some() || level != Level::Full || !is_private(path)
        };
        let places = places.filter(is_outside).collect();
        Self { mounts: MountWatch::start(), places, is_mounted: level == Level::Full }
    }

    /// Whether no further command may start with these mounts.
    pub fn are_stale(&self) -> bool {
        self.is_mounted && self.mounts.has_changed() || !self.moved().is_empty()
    }

    /// Watches for mounts and unmounts.
    pub fn mounts(&self) -> &MountWatch {
        &self.mounts
    }

    /// The paths that lost their cover while a command ran. Removed files, such as a socket whose
    /// server has ended, need no cover.
    pub fn lost(&self) -> Vec<PathBuf> {
        let mut moved = if self.is_mounted { self.moved() } else { Vec::new() };
        // The kernel removes the mount shortly before the name.
        for _ in 0..SETTLING {
            let is_leaving = |path: &PathBuf| identity(path).is_some_and(|found| found.is_leaving);
            if !moved.iter().any(is_leaving) {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        moved.retain(|path| identity(path).is_some_and(|found| !found.is_leaving));
        moved
    }

    fn moved(&self) -> Vec<PathBuf> {
        let has_moved = |(path, was): &&(PathBuf, Identity)| {
            let found = identity(path);
            // It may have been replaced before its identity was recorded.
            let is_bare = self.is_mounted && found.is_some_and(|found| !found.is_mount);
            is_bare || found != *was
        };
        self.places.iter().filter(has_moved).map(|(path, _)| path.clone()).collect()
    }
}

fn identity(path: &PathBuf) -> Identity {
    let wanted = StatxFlags::MNT_ID | StatxFlags::INO | StatxFlags::NLINK;
    let found = statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, wanted).ok()?;
    Some(Found {
        mount: found.stx_mnt_id,
        device: (found.stx_dev_major, found.stx_dev_minor),
        inode: found.stx_ino,
        is_leaving: found.stx_nlink == 0,
        is_mount: found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT),
    })
}
