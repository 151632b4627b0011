//! A line: one connection that speaks HTTP/1.1, and the answer that comes over it.
//!
//! hyper splits a connection in two, a handle and a future that must be polled for anything to
//! happen. Usually that future is a task of its own; here it is polled by whoever waits.

use std::fmt;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::Full;
use hyper::body::{Body, Incoming};
use hyper::client::conn::TrySendError;
use hyper::client::conn::http1::{Builder, Connection, SendRequest};
use hyper_util::rt::TokioIo;

use super::client::Kept;
use super::wire::Wire;
use super::{NetworkError, told};

/// The longest head of an answer, in bytes; and how many headers it may have.
pub const LONGEST_HEAD: usize = 256 * 1024;
const MOST_HEADERS: usize = 200;

/// A connection without a task.
pub struct Line {
    sender: SendRequest<Full<Bytes>>,
    connection: Connection<TokioIo<Wire>, Full<Bytes>>,
    /// The connection has nothing more to do: it closed, broke, or was upgraded.
    is_over: bool,
}

/// A request that got no answer.
pub struct Lost {
    pub error: NetworkError,
    /// The request itself, if no byte of it left.
    pub unsent: Option<Request<Full<Bytes>>>,
}

impl Line {
    /// Speaks HTTP over a wire.
    pub async fn over(wire: Wire) -> Result<Self, NetworkError> {
        let mut builder = Builder::new();
        builder.max_headers(MOST_HEADERS).max_header_size(LONGEST_HEAD);
        let (sender, connection) = builder
            .handshake(TokioIo::new(wire))
            .await
            .map_err(|error| NetworkError::Connect(told(&error)))?;
        Ok(Self { sender, connection, is_over: false })
    }

    /// Sends a request and waits for the head of its answer.
    pub async fn exchange(
        &mut self,
        request: Request<Full<Bytes>>,
    ) -> Result<http::Response<Incoming>, Lost> {
        let mut answer = pin!(self.sender.try_send_request(request));
        let (connection, is_over) = (&mut self.connection, &mut self.is_over);
        poll_fn(|cx| {
            if let Poll::Ready(answer) = answer.as_mut().poll(cx) {
                return Poll::Ready(answer.map_err(lost));
            }
            let ended = drive(connection, is_over, cx);
            match (answer.as_mut().poll(cx), ended) {
                (Poll::Ready(answer), _) => Poll::Ready(answer.map_err(lost)),
                (Poll::Pending, Some(ended)) => {
                    let error = ended.err().unwrap_or_else(|| broken("the connection was closed"));
                    Poll::Ready(Err(Lost { error, unsent: None }))
                }
                (Poll::Pending, None) => Poll::Pending,
            }
        })
        .await
    }

    /// Whether another request can be sent now. Looks at the socket: a server may have closed it
    /// while nobody did.
    pub fn is_idle(&mut self, cx: &mut Context<'_>) -> bool {
        drive(&mut self.connection, &mut self.is_over, cx).is_none()
            && !self.is_over
            && self.sender.is_ready()
    }

    /// The bare wire, after an answer that ends HTTP on it, and what came early.
    pub async fn into_wire(mut self) -> Result<(Wire, Bytes), NetworkError> {
        if !self.is_over {
            let (connection, is_over) = (&mut self.connection, &mut self.is_over);
            poll_fn(|cx| drive(connection, is_over, cx).map_or(Poll::Pending, Poll::Ready)).await?;
        }
        let parts = self.connection.into_parts();
        Ok((parts.io.into_inner(), parts.read_buf))
    }
}

/// Lets a connection work; tells its end once.
fn drive(
    connection: &mut Connection<TokioIo<Wire>, Full<Bytes>>,
    is_over: &mut bool,
    cx: &mut Context<'_>,
) -> Option<Result<(), NetworkError>> {
    if *is_over {
        return None;
    }
    let Poll::Ready(ended) = Pin::new(connection).poll(cx) else { return None };
    *is_over = true;
    Some(ended.map_err(|error| broken(&told(&error))))
}

fn lost(mut error: TrySendError<Request<Full<Bytes>>>) -> Lost {
    let unsent = error.take_message();
    Lost { error: broken(&told(error.error())), unsent }
}

fn broken(causes: &str) -> NetworkError {
    NetworkError::Broken(causes.to_owned())
}

/// An answer under way; dropping it abandons the call and closes the connection.
pub struct Response {
    head: http::response::Parts,
    body: Incoming,
    /// `None` once the connection was given back.
    line: Option<Line>,
    kept: Arc<Kept>,
}

impl Response {
    pub(super) fn new(answer: http::Response<Incoming>, line: Line, kept: Arc<Kept>) -> Self {
        let (head, body) = answer.into_parts();
        Self { head, body, line: Some(line), kept }
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

    /// Waits for the next piece of the body; `None` is its end.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, NetworkError> {
        poll_fn(|cx| self.poll_chunk(cx)).await
    }

    /// The next piece if it is already here. Nobody is woken when it comes later.
    pub fn chunk_now(&mut self) -> Option<Result<Option<Bytes>, NetworkError>> {
        match self.poll_chunk(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(chunk) => Some(chunk),
            Poll::Pending => None,
        }
    }

    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, NetworkError>> {
        loop {
            let mut frame = Pin::new(&mut self.body).poll_frame(cx);
            if frame.is_pending()
                && let Some(line) = &mut self.line
            {
                let ended = drive(&mut line.connection, &mut line.is_over, cx);
                frame = Pin::new(&mut self.body).poll_frame(cx);
                if frame.is_pending()
                    && let Some(ended) = ended
                {
                    let cut = || broken("the connection was closed");
                    return Poll::Ready(Err(ended.err().unwrap_or_else(cut)));
                }
            }
            return Poll::Ready(match frame {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) => Ok(Some(data)),
                    // Trailers say nothing that anybody asked for.
                    Err(_) => continue,
                },
                Poll::Ready(Some(Err(error))) => {
                    self.line = None;
                    Err(broken(&told(&error)))
                }
                Poll::Ready(None) => {
                    self.give_back(cx);
                    Ok(None)
                }
            });
        }
    }

    fn give_back(&mut self, cx: &mut Context<'_>) {
        if let Some(mut line) = self.line.take()
            && line.is_idle(cx)
        {
            self.kept.put(line);
        }
    }

    /// The bare wire, when the server agreed to speak something else, and what came early.
    pub async fn into_wire(self) -> Result<(Wire, Bytes), NetworkError> {
        match self.line {
            Some(line) if self.head.status == StatusCode::SWITCHING_PROTOCOLS => {
                line.into_wire().await
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
