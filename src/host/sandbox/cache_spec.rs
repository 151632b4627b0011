//! The package caches in a sandbox spec: where they are, and their encoding as arguments of a supervisor.
#![expect(clippy::disallowed_methods, reason = "caches are folders of the user")]

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use super::name_cache::{NameCache, NameEntry};
use super::{cache_slots, system_paths};
use crate::base::files::StatePath;
use crate::base::names::names;
use crate::base::paths::Home;

/// The variable with the path of cargo's folder.
pub const CARGO_HOME: &str = "CARGO_HOME";

/// Variables with the paths of caches, and the default folders below the user's home.
const CACHE_VARIABLES: &[(&str, &str)] =
    &[(CARGO_HOME, ".cargo"), ("XDG_CACHE_HOME", ".cache"), ("npm_config_cache", ".npm")];

/// The access of a command to the package caches.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum CacheAccess {
    /// Each cache is used through a private layer, or there are no caches.
    #[default]
    Layered,
    /// Some caches are replaced by private folders, which are empty at first.
    Private,
    /// Some caches are read-only.
    ReadOnly,
}

names!(CacheAccess { Layered = "layered", Private = "private", ReadOnly = "read-only" });

impl CacheAccess {
    /// Parses a name.
    pub fn from_name(name: &str) -> Option<Self> {
        let all = [CacheAccess::Layered, CacheAccess::Private, CacheAccess::ReadOnly];
        all.into_iter().find(|access| access.name() == name)
    }
}

/// The package caches of a command, and the location of its private layers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CacheSpec {
    /// Pixir's home, which holds the slots.
    pub home: PathBuf,
    /// The prefix of the names of slots that commands of this Workspace may use.
    pub owner: String,
    /// The caches, with links resolved.
    pub places: Vec<PathBuf>,
    /// Variables with the paths of caches, and the folders that programs use by default.
    pub variables: Vec<(OsString, PathBuf)>,
    /// The access of the command; known only to the process that prepares the caches.
    pub access: CacheAccess,
    /// The folder with the private folders that the variables name, where nothing can be mounted.
    pub private: Option<PathBuf>,
}

impl CacheSpec {
    /// The folder of all slots.
    pub fn slots_folder(&self) -> StatePath {
        slots_folder(&self.home)
    }

    /// The caches as arguments of a supervisor, each prefixed with `letter`.
    pub fn arguments(&self, letter: &str) -> Vec<OsString> {
        if self.places.is_empty() {
            return Vec::new();
        }
        let argument = |kind: &str, value: &OsStr| {
            let mut argument = OsString::from(format!("{letter}{kind}"));
            argument.push(value);
            argument
        };
        let mut arguments = vec![
            argument("h", self.home.as_os_str()),
            argument("o", self.owner.as_ref()),
            argument("a", self.access.name().as_ref()),
        ];
        arguments.extend(self.places.iter().map(|place| argument("p", place.as_os_str())));
        arguments.extend(self.private.iter().map(|folder| argument("f", folder.as_os_str())));
        arguments.extend(self.variables.iter().map(|(name, folder)| {
            let mut value = name.clone();
            value.push("=");
            value.push(folder);
            argument("v", &value)
        }));
        arguments
    }

    /// Parses one argument, without its letter; `None` when it is malformed.
    pub fn read_argument(&mut self, argument: &[u8]) -> Option<()> {
        let (kind, value) = argument.split_first()?;
        let text = || std::str::from_utf8(value).ok();
        let path = |bytes: &[u8]| PathBuf::from(OsString::from_vec(bytes.to_vec()));
        match kind {
            b'h' => self.home = path(value),
            b'o' => text()?.clone_into(&mut self.owner),
            b'a' => self.access = CacheAccess::from_name(text()?)?,
            b'p' => self.places.push(path(value)),
            b'f' => self.private = Some(path(value)),
            b'v' => {
                let equals = memchr::memchr(b'=', value)?;
                let name = OsStr::from_bytes(&value[..equals]).to_owned();
                self.variables.push((name, path(&value[equals + 1..])));
            }
            _ => return None,
        }
        Some(())
    }

    /// The variables of a command that direct programs to private folders instead of caches.
    pub fn private_variables(&self) -> Vec<(&OsStr, PathBuf)> {
        let Some(private) = &self.private else { return Vec::new() };
        self.variables.iter().map(|(name, _)| (name.as_os_str(), private.join(name))).collect()
    }
}

/// The folder of all slots below Pixir's home.
fn slots_folder(home: &Path) -> StatePath {
    StatePath::root(home).join(Home::CACHES)
}

