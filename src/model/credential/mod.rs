//! Credentials: an API key or a subscription, tied to the one endpoint that may receive the secret.
//!
//! A credential contains its endpoint, with the headers that endpoint needs and the fields it accepts, so that a
//! secret can never be sent elsewhere. The environment is passed in by `cli`; nothing here reads it.

mod browser;
mod callback;
mod choice;
mod device;
mod draft;
mod endpoint;
mod error;
mod issuer;
mod keyring;
mod policy;
mod store;
#[cfg(test)]
mod tests;
mod token;

use std::fmt;
use std::sync::Arc;

use http::header::{AUTHORIZATION, HeaderMap, HeaderValue, USER_AGENT};
use secrecy::{ExposeSecret, SecretString};

pub use browser::{BrowserLogin, DEFAULT_PORTS, PastedCode};
pub use choice::{ChosenCredential, CredentialInputs, choose_credential};
pub use device::{DeviceLogin, PollTiming};
pub use error::CredentialError;
pub use issuer::Issuer;
pub use keyring::Keyring;
pub use policy::FieldPolicy;
pub use store::TokenStore;
pub use token::{SubscriptionTokens, unix_now};

use crate::base::secret::Secrets;
pub use crate::settings::config::CredentialKind;
use endpoint::{NetworkLocation, is_header_text};

/// The default endpoint for an API key.
pub const DEFAULT_BASE_URL: &str = "https://api.openai.com/v1";

/// The endpoint for a subscription's tokens.
const CHATGPT_BASE_URL: &str = "https://chatgpt.com/backend-api/codex";

/// The value of the `originator` header.
const ORIGINATOR: &str = "pixir";

/// The longest Session id that a backend accepts, in bytes.
const MAX_SESSION_ID_BYTES: usize = 64;

/// A credential with its endpoint and the headers and fields for it.
#[derive(Clone)]
pub struct Credential {
    method: AuthMethod,
    base_url: String,
    policy: FieldPolicy,
    /// The `OpenAI-Organization` header.
    pub organization: Option<String>,
    /// The `OpenAI-Project` header.
    pub project: Option<String>,
}

#[derive(Clone)]
enum AuthMethod {
    /// No secret, for a server on this machine or at a private address.
    Anonymous,
    Key(SecretString),
    Subscription(Keyring),
}

/// The secrets of one attempt: bearer token and account id.
#[derive(Clone)]
pub struct Authorization {
    bearer: Option<SecretString>,
    account_id: Option<String>,
}

