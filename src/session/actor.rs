//! The Session's task: the one writer of the Log, and the survivor of every Turn.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinHandle};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::inbox::{Inbox, Missed, Reply, TurnId};
use super::{Body, Draft, Manners, Session, SessionError, TurnContext};
use crate::config::Durability;
use crate::disk;
use crate::error::{Kind, Report};
use crate::event::{
    Answer, Backlog, Bus, Canonical, Ephemeral, Extra, PermissionRequest, Said, SharedEvent,
    Status, TerminalStatus, TurnFailed,
};
use crate::history;
use crate::id::CallId;
use crate::log::{Log, LogError};

/// What can wake the task.
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
    /// In the order they were asked.
    questions: Vec<Question>,
    waiting: Vec<Reply<Status>>,
    /// The name of a new Log is on its way to the disk since the Session began.
    naming: Option<Disk>,
}

/// Work at the disk, on a thread that may wait.
type Disk = JoinHandle<Result<(), LogError>>;

struct RunningTurn {
    id: TurnId,
    task: JoinHandle<Status>,
    cancel: CancellationToken,
    over: Arc<AtomicBool>,
    abort_at: Option<Instant>,
    interrupters: Vec<Reply<Result<(), SessionError>>>,
    /// How it ended, once that is recorded.
    ended: Option<Status>,
    /// Text that was shown and belongs to no recorded message yet.
    draft: Draft,
}

struct Question {
    /// Which Turn asks; one that asks outside of a Turn is not over with it.
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

    /// Begins to make the name of a new Log durable, so that it is by the time somebody waits for
    /// the first words in it.
    fn name_early(&mut self) {
        if self.manners.durability != Durability::None
            && let Some(folder) = self.log.take_newborn()
        {
            self.naming = Some(disk::work(move || folder.sync().map_err(LogError::writing)));
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
            // What the Turn said before it ended is handled before its end.
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

    /// Holds everything again, because some of it is about to count again.
    async fn remember(&mut self) -> Result<(), SessionError> {
        let whole = super::whole(self.log.archive(), self.log.history().last_seq()).await?;
        self.log.remember(whole);
        Ok(())
    }

    /// Only the Turn that runs, and has not ended, may speak.
    fn check_turn(&self, id: TurnId) -> Result<(), SessionError> {
        match &self.turn {
            Some(turn) if turn.id == id && turn.ended.is_none() => Ok(()),
            _ => Err(SessionError::NoTurn),
        }
    }

    async fn sync(&mut self) -> Result<(), SessionError> {
        match self.manners.durability {
            Durability::Turn => self.force_to_disk().await,
            // Every Event is already there, or nobody asked for it.
            Durability::Event | Durability::None => Ok(()),
        }
    }

    async fn force_to_disk(&mut self) -> Result<(), SessionError> {
        let disk = self.log.syncer();
        let words = disk::work(move || disk.sync());
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

    /// What is held from a seq on, and a way to what is not.
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
        // Whatever could not be closed when it happened, on a full disk say, is closed now.
        close_orphans(&mut self.log, &self.bus, "its Turn ended first")?;
        if self.log.history().turns().open.is_some() {
            let message = "the end of this Turn could not be recorded when it came";
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
            // What is recorded counts, whatever became of the task afterwards.
            (Some(status), _) => status,
            (None, result) => self.bury_task(result).await,
        };
        self.finish(&status);
    }

    async fn bury_task(&mut self, result: Result<Status, JoinError>) -> Status {
        match result {
            // It could not write its own end; perhaps we can.
            Ok(Status::Error { terminal_status, error }) => {
                let status = TerminalStatus::from_text(&terminal_status);
                self.bury(status, error).await
            }
            Ok(_) => {
                let error = Report::new(Kind::Internal, "the Turn ended without saying how");
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

    /// The survivor writes the evidence: a task that is gone can no longer record its own end.
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
            // The cause that the Turn named says more than the failure to write it down.
            Err(_) if error.kind == Kind::LogWriteFailed.name() => {
                Status::Error { terminal_status, error }
            }
            Err(failure) => failure.to_status(),
        }
    }

    /// What the user saw of a broken answer stays as evidence.
    async fn keep_draft(&mut self, error: &Report) -> Result<(), SessionError> {
        close_orphans(&mut self.log, &self.bus, "its Turn was stopped")?;
        let text = self.turn.as_ref().map(|turn| turn.draft.text()).unwrap_or_default();
        if !text.trim().is_empty() {
            self.record(None, history::partial(text, &error.kind).into()).await?;
        }
        Ok(())
    }

    fn finish(&mut self, status: &Status) {
        // A Session that was just opened still holds all of it.
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

    /// Settles a question; of two answers the first counts, the other finds no question.
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

/// Gives every unanswered call its one result.
fn close_orphans(log: &mut Log, bus: &Bus, reason: &str) -> Result<(), LogError> {
    for call in log.history().orphans() {
        let event = log.append(history::orphan_result(&call, reason).into())?;
        bus.publish(event);
    }
    Ok(())
}

/// Ends a Turn that the death of its process cut; nobody listens yet.
pub(super) fn close_cut_turn(log: &mut Log) -> Result<(), SessionError> {
    let is_cut = log.history().turns().open.is_some();
    log.close_open("the process that ran it ended", "the process ended during this Turn")?;
    if is_cut {
        log.syncer().sync()?;
    }
    Ok(())
}
