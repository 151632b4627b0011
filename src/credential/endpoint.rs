//! Endpoints: which URLs a secret may travel to.

use std::net::IpAddr;

use url::Url;

use super::CredentialError;

/// Accepts an endpoint and says whether it is this machine; `name` is who named it.
pub fn check(name: &'static str, url: &str) -> Result<bool, CredentialError> {
    let refuse = |reason| Err(CredentialError::Endpoint { name, reason });
    let Ok(url) = Url::parse(url) else { return refuse("it is not a URL") };
    if !matches!(url.scheme(), "http" | "https") {
        return refuse("only http and https are spoken");
    }
    if !url.username().is_empty() || url.password().is_some() {
        return refuse("it must not carry a user name or password");
    }
    if url.query().is_some() || url.fragment().is_some() {
        return refuse("it must not carry a query or fragment");
    }
    let Some(host) = url.host_str() else { return refuse("it has no host") };
    let is_loopback = is_loopback_host(host);
    if url.scheme() == "http" && !is_loopback {
        return Err(CredentialError::Insecure { name, host: host.to_owned() });
    }
    Ok(is_loopback)
}

/// Reads a variable that may name another place for tokens: on this machine, or nowhere.
pub fn loopback_override(
    name: &'static str,
    lookup: &dyn Fn(&str) -> Option<String>,
) -> Result<Option<String>, CredentialError> {
    let Some(url) = lookup(name).filter(|value| !value.trim().is_empty()) else { return Ok(None) };
    let url = url.trim().trim_end_matches('/');
    match check(name, url) {
        Ok(true) => Ok(Some(url.to_owned())),
        Ok(false) | Err(CredentialError::Insecure { .. }) => {
            Err(CredentialError::Endpoint { name, reason: "it must be on this machine" })
        }
        Err(error) => Err(error),
    }
}

fn is_loopback_host(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']');
    host.eq_ignore_ascii_case("localhost")
        || address.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Printable ASCII without blanks: anything else would break, or smuggle, a header.
pub fn is_header_text(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_graphic())
}
