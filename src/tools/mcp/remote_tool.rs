//! A tool of an MCP server, with the plan, call and cancellation of any tool.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use rmcp::model::{
    CallToolRequest, CallToolRequestParams, CallToolResult, CancelledNotificationParam,
    ClientRequest, RequestId, ServerResult,
};
use rmcp::service::{PeerRequestOptions, ServiceError};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::connect::request_error;
use super::offered_tool::OfferedTool;
use super::server::{McpServerState, ReadyServer};
use super::{call_result, sanitize_text};
use crate::base::blocking;
use crate::base::error::Kind;
use crate::base::tool_error::ToolError;
use crate::model::tool_spec::ToolSpec;
use crate::record::event::describe_mcp_call;
use crate::record::resource::Resources;
use crate::tools::tool::{AnyTool, CallPlan, ToolContext, ToolOutput, store_text};

/// How many characters of the arguments the summary of a call shows.
const SHOWN_ARGUMENTS: usize = 200;
/// How long a call waits for a server that is being connected again.
const RECONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// One tool of one server.
pub struct RemoteTool {
    pub server: String,
    pub offer: Arc<OfferedTool>,
    pub state: watch::Receiver<McpServerState>,
    pub resources: Resources,
    /// How long a call may take.
    pub limit: Duration,
}

impl AnyTool for RemoteTool {
    fn spec(&self) -> ToolSpec {
        ToolSpec {
            name: self.offer.name.clone(),
            description: self.offer.description.clone(),
            parameters: self.offer.schema.clone(),
        }
    }

    fn plan(&self, args: &Value, _context: &ToolContext) -> Result<CallPlan, ToolError> {
        let server = sanitize_text::clean_line(&self.server, 64);
        let summary = describe_mcp_call(&server, &self.tool_label(), args, SHOWN_ARGUMENTS);
        Ok(CallPlan {
            agent: Some(self.offer.identity.clone()),
            ..CallPlan::new(self.offer.effect, summary)
        })
    }

    fn run(
        &self,
        args: Value,
        context: ToolContext,
    ) -> BoxFuture<'_, Result<ToolOutput, ToolError>> {
        Box::pin(self.call(args, context))
    }
}

impl RemoteTool {
    async fn call(&self, args: Value, context: ToolContext) -> Result<ToolOutput, ToolError> {
        let mut ready = self.wait_until_ready(None).await?;
        let mut answered = self.send_call(&ready, &args, &context).await;
        if let Err(McpCallError::Undelivered) = answered {
            // The server had ended before the call; the call is sent to its new connection.
            ready = self.wait_until_ready(Some(&ready)).await?;
            answered = self.send_call(&ready, &args, &context).await;
        }
        let result = match answered {
            Ok(ServerResult::CallToolResult(result)) => result,
            Ok(other) => return Err(self.invalid_result_error(&other)),
            Err(McpCallError::Undelivered) => return Err(self.undelivered_error(&ready)),
            Err(McpCallError::Reported(error)) => return Err(*error),
        };
        let mut output = self.tool_output(result, &context).await?;
        let stored = store_text(&context, output.text).await;
        output.text = stored.text;
        if let Some(path) = stored.path {
            output.details["output_path"] = json!(path.to_string_lossy());
            output.details["output_bytes"] = json!(stored.total_bytes);
        }
        output.details["server"] = json!(self.server);
        output.details["tool"] = json!(self.offer.own_name);
        Ok(output)
    }

