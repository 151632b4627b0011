//! Everything a Session can be told.

use tokio::sync::oneshot;

use super::{Body, SessionError};
use crate::event::{Backlog, Canonical, PermissionRequest, Said, Seq, SharedEvent, Status};
use crate::history::History;
use crate::id::CallId;
use crate::log::Archive;

/// Where an answer goes; the asker may have left.
pub type Reply<T> = oneshot::Sender<T>;

/// Which Turn of this process speaks, so that one that was given up on is not heard.
pub type TurnId = u64;

/// What a listener missed and the Session does not hold: from a seq to the last one.
pub struct Missed {
    pub archive: Archive,
    pub from: Seq,
    pub last: Option<Seq>,
}

/// A message to the Session's task.
pub enum Inbox {
    /// Append a fact; `turn` is who says it, `None` when it is not a Turn.
    Record {
        turn: Option<TurnId>,
        fact: Box<Canonical>,
        reply: Reply<Result<SharedEvent, SessionError>>,
    },
    /// Force the Log to the disk.
    Sync { turn: TurnId, reply: Reply<Result<(), SessionError>> },
    /// Hand out what is held, and a way to the rest.
    History(Reply<(History, Archive)>),
    /// Hand out what a listener missed.
    Backlog { seq: Seq, reply: Reply<(Backlog, Option<Missed>)> },
    /// Begin a Turn.
    StartTurn { body: Body, reply: Reply<Result<(), SessionError>> },
    /// End the Turn.
    Interrupt(Reply<Result<(), SessionError>>),
    /// Ask the user; `turn` is who asks, `None` when it is not a Turn.
    Ask { turn: Option<TurnId>, request: Box<PermissionRequest>, reply: Reply<Said> },
    /// The user answers.
    Answer { call_id: CallId, said: Said, reply: Reply<Result<(), SessionError>> },
    /// Tell when no Turn runs.
    Finished(Reply<Status>),
}
