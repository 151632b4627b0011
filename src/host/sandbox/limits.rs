//! Resource limits of commands: what the settings allow, bounded by the memory of this machine.
//!
//! Resource limits of the kernel (`setrlimit`) apply to each process, the size of a tmpfs to
//! `/dev/shm`, and a control group (`cgroup`), where there is one, to all processes together.
//! `RLIMIT_AS` is not used: Node, Java and Go reserve far more addresses than they use.
//! `RLIMIT_DATA` does not count reservations without access, but it does count the shadow memory of
//! sanitizers, so by default it is as large as the address space.
#![expect(clippy::disallowed_methods, reason = "files of the kernel")]

use std::io;

use rustix::process::{Resource, Rlimit};

use super::memory;
use crate::settings::config;
use crate::settings::config::ADDRESS_SPACE;

/// The first kernel with a `pid_max` for every pid namespace.
const OWN_PID_RANGE: (u32, u32) = (6, 14);
/// The bounds of `pid_max` in the kernel.
const LEAST_PID_MAX: u64 = 512;
const MOST_PID_MAX: u64 = 4 << 20;

/// The divisor for the share of memory that `/dev/shm` may take.
const SHARED_PART: u64 = 4;
/// The divisor for the share of memory that a command must leave free.
const SPARED_PART: u64 = 8;
/// The bytes of a tmpfs for each file in it; a file costs the kernel about 1 KiB.
const BYTES_PER_FILE: u64 = 16 << 10;
const FEWEST_FILES: u64 = 1024;
/// The size of a tmpfs that holds only folders, links and mount points.
const LAYER_BYTES: &str = "16m";
const LAYER_FILES: &str = "65536";
/// The unit in which the kernel counts System V shared memory.
const PAGE: u64 = 4096;
/// The shared memory that may be left from one command to the next of the same supervisor.
const KEPT_SHARED_BYTES: u64 = 1 << 20;

/// Resource limits of one command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CommandLimits {
    pub processes: u64,
    /// The maximum size of a written file.
    pub file_bytes: u64,
    /// Open files of each process.
    pub open_files: u64,
    /// Private writable memory of each process.
    pub process_bytes: u64,
    /// The size of `/dev/shm`, and of all System V shared memory.
    pub shared_bytes: u64,
    /// Memory of all processes, enforced where a control group can be created.
    pub memory_bytes: u64,
}

impl CommandLimits {
    /// The configured limits on this machine.
    pub fn new(settings: &config::SandboxSettings) -> Self {
        Self::for_memory(settings, memory::machine_memory())
    }

    /// The configured limits on a machine, or in a container, with this much memory.
    fn for_memory(settings: &config::SandboxSettings, memory: u64) -> Self {
        Self {
            processes: settings.processes,
            file_bytes: settings.file_bytes,
            open_files: settings.open_files,
            process_bytes: settings.process_bytes,
            shared_bytes: settings.shared_bytes.min(memory / SHARED_PART),
            memory_bytes: settings.memory_bytes.min(memory - memory / SPARED_PART),
        }
    }

    /// Encodes the limits for the arguments of a supervisor.
    pub fn encode(&self) -> String {
        self.fields().map(|field| field.to_string()).join(",")
    }

    /// Parses the text of `encode`.
    pub fn decode(text: &[u8]) -> Option<Self> {
        let mut numbers = std::str::from_utf8(text).ok()?.split(',').map(str::parse);
        let mut next = || numbers.next()?.ok();
        let limits = Self {
            processes: next()?,
            file_bytes: next()?,
            open_files: next()?,
            process_bytes: next()?,
            shared_bytes: next()?,
            memory_bytes: next()?,
        };
        numbers.next().is_none().then_some(limits)
    }

    fn fields(&self) -> [u64; 6] {
        let Self { processes, file_bytes, open_files, process_bytes, shared_bytes, memory_bytes } =
            *self;
        [processes, file_bytes, open_files, process_bytes, shared_bytes, memory_bytes]
    }

    /// Options of the tmpfs at `/dev/shm`.
    pub fn shared_memory_options(&self) -> String {
        let files = (self.shared_bytes / BYTES_PER_FILE).max(FEWEST_FILES);
        // A size of zero would mean no limit.
        format!("mode=0755,size={},nr_inodes={files}", self.shared_bytes.max(PAGE))
    }

