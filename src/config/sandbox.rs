//! Settings of the sandbox: how strict, which network, and what beside the Workspace.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{MANY, forms};

/// Caches of package managers; never programs or settings.
const DEFAULT_CACHES: &[&str] =
    &["~/.cargo/registry", "~/.cargo/git", "~/.npm/_cacache", "~/.cache"];

/// The addresses of a process on most machines; as much memory as this is no limit.
pub const ADDRESS_SPACE: u64 = 1 << 47;

/// With less memory not even a shell starts.
const LEAST_MEMORY: u64 = 64 << 20;
/// A petabyte.
const MOST_BYTES: u64 = MANY * 1000;

/// What holds host commands. `~` is the user's home.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Sandbox {
    /// How commands are held by the kernel; `required` runs nothing where not all of it is to be had.
    #[schemars(with = "String", extend("enum" = ["workspace", "read-only", "required", "off"]))]
    pub level: SandboxLevel,
    /// Which commands get the network: those that say so, all, or none.
    #[schemars(with = "String", extend("enum" = ["declare", "allow", "deny"]))]
    pub network: NetworkRule,
    /// Which commands may use Unix sockets where those of other programs cannot be hidden: those that
    /// ask for it and that you allow (none in `auto`), those that ask for it, or none.
    #[schemars(with = "String", extend("enum" = ["ask", "declare", "deny"]))]
    pub local_sockets: SocketRule,
    /// What commands may write beside the Workspace.
    #[schemars(schema_with = "forms::places")]
    pub write: Vec<PathBuf>,
    /// What commands may read in home folders, beside tool chains, caches and settings without secrets;
    /// credentials in it stay hidden unless they are named exactly.
    #[schemars(schema_with = "forms::places")]
    pub read: Vec<PathBuf>,
    /// Package caches that commands write through a private layer: nothing they write there is seen
    /// outside.
    #[schemars(schema_with = "forms::places")]
    pub caches: Vec<PathBuf>,
    /// How many bytes the private layers over caches may have; larger ones are removed when no command
    /// uses them.
    #[serde(rename = "max_cache_bytes")]
    #[schemars(range(max = MOST_BYTES))]
    pub cache_bytes: u64,
    /// What commands cannot read, beside credentials and most of home folders; lists of several files
    /// add up.
    #[schemars(schema_with = "forms::places")]
    pub hide: Vec<PathBuf>,
    /// How many processes a command may have.
    #[serde(rename = "max_processes")]
    #[schemars(range(min = 16, max = 1_000_000))]
    pub processes: u64,
    /// How large a file may become that a command writes.
    #[serde(rename = "max_file_bytes")]
    #[schemars(range(min = 1, max = MOST_BYTES))]
    pub file_bytes: u64,
    /// How many files each process of a command may have open.
    #[serde(rename = "max_open_files")]
    #[schemars(range(min = 64, max = MANY))]
    pub open_files: u64,
    /// How much private memory each process of a command may have. By default as much as there are
    /// addresses: sanitizers reserve terabytes, and would not start with less.
    #[serde(rename = "max_process_bytes")]
    #[schemars(range(min = LEAST_MEMORY, max = MOST_BYTES))]
    pub process_bytes: u64,
    /// How much `/dev/shm` of a command may hold; never more than a quarter of the memory of the machine
    /// or container.
    #[serde(rename = "max_shared_memory_bytes")]
    #[schemars(range(min = 1, max = MOST_BYTES))]
    pub shared_bytes: u64,
    /// How much memory all processes of a command may take, where Pixir can make a control group (cgroup
    /// v2, delegated); never more than seven eighths of the memory of the machine or container.
    #[serde(rename = "max_memory_bytes")]
    #[schemars(range(min = LEAST_MEMORY, max = MOST_BYTES))]
    pub memory_bytes: u64,
}

/// How strict the sandbox is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SandboxLevel {
    /// No sandbox at all; somebody said so.
    Off,
    /// As much as this machine can enforce.
    Workspace,
    /// The same, and no command runs with less than all of it.
    Required,
    /// Commands write nothing.
    ReadOnly,
}

impl SandboxLevel {
    /// The word for it, in flags and settings.
    pub fn name(self) -> &'static str {
        match self {
            SandboxLevel::Off => "off",
            SandboxLevel::Workspace => "workspace",
            SandboxLevel::Required => "required",
            SandboxLevel::ReadOnly => "read-only",
        }
    }
}

/// Who gets the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NetworkRule {
    /// Every command.
    Allow,
    /// A command that says so.
    Declare,
    /// No command.
    Deny,
}

/// Who may use Unix sockets where those of other programs cannot be hidden from commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SocketRule {
    /// A command that says so.
    Declare,
    /// A command that says so, once a person has agreed; in `auto` none.
    Ask,
    /// No command.
    Deny,
}

impl Default for Sandbox {
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

impl Sandbox {
    /// Whether these settings allow something that others do not.
    pub fn is_wider_than(&self, other: &Self) -> bool {
        let loses_the_floor =
            other.level == SandboxLevel::Required && self.level != SandboxLevel::Required;
        self.level < other.level
            || loses_the_floor
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
