//! Name resolution that records every symbolic link on the way: a command that cannot change a file may
//! still change a link to it.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use super::name_record::{FolderNames, NameRecord};

/// The maximum number of links that the kernel follows in one path.
pub const MOST_LINKS: usize = 40;

/// A resolved name, with the same result as in the kernel.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ResolvedName {
    /// The paths of all links on the way; their parent folders are resolved.
    pub links: Vec<PathBuf>,
    /// The path to which the name resolves, which may be missing.
    pub end: PathBuf,
}

impl ResolvedName {
    /// The links and the end.
    pub fn links_and_end(&self) -> impl Iterator<Item = &PathBuf> {
        self.links.iter().chain([&self.end])
    }
}

/// Resolves a name in a folder whose own path has no links.
pub fn resolve(folder: &Path, name: &Path) -> ResolvedName {
    NameCache::default().resolve(folder, name)
}

/// The entry of the file system at a name; a link is not followed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NameEntry {
    Missing,
    Link { target: PathBuf, identity: (u64, u64) },
    Folder { identity: (u64, u64) },
    Other { identity: (u64, u64) },
}

impl NameEntry {
    /// Reads the entry at a path.
    pub fn read(path: &Path) -> Self {
        let Ok(found) = path.symlink_metadata() else { return Self::Missing };
        let identity = (found.dev(), found.ino());
        if found.is_dir() {
            return Self::Folder { identity };
        }
        let target = found.is_symlink().then(|| fs::read_link(path).ok()).flatten();
        match target {
            Some(target) => Self::Link { target, identity },
            None => Self::Other { identity },
        }
    }

    /// Device and inode.
    pub fn identity(&self) -> Option<(u64, u64)> {
        match self {
            Self::Missing => None,
            Self::Link { identity, .. } | Self::Folder { identity } | Self::Other { identity } => {
                Some(*identity)
            }
        }
    }
}

/// Cache of file system entries: each name is read once.
#[derive(Debug, Default)]
pub struct NameCache {
    entries: RefCell<HashMap<PathBuf, NameEntry>>,
    /// Resolved folders, because many names are in few folders.
    folders: RefCell<HashMap<PathBuf, ResolvedName>>,
    /// The names in one folder, which limit the paths that may exist.
    listed: Option<FolderNames>,
}

impl NameCache {
    /// A cache with all names of a folder, so that names that are missing in it need no system call.
    pub fn with_listing(folder: Option<&Path>) -> Self {
        Self { listed: folder.and_then(FolderNames::read), ..Self::default() }
    }

    /// A record of the entries that were read, for a later comparison.
    pub fn into_record(self) -> NameRecord {
        let is_missing = |path: &Path| {
            self.entries.borrow().get(path).is_some_and(|entry| *entry == NameEntry::Missing)
        };
        // Names that cannot exist because of a missing folder or the listing need not be compared.
        let is_needed =
            |path: &Path| self.may_exist(path) && !path.parent().is_some_and(is_missing);
        let mut entries: Vec<_> = self.entries.borrow().clone().into_iter().collect();
        entries.retain(|(path, _)| is_needed(path));
        NameRecord::new(entries, self.listed)
    }

    /// Whether a path may exist; false when the listing excludes it.
    pub fn may_exist(&self, path: &Path) -> bool {
        self.listed.as_ref().is_none_or(|listing| listing.may_contain(path))
    }

    /// The entry at a path whose parent folders are not links.
    pub fn entry(&self, path: &Path) -> NameEntry {
        if let Some(known) = self.entries.borrow().get(path) {
            return known.clone();
        }
        let is_nowhere = path.parent().is_some_and(|folder| {
            self.entries.borrow().get(folder).is_some_and(|entry| *entry == NameEntry::Missing)
        });
        let entry = if is_nowhere { NameEntry::Missing } else { NameEntry::read(path) };
        self.entries.borrow_mut().insert(path.to_owned(), entry.clone());
        entry
    }

    /// Whether an entry exists at a path.
    pub fn exists(&self, path: &Path) -> bool {
        self.entry(path) != NameEntry::Missing
    }

    /// The target of an absolute name; `None` when it is missing.
    pub fn canonical(&self, name: &Path) -> Option<PathBuf> {
        let end = self.resolve_absolute(name).end;
        let is_end = !matches!(self.entry(&end), NameEntry::Missing | NameEntry::Link { .. });
        is_end.then_some(end)
    }

