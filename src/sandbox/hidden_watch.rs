//! Where hidden names lead: when a Spec is made, and while a command runs.
//!
//! A cover hides a name, or a file. When a link on the way to a file is pointed elsewhere, as programs do
//! that rotate credentials, the name leads to a file that nothing covers, and the file that was covered
//! has no hidden name any more. A command's own world may go on showing the old link, so Pixir itself
//! looks, from outside.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use super::hidden;
use super::links::{Entry, MOST_LINKS, Names};
use super::recent_specs::RecordedNames;
use super::spec::Spec;

/// The places to hide for a name: where it leads, and the links that are names of the same thing, because
/// something else may take their place. Of what is not there it is the first folder that is missing.
///
/// A link in place of a folder on the way is left out: other things are reached through it.
pub fn hidden_places(name: &Path, names: &Names) -> Vec<PathBuf> {
    let mut places = Vec::new();
    let mut name = name.to_owned();
    while places.len() < MOST_LINKS
        && let Some((parent, own)) = name.parent().zip(name.file_name())
    {
        let parent = names.resolve_absolute(parent).end;
        let itself = parent.join(own);
        let Entry::Link { target, .. } = names.entry(&itself) else { break };
        name = parent.join(target);
        places.push(itself);
    }
    let end = names.resolve_absolute(&name).end;
    let missing = end.ancestors().take_while(|path| !names.exists(path)).last();
    let missing = missing.map(Path::to_owned);
    places.push(missing.unwrap_or(end));
    places
}

/// Where links to hidden places have led since Pixir was started, as long as it is there.
#[derive(Debug, Clone, Default)]
pub struct EarlierEnds(Arc<Mutex<BTreeSet<PathBuf>>>);

impl EarlierEnds {
    /// All that are known.
    pub fn all(&self) -> Vec<PathBuf> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }

    /// Adds where names lead through links, unless a command can change one of those; gives all.
    pub fn update<'p>(
        &self,
        hidden: impl Iterator<Item = &'p PathBuf>,
        is_in_reach: impl Fn(&Path) -> bool,
        names: &Names,
    ) -> Vec<PathBuf> {
        let mut ends = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        ends.retain(|end| names.exists(end));
        for name in hidden {
            let found = names.resolve_absolute(name);
            let is_made_by_commands = found.links.iter().any(|link| is_in_reach(link));
            if !found.links.is_empty() && !is_made_by_commands && names.exists(&found.end) {
                ends.insert(found.end);
            }
        }
        ends.iter().cloned().collect()
    }
}

/// Names that must not be read.
#[derive(Debug)]
pub struct HiddenNames {
    /// What the user and Pixir keep from commands.
    pub always: Vec<PathBuf>,
    pub credentials: Arc<[PathBuf]>,
    /// The folder in which most of them are; a name is looked at only when the folder has it.
    pub home: Option<PathBuf>,
}

/// The hidden names of one command.
#[derive(Debug)]
pub struct HiddenWatch {
    names: HiddenNames,
    workspace: PathBuf,
    /// What holds the command.
    spec: Spec,
    /// What the Spec was made from; nothing is revealed while that is so.
    recorded: Option<Arc<RecordedNames>>,
    /// What was missing when the command began, where there is no record.
    missing: Vec<PathBuf>,
}

/// The hidden names that are missing in folders that the command sees as they are: when one comes to be, the
/// command can read it.
pub fn missing(spec: &Spec, is_missing: impl Fn(&Path) -> bool) -> Vec<PathBuf> {
    // A layer over a cache shows what comes to be in the cache.
    let is_as_it_is = |path: &Path| is_in(&spec.shown, path) || is_in(&spec.caches.places, path);
    let hidden = spec.hidden.iter().filter(|path| is_as_it_is(path) && is_missing(path));
    hidden.cloned().collect()
}

impl HiddenWatch {
    /// Begins with a command.
    pub fn new(
        names: HiddenNames,
        workspace: &Path,
        spec: &Spec,
        recorded: Option<Arc<RecordedNames>>,
    ) -> Self {
        let missing = match &recorded {
            Some(_) => Vec::new(),
            None => missing(spec, |path| path.symlink_metadata().is_err()),
        };
        Self { names, workspace: workspace.to_owned(), spec: spec.clone(), recorded, missing }
    }

    /// What the names lead to by now and the command can read.
    pub fn revealed(&self) -> Vec<PathBuf> {
        if self.recorded.as_ref().is_some_and(|names| names.record.still_holds()) {
            return Vec::new();
        }
        let missing = self.recorded.as_ref().map_or(&self.missing, |names| &names.missing);
        let HiddenNames { always, credentials, home } = &self.names;
        let now = Names::listing(home.as_deref());
        let names = always.iter().chain(credentials.iter()).filter(|name| now.may_exist(name));
        let places = names.flat_map(|name| hidden_places(name, &now));
        let is_revealed = |path: &PathBuf| {
            let is_hidden = is_in(&self.spec.hidden, path) && !is_in(missing, path);
            // What commands can write they may have made themselves.
            let is_exempt = is_in(&self.spec.writable, path)
                || self.workspace.starts_with(path)
                || self.spec.is_unseen(path)
                || hidden::is_of_system(path);
            !is_hidden && !is_exempt && now.exists(path)
        };
        let revealed: BTreeSet<PathBuf> = places.filter(is_revealed).collect();
        revealed.into_iter().collect()
    }
}

fn is_in(list: &[PathBuf], path: &Path) -> bool {
    list.iter().any(|own| path.starts_with(own))
}
