//! Chooses the credential of a run, with the reason.

use std::borrow::Cow;

use super::endpoint;
use super::issuer::Issuer;
use super::keyring::Keyring;
use super::store::TokenStore;
use super::{CHATGPT_BASE_URL, Credential, CredentialError};
use crate::base::paths::Home;
use crate::host::http::HttpSettings;
use crate::settings::config::CredentialKind;

/// The variable that names another endpoint for the subscription on this machine, for tests.
const CHATGPT_VARIABLE: &str = "PIXIR_CHATGPT_BASE_URL";

/// The inputs of the choice.
pub struct CredentialInputs<'a> {
    pub home: &'a Home,
    /// Looks up one environment variable.
    pub lookup: &'a dyn Fn(&str) -> Option<String>,
    /// The kind that a flag or the config requests.
    pub wanted: Option<CredentialKind>,
    /// HTTP settings for the issuer.
    pub http: &'a HttpSettings,
}

/// The chosen credential, and the reason.
#[derive(Debug)]
pub struct ChosenCredential {
    pub credential: Credential,
    pub reason: Cow<'static, str>,
    /// The variable that holds the key; `None` for a subscription.
    pub variable: Option<String>,
    /// The name of the server in the config, if it has one.
    pub server: Option<String>,
}

impl ChosenCredential {
    fn new(credential: Credential, reason: &'static str) -> Self {
        let variable = credential.tokens().is_none().then(|| "OPENAI_API_KEY".to_owned());
        Self { credential, reason: reason.into(), variable, server: None }
    }
}

/// Chooses the requested credential, else the stored subscription, else the key. With `OPENAI_BASE_URL` only the key
/// is used.
pub fn choose_credential(
    inputs: &CredentialInputs<'_>,
) -> Result<ChosenCredential, CredentialError> {
    let CredentialInputs { home, lookup, wanted, http } = inputs;
    let has_base_url = lookup("OPENAI_BASE_URL").is_some_and(|value| !value.trim().is_empty());
    let key = |reason| {
        Credential::from_environment(lookup)
            .map(|credential| ChosenCredential::new(credential, reason))
    };
    if has_base_url {
        if *wanted == Some(CredentialKind::ChatGpt) {
            return Err(CredentialError::Conflict);
        }
        return key("OPENAI_BASE_URL is set, and only the API key is sent there");
    }
    match wanted {
        Some(CredentialKind::ApiKey) => {
            key("the API key was requested").map_err(|error| match error {
                CredentialError::Missing => CredentialError::NoKey,
                error => error,
            })
        }
        Some(CredentialKind::ChatGpt) => match open_subscription(home, lookup, http)? {
            Some(credential) => Ok(ChosenCredential::new(credential, "ChatGPT was requested")),
            None => Err(CredentialError::SignedOut),
        },
        None => match open_subscription(home, lookup, http)? {
            Some(credential) => {
                Ok(ChosenCredential::new(credential, "a sign-in with ChatGPT is stored"))
            }
            None => key("not signed in, and OPENAI_API_KEY is set"),
        },
    }
}

fn open_subscription(
    home: &Home,
    lookup: &dyn Fn(&str) -> Option<String>,
    http: &HttpSettings,
) -> Result<Option<Credential>, CredentialError> {
    let issuer = Issuer::from_environment(lookup, http)?;
    let base_url = endpoint::loopback_override(CHATGPT_VARIABLE, lookup)?;
    let store = TokenStore::new(home);
    let Some(stored) = store.read()? else { return Ok(None) };
    let base_url = base_url.as_deref().unwrap_or(CHATGPT_BASE_URL);
    Credential::for_subscription(Keyring::new(store, issuer, stored), base_url).map(Some)
}
