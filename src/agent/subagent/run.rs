//! One run of a child: queue, Session, Turn, and exactly one recorded end.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use serde_json::json;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::actor::Reply;
use super::context;
use super::nursery::{Parentage, Raised, Unborn, inherited};
use super::progress::Progress;
use super::questions::Questions;
use super::record::{Record, Status};
use super::show;
use super::terms::Terms;
use super::{LEAVING, Subagents};
use crate::agent::conversation::{Conversation, Input};
use crate::agent::session::{Session, SessionError};
use crate::agent::turn::Settings;
use crate::base::error::{Kind, Report};
use crate::base::id::SessionId;
use crate::base::text::{bound, first_chars};
use crate::base::tool_error::ToolError;
use crate::record::event::{
    Canonical, Ephemeral, Event, EventKind, From as ListenFrom, Heard, Listener, PermissionMode,
    Status as TurnStatus, SubagentEvent, SubagentEventKind, TerminalStatus,
};
use crate::settings::role::strictest;

/// How much of a last message reaches the parent, in bytes; the child's Log has all of it.
const SUMMARY: usize = 4096;

/// How many ids are tried for a Session; many children may start in one second.
const NAMES: usize = 16;

/// The longest delay before another attempt, in milliseconds.
const JITTER_MS: u64 = 250;

/// Transient failures of a Provider.
const PASSING: [Kind; 6] = [
    Kind::Network,
    Kind::StreamIdle,
    Kind::InvalidResponse,
    Kind::ProviderOverloaded,
    Kind::ProviderError,
    Kind::RateLimited,
];

/// A run to be started.
pub struct Job {
    pub record: Record,
    /// The message for the child.
    pub text: String,
    /// Ids of the parent's Resources that go with it.
    pub resources: Vec<String>,
    pub terms: Terms,
    pub link: Link,
}

/// The parent of a run, and the tokens that cancel it.
#[derive(Clone)]
pub struct Link {
    pub parent: Session,
    pub base: Arc<Settings>,
    pub subagents: Subagents,
    /// Cancelled when the parent is closed.
    pub family: CancellationToken,
    /// Cancelled when the Turn that asked for the run is interrupted.
    pub turn: CancellationToken,
}

/// The run's side of what the actor controls.
pub struct Leash {
    pub cancel: CancellationToken,
    pub permit: oneshot::Receiver<()>,
    pub progress: Arc<Progress>,
}

/// The result of the task of a run.
pub enum Over {
    /// It could not be recorded, so it did not begin.
    Refused,
    Ended(Box<Record>),
}

/// How a run ended.
struct End {
    status: Status,
    summary: String,
    reason: Option<String>,
    child_seq: Option<u64>,
    /// The kind of a Provider's failure.
    provider: Option<Kind>,
}

impl End {
    fn new(status: Status, reason: &str, summary: String) -> Self {
        let reason = Some(reason.to_owned());
        Self { status, summary, reason, child_seq: None, provider: None }
    }

    fn cancelled(reason: &str) -> Self {
        let summary = format!("It was cancelled ({}).", reason.replace('_', " "));
        Self::new(Status::Cancelled, reason, summary)
    }

    fn failed(reason: &str, report: &Report) -> Self {
        // The next actions are known only here.
        let mut lines = vec![format!("{}: {}", report.kind, report.message)];
        lines.extend(report.next_actions().iter().map(|action| format!("- {action}")));
        Self::new(Status::Failed, reason, lines.join("\n"))
    }
}

/// Runs a child to its end and records that end, also after a panic.
pub async fn run(job: Job, leash: Leash, reply: Reply<Result<Record, ToolError>>) -> Over {
    let Leash { cancel, permit, progress } = leash;
    let Job { mut record, text, resources, terms, link } = job;
    let is_new = record.child.is_none() && record.status == Status::Queued;
    record.status = Status::Queued;
    let first = if is_new { record.queued() } else { input(&record, &text) };
    let mut run = Run { record, text, resources, terms, link, cancel, progress, is_new };
    if let Err(error) = run.tell(first).await {
        reply.send(Err(ToolError::from(error))).ok();
        return Over::Refused;
    }
    reply.send(Ok(run.record.clone())).ok();
    let living = AssertUnwindSafe(run.live(permit)).catch_unwind().await;
    let end = living.unwrap_or_else(|panic| End::failed("crashed", &crash(&*panic)));
    run.finish(end).await;
    Over::Ended(Box::new(run.record))
}

