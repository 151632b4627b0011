//! The web: the way to a server that is an address. Streamable HTTP through Pixir's own network.
//!
//! Proxies, certificates and connections are those of every other request. No redirect is followed:
//! the headers of an entry go to the address of the entry.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use http::header::{ACCEPT, CONTENT_TYPE, HeaderName, HeaderValue, WWW_AUTHENTICATE};
use http::{HeaderMap, StatusCode};
use rmcp::model::{ClientJsonRpcMessage, ErrorData, JsonRpcMessage, ServerJsonRpcMessage};
use rmcp::transport::common::http_header::{
    EVENT_STREAM_MIME_TYPE, HEADER_LAST_EVENT_ID, HEADER_SESSION_ID, JSON_MIME_TYPE,
};
use rmcp::transport::streamable_http_client::{
    AuthRequiredError, SseError, StreamableHttpClient, StreamableHttpError,
    StreamableHttpPostResponse,
};
use sse_stream::{Sse, SseStream};
use tokio::time::Instant;
use url::Url;

use super::McpError;
use super::pipes::{Flaw, LONGEST_MESSAGE, answered, unreadable};
use crate::network::{Client, Endpoint, Network, Response};

/// Headers that belong to the request itself, and to nobody's entry.
const RESERVED: [&str; 9] = [
    "host",
    "connection",
    "content-length",
    "transfer-encoding",
    "upgrade",
    "accept",
    "content-type",
    "mcp-session-id",
    "last-event-id",
];

/// How long a connection may take to stand.
const CONNECT: Duration = Duration::from_secs(30);
/// How often a stream is listened to anew, at most.
const LISTEN_EVERY: Duration = Duration::from_secs(1);

type Failure = StreamableHttpError<WebError>;

/// A server's address and what is sent along to it; cheap to clone.
#[derive(Clone)]
pub struct Web {
    client: Arc<Client>,
    headers: HeaderMap,
    flaw: Flaw,
    /// When a stream may be listened to again.
    listen_at: Arc<Mutex<Option<Instant>>>,
}

/// What went wrong on the way, as the SDK carries it.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct WebError(McpError);

impl Web {
    /// Reads an entry; connects to nothing yet.
    pub fn new(
        network: &Network,
        url: &str,
        headers: &[(String, String)],
        flaw: Flaw,
    ) -> Result<Self, McpError> {
        let setting = |reason: &str| McpError::Setting(reason.to_owned());
        let parsed = Url::parse(url).map_err(|_| setting("its `url` is not a URL"))?;
        let host = parsed.host_str().ok_or_else(|| setting("its `url` has no host"))?;
        let is_loopback = is_loopback(host);
        match parsed.scheme() {
            "https" => {}
            "http" if is_loopback || headers.is_empty() => {}
            "http" => return Err(McpError::Insecure(host.to_owned())),
            _ => return Err(setting("its `url` must begin with http or https")),
        }
        let mut sent = HeaderMap::new();
        for (name, value) in headers {
            let odd = || McpError::Setting(format!("its header `{name}` cannot be sent"));
            if RESERVED.iter().any(|own| name.eq_ignore_ascii_case(own)) {
                return Err(odd());
            }
            let key = HeaderName::from_bytes(name.as_bytes()).map_err(|_| odd())?;
            let mut value = HeaderValue::from_str(value).map_err(|_| odd())?;
            value.set_sensitive(true);
            sent.append(key, value);
        }
        let base_url = url.split('#').next().unwrap_or(url).to_owned();
        let endpoint = Endpoint { base_url, is_loopback, connect: CONNECT };
        let client = Arc::new(network.clone().client(endpoint));
        Ok(Self { client, headers: sent, flaw, listen_at: Arc::default() })
    }

    /// What every request has: what the entry says, then what the SDK says.
    fn headers(
        &self,
        session: Option<&str>,
        others: HashMap<HeaderName, HeaderValue>,
    ) -> Result<HeaderMap, Failure> {
        let mut headers = self.headers.clone();
        for (name, value) in others {
            headers.insert(name, value);
        }
        if let Some(session) = session {
            headers.insert(HeaderName::from_static("mcp-session-id"), text(session)?);
        }
        let both = "application/json, text/event-stream";
        headers.insert(ACCEPT, HeaderValue::from_static(both));
        Ok(headers)
    }

    /// Keeps why a request failed, and says it.
    fn failed(&self, error: McpError) -> Failure {
        self.flaw.note(error.clone());
        StreamableHttpError::Client(WebError(error))
    }

