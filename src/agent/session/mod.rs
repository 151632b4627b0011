//! A Session: one conversation, one Log, one writer, one task.
//!
//! `Session` is a clonable handle; the task behind it alone assigns seqs and appends. It runs any
//! `TurnBody` without knowing `agent::turn`, and ends when no handle is left and no Turn runs.

mod actor;
mod inbox;
mod live_sessions;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

pub use live_sessions::LiveSessions;

use crate::base::blocking;
use crate::base::error::{Explain, Explanation, Kind, Report};
use crate::base::id::{CallId, SessionId};
use crate::base::secret::Secrets;
use crate::record::event::{
    Bus, Canonical, Ephemeral, ListenFrom, Listener, PermissionRequest, PermissionResponse, Seq,
    SessionStatus, SharedEvent,
};
use crate::record::history::History;
use crate::record::log::{Log, LogError, LogOpenReport, LogReader};
use crate::record::state_dir::{SessionFolder, StateRoot};
use crate::settings::config::LogDurability;
use actor::Actor;
use inbox::{Inbox, MissedEvents, Reply, TurnId};

/// How many messages may wait for a Session.
const INBOX_CAPACITY: usize = 64;

/// A Turn as the Session runs it: a future that ends with a status.
pub type TurnBody = Box<dyn FnOnce(TurnContext) -> BoxFuture<'static, SessionStatus> + Send>;

/// The options of a Session; resolved once by the harness.
#[derive(Debug, Clone)]
pub struct SessionOptions {
    /// Redacted in the message of a panic.
    pub secrets: Arc<Secrets>,
    pub durability: LogDurability,
    /// The time from the interrupt of a Turn to its abort.
    pub grace: Duration,
}

/// The handle of a Session.
#[derive(Debug, Clone)]
pub struct Session {
    id: SessionId,
    folder: SessionFolder,
    path: PathBuf,
    inbox: mpsc::Sender<Inbox>,
    bus: Bus,
}

impl Session {
    /// Creates a Session whose Log begins with `first`.
    pub fn create(
        root: impl Into<StateRoot>,
        id: &SessionId,
        first: Canonical,
        options: SessionOptions,
    ) -> Result<Self, SessionError> {
        let mut log = Log::create(root, id)?;
        log.append(first)?;
        Ok(Self::spawn(log, options))
    }

    /// Opens an existing Session, and closes calls and a Turn that its last process left open.
    pub fn open(
        root: impl Into<StateRoot>,
        id: &SessionId,
        options: SessionOptions,
    ) -> Result<(Self, LogOpenReport), SessionError> {
        let (mut log, opened) = Log::open(root, id)?;
        actor::close_cut_turn(&mut log)?;
        Ok((Self::spawn(log, options), opened))
    }

    fn spawn(log: Log, options: SessionOptions) -> Self {
        let (inbox, messages) = mpsc::channel(INBOX_CAPACITY);
        let bus = Bus::new(log.id().clone(), log.next_seq());
        let (id, folder) = (log.id().clone(), log.folder().clone());
        let session = Self { id, folder, path: log.path().to_owned(), inbox, bus };
        let actor = Actor::new(log, session.bus.clone(), options, session.inbox.downgrade());
        // Not joined: the actor ends when the last handle is gone, and has no result.
        tokio::spawn(actor.run(messages));
        session
    }

    /// The Session's id.
    pub fn id(&self) -> &SessionId {
        &self.id
    }

    /// The state root of its Log.
    pub fn state_root(&self) -> &StateRoot {
        self.folder.root()
    }

    /// The folder of the Session, next to its Log.
    pub fn folder(&self) -> &SessionFolder {
        &self.folder
    }

    /// The path of its Log.
    pub fn log_path(&self) -> &Path {
        &self.path
    }