    /// Limits this process and its descendants.
    pub fn apply(&self) -> io::Result<()> {
        lower_limit(Resource::Nproc, self.processes)?;
        lower_limit(Resource::Fsize, self.file_bytes)?;
        lower_limit(Resource::Nofile, self.open_files)?;
        if self.process_bytes < ADDRESS_SPACE {
            lower_limit(Resource::Data, self.process_bytes)?;
        }
        lower_limit(Resource::Core, 0)
    }

    /// Limits the pid and ipc namespaces of this process, if it is the first one in them and has the right
    /// to do so. `RLIMIT_NPROC` does not apply to root, but `pid_max` does; older kernels have one
    /// `pid_max` for the whole machine, so there it is not changed.
    pub fn apply_to_namespaces(&self) {
        if rustix::process::getpid() != rustix::process::Pid::INIT {
            return;
        }
        let release = rustix::system::uname().release().to_string_lossy().into_owned();
        let mut parts = release.split(['.', '-']).map(|part| part.parse::<u32>().unwrap_or(0));
        let version = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
        if version >= OWN_PID_RANGE {
            let most = self.processes.clamp(LEAST_PID_MAX, MOST_PID_MAX).to_string();
            std::fs::write("/proc/sys/kernel/pid_max", most).ok();
        }
        let pages = (self.shared_bytes / PAGE).to_string();
        std::fs::write("/proc/sys/kernel/shmall", pages).ok();
    }
}

/// Options of a tmpfs that holds only folders, links and mount points, by name and value.
pub const LAYER_OPTIONS: [(&str, &str); 3] =
    [("mode", "0755"), ("size", LAYER_BYTES), ("nr_inodes", LAYER_FILES)];

/// The options of [`LAYER_OPTIONS`] in one text.
pub fn layer_options() -> String {
    LAYER_OPTIONS.map(|(name, value)| format!("{name}={value}")).join(",")
}

/// Whether commands have left shared memory in the namespaces of this process, where it stays allocated
/// as long as the namespaces exist.
pub fn has_shared_memory_left() -> bool {
    let used = rustix::fs::statvfs("/dev/shm")
        .map_or(0, |found| found.f_blocks.saturating_sub(found.f_bfree) * found.f_frsize);
    // The first line names the columns.
    let has_segments = || {
        let list = std::fs::read_to_string("/proc/sysvipc/shm");
        list.is_ok_and(|list| list.lines().nth(1).is_some())
    };
    used > KEPT_SHARED_BYTES || has_segments()
}

/// Lowers the hard limit of this process, and the soft limit if it is higher; a limit that is
/// already lower stays. Programs that use `select` rely on a low soft limit of open files.
fn lower_limit(resource: Resource, limit: u64) -> io::Result<()> {
    let own = rustix::process::getrlimit(resource);
    let at_most = |own: Option<u64>| Some(own.map_or(limit, |own| own.min(limit)));
    let limits = Rlimit { current: at_most(own.current), maximum: at_most(own.maximum) };
    Ok(rustix::process::setrlimit(resource, limits)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_survive_the_arguments_and_odd_ones_are_refused() {
        let limits = CommandLimits::for_memory(&config::SandboxSettings::default(), 8 << 30);
        assert_eq!(CommandLimits::decode(limits.encode().as_bytes()), Some(limits));
        for odd in ["", "1,2,3,4,5", "1,2,3,4,5,6,7", "1,2,3,4,5,x"] {
            assert_eq!(CommandLimits::decode(odd.as_bytes()), None, "{odd}");
        }
    }

    #[test]
    fn a_small_machine_bounds_what_the_settings_allow() {
        let settings = config::SandboxSettings::default();
        let small = CommandLimits::for_memory(&settings, 700 << 20);
        assert_eq!(small.shared_bytes, 175 << 20);
        assert_eq!(small.memory_bytes, (700 << 20) / 8 * 7);
        assert_eq!(small.shared_memory_options(), "mode=0755,size=183500800,nr_inodes=11200");
        let large = CommandLimits::for_memory(&settings, 64 << 30);
        assert_eq!(large.shared_bytes, settings.shared_bytes);
        assert_eq!((large.processes, large.file_bytes), (settings.processes, settings.file_bytes));
    }
}
