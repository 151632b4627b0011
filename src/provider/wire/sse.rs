//! SSE: one POST, answered by a stream of frames, watched by two clocks.
//!
//! Any byte counts as life, comments included, because the idle clock watches the bytes and not
//! the frames. Nothing is retried here, and no redirect is followed: the credential goes to its
//! own endpoint or nowhere.

use std::time::SystemTime;

use bytes::Bytes;
use http::header::{ACCEPT, ACCEPT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderValue};

use super::clock::Clock;
use super::frames::{Frame, Splitter};
use super::unreachable;
use crate::config::Stream;
use crate::error::Kind;
use crate::event::RateLimits;
use crate::network::{Client, NetworkError, Response};
use crate::provider::classify::{self, BODY_LIMIT, Hints, Unexpected};
use crate::provider::{ProviderError, limits};

/// The longest answer that is read as a whole.
const SMALL: usize = 4 * 1024 * 1024;

/// How much of a burst is taken in one step; more would keep the screen waiting.
const BURST: usize = 64 * 1024;

/// Reads something small; `headers` are the credential's.
pub async fn get(
    client: &Client,
    limits: Stream,
    path: &str,
    mut headers: HeaderMap,
) -> Result<Vec<u8>, ProviderError> {
    headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
    headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    let mut clock = Clock::start(limits, client.peer());
    let mut response = clock.watch(client.get(path, headers)).await?.map_err(unreachable)?;
    if !response.status().is_success() {
        return Err(refusal(&mut response, &mut clock).await);
    }
    let mut body = Vec::new();
    while let Some(chunk) = clock.watch(response.chunk()).await?.map_err(unreachable)? {
        body.extend_from_slice(&chunk);
        if body.len() > SMALL {
            let message = "the Provider's answer is far longer than it should be";
            return Err(ProviderError::terminal(Kind::InvalidResponse, message));
        }
    }
    let is_json = matches!(body.trim_ascii_start().first(), Some(b'{' | b'['));
    if is_json { Ok(body) } else { Err(unexpected(&response, "JSON", &body)) }
}

/// Sends a JSON body and waits for the head of the answer; `headers` are the credential's.
pub async fn post(
    client: &Client,
    limits: Stream,
    path: &str,
    mut headers: HeaderMap,
    body: Bytes,
) -> Result<Answer, ProviderError> {
    headers.insert(ACCEPT, HeaderValue::from_static("text/event-stream"));
    headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let mut clock = Clock::start(limits, client.peer());
    let mut response = clock.watch(client.post(path, headers, body)).await?.map_err(unreachable)?;
    if !response.status().is_success() {
        return Err(refusal(&mut response, &mut clock).await);
    }
    if classify::compression(response.header("content-encoding")).is_some() {
        return Err(unexpected(&response, EVENTS, b""));
    }
    let start = Some(Vec::new());
    Ok(Answer { response, clock, splitter: Splitter::default(), end: None, start })
}

/// The content type of a stream of events.
const EVENT_STREAM: &[u8] = b"text/event-stream";

/// What a call expects of an answer.
const EVENTS: &str = "a stream of events";

/// What a 200 answer means that is not what was asked for.
fn unexpected(response: &Response, expected: &'static str, body: &[u8]) -> ProviderError {
    let (content_type, encoding) =
        (response.header("content-type"), response.header("content-encoding"));
    Unexpected { peer: response.peer(), expected, content_type, encoding, body }.classify()
}

/// An answer under way; dropping it abandons the call.
#[derive(Debug)]
pub struct Answer {
    response: Response,
    clock: Clock,
    splitter: Splitter,
    /// How the stream ended, found while looking ahead.
    end: Option<NetworkError>,
    /// The first bytes, as long as no frame has come; `None` once one has.
    start: Option<Vec<u8>>,
}

/// What one read brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Read {
    Bytes,
    End,
}

