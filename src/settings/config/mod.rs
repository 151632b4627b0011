//! Config: the settings of one run, resolved once at start-up and passed down as a value.
//!
//! Layers, weakest first: defaults, the user's file, the few keys a Workspace may set, the environment, flags. Modules
//! below `cli` read neither files nor variables for settings.
//!
//! The types are the table of settings: each field is a key of a file, its doc comment is the reference, and its
//! attributes say which values are accepted. `workspace` marks keys that a Workspace may set: only those that cannot
//! widen trust.

mod answer_schema;
mod duration;
mod edit;
mod forms;
mod keys;
mod loader;
pub mod mcp;
pub mod models;
mod origin;
mod prices;
mod provider_servers;
mod read;
mod sandbox;
#[cfg(test)]
mod tests;
mod tree;
mod trust_requests;

use std::path::PathBuf;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use answer_schema::{AnswerMismatch, AnswerSchema};
pub use duration::parse_duration;
pub use edit::{SettingEdit, edit_setting};
pub use keys::{SettingKey, canonical_name, settings_reference};
pub use loader::{ConfigFlags, ConfigSources, LoadedConfig, load_config};
pub use mcp::{McpFolder, McpOrigin, McpServer, McpSettings, McpTransport};
pub use models::{ContextWindowSize, ImageSupport};
pub use origin::SettingOrigins;
pub use prices::Prices;
pub use provider_servers::{ProviderServer, ProviderServers, ServerPolicy};
pub use sandbox::{ADDRESS_SPACE, NetworkRule, SandboxLevel, SandboxSettings, SocketRule};
pub use trust_requests::{TrustRequest, trust_requests};

use crate::base::names::names;
use crate::base::paths::Home;
use crate::record::event::PermissionMode;
use crate::settings::bounds::WriteGlobs;
use crate::settings::role::Role;

/// The default model.
pub const DEFAULT_MODEL: &str = "gpt-5.5";

/// The default limit of model calls in a Turn.
const MAX_ITERATIONS: u32 = 500;

const MINUTE: u64 = 60_000;
const HOUR: u64 = 3_600_000;
const DAY: u64 = 24 * HOUR;
const TRILLION: u64 = 1_000_000_000_000;
const TEBIBYTE: u64 = 1 << 40;

