//! Newborn repositories: what a command may make of a Workspace that had none.
//!
//! `git init` is everyday work, so a `.git` may come to be. But git runs programs that a repository
//! names, and the user's own `git status`, or that of their prompt, does so outside of every
//! sandbox. So a repository that a command made starts without hooks, and its settings are those
//! that start nothing. What had to go lies beside it under another name, in case it was the user
//! who made it meanwhile. From the next command on they are kept like any other's. A link in place of
//! `.git` must go on leading where it led.

use std::ffi::OsStr;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use rustix::fs::FileType;

use super::git::is_repository;
use super::pinned::Pinned;

/// Settings longer than this are no newborn's.
const LONGEST_CONFIG: u64 = 64 * 1024;
/// How deep modules of modules are looked at.
const DEEPEST_MODULE: usize = 4;
/// What stands in settings that had to be written anew.
const PLAIN: &str = "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = false\n";

/// What is put behind the name of what git must not find.
const ASIDE: &str = ".untamed";

/// The settings that start no program, by section.
const HARMLESS: &[(&str, &[&str])] = &[
    (
        "core",
        &[
            "repositoryformatversion",
            "filemode",
            "bare",
            "logallrefupdates",
            "ignorecase",
            "precomposeunicode",
            "symlinks",
            "autocrlf",
            "eol",
            "safecrlf",
            "quotepath",
        ],
    ),
    ("extensions", &["objectformat", "compatobjectformat", "refstorage"]),
    ("user", &["name", "email"]),
    ("init", &["defaultbranch"]),
    ("remote", &["url", "pushurl", "fetch", "tagopt"]),
    ("branch", &["remote", "merge", "rebase"]),
    ("submodule", &["url", "active"]),
    ("pull", &["rebase", "ff"]),
    ("push", &["default", "autosetupremote"]),
    ("merge", &["ff"]),
    ("color", &["ui"]),
];

/// The top of a Workspace before a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Top {
    workspace: PathBuf,
    was: Was,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Was {
    /// No `.git`; the Workspace may itself have been what git takes for a repository.
    Missing { is_bare: bool },
    /// A link, and where it led in the end.
    Link { target: PathBuf, led_to: Option<PathBuf> },
    /// A folder or a file; that is the business of the Spec.
    There,
}

impl Top {
    /// Looks before a command.
    pub fn look(workspace: &Path) -> Self {
        let dot_git = workspace.join(".git");
        let was = match Pinned::at(&dot_git) {
            Ok(place) => match place.kind() {
                None => Was::Missing { is_bare: is_repository(workspace) },
                Some(FileType::Symlink) => Was::Link {
                    target: place.link().unwrap_or_default(),
                    led_to: dot_git.canonicalize().ok(),
                },
                Some(_) => Was::There,
            },
            Err(_) => Was::There,
        };
        Self { workspace: workspace.to_owned(), was }
    }

    /// Whether there is plainly nothing to mend; a glance, where `mend` may read and write.
    pub fn is_calm(&self) -> bool {
        match &self.was {
            Was::There => true,
            Was::Missing { is_bare } => {
                let place = Pinned::at(&self.workspace.join(".git"));
                let is_missing = place.is_ok_and(|place| place.kind().is_none());
                is_missing && (*is_bare || !is_repository(&self.workspace))
            }
            Was::Link { .. } => false,
        }
    }

    /// Looks after it, and takes away what would start a program; says what that was.
    pub fn mend(&self) -> Vec<PathBuf> {
        let mut mended = Vec::new();
        let dot_git = self.workspace.join(".git");
        let Ok(place) = Pinned::at(&dot_git) else { return mended };
        match &self.was {
            Was::There => {}
            Was::Missing { is_bare } => match place.kind() {
                None if !is_bare && is_repository(&self.workspace) => {
                    tame(&self.workspace, DEEPEST_MODULE, &mut mended);
                }
                None => {}
                Some(FileType::Directory) => tame(&dot_git, DEEPEST_MODULE, &mut mended),
                // A file or a link leads to a folder that nobody has looked at.
                Some(_) => remove(&place, dot_git, &mut mended),
            },
            Was::Link { target, led_to } => {
                let leads_to = dot_git.canonicalize().ok();
                let is_link = place.link().as_ref() == Some(target);
                match led_to {
                    _ if !is_link => {
                        place.make_link(target).ok();
                        mended.push(dot_git);
                    }
                    // A link on the way was changed; now there is none.
                    Some(led_to) if leads_to.as_ref() != Some(led_to) => {
                        place.make_link(led_to).ok();
                        mended.push(dot_git);
                    }
                    None if leads_to.is_some() => remove(&place, dot_git, &mut mended),
                    _ => {}
                }
            }
        }
        mended
    }
}

fn remove(place: &Pinned, path: PathBuf, mended: &mut Vec<PathBuf>) {
    if place.remove().is_ok() {
        mended.push(path);
    }
}

