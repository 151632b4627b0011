//! Regular files that the user or a checkout named: opened without blocking, read up to a limit.
//!
//! Opening a pipe waits for its writer, and a device may never end. So nothing is checked by name
//! first: the file is opened without blocking, and the descriptor is checked.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags};

/// Opens a regular file for reading; links are followed, everything else is refused.
pub fn open_regular(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    let file = File::from(rustix::fs::openat(CWD, path, flags, Mode::empty())?);
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    Ok(file)
}

/// Reads a whole regular file; one with more bytes than `limit` is refused.
pub fn read_regular(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_regular(path)?.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        return Err(io::Error::other(format!("it has more than {limit} bytes")));
    }
    Ok(bytes)
}
