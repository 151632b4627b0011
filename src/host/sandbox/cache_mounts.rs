//! Package cache mounts: private layers through which commands write to caches, so that no write is visible outside.
//!
//! The user's own programs run files of package caches. So a command sees an overlay mount whose lower
//! layer is the cache and whose upper layer is in a slot below Pixir's home. Where overlays cannot be
//! mounted, a private folder replaces the cache. Without namespaces nothing can be mounted: variables
//! direct programs to private folders, and the caches are read-only.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::mount::MntFlags;
use rustix::fs::{CWD, Mode, OFlags, StatVfsMountFlags, XattrFlags};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, FsPickFlags, MountAttrFlags, OpenTreeFlags, fsconfig_create,
    fsconfig_reconfigure, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, fspick,
    open_tree,
};

use super::cache_slots::{self, CacheSlot, PRIVATE_FOLDER, WORK_FOLDER};
use super::cache_spec::{CARGO_HOME, CacheAccess, CacheSpec};
use super::cargo_home;
use super::mounts::DetachedMount;
use crate::base::files::StateDir;

/// The name of an overlay's upper folder.
const UPPER_FOLDER: &str = "upper";
/// The attribute that is set to test whether a file system supports the attributes of an overlay.
const PROBE_ATTRIBUTE: &str = "user.pixir.probe";
/// The flags for opening a lower layer.
const LAYER_FLAGS: OFlags =
    OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// The cache layers of one supervisor, mounted in its namespace.
#[derive(Debug, Default)]
pub struct CacheMounts {
    access: CacheAccess,
    slot: Option<CacheSlot>,
    /// The folder of all slots, on a mount that stays writable when all others become read-only.
    writable: Option<StateDir>,
    layers: Vec<CacheLayer>,
}

/// One overlay mount over a cache.
#[derive(Debug)]
struct CacheLayer {
    place: PathBuf,
    mount: OwnedFd,
}

impl CacheMounts {
    /// Prepares a detached layer for each cache, before everything becomes read-only.
    pub fn new(spec: &CacheSpec) -> (Self, Vec<DetachedMount>) {
        let mut mounts = Self::default();
        if spec.places.is_empty() {
            return (mounts, Vec::new());
        }
        let slot = match CacheSlot::lock_or_create(&spec.slots_folder(), &spec.owner) {
            Ok(slot) => slot,
            Err(error) => {
                tracing::debug!(%error, "no slot for caches");
                return (Self { access: CacheAccess::ReadOnly, ..mounts }, Vec::new());
            }
        };
        let mut detached_mounts = Vec::new();
        for place in &spec.places {
            match mounts.prepare_mount(&slot.folder, place) {
                Ok(tree) => detached_mounts.push(DetachedMount { tree, place: place.clone() }),
                Err(error) => {
                    tracing::debug!(place = %place.display(), %error, "no private folder");
                    mounts.access = CacheAccess::ReadOnly;
                }
            }
        }
        mounts.writable = writable_copy(&slot.parent).ok();
        mounts.slot = Some(slot);
        (mounts, detached_mounts)
    }

    /// The detached mount that replaces one cache: a layer, or a private folder.
    fn prepare_mount(&mut self, slot: &StateDir, place: &Path) -> io::Result<OwnedFd> {
        let name = cache_slots::cache_name(place);
        let error = match create_layer(&slot.create_dir(&name)?, place) {
            Ok((tree, mount)) => {
                self.layers.push(CacheLayer { place: place.to_owned(), mount });
                return Ok(tree);
            }
            Err(error) => error,
        };
        tracing::debug!(place = %place.display(), %error, "no overlay");
        let private = slot.create_dir(PRIVATE_FOLDER)?.create_dir(&name)?;
        let flags = OpenTreeFlags::OPEN_TREE_CLONE
            | OpenTreeFlags::OPEN_TREE_CLOEXEC
            | OpenTreeFlags::AT_EMPTY_PATH;
        let tree = open_tree(private, "", flags)?;
        if self.access == CacheAccess::Layered {
            self.access = CacheAccess::Private;
        }
        Ok(tree)
    }

    /// The cache access of the command, as an argument of the next process.
    pub fn access_argument(&self, letter: &str) -> OsString {
        format!("{letter}a{}", self.access.name()).into()
    }

    /// Makes changes of the caches from outside visible to the next command.
    pub fn refresh(&self) {
        let flags = FsPickFlags::FSPICK_CLOEXEC | FsPickFlags::FSPICK_EMPTY_PATH;
        for layer in &self.layers {
            // Reconfiguring a mount without a change makes the kernel drop cached names.
            let outcome = fspick(&layer.mount, "", flags)
                .and_then(|context| fsconfig_reconfigure(context.as_fd()));
            if let Err(error) = outcome {
                tracing::debug!(%error, "a layer over a cache was not refreshed");
            }
        }
    }

