//! Skills: packages of instructions for an agent, found by name and used on request.
//!
//! A package is a folder with a `SKILL.md` (`front_matter`) and any other files (`package`). Packages are
//! searched in a few folders of the project and of the user (`find`); unchanged files are not read again.
//! Errors are reported with path and line and do not affect other packages. Files of a project are
//! untrusted until the user trusts them, by path and content.

mod allowed_tools;
mod context_source;
mod expand;
mod find;
mod front_matter;
mod mention;
mod package;
mod placeholder;
mod prompts;
mod template;
#[cfg(test)]
mod tests;
mod yaml;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use serde::Serialize;

pub use allowed_tools::AllowedTools;
pub use context_source::{ContextSource, ContextSourceKind};
pub use expand::{ExpandedInput, SlashName};
pub use find::{
    FoundSkills, TrustedFiles, examine_skills, list_paths, open_folder_entries,
    read_within_boundary,
};
pub use front_matter::{FrontMatter, validate_name};
pub use mention::find_mentions;
pub use package::PackageFile;
pub use placeholder::{
    ParameterType, TemplateArguments, TemplateError, TemplateParameter, unknown_placeholders,
};
pub use prompts::FoundPrompts;
pub use template::WorkflowTemplate;

use crate::base::names::names;
use crate::base::paths::Home;
use crate::host::workspace::project_folders;
use crate::settings::trust::TrustStore;
use find::SkillCache;

/// The file that makes a folder a Skill.
pub const MAIN_FILE: &str = "SKILL.md";

/// The folders in which Skills, prompts and roles are searched.
#[derive(Debug, Clone)]
pub struct DiscoveryFolders {
    /// The canonical path of the Workspace.
    pub workspace: PathBuf,
    /// The user's home folder; `None` when unknown.
    pub user: Option<PathBuf>,
    /// Pixir's folder of this user.
    pub home: Home,
}

/// The owner of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SkillScope {
    /// Anyone who can write to the project.
    Repo,
    /// The user, for any agent.
    User,
    /// The user, for Pixir.
    Pixir,
}

names!(SkillScope { Repo = "repo", User = "user", Pixir = "pixir" });

/// A Skill that can be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skill {
    pub front_matter: FrontMatter,
    pub scope: SkillScope,
    /// The package's folder, links resolved.
    pub folder: PathBuf,
    /// The path at which the main file was found; trust is for this path.
    pub path: PathBuf,
    /// The whole main file.
    pub text: Arc<str>,
    /// SHA-256 of the main file, in hex.
    pub digest: String,
    /// Whether a person other than the user may have written the file, so that it needs trust.
    pub is_foreign: bool,
    /// Whether the Skill may be used: it is the user's own, or the user trusts it.
    pub is_trusted: bool,
    /// Warnings about the package.
    pub warnings: Vec<FileDiagnostic>,
}

impl Skill {
    pub fn name(&self) -> &str {
        &self.front_matter.name
    }

    /// The scope and path, without the folders of this machine.
    pub fn short_path(&self) -> String {
        let folder = self.path.parent().and_then(Path::file_name).unwrap_or_default();
        format!("{}:{}/{MAIN_FILE}", self.scope.name(), folder.to_string_lossy())
    }
}

/// An error or warning about a file, with its path and line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FileDiagnostic {
    #[serde(serialize_with = "crate::base::paths::as_text")]
    pub path: PathBuf,
    /// The line, from 1; `None` when the message concerns the whole file.
    pub line: Option<usize>,
    pub message: String,
}

impl FileDiagnostic {
    fn at_line(line: usize, message: &str) -> Self {
        Self { path: PathBuf::new(), line: Some(line.max(1)), message: message.to_owned() }
    }

    fn whole_file(message: impl Into<String>) -> Self {
        Self { path: PathBuf::new(), line: None, message: message.into() }
    }

    fn shifted_one_line(mut self) -> Self {
        self.line = self.line.map(|line| line + 1);
        self
    }

    fn in_file(mut self, path: &Path) -> Self {
        path.clone_into(&mut self.path);
        self
    }
}

impl std::fmt::Display for FileDiagnostic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if !self.path.as_os_str().is_empty() {
            write!(f, "{}: ", self.path.display())?;
        }
        if let Some(line) = self.line {
            write!(f, "line {line}: ")?;
        }
        f.write_str(&self.message)
    }
}

