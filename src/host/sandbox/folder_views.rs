//! Folder views: read-only mounts of the folders outside the Workspace, without the sockets in them.
//!
//! A read-only mount does not keep a command from connecting to a socket, and covering one name leaves
//! others. A read-only overlay mount does: the socket that is seen through it is another inode than the
//! one on which a program listens, and so is a named pipe. That holds for every path to the socket, and
//! for sockets that are created later.
//!
//! A folder with other mounts inside cannot be the lower layer of an overlay. It is replaced by an
//! empty file system, into which its entries are mounted one by one.
//!
//! Paths that are hidden in such a folder are hidden by name (`cover_layer`), also when they are created later.

use std::ffi::OsStr;
use std::fs::{self, FileType};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirEntryExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, StatVfsMountFlags};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, FsPickFlags, MountAttrFlags, fsconfig_create, fsconfig_reconfigure,
    fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, fspick,
};

use super::cache_mounts::CacheMounts;
use super::cover_layer::CoverLayer;
use super::folder_entries::FolderEntries;
use super::limits::LAYER_OPTIONS;
use super::mounts::{self, DetachedMount, Mount};
use super::spec::SandboxSpec;
use super::{landlock_rules, scratch};

/// Folders of the kernel; Landlock and separate mounts protect their content.
const KERNEL_FOLDERS: &[&str] = &["/proc", "/sys"];
/// The folder of devices. Other programs may listen in it as well, so a command sees only devices that it can use.
const DEVICES: &str = "/dev";
/// Folders and links among the devices that a command needs.
const DEVICE_FOLDERS: &[&str] = &["pts", "shm"];
const DEVICE_LINKS: &[(&str, &str)] = &[
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
    ("ptmx", "pts/ptmx"),
];
/// Folders of the system. They are visible without a view as long as only root can create entries in them.
const SYSTEM_FOLDERS: &[&str] =
    &["/bin", "/boot", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/sbin", "/snap", "/usr"];
/// The folder for local installations, in a folder of the system.
const LOCAL_INSTALLATIONS: &str = "/usr/local";
/// Folders of container runtimes; hidden, because they hold many mounts that no command needs.
const CONTAINER_FOLDERS: &[&str] =
    &["/var/lib/containerd", "/var/lib/containers", "/var/lib/docker", "/var/lib/kubelet"];
/// File systems that cannot hold sockets.
const FILE_SYSTEMS_WITHOUT_SOCKETS: &[&str] =
    &["erofs", "exfat", "fuseblk", "iso9660", "msdos", "ntfs", "ntfs3", "squashfs", "udf", "vfat"];
/// File systems that are the interface of another program.
const INTERFACE_FILE_SYSTEMS: &[&str] =
    &["autofs", "fuse.gvfsd-fuse", "fuse.portal", "mqueue", "nsfs", "rpc_pipefs"];
/// The flags for opening a layer of an overlay.
const LAYER_FLAGS: OFlags =
    OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
/// The maximum number of entries of a folder that is rebuilt from them one by one.
const MOST_ENTRIES: usize = 512;
/// The write permission bits of group and others.
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// The folder views in the mount namespace of one command.
#[derive(Debug, Default)]
pub struct FolderViews {
    /// The overlay mounts, to be refreshed.
    overlays: Vec<OwnedFd>,
    /// Folders that are visible without a view, although they may hold sockets.
    uncovered: Vec<PathBuf>,
    /// The entries of the folders that were rebuilt one by one.
    listings: Vec<FolderEntries>,
    /// Layers over package caches.
    caches: CacheMounts,
}

impl FolderViews {
    /// Whether commands may be able to reach a socket outside.
    pub fn are_incomplete(&self) -> bool {
        !self.uncovered.is_empty()
    }

    /// Whether some folder was rebuilt from its entries, so that it does not show later ones.
    pub fn may_go_stale(&self) -> bool {
        !self.listings.is_empty()
    }

    /// Whether a rebuilt folder has other entries now; only a new mount namespace shows them.
    pub fn are_stale(&self) -> bool {
        self.listings.iter().any(FolderEntries::has_changed)
    }

    /// Makes changes from outside visible to the next command: an overlay caches the names it has found.
    pub fn refresh(&self) {
        let flags = FsPickFlags::FSPICK_CLOEXEC | FsPickFlags::FSPICK_EMPTY_PATH;
        for overlay in &self.overlays {
            // Reconfiguring a mount without a change makes the kernel drop cached names.
            let outcome = fspick(overlay, "", flags).and_then(|context| {
                fsconfig_set_flag(&context, "ro")?;
                fsconfig_reconfigure(&context)
            });
            if let Err(error) = outcome {
                tracing::debug!(%error, "an overlay was not refreshed");
            }
        }
        self.caches.refresh();
    }

    /// The layers over package caches.
    pub fn caches(&self) -> &CacheMounts {
        &self.caches
    }

    /// Marks the slot of the cache layers as being released, so that the next supervisor waits for it.
    pub fn begin_release(&self) {
        self.caches.begin_release();
    }

    /// Unmounts the layers over package caches, when no process is left in this namespace.
    pub fn release(self) {
        self.caches.release();
    }
}

/// Collects the mounts of the folder views; they are attached later.
pub struct ViewBuilder<'a> {
    spec: &'a SandboxSpec,
    mounts: &'a [Mount],
    /// The mount point of a separate file system for layers, so that no layer is inside a layer of another overlay.
    layers: PathBuf,
    /// An empty layer: without an upper layer an overlay needs two lower ones.
    empty_layer: OwnedFd,
    /// Paths that are hidden by name.
    covered: Vec<PathBuf>,
    detached_mounts: Vec<DetachedMount>,
    views: FolderViews,
}

