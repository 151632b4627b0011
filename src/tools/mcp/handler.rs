//! Client handler: requests and notifications of a server while it is connected.
//!
//! A server may ask for the roots, report the progress of a call, and announce that its tools
//! changed. Nothing else is offered to it: no model, no question to the user.

#![expect(deprecated, reason = "current servers still ask for roots")]

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rmcp::ClientHandler;
use rmcp::model::{
    ClientCapabilities, ClientConfig, ErrorData, Implementation, ListRootsResult,
    LoggingMessageNotificationParam, ProgressNotificationParam, ProgressToken, ProtocolVersion,
    Root, RootsCapabilities,
};
use rmcp::service::{NotificationContext, RequestContext, RoleClient};
use tokio::sync::Notify;
use url::Url;

use super::sanitize_text;
use crate::base::id::CallId;
use crate::base::secret::Secrets;
use crate::record::event::ToolEvents;

/// The interval of progress updates; those in between are skipped.
const PROGRESS_EVERY: Duration = Duration::from_millis(100);
/// The longest progress message, in bytes.
const LONGEST_PROGRESS: usize = 200;

/// Pixir's side of a connection; cheap to clone.
#[derive(Clone)]
pub struct McpClientHandler(Arc<HandlerShared>);

struct HandlerShared {
    server: String,
    root: Option<String>,
    secrets: Arc<Secrets>,
    changed: Notify,
    calls: Mutex<HashMap<ProgressToken, ProgressListener>>,
}

/// Receiver of the progress of one call.
struct ProgressListener {
    call_id: CallId,
    signals: ToolEvents,
    last_report: Option<Instant>,
}

/// A subscription to the progress of a call; ends on drop.
pub struct ProgressSubscription {
    handler: McpClientHandler,
    token: ProgressToken,
}

impl McpClientHandler {
    pub fn new(server: &str, workspace: &Path, secrets: Arc<Secrets>) -> Self {
        let root = Url::from_directory_path(workspace).ok().map(String::from);
        Self(Arc::new(HandlerShared {
            server: server.to_owned(),
            root,
            secrets,
            changed: Notify::new(),
            calls: Mutex::default(),
        }))
    }

    /// Waits until the server announces that its tools changed.
    pub async fn tools_changed(&self) {
        self.0.changed.notified().await;
    }

    /// Forwards the progress of a call until the subscription is dropped.
    pub fn subscribe_progress(
        &self,
        token: ProgressToken,
        call_id: CallId,
        signals: ToolEvents,
    ) -> ProgressSubscription {
        self.0
            .calls
            .lock()
            .insert(token.clone(), ProgressListener { call_id, signals, last_report: None });
        ProgressSubscription { handler: self.clone(), token }
    }

    fn report_progress(&self, params: &ProgressNotificationParam) {
        let mut calls = self.0.calls.lock();
        let Some(listener) = calls.get_mut(&params.progress_token) else { return };
        if listener.last_report.is_some_and(|reported| reported.elapsed() < PROGRESS_EVERY) {
            return;
        }
        listener.last_report = Some(Instant::now());
        let total = params.total.map(|total| format!("/{total}")).unwrap_or_default();
        let words = self.0.secrets.redact(params.message.as_deref().unwrap_or_default());
        let words = sanitize_text::clean_line(&words, LONGEST_PROGRESS);
        let line = format!("{}{total} {words}", params.progress);
        listener.signals.emit_output(&listener.call_id, format!("{}\n", line.trim_end()));
    }
}

impl Drop for ProgressSubscription {
    fn drop(&mut self) {
        self.handler.0.calls.lock().remove(&self.token);
    }
}

impl ClientHandler for McpClientHandler {
    async fn list_roots(
        &self,
        _context: RequestContext<RoleClient>,
    ) -> Result<ListRootsResult, ErrorData> {
        Ok(ListRootsResult::new(self.0.root.iter().map(Root::new).collect()))
    }

    async fn on_progress(
        &self,
        params: ProgressNotificationParam,
        _context: NotificationContext<RoleClient>,
    ) {
        self.report_progress(&params);
    }

    async fn on_tool_list_changed(&self, _context: NotificationContext<RoleClient>) {
        self.0.changed.notify_one();
    }

    async fn on_logging_message(
        &self,
        params: LoggingMessageNotificationParam,
        _context: NotificationContext<RoleClient>,
    ) {
        let text = self.0.secrets.redact(&params.data.to_string()).into_owned();
        tracing::debug!(
            server = self.0.server,
            text = sanitize_text::clean_line(&text, 500),
            "log message of an MCP server"
        );
    }

    fn get_info(&self) -> ClientConfig {
        let mut capabilities = ClientCapabilities::default();
        capabilities.roots = Some(RootsCapabilities::default());
        let own = Implementation::new("pixir", env!("CARGO_PKG_VERSION"));
        // The newest version that servers of both kinds understand: it begins with `initialize`.
        ClientConfig::new(capabilities, own)
            .with_protocol_version(ProtocolVersion::LATEST_WITH_INITIALIZE)
    }
}
