//! HTTP client of one endpoint, and its responses: reqwest with Pixir's limits and error texts.

use std::error::Error;
use std::fmt;
use std::io;
use std::sync::OnceLock;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use http::{HeaderMap, Method, StatusCode};
use reqwest::{Upgraded, redirect, retry};
use url::Url;

use super::{HttpError, HttpSettings, is_loopback, proxy, tls};

/// Unused connections per host, and how long they are kept.
const IDLE_CONNECTIONS: usize = 4;
const IDLE_TIME: Duration = Duration::from_secs(90);

/// The maximum number of headers in a response. hyper limits their bytes to 400 KiB.
const MOST_HEADERS: usize = 200;

/// The interval at which the kernel probes a silent connection, and the number of probes that may be lost.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
const KEEP_ALIVE_RETRIES: u32 = 3;

/// Time limit for the acknowledgement of sent bytes.
#[cfg(target_os = "linux")]
const USER_TIMEOUT: Duration = Duration::from_secs(30);

/// A client of one endpoint. It is built by its first request.
pub struct HttpClient {
    settings: HttpSettings,
    base_url: String,
    connect: Duration,
    /// Host and port of the endpoint, for messages.
    peer: String,
    built: OnceLock<Result<BuiltClient, HttpError>>,
}

struct BuiltClient {
    client: reqwest::Client,
    /// Host and port of the proxy before the endpoint, for messages.
    proxy: Option<String>,
}

impl HttpClient {
    pub(super) fn new(settings: HttpSettings, base_url: String, connect: Duration) -> Self {
        let url = Url::parse(&base_url).ok();
        let peer = url.as_ref().and_then(host_and_port).unwrap_or_default();
        Self { settings, base_url, connect, peer, built: OnceLock::new() }
    }

    /// Host and port of the endpoint, for messages.
    pub fn peer(&self) -> &str {
        &self.peer
    }

    /// The reqwest client with Pixir's policy, for a library that takes one.
    pub fn reqwest(&self) -> Result<&reqwest::Client, HttpError> {
        self.built_client().map(|built| &built.client)
    }

    /// Sends a GET request; `path` is appended to the endpoint's URL.
    pub async fn get(&self, path: &str, headers: HeaderMap) -> Result<HttpResponse, HttpError> {
        self.send(Method::GET, path, headers, Bytes::new()).await
    }

    /// Sends a POST request and waits for the head of the response.
    pub async fn post(
        &self,
        path: &str,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<HttpResponse, HttpError> {
        self.send(Method::POST, path, headers, body).await
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<HttpResponse, HttpError> {
        let built = self.built_client()?;
        let url = self.url(path)?;
        let request = built.client.request(method, url).headers(headers).body(body);
        let response = request.send().await.map_err(|error| self.request_error(&error, built))?;
        Ok(HttpResponse { response, peer: self.peer.as_str().into() })
    }

    fn url(&self, path: &str) -> Result<Url, HttpError> {
        let text = format!("{}{path}", self.base_url);
        Url::parse(&text)
            .map_err(|error| HttpError::InvalidRequest(format!("{text} is not a URL: {error}")))
    }

    fn built_client(&self) -> Result<&BuiltClient, HttpError> {
        self.built.get_or_init(|| self.build_client()).as_ref().map_err(Clone::clone)
    }

    fn build_client(&self) -> Result<BuiltClient, HttpError> {
        let url = self.url("")?;
        let is_direct = url.host().is_some_and(|host| is_loopback(&host));
        let proxy = if is_direct { None } else { proxy::find_proxy(&self.settings, &url)? };
        let tls = tls::tls_config(&self.settings, &url)?;
        let builder = reqwest::Client::builder()
            .http1_only()
            .http1_max_headers(MOST_HEADERS)
            .redirect(redirect::Policy::none())
            .referer(false)
            .retry(retry::never())
            .no_proxy()
            .connect_timeout(self.connect)
            .pool_max_idle_per_host(IDLE_CONNECTIONS)
            .pool_idle_timeout(IDLE_TIME)
            .tcp_nodelay(true)
            .tcp_keepalive(KEEP_ALIVE)
            .tcp_keepalive_interval(KEEP_ALIVE)
            .tcp_keepalive_retries(KEEP_ALIVE_RETRIES)
            .tls_backend_preconfigured(tls);
        #[cfg(target_os = "linux")]
        let builder = builder.tcp_user_timeout(USER_TIMEOUT);
        let (builder, proxy) = match proxy {
            Some(proxy) => (builder.proxy(proxy.rule), Some(proxy.peer)),
            None => (builder, None),
        };
        let invalid = |error: reqwest::Error| HttpError::InvalidRequest(root_cause(&error));
        Ok(BuiltClient { client: builder.build().map_err(invalid)?, proxy })
    }

    fn request_error(&self, error: &reqwest::Error, built: &BuiltClient) -> HttpError {
        let peer = &self.peer;
        if error.is_builder() {
            return HttpError::InvalidRequest(root_cause(error));
        }
        if !error.is_connect() {
            return HttpError::Broken(format!("{} ({peer})", root_cause(error)));
        }
        if is_tls(error) {
            let cause = root_cause(error);
            return HttpError::Tls(format!("the TLS handshake with {peer} failed: {cause}"));
        }
        let through = match &built.proxy {
            Some(proxy) => format!(" through the proxy {proxy}"),
            None => String::new(),
        };
        let reason = if error.is_timeout() {
            format!(" within {} s", self.connect.as_secs_f64())
        } else {
            format!(": {}", root_cause(error))
        };
        HttpError::Connect(format!("no connection to {peer}{through}{reason}"))
    }
}

/// Omits headers and proxy, which may be private.
impl fmt::Debug for HttpClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpClient").field("base_url", &self.base_url).finish_non_exhaustive()
    }
}

