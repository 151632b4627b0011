//! The bus: fan-out of Events to listeners, and the catch-up of a listener that falls behind.
//!
//! Nothing durable depends on the bus. A slow listener may lose deltas, and gets their number; canonical
//! Events it missed come again from the Session's History, in order, none lost and none doubled.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::broadcast;

use super::{
    BusPosition, Ephemeral, Event, EventKind, PermissionRequest, Seq, SessionStatus, SharedEvent,
};
use crate::base::id::SessionId;

/// How many Events a listener may be behind before it has to catch up from History.
const CAPACITY: usize = 1024;

/// The publishing side, one per Session.
#[derive(Debug, Clone)]
pub struct Bus {
    sender: broadcast::Sender<SharedEvent>,
    shared: Arc<BusState>,
}

/// The state that all handles of a bus share.
#[derive(Debug)]
struct BusState {
    session_id: SessionId,
    next_seq: AtomicU64,
    /// How many ephemeral Events were emitted.
    ticks: AtomicU64,
    /// The latest status, for listeners that fall behind. No other lock is taken while it is held.
    status: Mutex<LatestStatus>,
}

/// The latest status, and the tick of the notice that carried it.
#[derive(Debug, Clone)]
struct LatestStatus {
    status: SessionStatus,
    tick: Option<u64>,
}

impl Bus {
    /// A bus whose next canonical Event will be `next_seq`.
    pub fn new(session_id: SessionId, next_seq: Seq) -> Self {
        let (sender, _) = broadcast::channel(CAPACITY);
        let shared = BusState {
            session_id,
            next_seq: AtomicU64::new(next_seq),
            ticks: AtomicU64::default(),
            status: Mutex::new(LatestStatus { status: SessionStatus::Idle, tick: None }),
        };
        Self { sender, shared: Arc::new(shared) }
    }

    /// Publishes an Event that is already on disk.
    pub fn publish(&self, event: SharedEvent) {
        if let Some(seq) = event.seq() {
            self.shared.next_seq.store(seq + 1, Ordering::Release);
        }
        // A bus without listeners is normal.
        self.sender.send(event).ok();
    }

    /// Publishes a live notice.
    pub fn emit(&self, notice: Ephemeral) {
        let next_tick = || self.shared.ticks.fetch_add(1, Ordering::AcqRel);
        let tick = if let Ephemeral::Status(status) = &notice {
            // Status and tick change together, or a listener that catches up in between misses both.
            let mut latest = self.shared.status.lock();
            let tick = next_tick();
            *latest = LatestStatus { status: status.clone(), tick: Some(tick) };
            tick
        } else {
            next_tick()
        };
        let position = BusPosition { before: self.shared.next_seq.load(Ordering::Acquire), tick };
        self.sender
            .send(Arc::new(Event::new_ephemeral(self.shared.session_id.clone(), notice, position)))
            .ok();
    }

    /// A weak handle: it does not keep listeners waiting once the Session is gone.
    pub fn downgrade(&self) -> WeakBus {
        WeakBus { sender: self.sender.downgrade(), shared: Arc::clone(&self.shared) }
    }

    /// The current status as a Backlog without Events and questions.
    pub fn current_backlog(&self) -> Backlog {
        let latest = self.shared.status.lock();
        Backlog {
            events: Vec::new(),
            status: latest.status.clone(),
            status_tick: latest.tick,
            tick: self.shared.ticks.load(Ordering::Acquire),
            questions: Vec::new(),
        }
    }

    /// The current status of the Session.
    pub fn status(&self) -> SessionStatus {
        self.shared.status.lock().status.clone()
    }

    /// Starts listening; `source` supplies the Events that were missed.
    pub fn listen(&self, from: ListenFrom, source: BacklogSource) -> Listener {
        let started_at_tick = self.shared.ticks.load(Ordering::Acquire);
        let receiver = self.sender.subscribe();
        let next_seq = match from {
            ListenFrom::Start => 0,
            ListenFrom::After(seq) => seq + 1,
            ListenFrom::Now => self.shared.next_seq.load(Ordering::Acquire),
        };
        Listener {
            session_id: self.shared.session_id.clone(),
            started_at_tick,
            receiver,
            source,
            next_seq,
            // The receiver already gets everything from now on.
            catching_up: from != ListenFrom::Now,
            has_lagged: false,
            caught_up_tick: 0,
            dropped: 0,
            ready: std::collections::VecDeque::new(),
        }
    }
}

/// A handle of a bus that may be gone.
#[derive(Debug, Clone)]
pub struct WeakBus {
    sender: broadcast::WeakSender<SharedEvent>,
    shared: Arc<BusState>,
}

impl WeakBus {
    /// The bus, if its Session is still there.
    pub fn upgrade(&self) -> Option<Bus> {
        Some(Bus { sender: self.sender.upgrade()?, shared: Arc::clone(&self.shared) })
    }
}

/// The position at which a listener starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListenFrom {
    /// With the first Event of the Log.
    Start,
    /// After an Event that the listener already has.
    After(Seq),
    /// With the next Event.
    Now,
}

