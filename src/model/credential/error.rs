//! Errors of credentials and sign-in, with next actions.

use std::path::{Path, PathBuf};

use serde_json::json;

use super::DEFAULT_BASE_URL;
use crate::base::error::{Explain, Explanation, Kind};
use crate::base::files::StateError;

/// Why there is no usable credential.
#[derive(Debug, thiserror::Error)]
pub enum CredentialError {
    /// There is neither a sign-in nor an API key.
    #[error("no credential: not signed in, and OPENAI_API_KEY is not set")]
    Missing,
    /// The API key was requested and is not set.
    #[error("the credential `api-key` was requested, and OPENAI_API_KEY is not set")]
    NoKey,
    /// The subscription was requested, or its sign-in was removed meanwhile.
    #[error("not signed in with ChatGPT")]
    SignedOut,
    /// The subscription was requested together with another endpoint.
    #[error(
        "the credential `chatgpt` was requested, but with OPENAI_BASE_URL set only an API key can be used"
    )]
    Conflict,
    /// A value that cannot be a header; it is not repeated, because it may be a secret.
    #[error("{0} contains blanks, control characters or non-ASCII text")]
    NotHeaderText(&'static str),
    /// The URL of an endpoint cannot be used.
    #[error("{name} cannot be used: {reason}")]
    Endpoint {
        /// The variable that named it.
        name: &'static str,
        /// The reason why the URL cannot be used.
        reason: &'static str,
    },
    /// Requests would be sent in clear text.
    #[error("{name} is plain http to {host}, where others could read what is sent")]
    Insecure {
        /// The variable that named it.
        name: &'static str,
        /// The host that was named.
        host: String,
        /// Whether it is a private address, where plain http is used without a key.
        is_private: bool,
    },
    /// The stored tokens cannot be parsed; the file is left as it is.
    #[error("the stored sign-in {path} is damaged: {reason}")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The reason, without the content of the file.
        reason: String,
    },
    /// The stored tokens cannot be read.
    #[error("the stored sign-in {path} cannot be read")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The tokens cannot be stored.
    #[error("the sign-in cannot be stored in {path}")]
    Unwritable {
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The store or its lock is a link, a special file, or owned by another user.
    #[error("the stored sign-in is not used: {0}")]
    Unsafe(StateError),
    /// The sign-in has ended; the user must sign in again.
    #[error("the sign-in with ChatGPT has ended: {message}")]
    Ended {
        /// The issuer's error code.
        code: String,
        /// The issuer's message.
        message: String,
    },
    /// Another account signed in during this run.
    #[error("another account has signed in since this run began")]
    AccountChanged,
    /// The issuer could not be reached, or its answer was unusable; another attempt may help.
    #[error("the sign-in service could not be used: {message}")]
    Unavailable {
        /// The cause.
        message: String,
    },
    /// A setting or variable of the connection to the issuer cannot be used.
    #[error("{message}")]
    Setting {
        /// The name and the reason, without the value, which may hold a password.
        message: String,
    },
    /// The issuer or the user refused the sign-in.
    #[error("the sign-in was refused: {message}")]
    Refused {
        /// The issuer's error code.
        code: String,
        /// The issuer's message.
        message: String,
    },
    /// Sign-in by code is not offered.
    #[error("the sign-in service does not offer sign-in by code")]
    NoDeviceLogin,
    /// The user did not finish in time.
    #[error("the sign-in was not finished within {minutes} minutes")]
    TooLate {
        /// How long Pixir waited.
        minutes: u64,
    },
    /// No redirect port is free.
    #[error("no port on this machine is free for the browser's redirect")]
    NoPort,
    /// A bug, or a machine without randomness.
    #[error("{0}")]
    Internal(String),
}

impl CredentialError {
    /// Whether another attempt may help without any change.
    pub fn is_passing(&self) -> bool {
        matches!(self, CredentialError::Unavailable { .. })
    }
}