/// All settings of a run.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of its own")]
pub struct Config {
    /// The user's own Pixir folder.
    #[serde(skip)]
    pub home: Home,
    /// The model to use.
    #[schemars(schema_with = "forms::word", extend("workspace" = true))]
    pub model: String,
    /// Whether a flag or the environment names the model, so that a resumed Session switches to it.
    #[serde(skip)]
    pub model_named: bool,
    /// Reasoning effort, such as low, medium or high; without it, the model's own default.
    #[schemars(schema_with = "forms::word", extend("workspace" = true))]
    pub effort: Option<String>,
    /// Permission mode: run everything (`auto`), ask before changes (`ask`), or change nothing (`read_only`).
    #[schemars(schema_with = "forms::mode")]
    pub permission_mode: PermissionMode,
    /// Whether a flag or the environment names the mode, so that a resumed Session switches to it.
    #[serde(skip)]
    pub mode_named: bool,
    /// Permission mode of Sessions in editors; without it, `ask`, or `permission_mode` if that is stricter.
    #[serde(rename = "acp.mode")]
    #[schemars(schema_with = "forms::mode")]
    pub acp_mode: Option<PermissionMode>,
    /// The role of the Session; `None` keeps its role, which is `build` for a new one.
    #[serde(skip)]
    pub role: Option<&'static Role>,
    /// The globs of the paths that tools may write in this run.
    #[serde(skip)]
    pub writes: WriteGlobs,
    /// How many calls of the model a Turn may make; 0 for no limit.
    #[serde(with = "forms::zero_is_none")]
    #[schemars(with = "u32", range(max = 1_000_000), extend("workspace" = true))]
    pub max_iterations: Option<u32>,
    /// Spending and time limits.
    #[serde(flatten)]
    pub budget: BudgetLimits,
    /// Prices in dollars per million tokens, by model: `{"m": {"input": 1, "cached_input": 0.1, "output": 8}}`.
    #[schemars(with = "forms::EntryTable", extend("accepts" = "an object of prices by model"))]
    pub prices: Prices,
    /// Whether the Provider may search the web for the model.
    pub web_search: bool,
    /// Other servers with the Responses API, by name: `base_url`, `key_env`, `policy`, `models`.
    #[serde(rename = "providers")]
    #[schemars(with = "forms::EntryTable", extend("accepts" = "an object of servers by name"))]
    pub servers: ProviderServers,
    /// The entry of `providers` to use.
    #[schemars(schema_with = "forms::word")]
    pub provider: Option<String>,
    /// MCP servers.
    #[serde(flatten)]
    pub mcp: McpSettings,
    /// Credential to use: subscription or API key; without it, the subscription if there is one, else the key.
    #[schemars(with = "String", extend("enum" = ["chatgpt", "api-key"]))]
    pub credential: Option<CredentialKind>,
    /// When the Log is synced to disk: at the commit points of a Turn, at every Event, or never.
    #[schemars(with = "String", extend("enum" = ["turn", "event", "none"]))]
    pub durability: LogDurability,
    /// Whether tool calls that change something are only planned, not run.
    #[serde(skip)]
    pub dry_run: bool,
    /// Retries of failed Provider calls.
    pub retry: RetryPolicy,
    /// Timeouts of Provider calls.
    pub stream: StreamTimeouts,
    /// Transport of Provider calls; without it, the transport that the endpoint prefers.
    #[schemars(with = "String", extend("enum" = ["auto", "websocket", "sse"]))]
    pub transport: Option<TransportSetting>,
    /// Files of CA certificates to trust, in addition to the system's.
    #[serde(rename = "tls.extra_roots")]
    #[schemars(schema_with = "forms::files")]
    pub extra_roots: Vec<PathBuf>,
    /// Limits of Subagents.
    pub subagents: SubagentLimits,
    /// Limits of host commands.
    pub bash: BashLimits,
    /// The sandbox of host commands.
    #[schemars(extend("workspace" = true))]
    pub sandbox: SandboxSettings,
    /// Grace periods when Turns and processes are stopped.
    pub grace: GracePeriods,
    /// How many bytes of one tool result reach the model.
    #[schemars(range(min = 1_024, max = 1_048_576), extend("workspace" = true))]
    pub output_limit: usize,
    /// Size of the model's context window in tokens; without it, as listed by the endpoint or the table of models.
    #[schemars(range(min = 1_000, max = TRILLION))]
    pub context_window: Option<u64>,
    /// Compaction of the context.
    pub compaction: CompactionSettings,
    /// Limits of Workspace copies for Subagents.
    pub workspaces: WorkspaceCopyLimits,
    /// Limits of what is stored for undo.
    pub undo: UndoLimits,
    /// How many bytes of the AGENTS.md files reach the model.
    #[schemars(range(max = 1_048_576))]
    pub instructions_limit: usize,
    /// The JSON schema of the final answer.
    #[serde(skip)]
    pub answer_schema: Option<AnswerSchema>,
}

impl Config {
    /// The defaults, with `home` as the user's Pixir folder.
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
            durability: LogDurability::Turn,
            dry_run: false,
            retry: RetryPolicy::default(),
            stream: StreamTimeouts::default(),
            transport: None,
            extra_roots: Vec::new(),
            bash: BashLimits::default(),
            sandbox: SandboxSettings::default(),
            grace: GracePeriods::default(),
            output_limit: 16 * 1024,
            instructions_limit: 32 * 1024,
            undo: UndoLimits::default(),
            context_window: None,
            compaction: CompactionSettings::default(),
            workspaces: WorkspaceCopyLimits::default(),
            budget: BudgetLimits::default(),
            prices: Prices::default(),
            web_search: false,
            answer_schema: None,
            servers: ProviderServers::default(),
            provider: None,
            mcp: McpSettings::default(),
            subagents: SubagentLimits::default(),
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self::new(Home::new(PathBuf::new()))
    }
}

