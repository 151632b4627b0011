//! Transports: SSE and WebSocket, independent of the API that uses them.

pub mod clock;
pub mod sse;
pub mod websocket;

use super::{ProviderError, classify};
use crate::base::error::Kind;
use crate::host::http::HttpError;

/// An HTTP failure as the error of a call.
impl From<HttpError> for ProviderError {
    fn from(error: HttpError) -> Self {
        let network =
            |what: &str, cause: &str| format!("{what}: {}", classify::truncate_message(cause));
        match error {
            HttpError::Setting(message) => Self::terminal(Kind::InvalidConfig, message),
            HttpError::InvalidRequest(cause) => {
                Self::terminal(Kind::Network, network("no request could be made", &cause))
            }
            HttpError::Connect(cause) => {
                Self::transient(Kind::Network, network("the Provider could not be reached", &cause))
            }
            // Not retried: an untrusted certificate stays untrusted.
            HttpError::Tls(cause) => {
                Self::terminal(Kind::Tls, network("the Provider could not be reached", &cause))
            }
            HttpError::Broken(cause) => {
                Self::transient(Kind::Network, network("the connection broke", &cause))
            }
            HttpError::TooLong(message) => Self::terminal(Kind::InvalidResponse, message),
        }
    }
}
