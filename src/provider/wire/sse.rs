//! SSE: one POST, answered by a stream of frames, watched by two clocks.
//!
//! Any byte counts as life, comments included, because the idle clock watches the bytes and not
//! the frames. Nothing is retried here, and no redirect is followed: the credential goes to its
//! own endpoint or nowhere.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::OnceLock;
use std::task::Poll;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures_util::FutureExt;
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderValue};
use reqwest::{Client, Response};
use tokio::time::{Instant, Sleep};

use super::frames::{Frame, Splitter};
use crate::config::Stream;
use crate::credential::Credential;
use crate::error::Kind;
use crate::provider::ProviderError;
use crate::provider::classify::{self, BODY_LIMIT, Hints};

/// The longest wait that the clock can add to any moment without overflow.
const A_YEAR: Duration = Duration::from_hours(365 * 24);

/// The longest answer that is read as a whole.
const SMALL: usize = 4 * 1024 * 1024;

/// How much of a burst is taken in one step; more would keep the screen waiting.
const BURST: usize = 64 * 1024;

/// The client of one endpoint; its connections are kept and used again.
#[derive(Debug)]
pub struct Sse {
    credential: Credential,
    limits: Stream,
    client: OnceLock<Result<Client, ProviderError>>,
}

impl Sse {
    /// Nothing is loaded or connected before the first call.
    pub fn new(credential: Credential, limits: Stream) -> Self {
        Self { credential, limits, client: OnceLock::new() }
    }

    /// Who pays, and where.
    pub fn credential(&self) -> &Credential {
        &self.credential
    }

    /// Reads something small; `headers` are the credential's.
    pub async fn get(&self, path: &str, mut headers: HeaderMap) -> Result<Vec<u8>, ProviderError> {
        let client = self.client.get_or_init(|| build(&self.credential, self.limits)).as_ref();
        headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        let url = format!("{}{path}", self.credential.base_url());
        let request = client.map_err(Clone::clone)?.get(url).headers(headers);
        let mut clock = Clock::start(self.limits);
        let response = clock.watch(request.send()).await?.map_err(unreachable)?;
        let mut answer = Answer { response, clock, splitter: Splitter::default(), end: None };
        if !answer.response.status().is_success() {
            return Err(answer.refusal().await);
        }
        let mut body = Vec::new();
        while let Some(chunk) =
            answer.clock.watch(answer.response.chunk()).await?.map_err(unreachable)?
        {
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
        &self,
        path: &str,
        mut headers: HeaderMap,
        body: Bytes,
    ) -> Result<Answer, ProviderError> {
        headers.insert(ACCEPT, HeaderValue::from_static("text/event-stream"));
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let client = self.client.get_or_init(|| build(&self.credential, self.limits)).as_ref();
        let request = client
            .map_err(Clone::clone)?
            .post(format!("{}{path}", self.credential.base_url()))
            .headers(headers)
            .body(body);
        let mut clock = Clock::start(self.limits);
        let response = clock.watch(request.send()).await?.map_err(unreachable)?;
        let mut answer = Answer { response, clock, splitter: Splitter::default(), end: None };
        if answer.response.status().is_success() { Ok(answer) } else { Err(answer.refusal().await) }
    }
}

fn build(credential: &Credential, limits: Stream) -> Result<Client, ProviderError> {
    let mut builder = Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(limits.connect);
    if credential.is_loopback() {
        builder = builder.no_proxy();
    }
    if credential.base_url().starts_with("http:") {
        // Root certificates take milliseconds to load and are no use without TLS.
        builder = builder.tls_certs_only([]);
    }
    builder.build().map_err(|error| {
        ProviderError::terminal(Kind::Network, format!("no HTTP client: {}", told(error)))
    })
}

/// An answer under way; dropping it abandons the call.
#[derive(Debug)]
pub struct Answer {
    response: Response,
    clock: Clock,
    splitter: Splitter,
    /// How the stream ended, found while looking ahead.
    end: Option<reqwest::Error>,
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
            // The connection is a task of its own and holds one piece at a time.
            let_others_run().await;
            chunk = match self.response.chunk().now_or_never() {
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

    /// What the stream is, for an error that wonders why there were no frames.
    pub fn content_type(&self) -> &str {
        header(self.response.headers(), "content-type").unwrap_or("unknown")
    }

    /// Takes the end of the body if it is already here, so that the connection can be used again;
    /// never waits for it.
    pub fn finish(&mut self) {
        while let Some(Ok(Some(_))) = self.response.chunk().now_or_never() {}
    }

    /// Reads an error body, as much of it as is worth reading.
    async fn refusal(&mut self) -> ProviderError {
        let mut body = Vec::new();
        while body.len() < BODY_LIMIT {
            // A broken error body is still an error answer: the status is known.
            match self.clock.watch(self.response.chunk()).await {
                Ok(Ok(Some(chunk))) => body.extend_from_slice(&chunk),
                _ => break,
            }
        }
        body.truncate(BODY_LIMIT);
        let headers = self.response.headers();
        let hints = Hints::read(|name| header(headers, name), SystemTime::now());
        classify::http(self.response.status().as_u16(), hints, &body)
    }
}

/// Steps back once, so that tasks that are ready run first. Unlike tokio's own way this does not
/// ask the kernel for news each time.
async fn let_others_run() {
    let mut has_yielded = false;
    poll_fn(|context| {
        if std::mem::replace(&mut has_yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// Two deadlines on one timer. The timer is not touched per chunk; when it rings, it looks at how
/// long we have been listening in vain and may go back to sleep. Time in which nobody listened is
/// the reader's, not the server's.
#[derive(Debug)]
struct Clock {
    idle: Duration,
    total: Duration,
    deadline: Instant,
    alarm: Pin<Box<Sleep>>,
}

impl Clock {
    fn start(limits: Stream) -> Self {
        let (idle, total) = (limits.idle.min(A_YEAR), limits.total.min(A_YEAR));
        let alarm = Box::pin(tokio::time::sleep(idle.min(total)));
        Self { idle, total, deadline: Instant::now() + total, alarm }
    }

    async fn watch<T>(&mut self, work: impl Future<Output = T>) -> Result<T, ProviderError> {
        let mut work = pin!(work);
        let silent_until = Instant::now() + self.idle;
        loop {
            let done = tokio::select! {
                biased;
                done = &mut work => Some(done),
                () = &mut self.alarm => None,
            };
            let now = Instant::now();
            if now >= self.deadline {
                let message =
                    format!("the call took longer than {} s in all", self.total.as_secs_f64());
                return Err(ProviderError::terminal(Kind::Timeout, message));
            }
            if let Some(done) = done {
                return Ok(done);
            }
            if now >= silent_until {
                let message = format!("the Provider was silent for {} s", self.idle.as_secs_f64());
                return Err(ProviderError::passing(Kind::StreamIdle, message));
            }
            self.alarm.as_mut().reset(silent_until.min(self.deadline));
        }
    }
}

fn unreachable(error: reqwest::Error) -> ProviderError {
    let what = if error.is_connect() {
        "the Provider could not be reached"
    } else {
        "the connection broke"
    };
    let is_ours = error.is_builder();
    let mut error = classify::connection(what, &told(error));
    error.retryable &= !is_ours;
    error
}

/// The error and its causes in one line, without the URL.
fn told(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(&error);
    while let Some(source) = cause {
        text = format!("{text}: {source}");
        cause = source.source();
    }
    text
}
