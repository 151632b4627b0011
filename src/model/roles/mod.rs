//! The roles that can be chosen: built-in ones and those in files.
//!
//! Role files are TOML, in a few folders of the project and of the user; they are read when a Session is
//! opened or a role is looked up. Errors are reported with path and line. A role can only narrow what a
//! Session may do; one of a project is untrusted text until the user trusts it, and never replaces a
//! built-in one.

mod role_file;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use serde_json::json;

use crate::base::error::{Explain, Explanation, Kind};
use crate::base::names::names;
use crate::model::skill::{
    DiscoveryFolders, FileDiagnostic, SearchRoot, TrustedFiles, list_paths, search_roots,
};
use crate::settings::role::Role;
use crate::settings::trust::TrustStore;
pub use role_file::RoleDefinition;

/// How many files of one folder are read.
const MAX_FILES_PER_FOLDER: usize = 200;

/// The origin of a role, in order of precedence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RoleOrigin {
    Repo,
    Pixir,
    Codex,
    BuiltIn,
}

names!(RoleOrigin { Repo = "repo", Pixir = "pixir", Codex = "codex", BuiltIn = "built-in" });

/// A role from a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoleFile {
    pub origin: RoleOrigin,
    pub path: PathBuf,
    /// SHA-256 of the file, in hex.
    pub digest: String,
    /// Whether a person other than the user may have written the file, so that it needs trust.
    pub is_foreign: bool,
    /// Whether the role may be used: the file is the user's own, or the user trusts it.
    pub is_trusted: bool,
    pub definition: RoleDefinition,
    /// The line of the key `tools`, if any.
    pub tools_line: Option<usize>,
    /// Warnings about the file.
    pub warnings: Vec<FileDiagnostic>,
}

impl RoleFile {
    pub fn name(&self) -> &str {
        &self.definition.name
    }

    /// Interns the role.
    pub fn intern_role(&self) -> &'static Role {
        let RoleDefinition { name, instructions, ceiling, custom } = &self.definition;
        Role::intern(name, instructions, ceiling, custom.clone())
    }
}

/// The roles and problems that were found.
#[derive(Debug, Clone, Default)]
pub struct FoundRoles {
    /// Roles from files, by name; of several with the same name, the one that takes precedence.
    pub entries: Vec<RoleFile>,
    /// All readable roles.
    pub all: Vec<RoleFile>,
    /// Messages about names that several roles have.
    pub shadowed: Vec<String>,
    pub broken: Vec<FileDiagnostic>,
}

/// The folders of role files, and the user's trust.
#[derive(Debug, Clone)]
pub struct RoleCatalog {
    roots: Vec<SearchRoot<RoleOrigin>>,
    trust: TrustStore,
}

impl RoleCatalog {
    /// The roles of a Workspace. Reads nothing yet.
    pub fn new(places: &DiscoveryFolders) -> Self {
        let mut own = vec![(RoleOrigin::Pixir, places.home.path().join("agents"))];
        let codex =
            places.user.as_ref().map(|user| (RoleOrigin::Codex, user.join(".codex/agents")));
        own.extend(codex);
        let repo = (RoleOrigin::Repo, &[".pixir/agents", ".codex/agents"][..]);
        Self {
            roots: search_roots(&places.workspace, repo, own),
            trust: TrustStore::new(&places.home),
        }
    }

    /// Whether a file is in a folder of role files.
    pub fn may_contain(&self, file: &Path) -> bool {
        self.roots.iter().any(|root| file.starts_with(&root.path))
    }

