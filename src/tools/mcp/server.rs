//! One MCP server of a Session: a task that connects, publishes its tools, and reconnects.
//!
//! The state is published in a watch channel, so no caller waits for a server that is down. The
//! tools of a dead server stay in the list while it is retried: a changed list invalidates the
//! whole cached prompt.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rmcp::RoleClient;
use rmcp::service::Peer;
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use super::McpError;
use super::connect::{ListedTools, McpConnection, McpContext, connect, list_tools, request_error};
use super::handler::McpClientHandler;
use super::offered_tool::OfferedTool;
use super::sanitize_text;
use super::stdio_transport::{CallDelivery, SharedFailure};
use crate::base::error::counted;
use crate::settings::config::McpServer;

/// The wait before the first new attempt; it doubles.
const FIRST_WAIT: Duration = Duration::from_millis(500);
const LONGEST_WAIT: Duration = Duration::from_mins(1);
/// How often in a row a server may fail before it is given up.
const MOST_FAILURES: u32 = 6;
/// A connection that lasted this long resets the count of failures.
const STABLE_AFTER: Duration = Duration::from_mins(1);
/// Timeout of a new list of tools.
const LIST_TIMEOUT: Duration = Duration::from_secs(30);
/// Pause between two lists of tools, for a server that announces changes all the time.
const LIST_PAUSE: Duration = Duration::from_millis(250);
/// How many unread notices are kept.
const MOST_NOTICES: usize = 50;

/// Unread notices about servers, for the user; cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct McpNotices(Arc<Mutex<Vec<String>>>);

impl McpNotices {
    pub fn add(&self, words: String) {
        tracing::info!(words, "notice about an MCP server");
        let mut all = self.0.lock();
        if all.len() < MOST_NOTICES && !all.contains(&words) {
            all.push(words);
        }
    }

    /// Removes and returns the unread notices.
    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock())
    }
}

/// Handle of the task of one server.
pub struct McpServerHandle {
    pub server: McpServer,
    /// The server's part in the names of its tools.
    pub slug: String,
    state: watch::Receiver<McpServerState>,
    /// The task; dropped with the Session, which closes the connection.
    _task: AbortOnDropHandle<()>,
}

/// The state of the connection to a server.
#[derive(Clone)]
pub enum McpServerState {
    /// The first attempt to connect is under way.
    Starting,
    Ready(Arc<ReadyServer>),
    /// Not connected; keeps the tools it had last.
    Down(Arc<DownServer>),
}

/// A server that can be used.
#[derive(Clone)]
pub struct ReadyServer {
    pub peer: Peer<RoleClient>,
    pub handler: McpClientHandler,
    pub offers: Vec<Arc<OfferedTool>>,
    pub instructions: Option<String>,
    pub failure: SharedFailure,
    /// Tracks which calls reached the server, if the transport can tell.
    pub call_delivery: Option<CallDelivery>,
}

/// A server that cannot be used.
pub struct DownServer {
    pub error: McpError,
    pub offers: Vec<Arc<OfferedTool>>,
    pub instructions: Option<String>,
    /// Whether no further attempt is made.
    pub is_final: bool,
}

impl McpServerState {
    /// The tools that are offered to the model.
    pub fn offers(&self) -> &[Arc<OfferedTool>] {
        match self {
            McpServerState::Starting => &[],
            McpServerState::Ready(ready) => &ready.offers,
            McpServerState::Down(down) if down.is_final => &[],
            McpServerState::Down(down) => &down.offers,
        }
    }

    /// The server's instructions.
    pub fn instructions(&self) -> Option<&str> {
        match self {
            McpServerState::Starting => None,
            McpServerState::Ready(ready) => ready.instructions.as_deref(),
            McpServerState::Down(down) if down.is_final => None,
            McpServerState::Down(down) => down.instructions.as_deref(),
        }
    }
}

impl McpServerHandle {
    /// Starts the task, which ends with this handle.
    pub fn start(
        server: McpServer,
        slug: String,
        context: McpContext,
        notices: McpNotices,
    ) -> Self {
        let (publish, state) = watch::channel(McpServerState::Starting);
        let (own, own_slug) = (server.clone(), slug.clone());
        let actor = Actor { server: own, slug: own_slug, context, notices, publish };
        let task = AbortOnDropHandle::new(tokio::spawn(actor.run()));
        Self { server, slug, state, _task: task }
    }

    /// The current state, and its changes.
    pub fn state(&self) -> watch::Receiver<McpServerState> {
        self.state.clone()
    }

    /// Whether the first attempt to connect is under way.
    pub fn is_starting(&self) -> bool {
        matches!(*self.state.borrow(), McpServerState::Starting)
    }

    /// Waits until the first attempt to connect has succeeded or failed.
    pub async fn wait_for_start(&self) {
        let mut state = self.state.clone();
        state.wait_for(|state| !matches!(state, McpServerState::Starting)).await.ok();
    }
}

struct Actor {
    server: McpServer,
    slug: String,
    context: McpContext,
    notices: McpNotices,
    publish: watch::Sender<McpServerState>,
}

