//! One run of a child: queue, Session, Turn, and exactly one recorded end.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use serde_json::json;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::actor::SubagentReply;
use super::child_factory::{ChildHandle, ParentContext, SpawnError, inherited_attachments};
use super::constraints::Constraints;
use super::delegation_context;
use super::progress::SubagentProgress;
use super::questions::ForwardedQuestions;
use super::record::{SubagentRecord, SubagentStatus};
use super::show;
use super::{STOP_TIMEOUT, SubagentRegistry};
use crate::agent::conversation::{Conversation, UserInput};
use crate::agent::session::{Session, SessionError};
use crate::agent::turn::TurnSettings;
use crate::base::error::{Kind, Report};
use crate::base::id::SessionId;
use crate::base::text::{bound_text, truncate_chars};
use crate::base::tool_error::ToolError;
use crate::record::event::{
    Canonical, Ephemeral, Event, EventKind, ListenFrom, Listener, ListenerItem, PermissionMode,
    SessionStatus as TurnStatus, SubagentEvent, SubagentEventKind, TerminalStatus,
};
use crate::settings::role::stricter_mode;

/// How much of a last message reaches the parent, in bytes; the child's Log has all of it.
const MAX_SUMMARY_BYTES: usize = 4096;

/// How many ids are tried for a Session; many children may start in one second.
const MAX_ID_ATTEMPTS: usize = 16;

/// The longest delay before another attempt, in milliseconds.
const MAX_RETRY_DELAY_MS: u64 = 250;

/// Transient failures of a Provider.
const TRANSIENT_KINDS: [Kind; 6] = [
    Kind::Network,
    Kind::StreamIdle,
    Kind::InvalidResponse,
    Kind::ProviderOverloaded,
    Kind::ProviderError,
    Kind::RateLimited,
];

/// A run to be started.
pub struct SubagentJob {
    pub record: SubagentRecord,
    /// The message for the child.
    pub text: String,
    /// Ids of the parent's Resources that the child gets.
    pub resources: Vec<String>,
    pub constraints: Constraints,
    pub parent_link: ParentLink,
}

/// The parent of a run, and the tokens that cancel it.
#[derive(Clone)]
pub struct ParentLink {
    pub parent: Session,
    pub base: Arc<TurnSettings>,
    pub subagents: SubagentRegistry,
    /// Cancelled when the parent is closed.
    pub parent_closed: CancellationToken,
    /// Cancelled when the Turn that asked for the run is interrupted.
    pub turn_cancelled: CancellationToken,
}

/// The run's side of the controls that the actor holds.
pub struct RunControl {
    pub cancel: CancellationToken,
    pub start: oneshot::Receiver<()>,
    pub progress: Arc<SubagentProgress>,
}

/// The result of the task of a run.
pub enum SubagentRunResult {
    /// The run could not be recorded, so it did not begin.
    Refused,
    Ended(Box<SubagentRecord>),
}

/// The end of a run, and its result.
struct SubagentRunEnd {
    status: SubagentStatus,
    summary: String,
    reason: Option<String>,
    child_seq: Option<u64>,
    /// The kind of a Provider's failure.
    provider_failure: Option<Kind>,
}

impl SubagentRunEnd {
    fn new(status: SubagentStatus, reason: &str, summary: String) -> Self {
        let reason = Some(reason.to_owned());
        Self { status, summary, reason, child_seq: None, provider_failure: None }
    }

    fn cancelled(reason: &str) -> Self {
        let summary = format!("It was cancelled ({}).", reason.replace('_', " "));
        Self::new(SubagentStatus::Cancelled, reason, summary)
    }

    fn failed(reason: &str, report: &Report) -> Self {
        // The next actions are known only here.
        let mut lines = vec![format!("{}: {}", report.kind, report.message)];
        lines.extend(report.next_actions().iter().map(|action| format!("- {action}")));
        Self::new(SubagentStatus::Failed, reason, lines.join("\n"))
    }
}

