//! Choice of transport for a call, and the transport state that the calls of a Session share.
//!
//! WebSocket is preferred because it can continue a response; SSE works everywhere. A fallback is
//! temporary: after a wait that doubles with every failure, the socket is tried again.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;

use super::continuation::Continuation;
use crate::base::error::Kind;
use crate::base::id::SessionId;
use crate::model::credential::Authorization;
use crate::model::provider::ProviderError;
use crate::model::provider::wire::websocket::{Pace, Parked};
use crate::record::event::Seq;
use crate::settings::config::Transport;

/// The close code of a message that is too big for the server.
pub const TOO_BIG: u16 = 1009;

/// How many sockets in a row may break in the middle of an answer before SSE is used.
const BREAKS: u32 = 2;

/// The transport for one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Way {
    Socket,
    Sse { fallback_reason: Option<String> },
}

/// An idle socket, and the response that can be continued on it.
#[derive(Debug)]
pub struct Waiting {
    pub socket: Parked,
    /// The authorization of the handshake.
    pub authorization: Authorization,
    pub continuation: Option<Continuation>,
}

/// Transport state by Session. A leaf lock, never held across an await.
#[derive(Debug, Default)]
pub struct Lines(Mutex<HashMap<SessionId, Line>>);

/// Transport state of one Session.
#[derive(Debug, Default)]
pub struct Line {
    waiting: Option<Waiting>,
    /// Failures in a row that sent a request to SSE.
    failures: u32,
    /// Sockets in a row that broke in the middle of an answer.
    breaks: u32,
    /// When the socket may be tried again, and why it failed.
    banned: Option<(Instant, String)>,
    /// Reasoning up to this Event cannot be read by the server.
    unreadable_to: Option<Seq>,
}

impl Lines {
    /// Runs `with` on the state of a Session.
    pub fn of<T>(&self, session: &SessionId, with: impl FnOnce(&mut Line) -> T) -> T {
        let mut lines = self.lock();
        if !lines.contains_key(session) {
            // A long-lived process has many Sessions; state without content is dropped.
            lines.retain(|_, line| line.is_worth_keeping());
        }
        with(lines.entry(session.clone()).or_default())
    }

