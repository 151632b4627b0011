//! A tool of a server, as the Executor knows tools: planned, permitted, run, and told to stop.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use rmcp::RoleClient;
use rmcp::model::{
    CallToolRequest, CallToolRequestParams, CallToolResult, CancelledNotificationParam,
    ClientRequest, RequestId, ServerResult,
};
use rmcp::service::{Peer, PeerRequestOptions, ServiceError};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::connect::failed;
use super::offer::Offer;
use super::server::{Ready, State};
use super::{answer, wording};
use crate::disk;
use crate::error::Kind;
use crate::event::guest_call;
use crate::resource::Shelf;
use crate::tool::{AnyTool, Plan, ToolContext, ToolError, ToolOutput, ToolSpec};

/// How much of the arguments stands in the line about a call, in characters.
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
        let ready = self.ready().await?;
        let mut params = CallToolRequestParams::new(self.offer.own_name.clone());
        params.arguments = args.as_object().cloned();
        let request = ClientRequest::CallToolRequest(CallToolRequest::new(params));
        let options = PeerRequestOptions::no_options();
        let sent = ready.peer.send_request_with_option(request, options).await;
        let asked = sent.map_err(|error| self.broken(&ready, &error))?;
        let _listening = ready.handler.listen(
            asked.progress_token.clone(),
            context.call_id.clone(),
            context.signals.clone(),
        );
        let mut pending = Pending { peer: ready.peer.clone(), id: Some(asked.id.clone()) };
        let answered = tokio::select! {
            biased;
            answered = asked.await_response() => answered,
            () = context.cancel.cancelled() => return Err(self.interrupted()),
            () = tokio::time::sleep(self.limit) => return Err(self.late()),
        };
        pending.id = None;
        let answered = answered.map_err(|error| self.broken(&ready, &error))?;
        let result = match answered {
            ServerResult::CallToolResult(result) => result,
            other => return Err(self.unreadable(&other)),
        };
        let mut output = self.told(result, &context).await?;
        output.details["server"] = json!(self.server);
        output.details["tool"] = json!(self.offer.own_name);
        Ok(output)
    }

    /// Images go to the disk, and the disk may be slow.
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
        disk::work(work).await.map_err(|error| {
            ToolError::new(Kind::Internal, format!("the answer could not be read: {error}"))
        })
    }

    /// The connection, if there is one, or if there is one in a moment.
    async fn ready(&self) -> Result<Arc<Ready>, ToolError> {
        let mut state = self.state.clone();
        let is_decided = |state: &State| match state {
            State::Starting => false,
            State::Ready(_) => true,
            State::Down(down) => down.is_final,
        };
        tokio::time::timeout(PATIENCE, state.wait_for(is_decided)).await.ok();
        let now = state.borrow().clone();
        match now {
            State::Ready(ready) => Ok(ready),
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

    /// An answer that is no result, with what is wrong about it.
    fn unreadable(&self, answered: &ServerResult) -> ToolError {
        let flaw = match answered {
            ServerResult::InputRequiredResult(_) => {
                "it wants more input first, which Pixir does not give".to_owned()
            }
            ServerResult::CreateTaskResult(_) | ServerResult::GetTaskResult(_) => {
                "it is a task to be followed, which Pixir does not do".to_owned()
            }
            other => answer::flaw_of(&serde_json::to_value(other).unwrap_or_default()),
        };
        let message = format!(
            "{} answered the call of `{}` with what is no tool result: {flaw}",
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
                format!("{} ended during the call of `{}`{why}", self.shown(), self.tool())
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

/// A call that nobody waits for any more is taken back, however that came about.
struct Pending {
    peer: Peer<RoleClient>,
    id: Option<RequestId>,
}

impl Drop for Pending {
    fn drop(&mut self) {
        let Some(id) = self.id.take() else { return };
        let params = CancelledNotificationParam::new(Some(id), None);
        // The word is on its way with the first step; nobody waits for it to arrive.
        self.peer.notify_cancelled(params).now_or_never();
    }
}
