//! HTTP transport of MCP: rmcp's reqwest client with Pixir's policy around it.
//!
//! Proxies, certificates and connections are those of every other request. rmcp reads a JSON answer
//! without a limit, so messages are posted here, with a limit on answers; streams that the client
//! opens and the end of a Session are rmcp's own code.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use http::header::{ACCEPT, CONTENT_TYPE, HeaderName, HeaderValue, WWW_AUTHENTICATE};
use http::{HeaderMap, StatusCode};
use parking_lot::Mutex;
use rmcp::model::{ClientJsonRpcMessage, ErrorData, JsonRpcMessage, ServerJsonRpcMessage};
use rmcp::transport::common::http_header::{
    EVENT_STREAM_MIME_TYPE, HEADER_SESSION_ID, JSON_MIME_TYPE,
};
use rmcp::transport::streamable_http_client::{
    AuthRequiredError, SseError, StreamableHttpClient, StreamableHttpError,
    StreamableHttpPostResponse,
};
use sse_stream::{Sse, SseStream};
use tokio::time::Instant;
use url::Url;

use super::McpError;
use super::stdio_transport::{LONGEST_MESSAGE, SharedFailure, answered_request, unreadable_answer};
use crate::host::http::{
    EventLines, HttpClient, HttpError, HttpResponse, HttpSettings, is_loopback,
};

/// Headers that the transport sets itself; an entry may not have them.
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

/// Timeout for opening a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// The shortest time between two requests for a stream.
const LISTEN_EVERY: Duration = Duration::from_secs(1);

type McpHttpError = StreamableHttpError<reqwest::Error>;

/// The address of an MCP server; cheap to clone.
#[derive(Clone)]
pub struct McpHttpClient {
    client: Arc<HttpClient>,
    /// Why the last request failed.
    failure: SharedFailure,
    /// When a stream may be requested again.
    listen_at: Arc<Mutex<Option<Instant>>>,
}

/// The HTTP headers of a server entry, which rmcp adds to every request. An unencrypted address
/// outside this machine may have none.
pub fn parse_headers(
    url: &str,
    headers: &[(String, String)],
) -> Result<HashMap<HeaderName, HeaderValue>, McpError> {
    let setting = |reason: &str| McpError::InvalidSetting(reason.to_owned());
    let url = Url::parse(url).map_err(|_| setting("its `url` is not a URL"))?;
    let host = url.host().ok_or_else(|| setting("its `url` has no host"))?;
    match url.scheme() {
        "https" => {}
        "http" if is_loopback(&host) || headers.is_empty() => {}
        "http" => return Err(McpError::Insecure(host.to_string())),
        _ => return Err(setting("its `url` must begin with http or https")),
    }
    let mut sent = HashMap::new();
    for (name, value) in headers {
        let odd = || McpError::InvalidSetting(format!("its header `{name}` cannot be sent"));
        if RESERVED.iter().any(|own| name.eq_ignore_ascii_case(own)) {
            return Err(odd());
        }
        let key = HeaderName::from_bytes(name.as_bytes()).map_err(|_| odd())?;
        let mut value = HeaderValue::from_str(value).map_err(|_| odd())?;
        value.set_sensitive(true);
        if sent.insert(key, value).is_some() {
            return Err(odd());
        }
    }
    Ok(sent)
}

impl McpHttpClient {
    /// A client of a server; connects to nothing yet.
    pub fn new(http: &HttpSettings, url: &str, failure: SharedFailure) -> Self {
        let base_url = url.split('#').next().unwrap_or(url).to_owned();
        let client = Arc::new(http.clone().client(base_url, CONNECT_TIMEOUT));
        Self { client, failure, listen_at: Arc::default() }
    }

    /// The reqwest client for a request that rmcp makes.
    fn reqwest(&self) -> Result<&reqwest::Client, McpHttpError> {
        self.client.reqwest().map_err(|error| self.record_failure(McpError::from(&error)))
    }

    /// Records the error of a request, of which the SDK keeps only the text.
    fn record_failure(&self, error: McpError) -> McpHttpError {
        let message = Cow::from(error.to_string());
        self.failure.set(error);
        StreamableHttpError::UnexpectedServerResponse(message)
    }

