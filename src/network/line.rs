//! A line: one connection that speaks HTTP/1.1, and the answer that comes over it.
//!
//! There is no task behind it. Whoever waits for the head or for the next piece of the body reads
//! the wire, and what has come is handed out in one piece.

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::{Buf, Bytes, BytesMut};
use http::{HeaderMap, Method, StatusCode};
use tokio::io::AsyncWrite;
use tokio_util::io::{poll_read_buf, poll_write_buf};

use super::body::Framing;
use super::client::Kept;
use super::head::{self, Head};
use super::wire::Wire;
use super::{NetworkError, told};

/// How much is read at once.
const READ: usize = 64 * 1024;

/// What is asked.
#[derive(Clone)]
pub struct Request {
    pub method: Method,
    /// The path and query, or the host and port of a tunnel.
    pub target: String,
    pub headers: HeaderMap,
    pub body: Bytes,
}

/// A connection.
pub struct Line {
    wire: Wire,
    /// What was read and not yet looked at.
    buffer: BytesMut,
}

/// A request that got no answer.
pub struct Lost {
    pub error: NetworkError,
    /// Whether no byte of it left.
    pub is_unsent: bool,
}

impl Line {
    pub fn over(wire: Wire) -> Self {
        Self { wire, buffer: BytesMut::new() }
    }

    /// Sends a request and waits for the head of its answer.
    pub async fn exchange(&mut self, request: &Request) -> Result<Head, Lost> {
        let Request { method, target, headers, body } = request;
        let head = head::write(method, target, headers, body.len());
        let mut letter = Letter::new(head.freeze().chain(body.clone()));
        let mut in_advance = 0;
        poll_fn(|cx| {
            letter.poll_send(&mut self.wire, cx);
            // A server may answer before it has heard everything, and then hear no more.
            let answer = self.poll_head(method, &mut in_advance, cx);
            let Poll::Ready(answer) = answer else { return Poll::Pending };
            let is_sent = letter.is_sent();
            Poll::Ready(match (answer, letter.failure.take()) {
                (Ok(head), _) => Ok(Head { may_stay: head.may_stay && is_sent, ..head }),
                (Err(error), failure) => Err(Lost {
                    error: failure.map_or(error, |failure| broken(&told(&failure))),
                    is_unsent: letter.is_untouched,
                }),
            })
        })
        .await
    }

