//! Pinned path: a name in a folder that is held open, so that no link can be put in the way.
//!
//! Pixir restores files that commands changed, with rights that commands do not have, while other commands
//! may still run. So no path is walked twice, no link is followed, and a folder whose mode locks out its
//! owner is made accessible again.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, RawMode, ResolveFlags, Stat, fchmod, mkdirat,
    openat, openat2, renameat, statat, symlinkat, unlinkat,
};
use rustix::io::Errno;

/// The maximum depth to which a folder is emptied.
const DEEPEST_REMOVAL: usize = 4096;

/// A name in an open folder.
#[derive(Debug)]
pub struct PinnedPath {
    parent: OwnedFd,
    name: OsString,
}

impl PinnedPath {
    /// Opens the parent of a path; an error when a parent is not a folder.
    pub fn open_parent(path: &Path) -> io::Result<Self> {
        Self::walk_to_parent(path, |_, _, _| Err(Errno::NOTDIR))
    }

    /// Opens the parent of a path. Below `top`, an entry in place of a folder is removed, and missing folders are
    /// created; returns the path of a removed entry too.
    pub fn open_clearing_way(path: &Path, top: &Path) -> io::Result<(Self, Option<PathBuf>)> {
        let mut removed = None;
        let pinned = Self::walk_to_parent(path, |parent, name, path| {
            // Only the user may move the Workspace and the folders above it.
            if top.starts_with(path) {
                return Err(Errno::NOTDIR);
            }
            if unlinkat(parent, name, AtFlags::empty()).is_ok() {
                removed.get_or_insert_with(|| path.to_owned());
            }
            match mkdirat(parent, name, Mode::RWXU) {
                Ok(()) | Err(Errno::EXIST) => Ok(()),
                Err(errno) => Err(errno),
            }
        })?;
        Ok((pinned, removed))
    }

    /// Walks to the parent of a path; calls `amend` where a folder is missing or another entry has its place.
    fn walk_to_parent(
        path: &Path,
        mut amend: impl FnMut(&OwnedFd, &OsStr, &Path) -> Result<(), Errno>,
    ) -> io::Result<Self> {
        let odd = || io::Error::from(io::ErrorKind::InvalidInput);
        let name = path.file_name().ok_or_else(odd)?.to_owned();
        let parent = path.parent().ok_or_else(odd)?;
        let is_plain =
            |part: Component<'_>| matches!(part, Component::RootDir | Component::Normal(_));
        // Most paths are opened in one step, in which the kernel refuses links.
        if path.is_absolute()
            && parent.components().all(is_plain)
            && let Ok(parent) =
                openat2(CWD, parent, WALK_FLAGS, Mode::empty(), ResolveFlags::NO_SYMLINKS)
        {
            return Ok(Self { parent, name });
        }
        let mut folder = openat(CWD, "/", WALK_FLAGS, Mode::empty())?;
        let mut so_far = PathBuf::from("/");
        for part in parent.components() {
            let part = match part {
                Component::RootDir | Component::CurDir => continue,
                Component::Normal(part) => part,
                Component::ParentDir | Component::Prefix(_) => return Err(odd()),
            };
            so_far.push(part);
            folder = match openat(&folder, part, WALK_FLAGS, Mode::empty()) {
                Err(Errno::NOTDIR | Errno::LOOP | Errno::NOENT) => {
                    amend(&folder, part, &so_far)?;
                    openat(&folder, part, WALK_FLAGS, Mode::empty())?
                }
                Err(Errno::ACCESS) => {
                    grant_owner_access(&folder);
                    openat(&folder, part, WALK_FLAGS, Mode::empty())?
                }
                outcome => outcome?,
            };
        }
        Ok(Self { parent: folder, name })
    }

    /// Changes the name, in the same folder, to the last component of `path`.
    pub fn set_name(&mut self, path: &Path) {
        path.file_name().unwrap_or_default().clone_into(&mut self.name);
    }

    /// The `stat` of the entry; a link is not followed.
    pub fn stat(&self) -> Option<Stat> {
        let stat = || statat(&self.parent, &self.name, AtFlags::SYMLINK_NOFOLLOW);
        match stat() {
            Err(Errno::ACCESS) => {
                grant_owner_access(&self.parent);
                stat().ok()
            }
            found => found.ok(),
        }
    }

