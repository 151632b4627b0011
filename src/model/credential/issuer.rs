//! Client of the issuer, the sign-in service that issues, renews and revokes tokens.
//!
//! Messages of the issuer may be shown to the user, with our secrets redacted, but are never logged.

use std::fmt;
use std::time::Duration;

use http::HeaderMap;
use http::header::{CONTENT_TYPE, HeaderValue, USER_AGENT};
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Value, json};
use url::Url;

use super::token::{SubscriptionTokens, TokenGrant};
use super::{CredentialError, endpoint, user_agent};
use crate::base::secret::redact_echo;
use crate::host::http::{HttpClient, HttpError, HttpSettings};

/// The issuer of ChatGPT subscriptions.
const ISSUER: &str = "https://auth.openai.com";

/// The variable that names another issuer on this machine, for tests.
pub const ISSUER_VARIABLE: &str = "PIXIR_AUTH_ISSUER";

/// The client id of a public OAuth client, which has no secret.
pub const CLIENT_ID: &str = "app_EMoamEEZ73f0CkXaXp7hrann";

/// The timeout of a request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// The timeout of a revocation.
const REVOKE_TIMEOUT: Duration = Duration::from_secs(10);

/// The longest answer that is read, in bytes.
const MAX_ANSWER_BYTES: usize = 1024 * 1024;

/// How much of the issuer's messages is repeated, in characters.
const MAX_MESSAGE_CHARS: usize = 300;

/// The sign-in service that issues tokens.
pub struct Issuer {
    base: String,
    is_loopback: bool,
    client: HttpClient,
}

impl fmt::Debug for Issuer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Issuer").field("base", &self.base).finish_non_exhaustive()
    }
}

/// An error answer of the issuer.
#[derive(Debug, Clone, Default)]
pub struct IssuerFailure {
    pub status: u16,
    /// The error code; empty when there was none.
    pub code: String,
    pub message: String,
}

/// The answer to a request.
pub enum IssuerAnswer {
    Json(Value),
    Failure(IssuerFailure),
}

impl Issuer {
    /// The issuer, or one on this machine that `PIXIR_AUTH_ISSUER` names.
    pub fn from_environment(
        lookup: &dyn Fn(&str) -> Option<String>,
        http: &HttpSettings,
    ) -> Result<Self, CredentialError> {
        let named = endpoint::loopback_override(ISSUER_VARIABLE, lookup)?;
        let is_loopback = named.is_some();
        let base = named.unwrap_or_else(|| ISSUER.to_owned());
        let client = http.clone().client(base.clone(), REQUEST_TIMEOUT / 2);
        Ok(Self { base, is_loopback, client })
    }

    /// The base URL, without a final slash.
    pub fn base(&self) -> &str {
        &self.base
    }

    /// Whether the issuer is a stand-in on this machine, for tests.
    pub fn is_loopback(&self) -> bool {
        self.is_loopback
    }

    /// The URL of the page where the user signs in.
    pub fn authorize_url(&self, parameters: &[(&str, &str)]) -> Result<Url, CredentialError> {
        Url::parse_with_params(&format!("{}/oauth/authorize", self.base), parameters)
            .map_err(|error| CredentialError::Internal(format!("no sign-in page: {error}")))
    }

    /// Exchanges an authorization code for tokens.
    pub async fn exchange_code(
        &self,
        code: &SecretString,
        redirect_uri: &str,
        verifier: &SecretString,
    ) -> Result<TokenGrant, CredentialError> {
        let (code, verifier) = (code.expose_secret(), verifier.expose_secret());
        let form = [
            ("grant_type", "authorization_code"),
            ("code", code),
            ("redirect_uri", redirect_uri),
            ("client_id", CLIENT_ID),
            ("code_verifier", verifier),
        ];
        let answer = self.post_form("/oauth/token", &form, &[code, verifier]).await?;
        match answer {
            IssuerAnswer::Json(json) => Ok(TokenGrant::from_json(&json)),
            IssuerAnswer::Failure(complaint) if complaint.status >= 500 => {
                Err(complaint.into_unavailable())
            }
            IssuerAnswer::Failure(complaint) => Err(complaint.into_refused()),
        }
    }

