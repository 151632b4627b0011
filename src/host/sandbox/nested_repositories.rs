//! Nested repositories: removes programs that commands add to repositories below a Workspace, because
//! the user's own git would run them outside the sandbox.
//!
//! A Session has one [`NestedRepositories`]. Before a command, when no other runs, it records all
//! repositories: those are the user's, with all programs that they name. After the command it scans again.
//! New settings and hooks are filtered (`neutralise`): a repository that a command cloned or initialised
//! is not changed, because git itself writes only harmless keys.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, lstat};

use super::folder_tree::{ClosedFolders, FolderMark, FolderTree};
use super::git::is_repository;
use super::guard::{FileStamp, file_type};
use super::neutralise::{ASIDE_SUFFIX, KnownFiles, Neutraliser};
use super::pinned_path::PinnedPath;
use super::program_files;
use super::spec::SandboxSpec;

/// The maximum depth of folders of modules, whose names may have slashes.
const DEEPEST_MODULE: usize = 16;
/// The maximum size of a `.git` file; a larger one is not followed.
const LONGEST_POINTER: i64 = 64 * 1024;

/// Findings of the check of repositories after a command.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct RepositoryFindings {
    /// Files that named programs or pointed to another repository; the originals were renamed.
    pub neutralised: Vec<PathBuf>,
    /// Files that programs outside the sandbox run, and that the command created or changed.
    pub programs: Vec<PathBuf>,
}

/// The recorded repositories below the roots of a Session.
#[derive(Debug, Default)]
pub struct NestedRepositories {
    trees: BTreeMap<PathBuf, Option<FolderTree>>,
    known: KnownFiles,
    /// The targets of `.git` files and links.
    pointers: BTreeMap<PathBuf, Option<PathBuf>>,
    programs: BTreeMap<PathBuf, FileStamp>,
    /// The number of running commands.
    running: usize,
}

/// The result of one scan of the folder trees.
#[derive(Debug, Default)]
struct RepositoryScan {
    /// Folders that git uses as repositories.
    repositories: BTreeSet<PathBuf>,
    /// Files and links that may point to a repository, and their targets.
    pointers: BTreeMap<PathBuf, Option<PathBuf>>,
    programs: BTreeMap<PathBuf, FileStamp>,
}

impl NestedRepositories {
    /// An empty record; `home` is the folder for `~` in git settings.
    pub fn new(home: Option<PathBuf>) -> Self {
        Self { known: KnownFiles::new(home), ..Self::default() }
    }

    /// Whether all trees together have at most `most` folders, so that a scan needs no separate thread.
    pub fn is_small(&self, most: usize) -> bool {
        let counts = self.trees.values().flatten().map(FolderTree::count);
        !self.trees.is_empty() && counts.sum::<usize>() <= most
    }

    /// Whether a root has too many folders to be searched.
    pub fn is_too_large(&self) -> bool {
        self.trees.values().any(Option::is_none)
    }

    /// Records the repositories before a command. While other commands run, only new roots are recorded.
    pub fn record_before(&mut self, roots: &[PathBuf], spec: &SandboxSpec) {
        let is_quiet = self.running == 0;
        self.running += 1;
        let is_new = roots.iter().any(|root| !self.trees.contains_key(root));
        if !is_quiet && !is_new {
            return;
        }
        self.update(roots, ClosedFolders::Leave);
        let mut scan = self.scan(spec);
        self.follow_pointers(&mut scan, roots, spec);
        for repository in &scan.repositories {
            self.known.record_repository(repository);
        }
        self.known.record_settings(&spec.git_settings);
        if is_quiet {
            self.known.forget_others();
            self.pointers = scan.pointers;
            self.programs = scan.programs;
        } else {
            for (path, target) in scan.pointers {
                self.pointers.entry(path).or_insert(target);
            }
        }
    }

