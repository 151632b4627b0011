//! Git pins: packs and loose objects of git in the store, used instead of copies of file contents.
//!
//! A pinned file is a hard link to git's own file. Removing `.git` and `git gc` then remove only git's own
//! link. A file that was overwritten in place is detected: by its size and time before more contents rely on
//! it, and by the hash of each content when it is read back.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;

use rustix::fs::FileType;
use serde::{Deserialize, Serialize};

use crate::base::files::{StateDir, StateEntry, StatePath, WriteDurability};
use crate::host::git_objects::{ObjectFormat, ObjectId, Pack, PackIndex, into_invalid_data, loose};

/// The folder of pinned packs and objects in the store.
pub const GIT_PINS_FOLDER: &str = "git";
/// The maximum size of a content that is read from git; a larger one is copied.
pub const LARGEST_IN_GIT: u64 = 256 << 20;
/// The maximum size of a pack that is copied if it cannot be linked, in bytes.
const LARGEST_COPY: u64 = 64 << 20;
/// The file name extension of the record of a pinned pack.
const RECORD: &str = "pin";
/// The maximum size of such a record, in bytes.
const LARGEST_RECORD: u64 = 4096;

/// The folder of pins in a store.
#[derive(Debug)]
pub struct GitPins(StateDir);

/// The two files of a pack.
#[derive(Debug)]
pub struct PackFiles {
    pub pack: File,
    pub index: File,
}

/// The record of a pinned pack: its files when they were pinned, or last found intact.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct PinRecord {
    /// Whether the files were copied, because they could not be linked.
    copied: bool,
    pack: PackFileStamp,
    index: PackFileStamp,
}

/// The size of a file, and the seconds and nanoseconds of its last write.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct PackFileStamp {
    bytes: u64,
    modified: (i64, i64),
}

impl PackFileStamp {
    fn of_entry(entry: &StateEntry) -> Option<Self> {
        let is_file = entry.kind == FileType::RegularFile && entry.is_own;
        is_file.then_some(Self { bytes: entry.bytes, modified: entry.modified })
    }
}

impl PackFiles {
    /// Opens the pack.
    pub fn open(self, format: ObjectFormat) -> io::Result<Pack> {
        let index = PackIndex::open(self.index, format).map_err(into_invalid_data)?;
        Pack::open(self.pack, index).map_err(into_invalid_data)
    }

    /// Whether both files match their checksums.
    pub fn are_intact(&self, format: ObjectFormat) -> bool {
        [&self.pack, &self.index]
            .into_iter()
            .all(|file| format.has_valid_checksum(file).unwrap_or(false))
    }
}

impl GitPins {
    /// The pins of a store; `None` when it has none.
    pub fn open(store: &StatePath) -> io::Result<Option<Self>> {
        Ok(store.join(GIT_PINS_FOLDER).open()?.map(Self))
    }

    /// The pins of a store; their folder is created when needed.
    pub fn create(store: &StatePath) -> io::Result<Self> {
        Ok(Self(store.join(GIT_PINS_FOLDER).create()?))
    }

    /// Opens a pinned pack.
    pub fn open_pack(&self, name: &str) -> io::Result<Pack> {
        self.open_files(name)?.open(format_of_pack(name))
    }

    fn open_files(&self, name: &str) -> io::Result<PackFiles> {
        let open =
            |kind| open_pin(&self.0, &format!("{name}.{kind}"))?.ok_or_else(super::not_found_error);
        Ok(PackFiles { pack: open("pack")?, index: open("idx")? })
    }

    /// Whether a pack is pinned, intact or not.
    pub fn has_pack(&self, name: &str) -> bool {
        self.stamp(name, false).is_some()
    }

    /// Whether the files of a pinned pack are as they were, or still match their checksums: git sets their times
    /// when it would write an object that they have.
    pub fn is_intact(&self, name: &str) -> bool {
        let record = self.record(name);
        let is_copied = record.as_ref().is_some_and(|record| record.copied);
        let Some(found) = self.stamp(name, is_copied) else { return false };
        if record.is_some_and(|record| record == found) {
            return true;
        }
        let is_intact =
            self.open_files(name).is_ok_and(|files| files.are_intact(format_of_pack(name)));
        if is_intact {
            // Without the record the files are only read again.
            self.write_record(name, &found).ok();
        }
        is_intact
    }

    /// Pins a pack, in place of damaged files of that name. Where no hard link is possible it is copied, up to
    /// `copy_limit` bytes. Returns the number of bytes that were copied.
    pub fn pin_pack(&self, name: &str, files: &PackFiles, copy_limit: u64) -> io::Result<u64> {
        let limit = copy_limit.min(LARGEST_COPY);
        let mut copied = 0;
        for (kind, file) in [("pack", &files.pack), ("idx", &files.index)] {
            let file_name = format!("{name}.{kind}");
            if link_over(&self.0, file, &file_name).is_err() {
                copied += self.copy_file(file, &file_name, limit.saturating_sub(copied))?;
            }
        }
        if let Some(record) = self.stamp(name, copied > 0) {
            self.write_record(name, &record)?;
        }
        Ok(copied)
    }