    /// Makes the call on one connection.
    async fn send_call(
        &self,
        ready: &ReadyServer,
        args: &Value,
        context: &ToolContext,
    ) -> Result<ServerResult, McpCallError> {
        let mut params = CallToolRequestParams::new(self.offer.own_name.clone());
        params.arguments = args.as_object().cloned();
        let request = ClientRequest::CallToolRequest(CallToolRequest::new(params));
        let options = PeerRequestOptions::no_options();
        let asked = match ready.peer.send_request_with_option(request, options).await {
            Ok(asked) => asked,
            Err(ServiceError::TransportClosed) => return Err(McpCallError::Undelivered),
            Err(error) => {
                return Err(McpCallError::reported(self.request_failed_error(ready, &error)));
            }
        };
        let _listening = ready.handler.subscribe_progress(
            asked.progress_token.clone(),
            context.call_id.clone(),
            context.events.clone(),
        );
        let id = asked.id.clone();
        let mut pending = CancelCallOnDrop { ready: ready.clone(), id: Some(id.clone()) };
        let answered = tokio::select! {
            biased;
            answered = asked.await_response() => answered,
            () = context.cancel.cancelled() => return Err(McpCallError::reported(self.interrupted_error())),
            () = tokio::time::sleep(self.limit) => return Err(McpCallError::reported(self.timeout_error())),
        };
        pending.id = None;
        let may_have_come = ready.call_delivery.as_ref().is_none_or(|delivery| delivery.take(&id));
        answered.map_err(|error| match error {
            ServiceError::TransportClosed | ServiceError::TransportSend(_) if !may_have_come => {
                McpCallError::Undelivered
            }
            error => McpCallError::reported(self.request_failed_error(ready, &error)),
        })
    }

    /// Converts the result; images are written to the disk outside the async runtime.
    async fn tool_output(
        &self,
        result: CallToolResult,
        context: &ToolContext,
    ) -> Result<ToolOutput, ToolError> {
        let (resources, limit) = (self.resources.clone(), context.output_limit);
        if !call_result::has_images(&result) {
            return Ok(call_result::tool_output(result, &resources, limit));
        }
        let work = move || call_result::tool_output(result, &resources, limit);
        blocking::run_blocking(work).await.map_err(|error| {
            ToolError::new(Kind::Internal, format!("the answer could not be read: {error}"))
        })
    }

    /// The connection, after a short wait if there is none; never `lost`, which did not accept the call.
    async fn wait_until_ready(
        &self,
        lost: Option<&Arc<ReadyServer>>,
    ) -> Result<Arc<ReadyServer>, ToolError> {
        let mut state = self.state.clone();
        let is_usable = |ready: &Arc<ReadyServer>| {
            let is_lost = lost.is_some_and(|lost| Arc::ptr_eq(lost, ready));
            !is_lost && !ready.peer.is_transport_closed()
        };
        let is_decided = |state: &McpServerState| match state {
            McpServerState::Starting => false,
            McpServerState::Ready(ready) => is_usable(ready),
            McpServerState::Down(down) => down.is_final,
        };
        tokio::time::timeout(RECONNECT_TIMEOUT, state.wait_for(is_decided)).await.ok();
        let now = state.borrow().clone();
        match now {
            McpServerState::Ready(ready) if is_usable(&ready) => Ok(ready),
            McpServerState::Ready(ready) => Err(self.undelivered_error(&ready)),
            McpServerState::Starting => {
                let message = format!("{} is still starting", self.server_label());
                Err(ToolError::new(Kind::McpServerFailed, message)
                    .with_next_action("try again in a moment"))
            }
            McpServerState::Down(down) => {
                let message = format!("{} does not run: {}", self.server_label(), down.error);
                let next = if down.is_final { "go on without it" } else { "try again later" };
                Err(ToolError::new(Kind::McpServerFailed, message).with_next_action(next))
            }
        }
    }

    /// The error for a call that did not reach the server, because it had ended.
    fn undelivered_error(&self, ready: &ReadyServer) -> ToolError {
        let why = ready.failure.peek().map(|why| format!(": {why}")).unwrap_or_default();
        let (server, tool) = (self.server_label(), self.tool_label());
        let message = format!("{server} ended before the call of `{tool}` reached it{why}");
        ToolError::new(Kind::McpServerFailed, message)
            .with_details(json!({ "server": self.server, "tool": self.offer.own_name }))
            .with_next_action("the call did nothing; try again later")
    }

