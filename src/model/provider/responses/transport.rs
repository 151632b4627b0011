//! Choice of transport for a call, and the transport state that the calls of a Session share.
//!
//! WebSocket is preferred because it can continue a response; SSE works everywhere. A fallback is
//! temporary: after a wait that doubles with every failure, the socket is tried again.

use std::collections::HashMap;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::continuation::ResponseContinuation;
use crate::base::error::Kind;
use crate::base::id::SessionId;
use crate::model::credential::Authorization;
use crate::model::provider::ProviderError;
use crate::model::provider::wire::websocket::{ParkedSocket, SocketTimeouts};
use crate::record::event::Seq;
use crate::settings::config::TransportSetting;

/// The close code of a message that is too big for the server.
pub const CLOSE_TOO_BIG: u16 = 1009;

/// How many sockets in a row may break in the middle of an answer before SSE is used.
const MAX_BREAKS: u32 = 2;

/// The transport for one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TransportChoice {
    Socket,
    Sse { fallback_reason: Option<String> },
}

/// An idle socket, and the response that can be continued on it.
#[derive(Debug)]
pub struct IdleSocket {
    pub socket: ParkedSocket,
    /// The authorization of the handshake.
    pub authorization: Authorization,
    pub continuation: Option<ResponseContinuation>,
}

/// Transport state by Session. The lock is never held across an await, nor while another lock is taken.
#[derive(Debug, Default)]
pub struct SessionTransports(Mutex<HashMap<SessionId, SessionTransport>>);

/// Transport state of one Session.
#[derive(Debug, Default)]
pub struct SessionTransport {
    idle_socket: Option<IdleSocket>,
    /// Failures in a row that sent a request to SSE.
    failures: u32,
    /// Sockets in a row that broke in the middle of an answer.
    breaks: u32,
    /// When the socket may be tried again, and why it failed.
    socket_banned_until: Option<(Instant, String)>,
    /// The last Event whose reasoning the server cannot read.
    unreadable_to: Option<Seq>,
}

impl SessionTransports {
    /// Runs `with` on the state of a Session.
    pub fn with_session<T>(
        &self,
        session: &SessionId,
        with: impl FnOnce(&mut SessionTransport) -> T,
    ) -> T {
        let mut transports = self.0.lock();
        if !transports.contains_key(session) {
            // A long-lived process has many Sessions; state without content is dropped.
            transports.retain(|_, transport| transport.is_worth_keeping());
        }
        with(transports.entry(session.clone()).or_default())
    }

    /// Drops the state of a Session, with its idle socket.
    pub fn forget_session(&self, session: &SessionId) {
        self.0.lock().remove(session);
    }
}

impl SessionTransport {
    /// Chooses the transport for the next request.
    pub fn choose(&self, policy: TransportSetting, now: Instant) -> TransportChoice {
        match (policy, &self.socket_banned_until) {
            (TransportSetting::Sse, _) => TransportChoice::Sse { fallback_reason: None },
            (TransportSetting::Auto, Some((until, reason))) if now < *until => {
                TransportChoice::Sse { fallback_reason: Some(reason.clone()) }
            }
            (TransportSetting::Auto | TransportSetting::WebSocket, _) => TransportChoice::Socket,
        }
    }

    /// Whether there is an idle socket whose task still runs.
    pub fn has_socket(&self) -> bool {
        self.idle_socket.as_ref().is_some_and(|waiting| waiting.socket.is_alive())
    }

    /// Takes the idle socket out; one call owns it.
    pub fn take_socket(&mut self) -> Option<IdleSocket> {
        self.idle_socket.take()
    }

    /// Records a successful call over the socket, and keeps the socket.
    pub fn record_success(&mut self, waiting: IdleSocket) {
        let unreadable_to = self.unreadable_to;
        *self = Self { idle_socket: Some(waiting), unreadable_to, ..Self::default() };
    }