/// Hard limits; a request that would exceed one of them is not sent.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct BudgetLimits {
    /// How many tokens a whole Session may use.
    #[schemars(range(min = 1, max = TRILLION))]
    pub max_tokens_total: Option<u64>,
    /// How many dollars a whole Session may cost; needs the model's price.
    #[schemars(schema_with = "forms::dollars")]
    pub max_cost: Option<f64>,
    /// How many requests a run may make, retries included.
    #[schemars(range(min = 1, max = TRILLION))]
    pub max_requests: Option<u64>,
    /// How long a run may take.
    #[serde(with = "forms::span")]
    #[schemars(schema_with = "forms::span::schema")]
    pub timeout: Option<Duration>,
}

/// The two kinds of credential.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum CredentialKind {
    /// A ChatGPT subscription, signed in with `pixir login`.
    #[serde(rename = "chatgpt")]
    ChatGpt,
    /// `OPENAI_API_KEY`.
    #[serde(rename = "api-key")]
    ApiKey,
}

names!(CredentialKind { ChatGpt = "chatgpt", ApiKey = "api-key" });

/// When the Log is synced to disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogDurability {
    /// At `user_message`, before a mutating tool, and at the Turn's end.
    Turn,
    /// At every Event.
    Event,
    /// Never; the kernel decides.
    None,
}

/// Retries of failed Provider calls: how many, and the waits between them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct RetryPolicy {
    /// How many attempts a Provider call has in all.
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

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            max_attempts: 5,
            base: Duration::from_millis(500),
            cap: Duration::from_secs(8),
            retry_after_cap: Duration::from_mins(1),
        }
    }
}

/// Timeouts of a Provider call: silence of its stream, total time, and connecting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct StreamTimeouts {
    /// How long a Provider may be silent.
    #[serde(rename = "idle_ms", with = "forms::millis")]
    #[schemars(with = "u64", range(min = 1, max = DAY))]
    pub idle: Duration,
    /// How long one Provider call may take.
    #[serde(rename = "total_ms", with = "forms::millis")]
    #[schemars(with = "u64", range(min = 1, max = DAY))]
    pub total: Duration,
    /// How long connecting may take.
    #[serde(rename = "connect_ms", with = "forms::millis")]
    #[schemars(with = "u64", range(min = 1, max = HOUR))]
    pub connect: Duration,
}

impl Default for StreamTimeouts {
    fn default() -> Self {
        Self {
            idle: Duration::from_mins(3),
            total: Duration::from_mins(10),
            connect: Duration::from_secs(30),
        }
    }
}

/// The transport of Provider calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TransportSetting {
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
pub struct BashLimits {
    /// The default timeout of a command.
    #[serde(rename = "timeout_ms", with = "forms::millis")]
    #[schemars(with = "u64", range(min = 1, max = DAY), extend("workspace" = true))]
    pub timeout: Duration,
    /// The longest timeout that a command may ask for.
    #[serde(rename = "max_timeout_ms", with = "forms::millis")]
    #[schemars(with = "u64", range(min = 1, max = DAY))]
    pub max_timeout: Duration,
    /// How many commands may run at once, in all Sessions of the process.
    #[schemars(range(min = 1, max = 1_000))]
    pub max_commands: usize,
    /// How many commands a Session may have in the background.
    #[schemars(range(max = 1_000))]
    pub max_background: usize,
    /// How long child processes may go on after their command has ended.
    #[serde(rename = "drain_ms", with = "forms::millis")]
    #[schemars(with = "u64", range(max = MINUTE))]
    pub drain: Duration,
    /// Environment variables that commands inherit beyond the built-in list; never keys of Providers.
    #[schemars(schema_with = "forms::variables")]
    pub env: Vec<String>,
    /// The shell that runs commands.
    #[schemars(schema_with = "forms::file")]
    pub shell: Option<PathBuf>,
}

