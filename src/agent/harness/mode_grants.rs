//! Grants: permission modes, laxer than the settings, that the user chose for one Session.
//!
//! A Log is in a Workspace, where it may have been planted, so it cannot by itself widen what a
//! resumed Session may do. The user's choice is stored in the Home folder, by Session and Workspace,
//! and a laxer mode of a Log applies only if it is the chosen one.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::base::id::SessionId;
use crate::base::locked_file::LockedFile;
use crate::base::paths::Home;
use crate::record::event::PermissionMode;

/// How many choices are stored; the oldest are removed.
const MAX_GRANTS: usize = 1000;

/// A mode that the user chose for a Session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct ModeGrant {
    session_id: String,
    workspace: PathBuf,
    permission_mode: PermissionMode,
}

/// The modes that the user chose, by Session; cheap to clone.
#[derive(Debug, Clone)]
pub struct ModeGrants(LockedFile<ModeGrant>);

impl ModeGrants {
    /// The grants of this user.
    pub fn new(home: &Home) -> Self {
        Self(LockedFile::new(home.grants_file()))
    }

    /// The mode that was chosen for a Session. A file that cannot be read grants nothing.
    pub fn find(&self, id: &SessionId, workspace: &Path) -> Option<PermissionMode> {
        let read = self.0.read();
        let all = read.inspect_err(|error| tracing::warn!(%error, "grants are not used")).ok()?;
        let own =
            |grant: &ModeGrant| grant.session_id == id.as_str() && grant.workspace == workspace;
        all.into_iter().find(own).map(|grant| grant.permission_mode)
    }

    /// Stores a choice, or removes it when none is needed. Blocks on the disk.
    pub fn store(&self, id: &SessionId, workspace: &Path, mode: Option<PermissionMode>) {
        let is_own =
            |grant: &ModeGrant| grant.session_id == id.as_str() && grant.workspace == workspace;
        let is_known = self.0.read().is_ok_and(|all| all.iter().any(is_own));
        if mode.is_none() && !is_known {
            return;
        }
        let kept = self.0.update(|all| {
            all.retain(|grant| !is_own(grant));
            if let Some(permission_mode) = mode {
                let (session_id, workspace) = (id.to_string(), workspace.to_owned());
                all.push(ModeGrant { session_id, workspace, permission_mode });
            }
            let surplus = all.len().saturating_sub(MAX_GRANTS);
            all.drain(..surplus);
        });
        if let Err(error) = kept {
            tracing::warn!(%error, "a mode holds for this run only");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grant_is_for_one_session_in_one_place() {
        let folder = tempfile::tempdir().unwrap();
        let grants = ModeGrants::new(&Home::new(folder.path()));
        let (one, other) = (SessionId::mint(), SessionId::mint());
        let place = Path::new("/w");
        grants.store(&one, place, None);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing to say");
        grants.store(&one, place, Some(PermissionMode::Auto));
        assert_eq!(grants.find(&one, place), Some(PermissionMode::Auto));
        assert_eq!(grants.find(&other, place), None);
        assert_eq!(grants.find(&one, Path::new("/elsewhere")), None);
        grants.store(&one, place, None);
        assert_eq!(grants.find(&one, place), None);
    }
}
