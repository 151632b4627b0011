//! Sign-in with a browser (OAuth with PKCE): the code arrives by redirect, or the user pastes it.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use secrecy::SecretString;
use sha2::{Digest, Sha256};
use url::Url;

use super::callback::{self, CallbackListener, Redirect};
use super::issuer::{CLIENT_ID, Issuer};
use super::token::{SubscriptionTokens, unix_now};
use super::{CredentialError, ORIGINATOR};

/// The redirect ports that the issuer allows for this client, in the order in which they are tried.
pub const DEFAULT_PORTS: [u16; 2] = [1455, 1457];

const SCOPE: &str = "openid profile email offline_access";

/// A browser sign-in under way; dropping it closes the port.
pub struct BrowserLogin<'a> {
    issuer: &'a Issuer,
    callback: CallbackListener,
    url: Url,
    state: String,
    verifier: SecretString,
}

/// The result of parsing pasted text.
#[derive(Debug)]
pub enum PastedCode {
    /// An authorization code.
    Code(SecretString),
    /// No code; the message says why, and the user may try again.
    Invalid(&'static str),
}

impl<'a> BrowserLogin<'a> {
    /// Opens a port and generates the secrets of this sign-in.
    pub async fn start(issuer: &'a Issuer, ports: &[u16]) -> Result<Self, CredentialError> {
        let state = random_token::<32>()?;
        let verifier = random_token::<64>()?;
        let challenge = URL_SAFE_NO_PAD.encode(Sha256::digest(verifier.as_bytes()));
        let callback =
            CallbackListener::bind(ports, &state).await.ok_or(CredentialError::NoPort)?;
        let url = issuer.authorize_url(&[
            ("response_type", "code"),
            ("client_id", CLIENT_ID),
            ("redirect_uri", &callback.redirect_uri()),
            ("scope", SCOPE),
            ("code_challenge", &challenge),
            ("code_challenge_method", "S256"),
            ("id_token_add_organizations", "true"),
            ("codex_cli_simplified_flow", "true"),
            ("state", &state),
            ("originator", ORIGINATOR),
        ])?;
        Ok(Self { issuer, callback, url, state, verifier: verifier.into() })
    }

    /// The URL of the page to open.
    pub fn url(&self) -> &str {
        self.url.as_str()
    }

    /// Waits for the browser to return with a code.
    pub async fn wait_for_code(&self) -> Result<SecretString, CredentialError> {
        match self.callback.wait_for_redirect().await {
            Redirect::Code(code) => Ok(code.into()),
            Redirect::Refused { code, message } => Err(refusal_error(code, &message)),
        }
    }

    /// Parses pasted text: the whole address, `code#state`, `code=…&state=…`, or the code alone.
    pub fn parse_pasted(&self, text: &str) -> Result<PastedCode, CredentialError> {
        let text = text.trim();
        let other =
            PastedCode::Invalid("that belongs to another sign-in; paste the newest address");
        let query = match text.split_once('?') {
            Some((_, query)) => query,
            None if text.contains('=') => text,
            None => {
                let (code, state) =
                    text.split_once('#').map_or((text, None), |(code, state)| (code, Some(state)));
                let is_code = !code.is_empty() && code.bytes().all(|b| b.is_ascii_graphic());
                return Ok(match state {
                    Some(state) if !callback::eq_constant_time(state, &self.state) => other,
                    _ if is_code && !code.contains("://") => PastedCode::Code(code.into()),
                    _ => PastedCode::Invalid("that is not a code; paste the whole address"),
                });
            }
        };
        let Ok(url) = Url::parse(&format!("http://127.0.0.1/?{query}")) else {
            return Ok(PastedCode::Invalid("that cannot be read; paste the whole address"));
        };
        match callback::parse_redirect(&url, &self.state) {
            Some(Ok(code)) => Ok(PastedCode::Code(code.into())),
            Some(Err((code, message))) => Err(refusal_error(code, &message)),
            None => Ok(other),
        }
    }

