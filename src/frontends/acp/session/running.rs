//! A running prompt: the request to answer, and the state of its Turn.

use agent_client_protocol_schema::v1::StopReason;
use tokio::task::JoinHandle;

use crate::agent::conversation::Conversation;
use crate::base::error::Report;
use crate::base::id::CallId;
use crate::frontends::acp::ending::Ending;
use crate::frontends::acp::ticket::Ticket;
use crate::host::rpc::Fault;
use crate::record::event::{
    Canonical, Ephemeral, EventKind, From, Heard, Listener, PermissionRequest, Seq, SharedEvent,
    Status,
};

/// A running prompt.
pub struct Running {
    pub ticket: Ticket,
    pub listener: Listener,
    /// The last durable Event that was handled, of this Turn or before it.
    pub heard: Option<Seq>,
    /// Whether the Event of the prompt itself was handled.
    pub is_begun: bool,
    ending: Ending,
    /// The task that interrupts the Turn.
    stopping: Option<JoinHandle<()>>,
    is_cancelled: bool,
}

/// What the actor has to do for an Event.
#[derive(Default)]
pub struct Told {
    pub event: Option<SharedEvent>,
    pub asked: Option<Box<PermissionRequest>>,
    pub settled: Option<CallId>,
    pub over: Option<Status>,
    /// A failure that the user is told although no prompt runs.
    pub failed: Option<Report>,
}

impl Told {
    /// The actions for an Event.
    pub fn of(event: &SharedEvent) -> Self {
        let mut told = Self::default();
        match event.kind() {
            EventKind::Ephemeral(Ephemeral::PermissionRequest(asked)) => {
                told.asked = Some(asked.clone());
            }
            EventKind::Ephemeral(Ephemeral::PermissionResolved { call_id, .. }) => {
                told.settled = Some(call_id.clone());
            }
            EventKind::Ephemeral(Ephemeral::Status(status)) if status.is_terminal() => {
                told.over = Some(status.clone());
            }
            EventKind::Ephemeral(_) | EventKind::Canonical(_) => {}
        }
        told
    }
}

impl Running {
    /// Subscribes before the prompt is sent, so that no Event is missed, unless there is a listener.
    pub fn new(
        ticket: Ticket,
        conversation: &Conversation,
        listener: Option<Listener>,
        heard: Option<Seq>,
    ) -> Self {
        let listener = listener.unwrap_or_else(|| conversation.subscribe(From::Now));
        let (ending, stopping) = (Ending::default(), None);
        let (is_begun, is_cancelled) = (false, false);
        Self { ticket, listener, heard, is_begun, ending, stopping, is_cancelled }
    }

    /// Interrupts the Turn; its end arrives as an Event.
    pub fn stop(&mut self, conversation: &Conversation) {
        if std::mem::replace(&mut self.is_cancelled, true) {
            return;
        }
        let conversation = conversation.clone();
        self.stopping = Some(tokio::spawn(async move {
            if let Err(error) = conversation.interrupt().await {
                tracing::debug!(%error, "the Turn was already over");
            }
        }));
    }

    /// Waits until the interrupt was delivered, if there was one.
    pub async fn stopped(&mut self) {
        if let Some(stopping) = self.stopping.take() {
            stopping.await.ok();
        }
    }

    /// Handles an Event of the Turn.
    pub fn hear(&mut self, heard: Option<Heard>) -> Told {
        let told = Told::default();
        let event = match heard {
            Some(Heard::Event(event)) => event,
            Some(Heard::Missed(count)) => {
                tracing::debug!(count, "live notices were lost");
                return told;
            }
            // The Session has ended, and with it the Turn.
            None => return Told { over: Some(Status::Interrupted), ..told },
        };
        if let EventKind::Canonical(fact) = event.kind() {
            self.heard = event.seq().or(self.heard);
            self.is_begun |= matches!(fact, Canonical::UserMessage(_));
            self.ending.hear(fact);
        }
        let told = Told::of(&event);
        Told { event: Some(event), ..told }
    }

    /// Whether the failure of the Turn was recorded, and so shown to the user.
    pub fn is_told(&self) -> bool {
        self.ending.is_told()
    }

    /// The answer to the prompt: after a cancel always `Cancelled`, even when the Turn ended first.
    pub fn outcome(&self, status: &Status) -> Result<StopReason, Fault> {
        if self.is_cancelled {
            return Ok(StopReason::Cancelled);
        }
        self.ending.outcome(status)
    }
}
