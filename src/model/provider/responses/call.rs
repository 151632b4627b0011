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
use super::body::{BodyForm, RequestBody};
use super::continuation::ResponseContinuation;
use super::exchange::SocketExchange;
use super::reduce::Reducer;
use super::transport::{self, CLOSE_TOO_BIG, IdleSocket, TransportChoice};
use crate::base::error::Kind;
use crate::model::credential::{AuthRecovery, Authorization, CredentialError};
use crate::model::provider::input::InputOptions;
use crate::model::provider::wire::clock::CallClock;
use crate::model::provider::wire::sse::{ResponseStream, StreamRead};
use crate::model::provider::wire::websocket::WebSocket;
use crate::model::provider::{
    ModelEvent, ModelRequest, ProviderError, SentRequest, ServerErrorCode,
};
use crate::record::event;
use crate::record::event::RateLimits;
use crate::settings::config::TransportSetting;

/// A running call; dropping it abandons the call and closes its socket.
pub struct ResponsesCall {
    shared: Arc<Shared>,
    request: ModelRequest,
    /// The request that was announced but not sent yet; the caller may still drop the call.
    announced: Option<AnnouncedRequest>,
    active: Option<ActiveResponse>,
    reducer: Reducer,
    ready: VecDeque<Result<ModelEvent, ProviderError>>,
    is_over: bool,
    /// Whether the model has produced output: then the request is not sent again.
    has_output: bool,
    /// Why this request must not use the socket.
    socket_skip_reason: Option<String>,
    /// Why the continuation that existed cannot be used.
    reset_reason: Option<String>,
    /// The error of the previous attempt.
    previous_error: Option<Box<ProviderError>>,
    /// Attempts so far to replace a refused token.
    recovery: AuthRecovery,
    /// The authorization that replaces a refused one.
    next_authorization: Option<Authorization>,
}

enum AnnouncedRequest {
    Sse(Vec<u8>),
    Socket(Box<SocketExchange>, Vec<u8>),
}

enum ActiveResponse {
    Sse(Box<ResponseStream>),
    Socket(Box<SocketExchange>),
}

/// An open socket, before the request is written.
struct OpenSocket {
    socket: WebSocket,
    authorization: Authorization,
    continuation: Option<ResponseContinuation>,
    /// Whether an earlier call used the socket, so that it may have been closed unnoticed.
    is_reused: bool,
}

/// Why a call failed, for the decision to send it again.
enum CallFailure {
    /// The connection failed.
    Transport(ProviderError),
    /// The server answered with an error.
    Server(ProviderError),
    /// The token was refused, and another one is available.
    TokenRefused(ProviderError),
}

impl ResponsesCall {
    pub fn new(shared: Arc<Shared>, request: ModelRequest) -> Self {
        Self {
            shared,
            request,
            announced: None,
            active: None,
            reducer: Reducer::default(),
            ready: VecDeque::new(),
            is_over: false,
            has_output: false,
            socket_skip_reason: None,
            reset_reason: None,
            previous_error: None,
            recovery: AuthRecovery::default(),
            next_authorization: None,
        }
    }