    /// Records a fact outside of a Turn.
    pub async fn record(&self, fact: Canonical) -> Result<SharedEvent, SessionError> {
        self.request(|reply| Inbox::Record { turn: None, fact: Box::new(fact), reply }).await?
    }

    /// Reports to listeners that a fact outside of a Turn could not be recorded. A running Turn gets the same error
    /// itself, and ends with it.
    pub fn report_unrecorded(&self, error: &SessionError) {
        let status = self.bus.status();
        let failed = error.to_status();
        // Reported once, however many children there are.
        if (status.is_terminal() || status == SessionStatus::Idle) && status != failed {
            self.bus.emit(Ephemeral::Status(failed));
        }
    }

    /// The whole History. Events that the Session does not hold are read from its Log.
    pub async fn history(&self) -> Result<History, SessionError> {
        let (held, archive) = self.request(Inbox::History).await?;
        match held.forgotten() {
            Some(_) => read_whole_log(archive, held.last_seq()).await,
            None => Ok(held),
        }
    }

    /// The part of the History that a Turn needs: everything since the last checkpoint that the model still
    /// sees, and from before it the first fact, the plan and the late context. Cheap.
    pub async fn recent_history(&self) -> Result<History, SessionError> {
        Ok(self.request(Inbox::History).await?.0)
    }

    /// Starts a Turn; an error when one runs.
    pub async fn start_turn(&self, body: TurnBody) -> Result<(), SessionError> {
        self.request(|reply| Inbox::StartTurn { body, reply }).await?
    }

    /// Stops the running Turn and returns when its end is recorded.
    pub async fn interrupt(&self) -> Result<(), SessionError> {
        self.request(Inbox::Interrupt).await?
    }

    /// Answers an open question.
    pub async fn answer(
        &self,
        call_id: &CallId,
        response: PermissionResponse,
    ) -> Result<(), SessionError> {
        let call_id = call_id.clone();
        self.request(|reply| Inbox::Answer { call_id, response, reply }).await?
    }

    /// Asks the user outside of a Turn, and waits for the answer without a limit. A caller that stops waiting
    /// must answer the question itself.
    pub async fn ask_user(
        &self,
        request: PermissionRequest,
    ) -> Result<PermissionResponse, SessionError> {
        self.request(|reply| Inbox::Ask { turn: None, request: Box::new(request), reply }).await
    }

    /// Waits until no Turn runs, and returns the status of the last one.
    pub async fn wait_until_idle(&self) -> Result<SessionStatus, SessionError> {
        self.request(Inbox::WaitUntilIdle).await
    }

    /// Listens to the Session; canonical Events that the listener missed are sent again from its History.
    pub fn subscribe(&self, from: ListenFrom) -> Listener {
        // A listener must not keep the Session alive.
        let inbox = self.inbox.downgrade();
        self.bus.listen(
            from,
            Arc::new(move |seq| {
                let inbox = inbox.clone();
                Box::pin(async move {
                    let (reply, answer) = oneshot::channel();
                    inbox.upgrade()?.send(Inbox::Backlog { seq, reply }).await.ok()?;
                    let (mut backlog, missed) = answer.await.ok()?;
                    if let Some(MissedEvents { archive, from, last }) = missed {
                        // Without the missed Events there is no Backlog at all.
                        backlog.events = read_whole_log(archive, last).await.ok()?.since(from);
                    }
                    Some(backlog)
                })
            }),
        )
    }

    async fn request<T>(&self, message: impl FnOnce(Reply<T>) -> Inbox) -> Result<T, SessionError> {
        let (reply, answer) = oneshot::channel();
        self.inbox.send(message(reply)).await.map_err(|_| SessionError::Closed)?;
        answer.await.map_err(|_| SessionError::Closed)
    }
}

/// Reads a Log from its start to a seq, on a thread that may block.
async fn read_whole_log(archive: LogReader, last: Option<Seq>) -> Result<History, SessionError> {
    let path = archive.path().to_owned();
    let read = blocking::run_blocking(move || archive.read(last)).await;
    let failed = |error| LogError::Io { path, source: std::io::Error::other(error) };
    Ok(read.map_err(failed)??)
}