    fn auth_refusal(&self, response: &HttpResponse) -> Option<McpHttpError> {
        let status = response.status();
        if !matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
            return None;
        }
        self.failure.set(McpError::Unauthorized { status: status.as_u16() });
        let challenge = response.header(WWW_AUTHENTICATE.as_str()).unwrap_or_default().to_owned();
        Some(StreamableHttpError::AuthRequired(AuthRequiredError::new(challenge)))
    }

    async fn post(
        &self,
        message: ClientJsonRpcMessage,
        session: Option<Arc<str>>,
        headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<StreamableHttpPostResponse, McpHttpError> {
        let mut headers: HeaderMap = headers.into_iter().collect();
        let both = "application/json, text/event-stream";
        headers.insert(ACCEPT, HeaderValue::from_static(both));
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(JSON_MIME_TYPE));
        if let Some(session) = &session {
            let invalid =
                |_| StreamableHttpError::UnexpectedServerResponse("its session id".into());
            headers.insert(HEADER_SESSION_ID, HeaderValue::from_str(session).map_err(invalid)?);
        }
        let body = Bytes::from(serde_json::to_vec(&message)?);
        let sent = self.client.post("", headers, body).await;
        let response = sent.map_err(|error| self.record_failure(McpError::from(&error)))?;
        let status = response.status();
        if let Some(refused) = self.auth_refusal(&response) {
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
            return Ok(StreamableHttpPostResponse::Sse(parse_events(response), session));
        }
        let body = response.read_body(LONGEST_MESSAGE).await;
        let body = body.map_err(|error| self.record_failure(McpError::from(&error)))?;
        let body =
            body.ok_or_else(|| self.record_failure(McpError::protocol("its answer is too large")))?;
        match serde_json::from_slice::<ServerJsonRpcMessage>(&body) {
            Ok(answer @ JsonRpcMessage::Error(_)) => {
                Ok(StreamableHttpPostResponse::Json(answer, session))
            }
            Ok(answer) if status.is_success() => {
                Ok(StreamableHttpPostResponse::Json(answer, session))
            }
            _ if !status.is_success() => {
                Err(self.record_failure(McpError::Http { status: status.as_u16() }))
            }
            _ if !wants_answer => Ok(StreamableHttpPostResponse::Accepted),
            _ => {
                Err(self.record_failure(McpError::protocol("its address does not answer with MCP")))
            }
        }
    }

    /// Waits, so that a server that closes its stream at once does not get a flood of requests.
    async fn wait_to_listen(&self) {
        let now = Instant::now();
        let at = {
            let mut next = self.listen_at.lock();
            let at = next.unwrap_or(now).max(now);
            *next = Some(at + LISTEN_EVERY);
            at
        };
        tokio::time::sleep_until(at).await;
    }
}

impl StreamableHttpClient for McpHttpClient {
    type Error = reqwest::Error;

    async fn post_message(
        &self,
        _uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        _auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<StreamableHttpPostResponse, McpHttpError> {
        self.post(message, session_id, custom_headers).await
    }

    async fn delete_session(
        &self,
        uri: Arc<str>,
        session_id: Arc<str>,
        auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<(), McpHttpError> {
        self.reqwest()?.delete_session(uri, session_id, auth_header, custom_headers).await
    }

    async fn get_stream(
        &self,
        uri: Arc<str>,
        session_id: Option<Arc<str>>,
        last_event_id: Option<String>,
        auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<BoxStream<'static, Result<Sse, SseError>>, McpHttpError> {
        self.wait_to_listen().await;
        let opened = self
            .reqwest()?
            .get_stream_with_max_sse_event_size(
                uri,
                session_id,
                last_event_id,
                auth_header,
                custom_headers,
                LONGEST_MESSAGE,
            )
            .await;
        match opened {
            Ok(events) => Ok(events.map(|event| event.map(replace_unreadable)).boxed()),
            Err(error @ StreamableHttpError::Client(_)) => Err(error),
            // A server need not offer this stream. One that answers otherwise is not asked again.
            Err(_) => Err(StreamableHttpError::ServerDoesNotSupportSse),
        }
    }
}

/// The events in the answer to a posted message, each with the size limit of a message.
fn parse_events(response: HttpResponse) -> BoxStream<'static, Result<Sse, SseError>> {
    let state = (response, EventLines::new(LONGEST_MESSAGE));
    let lines = stream::try_unfold(state, |(mut response, mut lines)| async {
        loop {
            if let Some(line) = lines.next_line()? {
                return Ok::<_, HttpError>(Some((line, (response, lines))));
            }
            match response.chunk().await? {
                Some(chunk) => lines.push(chunk),
                None => return Ok(None),
            }
        }
    });
    SseStream::from_bytes_stream(lines.boxed()).map(|event| event.map(replace_unreadable)).boxed()
}

/// Replaces an unreadable answer by an error, so that its caller does not wait for it.
fn replace_unreadable(mut event: Sse) -> Sse {
    let Some(data) = &event.data else { return event };
    let Err(error) = serde_json::from_str::<ServerJsonRpcMessage>(data) else { return event };
    if let Some(id) = answered_request(data.as_bytes()) {
        let odd = ErrorData::internal_error(unreadable_answer(&error), None);
        let answer = ServerJsonRpcMessage::error(odd, Some(id));
        event.data = serde_json::to_string(&answer).ok();
    }
    event
}

#[cfg(test)]
mod tests {
    use super::*;

    fn web(
        url: &str,
        headers: &[(&str, &str)],
    ) -> Result<HashMap<HeaderName, HeaderValue>, McpError> {
        let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        parse_headers(url, &headers.iter().map(own).collect::<Vec<_>>())
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
            assert!(matches!(web(url, headers), Err(McpError::InvalidSetting(_))), "{url}");
        }
    }
}
