//! The paths that git tracks, read from its index file.
//!
//! A walk with git's ignore rules leaves out ignored files, but git keeps what it tracks, ignored or not.
//! Starting git for every survey would cost more than the survey, and a repository can make git start
//! programs.

use std::ffi::OsStr;
use std::io::BufRead;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use crate::base::git_index;
use crate::base::git_index::IndexEntry;
use crate::host::workspace::project_folders;

/// The mode of an index entry for a submodule.
const GITLINK: u32 = 0o160_000;
/// The length of SHA-1 object ids, which most repositories use.
const SHA1_LENGTH: usize = 20;

/// The tracked files below a Workspace, relative to it; none when the index is missing or not understood.
pub fn read_tracked_paths(workspace: &Path) -> Vec<PathBuf> {
    let top = project_folders(workspace).first().copied().unwrap_or(workspace);
    let Ok(prefix) = workspace.strip_prefix(top) else { return Vec::new() };
    let Some(index) = git_index::index_file(&top.join(".git")) else { return Vec::new() };
    let Some(names) = git_index::open_index(&index).and_then(read_index_names) else {
        return Vec::new();
    };
    let paths = names.into_iter().map(|name| PathBuf::from(OsStr::from_bytes(&name)));
    let beneath = paths.filter_map(|path| path.strip_prefix(prefix).ok().map(Path::to_owned));
    beneath.filter(|path| is_allowed_path(path)).collect()
}

/// Whether git would create a file of this name; an index may be forged.
fn is_allowed_path(path: &Path) -> bool {
    let is_own =
        |name: &OsStr| matches!(name.to_ascii_lowercase().to_str(), Some(".git" | ".pixir"));
    path.components().all(|part| matches!(part, Component::Normal(name) if !is_own(name)))
}

/// The names in an index, without submodules.
fn read_index_names(index: impl BufRead) -> Option<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    let note = |entry: IndexEntry<'_>| {
        if entry.mode & 0o170_000 != GITLINK {
            names.push(entry.path.to_vec());
        }
        ControlFlow::<()>::Continue(())
    };
    git_index::visit_entries(index, SHA1_LENGTH, note).ok()?;
    Some(names)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use proptest::prelude::*;

    use super::*;

    #[expect(clippy::disallowed_methods, reason = "git itself is what this is compared with")]
    fn git(folder: &Path, words: &[&str]) {
        let ran = Command::new("git").current_dir(folder).args(words).output().unwrap();
        assert!(ran.status.success(), "{words:?}: {}", String::from_utf8_lossy(&ran.stderr));
    }

    #[test]
    fn an_index_of_every_version_names_what_git_names() {
        let place = tempfile::tempdir().unwrap();
        let top = place.path().join("repo");
        std::fs::create_dir_all(top.join("src/deep/er")).unwrap();
        git(&top, &["init", "-q"]);
        let mut expected = Vec::new();
        for number in 0..300 {
            let name = format!(
                "src/{}/{}x",
                ["deep", "deep/er"][number % 2],
                "y".repeat(number % 90 + number / 90)
            );
            std::fs::write(top.join(&name), "x").unwrap();
            expected.push(PathBuf::from(name));
        }
        std::fs::write(top.join("wanted"), "x").unwrap();
        expected.push("wanted".into());
        expected.sort();
        expected.dedup();
        git(&top, &["add", "."]);
        // `git add -N` writes an entry with extended flags.
        std::fs::write(top.join("meant"), "x").unwrap();
        git(&top, &["add", "-N", "meant"]);
        expected.push("meant".into());
        expected.sort();
        for version in ["2", "3", "4"] {
            git(&top, &["update-index", "--index-version", version]);
            let mut found = read_tracked_paths(&top);
            found.sort();
            assert_eq!(found, expected, "version {version}");
            let below = read_tracked_paths(&top.join("src/deep"));
            assert!(below.iter().all(|path| !path.starts_with("src")) && below.len() > 100);
        }
    }

    #[test]
    fn a_worktree_has_an_index_of_its_own_and_no_repository_has_none() {
        let place = tempfile::tempdir().unwrap();
        let top = place.path().join("repo");
        std::fs::create_dir(&top).unwrap();
        assert_eq!(read_tracked_paths(&top), Vec::<PathBuf>::new());
        git(&top, &["init", "-q"]);
        assert_eq!(read_tracked_paths(&top), Vec::<PathBuf>::new());
        std::fs::write(top.join("one"), "x").unwrap();
        git(&top, &["add", "."]);
        let who = ["-c", "user.name=a", "-c", "user.email=a@b"];
        git(&top, &[&who[..], &["commit", "-qm", "one"]].concat());
        git(&top, &["worktree", "add", "-q", "../other"]);
        assert_eq!(read_tracked_paths(&place.path().join("other")), [PathBuf::from("one")]);
    }

    proptest! {
        #[test]
        fn bytes_of_any_kind_are_no_reason_to_fall(version in 2u32..5, count in 0u32..9, rest: Vec<u8>) {
            let head = [&b"DIRC"[..], &version.to_be_bytes(), &count.to_be_bytes(), &rest].concat();
            read_index_names(head.as_slice());
            read_index_names(rest.as_slice());
        }
    }
}
