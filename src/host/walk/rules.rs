//! Ignore rules: the names that a search leaves out, as git and ripgrep decide it.
//!
//! `.ignore` counts more than `.gitignore`, that more than `.git/info/exclude`, and the nearer
//! folder more than the one above. Rules of git end at the root of a repository, and begin there
//! too: when the Workspace is a folder inside one, the files above it are read, but never shown.
//! Settings of the user's git (`core.excludesFile`) are not read, because a search must give all
//! users the same answer.
#![expect(clippy::disallowed_methods, reason = "files of the user, which are only read")]

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ignore::Match;
use ignore::gitignore::{Gitignore, GitignoreBuilder};
use rustix::fs::OFlags;

use crate::host::workspace::{Wanted, Workspace};

pub const GIT: &str = ".git";
const GIT_RULES: &str = ".gitignore";
const OWN_RULES: &str = ".ignore";
const EXCLUDED: &str = ".git/info/exclude";

/// How much of an ignore file is read.
const FILE_LIMIT: u64 = 1 << 20;

/// The ignore rules that hold in a folder; cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Rules(Option<Arc<Level>>);

/// The rules of one folder, above those of the folders that hold it.
#[derive(Debug)]
struct Level {
    above: Rules,
    /// How many bytes of an entry's path come before the part that is below this folder.
    start: usize,
    own: Option<Gitignore>,
    git: Option<Gitignore>,
    excluded: Option<Gitignore>,
    is_repository: bool,
}

/// The verdict of the ignore rules on a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Judgement {
    Ignored,
    /// A rule with `!` includes it, also when it is hidden.
    Wanted,
    Unsaid,
}

impl Judgement {
    fn or(self, other: impl FnOnce() -> Self) -> Self {
        if self == Self::Unsaid { other() } else { self }
    }
}

/// Which files with ignore rules a folder may have.
#[derive(Debug, Clone, Copy, Default)]
pub struct Present {
    own: bool,
    git: bool,
    repository: bool,
}

impl Present {
    /// The names of the folder were not read, so that each file may exist.
    pub const UNKNOWN: Self = Self { own: true, git: true, repository: true };

    /// Records a name of the folder.
    pub fn note(&mut self, name: &[u8]) {
        self.own |= name == OWN_RULES.as_bytes();
        self.git |= name == GIT_RULES.as_bytes();
        self.repository |= name == GIT.as_bytes();
    }
}

/// Files with ignore rules outside the folders of a walk, whether they exist or not, and each `.git`, which
/// shows where a repository begins.
pub fn outside(workspace: &Workspace) -> Vec<PathBuf> {
    let root = workspace.root();
    let mut files = vec![root.join(EXCLUDED)];
    let Some(top) = root.ancestors().find(|folder| folder.join(GIT).exists()) else {
        // Rules above apply as soon as there is a repository.
        files.extend(root.ancestors().skip(1).map(|folder| folder.join(GIT)));
        return files;
    };
    for folder in root.ancestors().skip(1).take_while(|folder| folder.starts_with(top)) {
        files.extend([GIT, GIT_RULES, OWN_RULES, EXCLUDED].map(|name| folder.join(name)));
    }
    files
}

impl Rules {
    /// The rules of the folders above the Workspace, up to the root of its repository, and the path
    /// from there, which is the prefix of every path that is matched.
    pub fn above(workspace: &Workspace) -> (Self, Vec<u8>) {
        let root = workspace.root();
        let repository = root.ancestors().find(|folder| folder.join(GIT).exists());
        let path = repository.and_then(|top| Some((top, root.strip_prefix(top).ok()?)));
        let Some((top, path)) = path.filter(|(_, path)| !path.as_os_str().is_empty()) else {
            return (Self::default(), Vec::new());
        };
        let mut rules = Self::default();
        let mut folder = top.to_owned();
        let mut before = Vec::new();
        for part in path {
            let is_repository = folder == top;
            rules = rules.enter(Present::UNKNOWN, is_repository, before.len(), |name| {
                let options = OpenOptions::new()
                    .read(true)
                    .custom_flags(OFlags::NONBLOCK.bits().cast_signed())
                    .open(folder.join(name));
                options.ok().filter(|file| file.metadata().is_ok_and(|data| data.is_file()))
            });
            folder.push(part);
            before.extend_from_slice(part.as_bytes());
            before.push(b'/');
        }
        (rules, before)
    }

    /// The rules inside a folder of the Workspace; `start` is the offset in the paths of its entries
    /// behind the folder.
    pub fn inside(
        &self,
        workspace: &Workspace,
        folder: &[u8],
        present: Present,
        start: usize,
    ) -> Self {
        let mut path = folder.to_vec();
        if !path.is_empty() {
            path.push(b'/');
        }
        let mut open = |name: &str| {
            path.truncate(if folder.is_empty() { 0 } else { folder.len() + 1 });
            path.extend_from_slice(name.as_bytes());
            workspace.open_exact(&path, Wanted::File).ok().map(File::from)
        };
        let is_repository = present.repository && {
            let mut git = folder.to_vec();
            git.extend_from_slice(if folder.is_empty() { b".git" } else { b"/.git" });
            let opened = [Wanted::Folder, Wanted::File].map(|it| workspace.open_exact(&git, it));
            opened.iter().any(Result::is_ok)
        };
        self.enter(present, is_repository, start, &mut open)
    }

    fn enter(
        &self,
        present: Present,
        is_repository: bool,
        start: usize,
        mut open: impl FnMut(&str) -> Option<File>,
    ) -> Self {
        let mut load = |is_there: bool, name: &str| {
            if is_there { open(name).and_then(parsed) } else { None }
        };
        let own = load(present.own, OWN_RULES);
        let git = load(present.git, GIT_RULES);
        let excluded = load(is_repository, EXCLUDED);
        if own.is_none() && git.is_none() && !is_repository {
            return self.clone();
        }
        let above = self.clone();
        Self(Some(Arc::new(Level { above, start, own, git, excluded, is_repository })))
    }

    /// The verdict on a path in the folder of these rules.
    pub fn judge(&self, path: &[u8], is_folder: bool) -> Judgement {
        let (mut own, mut git, mut excluded) =
            (Judgement::Unsaid, Judgement::Unsaid, Judgement::Unsaid);
        let mut left_repository = false;
        let mut next = &self.0;
        while let Some(level) = next {
            let rest = Path::new(OsStr::from_bytes(path.get(level.start..).unwrap_or_default()));
            let ask = |rules: &Option<Gitignore>| {
                rules.as_ref().map_or(Judgement::Unsaid, |rules| {
                    match rules.matched(rest, is_folder) {
                        Match::None => Judgement::Unsaid,
                        Match::Ignore(_) => Judgement::Ignored,
                        Match::Whitelist(_) => Judgement::Wanted,
                    }
                })
            };
            own = own.or(|| ask(&level.own));
            if !left_repository {
                git = git.or(|| ask(&level.git));
                excluded = excluded.or(|| ask(&level.excluded));
            }
            left_repository |= level.is_repository;
            next = &level.above.0;
        }
        own.or(|| git).or(|| excluded)
    }
}

/// Parses the rules of a file; an invalid line is left out, as git does.
fn parsed(file: File) -> Option<Gitignore> {
    let mut bytes = Vec::new();
    file.take(FILE_LIMIT).read_to_end(&mut bytes).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    let mut builder = GitignoreBuilder::new("");
    for line in text.trim_start_matches('\u{feff}').lines() {
        builder.add_line(None, line).ok();
    }
    builder.build().ok().filter(|rules| !rules.is_empty())
}
