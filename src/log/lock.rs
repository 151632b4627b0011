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
            Err(LogError::Busy { id: id.clone(), holder: Locks::now().holder(file) })
        }
        Err(TryLockError::Error(source)) => Err(LogError::Write { path: path.to_owned(), source }),
    }
}

/// A look at every file lock of this machine; looking takes no lock.
#[derive(Debug, Default)]
pub struct Locks {
    /// Inode number and pid of each exclusive lock.
    writers: Vec<(u64, u32)>,
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
            let inode = place.rsplit(':').next()?.parse().ok()?;
            (kind == "FLOCK" && access == "WRITE").then_some((inode, pid.parse().ok()?))
        });
        Self { writers: writers.collect() }
    }

    /// Who writes this file, if anybody does.
    pub fn holder(&self, file: &File) -> Option<u32> {
        let inode = file.metadata().ok()?.ino();
        self.holder_of(inode)
    }

    /// Who writes the file with this inode.
    pub fn holder_of(&self, inode: u64) -> Option<u32> {
        self.writers.iter().find(|(own, _)| *own == inode).map(|(_, pid)| *pid)
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
        assert_eq!(locks.holder_of(131_072), Some(4711));
        assert_eq!(locks.holder_of(7), None);
        assert_eq!(locks.holder_of(99), None);
        assert_eq!(locks.holder_of(131_073), None);
    }
}