    /// Drops the state of a Session, with its idle socket.
    pub fn forget(&self, session: &SessionId) {
        self.lock().remove(session);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<SessionId, Line>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Line {
    /// Chooses the transport for the next request.
    pub fn way(&self, policy: Transport, now: Instant) -> Way {
        match (policy, &self.banned) {
            (Transport::Sse, _) => Way::Sse { fallback_reason: None },
            (Transport::Auto, Some((until, reason))) if now < *until => {
                Way::Sse { fallback_reason: Some(reason.clone()) }
            }
            (Transport::Auto | Transport::WebSocket, _) => Way::Socket,
        }
    }

    /// Whether there is an idle socket whose task still runs.
    pub fn has_socket(&self) -> bool {
        self.waiting.as_ref().is_some_and(|waiting| waiting.socket.is_alive())
    }

    /// Takes the idle socket out; one call owns it.
    pub fn take(&mut self) -> Option<Waiting> {
        self.waiting.take()
    }

    /// Records a successful call over the socket, and keeps the socket.
    pub fn went_well(&mut self, waiting: Waiting) {
        let unreadable_to = self.unreadable_to;
        *self = Self { waiting: Some(waiting), unreadable_to, ..Self::default() };
    }

    /// Records a failure before any output; returns the reason for the record.
    pub fn failed(&mut self, error: &ProviderError, pace: &Pace, now: Instant) -> String {
        let reason = reason(error);
        // A frame that is too big is a property of this request, not of the transport.
        if error.facts.close_code == Some(TOO_BIG) {
            return reason;
        }
        self.failures += 1;
        let doublings = self.failures.saturating_sub(1).min(16);
        let wait = pace.again.saturating_mul(1 << doublings).min(pace.again_cap);
        // 426 Upgrade Required: the server will answer the same for a while.
        let wait = if error.facts.status == Some(426) { pace.again_cap } else { wait };
        self.banned = Some((now + wait, reason.clone()));
        reason
    }

    /// Records a socket that broke in the middle of an answer. The first break is ignored.
    pub fn broke(&mut self, error: &ProviderError, pace: &Pace, now: Instant) {
        self.breaks += 1;
        if self.breaks >= BREAKS {
            self.failed(error, pace, now);
        }
    }

    /// Leaves reasoning up to this Event out of later requests.
    pub fn cannot_read(&mut self, to: Option<Seq>) {
        self.unreadable_to = self.unreadable_to.max(to);
    }

    /// The last Event whose reasoning is left out.
    pub fn unreadable_to(&self) -> Option<Seq> {
        self.unreadable_to
    }

    fn is_worth_keeping(&self) -> bool {
        self.banned.is_some() || self.unreadable_to.is_some() || self.has_socket()
    }
}

/// Whether a failed handshake is a reason to use SSE, and not an error of the account or the request.
pub fn may_fall_back(error: &ProviderError) -> bool {
    match error.facts.status {
        Some(status) => !matches!(status, 401 | 402 | 403 | 407 | 429),
        None => matches!(
            error.kind,
            Kind::Network | Kind::StreamIdle | Kind::InvalidResponse | Kind::Timeout
        ),
    }
}

fn reason(error: &ProviderError) -> String {
    if let Some(status) = error.facts.status {
        return format!("the WebSocket was refused with status {status}");
    }
    match error.facts.close_code {
        Some(TOO_BIG) => "the request is too large for a WebSocket".to_owned(),
        _ => error.message.clone(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn gone() -> ProviderError {
        ProviderError::passing(Kind::Network, "gone")
    }

    #[test]
    fn a_failure_sends_calls_to_sse_for_a_while_and_not_for_ever() {
        let (mut line, pace) = (Line::default(), Pace::default());
        let mut waited = Vec::new();
        let mut now = Instant::now();
        for _ in 0..10 {
            assert_eq!(line.way(Transport::Auto, now), Way::Socket);
            line.failed(&gone(), &pace, now);
            let Way::Sse { fallback_reason } = line.way(Transport::Auto, now) else { panic!() };
            assert_eq!(fallback_reason.as_deref(), Some("gone"));
            assert_eq!(line.way(Transport::WebSocket, now), Way::Socket);
            let (until, _) = line.banned.clone().unwrap();
            waited.push(until.duration_since(now));
            now = until;
        }
        assert_eq!(waited[..3], [5, 10, 20].map(Duration::from_secs));
        assert_eq!(waited[9], pace.again_cap);
    }

    #[test]
    fn each_refusal_has_its_own_patience() {
        let (pace, now) = (Pace::default(), Instant::now());
        let mut line = Line::default();
        line.failed(&gone().with_status(426), &pace, now);
        assert_eq!(line.banned.as_ref().unwrap().0, now + pace.again_cap);
        let mut line = Line::default();
        let mut too_big = gone();
        too_big.facts.close_code = Some(TOO_BIG);
        line.failed(&too_big, &pace, now);
        assert_eq!(line.way(Transport::Auto, now), Way::Socket);
        line.broke(&gone(), &pace, now);
        assert_eq!(line.way(Transport::Auto, now), Way::Socket);
        line.broke(&gone(), &pace, now);
        assert!(matches!(line.way(Transport::Auto, now), Way::Sse { .. }));
    }

    #[test]
    fn what_the_server_thinks_of_us_is_no_reason() {
        for (status, expected) in [
            (401, false),
            (403, false),
            (429, false),
            (426, true),
            (404, true),
            (400, true),
            (502, true),
        ] {
            assert_eq!(may_fall_back(&gone().with_status(status)), expected, "{status}");
        }
        assert!(may_fall_back(&gone()));
        assert!(!may_fall_back(&ProviderError::terminal(Kind::Tls, "certificate")));
        assert!(!may_fall_back(&ProviderError::terminal(Kind::InvalidConfig, "proxy")));
    }
}