    fn poll_head(
        &mut self,
        method: &Method,
        in_advance: &mut usize,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Head, NetworkError>> {
        loop {
            if !self.buffer.is_empty()
                && let Some(head) = head::read(method, &mut self.buffer, in_advance)?
            {
                return Poll::Ready(Ok(head));
            }
            match self.poll_fill(cx) {
                Poll::Ready(Ok(0)) => {
                    let cut = "the connection was closed before the answer came";
                    return Poll::Ready(Err(broken(cut)));
                }
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(error)) => return Poll::Ready(Err(broken(&told(&error)))),
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        self.buffer.reserve(READ);
        poll_read_buf(Pin::new(&mut self.wire), cx, &mut self.buffer)
    }

    /// Whether nothing was said and nobody hung up. Looks at the socket: a server may have closed
    /// it while nobody did.
    pub fn is_idle(&mut self, cx: &mut Context<'_>) -> bool {
        self.buffer.is_empty() && self.poll_fill(cx).is_pending()
    }

    /// The bare wire, and what came early.
    pub fn into_wire(self) -> (Wire, Bytes) {
        (self.wire, self.buffer.freeze())
    }
}

/// A request on its way out.
struct Letter<B> {
    bytes: B,
    is_untouched: bool,
    is_flushed: bool,
    failure: Option<io::Error>,
}

impl<B: Buf> Letter<B> {
    fn new(bytes: B) -> Self {
        Self { bytes, is_untouched: true, is_flushed: false, failure: None }
    }

    fn is_sent(&self) -> bool {
        self.is_flushed && !self.bytes.has_remaining()
    }

    /// Sends as much as the wire takes. A failure is kept: there may be an answer all the same.
    fn poll_send(&mut self, wire: &mut Wire, cx: &mut Context<'_>) {
        while self.failure.is_none() && !self.is_sent() {
            let sent = if self.bytes.has_remaining() {
                poll_write_buf(Pin::new(&mut *wire), cx, &mut self.bytes)
            } else {
                Pin::new(&mut *wire).poll_flush(cx).map_ok(|()| {
                    self.is_flushed = true;
                    1
                })
            };
            match sent {
                Poll::Ready(Ok(0)) => self.failure = Some(io::ErrorKind::WriteZero.into()),
                Poll::Ready(Ok(_)) => self.is_untouched = false,
                Poll::Ready(Err(error)) => self.failure = Some(error),
                Poll::Pending => return,
            }
        }
    }
}

pub fn broken(causes: &str) -> NetworkError {
    NetworkError::Broken(causes.to_owned())
}

/// An answer under way; dropping it abandons the call and closes the connection.
pub struct Response {
    head: Head,
    /// `None` once the body was read: the connection was given back, or is closed.
    line: Option<Line>,
    kept: Arc<Kept>,
    /// Who answers, for messages: host and port.
    peer: Box<str>,
}

impl Response {
    pub(super) fn new(head: Head, line: Line, kept: Arc<Kept>, peer: Box<str>) -> Self {
        Self { head, line: Some(line), kept, peer }
    }

    /// Host and port of the server, for messages.
    pub fn peer(&self) -> &str {
        &self.peer
    }

    pub fn status(&self) -> StatusCode {
        self.head.status
    }

    pub fn headers(&self) -> &HeaderMap {
        &self.head.headers
    }

    /// A header that is text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// Waits for more of the body, and takes everything that has come; `None` is its end.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, NetworkError> {
        poll_fn(|cx| self.poll_chunk(cx)).await
    }

    /// More of the body if it is already here. Nobody is woken when it comes later.
    pub fn chunk_now(&mut self) -> Option<Result<Option<Bytes>, NetworkError>> {
        match self.poll_chunk(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(chunk) => Some(chunk),
            Poll::Pending => None,
        }
    }

    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, NetworkError>> {
        loop {
            let Some(line) = &mut self.line else { return Poll::Ready(Ok(None)) };
            if self.head.framing.is_over() {
                self.give_back(cx);
                continue;
            }
            let failure = match self.head.framing.take(&mut line.buffer) {
                Ok(data) if !data.is_empty() => return Poll::Ready(Ok(Some(data))),
                // The last chunk is empty.
                Ok(_) if self.head.framing.is_over() => continue,
                Ok(_) => match line.poll_fill(cx) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(Ok(0)) if self.head.framing == Framing::ToEnd => None,
                    Poll::Ready(Ok(0)) => {
                        Some(broken("the connection was closed before the answer was whole"))
                    }
                    Poll::Ready(Ok(_)) => continue,
                    Poll::Ready(Err(error)) => Some(broken(&told(&error))),
                },
                Err(reason) => Some(broken(reason)),
            };
            self.line = None;
            let failure = failure.map(|error| error.with_peer(&self.peer));
            return Poll::Ready(failure.map_or(Ok(None), Err));
        }
    }

    fn give_back(&mut self, cx: &mut Context<'_>) {
        if let Some(mut line) = self.line.take()
            && self.head.may_stay
            && line.is_idle(cx)
        {
            self.kept.put(line);
        }
    }

    /// The bare wire, when the server agreed to speak something else, and what came early.
    pub fn into_wire(self) -> Result<(Wire, Bytes), NetworkError> {
        match self.line {
            Some(line) if self.head.status == StatusCode::SWITCHING_PROTOCOLS => {
                Ok(line.into_wire())
            }
            _ => Err(broken("the connection still speaks HTTP")),
        }
    }
}

/// Never shows headers or content, which may be private.
impl fmt::Debug for Response {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Response").field("status", &self.head.status).finish_non_exhaustive()
    }
}
