//! Conversation: the few verbs that every front-end uses, and nothing else of the core.
//!
//! It has no state of its own: a Session's handle and the settings of its Turns.

mod linked;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

pub use linked::{Linked, LinkedFiles};

use crate::compaction::{KEPT_TURNS, Trigger};
use crate::disk;
use crate::event::{
    Descriptor, From as ListenFrom, Listener, PermissionMode, Said, SharedEvent, Status,
};
use crate::history::History;
use crate::id::{CallId, SessionId};
use crate::log::LogError;
pub use crate::resource::Attachment;
use crate::session::{Session, SessionError};
pub use crate::skill::{Expanded, Named};
use crate::snapshot::Tracker;
use crate::state::StateRoot;
use crate::tool::Editor;
use crate::turn::{self, Settings};

/// How long a Session that is let go of is waited for.
const CLOSING: Duration = Duration::from_secs(3);

/// What the user says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Input {
    /// The prompt, as typed.
    pub text: String,
}

/// What a front-end may be told instead.
pub type ConversationError = SessionError;

/// A Session that a front-end talks to; cheap to clone.
#[derive(Debug, Clone)]
pub struct Conversation {
    session: Session,
    settings: Arc<Settings>,
    notices: Arc<[String]>,
}

impl Conversation {
    /// Joins a Session with the settings of its Turns; the harness calls this.
    pub fn new(session: Session, settings: Settings, notices: Vec<String>) -> Self {
        Self { session, settings: Arc::new(settings), notices: notices.into() }
    }

    /// The Session's id.
    pub fn id(&self) -> &SessionId {
        self.session.id()
    }

    /// The directory it may touch.
    pub fn workspace(&self) -> &Path {
        self.settings.workspace.root()
    }

    /// The state that its Log is a part of.
    pub fn state_root(&self) -> &StateRoot {
        self.session.state_root()
    }

    /// Where its Log is.
    pub fn log_path(&self) -> &Path {
        self.session.log_path()
    }

    /// The directories that it may touch besides.
    pub fn directories(&self) -> &[PathBuf] {
        self.settings.workspace.further()
    }

    /// The model that its Turns use.
    pub fn model(&self) -> &str {
        &self.settings.model
    }

    /// How hard it thinks; `None` leaves it to the model.
    pub fn effort(&self) -> Option<&str> {
        self.settings.effort.as_deref()
    }

    /// What its Turns may do without asking, at this moment.
    pub fn mode(&self) -> PermissionMode {
        self.settings.stance.mode()
    }

