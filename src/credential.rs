//! Credentials: who pays, and the one endpoint that may see the secret.
//!
//! A credential and its endpoint travel together, so that a key can never be sent elsewhere. The
//! environment is handed in by `cli`; nothing here reads it.

mod policy;

use std::fmt;
use std::net::IpAddr;

use reqwest::Url;
use secrecy::SecretString;

pub use policy::FieldPolicy;

use crate::error::{Explain, Kind};

/// Where an API key goes when nobody says otherwise.
pub const DEFAULT_BASE_URL: &str = "https://api.openai.com/v1";

/// An API key, its endpoint, and who is billed.
#[derive(Clone)]
pub struct Credential {
    key: Option<SecretString>,
    base_url: String,
    is_loopback: bool,
    policy: FieldPolicy,
    /// The `OpenAI-Organization` header.
    pub organization: Option<String>,
    /// The `OpenAI-Project` header.
    pub project: Option<String>,
}

impl Credential {
    /// Reads `OPENAI_API_KEY`, `OPENAI_BASE_URL` and the billing variables through `lookup`.
    pub fn from_environment(
        lookup: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, CredentialError> {
        let set = |name: &str| lookup(name).filter(|value| !value.trim().is_empty());
        let header = |names: [&'static str; 2]| {
            let Some((name, value)) =
                names.into_iter().find_map(|name| set(name).map(|value| (name, value)))
            else {
                return Ok(None);
            };
            if is_header_text(&value) { Ok(Some(value)) } else { Err(CredentialError::Odd(name)) }
        };
        let mut credential = Self::new(
            set("OPENAI_API_KEY").as_deref(),
            set("OPENAI_BASE_URL").as_deref().unwrap_or(DEFAULT_BASE_URL),
        )?;
        credential.organization = header(["OPENAI_ORGANIZATION", "OPENAI_ORG_ID"])?;
        credential.project = header(["OPENAI_PROJECT", "OPENAI_PROJECT_ID"])?;
        Ok(credential)
    }

    /// Ties a key to an endpoint; only a server on this machine works without a key.
    pub fn new(key: Option<&str>, base_url: &str) -> Result<Self, CredentialError> {
        let base_url = base_url.trim().trim_end_matches('/');
        let is_loopback = check_endpoint(base_url)?;
        if key.is_none() && !is_loopback {
            return Err(CredentialError::Missing);
        }
        if key.is_some_and(|key| !is_header_text(key)) {
            return Err(CredentialError::Odd("OPENAI_API_KEY"));
        }
        Ok(Self {
            key: key.map(SecretString::from),
            base_url: base_url.to_owned(),
            is_loopback,
            policy: FieldPolicy::OpenAi,
            organization: None,
            project: None,
        })
    }

    /// The same credential for a backend that accepts other fields.
    #[must_use]
    pub fn with_policy(mut self, policy: FieldPolicy) -> Self {
        self.policy = policy;
        self
    }

    /// Which fields the endpoint accepts.
    pub fn policy(&self) -> FieldPolicy {
        self.policy
    }

    /// The secret itself, for the one header that carries it and for redaction.
    pub fn key(&self) -> Option<&SecretString> {
        self.key.as_ref()
    }

    /// The endpoint, without a final slash.
    pub fn base_url(&self) -> &str {
        &self.base_url
    }

    /// Whether the endpoint is this machine.
    pub fn is_loopback(&self) -> bool {
        self.is_loopback
    }
}

/// Never shows the key.
impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credential")
            .field("key", &self.key.as_ref().map(|_| "(hidden)"))
            .field("base_url", &self.base_url)
            .finish_non_exhaustive()
    }
}

/// Accepts an endpoint and says whether it is this machine.
fn check_endpoint(base_url: &str) -> Result<bool, CredentialError> {
    let refuse = |reason| Err(CredentialError::Endpoint { reason });
    let Ok(url) = Url::parse(base_url) else { return refuse("it is not a URL") };
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
        return Err(CredentialError::Insecure { host: host.to_owned() });
    }
    Ok(is_loopback)
}

fn is_loopback_host(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']');
    host.eq_ignore_ascii_case("localhost")
        || address.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Printable ASCII without blanks: anything else would break, or smuggle, a header.
