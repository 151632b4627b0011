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

use super::clock::CallClock;
use crate::base::error::Kind;
use crate::host::http::{EventLines, HttpClient, HttpResponse};
use crate::model::provider::classify;
use crate::model::provider::classify::{BODY_LIMIT, ErrorHints, UnexpectedResponse};
use crate::model::provider::{ProviderError, rate_limits};
use crate::record::event::RateLimits;
use crate::settings::config::StreamTimeouts;

/// The longest JSON answer, in bytes.
const MAX_JSON_BODY: usize = 4 * 1024 * 1024;

/// The longest event of a stream, in bytes.
const MAX_EVENT_BYTES: usize = 64 << 20;

/// How many bytes of arrived events are handled in one read; more would delay the display.
const MAX_BURST_BYTES: usize = 64 * 1024;

/// Gets a JSON document; `headers` are the credential's.
pub async fn get_json(
    client: &HttpClient,
    limits: StreamTimeouts,
    path: &str,
    mut headers: HeaderMap,
) -> Result<Vec<u8>, ProviderError> {
    headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
    headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    let mut clock = CallClock::start(limits, client.peer());
    let mut response = clock.watch(client.get(path, headers)).await??;
    if !response.status().is_success() {
        return Err(read_error_response(&mut response, &mut clock).await);
    }
    let mut body = Vec::new();
    while let Some(chunk) = clock.watch(response.chunk()).await?? {
        body.extend_from_slice(&chunk);
        if body.len() > MAX_JSON_BODY {
            let message = "the Provider's answer is longer than 4 MiB";
            return Err(ProviderError::terminal(Kind::InvalidResponse, message));
        }
    }
    let is_json = matches!(body.trim_ascii_start().first(), Some(b'{' | b'['));
    if is_json { Ok(body) } else { Err(unexpected_response(&response, "JSON", &body)) }
}

/// Sends a JSON body and waits for the head of the answer; `headers` are the credential's.
pub async fn post_for_events(
    client: &HttpClient,
    limits: StreamTimeouts,
    path: &str,
    mut headers: HeaderMap,
    body: Bytes,
) -> Result<ResponseStream, ProviderError> {
    headers.insert(ACCEPT, HeaderValue::from_static("text/event-stream"));
    headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let mut clock = CallClock::start(limits, client.peer());
    let mut response = clock.watch(client.post(path, headers, body)).await??;
    if !response.status().is_success() {
        return Err(read_error_response(&mut response, &mut clock).await);
    }
    if classify::compression(response.header("content-encoding")).is_some() {
        return Err(unexpected_response(&response, EXPECTED_EVENTS, b""));
    }
    Ok(ResponseStream::new(response, clock))
}

/// The content type of a stream of events.
const EVENT_STREAM: &[u8] = b"text/event-stream";

/// The expected format of an answer, for messages.
const EXPECTED_EVENTS: &str = "a stream of events";

