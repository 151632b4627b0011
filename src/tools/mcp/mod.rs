//! MCP client: tools of other programs, through the official SDK.
//!
//! Each server of a Session has a task that connects, publishes its tools, and reconnects when the
//! connection ends. Only the first Turn waits for servers, and only briefly. MCP tools are ordinary
//! tools: their calls are recorded, judged, bounded and redacted like all others, and their effect
//! counts as running a program.

mod call_result;
mod connect;
mod error;
mod handler;
mod http_transport;
mod offered_tool;
mod remote_tool;
mod sanitize_schema;
mod sanitize_text;
mod server;
mod server_secrets;
mod stdio_transport;
mod tool_name;

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use futures_util::future::join_all;

pub use connect::McpContext;
pub use error::McpError;
pub use server_secrets::{display_address, server_secrets};

use crate::base::error::Kind;
use crate::base::tool_error::ToolError;
use crate::record::event::{split_mcp_name, starting_servers_text};
use crate::record::resource::Resources;
use crate::settings::config::McpServer;
use crate::tools::tool::{AnyTool, CallEffect};
use remote_tool::RemoteTool;
use server::{McpNotices, McpServerHandle, McpServerState, server_slugs};

/// A wait of a Turn is announced after this time.
const NOTICEABLE: Duration = Duration::from_millis(500);
/// Limit of the instructions of one server in bytes; `ALL_INSTRUCTIONS` is that of all together.
const LONGEST_INSTRUCTIONS: usize = 1024;
const ALL_INSTRUCTIONS: usize = 4096;

/// The MCP servers of one Session; cheap to clone, and disconnected with the last clone.
#[derive(Clone, Default)]
pub struct McpServers(Option<Arc<McpServersInner>>);

/// A weak reference to the MCP servers of a Session.
#[derive(Clone)]
pub struct WeakMcpServers(Weak<McpServersInner>);

struct McpServersInner {
    remotes: Vec<McpServerHandle>,
    notices: McpNotices,
    context: McpContext,
    started: Instant,
    /// Whether the servers that missed the first Turn were reported.
    is_late_reported: AtomicBool,
}

impl McpServers {
    /// Starts to connect to the servers, and returns at once.
    pub fn start(servers: Vec<McpServer>, context: McpContext) -> Self {
        if servers.is_empty() {
            return Self::default();
        }
        for server in &servers {
            context.secrets.add_values(server_secrets(server));
        }
        let notices = McpNotices::default();
        let slugs = server_slugs(&servers);
        let start =
            |(server, slug)| McpServerHandle::start(server, slug, context.clone(), notices.clone());
        let remotes = servers.into_iter().zip(slugs).map(start).collect();
        Self(Some(Arc::new(McpServersInner {
            remotes,
            notices,
            context,
            started: Instant::now(),
            is_late_reported: AtomicBool::new(false),
        })))
    }

    /// A weak reference; `None` without servers.
    pub fn downgrade(&self) -> Option<WeakMcpServers> {
        self.0.as_ref().map(|inner| WeakMcpServers(Arc::downgrade(inner)))
    }

    /// Whether these are exactly the given servers.
    pub fn has_servers(&self, servers: &[McpServer]) -> bool {
        let own = self.0.iter().flat_map(|inner| inner.remotes.iter().map(|one| &one.server));
        own.eq(servers)
    }

    /// Waits for starting servers, as long as the first Turn of a Session may; calls `on_wait` with
    /// their names as soon as the wait is noticeable.
    pub async fn wait_for_start(&self, on_wait: impl FnOnce(Vec<String>)) {
        let Some(inner) = &self.0 else { return };
        let patience = inner.context.limits.wait.saturating_sub(inner.started.elapsed());
        let quiet = patience.min(NOTICEABLE);
        let mut all =
            std::pin::pin!(join_all(inner.remotes.iter().map(McpServerHandle::wait_for_start)));
        if tokio::time::timeout(quiet, &mut all).await.is_ok() {
            return;
        }
        if patience > quiet {
            on_wait(inner.starting());
            if tokio::time::timeout(patience.saturating_sub(quiet), all).await.is_ok() {
                return;
            }
        }
        let late = inner.starting();
        if !late.is_empty() && !inner.is_late_reported.swap(true, Ordering::Relaxed) {
            let words = starting_servers_text(&late);
            inner.notices.add(format!("{words}: the tools are available in a later Turn"));
        }
    }

