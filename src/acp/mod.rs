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
mod listing;
mod options;
mod session;
mod setup;
#[cfg(test)]
mod tests;
mod ticket;
mod to_acp;

use std::io::{self, Read, Write};
use std::sync::Arc;
use std::time::Duration;

pub use doors::{Doors, SignIn};

use crate::rpc::{Line, Message, Peer, read_lines, write_lines};
use agent::Agent;
use connection::Connection;

/// How long the last words may take when nobody seems to read them.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Serves one client until it is gone or `stop` says so; then everything that runs is ended.
pub async fn serve(
    doors: Doors,
    input: impl Read + Send + 'static,
    output: impl Write + Send + 'static,
    stop: impl Future<Output = ()>,
) -> io::Result<()> {
    let mut lines = read_lines(input)?;
    let writer = write_lines(output)?;
    let connection = Arc::new(Connection::new(Peer::new(&writer), doors));
    let mut agent = Agent::new(connection);
    let mut stop = std::pin::pin!(stop);
    loop {
        let line = tokio::select! {
            biased;
            () = &mut stop => break,
            line = lines.next() => line,
        };
        match line {
            Some(Line::Whole(line)) => {
                let Some(message) = Message::read(&line) else { continue };
                // A client that does not read holds up what is said to it, but not the end.
                tokio::select! {
                    biased;
                    () = &mut stop => break,
                    () = agent.handle(message) => {}
                }
            }
            Some(Line::TooLong) => agent.refuse_long_line().await,
            None => break,
        }
    }
    agent.close().await;
    writer.finish(LAST_WORDS).await;
    Ok(())
}
