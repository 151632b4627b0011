//! JSON-RPC peer: sends requests, notifications and responses, and matches responses to requests.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::writer::Outgoing;
use super::{Fault, Id, Writer};

/// The notification by which either side cancels its request.
pub const CANCEL_REQUEST: &str = "$/cancel_request";

/// The other side of a connection; cheap to clone.
#[derive(Clone)]
pub struct Peer(Arc<Inner>);

struct Inner {
    lines: mpsc::Sender<Outgoing>,
    given_up: CancellationToken,
    next: AtomicU64,
    /// Senders for open requests by their number. Nothing is awaited while the lock is held.
    open: Mutex<HashMap<u64, oneshot::Sender<Outcome>>>,
}

type Outcome = Result<Value, Fault>;

impl Peer {
    /// The peer that reads the output of `writer`.
    pub fn new(writer: &Writer) -> Self {
        let (lines, given_up) = (writer.lines(), writer.given_up());
        let (next, open) = (AtomicU64::new(0), Mutex::default());
        Self(Arc::new(Inner { lines, given_up, next, open }))
    }

    /// Sends a notification.
    pub async fn notify(&self, method: &str, params: &impl Serialize) {
        self.say(json_line(&Call { jsonrpc: "2.0", id: None, method, params })).await;
    }

    /// Sends the response to a request.
    pub async fn answer(&self, id: &Id, outcome: Result<impl Serialize, Fault>) {
        let line = match outcome {
            Ok(result) => json_line(&Success { jsonrpc: "2.0", id, result }),
            Err(error) => json_line(&Failure { jsonrpc: "2.0", id, error }),
        };
        self.say(line).await;
    }

    /// Sends a request and returns a future of its response. The request was handed to the writer when this
    /// returns. Dropping the future cancels the request.
    pub async fn ask(&self, method: &str, params: &impl Serialize) -> Asked {
        let number = self.0.next.fetch_add(1, Ordering::Relaxed);
        let (reply, answer) = oneshot::channel();
        self.open().insert(number, reply);
        let question = Call { jsonrpc: "2.0", id: Some(number), method, params };
        self.say(json_line(&question)).await;
        Asked { peer: self.clone(), number, answer, is_over: false }
    }

    /// Passes a response to the request that waits for it; drops one without a request.
    pub fn take(&self, id: &Id, outcome: Outcome) {
        let waiting = id.number().and_then(|number| self.open().remove(&number));
        if let Some(reply) = waiting {
            reply.send(outcome).ok();
        } else {
            tracing::debug!(id = %id.key(), "a response without an open request");
        }
    }

    /// Hands a line to the writer; lost when the writer has ended.
    async fn say(&self, line: Result<Vec<u8>, serde_json::Error>) {
        match line {
            Ok(line) => tokio::select! {
                biased;
                sent = self.0.lines.send(Outgoing::Line(line)) => drop(sent),
                () = self.0.given_up.cancelled() => {}
            },
            Err(error) => tracing::error!(%error, "a message could not be serialized"),
        }
    }

    fn open(&self) -> MutexGuard<'_, HashMap<u64, oneshot::Sender<Outcome>>> {
        self.0.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Cancels a request, unless it was answered meanwhile. The notification was handed to the writer when this
    /// returns, so that it precedes later messages.
    pub async fn take_back(&self, number: u64) {
        if self.open().remove(&number).is_some() {
            self.say(withdrawal(number)).await;
        }
    }

    /// Cancels a request without waiting for the writer.
    fn withdraw(&self, number: u64) {
        if self.open().remove(&number).is_none() {
            return;
        }
        let Ok(line) = withdrawal(number) else { return };
        match self.0.lines.try_send(Outgoing::Line(line)) {
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

fn withdrawal(number: u64) -> Result<Vec<u8>, serde_json::Error> {
    let params = json!({ "requestId": number });
    json_line(&Call { jsonrpc: "2.0", id: None, method: CANCEL_REQUEST, params: &params })
}

/// The future of the response to a request.
pub struct Asked {
    peer: Peer,
    number: u64,
    answer: oneshot::Receiver<Outcome>,
    is_over: bool,
}

impl Asked {
    /// The number to cancel the request by.
    pub fn number(&self) -> u64 {
        self.number
    }
}

impl Future for Asked {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome> {
        let answer = std::task::ready!(Pin::new(&mut self.answer).poll(context));
        self.is_over = true;
        Poll::Ready(answer.unwrap_or_else(|_| Err(Fault::internal("the client has disconnected"))))
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        if !self.is_over {
            self.peer.withdraw(self.number);
        }
    }
}

/// An outgoing request, or a notification when it has no id.
#[derive(Serialize)]
struct Call<'a, P> {
    jsonrpc: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<u64>,
    method: &'a str,
    params: &'a P,
}

#[derive(Serialize)]
struct Success<'a, R> {
    jsonrpc: &'static str,
    id: &'a Id,
    result: R,
}

#[derive(Serialize)]
struct Failure<'a> {
    jsonrpc: &'static str,
    id: &'a Id,
    error: Fault,
}

/// Serializes a message as one line: JSON never contains a raw line break.
fn json_line(message: &impl Serialize) -> Result<Vec<u8>, serde_json::Error> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    Ok(line)
}
