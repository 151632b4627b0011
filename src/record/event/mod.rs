//! Events: everything that happens in a Session, durable or live, in one envelope.
//!
//! A canonical Event has a `seq`, and only `log` can make one: a sequenced Event is an Event on
//! disk. An ephemeral Event is published on the bus and never recorded.

mod bus;
mod canonical;
mod compaction;
mod counts;
mod descriptor;
mod ephemeral;
#[cfg(test)]
mod events_page;
mod hidden_chars;
mod mcp_call;
mod open_enum;
mod posture;
mod pressure;
mod result_facts;
mod schema;
mod subagent;
#[cfg(test)]
mod tests;
mod tool_events;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Serialize, Serializer};
use serde_json::Value;

pub use bus::{Backlog, BacklogSource, Bus, ListenFrom, Listener, ListenerItem, WeakBus};
pub use canonical::*;
pub use compaction::HistoryCompaction;
pub use counts::*;
pub use descriptor::ResourceDescriptor;
pub use ephemeral::*;
pub use hidden_chars::{find_hidden, is_bidi_control, is_hidden, is_invisible, spell_hidden};
pub use mcp_call::{describe_mcp_call, split_mcp_name};
pub use posture::*;
pub use pressure::{ContextPressure, PressureTier};
pub use result_facts::FileResult;
#[doc(hidden)]
pub use schema::events_schema;
pub use subagent::{SubagentEvent, SubagentEventKind, SubagentUsage};
pub use tool_events::{FactRecorder, ToolEvents};

use crate::base::id::{EventId, SessionId};

/// The version of the Log and of the `--events` stream; raised when an old reader would misread.
pub const LOG_VERSION: u32 = 1;

/// Fields that this build does not know; they survive a round trip.
pub type Extra = serde_json::Map<String, Value>;

/// A position in a Session's Log, from 0.
pub type Seq = u64;

/// Wall-clock time as RFC 3339 UTC text with microseconds; Events are never ordered by it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Timestamp(TimestampRepr);

/// A clock reading, or the text of a Log. Most Events are deltas whose time is never shown, so it is formatted late.
#[derive(Debug, Clone, PartialEq, Eq)]
enum TimestampRepr {
    Clock(jiff::Timestamp),
    Text(Box<str>),
}

impl Timestamp {
    /// The current time.
    pub fn now() -> Self {
        Self(TimestampRepr::Clock(jiff::Timestamp::now()))
    }

    /// Keeps the text of a Log line as it is, so that it round-trips.
    pub fn from_text(text: &str) -> Self {
        Self(TimestampRepr::Text(text.into()))
    }

    /// The time passed since `earlier`; zero when one of them cannot be parsed, or a clock went back.
    pub fn duration_since(&self, earlier: &Self) -> Duration {
        let clock = |time: &Self| match &time.0 {
            TimestampRepr::Clock(time) => Some(*time),
            TimestampRepr::Text(text) => text.parse().ok(),
        };
        let times: Option<(jiff::Timestamp, jiff::Timestamp)> = clock(self).zip(clock(earlier));
        let passed = times.map(|(now, then)| now.duration_since(then));
        passed.and_then(|passed| Duration::try_from(passed).ok()).unwrap_or_default()
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            TimestampRepr::Clock(time) => write!(f, "{}", time.strftime("%Y-%m-%dT%H:%M:%S%.6fZ")),
            TimestampRepr::Text(text) => f.write_str(text),
        }
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The payload of an Event: a durable fact or a live notice.
#[derive(Debug, Clone, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "Events live behind an Arc, and most are facts")]
pub enum EventKind {
    /// A durable fact, in the Log.
    Canonical(Canonical),
    /// A live notice, on the bus only.
    Ephemeral(Ephemeral),
}

/// One thing that happened in a Session.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    id: EventId,
    session_id: SessionId,
    seq: Option<Seq>,
    ts: Timestamp,
    kind: EventKind,
    /// Unknown keys of the envelope, kept for the round trip.
    extra: Extra,
    /// Zero for durable Events.
    position: BusPosition,
}

/// The order of an ephemeral Event on the bus. A listener that caught up from History drops older ones by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BusPosition {
    /// The next canonical seq when the Event was emitted.
    before: Seq,
    /// How many ephemeral Events the bus had emitted before.
    tick: u64,
}

