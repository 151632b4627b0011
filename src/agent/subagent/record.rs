//! The record of a Subagent: its settings, status, result and usage, replayed from the Events in its
//! parent's Log.

use std::time::Duration;

use serde_json::{Value, json};

use super::spec::{SubagentSpec, WorkspaceMode};
use crate::base::id::SessionId;
use crate::base::names::names;
use crate::base::text::truncate_chars;
use crate::record::event::{
    Canonical, Extra, PermissionMode, PermissionResponse, SubagentEvent, SubagentEventKind,
    SubagentUsage, ToolResult,
};
use crate::record::history::History;
use crate::record::log::Log;
use crate::record::state_dir::StateRoot;

/// How much of a task the parent's Log keeps, in characters.
const SHOWN_TASK: usize = 400;

/// The status of a Subagent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SubagentStatus {
    /// Waiting in the queue.
    #[default]
    Queued,
    /// Working on its task.
    Running,
    /// Ended with an answer.
    Completed,
    /// Ended without an answer.
    Failed,
    /// Ended by its time limit.
    TimedOut,
    /// Ended by a cancellation.
    Cancelled,
    /// Ended by the death of its process; its Log remains.
    Detached,
}

names!(SubagentStatus {
    Queued = "queued", Running = "running", Completed = "completed", Failed = "failed",
    TimedOut = "timed_out", Cancelled = "cancelled", Detached = "detached",
});

impl SubagentStatus {
    /// The Event of a run that ends with this status.
    fn end_event_kind(self) -> SubagentEventKind {
        match self {
            SubagentStatus::Queued => SubagentEventKind::Queued,
            SubagentStatus::Running => SubagentEventKind::Started,
            SubagentStatus::Completed => SubagentEventKind::Finished,
            SubagentStatus::Failed => SubagentEventKind::Failed,
            SubagentStatus::TimedOut => SubagentEventKind::TimedOut,
            SubagentStatus::Cancelled => SubagentEventKind::Cancelled,
            SubagentStatus::Detached => SubagentEventKind::Detached,
        }
    }

    /// Whether no run is queued or in progress.
    pub fn is_over(self) -> bool {
        !matches!(self, SubagentStatus::Queued | SubagentStatus::Running)
    }

    /// The status that an Event leads to.
    fn from_event(event: &SubagentEventKind) -> Option<Self> {
        Some(match event {
            SubagentEventKind::Queued | SubagentEventKind::Input | SubagentEventKind::Retrying => {
                SubagentStatus::Queued
            }
            SubagentEventKind::Starting | SubagentEventKind::Started => SubagentStatus::Running,
            SubagentEventKind::Finished => SubagentStatus::Completed,
            SubagentEventKind::Failed => SubagentStatus::Failed,
            SubagentEventKind::TimedOut => SubagentStatus::TimedOut,
            SubagentEventKind::Cancelled => SubagentStatus::Cancelled,
            SubagentEventKind::Detached => SubagentStatus::Detached,
            SubagentEventKind::Closed
            | SubagentEventKind::Merged
            | SubagentEventKind::MergeTakenBack
            | SubagentEventKind::PermissionPosture
            | SubagentEventKind::Other(_) => return None,
        })
    }
}

/// The settings, status, result and usage of a Subagent.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SubagentRecord {
    /// `sub_` and ten hex digits.
    pub id: String,
    /// The name of its role.
    pub role: String,
    /// The beginning of its task.
    pub task: String,
    /// The name of its model.
    pub model: Option<String>,
    /// The reasoning effort.
    pub effort: Option<String>,
    /// Its permission mode.
    pub mode: PermissionMode,
    /// The kind of its Workspace: its parent's, a copy or a worktree.
    pub workspace: WorkspaceMode,
    /// The depth in the tree; a child of a root has 1.
    pub depth: u32,
    /// How long it may work.
    pub timeout: Duration,
    /// Its Session, once there is one.
    pub child: Option<SessionId>,
    /// The id of a Session that was about to be created, and may not have been.
    pub starting_session: Option<SessionId>,
    /// The number of the attempt, from 1.
    pub attempt: u32,
    /// The Sessions of failed attempts.
    pub failed_sessions: Vec<SessionId>,
    /// Whether a run is in progress, and how the last one ended.
    pub status: SubagentStatus,
    /// A summary of its result, bounded.
    pub summary: Option<String>,
    /// Why it did not complete.
    pub reason: Option<String>,
    /// The seq of its end in its own Log.
    pub child_seq: Option<u64>,
    /// Usage of all its runs.
    pub usage: SubagentUsage,
    /// How long its last run worked.
    pub elapsed: Duration,
    /// Whether it accepts no more input.
    pub is_closed: bool,
    /// Whether a wait has reported its end.
    pub is_reported: bool,
}

