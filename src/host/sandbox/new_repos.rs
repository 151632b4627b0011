//! New repositories: neutralises a `.git` that a command created in a Workspace without one.
//!
//! `git init` is common, so a command may create a `.git`. But git runs programs that a repository
//! names, and the user's own `git status`, or that of their prompt, does so outside of the
//! sandbox. So a repository that a command created starts without hooks, and only with settings that
//! start no program. Removed files are kept under another name, in case the user created them
//! meanwhile. From the next command on its files are protected like those of any other repository. A
//! link in place of `.git` must keep its target.

use std::path::{Path, PathBuf};

use rustix::fs::FileType;

use super::git::is_repository;
use super::nested_repositories::neutralise_repository;
use super::pinned_path::PinnedPath;

/// The `.git` of a Workspace before a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DotGitBefore {
    workspace: PathBuf,
    state: DotGitState,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum DotGitState {
    /// No `.git`; `is_bare` when git used the Workspace itself as a repository.
    Missing { is_bare: bool },
    /// A link, and its resolved target.
    Link { target: PathBuf, led_to: Option<PathBuf> },
    /// A folder or a file, which the sandbox spec protects.
    There,
}

impl DotGitBefore {
    /// Records the state before a command.
    pub fn record(workspace: &Path) -> Self {
        let dot_git = workspace.join(".git");
        let state = match PinnedPath::open_parent(&dot_git) {
            Ok(place) => match place.kind() {
                None => DotGitState::Missing { is_bare: is_repository(workspace) },
                Some(FileType::Symlink) => DotGitState::Link {
                    target: place.read_link().unwrap_or_default(),
                    led_to: dot_git.canonicalize().ok(),
                },
                Some(_) => DotGitState::There,
            },
            Err(_) => DotGitState::There,
        };
        Self { workspace: workspace.to_owned(), state }
    }

    /// Whether there is nothing to neutralise. Takes only a few `stat` calls; `neutralise` may read and write.
    pub fn is_unchanged(&self) -> bool {
        match &self.state {
            DotGitState::There => true,
            DotGitState::Missing { is_bare } => {
                let place = PinnedPath::open_parent(&self.workspace.join(".git"));
                let is_missing = place.is_ok_and(|place| place.kind().is_none());
                is_missing && (*is_bare || !is_repository(&self.workspace))
            }
            DotGitState::Link { .. } => false,
        }
    }

    /// Checks after the command, and removes hooks and settings that start programs; returns the changed paths.
    pub fn neutralise(&self) -> Vec<PathBuf> {
        let mut changed_paths = Vec::new();
        let dot_git = self.workspace.join(".git");
        let Ok(place) = PinnedPath::open_parent(&dot_git) else { return changed_paths };
        match &self.state {
            DotGitState::There => {}
            DotGitState::Missing { is_bare } => match place.kind() {
                None if !is_bare && is_repository(&self.workspace) => {
                    changed_paths.extend(neutralise_repository(&self.workspace, &self.workspace));
                }
                None => {}
                Some(FileType::Directory) => {
                    changed_paths.extend(neutralise_repository(&dot_git, &self.workspace));
                }
                // A file or a link points to a folder that was not checked.
                Some(_) => remove(&place, dot_git, &mut changed_paths),
            },
            DotGitState::Link { target, led_to } => {
                let leads_to = dot_git.canonicalize().ok();
                let is_link = place.read_link().as_ref() == Some(target);
                match led_to {
                    _ if !is_link => {
                        place.make_link(target).ok();
                        changed_paths.push(dot_git);
                    }
                    // A link on the way was changed: `.git` becomes a direct link to the old target.
                    Some(led_to) if leads_to.as_ref() != Some(led_to) => {
                        place.make_link(led_to).ok();
                        changed_paths.push(dot_git);
                    }
                    None if leads_to.is_some() => remove(&place, dot_git, &mut changed_paths),
                    _ => {}
                }
            }
        }
        changed_paths
    }
}

