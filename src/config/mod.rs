//! Config: the settings of one run, resolved once at the door and handed down as a value.
//!
//! Defaults, then the user's file, then the few keys a Workspace may set, then the environment,
//! then flags. Below `cli` nobody reads a file or a variable for settings.

mod duration;
mod edit;
mod file;
mod keys;
mod manual;
pub mod mcp;
pub mod models;
mod origin;
mod prices;
mod read;
mod sandbox;
mod schema;
mod servers;
#[cfg(test)]
mod tests;
mod tree;
mod wanted;

use std::path::PathBuf;
use std::time::Duration;

pub use duration::duration;
pub use edit::{Edit, change};
pub use file::{Flags, Loaded, Sources, load};
pub use keys::Key;
pub use manual::{Entry, accepts, canonical, entries, find, reference};
pub use mcp::{Mcp, McpFolder, McpOrigin, McpServer, McpTransport};
pub use models::{Sight, Window};
pub use origin::Origins;
pub use prices::Prices;
pub use sandbox::{ADDRESS_SPACE, NetworkRule, Sandbox, SandboxLevel, SocketRule};
pub use schema::{AnswerSchema, Miss};
pub use servers::{Server, Servers};
pub use wanted::{Wanted, wanted};

use crate::bounds::WriteGlobs;
use crate::event::PermissionMode;
use crate::paths::Home;
use crate::role::Role;

/// The model used when nobody names one.
pub const DEFAULT_MODEL: &str = "gpt-5.5";

/// How many calls of the model a Turn may make when nobody says otherwise.
const MAX_ITERATIONS: u32 = 500;

/// Everything a run needs to know.
#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of its own")]
pub struct Config {
    /// The user's own folder.
    pub home: Home,
    /// Which model is asked.
    pub model: String,
    /// A flag or the environment named the model, so a resumed Session switches to it.
    pub model_named: bool,
    /// Which credential is to be used; `None` lets Pixir choose.
    pub credential: Option<CredentialKind>,
    /// `None` lets the model's own default decide.
    pub effort: Option<String>,
    /// What may be done without asking.
    pub permission_mode: PermissionMode,
    /// A flag or the environment named the mode, so a resumed Session switches to it.
    pub mode_named: bool,
    /// What editors' Sessions may do without asking; `None` asks, or is as strict as everywhere.
    pub acp_mode: Option<PermissionMode>,
    /// What the Session is for; `None` keeps what it is, and a new one builds.
    pub role: Option<&'static Role>,
    /// Where this run lets tools write.
    pub writes: WriteGlobs,
    /// How many Provider calls a Turn may make; `None` means unlimited.
    pub max_iterations: Option<u32>,
    /// When the Log is forced to the disk.
    pub durability: Durability,
    /// Plan calls that change something instead of running them.
    pub dry_run: bool,
    /// How failed Provider calls are tried again.
    pub retry: Retry,
    /// How long a Provider may take.
    pub stream: Stream,
    /// Which wire is preferred; `None` leaves it to the endpoint.
    pub transport: Option<Transport>,
    /// Certificates that are trusted beside the system's.
    pub extra_roots: Vec<PathBuf>,
    /// Limits of host commands.
    pub bash: Bash,
    /// What holds host commands.
    pub sandbox: Sandbox,
    /// How politely things are stopped.
    pub grace: Grace,
    /// How much text of one tool result reaches the model, in bytes.
    pub output_limit: usize,
    /// How much of the AGENTS.md chain is injected, in bytes.
    pub instructions_limit: usize,
    /// What is kept so that a Turn can be taken back.
    pub undo: Undo,
    /// How many tokens the model's window has; `None` leaves it to what is known of the model.
    pub context_window: Option<u64>,
    /// How room is made in it.
    pub compaction: Compaction,
    /// Limits of the Workspaces of children.
    pub workspaces: Workspaces,
    /// What the run may use up.
    pub budget: Budget,
    /// What tokens cost, where that is known.
    pub prices: Prices,
    /// Whether the Provider may search the web for the model.
    pub web_search: bool,
    /// What the final answer must look like.
    pub answer_schema: Option<AnswerSchema>,
    /// Other servers that speak the dialect, by name.
    pub servers: Servers,
    /// The one of them that is asked; `None` is the credential's own endpoint.
    pub provider: Option<String>,
    /// Servers that offer tools.
    pub mcp: Mcp,
    /// Limits of Subagents.
    pub subagents: Subagents,
}

