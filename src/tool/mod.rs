//! Tools: what the model may ask Pixir to do, typed for the author and erased for the registry.
//!
//! `plan` says what a call would do without doing it, and has no default: it serves the dry run,
//! the permission question and the title a presenter shows. A failing tool is an answer the model
//! reads, never a dead Turn.

mod aftermath;
mod background;
mod bash;
mod bash_input;
mod bash_output;
mod bash_stop;
mod bound;
mod command;
mod confined;
mod covers;
mod denial;
mod descendants;
mod difference;
mod edit;
mod editor;
mod ending;
mod environment;
mod git_notes;
mod glob;
mod grep;
mod handle;
mod hint;
mod lifeline;
mod limit_notes;
mod list;
mod namespace;
mod oom_score;
mod order;
mod output;
mod page;
mod patch;
mod picture;
mod plain;
mod read;
mod redaction;
mod refresh;
mod replace;
mod resource_view;
mod rewrite;
mod ring;
mod running;
mod schema;
mod search;
mod seen;
mod service;
mod skill_view;
mod skilled;
mod skills_list;
mod slot;
mod spelling;
mod supervisor;
#[cfg(test)]
mod tests;
mod toolbox;
mod trial;
mod update_plan;
mod watch;
mod write;

use std::path::PathBuf;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

pub use background::{Background, WeakBackground};
pub use bound::bound;
pub use command::{CommandError, Commands, Containment, End, Host, Stop};
pub use difference::{Difference, Versions};
pub use editor::{Desk, Editor};
pub use output::{SpillFile, store_text};
pub use picture::show as show_image;
pub use plain::{is_hidden, plain};
pub use schema::{Schema, is_built_in};
#[cfg(test)]
pub use schema::{draw as draw_schema, keep as keep_schemas};
pub use service::{Program, Said, Served, Service, quoted};
pub use skilled::{activation, visible};
pub use slot::ProcessSlots;
pub use spelling::{Aliases, Arguments};
pub use supervisor::{SUPERVISE, supervise};
pub use toolbox::{Rest, Toolbox};
pub use trial::Trial;

use crate::config::SocketRule;
use crate::error::{Explain, Kind, Report};
use crate::event::{Bus, Canonical, Ephemeral, Status};
use crate::id::CallId;
use crate::sandbox::Profile;
use crate::secret::Secrets;
use crate::snapshot::Tracker;
use crate::state::SessionFolder;
use crate::workspace::Workspace;

/// One tool, as its author writes it.
pub trait Tool: Send + Sync + 'static {
    /// The arguments; their doc comments are the model's manual.
    type Args: DeserializeOwned + JsonSchema + Send + Sync;
    /// The name the model calls.
    const NAME: &'static str;
    /// What the tool does, for a model that knows nothing.
    const MANUAL: &'static str;

    /// Names that other agents give to arguments, each with its name here.
    const ALIASES: Aliases = &[];

    /// Brings arguments in a spelling of other agents to the form of the schema.
    fn respell(args: &mut Arguments) {
        spelling::rename_all(args, Self::ALIASES);
    }

    /// What this call would do; must not change anything.
    fn plan(&self, args: &Self::Args, context: &ToolContext) -> Result<Plan, ToolError>;

    /// Does it. Dropping the future must leave nothing running.
    fn run(
        &self,
        args: Self::Args,
        context: ToolContext,
    ) -> impl Future<Output = Result<ToolOutput, ToolError>> + Send;
}

/// What the model is told about a tool.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolSpec {
    pub name: String,
    pub description: String,
    /// JSON Schema of the arguments.
    pub parameters: Schema,
}

/// What a running tool may use.
#[derive(Clone)]
pub struct ToolContext {
    pub call_id: CallId,
    pub workspace: Workspace,
    pub cancel: CancellationToken,
    pub signals: Signals,
    pub secrets: Arc<Secrets>,
    /// The Session's folder beside its Log, for spilled output; created on first use.
    pub session_folder: SessionFolder,
    /// The Sessions whose spilled output may be read: this one, and those that it was forked from or
    /// works for.
    pub output_folders: Arc<[SessionFolder]>,
    /// How much text reaches the model, in bytes.
    pub output_limit: usize,
    /// What a host command of this call is confined to.
    pub confinement: Profile,
    /// Where an editor may hold the files of the Workspace.
    pub desk: Desk,
    /// Who keeps what files were, so that it can be taken back.
    pub tracker: Option<Tracker>,
}

