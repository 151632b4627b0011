//! Endpoints: which URLs a secret may travel to.

use std::net::IpAddr;

use url::{Host, Url};

use super::CredentialError;
use crate::host::http::is_loopback;

/// The network location of an endpoint, by its address alone; no name is resolved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NetworkLocation {
    /// This machine.
    Loopback,
    /// A private or link-local IP address, in the same network.
    Private,
    /// Any other address, and every host name.
    Public,
}

/// Checks an endpoint and returns its location; `name` is the variable that named it. With a secret, plain http is
/// accepted only to this machine; without one, also to a private address.
pub fn check_endpoint(
    name: &'static str,
    url: &str,
    has_secret: bool,
) -> Result<NetworkLocation, CredentialError> {
    let refuse = |reason| Err(CredentialError::Endpoint { name, reason });
    let Ok(url) = Url::parse(url) else { return refuse("it is not a URL") };
    if !matches!(url.scheme(), "http" | "https") {
        return refuse("only http and https are supported");
    }
    if !url.username().is_empty() || url.password().is_some() {
        return refuse("it must not carry a user name or password");
    }
    if url.query().is_some() || url.fragment().is_some() {
        return refuse("it must not carry a query or fragment");
    }
    let Some(host) = url.host() else { return refuse("it has no host") };
    let place = locate_host(&host);
    let may_be_plain = match place {
        NetworkLocation::Loopback => true,
        NetworkLocation::Private => !has_secret,
        NetworkLocation::Public => false,
    };
    if url.scheme() == "http" && !may_be_plain {
        let is_private = place == NetworkLocation::Private;
        return Err(CredentialError::Insecure { name, host: host.to_string(), is_private });
    }
    Ok(place)
}

/// Reads a variable that may name another endpoint for tokens, which must be on this machine.
pub fn loopback_override(
    name: &'static str,
    lookup: &dyn Fn(&str) -> Option<String>,
) -> Result<Option<String>, CredentialError> {
    let Some(url) = lookup(name).filter(|value| !value.trim().is_empty()) else { return Ok(None) };
    let url = url.trim().trim_end_matches('/');
    match check_endpoint(name, url, true) {
        Ok(NetworkLocation::Loopback) => Ok(Some(url.to_owned())),
        Ok(NetworkLocation::Private | NetworkLocation::Public)
        | Err(CredentialError::Insecure { .. }) => {
            Err(CredentialError::Endpoint { name, reason: "it must be on this machine" })
        }
        Err(error) => Err(error),
    }
}

fn locate_host(host: &Host<&str>) -> NetworkLocation {
    let address = match host {
        _ if is_loopback(host) => return NetworkLocation::Loopback,
        Host::Domain(_) => return NetworkLocation::Public,
        Host::Ipv4(address) => IpAddr::V4(*address),
        Host::Ipv6(address) => address.to_canonical(),
    };
    let is_private = match address {
        IpAddr::V4(address) => address.is_private() || address.is_link_local(),
        IpAddr::V6(address) => address.is_unique_local() || address.is_unicast_link_local(),
    };
    if is_private { NetworkLocation::Private } else { NetworkLocation::Public }
}

/// Whether a text is printable ASCII without blanks; anything else could break a header or inject another one.
pub fn is_header_text(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_graphic())
}