/// Takes from a repository's folder everything by which git would start a program.
fn tame(folder: &Path, depth: usize, mended: &mut Vec<PathBuf>) {
    for name in ["config.worktree", "commondir", "gitdir"] {
        let path = folder.join(name);
        if let Ok(place) = Pinned::at(&path)
            && place.kind().is_some()
        {
            remove(&place, path, mended);
        }
    }
    tame_hooks(&folder.join("hooks"), mended);
    tame_config(&folder.join("config"), mended);
    let modules = folder.join("modules");
    if depth == 0 {
        return;
    }
    let Ok(place) = Pinned::at(&modules) else { return };
    match place.kind() {
        Some(FileType::Directory) => {
            for name in place.names() {
                let module = modules.join(name);
                if fs::symlink_metadata(&module).is_ok_and(|found| found.is_dir()) {
                    tame(&module, depth - 1, mended);
                }
            }
        }
        Some(_) => remove(&place, modules, mended),
        None => {}
    }
}

fn tame_hooks(hooks: &Path, mended: &mut Vec<PathBuf>) {
    let Ok(place) = Pinned::at(hooks) else { return };
    match place.kind() {
        None => {}
        Some(FileType::Directory) => {
            for name in place.names().into_iter().filter(|name| !is_idle(name)) {
                let path = hooks.join(name);
                if let Ok(hook) = Pinned::at(&path) {
                    match hook.set_aside(ASIDE) {
                        Ok(()) => mended.push(path),
                        Err(_) => remove(&hook, path, mended),
                    }
                }
            }
        }
        Some(_) => remove(&place, hooks.to_owned(), mended),
    }
}

/// Whether git never runs a hook of this name.
fn is_idle(name: &OsStr) -> bool {
    let ending = Path::new(name).extension();
    ending.is_some_and(|ending| ending == "sample" || ending == &ASIDE[1..])
}

fn tame_config(config: &Path, mended: &mut Vec<PathBuf>) {
    let Ok(place) = Pinned::at(config) else { return };
    if place.kind().is_none() {
        return;
    }
    let mut text = String::new();
    let read = place.open().and_then(|file| file.take(LONGEST_CONFIG).read_to_string(&mut text));
    let is_whole = read.is_ok_and(|count| (count as u64) < LONGEST_CONFIG);
    let kept = if is_whole { harmless(&text) } else { PLAIN.to_owned() };
    if is_whole && kept == text {
        return;
    }
    if place.kind() == Some(FileType::RegularFile) {
        place.set_aside(ASIDE).ok();
    }
    if place.make_file(kept.as_bytes(), 0o644).is_ok() {
        mended.push(config.to_owned());
    }
}

/// The lines of settings that start nothing; what is not understood is left out.
fn harmless(text: &str) -> String {
    let mut kept = String::new();
    let mut section: Option<&[&str]> = None;
    for line in text.split_inclusive('\n') {
        let bare = line.trim();
        if bare.starts_with('[') {
            section = section_of(bare);
        }
        let is_kept = bare.is_empty()
            || bare.starts_with(['#', ';'])
            || (bare.starts_with('[') && section.is_some())
            || section.is_some_and(|names| is_harmless(bare, names));
        // What git reads on in the next line is not what stands here.
        if is_kept && !bare.ends_with('\\') {
            kept.push_str(line);
        }
    }
    kept
}

/// The harmless settings of a section, if its heading is nothing but a heading.
fn section_of(heading: &str) -> Option<&'static [&'static str]> {
    let inner = heading.strip_prefix('[')?.strip_suffix(']')?;
    let (name, rest) = inner.split_once(' ').unwrap_or((inner, ""));
    let label = rest.trim();
    let is_label = label.is_empty()
        || label
            .strip_prefix('"')
            .and_then(|label| label.strip_suffix('"'))
            .is_some_and(|label| !label.contains(['"', '\\', ']']));
    let names = HARMLESS.iter().find(|(own, _)| name.eq_ignore_ascii_case(own))?.1;
    is_label.then_some(names)
}

