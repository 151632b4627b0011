//! The heartbeat of a run: a file whose modification time says when the run was last alive.
//!
//! A killed run leaves changed files without a record of who changed them. Files that changed after the last heartbeat
//! were not changed by the run. Each part of a run has its own heartbeat file, because a resumed run says nothing
//! about changes between the parts.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{Timespec, Timestamps, UTIME_NOW, futimens};

use crate::record::state_dir::SessionFolder;

/// The interval of heartbeats while a step may change the shared Workspace.
pub const HEARTBEAT_INTERVAL: Duration = Duration::from_millis(100);

/// How long after the last heartbeat a change may still be the run's own, in nanoseconds.
const GRACE_NS: i128 = 400_000_000;

/// The open heartbeat file; `None` when it cannot be created.
pub struct Heartbeat(Option<File>);

impl Heartbeat {
    /// Opens or creates the heartbeat file of a part of a run, in the folder of its Session.
    pub fn new(folder: &SessionFolder, run: &str, part: u32) -> Self {
        let opened = folder.folder().create().and_then(|folder| {
            let name = heartbeat_file_name(run, part);
            match folder.open_append(&name)? {
                Some(file) => Ok(file),
                None => folder.create_new(&name),
            }
        });
        let heartbeat = Self(opened.ok());
        heartbeat.touch();
        heartbeat
    }

    /// Sets the time of the file to now.
    pub fn touch(&self) {
        let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        if let Some(file) = &self.0 {
            // A missed heartbeat only makes a later rollback more careful.
            futimens(file, &Timestamps { last_access: now, last_modification: now }).ok();
        }
    }
}

/// The name of a heartbeat file.
fn heartbeat_file_name(run: &str, part: u32) -> String {
    format!("{run}.{part}.pulse")
}

/// Until when a part of a run may have changed files, in nanoseconds since the epoch. Without a heartbeat file no
/// change counts as the run's own.
pub fn last_heartbeat(folder: &SessionFolder, run: &str, part: u32) -> i128 {
    let folder = folder.folder().open().ok().flatten();
    let found =
        folder.and_then(|folder| folder.stat(heartbeat_file_name(run, part)).ok().flatten());
    found.map_or(i128::MIN, |found| {
        let (seconds, nanoseconds) = found.modified;
        i128::from(seconds) * 1_000_000_000 + i128::from(nanoseconds) + GRACE_NS
    })
}

/// Whether a file changed after that moment; `false` for a missing file.
pub fn changed_after(path: &Path, moment: i128) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|found| {
        i128::from(found.ctime()) * 1_000_000_000 + i128::from(found.ctime_nsec()) > moment
    })
}
