//! The pulse of a run: a file whose time says when the run was last alive.
//!
//! A run that is killed leaves files of which nobody wrote down who changed them. What changed after
//! the last pulse was not the run. Each part of a run has a pulse of its own: that somebody went on
//! says nothing of what happened in between.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{Timespec, Timestamps, UTIME_NOW, futimens};

use crate::state::SessionFolder;

/// How often it beats while a step changes what all share.
pub const BEAT: Duration = Duration::from_millis(100);

/// How long after the last beat something may still be the run's own doing, in nanoseconds.
const GRACE_NS: i128 = 400_000_000;

/// The file, open.
pub struct Pulse(Option<File>);

impl Pulse {
    /// The pulse of a part of a run whose Session has this folder.
    pub fn new(folder: &SessionFolder, run: &str, part: u32) -> Self {
        let opened = folder.folder().create().and_then(|folder| {
            let name = name(run, part);
            match folder.open_append(&name)? {
                Some(file) => Ok(file),
                None => folder.create_new(&name),
            }
        });
        let pulse = Self(opened.ok());
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

/// The file name of a pulse.
fn name(run: &str, part: u32) -> String {
    format!("{run}.{part}.pulse")
}

/// Until when that part of the run may have changed files, in nanoseconds since the epoch. Of one
/// without a pulse nothing is known, so nothing counts as its own.
pub fn last(folder: &SessionFolder, run: &str, part: u32) -> i128 {
    let folder = folder.folder().open().ok().flatten();
    let found = folder.and_then(|folder| folder.stat(name(run, part)).ok().flatten());
    found.map_or(i128::MIN, |found| {
        let (seconds, nanoseconds) = found.modified;
        i128::from(seconds) * 1_000_000_000 + i128::from(nanoseconds) + GRACE_NS
    })
}

/// Whether something was changed after that moment. What is gone says nothing.
pub fn is_younger(path: &Path, moment: i128) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|found| {
        i128::from(found.ctime()) * 1_000_000_000 + i128::from(found.ctime_nsec()) > moment
    })
}