impl<'a> ViewBuilder<'a> {
    /// A builder for a spec; `mounts` are all existing mounts.
    pub fn new(spec: &'a SandboxSpec, mounts: &'a [Mount]) -> io::Result<Self> {
        let layers = scratch::layers_folder(&spec.scratch);
        mounts::attach(&empty_tmpfs()?, &layers)?;
        let blank = layers.join("blank");
        rustix::fs::mkdir(&blank, Mode::from_raw_mode(0o755))?;
        let blank = rustix::fs::openat(CWD, &blank, LAYER_FLAGS, Mode::empty())?;
        let (covered, pieces, views) = (Vec::new(), Vec::new(), FolderViews::default());
        Ok(Self {
            spec,
            mounts,
            layers,
            empty_layer: blank,
            covered,
            detached_mounts: pieces,
            views,
        })
    }

    /// Whether a path is hidden by name and needs no mount over it.
    pub fn is_covered(&self, path: &Path) -> bool {
        self.covered.iter().any(|covered| covered == path)
    }

    /// Collects the views of all folders of the machine that may hold sockets.
    pub fn view_machine(&mut self) -> io::Result<()> {
        for entry in fs::read_dir("/")?.filter_map(Result::ok) {
            let (path, Ok(kind)) = (entry.path(), entry.file_type()) else { continue };
            if kind.is_dir() {
                self.view_top_folder(&path)?;
            } else if is_endpoint(kind) {
                let tree = mounts::clone_tree(&scratch::empty_file(&self.spec.scratch))?;
                self.detached_mounts.push(DetachedMount { tree, place: path });
            }
        }
        Ok(())
    }

    /// Takes the mounts that were collected since the last call.
    pub fn take_mounts(&mut self) -> Vec<DetachedMount> {
        std::mem::take(&mut self.detached_mounts)
    }

    /// The views, when everything has been collected.
    pub fn finish(self, caches: CacheMounts) -> FolderViews {
        FolderViews { caches, ..self.views }
    }

    fn view_top_folder(&mut self, path: &Path) -> io::Result<()> {
        let is_one_of = |list: &[&str]| list.iter().any(|folder| path == Path::new(folder));
        if is_one_of(KERNEL_FOLDERS) {
            return Ok(());
        }
        if path == Path::new(DEVICES) {
            return self.view_devices();
        }
        if is_one_of(SYSTEM_FOLDERS) && is_root_only(path) {
            let installed = Path::new(LOCAL_INSTALLATIONS);
            let is_folder = || fs::symlink_metadata(installed).is_ok_and(|found| found.is_dir());
            let is_around = installed.parent() == Some(path) && is_folder();
            return if is_around { self.view(installed) } else { Ok(()) };
        }
        self.view(path)
    }

    /// Collects a view of a folder without its sockets.
    pub fn view(&mut self, folder: &Path) -> io::Result<()> {
        let is_closed = self.spec.closed_homes.iter().any(|closed| closed == folder);
        if self.is_mounted_later(folder) || mounts::is_replaced_itself(folder) || is_closed {
            return Ok(());
        }
        let is_inside = |mount: &Mount| mount.place != folder && mount.place.starts_with(folder);
        if self.mounts.iter().any(is_inside) {
            return self.view_entries(folder);
        }
        match self.overlay(folder) {
            Ok((tree, own)) => {
                self.detached_mounts.push(DetachedMount { tree, place: folder.to_owned() });
                self.views.overlays.push(own);
                Ok(())
            }
            // The folder was removed in the meantime.
            Err(_) if folder.symlink_metadata().is_err() => Ok(()),
            Err(error) => self.view_with_sockets(folder, &error),
        }
    }

