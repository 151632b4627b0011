//! The Session's task: the one writer of the Log. It outlives every Turn, and records the end of one that cannot.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinHandle};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::inbox::{Inbox, Missed, Reply, TurnId};
use super::{Body, Draft, Manners, Session, SessionError, TurnContext};
use crate::base::blocking;
use crate::base::error::{Kind, Report};
use crate::base::id::CallId;
use crate::record::event::{
    Answer, Backlog, Bus, Canonical, Ephemeral, Extra, PermissionRequest, Said, SharedEvent,
    Status, TerminalStatus, TurnFailed,
};
use crate::record::history;
use crate::record::log::{Log, LogError};
use crate::settings::config::Durability;

/// The events that the task waits for.
enum Wake {
    Message(Inbox),
    TurnEnded(Result<Status, JoinError>),
    GraceOver,
}

pub(super) struct Actor {
    log: Log,
    bus: Bus,
    manners: Manners,
    /// Weak, so that the Session ends when its last handle does.
    inbox: mpsc::WeakSender<Inbox>,
    turn: Option<RunningTurn>,
    turns: TurnId,
    /// Open questions, in the order in which they were asked.
    questions: Vec<Question>,
    waiting: Vec<Reply<Status>>,
    /// The sync of a new Log's folder, begun when the Session was created.
    naming: Option<Disk>,
}

/// A sync, on a thread that may block.
type Disk = JoinHandle<Result<(), LogError>>;

struct RunningTurn {
    id: TurnId,
    task: JoinHandle<Status>,
    cancel: CancellationToken,
    over: Arc<AtomicBool>,
    abort_at: Option<Instant>,
    interrupters: Vec<Reply<Result<(), SessionError>>>,
    /// Its status, once its end is recorded.
    ended: Option<Status>,
    /// Text that was shown and is in no recorded message yet.
    draft: Draft,
}

struct Question {
    /// The Turn that asks; a question outside of a Turn does not end with one.
    turn: Option<TurnId>,
    request: PermissionRequest,
    reply: Reply<Said>,
}

impl Actor {
    pub(super) fn new(
        log: Log,
        bus: Bus,
        manners: Manners,
        inbox: mpsc::WeakSender<Inbox>,
    ) -> Self {
        Self {
            log,
            bus,
            manners,
            inbox,
            turn: None,
            turns: 0,
            questions: Vec::new(),
            waiting: Vec::new(),
            naming: None,
        }
    }

    /// Starts to make the name of a new Log durable early, so that it is durable when the first message must
    /// be.
    fn name_early(&mut self) {
        if self.manners.durability != Durability::None
            && let Some(folder) = self.log.take_newborn()
        {
            self.naming = Some(blocking::work(move || folder.sync().map_err(LogError::writing)));
        }
    }

