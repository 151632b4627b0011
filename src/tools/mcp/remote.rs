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

use super::connect::failed;
use super::offer::Offer;
use super::server::{Ready, State};
use super::{answer, wording};
use crate::base::blocking;
use crate::base::error::Kind;
use crate::base::tool_error::ToolError;
use crate::model::tool_spec::ToolSpec;
use crate::record::event::guest_call;
use crate::record::resource::Shelf;
use crate::tools::tool::{AnyTool, Plan, ToolContext, ToolOutput, store_text};

/// How much of the arguments the summary of a call shows, in characters.
const SHOWN_ARGUMENTS: usize = 200;
/// How long a call waits for a server that is being connected again.
const PATIENCE: Duration = Duration::from_secs(5);

/// One tool of one server.
pub struct RemoteTool {
    pub server: String,
    pub offer: Arc<Offer>,
    pub state: watch::Receiver<State>,
    pub resources: Shelf,
    /// How long a call may take.
    pub limit: Duration,
}

impl AnyTool for RemoteTool {
    fn spec(&self) -> ToolSpec {
        ToolSpec {
            name: self.offer.name.clone(),
            description: self.offer.manual.clone(),
            parameters: self.offer.schema.clone(),
        }
    }

    fn plan(&self, args: &Value, _context: &ToolContext) -> Result<Plan, ToolError> {
        let server = wording::line(&self.server, 64);
        let summary = guest_call(&server, &self.tool(), args, SHOWN_ARGUMENTS);
        Ok(Plan {
            agent: Some(self.offer.identity.clone()),
            ..Plan::new(self.offer.effect, summary)
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
        let mut ready = self.ready(None).await?;
        let mut answered = self.ask(&ready, &args, &context).await;
        if let Err(Failed::Undelivered) = answered {
            // The server had ended before the call; the call is sent to its new connection.
            ready = self.ready(Some(&ready)).await?;
            answered = self.ask(&ready, &args, &context).await;
        }
        let result = match answered {
            Ok(ServerResult::CallToolResult(result)) => result,
            Ok(other) => return Err(self.unreadable(&other)),
            Err(Failed::Undelivered) => return Err(self.undelivered(&ready)),
            Err(Failed::Told(error)) => return Err(*error),
        };
        let mut output = self.told(result, &context).await?;
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
    async fn ask(
        &self,
        ready: &Ready,
        args: &Value,
        context: &ToolContext,
    ) -> Result<ServerResult, Failed> {
        let mut params = CallToolRequestParams::new(self.offer.own_name.clone());
        params.arguments = args.as_object().cloned();
        let request = ClientRequest::CallToolRequest(CallToolRequest::new(params));
        let options = PeerRequestOptions::no_options();
        let asked = match ready.peer.send_request_with_option(request, options).await {
            Ok(asked) => asked,
            Err(ServiceError::TransportClosed) => return Err(Failed::Undelivered),
            Err(error) => return Err(Failed::told(self.broken(ready, &error))),
        };
        let _listening = ready.handler.listen(
            asked.progress_token.clone(),
            context.call_id.clone(),
            context.signals.clone(),
        );
        let id = asked.id.clone();
        let mut pending = Pending { ready: ready.clone(), id: Some(id.clone()) };
        let answered = tokio::select! {
            biased;
            answered = asked.await_response() => answered,
            () = context.cancel.cancelled() => return Err(Failed::told(self.interrupted())),
            () = tokio::time::sleep(self.limit) => return Err(Failed::told(self.late())),
        };
        pending.id = None;
        let may_have_come = ready.delivery.as_ref().is_none_or(|delivery| delivery.take(&id));
        answered.map_err(|error| match error {
            ServiceError::TransportClosed | ServiceError::TransportSend(_) if !may_have_come => {
                Failed::Undelivered
            }
            error => Failed::told(self.broken(ready, &error)),
        })
    }

    /// Converts the result; images are written to the disk outside the async runtime.
    async fn told(
        &self,
        result: CallToolResult,
        context: &ToolContext,
    ) -> Result<ToolOutput, ToolError> {
        let (resources, limit) = (self.resources.clone(), context.output_limit);
        if !answer::has_bytes(&result) {
            return Ok(answer::output(result, &resources, limit));
        }
        let work = move || answer::output(result, &resources, limit);
        blocking::work(work).await.map_err(|error| {
            ToolError::new(Kind::Internal, format!("the answer could not be read: {error}"))
        })
    }

    /// The connection, after a short wait if there is none; never `lost`, which took no call.
    async fn ready(&self, lost: Option<&Arc<Ready>>) -> Result<Arc<Ready>, ToolError> {
        let mut state = self.state.clone();
        let is_usable = |ready: &Arc<Ready>| {
            let is_lost = lost.is_some_and(|lost| Arc::ptr_eq(lost, ready));
            !is_lost && !ready.peer.is_transport_closed()
        };
        let is_decided = |state: &State| match state {
            State::Starting => false,
            State::Ready(ready) => is_usable(ready),
            State::Down(down) => down.is_final,
        };
        tokio::time::timeout(PATIENCE, state.wait_for(is_decided)).await.ok();
        let now = state.borrow().clone();
        match now {
            State::Ready(ready) if is_usable(&ready) => Ok(ready),
            State::Ready(ready) => Err(self.undelivered(&ready)),
            State::Starting => {
                let message = format!("{} is still starting", self.shown());
                Err(ToolError::new(Kind::McpServerFailed, message).next("try again in a moment"))
            }
            State::Down(down) => {
                let message = format!("{} does not run: {}", self.shown(), down.error);
                let next = if down.is_final { "go on without it" } else { "try again later" };
                Err(ToolError::new(Kind::McpServerFailed, message).next(next))
            }
        }
    }

    /// The error for a call that did not reach the server, because it had ended.
    fn undelivered(&self, ready: &Ready) -> ToolError {
        let why = ready.flaw.seen().map(|why| format!(": {why}")).unwrap_or_default();
        let (server, tool) = (self.shown(), self.tool());
        let message = format!("{server} ended before the call of `{tool}` reached it{why}");
        ToolError::new(Kind::McpServerFailed, message)
            .details(json!({ "server": self.server, "tool": self.offer.own_name }))
            .next("the call did nothing; try again later")
    }

    /// The error for an answer that is not a tool result.
    fn unreadable(&self, answered: &ServerResult) -> ToolError {
        let flaw = match answered {
            ServerResult::InputRequiredResult(_) => {
                "it asks for more input, which Pixir does not support".to_owned()
            }
            ServerResult::CreateTaskResult(_) | ServerResult::GetTaskResult(_) => {
                "it is a task, which Pixir does not support".to_owned()
            }
            other => answer::flaw_of(&serde_json::to_value(other).unwrap_or_default()),
        };
        let message = format!(
            "{} answered the call of `{}` with an invalid tool result: {flaw}",
            self.shown(),
            self.tool()
        );
        ToolError::new(Kind::McpServerFailed, message)
            .details(json!({ "server": self.server, "tool": self.offer.own_name, "flaw": flaw }))
            .next("look at what the call may have done, then go on without this tool")
    }

    fn broken(&self, ready: &Ready, error: &ServiceError) -> ToolError {
        let message = match error {
            ServiceError::McpError(said) => {
                let words = wording::clean(&said.message, 2000);
                let (server, tool) = (self.shown(), self.tool());
                format!("{server} answered `{tool}` with an error: {words} ({})", said.code.0)
            }
            ServiceError::TransportClosed => {
                let why = ready.flaw.seen().map(|why| format!(": {why}")).unwrap_or_default();
                let (server, tool) = (self.shown(), self.tool());
                format!(
                    "{server} ended before it answered the call of `{tool}`; whether the call did \
                     anything is not known{why}"
                )
            }
            error => {
                let reason = failed(&ready.flaw, error);
                format!("{}, tool `{}`: {reason}", self.shown(), self.tool())
            }
        };
        let error = ToolError::new(Kind::McpServerFailed, message)
            .details(json!({ "server": self.server, "tool": self.offer.own_name }));
        if ready.peer.is_transport_closed() {
            return error.next("look at what the call may have done, then try again");
        }
        error.next("change the arguments, or go on without it")
    }

    fn interrupted(&self) -> ToolError {
        let message = format!("the call was interrupted; {} was told to stop", self.shown());
        ToolError::new(Kind::Interrupted, message)
    }

    fn late(&self) -> ToolError {
        let (server, tool) = (self.shown(), self.tool());
        let message = format!("{server} did not answer `{tool}` in {} ms", self.limit.as_millis());
        ToolError::new(Kind::Timeout, message).next("go on without it, or ask for less at once")
    }

    fn tool(&self) -> String {
        wording::line(&self.offer.own_name, 100)
    }

    fn shown(&self) -> String {
        format!("MCP server `{}`", wording::line(&self.server, 64))
    }
}

/// Why a call has no answer.
enum Failed {
    /// The server had ended before the call reached it.
    Undelivered,
    Told(Box<ToolError>),
}

impl Failed {
    fn told(error: ToolError) -> Self {
        Self::Told(Box::new(error))
    }
}

/// Cancels a call on the server when it is dropped without an answer.
struct Pending {
    ready: Ready,
    id: Option<RequestId>,
}

impl Drop for Pending {
    fn drop(&mut self) {
        let Some(id) = self.id.take() else { return };
        if let Some(delivery) = &self.ready.delivery {
            delivery.take(&id);
        }
        let params = CancelledNotificationParam::new(Some(id), None);
        // The first poll queues the notification; its arrival is not awaited.
        self.ready.peer.notify_cancelled(params).now_or_never();
    }
}
