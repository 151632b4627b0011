//! Ignore rules: the names that a search leaves out, by the rules of git and ripgrep.
//!
//! `.ignore` takes precedence over `.gitignore`, that over `.git/info/exclude`, and a folder over
//! those above it. Rules of git apply from the root of a repository down: when the Workspace is a
//! folder inside a repository, rule files above the Workspace are read, but never shown.
//! Settings of the user's git (`core.excludesFile`) are not read, because a search must give all
//! users the same result.
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

use crate::host::workspace::{OpenKind, Workspace};

pub const DOT_GIT: &str = ".git";
const GITIGNORE_FILE: &str = ".gitignore";
const IGNORE_FILE: &str = ".ignore";
const EXCLUDE_FILE: &str = ".git/info/exclude";

/// The maximum size of an ignore file that is read, in bytes.
const FILE_LIMIT: u64 = 1 << 20;

/// The ignore rules that apply in a folder; cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct IgnoreRules(Option<Arc<RuleLevel>>);

/// The rules of one folder, which take precedence over those of the folders above.
#[derive(Debug)]
struct RuleLevel {
    above: IgnoreRules,
    /// The length of the prefix of an entry's path that leads to this folder, in bytes.
    start: usize,
    own: Option<Gitignore>,
    git: Option<Gitignore>,
    excluded: Option<Gitignore>,
    is_repository: bool,
}

/// The verdict of the ignore rules on a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IgnoreVerdict {
    Ignored,
    /// Included by a rule with `!`, even if the name is hidden.
    Included,
    Unmatched,
}

impl IgnoreVerdict {
    fn or(self, other: impl FnOnce() -> Self) -> Self {
        if self == Self::Unmatched { other() } else { self }
    }
}

/// The files with ignore rules that a folder may have.
#[derive(Debug, Clone, Copy, Default)]
pub struct RuleFiles {
    own: bool,
    git: bool,
    repository: bool,
}

impl RuleFiles {
    /// The value for a folder whose names were not read, so that each file may exist.
    pub const UNKNOWN: Self = Self { own: true, git: true, repository: true };

    /// Records a name of the folder.
    pub fn record_name(&mut self, name: &[u8]) {
        self.own |= name == IGNORE_FILE.as_bytes();
        self.git |= name == GITIGNORE_FILE.as_bytes();
        self.repository |= name == DOT_GIT.as_bytes();
    }
}

/// Files with ignore rules outside the folders of a walk, whether they exist or not, and each `.git`, which
/// shows where a repository begins.
pub fn rule_files_outside(workspace: &Workspace) -> Vec<PathBuf> {
    let root = workspace.root();
    let mut files = vec![root.join(EXCLUDE_FILE)];
    let Some(top) = root.ancestors().find(|folder| folder.join(DOT_GIT).exists()) else {
        // Rules of folders above apply as soon as one of them becomes a repository.
        files.extend(root.ancestors().skip(1).map(|folder| folder.join(DOT_GIT)));
        return files;
    };
    for folder in root.ancestors().skip(1).take_while(|folder| folder.starts_with(top)) {
        files.extend(
            [DOT_GIT, GITIGNORE_FILE, IGNORE_FILE, EXCLUDE_FILE].map(|name| folder.join(name)),
        );
    }
    files
}

impl IgnoreRules {
    /// The rules of the folders above the Workspace, up to the root of its repository, and the path
    /// from there, which is the prefix of every path that is matched.
    pub fn above_workspace(workspace: &Workspace) -> (Self, Vec<u8>) {
        let root = workspace.root();
        let repository = root.ancestors().find(|folder| folder.join(DOT_GIT).exists());
        let path = repository.and_then(|top| Some((top, root.strip_prefix(top).ok()?)));
        let Some((top, path)) = path.filter(|(_, path)| !path.as_os_str().is_empty()) else {
            return (Self::default(), Vec::new());
        };
        let mut rules = Self::default();
        let mut folder = top.to_owned();
        let mut before = Vec::new();
        for part in path {
            let is_repository = folder == top;
            rules = rules.push_level(RuleFiles::UNKNOWN, is_repository, before.len(), |name| {
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

    /// The rules inside a folder of the Workspace; `start` is the offset of the names of its entries
    /// in their paths.
    pub fn in_folder(
        &self,
        workspace: &Workspace,
        folder: &[u8],
        present: RuleFiles,
        start: usize,
    ) -> Self {
        let mut path = folder.to_vec();
        if !path.is_empty() {
            path.push(b'/');
        }
        let mut open = |name: &str| {
            path.truncate(if folder.is_empty() { 0 } else { folder.len() + 1 });
            path.extend_from_slice(name.as_bytes());
            workspace.open_no_follow(&path, OpenKind::File).ok().map(File::from)
        };
        let is_repository = present.repository && {
            let mut git = folder.to_vec();
            git.extend_from_slice(if folder.is_empty() { b".git" } else { b"/.git" });
            let opened =
                [OpenKind::Folder, OpenKind::File].map(|it| workspace.open_no_follow(&git, it));
            opened.iter().any(Result::is_ok)
        };
        self.push_level(present, is_repository, start, &mut open)
    }

    fn push_level(
        &self,
        present: RuleFiles,
        is_repository: bool,
        start: usize,
        mut open: impl FnMut(&str) -> Option<File>,
    ) -> Self {
        let mut load = |is_there: bool, name: &str| {
            if is_there { open(name).and_then(parse_rules) } else { None }
        };
        let own = load(present.own, IGNORE_FILE);
        let git = load(present.git, GITIGNORE_FILE);
        let excluded = load(is_repository, EXCLUDE_FILE);
        if own.is_none() && git.is_none() && !is_repository {
            return self.clone();
        }
        let above = self.clone();
        Self(Some(Arc::new(RuleLevel { above, start, own, git, excluded, is_repository })))
    }

    /// The verdict on a path in the folder of these rules.
    pub fn verdict(&self, path: &[u8], is_folder: bool) -> IgnoreVerdict {
        let (mut own, mut git, mut excluded) =
            (IgnoreVerdict::Unmatched, IgnoreVerdict::Unmatched, IgnoreVerdict::Unmatched);
        let mut left_repository = false;
        let mut next = &self.0;
        while let Some(level) = next {
            let rest = Path::new(OsStr::from_bytes(path.get(level.start..).unwrap_or_default()));
            let match_rules = |rules: &Option<Gitignore>| {
                rules.as_ref().map_or(IgnoreVerdict::Unmatched, |rules| {
                    match rules.matched(rest, is_folder) {
                        Match::None => IgnoreVerdict::Unmatched,
                        Match::Ignore(_) => IgnoreVerdict::Ignored,
                        Match::Whitelist(_) => IgnoreVerdict::Included,
                    }
                })
            };
            own = own.or(|| match_rules(&level.own));
            if !left_repository {
                git = git.or(|| match_rules(&level.git));
                excluded = excluded.or(|| match_rules(&level.excluded));
            }
            left_repository |= level.is_repository;
            next = &level.above.0;
        }
        own.or(|| git).or(|| excluded)
    }
}

/// Parses the rules of a file; an invalid line is left out, as git does.
fn parse_rules(file: File) -> Option<Gitignore> {
    let mut bytes = Vec::new();
    file.take(FILE_LIMIT).read_to_end(&mut bytes).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    let mut builder = GitignoreBuilder::new("");
    for line in text.trim_start_matches('\u{feff}').lines() {
        builder.add_line(None, line).ok();
    }
    builder.build().ok().filter(|rules| !rules.is_empty())
}
