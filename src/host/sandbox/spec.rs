//! The sandbox spec of one command: the paths of this machine that it may write, must not change and cannot read.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use super::cache_spec::{CacheSettings, CacheSpec};
use super::hidden_watch::EarlierEnds;
use super::limits::CommandLimits;
use super::links::Names;
use super::recent_specs::{RecentSpecs, RecordedNames, SpecBasis};
use super::sight::{HomePlaces, is_unseen};
use super::views::Views;
use super::{Profile, git, hidden, hidden_watch, scratch, world};
use crate::base::paths;
use crate::base::paths::Home;
use crate::settings::config;
use crate::settings::config::{NetworkRule, SandboxLevel, SocketRule};

/// The least enforcement with which a command is started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Floor {
    /// Namespaces, Landlock and seccomp; without all of them no command runs.
    Full,
    /// At least Landlock and seccomp.
    Partial,
}

/// Whether a command can reach the network of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Network {
    Open,
    #[default]
    Closed,
}

/// Whether a command can reach sockets of other programs through its mounts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sockets {
    /// Sockets outside the Workspace are out of reach.
    Covered,
    /// Some folder outside could not be covered.
    Reachable,
}

/// The sandbox of one command, as its supervisor receives it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spec {
    pub floor: Floor,
    pub network: Network,
    /// The Session's own folder for temporary files.
    pub scratch: PathBuf,
    /// Folders that may be written, with everything beneath.
    pub writable: Vec<PathBuf>,
    /// Paths in writable folders that must not change.
    pub kept: Vec<PathBuf>,
    /// Missing paths in writable folders that must not be created.
    pub absent: Vec<PathBuf>,
    /// Paths that cannot be read, also when they are created later.
    pub hidden: Vec<PathBuf>,
    /// Home folders of which only the writable, shown and viewed paths can be read.
    pub closed: Vec<PathBuf>,
    /// Paths that are seen as they are, with the sockets in them.
    pub shown: Vec<PathBuf>,
    /// Folders that must be visible although they lie in a folder that is replaced or closed.
    pub viewed: Vec<PathBuf>,
    /// Package caches, which are written through private layers.
    pub caches: CacheSpec,
    pub sockets: Sockets,
    /// Whether the command may make Unix sockets where those of other programs are within reach.
    pub local_sockets: bool,
    /// Names of git settings outside of repositories, if a command could change the files that they lead to.
    /// Used for the check after the command; not sent to the supervisor.
    pub git_settings: Vec<PathBuf>,
    pub limits: CommandLimits,
    /// A digest of the devices and inodes of the writable, protected, hidden and visible paths and the folders above:
    /// when one of them was replaced, the mounts of an earlier supervisor are stale.
    pub inodes: u64,
}

/// The sandbox of a Session: its settings, and the folders of this machine that it depends on.
#[derive(Debug, Clone)]
pub struct Sandbox {
    pub(super) settings: config::Sandbox,
    pub(super) user_home: Option<PathBuf>,
    pub(super) state: PathBuf,
    temp: PathBuf,
    /// The folders and files that the environment of commands names.
    pub(super) named: Vec<PathBuf>,
    pub(super) roots: Vec<PathBuf>,
    caches: CacheSettings,
    pub(super) places: HomePlaces,
    /// Earlier targets of links to hidden paths; they stay hidden when the links lead elsewhere.
    pub(super) earlier_ends: EarlierEnds,
    /// Specs of earlier commands.
    pub(super) recent: RecentSpecs,
    /// The names by which git reads settings outside of repositories.
    pub(super) git_settings: Vec<PathBuf>,
    /// Reasons why configured roots cannot be writable.
    pub objections: Vec<String>,
}

/// The sandbox request of one tool call.
pub struct Wish<'a> {
    pub profile: Profile,
    /// Whether the call declared that it needs the network.
    pub network: bool,
    /// Whether the call declared that it needs Unix sockets, and may have them.
    pub local_sockets: bool,
    pub workspace: &'a Path,
    /// Directories beside the Workspace that may be written as well.
    pub further: &'a [PathBuf],
    pub scratch: &'a Path,
}