    pub(super) async fn run(mut self, mut inbox: mpsc::Receiver<Inbox>) {
        self.name_early();
        while let Some(wake) = self.next(&mut inbox).await {
            match wake {
                Wake::Message(message) => self.handle(message).await,
                Wake::TurnEnded(result) => self.turn_ended(result).await,
                Wake::GraceOver => self.abort_turn().await,
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
            () = tokio::time::sleep_until(abort_at), if grace_runs => Some(Wake::GraceOver),
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
                reply.send((self.log.history().clone(), self.log.archive())).ok();
            }
            Inbox::Backlog { seq, reply } => {
                reply.send(self.backlog(seq)).ok();
            }
            Inbox::StartTurn { body, reply } => {
                reply.send(self.start_turn(body)).ok();
            }
            Inbox::Interrupt(reply) => self.interrupt(reply),
            Inbox::Ask { turn, request, reply } => self.ask(turn, *request, reply),
            Inbox::Answer { call_id, said, reply } => {
                reply.send(self.answer(&call_id, said)).ok();
            }
            Inbox::Finished(reply) => match self.turn {
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
        let end = end_of(&fact);
        let is_end = end.is_some();
        if is_end && self.turn.is_some() {
            close_orphans(&mut self.log, &self.bus, "its Turn ended first")?;
        }
        if self.log.history().is_too_short_for(&fact) {
            self.remember().await?;
        }
        let is_message = matches!(fact, Canonical::AssistantMessage(_));
        let is_compaction = matches!(fact, Canonical::HistoryCompaction(_));
        let is_commit_point = is_end || matches!(fact, Canonical::UserMessage(_));
        let event = self.log.append(fact)?;
        let must_sync = match self.manners.durability {
            Durability::Event => true,
            Durability::Turn => is_commit_point,
            Durability::None => false,
        };
        if must_sync {
            self.force_to_disk().await?;
        }
        if let Some(running) = &mut self.turn {
            running.ended = end.or(running.ended.take());
            if is_message {
                running.draft.clear();
            }
        }
        if is_compaction {
            self.log.forget_hidden();
        }
        self.bus.publish(Arc::clone(&event));
        Ok(event)
    }

    /// Loads the whole History again, because dropped Events are about to count again.
    async fn remember(&mut self) -> Result<(), SessionError> {
        let whole = super::whole(self.log.archive(), self.log.history().last_seq()).await?;
        self.log.remember(whole);
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
        match self.manners.durability {
            Durability::Turn => self.force_to_disk().await,
            // Every Event is already on the disk, or durability is off.
            Durability::Event | Durability::None => Ok(()),
        }
    }

    async fn force_to_disk(&mut self) -> Result<(), SessionError> {
        let disk = self.log.syncer();
        let words = blocking::work(move || disk.sync());
        for work in self.naming.take().into_iter().chain([words]) {
            let joined = work.await;
            self.check_disk(joined)?;
        }
        Ok(())
    }

    fn check_disk(
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

    /// The Events from a seq on, or how to read them where they are not held.
    fn backlog(&self, seq: u64) -> (Backlog, Option<Missed>) {
        let history = self.log.history();
        let is_missed = history.forgotten().is_some_and(|forgotten| seq <= forgotten.to);
        let missed = is_missed.then(|| Missed {
            archive: self.log.archive(),
            from: seq,
            last: history.last_seq(),
        });
        let events = if is_missed { Vec::new() } else { history.since(seq) };
        let backlog = Backlog {
            events,
            questions: self.questions.iter().map(|open| open.request.clone()).collect(),
            ..self.bus.now()
        };
        (backlog, missed)
    }

    fn start_turn(&mut self, body: Body) -> Result<(), SessionError> {
        if self.turn.is_some() {
            return Err(SessionError::Busy);
        }
        let Some(inbox) = self.inbox.upgrade() else { return Err(SessionError::Closed) };
        // Calls and a Turn that could not be closed in time, on a full disk say, are closed now.
        close_orphans(&mut self.log, &self.bus, "its Turn ended first")?;
        if self.log.history().turns().open.is_some() {
            let message = "the end of this Turn could not be recorded when it happened";
            self.bus.publish(self.log.append(history::cut_turn(message).into())?);
        }
        self.turns += 1;
        let cancel = CancellationToken::new();
        let over = Arc::new(AtomicBool::new(false));
        let draft = Draft::default();
        let context = TurnContext {
            session: Session {
                id: self.log.id().clone(),
                folder: self.log.folder().clone(),
                path: self.log.path().to_owned(),
                inbox,
                bus: self.bus.clone(),
            },
            turn: self.turns,
            cancel: cancel.clone(),
            over: Arc::clone(&over),
            draft: draft.clone(),
        };
        self.turn = Some(RunningTurn {
            id: self.turns,
            task: tokio::spawn(async move { body(context).await }),
            cancel,
            over,
            abort_at: None,
            interrupters: Vec::new(),
            ended: None,
            draft,
        });
        Ok(())
    }

    fn interrupt(&mut self, reply: Reply<Result<(), SessionError>>) {
        let Some(turn) = &mut self.turn else {
            reply.send(Err(SessionError::NoTurn)).ok();
            return;
        };
        turn.cancel.cancel();
        turn.abort_at.get_or_insert_with(|| Instant::now() + self.manners.grace);
        turn.interrupters.push(reply);
    }

    async fn turn_ended(&mut self, result: Result<Status, JoinError>) {
        let ended = self.turn.as_ref().and_then(|turn| turn.ended.clone());
        let status = match (ended, result) {
            // The recorded end counts, even if the task failed afterwards.
            (Some(status), _) => status,
            (None, result) => self.bury_task(result).await,
        };
        self.finish(&status);
    }

    async fn bury_task(&mut self, result: Result<Status, JoinError>) -> Status {
        match result {
            // The Turn could not record its own end; the Session tries again.
            Ok(Status::Error { terminal_status, error }) => {
                let status = TerminalStatus::from_text(&terminal_status);
                self.bury(status, error).await
            }
            Ok(_) => {
                let error = Report::new(Kind::Internal, "the Turn ended without recording its end");
                self.bury(TerminalStatus::Crashed, error).await
            }
            Err(error) => {
                tracing::error!(%error, "a Turn crashed");
                let message = self.manners.secrets.clean(&crash_message(error)).into_owned();
                self.bury(TerminalStatus::Crashed, Report::new(Kind::Crashed, message)).await
            }
        }
    }

    async fn abort_turn(&mut self) {
        let Some(turn) = &mut self.turn else { return };
        turn.task.abort();
        if let Some(status) = turn.ended.clone() {
            return self.finish(&status);
        }
        let error =
            Report::new(Kind::Interrupted, "the Turn did not stop by itself and was aborted");
        let status = self.bury(TerminalStatus::Interrupted, error).await;
        self.finish(&status);
    }

    /// Records the end of a Turn whose task can no longer record it.
    async fn bury(&mut self, status: TerminalStatus, error: Report) -> Status {
        let closed = self.keep_draft(&error).await;
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
            Ok(()) if interrupted => Status::Interrupted,
            Ok(()) => Status::Error { terminal_status, error },
            // The Turn's own error says more than the failure to record it.
            Err(_) if error.kind == Kind::LogWriteFailed.name() => {
                Status::Error { terminal_status, error }
            }
            Err(failure) => failure.to_status(),
        }
    }

    /// Records the text of a broken answer that the user saw, as evidence.
    async fn keep_draft(&mut self, error: &Report) -> Result<(), SessionError> {
        close_orphans(&mut self.log, &self.bus, "its Turn was stopped")?;
        let text = self.turn.as_ref().map(|turn| turn.draft.text()).unwrap_or_default();
        if !text.trim().is_empty() {
            self.record(None, history::partial(text, &error.kind).into()).await?;
        }
        Ok(())
    }

    fn finish(&mut self, status: &Status) {
        // A Session that was just opened still holds all Events.
        self.log.forget_hidden();
        if let Some(turn) = self.turn.take() {
            turn.over.store(true, Ordering::Release);
            for question in self.questions.extract_if(.., |open| open.turn.is_some()) {
                let call_id = question.request.call_id;
                self.bus.emit(Ephemeral::PermissionResolved { call_id, answer: Answer::No });
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

    fn ask(&mut self, turn: Option<TurnId>, request: PermissionRequest, reply: Reply<Said>) {
        if turn.is_some_and(|turn| self.check_turn(turn).is_err()) {
            return;
        }
        self.bus.emit(Ephemeral::PermissionRequest(Box::new(request.clone())));
        self.questions.push(Question { turn, request, reply });
    }

    /// Answers a question; of two answers the first counts, and the second is an error.
    fn answer(&mut self, call_id: &CallId, said: Said) -> Result<(), SessionError> {
        let place = self.questions.iter().position(|open| open.request.call_id == *call_id);
        let question = self.questions.remove(place.ok_or(SessionError::NoQuestion)?);
        let answer = said.answer;
        self.bus.emit(Ephemeral::PermissionResolved { call_id: call_id.clone(), answer });
        question.reply.send(said).ok();
        Ok(())
    }
}

/// The status of a Turn that ends with this fact, if it is an end.
fn end_of(fact: &Canonical) -> Option<Status> {
    match fact {
        Canonical::AssistantMessage(message) if message.is_final() => Some(Status::Done),
        Canonical::TurnFailed(failed) if failed.terminal_status == TerminalStatus::Interrupted => {
            Some(Status::Interrupted)
        }
        Canonical::TurnFailed(failed) => Some(Status::Error {
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
    for call in log.history().orphans() {
        let event = log.append(history::orphan_result(&call, reason).into())?;
        bus.publish(event);
    }
    Ok(())
}

/// Ends a Turn that the end of its process interrupted; there are no listeners yet.
pub(super) fn close_cut_turn(log: &mut Log) -> Result<(), SessionError> {
    let is_cut = log.history().turns().open.is_some();
    log.close_open("the process that ran it ended", "the process ended during this Turn")?;
    if is_cut {
        log.syncer().sync()?;
    }
    Ok(())
}
