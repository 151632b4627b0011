//! The Agent Client Protocol (ACP) for editors, over two streams; a Presenter like the others.
//!
//! Messages come in through `rpc`, and the `Agent` routes them. Each open Session is one task, which
//! runs its prompts one after the other and never blocks on a Turn. `to_acp` turns Events into updates,
//! for a running Turn and for replay alike. Only version 1 is supported; no other module knows of it.

mod agent;
mod capabilities;
mod client_files;
mod closing;
mod commands;
mod connection;
mod content;
mod error;
mod host;
mod inbox;
mod initialize;
mod options;
mod question;
mod responder;
mod session;
mod session_list;
mod session_setup;
mod stop_reason;
#[cfg(test)]
mod tests;
mod to_acp;

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

pub use host::{AcpHost, SignIn};
use tokio_util::sync::CancellationToken;

use crate::host::rpc::{Peer, spawn_reader, spawn_writer};
use agent::Agent;
use connection::ClientConnection;

/// How long the last messages may take when the client does not read them.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// Serves one client until it disconnects or `stop` completes; then ends everything that runs.
pub async fn serve(
    host: AcpHost,
    input: impl Read + AsFd + Send + 'static,
    output: impl Write + AsFd + Send + 'static,
    stop: impl Future<Output = ()>,
) -> io::Result<()> {
    let mut lines = spawn_reader(input)?;
    let reader = output.as_fd().try_clone_to_owned()?;
    let writer = spawn_writer(output)?.with_hang_up_watch(reader);
    let connection = Arc::new(ClientConnection::new(Peer::new(&writer), host));
    let mut agent = Agent::new(connection);
    let gone = lines.disconnected();
    // A client that has closed our stdout is gone, although our stdin may still be open.
    let unread = writer.reader_gone();
    let mut stop = std::pin::pin!(stop);
    loop {
        let message = tokio::select! {
            biased;
            () = &mut stop => break,
            () = unread.cancelled() => break,
            message = lines.next() => message,
        };
        let Some(message) = message else { break };
        // A client that does not read delays its own messages, but not the shutdown.
        tokio::select! {
            biased;
            () = &mut stop => break,
            () = unread.cancelled() => break,
            () = agent.handle(message) => {}
            () = after_grace_period(&gone) => break,
        }
    }
    if unread.is_cancelled() {
        writer.stop_waiting();
    }
    let mut closing = std::pin::pin!(agent.close());
    if tokio::time::timeout(FLUSH_TIMEOUT, &mut closing).await.is_err() {
        writer.stop_waiting();
        closing.await;
    }
    writer.finish(FLUSH_TIMEOUT).await;
    Ok(())
}

/// Completes a second after the client has disconnected, so that its last request can be handled.
async fn after_grace_period(gone: &CancellationToken) {
    gone.cancelled().await;
    tokio::time::sleep(FLUSH_TIMEOUT).await;
}
