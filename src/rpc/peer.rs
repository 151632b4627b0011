//! The peer: what can be said to the other side, and the questions that it has not answered yet.

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

/// The notification by which either side takes a question back.
pub const CANCEL_REQUEST: &str = "$/cancel_request";

/// The other side of a connection; cheap to clone.
#[derive(Clone)]
pub struct Peer(Arc<Inner>);

struct Inner {
    lines: mpsc::Sender<Outgoing>,
    given_up: CancellationToken,
    next: AtomicU64,
    /// A leaf: nothing is awaited while it is held.
    open: Mutex<HashMap<u64, oneshot::Sender<Outcome>>>,
}

type Outcome = Result<Value, Fault>;

impl Peer {
    /// The side that reads what `writer` writes.
    pub fn new(writer: &Writer) -> Self {
        let (lines, given_up) = (writer.lines(), writer.given_up());
        let (next, open) = (AtomicU64::new(0), Mutex::default());
        Self(Arc::new(Inner { lines, given_up, next, open }))
    }

    /// Says something that wants no answer.
    pub async fn notify(&self, method: &str, params: &impl Serialize) {
        self.say(json_line(&Call { jsonrpc: "2.0", id: None, method, params })).await;
    }

    /// Answers a question.
    pub async fn answer(&self, id: &Id, outcome: Result<impl Serialize, Fault>) {
        let line = match outcome {
            Ok(result) => json_line(&Success { jsonrpc: "2.0", id, result }),
            Err(error) => json_line(&Failure { jsonrpc: "2.0", id, error }),
        };
        self.say(line).await;
    }

    /// Asks. The question is out when this returns; what it gives is the answer to come. Dropping
    /// that takes the question back.
    pub async fn ask(&self, method: &str, params: &impl Serialize) -> Asked {
        let number = self.0.next.fetch_add(1, Ordering::Relaxed);
        let (reply, answer) = oneshot::channel();
        self.open().insert(number, reply);
        let question = Call { jsonrpc: "2.0", id: Some(number), method, params };
        self.say(json_line(&question)).await;
        Asked { peer: self.clone(), number, answer, is_over: false }
    }

    /// Takes an answer of the other side to whoever asked; one that nobody waits for is dropped.
    pub fn take(&self, id: &Id, outcome: Outcome) {
        let waiting = id.number().and_then(|number| self.open().remove(&number));
        if let Some(reply) = waiting {
            reply.send(outcome).ok();
        } else {
            tracing::debug!(id = %id.key(), "an answer that nobody waits for");
        }
    }

    /// Hands a line over; when the writer is gone, so is whoever would have read it.
    async fn say(&self, line: Result<Vec<u8>, serde_json::Error>) {
        match line {
            Ok(line) => tokio::select! {
                biased;
                sent = self.0.lines.send(Outgoing::Line(line)) => drop(sent),
                () = self.0.given_up.cancelled() => {}
            },
            Err(error) => tracing::error!(%error, "a message could not be written down"),
        }
    }

    fn open(&self) -> MutexGuard<'_, HashMap<u64, oneshot::Sender<Outcome>>> {
        self.0.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a question back. That is said when this returns, so that it comes before whatever is
    /// said next; a question that was answered meanwhile is left.
    pub async fn take_back(&self, number: u64) {
        if self.open().remove(&number).is_some() {
            self.say(withdrawal(number)).await;
        }
    }

    /// Takes a question back, without waiting.
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

/// An answer to come.
pub struct Asked {
    peer: Peer,
    number: u64,
    answer: oneshot::Receiver<Outcome>,
    is_over: bool,
}

impl Asked {
    /// What to take it back by.
    pub fn number(&self) -> u64 {
        self.number
    }
}

impl Future for Asked {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome> {
        let answer = std::task::ready!(Pin::new(&mut self.answer).poll(context));
        self.is_over = true;
        Poll::Ready(answer.unwrap_or_else(|_| Err(Fault::internal("the client is gone"))))
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        if !self.is_over {
            self.peer.withdraw(self.number);
        }
    }
}

/// A request, or a notification where there is no id.
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

/// JSON never holds a raw line break, so one message is one line.
fn json_line(message: &impl Serialize) -> Result<Vec<u8>, serde_json::Error> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    Ok(line)
}
