//! What no command may read, and where none may ever write: credentials, and programs to come.

use std::path::{Path, PathBuf};

/// Files and folders of the user that hold keys, tokens, sessions or what was typed.
const OF_THE_USER: &[&str] = &[
    ".ssh",
    ".aws",
    ".gnupg",
    ".azure",
    ".kube",
    ".netrc",
    ".pgpass",
    ".git-credentials",
    ".pypirc",
    ".vault-token",
    ".password-store",
    ".docker",
    ".cargo/credentials",
    ".cargo/credentials.toml",
    ".config/git/credentials",
    ".config/gcloud",
    ".config/gh",
    ".config/hub",
    ".config/op",
    ".config/rclone",
    ".terraform.d/credentials.tfrc.json",
    ".local/share/keyrings",
    ".bash_history",
    ".zsh_history",
    // Browser profiles.
    ".mozilla",
    ".config/google-chrome",
    ".config/chromium",
    ".config/BraveSoftware",
    ".config/microsoft-edge",
    ".config/vivaldi",
    ".config/opera",
    ".thunderbird",
    "snap/firefox",
    "snap/chromium",
    ".var/app",
    // Other agents.
    ".codex",
    ".claude/.credentials.json",
];

/// The same of the system; only root could read them anyway.
const OF_THE_SYSTEM: &[&str] = &["/etc/shadow", "/etc/gshadow", "/etc/ssl/private"];

/// Folders that programs are started or configured from; no setting makes them writable.
const NEVER_WRITABLE: &[&str] = &[
    "bin",
    ".bin",
    ".config",
    ".local/bin",
    ".cargo/bin",
    ".cargo/config.toml",
    ".cargo/config",
    ".npmrc",
    ".ssh",
    ".gnupg",
    ".bashrc",
    ".profile",
    ".zshrc",
];

/// The same of the system.
const NEVER_WRITABLE_OF_THE_SYSTEM: &[&str] =
    &["/bin", "/boot", "/dev", "/etc", "/lib", "/lib64", "/proc", "/sbin", "/sys", "/usr"];

/// Everything that is hidden by default; much of it is not there.
pub fn by_default(home: Option<&Path>) -> Vec<PathBuf> {
    let own = OF_THE_USER.iter().filter_map(|name| Some(home?.join(name)));
    own.chain(OF_THE_SYSTEM.iter().map(PathBuf::from)).collect()
}

/// Whether a path is one of those of the system.
pub fn is_of_system(path: &Path) -> bool {
    OF_THE_SYSTEM.iter().any(|own| path.starts_with(own))
}

/// Why a configured root cannot be writable, if it cannot.
pub fn objection(root: &Path, home: Option<&Path>, state: &Path) -> Option<String> {
    let own = NEVER_WRITABLE.iter().filter_map(|name| Some(home?.join(name)));
    let of_system = NEVER_WRITABLE_OF_THE_SYSTEM.iter().map(PathBuf::from);
    // A folder that holds the whole home cannot be meant by it.
    let state =
        Some(state.to_owned()).filter(|state| home.is_none_or(|home| !home.starts_with(state)));
    let mut forbidden = own.chain(of_system).chain(state);
    let overlap = |other: &PathBuf| root.starts_with(other) || other.starts_with(root);
    let found = forbidden.find(overlap)?;
    Some(format!("{} cannot be writable: it touches {}", root.display(), found.display()))
}