/// Where a running tool says what happens: live notices, and facts of its own that are recorded
/// between the call and its result.
#[derive(Clone)]
pub struct Signals {
    bus: Option<Bus>,
    recorder: Option<Recorder>,
}

/// Takes a fact of a tool to the Log.
pub type Recorder = Arc<dyn Fn(Canonical) -> BoxFuture<'static, Result<(), Report>> + Send + Sync>;

impl Signals {
    /// Signals that reach the Session's listeners.
    pub fn to(bus: Bus) -> Self {
        Self { bus: Some(bus), recorder: None }
    }
    /// Signals that nobody hears.
    pub fn nowhere() -> Self {
        Self { bus: None, recorder: None }
    }
    /// The same, with a way to the Log.
    #[must_use]
    pub fn recording(self, recorder: Recorder) -> Self {
        Self { recorder: Some(recorder), ..self }
    }
    /// Tells listeners what the Session does now.
    pub fn status(&self, status: Status) {
        if let Some(bus) = &self.bus {
            bus.emit(Ephemeral::Status(status));
        }
    }
    /// Tells listeners a piece of output.
    pub fn output(&self, call_id: &CallId, chunk: String) {
        if let Some(bus) = &self.bus {
            bus.emit(Ephemeral::ToolOutputDelta { call_id: call_id.clone(), chunk });
        }
    }
    /// Records a fact, without Secrets; returns when it is in the Log.
    pub async fn record(&self, fact: Canonical) -> Result<(), ToolError> {
        let Some(recorder) = &self.recorder else { return Ok(()) };
        recorder(fact).await.map_err(|report| {
            let kind = Kind::from_name(&report.kind).unwrap_or(Kind::LogWriteFailed);
            ToolError::new(kind, report.message).details(report.details)
        })
    }
}

impl std::fmt::Debug for Signals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Signals").field("bus", &self.bus).finish_non_exhaustive()
    }
}

/// What a call would do.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "facts that have nothing to do with each other")]
pub struct Plan {
    pub effect: Effect,
    /// One line for a person: what runs.
    pub summary: String,
    /// Workspace-relative paths it touches.
    pub paths: Vec<PathBuf>,
    /// The diff it would make, where that is known beforehand.
    pub diff: Option<String>,
    /// Whether that diff is not all of it.
    pub diff_is_cut: bool,
    /// Whether it needs the network of the machine, or programs that may reach it.
    pub network: bool,
    /// By which rule it gets Unix sockets, where it needs some and those of other programs cannot be
    /// hidden from it.
    pub local_sockets: Option<SocketRule>,
    /// Whether the kernel keeps it from changing anything, whatever it runs.
    pub is_held: bool,
    /// Whether it must not run beside others, although it only looks.
    pub is_alone: bool,
    /// Whether it changes files of the Workspace and nothing else, by the content that it shows.
    pub is_edit: bool,
    /// The shell text it would run, word for word.
    pub command: Option<String>,
    /// Who would do it, when it is not Pixir itself; an answer is bound to it.
    pub agent: Option<String>,
    /// What the call is about without naming it: the command behind a handle. An answer is bound
    /// to it as well, because another Session gives the same handle to another command.
    pub about: Option<String>,
    /// The SHA-256 of the true bytes before and after, which a diff without Secrets does not tell
    /// apart. What runs must have the same.
    pub bytes_digest: Option<[u8; 32]>,
}

impl Plan {
    /// A change of these files.
    pub fn edit(summary: String, paths: Vec<PathBuf>) -> Self {
        Self { paths, is_edit: true, ..Self::new(Effect::Write, summary) }
    }

    /// A look at this place.
    pub fn read(summary: String, path: PathBuf) -> Self {
        Self { paths: vec![path], ..Self::new(Effect::Read, summary) }
    }

    /// A call that does this, needs no network and is held by nothing but its Tool.
    pub fn new(effect: Effect, summary: String) -> Self {
        Self { effect, summary, ..Self::default() }
    }

    /// Whether it may run beside others like it: it looks, or cannot do more than that.
    pub fn is_shareable(&self) -> bool {
        let changes_nothing = !self.effect.is_mutating() || (self.is_held && !self.network);
        changes_nothing && !self.is_alone
    }
}

/// The worst a call can do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Effect {
    /// Looks.
    #[default]
    Read,
    /// Changes files.
    Write,
    /// Runs a program.
    Execute,
}

impl Effect {
    /// Whether something may be different afterwards.
    pub fn is_mutating(self) -> bool {
        self != Effect::Read
    }
}