/// Runs a child to its end and records that end, also after a panic.
pub async fn run_child(
    job: SubagentJob,
    control: RunControl,
    reply: SubagentReply<Result<SubagentRecord, ToolError>>,
) -> SubagentRunResult {
    let RunControl { cancel, start: permit, progress } = control;
    let SubagentJob { mut record, text, resources, constraints, parent_link } = job;
    let is_new = record.child.is_none() && record.status == SubagentStatus::Queued;
    record.status = SubagentStatus::Queued;
    let first = if is_new { record.queued_event() } else { input_event(&record, &text) };
    let mut run =
        SubagentRun { record, text, resources, constraints, parent_link, cancel, progress, is_new };
    if let Err(error) = run.record_event(first).await {
        reply.send(Err(ToolError::from(error))).ok();
        return SubagentRunResult::Refused;
    }
    reply.send(Ok(run.record.clone())).ok();
    let living = AssertUnwindSafe(run.run_attempts(permit)).catch_unwind().await;
    let end =
        living.unwrap_or_else(|panic| SubagentRunEnd::failed("crashed", &crash_report(&*panic)));
    run.record_end(end).await;
    SubagentRunResult::Ended(Box::new(run.record))
}

/// The Event of another message to a child.
fn input_event(record: &SubagentRecord, text: &str) -> SubagentEvent {
    SubagentEvent {
        task: Some(truncate_chars(text, 400)),
        ..record.new_event(SubagentEventKind::Input)
    }
}

struct SubagentRun {
    record: SubagentRecord,
    text: String,
    resources: Vec<String>,
    constraints: Constraints,
    parent_link: ParentLink,
    cancel: CancellationToken,
    progress: Arc<SubagentProgress>,
    /// Whether this is the first run of the child.
    is_new: bool,
}

/// The events that the loop of a running child waits for.
enum Wake {
    Stopped(&'static str),
    Timeout,
    Answered(crate::base::id::CallId, crate::record::event::PermissionResponse),
    Item(Option<ListenerItem>),
    /// The children of the child are done.
    Idle,
}

impl SubagentRun {
    async fn run_attempts(&mut self, permit: oneshot::Receiver<()>) -> SubagentRunEnd {
        let stops = self.stop_tokens();
        tokio::select! {
            biased;
            reason = stops.wait_for_stop() => return SubagentRunEnd::cancelled(reason),
            granted = permit => if granted.is_err() {
                return SubagentRunEnd::cancelled("pixir_ends");
            }
        }
        self.progress.resume();
        loop {
            let end = self.attempt().await;
            self.progress.pause();
            let Some(kind) = self.may_try_again(&end) else { return end };
            self.record.status = SubagentStatus::Queued;
            let failed = self.record.child.take();
            self.record.failed_sessions.extend(failed.clone());
            let retrying = SubagentEvent {
                reason: Some(kind.name().to_owned()),
                child_session_id: failed.map(|id| id.to_string()),
                ..self.record.new_event(SubagentEventKind::Retrying)
            };
            if self.record_event(retrying).await.is_err() {
                return end;
            }
            self.record.attempt += 1;
            let pause = Duration::from_millis(fastrand::u64(..MAX_RETRY_DELAY_MS));
            tokio::select! {
                biased;
                reason = stops.wait_for_stop() => return SubagentRunEnd::cancelled(reason),
                () = tokio::time::sleep(pause) => {}
            }
            self.progress.resume();
        }
    }

    /// The failure after which another attempt may help. Only a child's first run is retried: a later
    /// one depends on the Log that the child has.
    fn may_try_again(&self, end: &SubagentRunEnd) -> Option<Kind> {
        if !self.is_new {
            return None;
        }
        let retries = self.parent_link.subagents.child_factory.config.subagents.retries;
        let is_read_only =
            stricter_mode(&self.record.mode, &PermissionMode::ReadOnly) == self.record.mode;
        end.provider_failure.filter(|kind| {
            is_read_only && self.record.attempt <= retries && TRANSIENT_KINDS.contains(kind)
        })
    }

