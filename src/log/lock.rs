//! The single-writer lock: the kernel's, on the Log itself, gone when its holder dies.

use std::fs::{File, TryLockError};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::LogError;
use crate::id::SessionId;

/// Takes the lock for as long as the file stays open, or names who has it.
pub fn take(file: &File, id: &SessionId, path: &Path) -> Result<(), LogError> {
    match file.try_lock() {
        Ok(()) => Ok(()),
        Err(TryLockError::WouldBlock) => {
            Err(LogError::Busy { id: id.clone(), holder: holder(file) })
        }
        Err(TryLockError::Error(source)) => Err(LogError::Write { path: path.to_owned(), source }),
    }
}

/// Who writes a file that cannot be locked. The kernel tells its table in pieces, and a row may slip
/// between two of them while others come and go; so a row that is not there is looked for again.
pub fn holder(file: &File) -> Option<u32> {
    (0..LOOKS).find_map(|_| Locks::now().holder(file))
}

/// How often.
const LOOKS: usize = 8;

/// A look at every file lock of this machine; looking takes no lock.
#[derive(Debug, Default)]
pub struct Locks {
    /// Device, inode number and pid of each exclusive lock.
    writers: Vec<(Option<u64>, u64, u32)>,
}

impl Locks {
    /// Looks once; empty where the kernel does not tell.
    pub fn now() -> Self {
        Self::parse(&std::fs::read_to_string("/proc/locks").unwrap_or_default())
    }

    fn parse(table: &str) -> Self {
        let writers = table.lines().filter_map(|row| {
            let mut words = row.split_whitespace().skip(1);
            // A row with an arrow is somebody waiting, not a holder.
            let (kind, _, access) = (words.next()?, words.next()?, words.next()?);
            let (pid, place) = (words.next()?, words.next()?);
            let mut place = place.split(':');
            let major = u32::from_str_radix(place.next()?, 16).ok()?;
            let minor = u32::from_str_radix(place.next()?, 16).ok()?;
            let device = Some(rustix::fs::makedev(major, minor));
            let inode = place.next()?.parse().ok()?;
            (kind == "FLOCK" && access == "WRITE").then_some((device, inode, pid.parse().ok()?))
        });
        Self { writers: writers.collect() }
    }

    /// Who writes this file, if anybody does.
    pub fn holder(&self, file: &File) -> Option<u32> {
        let metadata = file.metadata().ok()?;
        self.holder_of(metadata.dev(), metadata.ino())
    }

    /// Who writes the file with this inode. Some file systems show another device here than to
    /// `stat`, so the inode alone decides when no device fits.
    pub fn holder_of(&self, device: u64, inode: u64) -> Option<u32> {
        let same: Vec<_> = self.writers.iter().filter(|(_, own, _)| *own == inode).collect();
        let exact = same.iter().find(|(own, _, _)| *own == Some(device));
        exact.or(same.first()).map(|(_, _, pid)| *pid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_holder_is_read_from_the_kernels_table() {
        let locks = Locks::parse(
            "1: POSIX  ADVISORY  WRITE 11 08:01:99 0 EOF\n\
             2: FLOCK  ADVISORY  WRITE 4711 fd:00:131072 0 EOF\n\
             2: -> FLOCK  ADVISORY  WRITE 12 fd:00:131073 0 EOF\n\
             3: FLOCK  ADVISORY  READ 5 fd:00:7 0 EOF\nrubbish\n",
        );
        assert_eq!(locks.holder_of(0xfd00, 131_072), Some(4711));
        assert_eq!(locks.holder_of(0, 7), None);
        assert_eq!(locks.holder_of(0, 99), None);
        assert_eq!(locks.holder_of(0, 131_073), None);
    }
}
