//! Loaded segment: its table, and the files with its contents.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;

use super::git_pins::{GitPins, LARGEST_IN_GIT};
use super::segment::{Location, Segment};
use super::{SEGMENTS, not_found_error};
use crate::base::files::StatePath;
use crate::host::git_objects::{Pack, into_invalid_data};
use crate::host::snapshot::ContentHash;

/// A segment of a store; its files are opened on first use and stay open.
#[derive(Debug)]
pub struct OpenSegment {
    store: StatePath,
    name: String,
    table: Segment,
    data: OnceLock<File>,
    packs: Vec<OnceLock<Pack>>,
}

impl OpenSegment {
    pub fn new(store: StatePath, name: String, table: Segment) -> Self {
        let packs = table.packs.iter().map(|_| OnceLock::new()).collect();
        Self { store, name, table, data: OnceLock::new(), packs }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn table(&self) -> &Segment {
        &self.table
    }

    /// Reads the content with this hash; `None` if the segment does not have it, an error if it is damaged.
    pub fn read(&self, hash: &ContentHash) -> io::Result<Option<Vec<u8>>> {
        let Some(location) = self.table.location(hash) else { return Ok(None) };
        let content = match location {
            Location::Data { offset, length } => self.read_data(offset, length)?,
            Location::Pack { pack, position } => self
                .open_pack(pack)?
                .read_blob(position, LARGEST_IN_GIT)
                .map_err(into_invalid_data)?,
            Location::Loose { object } => {
                let id = self.table.loose.get(object).ok_or_else(not_found_error)?;
                self.open_pins()?.read_loose(id, LARGEST_IN_GIT)?
            }
        };
        if ContentHash::digest(&content) != *hash {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "its content was changed"));
        }
        Ok(Some(content))
    }

    fn read_data(&self, offset: u64, length: u64) -> io::Result<Vec<u8>> {
        if self.data.get().is_none() {
            let folder = self.store.join(SEGMENTS).open()?.ok_or_else(not_found_error)?;
            let file =
                folder.open_file(format!("{}.data", self.name))?.ok_or_else(not_found_error)?;
            self.data.set(file).ok();
        }
        let file = self.data.get().ok_or_else(not_found_error)?;
        // A damaged table must not cause a larger allocation than the file.
        if offset
            .checked_add(length)
            .is_none_or(|end| file.metadata().is_ok_and(|own| end > own.len()))
        {
            return Err(not_found_error());
        }
        let mut content = vec![0; usize::try_from(length).map_err(io::Error::other)?];
        file.read_exact_at(&mut content, offset)?;
        Ok(content)
    }

    fn open_pack(&self, number: usize) -> io::Result<&Pack> {
        let place = self.packs.get(number).ok_or_else(not_found_error)?;
        if place.get().is_none() {
            let name = self.table.packs.get(number).ok_or_else(not_found_error)?;
            place.set(self.open_pins()?.open_pack(name)?).ok();
        }
        place.get().ok_or_else(not_found_error)
    }

    fn open_pins(&self) -> io::Result<GitPins> {
        GitPins::open(&self.store)?.ok_or_else(not_found_error)
    }
}
