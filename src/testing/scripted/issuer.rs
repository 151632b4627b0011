//! The scripted token issuer: a loopback OAuth server that fails on command.
//!
//! Codes and refresh tokens work once, PKCE is checked, and every secret that was issued is
//! remembered, so that a test can look for leaks.

use std::collections::{HashMap, HashSet, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use parking_lot::Mutex;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::task::AbortOnDropHandle;
use url::Url;

use super::connection::{read_request, write_plain};
use super::{ReceivedRequest, serve_connections};

/// The account of every token, unless a test says otherwise.
const ACCOUNT: &str = "account-of-the-story";

/// An endpoint of the issuer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum IssuerEndpoint {
    /// The sign-in page.
    Authorize,
    /// Trades a code for tokens.
    Exchange,
    /// Trades a refresh token for tokens.
    Refresh,
    /// Issues a device code for the user to type.
    UserCode,
    /// Asks whether the user has typed the device code.
    Poll,
    /// Revokes a token.
    Revoke,
}

/// A fault of one answer.
#[derive(Debug, Clone)]
pub enum IssuerFault {
    /// An answer with this status and body; no token is issued.
    Answer(u16, String),
    /// The normal answer after a delay.
    Slow(Duration),
}

impl IssuerFault {
    /// An error answer with a code, in the issuer's format.
    pub fn code(status: u16, code: &str) -> Self {
        let message = format!("the issuer says {code}");
        Self::Answer(status, json!({"error": {"code": code, "message": message}}).to_string())
    }
}

/// Counters of requests and of successful answers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct IssuerCounts {
    /// Codes traded for tokens.
    pub exchanges: usize,
    /// Refresh tokens traded for tokens.
    pub refreshes: usize,
    /// Refresh tokens that were used a second time.
    pub reuses: usize,
    /// Requests whether a device code was typed.
    pub polls: usize,
    /// Tokens that were revoked.
    pub revokes: usize,
    /// Every request.
    pub requests: usize,
}

/// A running issuer; dropping it closes the port and every connection.
#[derive(Debug)]
pub struct ScriptedIssuer {
    handler: Arc<IssuerHandler>,
    _task: AbortOnDropHandle<()>,
}

/// Answers requests to the issuer. A leaf lock, never held across an await.
#[derive(Debug)]
pub(super) struct IssuerHandler {
    address: SocketAddr,
    state: Mutex<IssuerState>,
}

#[derive(Debug, Default)]
struct IssuerState {
    account: String,
    /// Lifetime of a new access token, in seconds.
    token_lifetime: i64,
    counts: IssuerCounts,
    faults: HashMap<IssuerEndpoint, VecDeque<IssuerFault>>,
    /// Challenge and redirect of each unused code.
    codes: HashMap<String, (String, String)>,
    device_codes: HashMap<String, String>,
    unused_refresh_tokens: HashSet<String>,
    used_refresh_tokens: HashSet<String>,
    valid_access_tokens: HashSet<String>,
    issued_secrets: Vec<String>,
}

impl ScriptedIssuer {
    /// Listens on a free port of 127.0.0.1.
    pub async fn start() -> std::io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let state = IssuerState {
            account: ACCOUNT.to_owned(),
            token_lifetime: 3600,
            ..IssuerState::default()
        };
        let handler =
            Arc::new(IssuerHandler { address: listener.local_addr()?, state: Mutex::new(state) });
        let own = Arc::clone(&handler);
        let task = tokio::spawn(serve_connections(listener, move |socket| {
            serve_client(socket, Arc::clone(&own))
        }));
        Ok(Self { handler, _task: AbortOnDropHandle::new(task) })
    }

    /// The value for `PIXIR_AUTH_ISSUER`.
    pub fn base_url(&self) -> String {
        self.handler.base_url()
    }

    /// The counters so far.
    pub fn counts(&self) -> IssuerCounts {
        self.handler.state.lock().counts
    }

    /// Queues a fault for the next answer of this endpoint.
    pub fn fail(&self, endpoint: IssuerEndpoint, fault: IssuerFault) {
        self.handler.state.lock().faults.entry(endpoint).or_default().push_back(fault);
    }

    /// Issues new tokens for this account.
    pub fn switch_account(&self, account: &str) {
        account.clone_into(&mut self.handler.state.lock().account);
    }

    /// Sets the lifetime of new access tokens, in seconds.
    pub fn set_token_lifetime(&self, seconds: i64) {
        self.handler.state.lock().token_lifetime = seconds;
    }

    /// Invalidates every access token that was issued so far.
    pub fn invalidate_access_tokens(&self) {
        self.handler.state.lock().valid_access_tokens.clear();
    }

    /// Issues tokens and returns the credential that Pixir stores; the access token is valid for so many seconds.
    pub fn sign_in(&self, seconds: i64) -> Value {
        let mut state = self.handler.state.lock();
        let tokens = state.issue_tokens(seconds);
        json!({
            "kind": "subscription",
            "access_token": tokens["access_token"],
            "refresh_token": tokens["refresh_token"],
            "id_token": tokens["id_token"],
            "account_id": state.account,
            "obtained_at": unix_seconds() * 1000,
        })
    }

    /// Every secret that was issued: tokens, codes, verifiers.
    pub fn issued_secrets(&self) -> Vec<String> {
        self.handler.state.lock().issued_secrets.clone()
    }

    pub(super) fn handler(&self) -> Arc<IssuerHandler> {
        Arc::clone(&self.handler)
    }
}

