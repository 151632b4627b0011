//! The keyring: the tokens of a signed-in user, shared by all tasks and renewed by one process at a time.
//!
//! Refresh tokens work once. So a renewal happens under a lock that all processes of this user respect, and the store
//! is read again under the lock, because another process may just have renewed the tokens. New tokens are stored
//! before they are used.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use secrecy::{ExposeSecret, SecretString};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::issuer::Issuer;
use super::store::{Lock, Store, Stored};
use super::token::{Tokens, now};
use super::{Authorization, CredentialError};
use crate::base::secret::Secrets;

/// How long to wait for the lock; a renewal in another process takes less.
const LOCK_PATIENCE: Duration = Duration::from_mins(1);

/// The pause after a temporary failure of an early renewal, while the old token is still valid.
const COOL_DOWN: Duration = Duration::from_secs(20);

/// The tokens of a signed-in user. Clones share them.
#[derive(Clone)]
pub struct Keyring(Arc<Shared>);

struct Shared {
    store: Store,
    issuer: Issuer,
    held: Mutex<Held>,
    /// One renewal at a time in this process.
    gate: Semaphore,
    secrets: OnceLock<Arc<Secrets>>,
}

struct Held {
    tokens: Tokens,
    /// The refresh token that is permanently invalid, and the issuer's message.
    dead: Option<Dead>,
    /// No early renewal is tried before this moment.
    quiet_until: Option<Instant>,
}

struct Dead {
    refresh: String,
    code: String,
    message: String,
}

impl Keyring {
    /// A keyring with the tokens of the store.
    pub fn new(store: Store, issuer: Issuer, stored: Stored) -> Self {
        let held = Held { tokens: stored.tokens, dead: None, quiet_until: None };
        Self(Arc::new(Shared {
            store,
            issuer,
            held: Mutex::new(held),
            gate: Semaphore::new(1),
            secrets: OnceLock::new(),
        }))
    }

    /// Registers all tokens for redaction, including those of later renewals.
    pub fn hide_in(&self, secrets: &Arc<Secrets>) {
        secrets.learn(self.tokens().secrets());
        // A keyring belongs to one run, so only the first call counts.
        self.0.secrets.set(Arc::clone(secrets)).ok();
    }

    /// The current tokens.
    pub fn tokens(&self) -> Tokens {
        self.0.held().tokens.clone()
    }

    /// The authorization for an attempt; renews tokens that are about to expire.
    pub async fn authorize(&self) -> Result<Authorization, CredentialError> {
        let tokens = self.tokens();
        if !tokens.is_due(now()) {
            return Ok(Authorization::of(&tokens));
        }
        let is_alive = tokens.is_alive(now());
        if is_alive && self.0.held().quiet_until.is_some_and(|until| Instant::now() < until) {
            return Ok(Authorization::of(&tokens));
        }
        match self.renew(&tokens.access).await {
            Ok(renewed) => Ok(Authorization::of(&renewed)),
            Err(
                error @ (CredentialError::Unavailable { .. }
                | CredentialError::Ended { .. }
                | CredentialError::Unwritable { .. }),
            ) if is_alive => {
                tracing::warn!(kind = %crate::base::error::Explain::kind(&error), "early renewal failed");
                self.0.held().quiet_until = Some(Instant::now() + COOL_DOWN);
                Ok(Authorization::of(&tokens))
            }
            Err(error) => Err(error),
        }
    }

    /// Waits until no renewal is under way, so that its tokens are stored.
    pub async fn settle(&self) {
        self.0.gate.acquire().await.ok();
    }

    /// Reads the store again; `None` when it still has the access token that failed.
    pub async fn reread(&self, failed: &SecretString) -> Result<Option<Tokens>, CredentialError> {
        let shared = Arc::clone(&self.0);
        let stored = blocking(move || shared.store.read()).await?;
        let Some(stored) = stored else { return Err(CredentialError::SignedOut) };
        self.0.check_account(&stored.tokens)?;
        if stored.tokens.is_same(failed) {
            return Ok(None);
        }
        self.0.adopt(&stored.tokens);
        Ok(Some(stored.tokens))
    }

    /// Replaces the access token `used`: with tokens that another task or process has renewed, or by a renewal.
    pub async fn renew(&self, used: &SecretString) -> Result<Tokens, CredentialError> {
        let (shared, used) = (Arc::clone(&self.0), used.clone());
        // A task of its own, so that an interrupted Turn does not lose tokens that the issuer has already issued in
        // exchange for the old ones.
        let renewal = tokio::spawn(async move { shared.renew(&used).await });
        renewal.await.unwrap_or_else(|error| {
            Err(CredentialError::Internal(format!("a renewal crashed: {error}")))
        })
    }
}

