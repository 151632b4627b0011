//! Git pins: objects of the Workspace's git repository that are used instead of copies of file contents.
//!
//! A pack or loose object is used only once it is pinned: hard-linked into the store. Removing `.git` and
//! `git gc` then remove only git's own link. A pinned file that was overwritten in place is detected when a
//! content is read back, because its hash differs. Only the repository at the root of the Workspace is
//! used: a pack of another one would make its other files readable for commands.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;

use rustix::fs::Dir;

use crate::base::files::{StateDir, StatePath, WriteDurability};
use crate::base::id::is_hex;
use crate::host::git_objects::{ObjectFormat, ObjectId, Pack, PackIndex, into_invalid_data, loose};
use crate::host::workspace::{OpenKind, Workspace};

/// The folder of pinned packs and objects in the store.
pub const GIT_PINS_FOLDER: &str = "git";
/// The maximum number of packs that are used.
const MOST_PACKS: usize = 256;
/// The maximum size of a pack that is copied if it cannot be linked, in bytes.
const LARGEST_COPY: u64 = 64 << 20;
/// The maximum size of a repository's configuration that is read, in bytes.
const LARGEST_SETTINGS: u64 = 1 << 20;

/// The location of a content in git.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GitLocation {
    /// The number of the pack, and the object's position in its index.
    Pack {
        pack: usize,
        position: u32,
    },
    Loose(ObjectId),
}

/// The repository of a Workspace with its pinned packs.
#[derive(Debug)]
pub struct PinnedRepository<'w> {
    workspace: &'w Workspace,
    pins: StateDir,
    format: ObjectFormat,
    packs: Vec<(String, Pack)>,
}

impl<'w> PinnedRepository<'w> {
    /// Pins the packs of the repository at the root of this Workspace; `None` when there is none.
    pub fn open(workspace: &'w Workspace, store: &StatePath) -> Option<Self> {
        workspace.open_no_follow(b".git/objects", OpenKind::Folder).ok()?;
        let format = object_format(workspace)?;
        let pins = store.join(GIT_PINS_FOLDER).create().ok()?;
        let mut repository = Self { workspace, pins, format, packs: Vec::new() };
        for name in pack_names(workspace).into_iter().take(MOST_PACKS) {
            if let Some(pack) = repository.pin_pack(&name) {
                repository.packs.push((name, pack));
            }
        }
        Some(repository)
    }

    /// The names of the pinned packs, in the order of their numbers.
    pub fn pack_names(&self) -> Vec<String> {
        self.packs.iter().map(|(name, _)| name.clone()).collect()
    }

    /// Finds a content; pins the object if it is loose.
    pub fn find_content(&self, content: &[u8]) -> Option<GitLocation> {
        let id = self.format.blob_id(content);
        for (number, (_, pack)) in self.packs.iter().enumerate() {
            if let Some(position) = pack.index().find(&id).ok().flatten() {
                return Some(GitLocation::Pack { pack: number, position });
            }
        }
        self.pin_loose(id, content).then_some(GitLocation::Loose(id))
    }

    fn pin_pack(&self, name: &str) -> Option<Pack> {
        for file_name in [format!("{name}.pack"), format!("{name}.idx")] {
            if self.pins.stat(&file_name).ok()?.is_some() {
                continue;
            }
            let file = self.own_file(&format!(".git/objects/pack/{file_name}"))?;
            if self.pins.link_file(&file, &file_name).is_err() {
                copy_pack_file(&file, &self.pins, &file_name)?;
            }
        }
        open_pack(&self.pins, name, self.format).ok()
    }

    fn pin_loose(&self, id: ObjectId, content: &[u8]) -> bool {
        let name = id.to_string();
        let Some((folder, rest)) = name.split_at_checked(2) else { return false };
        let Some(file) = self.own_file(&format!(".git/objects/{folder}/{rest}")) else {
            return false;
        };
        // A loose object may be truncated or forged: unlike a pack, it has no index that git wrote.
        let is_whole =
            || loose::read_blob(&file, content.len() as u64).is_ok_and(|own| own == content);
        let link = || {
            let folder = self.pins.create_dir(folder).ok()?;
            match folder.stat(rest).ok()? {
                Some(_) => Some(()),
                None => folder.link_file(&file, rest).ok(),
            }
        };
        is_whole() && link().is_some()
    }

    /// A regular file of the repository that belongs to the user.
    fn own_file(&self, path: &str) -> Option<File> {
        let file = File::from(self.workspace.open_no_follow(path.as_bytes(), OpenKind::File).ok()?);
        let own = rustix::process::geteuid().as_raw();
        file.metadata().is_ok_and(|data| data.uid() == own).then_some(file)
    }
}

/// Opens a pinned pack; the format is that of its index.
pub fn open_pack(pins: &StateDir, name: &str, format: ObjectFormat) -> io::Result<Pack> {
    let open = |file_name: String| pins.open_file(file_name)?.ok_or_else(super::not_found_error);
    let index = PackIndex::open(open(format!("{name}.idx"))?, format).map_err(into_invalid_data)?;
    Pack::open(open(format!("{name}.pack"))?, index).map_err(into_invalid_data)
}

/// Reads a pinned loose object.
pub fn read_loose(pins: &StateDir, id: &ObjectId, limit: u64) -> io::Result<Vec<u8>> {
    let name = id.to_string();
    let (folder, rest) = name.split_at_checked(2).ok_or_else(super::not_found_error)?;
    let folder = pins.open_dir(folder)?.ok_or_else(super::not_found_error)?;
    let file = folder.open_file(rest)?.ok_or_else(super::not_found_error)?;
    loose::read_blob(&file, limit).map_err(into_invalid_data)
}

fn copy_pack_file(file: &File, pins: &StateDir, name: &str) -> Option<()> {
    if file.metadata().ok()?.len() > LARGEST_COPY {
        return None;
    }
    let mut source = file.take(LARGEST_COPY);
    pins.replace_with(name, WriteDurability::Lazy, |out| io::copy(&mut source, out)).ok().map(drop)
}

/// The names of packs without file extension.
fn pack_names(workspace: &Workspace) -> Vec<String> {
    let folder = workspace.open_no_follow(b".git/objects/pack", OpenKind::Folder);
    let entries = folder.ok().and_then(|folder| Dir::new(folder).ok());
    let names = entries.into_iter().flatten().flatten();
    let names = names.filter_map(|entry| entry.file_name().to_str().ok().map(str::to_owned));
    let mut packs: Vec<String> =
        names.filter_map(|name| Some(name.strip_suffix(".idx")?.to_owned())).collect();
    packs.retain(|name| {
        let id = name.strip_prefix("pack-");
        id.is_some_and(|id| is_hex(id, 40) || is_hex(id, 64))
    });
    // Sorted, so that the same object is always found in the same pack.
    packs.sort();
    packs
}

/// The object format of the repository; `None` when it is unknown.
fn object_format(workspace: &Workspace) -> Option<ObjectFormat> {
    let file = File::from(workspace.open_no_follow(b".git/config", OpenKind::File).ok()?);
    let mut settings = String::new();
    file.take(LARGEST_SETTINGS).read_to_string(&mut settings).ok()?;
    let mut values = settings.lines().filter_map(|line| {
        let (name, value) = line.split_once('=')?;
        name.trim().eq_ignore_ascii_case("objectformat").then(|| value.trim().to_ascii_lowercase())
    });
    match values.next_back().as_deref() {
        None | Some("sha1") => Some(ObjectFormat::Sha1),
        Some("sha256") => Some(ObjectFormat::Sha256),
        Some(_) => None,
    }
}
