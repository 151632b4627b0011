//! The Agent Client Protocol (ACP) for editors, over two streams; a Presenter like the others.
//!
//! Messages come in through `rpc`, and the `Agent` routes them. Each open Session is one task, which
//! runs its prompts one after the other and never blocks on a Turn. `to_acp` turns Events into updates,
//! for a running Turn and for replay alike. Only version 1 is supported; no other module knows of it.

mod agent;
mod ask;
mod client;
mod commands;
mod connection;
mod content;
mod doors;
mod editor;
mod ending;
mod fault;
mod greeting;
mod inbox;
mod leaving;
mod listing;
mod options;
mod session;
mod setup;
#[cfg(test)]
mod tests;
mod ticket;
mod to_acp;

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

pub use doors::{Doors, SignIn};
use tokio_util::sync::CancellationToken;

use crate::host::rpc::{Peer, read_lines, write_lines};
use agent::Agent;
use connection::Connection;

/// How long the last messages may take when the client does not read them.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Serves one client until it disconnects or `stop` completes; then ends everything that runs.
pub async fn serve(
    doors: Doors,
    input: impl Read + AsFd + Send + 'static,
    output: impl Write + AsFd + Send + 'static,
    stop: impl Future<Output = ()>,
) -> io::Result<()> {
    let mut lines = read_lines(input)?;
    let reader = output.as_fd().try_clone_to_owned()?;
    let writer = write_lines(output)?.watching(reader);
    let connection = Arc::new(Connection::new(Peer::new(&writer), doors));
    let mut agent = Agent::new(connection);
    let gone = lines.gone();
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
            () = long_after(&gone) => break,
        }
    }
    if unread.is_cancelled() {
        writer.give_up();
    }
    let mut closing = std::pin::pin!(agent.close());
    if tokio::time::timeout(LAST_WORDS, &mut closing).await.is_err() {
        writer.give_up();
        closing.await;
    }
    writer.finish(LAST_WORDS).await;
    Ok(())
}

/// Completes a second after the client has disconnected, so that its last request can be handled.
async fn long_after(gone: &CancellationToken) {
    gone.cancelled().await;
    tokio::time::sleep(LAST_WORDS).await;
}