    /// Exchanges a refresh token for new tokens. The refresh token works only once, so the caller must store the result.
    pub async fn refresh_tokens(
        &self,
        token: &SecretString,
    ) -> Result<TokenGrant, CredentialError> {
        let token = token.expose_secret();
        let body = json!({
            "client_id": CLIENT_ID, "grant_type": "refresh_token", "refresh_token": token,
        });
        match self.post_json("/oauth/token", &body, &[token], REQUEST_TIMEOUT).await? {
            IssuerAnswer::Json(json) => Ok(TokenGrant::from_json(&json)),
            IssuerAnswer::Failure(complaint) if complaint.ends_sign_in() => {
                let IssuerFailure { code, message, .. } = complaint;
                Err(CredentialError::Ended { code, message })
            }
            IssuerAnswer::Failure(complaint) => Err(complaint.into_unavailable()),
        }
    }

    /// Revokes tokens; best effort, with a short timeout.
    pub async fn revoke_tokens(&self, tokens: &SubscriptionTokens) -> Result<(), CredentialError> {
        let (token, body) = match &tokens.refresh {
            Some(token) => (
                token,
                json!({
                    "token": token.expose_secret(),
                    "token_type_hint": "refresh_token",
                    "client_id": CLIENT_ID,
                }),
            ),
            None => (
                &tokens.access,
                json!({
                    "token": tokens.access.expose_secret(), "token_type_hint": "access_token",
                }),
            ),
        };
        let hidden = [token.expose_secret()];
        match self.post_json("/oauth/revoke", &body, &hidden, REVOKE_TIMEOUT).await? {
            IssuerAnswer::Json(_) => Ok(()),
            IssuerAnswer::Failure(complaint) => Err(complaint.into_unavailable()),
        }
    }

    /// Posts JSON and returns the answer, error answers included.
    pub async fn request_json(
        &self,
        path: &str,
        body: &Value,
    ) -> Result<IssuerAnswer, CredentialError> {
        self.post_json(path, body, &[], REQUEST_TIMEOUT).await
    }

    /// Checks that the issuer answers at all.
    pub async fn check_reachable(&self, patience: Duration) -> Result<(), CredentialError> {
        let asking = self.client.get("", HeaderMap::new());
        let asked =
            tokio::time::timeout(patience, asking).await.map_err(|_| timeout_error(patience))?;
        asked?;
        Ok(())
    }

    async fn post_json(
        &self,
        path: &str,
        body: &Value,
        hidden: &[&str],
        patience: Duration,
    ) -> Result<IssuerAnswer, CredentialError> {
        self.post(path, "application/json", body.to_string(), hidden, patience).await
    }

    async fn post_form(
        &self,
        path: &str,
        form: &[(&str, &str)],
        hidden: &[&str],
    ) -> Result<IssuerAnswer, CredentialError> {
        // A query string and a form have the same encoding.
        let encoded = Url::parse_with_params("http://form", form)
            .ok()
            .and_then(|url| url.query().map(str::to_owned))
            .unwrap_or_default();
        self.post(path, "application/x-www-form-urlencoded", encoded, hidden, REQUEST_TIMEOUT).await
    }

    async fn post(
        &self,
        path: &str,
        kind: &'static str,
        body: String,
        hidden: &[&str],
        patience: Duration,
    ) -> Result<IssuerAnswer, CredentialError> {
        let odd = |_| CredentialError::NotHeaderText("the user agent");
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
        headers.insert(USER_AGENT, HeaderValue::from_str(&user_agent()).map_err(odd)?);
        headers.insert("originator", HeaderValue::from_static(super::ORIGINATOR));
        let asking = async {
            let response = self.client.post(path, headers, body.into()).await?;
            let status = response.status();
            let message = "its answer is too long".to_owned();
            let bytes = response.read_body(MAX_ANSWER_BYTES).await?;
            Ok::<_, CredentialError>((
                status,
                bytes.ok_or(CredentialError::Unavailable { message })?,
            ))
        };
        let asked = tokio::time::timeout(patience, asking).await;
        let (status, bytes) = asked.map_err(|_| timeout_error(patience))??;
        if !status.is_success() {
            return Ok(IssuerAnswer::Failure(IssuerFailure::parse(
                status.as_u16(),
                &bytes,
                hidden,
            )));
        }
        if bytes.iter().all(u8::is_ascii_whitespace) {
            return Ok(IssuerAnswer::Json(Value::Null));
        }
        let message = "its answer is not JSON".to_owned();
        let json = serde_json::from_slice(&bytes);
        json.map(IssuerAnswer::Json).map_err(|_| CredentialError::Unavailable { message })
    }
}