impl IssuerHandler {
    fn base_url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The subscription backend's refusal of an unauthorized request.
    pub(super) fn refusal(&self, request: &ReceivedRequest) -> Option<(u16, String)> {
        let state = self.state.lock();
        let bearer = request.header("authorization").and_then(|text| text.strip_prefix("Bearer "));
        if !bearer.is_some_and(|bearer| state.valid_access_tokens.contains(bearer)) {
            return Some((401, json!({"detail": "Unauthorized"}).to_string()));
        }
        if request.header("chatgpt-account-id") != Some(&state.account) {
            return Some((403, json!({"detail": "Forbidden"}).to_string()));
        }
        None
    }

    fn answer_request(&self, request: &ReceivedRequest) -> (u16, Vec<(String, String)>, String) {
        let mut state = self.state.lock();
        let form = form_fields(request);
        let field = |name: &str| form.get(name).cloned().unwrap_or_default();
        let (status, body) = match endpoint_of(request) {
            Some(IssuerEndpoint::Authorize) => {
                let code = state.record_secret(format!("code-{}", random_word()));
                state.codes.insert(code.clone(), (field("code_challenge"), field("redirect_uri")));
                let back = [("code", code.as_str()), ("state", &field("state"))];
                let back = Url::parse_with_params(&field("redirect_uri"), back);
                let Ok(back) = back else { return (400, Vec::new(), "no redirect".to_owned()) };
                return (302, vec![("location".to_owned(), back.into())], String::new());
            }
            Some(IssuerEndpoint::Exchange) => state.exchange(&field),
            Some(IssuerEndpoint::Refresh) => state.refresh(&field("refresh_token")),
            Some(IssuerEndpoint::UserCode) => {
                let (id, user_code) = (random_word(), random_word()[..8].to_uppercase());
                state.device_codes.insert(id.clone(), user_code.clone());
                let interval = "0";
                (200, json!({"device_auth_id": id, "user_code": user_code, "interval": interval}))
            }
            Some(IssuerEndpoint::Poll) => {
                let redirect = format!("{}/deviceauth/callback", self.base_url());
                state.approve(&field("device_auth_id"), &field("user_code"), redirect)
            }
            Some(IssuerEndpoint::Revoke) => {
                state.counts.revokes += 1;
                let token = field("token");
                state.unused_refresh_tokens.remove(&token);
                (200, json!({}))
            }
            None => (404, json!({"error": "not_found"})),
        };
        (status, Vec::new(), body.to_string())
    }
}

impl IssuerState {
    fn record_secret(&mut self, secret: String) -> String {
        self.issued_secrets.push(secret.clone());
        secret
    }

    fn issue_tokens(&mut self, seconds: i64) -> Value {
        let claims = json!({
            "exp": unix_seconds() + seconds,
            "jti": random_word(),
            "https://api.openai.com/profile": {"email": "story@example.org"},
            "https://api.openai.com/auth": {
                "chatgpt_account_id": self.account, "chatgpt_plan_type": "plus",
            },
        });
        let access = self.record_secret(unsigned_jwt(&claims));
        let id = self.record_secret(unsigned_jwt(
            &json!({"email": "story@example.org", "jti": random_word()}),
        ));
        let refresh = self.record_secret(format!("refresh-{}{}", random_word(), random_word()));
        self.valid_access_tokens.insert(access.clone());
        self.unused_refresh_tokens.insert(refresh.clone());
        json!({
            "access_token": access,
            "refresh_token": refresh,
            "id_token": id,
            "expires_in": seconds,
            "token_type": "Bearer",
        })
    }

