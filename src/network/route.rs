//! A route: from here to an endpoint, directly or through a proxy, and through TLS where it asks
//! for it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{HOST, PROXY_AUTHORIZATION};
use http::{HeaderMap, HeaderValue, Method, Uri};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::proxy::matcher::{Intercept, Matcher};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;
use tower_service::Service;
use url::{ParseError, Url};

use super::line::{Line, Request};
use super::wire::Wire;
use super::{Endpoint, Network, NetworkError, told, trust};

/// How often the kernel asks a silent peer whether it is there, and how often in vain.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
const KEEP_ALIVE_RETRIES: u32 = 3;

/// How long what we sent may go unacknowledged.
#[cfg(target_os = "linux")]
const USER_TIMEOUT: Duration = Duration::from_secs(30);

/// The way to one endpoint.
pub struct Route {
    /// The endpoint, without a path that matters.
    to: Uri,
    proxy: Option<Intercept>,
    tls: Option<Arc<ClientConfig>>,
    connect: Duration,
    /// The endpoint's host and port, for messages.
    peer: String,
}

/// Never shows the proxy's password.
impl fmt::Debug for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Route").field("to", &self.to).finish_non_exhaustive()
    }
}

impl Route {
    /// Finds the way; certificates are read here.
    pub fn find(network: &Network, endpoint: &Endpoint) -> Result<Self, NetworkError> {
        let to = address(&endpoint.base_url)?;
        let proxy = if endpoint.is_loopback { None } else { proxy(network, &to)? };
        let is_tls = |uri: &Uri| uri.scheme_str() == Some("https");
        let needs_tls = is_tls(&to) || proxy.as_ref().is_some_and(|proxy| is_tls(proxy.uri()));
        let tls = if needs_tls { Some(trust::trusted(network)?) } else { None };
        let peer = host_and_port(&to);
        Ok(Self { to, proxy, tls, connect: endpoint.connect, peer })
    }

    /// Opens a connection, in time or not at all.
    pub async fn open(&self) -> Result<Line, NetworkError> {
        let opening = tokio::time::timeout(self.connect, async {
            let wire = match &self.proxy {
                Some(proxy) => self.tunnel(proxy).await?,
                None => self.dial(&self.to).await?,
            };
            Ok(Line::over(self.secured(wire, &self.to).await?))
        });
        opening.await.unwrap_or_else(|_| {
            // A proxy that is silent and an endpoint that is silent behind it look the same.
            let to = self.proxy.as_ref().map_or(&self.to, Intercept::uri);
            let message = format!("within {} s", self.connect.as_secs_f64());
            Err(no_connection(to, &format!(" {message}")))
        })
    }

    /// Connects to a host, at whichever of its addresses answers.
    async fn dial(&self, to: &Uri) -> Result<Wire, NetworkError> {
        let mut connector = HttpConnector::new();
        connector.enforce_http(false);
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(self.connect));
        connector.set_keepalive(Some(KEEP_ALIVE));
        connector.set_keepalive_interval(Some(KEEP_ALIVE));
        connector.set_keepalive_retries(Some(KEEP_ALIVE_RETRIES));
        #[cfg(target_os = "linux")]
        connector.set_tcp_user_timeout(Some(USER_TIMEOUT));
        let connected = connector.call(to.clone()).await;
        let stream =
            connected.map_err(|error| no_connection(to, &format!(": {}", told(&error))))?;
        Ok(Wire::Plain(stream.into_inner()))
    }

    /// Asks a proxy for a tunnel to the endpoint.
    async fn tunnel(&self, proxy: &Intercept) -> Result<Wire, NetworkError> {
        let name = host_and_port(proxy.uri());
        let refused = |reason: String| {
            NetworkError::Connect(format!("the proxy {name} gave no tunnel: {reason}"))
        };
        let wire = self.dial(proxy.uri()).await?;
        let mut line = Line::over(self.secured(wire, proxy.uri()).await?);
        let target = self.peer.clone();
        let mut headers = HeaderMap::new();
        let odd = |_| refused("the host is none".to_owned());
        headers.insert(HOST, HeaderValue::from_str(&target).map_err(odd)?);
        if let Some(basic) = proxy.basic_auth() {
            let mut basic = basic.clone();
            basic.set_sensitive(true);
            headers.insert(PROXY_AUTHORIZATION, basic);
        }
        let request = Request { method: Method::CONNECT, target, headers, body: Bytes::new() };
        let answer = line.exchange(&request).await.map_err(|lost| refused(told(&lost.error)))?;
        if !answer.status.is_success() {
            return Err(refused(format!("it answered with status {}", answer.status.as_u16())));
        }
        let (wire, early) = line.into_wire();
        // A server that speaks first would be no HTTP server.
        if early.is_empty() { Ok(wire) } else { Err(refused("it spoke first".to_owned())) }
    }

    async fn secured(&self, wire: Wire, to: &Uri) -> Result<Wire, NetworkError> {
        let (Some("https"), Some(config)) = (to.scheme_str(), &self.tls) else { return Ok(wire) };
        let host = to.host().unwrap_or_default().trim_matches(['[', ']']);
        let name = ServerName::try_from(host.to_owned())
            .map_err(|error| NetworkError::Unusable(format!("{host}: {error}")))?;
        let stream = TlsConnector::from(config.clone()).connect(name, wire).await;
        let stream = stream.map_err(|error| {
            let peer = host_and_port(to);
            NetworkError::Connect(format!("the TLS handshake with {peer} failed: {}", told(&error)))
        })?;
        Ok(Wire::Tls(Box::new(stream)))
    }

    /// The endpoint's host and port, for messages.
    pub fn peer(&self) -> &str {
        &self.peer
    }

    /// The `Host` of every request.
    pub fn host(&self) -> Result<HeaderValue, NetworkError> {
        let authority = self.to.authority().map_or("", http::uri::Authority::as_str);
        HeaderValue::from_str(authority)
            .map_err(|_| NetworkError::Unusable(format!("{authority:?} is no host")))
    }
}

