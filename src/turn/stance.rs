//! Stance: what a Session's calls may do at this moment.
//!
//! It is the one setting that changes under a running Turn: who switches to another mode means the
//! next call, not the next prompt. That of a child never is laxer than its parent's is at the moment.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::event::PermissionMode;
use crate::role::strictest;
use crate::sandbox::Profile;

/// The mode of a Session, shared by everybody who looks at it.
#[derive(Debug, Clone)]
pub struct Stance {
    own: Arc<Mutex<Held>>,
    /// That of the Session on whose behalf this one works.
    above: Option<Arc<Stance>>,
}

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
        Self { own: Arc::new(Mutex::new(Held { mode, confinement })), above: None }
    }

    /// The same for a Session that works on behalf of another one: whatever that becomes, it is no
    /// laxer.
    pub fn beneath(parent: &Self, mode: PermissionMode, confinement: Profile) -> Self {
        Self { above: Some(Arc::new(parent.clone())), ..Self::new(mode, confinement) }
    }

    /// What holds now.
    pub fn now(&self) -> Held {
        let own = self.held().clone();
        let above = self.above.as_ref().map(|above| above.now());
        match above.filter(|above| strictest(&own.mode, &above.mode) != own.mode) {
            Some(stricter) => stricter,
            None => own,
        }
    }

    /// What may be done without asking.
    pub fn mode(&self) -> PermissionMode {
        self.now().mode
    }

    /// Holds from the next call on, whatever runs.
    pub fn set(&self, mode: PermissionMode, confinement: Profile) {
        *self.held() = Held { mode, confinement };
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_is_as_strict_as_the_strictest_above_it_at_any_moment() {
        let (auto, ask, reading) =
            (PermissionMode::Auto, PermissionMode::Ask, PermissionMode::ReadOnly);
        let root = Stance::new(auto.clone(), Profile::Workspace);
        let child = Stance::beneath(&root, auto.clone(), Profile::Workspace);
        let grandchild = Stance::beneath(&child, ask.clone(), Profile::Workspace);
        assert_eq!((child.mode(), grandchild.mode()), (auto.clone(), ask.clone()));
        root.set(reading.clone(), Profile::ReadOnly);
        for below in [&child, &grandchild] {
            let held = below.now();
            assert_eq!((held.mode, held.confinement), (reading.clone(), Profile::ReadOnly));
        }
        root.set(auto.clone(), Profile::Workspace);
        assert_eq!((child.mode(), grandchild.mode()), (auto, ask), "it has its own again");
    }
}
