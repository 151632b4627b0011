//! The choice: which credential a run uses, and why.

use std::borrow::Cow;

use super::endpoint;
use super::issuer::Issuer;
use super::keyring::Keyring;
use super::store::Store;
use super::{CHATGPT_BASE_URL, Credential, CredentialError};
use crate::config::CredentialKind;
use crate::http::HttpSettings;
use crate::paths::Home;

/// Names another endpoint for the subscription on this machine, for tests.
const CHATGPT_VARIABLE: &str = "PIXIR_CHATGPT_BASE_URL";

/// What the choice depends on.
pub struct Circumstances<'a> {
    pub home: &'a Home,
    /// Looks up one environment variable.
    pub lookup: &'a dyn Fn(&str) -> Option<String>,
    /// What a flag or the config asks for.
    pub wanted: Option<CredentialKind>,
    /// How the issuer is reached.
    pub http: &'a HttpSettings,
}

/// A credential, and why it is this one.
#[derive(Debug)]
pub struct Chosen {
    pub credential: Credential,
    pub reason: Cow<'static, str>,
    /// The variable that holds the key, where a key could be.
    pub variable: Option<String>,
    /// The user's name for the server, where it has one.
    pub server: Option<String>,
}

impl Chosen {
    fn new(credential: Credential, reason: &'static str) -> Self {
        let variable = credential.tokens().is_none().then(|| "OPENAI_API_KEY".to_owned());
        Self { credential, reason: reason.into(), variable, server: None }
    }
}

/// Chooses: what was asked for, then the stored subscription, then the key. A foreign endpoint
/// gets the key and nothing else.
pub fn choose(circumstances: &Circumstances<'_>) -> Result<Chosen, CredentialError> {
    let Circumstances { home, lookup, wanted, http } = circumstances;
    let has_base_url = lookup("OPENAI_BASE_URL").is_some_and(|value| !value.trim().is_empty());
    let key = |reason| {
        Credential::from_environment(lookup).map(|credential| Chosen::new(credential, reason))
    };
    if has_base_url {
        if *wanted == Some(CredentialKind::ChatGpt) {
            return Err(CredentialError::Conflict);
        }
        return key("OPENAI_BASE_URL is set, and only the API key goes there");
    }
    match wanted {
        Some(CredentialKind::ApiKey) => {
            key("the API key was asked for").map_err(|error| match error {
                CredentialError::Missing => CredentialError::NoKey,
                error => error,
            })
        }
        Some(CredentialKind::ChatGpt) => match subscription(home, lookup, http)? {
            Some(credential) => Ok(Chosen::new(credential, "ChatGPT was asked for")),
            None => Err(CredentialError::SignedOut),
        },
        None => match subscription(home, lookup, http)? {
            Some(credential) => Ok(Chosen::new(credential, "a sign-in with ChatGPT is stored")),
            None => key("nobody is signed in, and OPENAI_API_KEY is set"),
        },
    }
}

fn subscription(
    home: &Home,
    lookup: &dyn Fn(&str) -> Option<String>,
    http: &HttpSettings,
) -> Result<Option<Credential>, CredentialError> {
    let issuer = Issuer::from_environment(lookup, http)?;
    let base_url = endpoint::loopback_override(CHATGPT_VARIABLE, lookup)?;
    let store = Store::new(home);
    let Some(stored) = store.read()? else { return Ok(None) };
    let base_url = base_url.as_deref().unwrap_or(CHATGPT_BASE_URL);
    Credential::subscription(Keyring::new(store, issuer, stored), base_url).map(Some)
}
