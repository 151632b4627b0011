//! The sandbox of commands: file, network and memory limits, described by a [`SandboxSpec`] and
//! enforced by the kernel.
//!
//! Pixir computes the spec (`spec`) and sends it to the supervisor of the command, which builds the
//! mounts that it describes (`mounts`), drops its own rights and system calls (`confine`), and only
//! then starts the command. Files that the kernel cannot protect on this machine are checked and
//! restored afterwards (`guard`).

mod bounded_spec;
mod cache_mounts;
mod cache_slots;
mod cache_spec;
mod capabilities;
mod cargo_home;
mod cgroup;
mod confine;
mod cover_layer;
mod credentials;
mod folder_entries;
mod folder_tree;
mod folder_views;
mod git;
mod git_config;
mod guard;
mod hidden_paths;
mod hidden_watch;
mod home_list;
mod home_view;
mod landlock_rules;
mod limits;
mod loopback;
mod memory;
mod mounts;
mod name_cache;
mod name_record;
mod nested_repositories;
mod neutralise;
mod new_repos;
mod pinned_path;
mod program_files;
mod recent_specs;
mod scratch;
mod seccomp_filter;
mod spec;
mod system_paths;
#[cfg(test)]
mod tests;
mod visibility;

pub use cache_mounts::PrivateCaches;
pub use cache_slots::{free_slots, remove_slot};
pub use cache_spec::CacheAccess;
pub use cgroup::{CommandGroup, DelegatedGroup, LimitEvents, join as join_group};
pub use confine::{Enforcement, Isolation, confine};
pub use credentials::{CREDENTIALS, CredentialPlace};
pub use folder_views::FolderViews;
pub use guard::{Guard, none_appeared, remove_appeared};
pub use hidden_paths::{HiddenPath, HiddenPaths};
pub use hidden_watch::HiddenWatch;
pub use limits::{CommandLimits, has_shared_memory_left};
pub use memory::OomKillCounter;
pub use mounts::{build_mounts, is_replaced as is_private, namespace_flags};
pub use nested_repositories::{NestedRepositories, RepositoryFindings};
pub use neutralise::ASIDE_SUFFIX;
pub use new_repos::DotGitBefore;
pub use scratch::ScratchFolder;
pub use spec::{FOLDER_VARIABLES, Sandbox, SandboxRequest, SandboxSpec};

use crate::base::names::names;
use crate::record::event::PermissionMode;
use crate::settings::config::SandboxLevel;

/// Sandbox profile: which files a command may write, and whether it may use the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Profile {
    /// Writes beneath the Workspace, a private temp folder and the configured roots.
    Workspace,
    /// Writes only a temp folder that is removed afterwards, and has no network.
    #[default]
    ReadOnly,
    /// No sandbox, by the user's choice.
    Off,
}

names!(Profile { Workspace = "workspace", ReadOnly = "read-only", Off = "off" });

impl Profile {
    /// The profile for the configured level and the permission mode of a Session, which can only restrict it.
    pub fn for_mode(level: SandboxLevel, mode: &PermissionMode) -> Self {
        match (level, mode) {
            (SandboxLevel::Off, _) => Profile::Off,
            (SandboxLevel::ReadOnly, _)
            | (_, PermissionMode::ReadOnly | PermissionMode::Other(_)) => Profile::ReadOnly,
            (SandboxLevel::Workspace | SandboxLevel::Required, _) => Profile::Workspace,
        }
    }
}

/// The level to which this machine can enforce a [`Profile`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EnforcementLevel {
    /// Namespaces, Landlock and seccomp.
    Full,
    /// Landlock and seccomp; some changes are only detected and undone afterwards.
    Partial,
    /// No sandbox was requested.
    Off,
}

names!(EnforcementLevel { Full = "full", Partial = "partial", Off = "off" });

/// The commands that may create named Unix sockets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LocalSockets {
    /// All commands, because sockets of other programs are out of reach.
    Harmless,
    /// Commands that declare it, because they can reach sockets of other programs.
    OnDeclaration,
}

names!(LocalSockets { Harmless = "harmless", OnDeclaration = "on-declaration" });

impl LocalSockets {
    /// Reads the word back.
    pub fn from_name(name: &str) -> Option<Self> {
        let all = [LocalSockets::Harmless, LocalSockets::OnDeclaration];
        all.into_iter().find(|sockets| sockets.name() == name)
    }
}

impl EnforcementLevel {
    /// Reads the word back.
    pub fn from_name(name: &str) -> Option<Self> {
        [EnforcementLevel::Full, EnforcementLevel::Partial, EnforcementLevel::Off]
            .into_iter()
            .find(|level| level.name() == name)
    }
}
