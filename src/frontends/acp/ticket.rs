//! Responders: each answers one request of the client, at the latest with an error when it is dropped.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use tokio_util::sync::CancellationToken;

use crate::base::id::SessionId;
use crate::host::rpc::{Fault, Id, Peer};

/// What handles a request until it is answered.
#[derive(Debug, Clone)]
pub enum Flight {
    /// A task, which stops when the token is cancelled.
    Task(CancellationToken),
    /// The task of a Session.
    Session(SessionId),
}

/// The requests that are not answered yet. A leaf lock, never held across an await.
#[derive(Debug, Clone, Default)]
pub struct Flights(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// By id and by number, because a client may use one id for two requests.
    open: HashMap<String, BTreeMap<u64, Flight>>,
    next: u64,
}

impl Flights {
    /// What handles the requests with this id.
    pub fn find(&self, key: &str) -> Vec<Flight> {
        self.state().open.get(key).into_iter().flat_map(BTreeMap::values).cloned().collect()
    }

    /// Cancels all tasks, because the client has disconnected.
    pub fn ground(&self) {
        for flight in self.state().open.values().flat_map(BTreeMap::values) {
            if let Flight::Task(token) = flight {
                token.cancel();
            }
        }
    }

    fn number(&self) -> u64 {
        let mut state = self.state();
        state.next += 1;
        state.next
    }

    fn land(&self, key: &str, number: u64) {
        let mut state = self.state();
        let Some(named) = state.open.get_mut(key) else { return };
        named.remove(&number);
        if named.is_empty() {
            state.open.remove(key);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Answers one request; dropped without an answer, it sends an error.
pub struct Ticket {
    peer: Peer,
    id: Id,
    key: String,
    number: u64,
    flights: Flights,
    is_answered: bool,
}

impl Ticket {
    /// The responder for a request.
    pub fn new(peer: &Peer, id: Id, flights: &Flights) -> Self {
        let (peer, flights) = (peer.clone(), flights.clone());
        let (key, number) = (id.key(), flights.number());
        Self { peer, key, number, id, flights, is_answered: false }
    }

    /// The id of the request, as a cancel names it.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Registers what handles the request, so that it can be cancelled.
    pub fn at(&self, flight: Flight) {
        let mut state = self.flights.state();
        state.open.entry(self.key.clone()).or_default().insert(self.number, flight);
    }

    /// Sends the answer.
    pub async fn answer(mut self, outcome: Result<impl Serialize, Fault>) {
        self.is_answered = true;
        self.peer.answer(&self.id, outcome).await;
    }
}

/// Sends an error when there was no answer, so that a panic does not leave the client waiting.
impl Drop for Ticket {
    fn drop(&mut self) {
        self.flights.land(&self.key, self.number);
        if self.is_answered {
            return;
        }
        let (peer, id) = (self.peer.clone(), self.id.clone());
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                let fault =
                    Fault::internal("the request was dropped without an answer; please report it");
                peer.answer(&id, Err::<(), _>(fault)).await;
            });
        }
    }
}