    /// Resolves a name in a folder whose own path has no links.
    pub fn resolve(&self, folder: &Path, name: &Path) -> ResolvedName {
        self.resolve_from(ResolvedName { links: Vec::new(), end: folder.to_owned() }, name)
    }

    /// Resolves an absolute name.
    pub fn resolve_absolute(&self, name: &Path) -> ResolvedName {
        let (Some(parent), Some(own)) = (name.parent(), name.file_name()) else {
            return self.resolve(Path::new("/"), name);
        };
        if let Some(folder) = self.folders.borrow().get(parent) {
            return self.resolve_from(folder.clone(), Path::new(own));
        }
        let folder = self.resolve_absolute(parent);
        self.folders.borrow_mut().insert(parent.to_owned(), folder.clone());
        self.resolve_from(folder, Path::new(own))
    }

    /// Whether a link on the way of an absolute name is in one of these folders.
    pub fn has_link_in(&self, name: &Path, folders: &[PathBuf]) -> bool {
        let links = self.resolve_absolute(name).links;
        links.iter().any(|link| folders.iter().any(|folder| link.starts_with(folder)))
    }

    /// Resolves a name in a resolved folder.
    fn resolve_from(&self, folder: ResolvedName, name: &Path) -> ResolvedName {
        let mut resolved = folder;
        let mut waiting = VecDeque::new();
        resolved.queue_parts(name, &mut waiting);
        while let Some(part) = waiting.pop_front() {
            if part == ".." {
                resolved.end.pop();
                continue;
            }
            resolved.end.push(part);
            if resolved.links.len() < MOST_LINKS
                && let NameEntry::Link { target, .. } = self.entry(&resolved.end)
            {
                resolved.links.push(resolved.end.clone());
                resolved.end.pop();
                resolved.queue_parts(&target, &mut waiting);
            }
        }
        resolved
    }
}

impl ResolvedName {
    /// Queues the parts of a path in front of the waiting ones.
    fn queue_parts(&mut self, path: &Path, waiting: &mut VecDeque<OsString>) {
        for part in path.components().rev() {
            match part {
                Component::RootDir => self.end = PathBuf::from("/"),
                Component::CurDir | Component::Prefix(_) => {}
                Component::ParentDir => waiting.push_front("..".into()),
                Component::Normal(part) => waiting.push_front(part.to_owned()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_name_is_resolved_as_the_kernel_does_it() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        fs::create_dir_all(root.join("a/b")).unwrap();
        fs::write(root.join("a/file"), "").unwrap();
        symlink("a/b", root.join("way")).unwrap();
        symlink("way/../file", root.join("link")).unwrap();
        symlink(root.join("link"), root.join("a/b/absolute")).unwrap();
        symlink("loop", root.join("loop")).unwrap();
        let check = |name: &str, links: &[&str], end: &str| {
            let found = resolve(&root, Path::new(name));
            let links: Vec<PathBuf> = links.iter().map(|link| root.join(link)).collect();
            assert_eq!(found, ResolvedName { links, end: root.join(end) }, "{name}");
        };
        check("a/file", &[], "a/file");
        check("./a/b/../file", &[], "a/file");
        // Lexically this would be `file` in the root.
        check("way/../file", &["way"], "a/file");
        check("a/b/absolute", &["a/b/absolute", "link", "way"], "a/file");
        check("gone/x/../y", &[], "gone/y");
        let names = NameCache::default();
        assert_eq!(names.canonical(&root.join("link")), Some(root.join("a/file")));
        assert_eq!(names.canonical(&root.join("gone/x")), None);
        assert_eq!(names.canonical(&root.join("loop")), None);
        for name in ["a/b/absolute", "way/../file", "way/new", "gone/x/../y", "loop/x", "link"] {
            let name = root.join(name);
            let whole = resolve(Path::new("/"), &name);
            assert_eq!(names.resolve_absolute(&name), whole, "{}", name.display());
            assert_eq!(names.resolve_absolute(&name), whole, "again: {}", name.display());
        }
        assert_eq!(resolve(&root, Path::new("loop")).links.len(), MOST_LINKS);
        assert_eq!(resolve(&root, Path::new("/etc/x")).end, Path::new("/etc/x"));
    }
}
