//! Closing a Session: closes run in the order of their requests, and the Session can be opened again
//! only when it is closed.

use std::sync::Arc;

use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::connection::ClientConnection;
use super::inbox::Inbox;
use crate::base::id::SessionId;

/// A Session that is being closed or deleted; it cannot be opened again until this is dropped.
pub struct ClosingSession {
    connection: Arc<ClientConnection>,
    /// The token of an earlier close of the same Session.
    before: Option<CancellationToken>,
    /// Completes when the task has ended and its Log is unlocked; `None` when there was no task.
    closed: Option<oneshot::Receiver<()>>,
    gone: CancellationToken,
}

impl ClosingSession {
    /// Sends `Close` to the Session's task, after all earlier messages. Later requests find the Session
    /// closed.
    pub async fn start(connection: &Arc<ClientConnection>, id: &SessionId) -> Self {
        let gone = CancellationToken::new();
        let (handle, before) = connection.begin_closing(id, gone.clone());
        let mut closing = Self { connection: Arc::clone(connection), before, closed: None, gone };
        if let Some(handle) = handle {
            let (closed, done) = oneshot::channel();
            if handle.send(Inbox::Close { closed }).await.is_ok() {
                closing.closed = Some(done);
            }
        }
        closing
    }

    /// Waits until the Log of the Session is unlocked; true when the Session was open.
    pub async fn wait_closed(&mut self) -> bool {
        if let Some(before) = self.before.take() {
            before.cancelled().await;
        }
        match self.closed.take() {
            Some(closed) => closed.await.is_ok(),
            None => false,
        }
    }
}

impl Drop for ClosingSession {
    fn drop(&mut self) {
        self.gone.cancel();
        self.connection.remove_closed();
    }
}
