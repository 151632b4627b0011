//! The keyring: the tokens of a signed-in user, renewed once, by one, for all.
//!
//! Refresh tokens work once. So a renewal happens under a lock that every process of this user
//! respects; whoever gets the lock looks at the store first, because somebody may just have done
//! the work. What came is stored before it is used.

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
use crate::secret::Secrets;

/// How long another process may hold the lock; its own work is bounded by less.
const LOCK_PATIENCE: Duration = Duration::from_mins(1);

/// How long a renewal that failed in passing is not tried again while the old token lives.
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
    /// A refresh token that will never work again, and what the issuer said.
    dead: Option<Dead>,
    /// No early renewal before this moment.
    quiet_until: Option<Instant>,
}

struct Dead {
    refresh: String,
    code: String,
    message: String,
}

impl Keyring {
    /// Holds what the store has.
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

    /// Keeps every token out of sight, also those that are yet to come.
    pub fn hide_in(&self, secrets: &Arc<Secrets>) {
        secrets.learn(self.tokens().secrets());
        // A keyring belongs to one run; the first harness that asks is it.
        self.0.secrets.set(Arc::clone(secrets)).ok();
    }

    /// The tokens as they are now.
    pub fn tokens(&self) -> Tokens {
        self.0.held().tokens.clone()
    }

    /// What opens the endpoint now; renewed when it is about to end.
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
                tracing::warn!(kind = %crate::error::Explain::kind(&error), "early renewal failed");
                self.0.held().quiet_until = Some(Instant::now() + COOL_DOWN);
                Ok(Authorization::of(&tokens))
            }
            Err(error) => Err(error),
        }
    }

    /// Waits until no renewal is under way, because what it brings must still be stored.
    pub async fn settle(&self) {
        self.0.gate.acquire().await.ok();
    }

    /// Looks whether somebody else has stored another token for this account.
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

    /// Gets tokens in place of `used`, from whoever was faster or from the issuer.
    pub async fn renew(&self, used: &SecretString) -> Result<Tokens, CredentialError> {
        let (shared, used) = (Arc::clone(&self.0), used.clone());
        // A task of its own: a Turn that is interrupted now must not lose the token that the
        // issuer has already made out in exchange for the old one.
        let renewal = tokio::spawn(async move { shared.renew(&used).await });
        renewal.await.unwrap_or_else(|error| {
            Err(CredentialError::Internal(format!("a renewal did not end well: {error}")))
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

    /// Spends the refresh token.
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
                // The old refresh token is spent, whatever else this answer is good for.
                if let Some(rotated) = rotated {
                    self.hide(&rotated);
                    draft.commit(&rotated, Some(&stored))?;
                }
                return Err(error);
            }
        };
        self.hide(&renewed);
        let written = draft.commit(&renewed, Some(&stored));
        // The old refresh token is spent, so even unwritten the new one is all there is.
        self.adopt(&renewed);
        written?;
        self.store.discard_drafts(lock);
        Ok(renewed)
    }

    /// The issuer says that it is over; somebody who ignores the lock may have been faster.
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

    /// Fails fast for a refresh token that is known to be dead.
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
