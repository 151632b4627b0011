//! MCP client: tools of other programs, through the official SDK.
//!
//! Each server of a Session has a task that connects, publishes its tools, and reconnects when it
//! dies. Only the first Turn waits for servers, and only for a moment. MCP tools are ordinary
//! tools: their calls are recorded, judged, bounded and redacted like all others, and their effect
//! counts as running a program.

mod answer;
mod connect;
mod error;
mod handler;
mod http_transport;
mod name;
mod offer;
mod pipes;
mod private;
mod remote;
mod schema;
mod server;
mod wording;

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use futures_util::future::join_all;

pub use connect::Ground;
pub use error::McpError;
pub use private::{secrets_of, shown};

use crate::base::error::Kind;
use crate::base::tool_error::ToolError;
use crate::record::event::{guest, still_starting};
use crate::record::resource::Shelf;
use crate::settings::config::McpServer;
use crate::tools::tool::{AnyTool, Effect};
use remote::RemoteTool;
use server::{Notices, Remote, State, slugs};

/// A wait of a Turn is announced after this time.
const NOTICEABLE: Duration = Duration::from_millis(500);
/// How much a server may say about itself, in bytes; and all of them together.
const LONGEST_INSTRUCTIONS: usize = 1024;
const ALL_INSTRUCTIONS: usize = 4096;

/// The MCP servers of one Session; cheap to clone, and disconnected with the last clone.
#[derive(Clone, Default)]
pub struct Connections(Option<Arc<Inner>>);

/// A weak reference to the MCP servers of a Session.
#[derive(Clone)]
pub struct WeakConnections(Weak<Inner>);

struct Inner {
    remotes: Vec<Remote>,
    notices: Notices,
    ground: Ground,
    began: Instant,
    /// Whether the servers that missed the first Turn were reported.
    is_told: AtomicBool,
}

impl Connections {
    /// Starts to connect, and returns at once. Without servers nothing is started.
    pub fn start(servers: Vec<McpServer>, ground: Ground) -> Self {
        if servers.is_empty() {
            return Self::default();
        }
        for server in &servers {
            ground.secrets.learn(secrets_of(server));
        }
        let notices = Notices::default();
        let slugs = slugs(&servers);
        let start = |(server, slug)| Remote::start(server, slug, ground.clone(), notices.clone());
        let remotes = servers.into_iter().zip(slugs).map(start).collect();
        Self(Some(Arc::new(Inner {
            remotes,
            notices,
            ground,
            began: Instant::now(),
            is_told: AtomicBool::new(false),
        })))
    }

    /// A weak reference; `None` without servers.
    pub fn downgrade(&self) -> Option<WeakConnections> {
        self.0.as_ref().map(|inner| WeakConnections(Arc::downgrade(inner)))
    }

    /// Whether it consists of exactly these servers.
    pub fn are(&self, servers: &[McpServer]) -> bool {
        let own = self.0.iter().flat_map(|inner| inner.remotes.iter().map(|one| &one.server));
        own.eq(servers)
    }

    /// Waits for starting servers, as long as the first Turn of a Session may; calls `tell` with
    /// their names as soon as the wait is noticeable.
    pub async fn settled(&self, tell: impl FnOnce(Vec<String>)) {
        let Some(inner) = &self.0 else { return };
        let patience = inner.ground.limits.wait.saturating_sub(inner.began.elapsed());
        let quiet = patience.min(NOTICEABLE);
        let mut all = std::pin::pin!(join_all(inner.remotes.iter().map(Remote::settled)));
        if tokio::time::timeout(quiet, &mut all).await.is_ok() {
            return;
        }
        if patience > quiet {
            tell(inner.starting());
            if tokio::time::timeout(patience.saturating_sub(quiet), all).await.is_ok() {
                return;
            }
        }
        let late = inner.starting();
        if !late.is_empty() && !inner.is_told.swap(true, Ordering::Relaxed) {
            let words = still_starting(&late);
            inner.notices.say(format!("{words}: what it offers joins at a later Turn"));
        }
    }

    /// The current tools of all servers, by name.
    pub fn tools(&self, resources: &Shelf, wanted: Wanted) -> Vec<Arc<dyn AnyTool>> {
        let mut tools: Vec<Arc<RemoteTool>> = Vec::new();
        for remote in self.0.iter().flat_map(|inner| &inner.remotes) {
            let state = remote.state();
            let offers = state.borrow().offers().to_vec();
            tools.extend(offers.into_iter().map(|offer| {
                Arc::new(RemoteTool {
                    server: remote.server.name.clone(),
                    offer,
                    state: state.clone(),
                    resources: resources.clone(),
                    limit: self.limit(),
                })
            }));
        }
        tools.retain(|tool| wanted == Wanted::All || tool.offer.effect == Effect::Read);
        tools.sort_by(|one, other| one.offer.name.cmp(&other.offer.name));
        // A Provider refuses a list in which a name stands twice.
        tools.dedup_by(|later, earlier| later.offer.name == earlier.offer.name);
        tools.into_iter().map(|tool| tool as Arc<dyn AnyTool>).collect()
    }