    /// The file type of the entry.
    pub fn kind(&self) -> Option<FileType> {
        self.stat().map(|stat| FileType::from_raw_mode(stat.st_mode))
    }

    /// The target of a link.
    pub fn read_link(&self) -> Option<PathBuf> {
        let target = rustix::fs::readlinkat(&self.parent, &self.name, Vec::new()).ok()?;
        Some(PathBuf::from(OsString::from_vec(target.into_bytes())))
    }

    /// Opens a regular file to read.
    pub fn open_file(&self) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = File::from(openat(&self.parent, &self.name, flags, Mode::empty())?);
        if file.metadata()?.is_file() { Ok(file) } else { Err(io::ErrorKind::InvalidData.into()) }
    }

    /// The names in a folder.
    pub fn names(&self) -> Vec<OsString> {
        self.open_folder().map(|folder| list_names(&folder)).unwrap_or_default()
    }

    fn open_folder(&self) -> io::Result<OwnedFd> {
        let open = || openat(&self.parent, &self.name, FOLDER_FLAGS, Mode::empty());
        match open() {
            Err(Errno::ACCESS) => {
                let closed = openat(&self.parent, &self.name, WALK_FLAGS, Mode::empty())?;
                grant_owner_access(&closed);
                Ok(open()?)
            }
            outcome => Ok(outcome?),
        }
    }

    /// Removes the entry, a folder with all its content.
    pub fn remove(&self) -> io::Result<()> {
        grant_owner_access(&self.parent);
        Ok(remove_at(&self.parent, &self.name, DEEPEST_REMOVAL)?)
    }

    /// Appends `ending` to the name of the entry on disk, replacing an entry of that name.
    pub fn set_aside(&self, ending: &str) -> io::Result<()> {
        let mut aside = self.name.clone();
        aside.push(ending);
        let (from, to) = (&self.parent, &self.parent);
        if renameat(from, &self.name, to, &aside).is_ok() {
            return Ok(());
        }
        remove_at(to, &aside, DEEPEST_REMOVAL).ok();
        Ok(renameat(from, &self.name, to, &aside)?)
    }

    /// Replaces the entry by an empty folder, unless it is a folder already.
    pub fn make_folder(&self, mode: RawMode) -> io::Result<()> {
        if self.kind() != Some(FileType::Directory) {
            self.remove().ok();
            mkdirat(&self.parent, &self.name, Mode::RWXU)?;
        }
        Ok(fchmod(self.open_folder()?, Mode::from_raw_mode(mode))?)
    }

    /// Replaces the entry by a link.
    pub fn make_link(&self, target: &Path) -> io::Result<()> {
        self.remove().ok();
        Ok(symlinkat(target, &self.parent, &self.name)?)
    }

    /// Overwrites a file in place, so that open descriptors stay valid.
    pub fn overwrite(&self, mut content: impl io::Read, mode: RawMode) -> io::Result<()> {
        let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let mut file = File::from(openat(&self.parent, &self.name, flags, Mode::empty())?);
        fchmod(&file, Mode::from_raw_mode(mode))?;
        file.set_len(0)?;
        io::copy(&mut content, &mut file).map(drop)
    }

    /// Replaces the entry by a file with this content, atomically.
    pub fn make_file(&self, mut content: impl io::Read, mode: RawMode) -> io::Result<()> {
        let draft = format!(".pixir-{:016x}", fastrand::u64(..));
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut fill = || -> io::Result<()> {
            let mut file = File::from(openat(&self.parent, &draft, flags, Mode::RUSR)?);
            io::copy(&mut content, &mut file)?;
            fchmod(&file, Mode::from_raw_mode(mode))?;
            if self.kind() == Some(FileType::Directory) {
                self.remove()?;
            }
            Ok(renameat(&self.parent, &draft, &self.parent, &self.name)?)
        };
        fill().inspect_err(|_| {
            unlinkat(&self.parent, &draft, AtFlags::empty()).ok();
        })
    }
}

