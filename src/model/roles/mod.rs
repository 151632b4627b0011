//! The roles that can be chosen: built-in ones and those in files.
//!
//! Role files are TOML, in a few folders of the project and of the user; they are read when a Session is
//! opened or a role is looked up. Errors are reported with path and line. A role can only narrow what a
//! Session may do; one of a project is untrusted text until the user trusts it, and never replaces a
//! built-in one.

mod file;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::base::error::{Explain, Kind};
use crate::model::skill::{Flaw, Places, Root, TrustedFiles, listed, roots};
use crate::settings::role::Role;
use crate::settings::trust::Trust;
pub use file::Written;

/// How many files of one folder are read.
const MOST: usize = 200;

/// The owner of a role, in order of precedence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    Repo,
    Pixir,
    Codex,
    BuiltIn,
}

impl Origin {
    /// Its name in lists.
    pub fn name(self) -> &'static str {
        match self {
            Origin::Repo => "repo",
            Origin::Pixir => "pixir",
            Origin::Codex => "codex",
            Origin::BuiltIn => "built-in",
        }
    }
}

/// A role from a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub origin: Origin,
    pub path: PathBuf,
    /// SHA-256 of the file, in hex.
    pub digest: String,
    /// Whether another person than the user may have written it, so that it needs trust.
    pub is_strange: bool,
    /// Whether it may be used: it is the user's own, or the user trusts it.
    pub is_trusted: bool,
    pub written: Written,
    /// The line of its `tools`, if any.
    pub tools_line: Option<usize>,
    /// Warnings about the file.
    pub odd: Vec<Flaw>,
}

impl Entry {
    pub fn name(&self) -> &str {
        &self.written.name
    }

    /// Interns the role.
    pub fn role(&self) -> &'static Role {
        let Written { name, instructions, ceiling, custom } = &self.written;
        Role::chosen(name, instructions, ceiling, custom.clone())
    }
}

/// The roles and problems that were found.
#[derive(Debug, Clone, Default)]
pub struct Listed {
    /// Roles from files, by name; of several with the same name, the one that takes precedence.
    pub entries: Vec<Entry>,
    /// All readable roles.
    pub all: Vec<Entry>,
    /// Messages about names that several roles have.
    pub shadowed: Vec<String>,
    pub broken: Vec<Flaw>,
}

/// The folders of role files, and the user's trust.
#[derive(Debug, Clone)]
pub struct Roster {
    roots: Vec<Root<Origin>>,
    trust: Trust,
}

impl Roster {
    /// The roles of a Workspace. Reads nothing yet.
    pub fn new(places: &Places) -> Self {
        let mut own = vec![(Origin::Pixir, places.home.folder().join("agents"))];
        let codex = places.user.as_ref().map(|user| (Origin::Codex, user.join(".codex/agents")));
        own.extend(codex);
        let repo = (Origin::Repo, &[".pixir/agents", ".codex/agents"][..]);
        Self { roots: roots(&places.workspace, repo, own), trust: Trust::new(&places.home) }
    }

    /// Whether a file is in a folder of role files.
    pub fn may_hold(&self, file: &Path) -> bool {
        self.roots.iter().any(|root| file.starts_with(&root.path))
    }