    /// The error for a tool that this Turn does not have, if one of these servers is the reason: it
    /// is still starting, has started meanwhile, or does not run.
    pub fn absent(&self, tool: &str, wanted: Wanted) -> Option<ToolError> {
        let remotes = self.0.iter().flat_map(|inner| &inner.remotes);
        let (server, _) = guest(tool)?;
        let remote = remotes.into_iter().find(|remote| remote.slug == server)?;
        let name = wording::line(&remote.server.name, 64);
        let state = remote.state();
        let (kind, message, next) = match &*state.borrow() {
            State::Starting => (
                Kind::McpServerFailed,
                format!("MCP server `{name}` is still starting, so `{tool}` cannot be called yet"),
                "go on with something else; its tools join with the next prompt of the user",
            ),
            State::Ready(ready) => {
                let is_offered = |offer: &Arc<offer::Offer>| {
                    offer.name == tool && (wanted == Wanted::All || offer.effect == Effect::Read)
                };
                ready.offers.iter().find(|offer| is_offered(offer))?;
                (
                    Kind::UnknownTool,
                    format!("`{tool}` was added while this Turn was under way"),
                    "go on with something else; it can be called after the next prompt of the user",
                )
            }
            State::Down(down) if down.is_final => (
                Kind::McpServerFailed,
                format!("MCP server `{name}` does not run: {}", down.error),
                "go on without it",
            ),
            State::Down(down) => (
                Kind::McpServerFailed,
                format!("MCP server `{name}` is started again: {}", down.error),
                "go on with something else; its tools join with the next prompt of the user",
            ),
        };
        Some(ToolError::new(kind, message).next(next))
    }

    fn limit(&self) -> Duration {
        self.0.as_ref().map(|inner| inner.ground.limits.call).unwrap_or_default()
    }

    /// Instructions of the servers, for the late context.
    pub fn instructions(&self) -> Option<String> {
        let mut text = String::new();
        for remote in self.0.iter().flat_map(|inner| &inner.remotes) {
            let state = remote.state();
            let said = state.borrow().instructions().map(|said| {
                let said = remote_words(said, self.0.as_deref());
                format!("\n{}: {said}", wording::line(&remote.server.name, 64))
            });
            text.push_str(said.as_deref().unwrap_or_default());
        }
        if text.is_empty() {
            return None;
        }
        let text = wording::clean(&text, ALL_INSTRUCTIONS);
        Some(format!("What MCP servers say about their tools, in their own words:\n{text}"))
    }

    /// Notices about servers since the last call.
    pub fn take_notices(&self) -> Vec<String> {
        self.0.as_ref().map(|inner| inner.notices.take()).unwrap_or_default()
    }
}

impl Inner {
    /// The names of servers whose first attempt is under way.
    fn starting(&self) -> Vec<String> {
        let starting = self.remotes.iter().filter(|remote| remote.is_starting());
        starting.map(|remote| wording::line(&remote.server.name, 64)).collect()
    }
}

/// A filter of MCP tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    All,
    /// Only those that are known to change nothing.
    Reading,
}

fn remote_words(said: &str, inner: Option<&Inner>) -> String {
    let said = inner.map_or(said.into(), |inner| inner.ground.secrets.clean(said));
    wording::clean(&said, LONGEST_INSTRUCTIONS)
}

impl WeakConnections {
    /// The servers, if they are still in use.
    pub fn upgrade(&self) -> Option<Connections> {
        self.0.upgrade().map(|inner| Connections(Some(inner)))
    }
}

impl fmt::Debug for Connections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names =
            self.0.iter().flat_map(|inner| inner.remotes.iter().map(|one| &one.server.name));
        f.debug_list().entries(names).finish()
    }
}

/// The result of a test connection to a server.
#[derive(Debug, Clone)]
pub struct Probe {
    pub name: Option<String>,
    pub version: Option<String>,
    pub protocol: String,
    pub instructions: Option<String>,
    pub tools: Vec<ProbedTool>,
    pub left_out: usize,
}

/// One tool of a tested server.
#[derive(Debug, Clone)]
pub struct ProbedTool {
    /// The name that the model uses.
    pub name: String,
    pub description: String,
    /// Whether it is read-only.
    pub is_reading: bool,
}

/// Connects to a server, lists its tools, and disconnects.
pub async fn probe(server: &McpServer, ground: &Ground) -> Result<Probe, McpError> {
    ground.secrets.learn(secrets_of(server));
    let live = connect::connect(server, ground).await?;
    let info = live.running.peer().peer_info();
    let slug = slugs(std::slice::from_ref(server)).pop().unwrap_or_default();
    let connect::Listed { tools, unreadable } = live.tools;
    let (offers, left_out) = offer::Offer::all(server, &slug, tools);
    let left_out = left_out + unreadable;
    let tools = offers.iter().map(|offer| ProbedTool {
        name: offer.name.clone(),
        description: offer.manual.clone(),
        is_reading: offer.effect == Effect::Read,
    });
    let own = info.as_ref().and_then(|info| info.server_info.as_ref());
    let instructions = info.as_ref().and_then(|info| info.instructions.as_deref());
    Ok(Probe {
        name: own.map(|own| wording::line(&own.name, 100)),
        version: own.map(|own| wording::line(&own.version, 100)),
        protocol: info.as_ref().map(|info| info.protocol_version.to_string()).unwrap_or_default(),
        instructions: instructions.map(|said| wording::clean(said, LONGEST_INSTRUCTIONS)),
        tools: tools.collect(),
        left_out,
    })
}
