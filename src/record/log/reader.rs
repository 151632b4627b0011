//! `LogReader`: reads an open Log again from its start, as often as needed.
//!
//! A Session holds only the Events that a Turn needs. Other callers read the rest through the same
//! descriptor, so that neither the name of the file nor a lock matters.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{LogError, LogScan, read};
use crate::base::id::SessionId;
use crate::record::event::Seq;
use crate::record::history::History;
use crate::record::state_dir::SessionFolder;

/// Reads an open Log; cheap to clone.
#[derive(Debug, Clone)]
pub struct LogReader {
    pub(super) id: SessionId,
    pub(super) path: PathBuf,
    pub(super) folder: SessionFolder,
    pub(super) file: Arc<File>,
}

impl LogReader {
    /// The path at which the file is, or was.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// All Events up to a seq; that part of the file does not change any more.
    pub fn read(&self, last: Option<Seq>) -> Result<History, LogError> {
        let from_start = FromStart { file: &self.file, offset: 0 };
        let reading = read::read_log(from_start, &self.id, &self.folder)
            .map_err(|source| self.unreadable(source))?;
        Ok(History::from_events(reading.events).truncated_at(last))
    }

    /// Reads one Event at a time, up to `most` bytes: a writer may be at work.
    pub fn scan(&self, most: u64) -> LogScan<impl Read + '_> {
        let from_start = FromStart { file: &self.file, offset: 0 };
        LogScan::new(from_start.take(most), &self.id, &self.folder)
    }

    /// The error of a scan.
    pub fn unreadable(&self, source: io::Error) -> LogError {
        LogError::Io { path: self.path.clone(), source }
    }
}

/// A file read from its start at a separate offset, because the descriptor is shared.
#[derive(Debug)]
struct FromStart<'a> {
    file: &'a File,
    offset: u64,
}

impl Read for FromStart<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read_at(buffer, self.offset)?;
        self.offset += count as u64;
        Ok(count)
    }
}
