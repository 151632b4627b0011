//! A running prompt: the request to answer, and the state of its Turn.

use agent_client_protocol_schema::v1::StopReason;
use tokio::task::JoinHandle;

use crate::agent::conversation::Conversation;
use crate::base::error::Report;
use crate::base::id::CallId;
use crate::frontends::acp::responder::Responder;
use crate::frontends::acp::stop_reason::StopReasonTracker;
use crate::host::rpc::RpcError;
use crate::record::event::{
    Canonical, Ephemeral, EventKind, ListenFrom, Listener, ListenerItem, PermissionRequest, Seq,
    SessionStatus, SharedEvent,
};

/// A running prompt.
pub struct RunningPrompt {
    pub responder: Responder,
    pub listener: Listener,
    /// The last durable Event that was handled, of this Turn or before it.
    pub last_seq: Option<Seq>,
    /// Whether the Event of the prompt itself was handled.
    pub is_begun: bool,
    stop_reason: StopReasonTracker,
    /// The task that interrupts the Turn.
    stopping: Option<JoinHandle<()>>,
    is_cancelled: bool,
}

/// What the actor has to do for an Event.
#[derive(Default)]
pub struct EventActions {
    pub event: Option<SharedEvent>,
    pub request: Option<Box<PermissionRequest>>,
    pub settled: Option<CallId>,
    pub over: Option<SessionStatus>,
    /// A failure to report to the user although no prompt runs.
    pub failed: Option<Report>,
}

impl EventActions {
    /// The actions for an Event.
    pub fn from_event(event: &SharedEvent) -> Self {
        let mut actions = Self::default();
        match event.kind() {
            EventKind::Ephemeral(Ephemeral::PermissionRequest(request)) => {
                actions.request = Some(request.clone());
            }
            EventKind::Ephemeral(Ephemeral::PermissionResolved { call_id, .. }) => {
                actions.settled = Some(call_id.clone());
            }
            EventKind::Ephemeral(Ephemeral::Status(status)) if status.is_terminal() => {
                actions.over = Some(status.clone());
            }
            EventKind::Ephemeral(_) | EventKind::Canonical(_) => {}
        }
        actions
    }
}

impl RunningPrompt {
    /// Subscribes before the prompt is sent, so that no Event is missed, unless there is a listener.
    pub fn new(
        responder: Responder,
        conversation: &Conversation,
        listener: Option<Listener>,
        last_seq: Option<Seq>,
    ) -> Self {
        let listener = listener.unwrap_or_else(|| conversation.subscribe(ListenFrom::Now));
        let (stop_reason, stopping) = (StopReasonTracker::default(), None);
        let (is_begun, is_cancelled) = (false, false);
        Self { responder, listener, last_seq, is_begun, stop_reason, stopping, is_cancelled }
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
    pub async fn wait_stopped(&mut self) {
        if let Some(stopping) = self.stopping.take() {
            stopping.await.ok();
        }
    }

    /// Handles an Event of the Turn.
    pub fn handle_event(&mut self, item: Option<ListenerItem>) -> EventActions {
        let actions = EventActions::default();
        let event = match item {
            Some(ListenerItem::Event(event)) => event,
            Some(ListenerItem::Missed(count)) => {
                tracing::debug!(count, "live notices were lost");
                return actions;
            }
            // The Session has ended, and with it the Turn.
            None => return EventActions { over: Some(SessionStatus::Interrupted), ..actions },
        };
        if let EventKind::Canonical(fact) = event.kind() {
            self.last_seq = event.seq().or(self.last_seq);
            self.is_begun |= matches!(fact, Canonical::UserMessage(_));
            self.stop_reason.record_fact(fact);
        }
        let actions = EventActions::from_event(&event);
        EventActions { event: Some(event), ..actions }
    }

    /// Whether the failure of the Turn was recorded, and so shown to the user.
    pub fn is_reported(&self) -> bool {
        self.stop_reason.is_reported()
    }

    /// The answer to the prompt: after a cancel always `Cancelled`, even when the Turn ended first.
    pub fn stop_reason(&self, status: &SessionStatus) -> Result<StopReason, RpcError> {
        if self.is_cancelled {
            return Ok(StopReason::Cancelled);
        }
        self.stop_reason.stop_reason(status)
    }
}
