//! Relay from the Bus to the view: a queue, so that a slow terminal misses no Events until it is full.
//!
//! It also drops deltas for a view that shows only whole messages: waking the
//! screen's thread for each of them would cost more than everything else.

use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::record::event::{Ephemeral, EventKind, Listener, ListenerItem};

/// How far a screen may be behind before live notices are dropped.
const QUEUE: usize = 64 * 1024;

/// The Events that a view needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RelayFilter {
    All,
    /// No deltas of text, reasoning or output.
    WithoutDeltas,
}

/// The Events of a Session, in order; dropping it stops the relay.
pub struct EventRelay {
    queue: mpsc::Receiver<ListenerItem>,
    task: JoinHandle<()>,
}

impl EventRelay {
    /// Starts to listen; must be called inside a runtime.
    pub fn start(listener: Listener, filter: RelayFilter) -> Self {
        let (inbox, queue) = mpsc::channel(QUEUE);
        // Unconstrained: a relay that has to pause for fairness falls behind a fast Provider. It
        // pauses by itself whenever the bus is empty.
        let work = tokio::task::coop::unconstrained(forward(listener, filter, inbox));
        Self { queue, task: tokio::spawn(work) }
    }

    /// The next thing to show; `None` when the Session has closed. Nothing is lost when the
    /// future is dropped.
    pub async fn next(&mut self) -> Option<ListenerItem> {
        self.queue.recv().await
    }

    /// The next thing to show, if it is there already.
    pub fn try_next(&mut self) -> Option<ListenerItem> {
        self.queue.try_recv().ok()
    }
}

impl Drop for EventRelay {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn forward(mut listener: Listener, filter: RelayFilter, inbox: mpsc::Sender<ListenerItem>) {
    while let Some(item) = listener.next().await {
        if filter == RelayFilter::WithoutDeltas && is_delta(&item) {
            continue;
        }
        if inbox.send(item).await.is_err() {
            return;
        }
    }
}

fn is_delta(item: &ListenerItem) -> bool {
    let ListenerItem::Event(event) = item else { return false };
    match event.kind() {
        EventKind::Canonical(_) => false,
        EventKind::Ephemeral(notice) => matches!(
            notice,
            Ephemeral::TextDelta(_)
                | Ephemeral::ReasoningDelta(_)
                | Ephemeral::ToolOutputDelta { .. }
        ),
    }
}
