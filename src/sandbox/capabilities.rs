//! What is left of root: the rights over files that a build may need, and none over the machine.
#![expect(clippy::disallowed_methods, reason = "files of the kernel")]

use std::io;

use rustix::process::{Resource, Rlimit};
use rustix::thread::{CapabilitySet, CapabilitySets};

use super::spec::Spec;

/// Root keeps these: its own files in a Workspace may belong to others.
const OVER_FILES: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETUID);

/// The first kernel in which every pid namespace has a range of numbers of its own.
const OWN_NUMBERS: (u32, u32) = (6, 14);
/// The kernel takes no range smaller or larger than this.
const LEAST_NUMBERS: u64 = 512;
const MOST_NUMBERS: u64 = 4 << 20;

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

/// Bounds what a runaway command can take: processes, the size of a file, dumps of memory.
pub fn limit(spec: &Spec) -> io::Result<()> {
    lower(Resource::Nproc, spec.processes)?;
    lower(Resource::Fsize, spec.file_bytes)?;
    lower(Resource::Core, 0)
}

/// Bounds the processes of a namespace by its numbers; the limit above does not hold for root.
/// Older kernels have one range of numbers for the whole machine, so there nothing is touched.
pub fn limit_numbers(spec: &Spec) {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut parts = release.split(['.', '-']).map(|part| part.parse::<u32>().unwrap_or(0));
    let version = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    if rustix::process::getpid() == rustix::process::Pid::INIT && version >= OWN_NUMBERS {
        let most = spec.processes.clamp(LEAST_NUMBERS, MOST_NUMBERS).to_string();
        std::fs::write("/proc/sys/kernel/pid_max", most).ok();
    }
}

fn lower(resource: Resource, limit: u64) -> io::Result<()> {
    let own = rustix::process::getrlimit(resource);
    let maximum = own.maximum.map_or(limit, |maximum| maximum.min(limit));
    let limits = Rlimit { current: Some(maximum), maximum: Some(maximum) };
    Ok(rustix::process::setrlimit(resource, limits)?)
}