/// The handle of a running Turn on its Session.
#[derive(Debug, Clone)]
pub struct TurnContext {
    session: Session,
    turn: TurnId,
    cancel: CancellationToken,
    unrecorded_text: UnrecordedText,
    /// Set when the Turn has ended or was aborted; a task that still runs must not emit any more.
    is_over: Arc<AtomicBool>,
}

impl TurnContext {
    /// The Session's id.
    pub fn session_id(&self) -> &SessionId {
        &self.session.id
    }

    /// Cancelled when the Turn is interrupted.
    pub fn cancel(&self) -> &CancellationToken {
        &self.cancel
    }

    /// The bus, for tools that stream their output.
    pub fn bus(&self) -> &Bus {
        &self.session.bus
    }

    /// Records a fact of this Turn; refused once the Turn is over.
    pub async fn record(
        &self,
        fact: impl Into<Canonical> + Send,
    ) -> Result<SharedEvent, SessionError> {
        let fact = Box::new(fact.into());
        let turn = Some(self.turn);
        self.session.request(|reply| Inbox::Record { turn, fact, reply }).await?
    }

    /// Forces the Log to the disk: a call must be durable before it may change anything.
    pub async fn make_durable(&self) -> Result<(), SessionError> {
        let turn = self.turn;
        self.session.request(|reply| Inbox::Sync { turn, reply }).await?
    }

    /// Emits a live notice.
    pub fn emit(&self, notice: Ephemeral) {
        if self.is_over.load(Ordering::Acquire) {
            return;
        }
        if let Ephemeral::TextDelta(text) = &notice {
            self.unrecorded_text.push(text);
        }
        self.session.bus.emit(notice);
    }

    /// The part of the History that a Turn needs; see [`Session::recent_history`].
    pub async fn recent_history(&self) -> Result<History, SessionError> {
        self.session.recent_history().await
    }

    /// Asks the user, and waits for the answer without a limit.
    pub async fn ask_user(
        &self,
        request: PermissionRequest,
    ) -> Result<PermissionResponse, SessionError> {
        let turn = Some(self.turn);
        self.session.request(|reply| Inbox::Ask { turn, request: Box::new(request), reply }).await
    }
}

/// Text that was shown and is not recorded yet; the Session records it if the Turn cannot.
#[derive(Debug, Clone, Default)]
struct UnrecordedText(Arc<Mutex<String>>);

impl UnrecordedText {
    fn push(&self, text: &str) {
        self.0.lock().push_str(text);
    }
    fn clear(&self) {
        self.0.lock().clear();
    }
    fn text(&self) -> String {
        self.0.lock().clone()
    }
}

/// Errors of a Session.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    #[error(transparent)]
    Log(#[from] LogError),
    #[error("a Turn already runs in this Session")]
    Busy,
    #[error("no Turn runs in this Session")]
    NoTurn,
    #[error("no such question is open in this Session")]
    NoQuestion,
    #[error("the Session has closed")]
    Closed,
}

impl Explain for SessionError {
    fn explain(&self) -> Explanation {
        match self {
            SessionError::Log(error) => error.explain(),
            SessionError::Busy => {
                Kind::Busy.with_next_action("wait for the Turn to end, or interrupt it")
            }
            SessionError::NoTurn => Kind::NoTurn.into(),
            SessionError::NoQuestion => Kind::NotFound.into(),
            SessionError::Closed => Kind::SessionClosed.into(),
        }
    }
}

impl SessionError {
    /// The status of a Turn that cannot go on because of this.
    pub fn to_status(&self) -> SessionStatus {
        SessionStatus::Error {
            terminal_status: "tool_error".to_owned(),
            error: Report::describe(self),
        }
    }
}