/// The Skills and prompts of a Workspace; cheap to clone, and read on each use.
#[derive(Debug, Clone)]
pub struct Skills(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    places: DiscoveryFolders,
    roots: Vec<SearchRoot>,
    prompts: Vec<SearchRoot>,
    cache: Mutex<SkillCache>,
}

/// A folder that may contain Skills, prompts or roles; the first in a list takes precedence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SearchRoot<S = SkillScope> {
    pub path: PathBuf,
    pub scope: S,
    /// Whether others than the user may have written there: a project, or tools in the Workspace.
    pub needs_trust: bool,
    /// The Workspace: tools may have written a file that a link resolves to inside it.
    workspace: Option<PathBuf>,
    /// The folder that links in it must not lead out of; `None` for the user's own folders.
    pub boundary: Option<PathBuf>,
}

impl<S> SearchRoot<S> {
    /// Whether others than the user may have written the file at this resolved path.
    pub fn is_foreign(&self, real: &Path) -> bool {
        let in_reach = |workspace: &PathBuf| real.starts_with(workspace);
        self.needs_trust || self.workspace.as_ref().is_some_and(in_reach)
    }
}

impl Skills {
    /// The Skills of a Workspace. Reads nothing yet.
    pub fn new(places: DiscoveryFolders) -> Self {
        let shared =
            places.user.as_ref().map(|user| (SkillScope::User, user.join(".agents/skills")));
        let own = |name: &str| (SkillScope::Pixir, places.home.path().join(name));
        let mut folders: Vec<(SkillScope, PathBuf)> = shared.into_iter().collect();
        folders.push(own("skills"));
        let names = [".agents/skills", ".pixir/skills", ".claude/skills"];
        let roots_of =
            |names: &[&str], own| search_roots(&places.workspace, (SkillScope::Repo, names), own);
        let roots = roots_of(&names, folders);
        let prompts = roots_of(&[".pixir/prompts"], vec![own("prompts")]);
        Self(Arc::new(Inner { places, roots, prompts, cache: Mutex::default() }))
    }

    /// Reads all Skills. Files whose metadata did not change are not read again; a missing folder costs one
    /// system call.
    pub fn read_all(&self) -> FoundSkills {
        let mut cache = self.0.cache.lock();
        cache.refresh(&self.0.roots, &TrustStore::new(&self.0.places.home))
    }

    /// The Skill of that name, if it exists.
    pub fn find(&self, name: &str) -> Option<Arc<Skill>> {
        self.read_all().skills.into_iter().find(|skill| skill.name() == name)
    }

    /// Whether a file is in a folder of Skills or prompts of this Workspace.
    pub fn may_contain(&self, file: &Path) -> bool {
        let mut roots = self.0.roots.iter().chain(&self.0.prompts);
        roots.any(|root| file.starts_with(&root.path))
    }

    /// Reads all prompts.
    pub fn read_prompts(&self) -> FoundPrompts {
        prompts::find_prompts(&self.0.prompts, &TrustStore::new(&self.0.places.home))
    }
}

/// The search folders of the project, from the Workspace outwards, then the user's own. A folder that is
/// both is the user's, and needs trust where tools may write.
pub fn search_roots<S: Copy>(
    workspace: &Path,
    (repo, names): (S, &[&str]),
    own: Vec<(S, PathBuf)>,
) -> Vec<SearchRoot<S>> {
    let folders = project_folders(workspace);
    let boundary = folders.first().map(|root| root.to_path_buf());
    let mut roots = Vec::new();
    for path in folders.iter().rev().flat_map(|folder| names.iter().map(|name| folder.join(name))) {
        if !own.iter().any(|(_, own)| *own == path) {
            let boundary = boundary.clone();
            roots.push(SearchRoot {
                path,
                scope: repo,
                needs_trust: true,
                workspace: None,
                boundary,
            });
        }
    }
    for (scope, path) in own {
        let needs_trust = path.starts_with(workspace);
        let workspace = Some(workspace.to_owned());
        roots.push(SearchRoot { path, scope, needs_trust, workspace, boundary: None });
    }
    roots
}