/// Host and port of a URL; the port is the default of its scheme if the URL names none.
pub fn host_and_port(url: &Url) -> Option<String> {
    Some(format!("{}:{}", url.host_str()?, url.port_or_known_default()?))
}

/// The innermost error. The outer ones only name the libraries in between.
fn root_cause(error: &reqwest::Error) -> String {
    let mut cause: &dyn Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

/// Whether TLS refused the connection.
fn is_tls(error: &reqwest::Error) -> bool {
    let mut cause: Option<&dyn Error> = Some(error);
    while let Some(error) = cause {
        // An `io::Error` carries its error without naming it as source.
        let carried = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        if error.is::<rustls::Error>()
            || carried.is_some_and(<dyn Error + Send + Sync>::is::<rustls::Error>)
        {
            return true;
        }
        cause = error.source();
    }
    false
}

/// An HTTP response whose body is read in chunks. Dropping it abandons the call.
pub struct HttpResponse {
    response: reqwest::Response,
    /// Host and port of the server, for messages.
    peer: Box<str>,
}

impl HttpResponse {
    /// Host and port of the server, for messages.
    pub fn peer(&self) -> &str {
        &self.peer
    }

    pub fn status(&self) -> StatusCode {
        self.response.status()
    }

    pub fn headers(&self) -> &HeaderMap {
        self.response.headers()
    }

    /// The value of a header, if it is text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers().get(name).and_then(|value| value.to_str().ok())
    }

    /// Waits for the next chunk of the body; `None` at its end.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, HttpError> {
        let chunk = self.response.chunk().await;
        chunk.map_err(|error| HttpError::Broken(format!("{} ({})", root_cause(&error), self.peer)))
    }

    /// The next chunk of the body, if it has arrived already.
    pub fn available_chunk(&mut self) -> Option<Result<Option<Bytes>, HttpError>> {
        self.chunk().now_or_never()
    }

    /// The whole body; `None` when it has more than `longest` bytes.
    pub async fn read_body(mut self, longest: usize) -> Result<Option<Vec<u8>>, HttpError> {
        let mut body = Vec::new();
        while let Some(chunk) = self.chunk().await? {
            body.extend_from_slice(&chunk);
            if body.len() > longest {
                return Ok(None);
            }
        }
        Ok(Some(body))
    }

    /// The bare connection, after the server agreed to switch protocols.
    pub async fn upgrade(self) -> Result<Upgraded, HttpError> {
        let upgraded = self.response.upgrade().await;
        upgraded
            .map_err(|error| HttpError::Broken(format!("{} ({})", root_cause(&error), self.peer)))
    }
}

/// Omits headers and content, which may be private.
impl fmt::Debug for HttpResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpResponse").field("status", &self.status()).finish_non_exhaustive()
    }
}
