//! Pixir: a local-first coding agent. Any UI, one supervised runtime, and the Log is the truth.
//!
//! The house, from the ground up; a room looks only down, and a test enforces it:
//!
//! - Words and settings: `error`, `id`, `disk`, `secret`, `paths`, `http`, `rpc`, `tokens`, `event`, `config`, `role`,
//!   `bounds`, `ledger`, `trust`, `workspace`, `walk`, `skill`, `roster`.
//! - Evidence: `history`, `compaction`, `resource`, `snapshot`, `log`, `projection`.
//! - The world: `credential`, `sandbox`, `tool`, `mcp`, `annex`, `provider`, `permission`.
//! - Agency: `prompt`, `session`, `rewind`, `fork`, `turn`, `conversation`,
//!   `subagent`, `workflow`, `harness`.
//! - Presenters: `acp`, `render`, `scripted`, and `cli` above them.
//!
//! The rooms are private; what an embedder needs is re-exported here. See `examples/embed.rs`.
#![cfg_attr(
    test,
    expect(
        clippy::disallowed_methods,
        reason = "tests make files; the library itself is checked too"
    )
)]

// Ground floor: words and settings.
mod disk;
mod error;
mod files;
mod git_index;
mod git_objects;
mod http;
mod id;
mod paths;
mod rpc;
mod secret;
mod tokens;

mod bounds;
mod config;
mod event;
mod ledger;
mod role;
mod roster;
mod skill;
mod state;
mod trust;
mod walk;
mod workspace;

// First floor: evidence.
mod compaction;
mod history;
mod log;
mod projection;
mod resource;
mod snapshot;

// Second floor: the world.
mod annex;
mod credential;
mod mcp;
mod permission;
mod provider;
mod sandbox;
mod tool;

// Third floor: agency.
mod conversation;
mod fork;
mod harness;
mod prompt;
mod rewind;
mod session;
mod subagent;
mod turn;
mod workflow;

// Top floor: presenters.
mod acp;
mod cli;
mod render;
pub mod scripted;

/// The page of all settings, for the test that keeps it true; not a part of the API.
#[doc(hidden)]
pub use config::reference as settings_reference;

/// The schema of Workflows and the reference of their keys, for the test that keeps them true; not a
/// part of the API.
#[doc(hidden)]
pub use workflow::{
    delegate_reference, delegate_schema, reference as workflow_reference, schema as workflow_schema,
};

/// The schema of the envelope, for the test that keeps it true; not a part of the API.
#[doc(hidden)]
pub use render::envelope_schema;

/// Tools without a Session, for tests and benches; not a part of the API.
#[doc(hidden)]
pub mod workbench;

/// What the benchmarks need of the private rooms; not a part of the API.
#[doc(hidden)]
pub mod bench;

pub use bounds::WriteGlobs;
pub use cli::{command, run};
pub use config::{
    Config, CredentialKind, Durability, Mcp, McpFolder, McpOrigin, McpServer, McpTransport,
    NetworkRule, SandboxLevel, SocketRule, Transport,
};
pub use conversation::{Conversation, ConversationError, Expanded, Input, Named};
pub use credential::{Credential, CredentialError, FieldPolicy};
pub use error::{Explain, Kind, Report};
pub use event::*;
pub use harness::{
    Change, Child, ChildStatus, ChildView, Door, Harness, HarnessError, ProcessLimits, Start, Which,
};
pub use history::History;
pub use id::{CallId, EventId, SessionId};
pub use log::{Break, LogError, Open, Repaired, Verification, repair, verify};
pub use paths::Home;
pub use resource::{Attachment, Flaw, ResourceError, gather};
pub use role::Role;
pub use tool::{SUPERVISE, supervise};