    /// Marks the slot as being released, so that the next supervisor waits for it.
    pub fn begin_release(&self) {
        if self.slot.as_ref().is_some_and(|slot| !slot.share_lock()) {
            tracing::debug!("another process has the cache slot");
        }
    }

    /// Unmounts the layers when no process uses them any more, and then releases the slot. A slot with a mount
    /// that may be left is not used again.
    pub fn release(self) {
        let (Some(slot), Some(all)) = (self.slot, self.writable) else { return };
        let Ok(Some(folder)) = all.open_dir(&slot.name) else { return };
        if !slot.share_lock() {
            return;
        }
        for CacheLayer { place, mount } in self.layers {
            drop(mount);
            let flags = MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW;
            if nix::mount::umount2(&place, flags).is_ok()
                && let Ok(Some(cache)) = folder.open_dir(cache_slots::cache_name(&place))
            {
                cache.remove_tree(WORK_FOLDER).ok();
            }
        }
        cache_slots::mark_used(&folder);
    }
}

/// A detached overlay mount over a cache, and a second descriptor of it.
fn create_layer(folder: &StateDir, cache: &Path) -> io::Result<(OwnedFd, OwnedFd)> {
    rustix::fs::fsetxattr(folder, PROBE_ATTRIBUTE, b"1", XattrFlags::empty())?;
    let upper = folder.create_dir(UPPER_FOLDER)?;
    let work = folder.create_new_dir(WORK_FOLDER)?;
    mount_layer(cache, &upper, &work).inspect_err(|_| {
        drop(work);
        folder.remove_tree(WORK_FOLDER).ok();
    })
}

fn mount_layer(cache: &Path, upper: &StateDir, work: &StateDir) -> io::Result<(OwnedFd, OwnedFd)> {
    let lower = rustix::fs::openat(CWD, cache, LAYER_FLAGS, Mode::empty())?;
    let context = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
    let name = |layer: &dyn AsFd| format!("/proc/self/fd/{}", layer.as_fd().as_raw_fd());
    // The overlay keeps its metadata in `user.` attributes. With them the kernel follows no redirects and no
    // metadata-only copies, and a command cannot set them.
    fsconfig_set_flag(&context, "userxattr")?;
    // Without `volatile`, unmounting would sync the whole file system.
    fsconfig_set_flag(&context, "volatile")?;
    fsconfig_set_string(&context, "index", "off")?;
    fsconfig_set_string(&context, "xino", "off")?;
    fsconfig_set_string(&context, "lowerdir", name(&lower))?;
    fsconfig_set_string(&context, "upperdir", name(upper))?;
    fsconfig_set_string(&context, "workdir", name(work))?;
    fsconfig_create(&context)?;
    let mut attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    if rustix::fs::fstatvfs(&lower)?.f_flag.contains(StatVfsMountFlags::NOEXEC) {
        attributes |= MountAttrFlags::MOUNT_ATTR_NOEXEC;
    }
    let tree = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
    let own = tree.try_clone()?;
    Ok((tree, own))
}

/// A second handle of the folder of all slots, on a separate mount that is in no namespace.
fn writable_copy(all: &StateDir) -> io::Result<StateDir> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH;
    let copy = open_tree(all, "", flags)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = rustix::fs::openat(copy, ".", flags, Mode::empty())?;
    Ok(StateDir::from_descriptor(folder, all.path()))
}

/// Private folders for commands of a supervisor without namespaces.
#[derive(Debug)]
pub struct PrivateCaches(CacheSlot);

impl PrivateCaches {
    /// Locks a slot, creates the private folders and records them in the spec.
    pub fn prepare(spec: &mut CacheSpec) -> Option<Self> {
        if spec.places.is_empty() {
            return None;
        }
        spec.access = CacheAccess::ReadOnly;
        match Self::create(spec) {
            Ok((caches, folder)) => {
                spec.access = CacheAccess::Private;
                spec.private = Some(folder);
                Some(caches)
            }
            Err(error) => {
                tracing::debug!(%error, "no private folders for caches");
                None
            }
        }
    }

    fn create(spec: &CacheSpec) -> io::Result<(Self, PathBuf)> {
        let slot = CacheSlot::lock_or_create(&spec.slots_folder(), &spec.owner)?;
        let private = slot.folder.create_dir(PRIVATE_FOLDER)?;
        for (name, folder) in &spec.variables {
            let own = private.create_dir(name)?;
            if name == CARGO_HOME {
                cargo_home::link_cargo_home(folder, &own);
            }
        }
        let folder = private.path().canonicalize()?;
        Ok((Self(slot), folder))
    }

    /// Releases the slot when no process of the command is left.
    pub fn release(self) {
        cache_slots::mark_used(&self.0.folder);
    }
}