impl Explain for CredentialError {
    fn explain(&self) -> Explanation {
        let sign_in = "sign in with `pixir login`";
        let file = |path: &Path| json!({ "path": path.to_string_lossy() });
        let refused = |code: &str| match code {
            "" => Kind::AuthRefused.into(),
            code => Kind::AuthRefused.with_details(json!({ "code": code })),
        };
        match self {
            CredentialError::Missing => Kind::NotAuthenticated
                .with_next_action(sign_in)
                .with_next_action("or set OPENAI_API_KEY")
                .with_next_action("or try Pixir without an account: `pixir demo`"),
            CredentialError::NoKey => Kind::NotAuthenticated
                .with_next_action("set OPENAI_API_KEY")
                .with_next_action(
                    "or let Pixir choose: remove `--credential`, and `credential` from the config",
                ),
            CredentialError::SignedOut | CredentialError::AccountChanged => {
                Kind::NotAuthenticated.with_next_action(sign_in)
            }
            CredentialError::Ended { code, .. } => refused(code)
                .with_next_action("sign in again with `pixir login`")
                .with_next_action("or use a key: OPENAI_API_KEY and `--credential api-key`"),
            CredentialError::Conflict => Kind::InvalidConfig
                .with_next_action("unset OPENAI_BASE_URL, or use `--credential api-key`"),
            CredentialError::NotHeaderText(name) => Kind::NotAuthenticated.with_next_action(
                format!("set {name} again, without quotes, blanks or line breaks"),
            ),
            CredentialError::Endpoint { name: "OPENAI_BASE_URL", .. } => Kind::InvalidConfig
                .with_next_action(format!(
                    "set OPENAI_BASE_URL to something like {DEFAULT_BASE_URL}"
                )),
            CredentialError::Endpoint { name, .. } => Kind::InvalidConfig
                .with_next_action(format!("unset {name}: it is for tests, on this machine")),
            CredentialError::Insecure { is_private: true, .. } => Kind::InsecureTransport
                .with_next_action(
                    "use https, or leave out the key: without one, plain http to a private address works",
                ),
            CredentialError::Insecure { is_private: false, .. } => Kind::InsecureTransport
                .with_next_action("use https, or a server on this machine (127.0.0.1, ::1, localhost)")
                .with_next_action(
                    "or, without a key, the IP address of a server in your own network, such as 192.168.1.20",
                ),
            CredentialError::Damaged { path, .. } => Kind::NotAuthenticated
                .with_details(file(path))
                .with_next_action(format!("inspect {}, or move it away", path.display()))
                .with_next_action("then sign in again with `pixir login`, which replaces it"),
            CredentialError::Unreadable { path, .. } => Kind::ReadFailed
                .with_details(file(path))
                .with_next_action(format!("make {} readable for you", path.display())),
            CredentialError::Unwritable { path, .. } => {
                let path_shown = path.display();
                Kind::WriteFailed.with_details(file(path)).with_next_action(format!(
                    "make {path_shown} writable for you, and free space on its disk"
                ))
            }
            CredentialError::Unsafe(error) => error.explain(),
            CredentialError::Unavailable { .. } => Kind::Network
                .with_next_action("check the network and the proxy, and try again"),
            CredentialError::Setting { .. } => {
                Kind::InvalidConfig.with_next_action("correct it, or unset it")
            }
            CredentialError::Refused { code, .. } => {
                refused(code).with_next_action("start again with `pixir login`")
            }
            CredentialError::TooLate { .. } => {
                Kind::Timeout.with_next_action("start again with `pixir login`")
            }
            CredentialError::NoDeviceLogin => {
                Kind::AuthRefused.with_next_action("sign in with a browser: `pixir login`")
            }
            CredentialError::NoPort => {
                Kind::Internal.with_next_action("sign in by code: `pixir login --device-code`")
            }
            CredentialError::Internal(_) => Kind::Internal.into(),
        }
    }
}