/// Variables that name folders which commands need to see; all of them reach a command.
pub const NAMING: &[&str] = &[
    "HOME",
    "PATH",
    "CARGO_HOME",
    "RUSTUP_HOME",
    "JAVA_HOME",
    "NVM_DIR",
    "PYENV_ROOT",
    "VIRTUAL_ENV",
    "GOPATH",
    "GOROOT",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
];

/// The letter of the supervisor's arguments about package caches.
pub const CACHES: &str = "c";

impl Sandbox {
    /// Resolves the settings on this machine once; `environment` is that of the commands.
    pub fn new(config: &config::Config, environment: &[(OsString, OsString)]) -> Self {
        let variable = |name: &str| {
            let found = environment.iter().find(|(own, _)| own == name);
            found.map(|(_, value)| value.clone()).filter(|value| !value.is_empty())
        };
        let folder =
            |name: &str| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
        // Without a HOME, the parent of Pixir's own folder is the user's home.
        let own = config.home.folder();
        let beside = own.parent().filter(|_| own.ends_with(paths::STATE_FOLDER));
        let user_home = folder("HOME").or_else(|| beside.map(Path::to_owned));
        let listed = NAMING.iter().filter_map(|name| variable(name));
        let named = listed.flat_map(|value| std::env::split_paths(&value).collect::<Vec<_>>());
        let state = config.home.folder().to_owned();
        let mut objections = Vec::new();
        let mut allowed = |configured: &[PathBuf]| {
            let mut roots = Vec::new();
            for root in configured {
                let Some(root) = expanded(root, user_home.as_deref(), &folder) else { continue };
                match hidden::objection(&root, user_home.as_deref(), &state) {
                    Some(reason) => objections.push(reason),
                    None => roots.push(root),
                }
            }
            roots
        };
        let roots = allowed(&config.sandbox.write);
        let places = allowed(&config.sandbox.caches);
        let mut caches = CacheSettings::new(&state, user_home.as_deref(), places, &folder);
        caches.max_bytes = config.sandbox.cache_bytes;
        let config_home = folder("XDG_CONFIG_HOME");
        Self {
            settings: config.sandbox.clone(),
            earlier_ends: EarlierEnds::default(),
            recent: RecentSpecs::default(),
            git_settings: git::user_settings(user_home.as_deref(), config_home.as_deref()),
            state,
            temp: folder("TMPDIR").unwrap_or_else(|| "/tmp".into()),
            named: named
                .chain(config.bash.shell.clone())
                .filter(|path| path.is_absolute())
                .collect(),
            places: HomePlaces::new(&config.sandbox, user_home.as_deref(), &folder),
            user_home,
            roots,
            caches,
            objections,
        }
    }

    /// The reason why a directory cannot be writable for commands; `None` when it can.
    pub fn objection(&self, root: &Path) -> Option<String> {
        hidden::objection(root, self.user_home.as_deref(), &self.state)
    }

    /// The user's home folder, as commands know it.
    pub fn user_home(&self) -> Option<&Path> {
        self.user_home.as_deref()
    }

    /// Makes the folders that private layers over package caches need, before a command that writes.
    pub fn prepare_caches(&self) {
        self.caches.prepare();
    }

    /// Removes private layers over package caches that are too many or too large.
    pub fn prune_caches(&self) {
        self.caches.prune();
    }

    /// Where scratch folders are made.
    pub fn temp(&self) -> &Path {
        &self.temp
    }

    /// Whether a call that declares network may have it.
    pub fn may_declare_network(&self) -> bool {
        self.settings.network != NetworkRule::Deny
    }

    /// Whether a call that declares Unix sockets may have them.
    pub fn may_declare_sockets(&self) -> bool {
        self.settings.local_sockets != SocketRule::Deny
    }

    /// The setting that decides which commands may make Unix sockets.
    pub fn socket_rule(&self) -> SocketRule {
        self.settings.local_sockets
    }

    /// The sandbox spec of one command; `None` when it runs without a sandbox.
    pub fn spec(&self, wish: &Wish<'_>) -> Option<Spec> {
        let basis = self.basis(wish)?;
        if let Some(spec) = self.recent.find(&basis) {
            return Some(spec);
        }
        let names = Names::listing(self.user_home.as_deref());
        let spec = self.spec_on(&basis, &names);
        let missing = hidden_watch::missing(&spec, |path| !names.exists(path));
        let recorded = RecordedNames { record: names.into_record(), missing };
        self.recent.keep(basis, recorded, spec.clone());
        Some(spec)
    }