    /// Replaces each closed home by an empty folder.
    pub fn close_homes(&mut self) -> io::Result<()> {
        self.spec.closed_homes.iter().try_for_each(|home| self.view_empty(home))
    }

    /// Whether another mount will be attached over a path later.
    fn is_mounted_later(&self, path: &Path) -> bool {
        let is_within = |list: &[PathBuf]| list.iter().any(|own| path.starts_with(own));
        is_within(&self.spec.writable)
            || is_within(&self.spec.shown)
            || is_within(&self.spec.caches.places)
    }

    /// An overlay of a folder, without the hidden paths in it where the kernel allows that.
    fn overlay(&mut self, folder: &Path) -> io::Result<(OwnedFd, OwnedFd)> {
        let is_inside = |path: &&PathBuf| {
            path.starts_with(folder) && *path != folder && !self.is_mounted_later(path)
        };
        let hidden: Vec<PathBuf> = self.spec.hidden.iter().filter(is_inside).cloned().collect();
        if !hidden.is_empty() {
            let place = self.layers.join(self.views.overlays.len().to_string());
            let covered = CoverLayer::new(folder, &place, &hidden).and_then(|cover| {
                let layer = rustix::fs::openat(CWD, &place, LAYER_FLAGS, Mode::empty())?;
                Ok((overlay(folder, &layer, LayerOrder::CoverAbove)?, cover))
            });
            match covered {
                Ok((mounted, cover)) => {
                    self.covered.extend(cover.hidden);
                    return Ok(mounted);
                }
                Err(error) => tracing::debug!(folder = %folder.display(), %error, "no cover"),
            }
        }
        overlay(folder, &self.empty_layer, LayerOrder::FolderAbove)
    }

    /// Shows only the devices that a command may use.
    fn view_devices(&mut self) -> io::Result<()> {
        let tree = empty_tmpfs()?;
        for name in DEVICE_FOLDERS {
            rustix::fs::mkdirat(&tree, *name, Mode::from_raw_mode(0o755))?;
        }
        for (name, target) in DEVICE_LINKS {
            rustix::fs::symlinkat(*target, &tree, *name)?;
        }
        self.detached_mounts.push(DetachedMount { tree, place: DEVICES.into() });
        for path in landlock_rules::DEVICES.iter().map(PathBuf::from) {
            if fs::symlink_metadata(&path).is_ok_and(|found| found.file_type().is_char_device()) {
                self.detached_mounts
                    .push(DetachedMount { tree: mounts::clone_tree(&path)?, place: path });
            }
        }
        Ok(())
    }

    /// Shows a folder that cannot be the layer of an overlay, with the sockets in it.
    fn view_with_sockets(&mut self, folder: &Path, error: &io::Error) -> io::Result<()> {
        let kind = self.file_system_type(folder).unwrap_or_default();
        let is_one_of = |list: &[&str]| list.contains(&kind);
        if is_one_of(INTERFACE_FILE_SYSTEMS) {
            return self.view_empty(folder);
        }
        if !is_one_of(FILE_SYSTEMS_WITHOUT_SOCKETS) {
            tracing::debug!(folder = %folder.display(), %error, "no overlay");
            self.views.uncovered.push(folder.to_owned());
        }
        self.detached_mounts
            .push(DetachedMount { tree: mounts::clone_tree(folder)?, place: folder.to_owned() });
        Ok(())
    }

