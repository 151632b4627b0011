//! Tickets: whoever holds one owes an answer, and cannot forget it.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use tokio_util::sync::CancellationToken;

use crate::id::SessionId;
use crate::rpc::{Fault, Id, Peer};

/// Where a request is while it is not answered.
#[derive(Debug, Clone)]
pub enum Flight {
    /// With a task that stops when this is cancelled.
    Task(CancellationToken),
    /// With the task of a Session.
    Session(SessionId),
}

/// The requests that are not answered yet; a leaf, nothing is awaited while it is held.
#[derive(Debug, Clone, Default)]
pub struct Flights(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// By what each is called, and by its number: nothing keeps a client from giving one id to two.
    open: HashMap<String, BTreeMap<u64, Flight>>,
    next: u64,
}

impl Flights {
    /// Where the requests of this name are.
    pub fn find(&self, key: &str) -> Vec<Flight> {
        self.state().open.get(key).into_iter().flat_map(BTreeMap::values).cloned().collect()
    }

    /// Stops all tasks: nobody waits for their answers any more.
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

/// A request that waits for its answer.
pub struct Ticket {
    peer: Peer,
    id: Id,
    key: String,
    number: u64,
    flights: Flights,
    is_answered: bool,
}

impl Ticket {
    /// A ticket for a request.
    pub fn new(peer: &Peer, id: Id, flights: &Flights) -> Self {
        let (peer, flights) = (peer.clone(), flights.clone());
        let (key, number) = (id.key(), flights.number());
        Self { peer, key, number, id, flights, is_answered: false }
    }

    /// What the request is called when it is taken back.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Notes where the request is.
    pub fn at(&self, flight: Flight) {
        let mut state = self.flights.state();
        state.open.entry(self.key.clone()).or_default().insert(self.number, flight);
    }

    /// Answers.
    pub async fn answer(mut self, outcome: Result<impl Serialize, Fault>) {
        self.is_answered = true;
        self.peer.answer(&self.id, outcome).await;
    }
}

/// A task that panicked must not leave the client waiting.
impl Drop for Ticket {
    fn drop(&mut self) {
        self.flights.land(&self.key, self.number);
        if self.is_answered {
            return;
        }
        let (peer, id) = (self.peer.clone(), self.id.clone());
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                let fault = Fault::internal("this request got lost; please report it");
                peer.answer(&id, Err::<(), _>(fault)).await;
            });
        }
    }
}