    async fn attempt(&mut self) -> SubagentRunEnd {
        self.record.status = SubagentStatus::Running;
        let ChildHandle { conversation, children } = match self.open_child().await {
            Ok(child) => child,
            Err(report) => return SubagentRunEnd::failed("setup_failed", &report),
        };
        let interrupt_guard = InterruptOnDrop(Some(conversation.clone()));
        self.record.child = Some(conversation.id().clone());
        let end = match self.record_event(self.record.new_event(SubagentEventKind::Started)).await {
            Ok(()) => self.run_conversation(&conversation, &children).await,
            Err(error) => SubagentRunEnd::failed("log_write_failed", &Report::describe(&error)),
        };
        interrupt_guard.release();
        drop(children);
        self.parent_link.base.provider.forget_session(conversation.id());
        conversation.close().await;
        end
    }

    async fn open_child(&self) -> Result<ChildHandle, Report> {
        let ParentLink { parent, base, subagents, .. } = &self.parent_link;
        let of =
            ParentContext { parent: parent.id(), base, subagents, constraints: &self.constraints };
        match &self.record.child {
            Some(child) => subagents.child_factory.open(child, &self.record, of).await,
            None => self.create_child(of).await,
        }
    }

    /// Creates the child, after the id of its Session is recorded.
    async fn create_child(&self, of: ParentContext<'_>) -> Result<ChildHandle, Report> {
        for _ in 0..MAX_ID_ATTEMPTS {
            let id = SessionId::mint();
            self.record_event(self.record.starting_event(&id)).await?;
            match of.subagents.child_factory.create(&id, &self.record, of).await {
                Ok(child) => return Ok(child),
                Err(SpawnError::IdTaken) => {}
                Err(SpawnError::Failed(report)) => return Err(report),
            }
        }
        Err(Report::new(Kind::Busy, "every id that was tried for its Session is taken"))
    }

    /// Sends the message, and listens until the child and its own children are done.
    async fn run_conversation(
        &mut self,
        conversation: &Conversation,
        children: &super::Children,
    ) -> SubagentRunEnd {
        // A run that was cancelled while its Workspace was created sends no request.
        if let Some(reason) = self.stop_tokens().wait_for_stop().now_or_never() {
            return SubagentRunEnd::cancelled(reason);
        }
        let mut listener = conversation.subscribe(ListenFrom::Now);
        if let Err(report) = self.send_task(conversation).await {
            return SubagentRunEnd::failed("setup_failed", &report);
        }
        let SubagentRecord { id, role, .. } = &self.record;
        let mut questions = ForwardedQuestions::new(self.parent_link.parent.clone(), id, role);
        let mut last_message = LastMessage::default();
        let mut end = None;
        let stopped = loop {
            match self.next(&mut listener, &mut questions, end.is_some().then_some(children)).await
            {
                Wake::Stopped(reason) => break Some(SubagentRunEnd::cancelled(reason)),
                Wake::Timeout => break Some(self.timeout_end()),
                Wake::Idle => break None,
                Wake::Answered(call_id, response) => {
                    // Fails if the child was stopped meanwhile.
                    conversation.answer(&call_id, response).await.ok();
                }
                Wake::Item(None) if end.is_some() => break None,
                Wake::Item(None) => {
                    let report = Report::new(Kind::SessionClosed, "its Session closed");
                    break Some(SubagentRunEnd::failed("crashed", &report));
                }
                Wake::Item(Some(ListenerItem::Missed(_))) => self.progress.clear_waits(),
                Wake::Item(Some(ListenerItem::Event(event))) => {
                    self.progress.apply_event(&event);
                    self.forward_question(&event, &mut questions).await;
                    end = last_message.apply_event(&event).or(end);
                }
            }
            self.update_clock(&questions);
        };
        questions.withdraw_all().await;
        if let Some(stopped) = stopped {
            children.token.cancel();
            let rest = self.interrupt_child(conversation, &mut listener, &mut last_message);
            tokio::join!(rest, tokio::time::timeout(STOP_TIMEOUT, children.wait_idle())).1.ok();
            // Its own children, stopped with it, have recorded their usage.
            while let Some(Some(item)) = listener.next().now_or_never() {
                if let ListenerItem::Event(event) = item {
                    self.progress.apply_event(&event);
                }
            }
            return SubagentRunEnd { child_seq: last_message.seq, ..stopped };
        }
        end.unwrap_or_else(|| SubagentRunEnd::cancelled("interrupted"))
    }