/// The state that a listener requests from its Session when it starts or has fallen behind.
#[derive(Debug, Clone)]
pub struct Backlog {
    /// Canonical Events from the requested seq on, in order.
    pub events: Vec<SharedEvent>,
    /// The current status of the Session.
    pub status: SessionStatus,
    /// The tick of the notice that carried the status; `None` before the first.
    pub status_tick: Option<u64>,
    /// Notices before this tick are older than this Backlog.
    pub tick: u64,
    /// Questions that are not answered yet.
    pub questions: Vec<PermissionRequest>,
}

/// Requests the Backlog from a seq on; gives `None` when the Session is gone.
pub type BacklogSource = Arc<dyn Fn(Seq) -> BoxFuture<'static, Option<Backlog>> + Send + Sync>;

/// One item of a listener's stream.
#[derive(Debug, Clone)]
pub enum ListenerItem {
    /// An Event, live or caught up.
    Event(SharedEvent),
    /// The number of notices that were lost; all canonical Events still come.
    Missed(u64),
}

/// The listening side: an ordered stream without gaps in the canonical Events.
pub struct Listener {
    session_id: SessionId,
    /// The tick at which the listener started.
    started_at_tick: u64,
    receiver: broadcast::Receiver<SharedEvent>,
    source: BacklogSource,
    next_seq: Seq,
    catching_up: bool,
    has_lagged: bool,
    /// Notices before this tick were emitted before the last catch-up.
    caught_up_tick: u64,
    /// How many notices were lost and not reported yet; Events that come again may be among them.
    dropped: u64,
    ready: std::collections::VecDeque<ListenerItem>,
}

impl Listener {
    /// The next item; `None` when the Session has closed.
    ///
    /// Cancel-safe: an item that was not returned comes with the next call.
    pub async fn next(&mut self) -> Option<ListenerItem> {
        loop {
            if let Some(item) = self.ready.pop_front() {
                return Some(item);
            }
            if self.catching_up {
                let backlog = (self.source)(self.next_seq).await?;
                let ahead = self.record_lag();
                self.catch_up(backlog);
                if let Some(event) = ahead {
                    self.enqueue_event(event);
                }
                continue;
            }
            match self.receiver.recv().await {
                Ok(event) => self.enqueue_event(event),
                // Events that are still in the channel stay there: History first, then the Events of the
                // channel that are newer than History.
                Err(broadcast::error::RecvError::Lagged(count)) => {
                    self.dropped += count;
                    self.has_lagged = true;
                    self.catching_up = true;
                }
                Err(broadcast::error::RecvError::Closed) => return None,
            }
        }
    }

    fn enqueue_event(&mut self, event: SharedEvent) {
        let BusPosition { before, tick } = event.position;
        match (&event.kind, event.seq) {
            (EventKind::Canonical(_), Some(seq)) if seq < self.next_seq => return,
            (EventKind::Canonical(_), Some(seq)) => self.next_seq = seq + 1,
            // The Backlog already had the status and the questions of its time.
            (EventKind::Ephemeral(Ephemeral::Status(_) | Ephemeral::PermissionRequest(_)), _)
                if tick < self.caught_up_tick =>
            {
                return;
            }
            // A notice older than Events that came from History would be out of order now.
            (EventKind::Ephemeral(_), _)
                if tick < self.caught_up_tick && before < self.next_seq =>
            {
                self.dropped += 1;
                return;
            }
            _ => {}
        }
        self.report_missed();
        self.ready.push_back(ListenerItem::Event(event));
    }

    /// Counts the Events lost while the Backlog was requested, so that the loss is reported before the Backlog.
    fn record_lag(&mut self) -> Option<SharedEvent> {
        if self.receiver.len() <= CAPACITY {
            return None;
        }
        match self.receiver.try_recv() {
            Err(broadcast::error::TryRecvError::Lagged(count)) => {
                self.dropped += count;
                self.has_lagged = true;
                None
            }
            taken => taken.ok(),
        }
    }

    /// Queues the number of lost notices before anything newer.
    fn report_missed(&mut self) {
        if self.dropped > 0 {
            self.ready.push_back(ListenerItem::Missed(std::mem::take(&mut self.dropped)));
        }
    }

    fn catch_up(&mut self, backlog: Backlog) {
        self.catching_up = false;
        self.caught_up_tick = backlog.tick;
        self.report_missed();
        for event in backlog.events {
            self.enqueue_event(event);
        }
        let position = BusPosition { before: self.next_seq, tick: backlog.tick };
        let live = |notice| {
            ListenerItem::Event(Arc::new(Event::new_ephemeral(
                self.session_id.clone(),
                notice,
                position,
            )))
        };
        // To a new listener the end of an earlier Turn is not news; to one that fell behind it may be, and
        // so may an end between the start of listening and the first Backlog.
        let is_over = backlog.status == SessionStatus::Idle || backlog.status.is_terminal();
        let is_new = backlog.status_tick.is_some_and(|tick| tick >= self.started_at_tick);
        if self.has_lagged || is_new || !is_over {
            self.ready.push_back(live(Ephemeral::Status(backlog.status)));
        }
        for question in backlog.questions {
            self.ready.push_back(live(Ephemeral::PermissionRequest(Box::new(question))));
        }
    }
}