    fn copy_file(&self, file: &File, name: &str, limit: u64) -> io::Result<u64> {
        let length = file.metadata()?.len();
        if length > limit {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let mut source = file.take(length);
        let copy = |out: &mut File| io::copy(&mut source, out);
        Ok(self.0.replace_with(name, WriteDurability::Lazy, copy)?)
    }

    /// Reads a pinned loose object.
    pub fn read_loose(&self, id: &ObjectId, limit: u64) -> io::Result<Vec<u8>> {
        let (folder, name) = loose_path(id);
        let folder = self.0.open_dir(folder)?.ok_or_else(super::not_found_error)?;
        let file = open_pin(&folder, &name)?.ok_or_else(super::not_found_error)?;
        loose::read_blob(&file, limit).map_err(into_invalid_data)
    }

    /// Whether a pinned loose object was last written before this time, in seconds and nanoseconds.
    pub fn is_loose_older(&self, id: &ObjectId, time: (i64, i64)) -> bool {
        let (folder, name) = loose_path(id);
        let found = self.0.open_dir(folder).ok().flatten().and_then(|it| it.stat(name).ok()?);
        found.is_some_and(|found| found.modified < time)
    }

    /// Pins a loose object that has this content, in place of a damaged file of that name.
    pub fn pin_loose(&self, id: &ObjectId, file: &File, content: &[u8]) -> io::Result<()> {
        let (folder, name) = loose_path(id);
        let folder = self.0.create_dir(folder)?;
        let own = file.metadata()?;
        let is_same = folder
            .stat(&name)?
            .is_some_and(|pin| (pin.device, pin.inode) == (own.dev(), own.ino()));
        let has_content =
            || self.read_loose(id, content.len() as u64).is_ok_and(|own| own == content);
        if is_same || has_content() { Ok(()) } else { link_over(&folder, file, &name) }
    }

    /// The size of packs that were copied, in bytes.
    pub fn copied_bytes(&self) -> io::Result<u64> {
        let names = self.0.names()?.into_iter();
        let packs = names.filter_map(|name| Some(name.to_str()?.strip_suffix(".pin")?.to_owned()));
        let copied = packs.filter_map(|name| self.record(&name)).filter(|record| record.copied);
        Ok(copied.map(|record| record.pack.bytes.saturating_add(record.index.bytes)).sum())
    }

    /// The size of pinned packs that git itself no longer has, in bytes.
    pub fn unshared_bytes(&self) -> io::Result<u64> {
        let mut bytes = 0;
        for name in self.0.names()? {
            let is_pack = name.to_str().is_some_and(|name| name.strip_suffix(".pack").is_some());
            let file = if is_pack { self.0.open_file(&name).ok().flatten() } else { None };
            let stat = file.and_then(|file| file.metadata().ok());
            bytes += stat.filter(|stat| stat.nlink() == 1).map_or(0, |stat| stat.len());
        }
        Ok(bytes)
    }

    fn record(&self, name: &str) -> Option<PinRecord> {
        let bytes = self.0.read(format!("{name}.{RECORD}"), LARGEST_RECORD).ok()??;
        serde_json::from_slice(&bytes).ok()
    }

    fn write_record(&self, name: &str, record: &PinRecord) -> io::Result<()> {
        let bytes = serde_json::to_vec(record)?;
        Ok(self.0.replace(format!("{name}.{RECORD}"), &bytes, WriteDurability::Lazy)?)
    }

    /// The record that the files of a pinned pack would get now; `None` when one is missing.
    fn stamp(&self, name: &str, copied: bool) -> Option<PinRecord> {
        let stamp = |kind: &str| {
            PackFileStamp::of_entry(&self.0.stat(format!("{name}.{kind}")).ok().flatten()?)
        };
        Some(PinRecord { copied, pack: stamp("pack")?, index: stamp("idx")? })
    }
}

/// The object format of a pack's repository; the length of its name shows the hash function.
fn format_of_pack(name: &str) -> ObjectFormat {
    let is_sha1 = name.len() == "pack-".len() + 40;
    if is_sha1 { ObjectFormat::Sha1 } else { ObjectFormat::Sha256 }
}

/// The folder and the name of a loose object.
fn loose_path(id: &ObjectId) -> (String, String) {
    let mut folder = id.to_string();
    let name = folder.split_off(2);
    (folder, name)
}

/// Opens a pinned file for reading. A command can take the right to read it away through git's own link.
fn open_pin(folder: &StateDir, name: &str) -> io::Result<Option<File>> {
    match folder.open_file(name) {
        Err(error) if error.io_kind() == io::ErrorKind::PermissionDenied => {
            folder.make_readable(name)?;
            Ok(folder.open_file(name)?)
        }
        opened => Ok(opened?),
    }
}

/// Makes a hard link to an open file; it replaces a file of that name.
fn link_over(folder: &StateDir, file: &File, name: &str) -> io::Result<()> {
    let draft = format!(".{:016x}.pixir-new", fastrand::u64(..));
    folder.link_file(file, &draft)?;
    let renamed = folder.rename(&draft, folder, name);
    // The draft stays where both names already were the same file.
    folder.remove_file(&draft).ok();
    Ok(renamed?)
}