    /// The inputs of a spec that depend on the request and on the content of files.
    fn basis(&self, wish: &Wish<'_>) -> Option<SpecBasis> {
        if wish.profile == Profile::Off {
            return None;
        }
        let annexes = Home::new(&self.state).annexes();
        let annexes = annexes.canonicalize().unwrap_or(annexes);
        let names = &Names::default();
        let home = self.user_home.as_deref();
        let configured: Vec<PathBuf> =
            self.roots.iter().filter_map(|root| names.canonical(root)).collect();
        let top = top_of(wish.workspace, &annexes);
        let mut basis = SpecBasis {
            profile: wish.profile,
            network: self.network(wish),
            local_sockets: wish.local_sockets,
            workspace: wish.workspace.to_owned(),
            further: wish.further.to_vec(),
            scratch: wish.scratch.to_owned(),
            hidden_names: self.hidden_names(wish.workspace),
            earlier_ends: self.earlier_ends.all(),
            ..SpecBasis::default()
        };
        if wish.profile == Profile::Workspace {
            basis.writable.push(wish.workspace.to_owned());
            basis.writable.extend(configured.iter().cloned());
            basis.writable.extend(wish.further.iter().cloned());
            let further = wish.further.iter().map(PathBuf::as_path);
            let roots = basis.writable.clone();
            for root in [wish.workspace].into_iter().chain(further) {
                let state = paths::state(root);
                // Without a Session the folder is missing; a command must not make it.
                if !names.exists(&state) {
                    basis.absent.push(state.clone());
                }
                basis.kept.push(state);
                basis.add_repository(git::repository(&top_of(root, &annexes), home, &roots, names));
            }
            let of_user = git::settings_in(&basis.writable, &self.git_settings, home, names);
            if !(of_user.kept.is_empty() && of_user.absent.is_empty()) {
                basis.git_settings.clone_from(&self.git_settings);
            }
            basis.add_repository(of_user);
        } else {
            // Writable folders are seen as well.
            basis.repositories = git::repository(&top, home, &[], names).writable;
        }
        basis.kept.retain(|path| names.exists(path));
        basis.reach = basis.writable.iter().chain(wish.further).cloned().collect();
        basis.reach.push(wish.workspace.to_owned());
        basis.reach.extend(configured);
        let is_in_reach = |path: &Path| basis.reach.iter().any(|root| path.starts_with(root));
        basis.git_files = git::settings_files(&self.git_settings, home, is_in_reach, names);
        basis.top = top;
        Some(basis)
    }

    /// Whether a call gets the network.
    fn network(&self, wish: &Wish<'_>) -> Network {
        let is_open = match self.settings.network {
            NetworkRule::Declare => wish.network,
            NetworkRule::Allow => true,
            NetworkRule::Deny => false,
        };
        if is_open && wish.profile == Profile::Workspace { Network::Open } else { Network::Closed }
    }

