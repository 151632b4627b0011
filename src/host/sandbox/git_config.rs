//! Git config files: a filter that keeps lines that name no program, and the files that they include.
//!
//! A line is kept when its key is on the list of harmless keys, or when the file had it before. Lines
//! that cannot be parsed are left out: this parser is stricter than git's, never more lenient.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Keys that name no program, by section. Git writes most of them itself.
const HARMLESS_KEYS: &[(&str, &[&str])] = &[
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
            "sparsecheckout",
            "sparsecheckoutcone",
            "untrackedcache",
            "splitindex",
            "preloadindex",
            "commitgraph",
            "multipackindex",
            "abbrev",
            "compression",
            "loosecompression",
            "bigfilethreshold",
            "sharedrepository",
            "trustctime",
            "checkstat",
            "longpaths",
            "protecthfs",
            "protectntfs",
            WORK_TREE,
        ],
    ),
    (
        "extensions",
        &[
            "objectformat",
            "compatobjectformat",
            "refstorage",
            "partialclone",
            "preciousobjects",
            "worktreeconfig",
            "relativeworktrees",
        ],
    ),
    ("user", &["name", "email", "signingkey", "useconfigonly"]),
    ("author", &["name", "email"]),
    ("committer", &["name", "email"]),
    ("init", &["defaultbranch"]),
    (
        "remote",
        &[
            "url",
            "pushurl",
            "fetch",
            "push",
            "tagopt",
            "prune",
            "mirror",
            "promisor",
            "partialclonefilter",
            "skipfetchall",
            "skipdefaultupdate",
            "pushdefault",
            "followremotehead",
            "gh-resolved",
        ],
    ),
    (
        "branch",
        &[
            "remote",
            "merge",
            "rebase",
            "pushremote",
            "autosetupmerge",
            "autosetuprebase",
            "description",
            "gh-merge-base",
            "github-pr-owner-number",
            "vscode-merge-base",
        ],
    ),
    (
        "submodule",
        &["url", "active", "branch", "path", "ignore", "update", "shallow", "recurse", "fetchjobs"],
    ),
    ("pull", &["rebase", "ff"]),
    ("push", &["default", "autosetupremote", "followtags", "recursesubmodules"]),
    ("fetch", &["prune", "prunetags", "recursesubmodules", "parallel", "writecommitgraph"]),
    ("merge", &["ff", "conflictstyle", "renames", "log"]),
    ("rebase", &["autostash", "autosquash", "updaterefs"]),
    ("diff", &["algorithm", "renames", "mnemonicprefix", "noprefix", "colormoved", "submodule"]),
    ("status", &["showuntrackedfiles", "submodulesummary", "short", "branch"]),
    ("color", &["ui", "status", "branch", "diff", "interactive"]),
    ("commit", &["gpgsign", "verbose", "cleanup"]),
    ("tag", &["gpgsign", "sort"]),
    ("gc", &["auto", "autopacklimit", "autodetach", "pruneexpire", "reflogexpire"]),
    ("index", &["version", "threads", "sparse", "skiphash"]),
    ("maintenance", &["auto", "strategy"]),
    ("feature", &["manyfiles", "experimental"]),
    ("pack", &["threads", "window", "depth", "packsizelimit"]),
    ("receive", &["denycurrentbranch", "denynonfastforwards", "denydeletes"]),
    ("rerere", &["enabled", "autoupdate"]),
    ("checkout", &["defaultremote", "workers"]),
    ("protocol", &["version"]),
    ("http", &["postbuffer", "version"]),
    ("lfs", &["repositoryformatversion", "access", "locksverify", "url"]),
];

/// The key of the path of a submodule's work tree.
const WORK_TREE: &str = "worktree";

/// The settings that a file may have besides those that are harmless everywhere.
#[derive(Debug, Clone, Default)]
pub struct AllowedSettings {
    known_lines: BTreeSet<(String, String)>,
    /// The folder of the file, and the folder in which a work tree must be.
    work_trees: Option<(PathBuf, PathBuf)>,
}

impl AllowedSettings {
    /// Allows the lines of an earlier state of the file.
    pub fn from_text(text: &str) -> Self {
        let mut heading = String::new();
        let mut known_lines = BTreeSet::new();
        for line in logical_lines(text) {
            let bare = line.trim();
            if bare.starts_with('[') {
                bare.clone_into(&mut heading);
            }
            known_lines.insert((heading.clone(), bare.to_owned()));
        }
        Self { known_lines, work_trees: None }
    }

    /// These settings, with `core.worktree` allowed if the path, relative to `folder`, is in `root`.
    #[must_use]
    pub fn with_work_trees(mut self, folder: &Path, root: &Path) -> Self {
        self.work_trees = Some((folder.to_owned(), root.to_owned()));
        self
    }

