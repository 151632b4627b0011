//! Clearing: each item of a plan is checked again, and removed if it is unchanged.
//!
//! A process that is killed meanwhile leaves state that the next plan understands: a Log is removed before its
//! folder. Two processes may clear at the same time.

use std::io;
use std::path::PathBuf;

use super::nook::Nook;
use super::{Plan, Waste, legacy};
use crate::agent::inspect::sessions::{delete_as_it_was, while_closed};
use crate::host::sandbox;
use crate::host::snapshot::Store;
use crate::record::log::LogError;
use crate::record::state_dir::StateRoot;

/// The result of clearing a plan.
#[derive(Debug, Default)]
pub struct Cleared {
    pub count: usize,
    pub bytes: u64,
    /// Items that changed since the plan was made, and stay.
    pub spared: Vec<PathBuf>,
    pub failed: Vec<(PathBuf, String)>,
}

impl Cleared {
    /// Whether every item so far was removed.
    fn is_complete(&self) -> bool {
        self.spared.is_empty() && self.failed.is_empty()
    }

    /// Counts the outcome for an item.
    fn note(&mut self, thing: &Waste, outcome: io::Result<bool>) {
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
pub fn clear(plan: &Plan) -> Cleared {
    match &plan.root {
        Some(root) => clear_state(root, &plan.waste),
        None => clear_files(&plan.waste),
    }
}

/// Clears files that belong to no Session.
fn clear_files(waste: &[Waste]) -> Cleared {
    let mut cleared = Cleared::default();
    for thing in waste {
        cleared.note(thing, remove(thing));
    }
    cleared
}

fn clear_state(root: &StateRoot, waste: &[Waste]) -> Cleared {
    let mut cleared = Cleared::default();
    let (mut store, mut unneeded) = (None, None);
    for thing in waste {
        // Contents are removed only after the Sessions that could need them, while no Session is open. A
        // Session that begins meanwhile waits until they are removed.
        let hold = || {
            let store = Store::new(root.snapshots());
            let hold = store.clearing().filter(|_| cleared.is_complete());
            hold.filter(|_| super::is_quiet(root))
        };
        if matches!(thing.kind, "snapshot" | "subagent_folder")
            && store.get_or_insert_with(hold).is_none()
        {
            cleared.spared.push(thing.path.clone());
            continue;
        }
        let outcome = match (&thing.session_id, thing.kind) {
            (Some(id), "session") => match delete_as_it_was(root, id, thing.written) {
                Ok(gone) => Ok(gone),
                // Another process uses it, or removed it first.
                Err(LogError::Busy { .. } | LogError::NotFound { .. }) => Ok(false),
                Err(error) => Err(io::Error::other(error.to_string())),
            },
            // While its Session is closed, no new reference to it can be written.
            (Some(id), "blob" | "resource" | "output" | "leftover") => {
                while_closed(root, id, || remove(thing)).unwrap_or_else(|error| match error {
                    LogError::Busy { .. } => Ok(false),
                    LogError::NotFound { .. } => remove(thing),
                    error => Err(io::Error::other(error.to_string())),
                })
            }
            // Sessions share contents, and one that began and ended since the plan may have
            // referenced this one.
            (_, "snapshot") => {
                let unneeded = unneeded.get_or_insert_with(|| super::unneeded(root));
                if unneeded.contains(&thing.path) { remove(thing) } else { Ok(false) }
            }
            _ => remove(thing),
        };
        cleared.note(thing, outcome);
    }
    cleared
}

/// Removes an item if it is unchanged; returns whether it did.
fn remove(thing: &Waste) -> io::Result<bool> {
    let nook = thing.folder.as_ref().and_then(Nook::open);
    let name = thing.path.file_name().and_then(|name| name.to_str());
    let (Some(nook), Some(name)) = (nook, name) else { return Ok(false) };
    match nook.look(name) {
        Some(found) if found.written == thing.written => {}
        _ => return Ok(false),
    }
    match thing.kind {
        // A supervisor may have begun to use it.
        "package_cache" => {
            let folder = nook.place();
            return sandbox::remove_slot(folder, name.as_ref()).map_err(Into::into);
        }
        "session_folder" | "leftover" => nook.remove_all(name)?,
        "subagent_folder" => legacy::remove(&nook, name)?,
        _ => nook.remove_file(name)?,
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::{Duration, SystemTime};

    use super::*;
    use crate::agent::inspect::waste::{Wish, plan};

    #[test]
    fn contents_that_a_session_took_up_since_the_plan_stay() {
        let workspace = tempfile::tempdir().unwrap();
        let root = workspace.path().canonicalize().unwrap();
        let sessions = root.join(".pixir/sessions");
        fs::create_dir_all(&sessions).unwrap();
        let old = SystemTime::now() - Duration::from_hours(30);
        let contents = ["ab", "cd"].map(|pair| {
            let drawer = root.join(".pixir/snapshots").join(pair);
            fs::create_dir_all(&drawer).unwrap();
            let path = drawer.join(pair.repeat(32));
            fs::write(&path, "x").unwrap();
            fs::File::open(&path).unwrap().set_modified(old).unwrap();
            path
        });
        let planned = plan(&StateRoot::in_workspace(&root), Wish::default()).unwrap();
        assert_eq!(planned.waste.len(), 2, "{:?}", planned.waste);
        let id = "20260721T101112-abcdef";
        fs::write(sessions.join(format!("{id}.ndjson")), "{}\n").unwrap();
        fs::create_dir_all(sessions.join(id).join("snapshots")).unwrap();
        let record = format!("{{\"before\":\"{}\"}}\n", "ab".repeat(32));
        fs::write(sessions.join(id).join("snapshots/1.ndjson"), record).unwrap();
        let cleared = clear(&planned);
        assert_eq!((cleared.count, &cleared.spared[..]), (1, &contents[..1]));
        assert!(contents[0].exists() && !contents[1].exists());
    }

    #[test]
    fn contents_stay_while_somebody_takes_some_up() {
        let workspace = tempfile::tempdir().unwrap();
        let root = workspace.path().canonicalize().unwrap();
        fs::create_dir_all(root.join(".pixir/sessions")).unwrap();
        let store = Store::new(StateRoot::in_workspace(&root).snapshots());
        let hash = store.put(b"what it was").unwrap().to_string();
        let content =
            StateRoot::in_workspace(&root).snapshots().path().join(&hash[..2]).join(&hash);
        let old = SystemTime::now() - Duration::from_hours(30);
        fs::File::open(&content).unwrap().set_modified(old).unwrap();
        let planned = plan(&StateRoot::in_workspace(&root), Wish::default()).unwrap();
        assert_eq!(planned.waste.len(), 1, "{:?}", planned.waste);
        let hold = store.hold().unwrap();
        let spared = clear(&planned);
        assert_eq!((spared.count, spared.spared.len()), (0, 1));
        drop(hold);
        assert_eq!(clear(&planned).count, 1);
        assert!(!content.exists());
        assert!(store.clearing().is_some(), "nobody is kept out any longer");
    }
}
