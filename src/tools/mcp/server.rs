//! One MCP server of a Session: a task that connects, publishes its tools, and reconnects.
//!
//! The state is published in a watch channel, so no caller waits for a server that is down. The
//! tools of a dead server stay in the list while it is retried: a changed list invalidates the
//! whole cached prompt.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rmcp::RoleClient;
use rmcp::service::Peer;
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use super::McpError;
use super::connect::{Ground, Listed, Live, connect, failed, list};
use super::handler::Handler;
use super::offer::Offer;
use super::pipes::{Delivery, Flaw};
use super::wording;
use crate::base::error::counted;
use crate::settings::config::McpServer;

/// The wait before the first new attempt; it doubles.
const FIRST_WAIT: Duration = Duration::from_millis(500);
const LONGEST_WAIT: Duration = Duration::from_mins(1);
/// How often in a row a server may fail before it is given up.
const MOST_FAILURES: u32 = 6;
/// A connection that lasted this long resets the count of failures.
const GOOD: Duration = Duration::from_mins(1);
/// Timeout of a new list of tools.
const LIST_PATIENCE: Duration = Duration::from_secs(30);
/// Pause between two lists of tools, for a server that announces changes all the time.
const LIST_PAUSE: Duration = Duration::from_millis(250);
/// How many unread notices are kept.
const MOST_NOTICES: usize = 50;

/// Unread notices about servers, for the user; cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Notices(Arc<Mutex<Vec<String>>>);

impl Notices {
    pub fn say(&self, words: String) {
        tracing::info!(words, "of an MCP server");
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() < MOST_NOTICES && !all.contains(&words) {
            all.push(words);
        }
    }

    /// Removes and returns the unread notices.
    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Handle of the task of one server.
pub struct Remote {
    pub server: McpServer,
    /// Its part in the names of its tools.
    pub slug: String,
    state: watch::Receiver<State>,
    /// Dropped with the Session, and the connection with it.
    _task: AbortOnDropHandle<()>,
}

/// The state of the connection to a server.
#[derive(Clone)]
pub enum State {
    /// Its first attempt is under way.
    Starting,
    Ready(Arc<Ready>),
    /// Not connected; keeps the tools it had last.
    Down(Arc<Down>),
}

/// A server that can be used.
#[derive(Clone)]
pub struct Ready {
    pub peer: Peer<RoleClient>,
    pub handler: Handler,
    pub offers: Vec<Arc<Offer>>,
    pub instructions: Option<String>,
    pub flaw: Flaw,
    /// Tracks which calls reached the server, if the transport can tell.
    pub delivery: Option<Delivery>,
}

/// A server that cannot be used.
pub struct Down {
    pub error: McpError,
    pub offers: Vec<Arc<Offer>>,
    pub instructions: Option<String>,
    /// Whether it is not retried.
    pub is_final: bool,
}

impl State {
    /// The tools that are offered to the model.
    pub fn offers(&self) -> &[Arc<Offer>] {
        match self {
            State::Starting => &[],
            State::Ready(ready) => &ready.offers,
            State::Down(down) if down.is_final => &[],
            State::Down(down) => &down.offers,
        }
    }

    /// The server's instructions.
    pub fn instructions(&self) -> Option<&str> {
        match self {
            State::Starting => None,
            State::Ready(ready) => ready.instructions.as_deref(),
            State::Down(down) if down.is_final => None,
            State::Down(down) => down.instructions.as_deref(),
        }
    }
}

impl Remote {
    /// Starts the task, which ends with this handle.
    pub fn start(server: McpServer, slug: String, ground: Ground, notices: Notices) -> Self {
        let (publish, state) = watch::channel(State::Starting);
        let (own, own_slug) = (server.clone(), slug.clone());
        let actor = Actor { server: own, slug: own_slug, ground, notices, publish };
        let task = AbortOnDropHandle::new(tokio::spawn(actor.run()));
        Self { server, slug, state, _task: task }
    }

    /// The current state, and its changes.
    pub fn state(&self) -> watch::Receiver<State> {
        self.state.clone()
    }

    /// Whether its first attempt is under way.
    pub fn is_starting(&self) -> bool {
        matches!(*self.state.borrow(), State::Starting)
    }