/// How many recoveries after a 401 one call has used up.
#[derive(Debug, Default)]
pub struct AuthRecovery {
    used: u8,
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
            if is_header_text(&value) {
                Ok(Some(value))
            } else {
                Err(CredentialError::NotHeaderText(name))
            }
        };
        let mut credential = Self::new(
            set("OPENAI_API_KEY").as_deref(),
            set("OPENAI_BASE_URL").as_deref().unwrap_or(DEFAULT_BASE_URL),
        )?;
        credential.organization = header(["OPENAI_ORGANIZATION", "OPENAI_ORG_ID"])?;
        credential.project = header(["OPENAI_PROJECT", "OPENAI_PROJECT_ID"])?;
        Ok(credential)
    }

    /// Ties a key to an endpoint. Without a key the server must be on this machine or have a private
    /// address.
    pub fn new(key: Option<&str>, base_url: &str) -> Result<Self, CredentialError> {
        let base_url = base_url.trim().trim_end_matches('/');
        let place = endpoint::check_endpoint("OPENAI_BASE_URL", base_url, key.is_some())?;
        if key.is_none() && place == NetworkLocation::Public {
            return Err(CredentialError::Missing);
        }
        if key.is_some_and(|key| !is_header_text(key)) {
            return Err(CredentialError::NotHeaderText("OPENAI_API_KEY"));
        }
        let means = key.map_or(AuthMethod::Anonymous, |key| AuthMethod::Key(key.into()));
        Ok(Self::from_parts(means, base_url, FieldPolicy::OpenAi))
    }

    /// Ties a subscription to its own endpoint, or to a stand-in on this machine.
    pub fn for_subscription(keyring: Keyring, base_url: &str) -> Result<Self, CredentialError> {
        let place = endpoint::check_endpoint("PIXIR_CHATGPT_BASE_URL", base_url, true)?;
        if place != NetworkLocation::Loopback && base_url != CHATGPT_BASE_URL {
            let reason = "it must be on this machine";
            return Err(CredentialError::Endpoint { name: "PIXIR_CHATGPT_BASE_URL", reason });
        }
        let means = AuthMethod::Subscription(keyring);
        Ok(Self::from_parts(means, base_url, FieldPolicy::ChatGpt))
    }

    fn from_parts(method: AuthMethod, base_url: &str, policy: FieldPolicy) -> Self {
        let base_url = base_url.to_owned();
        Self { method, base_url, policy, organization: None, project: None }
    }

    /// Sets which fields the endpoint accepts.
    #[must_use]
    pub fn with_policy(mut self, policy: FieldPolicy) -> Self {
        self.policy = policy;
        self
    }

    /// The kind of credential.
    pub fn kind(&self) -> CredentialKind {
        match self.method {
            AuthMethod::Anonymous | AuthMethod::Key(_) => CredentialKind::ApiKey,
            AuthMethod::Subscription(_) => CredentialKind::ChatGpt,
        }
    }

    /// The API key, if the credential is one.
    pub fn key(&self) -> Option<&SecretString> {
        match &self.method {
            AuthMethod::Key(key) => Some(key),
            AuthMethod::Anonymous | AuthMethod::Subscription(_) => None,
        }
    }

    /// The tokens, if the credential is a subscription.
    pub fn tokens(&self) -> Option<SubscriptionTokens> {
        match &self.method {
            AuthMethod::Subscription(keyring) => Some(keyring.tokens()),
            AuthMethod::Anonymous | AuthMethod::Key(_) => None,
        }
    }

    /// The endpoint, without a final slash.
    pub fn base_url(&self) -> &str {
        &self.base_url
    }

    /// Which fields the endpoint accepts.
    pub fn policy(&self) -> FieldPolicy {
        self.policy
    }

    /// Registers every secret of this credential for redaction, including tokens from later renewals.
    pub fn register_secrets(&self, secrets: &Arc<Secrets>) {
        match &self.method {
            AuthMethod::Anonymous => {}
            AuthMethod::Key(key) => {
                let value = key.expose_secret().to_owned();
                secrets.add_values([("provider key".to_owned(), value)]);
            }
            AuthMethod::Subscription(keyring) => keyring.register_secrets(secrets),
        }
    }

    /// The authorization for an attempt; called for every attempt, because tokens expire.
    pub async fn authorize(&self) -> Result<Authorization, CredentialError> {
        match &self.method {
            AuthMethod::Anonymous => Ok(Authorization { bearer: None, account_id: None }),
            AuthMethod::Key(key) => {
                Ok(Authorization { bearer: Some(key.clone()), account_id: None })
            }
            AuthMethod::Subscription(keyring) => keyring.authorize().await,
        }
    }

    /// Another authorization after a 401: first tokens that another process has stored, then renewed ones. `None` when
    /// both were tried, or the credential cannot be renewed.
    pub async fn recover(
        &self,
        failed: &Authorization,
        recovery: &mut AuthRecovery,
    ) -> Result<Option<Authorization>, CredentialError> {
        let (AuthMethod::Subscription(keyring), Some(bearer)) = (&self.method, &failed.bearer)
        else {
            return Ok(None);
        };
        if recovery.used == 0 {
            recovery.used = 1;
            if let Some(tokens) = keyring.reread_store(bearer).await? {
                return Ok(Some(Authorization::from_tokens(&tokens)));
            }
        }
        if recovery.used == 1 {
            recovery.used = 2;
            let tokens = keyring.renew(bearer).await?;
            return Ok(Some(Authorization::from_tokens(&tokens)));
        }
        Ok(None)
    }

    /// Waits for a renewal under way, so that its tokens are stored; returns at once when there is none.
    pub async fn wait_for_renewal(&self) {
        if let AuthMethod::Subscription(keyring) = &self.method {
            keyring.wait_for_renewal().await;
        }
    }

    /// The headers of one attempt, for either transport; `session` names the Session.
    pub fn headers(
        &self,
        authorization: &Authorization,
        session: &str,
    ) -> Result<HeaderMap, CredentialError> {
        let mut headers = HeaderMap::new();
        let mut put = |name: &'static str, value: &str, is_secret: bool| {
            let odd = |_| CredentialError::NotHeaderText("the credential");
            let mut value = HeaderValue::from_str(value).map_err(odd)?;
            value.set_sensitive(is_secret);
            headers.insert(name, value);
            Ok::<_, CredentialError>(())
        };
        put(USER_AGENT.as_str(), &user_agent(), false)?;
        if let Some(organization) = &self.organization {
            put("openai-organization", organization, false)?;
        }
        if let Some(project) = &self.project {
            put("openai-project", project, false)?;
        }
        if self.kind() == CredentialKind::ChatGpt {
            put("originator", ORIGINATOR, false)?;
            let session: String = session.chars().filter(char::is_ascii_graphic).collect();
            let session = session.get(..MAX_SESSION_ID_BYTES).unwrap_or(&session);
            if !session.is_empty() {
                put("session-id", session, false)?;
                put("x-client-request-id", session, false)?;
            }
        }
        if let Some(account_id) = &authorization.account_id {
            put("chatgpt-account-id", account_id, true)?;
        }
        if let Some(bearer) = &authorization.bearer {
            put(AUTHORIZATION.as_str(), &format!("Bearer {}", bearer.expose_secret()), true)?;
        }
        Ok(headers)
    }
}

impl Authorization {
    fn from_tokens(tokens: &SubscriptionTokens) -> Self {
        let account_id = Some(tokens.account_id.clone());
        Self { bearer: Some(tokens.access.clone()), account_id }
    }
}

/// Debug output without secrets.
impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credential")
            .field("kind", &self.kind())
            .field("base_url", &self.base_url)
            .field("policy", &self.policy)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Authorization {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Authorization(hidden)")
    }
}

/// The `User-Agent` header.
pub fn user_agent() -> String {
    let (os, arch) = (std::env::consts::OS, std::env::consts::ARCH);
    format!("pixir/{} ({os}; {arch})", env!("CARGO_PKG_VERSION"))
}
