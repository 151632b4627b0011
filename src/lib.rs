//! Pixir: a local-first coding agent. All front-ends share one supervised runtime, and the Log is the truth.
//!
//! Groups of modules, lowest first. A group uses only lower groups; a test checks that.
//!
//! - `base`: no policy, no state: errors, ids, paths, files, secrets, tokens.
//! - `record`: what happened: Events, Log, History, resources, compaction.
//! - `settings`: what the user chose: configuration, roles, write bounds, trust.
//! - `host`: this machine: Workspace, snapshots, sandbox, processes, RPC, HTTP.
//! - `model`: the model's side: credentials, Skills, roles, prompt, providers.
//! - `tools`: the tools that a model may call, and permissions.
//! - `agent`: Turns, Sessions, Subagents, Workflows, the Harness.
//! - `frontends`: terminal, editor, chat, web and command line.
//! - `testing`: scripted model and fixtures for tests, benchmarks and the demo.
//!
//! All groups are private; what an embedder needs is re-exported here. See `examples/embed.rs`.
#![cfg_attr(
    test,
    expect(
        clippy::disallowed_methods,
        reason = "tests make files; the library itself is checked too"
    )
)]

mod agent;
mod base;
mod frontends;
mod host;
mod model;
mod record;
mod settings;
mod testing;
mod tools;

/// The reference page of all settings, for the test that compares it with docs; not a part of the API.
#[doc(hidden)]
pub use settings::config::settings_reference;

/// The schema of Workflows and the reference of their keys, for the test that compares them with docs;
/// not a part of the API.
#[doc(hidden)]
pub use agent::workflow::{
    delegate_reference, delegate_schema, workflow_reference, workflow_schema,
};

/// The scripted model server, which speaks the real protocol: for the demo, tests and benchmarks.
pub use testing::scripted;

/// The schema of the JSON envelope, for the test that compares it with docs; not a part of the API.
#[doc(hidden)]
pub use frontends::render::envelope_schema;

/// Tools without a Session, for tests and benches; not a part of the API.
#[doc(hidden)]
pub use testing::workbench;

/// Access for benchmarks to private modules; not a part of the API.
#[doc(hidden)]
pub use testing::bench;

pub use agent::conversation::{
    Conversation, ConversationError, ExpandedInput, SlashName, UserInput,
};
pub use agent::harness::{
    Child, ChildStatus, ChildView, Harness, HarnessError, HarnessOptions, ProcessLimits,
    SessionTarget, SettingsChange, StartOptions,
};
pub use base::error::{Explain, Kind, Report};
pub use base::id::{CallId, EventId, SessionId};
pub use base::paths::Home;
pub use frontends::cli::{command_grammar, options_text, run};
pub use host::process::{SUPERVISE, supervise};
pub use model::credential::{Credential, CredentialError, FieldPolicy};
pub use record::event::*;
pub use record::history::History;
pub use record::log::{
    LogBreak, LogError, RepairReport, UnfinishedTurn, Verification, repair_log, verify_log,
};
pub use record::resource::{Attachment, AttachmentProblem, ResourceError, read_attachments};
pub use settings::bounds::WriteGlobs;
pub use settings::config::{
    Config, CredentialKind, LogDurability, McpFolder, McpOrigin, McpServer, McpSettings,
    McpTransport, NetworkRule, SandboxLevel, SocketRule, TransportSetting,
};
pub use settings::role::Role;
