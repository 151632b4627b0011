//! Clearing: each thing of a plan is looked at once more, and goes if it is as it was.
//!
//! Whoever is killed meanwhile leaves a state that the next plan understands: a Log goes before its
//! folder. Two who clear at once get in nobody's way.

use std::io;
use std::path::{Path, PathBuf};

use super::nook::Nook;
use super::{Waste, legacy};
use crate::log::LogError;
use crate::paths;
use crate::projection::sessions::{delete_as_it_was, while_closed};
use crate::snapshot::Store;

/// What became of a plan.
#[derive(Debug, Default)]
pub struct Cleared {
    pub count: usize,
    pub bytes: u64,
    /// What changed since the plan was made, and stays.
    pub spared: Vec<PathBuf>,
    pub failed: Vec<(PathBuf, String)>,
}

impl Cleared {
    /// Whether everything went that was to go so far.
    fn is_complete(&self) -> bool {
        self.spared.is_empty() && self.failed.is_empty()
    }
}

/// Clears what a plan of this Workspace names.
pub fn clear(workspace: &Path, waste: &[Waste]) -> Cleared {
    let mut cleared = Cleared::default();
    let (mut store, mut unneeded) = (None, None);
    for thing in waste {
        // Contents go only after the Sessions that could need them, while nobody is at work, and
        // whoever begins meanwhile waits until they are gone.
        let hold = || {
            let store = Store::new(paths::snapshots_in(&paths::state(workspace)));
            let hold = store.clearing().filter(|_| cleared.is_complete());
            hold.filter(|_| super::is_quiet(workspace))
        };
        if matches!(thing.kind, "snapshot" | "subagent_folder")
            && store.get_or_insert_with(hold).is_none()
        {
            cleared.spared.push(thing.path.clone());
            continue;
        }
        let outcome = match (&thing.session_id, thing.kind) {
            (Some(id), "session") => match delete_as_it_was(workspace, id, thing.written) {
                Ok(gone) => Ok(gone),
                // Somebody uses it, or was quicker.
                Err(LogError::Busy { .. } | LogError::NotFound { .. }) => Ok(false),
                Err(error) => Err(io::Error::other(error.to_string())),
            },
            // While its Session is closed nobody can begin to refer to it.
            (Some(id), "blob" | "resource" | "output" | "leftover") => {
                while_closed(workspace, id, || remove(thing)).unwrap_or_else(|error| match error {
                    LogError::Busy { .. } => Ok(false),
                    LogError::NotFound { .. } => remove(thing),
                    error => Err(io::Error::other(error.to_string())),
                })
            }
            // Sessions share contents, and one that came and went since the plan may have
            // taken this up.
            (_, "snapshot") => {
                let unneeded = unneeded.get_or_insert_with(|| super::unneeded(workspace));
                if unneeded.contains(&thing.path) { remove(thing) } else { Ok(false) }
            }
            _ => remove(thing),
        };
        match outcome {
            Ok(true) => {
                cleared.count += 1;
                cleared.bytes += thing.bytes;
            }
            Ok(false) => cleared.spared.push(thing.path.clone()),
            Err(error) => cleared.failed.push((thing.path.clone(), error.to_string())),
        }
    }
    cleared
}

/// Removes a thing that is as it was; says whether it did.
fn remove(thing: &Waste) -> io::Result<bool> {
    let (Some(folder), Some(name)) = (thing.path.parent(), thing.path.file_name()) else {
        return Ok(false);
    };
    let (Some(nook), Some(name)) = (Nook::open(folder), name.to_str()) else { return Ok(false) };
    match nook.look(name) {
        Some(found) if found.written == thing.written => {}
        _ => return Ok(false),
    }
    match thing.kind {
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
    use crate::projection::waste::{Wish, plan};

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
        let planned = plan(&root, Wish::default()).unwrap();
        assert_eq!(planned.waste.len(), 2, "{:?}", planned.waste);
        let id = "20260721T101112-abcdef";
        fs::write(sessions.join(format!("{id}.ndjson")), "{}\n").unwrap();
        fs::create_dir_all(sessions.join(id).join("snapshots")).unwrap();
        let record = format!("{{\"before\":\"{}\"}}\n", "ab".repeat(32));
        fs::write(sessions.join(id).join("snapshots/1.ndjson"), record).unwrap();
        let cleared = clear(&root, &planned.waste);
        assert_eq!((cleared.count, &cleared.spared[..]), (1, &contents[..1]));
        assert!(contents[0].exists() && !contents[1].exists());
    }

    #[test]
    fn contents_stay_while_somebody_takes_some_up() {
        let workspace = tempfile::tempdir().unwrap();
        let root = workspace.path().canonicalize().unwrap();
        fs::create_dir_all(root.join(".pixir/sessions")).unwrap();
        let store = Store::new(paths::snapshots_in(&paths::state(&root)));
        let hash = store.put(b"what it was").unwrap().to_string();
        let content = store.folder().join(&hash[..2]).join(&hash);
        let old = SystemTime::now() - Duration::from_hours(30);
        fs::File::open(&content).unwrap().set_modified(old).unwrap();
        let planned = plan(&root, Wish::default()).unwrap();
        assert_eq!(planned.waste.len(), 1, "{:?}", planned.waste);
        let hold = store.hold().unwrap();
        let spared = clear(&root, &planned.waste);
        assert_eq!((spared.count, spared.spared.len()), (0, 1));
        drop(hold);
        assert_eq!(clear(&root, &planned.waste).count, 1);
        assert!(!content.exists());
        assert!(store.clearing().is_some(), "nobody is kept out any longer");
    }
}