/// The Event of another message to a child.
fn input(record: &Record, text: &str) -> SubagentEvent {
    SubagentEvent { task: Some(first_chars(text, 400)), ..record.event(SubagentEventKind::Input) }
}

struct Run {
    record: Record,
    text: String,
    resources: Vec<String>,
    terms: Terms,
    link: Link,
    cancel: CancellationToken,
    progress: Arc<Progress>,
    /// Whether this is the first run of the child.
    is_new: bool,
}

/// What can wake the loop of a working child.
enum Wake {
    Stopped(&'static str),
    Late,
    Answered(crate::base::id::CallId, crate::record::event::Said),
    Heard(Option<Heard>),
    /// The children of the child are done.
    Idle,
}

impl Run {
    async fn live(&mut self, permit: oneshot::Receiver<()>) -> End {
        let stops = self.stops();
        tokio::select! {
            biased;
            reason = stops.stopped() => return End::cancelled(reason),
            granted = permit => if granted.is_err() {
                return End::cancelled("pixir_ends");
            }
        }
        self.progress.go();
        loop {
            let end = self.attempt().await;
            self.progress.pause();
            let Some(kind) = self.may_try_again(&end) else { return end };
            self.record.status = Status::Queued;
            let failed = self.record.child.take();
            self.record.tried.extend(failed.clone());
            let retrying = SubagentEvent {
                reason: Some(kind.name().to_owned()),
                child_session_id: failed.map(|id| id.to_string()),
                ..self.record.event(SubagentEventKind::Retrying)
            };
            if self.tell(retrying).await.is_err() {
                return end;
            }
            self.record.attempt += 1;
            let pause = Duration::from_millis(fastrand::u64(..JITTER_MS));
            tokio::select! {
                biased;
                reason = stops.stopped() => return End::cancelled(reason),
                () = tokio::time::sleep(pause) => {}
            }
            self.progress.go();
        }
    }

    /// The failure after which another attempt may help. A later run is not attempted again: it
    /// depends on the Log that the child has.
    fn may_try_again(&self, end: &End) -> Option<Kind> {
        if !self.is_new {
            return None;
        }
        let retries = self.link.subagents.nursery.config.subagents.retries;
        let is_reading =
            strictest(&self.record.mode, &PermissionMode::ReadOnly) == self.record.mode;
        end.provider
            .filter(|kind| is_reading && self.record.attempt <= retries && PASSING.contains(kind))
    }

    async fn attempt(&mut self) -> End {
        self.record.status = Status::Running;
        let Raised { conversation, family } = match self.prepare().await {
            Ok(raised) => raised,
            Err(report) => return End::failed("setup_failed", &report),
        };
        let held = Held(Some(conversation.clone()));
        self.record.child = Some(conversation.id().clone());
        let end = match self.tell(self.record.event(SubagentEventKind::Started)).await {
            Ok(()) => self.converse(&conversation, &family).await,
            Err(error) => End::failed("log_write_failed", &Report::describe(&error)),
        };
        held.release();
        drop(family);
        self.link.base.provider.forget(conversation.id());
        conversation.close().await;
        end
    }

    async fn prepare(&self) -> Result<Raised, Report> {
        let Link { parent, base, subagents, .. } = &self.link;
        let of = Parentage { parent: parent.id(), base, subagents, terms: &self.terms };
        match &self.record.child {
            Some(child) => subagents.nursery.wake(child, &self.record, of).await,
            None => self.bear(of).await,
        }
    }

    /// Creates the child, after the id of its Session is recorded.
    async fn bear(&self, of: Parentage<'_>) -> Result<Raised, Report> {
        for _ in 0..NAMES {
            let id = SessionId::mint();
            self.tell(self.record.starting(&id)).await?;
            match of.subagents.nursery.raise(&id, &self.record, of).await {
                Ok(raised) => return Ok(raised),
                Err(Unborn::Taken) => {}
                Err(Unborn::Failed(report)) => return Err(report),
            }
        }
        Err(Report::new(Kind::Busy, "every id that was tried for its Session is taken"))
    }