    /// The type of the file system of a folder.
    fn file_system_type(&self, folder: &Path) -> Option<&'a str> {
        let around = self.mounts.iter().filter(|mount| folder.starts_with(&mount.place));
        Some(&*around.max_by_key(|mount| mount.place.components().count())?.file_system)
    }

    fn view_empty(&mut self, folder: &Path) -> io::Result<()> {
        self.detached_mounts.push(DetachedMount { tree: empty_tmpfs()?, place: folder.to_owned() });
        Ok(())
    }

    /// Rebuilds a folder: mounts its entries one by one into an empty one.
    fn view_entries(&mut self, folder: &Path) -> io::Result<()> {
        let is_of_containers = CONTAINER_FOLDERS.iter().any(|own| folder == Path::new(own));
        let Some(entries) = fs::read_dir(folder).ok().filter(|_| !is_of_containers) else {
            return self.view_empty(folder);
        };
        let entries: Vec<_> = entries.filter_map(Result::ok).take(MOST_ENTRIES + 1).collect();
        if entries.len() > MOST_ENTRIES {
            return self.view_with_sockets(folder, &io::ErrorKind::ArgumentListTooLong.into());
        }
        // Reading an entry of an automount folder would mount that entry.
        let is_on_demand = self.file_system_type(folder) == Some("autofs");
        let is_there = |path: &Path| {
            !is_on_demand || self.mounts.iter().any(|mount| mount.place.starts_with(path))
        };
        let is_child = |path: &&PathBuf| path.parent() == Some(folder);
        let hidden: Vec<PathBuf> = self.spec.hidden.iter().filter(is_child).cloned().collect();
        let is_hidden = |name: &OsStr| hidden.iter().any(|path| path.file_name() == Some(name));
        let found = entries.iter().map(|entry| (entry.file_name(), entry.ino()));
        let found = found.filter(|(name, _)| !is_hidden(name)).collect();
        let tree = empty_tmpfs()?;
        let mut inside = Vec::new();
        for entry in entries {
            let (path, name) = (entry.path(), entry.file_name());
            let Ok(kind) = entry.file_type() else { continue };
            if is_hidden(&name) {
                continue;
            }
            if kind.is_symlink() {
                let Ok(target) = fs::read_link(&path) else { continue };
                rustix::fs::symlinkat(target, &tree, &name)?;
            } else if kind.is_dir() && mounts::is_replaced_itself(&path) {
                rustix::fs::mkdirat(&tree, &name, Mode::from_raw_mode(0o755))?;
            } else if !is_endpoint(kind) && is_there(&path) {
                inside.push((path, kind));
            }
        }
        let names = hidden.iter().filter_map(|path| path.file_name().map(ToOwned::to_owned));
        self.views.listings.push(FolderEntries::new(folder, found, names.collect())?);
        self.covered.extend(hidden);
        self.detached_mounts.push(DetachedMount { tree, place: folder.to_owned() });
        for (path, kind) in inside {
            if kind.is_dir() {
                self.view(&path)?;
            } else if kind.is_file()
                && let Ok(tree) = mounts::clone_tree(&path)
            {
                self.detached_mounts.push(DetachedMount { tree, place: path });
            }
        }
        Ok(())
    }
}

/// Whether an entry is a socket or a named pipe, on which another program may listen.
fn is_endpoint(kind: FileType) -> bool {
    kind.is_socket() || kind.is_fifo()
}

/// Whether only root can create entries in a folder of the system. In a user namespace root may have no
/// id, so there the condition is that the user does not own the folder.
fn is_root_only(path: &Path) -> bool {
    let own = rustix::process::geteuid();
    let found = fs::symlink_metadata(path);
    found.is_ok_and(|found| {
        let is_of_root = found.uid() == 0 || (!own.is_root() && found.uid() != own.as_raw());
        is_of_root && found.mode() & WRITABLE_BY_OTHERS == 0
    })
}

/// The order of the two layers of an overlay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LayerOrder {
    CoverAbove,
    FolderAbove,
}

/// A detached read-only overlay mount of a folder and another layer, and a second descriptor of the mount.
fn overlay(folder: &Path, other: &OwnedFd, order: LayerOrder) -> io::Result<(OwnedFd, OwnedFd)> {
    let lower = rustix::fs::openat(CWD, folder, LAYER_FLAGS, Mode::empty())?;
    let context = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
    // The path of a descriptor needs no escapes, unlike the name of the folder.
    let [lower_name, other_name] =
        [&lower, other].map(|layer| format!("/proc/self/fd/{}", layer.as_raw_fd()));
    let layers = match order {
        LayerOrder::CoverAbove => format!("{other_name}:{lower_name}"),
        LayerOrder::FolderAbove => format!("{lower_name}:{other_name}"),
    };
    fsconfig_set_string(&context, "lowerdir", layers)?;
    fsconfig_create(&context)?;
    let mut attributes = MountAttrFlags::MOUNT_ATTR_RDONLY
        | MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV;
    if rustix::fs::statvfs(folder)?.f_flag.contains(StatVfsMountFlags::NOEXEC) {
        attributes |= MountAttrFlags::MOUNT_ATTR_NOEXEC;
    }
    let tree = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
    let own = tree.try_clone()?;
    Ok((tree, own))
}

/// A detached, empty tmpfs.
fn empty_tmpfs() -> io::Result<OwnedFd> {
    let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (name, value) in LAYER_OPTIONS {
        fsconfig_set_string(&context, name, value)?;
    }
    fsconfig_create(&context)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    Ok(fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?)
}