impl Config {
    /// The defaults, for a user whose folder is `home`.
    pub fn new(home: Home) -> Self {
        Self {
            home,
            model: DEFAULT_MODEL.to_owned(),
            model_named: false,
            credential: None,
            effort: None,
            permission_mode: PermissionMode::Auto,
            mode_named: false,
            acp_mode: None,
            role: None,
            writes: WriteGlobs::default(),
            max_iterations: Some(MAX_ITERATIONS),
            durability: Durability::Turn,
            dry_run: false,
            retry: Retry::default(),
            stream: Stream::default(),
            transport: None,
            extra_roots: Vec::new(),
            bash: Bash::default(),
            sandbox: Sandbox::default(),
            grace: Grace::default(),
            output_limit: 16 * 1024,
            instructions_limit: 32 * 1024,
            undo: Undo::default(),
            context_window: None,
            compaction: Compaction::default(),
            workspaces: Workspaces::default(),
            budget: Budget::default(),
            prices: Prices::default(),
            web_search: false,
            answer_schema: None,
            servers: Servers::default(),
            provider: None,
            mcp: Mcp::default(),
            subagents: Subagents::default(),
        }
    }
}

/// Hard limits; a request that would leave beyond one of them does not leave.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Budget {
    /// Tokens of the whole Session, input and output.
    pub max_tokens_total: Option<u64>,
    /// Estimated dollars of the whole Session.
    pub max_cost: Option<f64>,
    /// Requests of this run, retries included.
    pub max_requests: Option<u64>,
    /// Wall-clock time of this run.
    pub timeout: Option<Duration>,
}

/// The two ways to pay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CredentialKind {
    /// A ChatGPT subscription, signed in with `pixir login`.
    ChatGpt,
    /// `OPENAI_API_KEY`.
    ApiKey,
}

impl CredentialKind {
    /// The word for it, in flags, settings and answers.
    pub fn name(self) -> &'static str {
        match self {
            CredentialKind::ChatGpt => "chatgpt",
            CredentialKind::ApiKey => "api-key",
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
#[expect(clippy::struct_field_names, reason = "Retry-After is a name of its own")]
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
            retry_after_cap: Duration::from_mins(1),
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
            idle: Duration::from_mins(3),
            total: Duration::from_mins(10),
            connect: Duration::from_secs(30),
        }
    }
}

/// Which wire calls to a Provider take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// WebSocket, and SSE for a while when that fails.
    Auto,
    /// Only WebSocket.
    WebSocket,
    /// Only SSE.
    Sse,
}

/// Limits of host commands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bash {
    pub timeout: Duration,
    pub max_timeout: Duration,
    /// How many run at once, in all Sessions of the process.
    pub max_commands: usize,
    /// How many a Session may have in the background.
    pub max_background: usize,
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
            timeout: Duration::from_mins(2),
            max_timeout: Duration::from_mins(10),
            max_commands: 4,
            max_background: 8,
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

/// What is kept so that a Turn can be taken back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Undo {
    pub enabled: bool,
    /// The largest file that is kept for what commands do, in bytes.
    pub largest_file: u64,
    /// All contents that are kept; beyond that only the changes of file tools are covered.
    pub max_bytes: u64,
    /// How many files that git does not hold are kept; beyond that only the changes of file tools are
    /// covered.
    pub max_files: usize,
}

impl Default for Undo {
    fn default() -> Self {
        Self { enabled: true, largest_file: 10 << 20, max_bytes: 1 << 30, max_files: 50_000 }
    }
}

/// How much of a Workspace a child may have a copy of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Workspaces {
    /// How many files and links.
    pub most_files: usize,
    /// The largest file, in bytes.
    pub largest_file: u64,
    /// All of them together.
    pub largest_sum: u64,
}

impl Default for Workspaces {
    fn default() -> Self {
        Self { most_files: 100_000, largest_file: 256 << 20, largest_sum: 1 << 30 }
    }
}

/// How many Subagents may work, how deep they may go, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Subagents {
    /// How many children of one Session work at once.
    pub max_running: usize,
    /// How many work at once in the process.
    pub max_in_process: usize,
    /// How many may be started in one run, all generations together.
    pub max_per_run: usize,
    /// How many generations there may be; with none, nothing is delegated.
    pub max_depth: u32,
    /// How long one may work, unless its parent says otherwise.
    pub timeout: Duration,
    /// The longest that a parent may ask for.
    pub max_timeout: Duration,
    /// How often one that can change nothing is started anew.
    pub retries: u32,
}

impl Default for Subagents {
    fn default() -> Self {
        Self {
            max_running: 8,
            max_in_process: 64,
            max_per_run: 200,
            max_depth: 2,
            timeout: Duration::from_mins(10),
            max_timeout: Duration::from_hours(1),
            retries: 1,
        }
    }
}

/// How room is made in a window that fills up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Compaction {
    /// Whether it is made by itself, before a request that would not fit and after one that did not.
    pub auto: bool,
    /// Whether the Session's own model is asked to put old Turns into words.
    pub model_assisted: bool,
}

impl Default for Compaction {
    fn default() -> Self {
        Self { auto: true, model_assisted: false }
    }
}