    fn refused(&self, response: &Response) -> Option<Failure> {
        let status = response.status();
        if !matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
            return None;
        }
        self.flaw.note(McpError::Unauthorized { status: status.as_u16() });
        let challenge = response.header(WWW_AUTHENTICATE.as_str()).unwrap_or_default().to_owned();
        Some(StreamableHttpError::AuthRequired(AuthRequiredError::new(challenge)))
    }

    async fn post(
        &self,
        message: ClientJsonRpcMessage,
        session: Option<Arc<str>>,
        others: HashMap<HeaderName, HeaderValue>,
    ) -> Result<StreamableHttpPostResponse, Failure> {
        let mut headers = self.headers(session.as_deref(), others)?;
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(JSON_MIME_TYPE));
        let body = Bytes::from(serde_json::to_vec(&message)?);
        let sent = self.client.post("", headers, body).await;
        let response = sent.map_err(|error| self.failed(McpError::from(&error)))?;
        let status = response.status();
        if let Some(refused) = self.refused(&response) {
            return Err(refused);
        }
        if matches!(status, StatusCode::ACCEPTED | StatusCode::NO_CONTENT) {
            return Ok(StreamableHttpPostResponse::Accepted);
        }
        if status == StatusCode::NOT_FOUND && session.is_some() {
            return Err(StreamableHttpError::SessionExpired);
        }
        let wants_answer = matches!(message, JsonRpcMessage::Request(_));
        let session = response.header(HEADER_SESSION_ID).map(str::to_owned);
        let kind = response.header(CONTENT_TYPE.as_str()).unwrap_or_default().to_owned();
        if status.is_success() && kind.starts_with(EVENT_STREAM_MIME_TYPE) {
            return Ok(StreamableHttpPostResponse::Sse(events(response), session));
        }
        let body = self.whole(response).await?;
        match serde_json::from_slice::<ServerJsonRpcMessage>(&body) {
            Ok(answer @ JsonRpcMessage::Error(_)) => {
                Ok(StreamableHttpPostResponse::Json(answer, session))
            }
            Ok(answer) if status.is_success() => {
                Ok(StreamableHttpPostResponse::Json(answer, session))
            }
            _ if !status.is_success() => {
                Err(self.failed(McpError::Http { status: status.as_u16() }))
            }
            _ if !wants_answer => Ok(StreamableHttpPostResponse::Accepted),
            _ => Err(self.failed(McpError::odd("what comes from its address is no MCP"))),
        }
    }

    /// A server that hangs up, or says that it wants to be asked again at once, is not stormed.
    async fn pause(&self) {
        let now = Instant::now();
        let at = {
            let mut next = self.listen_at.lock().unwrap_or_else(PoisonError::into_inner);
            let at = next.unwrap_or(now).max(now);
            *next = Some(at + LISTEN_EVERY);
            at
        };
        tokio::time::sleep_until(at).await;
    }

    /// A body that is no stream, as far as anybody would want it.
    async fn whole(&self, mut response: Response) -> Result<Vec<u8>, Failure> {
        let mut body = Vec::new();
        loop {
            let chunk = response.chunk().await;
            let Some(chunk) = chunk.map_err(|error| self.failed(McpError::from(&error)))? else {
                return Ok(body);
            };
            body.extend_from_slice(&chunk);
            if body.len() > LONGEST_MESSAGE {
                return Err(self.failed(McpError::odd("its answer has no end")));
            }
        }
    }
}

impl StreamableHttpClient for Web {
    type Error = WebError;