impl SubagentRecord {
    /// The record of a new child, which is not queued yet.
    pub fn new(spec: &SubagentSpec, model: &str, effort: Option<&str>) -> Self {
        Self {
            id: format!("sub_{:010x}", fastrand::u64(..) & 0xff_ffff_ffff),
            role: spec.role.name.to_owned(),
            task: truncate_chars(&spec.task, SHOWN_TASK),
            model: Some(spec.model.clone().unwrap_or_else(|| model.to_owned())),
            effort: spec.effort.clone().or_else(|| effort.map(str::to_owned)),
            mode: spec.mode.clone(),
            workspace: spec.workspace,
            depth: spec.depth,
            timeout: spec.timeout,
            attempt: 1,
            ..Self::default()
        }
    }

    /// The children recorded in a Log, in the order they were started.
    pub fn read_all(history: &History) -> Vec<Self> {
        let mut records: Vec<Self> = Vec::new();
        for fact in history.facts() {
            if let Canonical::ToolResult(result) = fact {
                mark_reported(&mut records, result);
            }
            let Canonical::SubagentEvent(event) = fact else { continue };
            let Some(id) = event.subagent_id.as_ref().filter(|_| !event.is_copy()) else {
                continue;
            };
            match records.iter_mut().find(|record| record.id == *id) {
                Some(record) => record.apply_event(event),
                None => records.extend(Self::from_first_event(id, event)),
            }
        }
        records
    }

    fn from_first_event(id: &str, event: &SubagentEvent) -> Option<Self> {
        let mode = event.permission_mode.as_deref().unwrap_or("read_only");
        let effort = event.extra.get("effort").and_then(Value::as_str);
        let mut record = Self {
            id: id.to_owned(),
            role: event.agent.clone().unwrap_or_default(),
            task: event.task.clone().unwrap_or_default(),
            model: event.model.clone(),
            effort: effort.map(str::to_owned),
            mode: PermissionMode::from_text(mode),
            workspace: WorkspaceMode::from_name(event.workspace_mode.as_deref()),
            depth: event.depth.unwrap_or(1),
            timeout: Duration::from_millis(event.timeout_ms.unwrap_or(600_000)),
            attempt: 1,
            status: SubagentStatus::from_event(&event.event)?,
            is_reported: true,
            ..Self::default()
        };
        record.apply_event(event);
        Some(record)
    }

    fn apply_event(&mut self, event: &SubagentEvent) {
        let named = event.child_session_id.as_deref().and_then(|id| SessionId::parse(id).ok());
        if event.event == SubagentEventKind::Starting {
            self.starting_session = named;
        } else {
            self.child = named.or_else(|| self.child.take());
        }
        if event.event == SubagentEventKind::Retrying {
            self.failed_sessions.extend(self.child.clone());
        }
        self.attempt = event.attempt.unwrap_or(self.attempt);
        self.is_closed |= event.event == SubagentEventKind::Closed;
        let Some(status) = SubagentStatus::from_event(&event.event) else { return };
        self.status = status;
        if event.event != SubagentEventKind::Starting {
            self.starting_session = None;
        }
        if status.is_over() {
            self.summary.clone_from(&event.summary);
            self.reason.clone_from(&event.reason);
            self.child_seq = event.child_seq;
            self.elapsed = Duration::from_millis(event.elapsed_ms.unwrap_or_default());
            self.usage.add(&event.usage.unwrap_or_default());
        }
    }

    /// Marks a run whose process died as detached. Its Session is the one that was being created,
    /// if that exists.
    pub fn detach(&mut self, logs: &StateRoot) {
        // The id may belong to another Session: then another id would have been tried.
        let is_made = |id: &SessionId| {
            let first =
                Log::read(logs, id).ok().and_then(|reading| reading.events.first().cloned());
            first.is_some_and(|first| match first.fact() {
                Some(Canonical::SessionStarted(started)) => {
                    started.subagent_id.as_ref() == Some(&self.id)
                }
                _ => false,
            })
        };
        let made = self.starting_session.as_ref().filter(|id| is_made(id)).cloned();
        self.child = made.or_else(|| self.child.take());
        self.starting_session = None;
        self.status = SubagentStatus::Detached;
        // The result of an earlier run is not the result of this one.
        self.summary = None;
        self.child_seq = None;
        self.reason = Some("the process that ran it ended".to_owned());
    }

