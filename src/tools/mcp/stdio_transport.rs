//! Stdio transport of MCP: one JSON message per line, from and to a program.
//!
//! A line that is not a message is skipped, an endless line closes the connection, and standard error
//! goes to the trace.

use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use parking_lot::Mutex;
use rmcp::RoleClient;
use rmcp::model::{ClientRequest, ErrorData, JsonRpcMessage, RequestId};
use rmcp::service::{RxJsonRpcMessage, TxJsonRpcMessage};
use rmcp::transport::Transport;
use serde::Deserialize;
use serde::de::IgnoredAny;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::McpError;
use super::sanitize_text;
use crate::base::secret::Secrets;
use crate::host::process::{Service, ServiceEvent, StartedService};

/// The longest message, in bytes.
pub const LONGEST_MESSAGE: usize = 24 << 20;
/// How many lines that are not messages are tolerated.
const MAX_INVALID_LINES: usize = 1000;
/// Timeout of a write to a program that does not read.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);
/// How many messages may wait for a program that sends requests and does not read the answers.
const MOST_WAITING: usize = 256;
/// How much of standard error is kept for error reports, in bytes.
const KEPT_ERRORS: usize = 4096;
/// How much of standard error goes to the trace, in bytes.
const TRACED_ERRORS: usize = 256 * 1024;

/// The reason why a connection ended or a request failed, shared between the transport and its
/// users.
#[derive(Debug, Clone, Default)]
pub struct SharedFailure(Arc<Mutex<FailureState>>);

#[derive(Debug, Default)]
struct FailureState {
    error: Option<McpError>,
    /// Whether the connection ended, and not only one request failed.
    is_end: bool,
}

impl SharedFailure {
    /// Records the error of a request; the last one counts.
    pub fn set(&self, error: McpError) {
        *self.0.lock() = FailureState { error: Some(error), is_end: false };
    }

    /// Records the error that ended the connection.
    pub fn set_end(&self, error: McpError) {
        *self.0.lock() = FailureState { error: Some(error), is_end: true };
    }

    /// Records that the program closed its input, unless an error is known already.
    fn set_closed(&self) {
        let mut noted = self.0.lock();
        if noted.error.is_none() {
            let error = McpError::PipesClosed { errors: String::new() };
            *noted = FailureState { error: Some(error), is_end: true };
        }
    }

    /// The recorded error, which stays.
    pub fn peek(&self) -> Option<McpError> {
        self.0.lock().error.clone()
    }

    /// Takes the recorded error: that of a request is returned once, that of an ended connection stays.
    pub fn take(&self) -> Option<McpError> {
        let mut noted = self.0.lock();
        if noted.is_end { noted.error.clone() } else { noted.error.take() }
    }
}

/// The end of a program's standard error.
#[derive(Debug, Clone, Default)]
pub struct StderrTail(Arc<Mutex<Vec<u8>>>);

impl StderrTail {
    /// The text, without escape sequences and secrets.
    pub fn tail(&self, secrets: &Secrets) -> String {
        let kept = self.0.lock();
        let text = String::from_utf8_lossy(&kept).into_owned();
        sanitize_text::clean_text(&secrets.redact(&text), KEPT_ERRORS)
    }

    fn push(&self, chunk: &[u8]) {
        let mut kept = self.0.lock();
        kept.extend_from_slice(chunk);
        let excess = kept.len().saturating_sub(KEPT_ERRORS);
        kept.drain(..excess);
    }
}

/// The calls that may have reached a program: their lines were written to its input, or are being
/// written. A line that was not written whole has no end, so the program does not act on it.
#[derive(Debug, Clone, Default)]
pub struct CallDelivery(Arc<Mutex<HashSet<RequestId>>>);

impl CallDelivery {
    /// Whether a call may have reached the program; asked once, when the call is over.
    pub fn take(&self, call: &RequestId) -> bool {
        self.0.lock().remove(call)
    }
}

