//! The Session's task: the only writer of its Log. It outlives every Turn, and records the end of a Turn that
//! cannot record it itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinHandle};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::inbox::{Inbox, MissedEvents, Reply, TurnId};
use super::{Session, SessionError, SessionOptions, TurnBody, TurnContext, UnrecordedText};
use crate::base::blocking;
use crate::base::error::{Kind, Report};
use crate::base::id::CallId;
use crate::record::event::{
    Backlog, Bus, Canonical, Ephemeral, Extra, PermissionAnswer, PermissionRequest,
    PermissionResponse, SessionStatus, SharedEvent, TerminalStatus, TurnFailed,
};
use crate::record::history;
use crate::record::log::{Log, LogError};
use crate::settings::config::LogDurability;

/// The events that the task waits for.
enum Wake {
    Message(Inbox),
    TurnEnded(Result<SessionStatus, JoinError>),
    GraceElapsed,
}

pub(super) struct Actor {
    log: Log,
    bus: Bus,
    options: SessionOptions,
    /// Weak, so that the Session ends when its last handle does.
    inbox: mpsc::WeakSender<Inbox>,
    turn: Option<RunningTurn>,
    last_turn_id: TurnId,
    /// Open questions, in the order in which they were asked.
    questions: Vec<UnansweredQuestion>,
    waiting: Vec<Reply<SessionStatus>>,
    /// The sync of a new Log's folder, begun when the Session was created.
    folder_sync: Option<SyncTask>,
}

/// A sync, on a thread that may block.
type SyncTask = JoinHandle<Result<(), LogError>>;

struct RunningTurn {
    id: TurnId,
    task: JoinHandle<SessionStatus>,
    cancel: CancellationToken,
    is_over: Arc<AtomicBool>,
    abort_at: Option<Instant>,
    interrupters: Vec<Reply<Result<(), SessionError>>>,
    /// The status of the Turn, once its end is recorded.
    ended: Option<SessionStatus>,
    /// Text that was shown and is in no recorded message yet.
    unrecorded_text: UnrecordedText,
}

struct UnansweredQuestion {
    /// The Turn that asks; a question outside of a Turn does not end with one.
    turn: Option<TurnId>,
    request: PermissionRequest,
    reply: Reply<PermissionResponse>,
}

impl Actor {
    pub(super) fn new(
        log: Log,
        bus: Bus,
        options: SessionOptions,
        inbox: mpsc::WeakSender<Inbox>,
    ) -> Self {
        Self {
            log,
            bus,
            options,
            inbox,
            turn: None,
            last_turn_id: 0,
            questions: Vec::new(),
            waiting: Vec::new(),
            folder_sync: None,
        }
    }

    /// Starts the sync of a new Log's folder early, so that the name of the file is durable when the first
    /// message must be.
    fn start_folder_sync(&mut self) {
        if self.options.durability != LogDurability::None
            && let Some(folder) = self.log.take_unsynced_folder()
        {
            self.folder_sync =
                Some(blocking::run_blocking(move || folder.sync().map_err(LogError::writing)));
        }
    }

    pub(super) async fn run(mut self, mut inbox: mpsc::Receiver<Inbox>) {
        self.start_folder_sync();
        while let Some(wake) = self.next(&mut inbox).await {
            match wake {
                Wake::Message(message) => self.handle(message).await,
                Wake::TurnEnded(result) => self.handle_turn_end(result).await,
                Wake::GraceElapsed => self.abort_turn().await,
            }
        }
    }

    async fn next(&mut self, inbox: &mut mpsc::Receiver<Inbox>) -> Option<Wake> {
        let Some(turn) = &mut self.turn else { return inbox.recv().await.map(Wake::Message) };
        let far_away = Instant::now() + std::time::Duration::from_hours(1);
        let abort_at = turn.abort_at.unwrap_or(far_away);
        let grace_runs = turn.abort_at.is_some();
        tokio::select! {
            // Messages that the Turn sent before it ended are handled before its end.
            biased;
            Some(message) = inbox.recv() => Some(Wake::Message(message)),
            result = &mut turn.task => Some(Wake::TurnEnded(result)),
            () = tokio::time::sleep_until(abort_at), if grace_runs => Some(Wake::GraceElapsed),
        }
    }

