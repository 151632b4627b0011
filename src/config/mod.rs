//! Config: the settings of one run, resolved once at the door and handed down as a value.
//!
//! Defaults, then the user's file, then the few keys a Workspace may set, then the environment,
//! then flags. Below `cli` nobody reads a file or a variable for settings.
//!
//! The types are the table of settings: each field is one of a file, its doc comment is the manual, and its
//! attributes say what is accepted. `workspace` marks what a Workspace may set: only what cannot widen trust.

mod duration;
mod edit;
mod file;
mod forms;
mod keys;
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

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use duration::duration;
pub use edit::{Edit, change};
pub use file::{Flags, Loaded, Sources, load};
pub use keys::{Key, canonical, reference};
pub use mcp::{Mcp, McpFolder, McpOrigin, McpServer, McpTransport};
pub use models::{Sight, Window};
pub use origin::Origins;
pub use prices::Prices;
pub use sandbox::{ADDRESS_SPACE, NetworkRule, Sandbox, SandboxLevel, SocketRule};
pub use schema::{AnswerSchema, Miss};
pub use servers::{Policy, Server, Servers};
pub use wanted::{Wanted, wanted};

use crate::bounds::WriteGlobs;
use crate::event::PermissionMode;
use crate::paths::Home;
use crate::role::Role;

/// The model used when nobody names one.
pub const DEFAULT_MODEL: &str = "gpt-5.5";

/// How many calls of the model a Turn may make when nobody says otherwise.
const MAX_ITERATIONS: u32 = 500;

const MINUTE: u64 = 60_000;
const HOUR: u64 = 3_600_000;
const DAY: u64 = 24 * HOUR;
const MANY: u64 = 1_000_000_000_000;
const TEBIBYTE: u64 = 1 << 40;

/// Everything a run needs to know.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of its own")]
pub struct Config {
    /// The user's own folder.
    #[serde(skip)]
    pub home: Home,
    /// The model that is asked.
    #[schemars(schema_with = "forms::word", extend("workspace" = true))]
    pub model: String,
    /// A flag or the environment named the model, so a resumed Session switches to it.
    #[serde(skip)]
    pub model_named: bool,
    /// How hard the model thinks, such as low, medium or high; without it, the model's own default.
    #[schemars(schema_with = "forms::word", extend("workspace" = true))]
    pub effort: Option<String>,
    /// What happens unasked: everything, nothing that changes something, or nothing at all.
    #[schemars(schema_with = "forms::mode")]
    pub permission_mode: PermissionMode,
    /// A flag or the environment named the mode, so a resumed Session switches to it.
    #[serde(skip)]
    pub mode_named: bool,
    /// The same for Sessions of editors; without it they ask, or are as strict as everywhere.
    #[serde(rename = "acp.mode")]
    #[schemars(schema_with = "forms::mode")]
    pub acp_mode: Option<PermissionMode>,
    /// What the Session is for; `None` keeps what it is, and a new one builds.
    #[serde(skip)]
    pub role: Option<&'static Role>,
    /// Where this run lets tools write.
    #[serde(skip)]
    pub writes: WriteGlobs,
    /// How many calls of the model a Turn may make; 0 for no limit.
    #[serde(with = "forms::zero_is_none")]
    #[schemars(with = "u32", range(max = 1_000_000), extend("workspace" = true))]
    pub max_iterations: Option<u32>,
    /// What the run may use up.
    #[serde(flatten)]
    pub budget: Budget,
    /// Dollars per million tokens, by model: `{"m": {"input": 1, "cached_input": 0.1, "output": 8}}`.
    #[schemars(with = "forms::Table", extend("accepts" = "an object of prices by model"))]
    pub prices: Prices,
    /// Whether the Provider may search the web for the model.
    pub web_search: bool,
    /// Other servers that speak the dialect, by name: `base_url`, `key_env`, `policy`, `models`.
    #[serde(rename = "providers")]
    #[schemars(with = "forms::Table", extend("accepts" = "an object of servers by name"))]
    pub servers: Servers,
    /// Which of `providers` is asked.
    #[schemars(schema_with = "forms::word")]
    pub provider: Option<String>,
    /// Servers that offer tools.
    #[serde(flatten)]
    pub mcp: Mcp,
    /// Who pays; without it, the subscription if there is one, else the key.
    #[schemars(with = "String", extend("enum" = ["chatgpt", "api-key"]))]
    pub credential: Option<CredentialKind>,
    /// When the Log is forced to the disk: at the commit points of a Turn, at every Event, or never.
    #[schemars(with = "String", extend("enum" = ["turn", "event", "none"]))]
    pub durability: Durability,
    /// Plan calls that change something instead of running them.
    #[serde(skip)]
    pub dry_run: bool,
    /// How failed Provider calls are tried again.
    pub retry: Retry,
    /// How long a Provider may take.
    pub stream: Stream,
    /// Which wire is used; without it, what the endpoint prefers.
    #[schemars(with = "String", extend("enum" = ["auto", "websocket", "sse"]))]
    pub transport: Option<Transport>,
    /// Certificate files that are trusted beside the system's.
    #[serde(rename = "tls.extra_roots")]
    #[schemars(schema_with = "forms::files")]
    pub extra_roots: Vec<PathBuf>,
    /// Limits of Subagents.
    pub subagents: Subagents,
    /// Limits of host commands.
    pub bash: Bash,
    /// What holds host commands.
    #[schemars(extend("workspace" = true))]
    pub sandbox: Sandbox,
    /// How politely things are stopped.
    pub grace: Grace,
    /// How many bytes of one tool result reach the model.
    #[schemars(range(min = 1_024, max = 1_048_576), extend("workspace" = true))]
    pub output_limit: usize,
    /// How many tokens the model's window has; without it, as the table of models says.
    #[schemars(range(min = 1_000, max = MANY))]
    pub context_window: Option<u64>,
    /// How room is made in it.
    pub compaction: Compaction,
    /// Limits of the Workspaces of children.
    pub workspaces: Workspaces,
    /// What is kept so that a Turn can be taken back.
    pub undo: Undo,
    /// How many bytes of the chain of AGENTS.md reach the model.
    #[schemars(range(max = 1_048_576))]
    pub instructions_limit: usize,
    /// What the final answer must look like.
    #[serde(skip)]
    pub answer_schema: Option<AnswerSchema>,
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

impl Default for Config {
    fn default() -> Self {
        Self::new(Home::new(PathBuf::new()))
    }
}

/// Hard limits; a request that would leave beyond one of them does not leave.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Budget {
    /// How many tokens a whole Session may use.
    #[schemars(range(min = 1, max = MANY))]
    pub max_tokens_total: Option<u64>,
    /// How many dollars a whole Session may cost; needs the model's price.
    #[schemars(schema_with = "forms::dollars")]
    pub max_cost: Option<f64>,
    /// How many requests a run may make, retries included.
    #[schemars(range(min = 1, max = MANY))]
    pub max_requests: Option<u64>,
    /// How long a run may take.
    #[serde(with = "forms::span")]
    #[schemars(schema_with = "forms::span::schema")]
    pub timeout: Option<Duration>,
}