/// The id of a tool call; other messages are not tracked.
fn call_id(message: &TxJsonRpcMessage<RoleClient>) -> Option<RequestId> {
    match message {
        JsonRpcMessage::Request(request) => match request.request {
            ClientRequest::CallToolRequest(_) => Some(request.id.clone()),
            _ => None,
        },
        _ => None,
    }
}

/// How long to wait for the rest of standard error after a program ended.
const STDERR_TIMEOUT: Duration = Duration::from_secs(1);

/// The connection to a program.
pub struct StdioTransport {
    service: Service,
    stdin: Arc<tokio::sync::Mutex<pipe::Sender>>,
    buffer: BytesMut,
    /// How many bytes at the start of the buffer are known to have no line end.
    searched: usize,
    invalid_lines: usize,
    /// How many messages wait to be written to the program.
    waiting: Arc<AtomicUsize>,
    /// Cancelled when the program sends nothing more: then nothing needs to be written either.
    over: CancellationToken,
    failure: SharedFailure,
    delivery: CallDelivery,
    /// Reads standard error while the connection lasts.
    listener: AbortOnDropHandle<()>,
}

impl StdioTransport {
    /// The transport of a program that was just started.
    pub fn new(
        served: StartedService,
        name: &str,
        failure: SharedFailure,
        errors: StderrTail,
        secrets: Arc<Secrets>,
    ) -> Self {
        let listener = tokio::spawn(read_stderr(served.stderr, name.to_owned(), errors, secrets));
        Self {
            service: served.service,
            stdin: Arc::new(tokio::sync::Mutex::new(served.stdin)),
            buffer: BytesMut::new(),
            searched: 0,
            invalid_lines: 0,
            waiting: Arc::default(),
            over: CancellationToken::new(),
            failure,
            delivery: CallDelivery::default(),
            listener: AbortOnDropHandle::new(listener),
        }
    }

    /// The tracker of calls that reached the program.
    pub fn delivery(&self) -> CallDelivery {
        self.delivery.clone()
    }

    /// Waits for the next message, or for the reason why there is none.
    async fn next_message(&mut self) -> Result<RxJsonRpcMessage<RoleClient>, McpError> {
        loop {
            if self.waiting.load(Ordering::Relaxed) > MOST_WAITING {
                return Err(McpError::protocol("it sends requests without reading the answers"));
            }
            if let Some(message) = self.parse_message()? {
                return Ok(message);
            }
            if let ServiceEvent::Ended(ending) = self.service.next_event(&mut self.buffer).await {
                if !self.listener.is_finished() {
                    tokio::time::timeout(STDERR_TIMEOUT, &mut self.listener).await.ok();
                }
                return Err(McpError::from_exit(ending));
            }
        }
    }

    /// The next line that is a message; `None` when more must be read first.
    fn parse_message(&mut self) -> Result<Option<RxJsonRpcMessage<RoleClient>>, McpError> {
        while let Some(place) = memchr::memchr(b'\n', &self.buffer[self.searched..]) {
            let line = self.buffer.split_to(self.searched + place);
            self.buffer.advance(1);
            self.searched = 0;
            let line = line.trim_ascii();
            if line.is_empty() {
                continue;
            }
            match serde_json::from_slice(line) {
                Ok(message) => return Ok(Some(message)),
                Err(error) => {
                    self.invalid_lines += 1;
                    tracing::debug!(%error, bytes = line.len(), "invalid line of an MCP server");
                    if self.invalid_lines > MAX_INVALID_LINES {
                        return Err(McpError::protocol("its output is not MCP"));
                    }
                    // The caller of this request must not wait forever.
                    if let Some(id) = answered_request(line) {
                        let odd = ErrorData::internal_error(unreadable_answer(&error), None);
                        return Ok(Some(RxJsonRpcMessage::<RoleClient>::error(odd, Some(id))));
                    }
                }
            }
        }
        self.searched = self.buffer.len();
        if self.buffer.len() > LONGEST_MESSAGE {
            return Err(McpError::protocol(format!(
                "a line has more than {LONGEST_MESSAGE} bytes"
            )));
        }
        Ok(None)
    }
}

