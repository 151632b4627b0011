//! Conversation: the operations on a Session that every front-end uses.
//!
//! A Conversation holds a Session's handle and the settings of its Turns, and no state.

mod links;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

pub use links::{LinkResolver, ResolvedLink};

use crate::agent::session::{Session, SessionError};
use crate::agent::turn;
use crate::agent::turn::TurnSettings;
use crate::base::blocking;
use crate::base::id::{CallId, SessionId};
use crate::host::snapshot::TurnTracker;
pub use crate::model::skill::{ExpandedInput, SlashName};
use crate::record::compaction::{CompactionTrigger, KEPT_TURNS};
use crate::record::event::{
    ListenFrom, Listener, PermissionMode, PermissionResponse, ResourceDescriptor, SessionStatus,
    SharedEvent,
};
use crate::record::history::History;
use crate::record::log::LogError;
pub use crate::record::resource::Attachment;
use crate::record::state_dir::StateRoot;
use crate::tools::tool::Editor;

/// How long `close` waits for the Session to end.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(3);

/// A message of the user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserInput {
    /// The prompt, as typed.
    pub text: String,
}

/// The errors of a Conversation.
pub type ConversationError = SessionError;

/// A Session that a front-end talks to; cheap to clone.
#[derive(Debug, Clone)]
pub struct Conversation {
    session: Session,
    settings: Arc<TurnSettings>,
    notices: Arc<[String]>,
}

impl Conversation {
    /// Joins a Session with the settings of its Turns; the harness calls this.
    pub fn new(session: Session, settings: TurnSettings, notices: Vec<String>) -> Self {
        Self { session, settings: Arc::new(settings), notices: notices.into() }
    }

    /// The Session's id.
    pub fn id(&self) -> &SessionId {
        self.session.id()
    }

    /// The Workspace directory.
    pub fn workspace(&self) -> &Path {
        self.settings.workspace.root()
    }

    /// The state root of its Log.
    pub fn state_root(&self) -> &StateRoot {
        self.session.state_root()
    }

    /// The path of its Log.
    pub fn log_path(&self) -> &Path {
        self.session.log_path()
    }

    /// The additional directories, besides the Workspace, that the Session may touch.
    pub fn directories(&self) -> &[PathBuf] {
        self.settings.workspace.extra_roots()
    }

    /// The model that its Turns use.
    pub fn model(&self) -> &str {
        &self.settings.model
    }

    /// The reasoning effort; `None` is the model's default.
    pub fn effort(&self) -> Option<&str> {
        self.settings.effort.as_deref()
    }

    /// The current permission mode.
    pub fn mode(&self) -> PermissionMode {
        self.settings.permission_state.mode()
    }