/// Flags to walk through a folder, even without the right to list it.
const WALK_FLAGS: OFlags =
    OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
/// Flags to list a folder.
const FOLDER_FLAGS: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Gives the owner all rights in a folder from which a command removed them.
fn grant_owner_access(folder: &OwnedFd) {
    let Ok(stat) = rustix::fs::fstat(folder) else { return };
    if stat.st_mode & 0o700 != 0o700 && stat.st_uid == rustix::process::geteuid().as_raw() {
        let mode = Mode::from_raw_mode(stat.st_mode & 0o7777 | 0o700);
        // fchmod does not work on an `O_PATH` descriptor, but chmod on its name in `/proc` does.
        let name = format!("/proc/self/fd/{}", folder.as_raw_fd());
        rustix::fs::chmod(name, mode).ok();
    }
}

fn list_names(folder: &OwnedFd) -> Vec<OsString> {
    let Ok(entries) = Dir::read_from(folder) else { return Vec::new() };
    let name =
        |entry: rustix::fs::DirEntry| OsStr::from_bytes(entry.file_name().to_bytes()).to_owned();
    let all = entries.filter_map(Result::ok).map(name);
    all.filter(|name| name != "." && name != "..").collect()
}

fn remove_at(parent: &OwnedFd, name: &OsStr, depth: usize) -> Result<(), Errno> {
    match unlinkat(parent, name, AtFlags::empty()) {
        Err(Errno::ISDIR | Errno::PERM) if depth > 0 => {}
        outcome => return outcome,
    }
    if let Ok(closed) = openat(parent, name, WALK_FLAGS, Mode::empty()) {
        grant_owner_access(&closed);
        if let Ok(folder) = openat(parent, name, FOLDER_FLAGS, Mode::empty()) {
            for entry in list_names(&folder) {
                remove_at(&folder, &entry, depth - 1).ok();
            }
        }
    }
    unlinkat(parent, name, AtFlags::REMOVEDIR)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn no_link_is_followed_on_the_way_or_at_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        fs::create_dir_all(root.join("outside/deep")).unwrap();
        fs::write(root.join("outside/deep/file"), "theirs").unwrap();
        fs::create_dir(root.join("work")).unwrap();
        symlink("../outside", root.join("work/git")).unwrap();
        assert!(PinnedPath::open_parent(&root.join("work/git/deep")).is_err());
        let (place, removed) =
            PinnedPath::open_clearing_way(&root.join("work/git/deep"), &root).unwrap();
        assert_eq!(removed, Some(root.join("work/git")));
        place.make_file("ours".as_bytes(), 0o640).unwrap();
        assert_eq!(fs::read_to_string(root.join("work/git/deep")).unwrap(), "ours");
        assert_eq!(fs::read_to_string(root.join("outside/deep/file")).unwrap(), "theirs");
        let link = PinnedPath::open_parent(&root.join("work/link")).unwrap();
        symlink("../outside/deep/file", root.join("work/link")).unwrap();
        assert!(link.open_file().is_err());
        link.make_file("ours".as_bytes(), 0o600).unwrap();
        assert_eq!(fs::read_to_string(root.join("outside/deep/file")).unwrap(), "theirs");
        symlink("../outside", root.join("work/again")).unwrap();
        PinnedPath::open_parent(&root.join("work/again")).unwrap().remove().unwrap();
        assert!(root.join("outside/deep/file").exists());
        assert!(PinnedPath::open_parent(&root.join("work/../x")).is_err());
    }

    #[test]
    fn a_folder_of_any_shape_is_taken_away() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        fs::create_dir_all(root.join("a/closed/in")).unwrap();
        fs::write(root.join("a/closed/in/f"), "x").unwrap();
        symlink(&root, root.join("a/closed/loop")).unwrap();
        for name in ["a/closed/in", "a/closed"] {
            fs::set_permissions(root.join(name), fs::Permissions::from_mode(0o0)).unwrap();
        }
        PinnedPath::open_parent(&root.join("a")).unwrap().remove().unwrap();
        assert!(!root.join("a").exists() && root.exists());
    }
}
