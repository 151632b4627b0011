//! The single-writer lock: a kernel lock on the Log itself, which is released when its holder ends.

use std::collections::BTreeSet;
use std::fs::{File, TryLockError};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::LogError;
use crate::base::id::SessionId;

/// Takes the lock for as long as the file stays open, or names the process that holds it.
pub fn lock_file(file: &File, id: &SessionId, path: &Path) -> Result<(), LogError> {
    match file.try_lock() {
        Ok(()) => Ok(()),
        Err(TryLockError::WouldBlock) => {
            Err(LogError::Busy { id: id.clone(), holder: lock_holder(file) })
        }
        Err(TryLockError::Error(source)) => Err(LogError::Write { path: path.to_owned(), source }),
    }
}

/// The process that holds the lock of a file; the table is read again while no row has it.
pub fn lock_holder(file: &File) -> Option<u32> {
    (0..MAX_READS).find_map(|_| FileLocks::read_current().holder(file))
}

/// The most readings of the table.
const MAX_READS: usize = 8;

/// Every exclusive file lock of this machine, from `/proc/locks`; reading it takes no lock.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct FileLocks {
    /// Device, inode number and pid of each exclusive lock.
    writers: BTreeSet<(Option<u64>, u64, u32)>,
}

impl FileLocks {
    /// The locks that are held now; empty where the kernel has no table.
    pub fn read_current() -> Self {
        Self::read_until_stable(|| std::fs::read_to_string("/proc/locks").unwrap_or_default())
    }

    /// Reads the table until two readings agree, and keeps the rows of all of them. The kernel gives the
    /// table in pieces, and a row may slip between two of them while other locks come and go.
    fn read_until_stable(mut read: impl FnMut() -> String) -> Self {
        let mut last = Self::parse(&read());
        let mut all = last.writers.clone();
        for _ in 1..MAX_READS {
            let next = Self::parse(&read());
            let is_settled = next == last;
            all.extend(next.writers.iter().copied());
            if is_settled {
                break;
            }
            last = next;
        }
        Self { writers: all }
    }

    fn parse(table: &str) -> Self {
        let writers = table.lines().filter_map(|row| {
            let mut words = row.split_whitespace().skip(1);
            // A row with an arrow is a waiter, not a holder.
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

    /// The process that holds the lock of this file, if any.
    pub fn holder(&self, file: &File) -> Option<u32> {
        let metadata = file.metadata().ok()?;
        self.holder_of(metadata.dev(), metadata.ino())
    }

    /// The process that holds the lock of the file with this inode. Some file systems show another device here than
    /// to `stat`, so the inode alone decides when no device matches.
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
    fn a_row_that_one_reading_misses_is_found_by_the_next() {
        let row = |number: u32, pid: u32| {
            format!("1: FLOCK  ADVISORY  WRITE {pid} fd:00:{number} 0 EOF\n")
        };
        let missed = row(1, 10) + &row(2, 20);
        let whole = row(2, 20) + &row(3, 30);
        let mut readings = [&missed, &whole, &whole].into_iter();
        let locks = FileLocks::read_until_stable(|| readings.next().unwrap().clone());
        assert_eq!(locks.holder_of(0xfd00, 3), Some(30));
        assert_eq!(readings.next(), None, "two readings that agree are enough");
        // The reads are bounded on a machine whose locks keep changing.
        let mut count = 0;
        let locks = FileLocks::read_until_stable(|| {
            count += 1;
            row(count, count)
        });
        assert_eq!((count as usize, locks.holder_of(0xfd00, 1)), (MAX_READS, Some(1)));
    }

    #[test]
    fn the_holder_is_read_from_the_kernels_table() {
        let locks = FileLocks::parse(
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
