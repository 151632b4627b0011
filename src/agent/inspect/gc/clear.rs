//! Removal of garbage: each item of a plan is checked again, and removed if it is unchanged.
//!
//! A process that is killed meanwhile leaves state that the next plan understands: a Log is removed before its
//! folder. Two processes may clear at the same time.

use std::collections::HashSet;
use std::io;
use std::path::PathBuf;

use super::gc_folder::GcFolder;
use super::{GarbageItem, GarbageKind, GcPlan, legacy};
use crate::agent::inspect::sessions::{delete_if_unchanged, while_closed};
use crate::host::sandbox;
use crate::host::snapshot::ContentStore;
use crate::record::log::LogError;
use crate::record::state_dir::StateRoot;

/// The result of clearing a plan.
#[derive(Debug, Default)]
pub struct GcResult {
    pub count: usize,
    pub bytes: u64,
    /// Items that changed since the plan was made, and stay.
    pub spared: Vec<PathBuf>,
    pub failed: Vec<(PathBuf, String)>,
}

impl GcResult {
    /// Whether every item so far was removed.
    fn is_complete(&self) -> bool {
        self.spared.is_empty() && self.failed.is_empty()
    }

    /// Adds the outcome for an item.
    fn count_outcome(&mut self, thing: &GarbageItem, outcome: io::Result<bool>) {
        match outcome {
            Ok(true) => {
                self.count += 1;
                self.bytes += thing.bytes;
            }
            Ok(false) => self.spared.push(thing.path.clone()),
            Err(error) => self.failed.push((thing.path.clone(), error.to_string())),
        }
    }
}

/// Clears the items of a plan.
pub fn clear_garbage(plan: &GcPlan) -> GcResult {
    match &plan.root {
        Some(root) => clear_state(root, &plan.garbage),
        None => clear_files(&plan.garbage),
    }
}

/// Clears files that belong to no Session.
fn clear_files(garbage: &[GarbageItem]) -> GcResult {
    let mut cleared = GcResult::default();
    for thing in garbage {
        cleared.count_outcome(thing, remove_if_unchanged(thing));
    }
    cleared
}

fn clear_state(root: &StateRoot, garbage: &[GarbageItem]) -> GcResult {
    let mut cleared = GcResult::default();
    let (mut store, mut unneeded) = (None, None);
    for thing in garbage {
        // Contents are removed only after the Sessions that could need them, while no Session is open. A
        // Session that begins meanwhile waits until they are removed.
        let hold = || {
            let store = ContentStore::new(root.snapshots());
            let hold = store.try_lock_exclusive().filter(|_| cleared.is_complete());
            hold.filter(|_| super::is_quiet(root))
        };
        if matches!(thing.kind, GarbageKind::Snapshot | GarbageKind::SubagentFolder)
            && store.get_or_insert_with(hold).is_none()
        {
            cleared.spared.push(thing.path.clone());
            continue;
        }
        let outcome = match (&thing.session_id, thing.kind) {
            (Some(id), GarbageKind::Session) => {
                match delete_if_unchanged(root, id, thing.written) {
                    Ok(gone) => Ok(gone),
                    // Another process uses the Session, or removed it first.
                    Err(LogError::Busy { .. } | LogError::NotFound { .. }) => Ok(false),
                    Err(error) => Err(io::Error::other(error.to_string())),
                }
            }
            // While its Session is closed, no new reference to the file can be written.
            (
                Some(id),
                GarbageKind::Blob
                | GarbageKind::Resource
                | GarbageKind::Output
                | GarbageKind::Leftover,
            ) => while_closed(root, id, || remove_if_unchanged(thing)).unwrap_or_else(|error| {
                match error {
                    LogError::Busy { .. } => Ok(false),
                    LogError::NotFound { .. } => remove_if_unchanged(thing),
                    error => Err(io::Error::other(error.to_string())),
                }
            }),
            // Sessions share contents, and a Session that began and ended since the plan may
            // reference this content.
            (_, GarbageKind::Snapshot) => {
                let unneeded = unneeded.get_or_insert_with(|| find_unneeded_contents(root));
                if unneeded.contains(&thing.path) { remove_if_unchanged(thing) } else { Ok(false) }
            }
            _ => remove_if_unchanged(thing),
        };
        cleared.count_outcome(thing, outcome);
    }
    cleared
}

