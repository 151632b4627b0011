//! The pid namespace of commands: the kernel kills all its processes when its first one ends.
#![expect(clippy::disallowed_methods, reason = "files of the kernel")]

use std::io;

use nix::mount::MsFlags;
use nix::sched::CloneFlags;
use rustix::thread::{CapabilitySet, CapabilitySets};

/// The reason why the namespaces were not entered.
pub enum NamespaceError {
    /// The kernel refused; nothing has changed, so the subreaper can be used instead.
    Refused,
    /// The process is only partly set up and of no use.
    HalfEntered(io::Error),
}

/// Enters a new pid namespace, a mount namespace and the `others`, and a user namespace unless root.
///
/// The next child will be the first process of the pid namespace. The caller must be single-threaded.
pub fn enter_pid_namespace(others: CloneFlags) -> Result<(), NamespaceError> {
    let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
    let mut flags = CloneFlags::CLONE_NEWPID | CloneFlags::CLONE_NEWNS | others;
    if !user.is_root() {
        flags |= CloneFlags::CLONE_NEWUSER;
    }
    nix::sched::unshare(flags).map_err(|_| NamespaceError::Refused)?;
    if !user.is_root() {
        let (user, group) = (user.as_raw(), group.as_raw());
        std::fs::write("/proc/self/setgroups", "deny").map_err(NamespaceError::HalfEntered)?;
        std::fs::write("/proc/self/uid_map", format!("{user} {user} 1"))
            .map_err(NamespaceError::HalfEntered)?;
        std::fs::write("/proc/self/gid_map", format!("{group} {group} 1"))
            .map_err(NamespaceError::HalfEntered)?;
        // Without this right the next process cannot mount the namespace's own `/proc`, which is tolerable.
        grant_mounting().ok();
    }
    Ok(())
}

/// Lets the first process of the user namespace mount, although it is not root.
fn grant_mounting() -> io::Result<()> {
    let mounting = CapabilitySet::SYS_ADMIN;
    let sets = rustix::thread::capabilities(None)?;
    let inheritable = sets.inheritable | mounting;
    rustix::thread::set_capabilities(None, CapabilitySets { inheritable, ..sets })?;
    Ok(rustix::thread::configure_capability_in_ambient_set(mounting, true)?)
}

/// Drops all capabilities again, so that the command never has the right to mount.
pub fn drop_mounting() -> io::Result<()> {
    rustix::thread::clear_ambient_capability_set()?;
    let none = CapabilitySet::empty();
    let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
    Ok(rustix::thread::set_capabilities(None, sets)?)
}

/// Mounts the namespace's own `/proc`, so that `ps` and `/proc/$$` are right inside it.
pub fn mount_own_proc() {
    let none: Option<&str> = None;
    let private = MsFlags::MS_SLAVE | MsFlags::MS_REC;
    let strict = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    // Only after mounts no longer propagate outside; if mounting is refused, the outer `/proc` stays.
    if nix::mount::mount(none, "/", none, private, none).is_ok() {
        nix::mount::mount(Some("proc"), "/proc", Some("proc"), strict, none).ok();
    }
}
