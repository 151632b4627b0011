//! One call to the Responses API: sends the request over WebSocket or SSE, reads the answer to its end,
//! and sends the request again after failures that came before any output.
//!
//! Before the first output, a request may be sent again: on a fresh socket, over SSE, with another
//! token, or without reasoning that the server cannot read. Each time is announced by `Sent`, so that
//! callers count every attempt. After the first output, a failure is returned to the caller.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::time::Instant;

use super::Shared;
use super::body::{Form, Parts};
use super::continuation::Continuation;
use super::reduce::Reducer;
use super::talk::Talk;
use super::transport::{self, TOO_BIG, Waiting, Way};
use crate::base::error::Kind;
use crate::model::credential::{Authorization, CredentialError, Recovery};
use crate::model::provider::input::Reader;
use crate::model::provider::wire::clock::Clock;
use crate::model::provider::wire::sse::{Read, ResponseStream};
use crate::model::provider::wire::websocket::Socket;
use crate::model::provider::{ModelEvent, ProviderError, Request, Sent, ServerErrorCode};
use crate::record::event;
use crate::record::event::RateLimits;
use crate::settings::config::Transport;

/// A running call; dropping it abandons the call and closes its socket.
pub struct Call {
    shared: Arc<Shared>,
    request: Request,
    /// The request that was announced but not sent yet; the caller may still drop the call.
    letter: Option<Letter>,
    wire: Option<Wire>,
    reducer: Reducer,
    ready: VecDeque<Result<ModelEvent, ProviderError>>,
    is_over: bool,
    /// Whether the model has produced output: then the request is not sent again.
    has_output: bool,
    /// Why this request must not use the socket.
    kept_off: Option<String>,
    /// Why the continuation that existed cannot be used.
    reset: Option<String>,
    /// The error of the previous attempt.
    after: Option<Box<ProviderError>>,
    /// Attempts so far to replace a refused token.
    recovery: Recovery,
    /// The authorization that replaces a refused one.
    admission: Option<Authorization>,
}

enum Letter {
    Sse(Vec<u8>),
    Socket(Box<Talk>, Vec<u8>),
}

enum Wire {
    Sse(Box<ResponseStream>),
    Socket(Box<Talk>),
}

/// An open socket, before the request is written.
struct Open {
    socket: Socket,
    authorization: Authorization,
    continuation: Option<Continuation>,
    /// Whether an earlier call used it, so that it may have been closed unnoticed.
    is_reused: bool,
}

/// Why a call failed, for the decision to send it again.
enum Trouble {
    /// The connection failed.
    Wire(ProviderError),
    /// The server answered with an error.
    Said(ProviderError),
    /// The token was refused, and another one is available.
    Refused(ProviderError),
}

impl Call {
    pub fn new(shared: Arc<Shared>, request: Request) -> Self {
        Self {
            shared,
            request,
            letter: None,
            wire: None,
            reducer: Reducer::default(),
            ready: VecDeque::new(),
            is_over: false,
            has_output: false,
            kept_off: None,
            reset: None,
            after: None,
            recovery: Recovery::default(),
            admission: None,
        }
    }

