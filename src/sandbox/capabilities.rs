//! What is left of root: the rights over files that a build may need, and none over the machine.

use std::io;

use rustix::thread::{CapabilitySet, CapabilitySets};

/// Root keeps these: its own files in a Workspace may belong to others.
const OVER_FILES: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETUID);

/// Gives up every other right, for this process and all it will start.
pub fn give_up() -> io::Result<()> {
    rustix::thread::set_no_new_privs(true)?;
    let kept =
        if rustix::process::geteuid().is_root() { OVER_FILES } else { CapabilitySet::empty() };
    rustix::thread::clear_ambient_capability_set()?;
    let own = rustix::thread::capabilities(None)?;
    if own.effective.contains(CapabilitySet::SETPCAP) {
        for capability in CapabilitySet::all().difference(kept) {
            // Older kernels do not know the newer ones.
            match rustix::thread::remove_capability_from_bounding_set(capability) {
                Ok(()) | Err(rustix::io::Errno::INVAL) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
    let kept = own.permitted.intersection(kept);
    let sets =
        CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    Ok(rustix::thread::set_capabilities(None, sets)?)
}