    fn allows_work_tree(&self, value: &str) -> bool {
        let Some((folder, root)) = &self.work_trees else { return false };
        let mut path = PathBuf::new();
        for part in folder.join(value).components() {
            match part {
                std::path::Component::ParentDir => drop(path.pop()),
                part => path.push(part),
            }
        }
        path.starts_with(root)
    }
}

/// Filters a settings file: keeps the lines by which git starts no program, and those that are allowed.
pub fn filter_harmless(text: &str, allowed: &AllowedSettings) -> String {
    let mut kept = String::new();
    let mut heading = String::new();
    let mut section: Option<&[&str]> = None;
    for logical in logical_lines(text) {
        let bare = logical.trim();
        if bare.starts_with('[') {
            bare.clone_into(&mut heading);
            section = section_keys(bare);
        }
        if allowed.known_lines.contains(&(heading.clone(), bare.to_owned())) {
            kept.push_str(logical);
            continue;
        }
        // A continued line is checked line by line, and its continuation is never kept.
        for line in logical.split_inclusive('\n') {
            let bare = line.trim();
            let is_kept = bare.is_empty()
                || bare.starts_with(['#', ';'])
                || (bare.starts_with('[') && section.is_some())
                || section.is_some_and(|names| is_harmless(bare, names, allowed));
            if is_kept && !bare.ends_with('\\') {
                kept.push_str(line);
            }
        }
    }
    kept
}

/// The lines of a file, joined with those that continue them. A comment is never continued.
fn logical_lines(text: &str) -> Vec<&str> {
    let mut lines = Vec::new();
    let mut start = 0;
    let mut end = 0;
    for line in text.split_inclusive('\n') {
        end += line.len();
        let is_comment = text[start..end].trim_start().starts_with(['#', ';']);
        let goes_on = line.trim_end_matches(['\n', '\r']).ends_with('\\');
        if is_comment || !goes_on {
            lines.push(&text[start..end]);
            start = end;
        }
    }
    if start < end {
        lines.push(&text[start..end]);
    }
    lines
}

/// The harmless keys of a section; `None` unless the line is only the heading of a known section.
fn section_keys(heading: &str) -> Option<&'static [&'static str]> {
    let inner = heading.strip_prefix('[')?.strip_suffix(']')?;
    let (name, rest) = inner.split_once(' ').unwrap_or((inner, ""));
    let label = rest.trim();
    let is_label = label.is_empty()
        || label
            .strip_prefix('"')
            .and_then(|label| label.strip_suffix('"'))
            .is_some_and(|label| !label.contains(['"', '\\', ']']));
    let names = HARMLESS_KEYS.iter().find(|(own, _)| name.eq_ignore_ascii_case(own))?.1;
    is_label.then_some(names)
}

fn is_harmless(line: &str, names: &[&str], allowed: &AllowedSettings) -> bool {
    let (name, value) = line.split_once('=').unwrap_or((line, ""));
    let (name, value) = (name.trim(), unquote(value.trim()));
    let is_odd = |c: char| c.is_control() && c != '\t' || matches!(c, '"' | '\\');
    names.iter().any(|own| name.eq_ignore_ascii_case(own))
        && !value.contains(is_odd)
        // A `helper::address` URL runs a program.
        && !value.contains("::")
        && !value.starts_with(['!', '-'])
        && (!name.eq_ignore_ascii_case(WORK_TREE) || allowed.allows_work_tree(value))
}

/// A value without its enclosing quotes.
fn unquote(value: &str) -> &str {
    let inner = value.strip_prefix('"').and_then(|value| value.strip_suffix('"'));
    inner.unwrap_or(value)
}

