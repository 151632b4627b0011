//! The messages to a Session's task.

use tokio::sync::oneshot;

use super::{SessionError, TurnBody};
use crate::base::id::CallId;
use crate::record::event::{
    Backlog, Canonical, PermissionRequest, PermissionResponse, Seq, SessionStatus, SharedEvent,
};
use crate::record::history::History;
use crate::record::log::LogReader;

/// The sender of an answer; its receiver may be gone.
pub type Reply<T> = oneshot::Sender<T>;

/// The number of a Turn in this process, so that messages of a Turn that was aborted are ignored.
pub type TurnId = u64;

/// Events that a listener missed and the Session does not hold: from a seq to the last one.
pub struct MissedEvents {
    pub archive: LogReader,
    pub from: Seq,
    pub last: Option<Seq>,
}

/// A message to the Session's task.
pub enum Inbox {
    /// Append a fact; `turn` is its sender, `None` outside of a Turn.
    Record {
        turn: Option<TurnId>,
        fact: Box<Canonical>,
        reply: Reply<Result<SharedEvent, SessionError>>,
    },
    /// Force the Log to the disk.
    Sync { turn: TurnId, reply: Reply<Result<(), SessionError>> },
    /// Return the Events that are held, and a reader for the rest.
    History(Reply<(History, LogReader)>),
    /// Return the Events that a listener missed.
    Backlog { seq: Seq, reply: Reply<(Backlog, Option<MissedEvents>)> },
    /// Start a Turn.
    StartTurn { body: TurnBody, reply: Reply<Result<(), SessionError>> },
    /// Stop the running Turn.
    Interrupt(Reply<Result<(), SessionError>>),
    /// Ask the user; `turn` is the sender, `None` outside of a Turn.
    Ask { turn: Option<TurnId>, request: Box<PermissionRequest>, reply: Reply<PermissionResponse> },
    /// Answer an open question.
    Answer { call_id: CallId, response: PermissionResponse, reply: Reply<Result<(), SessionError>> },
    /// Reply when no Turn runs.
    WaitUntilIdle(Reply<SessionStatus>),
}
