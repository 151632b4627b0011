//! Changes of the mount table, and file systems whose folders can be compared by their change times.

use std::fs::File;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::fstatfs;

/// Local file systems, which no other machine writes: ext2 to ext4, XFS, Btrfs, tmpfs, F2FS, overlayfs,
/// bcachefs, ZFS.
const LOCAL_FILE_SYSTEMS: [u64; 8] = [
    0xef53,
    0x5846_5342,
    0x9123_683e,
    0x0102_1994,
    0xf2f5_2010,
    0x794c_7630,
    0xca45_1a4e,
    0x2fc1_2fc1,
];

/// Whether a file or folder is on a local file system.
pub fn is_on_local_file_system(file: impl AsFd) -> bool {
    let kind = fstatfs(file).ok().and_then(|found| u64::try_from(found.f_type).ok());
    kind.is_some_and(|kind| LOCAL_FILE_SYSTEMS.contains(&(kind & 0xffff_ffff)))
}

/// Watch for mounts and unmounts in this mount namespace.
#[derive(Debug)]
pub struct MountWatch {
    list: Option<File>,
    /// Whether a poll has reported a change, which the kernel does once for each open file.
    has_changed: AtomicBool,
}

impl MountWatch {
    /// Starts with the present mount table. Without `/proc` everything counts as changed.
    pub fn start() -> Self {
        let list = File::open("/proc/self/mountinfo").ok();
        let has_changed = AtomicBool::new(list.is_none());
        Self { list, has_changed }
    }

    /// The descriptor to poll; the kernel marks it as ready when the table has changed.
    pub fn poll_fd(&self) -> Option<PollFd<'_>> {
        self.list.as_ref().map(|list| PollFd::new(list, PollFlags::PRI))
    }

    /// Remembers a change that a poll of the descriptor reported.
    pub fn mark_changed(&self) {
        self.has_changed.store(true, Ordering::Relaxed);
    }

    /// Whether the table has changed since the start.
    pub fn has_changed(&self) -> bool {
        if let Some(polled) = self.poll_fd() {
            let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
            if rustix::event::poll(&mut [polled], Some(&at_once)) != Ok(0) {
                self.mark_changed();
            }
        }
        self.has_changed.load(Ordering::Relaxed)
    }

    /// Whether the table has changed since the last call, or since the start.
    pub fn take_change(&self) -> bool {
        let has_changed = self.has_changed();
        self.has_changed.store(self.list.is_none(), Ordering::Relaxed);
        has_changed
    }
}
