//! Sandbox spec of one command: the paths that it may write, must not change and cannot read, and its limits.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use super::cache_spec::{CacheSettings, CacheSpec};
use super::folder_views::FolderViews;
use super::hidden_watch::EarlierTargets;
use super::limits::CommandLimits;
use super::name_cache::NameCache;
use super::recent_specs::{RecentSpecs, RecordedNames, SpecBasis};
use super::visibility::{HomePlaces, is_unseen};
use super::{Profile, git, hidden_watch, mounts, scratch, system_paths};
use crate::base::paths;
use crate::base::paths::Home;
use crate::settings::config;
use crate::settings::config::{NetworkRule, SandboxLevel, SocketRule};

/// The minimum enforcement with which a command is started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RequiredEnforcement {
    /// Namespaces, Landlock and seccomp; without all of them no command runs.
    #[default]
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SocketExposure {
    /// Sockets outside the Workspace are out of reach.
    #[default]
    Covered,
    /// At least one folder outside could not be covered.
    Reachable,
}

/// The sandbox of one command, as its supervisor receives it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SandboxSpec {
    pub required: RequiredEnforcement,
    pub network: Network,
    /// The Session's own folder for temporary files.
    pub scratch: PathBuf,
    /// Folders that may be written, with everything beneath.
    pub writable: Vec<PathBuf>,
    /// Paths in writable folders that must not change.
    pub protected: Vec<PathBuf>,
    /// Missing paths in writable folders that must not be created.
    pub must_be_absent: Vec<PathBuf>,
    /// Paths that cannot be read, also when they are created later.
    pub hidden: Vec<PathBuf>,
    /// Home folders of which only the writable, shown and viewed paths can be read.
    pub closed_homes: Vec<PathBuf>,
    /// Paths that are visible without a view, including the sockets in them.
    pub shown: Vec<PathBuf>,
    /// Folders that must be visible although they are in a folder that is replaced or closed.
    pub viewed: Vec<PathBuf>,
    /// Package caches, which are written through private layers.
    pub caches: CacheSpec,
    pub sockets: SocketExposure,
    /// Whether the command may create Unix sockets where it can reach those of other programs.
    pub local_sockets: bool,
    /// Names of git settings outside of repositories, if a command could change their targets.
    /// Used for the check after the command; not sent to the supervisor.
    pub git_settings: Vec<PathBuf>,
    pub limits: CommandLimits,
    /// A digest of the devices and inodes of the writable, protected, hidden and visible paths and the folders above
    /// them: when one of them was replaced, the mounts of an earlier supervisor are stale.
    pub inode_digest: u64,
}

/// The sandbox of a Session: its settings, and the folders of this machine on which it depends.
#[derive(Debug, Clone)]
pub struct Sandbox {
    pub(super) settings: config::SandboxSettings,
    pub(super) user_home: Option<PathBuf>,
    pub(super) state: PathBuf,
    temp: PathBuf,
    /// The folders and files that variables of the command environment name.
    pub(super) named_paths: Vec<PathBuf>,
    pub(super) writable_roots: Vec<PathBuf>,
    caches: CacheSettings,
    pub(super) home_places: HomePlaces,
    /// Earlier targets of links to hidden paths; they stay hidden when the links get another target.
    pub(super) earlier_targets: EarlierTargets,
    /// Cache of the specs of earlier commands.
    pub(super) recent_specs: RecentSpecs,
    /// The files from which git reads settings outside of repositories, by the names that it uses.
    pub(super) git_settings: Vec<PathBuf>,
    /// Reasons why configured roots cannot be writable.
    pub objections: Vec<String>,
}

/// The sandbox request of one tool call.
pub struct SandboxRequest<'a> {
    pub profile: Profile,
    /// Whether the call declared that it needs the network.
    pub network: bool,
    /// Whether the call declared that it needs Unix sockets, and may have them.
    pub local_sockets: bool,
    pub workspace: &'a Path,
    /// Directories besides the Workspace that may be written.
    pub extra_roots: &'a [PathBuf],
    pub scratch: &'a Path,
}