    async fn handle(&mut self, message: Inbox) {
        match message {
            Inbox::Record { turn, fact, reply } => {
                reply.send(self.record(turn, *fact).await).ok();
            }
            Inbox::Sync { turn, reply } => {
                let synced = match self.check_turn(turn) {
                    Ok(()) => self.sync().await,
                    Err(error) => Err(error),
                };
                reply.send(synced).ok();
            }
            Inbox::History(reply) => {
                reply.send((self.log.history().clone(), self.log.reader())).ok();
            }
            Inbox::Backlog { seq, reply } => {
                reply.send(self.backlog(seq)).ok();
            }
            Inbox::StartTurn { body, reply } => {
                reply.send(self.start_turn(body)).ok();
            }
            Inbox::Interrupt(reply) => self.interrupt(reply),
            Inbox::Ask { turn, request, reply } => self.ask_user(turn, *request, reply),
            Inbox::Answer { call_id, response, reply } => {
                reply.send(self.answer_question(&call_id, response)).ok();
            }
            Inbox::WaitUntilIdle(reply) => match self.turn {
                Some(_) => self.waiting.push(reply),
                None => {
                    reply.send(self.bus.status()).ok();
                }
            },
        }
    }

    async fn record(
        &mut self,
        turn: Option<TurnId>,
        fact: Canonical,
    ) -> Result<SharedEvent, SessionError> {
        if let Some(turn) = turn {
            self.check_turn(turn)?;
        }
        let end = terminal_status_of(&fact);
        let is_end = end.is_some();
        if is_end && self.turn.is_some() {
            close_orphans(&mut self.log, &self.bus, "its Turn ended first")?;
        }
        if self.log.history().needs_forgotten(&fact) {
            self.reload_history().await?;
        }
        let is_message = matches!(fact, Canonical::AssistantMessage(_));
        let is_compaction = matches!(fact, Canonical::HistoryCompaction(_));
        let is_commit_point = is_end || matches!(fact, Canonical::UserMessage(_));
        let event = self.log.append(fact)?;
        let must_sync = match self.options.durability {
            LogDurability::Event => true,
            LogDurability::Turn => is_commit_point,
            LogDurability::None => false,
        };
        if must_sync {
            self.force_to_disk().await?;
        }
        if let Some(running) = &mut self.turn {
            running.ended = end.or(running.ended.take());
            if is_message {
                running.unrecorded_text.clear();
            }
        }
        if is_compaction {
            self.log.drop_hidden_events();
        }
        self.bus.publish(Arc::clone(&event));
        Ok(event)
    }

    /// Loads the whole History again, because dropped Events are about to count again.
    async fn reload_history(&mut self) -> Result<(), SessionError> {
        let whole = super::read_whole_log(self.log.reader(), self.log.history().last_seq()).await?;
        self.log.replace_history(whole);
        Ok(())
    }

    /// Accepts only the running Turn, before its end is recorded.
    fn check_turn(&self, id: TurnId) -> Result<(), SessionError> {
        match &self.turn {
            Some(turn) if turn.id == id && turn.ended.is_none() => Ok(()),
            _ => Err(SessionError::NoTurn),
        }
    }

    async fn sync(&mut self) -> Result<(), SessionError> {
        match self.options.durability {
            LogDurability::Turn => self.force_to_disk().await,
            // Every Event is already on the disk, or durability is off.
            LogDurability::Event | LogDurability::None => Ok(()),
        }
    }

    async fn force_to_disk(&mut self) -> Result<(), SessionError> {
        let disk = self.log.syncer();
        let words = blocking::run_blocking(move || disk.sync());
        for work in self.folder_sync.take().into_iter().chain([words]) {
            let joined = work.await;
            self.check_sync(joined)?;
        }
        Ok(())
    }

    fn check_sync(
        &mut self,
        joined: Result<Result<(), LogError>, JoinError>,
    ) -> Result<(), SessionError> {
        let synced = joined.unwrap_or_else(|error| {
            let path = self.log.path().to_owned();
            Err(LogError::Write { path, source: std::io::Error::other(error) })
        });
        if synced.is_err() {
            self.log.poison();
        }
        Ok(synced?)
    }

    /// The Events from a seq on, or how to read them if they are not held.
    fn backlog(&self, seq: u64) -> (Backlog, Option<MissedEvents>) {
        let history = self.log.history();
        let is_missed = history.forgotten().is_some_and(|forgotten| seq <= forgotten.to);
        let missed = is_missed.then(|| MissedEvents {
            archive: self.log.reader(),
            from: seq,
            last: history.last_seq(),
        });
        let events = if is_missed { Vec::new() } else { history.since(seq) };
        let backlog = Backlog {
            events,
            questions: self.questions.iter().map(|open| open.request.clone()).collect(),
            ..self.bus.current_backlog()
        };
        (backlog, missed)
    }

