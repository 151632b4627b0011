//! Settings of the sandbox: how strict, which network, and what beside the Workspace.

use std::path::PathBuf;

/// Caches of package managers; never programs or settings.
const DEFAULT_CACHES: &[&str] =
    &["~/.cargo/registry", "~/.cargo/git", "~/.npm/_cacache", "~/.cache"];

/// The addresses of a process on most machines; as much memory as this is no limit.
pub const ADDRESS_SPACE: u64 = 1 << 47;

/// What holds host commands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sandbox {
    pub level: SandboxLevel,
    pub network: NetworkRule,
    pub local_sockets: SocketRule,
    /// Writable beside the Workspace; `~` is the user's home.
    pub write: Vec<PathBuf>,
    /// Readable in home folders, beside what always is.
    pub read: Vec<PathBuf>,
    /// Package caches that commands write through private layers; `~` is the user's home.
    pub caches: Vec<PathBuf>,
    /// How large the private layers of one slot may become before they are removed.
    pub cache_bytes: u64,
    /// Unreadable beside what always is.
    pub hide: Vec<PathBuf>,
    /// How many processes a command may have.
    pub processes: u64,
    /// How large a file may become.
    pub file_bytes: u64,
    /// How many files a process may have open.
    pub open_files: u64,
    /// How much private memory a process may have.
    pub process_bytes: u64,
    /// How much `/dev/shm` may hold.
    pub shared_bytes: u64,
    /// How much memory all processes of a command may take.
    pub memory_bytes: u64,
}

/// How strict the sandbox is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
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
    /// Every one, in the order of strictness.
    pub const ALL: [SandboxLevel; 4] = [
        SandboxLevel::Off,
        SandboxLevel::Workspace,
        SandboxLevel::Required,
        SandboxLevel::ReadOnly,
    ];

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
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum NetworkRule {
    /// Every command.
    Allow,
    /// A command that says so.
    Declare,
    /// No command.
    Deny,
}

impl NetworkRule {
    /// Every one.
    pub const ALL: [NetworkRule; 3] = [NetworkRule::Allow, NetworkRule::Declare, NetworkRule::Deny];

    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            NetworkRule::Allow => "allow",
            NetworkRule::Declare => "declare",
            NetworkRule::Deny => "deny",
        }
    }
}

/// Who may use Unix sockets where those of other programs cannot be hidden from commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SocketRule {
    /// A command that says so.
    Declare,
    /// A command that says so, once a person has agreed; in `auto` none.
    Ask,
    /// No command.
    Deny,
}

impl SocketRule {
    /// Every one.
    pub const ALL: [SocketRule; 3] = [SocketRule::Declare, SocketRule::Ask, SocketRule::Deny];

    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            SocketRule::Declare => "declare",
            SocketRule::Ask => "ask",
            SocketRule::Deny => "deny",
        }
    }
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
