//! Server-sent events: one POST, answered by a stream of events, within an idle and a total timeout.
//!
//! The idle timeout watches bytes and not events, so that a comment keeps a call alive. Nothing is
//! retried here.

use std::time::SystemTime;

use bytes::Bytes;
use eventsource_stream::{Event, EventStream, EventStreamError};
use futures_util::stream::{self, BoxStream};
use futures_util::{FutureExt, StreamExt};
use http::header::{ACCEPT, ACCEPT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderValue};

use super::clock::Clock;
use crate::base::error::Kind;
use crate::host::http::{EventLines, HttpClient, HttpResponse};
use crate::model::provider::classify;
use crate::model::provider::classify::{BODY_LIMIT, Hints, Unexpected};
use crate::model::provider::{ProviderError, limits};
use crate::record::event::RateLimits;
use crate::settings::config::Stream;

/// The longest JSON answer, in bytes.
const SMALL: usize = 4 * 1024 * 1024;

/// The longest event of a stream, in bytes.
const LONGEST_EVENT: usize = 64 << 20;

/// How many bytes of arrived events are handled in one read; more would delay the display.
const BURST: usize = 64 * 1024;

/// Gets a JSON document; `headers` are the credential's.
pub async fn get(
    client: &HttpClient,
    limits: Stream,
    path: &str,
    mut headers: HeaderMap,
) -> Result<Vec<u8>, ProviderError> {
    headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
    headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    let mut clock = Clock::start(limits, client.peer());
    let mut response = clock.watch(client.get(path, headers)).await??;
    if !response.status().is_success() {
        return Err(refusal(&mut response, &mut clock).await);
    }
    let mut body = Vec::new();
    while let Some(chunk) = clock.watch(response.chunk()).await?? {
        body.extend_from_slice(&chunk);
        if body.len() > SMALL {
            let message = "the Provider's answer is longer than 4 MiB";
            return Err(ProviderError::terminal(Kind::InvalidResponse, message));
        }
    }
    let is_json = matches!(body.trim_ascii_start().first(), Some(b'{' | b'['));
    if is_json { Ok(body) } else { Err(unexpected(&response, "JSON", &body)) }
}

/// Sends a JSON body and waits for the head of the answer; `headers` are the credential's.
pub async fn post(
    client: &HttpClient,
    limits: Stream,
    path: &str,
    mut headers: HeaderMap,
    body: Bytes,
) -> Result<ResponseStream, ProviderError> {
    headers.insert(ACCEPT, HeaderValue::from_static("text/event-stream"));
    headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let mut clock = Clock::start(limits, client.peer());
    let mut response = clock.watch(client.post(path, headers, body)).await??;
    if !response.status().is_success() {
        return Err(refusal(&mut response, &mut clock).await);
    }
    if classify::compression(response.header("content-encoding")).is_some() {
        return Err(unexpected(&response, EVENTS, b""));
    }
    Ok(ResponseStream::new(response, clock))
}

/// The content type of a stream of events.
const EVENT_STREAM: &[u8] = b"text/event-stream";

/// The expected format of an answer, for messages.
const EVENTS: &str = "a stream of events";

/// The error for a 200 answer of an unexpected format.
fn unexpected(response: &HttpResponse, expected: &'static str, body: &[u8]) -> ProviderError {
    let (content_type, encoding) =
        (response.header("content-type"), response.header("content-encoding"));
    Unexpected { peer: response.peer(), expected, content_type, encoding, body }.classify()
}

/// The events of one answer. Dropping it abandons the call.
pub struct ResponseStream {
    headers: HeaderMap,
    events: EventStream<BoxStream<'static, Result<Bytes, ProviderError>>>,
    /// An error that the next read returns, because events came before it.
    failure: Option<ProviderError>,
}

/// The outcome of one read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Read {
    Events,
    End,
}

impl ResponseStream {
    fn new(response: HttpResponse, clock: Clock) -> Self {
        let headers = response.headers().clone();
        let lines = EventLines::new(LONGEST_EVENT);
        let reader = LineReader { response, clock, lines, start: Some(Vec::new()) };
        let lines = stream::try_unfold(reader, |mut reader| async move {
            Ok(reader.next_line().await?.map(|line| (line, reader)))
        });
        Self { headers, events: EventStream::new(lines.boxed()), failure: None }
    }

    /// Waits for an event and passes it to `each`, with the events that have arrived after it: a burst
    /// is one read and not one per event.
    pub async fn read(&mut self, mut each: impl FnMut(&Event)) -> Result<Read, ProviderError> {
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        let Some(event) = self.events.next().await else { return Ok(Read::End) };
        let mut event = event.map_err(failed)?;
        let mut taken = 0;
        loop {
            each(&event);
            taken += event.data.len();
            if taken >= BURST {
                return Ok(Read::Events);
            }
            event = match self.events.next().now_or_never() {
                Some(Some(Ok(event))) => event,
                Some(Some(Err(error))) => {
                    self.failure = Some(failed(error));
                    return Ok(Read::Events);
                }
                // No event yet, or the end, which the next read returns again.
                None | Some(None) => return Ok(Read::Events),
            };
        }
    }