    async fn send_task(&self, conversation: &Conversation) -> Result<(), Report> {
        let attachments = inherited_attachments(&self.parent_link.base, &self.resources)?;
        let max_depth = self.parent_link.subagents.child_factory.config.subagents.max_depth;
        let context = delegation_context::delegation_context(
            &self.record,
            &self.constraints.context_facts,
            self.parent_link.parent.id(),
            max_depth,
        );
        let input = UserInput { text: self.text.clone() };
        Ok(conversation.delegate(input, attachments, context).await?)
    }

    async fn next(
        &self,
        listener: &mut Listener,
        questions: &mut ForwardedQuestions,
        children: Option<&super::Children>,
    ) -> Wake {
        let left = self.record.timeout.saturating_sub(self.progress.worked());
        let is_asking = !questions.is_empty();
        let is_working = !is_asking && !self.progress.is_blocked();
        let stops = self.stop_tokens();
        let idle = async {
            match children {
                Some(children) => children.wait_idle().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            reason = stops.wait_for_stop() => Wake::Stopped(reason),
            (call_id, response) = questions.next_answer(), if is_asking => Wake::Answered(call_id, response),
            item = listener.next() => Wake::Item(item),
            () = idle => Wake::Idle,
            () = tokio::time::sleep(left), if is_working => Wake::Timeout,
        }
    }

    /// Stops the clock during a question to the user, and while all calls wait for a free command
    /// slot.
    fn update_clock(&self, questions: &ForwardedQuestions) {
        if questions.is_empty() && !self.progress.is_blocked() {
            self.progress.resume();
        } else {
            self.progress.pause();
        }
    }

    async fn forward_question(&self, event: &Event, questions: &mut ForwardedQuestions) {
        match event.kind() {
            EventKind::Ephemeral(Ephemeral::PermissionRequest(request)) => {
                questions.forward(request);
            }
            EventKind::Ephemeral(Ephemeral::PermissionResolved { call_id, .. }) => {
                questions.withdraw(call_id).await;
            }
            EventKind::Ephemeral(_) | EventKind::Canonical(_) => {}
        }
    }

    /// Interrupts the child's Turn and reads its last message.
    async fn interrupt_child(
        &self,
        conversation: &Conversation,
        listener: &mut Listener,
        last_message: &mut LastMessage,
    ) {
        let listening = async {
            while let Some(item) = listener.next().await {
                let ListenerItem::Event(event) = item else { continue };
                self.progress.apply_event(&event);
                if last_message.apply_event(&event).is_some() {
                    return;
                }
            }
        };
        let interrupted = async {
            // Without a Turn there is nothing to read.
            if conversation.interrupt().await.is_ok() {
                listening.await;
            }
        };
        tokio::time::timeout(STOP_TIMEOUT, interrupted).await.ok();
    }

    fn timeout_end(&self) -> SubagentRunEnd {
        let time = self.record.timeout.as_secs_f64();
        let summary = format!("It timed out after {time} s, during: {}.", self.progress.activity());
        SubagentRunEnd::new(SubagentStatus::TimedOut, "timeout", summary)
    }

    /// Records the end of the run, once.
    async fn record_end(&mut self, end: SubagentRunEnd) {
        self.progress.pause();
        let usage = self.progress.usage();
        self.record.status = end.status;
        self.record.summary = Some(bound_text(&end.summary, MAX_SUMMARY_BYTES).into_owned());
        self.record.reason = end.reason;
        self.record.child_seq = end.child_seq;
        self.record.elapsed = self.progress.worked();
        let mut event = self.record.ended_event(usage);
        if self.record.role == "reviewer" && end.status == SubagentStatus::Completed {
            let verdict = show::parse_verdict(&end.summary);
            event.extra.insert("verdict".to_owned(), json!(verdict.unwrap_or("unstated")));
        }
        self.record.usage.add(&usage);
        if let Err(error) = self.record_event(event).await {
            tracing::warn!(%error, id = %self.record.id, "the end of a Subagent is not recorded");
            // A Workflow records the end of its steps itself, and fails if it cannot.
            if self.constraints.event_fields.is_empty() {
                self.parent_link.parent.report_unrecorded(&error);
            }
        }
    }

    /// Records an Event in the parent's Log.
    async fn record_event(&self, mut fact: SubagentEvent) -> Result<(), SessionError> {
        let secrets = &self.parent_link.base.secrets;
        for text in [&mut fact.task, &mut fact.summary].into_iter().flatten() {
            *text = secrets.redact(text).into_owned();
        }
        fact.extra.extend(self.constraints.event_fields.clone());
        self.parent_link.parent.record(fact.into()).await.map(drop)
    }

    fn stop_tokens(&self) -> StopTokens {
        let ParentLink { parent_closed, turn_cancelled, .. } = &self.parent_link;
        StopTokens {
            own: self.cancel.clone(),
            parent_closed: parent_closed.clone(),
            turn_cancelled: turn_cancelled.clone(),
        }
    }
}

/// The tokens that cancel a run.
struct StopTokens {
    own: CancellationToken,
    parent_closed: CancellationToken,
    turn_cancelled: CancellationToken,
}

impl StopTokens {
    async fn wait_for_stop(&self) -> &'static str {
        tokio::select! {
            biased;
            () = self.parent_closed.cancelled() => "parent_closed",
            () = self.turn_cancelled.cancelled() => "parent_interrupted",
            () = self.own.cancelled() => "closed_by_parent",
        }
    }
}

/// The last message of the child.
#[derive(Default)]
struct LastMessage {
    text: String,
    seq: Option<u64>,
}

impl LastMessage {
    /// Applies an Event; returns the end of the child's Turn if this is it.
    fn apply_event(&mut self, event: &Event) -> Option<SubagentRunEnd> {
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
            EventKind::Ephemeral(Ephemeral::Status(status)) => self.end_from_status(status),
            EventKind::Canonical(_) | EventKind::Ephemeral(_) => None,
        }
    }