/// Variables with folders that commands need to see; all of them are passed to commands.
pub const FOLDER_VARIABLES: &[&str] = &[
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

/// The letter of supervisor arguments about package caches.
pub const CACHE_LETTER: &str = "c";

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
        let own = config.home.path();
        let beside = own.parent().filter(|_| own.ends_with(paths::STATE_FOLDER));
        let user_home = folder("HOME").or_else(|| beside.map(Path::to_owned));
        let listed = FOLDER_VARIABLES.iter().filter_map(|name| variable(name));
        let named = listed.flat_map(|value| std::env::split_paths(&value).collect::<Vec<_>>());
        let state = config.home.path().to_owned();
        let mut objections = Vec::new();
        let mut allowed = |configured: &[PathBuf]| {
            let mut roots = Vec::new();
            for root in configured {
                let Some(root) = expand_root(root, user_home.as_deref(), &folder) else { continue };
                match system_paths::write_objection(&root, user_home.as_deref(), &state) {
                    Some(reason) => objections.push(reason),
                    None => roots.push(root),
                }
            }
            roots
        };
        let writable_roots = allowed(&config.sandbox.write);
        let places = allowed(&config.sandbox.caches);
        let mut caches = CacheSettings::new(&state, user_home.as_deref(), places, &folder);
        caches.max_bytes = config.sandbox.cache_bytes;
        let config_home = folder("XDG_CONFIG_HOME");
        Self {
            settings: config.sandbox.clone(),
            earlier_targets: EarlierTargets::default(),
            recent_specs: RecentSpecs::default(),
            git_settings: git::user_settings_files(user_home.as_deref(), config_home.as_deref()),
            state,
            temp: folder("TMPDIR").unwrap_or_else(|| "/tmp".into()),
            named_paths: named
                .chain(config.bash.shell.clone())
                .filter(|path| path.is_absolute())
                .collect(),
            home_places: HomePlaces::new(&config.sandbox, user_home.as_deref(), &folder),
            user_home,
            writable_roots,
            caches,
            objections,
        }
    }

    /// The reason why a directory cannot be writable for commands; `None` when it can.
    pub fn write_objection(&self, root: &Path) -> Option<String> {
        system_paths::write_objection(root, self.user_home.as_deref(), &self.state)
    }

    /// The user's home folder in the environment of commands.
    pub fn user_home(&self) -> Option<&Path> {
        self.user_home.as_deref()
    }

    /// Creates the folders for private layers over package caches, before a command that may write.
    pub fn prepare_caches(&self) {
        self.caches.prepare();
    }

    /// Removes private layers over package caches if there are too many or they are too large.
    pub fn prune_caches(&self) {
        self.caches.prune();
    }

    /// The parent folder of scratch folders.
    pub fn temp_folder(&self) -> &Path {
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

    /// The setting that decides which commands may create Unix sockets.
    pub fn socket_rule(&self) -> SocketRule {
        self.settings.local_sockets
    }

    /// The sandbox spec of one command; `None` when it runs without a sandbox.
    pub fn spec(&self, request: &SandboxRequest<'_>) -> Option<SandboxSpec> {
        let basis = self.spec_basis(request)?;
        if let Some(spec) = self.recent_specs.find(&basis) {
            return Some(spec);
        }
        let names = NameCache::with_listing(self.user_home.as_deref());
        let spec = self.build_spec(&basis, &names);
        let missing = hidden_watch::missing_names(&spec, |path| !names.exists(path));
        let recorded = RecordedNames { record: names.into_record(), missing };
        self.recent_specs.insert(basis, recorded, spec.clone());
        Some(spec)
    }

    /// The inputs of a spec that depend on the request and on the content of files.
    fn spec_basis(&self, request: &SandboxRequest<'_>) -> Option<SpecBasis> {
        if request.profile == Profile::Off {
            return None;
        }
        let child_workspaces = Home::new(&self.state).child_workspaces();
        let child_workspaces = child_workspaces.canonicalize().unwrap_or(child_workspaces);
        let names = &NameCache::default();
        let home = self.user_home.as_deref();
        let configured: Vec<PathBuf> =
            self.writable_roots.iter().filter_map(|root| names.canonical(root)).collect();
        let top = repository_top(request.workspace, &child_workspaces);
        let mut basis = SpecBasis {
            profile: request.profile,
            network: self.network(request),
            local_sockets: request.local_sockets,
            workspace: request.workspace.to_owned(),
            extra_roots: request.extra_roots.to_vec(),
            scratch: request.scratch.to_owned(),
            hidden_names: self.hidden_names(request.workspace),
            earlier_targets: self.earlier_targets.all(),
            ..SpecBasis::default()
        };
        if request.profile == Profile::Workspace {
            basis.writable.push(request.workspace.to_owned());
            basis.writable.extend(configured.iter().cloned());
            basis.writable.extend(request.extra_roots.iter().cloned());
            let further = request.extra_roots.iter().map(PathBuf::as_path);
            let roots = basis.writable.clone();
            for root in [request.workspace].into_iter().chain(further) {
                let state = paths::state_folder(root);
                // Without a Session the folder is missing; a command must not create it.
                if !names.exists(&state) {
                    basis.must_be_absent.push(state.clone());
                }
                basis.protected.push(state);
                basis.add_repository(git::repository_paths(
                    &repository_top(root, &child_workspaces),
                    home,
                    &roots,
                    names,
                ));
            }
            let of_user =
                git::settings_to_protect(&basis.writable, &self.git_settings, home, names);
            if !(of_user.protected.is_empty() && of_user.must_be_absent.is_empty()) {
                basis.git_settings.clone_from(&self.git_settings);
            }
            basis.add_repository(of_user);
        } else {
            // Folders that would be writable in another profile are made visible.
            basis.repositories = git::repository_paths(&top, home, &[], names).writable;
        }
        basis.protected.retain(|path| names.exists(path));
        basis.reach = basis.writable.iter().chain(request.extra_roots).cloned().collect();
        basis.reach.push(request.workspace.to_owned());
        basis.reach.extend(configured);
        let is_in_reach = |path: &Path| basis.reach.iter().any(|root| path.starts_with(root));
        basis.git_files = git::trusted_settings_files(&self.git_settings, home, is_in_reach, names);
        basis.repository_top = top;
        Some(basis)
    }

    /// Whether a call gets the network.
    fn network(&self, request: &SandboxRequest<'_>) -> Network {
        let is_open = match self.settings.network {
            NetworkRule::Declare => request.network,
            NetworkRule::Allow => true,
            NetworkRule::Deny => false,
        };
        if is_open && request.profile == Profile::Workspace {
            Network::Open
        } else {
            Network::Closed
        }
    }

    /// Builds a spec from its basis and the current names of the file system.
    fn build_spec(&self, basis: &SpecBasis, names: &NameCache) -> SandboxSpec {
        let mut writable = basis.writable.clone();
        let mut kept = basis.protected.clone();
        let mut caches = match basis.profile {
            Profile::Workspace => {
                self.caches.spec(&basis.workspace, &writable, &basis.reach, names)
            }
            Profile::ReadOnly | Profile::Off => CacheSpec::default(),
        };
        let home = self.home_view(basis, names);
        let (mut shown, mut viewed) = self.visible_paths(basis, names);
        viewed.retain(|path| !home.closed_homes.contains(path));
        add_missing(&mut shown, home.shown);
        add_missing(&mut viewed, home.viewed);
        let closed = home.closed_homes;
        let is_unseen =
            |path: &Path| is_unseen(&closed, &[&writable, &shown, &viewed, &caches.places], path);
        let mut hidden = self.paths_to_hide(basis, &is_unseen, names);
        // Without a cover by name, only existing files can be hidden. A command may create missing ones itself.
        let is_in_reach = |path: &PathBuf| writable.iter().any(|root| path.starts_with(root));
        hidden.retain(|path| {
            names.exists(path)
                || !is_in_reach(path) && !system_paths::overlaps_system_credentials(path)
        });
        let is_hidden = |path: &PathBuf| hidden.iter().any(|hidden| path.starts_with(hidden));
        for list in [&mut writable, &mut kept, &mut shown, &mut viewed, &mut caches.places] {
            list.retain(|path| !is_hidden(path));
        }
        let places = [&writable, &kept, &hidden, &closed, &shown, &viewed, &caches.places];
        let inodes = inode_digest(places.into_iter().flatten(), names);
        SandboxSpec {
            inode_digest: inodes,
            required: match self.settings.level {
                SandboxLevel::Required => RequiredEnforcement::Full,
                _ => RequiredEnforcement::Partial,
            },
            network: basis.network,
            scratch: basis.scratch.clone(),
            writable,
            protected: kept,
            must_be_absent: basis.must_be_absent.clone(),
            hidden,
            closed_homes: closed,
            shown,
            viewed,
            caches,
            sockets: SocketExposure::Covered,
            local_sockets: basis.local_sockets
                && basis.profile == Profile::Workspace
                && self.may_declare_sockets(),
            git_settings: basis.git_settings.clone(),
            limits: CommandLimits::new(&self.settings),
        }
    }
}