/// The parts of a canonical Event that `log` wrote or read.
pub struct CanonicalParts {
    /// The Event's own id.
    pub id: EventId,
    /// The Session that the Event belongs to.
    pub session_id: SessionId,
    /// The seq; absent only on odd lines of foreign Logs.
    pub seq: Option<Seq>,
    /// The time of the Event.
    pub ts: Timestamp,
    /// The payload of the Event.
    pub fact: Canonical,
    /// Envelope keys this build does not know.
    pub extra: Extra,
}

impl Event {
    /// Makes a durable Event. Only `log` calls this, after the line is on disk.
    pub fn new_canonical(parts: CanonicalParts) -> Self {
        let CanonicalParts { id, session_id, seq, ts, fact, extra } = parts;
        Self {
            id,
            session_id,
            seq,
            ts,
            kind: EventKind::Canonical(fact),
            extra,
            position: BusPosition::default(),
        }
    }

    /// Makes a live Event. Only the bus calls this, when it publishes.
    pub fn new_ephemeral(session_id: SessionId, notice: Ephemeral, position: BusPosition) -> Self {
        Self {
            id: EventId::mint(),
            session_id,
            seq: None,
            ts: Timestamp::now(),
            kind: EventKind::Ephemeral(notice),
            extra: Extra::new(),
            position,
        }
    }

    /// A copy of the Event with another fact.
    #[must_use]
    pub fn with_fact(&self, fact: Canonical) -> Self {
        Self { kind: EventKind::Canonical(fact), ..self.clone() }
    }

    /// A canonical Event that was not recorded, to compute what would follow from a fact. It is in no Log, so it
    /// has no seq and must not be published.
    pub fn new_hypothetical(session_id: SessionId, fact: Canonical) -> Self {
        let (id, ts) = (EventId::mint(), Timestamp::now());
        Self::new_canonical(CanonicalParts {
            id,
            session_id,
            seq: None,
            ts,
            fact,
            extra: Extra::new(),
        })
    }

    /// The Event's own id.
    pub fn id(&self) -> &EventId {
        &self.id
    }
    /// The Session that the Event belongs to.
    pub fn session_id(&self) -> &SessionId {
        &self.session_id
    }
    /// The seq in the Log; `None` for live Events.
    pub fn seq(&self) -> Option<Seq> {
        self.seq
    }
    /// The time of the Event.
    pub fn ts(&self) -> &Timestamp {
        &self.ts
    }
    /// The payload of the Event.
    pub fn kind(&self) -> &EventKind {
        &self.kind
    }
    /// The durable fact; `None` for live Events.
    pub fn fact(&self) -> Option<&Canonical> {
        match &self.kind {
            EventKind::Canonical(fact) => Some(fact),
            EventKind::Ephemeral(_) => None,
        }
    }
    /// Envelope keys this build does not know.
    pub fn extra(&self) -> &Extra {
        &self.extra
    }
    /// The name in `type`.
    pub fn type_name(&self) -> &str {
        match &self.kind {
            EventKind::Canonical(fact) => fact.type_name(),
            EventKind::Ephemeral(notice) => notice.type_name(),
        }
    }

    fn fields<D>(&self, data: D) -> EventFields<'_, D> {
        let Self { id, session_id, seq, ts, extra, .. } = self;
        EventFields { id, session_id, seq: *seq, ts, type_name: self.type_name(), data, extra }
    }
}

/// The fields of an Event in their order, as they are on the wire and, before its proof, in the Log.
#[derive(Debug, Serialize)]
#[expect(missing_docs, reason = "field names are the wire contract; docs/events.md shows them")]
pub struct EventFields<'e, D> {
    pub id: &'e EventId,
    pub session_id: &'e SessionId,
    pub seq: Option<Seq>,
    pub ts: &'e Timestamp,
    #[serde(rename = "type")]
    pub type_name: &'e str,
    pub data: D,
    #[serde(flatten)]
    pub extra: &'e Extra,
}

impl Serialize for Event {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.kind {
            EventKind::Canonical(fact) => self.fields(fact).serialize(serializer),
            EventKind::Ephemeral(notice) => self.fields(notice.data()).serialize(serializer),
        }
    }
}

/// A published Event; many subscribers share one.
pub type SharedEvent = Arc<Event>;
