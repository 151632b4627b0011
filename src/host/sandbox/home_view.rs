//! Home view: the part of the users' home folders that a command sees.
//!
//! A home is closed: commands see only the tool chains, caches and settings of a list (`home_list`), the paths
//! that the environment and the settings name, and the repository that contains the Workspace. Files that are
//! created later are not on the list, so they are not visible either.

use std::cell::OnceCell;
use std::path::{Path, PathBuf};

use super::name_cache::{NameCache, NameEntry};
use super::{home_list, mounts};

/// The folder of the users' homes; each folder in it is a home.
const HOMES_FOLDER: &str = "/home";
/// The home of root, also when another user runs commands.
const ROOT_HOME: &str = "/root";
/// Folders of the system; a home in one of them is not closed, because these folders contain programs too.
const SYSTEM_FOLDERS: &[&str] = &[
    "/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/proc", "/sbin",
    "/sys", "/usr",
];
/// Names of folders that are next to the `bin` of an installation.
const BESIDE_PROGRAMS: &[&str] = &["include", "lib", "lib64", "libexec", "share"];

/// The inputs of a [`HomeView`].
pub struct HomeRequest<'a> {
    /// The user's home folder, with the path from the environment.
    pub home: Option<&'a Path>,
    pub workspace: &'a Path,
    pub extra_roots: &'a [PathBuf],
    /// Folders that a command can write, or could write in another permission mode.
    pub reach: &'a [PathBuf],
    /// The paths of `home_list`.
    pub listed: &'a [PathBuf],
    /// Folders that the environment names.
    pub named_paths: &'a [PathBuf],
    /// The paths of the setting `sandbox.read`.
    pub read: &'a [PathBuf],
    /// Files from which git reads the user's settings.
    pub git_settings: &'a [PathBuf],
    /// Folders in which repositories of the Workspace keep their data.
    pub repositories: &'a [PathBuf],
    /// Places of credentials.
    pub credentials: &'a [PathBuf],
}

/// The part of the homes that a command sees.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct HomeView {
    /// Homes of which only the rest of this view and writable folders are visible.
    pub closed_homes: Vec<PathBuf>,
    /// Visible folders in closed homes.
    pub viewed: Vec<PathBuf>,
    /// Visible files and links in closed homes.
    pub shown: Vec<PathBuf>,
}

impl HomeView {
    /// Computes the view for one command.
    pub fn new(request: &HomeRequest<'_>, names: &NameCache) -> Self {
        let homes = find_homes(request.home, names);
        let is_around = |root: &Path, home: &Path| home.starts_with(root);
        let is_open = |home: &PathBuf| {
            let roots = request.reach.iter().map(PathBuf::as_path).chain([request.workspace]);
            let is_trusted = |path: &&PathBuf| !names.has_link_in(path, request.reach);
            let read = request.read.iter().filter(is_trusted);
            let mut read = read.filter_map(|path| names.canonical(path));
            roots.into_iter().any(|root| is_around(root, home))
                || read.any(|root| is_around(&root, home))
        };
        let closed: Vec<PathBuf> = homes.iter().filter(|home| !is_open(home)).cloned().collect();
        let view = Self { closed_homes: closed, ..Self::default() };
        if view.closed_homes.is_empty() {
            return view;
        }
        let credentials = OnceCell::new();
        let mut builder = HomeViewBuilder { request, names, homes, view, credentials };
        builder.add_all();
        builder.finish()
    }
}

/// The home folders of this machine, without links in their paths.
fn find_homes(home: Option<&Path>, names: &NameCache) -> Vec<PathBuf> {
    let known = [home, Some(Path::new(HOMES_FOLDER)), Some(Path::new(ROOT_HOME))];
    let mut homes: Vec<PathBuf> = known
        .into_iter()
        .flatten()
        .filter_map(|path| names.canonical(path))
        .filter(|path| matches!(names.entry(path), NameEntry::Folder { .. }) && can_be_closed(path))
        .collect();
    homes.sort();
    homes.dedup();
    homes
}

/// Whether a home may be closed; false when programs need the rest of the folder.
fn can_be_closed(home: &Path) -> bool {
    let is_of_system = SYSTEM_FOLDERS.iter().any(|folder| home.starts_with(folder));
    home != Path::new("/") && !is_of_system && !mounts::contains_replaced(home)
}

/// A view that is being built.
struct HomeViewBuilder<'a> {
    request: &'a HomeRequest<'a>,
    names: &'a NameCache,
    homes: Vec<PathBuf>,
    view: HomeView,
    /// Places of credentials with their targets, computed when a folder of programs is checked.
    credentials: OnceCell<Vec<PathBuf>>,
}

