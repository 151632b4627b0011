//! Nested repositories: keeps commands from adding programs to repositories below a Workspace, which
//! the user's own git would run outside the sandbox.
//!
//! A Session has one [`NestedRepositories`]. Before a command, when none runs, it records every repository:
//! those are the user's, with whatever programs they name. After the command it scans again. New settings
//! and hooks are filtered (`neutralise`): a repository that a command cloned or initialised stays as it
//! is, because git itself writes harmless keys only.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, lstat};

use super::folders::{Closed, FolderTree, Mark};
use super::git::is_repository;
use super::guard::{Stamp, kind};
use super::pinned::Pinned;
use super::programs;
use super::spec::Spec;
use super::tame::{ASIDE, KnownFiles, Tame};

/// How deep folders of modules are searched; names of modules have slashes.
const DEEPEST_MODULE: usize = 16;
/// A `.git` file longer than this is not followed.
const LONGEST_POINTER: i64 = 64 * 1024;

/// Findings of the check of repositories after a command.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// Files that named programs or led git elsewhere; the originals were set aside under another name.
    pub neutralised: Vec<PathBuf>,
    /// Files that programs outside the sandbox run, and that the command made or changed.
    pub programs: Vec<PathBuf>,
}

/// The recorded repositories below the roots of a Session.
#[derive(Debug, Default)]
pub struct NestedRepositories {
    trees: BTreeMap<PathBuf, Option<FolderTree>>,
    known: KnownFiles,
    /// Where `.git` files and links led.
    pointers: BTreeMap<PathBuf, Option<PathBuf>>,
    programs: BTreeMap<PathBuf, Stamp>,
    /// How many commands run.
    running: usize,
}

/// The result of one scan of the folder trees.
#[derive(Debug, Default)]
struct Sight {
    /// Folders that git takes for a repository's.
    repositories: BTreeSet<PathBuf>,
    /// Files and links that may lead to one, and where they do.
    pointers: BTreeMap<PathBuf, Option<PathBuf>>,
    programs: BTreeMap<PathBuf, Stamp>,
}

impl NestedRepositories {
    /// Without any record; `home` is what `~` means in git settings.
    pub fn new(home: Option<PathBuf>) -> Self {
        Self { known: KnownFiles::new(home), ..Self::default() }
    }

    /// Whether all trees together have at most `most` folders, so that a scan needs no thread of its own.
    pub fn is_small(&self, most: usize) -> bool {
        let counts = self.trees.values().flatten().map(FolderTree::count);
        !self.trees.is_empty() && counts.sum::<usize>() <= most
    }

    /// Whether a root has too many folders to be searched.
    pub fn is_too_large(&self) -> bool {
        self.trees.values().any(Option::is_none)
    }

    /// Records the repositories before a command. While other commands run, only new roots are recorded.
    pub fn look(&mut self, roots: &[PathBuf], spec: &Spec) {
        let is_quiet = self.running == 0;
        self.running += 1;
        let is_new = roots.iter().any(|root| !self.trees.contains_key(root));
        if !is_quiet && !is_new {
            return;
        }
        self.update(roots, Closed::Leave);
        let mut sight = self.sight(spec);
        self.follow_pointers(&mut sight, roots, spec);
        for repository in &sight.repositories {
            self.known.learn(repository);
        }
        self.known.learn_settings(&spec.git_settings);
        if is_quiet {
            self.known.forget_others();
            self.pointers = sight.pointers;
            self.programs = sight.programs;
        } else {
            for (path, target) in sight.pointers {
                self.pointers.entry(path).or_insert(target);
            }
        }
    }

    fn update(&mut self, roots: &[PathBuf], closed: Closed) {
        for root in roots {
            match self.trees.get_mut(root) {
                Some(Some(tree)) => tree.update(closed),
                Some(None) => {}
                None => drop(self.trees.insert(root.clone(), FolderTree::new(root).ok())),
            }
        }
    }

    /// Scans after a command, and neutralises new settings and hooks that name programs. `uncovered` says
    /// that files which the sandbox protects may have been changed all the same.
    pub fn check(&mut self, roots: &[PathBuf], spec: &Spec, uncovered: bool) -> Findings {
        self.running = self.running.saturating_sub(1);
        self.update(roots, Closed::Open);
        let mut sight = self.sight(spec);
        let astray = self.follow_pointers(&mut sight, roots, spec);
        let mut findings = Findings::default();
        let kept: &[PathBuf] = if uncovered { &[] } else { &spec.kept };
        let (known, writable) = (&self.known, &spec.writable);
        for repository in &sight.repositories {
            let root = roots.iter().find(|root| repository.starts_with(root));
            let root = root.or(roots.first()).map_or(repository.as_path(), PathBuf::as_path);
            findings.neutralised.extend(Tame { repository, root, known, writable, kept }.mend());
        }
        if let Some(root) = roots.first() {
            let tame = Tame { repository: root, root, known, writable, kept };
            findings.neutralised.extend(tame.mend_named(&spec.git_settings));
        }
        for path in astray {
            set_aside(&path, &mut findings.neutralised);
        }
        let is_new = |(path, stamp): &(&PathBuf, &Stamp)| self.programs.get(*path) != Some(*stamp);
        let new = sight.programs.iter().filter(is_new).map(|(path, _)| path.clone());
        findings.programs = new.filter(|path| !programs::is_package(path)).collect();
        self.programs = sight.programs;
        findings
    }

