//! Permission state: the permission mode and sandbox profile of a Session's next call.
//!
//! No other setting changes during a Turn: a change of mode applies to the next call, not to the next
//! prompt. A child's mode is never laxer than its parent's current one.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::host::sandbox::Profile;
use crate::record::event::PermissionMode;
use crate::settings::role::stricter_mode;

/// Permission mode and sandbox profile of a Session; clones share them.
#[derive(Debug, Clone)]
pub struct PermissionState {
    own: Arc<Mutex<PermissionSnapshot>>,
    /// The state of the parent Session.
    parent: Option<Arc<PermissionState>>,
}

/// A snapshot of the permission state; a call keeps the one it was planned under.
#[derive(Debug, Clone)]
pub struct PermissionSnapshot {
    /// The permission mode.
    pub mode: PermissionMode,
    /// The sandbox profile of host commands.
    pub sandbox_profile: Profile,
}

impl PermissionState {
    /// The state of a Session without a parent.
    pub fn new(mode: PermissionMode, sandbox_profile: Profile) -> Self {
        Self {
            own: Arc::new(Mutex::new(PermissionSnapshot { mode, sandbox_profile })),
            parent: None,
        }
    }

    /// The state of a child's Session, never laxer than its parent's current one.
    pub fn for_child(parent: &Self, mode: PermissionMode, sandbox_profile: Profile) -> Self {
        Self { parent: Some(Arc::new(parent.clone())), ..Self::new(mode, sandbox_profile) }
    }

    /// The mode and profile that hold now.
    pub fn snapshot(&self) -> PermissionSnapshot {
        let own = self.own.lock().clone();
        let above = self.parent.as_ref().map(|above| above.snapshot());
        match above.filter(|above| stricter_mode(&own.mode, &above.mode) != own.mode) {
            Some(stricter) => stricter,
            None => own,
        }
    }

    /// The permission mode that holds now.
    pub fn mode(&self) -> PermissionMode {
        self.snapshot().mode
    }

    /// Sets mode and profile from the next call on; running calls keep theirs.
    pub fn set(&self, mode: PermissionMode, sandbox_profile: Profile) {
        *self.own.lock() = PermissionSnapshot { mode, sandbox_profile };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_is_as_strict_as_the_strictest_above_it_at_any_moment() {
        let (auto, ask, reading) =
            (PermissionMode::Auto, PermissionMode::Ask, PermissionMode::ReadOnly);
        let root = PermissionState::new(auto.clone(), Profile::Workspace);
        let child = PermissionState::for_child(&root, auto.clone(), Profile::Workspace);
        let grandchild = PermissionState::for_child(&child, ask.clone(), Profile::Workspace);
        assert_eq!((child.mode(), grandchild.mode()), (auto.clone(), ask.clone()));
        root.set(reading.clone(), Profile::ReadOnly);
        for below in [&child, &grandchild] {
            let permission = below.snapshot();
            assert_eq!(
                (permission.mode, permission.sandbox_profile),
                (reading.clone(), Profile::ReadOnly)
            );
        }
        root.set(auto.clone(), Profile::Workspace);
        assert_eq!((child.mode(), grandchild.mode()), (auto, ask), "it has its own again");
    }
}