/// The paths of included files as written, regardless of conditions.
pub fn included_paths(text: &str) -> Vec<String> {
    let mut is_inside = false;
    let mut paths = Vec::new();
    for line in logical_lines(text) {
        let mut rest = line.trim();
        if rest.starts_with('[') {
            is_inside = rest.get(..8).is_some_and(|name| name.eq_ignore_ascii_case("[include"));
            // The label of a condition may itself contain a bracket.
            rest = rest.rfind(']').map_or("", |end| rest.get(end + 1..).unwrap_or_default()).trim();
        }
        let Some((name, value)) = rest.split_once('=').filter(|_| is_inside) else { continue };
        if name.trim().eq_ignore_ascii_case("path") {
            let value = value.trim();
            let value = match value.strip_prefix('"') {
                Some(quoted) => quoted.split('"').next().unwrap_or_default(),
                None => value.split(['#', ';']).next().unwrap_or_default().trim_end(),
            };
            paths.push(value.replace("\\\\", "\\"));
        }
    }
    paths
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRESH_CONFIG: &str = "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = false\n\
        \tlogallrefupdates = true\n[remote \"origin\"]\n\turl = https://host.example/a.git\n\
        \tfetch = +refs/heads/*:refs/remotes/origin/*\n[branch \"main\"]\n\tremote = origin\n\
        \tmerge = refs/heads/main\n[user]\n\tname = Ada # here\n\temail = \"a;b@c.d\"\n";

    fn filter_without_known(text: &str) -> String {
        filter_harmless(text, &AllowedSettings::default())
    }

    #[test]
    fn what_git_writes_itself_stays_as_it_is() {
        assert_eq!(filter_without_known(FRESH_CONFIG), FRESH_CONFIG);
        assert_eq!(
            filter_without_known(&FRESH_CONFIG.replace('\n', "\r\n")),
            FRESH_CONFIG.replace('\n', "\r\n")
        );
    }

    #[test]
    fn whatever_starts_a_program_is_left_out() {
        for evil in [
            "[core]\n\tfsmonitor = evil\n",
            "[core] fsmonitor = evil\n",
            "[CORE]\n\tFsMonitor=evil\n",
            "[core]\n\tbare = false\\\n\tfsmonitor = evil\n",
            "[core]\n# a comment \\\n\tfsmonitor = evil\n",
            "[core]\n\thooksPath = evil\n\tsshCommand = evil\n\tpager = evil\n\teditor = evil\n",
            "[include]\n\tpath = ../evil\n",
            "[includeIf \"gitdir:/\"]\n\tpath = ../evil\n",
            "[filter \"x\"]\n\tclean = evil\n",
            "[alias]\n\tstatus = !evil\n",
            "[remote \"origin\"]\n\turl = ext::evil\n",
            "[remote \"origin\"]\n\turl = \"ext::evil\"\n",
            "[remote \"origin\"]\n\tvcs = evil\n\tuploadpack = evil\n",
            "[submodule \"x\"]\n\tupdate = !evil\n",
            "[submodule \"x\"]\n\tupdate = \"!evil\"\n",
            "[credential]\n\thelper = evil\n",
            "[diff]\n\texternal = evil\n",
            "[diff \"x\"]\n\ttextconv = evil\n",
            "[merge \"x\"]\n\tdriver = evil\n",
            "[gpg]\n\tprogram = evil\n",
            "[gc]\n\trecentObjectsHook = evil\n",
            "[uploadpack]\n\tpackObjectsHook = evil\n",
            "[url \"ext::evil\"]\n\tinsteadOf = https://\n",
            "[user]\n[core\n]\n\tfsmonitor = evil\n",
            "[remote \"a\"] evil = evil\n",
            "[remote \"]\n[core]\n\tfsmonitor=evil\"]\n",
            "\u{feff}[core]\n\tfsmonitor = evil\n",
            "[user]\n\tname = a\u{b}evil\n",
            "[core.x]\n\tfsmonitor = evil\n",
            "[user]\n\tname = \"\n[core]\nfsmonitor = evil\"\n",
            "[core]\n\tworktree = /evil\n",
        ] {
            let kept = filter_without_known(evil);
            assert!(!kept.contains("evil"), "{evil:?} leaves {kept:?}");
        }
    }

    #[test]
    fn what_stood_there_before_may_stay_and_nothing_beside_it() {
        let before = "[core]\n\tfsmonitor = mine\n[alias]\n\tst = !a \\\n b\n[filter \"lfs\"]\n\tclean = git-lfs\n";
        let allowed = AllowedSettings::from_text(before);
        assert_eq!(filter_harmless(before, &allowed), before);
        let added =
            format!("{before}\tsmudge = evil\n[core]\n\tfsmonitor = evil\n[user]\n\tname = A\n");
        assert_eq!(
            filter_harmless(&added, &allowed),
            format!("{before}[core]\n[user]\n\tname = A\n")
        );
        let moved = "[filter \"evil\"]\n\tclean = git-lfs\n[alias]\n\tfsmonitor = mine\n";
        assert_eq!(filter_harmless(moved, &allowed), "[alias]\n");
    }

    #[test]
    fn a_work_tree_lies_inside() {
        let root = Path::new("/w");
        let allowed =
            AllowedSettings::default().with_work_trees(Path::new("/w/.git/modules/m"), root);
        let inside = "[core]\n\tworktree = ../../../m\n";
        assert_eq!(filter_harmless(inside, &allowed), inside);
        for outside in ["../../../../m", "/", "/etc", "../../../m/../../x"] {
            let text = format!("[core]\n\tworktree = {outside}\n");
            assert_eq!(filter_harmless(&text, &allowed), "[core]\n", "{outside}");
        }
    }

    #[test]
    fn included_files_are_found_in_every_spelling() {
        let text = "[include]\n\tpath = ../.gitconfig\n[INCLUDE] PATH = \"a b\" ; x\n\
            [includeIf \"gitdir:/[x]/\"]\n\tpath=c # d\n[core]\n\tpath = no\n";
        assert_eq!(included_paths(text), ["../.gitconfig", "a b", "c"]);
    }
}
