//! The keyring: the tokens of a signed-in user, shared by all tasks and renewed by one process at a time.
//!
//! Refresh tokens work once. So a renewal happens under a lock that all processes of this user respect, and the store
//! is read again under the lock, because another process may just have renewed the tokens. New tokens are stored
//! before they are used.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use secrecy::{ExposeSecret, SecretString};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::issuer::Issuer;
use super::store::{StoredTokens, TokenStore, TokenStoreLock};
use super::token::{SubscriptionTokens, unix_now};
use super::{Authorization, CredentialError};
use crate::base::secret::Secrets;

/// How long to wait for the lock; a renewal in another process takes less.
const LOCK_TIMEOUT: Duration = Duration::from_mins(1);

/// The pause after a temporary failure of an early renewal, while the old token is still valid.
const COOL_DOWN: Duration = Duration::from_secs(20);

/// The tokens of a signed-in user. Clones share them.
#[derive(Clone)]
pub struct Keyring(Arc<Shared>);

struct Shared {
    store: TokenStore,
    issuer: Issuer,
    state: Mutex<TokenState>,
    /// One renewal at a time in this process.
    renewal_permit: Semaphore,
    secrets: OnceLock<Arc<Secrets>>,
}

struct TokenState {
    tokens: SubscriptionTokens,
    /// The refresh token that is permanently invalid, and the issuer's message.
    ended: Option<EndedRefresh>,
    /// No early renewal is tried before this moment.
    no_renewal_before: Option<Instant>,
}

struct EndedRefresh {
    refresh: String,
    code: String,
    message: String,
}

impl Keyring {
    /// A keyring with the tokens of the store.
    pub fn new(store: TokenStore, issuer: Issuer, stored: StoredTokens) -> Self {
        let held = TokenState { tokens: stored.tokens, ended: None, no_renewal_before: None };
        Self(Arc::new(Shared {
            store,
            issuer,
            state: Mutex::new(held),
            renewal_permit: Semaphore::new(1),
            secrets: OnceLock::new(),
        }))
    }

    /// Registers all tokens for redaction, including those of later renewals.
    pub fn register_secrets(&self, secrets: &Arc<Secrets>) {
        secrets.add_values(self.tokens().secrets());
        // A keyring belongs to one run, so only the first call counts.
        self.0.secrets.set(Arc::clone(secrets)).ok();
    }

    /// The current tokens.
    pub fn tokens(&self) -> SubscriptionTokens {
        self.0.state.lock().tokens.clone()
    }

    /// The authorization for an attempt; renews tokens that are about to expire.
    pub async fn authorize(&self) -> Result<Authorization, CredentialError> {
        let tokens = self.tokens();
        if !tokens.should_renew(unix_now()) {
            return Ok(Authorization::from_tokens(&tokens));
        }
        let is_alive = tokens.is_alive(unix_now());
        if is_alive
            && self.0.state.lock().no_renewal_before.is_some_and(|until| Instant::now() < until)
        {
            return Ok(Authorization::from_tokens(&tokens));
        }
        match self.renew(&tokens.access).await {
            Ok(renewed) => Ok(Authorization::from_tokens(&renewed)),
            Err(
                error @ (CredentialError::Unavailable { .. }
                | CredentialError::Ended { .. }
                | CredentialError::Unwritable { .. }),
            ) if is_alive => {
                tracing::warn!(kind = %crate::base::error::Explain::kind(&error), "early renewal failed");
                self.0.state.lock().no_renewal_before = Some(Instant::now() + COOL_DOWN);
                Ok(Authorization::from_tokens(&tokens))
            }
            Err(error) => Err(error),
        }
    }

    /// Waits until no renewal is under way, so that its tokens are stored.
    pub async fn wait_for_renewal(&self) {
        self.0.renewal_permit.acquire().await.ok();
    }

    /// Reads the store again; `None` when it still has the access token that failed.
    pub async fn reread_store(
        &self,
        failed: &SecretString,
    ) -> Result<Option<SubscriptionTokens>, CredentialError> {
        let shared = Arc::clone(&self.0);
        let stored = blocking(move || shared.store.read()).await?;
        let Some(stored) = stored else { return Err(CredentialError::SignedOut) };
        self.0.check_account(&stored.tokens)?;
        if stored.tokens.has_access_token(failed) {
            return Ok(None);
        }
        self.0.adopt_tokens(&stored.tokens);
        Ok(Some(stored.tokens))
    }

    /// Replaces the access token `used`: with tokens that another task or process has renewed, or by a renewal.
    pub async fn renew(&self, used: &SecretString) -> Result<SubscriptionTokens, CredentialError> {
        let (shared, used) = (Arc::clone(&self.0), used.clone());
        // A separate task, so that an interrupted Turn does not lose tokens that the issuer has already issued in
        // exchange for the old ones.
        let renewal = tokio::spawn(async move { shared.renew(&used).await });
        renewal.await.unwrap_or_else(|error| {
            Err(CredentialError::Internal(format!("a renewal crashed: {error}")))
        })
    }
}

