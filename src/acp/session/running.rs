//! A prompt that runs: the request that waits for it, and what its Turn has said so far.

use agent_client_protocol_schema::v1::StopReason;
use tokio::task::JoinHandle;

use crate::acp::ending::Ending;
use crate::acp::ticket::Ticket;
use crate::conversation::Conversation;
use crate::error::Report;
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
    /// The cancel on its way to the Turn.
    stopping: Option<JoinHandle<()>>,
    is_cancelled: bool,
}

/// What there is to do about something that was heard.
#[derive(Default)]
pub struct Told {
    pub event: Option<SharedEvent>,
    pub asked: Option<Box<PermissionRequest>>,
    pub settled: Option<CallId>,
    pub over: Option<Status>,
    /// What the user must know of the Session although no prompt runs.
    pub failed: Option<Report>,
}

impl Told {
    /// What an Event asks for.
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
    /// Listens before anything is sent, so that nothing can be missed; who listened already goes on.
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

    /// Asks the Turn to end; its end is heard like everything else.
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

    /// Waits until a cancel has arrived, if there was one.
    pub async fn stopped(&mut self) {
        if let Some(stopping) = self.stopping.take() {
            stopping.await.ok();
        }
    }

    /// Takes in what was heard.
    pub fn hear(&mut self, heard: Option<Heard>) -> Told {
        let told = Told::default();
        let event = match heard {
            Some(Heard::Event(event)) => event,
            Some(Heard::Missed(count)) => {
                tracing::debug!(count, "live notices were lost");
                return told;
            }
            // The Session is gone, and with it everything that ran.
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