    fn start_turn(&mut self, body: TurnBody) -> Result<(), SessionError> {
        if self.turn.is_some() {
            return Err(SessionError::Busy);
        }
        let Some(inbox) = self.inbox.upgrade() else { return Err(SessionError::Closed) };
        // Calls and a Turn that could not be closed in time, such as on a full disk, are closed now.
        close_orphans(&mut self.log, &self.bus, "its Turn ended first")?;
        if self.log.history().turns().open.is_some() {
            let message = "the end of this Turn could not be recorded when it happened";
            self.bus.publish(self.log.append(history::interrupted_turn(message).into())?);
        }
        self.last_turn_id += 1;
        let cancel = CancellationToken::new();
        let over = Arc::new(AtomicBool::new(false));
        let draft = UnrecordedText::default();
        let context = TurnContext {
            session: Session {
                id: self.log.id().clone(),
                folder: self.log.folder().clone(),
                path: self.log.path().to_owned(),
                inbox,
                bus: self.bus.clone(),
            },
            turn: self.last_turn_id,
            cancel: cancel.clone(),
            is_over: Arc::clone(&over),
            unrecorded_text: draft.clone(),
        };
        self.turn = Some(RunningTurn {
            id: self.last_turn_id,
            task: tokio::spawn(async move { body(context).await }),
            cancel,
            is_over: over,
            abort_at: None,
            interrupters: Vec::new(),
            ended: None,
            unrecorded_text: draft,
        });
        Ok(())
    }

    fn interrupt(&mut self, reply: Reply<Result<(), SessionError>>) {
        let Some(turn) = &mut self.turn else {
            reply.send(Err(SessionError::NoTurn)).ok();
            return;
        };
        turn.cancel.cancel();
        turn.abort_at.get_or_insert_with(|| Instant::now() + self.options.grace);
        turn.interrupters.push(reply);
    }

    async fn handle_turn_end(&mut self, result: Result<SessionStatus, JoinError>) {
        let ended = self.turn.as_ref().and_then(|turn| turn.ended.clone());
        let status = match (ended, result) {
            // The recorded end counts, even if the task failed afterwards.
            (Some(status), _) => status,
            (None, result) => self.record_task_end(result).await,
        };
        self.finish_turn(&status);
    }

    async fn record_task_end(&mut self, result: Result<SessionStatus, JoinError>) -> SessionStatus {
        match result {
            // The Turn could not record its own end; the Session tries again.
            Ok(SessionStatus::Error { terminal_status, error }) => {
                let status = TerminalStatus::from_text(&terminal_status);
                self.record_failure(status, error).await
            }
            Ok(_) => {
                let error = Report::new(Kind::Internal, "the Turn ended without recording its end");
                self.record_failure(TerminalStatus::Crashed, error).await
            }
            Err(error) => {
                tracing::error!(%error, "a Turn crashed");
                let message = self.options.secrets.redact(&crash_message(error)).into_owned();
                self.record_failure(TerminalStatus::Crashed, Report::new(Kind::Crashed, message))
                    .await
            }
        }
    }

    async fn abort_turn(&mut self) {
        let Some(turn) = &mut self.turn else { return };
        turn.task.abort();
        if let Some(status) = turn.ended.clone() {
            return self.finish_turn(&status);
        }
        let error =
            Report::new(Kind::Interrupted, "the Turn did not stop by itself and was aborted");
        let status = self.record_failure(TerminalStatus::Interrupted, error).await;
        self.finish_turn(&status);
    }

    /// Records the end of a Turn whose task can no longer record it.
    async fn record_failure(&mut self, status: TerminalStatus, error: Report) -> SessionStatus {
        let closed = self.record_partial_answer(&error).await;
        let interrupted = status == TerminalStatus::Interrupted;
        let terminal_status = status.as_str().to_owned();
        let failed = TurnFailed {
            terminal_status: status,
            error_kind: error.kind.clone(),
            error_message: error.message.clone(),
            details: error.details.clone(),
            extra: Extra::new(),
        };
        let recorded = match closed {
            Ok(()) => self.record(None, failed.into()).await.map(|_| ()),
            Err(failure) => Err(failure),
        };
        match recorded {
            Ok(()) if interrupted => SessionStatus::Interrupted,
            Ok(()) => SessionStatus::Error { terminal_status, error },
            // The Turn's own error says more than the failure to record it.
            Err(_) if error.kind == Kind::LogWriteFailed.name() => {
                SessionStatus::Error { terminal_status, error }
            }
            Err(failure) => failure.to_status(),
        }
    }