impl Actor {
    async fn run(self) {
        let mut failures = 0;
        let mut is_failure_reported = false;
        loop {
            let began = Instant::now();
            let error = match connect(&self.server, &self.context).await {
                Ok(live) => {
                    if is_failure_reported {
                        self.notices.add(format!("MCP server `{}` is back", self.server.name));
                    }
                    self.serve_connection(live).await
                }
                Err(error) => error,
            };
            failures = if began.elapsed() > STABLE_AFTER { 1 } else { failures + 1 };
            let is_final = error.is_final() || failures >= MOST_FAILURES;
            let outlook = if is_final { "it is not tried again" } else { "it is tried again" };
            // Repeated failures are reported twice: the first and the final one.
            if !is_failure_reported || is_final {
                let words = format!("MCP server `{}`: {error}; {outlook}", self.server.name);
                self.notices.add(sanitize_text::clean_line(&words, 600));
            }
            is_failure_reported = true;
            self.publish_down(error, is_final);
            if is_final {
                return;
            }
            tokio::time::sleep(reconnect_delay(failures)).await;
        }
    }

    /// Publishes the tools of a connection until it ends; returns the reason of the end.
    async fn serve_connection(&self, live: McpConnection) -> McpError {
        let McpConnection { running, handler, tools, failure, errors, call_delivery: delivery } =
            live;
        let peer = running.peer().clone();
        let instructions = peer.peer_info().and_then(|info| info.instructions.clone());
        let (own, reason) = (handler.clone(), failure.clone());
        let ready = ReadyServer {
            peer: peer.clone(),
            handler: own,
            offers: Vec::new(),
            instructions,
            failure: reason,
            call_delivery: delivery,
        };
        self.publish_ready(&ready, tools);
        let mut ended = std::pin::pin!(running.waiting());
        loop {
            tokio::select! {
                _ = &mut ended => break,
                () = handler.tools_changed() => {}
            }
            match tokio::time::timeout(LIST_TIMEOUT, list_tools(&peer)).await {
                Ok(Ok(tools)) => self.publish_ready(&ready, tools),
                Ok(Err(error)) => {
                    let error = request_error(&failure, &error);
                    tracing::warn!(server = self.server.name, %error, "cannot list the tools");
                }
                Err(_) => tracing::warn!(server = self.server.name, "timeout of a list of tools"),
            }
            tokio::time::sleep(LIST_PAUSE).await;
        }
        let error = failure.peek().unwrap_or(McpError::Closed);
        error.with_errors(errors.tail(&self.context.secrets))
    }

    /// Publishes a connection with its current tools.
    fn publish_ready(&self, ready: &ReadyServer, tools: ListedTools) {
        let ready = ReadyServer { offers: self.offered_tools(tools), ..ready.clone() };
        self.publish.send_replace(McpServerState::Ready(Arc::new(ready)));
    }

    fn offered_tools(&self, listed: ListedTools) -> Vec<Arc<OfferedTool>> {
        let ListedTools { tools, unreadable } = listed;
        if unreadable > 0 {
            let name = &self.server.name;
            let tools = counted(unreadable, "tool");
            self.notices.add(format!("MCP server `{name}`: {tools} cannot be read"));
        }
        let (offers, left_out) = OfferedTool::from_tools(&self.server, &self.slug, tools);
        if left_out > 0 {
            let (name, count) = (&self.server.name, offers.len());
            let tools = counted(left_out, "tool");
            self.notices.add(format!("MCP server `{name}`: left out: {tools} beyond {count}"));
        }
        offers
    }

    fn publish_down(&self, error: McpError, is_final: bool) {
        let (offers, instructions) = {
            let before = self.publish.borrow();
            (before.offers().to_vec(), before.instructions().map(str::to_owned))
        };
        let down = DownServer { error, offers, instructions, is_final };
        self.publish.send_replace(McpServerState::Down(Arc::new(down)));
    }
}

/// The delay before the next attempt, after this many failures.
fn reconnect_delay(failures: u32) -> Duration {
    let doubled = FIRST_WAIT.saturating_mul(1 << failures.saturating_sub(1).min(16));
    doubled.min(LONGEST_WAIT)
}

/// The parts of tool names for servers, all distinct.
pub fn server_slugs(servers: &[McpServer]) -> Vec<String> {
    let mut taken = HashSet::new();
    let slug = |server: &McpServer| {
        let slug = super::tool_name::server_slug(&server.name, &taken);
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
        let waits: Vec<u128> =
            (1..=9).map(|failures| reconnect_delay(failures).as_millis()).collect();
        assert_eq!(waits, [500, 1000, 2000, 4000, 8000, 16_000, 32_000, 60_000, 60_000]);
    }

    #[test]
    fn two_servers_never_share_a_slug() {
        let server = |name: &str| McpServer::http(name, "http://x", Vec::new());
        let slugs = server_slugs(&[server("a b"), server("a.b"), server("c")]);
        assert_eq!((slugs[0].as_str(), slugs[2].as_str()), ("a_b", "c"));
        assert!(slugs[1].starts_with("a_b_"), "{slugs:?}");
    }

    #[test]
    fn notices_are_read_once_and_never_too_many() {
        let notices = McpNotices::default();
        (0..100).for_each(|number| notices.add(format!("news {number}")));
        assert_eq!(notices.take().len(), MOST_NOTICES);
        assert!(notices.take().is_empty());
    }
}