fn is_header_text(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Why there is no usable credential.
#[derive(Debug, thiserror::Error)]
pub enum CredentialError {
    /// Nobody is signed in.
    #[error("no credential: nobody is signed in and OPENAI_API_KEY is not set")]
    Missing,
    /// A value that cannot be a header; its text is not repeated, because it may be a secret.
    #[error("{0} contains blanks, control characters or non-ASCII text")]
    Odd(&'static str),
    /// The base URL cannot be used.
    #[error("OPENAI_BASE_URL cannot be used: {reason}")]
    Endpoint {
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The key would travel in clear text.
    #[error("OPENAI_BASE_URL is plain http to {host}, where others could read the credential")]
    Insecure {
        /// The host that was named.
        host: String,
    },
}

impl Explain for CredentialError {
    fn kind(&self) -> Kind {
        match self {
            CredentialError::Missing | CredentialError::Odd(_) => Kind::NotAuthenticated,
            CredentialError::Endpoint { .. } => Kind::InvalidConfig,
            CredentialError::Insecure { .. } => Kind::InsecureTransport,
        }
    }

    fn next_actions(&self) -> Vec<String> {
        match self {
            CredentialError::Missing => vec![
                "sign in with `pixir login`".into(),
                "or set OPENAI_API_KEY".into(),
                "or see it work without any account: `pixir demo`".into(),
            ],
            CredentialError::Odd(name) => {
                vec![format!("set {name} again, without quotes, blanks or line breaks")]
            }
            CredentialError::Endpoint { .. } => {
                vec![format!("set OPENAI_BASE_URL to something like {DEFAULT_BASE_URL}")]
            }
            CredentialError::Insecure { .. } => {
                vec!["use https, or a server on this machine (127.0.0.1, ::1, localhost)".into()]
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(pairs: &[(&str, &str)]) -> Result<Credential, CredentialError> {
        Credential::from_environment(|name| {
            pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[track_caller]
    fn check_refused(pairs: &[(&str, &str)], kind: Kind) {
        assert_eq!(from(pairs).unwrap_err().kind(), kind, "{pairs:?}");
    }

    #[test]
    fn a_key_goes_to_its_own_endpoint_by_default() {
        let credential = from(&[("OPENAI_API_KEY", "sk-1"), ("OPENAI_PROJECT", "p")]).unwrap();
        assert_eq!(credential.base_url(), "https://api.openai.com/v1");
        assert_eq!(credential.project.as_deref(), Some("p"));
        assert!(!credential.is_loopback());
    }

    #[test]
    fn without_a_key_the_next_actions_name_three_ways_on() {
        for pairs in [&[][..], &[("OPENAI_API_KEY", "  ")]] {
            let error = from(pairs).unwrap_err();
            assert_eq!(error.kind(), Kind::NotAuthenticated);
            let actions = error.next_actions().join("\n");
            for word in ["pixir login", "OPENAI_API_KEY", "pixir demo"] {
                assert!(actions.contains(word), "{word}");
            }
        }
    }

    #[test]
    fn a_local_server_needs_no_key() {
        for url in [
            "http://127.0.0.1:1/v1/",
            "http://localhost:11434/v1",
            "http://[::1]:8080",
            "http://127.9.9.9",
        ] {
            let credential = from(&[("OPENAI_BASE_URL", url)]).unwrap();
            assert!(credential.is_loopback() && credential.key().is_none(), "{url}");
            assert!(!credential.base_url().ends_with('/'));
        }
    }

    #[test]
    fn a_key_never_travels_in_clear_text() {
        for url in [
            "http://example.org/v1",
            "http://10.0.0.1/v1",
            "http://localhost.evil.org",
            "http://128.0.0.1",
        ] {
            check_refused(
                &[("OPENAI_API_KEY", "sk"), ("OPENAI_BASE_URL", url)],
                Kind::InsecureTransport,
            );
        }
    }

    #[test]
    fn odd_endpoints_are_refused() {
        for url in
            ["ftp://x/v1", "https://u:p@x/v1", "https://x/v1?a=b", "https://x/v1#f", "nonsense"]
        {
            check_refused(
                &[("OPENAI_API_KEY", "sk"), ("OPENAI_BASE_URL", url)],
                Kind::InvalidConfig,
            );
        }
        check_refused(&[("OPENAI_BASE_URL", "https://example.org/v1")], Kind::NotAuthenticated);
    }

    #[test]
    fn a_key_with_control_characters_is_refused_without_being_shown() {
        for key in ["sk-secret\n", "sk-secret\r\nx: y", "sk secret", "sk-secret\u{7f}", "sk-sécret"]
        {
            let error = from(&[("OPENAI_API_KEY", key)]).unwrap_err();
            assert!(matches!(error, CredentialError::Odd("OPENAI_API_KEY")), "{key:?}");
            assert!(!error.to_string().contains("secret"));
        }
    }

    #[test]
    fn debug_output_hides_the_key() {
        let credential = from(&[("OPENAI_API_KEY", "sk-secret")]).unwrap();
        assert!(!format!("{credential:?}").contains("sk-secret"));
    }
}