    /// The error for an answer that is not a tool result.
    fn invalid_result_error(&self, answered: &ServerResult) -> ToolError {
        let flaw = match answered {
            ServerResult::InputRequiredResult(_) => {
                "it asks for more input, which Pixir does not support".to_owned()
            }
            ServerResult::CreateTaskResult(_) | ServerResult::GetTaskResult(_) => {
                "it is a task, which Pixir does not support".to_owned()
            }
            other => call_result::explain_invalid_result(
                &serde_json::to_value(other).unwrap_or_default(),
            ),
        };
        let message = format!(
            "{} answered the call of `{}` with an invalid tool result: {flaw}",
            self.server_label(),
            self.tool_label()
        );
        ToolError::new(Kind::McpServerFailed, message)
            .with_details(
                json!({ "server": self.server, "tool": self.offer.own_name, "flaw": flaw }),
            )
            .with_next_action("check what the call may have done, then go on without this tool")
    }

    fn request_failed_error(&self, ready: &ReadyServer, error: &ServiceError) -> ToolError {
        let message = match error {
            ServiceError::McpError(error) => {
                let words = sanitize_text::clean_text(&error.message, 2000);
                let (server, tool) = (self.server_label(), self.tool_label());
                format!("{server} answered `{tool}` with an error: {words} ({})", error.code.0)
            }
            ServiceError::TransportClosed => {
                let why = ready.failure.peek().map(|why| format!(": {why}")).unwrap_or_default();
                let (server, tool) = (self.server_label(), self.tool_label());
                format!(
                    "{server} ended before it answered the call of `{tool}`; whether the call did \
                     anything is not known{why}"
                )
            }
            error => {
                let reason = request_error(&ready.failure, error);
                format!("{}, tool `{}`: {reason}", self.server_label(), self.tool_label())
            }
        };
        let error = ToolError::new(Kind::McpServerFailed, message)
            .with_details(json!({ "server": self.server, "tool": self.offer.own_name }));
        if ready.peer.is_transport_closed() {
            return error.with_next_action("check what the call may have done, then try again");
        }
        error.with_next_action("change the arguments, or go on without it")
    }

    fn interrupted_error(&self) -> ToolError {
        let message = format!("the call was interrupted; {} was notified", self.server_label());
        ToolError::new(Kind::Interrupted, message)
    }

    fn timeout_error(&self) -> ToolError {
        let (server, tool) = (self.server_label(), self.tool_label());
        let message = format!("{server} did not answer `{tool}` in {} ms", self.limit.as_millis());
        ToolError::new(Kind::Timeout, message)
            .with_next_action("go on without it, or ask for less at once")
    }

    fn tool_label(&self) -> String {
        sanitize_text::clean_line(&self.offer.own_name, 100)
    }

    fn server_label(&self) -> String {
        format!("MCP server `{}`", sanitize_text::clean_line(&self.server, 64))
    }
}

/// The error of a call without an answer.
enum McpCallError {
    /// The server had ended before the call reached it.
    Undelivered,
    Reported(Box<ToolError>),
}

impl McpCallError {
    fn reported(error: ToolError) -> Self {
        Self::Reported(Box::new(error))
    }
}

/// Cancels a call on the server when it is dropped without an answer.
struct CancelCallOnDrop {
    ready: ReadyServer,
    id: Option<RequestId>,
}

impl Drop for CancelCallOnDrop {
    fn drop(&mut self) {
        let Some(id) = self.id.take() else { return };
        if let Some(delivery) = &self.ready.call_delivery {
            delivery.take(&id);
        }
        let params = CancelledNotificationParam::new(Some(id), None);
        // The first poll queues the notification; its arrival is not awaited.
        self.ready.peer.notify_cancelled(params).now_or_never();
    }
}