/// The configured package caches on this machine.
#[derive(Debug, Clone)]
pub struct CacheSettings {
    /// Pixir's home.
    pub home: PathBuf,
    pub user_home: Option<PathBuf>,
    /// The caches, with the paths from the settings.
    pub places: Vec<PathBuf>,
    /// Variables, and the folders that they name.
    pub variables: Vec<(OsString, PathBuf)>,
    /// The maximum size of a slot; a larger one is removed once it is free.
    pub max_bytes: u64,
}

impl CacheSettings {
    /// The caches at `places`; `variable` is a folder that commands find in their environment.
    pub fn new(
        home: &Path,
        user_home: Option<&Path>,
        places: Vec<PathBuf>,
        variable: &dyn Fn(&str) -> Option<PathBuf>,
    ) -> Self {
        let folder = |(name, default): &(&str, &str)| {
            let folder = variable(name).or_else(|| Some(user_home?.join(default)))?;
            Some((OsString::from(name), folder))
        };
        Self {
            home: home.to_owned(),
            user_home: user_home.map(Path::to_owned),
            places,
            variables: CACHE_VARIABLES.iter().filter_map(folder).collect(),
            max_bytes: 0,
        }
    }

    /// The caches of a command that may write to `writable` directly. Targets of links in `reach` are left out,
    /// because commands can create those; so are a home and the folders above one.
    pub fn spec(
        &self,
        workspace: &Path,
        writable: &[PathBuf],
        reach: &[PathBuf],
        names: &NameCache,
    ) -> CacheSpec {
        let home = self.user_home.as_deref().and_then(|home| names.canonical(home));
        let is_home = |path: &Path| home.as_ref().is_some_and(|home| home.starts_with(path));
        let trusted = |path: &Path| {
            let end = names.canonical(path).filter(|_| !names.has_link_in(path, reach));
            let is_refused = |end: &PathBuf| {
                is_home(end)
                    || system_paths::write_objection(end, home.as_deref(), &self.home).is_some()
            };
            end.filter(|end| !is_refused(end))
        };
        let mut places: Vec<PathBuf> =
            self.places.iter().filter_map(|place| trusted(place)).collect();
        let is_writable = |path: &Path| writable.iter().any(|root| path.starts_with(root));
        let is_folder = |path: &Path| matches!(names.entry(path), NameEntry::Folder { .. });
        places.retain(|place| is_folder(place) && !is_writable(place));
        places.sort();
        // A cache inside another cache is part of the layer of that one.
        places.dedup_by(|later, earlier| later.starts_with(earlier));
        if places.is_empty() {
            return CacheSpec::default();
        }
        let is_for_caches = |folder: &Path| {
            let has_cache = places.iter().any(|place| place.starts_with(folder));
            has_cache && !writable.iter().any(|root| root.starts_with(folder))
        };
        let ends = self.variables.iter().filter_map(|(name, folder)| {
            let folder = names.canonical(folder).filter(|_| !names.has_link_in(folder, reach))?;
            is_for_caches(&folder).then(|| (name.clone(), folder))
        });
        let variables = ends.collect();
        let home = self.home.clone();
        let owner = cache_slots::cache_name(workspace);
        CacheSpec { home, owner, places, variables, ..CacheSpec::default() }
    }

    /// Creates the folder of slots, and missing caches.
    pub fn prepare(&self) {
        if self.places.is_empty() {
            return;
        }
        self.places.iter().for_each(|place| self.create_missing(place));
        if let Err(error) = slots_folder(&self.home).create_with_root() {
            tracing::debug!(%error, "no folder for slots of caches");
        }
    }

    /// Removes slots that are too many, too large, or were left by a supervisor that died.
    pub fn prune(&self) {
        if let Ok(Some(all)) = slots_folder(&self.home).open() {
            cache_slots::prune_slots(&all, self.max_bytes);
        }
    }

    /// Creates a missing cache of the user, because a layer needs a lower folder.
    fn create_missing(&self, place: &Path) {
        let Some(home) = &self.user_home else { return };
        let above = place.ancestors().take_while(|folder| *folder != home);
        // A link could have any target.
        let is_link = |folder: &Path| folder.is_symlink();
        if place.starts_with(home)
            && place.symlink_metadata().is_err()
            && !above.into_iter().any(is_link)
        {
            let made = std::fs::DirBuilder::new().recursive(true).mode(0o755).create(place);
            if let Err(error) = made {
                tracing::debug!(place = %place.display(), %error, "no folder for a cache");
            }
        }
    }
}