    fn update(&mut self, roots: &[PathBuf], closed: ClosedFolders) {
        for root in roots {
            match self.trees.get_mut(root) {
                Some(Some(tree)) => tree.update(closed),
                Some(None) => {}
                None => drop(self.trees.insert(root.clone(), FolderTree::new(root).ok())),
            }
        }
    }

    /// Scans after a command, and neutralises new settings and hooks that name programs; `uncovered` if files
    /// that the sandbox protects may have been changed nevertheless.
    pub fn check_after(
        &mut self,
        roots: &[PathBuf],
        spec: &SandboxSpec,
        uncovered: bool,
    ) -> RepositoryFindings {
        self.running = self.running.saturating_sub(1);
        self.update(roots, ClosedFolders::Open);
        let mut scan = self.scan(spec);
        let outside_pointers = self.follow_pointers(&mut scan, roots, spec);
        let mut findings = RepositoryFindings::default();
        let kept: &[PathBuf] = if uncovered { &[] } else { &spec.protected };
        let (known, writable) = (&self.known, &spec.writable);
        for repository in &scan.repositories {
            let root = roots.iter().find(|root| repository.starts_with(root));
            let root = root.or(roots.first()).map_or(repository.as_path(), PathBuf::as_path);
            findings.neutralised.extend(
                Neutraliser { repository, root, known, writable, protected: kept }.neutralise(),
            );
        }
        if let Some(root) = roots.first() {
            let neutraliser =
                Neutraliser { repository: root, root, known, writable, protected: kept };
            findings.neutralised.extend(neutraliser.neutralise_settings_files(&spec.git_settings));
        }
        for path in outside_pointers {
            set_pointer_aside(&path, &mut findings.neutralised);
        }
        let is_new =
            |(path, stamp): &(&PathBuf, &FileStamp)| self.programs.get(*path) != Some(*stamp);
        let new = scan.programs.iter().filter(is_new).map(|(path, _)| path.clone());
        findings.programs = new.filter(|path| !program_files::is_in_package(path)).collect();
        self.programs = scan.programs;
        findings
    }

    /// Adds the repositories to which `.git` files and links point; returns new files and links that point
    /// outside the scanned folders.
    fn follow_pointers(
        &self,
        scan: &mut RepositoryScan,
        roots: &[PathBuf],
        spec: &SandboxSpec,
    ) -> Vec<PathBuf> {
        let mut outside_pointers = Vec::new();
        let own: Vec<PathBuf> = scan.repositories.iter().cloned().collect();
        let is_inside = |path: &Path| {
            let beneath = |root: &PathBuf| path.starts_with(root);
            roots.iter().any(beneath) || own.iter().any(beneath)
        };
        for (path, led_to) in &scan.pointers {
            let is_known = self.pointers.get(path) == Some(led_to) || spec.protected.contains(path);
            let Some(target) = led_to else {
                outside_pointers.extend((!is_known).then(|| path.clone()));
                continue;
            };
            let is_writable = spec.writable.iter().any(|root| target.starts_with(root));
            if is_inside(target) || is_known && is_writable {
                if is_layout(target) {
                    scan.repositories.insert(target.clone());
                }
            } else if !is_known {
                outside_pointers.push(path.clone());
            }
        }
        outside_pointers
    }

    fn scan(&self, spec: &SandboxSpec) -> RepositoryScan {
        let mut scan = RepositoryScan::default();
        for (root, tree) in &self.trees {
            for (folder, mark) in tree.iter().flat_map(FolderTree::marks) {
                match mark {
                    FolderMark::DotGit(name) => scan.add_dot_git(&folder.join(name)),
                    FolderMark::Layout => drop(scan.repositories.insert(folder)),
                    FolderMark::Program(name) => {
                        let path = folder.join(name);
                        if let Some(stamp) = read_stamp(&path) {
                            scan.programs.insert(path, stamp);
                        }
                    }
                }
            }
            // The repository of a worktree or submodule is outside its work tree, and commits write to it.
            for folder in spec.writable.iter().filter(|folder| !folder.starts_with(root)) {
                if folder.join("HEAD").symlink_metadata().is_ok() {
                    scan.add_repository(folder);
                }
            }
        }
        scan
    }
}