    /// Waits until its first attempt is over, either way.
    pub async fn settled(&self) {
        let mut state = self.state.clone();
        state.wait_for(|state| !matches!(state, State::Starting)).await.ok();
    }
}

struct Actor {
    server: McpServer,
    slug: String,
    ground: Ground,
    notices: Notices,
    publish: watch::Sender<State>,
}

impl Actor {
    async fn run(self) {
        let mut failures = 0;
        let mut was_told = false;
        loop {
            let began = Instant::now();
            let error = match connect(&self.server, &self.ground).await {
                Ok(live) => {
                    if was_told {
                        self.notices.say(format!("MCP server `{}` is back", self.server.name));
                    }
                    self.attend(live).await
                }
                Err(error) => error,
            };
            failures = if began.elapsed() > GOOD { 1 } else { failures + 1 };
            let is_final = error.is_final() || failures >= MOST_FAILURES;
            let outlook = if is_final { "it is not tried again" } else { "it is tried again" };
            // Repeated failures are reported twice: the first and the final one.
            if !was_told || is_final {
                let words = format!("MCP server `{}`: {error}; {outlook}", self.server.name);
                self.notices.say(wording::line(&words, 600));
            }
            was_told = true;
            self.fell(error, is_final);
            if is_final {
                return;
            }
            tokio::time::sleep(wait(failures)).await;
        }
    }

    /// Publishes the tools of a connection until it ends, and returns why it did.
    async fn attend(&self, live: Live) -> McpError {
        let Live { running, handler, tools, flaw, errors, delivery } = live;
        let peer = running.peer().clone();
        let instructions = peer.peer_info().and_then(|info| info.instructions.clone());
        let (own, reason) = (handler.clone(), flaw.clone());
        let ready = Ready {
            peer: peer.clone(),
            handler: own,
            offers: Vec::new(),
            instructions,
            flaw: reason,
            delivery,
        };
        self.rise(&ready, tools);
        let mut ended = std::pin::pin!(running.waiting());
        loop {
            tokio::select! {
                _ = &mut ended => break,
                () = handler.changed() => {}
            }
            match tokio::time::timeout(LIST_PATIENCE, list(&peer)).await {
                Ok(Ok(tools)) => self.rise(&ready, tools),
                Ok(Err(error)) => {
                    let error = failed(&flaw, &error);
                    tracing::warn!(server = self.server.name, %error, "no new list of tools");
                }
                Err(_) => tracing::warn!(server = self.server.name, "no new list of tools in time"),
            }
            tokio::time::sleep(LIST_PAUSE).await;
        }
        let error = flaw.seen().unwrap_or(McpError::Closed);
        error.with_errors(errors.tail(&self.ground.secrets))
    }

    /// Publishes a connection with the tools that it has now.
    fn rise(&self, ready: &Ready, tools: Listed) {
        let ready = Ready { offers: self.offers(tools), ..ready.clone() };
        self.publish.send_replace(State::Ready(Arc::new(ready)));
    }

    fn offers(&self, listed: Listed) -> Vec<Arc<Offer>> {
        let Listed { tools, unreadable } = listed;
        if unreadable > 0 {
            let name = &self.server.name;
            let tools = counted(unreadable, "tool");
            self.notices.say(format!("MCP server `{name}`: {tools} cannot be read"));
        }
        let (offers, left_out) = Offer::all(&self.server, &self.slug, tools);
        if left_out > 0 {
            let (name, count) = (&self.server.name, offers.len());
            let tools = counted(left_out, "tool");
            self.notices.say(format!("MCP server `{name}`: left out: {tools} beyond {count}"));
        }
        offers
    }

    fn fell(&self, error: McpError, is_final: bool) {
        let (offers, instructions) = {
            let before = self.publish.borrow();
            (before.offers().to_vec(), before.instructions().map(str::to_owned))
        };
        let down = Down { error, offers, instructions, is_final };
        self.publish.send_replace(State::Down(Arc::new(down)));
    }
}

/// The delay before the next attempt, after this many failures.
fn wait(failures: u32) -> Duration {
    let doubled = FIRST_WAIT.saturating_mul(1 << failures.saturating_sub(1).min(16));
    doubled.min(LONGEST_WAIT)
}

/// The parts of tool names for servers, all distinct.
pub fn slugs(servers: &[McpServer]) -> Vec<String> {
    let mut taken = HashSet::new();
    let slug = |server: &McpServer| {
        let slug = super::name::of_server(&server.name, &taken);
        taken.insert(slug.clone());
        slug
    };
    servers.iter().map(slug).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_doubles_and_has_an_end() {
        let waits: Vec<u128> = (1..=9).map(|failures| wait(failures).as_millis()).collect();
        assert_eq!(waits, [500, 1000, 2000, 4000, 8000, 16_000, 32_000, 60_000, 60_000]);
    }

    #[test]
    fn two_servers_never_share_a_slug() {
        let server = |name: &str| McpServer::http(name, "http://x", Vec::new());
        let slugs = slugs(&[server("a b"), server("a.b"), server("c")]);
        assert_eq!((slugs[0].as_str(), slugs[2].as_str()), ("a_b", "c"));
        assert!(slugs[1].starts_with("a_b_"), "{slugs:?}");
    }

    #[test]
    fn notices_are_read_once_and_never_too_many() {
        let notices = Notices::default();
        (0..100).for_each(|number| notices.say(format!("news {number}")));
        assert_eq!(notices.take().len(), MOST_NOTICES);
        assert!(notices.take().is_empty());
    }
}