    /// The role of that name, if it can be used.
    pub fn find(&self, name: &str) -> Result<&'static Role, RosterError> {
        let listed = self.all();
        let meant = |entry: &&Entry| entry.name() == name;
        let entry = listed.entries.iter().find(meant);
        if let Some(entry) = entry.filter(|entry| entry.is_trusted) {
            return Ok(entry.role());
        }
        let is_file = |flaw: &&Flaw| flaw.path.file_stem().is_some_and(|stem| stem == name);
        let broken = listed.broken.iter().find(is_file);
        let is_broken =
            |flaw: &Flaw| RosterError::Broken { name: name.to_owned(), flaw: flaw.clone() };
        if let Some(role) = Role::find(name) {
            // An error in the user's own file must not yield the wider built-in role.
            let own = listed.broken.iter().filter(is_file).find(|flaw| self.is_own(&flaw.path));
            return own.map_or(Ok(role), |flaw| Err(is_broken(flaw)));
        }
        if let Some(entry) = entry {
            let path = entry.path.clone();
            return Err(RosterError::Untrusted { name: name.to_owned(), path });
        }
        if let Some(flaw) = broken {
            return Err(is_broken(flaw));
        }
        let mut known: Vec<String> = Role::names().into_iter().map(str::to_owned).collect();
        let more = listed.entries.iter().map(Entry::name).filter(|name| Role::find(name).is_none());
        known.extend(more.map(str::to_owned));
        Err(RosterError::Unknown { name: name.to_owned(), known })
    }

    /// Whether a file is in a folder that only the user can write.
    fn is_own(&self, file: &Path) -> bool {
        let mut own = self.roots.iter().filter(|root| !root.needs_trust);
        own.any(|root| file.parent() == Some(&root.path))
    }

    /// The names of all roles, including unusable ones.
    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = Role::names().into_iter().map(str::to_owned).collect();
        names.extend(self.all().entries.iter().map(|entry| entry.name().to_owned()));
        names.dedup();
        names
    }

    /// The role that a Log names, which may be the user's replacement of a built-in one. A role that is not
    /// available any more becomes the unknown one, which cannot write.
    pub fn recorded(&self, name: &str) -> &'static Role {
        if name.is_empty() {
            return Role::recorded(name);
        }
        self.find(name).unwrap_or(Role::unknown())
    }

    /// Reads all role files.
    pub fn all(&self) -> Listed {
        let mut listed = Listed::default();
        let trusted = TrustedFiles::new(&self.trust);
        let mut all: Vec<(usize, Entry)> = Vec::new();
        for (rank, root) in self.roots.iter().enumerate() {
            let fence = root.fence.as_deref();
            for path in files(&root.path, fence, &mut listed.broken) {
                match file::read(&path, root.scope, fence) {
                    Err(flaw) => listed.broken.push(flaw),
                    Ok(mut entry) => {
                        let real = path.canonicalize();
                        entry.is_strange =
                            root.needs_trust || real.is_ok_and(|real| root.is_strange(&real));
                        entry.is_trusted =
                            !entry.is_strange || trusted.covers(&path, &entry.digest);
                        all.push((rank, entry));
                    }
                }
            }
        }
        all.sort_by_cached_key(|(rank, entry)| (entry.name().to_owned(), !entry.is_trusted, *rank));
        for (_, entry) in all {
            listed.all.push(entry.clone());
            let is_built_in = Role::find(entry.name()).is_some();
            if entry.origin == Origin::Repo && is_built_in {
                let message =
                    format!("`{}` is built in; a project cannot replace it", entry.name());
                listed.broken.push(Flaw { path: entry.path, line: None, message });
                continue;
            }
            match listed.entries.last() {
                Some(first) if first.name() == entry.name() => {
                    let (used, other) = (first.path.display(), entry.path.display());
                    listed
                        .shadowed
                        .push(format!("`{}` is {used}; not used: {other}", entry.name()));
                }
                _ => listed.entries.push(entry),
            }
        }
        listed
    }
}

/// Reads one role file, or all in a folder, anywhere.
pub fn examine(path: &Path) -> Listed {
    let mut listed = Listed::default();
    let paths =
        if path.is_dir() { files(path, None, &mut listed.broken) } else { vec![path.to_owned()] };
    for path in paths {
        match file::read(&path, Origin::Pixir, None) {
            Ok(entry) => listed.entries.push(entry),
            Err(flaw) => listed.broken.push(flaw),
        }
    }
    listed.all.clone_from(&listed.entries);
    listed
}

fn files(folder: &Path, fence: Option<&Path>, broken: &mut Vec<Flaw>) -> Vec<PathBuf> {
    listed(folder, fence, (MOST, Some("toml")), broken)
}

/// Why a role cannot be chosen.
#[derive(Debug, thiserror::Error)]
pub enum RosterError {
    #[error("there is no role `{name}`")]
    Unknown { name: String, known: Vec<String> },
    #[error("the role `{name}` of this project is not trusted")]
    Untrusted { name: String, path: PathBuf },
    #[error("the role `{name}` cannot be used: {flaw}")]
    Broken { name: String, flaw: Flaw },
}

impl Explain for RosterError {
    fn kind(&self) -> Kind {
        match self {
            Self::Unknown { .. } => Kind::InvalidArgs,
            Self::Untrusted { .. } => Kind::PermissionDenied,
            Self::Broken { .. } => Kind::InvalidSkill,
        }
    }
    fn details(&self) -> Value {
        match self {
            Self::Unknown { known, .. } => json!({ "known": known }),
            Self::Untrusted { path, .. } => json!({ "path": path.to_string_lossy() }),
            Self::Broken { flaw, .. } => {
                json!({ "path": flaw.path.to_string_lossy(), "line": flaw.line })
            }
        }
    }
    fn next_actions(&self) -> Vec<String> {
        match self {
            Self::Unknown { known, .. } => vec![format!("use one of: {}", known.join(", "))],
            Self::Untrusted { .. } => {
                vec!["look at the file, then run `pixir trust` in a terminal".to_owned()]
            }
            Self::Broken { .. } => {
                vec!["fix the file; `pixir agents validate` checks it".to_owned()]
            }
        }
    }
}
