//! The tokens of an issuer and their claims. No token is ever shown.
//!
//! Signatures are not checked: the claims come over TLS from the issuer itself, and grant nothing.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use secrecy::{ExposeSecret, SecretString};
use serde_json::Value;

use super::CredentialError;
use super::endpoint::is_header_text;

/// How long before its end a token is renewed, in seconds.
const RENEW_BEFORE_END: i64 = 5 * 60;

/// The assumed lifetime of a token without a stated end, in seconds.
const ASSUMED_LIFETIME: i64 = 8 * 24 * 3600;

const AUTH_CLAIMS: &str = "https://api.openai.com/auth";
const PROFILE_CLAIMS: &str = "https://api.openai.com/profile";

/// The current time in Unix seconds.
pub fn unix_now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

/// The tokens of one signed-in account.
#[derive(Clone)]
pub struct SubscriptionTokens {
    pub access: SecretString,
    pub refresh: Option<SecretString>,
    pub id: Option<SecretString>,
    pub account_id: String,
    /// The time of issue, in Unix seconds.
    pub obtained_at: i64,
    /// The expiry in Unix seconds that the issuer's answer states; a claim in the token takes precedence.
    pub stated_end: Option<i64>,
}

/// An issuer's answer to a code or a refresh token.
#[derive(Default)]
pub struct TokenGrant {
    pub access: Option<SecretString>,
    pub refresh: Option<SecretString>,
    pub id: Option<SecretString>,
    /// The lifetime in seconds.
    pub expires_in: Option<i64>,
}

impl TokenGrant {
    /// Parses an answer; missing fields are `None`.
    pub fn from_json(json: &Value) -> Self {
        let token = |name: &str| {
            json[name].as_str().filter(|text| !text.is_empty()).map(SecretString::from)
        };
        Self {
            access: token("access_token"),
            refresh: token("refresh_token"),
            id: token("id_token"),
            expires_in: json["expires_in"].as_i64().filter(|seconds| *seconds > 0),
        }
    }
}

impl SubscriptionTokens {
    /// The tokens of a new sign-in.
    pub fn from_grant(grant: TokenGrant, now: i64) -> Result<Self, CredentialError> {
        let useless = |what: &str| CredentialError::Refused {
            code: String::new(),
            message: format!("the sign-in service sent no {what}"),
        };
        let access = grant.access.ok_or_else(|| useless("access token"))?;
        let claims = TokenClaims::from_token(&access);
        let account_id =
            claims.account_id.or_else(|| TokenClaims::from_token(grant.id.as_ref()?).account_id);
        let tokens = Self {
            account_id: account_id.ok_or_else(|| useless("account for this plan"))?,
            access,
            refresh: grant.refresh,
            id: grant.id,
            obtained_at: now,
            stated_end: grant.expires_in.map(|seconds| now.saturating_add(seconds)),
        };
        tokens.check_header_text()?;
        Ok(tokens)
    }

    /// These tokens after a renewal.
    pub fn renewed(&self, grant: TokenGrant, now: i64) -> Result<Self, CredentialError> {
        let unusable = |message: &str| CredentialError::Unavailable { message: message.to_owned() };
        let access = grant.access.ok_or_else(|| unusable("its answer has no access token"))?;
        if TokenClaims::from_token(&access)
            .account_id
            .is_some_and(|account| account != self.account_id)
        {
            return Err(CredentialError::AccountChanged);
        }
        let tokens = Self {
            access,
            refresh: grant.refresh.or_else(|| self.refresh.clone()),
            id: grant.id.or_else(|| self.id.clone()),
            account_id: self.account_id.clone(),
            obtained_at: now,
            stated_end: grant.expires_in.map(|seconds| now.saturating_add(seconds)),
        };
        tokens.check_header_text()?;
        Ok(tokens)
    }

    /// These tokens with the new refresh token of a renewal; `None` when it brought none.
    pub fn with_rotated_refresh(&self, grant: &TokenGrant) -> Option<Self> {
        let came = grant.refresh.clone()?;
        let is_news =
            self.refresh.as_ref().map(ExposeSecret::expose_secret) != Some(came.expose_secret());
        is_news.then(|| Self { refresh: Some(came), ..self.clone() })
    }

    /// Checks that values for headers contain only header text.
    pub fn check_header_text(&self) -> Result<(), CredentialError> {
        let fits = is_header_text(self.access.expose_secret())
            && !self.access.expose_secret().is_empty()
            && is_header_text(&self.account_id)
            && !self.account_id.is_empty();
        if fits { Ok(()) } else { Err(CredentialError::NotHeaderText("the stored sign-in")) }
    }

    /// When the access token expires, in Unix seconds, if known.
    pub fn ends_at(&self) -> Option<i64> {
        TokenClaims::from_token(&self.access).ends_at.or(self.stated_end)
    }

    /// Whether the access token should be renewed.
    pub fn should_renew(&self, now: i64) -> bool {
        let end =
            self.ends_at().unwrap_or_else(|| self.obtained_at.saturating_add(ASSUMED_LIFETIME));
        end <= now.saturating_add(RENEW_BEFORE_END)
    }

    /// Whether the access token has not expired, as far as known.
    pub fn is_alive(&self, now: i64) -> bool {
        self.ends_at().is_none_or(|end| end > now)
    }

    /// Whether this is the access token.
    pub fn has_access_token(&self, access: &SecretString) -> bool {
        self.access.expose_secret() == access.expose_secret()
    }

    /// The subscription plan, as the issuer names it.
    pub fn plan(&self) -> Option<String> {
        TokenClaims::from_token(&self.access)
            .plan
            .or_else(|| TokenClaims::from_token(self.id.as_ref()?).plan)
    }