    /// The current tools of all servers, by name.
    pub fn tools(&self, resources: &Resources, wanted: McpToolFilter) -> Vec<Arc<dyn AnyTool>> {
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
                    limit: self.call_timeout(),
                })
            }));
        }
        tools.retain(|tool| wanted == McpToolFilter::All || tool.offer.effect == CallEffect::Read);
        tools.sort_by(|one, other| one.offer.name.cmp(&other.offer.name));
        // A Provider refuses a list in which a name occurs twice.
        tools.dedup_by(|later, earlier| later.offer.name == earlier.offer.name);
        tools.into_iter().map(|tool| tool as Arc<dyn AnyTool>).collect()
    }

    /// The error for a tool that this Turn does not have, if one of these servers is the reason: it
    /// is still starting, has started meanwhile, or does not run.
    pub fn explain_missing_tool(&self, tool: &str, wanted: McpToolFilter) -> Option<ToolError> {
        let remotes = self.0.iter().flat_map(|inner| &inner.remotes);
        let (server, _) = split_mcp_name(tool)?;
        let remote = remotes.into_iter().find(|remote| remote.slug == server)?;
        let name = sanitize_text::clean_line(&remote.server.name, 64);
        let state = remote.state();
        let (kind, message, next) = match &*state.borrow() {
            McpServerState::Starting => (
                Kind::McpServerFailed,
                format!("MCP server `{name}` is still starting, so `{tool}` cannot be called yet"),
                "continue with other work; its tools are available after the user's next prompt",
            ),
            McpServerState::Ready(ready) => {
                let is_offered = |offer: &Arc<offered_tool::OfferedTool>| {
                    offer.name == tool
                        && (wanted == McpToolFilter::All || offer.effect == CallEffect::Read)
                };
                ready.offers.iter().find(|offer| is_offered(offer))?;
                (
                    Kind::UnknownTool,
                    format!("`{tool}` was added during this Turn"),
                    "continue with other work; it can be called after the user's next prompt",
                )
            }
            McpServerState::Down(down) if down.is_final => (
                Kind::McpServerFailed,
                format!("MCP server `{name}` does not run: {}", down.error),
                "go on without it",
            ),
            McpServerState::Down(down) => (
                Kind::McpServerFailed,
                format!("MCP server `{name}` is being restarted: {}", down.error),
                "continue with other work; its tools are available after the user's next prompt",
            ),
        };
        Some(ToolError::new(kind, message).with_next_action(next))
    }

    fn call_timeout(&self) -> Duration {
        self.0.as_ref().map(|inner| inner.context.limits.call).unwrap_or_default()
    }

    /// Instructions of the servers, for the late context.
    pub fn instructions(&self) -> Option<String> {
        let mut text = String::new();
        for remote in self.0.iter().flat_map(|inner| &inner.remotes) {
            let state = remote.state();
            let instructions = state.borrow().instructions().map(|instructions| {
                let instructions = clean_instructions(instructions, self.0.as_deref());
                format!("\n{}: {instructions}", sanitize_text::clean_line(&remote.server.name, 64))
            });
            text.push_str(instructions.as_deref().unwrap_or_default());
        }
        if text.is_empty() {
            return None;
        }
        let text = sanitize_text::clean_text(&text, ALL_INSTRUCTIONS);
        Some(format!("Notes of MCP servers about their tools (not verified):\n{text}"))
    }

    /// Notices about servers since the last call.
    pub fn take_notices(&self) -> Vec<String> {
        self.0.as_ref().map(|inner| inner.notices.take()).unwrap_or_default()
    }
}

impl McpServersInner {
    /// The names of servers whose first attempt is under way.
    fn starting(&self) -> Vec<String> {
        let starting = self.remotes.iter().filter(|remote| remote.is_starting());
        starting.map(|remote| sanitize_text::clean_line(&remote.server.name, 64)).collect()
    }
}

/// A filter of MCP tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum McpToolFilter {
    All,
    /// Only tools that are known to change nothing.
    ReadOnly,
}

fn clean_instructions(instructions: &str, inner: Option<&McpServersInner>) -> String {
    let instructions =
        inner.map_or(instructions.into(), |inner| inner.context.secrets.redact(instructions));
    sanitize_text::clean_text(&instructions, LONGEST_INSTRUCTIONS)
}

impl WeakMcpServers {
    /// The servers, if they are still in use.
    pub fn upgrade(&self) -> Option<McpServers> {
        self.0.upgrade().map(|inner| McpServers(Some(inner)))
    }
}

impl fmt::Debug for McpServers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names =
            self.0.iter().flat_map(|inner| inner.remotes.iter().map(|one| &one.server.name));
        f.debug_list().entries(names).finish()
    }
}

/// The result of a test connection to a server.
#[derive(Debug, Clone)]
pub struct McpProbe {
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
    /// Whether the tool is read-only.
    pub is_read_only: bool,
}

/// Connects to a server, lists its tools, and disconnects.
pub async fn probe_server(server: &McpServer, context: &McpContext) -> Result<McpProbe, McpError> {
    context.secrets.add_values(server_secrets(server));
    let live = connect::connect(server, context).await?;
    let info = live.running.peer().peer_info();
    let slug = server_slugs(std::slice::from_ref(server)).pop().unwrap_or_default();
    let connect::ListedTools { tools, unreadable } = live.tools;
    let (offers, left_out) = offered_tool::OfferedTool::from_tools(server, &slug, tools);
    let left_out = left_out + unreadable;
    let tools = offers.iter().map(|offer| ProbedTool {
        name: offer.name.clone(),
        description: offer.description.clone(),
        is_read_only: offer.effect == CallEffect::Read,
    });
    let own = info.as_ref().and_then(|info| info.server_info.as_ref());
    let instructions = info.as_ref().and_then(|info| info.instructions.as_deref());
    Ok(McpProbe {
        name: own.map(|own| sanitize_text::clean_line(&own.name, 100)),
        version: own.map(|own| sanitize_text::clean_line(&own.version, 100)),
        protocol: info.as_ref().map(|info| info.protocol_version.to_string()).unwrap_or_default(),
        instructions: instructions
            .map(|instructions| sanitize_text::clean_text(instructions, LONGEST_INSTRUCTIONS)),
        tools: tools.collect(),
        left_out,
    })
}