impl Default for BashLimits {
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

/// Grace periods when Turns and processes are stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct GracePeriods {
    /// How long an interrupted Turn may take to end by itself.
    #[serde(rename = "turn_ms", with = "forms::millis")]
    #[schemars(with = "u64", range(max = MINUTE))]
    pub turn: Duration,
    /// How long a process has between SIGTERM and SIGKILL.
    #[serde(rename = "process_ms", with = "forms::millis")]
    #[schemars(with = "u64", range(max = MINUTE))]
    pub process: Duration,
}

impl Default for GracePeriods {
    fn default() -> Self {
        Self { turn: Duration::from_millis(500), process: Duration::from_millis(300) }
    }
}

/// Limits of what is stored for undo.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct UndoLimits {
    /// Whether file contents are stored, so that Turns can be undone.
    pub enabled: bool,
    /// The largest file whose changes by commands can be undone.
    #[serde(rename = "max_file_bytes")]
    #[schemars(range(max = 1_073_741_824))]
    pub largest_file: u64,
    /// How many bytes are stored for undo in a Workspace; beyond that, only changes by file tools can be undone.
    #[schemars(range(max = TEBIBYTE))]
    pub max_bytes: u64,
    /// How many files outside git are stored for undoing changes by commands; beyond that, only changes by file tools
    /// can be undone.
    #[schemars(range(max = 1_000_000_000))]
    pub max_files: usize,
}

impl Default for UndoLimits {
    fn default() -> Self {
        Self { enabled: true, largest_file: 10 << 20, max_bytes: 1 << 30, max_files: 50_000 }
    }
}

/// Limits of Workspace copies for Subagents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct WorkspaceCopyLimits {
    /// How many files a Workspace copy for a Subagent may have.
    #[serde(rename = "max_files")]
    #[schemars(range(min = 1, max = 10_000_000))]
    pub most_files: usize,
    /// How large a Workspace copy for a Subagent may be.
    #[serde(rename = "max_bytes")]
    #[schemars(range(min = 1, max = TEBIBYTE))]
    pub largest_sum: u64,
    /// The largest file of a Workspace copy for a Subagent.
    #[serde(rename = "max_file_bytes")]
    #[schemars(range(min = 1, max = TEBIBYTE))]
    pub largest_file: u64,
}

impl Default for WorkspaceCopyLimits {
    fn default() -> Self {
        Self { most_files: 1_000_000, largest_file: 256 << 20, largest_sum: 1 << 30 }
    }
}

/// Limits of Subagents: number, depth and time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct SubagentLimits {
    /// How many Subagents of one Session may run at a time.
    #[schemars(range(min = 1, max = 4_096))]
    pub max_running: usize,
    /// How many Subagents may run at a time in this process.
    #[schemars(range(min = 1, max = 4_096))]
    pub max_in_process: usize,
    /// How many Subagents may be started in one run, all generations together.
    #[schemars(range(min = 1, max = 100_000))]
    pub max_per_run: usize,
    /// How deep Subagents may start Subagents; 0 forbids Subagents.
    #[schemars(range(max = 8))]
    pub max_depth: u32,
    /// How long a Subagent may work, without the time that it is queued.
    #[serde(rename = "timeout_ms", with = "forms::millis")]
    #[schemars(with = "u64", range(min = 1, max = DAY))]
    pub timeout: Duration,
    /// The longest timeout of a Subagent that the model may ask for.
    #[serde(rename = "max_timeout_ms", with = "forms::millis")]
    #[schemars(with = "u64", range(min = 1, max = DAY))]
    pub max_timeout: Duration,
    /// How many more attempts a read-only Subagent has after a temporary failure of the Provider.
    #[schemars(range(max = 5))]
    pub retries: u32,
}

impl Default for SubagentLimits {
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

/// Compaction of a context window that fills up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct CompactionSettings {
    /// Whether the context is compacted automatically when the window fills up.
    pub auto: bool,
    /// Whether the Session's own model summarises old Turns for compaction.
    pub model_assisted: bool,
}

impl Default for CompactionSettings {
    fn default() -> Self {
        Self { auto: true, model_assisted: false }
    }
}
