//! The scripted token issuer: a loopback OAuth server that fails on command.
//!
//! Codes and refresh tokens work once, PKCE is checked, and every secret that was issued is
//! remembered, so that a test can look for leaks.

use std::collections::{HashMap, HashSet, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use url::Url;

use super::connection::{plain, read};
use super::{Received, serve};

/// The account of every token, unless a test says otherwise.
const ACCOUNT: &str = "account-of-the-story";

/// An endpoint of the issuer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Endpoint {
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
pub enum Fault {
    /// An answer with this status and body; no token is issued.
    Answer(u16, String),
    /// The normal answer after a delay.
    Slow(Duration),
}

impl Fault {
    /// An error answer with a code, in the issuer's format.
    pub fn code(status: u16, code: &str) -> Self {
        let message = format!("the issuer says {code}");
        Self::Answer(status, json!({"error": {"code": code, "message": message}}).to_string())
    }
}

/// Counters of requests and of successful answers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
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
pub struct Issuer {
    book: Arc<Book>,
    task: JoinHandle<()>,
}

/// Answers requests to the issuer. A leaf lock, never held across an await.
#[derive(Debug)]
pub(super) struct Book {
    address: SocketAddr,
    pages: Mutex<Pages>,
}

#[derive(Debug, Default)]
struct Pages {
    account: String,
    /// Lifetime of a new access token, in seconds.
    life: i64,
    counts: Counts,
    faults: HashMap<Endpoint, VecDeque<Fault>>,
    /// Challenge and redirect of each unused code.
    codes: HashMap<String, (String, String)>,
    device: HashMap<String, String>,
    fresh: HashSet<String>,
    spent: HashSet<String>,
    live: HashSet<String>,
    handed_out: Vec<String>,
}

impl Issuer {
    /// Listens on a free port of 127.0.0.1.
    pub async fn start() -> std::io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let pages = Pages { account: ACCOUNT.to_owned(), life: 3600, ..Pages::default() };
        let book = Arc::new(Book { address: listener.local_addr()?, pages: Mutex::new(pages) });
        let own = Arc::clone(&book);
        let task = tokio::spawn(serve(listener, move |socket| converse(socket, Arc::clone(&own))));
        Ok(Self { book, task })
    }

    /// The value for `PIXIR_AUTH_ISSUER`.
    pub fn base_url(&self) -> String {
        self.book.base_url()
    }

    /// The counters so far.
    pub fn counts(&self) -> Counts {
        self.book.pages().counts
    }

    /// Queues a fault for the next answer of this endpoint.
    pub fn fail(&self, endpoint: Endpoint, fault: Fault) {
        self.book.pages().faults.entry(endpoint).or_default().push_back(fault);
    }

    /// Issues new tokens for this account.
    pub fn switch_account(&self, account: &str) {
        account.clone_into(&mut self.book.pages().account);
    }

    /// Sets the lifetime of new access tokens, in seconds.
    pub fn set_life(&self, seconds: i64) {
        self.book.pages().life = seconds;
    }

    /// Invalidates every access token that was issued so far.
    pub fn forget_access_tokens(&self) {
        self.book.pages().live.clear();
    }

    /// Issues tokens and returns the credential that Pixir stores; the access token is valid for so many seconds.
    pub fn signed_in(&self, seconds: i64) -> Value {
        let mut pages = self.book.pages();
        let tokens = pages.issue(seconds);
        json!({
            "kind": "subscription",
            "access_token": tokens["access_token"],
            "refresh_token": tokens["refresh_token"],
            "id_token": tokens["id_token"],
            "account_id": pages.account,
            "obtained_at": now() * 1000,
        })
    }

    /// Every secret that was issued: tokens, codes, verifiers.
    pub fn handed_out(&self) -> Vec<String> {
        self.book.pages().handed_out.clone()
    }

    pub(super) fn book(&self) -> Arc<Book> {
        Arc::clone(&self.book)
    }
}

impl Drop for Issuer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Book {
    fn base_url(&self) -> String {
        format!("http://{}", self.address)
    }

    fn pages(&self) -> MutexGuard<'_, Pages> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The subscription backend's refusal of an unauthorized request.
    pub(super) fn refusal(&self, request: &Received) -> Option<(u16, String)> {
        let pages = self.pages();
        let bearer = request.header("authorization").and_then(|text| text.strip_prefix("Bearer "));
        if !bearer.is_some_and(|bearer| pages.live.contains(bearer)) {
            return Some((401, json!({"detail": "Unauthorized"}).to_string()));
        }
        if request.header("chatgpt-account-id") != Some(&pages.account) {
            return Some((403, json!({"detail": "Forbidden"}).to_string()));
        }
        None
    }

    fn answer(&self, request: &Received) -> (u16, Vec<(String, String)>, String) {
        let mut pages = self.pages();
        let form = form(request);
        let said = |name: &str| form.get(name).cloned().unwrap_or_default();
        let (status, body) = match endpoint(request) {
            Some(Endpoint::Authorize) => {
                let code = pages.keep(format!("code-{}", word()));
                pages.codes.insert(code.clone(), (said("code_challenge"), said("redirect_uri")));
                let back = [("code", code.as_str()), ("state", &said("state"))];
                let back = Url::parse_with_params(&said("redirect_uri"), back);
                let Ok(back) = back else { return (400, Vec::new(), "no redirect".to_owned()) };
                return (302, vec![("location".to_owned(), back.into())], String::new());
            }
            Some(Endpoint::Exchange) => pages.exchange(&said),
            Some(Endpoint::Refresh) => pages.refresh(&said("refresh_token")),
            Some(Endpoint::UserCode) => {
                let (id, user_code) = (word(), word()[..8].to_uppercase());
                pages.device.insert(id.clone(), user_code.clone());
                let interval = "0";
                (200, json!({"device_auth_id": id, "user_code": user_code, "interval": interval}))
            }
            Some(Endpoint::Poll) => {
                let redirect = format!("{}/deviceauth/callback", self.base_url());
                pages.approve(&said("device_auth_id"), &said("user_code"), redirect)
            }
            Some(Endpoint::Revoke) => {
                pages.counts.revokes += 1;
                let token = said("token");
                pages.fresh.remove(&token);
                (200, json!({}))
            }
            None => (404, json!({"error": "not_found"})),
        };
        (status, Vec::new(), body.to_string())
    }
}