/// What a tool answers.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolOutput {
    /// False when the tool worked but its answer is bad news, such as exit code 1.
    pub ok: bool,
    /// Model-channel text; the Executor bounds and cleans it.
    pub text: String,
    /// Facts for presenters and audits.
    pub details: Value,
    /// What it tells of goes on elsewhere: to ask again is no repetition.
    pub is_unfinished: bool,
    /// The Skill whose context the call asked for.
    pub skill_context: Option<String>,
    /// Files that programs outside the sandbox run, and that a command made or changed.
    pub programs: Vec<PathBuf>,
}

impl ToolOutput {
    /// An answer about something that is over.
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

/// A tool's failure: kind, sentence, facts, next actions.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{message}")]
pub struct ToolError {
    pub kind: Kind,
    /// One sentence without a full stop; boxed, so that results stay small.
    pub message: Box<str>,
    pub details: Value,
    pub next_actions: Vec<String>,
    /// Whether the write bounds of the Session refused it.
    pub is_write_bounds: bool,
}

impl ToolError {
    /// A failure of a kind.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into().into(),
            details: Value::Null,
            next_actions: Vec::new(),
            is_write_bounds: false,
        }
    }
    /// Bad arguments.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(Kind::InvalidArgs, message)
    }
    /// Adds a fact or several.
    #[must_use]
    pub fn details(mut self, details: Value) -> Self {
        self.details = details;
        self
    }
    /// Adds what to do next.
    #[must_use]
    pub fn next(mut self, action: impl Into<String>) -> Self {
        self.next_actions.push(action.into());
        self
    }
}

/// Lets `?` turn a module's error into the failure of a tool.
impl<E: Explain> From<E> for ToolError {
    fn from(error: E) -> Self {
        Self {
            kind: error.kind(),
            message: Report::describe(&error).message.into(),
            details: error.details(),
            next_actions: error.next_actions(),
            is_write_bounds: error.is_write_bounds(),
        }
    }
}

impl From<ToolError> for Report {
    fn from(error: ToolError) -> Self {
        Self::new(error.kind, error.message)
            .with_details(error.details)
            .with_next_actions(error.next_actions)
    }
}

/// The object-safe twin, for the registry and for tools whose names arrive at run time.
pub trait AnyTool: Send + Sync {
    fn spec(&self) -> ToolSpec;
    /// The schema that its type has now.
    #[cfg(test)]
    fn drawn(&self) -> Value {
        self.spec().parameters.value()
    }
    /// Brings arguments in a spelling of other agents to the form of the schema.
    fn respell(&self, _args: &mut Arguments) {}
    fn plan(&self, args: &Value, context: &ToolContext) -> Result<Plan, ToolError>;
    fn run(
        &self,
        args: Value,
        context: ToolContext,
    ) -> BoxFuture<'_, Result<ToolOutput, ToolError>>;
}

/// What the model is told about a tool of this type.
pub fn spec_of<T: Tool>() -> ToolSpec {
    ToolSpec {
        name: T::NAME.to_owned(),
        description: T::MANUAL.to_owned(),
        parameters: Schema::of::<T::Args>(T::NAME),
    }
}

impl<T: Tool> AnyTool for T {
    fn spec(&self) -> ToolSpec {
        spec_of::<T>()
    }

    #[cfg(test)]
    fn drawn(&self) -> Value {
        schema::draw::<T::Args>()
    }

    fn respell(&self, args: &mut Arguments) {
        T::respell(args);
    }

    fn plan(&self, args: &Value, context: &ToolContext) -> Result<Plan, ToolError> {
        Tool::plan(self, &decode(args.clone())?, context)
    }

    fn run(
        &self,
        args: Value,
        context: ToolContext,
    ) -> BoxFuture<'_, Result<ToolOutput, ToolError>> {
        match decode(args) {
            Ok(args) => Box::pin(Tool::run(self, args, context)),
            Err(error) => Box::pin(std::future::ready(Err(error))),
        }
    }
}

/// Reads arguments; serde names the field that is wrong.
fn decode<A: DeserializeOwned>(args: Value) -> Result<A, ToolError> {
    serde_json::from_value(args)
        .map_err(|error| ToolError::invalid(format!("these arguments cannot be used: {error}")))
}

/// The beginning of a text, on one line of a summary.
pub fn first_chars(text: &str, count: usize) -> String {
    match text.char_indices().nth(count) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
