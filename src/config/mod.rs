//! Config: the settings of one run, resolved once at the door and handed down as a value.
//!
//! Defaults, then the user's file, then the few keys a Workspace may set, then the environment,
//! then flags. Below `cli` nobody reads a file or a variable for settings.

mod file;
mod keys;
mod models;
mod read;
#[cfg(test)]
mod tests;
mod tree;

use std::path::PathBuf;
use std::time::Duration;

pub use file::{ConfigError, Flags, Loaded, Sources, load};
pub use models::{Model, ModelTable};

use crate::event::PermissionMode;
use crate::paths::Home;

/// The model used when nobody names one.
pub const DEFAULT_MODEL: &str = "gpt-5.5";

/// Everything a run needs to know.
#[derive(Debug, Clone)]
pub struct Config {
    pub home: Home,
    pub model: String,
    /// A flag or the environment named the model, so a resumed Session switches to it.
    pub model_named: bool,
    /// `None` lets the model's own default decide.
    pub effort: Option<String>,
    pub permission_mode: PermissionMode,
    /// `None` means unlimited.
    pub max_iterations: Option<u32>,
    pub durability: Durability,
    pub dry_run: bool,
    pub retry: Retry,
    pub stream: Stream,
    pub bash: Bash,
    pub grace: Grace,
    /// How much text of one tool result reaches the model, in bytes.
    pub output_limit: usize,
    /// How much of the AGENTS.md chain is injected, in bytes.
    pub instructions_limit: usize,
}

impl Config {
    /// The defaults, for a user whose folder is `home`.
    pub fn new(home: Home) -> Self {
        Self {
            home,
            model: DEFAULT_MODEL.to_owned(),
            model_named: false,
            effort: None,
            permission_mode: PermissionMode::Auto,
            max_iterations: None,
            durability: Durability::Turn,
            dry_run: false,
            retry: Retry::default(),
            stream: Stream::default(),
            bash: Bash::default(),
            grace: Grace::default(),
            output_limit: 16 * 1024,
            instructions_limit: 32 * 1024,
        }
    }
}

/// When the Log is forced to the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// At `user_message`, before a mutating tool, and at the Turn's end.
    Turn,
    /// At every Event.
    Event,
    /// Never; the kernel decides.
    None,
}

/// How often and how patiently a failed Provider call is tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retry {
    pub max_attempts: u32,
    pub base: Duration,
    pub cap: Duration,
    /// The longest Retry-After that is waited for.
    pub retry_after_cap: Duration,
}

impl Default for Retry {
    fn default() -> Self {
        Self {
            max_attempts: 5,
            base: Duration::from_millis(500),
            cap: Duration::from_secs(8),
            retry_after_cap: Duration::from_secs(60),
        }
    }
}

/// How long a Provider stream may be silent, and how long a call may take in all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stream {
    pub idle: Duration,
    pub total: Duration,
    pub connect: Duration,
}

impl Default for Stream {
    fn default() -> Self {
        Self {
            idle: Duration::from_secs(180),
            total: Duration::from_secs(600),
            connect: Duration::from_secs(30),
        }
    }
}

/// Limits of host commands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bash {
    pub timeout: Duration,
    pub max_timeout: Duration,
    /// How long background children may finish by themselves after the command has exited.
    pub drain: Duration,
    /// Environment variables the user lets through, beyond the allow-list.
    pub env: Vec<String>,
    /// Folders put before PATH; none by default.
    pub shell: Option<PathBuf>,
}

impl Default for Bash {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(120),
            max_timeout: Duration::from_secs(600),
            drain: Duration::from_millis(100),
            env: Vec::new(),
            shell: None,
        }
    }
}

/// How politely things are stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grace {
    /// From the interrupt of a Turn to its abort.
    pub turn: Duration,
    /// From TERM to KILL for processes.
    pub process: Duration,
}

impl Default for Grace {
    fn default() -> Self {
        Self { turn: Duration::from_millis(500), process: Duration::from_millis(300) }
    }
}
