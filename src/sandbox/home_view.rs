//! Homes: which part of the users' home folders a command sees.
//!
//! A home is closed: nothing in it is seen but tool chains, caches and settings of a list (`home_list`), what
//! the environment and the settings name, and the repository around the Workspace. What comes to be later is
//! not on the list, and so it is not seen either.

use std::cell::OnceCell;
use std::path::{Path, PathBuf};

use super::links::{Entry, Names};
use super::{home_list, world};

/// Folders in which the homes of this machine are; each folder in one of them is a home.
const HOMES: &str = "/home";
/// The home of root, also when another user runs commands.
const ROOT_HOME: &str = "/root";
/// Folders of the system; a home in one of them is not closed, because programs are there too.
const OF_THE_SYSTEM: &[&str] = &[
    "/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/proc", "/sbin",
    "/sys", "/usr",
];
/// What lies beside the programs of an installation.
const BESIDE_PROGRAMS: &[&str] = &["include", "lib", "lib64", "libexec", "share"];

/// What decides which part of the homes is seen.
pub struct HomeRequest<'a> {
    /// The user's home folder, as the environment names it.
    pub home: Option<&'a Path>,
    pub workspace: &'a Path,
    pub further: &'a [PathBuf],
    /// What a command can write, or could write in another mode.
    pub reach: &'a [PathBuf],
    /// Places of the list.
    pub listed: &'a [PathBuf],
    /// Folders that the environment names.
    pub named: &'a [PathBuf],
    /// `sandbox.read`.
    pub read: &'a [PathBuf],
    /// Files that git reads the user's settings from.
    pub git_settings: &'a [PathBuf],
    /// Where repositories of the Workspace keep their data.
    pub repositories: &'a [PathBuf],
    /// Where credentials may be.
    pub credentials: &'a [PathBuf],
}

/// The part of the homes that a command sees.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct HomeView {
    /// Folders of which only the rest of this view is seen, and what is writable.
    pub closed: Vec<PathBuf>,
    /// Folders in them.
    pub viewed: Vec<PathBuf>,
    /// Files and links in them.
    pub shown: Vec<PathBuf>,
}

impl HomeView {
    /// Works out the view for one command.
    pub fn new(request: &HomeRequest<'_>, names: &Names) -> Self {
        let homes = homes(request.home, names);
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
        let view = Self { closed, ..Self::default() };
        if view.closed.is_empty() {
            return view;
        }
        let credentials = OnceCell::new();
        let mut builder = HomeViewBuilder { request, names, homes, view, credentials };
        builder.add_all();
        builder.finish()
    }
}

/// The folders that hold what belongs to users, without links in their paths.
fn homes(home: Option<&Path>, names: &Names) -> Vec<PathBuf> {
    let known = [home, Some(Path::new(HOMES)), Some(Path::new(ROOT_HOME))];
    let mut homes: Vec<PathBuf> = known
        .into_iter()
        .flatten()
        .filter_map(|path| names.canonical(path))
        .filter(|path| matches!(names.entry(path), Entry::Folder { .. }) && may_be_closed(path))
        .collect();
    homes.sort();
    homes.dedup();
    homes
}

/// Whether programs can do without the rest of a folder.
fn may_be_closed(home: &Path) -> bool {
    let is_of_system = OF_THE_SYSTEM.iter().any(|folder| home.starts_with(folder));
    home != Path::new("/") && !is_of_system && !world::is_around_replaced(home)
}

/// A view that is being worked out.
struct HomeViewBuilder<'a> {
    request: &'a HomeRequest<'a>,
    names: &'a Names,
    homes: Vec<PathBuf>,
    view: HomeView,
    /// Where credentials may be, worked out when a folder of programs asks for it.
    credentials: OnceCell<Vec<PathBuf>>,
}