    /// The name of its role.
    pub fn role(&self) -> &'static str {
        self.settings.role.name
    }

    /// The underlying Session; for the harness.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// The settings of its Turns; for the harness.
    pub fn settings(&self) -> &TurnSettings {
        &self.settings
    }

    /// The Conversation with other settings, from the next Turn on; for the harness.
    #[must_use]
    pub fn with_settings(&self, settings: TurnSettings) -> Self {
        Self { settings: Arc::new(settings), ..self.clone() }
    }

    /// The Conversation with an editor that holds files open.
    #[must_use]
    pub fn with_editor(&self, editor: Arc<dyn Editor>) -> Self {
        self.with_settings(TurnSettings {
            editor: Some(editor),
            ..TurnSettings::clone(&self.settings)
        })
    }

    /// Notices from opening the Session, for the user: skipped damage, ignored instructions.
    pub fn notices(&self) -> &[String] {
        &self.notices
    }

    /// New notices for the user since the last call, such as that a server ended.
    pub fn take_notices(&self) -> Vec<String> {
        let secrets = &self.settings.secrets;
        let of_undo = self.settings.tracker.as_ref().map(TurnTracker::take_notices);
        let mut all = self.settings.mcp_servers.take_notices();
        all.extend(of_undo.into_iter().flatten());
        all.iter().map(|notice| secrets.redact(notice).into_owned()).collect()
    }

    /// Expands typed text: `/name words` may name a prompt or a Skill. Front-ends call this before `send`,
    /// which expands nothing.
    pub async fn expand(&self, text: String) -> ExpandedInput {
        // Most texts have nothing to expand, and need no thread.
        if !text.contains(['/', '$']) {
            return ExpandedInput { text, notices: Vec::new(), unknown_name: None };
        }
        let (skills, typed) = (self.settings.skills.clone(), text.clone());
        let expanded = blocking::run_blocking(move || skills.expand(&typed)).await;
        expanded.unwrap_or(ExpandedInput { text, notices: Vec::new(), unknown_name: None })
    }

    /// The prompts and Skills that can be typed after a slash.
    pub async fn slash_names(&self) -> Vec<SlashName> {
        let skills = self.settings.skills.clone();
        blocking::run_blocking(move || skills.list_slash_names()).await.unwrap_or_default()
    }

    /// Starts a Turn and returns at once; refused while one runs.
    pub async fn send(&self, input: UserInput) -> Result<(), ConversationError> {
        self.send_with_attachments(input, Vec::new()).await
    }

    /// `send` with attachments, which are stored before anything is recorded.
    pub async fn send_with_attachments(
        &self,
        input: UserInput,
        attachments: Vec<Attachment>,
    ) -> Result<(), ConversationError> {
        self.send_with_context(input, attachments, None).await
    }

    /// `send_with_attachments` with late context from the front-end, which the model gets when it changes.
    pub async fn send_with_context(
        &self,
        input: UserInput,
        attachments: Vec<Attachment>,
        context: Option<String>,
    ) -> Result<(), ConversationError> {
        let resources = self.store_attachments(attachments).await?;
        self.start_turn(turn::TurnInput {
            text: input.text,
            resources,
            context,
            is_delegated: false,
        })
        .await
    }

    /// Sends a task that another agent wrote, not the user.
    pub async fn delegate(
        &self,
        input: UserInput,
        attachments: Vec<Attachment>,
        context: String,
    ) -> Result<(), ConversationError> {
        let (resources, context) = (self.store_attachments(attachments).await?, Some(context));
        self.start_turn(turn::TurnInput {
            text: input.text,
            resources,
            context,
            is_delegated: true,
        })
        .await
    }

    async fn start_turn(&self, input: turn::TurnInput) -> Result<(), ConversationError> {
        let settings = Arc::clone(&self.settings);
        let body =
            Box::new(move |context| -> futures_util::future::BoxFuture<'static, SessionStatus> {
                Box::pin(turn::run(context, settings, input))
            });
        self.session.start_turn(body).await
    }

    /// Whether the model accepts images; if not, they are only described to it.
    pub fn sees_images(&self) -> bool {
        self.settings.image_support.is_supported()
    }

    /// The bytes of a Resource, if they are still there; reads from the disk.
    pub fn read_resource(&self, resource: &ResourceDescriptor) -> Option<Vec<u8>> {
        self.settings.resources.bytes(resource).ok()
    }

    /// The path of a Resource's bytes.
    pub fn resource_path(&self, resource: &ResourceDescriptor) -> PathBuf {
        self.settings.resources.path(resource)
    }

    /// The resolver for files that a prompt links; it stops waiting for the front-end once `cancel` is cancelled.
    pub fn link_resolver(&self, cancel: CancellationToken) -> LinkResolver {
        let TurnSettings { workspace, editor, .. } = &*self.settings;
        LinkResolver::new(workspace.clone(), editor.clone(), cancel)
    }

    async fn store_attachments(
        &self,
        files: Vec<Attachment>,
    ) -> Result<Vec<ResourceDescriptor>, ConversationError> {
        if files.is_empty() {
            return Ok(Vec::new());
        }
        let (resources, secrets) =
            (self.settings.resources.clone(), Arc::clone(&self.settings.secrets));
        let stored =
            blocking::run_blocking(move || resources.store_attachments(files, &secrets)).await;
        // A failure here is reported like a failure to write the Log: it is the same disk.
        stored.unwrap_or_else(|error| Err(std::io::Error::other(error))).map_err(|source| {
            LogError::Write { path: self.settings.session_folder.path(), source }.into()
        })
    }

    /// Listens to the Events of the Session, from `from` on.
    pub fn subscribe(&self, from: ListenFrom) -> Listener {
        self.session.subscribe(from)
    }

    /// Waits until no Turn runs, and returns the status of the last one. Decided by the Turn's task, never by
    /// silence.
    pub async fn wait_until_idle(&self) -> Result<SessionStatus, ConversationError> {
        self.session.wait_until_idle().await
    }

    /// Stops the running Turn; returns when its end is recorded.
    pub async fn interrupt(&self) -> Result<(), ConversationError> {
        self.session.interrupt().await
    }

    /// Stops the recording of files before or after a command: the Turn goes on at once, and changes by further
    /// commands of this Turn cannot be undone.
    pub fn skip_recording(&self) {
        if let Some(progress) = self.settings.tracker.as_ref().and_then(TurnTracker::progress) {
            progress.stop().request();
        }
    }

    /// Answers an open question.
    pub async fn answer(
        &self,
        call_id: &CallId,
        response: impl Into<PermissionResponse> + Send,
    ) -> Result<(), ConversationError> {
        self.session.answer(call_id, response.into()).await
    }

    /// Stops the running Turn, drops the Session and returns when its Log is unlocked. Other handles of the
    /// Session keep it open.
    pub async fn close(self) {
        let mut listener = self.subscribe(ListenFrom::Now);
        self.interrupt().await.ok();
        drop(self);
        let closing = async { while listener.next().await.is_some() {} };
        tokio::time::timeout(CLOSE_TIMEOUT, closing).await.ok();
    }

    /// The model's context window, in tokens.
    pub fn window(&self) -> u64 {
        self.settings.window.tokens()
    }

    /// Summarises older Turns from the next request on, and returns the `history_compaction`; `None` when it
    /// would save nothing. The last `keep` Turns stay; with `asks_model` the Session's model writes the
    /// summary.
    pub async fn compact(
        &self,
        keep: Option<usize>,
        asks_model: bool,
    ) -> Result<Option<SharedEvent>, ConversationError> {
        let history = self.session.recent_history().await?;
        let trigger = CompactionTrigger::Manual { keep: keep.unwrap_or(KEPT_TURNS) };
        let asks_model = asks_model || self.settings.compaction.model_assisted;
        let making =
            turn::compact(&self.settings, self.id(), &history, trigger, asks_model, |_| {});
        let made = making.await;
        let mut last = None;
        for fact in made.into_iter().flat_map(turn::CompactionResult::into_facts) {
            last = Some(self.session.record(fact).await?);
        }
        Ok(last)
    }

    /// The whole History.
    pub async fn history(&self) -> Result<History, ConversationError> {
        self.session.history().await
    }

    /// The part of the History in memory: its beginning, and everything that the model still sees. Cheap.
    pub async fn recent_history(&self) -> Result<History, ConversationError> {
        self.session.recent_history().await
    }
}
