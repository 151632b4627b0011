//! Tools that the model can call: the typed [`Tool`] trait and the object-safe [`AnyTool`].
//!
//! `plan` describes a call without running it, and has no default: it serves the dry run, the
//! permission question and the title in presenters. A tool's failure is an answer that the model
//! reads; it does not end the Turn.

pub mod arg_aliases;
mod call_output;
pub mod editor;

use std::path::PathBuf;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

pub use arg_aliases::{ArgAliases, ArgMap};
pub use call_output::{open_spilled_output, store_text};
pub use editor::{Editor, EditorBridge};

use crate::base::id::CallId;
use crate::base::secret::Secrets;
use crate::base::tool_error::ToolError;
use crate::host::process::CommandSlot;
use crate::host::sandbox::Profile;
use crate::host::snapshot::TurnTracker;
use crate::host::workspace::Workspace;
#[cfg(test)]
use crate::model::tool_spec::generate_schema;
use crate::model::tool_spec::{ToolSchema, ToolSpec};
use crate::record::event::ToolEvents;
use crate::record::state_dir::SessionFolder;
use crate::settings::config::SocketRule;

/// A tool with typed arguments.
pub trait Tool: Send + Sync + 'static {
    /// The arguments; their doc comments become descriptions in the schema.
    type Args: DeserializeOwned + JsonSchema + Send + Sync;
    /// The name in the model's calls.
    const NAME: &'static str;
    /// The description of the tool in the request to the model.
    const DESCRIPTION: &'static str;

    /// Argument names that other agents use, each with the name in the schema.
    const ARG_ALIASES: ArgAliases = &[];

    /// Converts argument aliases of other agents to the form of the schema.
    fn normalize_args(args: &mut ArgMap) {
        arg_aliases::rename_args(args, Self::ARG_ALIASES);
    }

    /// Describes what this call would do; must not change anything.
    fn plan(&self, args: &Self::Args, context: &ToolContext) -> Result<CallPlan, ToolError>;

    /// Waits until the call may start. The slot is held until the call has ended; files are recorded
    /// for undo after this wait, because other programs may change them during it.
    fn acquire_slot(
        &self,
        _args: &Self::Args,
        _context: &ToolContext,
    ) -> impl Future<Output = Result<Option<CommandSlot<'_>>, ToolError>> + Send {
        std::future::ready(Ok(None))
    }

    /// Runs the call. Dropping the future must leave nothing running.
    fn run(
        &self,
        args: Self::Args,
        context: ToolContext,
    ) -> impl Future<Output = Result<ToolOutput, ToolError>> + Send;
}

/// The context of a running call: Workspace, cancellation, limits and access to the Session.
#[derive(Clone)]
pub struct ToolContext {
    pub call_id: CallId,
    pub workspace: Workspace,
    pub cancel: CancellationToken,
    pub events: ToolEvents,
    pub secrets: Arc<Secrets>,
    /// The Session's folder beside its Log, for spilled output; created on first use.
    pub session_folder: SessionFolder,
    /// The folders of the Sessions whose spilled output may be read: this one, its fork sources and
    /// its parents.
    pub output_folders: Arc<[SessionFolder]>,
    /// The maximum size of the text for the model, in bytes.
    pub output_limit: usize,
    /// The sandbox profile for commands of this call.
    pub sandbox_profile: Profile,
    /// Access to the buffers of an editor that has files of the Workspace open.
    pub editor: EditorBridge,
    /// Snapshots files before they change, so that changes can be undone.
    pub tracker: Option<TurnTracker>,
}

/// The plan of a call: its effect, paths, diff and the rights it needs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts")]
pub struct CallPlan {
    pub effect: CallEffect,
    /// One line for the user: what the call does.
    pub summary: String,
    /// Paths that the call touches: relative to the Workspace, absolute in extra roots.
    pub paths: Vec<PathBuf>,
    /// The diff that the call would make, if it is known beforehand.
    pub diff: Option<String>,
    /// Whether the diff is incomplete.
    pub diff_is_cut: bool,
    /// Whether the call needs the network, or sockets of programs that may reach the network.
    pub network: bool,
    /// The rule by which the call gets Unix sockets, if it needs them and the sockets of other
    /// programs cannot be hidden from it.
    pub local_sockets: Option<SocketRule>,
    /// Whether the sandbox keeps the call from changing anything, whatever it runs.
    pub is_sandboxed_read_only: bool,
    /// Whether the call must not run in parallel with others, although it only reads.
    pub is_exclusive: bool,
    /// Whether the call only changes files of the Workspace, as its diff shows.
    pub is_file_edit: bool,
    /// The shell text that the call would run, verbatim.
    pub command: Option<String>,
    /// The identity of the tool of an MCP server that would run; a permission is bound to it.
    pub agent: Option<String>,
    /// The command behind the id that the call names. A permission is bound to it as well, because
    /// another Session gives the same id to another command.
    pub target_command: Option<String>,
    /// The SHA-256 of the real bytes before and after, because a diff without Secrets can hide a
    /// difference. The call that runs must have the same digest.
    pub bytes_digest: Option<[u8; 32]>,
}

