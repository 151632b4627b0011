//! What other Sessions changed in the same files, and when, read from their Records.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::FileType;

use super::delta::ManifestDelta;
use super::line::{Line, Seen};
use super::record::{FOLDER, Record};
use super::{Hash, Manifest, RawPath, Store};
use crate::files::StateEntry;
use crate::id::SessionId;
use crate::state::{SessionFolder, StateRoot};

/// How much older than the clock the time of a file may be.
const TICK: Duration = Duration::from_secs(1);

/// The changes of other Sessions that a Session must not take for its own.
#[derive(Debug, Default)]
pub struct OtherSessions {
    /// What their file tools wrote: only that is known to be theirs.
    claims: BTreeMap<PathBuf, Vec<Claim>>,
    /// What changed while a command of theirs ran, and a command of this Session too: either may have
    /// done it, or another program.
    shared: BTreeMap<PathBuf, BTreeSet<String>>,
}

/// A span of time, in nanoseconds since the epoch.
type Span = (u64, u64);

/// A change by a Session, at some moment of a span.
#[derive(Debug)]
struct Claim {
    session: String,
    span: Span,
}

/// The Session that is asked for: where it works, and when commands of it ran.
struct Own<'r> {
    workspace: &'r Path,
    commands: Vec<Span>,
}

impl OtherSessions {
    /// Reads what other Sessions in these roots did since the first survey of these Records, in the
    /// same Workspace, one inside it or one around it. What cannot be read claims nothing.
    pub fn read(session_folder: &SessionFolder, roots: &[StateRoot], records: &[Record]) -> Self {
        let mut others = Self::default();
        let began: Vec<&Line> = records.iter().filter_map(Record::began).collect();
        let Some(Line::Began { workspace, .. }) = began.first() else { return others };
        let surveys = records.iter().flat_map(|record| &record.lines);
        let since = surveys.filter_map(|line| match line {
            Line::CommandSurvey { started, .. } => Some(*started),
            _ => None,
        });
        let Some(since) = since.min() else { return others };
        let commands = records.iter().flat_map(command_spans).collect();
        let own = Own { workspace: workspace.as_ref(), commands };
        for folder in roots.iter().flat_map(session_folders) {
            if folder == *session_folder {
                continue;
            }
            for turn in turns_since(&folder, since) {
                let Ok(record) = Record::read(&folder, turn) else { continue };
                // A fork has the same Records as its parent.
                if record.began().is_some_and(|line| !began.contains(&line)) {
                    others.add(&record, &Store::beside(&folder), &own);
                }
            }
        }
        others
    }

    /// The Session whose file tools changed a path within a span of time.
    pub fn claim(&self, path: &Path, span: Span) -> Option<&str> {
        let claims = self.claims.get(path)?;
        claims.iter().find(|claim| overlap(claim.span, span)).map(|claim| claim.session.as_str())
    }

    /// The Sessions that ran a command while a path changed and this Session ran one too.
    pub fn sharing(&self, path: &Path) -> impl Iterator<Item = &str> {
        self.shared.get(path).into_iter().flatten().map(String::as_str)
    }

    fn add(&mut self, record: &Record, store: &Store, own: &Own<'_>) {
        let Some(Line::Began { session, workspace, .. }) = record.began() else { return };
        let place = |path: &Path| in_workspace(path, workspace.as_ref(), own.workspace);
        let mut open: BTreeMap<&Path, (u64, &[RawPath])> = BTreeMap::new();
        let mut running: Option<u64> = None;
        for (number, line) in record.lines.iter().enumerate() {
            match line {
                Line::Found { path, made, at, .. } => {
                    open.insert(path.as_ref(), (*at, made));
                }
                Line::Left { path, at, .. } => {
                    let (started, made) = open.remove(path.0.as_path()).unwrap_or((*at, &[]));
                    self.add_write(&path.0, made, session, (started, *at), place);
                }
                Line::CommandSurvey { seen, is_running, started, ended } => {
                    let span = running.map(|since| (since, *ended));
                    if span.is_some_and(|span| own.commands.iter().any(|own| overlap(span, *own))) {
                        let delta = match seen {
                            Seen::Changed(delta) => Some(delta.clone()),
                            Seen::All(_) => full_delta(record, number, seen, store),
                        };
                        self.add_delta(&delta.unwrap_or_default(), session, place);
                    }
                    running = is_running.then_some(*started);
                }
                _ => {}
            }
        }
        // The Turn was cut off, or runs: it may have written this at any moment since.
        for (path, (started, made)) in open {
            self.add_write(path, made, session, (started, u64::MAX), place);
        }
    }

