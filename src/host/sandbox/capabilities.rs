//! Capabilities of commands: root keeps rights over files that a build may need, and none over the machine.

use std::io;

use rustix::thread::{CapabilitySet, CapabilitySets};

/// The capabilities that root keeps, because files in its Workspace may belong to other users.
const FILE_CAPABILITIES: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETUID);

/// Drops all other capabilities, for this process and its descendants.
pub fn drop_capabilities() -> io::Result<()> {
    rustix::thread::set_no_new_privs(true)?;
    let kept = if rustix::process::geteuid().is_root() {
        FILE_CAPABILITIES
    } else {
        CapabilitySet::empty()
    };
    rustix::thread::clear_ambient_capability_set()?;
    let own = rustix::thread::capabilities(None)?;
    if own.effective.contains(CapabilitySet::SETPCAP) {
        for capability in CapabilitySet::all().difference(kept) {
            // An older kernel does not know newer capabilities.
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