    /// Sends the message, and listens until the child and its own children are done.
    async fn converse(&mut self, conversation: &Conversation, family: &super::Family) -> End {
        // A run that was cancelled while its Workspace was created sends no request.
        if let Some(reason) = self.stops().stopped().now_or_never() {
            return End::cancelled(reason);
        }
        let mut listener = conversation.subscribe(ListenFrom::Now);
        if let Err(report) = self.send(conversation).await {
            return End::failed("setup_failed", &report);
        }
        let Record { id, role, .. } = &self.record;
        let mut questions = Questions::new(self.link.parent.clone(), id, role);
        let mut words = Words::default();
        let mut end = None;
        let stopped = loop {
            match self.next(&mut listener, &mut questions, end.is_some().then_some(family)).await {
                Wake::Stopped(reason) => break Some(End::cancelled(reason)),
                Wake::Late => break Some(self.late()),
                Wake::Idle => break None,
                Wake::Answered(call_id, said) => {
                    // Fails if the child was stopped meanwhile.
                    conversation.answer(&call_id, said).await.ok();
                }
                Wake::Heard(None) if end.is_some() => break None,
                Wake::Heard(None) => {
                    let report = Report::new(Kind::SessionClosed, "its Session closed");
                    break Some(End::failed("crashed", &report));
                }
                Wake::Heard(Some(Heard::Missed(_))) => self.progress.missed(),
                Wake::Heard(Some(Heard::Event(event))) => {
                    self.progress.hear(&event);
                    self.hear_question(&event, &mut questions).await;
                    end = words.hear(&event).or(end);
                }
            }
            self.keep_time(&questions);
        };
        questions.settle_all().await;
        if let Some(stopped) = stopped {
            family.token.cancel();
            let rest = self.stop(conversation, &mut listener, &mut words);
            tokio::join!(rest, tokio::time::timeout(LEAVING, family.idle())).1.ok();
            // Its own children, stopped with it, have recorded their usage.
            while let Some(Some(heard)) = listener.next().now_or_never() {
                if let Heard::Event(event) = heard {
                    self.progress.hear(&event);
                }
            }
            return End { child_seq: words.seq, ..stopped };
        }
        end.unwrap_or_else(|| End::cancelled("interrupted"))
    }

    async fn send(&self, conversation: &Conversation) -> Result<(), Report> {
        let attachments = inherited(&self.link.base, &self.resources)?;
        let max_depth = self.link.subagents.nursery.config.subagents.max_depth;
        let context =
            context::text(&self.record, &self.terms.facts, self.link.parent.id(), max_depth);
        let input = Input { text: self.text.clone() };
        Ok(conversation.delegate(input, attachments, context).await?)
    }