    fn end_from_status(&self, status: &TurnStatus) -> Option<SubagentRunEnd> {
        let end = match status {
            TurnStatus::Done => SubagentRunEnd {
                reason: None,
                ..SubagentRunEnd::new(SubagentStatus::Completed, "", self.text.clone())
            },
            TurnStatus::Interrupted => SubagentRunEnd::cancelled("interrupted"),
            TurnStatus::Error { terminal_status, error } => {
                let mut end = SubagentRunEnd::failed(terminal_status, error);
                if !self.text.is_empty() {
                    // An answer that was cut is better than none.
                    end.summary = format!("{}\n\n{}", end.summary, self.text);
                }
                let is_provider = *terminal_status == *TerminalStatus::ProviderError.as_str();
                let provider = Kind::from_name(&error.kind).filter(|_| is_provider);
                let is_late = *terminal_status == *TerminalStatus::TimedOut.as_str();
                let status = if is_late { SubagentStatus::TimedOut } else { end.status };
                SubagentRunEnd { status, provider_failure: provider, ..end }
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
        Some(SubagentRunEnd { child_seq: self.seq, ..end })
    }
}

/// Interrupts the Turn of a Conversation when its run is dropped.
struct InterruptOnDrop(Option<Conversation>);

impl InterruptOnDrop {
    fn release(mut self) {
        self.0 = None;
    }
}

impl Drop for InterruptOnDrop {
    fn drop(&mut self) {
        if let Some(conversation) = self.0.take() {
            tokio::spawn(async move { conversation.interrupt().await });
        }
    }
}

fn crash_report(panic: &(dyn std::any::Any + Send)) -> Report {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    let text = text.unwrap_or_else(|| "no message".to_owned());
    Report::new(Kind::Crashed, format!("its run panicked: {text}"))
}