    pub async fn next(&mut self) -> Option<Result<ModelEvent, ProviderError>> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            if self.is_over {
                if let Some(Wire::Sse(mut answer)) = self.wire.take() {
                    answer.finish();
                }
                return None;
            }
            let Err(trouble) = self.advance().await else { continue };
            if let Err(error) = self.rescue(trouble) {
                self.ready.push_back(Err(error));
                self.is_over = true;
            }
        }
    }

    async fn advance(&mut self) -> Result<(), Trouble> {
        if let Some(letter) = self.letter.take() {
            return self.post(letter).await;
        }
        let Some(wire) = &mut self.wire else { return self.prepare().await };
        let Self { reducer, ready, .. } = self;
        let known = ready.len();
        let had_life = reducer.is_alive();
        match wire {
            Wire::Sse(answer) => {
                let read = answer
                    .read(|event| reducer.take(&event.event, event.data.as_bytes(), ready))
                    .await;
                if read.map_err(Trouble::Wire)? == Read::End {
                    let peer = self.shared.client.peer();
                    let message =
                        format!("the stream from {peer} ended before the response was complete");
                    let error = ProviderError::passing(Kind::InvalidResponse, message);
                    return Err(Trouble::Wire(error.with("content_type", answer.content_type())));
                }
            }
            Wire::Socket(talk) => talk.read(reducer, ready).await.map_err(Trouble::Wire)?,
        }
        if !had_life {
            reducer.come_alive();
            ready.insert(known, Ok(ModelEvent::Alive));
        }
        self.notice(known);
        if !self.reducer.is_over() {
            return Ok(());
        }
        if let Some(Err(_)) = self.ready.back()
            && let Some(Err(error)) = self.ready.pop_back()
        {
            let used = match &self.wire {
                Some(Wire::Socket(talk)) => Some(talk.authorization.clone()),
                Some(Wire::Sse(_)) | None => None,
            };
            return Err(match used {
                Some(used) => self.refused(error, &used).await,
                None => Trouble::Said(error),
            });
        }
        self.finish();
        Ok(())
    }

    /// Records the output in the events that just arrived, from index `known` on.
    fn notice(&mut self, known: usize) {
        for event in self.ready.iter().skip(known).flatten() {
            let is_output = match event {
                ModelEvent::Item(item) => {
                    if let Some(Wire::Socket(talk)) = &mut self.wire {
                        talk.items.push(item.clone());
                    }
                    true
                }
                ModelEvent::TextDelta(_) | ModelEvent::ReasoningDelta(_) => true,
                ModelEvent::Sent(_)
                | ModelEvent::Alive
                | ModelEvent::Limits(_)
                | ModelEvent::Billed(_)
                | ModelEvent::Completed(_) => false,
            };
            self.has_output |= is_output;
        }
    }

    /// Ends a complete answer: the connection is kept for the next call.
    fn finish(&mut self) {
        self.is_over = true;
        match self.wire.take() {
            Some(Wire::Sse(mut answer)) => {
                answer.finish();
                self.wire = Some(Wire::Sse(answer));
            }
            Some(Wire::Socket(talk)) => {
                let Talk { socket, authorization, parts, items, .. } = *talk;
                let Some(Ok(ModelEvent::Completed(end))) = self.ready.back() else { return };
                let continuation = Continuation::after(parts, &self.reader(), &items, end);
                let waiting = Waiting { socket: socket.park(), authorization, continuation };
                self.shared.lines.of(&self.request.session, |line| line.went_well(waiting));
            }
            None => {}
        }
    }

    /// Chooses the transport, builds the request, and announces it.
    async fn prepare(&mut self) -> Result<(), Trouble> {
        let policy = self.shared.policy;
        let session = &self.request.session;
        let way = || self.shared.lines.of(session, |line| line.way(policy, Instant::now()));
        let kept_off = self.kept_off.take();
        let way = kept_off.map_or_else(way, |reason| Way::Sse { fallback_reason: Some(reason) });
        let fallback_reason = match way {
            Way::Sse { fallback_reason } => fallback_reason,
            Way::Socket => match self.socket().await {
                Ok(open) => {
                    self.write_frame(open);
                    return Ok(());
                }
                Err(error) if policy == Transport::Auto && transport::may_fall_back(&error) => {
                    Some(self.note_failure(&error))
                }
                // A handshake is an HTTP request, so its error came from the server.
                Err(error) => return Err(Trouble::Said(error)),
            },
        };
        self.announce("sse", fallback_reason, None);
        self.letter = Some(Letter::Sse(self.http_body()));
        Ok(())
    }

    /// The whole body, as it is sent over HTTP.
    pub(super) fn http_body(&self) -> Vec<u8> {
        let policy = self.shared.credential.policy();
        Parts::write(&self.request, &self.reader(), policy, Form::Http).into_bytes()
    }

    /// The Session's idle socket with its continuation, or a new socket.
    async fn socket(&mut self) -> Result<Open, ProviderError> {
        let session = self.request.session.clone();
        if let Some(waiting) = self.shared.lines.of(&session, transport::Line::take) {
            match waiting.socket.take().await {
                Ok(socket) => {
                    let Waiting { authorization, continuation, .. } = waiting;
                    return Ok(Open { socket, authorization, continuation, is_reused: true });
                }
                Err(reason) => self.reset = Some(reason.to_owned()),
            }
        }
        let first = self.admission.take();
        let connected = self.shared.connect(&session, first, &mut self.recovery).await?;
        let (socket, authorization) = connected;
        self.heard(socket.limits());
        Ok(Open { socket, authorization, continuation: None, is_reused: false })
    }

    fn write_frame(&mut self, open: Open) {
        let Open { socket, authorization, continuation, is_reused } = open;
        let policy = self.shared.credential.policy();
        let parts = Parts::write(&self.request, &self.reader(), policy, Form::Frame);
        let continued = continuation.map(|known| known.frame(&parts, &self.request.model));
        let (frame, is_continued) = match continued {
            Some(Ok(frame)) => (frame, true),
            Some(Err(reason)) => {
                self.reset = Some(reason.to_owned());
                (parts.frame(None, b""), false)
            }
            None => (parts.frame(None, b""), false),
        };
        let reset_reason = self.reset.take();
        let facts = event::Continuation { used: is_continued, reset_reason };
        self.announce("websocket", None, Some(facts));
        let clock = Clock::start(self.shared.limits, self.shared.client.peer());
        let items = Vec::new();
        let talk = Talk { socket, authorization, clock, parts, items, is_reused, is_continued };
        self.letter = Some(Letter::Socket(Box::new(talk), frame));
    }

    /// Sends the announced request.
    async fn post(&mut self, letter: Letter) -> Result<(), Trouble> {
        match letter {
            Letter::Sse(body) => {
                let used = match self.admission.take() {
                    Some(another) => another,
                    None => self.shared.credential.authorize().await.map_err(denied)?,
                };
                match self.shared.post(&self.request.session, &used, body).await {
                    Ok(answer) => {
                        self.heard(answer.limits());
                        self.wire = Some(Wire::Sse(Box::new(answer)));
                        Ok(())
                    }
                    Err(error) if error.facts.status.is_none() => Err(Trouble::Wire(error)),
                    Err(error) => Err(self.refused(error, &used).await),
                }
            }
            Letter::Socket(mut talk, frame) => {
                let sent = talk.send(frame).await;
                // Kept even when sending failed, because `try_resend` decides what follows.
                self.wire = Some(Wire::Socket(talk));
                sent.map_err(Trouble::Wire)
            }
        }
    }

    /// The failure for a refused request; replaces the token where the request can be sent again.
    async fn refused(&mut self, error: ProviderError, used: &Authorization) -> Trouble {
        let may_resend = !self.has_output && self.request.resends > 0;
        // A WebSocket frame may have no status.
        let is_token = match error.facts.status {
            Some(status) => status == 401,
            None => error.kind == Kind::AuthRefused,
        };
        if !is_token || !may_resend {
            return Trouble::Said(error);
        }
        match self.shared.credential.recover(used, &mut self.recovery).await {
            Ok(None) => Trouble::Said(error),
            Ok(another) => {
                self.admission = another;
                Trouble::Refused(error)
            }
            Err(error) => denied(error),
        }
    }

    /// Emits the rate limits from the headers of an answer.
    fn heard(&mut self, limits: Option<RateLimits>) {
        self.ready.extend(limits.map(|limits| Ok(ModelEvent::Limits(Box::new(limits)))));
    }

    fn announce(
        &mut self,
        transport: &'static str,
        fallback_reason: Option<String>,
        continuation: Option<event::Continuation>,
    ) {
        let is_without_reasoning = self.reader().unreadable_to.is_some();
        let after = self.after.take();
        let sent = Sent { transport, fallback_reason, continuation, is_without_reasoning, after };
        self.ready.push_back(Ok(ModelEvent::Sent(sent)));
    }

    /// Prepares another attempt, or returns the error.
    fn rescue(&mut self, trouble: Trouble) -> Result<(), ProviderError> {
        let wire = self.wire.take();
        let talk = match &wire {
            Some(Wire::Socket(talk)) => Some(talk),
            Some(Wire::Sse(_)) | None => None,
        };
        let error = match &trouble {
            Trouble::Wire(error) | Trouble::Said(error) | Trouble::Refused(error) => error,
        };
        let may_resend = !self.has_output && self.request.resends > 0;
        let code = error.facts.code.as_ref();
        let can_help = match (&trouble, talk) {
            (Trouble::Refused(_), talk) => {
                self.reset = talk.map(|_| "token_refused".to_owned());
                may_resend
            }
            (Trouble::Said(_), _) if code == Some(&ServerErrorCode::InvalidEncryptedContent) => {
                may_resend && self.drop_reasoning()
            }
            (Trouble::Said(_), Some(talk)) => {
                let is_ours = match code {
                    Some(ServerErrorCode::PreviousResponseNotFound) => talk.is_continued,
                    Some(ServerErrorCode::WebSocketConnectionLimitReached) => talk.is_reused,
                    _ => false,
                };
                self.reset = code.filter(|_| is_ours).map(|code| code.as_str().to_owned());
                may_resend && is_ours
            }
            (Trouble::Wire(error), Some(talk)) => {
                let is_stale = talk.is_reused && !self.reducer.is_alive();
                self.lost_socket(&error.clone(), is_stale, may_resend)
            }
            (Trouble::Said(_) | Trouble::Wire(_), _) => false,
        };
        if !can_help {
            let (Trouble::Wire(error) | Trouble::Said(error) | Trouble::Refused(error)) = trouble;
            return Err(error);
        }
        self.after = Some(Box::new(error.clone()));
        self.request.resends -= 1;
        self.reducer = Reducer::default();
        Ok(())
    }

    /// Records the loss of a socket; true when the request may be sent again.
    fn lost_socket(&mut self, error: &ProviderError, is_stale: bool, may_resend: bool) -> bool {
        if matches!(error.kind, Kind::Timeout | Kind::Internal) {
            return false;
        }
        if self.has_output {
            let (pace, now) = (self.shared.pace, Instant::now());
            let session = &self.request.session;
            self.shared.lines.of(session, |line| line.broke(error, &pace, now));
            return false;
        }
        if is_stale && error.kind == Kind::Network && error.facts.close_code != Some(TOO_BIG) {
            // The idle socket had been closed; that says nothing against sockets.
            self.reset = Some("socket_closed".to_owned());
            return may_resend;
        }
        if self.shared.policy != Transport::Auto {
            return false;
        }
        self.kept_off = Some(self.note_failure(error));
        may_resend
    }

    fn note_failure(&self, error: &ProviderError) -> String {
        let (pace, now) = (self.shared.pace, Instant::now());
        self.shared.lines.of(&self.request.session, |line| line.failed(error, &pace, now))
    }

    /// Leaves out all reasoning so far; true when there was any to leave out.
    fn drop_reasoning(&mut self) -> bool {
        let before = self.reader().unreadable_to;
        let last = self.request.history.last_seq();
        self.shared.lines.of(&self.request.session, |line| line.cannot_read(last));
        self.reset = Some("reasoning_dropped".to_owned());
        before < last
    }

    fn reader(&self) -> Reader<'_> {
        let unreadable_to =
            self.shared.lines.of(&self.request.session, |line| line.unreadable_to());
        let (model, contents) = (&self.request.model, Some(&self.request.contents));
        Reader { model, account: Some(&self.shared.account), unreadable_to, contents }
    }
}

/// A missing credential: no other transport would help.
fn denied(error: CredentialError) -> Trouble {
    Trouble::Said(error.into())
}
