//! Permission state: the permission mode and sandbox profile of a Session's next call.
//!
//! It is the one setting that changes during a Turn: a switch of mode means the next call, not the
//! next prompt. A child's is never laxer than its parent's current one.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::host::sandbox::Profile;
use crate::record::event::PermissionMode;
use crate::settings::role::strictest;

/// Permission mode and sandbox profile of a Session; clones share them.
#[derive(Debug, Clone)]
pub struct Stance {
    own: Arc<Mutex<Held>>,
    /// The state of the parent Session.
    above: Option<Arc<Stance>>,
}

/// A snapshot of the permission state; a call keeps the one it was planned under.
#[derive(Debug, Clone)]
pub struct Held {
    /// The permission mode.
    pub mode: PermissionMode,
    /// The sandbox profile of host commands.
    pub confinement: Profile,
}

impl Stance {
    /// The state of a Session without a parent.
    pub fn new(mode: PermissionMode, confinement: Profile) -> Self {
        Self { own: Arc::new(Mutex::new(Held { mode, confinement })), above: None }
    }

    /// The state of a child's Session, never laxer than its parent's current one.
    pub fn beneath(parent: &Self, mode: PermissionMode, confinement: Profile) -> Self {
        Self { above: Some(Arc::new(parent.clone())), ..Self::new(mode, confinement) }
    }

    /// The mode and profile that hold now.
    pub fn now(&self) -> Held {
        let own = self.held().clone();
        let above = self.above.as_ref().map(|above| above.now());
        match above.filter(|above| strictest(&own.mode, &above.mode) != own.mode) {
            Some(stricter) => stricter,
            None => own,
        }
    }

    /// The permission mode that holds now.
    pub fn mode(&self) -> PermissionMode {
        self.now().mode
    }

    /// Sets mode and profile from the next call on; running calls keep theirs.
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