    /// Builds a spec from its basis and the present names of the file system.
    fn spec_on(&self, basis: &SpecBasis, names: &Names) -> Spec {
        let mut writable = basis.writable.clone();
        let mut kept = basis.kept.clone();
        let mut caches = match basis.profile {
            Profile::Workspace => {
                self.caches.spec(&basis.workspace, &writable, &basis.reach, names)
            }
            Profile::ReadOnly | Profile::Off => CacheSpec::default(),
        };
        let home = self.home_view(basis, names);
        let (mut shown, mut viewed) = self.seen(basis, names);
        viewed.retain(|path| !home.closed.contains(path));
        add(&mut shown, home.shown);
        add(&mut viewed, home.viewed);
        let closed = home.closed;
        let is_unseen =
            |path: &Path| is_unseen(&closed, &[&writable, &shown, &viewed, &caches.places], path);
        let mut hidden = self.hidden(basis, &is_unseen, names);
        // Without a cover by name, only existing files can be hidden. A command may make the others itself.
        let is_in_reach = |path: &PathBuf| writable.iter().any(|root| path.starts_with(root));
        hidden
            .retain(|path| names.exists(path) || !is_in_reach(path) && !hidden::is_of_system(path));
        let is_hidden = |path: &PathBuf| hidden.iter().any(|hidden| path.starts_with(hidden));
        for list in [&mut writable, &mut kept, &mut shown, &mut viewed, &mut caches.places] {
            list.retain(|path| !is_hidden(path));
        }
        let places = [&writable, &kept, &hidden, &closed, &shown, &viewed, &caches.places];
        let inodes = inodes(places.into_iter().flatten(), names);
        Spec {
            inodes,
            floor: match self.settings.level {
                SandboxLevel::Required => Floor::Full,
                _ => Floor::Partial,
            },
            network: basis.network,
            scratch: basis.scratch.clone(),
            writable,
            kept,
            absent: basis.absent.clone(),
            hidden,
            closed,
            shown,
            viewed,
            caches,
            sockets: Sockets::Covered,
            local_sockets: basis.local_sockets
                && basis.profile == Profile::Workspace
                && self.may_declare_sockets(),
            git_settings: basis.git_settings.clone(),
            limits: CommandLimits::new(&self.settings),
        }
    }
}

/// The folder in which the repository of a root is looked for: the root itself. Only in the worktree of a child
/// Workspace it may be a folder above, because the Workspace can be a part of the worktree.
fn top_of(root: &Path, annexes: &Path) -> PathBuf {
    let inside = |folder: &&Path| *folder != annexes && folder.starts_with(annexes);
    let mut above = root.ancestors().take_while(inside);
    let top = above.find(|folder| folder.join(".git").symlink_metadata().is_ok());
    top.unwrap_or(root).to_owned()
}

/// Adds the paths that are not in a list yet.
pub fn add(list: &mut Vec<PathBuf>, paths: Vec<PathBuf>) {
    for path in paths {
        if !list.contains(&path) {
            list.push(path);
        }
    }
}

/// A digest of the devices and inodes of these paths and of every folder above them.
fn inodes<'p>(paths: impl Iterator<Item = &'p PathBuf>, names: &Names) -> u64 {
    let mut seen: HashSet<&OsStr> = HashSet::new();
    let mut digest = DefaultHasher::new();
    for path in paths {
        // The folders above a folder that was visited were visited with it.
        for path in path.ancestors().take_while(|path| seen.insert(path.as_os_str())) {
            (path.as_os_str(), names.entry(path).identity()).hash(&mut digest);
        }
    }
    digest.finish()
}

/// Expands `~` in a configured root; `~/.cargo` and `~/.cache` follow their variables.
fn expanded(
    root: &Path,
    home: Option<&Path>,
    folder: &dyn Fn(&str) -> Option<PathBuf>,
) -> Option<PathBuf> {
    for (beginning, variable) in [("~/.cargo", "CARGO_HOME"), ("~/.cache", "XDG_CACHE_HOME")] {
        if let (Ok(rest), Some(named)) = (root.strip_prefix(beginning), folder(variable)) {
            return Some(if rest.as_os_str().is_empty() { named } else { named.join(rest) });
        }
    }
    tilde(root, home)
}

/// Expands `~` in a configured path; `None` without a home folder.
pub fn tilde(path: &Path, home: Option<&Path>) -> Option<PathBuf> {
    match path.strip_prefix("~") {
        Ok(rest) => Some(home?.join(rest)),
        Err(_) => Some(path.to_owned()),
    }
}

impl Spec {
    /// Whether a path lies in a closed home and is not visible there.
    pub fn is_unseen(&self, path: &Path) -> bool {
        let seen: [&[PathBuf]; 4] =
            [&self.writable, &self.shown, &self.viewed, &self.caches.places];
        is_unseen(&self.closed, &seen, path)
    }

    /// Whether a path is mounted over a replaced folder or a closed home.
    pub fn shows(&self, path: &Path) -> bool {
        let seen = self.writable.iter().chain(&self.shown).chain(&self.viewed);
        let mut seen = seen.chain(&self.caches.places);
        seen.any(|seen| path.starts_with(seen))
    }

