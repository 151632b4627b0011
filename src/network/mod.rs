//! Network: the one way out. Every request of Pixir's own leaves through this room, so that
//! proxies, trusted certificates and time limits are the same for a model and for a sign-in.
//!
//! HTTP/1.1 only: a call is one request and one stream, and what could share a connection has one
//! of its own. A connection has no task: whoever waits for an answer reads it, so that a piece of
//! the answer costs no wake-up between two tasks. No redirect is followed, and nothing that has
//! left is sent again.

mod body;
mod client;
mod head;
mod line;
mod route;
#[cfg(test)]
mod tests;
mod trust;
mod wire;

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

pub use client::Client;
pub use line::Response;
pub use wire::Wire;

use crate::error::{Explain, Kind};

/// Where variables name a proxy, first to last.
const PROXIES: [&str; 4] = ["https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"];

/// How endpoints are reached. A server on this machine is reached directly, whatever it says.
#[derive(Clone, Default)]
pub struct Network {
    /// The variable that named the proxy, and the proxy.
    proxy: Option<(&'static str, String)>,
    no_proxy: Option<String>,
    /// Instead of the system's certificates: `SSL_CERT_FILE`.
    cert_file: Option<PathBuf>,
    /// Beside them: `tls.extra_roots`.
    extra_roots: Vec<PathBuf>,
}

/// One server, and how much patience it gets.
#[derive(Debug, Clone)]
pub struct Endpoint {
    /// What every path is appended to; without a final slash.
    pub base_url: String,
    /// Whether it is this machine, which no proxy stands before.
    pub is_loopback: bool,
    /// How long it may take until a connection stands, proxy and TLS included.
    pub connect: Duration,
}

impl Network {
    /// Reads the variables that people know from other programs.
    pub fn from_environment(lookup: impl Fn(&str) -> Option<String>) -> Self {
        let set = |name: &str| lookup(name).filter(|value| !value.trim().is_empty());
        Self {
            proxy: PROXIES.into_iter().find_map(|name| set(name).map(|proxy| (name, proxy))),
            no_proxy: set("no_proxy").or_else(|| set("NO_PROXY")),
            cert_file: set("SSL_CERT_FILE").map(PathBuf::from),
            extra_roots: Vec::new(),
        }
    }

    /// Trusts these certificates too.
    #[must_use]
    pub fn trusting(mut self, extra_roots: Vec<PathBuf>) -> Self {
        self.extra_roots = extra_roots;
        self
    }

    /// A client of one endpoint. Nothing is read or connected before its first request.
    pub fn client(self, endpoint: Endpoint) -> Client {
        Client::new(self, endpoint)
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

/// Why there is no answer.
#[derive(Debug, Clone, thiserror::Error)]
pub enum NetworkError {
    /// A setting or variable cannot be used, and will not be usable in a second.
    #[error("{0}")]
    Setting(String),
    /// The request cannot be made, whoever would hear it.
    #[error("{0}")]
    Unusable(String),
    /// No connection came to stand.
    #[error("{0}")]
    Connect(String),
    /// The connection stood, and broke.
    #[error("{0}")]
    Broken(String),
}

impl NetworkError {
    /// Names the other end of a connection that broke; the other errors name theirs already.
    #[must_use]
    fn with_peer(self, peer: &str) -> Self {
        match self {
            Self::Broken(causes) => Self::Broken(format!("{causes} ({peer})")),
            other => other,
        }
    }
}

impl Explain for NetworkError {
    fn kind(&self) -> Kind {
        match self {
            Self::Setting(_) => Kind::InvalidConfig,
            Self::Unusable(_) => Kind::Internal,
            Self::Connect(_) | Self::Broken(_) => Kind::Network,
        }
    }
}

/// The error and its causes in one line.
fn told(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(source) = cause {
        let next = source.to_string();
        // An error that repeats its cause is told once.
        if !text.ends_with(&next) {
            text = format!("{text}: {next}");
        }
        cause = source.source();
    }
    text
}