    pub async fn next(&mut self) -> Option<Result<ModelEvent, ProviderError>> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            if self.is_over {
                if let Some(ActiveResponse::Sse(mut answer)) = self.active.take() {
                    answer.finish();
                }
                return None;
            }
            let Err(failure) = self.advance().await else { continue };
            if let Err(error) = self.try_resend(failure) {
                self.ready.push_back(Err(error));
                self.is_over = true;
            }
        }
    }

    async fn advance(&mut self) -> Result<(), CallFailure> {
        if let Some(announced) = self.announced.take() {
            return self.send_request(announced).await;
        }
        let Some(wire) = &mut self.active else { return self.prepare().await };
        let Self { reducer, ready, .. } = self;
        let known = ready.len();
        let had_life = reducer.is_alive();
        match wire {
            ActiveResponse::Sse(answer) => {
                let read = answer
                    .read(|event| reducer.push_frame(&event.event, event.data.as_bytes(), ready))
                    .await;
                if read.map_err(CallFailure::Transport)? == StreamRead::End {
                    let peer = self.shared.client.peer();
                    let message =
                        format!("the stream from {peer} ended before the response was complete");
                    let error = ProviderError::transient(Kind::InvalidResponse, message);
                    return Err(CallFailure::Transport(
                        error.with_fact("content_type", answer.content_type()),
                    ));
                }
            }
            ActiveResponse::Socket(exchange) => {
                exchange.read(reducer, ready).await.map_err(CallFailure::Transport)?;
            }
        }
        if !had_life {
            reducer.mark_alive();
            ready.insert(known, Ok(ModelEvent::FirstByte));
        }
        self.record_output(known);
        if !self.reducer.is_over() {
            return Ok(());
        }
        if let Some(Err(_)) = self.ready.back()
            && let Some(Err(error)) = self.ready.pop_back()
        {
            let used = match &self.active {
                Some(ActiveResponse::Socket(exchange)) => Some(exchange.authorization.clone()),
                Some(ActiveResponse::Sse(_)) | None => None,
            };
            return Err(match used {
                Some(used) => self.recover_token(error, &used).await,
                None => CallFailure::Server(error),
            });
        }
        self.finish();
        Ok(())
    }

    /// Records the output in the events that just arrived, from index `known` on.
    fn record_output(&mut self, known: usize) {
        for event in self.ready.iter().skip(known).flatten() {
            let is_output = match event {
                ModelEvent::Item(item) => {
                    if let Some(ActiveResponse::Socket(exchange)) = &mut self.active {
                        exchange.items.push(item.clone());
                    }
                    true
                }
                ModelEvent::TextDelta(_) | ModelEvent::ReasoningDelta(_) => true,
                ModelEvent::Sent(_)
                | ModelEvent::FirstByte
                | ModelEvent::Limits(_)
                | ModelEvent::FailedUsage(_)
                | ModelEvent::Completed(_) => false,
            };
            self.has_output |= is_output;
        }
    }

    /// Ends a complete answer: the connection is kept for the next call.
    fn finish(&mut self) {
        self.is_over = true;
        match self.active.take() {
            Some(ActiveResponse::Sse(mut answer)) => {
                answer.finish();
                self.active = Some(ActiveResponse::Sse(answer));
            }
            Some(ActiveResponse::Socket(exchange)) => {
                let SocketExchange { socket, authorization, parts, items, .. } = *exchange;
                let Some(Ok(ModelEvent::Completed(end))) = self.ready.back() else { return };
                let continuation =
                    ResponseContinuation::from_response(parts, &self.input_options(), &items, end);
                let waiting = IdleSocket { socket: socket.park(), authorization, continuation };
                self.shared
                    .transports
                    .with_session(&self.request.session, |line| line.record_success(waiting));
            }
            None => {}
        }
    }

    /// Chooses the transport, builds the request, and announces it.
    async fn prepare(&mut self) -> Result<(), CallFailure> {
        let policy = self.shared.transport;
        let session = &self.request.session;
        let choice = || {
            self.shared.transports.with_session(session, |line| line.choose(policy, Instant::now()))
        };
        let skip_reason = self.socket_skip_reason.take();
        let choice = skip_reason
            .map_or_else(choice, |reason| TransportChoice::Sse { fallback_reason: Some(reason) });
        let fallback_reason = match choice {
            TransportChoice::Sse { fallback_reason } => fallback_reason,
            TransportChoice::Socket => match self.take_or_open_socket().await {
                Ok(open) => {
                    self.write_frame(open);
                    return Ok(());
                }
                Err(error)
                    if policy == TransportSetting::Auto && transport::may_fall_back(&error) =>
                {
                    Some(self.record_failure(&error))
                }
                // A handshake is an HTTP request, so its error came from the server.
                Err(error) => return Err(CallFailure::Server(error)),
            },
        };
        self.announce("sse", fallback_reason, None);
        self.announced = Some(AnnouncedRequest::Sse(self.http_body()));
        Ok(())
    }

    /// The whole body, as it is sent over HTTP.
    pub(super) fn http_body(&self) -> Vec<u8> {
        let policy = self.shared.credential.policy();
        RequestBody::build(&self.request, &self.input_options(), policy, BodyForm::Http)
            .into_bytes()
    }

    /// The Session's idle socket with its continuation, or a new socket.
    async fn take_or_open_socket(&mut self) -> Result<OpenSocket, ProviderError> {
        let session = self.request.session.clone();
        if let Some(waiting) =
            self.shared.transports.with_session(&session, transport::SessionTransport::take_socket)
        {
            match waiting.socket.unpark().await {
                Ok(socket) => {
                    let IdleSocket { authorization, continuation, .. } = waiting;
                    return Ok(OpenSocket { socket, authorization, continuation, is_reused: true });
                }
                Err(reason) => self.reset_reason = Some(reason.to_owned()),
            }
        }
        let first = self.next_authorization.take();
        let connected = self.shared.open_socket(&session, first, &mut self.recovery).await?;
        let (socket, authorization) = connected;
        self.push_limits(socket.limits());
        Ok(OpenSocket { socket, authorization, continuation: None, is_reused: false })
    }

    fn write_frame(&mut self, open: OpenSocket) {
        let OpenSocket { socket, authorization, continuation, is_reused } = open;
        let policy = self.shared.credential.policy();
        let parts =
            RequestBody::build(&self.request, &self.input_options(), policy, BodyForm::Frame);
        let continued = continuation.map(|known| known.continue_with(&parts, &self.request.model));
        let (frame, is_continued) = match continued {
            Some(Ok(frame)) => (frame, true),
            Some(Err(reason)) => {
                self.reset_reason = Some(reason.to_owned());
                (parts.to_frame(None, b""), false)
            }
            None => (parts.to_frame(None, b""), false),
        };
        let reset_reason = self.reset_reason.take();
        let facts = event::ContinuationUse { used: is_continued, reset_reason };
        self.announce("websocket", None, Some(facts));
        let clock = CallClock::start(self.shared.limits, self.shared.client.peer());
        let items = Vec::new();
        let exchange =
            SocketExchange { socket, authorization, clock, parts, items, is_reused, is_continued };
        self.announced = Some(AnnouncedRequest::Socket(Box::new(exchange), frame));
    }

    /// Sends the announced request.
    async fn send_request(&mut self, announced: AnnouncedRequest) -> Result<(), CallFailure> {
        match announced {
            AnnouncedRequest::Sse(body) => {
                let used = match self.next_authorization.take() {
                    Some(another) => another,
                    None => self.shared.credential.authorize().await.map_err(credential_failure)?,
                };
                match self.shared.post(&self.request.session, &used, body).await {
                    Ok(answer) => {
                        self.push_limits(answer.limits());
                        self.active = Some(ActiveResponse::Sse(Box::new(answer)));
                        Ok(())
                    }
                    Err(error) if error.facts.status.is_none() => {
                        Err(CallFailure::Transport(error))
                    }
                    Err(error) => Err(self.recover_token(error, &used).await),
                }
            }
            AnnouncedRequest::Socket(mut exchange, frame) => {
                let sent = exchange.send(frame).await;
                // Kept even when sending failed, because `try_resend` decides what follows.
                self.active = Some(ActiveResponse::Socket(exchange));
                sent.map_err(CallFailure::Transport)
            }
        }
    }

    /// The failure for a refused request; replaces the token where the request can be sent again.
    async fn recover_token(&mut self, error: ProviderError, used: &Authorization) -> CallFailure {
        let may_resend = !self.has_output && self.request.resends > 0;
        // A WebSocket frame may have no status.
        let is_token = match error.facts.status {
            Some(status) => status == 401,
            None => error.kind == Kind::AuthRefused,
        };
        if !is_token || !may_resend {
            return CallFailure::Server(error);
        }
        match self.shared.credential.recover(used, &mut self.recovery).await {
            Ok(None) => CallFailure::Server(error),
            Ok(another) => {
                self.next_authorization = another;
                CallFailure::TokenRefused(error)
            }
            Err(error) => credential_failure(error),
        }
    }

    /// Emits the rate limits from the headers of an answer.
    fn push_limits(&mut self, limits: Option<RateLimits>) {
        self.ready.extend(limits.map(|limits| Ok(ModelEvent::Limits(Box::new(limits)))));
    }

    fn announce(
        &mut self,
        transport: &'static str,
        fallback_reason: Option<String>,
        continuation: Option<event::ContinuationUse>,
    ) {
        let is_without_reasoning = self.input_options().unreadable_to.is_some();
        let after = self.previous_error.take();
        let sent = SentRequest {
            transport,
            fallback_reason,
            continuation,
            is_without_reasoning,
            previous_error: after,
        };
        self.ready.push_back(Ok(ModelEvent::Sent(sent)));
    }

    /// Prepares another attempt, or returns the error.
    fn try_resend(&mut self, failure: CallFailure) -> Result<(), ProviderError> {
        let wire = self.active.take();
        let exchange = match &wire {
            Some(ActiveResponse::Socket(exchange)) => Some(exchange),
            Some(ActiveResponse::Sse(_)) | None => None,
        };
        let error = match &failure {
            CallFailure::Transport(error)
            | CallFailure::Server(error)
            | CallFailure::TokenRefused(error) => error,
        };
        let may_resend = !self.has_output && self.request.resends > 0;
        let code = error.facts.code.as_ref();
        let can_help = match (&failure, exchange) {
            (CallFailure::TokenRefused(_), exchange) => {
                self.reset_reason = exchange.map(|_| "token_refused".to_owned());
                may_resend
            }
            (CallFailure::Server(_), _)
                if code == Some(&ServerErrorCode::InvalidEncryptedContent) =>
            {
                may_resend && self.drop_reasoning()
            }
            (CallFailure::Server(_), Some(exchange)) => {
                let is_ours = match code {
                    Some(ServerErrorCode::PreviousResponseNotFound) => exchange.is_continued,
                    Some(ServerErrorCode::WebSocketConnectionLimitReached) => exchange.is_reused,
                    _ => false,
                };
                self.reset_reason = code.filter(|_| is_ours).map(|code| code.as_str().to_owned());
                may_resend && is_ours
            }
            (CallFailure::Transport(error), Some(exchange)) => {
                let is_stale = exchange.is_reused && !self.reducer.is_alive();
                self.handle_lost_socket(&error.clone(), is_stale, may_resend)
            }
            (CallFailure::Server(_) | CallFailure::Transport(_), _) => false,
        };
        if !can_help {
            let (CallFailure::Transport(error)
            | CallFailure::Server(error)
            | CallFailure::TokenRefused(error)) = failure;
            return Err(error);
        }
        self.previous_error = Some(Box::new(error.clone()));
        self.request.resends -= 1;
        self.reducer = Reducer::default();
        Ok(())
    }

    /// Records the loss of a socket; true when the request may be sent again.
    fn handle_lost_socket(
        &mut self,
        error: &ProviderError,
        is_stale: bool,
        may_resend: bool,
    ) -> bool {
        if matches!(error.kind, Kind::Timeout | Kind::Internal) {
            return false;
        }
        if self.has_output {
            let (pace, now) = (self.shared.socket_timeouts, Instant::now());
            let session = &self.request.session;
            self.shared
                .transports
                .with_session(session, |line| line.record_break(error, &pace, now));
            return false;
        }
        if is_stale && error.kind == Kind::Network && error.facts.close_code != Some(CLOSE_TOO_BIG)
        {
            // The idle socket had been closed, which is no reason to avoid sockets.
            self.reset_reason = Some("socket_closed".to_owned());
            return may_resend;
        }
        if self.shared.transport != TransportSetting::Auto {
            return false;
        }
        self.socket_skip_reason = Some(self.record_failure(error));
        may_resend
    }

    fn record_failure(&self, error: &ProviderError) -> String {
        let (pace, now) = (self.shared.socket_timeouts, Instant::now());
        self.shared
            .transports
            .with_session(&self.request.session, |line| line.record_failure(error, &pace, now))
    }

    /// Leaves out all reasoning so far; true when there was any to leave out.
    fn drop_reasoning(&mut self) -> bool {
        let before = self.input_options().unreadable_to;
        let last = self.request.history.last_seq();
        self.shared
            .transports
            .with_session(&self.request.session, |line| line.mark_unreadable(last));
        self.reset_reason = Some("reasoning_dropped".to_owned());
        before < last
    }

    fn input_options(&self) -> InputOptions<'_> {
        let unreadable_to =
            self.shared.transports.with_session(&self.request.session, |line| line.unreadable_to());
        let (model, contents) = (&self.request.model, Some(&self.request.contents));
        InputOptions { model, account: Some(&self.shared.account), unreadable_to, contents }
    }
}

/// A missing credential: no other transport would help.
fn credential_failure(error: CredentialError) -> CallFailure {
    CallFailure::Server(error.into())
}