impl From<HttpError> for CredentialError {
    fn from(error: HttpError) -> Self {
        match error {
            HttpError::Setting(message) => Self::Setting { message },
            other => Self::Unavailable { message: other.to_string() },
        }
    }
}

fn timeout_error(patience: Duration) -> CredentialError {
    let message = format!("it did not answer within {} s", patience.as_secs());
    CredentialError::Unavailable { message }
}

impl IssuerFailure {
    /// Parses `{"error":"code","error_description":…}`, `{"error":{…}}`, `{"code":…}` and plain text.
    fn parse(status: u16, bytes: &[u8], hidden: &[&str]) -> Self {
        let text = String::from_utf8_lossy(bytes);
        let json: Value = serde_json::from_str(&text).unwrap_or_default();
        let own = |value: &Value| value.as_str().filter(|t| !t.is_empty()).map(str::to_owned);
        let error = &json["error"];
        let code = own(&error["code"]).or_else(|| own(error)).or_else(|| own(&json["code"]));
        let message = own(&json["error_description"])
            .or_else(|| own(&error["message"]))
            .or_else(|| own(&json["message"]))
            .or_else(|| code.clone())
            .or_else(|| (!json.is_object()).then(|| text.trim().to_owned()))
            .filter(|message| !message.is_empty())
            .unwrap_or_else(|| format!("HTTP status {status}"));
        let shown = |text: String| {
            let mut text = redact_echo(&text, hidden.iter().map(|secret| (*secret, "…")));
            for secret in hidden.iter().filter(|secret| secret.len() >= 4) {
                text = text.replace(secret, "…");
            }
            text.chars().take(MAX_MESSAGE_CHARS).collect::<String>()
        };
        Self { status, code: shown(code.unwrap_or_default()), message: shown(message) }
    }

    /// Whether the refresh token is permanently invalid.
    fn ends_sign_in(&self) -> bool {
        let says = |code: &str| self.code == code;
        self.status == 401
            || says("refresh_token_expired")
            || says("refresh_token_reused")
            || says("refresh_token_invalidated")
            || (self.status == 400 && says("invalid_grant"))
    }

    /// Converts the failure to the error of a refused sign-in.
    pub fn into_refused(self) -> CredentialError {
        CredentialError::Refused { code: self.code, message: self.message }
    }

    /// Converts the failure to an error that another attempt may resolve.
    pub fn into_unavailable(self) -> CredentialError {
        CredentialError::Unavailable { message: format!("{} ({})", self.message, self.status) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn complaints_are_read_in_every_shape_and_shown_without_secrets() {
        for (status, body, code, message, is_final) in [
            (
                400,
                r#"{"error":"invalid_grant","error_description":"gone"}"#,
                "invalid_grant",
                "gone",
                true,
            ),
            (403, r#"{"error":"invalid_grant"}"#, "invalid_grant", "invalid_grant", false),
            (
                400,
                r#"{"error":{"code":"refresh_token_reused","message":"m"}}"#,
                "refresh_token_reused",
                "m",
                true,
            ),
            (
                403,
                r#"{"code":"refresh_token_expired"}"#,
                "refresh_token_expired",
                "refresh_token_expired",
                true,
            ),
            (
                400,
                r#"{"error":{"code":"refresh_token_invalidated"}}"#,
                "refresh_token_invalidated",
                "refresh_token_invalidated",
                true,
            ),
            (401, "no", "", "no", true),
            (500, "", "", "HTTP status 500", false),
            (429, "{}", "", "HTTP status 429", false),
            (400, "your token-value is bad", "", "your … is bad", false),
        ] {
            let found = IssuerFailure::parse(status, body.as_bytes(), &["token-value"]);
            assert_eq!((found.code.as_str(), found.message.as_str()), (code, message), "{body}");
            assert_eq!(found.ends_sign_in(), is_final, "{status} {body}");
        }
    }

    #[test]
    fn only_this_machine_can_stand_in_for_the_issuer() {
        let from = |url: &str| {
            Issuer::from_environment(&|_| Some(url.to_owned()), &HttpSettings::default())
        };
        assert_eq!(from("http://127.0.0.1:9/").unwrap().base(), "http://127.0.0.1:9");
        assert_eq!(from("").unwrap().base(), ISSUER);
        for url in ["https://example.org", "http://example.org", "http://10.0.0.1", "nonsense"] {
            assert!(matches!(from(url), Err(CredentialError::Endpoint { .. })), "{url}");
        }
    }
}
