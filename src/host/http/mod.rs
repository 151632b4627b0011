//! HTTP client: every request of Pixir leaves through this module, so that proxies, trusted
//! certificates, limits and error texts are the same for models, sign-in and MCP servers.
//!
//! HTTP/1.1 only, because a call is one request and one stream. No redirect is followed, so that a
//! credential goes to its own endpoint only. A request that was sent is never repeated.

mod client;
mod event_lines;
mod proxy;
#[cfg(test)]
mod tests;
mod tls;

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use url::Host;

pub use client::{HttpClient, HttpResponse};
pub use event_lines::EventLines;

use crate::base::error::{Explain, Explanation, Kind};

/// Variables that name a proxy; the first one that is set is used.
const PROXY_VARIABLES: [&str; 4] = ["https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"];

/// Proxy and trusted certificates. An endpoint on this machine is always reached directly.
#[derive(Clone, Default)]
pub struct HttpSettings {
    /// The variable that named the proxy, and the proxy.
    proxy: Option<(&'static str, String)>,
    no_proxy: Option<String>,
    /// The certificates that replace those of the system: `SSL_CERT_FILE`.
    cert_file: Option<PathBuf>,
    /// Certificates that are trusted as well: `tls.extra_roots`.
    extra_roots: Vec<PathBuf>,
}

impl HttpSettings {
    /// Reads the standard variables for proxies and certificates.
    pub fn from_environment(lookup: impl Fn(&str) -> Option<String>) -> Self {
        let set = |name: &str| lookup(name).filter(|value| !value.trim().is_empty());
        let proxy = PROXY_VARIABLES.into_iter().find_map(|name| Some((name, set(name)?)));
        Self {
            proxy,
            no_proxy: set("no_proxy").or_else(|| set("NO_PROXY")),
            cert_file: set("SSL_CERT_FILE").map(PathBuf::from),
            extra_roots: Vec::new(),
        }
    }

    /// Trusts the certificates in these files too.
    #[must_use]
    pub fn with_extra_certificates(mut self, extra_roots: Vec<PathBuf>) -> Self {
        self.extra_roots = extra_roots;
        self
    }

    /// A client of one endpoint; `base_url` is the prefix of every path, without a final slash, and
    /// `connect` limits opening a connection, proxy and TLS included. Nothing is read or connected
    /// before the first request.
    pub fn client(self, base_url: String, connect: Duration) -> HttpClient {
        HttpClient::new(self, base_url, connect)
    }
}

/// Omits the value of the proxy, which may hold a password.
impl fmt::Debug for HttpSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpSettings")
            .field("proxy", &self.proxy.as_ref().map(|(name, _)| name))
            .field("cert_file", &self.cert_file)
            .field("extra_roots", &self.extra_roots)
            .finish_non_exhaustive()
    }
}

/// Whether a host is this machine, and therefore reached without a proxy. No name is looked up.
pub fn is_loopback(host: &Host<&str>) -> bool {
    match host {
        Host::Domain(name) => name.eq_ignore_ascii_case("localhost"),
        Host::Ipv4(address) => address.is_loopback(),
        Host::Ipv6(address) => address.to_canonical().is_loopback(),
    }
}

/// Error of a request without a complete response.
#[derive(Debug, Clone, thiserror::Error)]
pub enum HttpError {
    /// A setting or variable cannot be used; repeating the request does not help.
    #[error("{0}")]
    Setting(String),
    /// The request cannot be built.
    #[error("{0}")]
    InvalidRequest(String),
    /// No connection could be opened.
    #[error("{0}")]
    Connect(String),
    /// The TLS handshake failed, for example because of a certificate.
    #[error("{0}")]
    Tls(String),
    /// The connection broke, or the response was not HTTP.
    #[error("{0}")]
    Broken(String),
    /// A line or event of a stream was longer than allowed.
    #[error("{0}")]
    TooLong(String),
}

impl Explain for HttpError {
    fn explain(&self) -> Explanation {
        let kind = match self {
            Self::Setting(_) => Kind::InvalidConfig,
            Self::InvalidRequest(_) => Kind::Internal,
            Self::Connect(_) | Self::Broken(_) => Kind::Network,
            Self::Tls(_) => Kind::Tls,
            Self::TooLong(_) => Kind::InvalidResponse,
        };
        kind.into()
    }
}