    /// Adds the repositories that `.git` files and links lead to; returns new ones that lead outside the
    /// scanned folders.
    fn follow_pointers(&self, sight: &mut Sight, roots: &[PathBuf], spec: &Spec) -> Vec<PathBuf> {
        let mut astray = Vec::new();
        let own: Vec<PathBuf> = sight.repositories.iter().cloned().collect();
        let is_inside = |path: &Path| {
            let beneath = |root: &PathBuf| path.starts_with(root);
            roots.iter().any(beneath) || own.iter().any(beneath)
        };
        for (path, led_to) in &sight.pointers {
            let is_known = self.pointers.get(path) == Some(led_to) || spec.kept.contains(path);
            let Some(target) = led_to else {
                astray.extend((!is_known).then(|| path.clone()));
                continue;
            };
            let is_writable = spec.writable.iter().any(|root| target.starts_with(root));
            if is_inside(target) || is_known && is_writable {
                if is_layout(target) {
                    sight.repositories.insert(target.clone());
                }
            } else if !is_known {
                astray.push(path.clone());
            }
        }
        astray
    }

    fn sight(&self, spec: &Spec) -> Sight {
        let mut sight = Sight::default();
        for (root, tree) in &self.trees {
            for (folder, mark) in tree.iter().flat_map(FolderTree::marks) {
                match mark {
                    Mark::DotGit(name) => sight.note_dot_git(&folder.join(name)),
                    Mark::Layout => drop(sight.repositories.insert(folder)),
                    Mark::Program(name) => {
                        let path = folder.join(name);
                        if let Some(stamp) = stamp(&path) {
                            sight.programs.insert(path, stamp);
                        }
                    }
                }
            }
            // The repository of a worktree or submodule is outside its work tree, and commits write it.
            for folder in spec.writable.iter().filter(|folder| !folder.starts_with(root)) {
                if folder.join("HEAD").symlink_metadata().is_ok() {
                    sight.note_repository(folder);
                }
            }
        }
        sight
    }
}

impl Sight {
    fn note_dot_git(&mut self, path: &Path) {
        let Ok(found) = lstat(path) else { return };
        match kind(&found) {
            FileType::Directory => self.note_repository(path),
            FileType::RegularFile | FileType::Symlink => {
                self.pointers.insert(path.to_owned(), target(path));
            }
            // Git reads neither pipes nor sockets.
            _ => {}
        }
    }

    /// Adds a repository, and those of its submodules and worktrees.
    fn note_repository(&mut self, folder: &Path) {
        self.repositories.insert(folder.to_owned());
        self.note_modules(&folder.join("modules"), DEEPEST_MODULE);
        for worktree in folders(&folder.join("worktrees")) {
            self.repositories.insert(worktree);
        }
    }

    fn note_modules(&mut self, modules: &Path, depth: usize) {
        if depth == 0 {
            return;
        }
        for folder in folders(modules) {
            if folder.join("HEAD").symlink_metadata().is_ok() {
                self.note_repository(&folder);
            } else {
                self.note_modules(&folder, depth - 1);
            }
        }
    }
}

/// Neutralises the settings and hooks that start programs, in a repository that a command made and in its modules.
pub fn tame_all(repository: &Path, root: &Path) -> Vec<PathBuf> {
    let mut sight = Sight::default();
    sight.note_repository(repository);
    let known = &KnownFiles::default();
    let writable = &[root.to_owned()];
    let tame = |repository: &PathBuf| Tame { repository, root, known, writable, kept: &[] }.mend();
    sight.repositories.iter().flat_map(tame).collect()
}

/// The folders in a folder; links are not followed.
fn folders(parent: &Path) -> Vec<PathBuf> {
    // Most repositories have neither modules nor worktrees.
    if !lstat(parent).is_ok_and(|found| kind(&found) == FileType::Directory) {
        return Vec::new();
    }
    // Also of a folder that its owner cannot list: git needs not list it.
    let names = Pinned::at(parent).map(|place| place.names()).unwrap_or_default();
    let is_folder =
        |path: &PathBuf| lstat(path).is_ok_and(|found| kind(&found) == FileType::Directory);
    names.into_iter().map(|name| parent.join(name)).filter(is_folder).collect()
}

fn stamp(path: &Path) -> Option<Stamp> {
    lstat(path).ok().map(|found| Stamp::of(&found))
}

/// Where a `.git` file or link leads, as git would follow it; `None` when that is unknown.
fn target(path: &Path) -> Option<PathBuf> {
    let resolved = path.canonicalize().ok()?;
    let found = lstat(&resolved).ok()?;
    if kind(&found) == FileType::Directory {
        return Some(resolved);
    }
    let is_pointer = kind(&found) == FileType::RegularFile && found.st_size <= LONGEST_POINTER;
    let bytes = is_pointer.then(|| fs::read(&resolved).ok())??;
    let target = bytes.strip_prefix(b"gitdir: ")?.trim_ascii_end();
    path.parent()?.join(OsStr::from_bytes(target)).canonicalize().ok()
}

/// Whether git would take a folder for a repository; its objects may belong to another one.
fn is_layout(folder: &Path) -> bool {
    is_repository(folder)
        || ["HEAD", "commondir"].iter().all(|name| lstat(folder.join(name)).is_ok())
}

fn set_aside(path: &Path, neutralised: &mut Vec<PathBuf>) {
    let moved = Pinned::at(path).and_then(|place| place.set_aside(ASIDE));
    if let Err(error) = &moved {
        tracing::warn!(path = %path.display(), %error, "cannot be set aside");
    }
    neutralised.push(path.to_owned());
}