    /// The role of that name, if it can be used.
    pub fn find(&self, name: &str) -> Result<&'static Role, RoleError> {
        let listed = self.read_all();
        let meant = |entry: &&RoleFile| entry.name() == name;
        let entry = listed.entries.iter().find(meant);
        if let Some(entry) = entry.filter(|entry| entry.is_trusted) {
            return Ok(entry.intern_role());
        }
        let is_file =
            |flaw: &&FileDiagnostic| flaw.path.file_stem().is_some_and(|stem| stem == name);
        let broken = listed.broken.iter().find(is_file);
        let is_broken =
            |flaw: &FileDiagnostic| RoleError::Broken { name: name.to_owned(), flaw: flaw.clone() };
        if let Some(role) = Role::find(name) {
            // An error in the user's own file must not yield the wider built-in role.
            let own =
                listed.broken.iter().filter(is_file).find(|flaw| self.is_user_file(&flaw.path));
            return own.map_or(Ok(role), |flaw| Err(is_broken(flaw)));
        }
        if let Some(entry) = entry {
            let path = entry.path.clone();
            return Err(RoleError::Untrusted { name: name.to_owned(), path });
        }
        if let Some(flaw) = broken {
            return Err(is_broken(flaw));
        }
        let mut known: Vec<String> = Role::names().into_iter().map(str::to_owned).collect();
        let more =
            listed.entries.iter().map(RoleFile::name).filter(|name| Role::find(name).is_none());
        known.extend(more.map(str::to_owned));
        Err(RoleError::Unknown { name: name.to_owned(), known })
    }

    /// Whether a file is in a folder that only the user can write.
    fn is_user_file(&self, file: &Path) -> bool {
        let mut own = self.roots.iter().filter(|root| !root.needs_trust);
        own.any(|root| file.parent() == Some(&root.path))
    }

    /// The names of all roles, including unusable ones.
    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = Role::names().into_iter().map(str::to_owned).collect();
        names.extend(self.read_all().entries.iter().map(|entry| entry.name().to_owned()));
        names.dedup();
        names
    }

    /// The role that a Log names, which may be the user's replacement of a built-in one. A role that is not
    /// available any more becomes the unknown one, which cannot write.
    pub fn find_recorded(&self, name: &str) -> &'static Role {
        if name.is_empty() {
            return Role::find_recorded(name);
        }
        self.find(name).unwrap_or(Role::unknown())
    }

    /// Reads all role files.
    pub fn read_all(&self) -> FoundRoles {
        let mut listed = FoundRoles::default();
        let trusted = TrustedFiles::new(&self.trust);
        let mut all: Vec<(usize, RoleFile)> = Vec::new();
        for (rank, root) in self.roots.iter().enumerate() {
            let boundary = root.boundary.as_deref();
            for path in list_role_files(&root.path, boundary, &mut listed.broken) {
                match role_file::read_role_file(&path, root.scope, boundary) {
                    Err(flaw) => listed.broken.push(flaw),
                    Ok(mut entry) => {
                        let real = path.canonicalize();
                        entry.is_foreign =
                            root.needs_trust || real.is_ok_and(|real| root.is_foreign(&real));
                        entry.is_trusted =
                            !entry.is_foreign || trusted.covers(&path, &entry.digest);
                        all.push((rank, entry));
                    }
                }
            }
        }
        all.sort_by_cached_key(|(rank, entry)| (entry.name().to_owned(), !entry.is_trusted, *rank));
        for (_, entry) in all {
            listed.all.push(entry.clone());
            let is_built_in = Role::find(entry.name()).is_some();
            if entry.origin == RoleOrigin::Repo && is_built_in {
                let message =
                    format!("`{}` is built in; a project cannot replace it", entry.name());
                listed.broken.push(FileDiagnostic { path: entry.path, line: None, message });
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
pub fn examine_role_files(path: &Path) -> FoundRoles {
    let mut listed = FoundRoles::default();
    let paths = if path.is_dir() {
        list_role_files(path, None, &mut listed.broken)
    } else {
        vec![path.to_owned()]
    };
    for path in paths {
        match role_file::read_role_file(&path, RoleOrigin::Pixir, None) {
            Ok(entry) => listed.entries.push(entry),
            Err(flaw) => listed.broken.push(flaw),
        }
    }
    listed.all.clone_from(&listed.entries);
    listed
}

fn list_role_files(
    folder: &Path,
    boundary: Option<&Path>,
    broken: &mut Vec<FileDiagnostic>,
) -> Vec<PathBuf> {
    list_paths(folder, boundary, (MAX_FILES_PER_FOLDER, Some("toml")), broken)
}

/// Why a role cannot be chosen.
#[derive(Debug, thiserror::Error)]
pub enum RoleError {
    #[error("there is no role `{name}`")]
    Unknown { name: String, known: Vec<String> },
    #[error("the role `{name}` of this project is not trusted")]
    Untrusted { name: String, path: PathBuf },
    #[error("the role `{name}` cannot be used: {flaw}")]
    Broken { name: String, flaw: FileDiagnostic },
}

impl Explain for RoleError {
    fn explain(&self) -> Explanation {
        match self {
            Self::Unknown { known, .. } => Kind::InvalidArgs
                .with_details(json!({ "known": known }))
                .with_next_action(format!("use one of: {}", known.join(", "))),
            Self::Untrusted { path, .. } => Kind::PermissionDenied
                .with_details(json!({ "path": path.to_string_lossy() }))
                .with_next_action("review the file, then run `pixir trust` in a terminal"),
            Self::Broken { flaw, .. } => Kind::InvalidSkill
                .with_details(json!({ "path": flaw.path.to_string_lossy(), "line": flaw.line }))
                .with_next_action("fix the file; `pixir agents validate` checks it"),
        }
    }
}