impl HomeViewBuilder<'_> {
    fn add_all(&mut self) {
        let HomeRequest {
            home, listed, named_paths: named, read, git_settings, repositories, ..
        } = *self.request;
        if let Some(home) = home {
            let links = self.names.resolve_absolute(home).links;
            self.view
                .shown
                .extend(links.into_iter().filter(|link| is_within(&self.view.closed_homes, link)));
        }
        // Writable folders stay visible in a mode in which the command may not write.
        let roots =
            self.request.reach.iter().filter(|root| is_within(&self.view.closed_homes, root));
        self.view.viewed.extend(roots.cloned());
        for path in listed.iter().filter(|path| self.names.may_exist(path)) {
            self.add_path(path);
        }
        self.add_path(Path::new(home_list::HOMEBREW_FOLDER));
        for path in named {
            let path = self.whole_installation(path);
            self.add_path(&path);
        }
        for path in git_settings.iter().chain(repositories) {
            self.add_path(path);
        }
        let roots = [self.request.workspace].into_iter();
        for root in roots.chain(self.request.extra_roots.iter().map(PathBuf::as_path)) {
            self.view.viewed.extend(self.repository_around(root));
        }
        for path in read {
            self.add_path_or_home(path, true);
        }
    }

    fn finish(mut self) -> HomeView {
        for list in [&mut self.view.viewed, &mut self.view.shown] {
            list.sort();
            list.dedup();
        }
        self.view.viewed.dedup_by(|later, earlier| later.starts_with(earlier));
        self.view
    }

    /// Adds a path of a closed home, and the target if the path is a link.
    fn add_path(&mut self, path: &Path) {
        self.add_path_or_home(path, false);
    }

    /// Adds a path of a closed home; a whole home only when `may_be_home`.
    fn add_path_or_home(&mut self, path: &Path, may_be_home: bool) {
        let found = self.names.resolve_absolute(path);
        // A command that can create the link can choose its target.
        if found.links.iter().any(|link| is_within(self.request.reach, link)) {
            return;
        }
        let is_home = self.is_home_or_above(&found.end);
        if is_home && !may_be_home {
            return;
        }
        let is_missed = |place: &PathBuf| {
            is_within(&self.view.closed_homes, place) && !is_within(self.request.reach, place)
        };
        if is_missed(&found.end) {
            match self.names.entry(&found.end) {
                NameEntry::Folder { .. } => self.view.viewed.push(found.end),
                NameEntry::Other { .. } if found.end.is_file() => self.view.shown.push(found.end),
                NameEntry::Missing | NameEntry::Link { .. } | NameEntry::Other { .. } => {}
            }
        }
        let links: Vec<PathBuf> = found.links.into_iter().filter(is_missed).collect();
        self.view.shown.extend(links);
    }

    /// Whether a folder is a home or contains one.
    fn is_home_or_above(&self, path: &Path) -> bool {
        path.parent() == Some(Path::new(HOMES_FOLDER))
            || self.homes.iter().any(|home| home.starts_with(path))
    }

    /// The installation of a folder of programs (`<folder>` for `<folder>/bin` next to `<folder>/lib`), unless it
    /// contains credentials; otherwise the folder of programs itself.
    fn whole_installation(&self, path: &Path) -> PathBuf {
        let is_programs = path.ends_with("bin") || path.ends_with("sbin");
        let Some(around) = path.parent().filter(|_| is_programs) else { return path.to_owned() };
        let credentials = || self.credentials.get_or_init(|| self.credential_places());
        let has_credentials = || credentials().iter().any(|own| own.starts_with(around));
        let is_inside = self.view.closed_homes.iter().any(|closed| around.starts_with(closed));
        let is_whole = is_inside
            && !self.is_home_or_above(around)
            && !has_credentials()
            && BESIDE_PROGRAMS.iter().any(|name| self.names.exists(&around.join(name)));
        if is_whole { around.to_owned() } else { path.to_owned() }
    }

    /// The names of credentials and their targets.
    fn credential_places(&self) -> Vec<PathBuf> {
        let HomeRequest { home, credentials, .. } = *self.request;
        // If the path of the home has a link, every name resolves to another path, even a missing one.
        let is_linked =
            home.is_some_and(|home| !self.names.resolve_absolute(home).links.is_empty());
        let mut places = credentials.to_vec();
        let may_lead = credentials.iter().filter(|own| is_linked || self.names.may_exist(own));
        places.extend(may_lead.map(|own| self.names.resolve_absolute(own).end));
        places
    }

    /// The repository in a home that contains a root, because builds read files of the folders above. Only folders
    /// above the root count, because a command could create or remove a repository in the root.
    fn repository_around(&self, root: &Path) -> Option<PathBuf> {
        let is_inside = |folder: &&Path| {
            is_within(&self.view.closed_homes, folder) && !self.is_home_or_above(folder)
        };
        let mut above = root.ancestors().skip(1).take_while(is_inside);
        let found = above.find(|folder| self.names.exists(&folder.join(".git")))?;
        // A repository of dot files contains settings of every kind.
        let closed = self.view.closed_homes.iter().filter(|closed| found.starts_with(closed));
        let innermost = closed.max_by_key(|closed| closed.components().count())?;
        let inside = found.strip_prefix(innermost).ok()?;
        let is_dotted = inside.iter().any(|part| part.as_encoded_bytes().starts_with(b"."));
        (!is_dotted).then(|| found.to_owned())
    }
}

/// Whether a path is in a list, or beneath a path of the list.
fn is_within(list: &[PathBuf], path: &Path) -> bool {
    list.iter().any(|own| path.starts_with(own))
}