/// The two ways to pay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum CredentialKind {
    /// A ChatGPT subscription, signed in with `pixir login`.
    #[serde(rename = "chatgpt")]
    ChatGpt,
    /// `OPENAI_API_KEY`.
    #[serde(rename = "api-key")]
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// At `user_message`, before a mutating tool, and at the Turn's end.
    Turn,
    /// At every Event.
    Event,
    /// Never; the kernel decides.
    None,
}

/// How often and how patiently a failed Provider call is tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[expect(clippy::struct_field_names, reason = "Retry-After is a name of its own")]
pub struct Retry {
    /// How often a Provider call is tried in all.
    #[schemars(range(min = 1, max = 100))]
    pub max_attempts: u32,
    /// The first wait between two attempts; later ones double.
    #[serde(rename = "base_ms", with = "forms::millis")]
    #[schemars(with = "u64", range(max = HOUR))]
    pub base: Duration,
    /// The longest wait that Pixir chooses itself.
    #[serde(rename = "cap_ms", with = "forms::millis")]
    #[schemars(with = "u64", range(max = HOUR))]
    pub cap: Duration,
    /// The longest wait that a Provider may ask for.
    #[serde(rename = "retry_after_cap_ms", with = "forms::millis")]
    #[schemars(with = "u64", range(max = DAY))]
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Stream {
    /// How long a Provider may be silent.
    #[serde(rename = "idle_ms", with = "forms::millis")]
    #[schemars(with = "u64", range(min = 1, max = DAY))]
    pub idle: Duration,
    /// How long one Provider call may take.
    #[serde(rename = "total_ms", with = "forms::millis")]
    #[schemars(with = "u64", range(min = 1, max = DAY))]
    pub total: Duration,
    /// How long a connection may take.
    #[serde(rename = "connect_ms", with = "forms::millis")]
    #[schemars(with = "u64", range(min = 1, max = HOUR))]
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// WebSocket, and SSE for a while when that fails.
    Auto,
    /// Only WebSocket.
    WebSocket,
    /// Only SSE.
    Sse,
}

/// Limits of host commands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Bash {
    /// How long a command may take that does not ask for more.
    #[serde(rename = "timeout_ms", with = "forms::millis")]
    #[schemars(with = "u64", range(min = 1, max = DAY), extend("workspace" = true))]
    pub timeout: Duration,
    /// How long a command may ask for.
    #[serde(rename = "max_timeout_ms", with = "forms::millis")]
    #[schemars(with = "u64", range(min = 1, max = DAY))]
    pub max_timeout: Duration,
    /// How many commands run at once, in all Sessions of the process.
    #[schemars(range(min = 1, max = 1_000))]
    pub max_commands: usize,
    /// How many commands a Session may have in the background.
    #[schemars(range(max = 1_000))]
    pub max_background: usize,
    /// How long children of a command may finish by themselves.
    #[serde(rename = "drain_ms", with = "forms::millis")]
    #[schemars(with = "u64", range(max = MINUTE))]
    pub drain: Duration,
    /// Variables that commands inherit beyond the built-in list; never keys of Providers.
    #[schemars(schema_with = "forms::variables")]
    pub env: Vec<String>,
    /// The shell that reads commands.
    #[schemars(schema_with = "forms::file")]
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Grace {
    /// How long an interrupted Turn may take to end by itself.
    #[serde(rename = "turn_ms", with = "forms::millis")]
    #[schemars(with = "u64", range(max = MINUTE))]
    pub turn: Duration,
    /// How long a process has between TERM and KILL.
    #[serde(rename = "process_ms", with = "forms::millis")]
    #[schemars(with = "u64", range(max = MINUTE))]
    pub process: Duration,
}

impl Default for Grace {
    fn default() -> Self {
        Self { turn: Duration::from_millis(500), process: Duration::from_millis(300) }
    }
}

/// What is kept so that a Turn can be taken back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Undo {
    /// Whether what files were is kept, so that Turns can be taken back.
    pub enabled: bool,
    /// The largest file that is kept for what commands change.
    #[serde(rename = "max_file_bytes")]
    #[schemars(range(max = 1_073_741_824))]
    pub largest_file: u64,
    /// How many bytes are kept for undo in a Workspace; beyond that only changes of file tools are covered.
    #[schemars(range(max = TEBIBYTE))]
    pub max_bytes: u64,
    /// How many files that git does not hold are kept for what commands change; beyond that only changes of
    /// file tools are covered.
    #[schemars(range(max = 1_000_000_000))]
    pub max_files: usize,
}