    /// Rate limits from the headers of the answer.
    pub fn limits(&self) -> Option<RateLimits> {
        limits::from_headers(|name| self.header(name))
    }

    /// The content type, for an error about missing events.
    pub fn content_type(&self) -> &str {
        self.header("content-type").unwrap_or("unknown")
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// Reads the end of the body if it has arrived, so that the connection can be reused; never waits.
    pub fn finish(&mut self) {
        while let Some(Some(Ok(_))) = self.events.next().now_or_never() {}
    }
}

fn failed(error: EventStreamError<ProviderError>) -> ProviderError {
    match error {
        EventStreamError::Transport(error) => error,
        EventStreamError::Utf8(_) | EventStreamError::Parser(_) => ProviderError::passing(
            Kind::InvalidResponse,
            format!("the Provider's stream cannot be read: {error}"),
        ),
    }
}

/// Reads the body of an answer line by line.
struct LineReader {
    response: HttpResponse,
    clock: Clock,
    lines: EventLines,
    /// The first bytes, until a line shows that the body is a stream of events; then `None`.
    start: Option<Vec<u8>>,
}

impl LineReader {
    async fn next_line(&mut self) -> Result<Option<Bytes>, ProviderError> {
        loop {
            if let Some(line) = self.lines.take()? {
                if is_field(&line) {
                    self.start = None;
                }
                return Ok(Some(line));
            }
            let chunk = self.clock.watch(self.response.chunk()).await??;
            let Some(chunk) = chunk else { return self.ended() };
            if let Some(start) = &mut self.start {
                let room = BODY_LIMIT.saturating_sub(start.len());
                start.extend_from_slice(chunk.get(..room).unwrap_or(&chunk));
                if self.is_something_else() {
                    return Err(self.refused().await);
                }
            }
            self.lines.push(chunk);
        }
    }

    /// Whether the first bytes show that the body is not a stream of events.
    fn is_something_else(&self) -> bool {
        let start = self.start.as_deref().unwrap_or_default();
        match start.trim_ascii_start().first() {
            Some(b'<' | 0x1f) => true,
            Some(b'{' | b'[') => !self.is_labelled(),
            _ => false,
        }
    }

    /// Whether the content type is that of a stream of events.
    fn is_labelled(&self) -> bool {
        let label = self.response.header("content-type").unwrap_or_default().as_bytes();
        label.get(..EVENT_STREAM.len()).is_some_and(|own| own.eq_ignore_ascii_case(EVENT_STREAM))
    }

    /// Reads as much of the body as helps to describe it, and returns the error.
    async fn refused(&mut self) -> ProviderError {
        let mut body = self.start.take().unwrap_or_default();
        read_on(&mut self.response, &mut self.clock, &mut body).await;
        unexpected(&self.response, EVENTS, &body)
    }

    /// Handles the end of the body. A body without fields was not a stream of events. An empty one was
    /// cut, if its content type says that it is a stream.
    fn ended(&mut self) -> Result<Option<Bytes>, ProviderError> {
        let Some(start) = self.start.take() else { return Ok(None) };
        let is_cut = start.trim_ascii().is_empty() && self.is_labelled();
        if is_cut || is_field(self.lines.unfinished()) {
            return Ok(None);
        }
        Err(unexpected(&self.response, EVENTS, &start))
    }
}

/// Whether a line is a field of an event, or a comment.
fn is_field(line: &[u8]) -> bool {
    let name = line.split(|byte| matches!(byte, b':' | b'\n')).next().unwrap_or_default();
    matches!(name, b"data" | b"event" | b"id" | b"retry") || line.starts_with(b":")
}

/// Reads an error answer, with its body up to the limit, and classifies it.
pub async fn refusal(response: &mut HttpResponse, clock: &mut Clock) -> ProviderError {
    let mut body = Vec::new();
    read_on(response, clock, &mut body).await;
    let hints = Hints::read(|name| response.header(name), SystemTime::now());
    classify::http(response.status().as_u16(), hints, &body)
}

/// Reads a body up to the limit. A broken connection is ignored, because the status is known.
async fn read_on(response: &mut HttpResponse, clock: &mut Clock, body: &mut Vec<u8>) {
    while body.len() < BODY_LIMIT {
        match clock.watch(response.chunk()).await {
            Ok(Ok(Some(chunk))) => body.extend_from_slice(&chunk),
            _ => break,
        }
    }
    body.truncate(BODY_LIMIT);
}