fn remove(place: &PinnedPath, path: PathBuf, changed_paths: &mut Vec<PathBuf>) {
    if place.remove().is_ok() {
        changed_paths.push(path);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    const FRESH_CONFIG: &str = "[core]\n\trepositoryformatversion = 0\n\tbare = false\n";

    struct TestWorkspace(
        #[expect(dead_code, reason = "held, and removed")] tempfile::TempDir,
        PathBuf,
    );

    impl TestWorkspace {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let root = folder.path().canonicalize().unwrap();
            Self(folder, root)
        }

        fn write(&self, name: &str, text: &str) {
            fs::create_dir_all(self.1.join(name).parent().unwrap()).unwrap();
            fs::write(self.1.join(name), text).unwrap();
        }
    }

    #[test]
    fn a_repository_that_a_command_made_starts_nothing() {
        let place = TestWorkspace::new();
        let top = DotGitBefore::record(&place.1);
        assert_eq!(top.neutralise(), Vec::<PathBuf>::new());
        for name in [
            "hooks/pre-commit",
            "hooks/pre-push.sample",
            "commondir",
            "modules/m/hooks/x",
            "modules/m/HEAD",
        ] {
            place.write(&format!(".git/{name}"), "evil");
        }
        place.write(".git/config", &format!("{FRESH_CONFIG}[core]\n\tfsmonitor = evil\n"));
        place.write(".git/modules/m/config", "[core]\n\tfsmonitor = evil\n");
        let changed_paths = top.neutralise();
        let git = place.1.join(".git");
        for name in
            ["hooks/pre-commit", "commondir", "config", "modules/m/config", "modules/m/hooks/x"]
        {
            assert!(changed_paths.contains(&git.join(name)), "{name}: {changed_paths:?}");
        }
        assert!(git.join("hooks/pre-push.sample").exists());
        assert!(
            git.join("hooks/pre-commit.untamed").exists() && !git.join("hooks/pre-commit").exists()
        );
        assert!(fs::read_to_string(git.join("config.untamed")).unwrap().contains("evil"));
        let config = fs::read_to_string(git.join("config")).unwrap();
        assert_eq!(config, format!("{FRESH_CONFIG}[core]\n"));
        assert_eq!(top.neutralise(), Vec::<PathBuf>::new(), "once is enough");
        assert_eq!(DotGitBefore::record(&place.1).state, DotGitState::There);
    }

    #[test]
    fn a_new_git_file_link_or_bare_repository_is_neutralised() {
        let place = TestWorkspace::new();
        let top = DotGitBefore::record(&place.1);
        place.write("evil/config", "[core]\n\tfsmonitor = evil\n");
        place.write(".git", "gitdir: evil\n");
        assert_eq!(top.neutralise(), [place.1.join(".git")]);
        symlink("evil", place.1.join(".git")).unwrap();
        assert_eq!(top.neutralise(), [place.1.join(".git")]);
        for name in ["HEAD", "objects/x", "refs/x"] {
            place.write(name, "");
        }
        place.write("config", "[core]\n\tbare = true\n\tfsmonitor = evil\n");
        assert_eq!(top.neutralise(), [place.1.join("config")]);
        assert_eq!(DotGitBefore::record(&place.1).state, DotGitState::Missing { is_bare: true });
    }

    #[test]
    fn a_link_goes_on_leading_where_it_led() {
        let place = TestWorkspace::new();
        place.write("real/HEAD", "");
        symlink("way", place.1.join(".git")).unwrap();
        symlink("real", place.1.join("way")).unwrap();
        let top = DotGitBefore::record(&place.1);
        assert_eq!(top.neutralise(), Vec::<PathBuf>::new());
        place.write("evil/config", "");
        fs::remove_file(place.1.join(".git")).unwrap();
        symlink("evil", place.1.join(".git")).unwrap();
        assert_eq!(top.neutralise(), [place.1.join(".git")]);
        fs::remove_file(place.1.join("way")).unwrap();
        symlink("evil", place.1.join("way")).unwrap();
        assert_eq!(top.neutralise(), [place.1.join(".git")]);
        assert_eq!(place.1.join(".git").canonicalize().unwrap(), place.1.join("real"));
    }
}
