//! Responders: each answers one request of the client, at the latest with an error when it is dropped.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use parking_lot::Mutex;
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use crate::base::id::SessionId;
use crate::host::rpc::{Peer, RpcError, RpcId};

/// What handles a request until it is answered.
#[derive(Debug, Clone)]
pub enum RequestOwner {
    /// A task, which stops when the token is cancelled.
    Task(CancellationToken),
    /// The task of a Session.
    Session(SessionId),
}

/// The requests that are not answered yet. A leaf lock, never held across an await.
#[derive(Debug, Clone, Default)]
pub struct InFlight(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// By id and by number, because a client may use one id for two requests.
    open: HashMap<String, BTreeMap<u64, RequestOwner>>,
    next: u64,
}

impl InFlight {
    /// What handles the requests with this id.
    pub fn find(&self, key: &str) -> Vec<RequestOwner> {
        self.0.lock().open.get(key).into_iter().flat_map(BTreeMap::values).cloned().collect()
    }

    /// Cancels all tasks, because the client has disconnected.
    pub fn cancel_tasks(&self) {
        for owner in self.0.lock().open.values().flat_map(BTreeMap::values) {
            if let RequestOwner::Task(token) = owner {
                token.cancel();
            }
        }
    }

    fn next_number(&self) -> u64 {
        let mut state = self.0.lock();
        state.next += 1;
        state.next
    }

    fn remove(&self, key: &str, number: u64) {
        let mut state = self.0.lock();
        let Some(named) = state.open.get_mut(key) else { return };
        named.remove(&number);
        if named.is_empty() {
            state.open.remove(key);
        }
    }
}

/// Answers one request; dropped without an answer, it sends an error.
pub struct Responder {
    peer: Peer,
    id: RpcId,
    key: String,
    number: u64,
    in_flight: InFlight,
    is_answered: bool,
}

impl Responder {
    /// The responder for a request.
    pub fn new(peer: &Peer, id: RpcId, in_flight: &InFlight) -> Self {
        let (peer, in_flight) = (peer.clone(), in_flight.clone());
        let (key, number) = (id.key(), in_flight.next_number());
        Self { peer, key, number, id, in_flight, is_answered: false }
    }

    /// The id of the request, as a cancel names it.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Registers what handles the request, so that it can be cancelled.
    pub fn register(&self, owner: RequestOwner) {
        let mut state = self.in_flight.0.lock();
        state.open.entry(self.key.clone()).or_default().insert(self.number, owner);
    }

    /// Sends the answer.
    pub async fn answer(mut self, outcome: Result<impl Serialize, RpcError>) {
        self.is_answered = true;
        self.peer.send_response(&self.id, outcome).await;
    }
}

/// Sends an error when there was no answer, so that a panic does not leave the client waiting.
impl Drop for Responder {
    fn drop(&mut self) {
        self.in_flight.remove(&self.key, self.number);
        if self.is_answered {
            return;
        }
        let (peer, id) = (self.peer.clone(), self.id.clone());
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                let fault = RpcError::internal(
                    "the request was dropped without an answer; please report it",
                );
                peer.send_response(&id, Err::<(), _>(fault)).await;
            });
        }
    }
}