impl Shared {
    async fn renew(
        self: &Arc<Self>,
        used: &SecretString,
    ) -> Result<SubscriptionTokens, CredentialError> {
        let Ok(_turn) = self.renewal_permit.acquire().await else {
            return Err(CredentialError::Internal("a keyring was closed".to_owned()));
        };
        let held = self.state.lock().tokens.clone();
        if !held.has_access_token(used) && !held.should_renew(unix_now()) {
            return Ok(held);
        }
        let lock = self.lock_store().await?;
        let shared = Arc::clone(self);
        let (lock, was_cut, stored) = blocking(move || {
            let was_cut = shared.store.recover_drafts(&lock)?;
            Ok((lock, was_cut, shared.store.read()?))
        })
        .await?;
        let Some(stored) = stored else { return Err(CredentialError::SignedOut) };
        self.check_account(&stored.tokens)?;
        if !stored.tokens.has_access_token(used) && !stored.tokens.should_renew(unix_now()) {
            self.adopt_tokens(&stored.tokens);
            return Ok(stored.tokens);
        }
        self.spend_refresh_token(stored, &lock).await.map_err(|error| match error {
            CredentialError::Ended { code, message } if was_cut => CredentialError::Ended {
                code,
                message: format!(
                    "{message} (an earlier Pixir process was killed during a renewal)"
                ),
            },
            error => error,
        })
    }

    /// Exchanges the refresh token at the issuer and stores the result.
    async fn spend_refresh_token(
        self: &Arc<Self>,
        stored: StoredTokens,
        lock: &TokenStoreLock,
    ) -> Result<SubscriptionTokens, CredentialError> {
        let Some(refresh) = stored.tokens.refresh.clone() else {
            return Err(CredentialError::Ended {
                code: String::new(),
                message: "it cannot be renewed".to_owned(),
            });
        };
        self.check_refresh_token(&refresh)?;
        let draft = self.store.create_draft()?;
        let grant = match self.issuer.refresh_tokens(&refresh).await {
            Ok(grant) => grant,
            Err(CredentialError::Ended { code, message }) => {
                drop(draft);
                return self.handle_ended(&refresh, code, message);
            }
            Err(error) => return Err(error),
        };
        let rotated = stored.tokens.with_rotated_refresh(&grant);
        let renewed = match stored.tokens.renewed(grant, unix_now()) {
            Ok(renewed) => renewed,
            Err(error) => {
                // The old refresh token is used up, so a new one is stored even if the rest of the answer is unusable.
                if let Some(rotated) = rotated {
                    self.register_tokens(&rotated);
                    draft.commit(&rotated, Some(&stored))?;
                }
                return Err(error);
            }
        };
        self.register_tokens(&renewed);
        let written = draft.commit(&renewed, Some(&stored));
        // The old refresh token is used up, so the new one is kept even if it could not be stored.
        self.adopt_tokens(&renewed);
        written?;
        self.store.discard_drafts(lock);
        Ok(renewed)
    }

    /// Handles an ended sign-in: a process that ignores the lock may have stored newer tokens, which are used then.
    fn handle_ended(
        &self,
        refresh: &SecretString,
        code: String,
        message: String,
    ) -> Result<SubscriptionTokens, CredentialError> {
        if let Some(stored) = self.store.read()? {
            let is_news = stored
                .tokens
                .refresh
                .as_ref()
                .is_some_and(|other| other.expose_secret() != refresh.expose_secret());
            if is_news && !stored.tokens.should_renew(unix_now()) {
                self.check_account(&stored.tokens)?;
                self.adopt_tokens(&stored.tokens);
                return Ok(stored.tokens);
            }
        }
        self.state.lock().ended = Some(EndedRefresh {
            refresh: refresh.expose_secret().to_owned(),
            code: code.clone(),
            message: message.clone(),
        });
        Err(CredentialError::Ended { code, message })
    }

    /// Fails for a refresh token that is known to be permanently invalid, without asking the issuer.
    fn check_refresh_token(&self, refresh: &SecretString) -> Result<(), CredentialError> {
        let held = self.state.lock();
        match &held.ended {
            Some(dead) if dead.refresh == refresh.expose_secret() => Err(CredentialError::Ended {
                code: dead.code.clone(),
                message: dead.message.clone(),
            }),
            _ => Ok(()),
        }
    }

    fn check_account(&self, found: &SubscriptionTokens) -> Result<(), CredentialError> {
        let is_ours = self.state.lock().tokens.account_id == found.account_id;
        if is_ours { Ok(()) } else { Err(CredentialError::AccountChanged) }
    }

    fn adopt_tokens(&self, tokens: &SubscriptionTokens) {
        self.register_tokens(tokens);
        let mut held = self.state.lock();
        held.tokens = tokens.clone();
        held.no_renewal_before = None;
    }

    fn register_tokens(&self, tokens: &SubscriptionTokens) {
        if let Some(secrets) = self.secrets.get() {
            secrets.add_values(tokens.secrets());
        }
    }

    async fn lock_store(&self) -> Result<TokenStoreLock, CredentialError> {
        let store = self.store.clone();
        let waiting = blocking(move || store.lock());
        tokio::time::timeout(LOCK_TIMEOUT, waiting).await.unwrap_or_else(|_| {
            let message = "another Pixir has been renewing the sign-in for a minute".to_owned();
            Err(CredentialError::Unavailable { message })
        })
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, CredentialError> + Send + 'static,
) -> Result<T, CredentialError> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| {
        Err(CredentialError::Internal(format!("the store was not read: {error}")))
    })
}

impl fmt::Debug for Keyring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keyring").field("issuer", &self.0.issuer).finish_non_exhaustive()
    }
}