/// The folder in which the repository of a root is searched: usually the root itself. In the worktree of a child
/// Workspace it may be a folder above, because the Workspace can be a part of the worktree.
fn repository_top(root: &Path, child_workspaces: &Path) -> PathBuf {
    let inside =
        |folder: &&Path| *folder != child_workspaces && folder.starts_with(child_workspaces);
    let mut above = root.ancestors().take_while(inside);
    let top = above.find(|folder| folder.join(".git").symlink_metadata().is_ok());
    top.unwrap_or(root).to_owned()
}

/// Adds the paths that are not in a list yet.
pub fn add_missing(list: &mut Vec<PathBuf>, paths: Vec<PathBuf>) {
    for path in paths {
        if !list.contains(&path) {
            list.push(path);
        }
    }
}

/// A digest of the devices and inodes of these paths and of every folder above them.
fn inode_digest<'p>(paths: impl Iterator<Item = &'p PathBuf>, names: &NameCache) -> u64 {
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

/// Expands `~` in a configured root; variables may set another location for `~/.cargo` and `~/.cache`.
fn expand_root(
    root: &Path,
    home: Option<&Path>,
    folder: &dyn Fn(&str) -> Option<PathBuf>,
) -> Option<PathBuf> {
    for (beginning, variable) in [("~/.cargo", "CARGO_HOME"), ("~/.cache", "XDG_CACHE_HOME")] {
        if let (Ok(rest), Some(named)) = (root.strip_prefix(beginning), folder(variable)) {
            return Some(if rest.as_os_str().is_empty() { named } else { named.join(rest) });
        }
    }
    expand_tilde(root, home)
}

/// Expands `~` in a configured path; `None` without a home folder.
pub fn expand_tilde(path: &Path, home: Option<&Path>) -> Option<PathBuf> {
    match path.strip_prefix("~") {
        Ok(rest) => Some(home?.join(rest)),
        Err(_) => Some(path.to_owned()),
    }
}

impl SandboxSpec {
    /// Whether a path is in a closed home and not visible there.
    pub fn is_unseen(&self, path: &Path) -> bool {
        let seen: [&[PathBuf]; 4] =
            [&self.writable, &self.shown, &self.viewed, &self.caches.places];
        is_unseen(&self.closed_homes, &seen, path)
    }

    /// Whether a path is visible by a mount, even in a replaced folder or a closed home.
    pub fn is_mounted(&self, path: &Path) -> bool {
        let seen = self.writable.iter().chain(&self.shown).chain(&self.viewed);
        let mut seen = seen.chain(&self.caches.places);
        seen.any(|seen| path.starts_with(seen))
    }

    /// The temp folder in the environment of the command.
    pub fn temp_folder(&self, has_own_mounts: bool) -> PathBuf {
        if has_own_mounts {
            mounts::PRIVATE_TEMP.into()
        } else {
            scratch::temp_folder(&self.scratch)
        }
    }

    /// Encodes the spec as arguments of the supervisor, each a letter and a value.
    pub fn arguments(&self) -> Vec<OsString> {
        let word = |letter: &str, word: &str| OsString::from(format!("{letter}{word}"));
        let path = |letter: &str, path: &Path| {
            let mut argument = OsString::from(letter);
            argument.push(path);
            argument
        };
        let mut arguments = vec![
            word("f", if self.required == RequiredEnforcement::Full { "full" } else { "partial" }),
            word("n", if self.network == Network::Open { "open" } else { "closed" }),
            word("m", &self.limits.encode()),
            word("i", &self.inode_digest.to_string()),
            path("s", &self.scratch),
            word(
                "u",
                if self.sockets == SocketExposure::Covered { "covered" } else { "reachable" },
            ),
            word("l", if self.local_sockets { "declared" } else { "none" }),
        ];
        let lists = [
            ("w", &self.writable),
            ("k", &self.protected),
            ("a", &self.must_be_absent),
            ("h", &self.hidden),
            ("d", &self.closed_homes),
            ("v", &self.shown),
            ("o", &self.viewed),
        ];
        for (letter, list) in lists {
            arguments.extend(list.iter().map(|item| path(letter, item)));
        }
        arguments.extend(self.caches.arguments(CACHE_LETTER));
        arguments
    }

    /// Arguments that follow those of a spec: facts that only the process that built the mounts knows.
    pub fn view_arguments(views: &FolderViews) -> Vec<OsString> {
        let sockets = views.are_incomplete().then(|| "ureachable".into());
        sockets.into_iter().chain([views.caches().access_argument(CACHE_LETTER)]).collect()
    }

    /// Parses the arguments; `None` without arguments, which means that the command is not confined.
    pub fn from_arguments(arguments: impl Iterator<Item = OsString>) -> io::Result<Option<Self>> {
        let mut arguments = arguments.peekable();
        if arguments.peek().is_none() {
            return Ok(None);
        }
        let mut spec = Self::default();
        for argument in arguments {
            let bytes = argument.into_vec();
            let invalid = || io::Error::from(io::ErrorKind::InvalidInput);
            let (letter, value) = bytes.split_first().ok_or_else(invalid)?;
            let path = || PathBuf::from(OsStr::from_bytes(value));
            let number = || std::str::from_utf8(value).ok()?.parse::<u64>().ok();
            match (letter, value) {
                (b'f', b"full") => spec.required = RequiredEnforcement::Full,
                (b'f', b"partial") => spec.required = RequiredEnforcement::Partial,
                (b'n', b"open") => spec.network = Network::Open,
                (b'n', b"closed") => spec.network = Network::Closed,
                (b'm', _) => spec.limits = CommandLimits::decode(value).ok_or_else(invalid)?,
                (b'i', _) => spec.inode_digest = number().ok_or_else(invalid)?,
                (b's', _) => spec.scratch = path(),
                (b'w', _) => spec.writable.push(path()),
                (b'k', _) => spec.protected.push(path()),
                (b'a', _) => spec.must_be_absent.push(path()),
                (b'h', _) => spec.hidden.push(path()),
                (b'd', _) => spec.closed_homes.push(path()),
                (b'v', _) => spec.shown.push(path()),
                (b'o', _) => spec.viewed.push(path()),
                (b'c', _) => spec.caches.read_argument(value).ok_or_else(invalid)?,
                (b'l', b"declared") => spec.local_sockets = true,
                (b'l', b"none") => spec.local_sockets = false,
                (b'u', b"covered") => spec.sockets = SocketExposure::Covered,
                (b'u', b"reachable") => spec.sockets = SocketExposure::Reachable,
                _ => return Err(invalid()),
            }
        }
        Ok(Some(spec))
    }
}
