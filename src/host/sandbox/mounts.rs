//! Mount tree of a command in its own namespaces: the files that it can see.
//!
//! All mounts are made read-only, and the writable folders are mounted over them again. That prevents
//! changes that Landlock does not check: of modes, owners and times of files outside. Temp folders, `/run`
//! and secrets are covered, and other folders are visible without the sockets in them (`folder_views`). The
//! supervisor builds the tree while it still has the right to mount.
#![expect(clippy::disallowed_methods, reason = "the file system that a command sees")]

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use nix::mount::MsFlags;
use nix::sched::CloneFlags;
use rustix::fs::CWD;
use rustix::io::Errno;
use rustix::mount::{MoveMountFlags, OpenTreeFlags, move_mount, open_tree};

use super::cache_mounts::CacheMounts;
use super::folder_views::{FolderViews, ViewBuilder};
use super::limits::{self, CommandLimits};
use super::spec::{Network, SandboxSpec};
use super::{loopback, scratch};

/// The temp folder that a command with its own mounts sees.
pub const PRIVATE_TEMP: &str = "/tmp";

/// Folders that are replaced by the Session's temp folder.
const TEMP_FOLDERS: &[&str] = &[PRIVATE_TEMP, "/var/tmp"];
/// Folders that are replaced by an empty tmpfs.
const EMPTY_TMPFS_FOLDERS: &[&str] = &["/run", SHARED_MEMORY];
/// The replaced folder for shared memory; the command can write it.
const SHARED_MEMORY: &str = "/dev/shm";

/// The folder of terminals. A command sees only those that it creates, not the user's.
const TERMINALS: &str = "/dev/pts";

/// The namespaces that a command gets besides those for users and processes.
pub fn namespace_flags(spec: &SandboxSpec) -> CloneFlags {
    let own = CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWIPC;
    match spec.network {
        Network::Open => own,
        Network::Closed => own | CloneFlags::CLONE_NEWNET,
    }
}

/// Whether a path is a replaced folder or is in one.
pub fn is_replaced(path: &Path) -> bool {
    TEMP_FOLDERS.iter().chain(EMPTY_TMPFS_FOLDERS).any(|folder| path.starts_with(folder))
}

/// Whether a path is a replaced folder or contains one.
pub fn contains_replaced(path: &Path) -> bool {
    TEMP_FOLDERS.iter().chain(EMPTY_TMPFS_FOLDERS).any(|folder| Path::new(folder).starts_with(path))
}

/// Whether a path is itself a replaced folder.
pub fn is_replaced_itself(path: &Path) -> bool {
    TEMP_FOLDERS.iter().chain(EMPTY_TMPFS_FOLDERS).any(|folder| path == Path::new(folder))
}

/// A mount that is not attached yet, and its path.
pub struct DetachedMount {
    pub tree: OwnedFd,
    pub place: PathBuf,
}

/// One entry of the kernel's list of mounts.
pub struct Mount {
    pub place: PathBuf,
    /// The type of the file system.
    pub file_system: String,
    flags: MsFlags,
}

/// Builds the mount tree in the namespaces that this process has entered.
pub fn build_mounts(spec: &SandboxSpec) -> io::Result<FolderViews> {
    if spec.network == Network::Closed {
        loopback::enable_loopback()?;
    }
    let none: Option<&str> = None;
    // Mounts in this namespace must not propagate outside.
    nix::mount::mount(none, "/", none, MsFlags::MS_SLAVE | MsFlags::MS_REC, none)?;
    let list = fs::read_to_string("/proc/self/mountinfo")?;
    let mounts: Vec<Mount> = list.lines().filter_map(parse_mount).collect();
    // A mount copied before all mounts become read-only stays writable; a later copy does not.
    let temp = clone_tree(&scratch::temp_folder(&spec.scratch))?;
    let mut detached_mounts = clone_trees(&spec.writable)?;
    let (caches, layers) = CacheMounts::new(&spec.caches);
    detached_mounts.extend(layers);
    make_read_only(&mounts)?;
    detached_mounts.extend(clone_trees(&spec.shown)?);
    detached_mounts.extend(clone_trees(&spec.protected)?);
    let mut view_builder = ViewBuilder::new(spec, &mounts)?;
    view_builder.view_machine()?;
    let machine = view_builder.take_mounts();
    view_builder.close_homes()?;
    spec.viewed.iter().try_for_each(|folder| view_builder.view(folder))?;
    let mut inner = view_builder.take_mounts();
    inner.extend(detached_mounts);
    let is_seen =
        |path: &Path| !spec.is_unseen(path) && (!is_replaced(path) || spec.is_mounted(path));
    let is_bare = |path: &&PathBuf| !view_builder.is_covered(path) && is_seen(path);
    let mut in_caches = Vec::new();
    for path in spec.hidden.iter().filter(is_bare) {
        // A path that was removed meanwhile needs no cover.
        let Ok(found) = path.symlink_metadata() else { continue };
        let cover = if found.is_dir() {
            scratch::empty_folder(&spec.scratch)
        } else {
            scratch::empty_file(&spec.scratch)
        };
        let detached_mount = DetachedMount { tree: clone_tree(&cover)?, place: path.clone() };
        let is_cached = spec.caches.places.iter().any(|cache| path.starts_with(cache));
        if is_cached { in_caches.push(detached_mount) } else { inner.push(detached_mount) }
    }
    attach_all(machine)?;
    replace_folders(&temp, &spec.limits)?;
    attach_all(inner)?;
    in_caches.iter().try_for_each(cover_in_cache)?;
    spec.closed_homes.iter().try_for_each(|home| make_home_read_only(home))?;
    // The initial working directory of this process still shows the old mounts.
    rustix::process::chdir("/")?;
    Ok(view_builder.finish(caches))
}

