//! Git state: what the git repository of a Workspace looks like when a Turn begins. Undo leaves it alone, and says so
//! where it is different.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;

use serde::{Deserialize, Serialize};

use super::ContentStore;
use crate::host::workspace::{OpenKind, Workspace};

/// The maximum size of `.git/HEAD` that is read, in bytes.
const LARGEST_HEAD: u64 = 4096;

/// The state of the repository at the root of a Workspace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitState {
    /// The content of `.git/HEAD`.
    #[serde(default)]
    head: Option<String>,
    /// The inode of `.git/objects`.
    #[serde(default)]
    objects: Option<u64>,
}

impl GitState {
    /// Reads the state; `None` when there is no repository.
    pub fn read(workspace: &Workspace) -> Option<Self> {
        let state = Self::read_parts(workspace);
        (state.head.is_some() || state.objects.is_some()).then_some(state)
    }

    fn read_parts(workspace: &Workspace) -> Self {
        let open = |path: &str, kind| workspace.open_no_follow(path.as_bytes(), kind).ok();
        let head = open(".git/HEAD", OpenKind::File).and_then(|file| {
            let mut text = Vec::new();
            File::from(file).take(LARGEST_HEAD).read_to_end(&mut text).ok()?;
            Some(String::from_utf8_lossy(&text).into_owned())
        });
        let objects = open(".git/objects", OpenKind::Folder)
            .and_then(|folder| Some(File::from(folder).metadata().ok()?.ino()));
        Self { head, objects }
    }

    /// The note to the user when the repository is no longer in this state.
    pub fn change_note(&self, workspace: &Workspace, store: &ContentStore) -> Option<String> {
        let now = Self::read_parts(workspace);
        let mut changed = Vec::new();
        if now.head != self.head {
            changed.push(".git/HEAD");
        }
        let has_other_objects = now.objects != self.objects;
        if has_other_objects {
            changed.push(".git/objects");
        }
        if changed.is_empty() {
            return None;
        }
        let is_gone = now.head.is_none() && self.head.is_some()
            || now.objects.is_none() && self.objects.is_some();
        let verb = if is_gone { "removed" } else { "changed" };
        let verb = if changed.len() == 1 { format!("was {verb}") } else { format!("were {verb}") };
        let pins = store.git_pins_path().filter(|_| has_other_objects).map(|pins| {
            let pins = pins.display();
            format!("; the packs and objects of git that undo relies on are still in {pins}")
        });
        Some(format!(
            "git's own state is left alone, but {} {verb} since the Turn began{}",
            changed.join(" and "),
            pins.unwrap_or_default()
        ))
    }
}