/// Host and port of a URL, with the port that its scheme implies where it names none.
fn host_and_port(uri: &Uri) -> String {
    let host = uri.host().unwrap_or_default();
    let usual = if uri.scheme_str() == Some("http") { 80 } else { 443 };
    format!("{host}:{}", uri.port_u16().unwrap_or(usual))
}

fn no_connection(to: &Uri, why: &str) -> NetworkError {
    NetworkError::Connect(format!("no connection to {}{why}", host_and_port(to)))
}

/// A URL as HTTP wants it, whatever letters a person wrote it in.
pub fn address(url: &str) -> Result<Uri, NetworkError> {
    let unusable = |reason: String| NetworkError::Unusable(format!("{url} is no URL: {reason}"));
    let parsed = Url::parse(url).map_err(|error| unusable(error.to_string()))?;
    parsed.as_str().parse().map_err(|error: http::uri::InvalidUri| unusable(error.to_string()))
}

/// The proxy before an endpoint, unless it is spared.
fn proxy(network: &Network, to: &Uri) -> Result<Option<Intercept>, NetworkError> {
    let Some((name, proxy)) = &network.proxy else { return Ok(None) };
    // The text is not repeated: it may hold a password.
    let refuse = |reason: &str| NetworkError::Setting(format!("{name} {reason}"));
    let useless = || refuse("does not name a proxy that can be used");
    let proxy = proxy.trim();
    let url = match Url::parse(proxy) {
        Ok(url) if url.has_host() => Ok(url),
        // `proxy.example:3128` looks like a URL of an unknown kind.
        Ok(_) | Err(ParseError::RelativeUrlWithoutBase) => Url::parse(&format!("http://{proxy}")),
        Err(error) => Err(error),
    };
    let url = url.map_err(|_| useless())?;
    if url.scheme().starts_with("socks") {
        return Err(refuse("names a SOCKS proxy; only http and https proxies are spoken to"));
    }
    let always = Matcher::builder().https(url.as_str()).build();
    if always.intercept(&Uri::from_static("https://pixir.invalid/")).is_none() {
        return Err(useless());
    }
    let spared = network.no_proxy.as_deref().unwrap_or_default();
    Ok(Matcher::builder().https(url.as_str()).no(spared).build().intercept(to))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn through(proxy: &str, no_proxy: &str, to: &str) -> Result<Option<String>, NetworkError> {
        let network = Network::from_environment(|name| match name {
            "HTTPS_PROXY" => Some(proxy.to_owned()),
            "NO_PROXY" => Some(no_proxy.to_owned()),
            _ => None,
        });
        let found = super::proxy(&network, &address(to).unwrap())?;
        Ok(found.map(|found| {
            let basic = found.basic_auth().map(|basic| basic.to_str().unwrap().to_owned());
            format!("{} {}", found.uri(), basic.unwrap_or_default()).trim_end().to_owned()
        }))
    }

    #[test]
    fn a_proxy_is_found_spared_or_refused() {
        const TO: &str = "https://api.model.example/v1";
        for (proxy, no_proxy, expected) in [
            ("http://proxy.example:3128", "", Some("http://proxy.example:3128/")),
            ("proxy.example:3128", "", Some("http://proxy.example:3128/")),
            ("proxy.example", "", Some("http://proxy.example/")),
            ("10.0.0.1:3128", "", Some("http://10.0.0.1:3128/")),
            (" https://proxy.example ", "", Some("https://proxy.example/")),
            ("http://a:b@p.example:1", "", Some("http://p.example:1/ Basic YTpi")),
            ("http://a:b%40c@p.example:1", "", Some("http://p.example:1/ Basic YTpiQGM=")),
            ("http://p.example:1", "model.example", None),
            ("http://p.example:1", "other, .model.example", None),
            ("http://p.example:1", "*", None),
            ("http://p.example:1", "odel.example", Some("http://p.example:1/")),
        ] {
            let found = through(proxy, no_proxy, TO).unwrap();
            assert_eq!(found.as_deref(), expected, "{proxy} {no_proxy}");
        }
        for proxy in ["ftp://ada:opensesame@p.example", "socks5://ada:opensesame@p", "http://[::"] {
            let error = through(proxy, "", TO).unwrap_err();
            assert!(matches!(error, NetworkError::Setting(_)), "{proxy}: {error:?}");
            let text = format!("{error:?}");
            assert!(text.contains("HTTPS_PROXY") && !text.contains("opensesame"), "{text}");
        }
    }

    #[test]
    fn a_url_is_written_as_http_wants_it() {
        for (url, expected) in [
            ("https://API.Model.example:443/v1", "https://api.model.example/v1"),
            ("http://127.0.0.1:80", "http://127.0.0.1/"),
            ("http://[::1]:8080/v1?a=b c", "http://[::1]:8080/v1?a=b%20c"),
            ("https://bücher.example/v1", "https://xn--bcher-kva.example/v1"),
        ] {
            assert_eq!(address(url).unwrap().to_string(), expected);
        }
        assert!(matches!(address("nonsense"), Err(NetworkError::Unusable(_))));
    }
}