    /// Records a failure before any output; returns the reason for the record.
    pub fn record_failure(
        &mut self,
        error: &ProviderError,
        timeouts: &SocketTimeouts,
        now: Instant,
    ) -> String {
        let reason = failure_reason(error);
        // A frame that is too big is a property of this request, not of the transport.
        if error.facts.close_code == Some(CLOSE_TOO_BIG) {
            return reason;
        }
        self.failures += 1;
        let doublings = self.failures.saturating_sub(1).min(16);
        let wait = timeouts.fallback.saturating_mul(1 << doublings).min(timeouts.fallback_cap);
        // 426 Upgrade Required: the server will answer the same for a while.
        let wait = if error.facts.status == Some(426) { timeouts.fallback_cap } else { wait };
        self.socket_banned_until = Some((now + wait, reason.clone()));
        reason
    }

    /// Records a socket that broke in the middle of an answer. The first break is ignored.
    pub fn record_break(&mut self, error: &ProviderError, timeouts: &SocketTimeouts, now: Instant) {
        self.breaks += 1;
        if self.breaks >= MAX_BREAKS {
            self.record_failure(error, timeouts, now);
        }
    }

    /// Leaves reasoning up to this Event out of later requests.
    pub fn mark_unreadable(&mut self, to: Option<Seq>) {
        self.unreadable_to = self.unreadable_to.max(to);
    }

    /// The last Event whose reasoning is left out.
    pub fn unreadable_to(&self) -> Option<Seq> {
        self.unreadable_to
    }

    fn is_worth_keeping(&self) -> bool {
        self.socket_banned_until.is_some() || self.unreadable_to.is_some() || self.has_socket()
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

fn failure_reason(error: &ProviderError) -> String {
    if let Some(status) = error.facts.status {
        return format!("the WebSocket was refused with status {status}");
    }
    match error.facts.close_code {
        Some(CLOSE_TOO_BIG) => "the request is too large for a WebSocket".to_owned(),
        _ => error.message.clone(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn gone() -> ProviderError {
        ProviderError::transient(Kind::Network, "gone")
    }

    #[test]
    fn a_failure_sends_calls_to_sse_for_a_while_and_not_for_ever() {
        let (mut transport, timeouts) = (SessionTransport::default(), SocketTimeouts::default());
        let mut waited = Vec::new();
        let mut now = Instant::now();
        for _ in 0..10 {
            assert_eq!(transport.choose(TransportSetting::Auto, now), TransportChoice::Socket);
            transport.record_failure(&gone(), &timeouts, now);
            let TransportChoice::Sse { fallback_reason } =
                transport.choose(TransportSetting::Auto, now)
            else {
                panic!()
            };
            assert_eq!(fallback_reason.as_deref(), Some("gone"));
            assert_eq!(transport.choose(TransportSetting::WebSocket, now), TransportChoice::Socket);
            let (until, _) = transport.socket_banned_until.clone().unwrap();
            waited.push(until.duration_since(now));
            now = until;
        }
        assert_eq!(waited[..3], [5, 10, 20].map(Duration::from_secs));
        assert_eq!(waited[9], timeouts.fallback_cap);
    }

    #[test]
    fn each_refusal_has_its_own_patience() {
        let (timeouts, now) = (SocketTimeouts::default(), Instant::now());
        let mut transport = SessionTransport::default();
        transport.record_failure(&gone().with_status(426), &timeouts, now);
        assert_eq!(transport.socket_banned_until.as_ref().unwrap().0, now + timeouts.fallback_cap);
        let mut transport = SessionTransport::default();
        let mut too_big = gone();
        too_big.facts.close_code = Some(CLOSE_TOO_BIG);
        transport.record_failure(&too_big, &timeouts, now);
        assert_eq!(transport.choose(TransportSetting::Auto, now), TransportChoice::Socket);
        transport.record_break(&gone(), &timeouts, now);
        assert_eq!(transport.choose(TransportSetting::Auto, now), TransportChoice::Socket);
        transport.record_break(&gone(), &timeouts, now);
        assert!(matches!(
            transport.choose(TransportSetting::Auto, now),
            TransportChoice::Sse { .. }
        ));
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
