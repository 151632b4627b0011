//! A prompt that runs: the request that waits for it, and what its Turn has said so far.

use agent_client_protocol_schema::v1::StopReason;

use crate::acp::ending::Ending;
use crate::acp::ticket::Ticket;
use crate::conversation::Conversation;
use crate::event::{
    Canonical, Ephemeral, EventKind, From, Heard, Listener, PermissionRequest, Seq, SharedEvent,
    Status,
};
use crate::id::CallId;
use crate::rpc::Fault;

/// A prompt that runs.
pub struct Running {
    pub ticket: Ticket,
    pub listener: Listener,
    /// The last fact that was heard, of this Turn or before it.
    pub heard: Option<Seq>,
    /// Whether the prompt itself was among them.
    pub is_begun: bool,
    ending: Ending,
    is_cancelled: bool,
}

/// What there is to do about something that was heard.
#[derive(Default)]
pub struct Told {
    pub event: Option<SharedEvent>,
    pub asked: Option<Box<PermissionRequest>>,
    pub settled: Option<CallId>,
    pub over: Option<Status>,
}

impl Running {
    /// Listens before anything is sent, so that nothing can be missed.
    pub fn new(ticket: Ticket, conversation: &Conversation, heard: Option<Seq>) -> Self {
        let listener = conversation.subscribe(From::Now);
        let (is_begun, is_cancelled) = (false, false);
        Self { ticket, listener, heard, is_begun, ending: Ending::default(), is_cancelled }
    }

    /// Asks the Turn to end; its end is heard like everything else.
    pub fn stop(&mut self, conversation: &Conversation) {
        if std::mem::replace(&mut self.is_cancelled, true) {
            return;
        }
        let conversation = conversation.clone();
        tokio::spawn(async move {
            if let Err(error) = conversation.interrupt().await {
                tracing::debug!(%error, "the Turn was already over");
            }
        });
    }

    /// Takes in what was heard.
    pub fn hear(&mut self, heard: Option<Heard>) -> Told {
        let mut told = Told::default();
        let event = match heard {
            Some(Heard::Event(event)) => event,
            Some(Heard::Missed(count)) => {
                tracing::debug!(count, "live notices were lost");
                return told;
            }
            // The Session is gone, and with it everything that ran.
            None => return Told { over: Some(Status::Interrupted), ..told },
        };
        match event.kind() {
            EventKind::Canonical(fact) => {
                self.heard = event.seq().or(self.heard);
                self.is_begun |= matches!(fact, Canonical::UserMessage(_));
                self.ending.hear(fact);
            }
            EventKind::Ephemeral(Ephemeral::PermissionRequest(asked)) => {
                told.asked = Some(asked.clone());
            }
            EventKind::Ephemeral(Ephemeral::PermissionResolved { call_id, .. }) => {
                told.settled = Some(call_id.clone());
            }
            EventKind::Ephemeral(Ephemeral::Status(status)) if status.is_terminal() => {
                told.over = Some(status.clone());
            }
            EventKind::Ephemeral(_) => {}
        }
        told.event = Some(event);
        told
    }

    /// Whether the user has seen how it failed.
    pub fn is_told(&self) -> bool {
        self.ending.is_told()
    }

    /// What the prompt is answered with. Who cancelled is told so, however the race ended.
    pub fn outcome(&self, status: &Status) -> Result<StopReason, Fault> {
        if self.is_cancelled {
            return Ok(StopReason::Cancelled);
        }
        self.ending.outcome(status)
    }
}