/// Covers a path in a package cache. When a command has replaced a folder above the path in its private layer, the
/// hidden file cannot be reached any more and needs no cover.
fn cover_in_cache(detached_mount: &DetachedMount) -> io::Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    match move_mount(&detached_mount.tree, "", CWD, &detached_mount.place, flags) {
        Ok(()) | Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(()),
        Err(errno) => Err(path_error(errno, "cannot mount", &detached_mount.place)),
    }
}

fn clone_trees(paths: &[PathBuf]) -> io::Result<Vec<DetachedMount>> {
    paths
        .iter()
        .map(|path| Ok(DetachedMount { tree: clone_tree(path)?, place: path.clone() }))
        .collect()
}

/// A detached copy of the mounts at a path and beneath it.
pub fn clone_tree(path: &Path) -> io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_RECURSIVE
        | OpenTreeFlags::AT_SYMLINK_NOFOLLOW;
    open_tree(CWD, path, flags)
        .map_err(|errno| path_error(errno, "cannot clone the mount of", path))
}

/// Attaches mounts, parents first; a later mount covers an earlier one at the same path.
fn attach_all(mut detached_mounts: Vec<DetachedMount>) -> io::Result<()> {
    detached_mounts.sort_by_key(|detached_mount| detached_mount.place.components().count());
    detached_mounts
        .iter()
        .try_for_each(|detached_mount| attach(&detached_mount.tree, &detached_mount.place))
}

/// Attaches a mount at a path, which is created if it is missing.
pub fn attach(tree: &OwnedFd, place: &Path) -> io::Result<()> {
    let attempt = || move_mount(tree, "", CWD, place, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH);
    let outcome = match attempt() {
        Err(Errno::NOENT) => {
            make_mount_point(tree, place)?;
            attempt()
        }
        outcome => outcome,
    };
    outcome.map_err(|errno| path_error(errno, "cannot mount", place))
}

/// Creates a missing mount point, for example in a folder that was replaced by an empty one.
fn make_mount_point(tree: &OwnedFd, place: &Path) -> io::Result<()> {
    let is_folder = rustix::fs::FileType::from_raw_mode(rustix::fs::fstat(tree)?.st_mode).is_dir();
    if is_folder {
        return fs::create_dir_all(place);
    }
    place.parent().map_or(Ok(()), fs::create_dir_all)?;
    fs::File::create(place).map(drop)
}

fn path_error(errno: Errno, what: &str, path: &Path) -> io::Error {
    let error = io::Error::from(errno);
    io::Error::new(error.kind(), format!("{what} {}: {error}", path.display()))
}

/// Covers temp folders, `/run` and terminals.
fn replace_folders(temp: &OwnedFd, limits: &CommandLimits) -> io::Result<()> {
    for folder in TEMP_FOLDERS.iter().map(Path::new).filter(|folder| is_real_folder(folder)) {
        let tree = open_tree(
            temp,
            "",
            OpenTreeFlags::OPEN_TREE_CLONE
                | OpenTreeFlags::OPEN_TREE_CLOEXEC
                | OpenTreeFlags::AT_EMPTY_PATH,
        )?;
        attach(&tree, folder)?;
    }
    let restricted = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    for folder in EMPTY_TMPFS_FOLDERS.iter().map(Path::new).filter(|folder| is_real_folder(folder))
    {
        let is_shared_memory = folder == Path::new(SHARED_MEMORY);
        let options =
            if is_shared_memory { limits.shared_memory_options() } else { limits::layer_options() };
        nix::mount::mount(Some("tmpfs"), folder, Some("tmpfs"), restricted, Some(&*options))?;
    }
    if is_real_folder(Path::new(TERMINALS)) {
        let (own, restricted) = (Some("devpts"), MsFlags::MS_NOSUID | MsFlags::MS_NOEXEC);
        let options = Some("newinstance,ptmxmode=0666,mode=0620");
        nix::mount::mount(own, TERMINALS, own, restricted, options)?;
    }
    Ok(())
}