    /// The name of what it is for.
    pub fn role(&self) -> &'static str {
        self.settings.role.name
    }

    /// The Session behind it; the harness looks at this.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// The settings of its Turns; the harness looks at this.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The same Session with other settings, from the next Turn on; the harness calls this.
    #[must_use]
    pub fn with(&self, settings: Settings) -> Self {
        Self { settings: Arc::new(settings), ..self.clone() }
    }

    /// The same Session, whose front-end holds files open.
    #[must_use]
    pub fn edited_in(&self, editor: Arc<dyn Editor>) -> Self {
        self.with(Settings { editor: Some(editor), ..Settings::clone(&self.settings) })
    }

    /// What the user should know from opening it: damage that was skipped, odd instructions.
    pub fn notices(&self) -> &[String] {
        &self.notices
    }

    /// What happened since somebody asked last that the user should know, such as a server that
    /// died.
    pub fn take_notices(&self) -> Vec<String> {
        let secrets = &self.settings.secrets;
        let of_undo = self.settings.tracker.as_ref().map(Tracker::take_notices);
        let mut all = self.settings.connections.take_notices();
        all.extend(of_undo.into_iter().flatten());
        all.iter().map(|notice| secrets.clean(notice).into_owned()).collect()
    }

    /// What a person typed, as it is to be sent: `/name words` may stand for a prompt or a Skill.
    /// Front-ends call this before `send`, which takes every text as it is.
    pub async fn expand(&self, text: String) -> Expanded {
        // Most texts name nothing, and need no thread.
        if !text.contains(['/', '$']) {
            return Expanded { text, notices: Vec::new(), unknown_name: None };
        }
        let (skills, typed) = (self.settings.skills.clone(), text.clone());
        let expanded = disk::work(move || skills.expand(&typed)).await;
        expanded.unwrap_or(Expanded { text, notices: Vec::new(), unknown_name: None })
    }

    /// Everything that can be typed behind a slash here.
    pub async fn named(&self) -> Vec<Named> {
        let skills = self.settings.skills.clone();
        disk::work(move || skills.named()).await.unwrap_or_default()
    }

    /// Starts a Turn and returns at once; refused while one runs.
    pub async fn send(&self, input: Input) -> Result<(), ConversationError> {
        self.send_with(input, Vec::new()).await
    }

    /// The same, with files that belong to the input; they are stored before anything is recorded.
    pub async fn send_with(
        &self,
        input: Input,
        attachments: Vec<Attachment>,
    ) -> Result<(), ConversationError> {
        self.send_in(input, attachments, None).await
    }

    /// The same, with what the front-end knows of the moment; the model is told when it changes.
    pub async fn send_in(
        &self,
        input: Input,
        attachments: Vec<Attachment>,
        context: Option<String>,
    ) -> Result<(), ConversationError> {
        let resources = self.keep(attachments).await?;
        self.begin(turn::Input { text: input.text, resources, context, is_delegated: false }).await
    }

    /// Hands on a task that another agent wrote: no person speaks in it.
    pub async fn delegate(
        &self,
        input: Input,
        attachments: Vec<Attachment>,
        context: String,
    ) -> Result<(), ConversationError> {
        let (resources, context) = (self.keep(attachments).await?, Some(context));
        self.begin(turn::Input { text: input.text, resources, context, is_delegated: true }).await
    }

    async fn begin(&self, input: turn::Input) -> Result<(), ConversationError> {
        let settings = Arc::clone(&self.settings);
        let body = Box::new(move |context| -> futures_util::future::BoxFuture<'static, Status> {
            Box::pin(turn::run(context, settings, input))
        });
        self.session.start_turn(body).await
    }

    /// Whether the model can be shown images; where it cannot, they are described to it.
    pub fn sees_images(&self) -> bool {
        self.settings.sight.sees()
    }

    /// The bytes of something that was attached, if they are still there; reads from the disk.
    pub fn stored(&self, resource: &Descriptor) -> Option<Vec<u8>> {
        self.settings.shelf.bytes(resource).ok()
    }

    /// Where something that was attached is.
    pub fn stored_at(&self, resource: &Descriptor) -> PathBuf {
        self.settings.shelf.path(resource)
    }

    /// What opens files that a prompt names; the front-end is not waited for once `late` is cancelled.
    pub fn linked_files(&self, late: CancellationToken) -> LinkedFiles {
        let Settings { workspace, editor, .. } = &*self.settings;
        LinkedFiles::new(workspace.clone(), editor.clone(), late)
    }

    async fn keep(&self, files: Vec<Attachment>) -> Result<Vec<Descriptor>, ConversationError> {
        if files.is_empty() {
            return Ok(Vec::new());
        }
        let (resources, secrets) =
            (self.settings.shelf.clone(), Arc::clone(&self.settings.secrets));
        let stored = disk::work(move || resources.take(files, &secrets)).await;
        // What cannot be kept cannot be said: it is the same disk, and the same end.
        stored.unwrap_or_else(|error| Err(std::io::Error::other(error))).map_err(|source| {
            LogError::Write { path: self.settings.session_folder.path(), source }.into()
        })
    }

    /// Listens to everything that happens, from a chosen place on.
    pub fn subscribe(&self, from: ListenFrom) -> Listener {
        self.session.subscribe(from)
    }

    /// Waits until no Turn runs. Decided by the Turn's own life, never by silence.
    pub async fn finished(&self) -> Result<Status, ConversationError> {
        self.session.finished().await
    }

    /// Stops the running Turn; returns when its end is recorded.
    pub async fn interrupt(&self) -> Result<(), ConversationError> {
        self.session.interrupt().await
    }

    /// Ends the recording of files for undo that goes on before a command, if one does: the command runs, and what
    /// commands of this Turn change is not covered.
    pub fn skip_recording(&self) {
        if let Some(progress) = self.settings.tracker.as_ref().and_then(Tracker::progress) {
            progress.stop().ask();
        }
    }

    /// Answers an open question.
    pub async fn answer(
        &self,
        call_id: &CallId,
        said: impl Into<Said> + Send,
    ) -> Result<(), ConversationError> {
        self.session.answer(call_id, said.into()).await
    }

    /// Ends whatever runs, lets go of the Session and returns when its Log is free for others.
    /// Other handles of the Session keep it open.
    pub async fn close(self) {
        let mut listener = self.subscribe(ListenFrom::Now);
        self.interrupt().await.ok();
        drop(self);
        let closing = async { while listener.next().await.is_some() {} };
        tokio::time::timeout(CLOSING, closing).await.ok();
    }

    /// How much its model can be told at once, in tokens.
    pub fn window(&self) -> u64 {
        self.settings.window.tokens()
    }

    /// Tells older Turns in short from the next request on, and gives the Event that says so;
    /// nothing when that would not be less. The last `keep` Turns stay; `asks_model` lets the
    /// Session's own model put the others into words.
    pub async fn compact(
        &self,
        keep: Option<usize>,
        asks_model: bool,
    ) -> Result<Option<SharedEvent>, ConversationError> {
        let history = self.session.recent().await?;
        let trigger = Trigger::Manual { keep: keep.unwrap_or(KEPT_TURNS) };
        let asks_model = asks_model || self.settings.compaction.model_assisted;
        let making =
            turn::compact(&self.settings, self.id(), &history, trigger, asks_model, |_| {});
        let made = making.await;
        let mut last = None;
        for fact in made.into_iter().flat_map(turn::Compacted::into_facts) {
            last = Some(self.session.record(fact).await?);
        }
        Ok(last)
    }

    /// Everything recorded so far.
    pub async fn history(&self) -> Result<History, ConversationError> {
        self.session.history().await
    }

    /// What of it is held in memory: how it began, and everything that the model still sees. Cheap.
    pub async fn recent(&self) -> Result<History, ConversationError> {
        self.session.recent().await
    }
}
