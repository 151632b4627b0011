//! Transports: how requests are sent and how events come back, whatever the dialect.

pub mod clock;
pub mod sse;
pub mod websocket;

use super::{ProviderError, classify};
use crate::error::Kind;
use crate::http::HttpError;

/// The error of a call whose request got no answer, or not all of it.
impl From<HttpError> for ProviderError {
    fn from(error: HttpError) -> Self {
        let network = |what: &str, cause: &str| format!("{what}: {}", classify::cut(cause));
        match error {
            HttpError::Setting(message) => Self::terminal(Kind::InvalidConfig, message),
            HttpError::InvalidRequest(cause) => {
                Self::terminal(Kind::Network, network("no request could be made", &cause))
            }
            HttpError::Connect(cause) => {
                Self::passing(Kind::Network, network("the Provider could not be reached", &cause))
            }
            // A certificate that is not trusted now will not be trusted in a second.
            HttpError::Tls(cause) => {
                Self::terminal(Kind::Tls, network("the Provider could not be reached", &cause))
            }
            HttpError::Broken(cause) => {
                Self::passing(Kind::Network, network("the connection broke", &cause))
            }
            HttpError::TooLong(message) => Self::terminal(Kind::InvalidResponse, message),
        }
    }
}
