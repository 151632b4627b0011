//! The editor's agent: the Agent Client Protocol over two streams, as a Presenter like any other.
//!
//! Lines come in through `rpc`; the `Agent` decides whom they are for; each Session that the client
//! has open is one task, which serialises its prompts and is never held up by a Turn; what happens
//! becomes updates in `to_acp`, the same for a running Turn and for one of long ago. Only version 1
//! is spoken; nothing outside of this room knows that there is one.

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

use crate::rpc::{Peer, read_lines, write_lines};
use agent::Agent;
use connection::Connection;

/// How long the last words may take when nobody seems to read them.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Serves one client until it is gone or `stop` says so; then everything that runs is ended.
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
    // Who does not read any more is gone, although it may still have our stdin open.
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
        // A client that does not read holds up what is said to it, but not the end.
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

/// The client left, and what it asked for before has had its time.
async fn long_after(gone: &CancellationToken) {
    gone.cancelled().await;
    tokio::time::sleep(LAST_WORDS).await;
}
