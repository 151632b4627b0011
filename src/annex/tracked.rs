//! What git tracks: the names in its index, read from the file itself.
//!
//! A walk as git sees it leaves out what is ignored, but git keeps what it tracks, ignored or not. Starting
//! git for every survey would cost more than the survey, and a repository can make git start programs.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use crate::workspace::project_folders;

/// The largest index that is read.
const LARGEST: u64 = 256 << 20;
/// The times, numbers, mode and hash of a file, before its flags.
const FIXED: usize = 60;
/// Where in them the mode is.
const MODE: usize = 24;
/// The mode of another repository within this one.
const GITLINK: u32 = 0o160_000;
/// The flag that says that there are two bytes more of them.
const EXTENDED: u16 = 0x4000;

/// The files beneath a Workspace that its repository tracks, relative to it. An index that is not
/// there, or not understood, has none.
pub fn tracked(workspace: &Path) -> Vec<PathBuf> {
    let top = project_folders(workspace).first().copied().unwrap_or(workspace);
    let Ok(prefix) = workspace.strip_prefix(top) else { return Vec::new() };
    let Some(bytes) = index(&top.join(".git")) else { return Vec::new() };
    let Some(names) = names(&bytes) else { return Vec::new() };
    let paths = names.into_iter().map(|name| PathBuf::from(OsStr::from_bytes(&name)));
    let beneath = paths.filter_map(|path| path.strip_prefix(prefix).ok().map(Path::to_owned));
    beneath.filter(|path| is_plain(path)).collect()
}

/// Whether git itself would have made a file of this name; what lies in an index may be made up.
fn is_plain(path: &Path) -> bool {
    let is_own =
        |name: &OsStr| matches!(name.to_ascii_lowercase().to_str(), Some(".git" | ".pixir"));
    path.components().all(|part| matches!(part, Component::Normal(name) if !is_own(name)))
}

/// The bytes of the index of a repository; `.git` is a folder, or the file of a worktree that names one.
fn index(git: &Path) -> Option<Vec<u8>> {
    let folder = if git.is_dir() {
        git.to_owned()
    } else {
        let mut pointer = String::new();
        File::open(git).ok()?.take(64 * 1024).read_to_string(&mut pointer).ok()?;
        git.parent()?.join(pointer.strip_prefix("gitdir:")?.trim())
    };
    let file = File::open(folder.join("index")).ok()?;
    let size = file.metadata().ok().filter(std::fs::Metadata::is_file)?.len();
    if size > LARGEST {
        return None;
    }
    let mut bytes = Vec::with_capacity(usize::try_from(size).ok()?);
    file.take(LARGEST).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// The names in an index of version 2, 3 or 4, without those of other repositories.
fn names(bytes: &[u8]) -> Option<Vec<Vec<u8>>> {
    let word = |at: usize| {
        let word = bytes.get(at..at + 4)?;
        Some(u32::from_be_bytes(word.try_into().ok()?))
    };
    let (version, count) = (word(4)?, word(8)?);
    if !bytes.starts_with(b"DIRC") || !(2..=4).contains(&version) {
        return None;
    }
    let (mut at, mut names, mut last) = (12, Vec::new(), Vec::new());
    for _ in 0..count {
        let start = at;
        let mode = word(at + MODE)?;
        let flags = bytes.get(at + FIXED..at + FIXED + 2)?;
        let is_long = u16::from_be_bytes(flags.try_into().ok()?) & EXTENDED != 0 && version > 2;
        at += FIXED + 2 + if is_long { 2 } else { 0 };
        if version == 4 {
            // Only what is different from the name before it stands there.
            let (less, used) = number(bytes.get(at..)?)?;
            at += used;
            last.truncate(last.len().checked_sub(less)?);
        } else {
            last.clear();
        }
        let rest = bytes.get(at..)?;
        let length = memchr::memchr(0, rest)?;
        last.extend_from_slice(&rest[..length]);
        at += length + 1;
        if version < 4 {
            // Entries fill up eights, with one zero at least.
            at = start + (at - start).next_multiple_of(8);
        }
        if mode & 0o170_000 != GITLINK {
            names.push(last.clone());
        }
    }
    Some(names)
}

/// A number as git packs it into bytes, and how many of them.
fn number(bytes: &[u8]) -> Option<(usize, usize)> {
    let mut value = usize::from(bytes.first()? & 0x7f);
    let mut used = 1;
    while bytes.get(used - 1)? & 0x80 != 0 {
        let next = *bytes.get(used)?;
        value = value.checked_add(1)?.checked_mul(128)?.checked_add(usize::from(next & 0x7f))?;
        used += 1;
    }
    Some((value, used))
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
        // A file that is only meant to be added has longer flags.
        std::fs::write(top.join("meant"), "x").unwrap();
        git(&top, &["add", "-N", "meant"]);
        expected.push("meant".into());
        expected.sort();
        for version in ["2", "3", "4"] {
            git(&top, &["update-index", "--index-version", version]);
            let mut found = tracked(&top);
            found.sort();
            assert_eq!(found, expected, "version {version}");
            let below = tracked(&top.join("src/deep"));
            assert!(below.iter().all(|path| !path.starts_with("src")) && below.len() > 100);
        }
    }

    #[test]
    fn a_worktree_has_an_index_of_its_own_and_no_repository_has_none() {
        let place = tempfile::tempdir().unwrap();
        let top = place.path().join("repo");
        std::fs::create_dir(&top).unwrap();
        assert_eq!(tracked(&top), Vec::<PathBuf>::new());
        git(&top, &["init", "-q"]);
        assert_eq!(tracked(&top), Vec::<PathBuf>::new());
        std::fs::write(top.join("one"), "x").unwrap();
        git(&top, &["add", "."]);
        let who = ["-c", "user.name=a", "-c", "user.email=a@b"];
        git(&top, &[&who[..], &["commit", "-qm", "one"]].concat());
        git(&top, &["worktree", "add", "-q", "../other"]);
        assert_eq!(tracked(&place.path().join("other")), [PathBuf::from("one")]);
    }

    proptest! {
        #[test]
        fn bytes_of_any_kind_are_no_reason_to_fall(version in 2u32..5, count in 0u32..9, rest: Vec<u8>) {
            let head = [&b"DIRC"[..], &version.to_be_bytes(), &count.to_be_bytes(), &rest].concat();
            names(&head);
            names(&rest);
        }
    }
}
