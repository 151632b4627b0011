//! Checks after a command has run in a hostile checkout.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use memchr::memmem;
use pixir::scripted::{ReceivedRequest, ScriptedServer};
use sha2::{Digest, Sha256};

use super::checkout::{CANARY, CommandOutput, HostileCheckout, other_endpoint};
use super::plant::{PlantKind, STRANGER};

/// Kinds of findings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FindingKind {
    /// A file outside the Workspace changed.
    Outside,
    /// The command did not end.
    Hang,
    /// Planted state or settings were used.
    PlantedStateUsed,
    /// Content from outside was stored, shown or sent.
    Read,
    /// The command was killed, panicked or used up its memory.
    Crash,
}

/// A finding and its evidence.
#[derive(Debug, Clone)]
pub struct Finding {
    pub fault: FindingKind,
    pub text: String,
}

/// Largest size of files whose content is compared.
const LARGEST: u64 = 64 << 20;

/// Mode, owner, time, size and content of a file.
type FileIdentity = (u32, u32, i64, i64, u64, Vec<u8>);

/// Files before a command has run.
#[derive(Debug)]
pub struct StateBefore {
    outside: BTreeMap<PathBuf, FileIdentity>,
    kept: BTreeMap<PathBuf, FileIdentity>,
    forbidden: BTreeMap<PathBuf, FileIdentity>,
    /// Other names, outside, of planted files of the Workspace: such a file is changed under all its names
    /// (ADR 0015).
    second_names: BTreeSet<PathBuf>,
}

impl StateBefore {
    pub fn capture(env: &HostileCheckout, kind: PlantKind, paths: &[PathBuf]) -> Self {
        let mut outside = outside(env);
        let second_names = second_names(env, kind, paths, &outside);
        outside.retain(|path, _| !second_names.contains(path));
        let kept = kept(env, kind, paths);
        Self { outside, kept, forbidden: forbidden(env), second_names }
    }

    /// Findings after the command.
    pub fn findings(
        &self,
        env: &HostileCheckout,
        kind: PlantKind,
        paths: &[PathBuf],
        ended: &CommandOutput,
        server: &ScriptedServer,
    ) -> Vec<Finding> {
        let mut findings = Vec::new();
        let mut add = |fault, text: String| findings.push(Finding { fault, text });
        if ended.is_hung {
            add(FindingKind::Hang, "it did not end".to_owned());
        } else if !matches!(ended.code, Some(0..=100 | 102..)) {
            let last = ended.output.lines().rev().take(6).collect::<Vec<_>>().join(" / ");
            add(FindingKind::Crash, format!("it ended with {:?}: {last}", ended.code));
        }
        if ["out of memory", "memory allocation"].iter().any(|words| ended.output.contains(words)) {
            add(FindingKind::Crash, "it read until memory was used up".to_owned());
        }
        let mut outside = outside(env);
        outside.retain(|path, _| !self.second_names.contains(path));
        if let Some(text) = differences(&self.outside, &outside) {
            add(FindingKind::Outside, text);
        }
        let after = kept(env, kind, paths);
        let mut before = self.kept.clone();
        // Another user's file in the user's own folder may be replaced or removed as a whole. Nothing in a folder
        // of the other user may be removed while the folder stays.
        let stays_in_strange_folder = |path: &Path| {
            let folder = path.parent();
            folder
                .is_some_and(|folder| self.kept.contains_key(folder) && after.contains_key(folder))
        };
        before.retain(|path, _| {
            kind != PlantKind::OtherOwner
                || after.contains_key(path)
                || stays_in_strange_folder(path)
        });
        if let Some(text) = differences(&before, &after) {
            add(
                FindingKind::PlantedStateUsed,
                format!("state that is not to be used was used: {text}"),
            );
        }
        if let Some(text) = differences(&self.forbidden, &forbidden(env)) {
            add(FindingKind::PlantedStateUsed, format!("without permission, {text}"));
        }
        if other_endpoint().accept().is_ok() {
            add(
                FindingKind::PlantedStateUsed,
                "another endpoint was called, here or in a cell beside it".to_owned(),
            );
        }
        let requests = server.take_requests();
        let found = leaks(env, ended, &requests);
        if !found.is_empty() && !kind.shares_content() {
            add(FindingKind::Read, format!("content from outside is in {}", shortened(found)));
        }
        findings
    }
}

/// Identities of the files at these paths; a replaced file has another identity.
pub fn identity(env: &HostileCheckout, paths: &[PathBuf]) -> Vec<Option<(u64, u32, u64)>> {
    let stat = |path: &PathBuf| fs::symlink_metadata(env.work().join(path)).ok();
    let identity = |stat: fs::Metadata| {
        (stat.ino(), stat.mode(), if stat.is_file() { stat.size() } else { 0 })
    };
    paths.iter().map(|path| stat(path).map(identity)).collect()
}

fn read_identity(path: &Path) -> Option<FileIdentity> {
    let stat = fs::symlink_metadata(path).ok()?;
    let content = if stat.is_symlink() {
        fs::read_link(path).map(|to| to.into_os_string().into_encoded_bytes()).unwrap_or_default()
    } else if stat.is_file() && stat.len() <= LARGEST {
        Sha256::digest(fs::read(path).unwrap_or_default()).to_vec()
    } else {
        Vec::new()
    };
    Some((stat.mode(), stat.uid(), stat.mtime(), stat.mtime_nsec(), stat.size(), content))
}

