//! JSON-RPC peer: sends requests, notifications and responses, and matches responses to requests.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use parking_lot::Mutex;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::writer::WriterItem;
use super::{RpcError, RpcId, RpcWriter};

/// The notification by which either side cancels its request.
pub const CANCEL_REQUEST: &str = "$/cancel_request";

/// The other side of a connection; cheap to clone.
#[derive(Clone)]
pub struct Peer(Arc<PeerInner>);

struct PeerInner {
    lines: mpsc::Sender<WriterItem>,
    waiting_stopped: CancellationToken,
    next: AtomicU64,
    /// Senders for open requests by their number. Nothing is awaited while the lock is held.
    pending: Mutex<HashMap<u64, oneshot::Sender<RpcResult>>>,
}

type RpcResult = Result<Value, RpcError>;

impl Peer {
    /// A peer that reads the output of `writer`.
    pub fn new(writer: &RpcWriter) -> Self {
        let (lines, given_up) = (writer.line_sender(), writer.waiting_stopped());
        let (next, open) = (AtomicU64::new(0), Mutex::default());
        Self(Arc::new(PeerInner { lines, waiting_stopped: given_up, next, pending: open }))
    }

    /// Sends a notification.
    pub async fn send_notification(&self, method: &str, params: &impl Serialize) {
        self.send_line(to_json_line(&OutgoingCall { jsonrpc: "2.0", id: None, method, params }))
            .await;
    }

    /// Sends the response to a request.
    pub async fn send_response(&self, id: &RpcId, outcome: Result<impl Serialize, RpcError>) {
        let line = match outcome {
            Ok(result) => to_json_line(&SuccessResponse { jsonrpc: "2.0", id, result }),
            Err(error) => to_json_line(&ErrorResponse { jsonrpc: "2.0", id, error }),
        };
        self.send_line(line).await;
    }

    /// Sends a request and returns a future of its response. The request was handed to the writer when this
    /// returns. Dropping the future cancels the request.
    pub async fn send_request(&self, method: &str, params: &impl Serialize) -> PendingResponse {
        let number = self.0.next.fetch_add(1, Ordering::Relaxed);
        let (reply, answer) = oneshot::channel();
        self.0.pending.lock().insert(number, reply);
        let question = OutgoingCall { jsonrpc: "2.0", id: Some(number), method, params };
        self.send_line(to_json_line(&question)).await;
        PendingResponse { peer: self.clone(), number, answer, is_answered: false }
    }

    /// Passes a response to the request that waits for it; drops a response without a request.
    pub fn handle_response(&self, id: &RpcId, outcome: RpcResult) {
        let waiting = id.number().and_then(|number| self.0.pending.lock().remove(&number));
        if let Some(reply) = waiting {
            reply.send(outcome).ok();
        } else {
            tracing::debug!(id = %id.key(), "a response without an open request");
        }
    }

    /// Hands a line to the writer; the line is lost when the writer has ended.
    async fn send_line(&self, line: Result<Vec<u8>, serde_json::Error>) {
        match line {
            Ok(line) => tokio::select! {
                biased;
                sent = self.0.lines.send(WriterItem::Line(line)) => drop(sent),
                () = self.0.waiting_stopped.cancelled() => {}
            },
            Err(error) => tracing::error!(%error, "a message could not be serialized"),
        }
    }

    /// Cancels a request, unless it was answered meanwhile. The notification was handed to the writer when this
    /// returns, so that it precedes later messages.
    pub async fn cancel_request(&self, number: u64) {
        if self.0.pending.lock().remove(&number).is_some() {
            self.send_line(cancel_line(number)).await;
        }
    }

    /// Cancels a request without waiting for the writer.
    fn cancel_request_in_background(&self, number: u64) {
        if self.0.pending.lock().remove(&number).is_none() {
            return;
        }
        let Ok(line) = cancel_line(number) else { return };
        match self.0.lines.try_send(WriterItem::Line(line)) {
            Err(mpsc::error::TrySendError::Full(line)) => {
                let lines = self.0.lines.clone();
                if let Ok(runtime) = tokio::runtime::Handle::try_current() {
                    runtime.spawn(async move { drop(lines.send(line).await) });
                }
            }
            Ok(()) | Err(mpsc::error::TrySendError::Closed(_)) => {}
        }
    }
}

fn cancel_line(number: u64) -> Result<Vec<u8>, serde_json::Error> {
    let params = json!({ "requestId": number });
    to_json_line(&OutgoingCall {
        jsonrpc: "2.0",
        id: None,
        method: CANCEL_REQUEST,
        params: &params,
    })
}

/// The future of the response to a request.
pub struct PendingResponse {
    peer: Peer,
    number: u64,
    answer: oneshot::Receiver<RpcResult>,
    is_answered: bool,
}

impl PendingResponse {
    /// The number of the request, for [`Peer::cancel_request`].
    pub fn number(&self) -> u64 {
        self.number
    }
}

impl Future for PendingResponse {
    type Output = RpcResult;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<RpcResult> {
        let answer = std::task::ready!(Pin::new(&mut self.answer).poll(context));
        self.is_answered = true;
        Poll::Ready(
            answer.unwrap_or_else(|_| Err(RpcError::internal("the client has disconnected"))),
        )
    }
}

impl Drop for PendingResponse {
    fn drop(&mut self) {
        if !self.is_answered {
            self.peer.cancel_request_in_background(self.number);
        }
    }
}

/// An outgoing request, or a notification when it has no id.
#[derive(Serialize)]
struct OutgoingCall<'a, P> {
    jsonrpc: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<u64>,
    method: &'a str,
    params: &'a P,
}

#[derive(Serialize)]
struct SuccessResponse<'a, R> {
    jsonrpc: &'static str,
    id: &'a RpcId,
    result: R,
}

#[derive(Serialize)]
struct ErrorResponse<'a> {
    jsonrpc: &'static str,
    id: &'a RpcId,
    error: RpcError,
}

/// Serializes a message as one line: JSON never contains a raw line break.
fn to_json_line(message: &impl Serialize) -> Result<Vec<u8>, serde_json::Error> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    Ok(line)
}
