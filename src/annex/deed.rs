//! A merge that is carried out: steps that can all be taken back, and a journal of them.
//!
//! The journal is on disk before the first step and goes after the last. Whoever finds one knows
//! that a process died in between, and takes back what it had done.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::changes::FolderChange;
use super::merge::Merge;
use crate::id::SessionId;
use crate::snapshot::{Change, Hash, Plan, RawPath, State, Store, Tracker, restore, state_of};
use crate::workspace::Workspace;

/// The name of the journal beside a Log.
const JOURNAL: &str = "merge.json";

/// How the drafts end that a restored file has for a moment.
const DRAFT: &str = ".pixir-undo";

/// Everything that one merge does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deed {
    pub child: SessionId,
    /// Where it is done.
    pub workspace: RawPath,
    pub steps: Vec<Step>,
}

/// One thing that is done, and can be taken back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    File {
        path: RawPath,
        from: Option<State>,
        to: Option<State>,
    },
    /// A folder; `None` is one that is not there, a number its mode.
    Folder {
        path: RawPath,
        from: Option<u32>,
        to: Option<u32>,
    },
}

/// A deed that failed in the middle.
#[derive(Debug)]
pub struct Broken {
    pub path: PathBuf,
    pub reason: String,
    /// What could not be taken back, and why.
    pub left: Vec<(PathBuf, String)>,
}

impl Deed {
    /// The steps of a merge, in an order in which nothing is in the way.
    pub fn of(merge: &Merge, child: &SessionId, workspace: &Workspace) -> Self {
        let (gone, put): (Vec<&Change>, Vec<&Change>) =
            merge.files.iter().partition(|change| change.to.is_none());
        let file = |change: &&Change| Step::File {
            path: RawPath(change.path.clone()),
            from: change.from.clone(),
            to: change.to.clone(),
        };
        let (mut removed, mut new, mut changed) = (Vec::new(), Vec::new(), Vec::new());
        for FolderChange { path, from, to } in &merge.folders {
            let step = |from, to| Step::Folder { path: RawPath(path.clone()), from, to };
            match (*from, *to) {
                (_, None) => removed.push(step(*from, None)),
                (None, Some(mode)) => {
                    // Files are put into it before it may be for reading only.
                    let open = mode | 0o700;
                    new.push(step(None, Some(open)));
                    changed.extend((open != mode).then(|| step(Some(open), Some(mode))));
                }
                (Some(_), Some(_)) => changed.push(step(*from, *to)),
            }
        }
        removed.reverse();
        changed.reverse();
        let steps = gone.iter().map(file).chain(removed).chain(new).chain(put.iter().map(file));
        let steps = steps.chain(changed).collect();
        let workspace = RawPath(workspace.root().to_owned());
        Self { child: child.clone(), workspace, steps }
    }

    /// The way back.
    #[must_use]
    pub fn inverse(&self) -> Self {
        let steps = self.steps.iter().rev().cloned().map(|step| match step {
            Step::File { path, from, to } => Step::File { path, from: to, to: from },
            Step::Folder { path, from, to } => Step::Folder { path, from: to, to: from },
        });
        Self { steps: steps.collect(), ..self.clone() }
    }