/// Contents that are unreferenced now. If the Manifest of the last survey is one of them, it is forgotten first: the
/// next survey would rely on contents that it names.
fn find_unneeded_contents(root: &StateRoot) -> HashSet<PathBuf> {
    let unneeded = super::unneeded_contents(root);
    let store = ContentStore::new(root.snapshots());
    let is_last_needed = store.last_manifest_hash().is_none_or(|hash| {
        let is_other = |path: &PathBuf| path.file_name() != Some(hash.to_string().as_ref());
        store.has(&hash) && unneeded.iter().all(is_other)
    });
    if is_last_needed || store.forget_last_manifest().is_ok() { unneeded } else { HashSet::new() }
}

/// Removes an item if it is unchanged; returns whether it did.
fn remove_if_unchanged(thing: &GarbageItem) -> io::Result<bool> {
    let gc_folder = thing.folder.as_ref().and_then(GcFolder::open);
    let name = thing.path.file_name().and_then(|name| name.to_str());
    let (Some(gc_folder), Some(name)) = (gc_folder, name) else { return Ok(false) };
    match gc_folder.stat(name) {
        Some(found) if found.written == thing.written => {}
        _ => return Ok(false),
    }
    match thing.kind {
        // A supervisor may have begun to use the cache.
        GarbageKind::PackageCache => {
            let folder = gc_folder.state_folder();
            return sandbox::remove_slot(folder, name.as_ref()).map_err(Into::into);
        }
        GarbageKind::SessionFolder | GarbageKind::Leftover => gc_folder.remove_folder(name)?,
        GarbageKind::SubagentFolder => legacy::remove_all_but_logs(&gc_folder, name)?,
        _ => gc_folder.remove_file(name)?,
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::{Duration, SystemTime};

    use super::*;
    use crate::agent::inspect::gc::{GcOptions, plan_gc};

    #[test]
    fn contents_that_a_session_took_up_since_the_plan_stay() {
        let workspace = tempfile::tempdir().unwrap();
        let root = workspace.path().canonicalize().unwrap();
        let sessions = root.join(".pixir/sessions");
        fs::create_dir_all(&sessions).unwrap();
        let old = SystemTime::now() - Duration::from_hours(30);
        let contents = ["ab", "cd"].map(|pair| {
            let shard = root.join(".pixir/snapshots").join(pair);
            fs::create_dir_all(&shard).unwrap();
            let path = shard.join(pair.repeat(32));
            fs::write(&path, "x").unwrap();
            fs::File::open(&path).unwrap().set_modified(old).unwrap();
            path
        });
        let planned = plan_gc(&StateRoot::in_workspace(&root), GcOptions::default()).unwrap();
        assert_eq!(planned.garbage.len(), 2, "{:?}", planned.garbage);
        let id = "20260721T101112-abcdef";
        fs::write(sessions.join(format!("{id}.ndjson")), "{}\n").unwrap();
        fs::create_dir_all(sessions.join(id).join("snapshots")).unwrap();
        let record = format!("{{\"before\":\"{}\"}}\n", "ab".repeat(32));
        fs::write(sessions.join(id).join("snapshots/1.ndjson"), record).unwrap();
        let cleared = clear_garbage(&planned);
        assert_eq!((cleared.count, &cleared.spared[..]), (1, &contents[..1]));
        assert!(contents[0].exists() && !contents[1].exists());
    }

    #[test]
    fn contents_stay_while_the_store_is_locked() {
        let workspace = tempfile::tempdir().unwrap();
        let root = workspace.path().canonicalize().unwrap();
        fs::create_dir_all(root.join(".pixir/sessions")).unwrap();
        let store = ContentStore::new(StateRoot::in_workspace(&root).snapshots());
        let hash = store.put(b"what it was").unwrap().to_string();
        let content =
            StateRoot::in_workspace(&root).snapshots().path().join(&hash[..2]).join(&hash);
        let old = SystemTime::now() - Duration::from_hours(30);
        fs::File::open(&content).unwrap().set_modified(old).unwrap();
        let planned = plan_gc(&StateRoot::in_workspace(&root), GcOptions::default()).unwrap();
        assert_eq!(planned.garbage.len(), 1, "{:?}", planned.garbage);
        let hold = store.lock_shared().unwrap();
        let spared = clear_garbage(&planned);
        assert_eq!((spared.count, spared.spared.len()), (0, 1));
        drop(hold);
        assert_eq!(clear_garbage(&planned).count, 1);
        assert!(!content.exists());
        assert!(store.try_lock_exclusive().is_some(), "the store is unlocked again");
    }
}
