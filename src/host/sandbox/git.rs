//! Git hooks and settings of a Workspace's repository: the files that can make git run programs.
//!
//! A `.git` file can point anywhere, and it comes with the repository. It is trusted only when the
//! folder it names points back, which cannot be forged from inside the Workspace.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::git_config::included_paths;
use super::name_cache::NameCache;

/// The maximum depth of nested submodules that are checked.
const DEEPEST_MODULE: usize = 4;
/// The maximum number of submodules, of worktrees and of settings files that are checked.
const MOST_FOLDERS: usize = 256;
/// The maximum size of a pointer file, which is one line.
const LONGEST_POINTER: u64 = 8 * 1024;

/// The maximum size of a settings file; includes of a larger one are ignored.
const LONGEST_SETTINGS: u64 = 4 * 1024 * 1024;

/// The paths of a repository that matter to the sandbox.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RepositoryPaths {
    /// Folders that commits must be able to write, inside or outside the Workspace.
    pub writable: Vec<PathBuf>,
    /// Files and folders in them that must not change.
    pub protected: Vec<PathBuf>,
    /// Missing files that would make git read or run other files.
    pub must_be_absent: Vec<PathBuf>,
    /// Files from which git reads settings, by the names that it uses.
    settings: Vec<PathBuf>,
}

/// Finds the paths of the repository whose top folder is the Workspace. Files that its settings include, and targets
/// of links, are protected like the settings if a command can write them: in the Workspace and in `roots`.
pub fn repository_paths(
    workspace: &Path,
    home: Option<&Path>,
    roots: &[PathBuf],
    names: &NameCache,
) -> RepositoryPaths {
    let mut repository = repository_at_top(workspace);
    let roots: Vec<&Path> =
        [workspace].into_iter().chain(roots.iter().map(PathBuf::as_path)).collect();
    repository.protect_link_targets(&roots, names);
    repository.protect_included(&roots, home, names);
    repository
}

/// The names of the files from which git reads the settings of the user and the system, for every repository.
pub fn user_settings_files(home: Option<&Path>, config_home: Option<&Path>) -> Vec<PathBuf> {
    let config_home = config_home.map(Path::to_owned).or_else(|| Some(home?.join(".config")));
    let names = [
        Some(PathBuf::from("/etc/gitconfig")),
        config_home.map(|folder| folder.join("git/config")),
        home.map(|home| home.join(".gitconfig")),
    ];
    names.into_iter().flatten().collect()
}

/// The paths to protect for settings outside of repositories: the files, their includes and the targets of links,
/// if a command can write them, which means in `roots`.
pub fn settings_to_protect(
    roots: &[PathBuf],
    files: &[PathBuf],
    home: Option<&Path>,
    names: &NameCache,
) -> RepositoryPaths {
    let roots: Vec<&Path> = roots.iter().map(PathBuf::as_path).collect();
    let mut found = RepositoryPaths { settings: files.to_vec(), ..RepositoryPaths::default() };
    for file in files {
        found.protect_name(&roots, file, names);
    }
    found.protect_included(&roots, home, names);
    found
}

/// Settings outside of repositories and the files that they include, by their names. Includes of a file that a
/// command could change are ignored.
pub fn trusted_settings_files(
    files: &[PathBuf],
    home: Option<&Path>,
    is_in_reach: impl Fn(&Path) -> bool,
    names: &NameCache,
) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = files.to_vec();
    let mut next = 0;
    while let Some(file) = files.get(next).cloned() {
        next += 1;
        let is_trusted =
            !names.resolve_absolute(&file).links_and_end().any(|place| is_in_reach(place));
        let Some(folder) = file.parent().filter(|_| is_trusted) else { continue };
        for path in included_paths(&read_settings(&file).unwrap_or_default()) {
            let name = included_path(folder, home, &path);
            if !files.contains(&name) && files.len() < MOST_FOLDERS {
                files.push(name);
            }
        }
    }
    files
}

