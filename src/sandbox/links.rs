//! Links on the way to a file: a command that cannot change the file may still change one of them.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs;
use std::path::{Component, Path, PathBuf};

/// How many links the kernel follows.
const MOST_LINKS: usize = 40;

/// How the kernel resolves a name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Resolved {
    /// Every link on the way, where it really is.
    pub links: Vec<PathBuf>,
    /// Where the name leads in the end; there need not be anything.
    pub end: PathBuf,
}

impl Resolved {
    /// The links, and the end.
    pub fn places(&self) -> impl Iterator<Item = &PathBuf> {
        self.links.iter().chain([&self.end])
    }
}

/// Resolves a name in a folder whose own path has no links.
pub fn resolve(folder: &Path, name: &Path) -> Resolved {
    let mut resolved = Resolved { links: Vec::new(), end: folder.to_owned() };
    let mut waiting = VecDeque::new();
    resolved.enter(name, &mut waiting);
    while let Some(part) = waiting.pop_front() {
        if part == ".." {
            resolved.end.pop();
            continue;
        }
        resolved.end.push(part);
        if resolved.links.len() < MOST_LINKS
            && let Ok(target) = fs::read_link(&resolved.end)
        {
            resolved.links.push(resolved.end.clone());
            resolved.end.pop();
            resolved.enter(&target, &mut waiting);
        }
    }
    resolved
}

impl Resolved {
    /// Puts the parts of a path before those that wait.
    fn enter(&mut self, path: &Path, waiting: &mut VecDeque<OsString>) {
        for part in path.components().rev() {
            match part {
                Component::RootDir => self.end = PathBuf::from("/"),
                Component::CurDir | Component::Prefix(_) => {}
                Component::ParentDir => waiting.push_front("..".into()),
                Component::Normal(part) => waiting.push_front(part.to_owned()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_name_is_resolved_as_the_kernel_does_it() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        fs::create_dir_all(root.join("a/b")).unwrap();
        fs::write(root.join("a/file"), "").unwrap();
        symlink("a/b", root.join("way")).unwrap();
        symlink("way/../file", root.join("link")).unwrap();
        symlink(root.join("link"), root.join("a/b/absolute")).unwrap();
        symlink("loop", root.join("loop")).unwrap();
        let check = |name: &str, links: &[&str], end: &str| {
            let found = resolve(&root, Path::new(name));
            let links: Vec<PathBuf> = links.iter().map(|link| root.join(link)).collect();
            assert_eq!(found, Resolved { links, end: root.join(end) }, "{name}");
        };
        check("a/file", &[], "a/file");
        check("./a/b/../file", &[], "a/file");
        // Lexically this would be the root's own.
        check("way/../file", &["way"], "a/file");
        check("a/b/absolute", &["a/b/absolute", "link", "way"], "a/file");
        check("gone/x/../y", &[], "gone/y");
        assert_eq!(resolve(&root, Path::new("loop")).links.len(), MOST_LINKS);
        assert_eq!(resolve(&root, Path::new("/etc/x")).end, Path::new("/etc/x"));
    }
}