    fn exchange(&mut self, field: &dyn Fn(&str) -> String) -> (u16, Value) {
        let refuse = |why: &str| (400, json!({"error": "invalid_grant", "error_description": why}));
        let Some((challenge, redirect)) = self.codes.remove(&field("code")) else {
            return refuse("this code is unknown, or has been used");
        };
        let verifier = self.record_secret(field("code_verifier"));
        if URL_SAFE_NO_PAD.encode(Sha256::digest(verifier.as_bytes())) != challenge {
            return refuse("the verifier does not fit the challenge");
        }
        if field("redirect_uri") != redirect || field("client_id").is_empty() {
            return refuse("the redirect is not the one of before");
        }
        self.counts.exchanges += 1;
        (200, self.issue_tokens(self.token_lifetime))
    }

    fn refresh(&mut self, token: &str) -> (u16, Value) {
        if self.used_refresh_tokens.contains(token) {
            self.counts.reuses += 1;
            let message = "this refresh token has already been used";
            return (401, json!({"error": {"code": "refresh_token_reused", "message": message}}));
        }
        if !self.unused_refresh_tokens.remove(token) {
            let message = "this refresh token is unknown";
            return (
                401,
                json!({"error": {"code": "refresh_token_invalidated", "message": message}}),
            );
        }
        self.used_refresh_tokens.insert(token.to_owned());
        self.counts.refreshes += 1;
        (200, self.issue_tokens(self.token_lifetime))
    }

    fn approve(&mut self, id: &str, user_code: &str, redirect: String) -> (u16, Value) {
        if self.device_codes.get(id).is_none_or(|own| own != user_code) {
            return (400, json!({"error": {"code": "invalid_device"}}));
        }
        let verifier = self.record_secret(format!("{}{}", random_word(), random_word()));
        let challenge = URL_SAFE_NO_PAD.encode(Sha256::digest(verifier.as_bytes()));
        let code = self.record_secret(format!("code-{}", random_word()));
        self.codes.insert(code.clone(), (challenge.clone(), redirect));
        let answer = json!({
            "authorization_code": code, "code_challenge": challenge, "code_verifier": verifier,
        });
        (200, answer)
    }
}

async fn serve_client(mut socket: TcpStream, handler: Arc<IssuerHandler>) {
    let mut buffer = Vec::new();
    while let Ok(Some(request)) = read_request(&mut socket, &mut buffer).await {
        let fault = {
            let mut state = handler.state.lock();
            state.counts.requests += 1;
            let endpoint = endpoint_of(&request);
            state.counts.polls += usize::from(endpoint == Some(IssuerEndpoint::Poll));
            endpoint.and_then(|endpoint| state.faults.get_mut(&endpoint)?.pop_front())
        };
        let (status, headers, body) = match fault {
            Some(IssuerFault::Answer(status, body)) => (status, Vec::new(), body),
            Some(IssuerFault::Slow(time)) => {
                tokio::time::sleep(time).await;
                handler.answer_request(&request)
            }
            None => handler.answer_request(&request),
        };
        if write_plain(&mut socket, status, &headers, &body).await.is_err() {
            return;
        }
    }
}

fn endpoint_of(request: &ReceivedRequest) -> Option<IssuerEndpoint> {
    let path = request.path.split('?').next().unwrap_or_default();
    match (request.method.as_str(), path) {
        ("GET", "/oauth/authorize") => Some(IssuerEndpoint::Authorize),
        ("POST", "/oauth/token") => {
            let is_refresh =
                form_fields(request).get("grant_type").is_some_and(|g| g == "refresh_token");
            Some(if is_refresh { IssuerEndpoint::Refresh } else { IssuerEndpoint::Exchange })
        }
        ("POST", "/api/accounts/deviceauth/usercode") => Some(IssuerEndpoint::UserCode),
        ("POST", "/api/accounts/deviceauth/token") => Some(IssuerEndpoint::Poll),
        ("POST", "/oauth/revoke") => Some(IssuerEndpoint::Revoke),
        _ => None,
    }
}

/// The fields of a request: JSON, form body or query.
fn form_fields(request: &ReceivedRequest) -> HashMap<String, String> {
    if let Some(fields) = request.body.as_object() {
        let text = fields.iter().filter_map(|(name, value)| Some((name, value.as_str()?)));
        return text.map(|(name, value)| (name.clone(), value.to_owned())).collect();
    }
    let query = match request.path.split_once('?') {
        Some((_, query)) => query,
        None => &request.body_text,
    };
    let Ok(url) = Url::parse(&format!("http://form/?{query}")) else { return HashMap::new() };
    url.query_pairs().into_owned().collect()
}

fn unsigned_jwt(claims: &Value) -> String {
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    format!("{}.{}.{}", part(&json!({"alg": "RS256", "typ": "JWT"})), part(claims), random_word())
}

fn random_word() -> String {
    format!("{:016x}{:016x}", fastrand::u64(..), fastrand::u64(..))
}

fn unix_seconds() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}