    /// The temp folder in the environment of the command.
    pub fn temp(&self, is_in_own_world: bool) -> PathBuf {
        if is_in_own_world { world::PRIVATE_TEMP.into() } else { scratch::temp(&self.scratch) }
    }

    /// The spec as arguments of the supervisor: one letter, and the value.
    pub fn arguments(&self) -> Vec<OsString> {
        let word = |letter: &str, word: &str| OsString::from(format!("{letter}{word}"));
        let path = |letter: &str, path: &Path| {
            let mut argument = OsString::from(letter);
            argument.push(path);
            argument
        };
        let mut arguments = vec![
            word("f", if self.floor == Floor::Full { "full" } else { "partial" }),
            word("n", if self.network == Network::Open { "open" } else { "closed" }),
            word("m", &self.limits.encode()),
            word("i", &self.inodes.to_string()),
            path("s", &self.scratch),
            word("u", if self.sockets == Sockets::Covered { "covered" } else { "reachable" }),
            word("l", if self.local_sockets { "declared" } else { "none" }),
        ];
        let lists = [
            ("w", &self.writable),
            ("k", &self.kept),
            ("a", &self.absent),
            ("h", &self.hidden),
            ("d", &self.closed),
            ("v", &self.shown),
            ("o", &self.viewed),
        ];
        for (letter, list) in lists {
            arguments.extend(list.iter().map(|item| path(letter, item)));
        }
        arguments.extend(self.caches.arguments(CACHES));
        arguments
    }

    /// Arguments that follow those of a spec: the facts that only the process that made the mounts knows.
    pub fn with_views(views: &Views) -> Vec<OsString> {
        let sockets = views.are_incomplete().then(|| "ureachable".into());
        sockets.into_iter().chain([views.caches().argument(CACHES)]).collect()
    }

    /// Reads the arguments back; without any, the command is not confined.
    pub fn read(arguments: impl Iterator<Item = OsString>) -> io::Result<Option<Self>> {
        let mut arguments = arguments.peekable();
        if arguments.peek().is_none() {
            return Ok(None);
        }
        let mut spec = Self {
            floor: Floor::Full,
            network: Network::Closed,
            scratch: PathBuf::new(),
            writable: Vec::new(),
            kept: Vec::new(),
            absent: Vec::new(),
            hidden: Vec::new(),
            closed: Vec::new(),
            shown: Vec::new(),
            viewed: Vec::new(),
            caches: CacheSpec::default(),
            sockets: Sockets::Covered,
            local_sockets: false,
            git_settings: Vec::new(),
            limits: CommandLimits::default(),
            inodes: 0,
        };
        for argument in arguments {
            let bytes = argument.into_vec();
            let odd = || io::Error::from(io::ErrorKind::InvalidInput);
            let (letter, value) = bytes.split_first().ok_or_else(odd)?;
            let path = || PathBuf::from(OsStr::from_bytes(value));
            let number = || std::str::from_utf8(value).ok()?.parse::<u64>().ok();
            match (letter, value) {
                (b'f', b"full") => spec.floor = Floor::Full,
                (b'f', b"partial") => spec.floor = Floor::Partial,
                (b'n', b"open") => spec.network = Network::Open,
                (b'n', b"closed") => spec.network = Network::Closed,
                (b'm', _) => spec.limits = CommandLimits::decode(value).ok_or_else(odd)?,
                (b'i', _) => spec.inodes = number().ok_or_else(odd)?,
                (b's', _) => spec.scratch = path(),
                (b'w', _) => spec.writable.push(path()),
                (b'k', _) => spec.kept.push(path()),
                (b'a', _) => spec.absent.push(path()),
                (b'h', _) => spec.hidden.push(path()),
                (b'd', _) => spec.closed.push(path()),
                (b'v', _) => spec.shown.push(path()),
                (b'o', _) => spec.viewed.push(path()),
                (b'c', _) => spec.caches.read_argument(value).ok_or_else(odd)?,
                (b'l', b"declared") => spec.local_sockets = true,
                (b'l', b"none") => spec.local_sockets = false,
                (b'u', b"covered") => spec.sockets = Sockets::Covered,
                (b'u', b"reachable") => spec.sockets = Sockets::Reachable,
                _ => return Err(odd()),
            }
        }
        Ok(Some(spec))
    }
}
