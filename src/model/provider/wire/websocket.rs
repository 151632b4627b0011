//! WebSocket: one connection, one request in flight, kept alive between calls.
//!
//! The handshake is an HTTP request of the same client that SSE uses, so proxies and certificates
//! behave alike; then the frames are read from the upgraded connection. During a call, the call
//! reads the socket. Between calls a separate task reads it, because pings must be answered and a
//! close must be noticed; the task returns the socket to the next call.

use std::pin::Pin;
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use http::StatusCode;
use http::header::{CONNECTION, HeaderMap, HeaderName, HeaderValue, UPGRADE};
use reqwest::Upgraded;
use tokio::time::{Instant, Sleep};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::error::ProtocolError;
use tokio_tungstenite::tungstenite::handshake::client::generate_key;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::Role;
use tokio_tungstenite::tungstenite::{Bytes, Error, Message, Utf8Bytes};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::clock::CallClock;
use super::sse::read_error_response;
use crate::base::error::Kind;
use crate::host::http::HttpClient;
use crate::model::provider::{ProviderError, rate_limits};
use crate::record::event::RateLimits;
use crate::settings::config::StreamTimeouts;

/// The header that selects the version of the protocol.
const BETA_HEADER: (HeaderName, HeaderValue) = (
    HeaderName::from_static("openai-beta"),
    HeaderValue::from_static("responses_websockets=2026-02-06"),
);

/// Timeouts and intervals of a socket.
#[derive(Debug, Clone, Copy)]
pub struct SocketTimeouts {
    /// How long a handshake may take.
    pub connect: Duration,
    /// How often a ping is sent.
    pub ping: Duration,
    /// How long an unused socket is kept.
    pub idle: Duration,
    /// How old a socket may get; the server closes it after an hour.
    pub max_age: Duration,
    /// How long SSE is used after a first failure, doubling with each one that follows.
    pub fallback: Duration,
    /// The longest that SSE is used before the socket is tried again.
    pub fallback_cap: Duration,
}

impl Default for SocketTimeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(15),
            ping: Duration::from_secs(25),
            idle: Duration::from_mins(5),
            max_age: Duration::from_mins(55),
            fallback: Duration::from_secs(5),
            fallback_cap: Duration::from_mins(10),
        }
    }
}

/// An open WebSocket; dropping it closes the connection without a close frame.
#[derive(Debug)]
pub struct WebSocket {
    frames: Box<WebSocketStream<Upgraded>>,
    opened: Instant,
    timeouts: SocketTimeouts,
    next_ping: Pin<Box<Sleep>>,
    limits: Option<RateLimits>,
    /// Host and port of the server, for messages.
    peer: Box<str>,
}

/// A message of the server.
#[derive(Debug)]
pub enum SocketRead {
    Event(Utf8Bytes),
    /// A ping, which shows that the server is alive.
    KeepAlive,
}

impl WebSocket {
    /// Opens a connection; `headers` are the credential's. A refusal keeps its HTTP status.
    pub async fn open(
        client: &HttpClient,
        path: &str,
        mut headers: HeaderMap,
        timeouts: SocketTimeouts,
    ) -> Result<Self, ProviderError> {
        let key = generate_key();
        let odd = |_| {
            ProviderError::terminal(Kind::Internal, "the WebSocket key is not a valid header value")
        };
        headers.insert(BETA_HEADER.0, BETA_HEADER.1);
        headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
        headers.insert("sec-websocket-version", HeaderValue::from_static("13"));
        headers.insert("sec-websocket-key", HeaderValue::from_str(&key).map_err(odd)?);
        let limits = StreamTimeouts {
            idle: timeouts.connect,
            total: timeouts.connect,
            connect: timeouts.connect,
        };
        let mut clock = CallClock::start(limits, client.peer());
        let handshake = async {
            let mut response = client.get(path, headers).await?;
            if response.status() != StatusCode::SWITCHING_PROTOCOLS {
                return Err(read_error_response(&mut response, &mut clock).await);
            }
            let accepted = response.headers().get("sec-websocket-accept");
            if accepted.is_none_or(|value| {
                value.as_bytes() != derive_accept_key(key.as_bytes()).as_bytes()
            }) {
                return Err(protocol_error("the handshake was not answered as a WebSocket"));
            }
            let limits = rate_limits::from_headers(|name| response.header(name));
            Ok((response.upgrade().await?, limits))
        };
        let (connection, limits) =
            tokio::time::timeout(timeouts.connect, handshake).await.map_err(|_| {
                let (peer, seconds) = (client.peer(), timeouts.connect.as_secs_f64());
                let message = format!("no WebSocket to {peer} within {seconds} s");
                ProviderError::transient(Kind::Network, message)
            })??;
        let frames = WebSocketStream::from_raw_socket(connection, Role::Client, None).await;
        let next_ping = Box::pin(tokio::time::sleep(timeouts.ping));
        let frames = Box::new(frames);
        let peer = client.peer().into();
        Ok(Self { frames, opened: Instant::now(), timeouts, next_ping, limits, peer })
    }