impl CallPlan {
    /// The plan of a change to these files.
    pub fn for_edit(summary: String, paths: Vec<PathBuf>) -> Self {
        Self { paths, is_file_edit: true, ..Self::new(CallEffect::Write, summary) }
    }

    /// The plan of reading this path.
    pub fn for_read(summary: String, path: PathBuf) -> Self {
        Self { paths: vec![path], ..Self::new(CallEffect::Read, summary) }
    }

    /// The plan of a call with this effect, without network and without a sandbox guarantee.
    pub fn new(effect: CallEffect, summary: String) -> Self {
        Self { effect, summary, ..Self::default() }
    }

    /// Whether the call may run in parallel with others: it only reads, or the sandbox enforces that.
    pub fn is_shareable(&self) -> bool {
        let changes_nothing =
            !self.effect.is_mutating() || (self.is_sandboxed_read_only && !self.network);
        changes_nothing && !self.is_exclusive
    }
}

/// The strongest effect that a call can have.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum CallEffect {
    /// Reads only.
    #[default]
    Read,
    /// Changes files.
    Write,
    /// Runs a program.
    Execute,
}

impl CallEffect {
    /// Whether the call may change something.
    pub fn is_mutating(self) -> bool {
        self != CallEffect::Read
    }
}

/// The result of a tool call.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolOutput {
    /// False when the tool worked but its answer is bad news, such as exit code 1.
    pub ok: bool,
    /// The text for the model; the Executor bounds and cleans it.
    pub text: String,
    /// Facts for presenters and audits.
    pub details: Value,
    /// Whether the work continues in the background: repeating the call is then no doom loop.
    pub is_unfinished: bool,
    /// The Skill whose context the call asked for.
    pub skill_context: Option<String>,
    /// Files that programs outside the sandbox execute, and that a command created or changed.
    pub programs: Vec<PathBuf>,
}

impl ToolOutput {
    /// A result of finished work.
    pub fn new(ok: bool, text: impl Into<String>, details: Value) -> Self {
        Self {
            ok,
            text: text.into(),
            details,
            is_unfinished: false,
            skill_context: None,
            programs: Vec::new(),
        }
    }
}

/// The object-safe form of [`Tool`], for the `Toolbox` and for tools named at run time (MCP).
pub trait AnyTool: Send + Sync {
    fn spec(&self) -> ToolSpec;
    /// The schema generated from the type, for the test that compares it with the stored one.
    #[cfg(test)]
    fn generated_schema(&self) -> Value {
        self.spec().parameters.value()
    }
    /// Converts argument aliases of other agents to the form of the schema.
    fn normalize_args(&self, _args: &mut ArgMap) {}
    fn plan(&self, args: &Value, context: &ToolContext) -> Result<CallPlan, ToolError>;
    /// Waits until the call may start.
    fn acquire_slot<'c, 't: 'c>(
        &'t self,
        _args: &'c Value,
        _context: &'c ToolContext,
    ) -> BoxFuture<'c, Result<Option<CommandSlot<'t>>, ToolError>> {
        Box::pin(std::future::ready(Ok(None)))
    }
    fn run(
        &self,
        args: Value,
        context: ToolContext,
    ) -> BoxFuture<'_, Result<ToolOutput, ToolError>>;
}

/// The definition of a tool of this type.
pub fn tool_spec<T: Tool>() -> ToolSpec {
    ToolSpec {
        name: T::NAME.to_owned(),
        description: T::DESCRIPTION.to_owned(),
        parameters: ToolSchema::for_args::<T::Args>(T::NAME),
    }
}

impl<T: Tool> AnyTool for T {
    fn spec(&self) -> ToolSpec {
        tool_spec::<T>()
    }

    #[cfg(test)]
    fn generated_schema(&self) -> Value {
        generate_schema::<T::Args>()
    }

    fn normalize_args(&self, args: &mut ArgMap) {
        T::normalize_args(args);
    }

    fn plan(&self, args: &Value, context: &ToolContext) -> Result<CallPlan, ToolError> {
        Tool::plan(self, &decode_args(args.clone())?, context)
    }

    fn acquire_slot<'c, 't: 'c>(
        &'t self,
        args: &'c Value,
        context: &'c ToolContext,
    ) -> BoxFuture<'c, Result<Option<CommandSlot<'t>>, ToolError>> {
        Box::pin(async move {
            let args = decode_args(args.clone())?;
            Tool::acquire_slot(self, &args, context).await
        })
    }

    fn run(
        &self,
        args: Value,
        context: ToolContext,
    ) -> BoxFuture<'_, Result<ToolOutput, ToolError>> {
        match decode_args(args) {
            Ok(args) => Box::pin(Tool::run(self, args, context)),
            Err(error) => Box::pin(std::future::ready(Err(error))),
        }
    }
}

/// Parses arguments; serde names the invalid field.
fn decode_args<A: DeserializeOwned>(args: Value) -> Result<A, ToolError> {
    serde_json::from_value(args).map_err(|error| {
        ToolError::invalid_args(format!("these arguments cannot be used: {error}"))
    })
}