impl RepositoryScan {
    fn add_dot_git(&mut self, path: &Path) {
        let Ok(found) = lstat(path) else { return };
        match file_type(&found) {
            FileType::Directory => self.add_repository(path),
            FileType::RegularFile | FileType::Symlink => {
                self.pointers.insert(path.to_owned(), pointer_target(path));
            }
            // Git reads neither pipes nor sockets.
            _ => {}
        }
    }

    /// Adds a repository, and those of its submodules and worktrees.
    fn add_repository(&mut self, folder: &Path) {
        self.repositories.insert(folder.to_owned());
        self.add_modules(&folder.join("modules"), DEEPEST_MODULE);
        for worktree in list_folders(&folder.join("worktrees")) {
            self.repositories.insert(worktree);
        }
    }

    fn add_modules(&mut self, modules: &Path, depth: usize) {
        if depth == 0 {
            return;
        }
        for folder in list_folders(modules) {
            if folder.join("HEAD").symlink_metadata().is_ok() {
                self.add_repository(&folder);
            } else {
                self.add_modules(&folder, depth - 1);
            }
        }
    }
}

/// Neutralises the settings and hooks that start programs, in a repository that a command created and in its modules.
pub fn neutralise_repository(repository: &Path, root: &Path) -> Vec<PathBuf> {
    let mut scan = RepositoryScan::default();
    scan.add_repository(repository);
    let known = &KnownFiles::default();
    let writable = &[root.to_owned()];
    let neutralise = |repository: &PathBuf| {
        Neutraliser { repository, root, known, writable, protected: &[] }.neutralise()
    };
    scan.repositories.iter().flat_map(neutralise).collect()
}

/// The folders in a folder; links are not followed.
fn list_folders(parent: &Path) -> Vec<PathBuf> {
    // Most repositories have neither modules nor worktrees.
    if !lstat(parent).is_ok_and(|found| file_type(&found) == FileType::Directory) {
        return Vec::new();
    }
    // A folder that its owner cannot list is opened too, because git need not list it.
    let names = PinnedPath::open_parent(parent).map(|place| place.names()).unwrap_or_default();
    let is_folder =
        |path: &PathBuf| lstat(path).is_ok_and(|found| file_type(&found) == FileType::Directory);
    names.into_iter().map(|name| parent.join(name)).filter(is_folder).collect()
}

fn read_stamp(path: &Path) -> Option<FileStamp> {
    lstat(path).ok().map(|found| FileStamp::from_stat(&found))
}

/// The target of a `.git` file or link, as git would follow it; `None` when it is unknown.
fn pointer_target(path: &Path) -> Option<PathBuf> {
    let resolved = path.canonicalize().ok()?;
    let found = lstat(&resolved).ok()?;
    if file_type(&found) == FileType::Directory {
        return Some(resolved);
    }
    let is_pointer = file_type(&found) == FileType::RegularFile && found.st_size <= LONGEST_POINTER;
    let bytes = is_pointer.then(|| fs::read(&resolved).ok())??;
    let target = bytes.strip_prefix(b"gitdir: ")?.trim_ascii_end();
    path.parent()?.join(OsStr::from_bytes(target)).canonicalize().ok()
}

/// Whether git would use a folder as a repository, possibly one with the objects of another repository.
fn is_layout(folder: &Path) -> bool {
    is_repository(folder)
        || ["HEAD", "commondir"].iter().all(|name| lstat(folder.join(name)).is_ok())
}

fn set_pointer_aside(path: &Path, neutralised: &mut Vec<PathBuf>) {
    let moved = PinnedPath::open_parent(path).and_then(|place| place.set_aside(ASIDE_SUFFIX));
    if let Err(error) = &moved {
        tracing::warn!(path = %path.display(), %error, "cannot be set aside");
    }
    neutralised.push(path.to_owned());
}