    /// Exchanges the code for tokens.
    pub async fn finish(&self, code: &SecretString) -> Result<SubscriptionTokens, CredentialError> {
        let redirect_uri = self.callback.redirect_uri();
        let grant = self.issuer.exchange_code(code, &redirect_uri, &self.verifier).await?;
        SubscriptionTokens::from_grant(grant, unix_now())
    }
}

fn refusal_error(code: String, message: &str) -> CredentialError {
    if code == "access_denied" && message.contains("missing_codex_entitlement") {
        let message = "this workspace has no access to Codex; ask its administrator".to_owned();
        return CredentialError::Refused { code, message };
    }
    CredentialError::Refused { code, message: message.chars().take(300).collect() }
}

/// Random bytes from the kernel, as text for a URL.
fn random_token<const N: usize>() -> Result<String, CredentialError> {
    let mut bytes = [0_u8; N];
    let mut filled = 0;
    while filled < N {
        let rest = bytes.get_mut(filled..).unwrap_or_default();
        let got = rustix::rand::getrandom(rest, rustix::rand::GetRandomFlags::empty());
        match got {
            Ok(count) => filled += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => {
                return Err(CredentialError::Internal(format!("no randomness: {error}")));
            }
        }
    }
    Ok(URL_SAFE_NO_PAD.encode(bytes))
}

impl std::fmt::Debug for BrowserLogin<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("BrowserLogin(hidden)")
    }
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret;

    use super::*;

    fn issuer() -> Issuer {
        Issuer::from_environment(&|_| None, &crate::host::http::HttpSettings::default()).unwrap()
    }

    async fn login(issuer: &Issuer) -> BrowserLogin<'_> {
        BrowserLogin::start(issuer, &[0]).await.unwrap()
    }

    #[tokio::test]
    async fn the_page_has_every_parameter_and_its_own_secrets() {
        let issuer = issuer();
        let (one, two) = (login(&issuer).await, login(&issuer).await);
        let get = |login: &BrowserLogin<'_>, name: &str| {
            let found = login.url.query_pairs().find(|(own, _)| own == name);
            found.map(|(_, value)| value.into_owned()).unwrap_or_default()
        };
        assert!(
            one.url().starts_with("https://auth.openai.com/oauth/authorize?response_type=code")
        );
        assert_eq!(get(&one, "client_id"), CLIENT_ID);
        assert_eq!(get(&one, "redirect_uri"), one.callback.redirect_uri());
        assert_eq!(get(&one, "code_challenge_method"), "S256");
        assert_eq!(get(&one, "originator"), "pixir");
        assert_eq!(get(&one, "scope"), SCOPE);
        assert_eq!((get(&one, "state").len(), one.verifier.expose_secret().len()), (43, 86));
        for name in ["state", "code_challenge"] {
            assert_ne!(get(&one, name), get(&two, name));
        }
        assert!(!one.url().contains(one.verifier.expose_secret()));
        assert!(!format!("{one:?}").contains(&one.state));
    }

    #[tokio::test]
    async fn every_way_to_paste_a_code() {
        let issuer = issuer();
        let login = login(&issuer).await;
        let state = &login.state;
        for text in [
            format!("http://127.0.0.1:1455/auth/callback?code=abc&state={state}"),
            format!("  code=abc&state={state}\n"),
            format!("abc#{state}"),
            "abc".to_owned(),
        ] {
            let Ok(PastedCode::Code(code)) = login.parse_pasted(&text) else { panic!("{text}") };
            assert_eq!(code.expose_secret(), "abc", "{text}");
        }
        for text in [
            "abc#other",
            "code=abc&state=other",
            "http://x/?code=abc",
            "",
            "two words",
            "http://127.0.0.1:1455/auth/callback",
        ] {
            assert!(matches!(login.parse_pasted(text), Ok(PastedCode::Invalid(_))), "{text}");
        }
        let denied = format!("http://x/?error=access_denied&state={state}");
        assert!(matches!(login.parse_pasted(&denied), Err(CredentialError::Refused { .. })));
    }

    #[tokio::test]
    async fn the_ports_are_those_the_issuer_knows_and_the_second_is_tried() {
        assert_eq!(DEFAULT_PORTS, [1455, 1457]);
        let issuer = issuer();
        let taken = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = taken.local_addr().unwrap().port();
        assert!(BrowserLogin::start(&issuer, &[port, 0]).await.is_ok());
        let refused = BrowserLogin::start(&issuer, &[port]).await;
        assert!(matches!(refused, Err(CredentialError::NoPort)));
    }

    #[test]
    fn a_plan_without_access_is_named() {
        let error = refusal_error("access_denied".into(), "x missing_codex_entitlement y");
        assert!(error.to_string().contains("no access to Codex"));
    }
}