    /// The email address of the account.
    pub fn email(&self) -> Option<String> {
        TokenClaims::from_token(&self.access)
            .email
            .or_else(|| TokenClaims::from_token(self.id.as_ref()?).email)
    }

    /// Every secret value, with the name that replaces it.
    pub fn secrets(&self) -> impl Iterator<Item = (String, String)> {
        let all = [
            ("access token", Some(&self.access)),
            ("refresh token", self.refresh.as_ref()),
            ("id token", self.id.as_ref()),
        ];
        all.into_iter()
            .filter_map(|(name, token)| Some((name.to_owned(), token?.expose_secret().to_owned())))
    }
}

/// Debug output without tokens and account.
impl fmt::Debug for SubscriptionTokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SubscriptionTokens")
            .field("ends_at", &self.ends_at())
            .finish_non_exhaustive()
    }
}

/// The claims of a token.
#[derive(Default)]
struct TokenClaims {
    ends_at: Option<i64>,
    account_id: Option<String>,
    plan: Option<String>,
    email: Option<String>,
}

impl TokenClaims {
    /// Parses the payload of a JWT; a token of another form has no claims.
    fn from_token(token: &SecretString) -> Self {
        let Some(json) = decode_payload(token.expose_secret()) else { return Self::default() };
        let text = |value: &Value| value.as_str().filter(|t| !t.is_empty()).map(str::to_owned);
        let auth = &json[AUTH_CLAIMS];
        Self {
            ends_at: json["exp"].as_i64(),
            account_id: text(&auth["chatgpt_account_id"]),
            plan: text(&auth["chatgpt_plan_type"]),
            email: text(&json["email"]).or_else(|| text(&json[PROFILE_CLAIMS]["email"])),
        }
    }
}

fn decode_payload(token: &str) -> Option<Value> {
    let mut parts = token.split('.');
    let (head, body, seal) = (parts.next()?, parts.next()?, parts.next()?);
    if parts.next().is_some() || head.is_empty() || body.is_empty() || seal.is_empty() {
        return None;
    }
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(body).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn jwt(claims: &Value) -> SecretString {
        let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        format!("{}.{}.c2ln", part(&json!({"alg": "none"})), part(claims)).into()
    }

    fn tokens(access: SecretString, stated_end: Option<i64>) -> SubscriptionTokens {
        let account_id = "acct".to_owned();
        SubscriptionTokens {
            access,
            refresh: None,
            id: None,
            account_id,
            obtained_at: 1000,
            stated_end,
        }
    }

    #[test]
    fn the_claim_counts_more_than_the_word_beside_it() {
        let access = jwt(&json!({"exp": 5000}));
        assert_eq!(tokens(access.clone(), Some(9000)).ends_at(), Some(5000));
        assert_eq!(tokens("opaque".into(), Some(9000)).ends_at(), Some(9000));
        for (now, due, alive) in
            [(4699, false, true), (4700, true, true), (4999, true, true), (5000, true, false)]
        {
            let tokens = tokens(access.clone(), None);
            assert_eq!((tokens.should_renew(now), tokens.is_alive(now)), (due, alive), "{now}");
        }
        let undated = tokens("opaque".into(), None);
        assert!(
            !undated.should_renew(1001)
                && undated.is_alive(i64::MAX)
                && undated.should_renew(800_000)
        );
    }

    #[test]
    fn a_sign_in_names_its_account() {
        let claims = json!({
            "exp": 5000,
            "https://api.openai.com/auth": {"chatgpt_account_id": "a-1", "chatgpt_plan_type": "pro"},
            "https://api.openai.com/profile": {"email": "who@example.org"},
        });
        let grant = || TokenGrant { access: Some(jwt(&claims)), ..TokenGrant::default() };
        let found = SubscriptionTokens::from_grant(grant(), 0).unwrap();
        assert_eq!(found.account_id, "a-1");
        assert_eq!(found.plan().as_deref(), Some("pro"));
        assert_eq!(found.email().as_deref(), Some("who@example.org"));
        let by_id = TokenGrant {
            access: Some("opaque".into()),
            id: grant().access,
            ..TokenGrant::default()
        };
        assert_eq!(SubscriptionTokens::from_grant(by_id, 0).unwrap().account_id, "a-1");
        let without_account = TokenGrant { access: Some("opaque".into()), ..TokenGrant::default() };
        assert!(SubscriptionTokens::from_grant(without_account, 0).is_err());
        assert!(SubscriptionTokens::from_grant(TokenGrant::default(), 0).is_err());
    }

    #[test]
    fn a_renewal_overwrites_only_what_came_and_keeps_the_account() {
        let mut old = tokens("old".into(), None);
        old.refresh = Some("refresh-1".into());
        let grant =
            |access: SecretString| TokenGrant { access: Some(access), ..TokenGrant::default() };
        let new = old.renewed(grant("new".into()), 7).unwrap();
        assert_eq!(new.refresh.unwrap().expose_secret(), "refresh-1");
        assert_eq!(new.obtained_at, 7);
        let other = jwt(&json!({"https://api.openai.com/auth": {"chatgpt_account_id": "x"}}));
        assert!(matches!(old.renewed(grant(other), 7), Err(CredentialError::AccountChanged)));
        assert!(old.renewed(TokenGrant::default(), 7).unwrap_err().is_passing());
        assert!(old.renewed(grant("with blank".into()), 7).is_err());
    }

    #[test]
    fn odd_tokens_say_nothing_and_debug_shows_nothing() {
        for token in ["", "a.b", "a.b.c.d", "..", "a.!!.c", "a.bnVsbA.c"] {
            assert_eq!(tokens(token.into(), None).ends_at(), None, "{token}");
        }
        assert!(!format!("{:?}", tokens("secret-token".into(), None)).contains("secret"));
    }
}