    async fn next(
        &self,
        listener: &mut Listener,
        questions: &mut Questions,
        family: Option<&super::Family>,
    ) -> Wake {
        let left = self.record.timeout.saturating_sub(self.progress.worked());
        let is_asking = !questions.is_empty();
        let is_working = !is_asking && !self.progress.is_held_up();
        let stops = self.stops();
        let idle = async {
            match family {
                Some(family) => family.idle().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            reason = stops.stopped() => Wake::Stopped(reason),
            (call_id, said) = questions.answered(), if is_asking => Wake::Answered(call_id, said),
            heard = listener.next() => Wake::Heard(heard),
            () = idle => Wake::Idle,
            () = tokio::time::sleep(left), if is_working => Wake::Late,
        }
    }

    /// Stops the clock during a question to the user, and while all calls wait for a place where a
    /// command may run.
    fn keep_time(&self, questions: &Questions) {
        if questions.is_empty() && !self.progress.is_held_up() {
            self.progress.go();
        } else {
            self.progress.pause();
        }
    }

    async fn hear_question(&self, event: &Event, questions: &mut Questions) {
        match event.kind() {
            EventKind::Ephemeral(Ephemeral::PermissionRequest(request)) => questions.ask(request),
            EventKind::Ephemeral(Ephemeral::PermissionResolved { call_id, .. }) => {
                questions.settle(call_id).await;
            }
            EventKind::Ephemeral(_) | EventKind::Canonical(_) => {}
        }
    }

    /// Interrupts the child's Turn and reads its last message.
    async fn stop(&self, conversation: &Conversation, listener: &mut Listener, words: &mut Words) {
        let hearing = async {
            while let Some(heard) = listener.next().await {
                let Heard::Event(event) = heard else { continue };
                self.progress.hear(&event);
                if words.hear(&event).is_some() {
                    return;
                }
            }
        };
        let interrupted = async {
            // Without a Turn there is nothing to read.
            if conversation.interrupt().await.is_ok() {
                hearing.await;
            }
        };
        tokio::time::timeout(LEAVING, interrupted).await.ok();
    }

    fn late(&self) -> End {
        let time = self.record.timeout.as_secs_f64();
        let summary = format!("It timed out after {time} s, during: {}.", self.progress.doing());
        End::new(Status::TimedOut, "timeout", summary)
    }

    /// Records the end of the run, once.
    async fn finish(&mut self, end: End) {
        self.progress.pause();
        let usage = self.progress.usage();
        self.record.status = end.status;
        self.record.summary = Some(bound(&end.summary, SUMMARY).into_owned());
        self.record.reason = end.reason;
        self.record.child_seq = end.child_seq;
        self.record.elapsed = self.progress.worked();
        let mut event = self.record.ended(usage);
        if self.record.role == "reviewer" && end.status == Status::Completed {
            let verdict = show::verdict(&end.summary);
            event.extra.insert("verdict".to_owned(), json!(verdict.unwrap_or("unstated")));
        }
        self.record.usage.add(&usage);
        if let Err(error) = self.tell(event).await {
            tracing::warn!(%error, id = %self.record.id, "the end of a Subagent is not recorded");
            // A Workflow records the end of its steps itself, and fails if it cannot.
            if self.terms.marks.is_empty() {
                self.link.parent.report_unrecorded(&error);
            }
        }
    }

    /// Records an Event in the parent's Log.
    async fn tell(&self, mut fact: SubagentEvent) -> Result<(), SessionError> {
        let secrets = &self.link.base.secrets;
        for text in [&mut fact.task, &mut fact.summary].into_iter().flatten() {
            *text = secrets.clean(text).into_owned();
        }
        fact.extra.extend(self.terms.marks.clone());
        self.link.parent.record(fact.into()).await.map(drop)
    }

    fn stops(&self) -> Stops {
        let Link { family, turn, .. } = &self.link;
        Stops { own: self.cancel.clone(), family: family.clone(), turn: turn.clone() }
    }
}

/// The tokens that cancel a run.
struct Stops {
    own: CancellationToken,
    family: CancellationToken,
    turn: CancellationToken,
}

impl Stops {
    async fn stopped(&self) -> &'static str {
        tokio::select! {
            biased;
            () = self.family.cancelled() => "parent_closed",
            () = self.turn.cancelled() => "parent_interrupted",
            () = self.own.cancelled() => "closed_by_parent",
        }
    }
}

/// The last message of the child.
#[derive(Default)]
struct Words {
    text: String,
    seq: Option<u64>,
}

impl Words {
    /// Applies an Event; returns the end of the child's Turn if this is it.
    fn hear(&mut self, event: &Event) -> Option<End> {
        match event.kind() {
            EventKind::Canonical(Canonical::AssistantMessage(message))
                if message.is_final() || message.truncation().is_some() =>
            {
                self.text.clone_from(&message.text);
                self.seq = event.seq();
                None
            }
            EventKind::Canonical(Canonical::TurnFailed(_)) => {
                self.seq = event.seq();
                None
            }
            EventKind::Ephemeral(Ephemeral::Status(status)) => self.end(status),
            EventKind::Canonical(_) | EventKind::Ephemeral(_) => None,
        }
    }

    fn end(&self, status: &TurnStatus) -> Option<End> {
        let end = match status {
            TurnStatus::Done => {
                End { reason: None, ..End::new(Status::Completed, "", self.text.clone()) }
            }
            TurnStatus::Interrupted => End::cancelled("interrupted"),
            TurnStatus::Error { terminal_status, error } => {
                let mut end = End::failed(terminal_status, error);
                if !self.text.is_empty() {
                    // An answer that was cut is better than none.
                    end.summary = format!("{}\n\n{}", end.summary, self.text);
                }
                let is_provider = *terminal_status == *TerminalStatus::ProviderError.as_str();
                let provider = Kind::from_name(&error.kind).filter(|_| is_provider);
                let is_late = *terminal_status == *TerminalStatus::TimedOut.as_str();
                let status = if is_late { Status::TimedOut } else { end.status };
                End { status, provider, ..end }
            }
            TurnStatus::Idle
            | TurnStatus::Starting { .. }
            | TurnStatus::Compacting { .. }
            | TurnStatus::WaitingForBudget { .. }
            | TurnStatus::Thinking { .. }
            | TurnStatus::Recording { .. }
            | TurnStatus::Working { .. } => {
                return None;
            }
        };
        Some(End { child_seq: self.seq, ..end })
    }
}

/// Interrupts the Turn of a Conversation when its run is dropped.
struct Held(Option<Conversation>);

impl Held {
    fn release(mut self) {
        self.0 = None;
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(conversation) = self.0.take() {
            tokio::spawn(async move { conversation.interrupt().await });
        }
    }
}

fn crash(panic: &(dyn std::any::Any + Send)) -> Report {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    let text = text.unwrap_or_else(|| "no message".to_owned());
    Report::new(Kind::Crashed, format!("its run panicked: {text}"))
}
