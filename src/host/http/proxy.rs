//! Proxy selection: the proxy of the environment, unless `NO_PROXY` exempts the endpoint.

use reqwest::{NoProxy, Proxy};
use url::{ParseError, Url};

use super::client::host_and_port;
use super::{HttpError, HttpSettings};

/// The proxy of an endpoint.
pub struct ProxyRule {
    pub rule: Proxy,
    /// Host and port, for messages.
    pub peer: String,
}

/// Finds the proxy for an endpoint that is not on this machine. Only https goes through a proxy, also with `ALL_PROXY`.
pub fn find_proxy(settings: &HttpSettings, endpoint: &Url) -> Result<Option<ProxyRule>, HttpError> {
    let Some((name, proxy)) = &settings.proxy else { return Ok(None) };
    if endpoint.scheme() != "https" {
        return Ok(None);
    }
    // The value is not repeated in the message, because it may hold a password.
    let refuse = |reason: &str| HttpError::Setting(format!("{name} {reason}"));
    let unusable = || refuse("does not name a proxy that can be used");
    let url = parse_proxy(proxy.trim()).map_err(|_| unusable())?;
    match url.scheme() {
        "http" | "https" => {}
        socks if socks.starts_with("socks") => {
            return Err(refuse("names a SOCKS proxy; only http and https proxies are supported"));
        }
        _ => return Err(unusable()),
    }
    let peer = host_and_port(&url).ok_or_else(unusable)?;
    let exempt = settings.no_proxy.as_deref().and_then(NoProxy::from_string);
    let rule = Proxy::https(url).map_err(|_| unusable())?.no_proxy(exempt);
    Ok(Some(ProxyRule { rule, peer }))
}

fn parse_proxy(proxy: &str) -> Result<Url, ParseError> {
    match Url::parse(proxy) {
        Ok(url) if url.has_host() => Ok(url),
        // `proxy.example:3128` parses as a URL of an unknown scheme.
        Ok(_) | Err(ParseError::RelativeUrlWithoutBase) => Url::parse(&format!("http://{proxy}")),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer_of(proxy: &str) -> Result<Option<String>, HttpError> {
        let settings = HttpSettings::from_environment(|name| {
            (name == "HTTPS_PROXY").then(|| proxy.to_owned())
        });
        let endpoint = Url::parse("https://api.model.example/v1").unwrap();
        Ok(find_proxy(&settings, &endpoint)?.map(|found| found.peer))
    }

    #[test]
    fn a_proxy_is_a_url_or_a_host_and_a_port() {
        for (proxy, expected) in [
            ("http://proxy.example:3128", "proxy.example:3128"),
            ("proxy.example:3128", "proxy.example:3128"),
            ("proxy.example", "proxy.example:80"),
            ("10.0.0.1:3128", "10.0.0.1:3128"),
            (" https://proxy.example ", "proxy.example:443"),
            ("http://a:b%40c@p.example:1", "p.example:1"),
        ] {
            assert_eq!(peer_of(proxy).unwrap().as_deref(), Some(expected), "{proxy}");
        }
        assert_eq!(peer_of(" ").unwrap(), None);
    }

    #[test]
    fn a_proxy_that_cannot_be_used_is_named_without_its_password() {
        for proxy in ["ftp://ada:opensesame@p.example", "socks5://ada:opensesame@p", "http://[::"] {
            let error = peer_of(proxy).unwrap_err();
            assert!(matches!(error, HttpError::Setting(_)), "{proxy}: {error:?}");
            let text = format!("{error:?}");
            assert!(text.contains("HTTPS_PROXY") && !text.contains("opensesame"), "{text}");
        }
    }
}