    /// Records the text of a broken answer that the user saw, as evidence.
    async fn record_partial_answer(&mut self, error: &Report) -> Result<(), SessionError> {
        close_orphans(&mut self.log, &self.bus, "its Turn was stopped")?;
        let text = self.turn.as_ref().map(|turn| turn.unrecorded_text.text()).unwrap_or_default();
        if !text.trim().is_empty() {
            self.record(None, history::partial_message(text, &error.kind).into()).await?;
        }
        Ok(())
    }

    fn finish_turn(&mut self, status: &SessionStatus) {
        // A Session that was just opened still holds all Events.
        self.log.drop_hidden_events();
        if let Some(turn) = self.turn.take() {
            turn.is_over.store(true, Ordering::Release);
            for question in self.questions.extract_if(.., |open| open.turn.is_some()) {
                let call_id = question.request.call_id;
                self.bus
                    .emit(Ephemeral::PermissionResolved { call_id, answer: PermissionAnswer::No });
            }
            self.bus.emit(Ephemeral::Status(status.clone()));
            for reply in turn.interrupters {
                reply.send(Ok(())).ok();
            }
        }
        for reply in self.waiting.drain(..) {
            reply.send(status.clone()).ok();
        }
    }

    fn ask_user(
        &mut self,
        turn: Option<TurnId>,
        request: PermissionRequest,
        reply: Reply<PermissionResponse>,
    ) {
        if turn.is_some_and(|turn| self.check_turn(turn).is_err()) {
            return;
        }
        self.bus.emit(Ephemeral::PermissionRequest(Box::new(request.clone())));
        self.questions.push(UnansweredQuestion { turn, request, reply });
    }

    /// Answers a question; of two answers the first counts, and the second is an error.
    fn answer_question(
        &mut self,
        call_id: &CallId,
        response: PermissionResponse,
    ) -> Result<(), SessionError> {
        let place = self.questions.iter().position(|open| open.request.call_id == *call_id);
        let question = self.questions.remove(place.ok_or(SessionError::NoQuestion)?);
        let answer = response.answer;
        self.bus.emit(Ephemeral::PermissionResolved { call_id: call_id.clone(), answer });
        question.reply.send(response).ok();
        Ok(())
    }
}

/// The status of a Turn that ends with this fact, if it is an end.
fn terminal_status_of(fact: &Canonical) -> Option<SessionStatus> {
    match fact {
        Canonical::AssistantMessage(message) if message.is_final() => Some(SessionStatus::Done),
        Canonical::TurnFailed(failed) if failed.terminal_status == TerminalStatus::Interrupted => {
            Some(SessionStatus::Interrupted)
        }
        Canonical::TurnFailed(failed) => Some(SessionStatus::Error {
            terminal_status: failed.terminal_status.as_str().to_owned(),
            error: Report {
                kind: failed.error_kind.clone(),
                message: failed.error_message.clone(),
                details: failed.details.clone(),
            },
        }),
        _ => None,
    }
}

fn crash_message(error: JoinError) -> String {
    let panic = match error.try_into_panic() {
        Ok(panic) => panic,
        Err(cancelled) => return format!("the Turn was cancelled: {cancelled}"),
    };
    let text = panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".to_owned());
    format!("the Turn panicked: {text}")
}

/// Appends a result for every call without one.
fn close_orphans(log: &mut Log, bus: &Bus, reason: &str) -> Result<(), LogError> {
    for call in log.history().orphan_calls() {
        let event = log.append(history::orphan_result(&call, reason).into())?;
        bus.publish(event);
    }
    Ok(())
}

/// Ends a Turn that the end of its process interrupted; there are no listeners yet.
pub(super) fn close_cut_turn(log: &mut Log) -> Result<(), SessionError> {
    let is_cut = log.history().turns().open.is_some();
    log.close_open_turn("the process that ran it ended", "the process ended during this Turn")?;
    if is_cut {
        log.syncer().sync()?;
    }
    Ok(())
}