    /// Rate limits from the answer to the handshake.
    pub fn limits(&self) -> Option<RateLimits> {
        self.limits.clone()
    }

    /// Sends one text frame.
    pub async fn send(&mut self, text: Utf8Bytes) -> Result<(), ProviderError> {
        let sent = self.frames.send(Message::Text(text)).await;
        sent.map_err(|error| self.with_peer(socket_error(error)))
    }

    /// Waits for an event or a ping of the server. The answer to our own ping does not count: it shows
    /// that the connection works, not that the model does.
    pub async fn read(&mut self) -> Result<SocketRead, ProviderError> {
        let read = self.next_frame().await;
        read.map_err(|error| self.with_peer(error))
    }

    /// Adds the server to the error of a broken connection.
    fn with_peer(&self, mut error: ProviderError) -> ProviderError {
        if error.kind == Kind::Network {
            error.message = format!("{} ({})", error.message, self.peer);
        }
        error
    }

    async fn next_frame(&mut self) -> Result<SocketRead, ProviderError> {
        loop {
            let frame = tokio::select! {
                biased;
                frame = self.frames.next() => frame,
                () = &mut self.next_ping => {
                    self.next_ping.as_mut().reset(Instant::now() + self.timeouts.ping);
                    self.frames.send(Message::Ping(Bytes::new())).await.map_err(socket_error)?;
                    continue;
                }
            };
            match frame {
                Some(Ok(Message::Text(text))) => return Ok(SocketRead::Event(text)),
                Some(Ok(Message::Ping(_))) => return Ok(SocketRead::KeepAlive),
                Some(Ok(Message::Pong(_) | Message::Frame(_))) => {}
                Some(Ok(Message::Binary(_))) => {
                    return Err(protocol_error("the Provider sent a binary frame"));
                }
                Some(Ok(Message::Close(frame))) => {
                    let Some(frame) = frame else { return Err(closed_error()) };
                    let code = u16::from(frame.code);
                    let mut error = closed_error();
                    error.facts.close_code = Some(code);
                    error.message = format!("{} (code {code})", error.message);
                    return Err(error);
                }
                Some(Err(error)) => return Err(socket_error(error)),
                None => return Err(closed_error()),
            }
        }
    }

    /// Gives the socket to a task that keeps it alive until the next call.
    pub fn park(self) -> ParkedSocket {
        let wanted = CancellationToken::new();
        let task = AbortOnDropHandle::new(tokio::spawn(keep_alive(self, wanted.clone())));
        ParkedSocket { task, wanted }
    }
}

/// An idle socket that a task owns; dropping it closes the socket.
#[derive(Debug)]
pub struct ParkedSocket {
    task: AbortOnDropHandle<Result<WebSocket, &'static str>>,
    wanted: CancellationToken,
}

impl ParkedSocket {
    /// Takes the socket back from its task, or returns why it was closed.
    pub async fn unpark(self) -> Result<WebSocket, &'static str> {
        self.wanted.cancel();
        self.task.await.unwrap_or(Err("socket_closed"))
    }

    /// Whether its task still runs.
    pub fn is_alive(&self) -> bool {
        !self.task.is_finished()
    }
}

async fn keep_alive(
    mut socket: WebSocket,
    wanted: CancellationToken,
) -> Result<WebSocket, &'static str> {
    let unused_until = Instant::now() + socket.timeouts.idle;
    let retired_at = socket.opened + socket.timeouts.max_age;
    loop {
        tokio::select! {
            biased;
            // Arrived frames are read first: one may be a close.
            message = socket.read() => if message.is_err() {
                return Err("socket_closed");
            },
            () = tokio::time::sleep_until(retired_at) => return Err("socket_retired"),
            () = wanted.cancelled() => {
                let is_old = Instant::now() >= retired_at;
                return if is_old { Err("socket_retired") } else { Ok(socket) };
            }
            () = tokio::time::sleep_until(unused_until) => return Err("socket_idle"),
        }
    }
}

fn closed_error() -> ProviderError {
    ProviderError::transient(
        Kind::Network,
        "the WebSocket was closed before the response was complete",
    )
}

fn protocol_error(message: &str) -> ProviderError {
    ProviderError::transient(Kind::InvalidResponse, message)
}

fn socket_error(error: Error) -> ProviderError {
    match error {
        Error::ConnectionClosed
        | Error::AlreadyClosed
        | Error::Protocol(ProtocolError::ResetWithoutClosingHandshake) => closed_error(),
        Error::Capacity(error) => ProviderError::terminal(
            Kind::InvalidResponse,
            format!("the Provider sent an event that is too large: {error}"),
        ),
        Error::Protocol(_) | Error::Utf8(_) => {
            protocol_error(&format!("the WebSocket broke: {error}"))
        }
        other => ProviderError::transient(Kind::Network, format!("the WebSocket broke: {other}")),
    }
}