impl HomeViewBuilder<'_> {
    fn add_all(&mut self) {
        let HomeRequest { home, listed, named, read, git_settings, repositories, .. } =
            *self.request;
        if let Some(home) = home {
            let links = self.names.resolve_absolute(home).links;
            self.view
                .shown
                .extend(links.into_iter().filter(|link| is_within(&self.view.closed, link)));
        }
        // Also where a command may not write.
        let roots = self.request.reach.iter().filter(|root| is_within(&self.view.closed, root));
        self.view.viewed.extend(roots.cloned());
        for path in listed.iter().filter(|path| self.names.may_exist(path)) {
            self.add(path);
        }
        self.add(Path::new(home_list::SHARED));
        for path in named {
            let path = self.installation(path);
            self.add(&path);
        }
        for path in git_settings.iter().chain(repositories) {
            self.add(path);
        }
        let roots = [self.request.workspace].into_iter();
        for root in roots.chain(self.request.further.iter().map(PathBuf::as_path)) {
            self.view.viewed.extend(self.repository_around(root));
        }
        for path in read {
            self.add_place(path, true);
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

    /// Adds a place of a closed folder; of a link also what it leads to.
    fn add(&mut self, path: &Path) {
        self.add_place(path, false);
    }

    /// A whole home is added only when the user named it.
    fn add_place(&mut self, path: &Path, may_be_home: bool) {
        let found = self.names.resolve_absolute(path);
        // A link that a command can make leads where the command likes.
        if found.links.iter().any(|link| is_within(self.request.reach, link)) {
            return;
        }
        let is_home = self.is_home_or_above(&found.end);
        if is_home && !may_be_home {
            return;
        }
        let is_missed = |place: &PathBuf| {
            is_within(&self.view.closed, place) && !is_within(self.request.reach, place)
        };
        if is_missed(&found.end) {
            match self.names.entry(&found.end) {
                Entry::Folder { .. } => self.view.viewed.push(found.end),
                Entry::Other { .. } if found.end.is_file() => self.view.shown.push(found.end),
                Entry::Missing | Entry::Link { .. } | Entry::Other { .. } => {}
            }
        }
        let links: Vec<PathBuf> = found.links.into_iter().filter(is_missed).collect();
        self.view.shown.extend(links);
    }

    /// Whether a folder is a home, or has one in it.
    fn is_home_or_above(&self, path: &Path) -> bool {
        path.parent() == Some(Path::new(HOMES))
            || self.homes.iter().any(|home| home.starts_with(path))
    }

    /// The folder of programs with what they need, if it is one that is installed as a whole
    /// (`<folder>/bin` beside `<folder>/lib`) and has no credentials in it.
    fn installation(&self, path: &Path) -> PathBuf {
        let is_programs = path.ends_with("bin") || path.ends_with("sbin");
        let Some(around) = path.parent().filter(|_| is_programs) else { return path.to_owned() };
        let credentials = || self.credentials.get_or_init(|| self.credential_places());
        let has_credentials = || credentials().iter().any(|own| own.starts_with(around));
        let is_inside = self.view.closed.iter().any(|closed| around.starts_with(closed));
        let is_whole = is_inside
            && !self.is_home_or_above(around)
            && !has_credentials()
            && BESIDE_PROGRAMS.iter().any(|name| self.names.exists(&around.join(name)));
        if is_whole { around.to_owned() } else { path.to_owned() }
    }

    /// The names of credentials, and where they lead.
    fn credential_places(&self) -> Vec<PathBuf> {
        let HomeRequest { home, credentials, .. } = *self.request;
        // In a home that is reached through a link every name leads elsewhere, also one that is missing.
        let is_linked =
            home.is_some_and(|home| !self.names.resolve_absolute(home).links.is_empty());
        let mut places = credentials.to_vec();
        let may_lead = credentials.iter().filter(|own| is_linked || self.names.may_exist(own));
        places.extend(may_lead.map(|own| self.names.resolve_absolute(own).end));
        places
    }

    /// The repository in a home whose part a root is: builds read files of the folders above. Only folders
    /// above the root count, because a command could make or remove a repository in it.
    fn repository_around(&self, root: &Path) -> Option<PathBuf> {
        let is_inside =
            |folder: &&Path| is_within(&self.view.closed, folder) && !self.is_home_or_above(folder);
        let mut above = root.ancestors().skip(1).take_while(is_inside);
        let found = above.find(|folder| self.names.exists(&folder.join(".git")))?;
        // A repository of dot files is around settings of every kind.
        let closed = self.view.closed.iter().filter(|closed| found.starts_with(closed));
        let innermost = closed.max_by_key(|closed| closed.components().count())?;
        let inside = found.strip_prefix(innermost).ok()?;
        let is_dotted = inside.iter().any(|part| part.as_encoded_bytes().starts_with(b"."));
        (!is_dotted).then(|| found.to_owned())
    }
}

/// Whether a path is one of a list, or lies in one.
fn is_within(list: &[PathBuf], path: &Path) -> bool {
    list.iter().any(|own| path.starts_with(own))
}
