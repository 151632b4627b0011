//! The pulse of a run: a file whose time says when the run was last alive.
//!
//! A run that is killed leaves files of which nobody wrote down who changed them. What changed after
//! the last pulse was not the run. Each part of a run has a pulse of its own: that somebody went on
//! says nothing of what happened in between.

use std::fs::{DirBuilder, File, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{Timespec, Timestamps, UTIME_NOW, futimens};

/// How often it beats while a step changes what all share.
pub const BEAT: Duration = Duration::from_millis(100);

/// How long after the last beat something may still be the run's own doing, in nanoseconds.
const GRACE_NS: i128 = 400_000_000;

/// The file, open.
pub struct Pulse(Option<File>);

impl Pulse {
    /// The pulse of a part of a run whose Session has this folder.
    pub fn new(folder: &Path, run: &str, part: u32) -> Self {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        let pulse = Self(made.and_then(|()| options.open(path(folder, run, part))).ok());
        pulse.beat();
        pulse
    }

    /// The run is alive.
    pub fn beat(&self) {
        let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        if let Some(file) = &self.0 {
            // A beat that is missed makes a later look only more careful.
            futimens(file, &Timestamps { last_access: now, last_modification: now }).ok();
        }
    }
}

fn path(folder: &Path, run: &str, part: u32) -> PathBuf {
    folder.join(format!("{run}.{part}.pulse"))
}

/// Until when that part of the run may have changed files, in nanoseconds since the epoch. Of one
/// without a pulse nothing is known, so nothing counts as its own.
pub fn last(folder: &Path, run: &str, part: u32) -> i128 {
    std::fs::metadata(path(folder, run, part)).map_or(i128::MIN, |found| {
        i128::from(found.mtime()) * 1_000_000_000 + i128::from(found.mtime_nsec()) + GRACE_NS
    })
}

/// Whether something was changed after that moment. What is gone says nothing.
pub fn is_younger(path: &Path, moment: i128) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|found| {
        i128::from(found.ctime()) * 1_000_000_000 + i128::from(found.ctime_nsec()) > moment
    })
}