    /// The files that it is about.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        self.steps.iter().filter_map(|step| match step {
            Step::File { path, .. } => Some(path.as_ref()),
            Step::Folder { .. } => None,
        })
    }

    /// Names the files that are not what this deed would begin with, nor what it would end with.
    pub fn strangers(&self, workspace: &Workspace) -> Vec<PathBuf> {
        let is_strange = |step: &&Step| match step {
            Step::File { path, from, to } => !state_of(workspace, path.as_ref(), None)
                .is_ok_and(|now| now == *from || now == *to),
            Step::Folder { .. } => false,
        };
        self.steps.iter().filter(is_strange).map(|step| step.path().to_owned()).collect()
    }

    /// Keeps it in a store, so that it can be taken back one day.
    pub fn keep(&self, store: &Store) -> io::Result<Hash> {
        store.put(&serde_json::to_vec(self)?)
    }

    /// The one that was kept under that hash.
    pub fn kept(hash: &Hash, store: &Store) -> io::Result<Self> {
        Ok(serde_json::from_slice(&store.get(hash)?)?)
    }

    /// Does all steps, or none.
    pub fn carry_out(
        &self,
        workspace: &Workspace,
        store: &Store,
        session_folder: &Path,
        tracker: Option<&Tracker>,
    ) -> Result<(), Broken> {
        let trouble = |path: &Path, error: &io::Error| Broken {
            path: path.to_owned(),
            reason: error.to_string(),
            left: Vec::new(),
        };
        let journal = session_folder.join(JOURNAL);
        self.write_journal(&journal).map_err(|error| trouble(&journal, &error))?;
        if let Some(tracker) = tracker {
            note(tracker.before_command(), session_folder);
            self.files().for_each(|path| note(tracker.before_write(path, None), path));
        }
        let mut done = Self { steps: Vec::new(), ..self.clone() };
        for step in &self.steps {
            match step.take(workspace, store) {
                Ok(true) => done.steps.push(step.clone()),
                Ok(false) => {}
                Err(error) => {
                    let left = done.inverse().force(workspace, store);
                    fs::remove_file(&journal).ok();
                    return Err(Broken { left, ..trouble(step.path(), &error) });
                }
            }
        }
        if let Some(tracker) = tracker {
            self.files().for_each(|path| note(tracker.after_change(path), path));
        }
        fs::remove_file(&journal).ok();
        Ok(())
    }

    /// Takes every step that can be taken, and names the others.
    fn force(&self, workspace: &Workspace, store: &Store) -> Vec<(PathBuf, String)> {
        let failed = |step: &Step| {
            let error = step.take(workspace, store).err()?;
            Some((step.path().to_owned(), error.to_string()))
        };
        self.steps.iter().filter_map(failed).collect()
    }

    fn write_journal(&self, place: &Path) -> io::Result<()> {
        if let Some(folder) = place.parent() {
            DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        }
        let mut options = OpenOptions::new();
        let mut file = options.write(true).create_new(true).mode(0o600).open(place)?;
        let written = serde_json::to_vec(self).map_err(io::Error::from);
        let written =
            written.and_then(|text| file.write_all(&text)).and_then(|()| file.sync_data());
        if written.is_err() {
            fs::remove_file(place).ok();
        }
        written
    }

    /// Removes what a killed process left beside the files: drafts that never got their name.
    fn clear_drafts(&self, workspace: &Workspace) {
        let folders: std::collections::BTreeSet<PathBuf> =
            self.files().map(|path| path.parent().unwrap_or(Path::new("")).to_owned()).collect();
        for folder in folders {
            for name in workspace.names_beside(&folder.join("any")) {
                let is_draft = name.to_str().is_some_and(|name| {
                    let middle = name.strip_prefix('.').and_then(|it| it.strip_suffix(DRAFT));
                    middle.is_some_and(|it| {
                        it.len() == 16 && it.bytes().all(|b| b.is_ascii_hexdigit())
                    })
                });
                if is_draft
                    && let Ok((folder, name)) = workspace.folder_of_exact(&folder.join(&name))
                {
                    rustix::fs::unlinkat(folder, name, rustix::fs::AtFlags::empty()).ok();
                }
            }
        }
    }
}

/// That something cannot be taken back later stops nobody from doing it now.
fn note(kept: io::Result<()>, path: &Path) {
    if let Err(error) = kept {
        tracing::warn!(path = %path.display(), %error, "what a file was is not kept");
    }
}

/// What a merge that was cut off by the death of its process had done, taken back.
#[derive(Debug, PartialEq, Eq)]
pub struct Recovered {
    pub child: SessionId,
    /// What somebody else has changed since, and what could not be written.
    pub left: Vec<(PathBuf, String)>,
}

impl std::fmt::Display for Recovered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a merge of {} was cut off, and what it had written was taken back", self.child)?;
        let left: Vec<String> =
            self.left.iter().map(|(path, why)| format!("{} ({why})", path.display())).collect();
        if left.is_empty() { Ok(()) } else { write!(f, ", but not {}", left.join(", ")) }
    }
}

/// Takes back a merge that was cut off, if there was one.
pub fn recover(
    workspace: &Workspace,
    store: &Store,
    session_folder: &Path,
) -> io::Result<Option<Recovered>> {
    let journal = session_folder.join(JOURNAL);
    let text = match fs::read(&journal) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other?,
    };
    // One that is not whole was never begun.
    let Ok(deed) = serde_json::from_slice::<Deed>(&text) else {
        fs::remove_file(&journal)?;
        return Ok(None);
    };
    deed.clear_drafts(workspace);
    let left = deed.inverse().force(workspace, store);
    fs::remove_file(&journal)?;
    Ok(Some(Recovered { child: deed.child, left }))
}

impl Step {
    fn path(&self) -> &Path {
        match self {
            Step::File { path, .. } | Step::Folder { path, .. } => path.as_ref(),
        }
    }

    /// Takes the step; false when there was nothing to do.
    fn take(&self, workspace: &Workspace, store: &Store) -> io::Result<bool> {
        let mut plan = Plan::default();
        match self {
            Step::File { path, from, to } => {
                let now = state_of(workspace, path.as_ref(), None)?;
                if now == *to {
                    return Ok(false);
                }
                if now != *from {
                    return Err(io::Error::other("somebody changed it meanwhile"));
                }
                plan.changes.push(Change { path: path.0.clone(), from: now, to: to.clone() });
            }
            Step::Folder { path, from: None, to } => plan.make.push((path.0.clone(), *to)),
            // One that somebody has put something into stays.
            Step::Folder { path, to: None, .. } => plan.remove.push(path.0.clone()),
            Step::Folder { path, to: Some(mode), .. } => plan.modes.push((path.0.clone(), *mode)),
        }
        match restore(&plan, workspace, store).failed.pop() {
            Some((_, reason)) => Err(io::Error::other(reason)),
            None => Ok(true),
        }
    }
}