impl Pages {
    fn keep(&mut self, secret: String) -> String {
        self.handed_out.push(secret.clone());
        secret
    }

    fn issue(&mut self, seconds: i64) -> Value {
        let claims = json!({
            "exp": now() + seconds,
            "jti": word(),
            "https://api.openai.com/profile": {"email": "story@example.org"},
            "https://api.openai.com/auth": {
                "chatgpt_account_id": self.account, "chatgpt_plan_type": "plus",
            },
        });
        let access = self.keep(jwt(&claims));
        let id = self.keep(jwt(&json!({"email": "story@example.org", "jti": word()})));
        let refresh = self.keep(format!("refresh-{}{}", word(), word()));
        self.live.insert(access.clone());
        self.fresh.insert(refresh.clone());
        json!({
            "access_token": access,
            "refresh_token": refresh,
            "id_token": id,
            "expires_in": seconds,
            "token_type": "Bearer",
        })
    }

    fn exchange(&mut self, said: &dyn Fn(&str) -> String) -> (u16, Value) {
        let refuse = |why: &str| (400, json!({"error": "invalid_grant", "error_description": why}));
        let Some((challenge, redirect)) = self.codes.remove(&said("code")) else {
            return refuse("this code is unknown, or has been used");
        };
        let verifier = self.keep(said("code_verifier"));
        if URL_SAFE_NO_PAD.encode(Sha256::digest(verifier.as_bytes())) != challenge {
            return refuse("the verifier does not fit the challenge");
        }
        if said("redirect_uri") != redirect || said("client_id").is_empty() {
            return refuse("the redirect is not the one of before");
        }
        self.counts.exchanges += 1;
        (200, self.issue(self.life))
    }

    fn refresh(&mut self, token: &str) -> (u16, Value) {
        if self.spent.contains(token) {
            self.counts.reuses += 1;
            let message = "this refresh token has already been used";
            return (401, json!({"error": {"code": "refresh_token_reused", "message": message}}));
        }
        if !self.fresh.remove(token) {
            let message = "this refresh token is unknown";
            return (
                401,
                json!({"error": {"code": "refresh_token_invalidated", "message": message}}),
            );
        }
        self.spent.insert(token.to_owned());
        self.counts.refreshes += 1;
        (200, self.issue(self.life))
    }

    fn approve(&mut self, id: &str, user_code: &str, redirect: String) -> (u16, Value) {
        if self.device.get(id).is_none_or(|own| own != user_code) {
            return (400, json!({"error": {"code": "invalid_device"}}));
        }
        let verifier = self.keep(format!("{}{}", word(), word()));
        let challenge = URL_SAFE_NO_PAD.encode(Sha256::digest(verifier.as_bytes()));
        let code = self.keep(format!("code-{}", word()));
        self.codes.insert(code.clone(), (challenge.clone(), redirect));
        let answer = json!({
            "authorization_code": code, "code_challenge": challenge, "code_verifier": verifier,
        });
        (200, answer)
    }
}

async fn converse(mut socket: TcpStream, book: Arc<Book>) {
    let mut buffer = Vec::new();
    while let Ok(Some(request)) = read(&mut socket, &mut buffer).await {
        let fault = {
            let mut pages = book.pages();
            pages.counts.requests += 1;
            let endpoint = endpoint(&request);
            pages.counts.polls += usize::from(endpoint == Some(Endpoint::Poll));
            endpoint.and_then(|endpoint| pages.faults.get_mut(&endpoint)?.pop_front())
        };
        let (status, headers, body) = match fault {
            Some(Fault::Answer(status, body)) => (status, Vec::new(), body),
            Some(Fault::Slow(time)) => {
                tokio::time::sleep(time).await;
                book.answer(&request)
            }
            None => book.answer(&request),
        };
        if plain(&mut socket, status, &headers, &body).await.is_err() {
            return;
        }
    }
}

fn endpoint(request: &Received) -> Option<Endpoint> {
    let path = request.path.split('?').next().unwrap_or_default();
    match (request.method.as_str(), path) {
        ("GET", "/oauth/authorize") => Some(Endpoint::Authorize),
        ("POST", "/oauth/token") => {
            let is_refresh = form(request).get("grant_type").is_some_and(|g| g == "refresh_token");
            Some(if is_refresh { Endpoint::Refresh } else { Endpoint::Exchange })
        }
        ("POST", "/api/accounts/deviceauth/usercode") => Some(Endpoint::UserCode),
        ("POST", "/api/accounts/deviceauth/token") => Some(Endpoint::Poll),
        ("POST", "/oauth/revoke") => Some(Endpoint::Revoke),
        _ => None,
    }
}

/// The fields of a request: JSON, form body or query.
fn form(request: &Received) -> HashMap<String, String> {
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

fn jwt(claims: &Value) -> String {
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    format!("{}.{}.{}", part(&json!({"alg": "RS256", "typ": "JWT"})), part(claims), word())
}

fn word() -> String {
    format!("{:016x}{:016x}", fastrand::u64(..), fastrand::u64(..))
}

fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}
