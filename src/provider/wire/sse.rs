//! SSE: one POST, answered by a stream of frames, watched by two clocks.
//!
//! Any byte counts as life, comments included, because the idle clock watches the bytes and not
//! the frames. Nothing is retried here, and no redirect is followed: the credential goes to its
//! own endpoint or nowhere.

use std::time::SystemTime;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderValue};

use super::clock::Clock;
use super::frames::{Frame, Splitter};
use super::unreachable;
use crate::config::Stream;
use crate::error::Kind;
use crate::event::RateLimits;
use crate::network::{Client, NetworkError, Response};
use crate::provider::classify::{self, BODY_LIMIT, Hints};
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
    let mut clock = Clock::start(limits);
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
    Ok(body)
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
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let mut clock = Clock::start(limits);
    let mut response = clock.watch(client.post(path, headers, body)).await?.map_err(unreachable)?;
    if !response.status().is_success() {
        return Err(refusal(&mut response, &mut clock).await);
    }
    Ok(Answer { response, clock, splitter: Splitter::default(), end: None })
}

/// An answer under way; dropping it abandons the call.
#[derive(Debug)]
pub struct Answer {
    response: Response,
    clock: Clock,
    splitter: Splitter,
    /// How the stream ended, found while looking ahead.
    end: Option<NetworkError>,
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
        let Some(mut chunk) = first else { return Ok(Read::End) };
        let mut taken = 0;
        loop {
            self.splitter.feed(&chunk, &mut each)?;
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
    while body.len() < BODY_LIMIT {
        // A broken error body is still an error answer: the status is known.
        match clock.watch(response.chunk()).await {
            Ok(Ok(Some(chunk))) => body.extend_from_slice(&chunk),
            _ => break,
        }
    }
    body.truncate(BODY_LIMIT);
    let hints = Hints::read(|name| response.header(name), SystemTime::now());
    classify::http(response.status().as_u16(), hints, &body)
}
