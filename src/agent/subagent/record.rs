//! The record of a Subagent: all that is kept of one that is not at work, folded from the Events in
//! its parent's Log.

use std::time::Duration;

use serde_json::{Value, json};

use super::spec::{Spec, WorkspaceMode};
use crate::base::id::SessionId;
use crate::base::text::first_chars;
use crate::record::event::{
    Canonical, Extra, PermissionMode, Said, SubagentEvent, SubagentEventKind, SubagentUsage,
    ToolResult,
};
use crate::record::history::History;
use crate::record::log::Log;
use crate::record::state_dir::StateRoot;

/// How much of a task is kept beside the child's own Log, in characters.
const SHOWN_TASK: usize = 400;

/// The status of a Subagent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Status {
    /// It is queued.
    #[default]
    Queued,
    /// It works.
    Running,
    /// It answered.
    Completed,
    /// It ended without an answer.
    Failed,
    /// Its time was over.
    TimedOut,
    /// It was cancelled.
    Cancelled,
    /// Its process died; its Log is there.
    Detached,
}

impl Status {
    /// The word for it, in results and in the Log.
    pub fn name(self) -> &'static str {
        match self {
            Status::Queued => "queued",
            Status::Running => "running",
            Status::Completed => "completed",
            Status::Failed => "failed",
            Status::TimedOut => "timed_out",
            Status::Cancelled => "cancelled",
            Status::Detached => "detached",
        }
    }

    /// The Event of a run that ends with this status.
    fn event(self) -> SubagentEventKind {
        match self {
            Status::Queued => SubagentEventKind::Queued,
            Status::Running => SubagentEventKind::Started,
            Status::Completed => SubagentEventKind::Finished,
            Status::Failed => SubagentEventKind::Failed,
            Status::TimedOut => SubagentEventKind::TimedOut,
            Status::Cancelled => SubagentEventKind::Cancelled,
            Status::Detached => SubagentEventKind::Detached,
        }
    }

    /// Whether no run is under way.
    pub fn is_over(self) -> bool {
        !matches!(self, Status::Queued | Status::Running)
    }

    /// The status that an Event leads to.
    fn after(event: &SubagentEventKind) -> Option<Self> {
        Some(match event {
            SubagentEventKind::Queued | SubagentEventKind::Input | SubagentEventKind::Retrying => {
                Status::Queued
            }
            SubagentEventKind::Starting | SubagentEventKind::Started => Status::Running,
            SubagentEventKind::Finished => Status::Completed,
            SubagentEventKind::Failed => Status::Failed,
            SubagentEventKind::TimedOut => Status::TimedOut,
            SubagentEventKind::Cancelled => Status::Cancelled,
            SubagentEventKind::Detached => Status::Detached,
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
pub struct Record {
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
    /// Whether its Workspace is its parent's.
    pub workspace: WorkspaceMode,
    /// A child of a root has 1.
    pub depth: u32,
    /// How long it may work.
    pub timeout: Duration,
    /// Its Session, once there is one.
    pub child: Option<SessionId>,
    /// The id of a Session that was about to be created, and may not have been.
    pub cradle: Option<SessionId>,
    /// The number of the attempt, from 1.
    pub attempt: u32,
    /// The Sessions of failed attempts.
    pub tried: Vec<SessionId>,
    pub status: Status,
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
    pub is_told: bool,
}

impl Record {
    /// The record of a new child, which is not queued yet.
    pub fn new(spec: &Spec, model: &str, effort: Option<&str>) -> Self {
        Self {
            id: format!("sub_{:010x}", fastrand::u64(..) & 0xff_ffff_ffff),
            role: spec.role.name.to_owned(),
            task: first_chars(&spec.task, SHOWN_TASK),
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
    pub fn all(history: &History) -> Vec<Self> {
        let mut records: Vec<Self> = Vec::new();
        for fact in history.facts() {
            if let Canonical::ToolResult(result) = fact {
                note_told(&mut records, result);
            }
            let Canonical::SubagentEvent(event) = fact else { continue };
            let Some(id) = event.subagent_id.as_ref().filter(|_| !event.is_copy()) else {
                continue;
            };
            match records.iter_mut().find(|record| record.id == *id) {
                Some(record) => record.apply(event),
                None => records.extend(Self::first(id, event)),
            }
        }
        records
    }

    fn first(id: &str, event: &SubagentEvent) -> Option<Self> {
        let mode = event.permission_mode.as_deref().unwrap_or("read_only");
        let effort = event.extra.get("effort").and_then(Value::as_str);
        let mut record = Self {
            id: id.to_owned(),
            role: event.agent.clone().unwrap_or_default(),
            task: event.task.clone().unwrap_or_default(),
            model: event.model.clone(),
            effort: effort.map(str::to_owned),
            mode: PermissionMode::from_text(mode),
            workspace: WorkspaceMode::named(event.workspace_mode.as_deref()),
            depth: event.depth.unwrap_or(1),
            timeout: Duration::from_millis(event.timeout_ms.unwrap_or(600_000)),
            attempt: 1,
            status: Status::after(&event.event)?,
            is_told: true,
            ..Self::default()
        };
        record.apply(event);
        Some(record)
    }

    fn apply(&mut self, event: &SubagentEvent) {
        let named = event.child_session_id.as_deref().and_then(|id| SessionId::parse(id).ok());
        if event.event == SubagentEventKind::Starting {
            self.cradle = named;
        } else {
            self.child = named.or_else(|| self.child.take());
        }
        if event.event == SubagentEventKind::Retrying {
            self.tried.extend(self.child.clone());
        }
        self.attempt = event.attempt.unwrap_or(self.attempt);
        self.is_closed |= event.event == SubagentEventKind::Closed;
        let Some(status) = Status::after(&event.event) else { return };
        self.status = status;
        if event.event != SubagentEventKind::Starting {
            self.cradle = None;
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
        // The id may have been taken: then another one would have been tried.
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
        let made = self.cradle.as_ref().filter(|id| is_made(id)).cloned();
        self.child = made.or_else(|| self.child.take());
        self.cradle = None;
        self.status = Status::Detached;
        // The result of an earlier run is not the result of this one.
        self.summary = None;
        self.child_seq = None;
        self.reason = Some("the process that ran it ended".to_owned());
    }

    /// An Event about it, with the common fields.
    pub fn event(&self, event: SubagentEventKind) -> SubagentEvent {
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

    /// Its first Event, with everything that is needed to continue it later.
    pub fn queued(&self) -> SubagentEvent {
        let effort = self.effort.as_ref().map(|effort| ("effort".to_owned(), json!(effort)));
        SubagentEvent {
            task: Some(self.task.clone()),
            model: self.model.clone(),
            permission_mode: Some(self.mode.as_str().to_owned()),
            workspace_mode: Some(self.workspace.name().to_owned()),
            timeout_ms: Some(millis(self.timeout)),
            extra: effort.into_iter().collect::<Extra>(),
            ..self.event(SubagentEventKind::Queued)
        }
    }

    /// The Event before its Session is created: it comes first, so that a Session that a crash
    /// leaves behind is known.
    pub fn starting(&self, child: &SessionId) -> SubagentEvent {
        SubagentEvent {
            child_session_id: Some(child.to_string()),
            ..self.event(SubagentEventKind::Starting)
        }
    }

    /// The Event of the end of its run.
    pub fn ended(&self, run: SubagentUsage) -> SubagentEvent {
        SubagentEvent {
            summary: self.summary.clone(),
            reason: self.reason.clone(),
            elapsed_ms: Some(millis(self.elapsed)),
            usage: Some(run),
            child_seq: self.child_seq,
            next_actions: self.next_actions(),
            ..self.event(self.status.event())
        }
    }

    /// What a parent or the user may do about a run that did not complete.
    pub fn next_actions(&self) -> Vec<String> {
        let go_on = self.child.as_ref().map(|child| format!("go on with `pixir resume {child}`"));
        let look = self.child.as_ref().map(|child| format!("look at the Log of {child}"));
        let advice = match self.status {
            Status::Queued | Status::Running | Status::Completed => return Vec::new(),
            Status::Failed => "spawn it again when the reason is gone, or do it yourself",
            Status::TimedOut => "send_input to let it go on, or give a smaller task or more time",
            Status::Cancelled => "spawn it again if it is still needed",
            Status::Detached if self.child.is_none() => "it never started: spawn it again",
            Status::Detached => "send_input to let it go on",
        };
        let first = if self.status == Status::Detached { go_on } else { look };
        first.into_iter().chain([advice.to_owned()]).collect()
    }
}

/// A record, with the current activity of the child.
#[derive(Debug, Clone, PartialEq)]
pub struct View {
    pub record: Record,
    /// The current or last activity.
    pub doing: String,
    /// The position in the queue, from 1; 0 if it is not queued.
    pub place: usize,
}

/// Marks the ends that the result of a wait reported. Those that had no room are reported by the
/// next one, also after a restart.
fn note_told(records: &mut [Record], result: &ToolResult) {
    for record in records.iter_mut().filter(|record| result.told().any(|id| id == record.id)) {
        record.is_told = !result.left().any(|id| id == record.id);
    }
}

/// The answer to a question that is no longer open: no.
pub fn nobody() -> Said {
    Said::from(crate::record::event::Answer::No)
}

/// Whole milliseconds.
pub fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