fn repository_at_top(workspace: &Path) -> RepositoryPaths {
    let dot_git = workspace.join(".git");
    let mut repository = RepositoryPaths::default();
    let Ok(found) = fs::symlink_metadata(&dot_git) else {
        if is_repository(workspace) {
            // Without a `.git`, git uses the folder itself as the repository.
            repository.protect(workspace, workspace);
        }
        return repository;
    };
    if found.is_symlink() {
        // Git follows the link. A target outside of the Workspace does not become writable.
        let led_to = dot_git.canonicalize().ok();
        if let Some(own) = led_to.filter(|own| own.starts_with(workspace) && own.is_dir()) {
            repository.writable.extend(folders_between(workspace, &own));
            repository.writable.push(own.clone());
            repository.protect(&own, &own);
        }
    } else if found.is_dir() {
        // The folder is a separate mount, so that it cannot be moved aside.
        repository.writable.push(dot_git.clone());
        repository.protect(&dot_git, &dot_git);
    } else if found.is_file() {
        repository.protected.push(dot_git.clone());
        if let Some((own, shared)) = linked_git_folders(workspace, &dot_git) {
            repository.writable.push(shared.clone());
            if !own.starts_with(&shared) {
                repository.writable.push(own.clone());
            }
            repository.protect(&own, &shared);
        }
    }
    repository
}

/// The folders between two others, the outermost first. To keep a path from being moved aside, each of
/// them must be a mount: a folder that holds a mount can be renamed, a mount cannot.
pub fn folders_between(from: &Path, to: &Path) -> Vec<PathBuf> {
    let is_between = |path: &&Path| *path != from && path.starts_with(from);
    let is_folder = |path: &&Path| path.symlink_metadata().is_ok_and(|found| found.is_dir());
    let between = to.ancestors().skip(1).filter(is_between).filter(is_folder);
    let mut folders: Vec<PathBuf> = between.map(Path::to_owned).collect();
    folders.reverse();
    folders
}

/// Whether git would use a folder as a repository.
pub fn is_repository(folder: &Path) -> bool {
    folder.join("HEAD").symlink_metadata().is_ok()
        && folder.join("objects").is_dir()
        && folder.join("refs").is_dir()
}

impl RepositoryPaths {
    fn protect(&mut self, own: &Path, shared: &Path) {
        self.protect_folder(shared);
        if own != shared {
            self.protect_folder(own);
        }
        let mut budget = MOST_FOLDERS;
        self.protect_modules(&shared.join("modules"), DEEPEST_MODULE, &mut budget);
        let worktrees = shared.join("worktrees");
        self.add_mount(&worktrees);
        for worktree in list_folders(&worktrees).into_iter().take(MOST_FOLDERS) {
            self.add_mount(&worktree);
            if worktree != own {
                self.protect_folder(&worktree);
            }
        }
    }

    /// Makes a folder a separate mount: files in it are protected only as long as it cannot be moved aside.
    fn add_mount(&mut self, folder: &Path) {
        let is_folder = fs::symlink_metadata(folder).is_ok_and(|found| found.is_dir());
        if is_folder && !self.writable.iter().any(|other| other == folder) {
            self.writable.push(folder.to_owned());
        }
    }

    fn protect_folder(&mut self, folder: &Path) {
        // A missing file must not be created: git would run it, or read other files because of it.
        for name in ["config", "config.worktree", "hooks", "gitdir", "commondir"] {
            let path = folder.join(name);
            let is_there = fs::symlink_metadata(&path).is_ok();
            if is_there && name.starts_with("config") {
                self.settings.push(path.clone());
            }
            if is_there { &mut self.protected } else { &mut self.must_be_absent }.push(path);
        }
    }

    /// Protects the targets of settings and pointers that are links.
    fn protect_link_targets(&mut self, roots: &[&Path], names: &NameCache) {
        let is_read = |path: &&PathBuf| path.is_symlink() && !path.ends_with("hooks");
        let links: Vec<PathBuf> = self.protected.iter().filter(is_read).cloned().collect();
        for link in links {
            self.protect_name(roots, &link, names);
        }
    }

