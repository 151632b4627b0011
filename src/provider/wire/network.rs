//! The way to an endpoint: proxies, trusted certificates, and what went wrong on it.
//!
//! Both transports take the same way, because both begin as an HTTP request of the same client: a
//! proxy or a company's root certificate that works for one works for the other.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use reqwest::{Certificate, Client, ClientBuilder, NoProxy, Proxy};

use crate::error::Kind;
use crate::provider::{ProviderError, classify};

/// Where variables name a proxy, first to last.
const PROXIES: [&str; 4] = ["https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"];

/// How an endpoint is reached. A server on this machine is reached directly, whatever it says.
#[derive(Clone, Default)]
pub struct Network {
    /// The variable that named the proxy, and the proxy.
    proxy: Option<(&'static str, String)>,
    no_proxy: Option<String>,
    /// Instead of the system's certificates: `SSL_CERT_FILE`.
    cert_file: Option<PathBuf>,
    /// Beside them: `tls.extra_roots`.
    extra_roots: Vec<PathBuf>,
    pub(super) connect: Duration,
    is_direct: bool,
    is_plain: bool,
}

/// What the client speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// Whatever the server likes best.
    Any,
    /// Only HTTP/1.1, which can become a WebSocket.
    Upgradable,
}

impl Network {
    /// Reads the variables that people know from other programs.
    pub fn from_environment(lookup: impl Fn(&str) -> Option<String>) -> Self {
        let set = |name: &str| lookup(name).filter(|value| !value.trim().is_empty());
        Self {
            proxy: PROXIES.into_iter().find_map(|name| set(name).map(|proxy| (name, proxy))),
            no_proxy: set("no_proxy").or_else(|| set("NO_PROXY")),
            cert_file: set("SSL_CERT_FILE").map(PathBuf::from),
            ..Self::default()
        }
    }

    /// Trusts these certificates too.
    #[must_use]
    pub fn trusting(mut self, extra_roots: Vec<PathBuf>) -> Self {
        self.extra_roots = extra_roots;
        self
    }

    /// The way to one endpoint.
    #[must_use]
    pub fn to(mut self, base_url: &str, is_loopback: bool, connect: Duration) -> Self {
        self.is_direct = is_loopback;
        self.is_plain = base_url.starts_with("http:");
        self.connect = connect;
        self
    }

    /// A client; certificates are read here.
    pub fn client(&self, protocol: Protocol) -> Result<Client, ProviderError> {
        let mut builder = Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(self.connect)
            .no_proxy();
        if protocol == Protocol::Upgradable {
            builder = builder.http1_only();
        }
        builder = self.proxied(builder)?;
        builder = self.trusted(builder)?;
        builder.build().map_err(|error| {
            ProviderError::terminal(Kind::Network, format!("no HTTP client: {}", told(error)))
        })
    }

    fn proxied(&self, builder: ClientBuilder) -> Result<ClientBuilder, ProviderError> {
        let Some((name, proxy)) = self.proxy.as_ref().filter(|_| !self.is_direct) else {
            return Ok(builder);
        };
        // The text is not repeated: it may hold a password.
        let proxy = Proxy::https(proxy.trim()).map_err(|_| {
            let message = format!("{name} does not name a proxy that can be used");
            ProviderError::terminal(Kind::InvalidConfig, message)
        })?;
        let spared = self.no_proxy.as_deref().and_then(NoProxy::from_string);
        Ok(builder.proxy(proxy.no_proxy(spared)))
    }

    fn trusted(&self, builder: ClientBuilder) -> Result<ClientBuilder, ProviderError> {
        if self.is_plain {
            // Root certificates take milliseconds to load and are no use without TLS.
            return Ok(builder.tls_certs_only([]));
        }
        let mut extra = Vec::new();
        for path in &self.extra_roots {
            extra.extend(certificates("tls.extra_roots", path)?);
        }
        let Some(path) = &self.cert_file else { return Ok(builder.tls_certs_merge(extra)) };
        extra.extend(certificates("SSL_CERT_FILE", path)?);
        Ok(builder.tls_certs_only(extra))
    }
}

/// Never shows the proxy, which may hold a password.
impl fmt::Debug for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Network")
            .field("proxy", &self.proxy.as_ref().map(|(name, _)| name))
            .field("cert_file", &self.cert_file)
            .field("extra_roots", &self.extra_roots)
            .finish_non_exhaustive()
    }
}

fn certificates(source: &str, path: &Path) -> Result<Vec<Certificate>, ProviderError> {
    let refuse = |reason: String| {
        let message = format!("{source}: {} {reason}", path.display());
        ProviderError::terminal(Kind::InvalidConfig, message)
    };
    let pem = std::fs::read(path).map_err(|error| refuse(format!("cannot be read: {error}")))?;
    match Certificate::from_pem_bundle(&pem) {
        Ok(found) if !found.is_empty() => Ok(found),
        _ => Err(refuse("holds no certificate in PEM form".to_owned())),
    }
}

/// What a request that brought no answer means.
pub fn unreachable(error: reqwest::Error) -> ProviderError {
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
