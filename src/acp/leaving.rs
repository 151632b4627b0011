//! Leaving a Session: it is closed in the order in which that was asked for, and opened again only
//! when it is gone.

use std::sync::Arc;

use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::connection::Connection;
use super::inbox::Inbox;
use crate::id::SessionId;

/// A Session that is being closed or deleted. While this lives, nobody opens it again.
pub struct Leaving {
    connection: Arc<Connection>,
    /// What was leaving under this name before.
    before: Option<CancellationToken>,
    /// Comes when the task has ended and its Log is free; nothing when there was no task.
    closed: Option<oneshot::Receiver<()>>,
    gone: CancellationToken,
}

impl Leaving {
    /// Tells the Session's task to end, behind everything it was told before. What is asked about
    /// the Session from now on finds it closed.
    pub async fn begin(connection: &Arc<Connection>, id: &SessionId) -> Self {
        let gone = CancellationToken::new();
        let (handle, before) = connection.leave(id, gone.clone());
        let mut leaving = Self { connection: Arc::clone(connection), before, closed: None, gone };
        if let Some(handle) = handle {
            let (closed, done) = oneshot::channel();
            if handle.send(Inbox::Close { closed }).await.is_ok() {
                leaving.closed = Some(done);
            }
        }
        leaving
    }

    /// Waits until its Log is free; whether there was anything to close.
    pub async fn is_closed(&mut self) -> bool {
        if let Some(before) = self.before.take() {
            before.cancelled().await;
        }
        match self.closed.take() {
            Some(closed) => closed.await.is_ok(),
            None => false,
        }
    }
}

impl Drop for Leaving {
    fn drop(&mut self) {
        self.gone.cancel();
        self.connection.sweep();
    }
}