    async fn post_message(
        &self,
        _uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        _auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<StreamableHttpPostResponse, Failure> {
        self.post(message, session_id, custom_headers).await
    }

    async fn delete_session(
        &self,
        _uri: Arc<str>,
        session_id: Arc<str>,
        _auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<(), Failure> {
        let headers = self.headers(Some(&session_id), custom_headers)?;
        let sent = self.client.delete("", headers).await;
        // A server that forgets Sessions by itself may say what it likes.
        sent.map(drop)
            .map_err(|error| StreamableHttpError::Client(WebError(McpError::from(&error))))
    }

    async fn get_stream(
        &self,
        _uri: Arc<str>,
        session_id: Option<Arc<str>>,
        last_event_id: Option<String>,
        _auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<BoxStream<'static, Result<Sse, SseError>>, Failure> {
        let mut headers = self.headers(session_id.as_deref(), custom_headers)?;
        if let Some(last) = last_event_id {
            let name = HeaderName::from_bytes(HEADER_LAST_EVENT_ID.as_bytes());
            let name = name.map_err(|_| StreamableHttpError::UnexpectedEndOfStream)?;
            headers.insert(name, text(&last)?);
        }
        self.pause().await;
        let sent = self.client.get("", headers).await;
        let response =
            sent.map_err(|error| StreamableHttpError::Client(WebError(McpError::from(&error))))?;
        let kind = response.header(CONTENT_TYPE.as_str()).unwrap_or_default();
        if response.status().is_success() && kind.starts_with(EVENT_STREAM_MIME_TYPE) {
            return Ok(events(response));
        }
        // Listening is an offer, not a duty: whoever does not offer it is asked no more.
        Err(StreamableHttpError::ServerDoesNotSupportSse)
    }
}

fn text(value: &str) -> Result<HeaderValue, Failure> {
    HeaderValue::from_str(value).map_err(|_| StreamableHttpError::UnexpectedEndOfStream)
}

fn is_loopback(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']');
    host.eq_ignore_ascii_case("localhost")
        || address.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// The events of a stream, none larger than a message may be.
fn events(response: Response) -> BoxStream<'static, Result<Sse, SseError>> {
    let state = Some((response, Meter::default()));
    let bytes = stream::unfold(state, |state| async {
        let (mut response, mut meter) = state?;
        match response.chunk().await {
            Ok(Some(chunk)) if meter.bears(&chunk) => Some((Ok(chunk), Some((response, meter)))),
            Ok(Some(_)) => Some((Err(WebError(McpError::odd("an event has no end"))), None)),
            Ok(None) => None,
            Err(error) => Some((Err(WebError(McpError::from(&error))), None)),
        }
    });
    SseStream::from_bytes_stream(bytes.boxed()).map(|event| event.map(readable)).boxed()
}

/// An answer that cannot be read becomes an error, so that nobody waits for it.
fn readable(mut event: Sse) -> Sse {
    let Some(data) = &event.data else { return event };
    let Err(error) = serde_json::from_str::<ServerJsonRpcMessage>(data) else { return event };
    if let Some(id) = answered(data.as_bytes()) {
        let odd = ErrorData::internal_error(unreadable(&error), None);
        let answer = ServerJsonRpcMessage::error(odd, Some(id));
        event.data = serde_json::to_string(&answer).ok();
    }
    event
}

/// Counts the bytes of an event; an empty line ends it.
#[derive(Default)]
struct Meter {
    bytes: usize,
    at_line_start: bool,
}

impl Meter {
    fn bears(&mut self, chunk: &[u8]) -> bool {
        for byte in chunk {
            self.bytes += 1;
            match byte {
                b'\n' if self.at_line_start => self.bytes = 0,
                b'\n' => self.at_line_start = true,
                b'\r' => {}
                _ => self.at_line_start = false,
            }
            if self.bytes > LONGEST_MESSAGE {
                return false;
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn web(url: &str, headers: &[(&str, &str)]) -> Result<Web, McpError> {
        let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let headers: Vec<_> = headers.iter().map(own).collect();
        Web::new(&Network::default(), url, &headers, Flaw::default())
    }

    #[test]
    fn a_secret_travels_protected_or_not_at_all() {
        let key = [("Authorization", "Bearer x")];
        assert!(web("https://x.example/mcp", &key).is_ok());
        assert!(web("http://127.0.0.1:1/mcp", &key).is_ok());
        assert!(web("http://x.example/mcp", &[]).is_ok());
        assert!(matches!(web("http://x.example/mcp", &key), Err(McpError::Insecure(_))));
        for (url, headers) in [
            ("nonsense", &[][..]),
            ("ftp://x/y", &[]),
            ("https://x", &[("Content-Length", "1")]),
            ("https://x", &[("a b", "1")]),
            ("https://x", &[("A", "1\r\nB: 2")]),
        ] {
            assert!(matches!(web(url, headers), Err(McpError::Setting(_))), "{url}");
        }
    }

    #[test]
    fn an_event_ends_with_an_empty_line() {
        let mut meter = Meter::default();
        assert!(meter.bears(b"data: x\n\n") && meter.bytes == 0);
        assert!(meter.bears(b"data: x\r\n\r") && meter.bears(b"\n") && meter.bytes == 0);
        assert!(!meter.bears(&vec![b'x'; LONGEST_MESSAGE + 1]));
    }
}