fn look_below(
    path: &Path,
    seen: &mut BTreeMap<PathBuf, FileIdentity>,
    is_wanted: &impl Fn(&Path) -> bool,
) {
    if !is_wanted(path) {
        return;
    }
    let Some(found) = read_identity(path) else { return };
    seen.insert(path.to_owned(), found);
    if path.symlink_metadata().is_ok_and(|stat| stat.is_dir()) {
        for entry in fs::read_dir(path).into_iter().flatten().flatten() {
            look_below(&entry.path(), seen, is_wanted);
        }
    }
}

/// All files outside the Workspace and Pixir's own folder, and files of the Workspace that git would run.
fn outside(env: &HostileCheckout) -> BTreeMap<PathBuf, FileIdentity> {
    let mut seen = BTreeMap::new();
    let work = env.work();
    let own = env.home().join(".pixir");
    look_below(&env.root, &mut seen, &|path| path != work && path != own);
    // Making Pixir's folder changes the time of its parent.
    seen.remove(&env.home());
    for name in ["hooks", "config"] {
        look_below(&work.join(".git").join(name), &mut seen, &|_| true);
    }
    seen
}

/// The names outside of files that were planted as hard links among the user's own files, not in state or settings.
fn second_names(
    env: &HostileCheckout,
    kind: PlantKind,
    paths: &[PathBuf],
    outside: &BTreeMap<PathBuf, FileIdentity>,
) -> BTreeSet<PathBuf> {
    let inode = |path: &Path| fs::symlink_metadata(path).ok().map(|stat| (stat.dev(), stat.ino()));
    let is_users_file = |path: &&PathBuf| !path.as_os_str().as_encoded_bytes().starts_with(b".");
    let planted: BTreeSet<(u64, u64)> = if kind.shares_content() {
        let files = paths.iter().filter(is_users_file);
        files.filter_map(|path| inode(&env.work().join(path))).collect()
    } else {
        BTreeSet::new()
    };
    let is_planted = |path: &&PathBuf| inode(path).is_some_and(|inode| planted.contains(&inode));
    outside.keys().filter(is_planted).cloned().collect()
}

/// Files that the model tries to write without permission.
fn forbidden(env: &HostileCheckout) -> BTreeMap<PathBuf, FileIdentity> {
    let mut seen = BTreeMap::new();
    for name in ["believed.txt", "believed-too.txt"] {
        look_below(&env.work().join(name), &mut seen, &|_| true);
    }
    seen
}

/// State of another user or from the repository, which must not change.
fn kept(
    env: &HostileCheckout,
    kind: PlantKind,
    paths: &[PathBuf],
) -> BTreeMap<PathBuf, FileIdentity> {
    let mut seen = BTreeMap::new();
    if matches!(kind, PlantKind::OtherOwner | PlantKind::Tracked) {
        for path in paths.iter().filter(|path| is_state(path)) {
            look_below(&env.work().join(path), &mut seen, &|_| true);
        }
    }
    seen.retain(|_, look| kind != PlantKind::OtherOwner || look.1 == STRANGER);
    seen
}

fn is_state(path: &Path) -> bool {
    let is_below = |name: &str| path.starts_with(Path::new(".pixir").join(name));
    is_below("sessions") || is_below("snapshots")
}

/// Descriptions of the differences between two states.
fn differences(
    before: &BTreeMap<PathBuf, FileIdentity>,
    after: &BTreeMap<PathBuf, FileIdentity>,
) -> Option<String> {
    let gone = before.keys().filter(|path| !after.contains_key(*path));
    let made = after.keys().filter(|path| !before.contains_key(*path));
    let other =
        after.iter().filter(|(path, look)| before.get(*path).is_some_and(|old| old != *look));
    let gone = gone.map(|path| format!("{} is gone", path.display()));
    let made = made.map(|path| format!("{} is new", path.display()));
    let other = other.map(|(path, _)| format!("{} is changed", path.display()));
    let all: Vec<String> = gone.chain(made).chain(other).collect();
    (!all.is_empty()).then(|| shortened(all))
}

/// The first few entries, and the number of the others.
fn shortened(mut all: Vec<String>) -> String {
    let more = all.len().saturating_sub(3);
    all.truncate(3);
    let shown = all.join(", ");
    if more == 0 { shown } else { format!("{shown} and {more} more") }
}

/// Places that contain content of a file outside.
fn leaks(
    env: &HostileCheckout,
    ended: &CommandOutput,
    requests: &[ReceivedRequest],
) -> Vec<String> {
    let mut found = Vec::new();
    if ended.output.contains(CANARY) {
        found.push("what it printed".to_owned());
    }
    for request in requests {
        if request.body_text.contains(CANARY) {
            found.push(format!("a request to {}", request.path));
        }
    }
    let mut seen = BTreeMap::new();
    look_below(&env.work(), &mut seen, &|_| true);
    look_below(&env.home().join(".pixir"), &mut seen, &|_| true);
    let is_file =
        |stat: &fs::Metadata| stat.is_file() && stat.nlink() == 1 && stat.len() <= LARGEST;
    let files =
        seen.into_keys().filter(|path| fs::symlink_metadata(path).is_ok_and(|stat| is_file(&stat)));
    let holds = |path: &PathBuf| {
        memmem::find(&fs::read(path).unwrap_or_default(), CANARY.as_bytes()).is_some()
    };
    found.extend(files.filter(holds).map(|path| path.display().to_string()));
    found
}