    /// An Event about the Subagent, with the common fields.
    pub fn new_event(&self, event: SubagentEventKind) -> SubagentEvent {
        SubagentEvent {
            event,
            subagent_id: Some(self.id.clone()),
            child_session_id: self.child.as_ref().map(ToString::to_string),
            agent: Some(self.role.clone()),
            status: Some(self.status.name().to_owned()),
            depth: Some(self.depth),
            attempt: Some(self.attempt),
            ..SubagentEvent::default()
        }
    }

    /// The first Event of a Subagent, with everything that is needed to continue it later.
    pub fn queued_event(&self) -> SubagentEvent {
        let effort = self.effort.as_ref().map(|effort| ("effort".to_owned(), json!(effort)));
        SubagentEvent {
            task: Some(self.task.clone()),
            model: self.model.clone(),
            permission_mode: Some(self.mode.as_str().to_owned()),
            workspace_mode: Some(self.workspace.name().to_owned()),
            timeout_ms: Some(whole_millis(self.timeout)),
            extra: effort.into_iter().collect::<Extra>(),
            ..self.new_event(SubagentEventKind::Queued)
        }
    }

    /// The Event that is recorded before the Session is created, so that a Session that a crash
    /// leaves behind is known.
    pub fn starting_event(&self, child: &SessionId) -> SubagentEvent {
        SubagentEvent {
            child_session_id: Some(child.to_string()),
            ..self.new_event(SubagentEventKind::Starting)
        }
    }

    /// The Event of the end of a run.
    pub fn ended_event(&self, run: SubagentUsage) -> SubagentEvent {
        SubagentEvent {
            summary: self.summary.clone(),
            reason: self.reason.clone(),
            elapsed_ms: Some(whole_millis(self.elapsed)),
            usage: Some(run),
            child_seq: self.child_seq,
            next_actions: self.next_actions(),
            ..self.new_event(self.status.end_event_kind())
        }
    }

    /// The next actions after a run that did not complete, for the parent or the user.
    pub fn next_actions(&self) -> Vec<String> {
        let go_on = self.child.as_ref().map(|child| format!("go on with `pixir resume {child}`"));
        let look = self.child.as_ref().map(|child| format!("look at the Log of {child}"));
        let advice = match self.status {
            SubagentStatus::Queued | SubagentStatus::Running | SubagentStatus::Completed => {
                return Vec::new();
            }
            SubagentStatus::Failed => "spawn it again when the reason is gone, or do it yourself",
            SubagentStatus::TimedOut => {
                "send_input to let it go on, or give a smaller task or more time"
            }
            SubagentStatus::Cancelled => "spawn it again if it is still needed",
            SubagentStatus::Detached if self.child.is_none() => "it never started: spawn it again",
            SubagentStatus::Detached => "send_input to let it go on",
        };
        let first = if self.status == SubagentStatus::Detached { go_on } else { look };
        first.into_iter().chain([advice.to_owned()]).collect()
    }
}

/// A record and the current activity of the child.
#[derive(Debug, Clone, PartialEq)]
pub struct SubagentView {
    /// The record itself.
    pub record: SubagentRecord,
    /// The current or last activity.
    pub activity: String,
    /// The position in the queue, from 1; 0 if it is not queued.
    pub position: usize,
}

/// Marks the ends that the result of a wait reported. Ends that did not fit are reported by the next
/// wait, also after a restart.
fn mark_reported(records: &mut [SubagentRecord], result: &ToolResult) {
    for record in
        records.iter_mut().filter(|record| result.reported_subagents().any(|id| id == record.id))
    {
        record.is_reported = !result.unreported_subagents().any(|id| id == record.id);
    }
}

/// The answer to a question that is no longer open: no.
pub fn unanswered() -> PermissionResponse {
    PermissionResponse::from(crate::record::event::PermissionAnswer::No)
}

/// A duration in whole milliseconds.
pub fn whole_millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
