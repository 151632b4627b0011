//! Settings of the sandbox: level, network, sockets, paths and limits.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{TRILLION, forms};
use crate::base::names::names;

/// The default caches of package managers; never programs or settings.
const DEFAULT_CACHES: &[&str] =
    &["~/.cargo/registry", "~/.cargo/git", "~/.npm/_cacache", "~/.cache"];

/// The size of a process's address space on most machines; a memory limit of this size is no limit.
pub const ADDRESS_SPACE: u64 = 1 << 47;

/// The smallest memory limit; with less not even a shell starts.
const MIN_MEMORY_BYTES: u64 = 64 << 20;
/// The largest limit in bytes: a petabyte.
const MAX_BYTES: u64 = TRILLION * 1000;

/// Sandbox settings of host commands. `~` is the user's home.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct SandboxSettings {
    /// Sandbox level for commands; `required` runs no command unless the kernel can enforce all of it.
    #[schemars(with = "String", extend("enum" = ["workspace", "read-only", "required", "off"]))]
    pub level: SandboxLevel,
    /// Which commands get the network: those that declare it, all, or none.
    #[schemars(with = "String", extend("enum" = ["declare", "allow", "deny"]))]
    pub network: NetworkRule,
    /// Which commands may use Unix sockets on machines where sockets of other programs cannot be hidden: those that
    /// declare it and that you allow (none in `auto`), those that declare it, or none.
    #[schemars(with = "String", extend("enum" = ["ask", "declare", "deny"]))]
    pub local_sockets: SocketRule,
    /// Paths that commands may write, in addition to the Workspace.
    #[schemars(schema_with = "forms::places")]
    pub write: Vec<PathBuf>,
    /// Paths in home folders that commands may read, in addition to tool chains, caches and settings without secrets;
    /// credentials in them stay hidden unless they are named exactly.
    #[schemars(schema_with = "forms::places")]
    pub read: Vec<PathBuf>,
    /// Package caches that commands write through a private layer, so that their writes are not visible outside.
    #[schemars(schema_with = "forms::places")]
    pub caches: Vec<PathBuf>,
    /// How many bytes the private layers of caches may have; larger ones are removed when no command uses them.
    #[serde(rename = "max_cache_bytes")]
    #[schemars(range(max = MAX_BYTES))]
    pub cache_bytes: u64,
    /// Paths that commands cannot read, in addition to credentials and most of home folders; the lists of all config
    /// files are combined.
    #[schemars(schema_with = "forms::places")]
    pub hide: Vec<PathBuf>,
    /// How many processes a command may have.
    #[serde(rename = "max_processes")]
    #[schemars(range(min = 16, max = 1_000_000))]
    pub processes: u64,
    /// How large a file written by a command may become.
    #[serde(rename = "max_file_bytes")]
    #[schemars(range(min = 1, max = MAX_BYTES))]
    pub file_bytes: u64,
    /// How many files each process of a command may have open.
    #[serde(rename = "max_open_files")]
    #[schemars(range(min = 64, max = TRILLION))]
    pub open_files: u64,
    /// How much private memory each process of a command may have. By default the whole address space, because
    /// sanitizers reserve terabytes and would not start with less.
    #[serde(rename = "max_process_bytes")]
    #[schemars(range(min = MIN_MEMORY_BYTES, max = MAX_BYTES))]
    pub process_bytes: u64,
    /// How much `/dev/shm` of a command may hold; never more than a quarter of the memory of the machine
    /// or container.
    #[serde(rename = "max_shared_memory_bytes")]
    #[schemars(range(min = 1, max = MAX_BYTES))]
    pub shared_bytes: u64,
    /// How much memory all processes of a command may take, where Pixir can make a control group (cgroup
    /// v2, delegated); never more than seven eighths of the memory of the machine or container.
    #[serde(rename = "max_memory_bytes")]
    #[schemars(range(min = MIN_MEMORY_BYTES, max = MAX_BYTES))]
    pub memory_bytes: u64,
}

/// How strict the sandbox is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SandboxLevel {
    /// No sandbox, by explicit choice.
    Off,
    /// As much as this machine can enforce.
    Workspace,
    /// Like `workspace`, but no command runs unless all of it can be enforced.
    Required,
    /// Commands cannot write any file.
    ReadOnly,
}

names!(SandboxLevel {
    Off = "off", Workspace = "workspace", Required = "required", ReadOnly = "read-only",
});

/// Which commands get the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NetworkRule {
    /// Every command.
    Allow,
    /// A command that declares it.
    Declare,
    /// No command.
    Deny,
}

/// Which commands may use Unix sockets where those of other programs cannot be hidden from them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SocketRule {
    /// A command that declares it.
    Declare,
    /// A command that declares it, once the user has agreed; none in `auto`.
    Ask,
    /// No command.
    Deny,
}

impl Default for SandboxSettings {
    fn default() -> Self {
        Self {
            level: SandboxLevel::Workspace,
            network: NetworkRule::Declare,
            local_sockets: SocketRule::Ask,
            write: Vec::new(),
            read: Vec::new(),
            caches: DEFAULT_CACHES.iter().map(PathBuf::from).collect(),
            cache_bytes: 10 << 30,
            hide: Vec::new(),
            processes: 4096,
            file_bytes: 64 << 30,
            open_files: 65_536,
            process_bytes: ADDRESS_SPACE,
            shared_bytes: 2 << 30,
            memory_bytes: 1 << 40,
        }
    }
}

impl SandboxSettings {
    /// Whether these settings allow something that `other` does not.
    pub fn is_wider_than(&self, other: &Self) -> bool {
        let drops_required =
            other.level == SandboxLevel::Required && self.level != SandboxLevel::Required;
        self.level < other.level
            || drops_required
            || self.network < other.network
            || self.local_sockets < other.local_sockets
            || self.write.iter().any(|root| !other.write.contains(root))
            || self.read.iter().any(|path| !other.read.contains(path))
            || self.caches.iter().any(|cache| !other.caches.contains(cache))
            || self.cache_bytes > other.cache_bytes
            || other.hide.iter().any(|path| !self.hide.contains(path))
            || self.processes > other.processes
            || self.file_bytes > other.file_bytes
            || self.open_files > other.open_files
            || self.process_bytes > other.process_bytes
            || self.shared_bytes > other.shared_bytes
            || self.memory_bytes > other.memory_bytes
    }
}