impl Answer {
    /// Waits for bytes and hands out the frames they complete. What has come with them is taken
    /// along: a burst costs its reader one step, not one for every piece.
    pub async fn read(&mut self, mut each: impl FnMut(Frame<'_>)) -> Result<Read, ProviderError> {
        if let Some(error) = self.end.take() {
            return Err(unreachable(error));
        }
        let first = self.clock.watch(self.response.chunk()).await?.map_err(unreachable)?;
        let Some(mut chunk) = first else { return self.ended() };
        let mut taken = 0;
        loop {
            self.feed(&chunk, &mut each)?;
            if self.is_something_else() {
                return Err(self.refused().await);
            }
            taken += chunk.len();
            if taken >= BURST {
                return Ok(Read::Bytes);
            }
            chunk = match self.response.chunk_now() {
                Some(Ok(Some(chunk))) => chunk,
                Some(Err(error)) => {
                    self.end = Some(error);
                    return Ok(Read::Bytes);
                }
                // Nothing yet, or an end that will be met again.
                None | Some(Ok(None)) => return Ok(Read::Bytes),
            };
        }
    }

    fn feed(&mut self, chunk: &[u8], mut each: impl FnMut(Frame<'_>)) -> Result<(), ProviderError> {
        let mut has_frames = false;
        self.splitter.feed(chunk, |frame| {
            has_frames = true;
            each(frame);
        })?;
        if has_frames {
            self.start = None;
        } else if let Some(start) = &mut self.start {
            let room = BODY_LIMIT.saturating_sub(start.len());
            start.extend_from_slice(&chunk[..chunk.len().min(room)]);
        }
        Ok(())
    }

    /// Whether the first bytes show that no frame will come.
    fn is_something_else(&self) -> bool {
        let Some(start) = &self.start else { return false };
        match start.trim_ascii_start().first() {
            Some(b'<' | 0x1f) => true,
            Some(b'{' | b'[') => !self.is_labelled(),
            _ => false,
        }
    }

    /// Whether its head says that it is a stream of events.
    fn is_labelled(&self) -> bool {
        let label = self.content_type().as_bytes();
        label.get(..EVENT_STREAM.len()).is_some_and(|own| own.eq_ignore_ascii_case(EVENT_STREAM))
    }

    /// Reads on, as far as it helps to say what this is.
    async fn refused(&mut self) -> ProviderError {
        let mut body = self.start.take().unwrap_or_default();
        read_on(&mut self.response, &mut self.clock, &mut body).await;
        unexpected(&self.response, EVENTS, &body)
    }

    /// The end of a body. One with words and no frames was never a stream, nor was an empty one, unless its
    /// head says that it is: such a stream was cut.
    fn ended(&mut self) -> Result<Read, ProviderError> {
        let Some(start) = self.start.take() else { return Ok(Read::End) };
        let is_field = |line: &[u8]| {
            // A line that begins with the colon is a comment.
            let name = line.split(|byte| *byte == b':').next().unwrap_or_default();
            matches!(name, b"data" | b"event" | b"id" | b"retry") || line.starts_with(b":")
        };
        let has_fields = start.split(|byte| matches!(byte, b'\n' | b'\r')).any(is_field);
        let is_cut = start.trim_ascii().is_empty() && self.is_labelled();
        if has_fields || is_cut {
            return Ok(Read::End);
        }
        Err(unexpected(&self.response, EVENTS, &start))
    }

    /// What its head says about limits.
    pub fn limits(&self) -> Option<RateLimits> {
        limits::from_headers(|name| self.response.header(name))
    }

    /// What the stream is, for an error that wonders why there were no frames.
    pub fn content_type(&self) -> &str {
        self.response.header("content-type").unwrap_or("unknown")
    }

    /// Takes the end of the body if it is already here, so that the connection can be used again;
    /// never waits for it.
    pub fn finish(&mut self) {
        while let Some(Ok(Some(_))) = self.response.chunk_now() {}
    }
}

/// Reads an error body, as much of it as is worth reading.
pub async fn refusal(response: &mut Response, clock: &mut Clock) -> ProviderError {
    let mut body = Vec::new();
    read_on(response, clock, &mut body).await;
    let hints = Hints::read(|name| response.header(name), SystemTime::now());
    classify::http(response.status().as_u16(), hints, &body)
}

/// Reads a body up to the limit. A broken one is still an error answer: the status is known.
async fn read_on(response: &mut Response, clock: &mut Clock, body: &mut Vec<u8>) {
    while body.len() < BODY_LIMIT {
        match clock.watch(response.chunk()).await {
            Ok(Ok(Some(chunk))) => body.extend_from_slice(&chunk),
            _ => break,
        }
    }
    body.truncate(BODY_LIMIT);
}