impl Shared {
    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn renew(self: &Arc<Self>, used: &SecretString) -> Result<Tokens, CredentialError> {
        let Ok(_turn) = self.gate.acquire().await else {
            return Err(CredentialError::Internal("a keyring was closed".to_owned()));
        };
        let held = self.held().tokens.clone();
        if !held.is_same(used) && !held.is_due(now()) {
            return Ok(held);
        }
        let lock = self.lock().await?;
        let shared = Arc::clone(self);
        let (lock, was_cut, stored) = blocking(move || {
            let was_cut = shared.store.salvage(&lock)?;
            Ok((lock, was_cut, shared.store.read()?))
        })
        .await?;
        let Some(stored) = stored else { return Err(CredentialError::SignedOut) };
        self.check_account(&stored.tokens)?;
        if !stored.tokens.is_same(used) && !stored.tokens.is_due(now()) {
            self.adopt(&stored.tokens);
            return Ok(stored.tokens);
        }
        self.ask(stored, &lock).await.map_err(|error| match error {
            CredentialError::Ended { code, message } if was_cut => CredentialError::Ended {
                code,
                message: format!("{message} (an earlier Pixir was killed while it renewed it)"),
            },
            error => error,
        })
    }

    /// Exchanges the refresh token at the issuer and stores the result.
    async fn ask(self: &Arc<Self>, stored: Stored, lock: &Lock) -> Result<Tokens, CredentialError> {
        let Some(refresh) = stored.tokens.refresh.clone() else {
            return Err(CredentialError::Ended {
                code: String::new(),
                message: "it cannot be renewed".to_owned(),
            });
        };
        self.check_alive(&refresh)?;
        let draft = self.store.draft()?;
        let grant = match self.issuer.refresh(&refresh).await {
            Ok(grant) => grant,
            Err(CredentialError::Ended { code, message }) => {
                drop(draft);
                return self.ended(&refresh, code, message);
            }
            Err(error) => return Err(error),
        };
        let rotated = stored.tokens.rotated(&grant);
        let renewed = match stored.tokens.renewed(grant, now()) {
            Ok(renewed) => renewed,
            Err(error) => {
                // The old refresh token is used up, so a new one is stored even if the rest of the answer is unusable.
                if let Some(rotated) = rotated {
                    self.hide(&rotated);
                    draft.commit(&rotated, Some(&stored))?;
                }
                return Err(error);
            }
        };
        self.hide(&renewed);
        let written = draft.commit(&renewed, Some(&stored));
        // The old refresh token is used up, so the new one is kept even if it could not be stored.
        self.adopt(&renewed);
        written?;
        self.store.discard_drafts(lock);
        Ok(renewed)
    }

    /// Handles an ended sign-in: a process that ignores the lock may have stored newer tokens, which are used then.
    fn ended(
        &self,
        refresh: &SecretString,
        code: String,
        message: String,
    ) -> Result<Tokens, CredentialError> {
        if let Some(stored) = self.store.read()? {
            let is_news = stored
                .tokens
                .refresh
                .as_ref()
                .is_some_and(|other| other.expose_secret() != refresh.expose_secret());
            if is_news && !stored.tokens.is_due(now()) {
                self.check_account(&stored.tokens)?;
                self.adopt(&stored.tokens);
                return Ok(stored.tokens);
            }
        }
        self.held().dead = Some(Dead {
            refresh: refresh.expose_secret().to_owned(),
            code: code.clone(),
            message: message.clone(),
        });
        Err(CredentialError::Ended { code, message })
    }

    /// Fails for a refresh token that is known to be permanently invalid, without asking the issuer.
    fn check_alive(&self, refresh: &SecretString) -> Result<(), CredentialError> {
        let held = self.held();
        match &held.dead {
            Some(dead) if dead.refresh == refresh.expose_secret() => Err(CredentialError::Ended {
                code: dead.code.clone(),
                message: dead.message.clone(),
            }),
            _ => Ok(()),
        }
    }

    fn check_account(&self, found: &Tokens) -> Result<(), CredentialError> {
        let is_ours = self.held().tokens.account_id == found.account_id;
        if is_ours { Ok(()) } else { Err(CredentialError::AccountChanged) }
    }

    fn adopt(&self, tokens: &Tokens) {
        self.hide(tokens);
        let mut held = self.held();
        held.tokens = tokens.clone();
        held.quiet_until = None;
    }

    fn hide(&self, tokens: &Tokens) {
        if let Some(secrets) = self.secrets.get() {
            secrets.learn(tokens.secrets());
        }
    }

    async fn lock(&self) -> Result<Lock, CredentialError> {
        let store = self.store.clone();
        let waiting = blocking(move || store.lock());
        tokio::time::timeout(LOCK_PATIENCE, waiting).await.unwrap_or_else(|_| {
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