/// The error text for an answer that cannot be read.
pub fn unreadable_answer(error: &serde_json::Error) -> String {
    let reason = match error.to_string() {
        // This text describes the decoder, not the message.
        reason if reason.starts_with("data did not match") => {
            "it is neither a result nor an error".to_owned()
        }
        reason => sanitize_text::clean_line(&reason, 200),
    };
    format!("its answer cannot be read: {reason}")
}

/// The request that a line answers, if it is an answer at all.
pub fn answered_request(line: &[u8]) -> Option<RequestId> {
    // Values that are nested too deeply are skipped.
    #[derive(Deserialize)]
    struct Shallow {
        id: RequestId,
        method: Option<IgnoredAny>,
    }
    let shallow: Shallow = serde_json::from_slice(line).ok()?;
    shallow.method.is_none().then_some(shallow.id)
}

impl Transport<RoleClient> for StdioTransport {
    type Error = io::Error;

    fn send(
        &mut self,
        item: TxJsonRpcMessage<RoleClient>,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send + 'static {
        let stdin = Arc::clone(&self.stdin);
        let (over, ticket) = (self.over.clone(), QueuedMessage::new(&self.waiting));
        let (delivery, call) = (self.delivery.clone(), call_id(&item));
        let (failure, is_notice) =
            (self.failure.clone(), matches!(item, JsonRpcMessage::Notification(_)));
        async move {
            let _ticket = ticket;
            let mut line = serde_json::to_vec(&item).map_err(io::Error::other)?;
            line.push(b'\n');
            delivery.0.lock().extend(call.clone());
            let writing = async { stdin.lock().await.write_all(&line).await };
            let late = |_| io::Error::new(io::ErrorKind::TimedOut, "it does not read");
            let writing = over.run_until_cancelled(writing);
            let written = tokio::time::timeout(WRITE_TIMEOUT, writing).await.map_err(late);
            let gone = || Err(io::ErrorKind::BrokenPipe.into());
            let written = written.and_then(|written| written.unwrap_or_else(gone));
            let Err(error) = written else { return Ok(()) };
            if let Some(call) = &call {
                delivery.take(call);
            }
            if error.kind() == io::ErrorKind::TimedOut {
                return Err(error);
            }
            failure.set_closed();
            // A lost notification is no error. Initialization ends with one; without an error it
            // goes on until the end of the program is read, and with it the exit code.
            if is_notice { Ok(()) } else { Err(error) }
        }
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleClient>> {
        match self.next_message().await {
            Ok(message) => Some(message),
            Err(error) => {
                self.failure.set_end(error);
                self.over.cancel();
                None
            }
        }
    }

    async fn close(&mut self) -> Result<(), Self::Error> {
        Ok(())
    }
}

/// Counts a message until it is written or given up.
struct QueuedMessage(Arc<AtomicUsize>);

impl QueuedMessage {
    fn new(waiting: &Arc<AtomicUsize>) -> Self {
        waiting.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(waiting))
    }
}

impl Drop for QueuedMessage {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Reads standard error: keeps its end, and traces its beginning.
async fn read_stderr(
    mut pipe: pipe::Receiver,
    server: String,
    errors: StderrTail,
    secrets: Arc<Secrets>,
) {
    let mut buffer = vec![0; 8 * 1024];
    let mut traced = 0;
    while let Ok(count @ 1..) = pipe.read(&mut buffer).await {
        let chunk = &buffer[..count];
        errors.push(chunk);
        traced += count;
        if traced <= TRACED_ERRORS {
            let text = String::from_utf8_lossy(chunk);
            let output = sanitize_text::clean_text(&secrets.redact(&text), 2048);
            tracing::debug!(server, output, "standard error of an MCP server");
        }
    }
}
