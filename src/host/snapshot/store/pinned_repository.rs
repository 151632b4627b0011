//! Pinned repository: the git repository of a Workspace, whose objects are used instead of copies of file
//! contents.
//!
//! A pack or loose object is used only once it is pinned. Only the repository at the root of the Workspace is
//! used: a pack of another one would make its other files readable for commands.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::Dir;

use super::git_pins::{GitPins, LARGEST_IN_GIT, PackFiles};
use crate::base::files::StatePath;
use crate::host::git_objects::{ObjectFormat, ObjectId, Pack, loose};
use crate::host::workspace::{OpenKind, Workspace};

/// The maximum number of packs that are used.
const MOST_PACKS: usize = 256;
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

/// The repository of a Workspace.
#[derive(Debug)]
pub struct PinnedRepository<'w> {
    workspace: &'w Workspace,
    pins: GitPins,
    format: ObjectFormat,
    packs: Vec<RepositoryPack>,
    /// The number of bytes that may be copied where packs cannot be linked.
    copy_limit: u64,
    copied_bytes: AtomicU64,
}

/// A pack of the repository. It is pinned when a content is found in it for the first time.
#[derive(Debug)]
struct RepositoryPack {
    name: String,
    pack: Pack,
    is_pinned: OnceLock<bool>,
}

impl<'w> PinnedRepository<'w> {
    /// Opens the repository at the root of this Workspace; `None` when there is none. Damaged pins for which the
    /// repository has another, intact file are replaced.
    pub fn open(workspace: &'w Workspace, store: &StatePath, copy_limit: u64) -> Option<Self> {
        workspace.open_no_follow(b".git/objects", OpenKind::Folder).ok()?;
        let format = object_format(workspace)?;
        let pins = GitPins::create(store).ok()?;
        let copied_bytes = AtomicU64::new(0);
        let mut own = Self { workspace, pins, format, packs: Vec::new(), copy_limit, copied_bytes };
        for name in pack_names(workspace).into_iter().take(MOST_PACKS) {
            own.packs.extend(own.open_pack(name));
        }
        Some(own)
    }

    /// The names of the packs, in the order of their numbers.
    pub fn pack_names(&self) -> Vec<String> {
        self.packs.iter().map(|pack| pack.name.clone()).collect()
    }

    /// The number of bytes that were copied to pin packs.
    pub fn copied_bytes(&self) -> u64 {
        self.copied_bytes.load(Ordering::Relaxed)
    }

    /// Finds a content that can be read back, and pins its pack or object.
    pub fn find_content(&self, content: &[u8]) -> Option<GitLocation> {
        if content.len() as u64 > LARGEST_IN_GIT {
            return None;
        }
        let id = self.format.blob_id(content);
        for (number, pack) in self.packs.iter().enumerate() {
            if let Some(position) = pack.pack.index().find(&id).ok().flatten()
                && pack.pack.check_blob(position, LARGEST_IN_GIT).is_ok()
                && *pack.is_pinned.get_or_init(|| self.pin_pack(&pack.name).is_ok())
            {
                return Some(GitLocation::Pack { pack: number, position });
            }
        }
        self.pin_loose(&id, content).map(|()| GitLocation::Loose(id))
    }

    fn open_pack(&self, name: String) -> Option<RepositoryPack> {
        if !self.pins.has_pack(&name) {
            let pack = self.own_files(&name)?.open(self.format).ok()?;
            return Some(RepositoryPack { name, pack, is_pinned: OnceLock::new() });
        }
        if !self.pins.is_intact(&name) {
            let is_intact = self.own_files(&name)?.are_intact(self.format);
            is_intact.then(|| self.pin_pack(&name).ok()).flatten()?;
        }
        let pack = self.pins.open_pack(&name).ok()?;
        Some(RepositoryPack { name, pack, is_pinned: true.into() })
    }

    /// Pins a pack. Its files are opened again: two descriptors for each pack of a repository would be too many.
    fn pin_pack(&self, name: &str) -> io::Result<()> {
        let files = self.own_files(name).ok_or_else(super::not_found_error)?;
        let room = self.copy_limit.saturating_sub(self.copied_bytes());
        let copied = self.pins.pin_pack(name, &files, room)?;
        self.copied_bytes.fetch_add(copied, Ordering::Relaxed);
        self.pins.open_pack(name).map(drop)
    }

    fn pin_loose(&self, id: &ObjectId, content: &[u8]) -> Option<()> {
        let name = id.to_string();
        let (folder, rest) = name.split_at_checked(2)?;
        let file = self.own_file(&format!(".git/objects/{folder}/{rest}"))?;
        // A loose object may be truncated or forged: unlike a pack, it has no index that git wrote.
        let found = loose::read_blob(&file, content.len() as u64).ok()?;
        (found == content).then(|| self.pins.pin_loose(id, &file, content).ok()).flatten()
    }

    fn own_files(&self, name: &str) -> Option<PackFiles> {
        let open = |kind| self.own_file(&format!(".git/objects/pack/{name}.{kind}"));
        Some(PackFiles { pack: open("pack")?, index: open("idx")? })
    }

    /// A regular file of the repository that belongs to the user.
    fn own_file(&self, path: &str) -> Option<File> {
        let file = File::from(self.workspace.open_no_follow(path.as_bytes(), OpenKind::File).ok()?);
        let own = rustix::process::geteuid().as_raw();
        file.metadata().is_ok_and(|data| data.uid() == own).then_some(file)
    }
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
        id.is_some_and(|id| {
            matches!(id.len(), 40 | 64) && id.bytes().all(|byte| byte.is_ascii_hexdigit())
        })
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