    /// Protects the files that settings include.
    fn protect_included(&mut self, roots: &[&Path], home: Option<&Path>, names: &NameCache) {
        let mut waiting = self.settings.clone();
        let mut seen = BTreeSet::new();
        while let Some(config) = waiting.pop() {
            if !seen.insert(config.clone()) || seen.len() > MOST_FOLDERS {
                continue;
            }
            // An included path is relative to the name that git uses, also when that is a link.
            let Some(folder) = config.parent() else { continue };
            for path in included_paths(&read_settings(&config).unwrap_or_default()) {
                let name = included_path(folder, home, &path);
                if !name.is_dir() {
                    self.protect_name(roots, &name, names);
                }
                waiting.push(name);
            }
        }
    }

    /// Protects the file to which a name resolves and every link on the way, if a command could change them.
    fn protect_name(&mut self, roots: &[&Path], name: &Path, names: &NameCache) {
        for place in names.resolve_absolute(name).links_and_end() {
            let Some(root) = roots.iter().find(|root| place.starts_with(root)) else { continue };
            for between in folders_between(root, place) {
                self.add_mount(&between);
            }
            let is_there = fs::symlink_metadata(place).is_ok();
            let list = if is_there { &mut self.protected } else { &mut self.must_be_absent };
            if !list.iter().any(|kept| place.starts_with(kept)) {
                list.push(place.clone());
            }
        }
    }

    fn protect_modules(&mut self, modules: &Path, depth: usize, budget: &mut usize) {
        if depth == 0 {
            return;
        }
        self.add_mount(modules);
        for folder in list_folders(modules) {
            if *budget == 0 {
                return;
            }
            *budget -= 1;
            self.add_mount(&folder);
            if folder.join("HEAD").exists() {
                self.protect_folder(&folder);
                self.protect_modules(&folder.join("modules"), depth - 1, budget);
            } else {
                // A module's name may have slashes.
                self.protect_modules(&folder, depth - 1, budget);
            }
        }
    }
}

/// The name by which git reads an included file.
pub fn included_path(folder: &Path, home: Option<&Path>, path: &str) -> PathBuf {
    match (path.strip_prefix("~/"), home) {
        (Some(rest), Some(home)) => home.join(rest),
        _ => folder.join(path),
    }
}

fn list_folders(parent: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(parent) else { return Vec::new() };
    let is_folder = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir());
    let mut found: Vec<PathBuf> =
        entries.filter_map(Result::ok).filter(is_folder).map(|entry| entry.path()).collect();
    found.sort();
    found
}

/// The git folder of a worktree or submodule, and the shared one; `None` unless it points back to the Workspace.
fn linked_git_folders(workspace: &Path, dot_git: &Path) -> Option<(PathBuf, PathBuf)> {
    let text = read_pointer(dot_git)?;
    let own = workspace.join(text.strip_prefix("gitdir:")?.trim()).canonicalize().ok()?;
    if !own.join("HEAD").is_file() {
        return None;
    }
    let shared = match read_pointer(&own.join("commondir")) {
        Some(common) => own.join(common.trim()).canonicalize().ok()?,
        None => own.clone(),
    };
    let back = if shared == own {
        own.join(worktree_setting(&own.join("config"))?)
    } else {
        // A worktree belongs to the repository that lists it.
        if own.parent()? != shared.join("worktrees") {
            return None;
        }
        own.join(read_pointer(&own.join("gitdir"))?.trim()).parent()?.to_owned()
    };
    (back.canonicalize().ok()? == workspace.canonicalize().ok()?).then_some((own, shared))
}

/// The text of a small file that names a folder.
pub fn read_pointer(path: &Path) -> Option<String> {
    let found = fs::metadata(path).ok().filter(fs::Metadata::is_file)?;
    if found.len() > LONGEST_POINTER {
        return None;
    }
    fs::read_to_string(path).ok()
}

/// The text of a settings file.
fn read_settings(path: &Path) -> Option<String> {
    let found = fs::metadata(path).ok().filter(fs::Metadata::is_file)?;
    (found.len() <= LONGEST_SETTINGS).then(|| fs::read_to_string(path).ok())?
}

/// The value of `core.worktree`, by which a submodule points back to its work tree.
fn worktree_setting(config: &Path) -> Option<String> {
    let text = read_settings(config)?;
    let value = |line: &str| {
        let (name, value) = line.split_once('=')?;
        name.trim().eq_ignore_ascii_case("worktree").then(|| value.trim().to_owned())
    };
    text.lines().find_map(value)
}
