//! Why there is no usable credential, in words that say what to do about it.

use std::path::PathBuf;

use serde_json::{Value, json};

use super::DEFAULT_BASE_URL;
use crate::error::{Explain, Kind};
use crate::files::StateError;

/// Why there is no usable credential.
#[derive(Debug, thiserror::Error)]
pub enum CredentialError {
    /// Nobody is signed in.
    #[error("no credential: nobody is signed in and OPENAI_API_KEY is not set")]
    Missing,
    /// The API key was asked for and is not there.
    #[error("the API key is to be used, and OPENAI_API_KEY is not set")]
    NoKey,
    /// The subscription was asked for, or was there a moment ago.
    #[error("nobody is signed in with ChatGPT")]
    SignedOut,
    /// The subscription was asked for together with somebody else's endpoint.
    #[error("with OPENAI_BASE_URL set, only an API key is used, and ChatGPT was asked for")]
    Conflict,
    /// A value that cannot be a header; its text is not repeated, because it may be a secret.
    #[error("{0} contains blanks, control characters or non-ASCII text")]
    Odd(&'static str),
    /// A URL cannot be used.
    #[error("{name} cannot be used: {reason}")]
    Endpoint {
        /// The variable that named it.
        name: &'static str,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// What is sent would travel in clear text.
    #[error("{name} is plain http to {host}, where others could read what is sent")]
    Insecure {
        /// The variable that named it.
        name: &'static str,
        /// The host that was named.
        host: String,
        /// Whether it is a private address, where plain http is used without a key.
        is_private: bool,
    },
    /// The stored tokens cannot be understood; the file is left as it is.
    #[error("the stored sign-in {path} is damaged: {reason}")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it, without its content.
        reason: String,
    },
    /// The stored tokens cannot be read.
    #[error("the stored sign-in {path} cannot be read")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The tokens cannot be stored.
    #[error("the sign-in cannot be stored in {path}")]
    Unwritable {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The store or its lock is a link, a special file, or another user's.
    #[error("the stored sign-in is not used: {0}")]
    Unsafe(StateError),
    /// The sign-in is over: only a person can renew it.
    #[error("the sign-in with ChatGPT has ended: {message}")]
    Ended {
        /// The issuer's own word for it.
        code: String,
        /// The issuer's sentence.
        message: String,
    },
    /// Another account signed in while this run was under way.
    #[error("another account has signed in since this run began")]
    AccountChanged,
    /// The issuer could not be asked, or gave no sensible answer; another try may help.
    #[error("the sign-in service could not be used: {message}")]
    Unavailable {
        /// What happened.
        message: String,
    },
    /// A setting or variable of the way to the issuer cannot be used.
    #[error("{message}")]
    Setting {
        /// Which one, and why; without its value, which may hold a password.
        message: String,
    },
    /// The issuer, or the person in front of the browser, said no.
    #[error("the sign-in was refused: {message}")]
    Refused {
        /// The issuer's own word for it.
        code: String,
        /// The issuer's sentence.
        message: String,
    },
    /// Sign-in by code is not offered.
    #[error("the sign-in service does not offer sign-in by code")]
    NoDeviceLogin,
    /// Nobody answered in time.
    #[error("nobody finished the sign-in within {minutes} minutes")]
    TooLate {
        /// How long was waited.
        minutes: u64,
    },
    /// No port for the browser to come back to.
    #[error("no port of this machine is free for the browser to come back to")]
    NoPort,
    /// A bug of ours, or a machine without randomness.
    #[error("{0}")]
    Internal(String),
}

impl CredentialError {
    /// Whether another attempt may help without anybody doing anything.
    pub fn is_passing(&self) -> bool {
        matches!(self, CredentialError::Unavailable { .. })
    }
}

impl Explain for CredentialError {
    fn kind(&self) -> Kind {
        match self {
            CredentialError::Missing
            | CredentialError::NoKey
            | CredentialError::SignedOut
            | CredentialError::Odd(_)
            | CredentialError::Damaged { .. }
            | CredentialError::AccountChanged => Kind::NotAuthenticated,
            CredentialError::Ended { .. }
            | CredentialError::Refused { .. }
            | CredentialError::NoDeviceLogin => Kind::AuthRefused,
            CredentialError::Endpoint { .. }
            | CredentialError::Conflict
            | CredentialError::Setting { .. } => Kind::InvalidConfig,
            CredentialError::Insecure { .. } => Kind::InsecureTransport,
            CredentialError::Unreadable { .. } => Kind::ReadFailed,
            CredentialError::Unwritable { .. } => Kind::WriteFailed,
            CredentialError::Unsafe(error) => error.kind(),
            CredentialError::Unavailable { .. } => Kind::Network,
            CredentialError::TooLate { .. } => Kind::Timeout,
            CredentialError::NoPort | CredentialError::Internal(_) => Kind::Internal,
        }
    }

    fn details(&self) -> Value {
        match self {
            CredentialError::Ended { code, .. } | CredentialError::Refused { code, .. }
                if !code.is_empty() =>
            {
                json!({ "code": code })
            }
            CredentialError::Damaged { path, .. }
            | CredentialError::Unreadable { path, .. }
            | CredentialError::Unwritable { path, .. } => json!({ "path": path.to_string_lossy() }),
            CredentialError::Unsafe(error) => error.details(),
            _ => Value::Null,
        }
    }

    fn next_actions(&self) -> Vec<String> {
        let sign_in = || "sign in with `pixir login`".to_owned();
        match self {
            CredentialError::Missing => vec![
                sign_in(),
                "or set OPENAI_API_KEY".into(),
                "or see it work without any account: `pixir demo`".into(),
            ],
            CredentialError::NoKey => vec![
                "set OPENAI_API_KEY".into(),
                "or leave the choice to Pixir: no `--credential`, no `credential` in the config"
                    .into(),
            ],
            CredentialError::SignedOut | CredentialError::AccountChanged => vec![sign_in()],
            CredentialError::Ended { .. } => vec![
                "sign in again with `pixir login`".into(),
                "or use a key: OPENAI_API_KEY and `--credential api-key`".into(),
            ],
            CredentialError::Conflict => {
                vec!["unset OPENAI_BASE_URL, or use `--credential api-key`".into()]
            }
            CredentialError::Odd(name) => {
                vec![format!("set {name} again, without quotes, blanks or line breaks")]
            }
            CredentialError::Endpoint { name: "OPENAI_BASE_URL", .. } => {
                vec![format!("set OPENAI_BASE_URL to something like {DEFAULT_BASE_URL}")]
            }
            CredentialError::Endpoint { name, .. } => {
                vec![format!("unset {name}: it is for tests, on this machine")]
            }
            CredentialError::Insecure { is_private: true, .. } => vec![
                "use https, or leave out the key: without one, plain http to a private address works"
                    .into(),
            ],
            CredentialError::Insecure { is_private: false, .. } => vec![
                "use https, or a server on this machine (127.0.0.1, ::1, localhost)".into(),
                "or, without a key, the IP address of a server in your own network, such as 192.168.1.20"
                    .into(),
            ],
            CredentialError::Damaged { path, .. } => vec![
                format!("look at {}, or move it away", path.display()),
                "then sign in again with `pixir login`, which replaces it".into(),
            ],
            CredentialError::Unreadable { path, .. } => {
                vec![format!("make {} readable for you", path.display())]
            }
            CredentialError::Unwritable { path, .. } => {
                vec![format!("make {} writable for you, and room on its disk", path.display())]
            }
            CredentialError::Unsafe(error) => error.next_actions(),
            CredentialError::Unavailable { .. } => {
                vec!["check the network and the proxy, and try again".into()]
            }
            CredentialError::Setting { .. } => vec!["set it right, or unset it".into()],
            CredentialError::Refused { .. } | CredentialError::TooLate { .. } => {
                vec!["start again with `pixir login`".into()]
            }
            CredentialError::NoDeviceLogin => {
                vec!["sign in with a browser: `pixir login`".into()]
            }
            CredentialError::NoPort => vec!["sign in by code: `pixir login --device-code`".into()],
            CredentialError::Internal(_) => Vec::new(),
        }
    }
}
