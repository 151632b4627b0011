//! Covers: what a supervisor has laid over the file system, and whether it still lies there.
//!
//! A mount belongs to a file, not to a name. When somebody outside replaces the file, the kernel takes
//! the mount away; when they move its folder aside, the mount goes along. Either way the name leads to
//! something that nothing covers, so each name is compared with the mount that it led to at first.

use std::path::PathBuf;
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statx};

use crate::files::MountWatch;
use crate::sandbox::{Level, Spec, is_private};

/// What must stay covered while commands of one supervisor run.
pub struct Covers {
    mounts: MountWatch,
    places: Vec<(PathBuf, Identity)>,
    /// Whether it is mounts that cover.
    is_mounted: bool,
}

/// What a name leads to; `None` when it leads nowhere.
type Identity = Option<Found>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Found {
    mount: u64,
    device: (u32, u32),
    inode: u64,
    /// Whether the mount begins here.
    is_mount: bool,
    /// Whether it is being removed, or replaced.
    is_leaving: bool,
}

/// For how many milliseconds something may be about to be removed.
const SETTLING: usize = 20;

impl Covers {
    /// Notes how things are once a supervisor is confined.
    pub fn new(spec: Option<&Spec>, level: Level) -> Self {
        let lists = match (spec, level) {
            (Some(spec), Level::Full) => {
                vec![&spec.writable, &spec.kept, &spec.hidden, &spec.closed]
            }
            // Rights without mounts belong to files; what is kept is compared by Pixir itself.
            (Some(spec), Level::Partial) => vec![&spec.writable, &spec.hidden],
            (_, Level::Off) | (None, _) => Vec::new(),
        };
        let places = lists.into_iter().flatten();
        let places = places.map(|path| (path.clone(), identity(path)));
        // In a folder that is the command's own, another supervisor may make what does not lead outside.
        let is_outside = |(path, found): &(PathBuf, Identity)| {
            found.is_some() || level != Level::Full || !is_private(path)
        };
        let places = places.filter(is_outside).collect();
        Self { mounts: MountWatch::start(), places, is_mounted: level == Level::Full }
    }

    /// Whether another command must not start here.
    pub fn are_stale(&self) -> bool {
        self.is_mounted && self.mounts.has_changed() || !self.moved().is_empty()
    }

    /// Whether anything was mounted or unmounted.
    pub fn mounts(&self) -> &MountWatch {
        &self.mounts
    }

    /// What lost its cover in the middle of a command. What is gone, such as a socket whose server
    /// has ended, needs none.
    pub fn lost(&self) -> Vec<PathBuf> {
        let mut moved = if self.is_mounted { self.moved() } else { Vec::new() };
        // The kernel takes the mount away a moment before the name.
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
            // It may have been replaced before the first look at it.
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
