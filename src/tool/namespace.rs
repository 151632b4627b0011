//! The namespace: a world of processes that ends with its first one.
#![expect(clippy::disallowed_methods, reason = "files of the kernel")]

use std::io;

use nix::mount::MsFlags;
use nix::sched::CloneFlags;
use rustix::thread::{CapabilitySet, CapabilitySets};

/// Why the namespace was not entered.
pub enum Entry {
    /// Nothing has happened; the other way is open.
    Refused,
    /// The process is half inside and of no use.
    Stuck(io::Error),
}

/// Enters a new pid namespace and the `others`, and a user namespace where that is needed for it.
///
/// The next child will be its first process. The caller must have one thread only.
pub fn enter(others: CloneFlags) -> Result<(), Entry> {
    let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
    let mut flags = CloneFlags::CLONE_NEWPID | CloneFlags::CLONE_NEWNS | others;
    if !user.is_root() {
        flags |= CloneFlags::CLONE_NEWUSER;
    }
    nix::sched::unshare(flags).map_err(|_| Entry::Refused)?;
    if !user.is_root() {
        let (user, group) = (user.as_raw(), group.as_raw());
        std::fs::write("/proc/self/setgroups", "deny").map_err(Entry::Stuck)?;
        std::fs::write("/proc/self/uid_map", format!("{user} {user} 1")).map_err(Entry::Stuck)?;
        std::fs::write("/proc/self/gid_map", format!("{group} {group} 1")).map_err(Entry::Stuck)?;
        // Without it the next process cannot give the namespace its own `/proc`, which is a pity
        // and no more.
        hand_down_mounting().ok();
    }
    Ok(())
}

/// Lets the first process of a user namespace mount, although it is not root.
fn hand_down_mounting() -> io::Result<()> {
    let mounting = CapabilitySet::SYS_ADMIN;
    let sets = rustix::thread::capabilities(None)?;
    let inheritable = sets.inheritable | mounting;
    rustix::thread::set_capabilities(None, CapabilitySets { inheritable, ..sets })?;
    Ok(rustix::thread::configure_capability_in_ambient_set(mounting, true)?)
}

/// Gives up what was handed down, so that the command never has it.
pub fn give_up_mounting() -> io::Result<()> {
    rustix::thread::clear_ambient_capability_set()?;
    let none = CapabilitySet::empty();
    let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
    Ok(rustix::thread::set_capabilities(None, sets)?)
}

/// Gives the namespace its own `/proc`, so that `ps` and `/proc/$$` tell the truth inside it.
pub fn show_own_processes() {
    let none: Option<&str> = None;
    let private = MsFlags::MS_SLAVE | MsFlags::MS_REC;
    let strict = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    // Only once mounts no longer spread outside; where it is refused, the outer `/proc` stays.
    if nix::mount::mount(none, "/", none, private, none).is_ok() {
        nix::mount::mount(Some("proc"), "/proc", Some("proc"), strict, none).ok();
    }
}