fn is_harmless(line: &str, names: &[&str]) -> bool {
    let (name, value) = line.split_once('=').unwrap_or((line, ""));
    let (name, value) = (name.trim(), value.trim());
    let is_odd = |c: char| c.is_control() && c != '\t' || matches!(c, '"' | '\\');
    names.iter().any(|own| name.eq_ignore_ascii_case(own))
        && !value.contains(is_odd)
        // A transport that is a program.
        && !value.contains("::")
        && !value.starts_with(['!', '-'])
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    const BORN: &str = "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = false\n\
        \tlogallrefupdates = true\n[remote \"origin\"]\n\turl = https://host.example/a.git\n\
        \tfetch = +refs/heads/*:refs/remotes/origin/*\n[branch \"main\"]\n\tremote = origin\n\
        \tmerge = refs/heads/main\n[user]\n\tname = Ada # here\n";

    #[test]
    fn what_git_writes_itself_stays_as_it_is() {
        assert_eq!(harmless(BORN), BORN);
        assert_eq!(harmless(PLAIN), PLAIN);
        assert_eq!(harmless(&BORN.replace('\n', "\r\n")), BORN.replace('\n', "\r\n"));
    }

    #[test]
    fn whatever_starts_a_program_is_left_out() {
        for evil in [
            "[core]\n\tfsmonitor = evil\n",
            "[core] fsmonitor = evil\n",
            "[CORE]\n\tFsMonitor=evil\n",
            "[core]\n\tbare = false\\\n\tfsmonitor = evil\n",
            "[core]\n\thooksPath = evil\n\tsshCommand = evil\n\tpager = evil\n\teditor = evil\n",
            "[include]\n\tpath = ../evil\n",
            "[includeIf \"gitdir:/\"]\n\tpath = ../evil\n",
            "[filter \"x\"]\n\tclean = evil\n",
            "[alias]\n\tstatus = !evil\n",
            "[remote \"origin\"]\n\turl = ext::evil\n",
            "[remote \"origin\"]\n\tvcs = evil\n\tuploadpack = evil\n",
            "[submodule \"x\"]\n\tupdate = !evil\n",
            "[credential]\n\thelper = evil\n",
            "[diff]\n\texternal = evil\n",
            "[user]\n[core\n]\n\tfsmonitor = evil\n",
            "[remote \"a\"] evil = evil\n",
            "[remote \"]\n[core]\n\tfsmonitor=evil\"]\n",
            "\u{feff}[core]\n\tfsmonitor = evil\n",
            "[user]\n\tname = a\u{b}evil\n",
            "[core.x]\n\tfsmonitor = evil\n",
            "[user]\n\tname = \"\n[core]\nfsmonitor = evil\"\n",
        ] {
            let kept = harmless(evil);
            assert!(!kept.contains("evil"), "{evil:?} leaves {kept:?}");
        }
    }

    struct Place(#[expect(dead_code, reason = "held, and removed")] tempfile::TempDir, PathBuf);

    impl Place {
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
        let place = Place::new();
        let top = Top::look(&place.1);
        assert_eq!(top.mend(), Vec::<PathBuf>::new());
        for name in ["hooks/pre-commit", "hooks/pre-push.sample", "commondir", "modules/m/hooks/x"]
        {
            place.write(&format!(".git/{name}"), "evil");
        }
        place.write(".git/config", &format!("{BORN}[core]\n\tfsmonitor = evil\n"));
        place.write(".git/modules/m/config", "[core]\n\tfsmonitor = evil\n");
        let mended = top.mend();
        let git = place.1.join(".git");
        for name in
            ["hooks/pre-commit", "commondir", "config", "modules/m/config", "modules/m/hooks/x"]
        {
            assert!(mended.contains(&git.join(name)), "{name}: {mended:?}");
        }
        assert!(git.join("hooks/pre-push.sample").exists());
        assert!(
            git.join("hooks/pre-commit.untamed").exists() && !git.join("hooks/pre-commit").exists()
        );
        assert!(fs::read_to_string(git.join("config.untamed")).unwrap().contains("evil"));
        let config = fs::read_to_string(git.join("config")).unwrap();
        assert_eq!(config, format!("{BORN}[core]\n"));
        assert_eq!(top.mend(), Vec::<PathBuf>::new(), "once is enough");
        assert_eq!(Top::look(&place.1).was, Was::There);
    }

    #[test]
    fn neither_a_file_nor_a_link_nor_a_bare_one_comes_to_be() {
        let place = Place::new();
        let top = Top::look(&place.1);
        place.write("evil/config", "[core]\n\tfsmonitor = evil\n");
        place.write(".git", "gitdir: evil\n");
        assert_eq!(top.mend(), [place.1.join(".git")]);
        symlink("evil", place.1.join(".git")).unwrap();
        assert_eq!(top.mend(), [place.1.join(".git")]);
        for name in ["HEAD", "objects/x", "refs/x"] {
            place.write(name, "");
        }
        place.write("config", "[core]\n\tbare = true\n\tfsmonitor = evil\n");
        assert_eq!(top.mend(), [place.1.join("config")]);
        assert_eq!(Top::look(&place.1).was, Was::Missing { is_bare: true });
    }

    #[test]
    fn a_link_goes_on_leading_where_it_led() {
        let place = Place::new();
        place.write("real/HEAD", "");
        symlink("way", place.1.join(".git")).unwrap();
        symlink("real", place.1.join("way")).unwrap();
        let top = Top::look(&place.1);
        assert_eq!(top.mend(), Vec::<PathBuf>::new());
        place.write("evil/config", "");
        fs::remove_file(place.1.join(".git")).unwrap();
        symlink("evil", place.1.join(".git")).unwrap();
        assert_eq!(top.mend(), [place.1.join(".git")]);
        fs::remove_file(place.1.join("way")).unwrap();
        symlink("evil", place.1.join("way")).unwrap();
        assert_eq!(top.mend(), [place.1.join(".git")]);
        assert_eq!(place.1.join(".git").canonicalize().unwrap(), place.1.join("real"));
    }
}