/// Whether a folder to be replaced exists and is not a link: some of them are links to others.
fn is_real_folder(folder: &Path) -> bool {
    fs::symlink_metadata(folder).is_ok_and(|found| found.is_dir())
}

/// Makes the file system of a closed home read-only, after all mounts in it were attached.
fn make_home_read_only(home: &Path) -> io::Result<()> {
    let none: Option<&str> = None;
    let frozen = MsFlags::MS_REMOUNT | MsFlags::MS_BIND | MsFlags::MS_RDONLY;
    let restricted = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    nix::mount::mount(none, home, none, frozen | restricted, none).map_err(|errno| {
        path_error(Errno::from_raw_os_error(errno as i32), "cannot make read-only:", home)
    })
}

/// Makes all mounts read-only.
fn make_read_only(mounts: &[Mount]) -> io::Result<()> {
    let none: Option<&str> = None;
    for Mount { place, flags, .. } in mounts {
        if flags.contains(MsFlags::MS_RDONLY) {
            continue;
        }
        let frozen = MsFlags::MS_REMOUNT | MsFlags::MS_BIND | MsFlags::MS_RDONLY | *flags;
        match nix::mount::mount(none, place, none, frozen, none) {
            // On these errors another mount covers this one, so it cannot be reached.
            Ok(()) | Err(nix::Error::EINVAL | nix::Error::ENOENT | nix::Error::EACCES) => {}
            Err(errno) => {
                return Err(path_error(
                    Errno::from_raw_os_error(errno as i32),
                    "cannot make read-only:",
                    place,
                ));
            }
        }
    }
    Ok(())
}

/// Parses one line of `/proc/self/mountinfo`.
fn parse_mount(line: &str) -> Option<Mount> {
    let mut words = line.split(' ').skip(4);
    let place = PathBuf::from(unescape(words.next()?));
    let options: Vec<&str> = words.next()?.split(',').collect();
    let kind = words.skip_while(|word| *word != "-").nth(1)?.to_owned();
    let known = [
        ("ro", MsFlags::MS_RDONLY),
        ("nosuid", MsFlags::MS_NOSUID),
        ("nodev", MsFlags::MS_NODEV),
        ("noexec", MsFlags::MS_NOEXEC),
        ("noatime", MsFlags::MS_NOATIME),
        ("nodiratime", MsFlags::MS_NODIRATIME),
        ("relatime", MsFlags::MS_RELATIME),
    ];
    let flags = known.iter().filter(|(name, _)| options.contains(name));
    let flags = flags.fold(MsFlags::empty(), |flags, (_, flag)| flags | *flag);
    Some(Mount { place, file_system: kind, flags })
}

/// Decodes the octal escapes that the kernel writes for blanks and backslashes.
fn unescape(word: &str) -> std::ffi::OsString {
    use std::os::unix::ffi::OsStringExt;
    let bytes = word.as_bytes();
    let mut plain = Vec::with_capacity(bytes.len());
    let mut place = 0;
    while let Some(byte) = bytes.get(place) {
        let octal = bytes.get(place + 1..place + 4).filter(|_| *byte == b'\\');
        let value = octal
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        plain.push(value.unwrap_or(*byte));
        place += if value.is_some() { 4 } else { 1 };
    }
    std::ffi::OsString::from_vec(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_kernels_list_is_read_with_its_blanks() {
        let line =
            r"36 35 98:0 /mnt1 /mnt/my\040disk rw,nosuid,noatime master:1 - ext3 /dev/root rw";
        let read = parse_mount(line).unwrap();
        assert_eq!(read.place, PathBuf::from("/mnt/my disk"));
        assert_eq!(read.flags, MsFlags::MS_NOSUID | MsFlags::MS_NOATIME);
        assert_eq!(read.file_system, "ext3");
        let frozen = parse_mount(&line.replace("rw,nosuid", "ro,nosuid")).unwrap();
        assert!(frozen.flags.contains(MsFlags::MS_RDONLY));
    }
}