    fn add_write(
        &mut self,
        path: &Path,
        made: &[RawPath],
        session: &str,
        span: Span,
        place: impl Fn(&Path) -> Option<PathBuf>,
    ) {
        for path in made.iter().map(AsRef::as_ref).chain([path]).filter_map(place) {
            let claim = Claim { session: session.to_owned(), span };
            self.claims.entry(path).or_default().push(claim);
        }
    }

    fn add_delta(
        &mut self,
        delta: &ManifestDelta,
        session: &str,
        place: impl Fn(&Path) -> Option<PathBuf>,
    ) {
        let files = delta.files.iter().filter(|file| file.from != file.to);
        let files = files.map(|file| &file.path);
        let folders = delta.folders.iter().map(|folder| &folder.path);
        for path in files.chain(folders).filter_map(|RawPath(path)| place(path)) {
            self.shared.entry(path).or_default().insert(session.to_owned());
        }
    }
}

fn overlap(one: Span, other: Span) -> bool {
    one.0 <= other.1 && other.0 <= one.1
}

/// When commands of a Turn ran.
fn command_spans(record: &Record) -> Vec<Span> {
    let mut spans = Vec::new();
    let mut running: Option<u64> = None;
    for line in &record.lines {
        let Line::CommandSurvey { is_running, started, ended, .. } = line else { continue };
        spans.extend(running.map(|since| (since, *ended)));
        running = is_running.then_some(*started);
    }
    // The Turn was cut off.
    spans.extend(running.map(|since| (since, u64::MAX)));
    spans
}

/// A path of one Workspace as another one names it; `None` when it is not in that.
fn in_workspace(path: &Path, from: &Path, to: &Path) -> Option<PathBuf> {
    if from == to {
        return Some(path.to_owned());
    }
    from.join(path).strip_prefix(to).ok().map(Path::to_owned)
}

/// What a survey that kept everything saw change since the one before.
fn full_delta(record: &Record, place: usize, seen: &Seen, store: &Store) -> Option<ManifestDelta> {
    let Seen::All(hash) = seen else { return None };
    let read = |hash: &Hash| Manifest::kept(hash, store);
    let before = record.manifest_before(place, read).ok()??;
    let after = Manifest::kept(hash, store).ok()?;
    Some(ManifestDelta::between(&before, &after, &BTreeSet::new()))
}

/// The folders of the Sessions in a root.
fn session_folders(root: &StateRoot) -> Vec<SessionFolder> {
    let all = root.sessions().open().ok().flatten();
    let entries = all.and_then(|all| all.entries().ok()).unwrap_or_default();
    let id_of = |entry: StateEntry| SessionId::parse(entry.name.to_str()?).ok();
    let ids = entries.into_iter().filter(|entry| entry.kind == FileType::Directory);
    ids.filter_map(id_of).map(|id| root.session_folder(&id)).collect()
}

/// The Turns of a Session whose Records were written to since then.
fn turns_since(folder: &SessionFolder, since: u64) -> Vec<u64> {
    let since = Duration::from_nanos(since).saturating_sub(TICK);
    let records = folder.join(FOLDER).open().ok().flatten();
    let entries = records.and_then(|records| records.entries().ok()).unwrap_or_default();
    let turn_of = |entry: StateEntry| {
        let turn = entry.name.to_str()?.strip_suffix(".ndjson")?.parse().ok()?;
        let (seconds, nanoseconds) = entry.modified;
        let written = Duration::new(u64::try_from(seconds).ok()?, u32::try_from(nanoseconds).ok()?);
        (entry.kind == FileType::RegularFile && written >= since).then_some(turn)
    };
    entries.into_iter().filter_map(turn_of).collect()
}