/// The error for a 200 answer of an unexpected format.
fn unexpected_response(
    response: &HttpResponse,
    expected: &'static str,
    body: &[u8],
) -> ProviderError {
    let (content_type, encoding) =
        (response.header("content-type"), response.header("content-encoding"));
    UnexpectedResponse { peer: response.peer(), expected, content_type, encoding, body }.classify()
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
pub enum StreamRead {
    Events,
    End,
}

impl ResponseStream {
    fn new(response: HttpResponse, clock: CallClock) -> Self {
        let headers = response.headers().clone();
        let lines = EventLines::new(MAX_EVENT_BYTES);
        let reader = SseLineReader { response, clock, lines, start: Some(Vec::new()) };
        let lines = stream::try_unfold(reader, |mut reader| async move {
            Ok(reader.next_line().await?.map(|line| (line, reader)))
        });
        Self { headers, events: EventStream::new(lines.boxed()), failure: None }
    }

    /// Waits for an event and passes it to `each`, with the events that have arrived after it: a burst
    /// is one read and not one per event.
    pub async fn read(
        &mut self,
        mut each: impl FnMut(&Event),
    ) -> Result<StreamRead, ProviderError> {
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        let Some(event) = self.events.next().await else { return Ok(StreamRead::End) };
        let mut event = event.map_err(stream_error)?;
        let mut taken = 0;
        loop {
            each(&event);
            taken += event.data.len();
            if taken >= MAX_BURST_BYTES {
                return Ok(StreamRead::Events);
            }
            event = match self.events.next().now_or_never() {
                Some(Some(Ok(event))) => event,
                Some(Some(Err(error))) => {
                    self.failure = Some(stream_error(error));
                    return Ok(StreamRead::Events);
                }
                // No event yet, or the end, which the next read returns again.
                None | Some(None) => return Ok(StreamRead::Events),
            };
        }
    }

    /// Rate limits from the headers of the answer.
    pub fn limits(&self) -> Option<RateLimits> {
        rate_limits::from_headers(|name| self.header(name))
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

fn stream_error(error: EventStreamError<ProviderError>) -> ProviderError {
    match error {
        EventStreamError::Transport(error) => error,
        EventStreamError::Utf8(_) | EventStreamError::Parser(_) => ProviderError::transient(
            Kind::InvalidResponse,
            format!("the Provider's stream cannot be read: {error}"),
        ),
    }
}

/// Reads the body of an answer line by line.
struct SseLineReader {
    response: HttpResponse,
    clock: CallClock,
    lines: EventLines,
    /// The first bytes, until a line shows that the body is a stream of events; then `None`.
    start: Option<Vec<u8>>,
}

impl SseLineReader {
    async fn next_line(&mut self) -> Result<Option<Bytes>, ProviderError> {
        loop {
            if let Some(line) = self.lines.next_line()? {
                if is_field(&line) {
                    self.start = None;
                }
                return Ok(Some(line));
            }
            let chunk = self.clock.watch(self.response.chunk()).await??;
            let Some(chunk) = chunk else { return self.handle_end() };
            if let Some(start) = &mut self.start {
                let room = BODY_LIMIT.saturating_sub(start.len());
                start.extend_from_slice(chunk.get(..room).unwrap_or(&chunk));
                if self.is_not_sse() {
                    return Err(self.read_refusal().await);
                }
            }
            self.lines.push(chunk);
        }
    }

    /// Whether the first bytes show that the body is not a stream of events.
    fn is_not_sse(&self) -> bool {
        let start = self.start.as_deref().unwrap_or_default();
        match start.trim_ascii_start().first() {
            Some(b'<' | 0x1f) => true,
            Some(b'{' | b'[') => !self.has_sse_content_type(),
            _ => false,
        }
    }

    /// Whether the content type is that of a stream of events.
    fn has_sse_content_type(&self) -> bool {
        let label = self.response.header("content-type").unwrap_or_default().as_bytes();
        label.get(..EVENT_STREAM.len()).is_some_and(|own| own.eq_ignore_ascii_case(EVENT_STREAM))
    }

    /// Reads as much of the body as helps to describe it, and returns the error.
    async fn read_refusal(&mut self) -> ProviderError {
        let mut body = self.start.take().unwrap_or_default();
        read_error_body(&mut self.response, &mut self.clock, &mut body).await;
        unexpected_response(&self.response, EXPECTED_EVENTS, &body)
    }

    /// Handles the end of the body. A body without fields was not a stream of events. An empty one was
    /// cut, if its content type says that it is a stream.
    fn handle_end(&mut self) -> Result<Option<Bytes>, ProviderError> {
        let Some(start) = self.start.take() else { return Ok(None) };
        let is_cut = start.trim_ascii().is_empty() && self.has_sse_content_type();
        if is_cut || is_field(self.lines.unfinished()) {
            return Ok(None);
        }
        Err(unexpected_response(&self.response, EXPECTED_EVENTS, &start))
    }
}

/// Whether a line is a field of an event, or a comment.
fn is_field(line: &[u8]) -> bool {
    let name = line.split(|byte| matches!(byte, b':' | b'\n')).next().unwrap_or_default();
    matches!(name, b"data" | b"event" | b"id" | b"retry") || line.starts_with(b":")
}

/// Reads an error answer, with its body up to the limit, and classifies it.
pub async fn read_error_response(
    response: &mut HttpResponse,
    clock: &mut CallClock,
) -> ProviderError {
    let mut body = Vec::new();
    read_error_body(response, clock, &mut body).await;
    let hints = ErrorHints::from_headers(|name| response.header(name), SystemTime::now());
    classify::classify_http(response.status().as_u16(), hints, &body)
}

/// Reads a body up to the limit. A broken connection is ignored, because the status is known.
async fn read_error_body(response: &mut HttpResponse, clock: &mut CallClock, body: &mut Vec<u8>) {
    while body.len() < BODY_LIMIT {
        match clock.watch(response.chunk()).await {
            Ok(Ok(Some(chunk))) => body.extend_from_slice(&chunk),
            _ => break,
        }
    }
    body.truncate(BODY_LIMIT);
}
