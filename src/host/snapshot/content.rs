//! File content, state and fingerprint: reading them from a Workspace.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use rustix::fs::Stat;
use rustix::io::Errno;

use super::manifest::FileFingerprint;
use super::{ContentHash, ContentStore, FileState, RawPath};
use crate::host::workspace::{OpenKind, Workspace};

/// The bits of a file mode that are compared and restored.
const MODE: u32 = 0o7777;
/// The maximum number of bytes that one system call reads.
const READ_AT_ONCE: usize = 64 << 20;
/// A file that changed within this time before a survey may change again without a new fingerprint.
const CLOCK_TICK: Duration = Duration::from_millis(50);
/// The same where times of files have no fraction of a second.
const COARSE_TICK: Duration = Duration::from_secs(2);

/// Reads a regular file; `None` when it is larger than the limit.
pub fn read_content(
    workspace: &Workspace,
    path: &Path,
    limit: u64,
) -> Result<Option<(Vec<u8>, FileFingerprint)>, Errno> {
    let file = workspace.open_no_follow(path.as_os_str().as_bytes(), OpenKind::File)?;
    let before = fingerprint(&rustix::fs::fstat(&file)?);
    let file = File::from(file);
    let bytes = read_up_to(file, before.size, limit.saturating_add(1));
    let bytes = bytes.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    Ok((bytes.len() as u64 <= limit).then_some((bytes, before)))
}

/// Reads a file up to a limit. One system call suffices when the file has the expected size: it requests
/// one byte more, which detects the end.
fn read_up_to(mut file: File, size: u64, limit: u64) -> io::Result<Vec<u8>> {
    let asked = usize::try_from(size.saturating_add(1).min(limit)).unwrap_or(usize::MAX);
    let mut bytes = vec![0; asked.min(READ_AT_ONCE)];
    let length = match file.read(&mut bytes) {
        Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
        length => length?,
    };
    bytes.truncate(length);
    if size > 0 && length as u64 == size {
        return Ok(bytes);
    }
    file.take(limit.saturating_sub(length as u64)).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The current state of a path; the content of a file is hashed, and stored if there is a store.
pub fn read_state(
    workspace: &Workspace,
    path: &Path,
    store: Option<&ContentStore>,
) -> io::Result<Option<FileState>> {
    match read_content(workspace, path, u64::MAX - 1) {
        Ok(Some((bytes, fingerprint))) => {
            let sha256 = match store {
                Some(store) => store.put(&bytes)?,
                None => ContentHash::digest(&bytes),
            };
            Ok(Some(FileState::File { sha256, mode: fingerprint.mode }))
        }
        // The path may be a link, which is not opened, or have a link above it.
        Err(refused @ (Errno::LOOP | Errno::ACCESS)) => match workspace.stat_no_follow(path) {
            Ok(seen) => match seen.link {
                Some(target) => Ok(Some(FileState::Link { target: RawPath(target) })),
                None => Err(refused.into()),
            },
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
            Err(errno) => Err(errno.into()),
        },
        Ok(None) | Err(Errno::INVAL | Errno::NOENT | Errno::NOTDIR | Errno::ISDIR) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// The fingerprint of a file from its `stat`.
pub fn fingerprint(stat: &Stat) -> FileFingerprint {
    let moment = |seconds: i64, nanoseconds: u64| {
        i128::from(seconds) * 1_000_000_000 + i128::from(nanoseconds)
    };
    FileFingerprint {
        size: u64::try_from(stat.st_size).unwrap_or_default(),
        mode: stat.st_mode & MODE,
        inode: stat.st_ino,
        modified: moment(stat.st_mtime, stat.st_mtime_nsec),
        changed: moment(stat.st_ctime, stat.st_ctime_nsec),
    }
}

/// A fingerprint for the next survey; that of a file that changed just before `now`, which is counted from the epoch, is
/// made invalid, so that the next survey reads the file again.
pub fn invalidate_if_recent(fingerprint: FileFingerprint, now: Duration) -> FileFingerprint {
    let is_coarse = fingerprint.changed.rem_euclid(1_000_000_000) == 0;
    let tick = if is_coarse { COARSE_TICK.saturating_add(CLOCK_TICK) } else { CLOCK_TICK };
    let settled = i128::try_from(now.saturating_sub(tick).as_nanos()).unwrap_or(i128::MAX);
    if fingerprint.changed < settled {
        fingerprint
    } else {
        FileFingerprint { changed: i128::MIN, ..fingerprint }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_may_change_again_with_the_same_times_is_read_again() {
        let now = Duration::from_millis(1_000_900);
        let is_read_again = |changed: Duration| {
            let changed = i128::try_from(changed.as_nanos()).unwrap();
            let fingerprint =
                FileFingerprint { size: 1, mode: 0, inode: 1, modified: changed, changed };
            invalidate_if_recent(fingerprint, now) != fingerprint
        };
        let cases = [
            (Duration::from_millis(1_000_890), true),
            (Duration::from_millis(1_000_700), false),
            // Where times are whole seconds, a change within the same second leaves them as they are.
            (Duration::from_secs(1000), true),
            (Duration::from_secs(999), true),
            (Duration::from_secs(998), false),
            (Duration::new(999, 1), false),
        ];
        for (changed, expected) in cases {
            assert_eq!(is_read_again(changed), expected, "{changed:?}");
        }
    }
}
