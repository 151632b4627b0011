//! Watch for hidden names whose links get another target, when a spec is created and while a command runs.
//!
//! A cover hides a name, or a file. When a link on the way to a file gets another target, as in programs
//! that rotate credentials, the name resolves to a file that nothing covers, and the file that was covered
//! has no hidden name any more. A command's own mounts may still show the old link, so Pixir itself
//! checks, outside of these mounts.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use super::name_cache::{MOST_LINKS, NameCache, NameEntry};
use super::recent_specs::RecordedNames;
use super::spec::SandboxSpec;
use super::system_paths;

/// The paths to hide for a name: its target and the links to it, which may be replaced. A missing target is
/// represented by its first missing folder.
///
/// Links among the parent folders are left out, because other paths use them too.
pub fn hidden_places(name: &Path, names: &NameCache) -> Vec<PathBuf> {
    let mut places = Vec::new();
    let mut name = name.to_owned();
    while places.len() < MOST_LINKS
        && let Some((parent, own)) = name.parent().zip(name.file_name())
    {
        let parent = names.resolve_absolute(parent).end;
        let itself = parent.join(own);
        let NameEntry::Link { target, .. } = names.entry(&itself) else { break };
        name = parent.join(target);
        places.push(itself);
    }
    let end = names.resolve_absolute(&name).end;
    let missing = end.ancestors().take_while(|path| !names.exists(path)).last();
    let missing = missing.map(Path::to_owned);
    places.push(missing.unwrap_or(end));
    places
}

/// Earlier targets of links to hidden paths, since Pixir was started and as long as they exist.
#[derive(Debug, Clone, Default)]
pub struct EarlierTargets(Arc<Mutex<BTreeSet<PathBuf>>>);

impl EarlierTargets {
    /// All known targets.
    pub fn all(&self) -> Vec<PathBuf> {
        self.0.lock().iter().cloned().collect()
    }

    /// Adds the targets of names with links, unless a command can change one of the links; returns all targets.
    pub fn update<'p>(
        &self,
        hidden: impl Iterator<Item = &'p PathBuf>,
        is_in_reach: impl Fn(&Path) -> bool,
        names: &NameCache,
    ) -> Vec<PathBuf> {
        let mut ends = self.0.lock();
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

/// Names that commands must not read.
#[derive(Debug)]
pub struct HiddenNames {
    /// Names that the settings or Pixir itself hide.
    pub always: Vec<PathBuf>,
    pub credentials: Arc<[PathBuf]>,
    /// The user's home, which contains most of the names; such a name is checked only if it may exist.
    pub home: Option<PathBuf>,
}

/// The hidden names of one command.
#[derive(Debug)]
pub struct HiddenWatch {
    names: HiddenNames,
    workspace: PathBuf,
    /// The sandbox of the command.
    spec: SandboxSpec,
    /// The names from which the spec was computed; no path is revealed while they are unchanged.
    recorded: Option<Arc<RecordedNames>>,
    /// Hidden names that were missing when the command started, where there is no record.
    missing: Vec<PathBuf>,
}

/// The missing hidden names in folders that are visible without a view: when one is created, the command can
/// read it.
pub fn missing_names(spec: &SandboxSpec, is_missing: impl Fn(&Path) -> bool) -> Vec<PathBuf> {
    // A layer over a cache shows files that are created in the cache later.
    let is_as_it_is = |path: &Path| is_in(&spec.shown, path) || is_in(&spec.caches.places, path);
    let hidden = spec.hidden.iter().filter(|path| is_as_it_is(path) && is_missing(path));
    hidden.cloned().collect()
}

impl HiddenWatch {
    /// A watch for a command that is about to start.
    pub fn new(
        names: HiddenNames,
        workspace: &Path,
        spec: &SandboxSpec,
        recorded: Option<Arc<RecordedNames>>,
    ) -> Self {
        let missing = match &recorded {
            Some(_) => Vec::new(),
            None => missing_names(spec, |path| path.symlink_metadata().is_err()),
        };
        Self { names, workspace: workspace.to_owned(), spec: spec.clone(), recorded, missing }
    }

    /// The current targets of hidden names that the command can read.
    pub fn revealed(&self) -> Vec<PathBuf> {
        if self.recorded.as_ref().is_some_and(|names| names.record.is_current()) {
            return Vec::new();
        }
        let missing = self.recorded.as_ref().map_or(&self.missing, |names| &names.missing);
        let HiddenNames { always, credentials, home } = &self.names;
        let now = NameCache::with_listing(home.as_deref());
        let names = always.iter().chain(credentials.iter()).filter(|name| now.may_exist(name));
        let places = names.flat_map(|name| hidden_places(name, &now));
        let is_revealed = |path: &PathBuf| {
            let is_hidden = is_in(&self.spec.hidden, path) && !is_in(missing, path);
            // The command itself may have created files in writable folders.
            let is_exempt = is_in(&self.spec.writable, path)
                || self.workspace.starts_with(path)
                || self.spec.is_unseen(path)
                || system_paths::overlaps_system_credentials(path);
            !is_hidden && !is_exempt && now.exists(path)
        };
        let revealed: BTreeSet<PathBuf> = places.filter(is_revealed).collect();
        revealed.into_iter().collect()
    }
}

fn is_in(list: &[PathBuf], path: &Path) -> bool {
    list.iter().any(|own| path.starts_with(own))
}
