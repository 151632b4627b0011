//! What other Sessions of a Workspace changed, and when, read from their Records.

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
use crate::state::SessionFolder;

/// How much older than the clock the time of a file may be.
const TICK: Duration = Duration::from_secs(1);

/// The changes of other Sessions that a Session must not take for its own.
#[derive(Debug, Default)]
pub struct OtherSessions {
    claims: BTreeMap<PathBuf, Vec<Claim>>,
}

/// A change by a Session, at some moment of a span, in nanoseconds since the epoch.
#[derive(Debug)]
struct Claim {
    session: String,
    started: u64,
    ended: u64,
}

impl OtherSessions {
    /// Reads what the other Sessions beside this one did since the first survey of these Records, in
    /// the same Workspace. What cannot be read claims nothing.
    pub fn read(session_folder: &SessionFolder, records: &[Record], store: &Store) -> Self {
        let mut others = Self::default();
        let own: Vec<&Line> = records.iter().filter_map(Record::began).collect();
        let surveys = records.iter().flat_map(|record| &record.lines);
        let since = surveys.filter_map(|line| match line {
            Line::CommandSurvey { started, .. } => Some(*started),
            _ => None,
        });
        let Some(since) = since.min() else { return others };
        for folder in folders_beside(session_folder) {
            for turn in turns_since(&folder, since) {
                let Ok(record) = Record::read(&folder, turn) else { continue };
                let began = record.began();
                // A fork has the same Records as its parent.
                if began.is_some_and(|began| {
                    !own.contains(&began) && own.iter().any(|own| is_same_place(own, began))
                }) {
                    others.add(&record, store);
                }
            }
        }
        others
    }

    /// The Session that changed a path within a span of time.
    pub fn claim(&self, path: &Path, (started, ended): (u64, u64)) -> Option<&str> {
        let claims = self.claims.get(path)?;
        let overlaps = |claim: &&Claim| claim.started <= ended && started <= claim.ended;
        claims.iter().find(overlaps).map(|claim| claim.session.as_str())
    }

    fn add(&mut self, record: &Record, store: &Store) {
        let Some(Line::Began { session, .. }) = record.began() else { return };
        let mut open: BTreeMap<&Path, (u64, &[RawPath])> = BTreeMap::new();
        let mut running: Option<u64> = None;
        for (place, line) in record.lines.iter().enumerate() {
            match line {
                Line::Found { path, made, at, .. } => {
                    open.insert(path.as_ref(), (*at, made));
                }
                Line::Left { path, at, .. } => {
                    let (started, made) = open.remove(path.0.as_path()).unwrap_or((*at, &[]));
                    self.add_write(&path.0, made, session, (started, *at));
                }
                Line::CommandSurvey { seen, is_running, started, ended } => {
                    if let Some(since) = running {
                        let delta = match seen {
                            Seen::Changed(delta) => Some(delta.clone()),
                            Seen::All(_) => full_delta(record, place, seen, store),
                        };
                        self.add_delta(&delta.unwrap_or_default(), session, (since, *ended));
                    }
                    running = is_running.then_some(*started);
                }
                _ => {}
            }
        }
        // The Turn was cut off, or runs: it may have written this at any moment since.
        for (path, (started, made)) in open {
            self.add_write(path, made, session, (started, u64::MAX));
        }
    }

    fn add_write(&mut self, path: &Path, made: &[RawPath], session: &str, span: (u64, u64)) {
        for path in made.iter().map(AsRef::as_ref).chain([path]) {
            self.claims_of(path.to_owned(), session, span);
        }
    }

    fn add_delta(&mut self, delta: &ManifestDelta, session: &str, span: (u64, u64)) {
        let files = delta.files.iter().filter(|file| file.from != file.to);
        let files = files.map(|file| &file.path);
        let folders = delta.folders.iter().map(|folder| &folder.path);
        for RawPath(path) in files.chain(folders).chain(&delta.not_kept) {
            self.claims_of(path.clone(), session, span);
        }
    }

    fn claims_of(&mut self, path: PathBuf, session: &str, (started, ended): (u64, u64)) {
        let claim = Claim { session: session.to_owned(), started, ended };
        self.claims.entry(path).or_default().push(claim);
    }
}

/// What a survey that kept everything saw change since the one before.
fn full_delta(record: &Record, place: usize, seen: &Seen, store: &Store) -> Option<ManifestDelta> {
    let Seen::All(hash) = seen else { return None };
    let read = |hash: &Hash| Manifest::kept(hash, store);
    let before = record.manifest_before(place, read).ok()??;
    let after = Manifest::kept(hash, store).ok()?;
    Some(ManifestDelta::between(&before, &after, &BTreeSet::new()))
}

fn is_same_place(own: &Line, other: &Line) -> bool {
    match (own, other) {
        (Line::Began { workspace: own, .. }, Line::Began { workspace: other, .. }) => own == other,
        _ => false,
    }
}

/// The folders of the other Sessions whose Logs lie beside this one's.
fn folders_beside(session_folder: &SessionFolder) -> Vec<SessionFolder> {
    let all = session_folder.root().sessions().open().ok().flatten();
    let entries = all.and_then(|all| all.entries().ok()).unwrap_or_default();
    let id_of = |entry: StateEntry| SessionId::parse(entry.name.to_str()?).ok();
    let ids = entries.into_iter().filter(|entry| entry.kind == FileType::Directory);
    let others = ids.filter_map(id_of).filter(|id| id != session_folder.id());
    others.map(|id| session_folder.root().session_folder(&id)).collect()
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
