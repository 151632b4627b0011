//! Stance: what a Session's calls may do at this moment.
//!
//! It is the one setting that changes under a running Turn: who switches to another mode means the
//! next call, not the next prompt.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::event::PermissionMode;
use crate::sandbox::Profile;

/// The mode of a Session, shared by everybody who looks at it.
#[derive(Debug, Clone)]
pub struct Stance(Arc<Mutex<Held>>);

/// The stance of a moment; a call keeps the one it was planned under.
#[derive(Debug, Clone)]
pub struct Held {
    /// What may be done without asking.
    pub mode: PermissionMode,
    /// What host commands are confined to.
    pub confinement: Profile,
}

impl Stance {
    /// A mode, and what holds host commands under it.
    pub fn new(mode: PermissionMode, confinement: Profile) -> Self {
        Self(Arc::new(Mutex::new(Held { mode, confinement })))
    }

    /// What holds now.
    pub fn now(&self) -> Held {
        self.held().clone()
    }

    /// What may be done without asking.
    pub fn mode(&self) -> PermissionMode {
        self.held().mode.clone()
    }

    /// Holds from the next call on, whatever runs.
    pub fn set(&self, mode: PermissionMode, confinement: Profile) {
        *self.held() = Held { mode, confinement };
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