impl Default for Undo {
    fn default() -> Self {
        Self { enabled: true, largest_file: 10 << 20, max_bytes: 1 << 30, max_files: 50_000 }
    }
}

/// How much of a Workspace a child may have a copy of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Workspaces {
    /// How many files a copy for a Subagent may have.
    #[serde(rename = "max_files")]
    #[schemars(range(min = 1, max = 10_000_000))]
    pub most_files: usize,
    /// How large such a copy may be.
    #[serde(rename = "max_bytes")]
    #[schemars(range(min = 1, max = TEBIBYTE))]
    pub largest_sum: u64,
    /// The largest file of such a copy.
    #[serde(rename = "max_file_bytes")]
    #[schemars(range(min = 1, max = TEBIBYTE))]
    pub largest_file: u64,
}

impl Default for Workspaces {
    fn default() -> Self {
        Self { most_files: 100_000, largest_file: 256 << 20, largest_sum: 1 << 30 }
    }
}

/// How many Subagents may work, how deep they may go, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Subagents {
    /// How many Subagents of one Session run at a time.
    #[schemars(range(min = 1, max = 4_096))]
    pub max_running: usize,
    /// How many run at a time in this process, whoever started them.
    #[schemars(range(min = 1, max = 4_096))]
    pub max_in_process: usize,
    /// How many may be started in one run, all generations together.
    #[schemars(range(min = 1, max = 100_000))]
    pub max_per_run: usize,
    /// How deep Subagents may start Subagents; 0 for none at all.
    #[schemars(range(max = 8))]
    pub max_depth: u32,
    /// How long one may work, without the time it waits for its turn.
    #[serde(rename = "timeout_ms", with = "forms::millis")]
    #[schemars(with = "u64", range(min = 1, max = DAY))]
    pub timeout: Duration,
    /// The longest time that the model may ask for.
    #[serde(rename = "max_timeout_ms", with = "forms::millis")]
    #[schemars(with = "u64", range(min = 1, max = DAY))]
    pub max_timeout: Duration,
    /// How often one that only reads is tried again when the Provider fails in passing.
    #[schemars(range(max = 5))]
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Compaction {
    /// Whether room is made by itself when the window fills up.
    pub auto: bool,
    /// Whether the Session's own model puts old Turns into words for it.
    pub model_assisted: bool,
}

impl Default for Compaction {
    fn default() -> Self {
        Self { auto: true, model_assisted: false }
    }
}
