//! Contents that no Session needs for undo: files of the snapshot store, its segments, and objects pinned in git.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs::File;
use std::io::{self, Read};
use std::sync::Arc;

use rustix::fs::FileType;

use super::mention::mentioned;
use super::nook::{Found, Nook};
use super::{Session, Waste, is_content_draft, is_hex, is_settled, thing};
use crate::host::snapshot::{OpenSegment, Store, manifest_file};
use crate::record::state_dir::StateRoot;

/// The folders of a store beside those of single contents.
const SEGMENTS: &str = "segments";
const PINS: &str = "git";

/// Contents of the snapshot store that no Session of `living` references.
pub fn contents(root: &StateRoot, sessions: &Nook, living: &[&Session]) -> Vec<Waste> {
    let Some(folder) = Nook::open(&root.snapshots()) else { return Vec::new() };
    let mut waste = Vec::new();
    let single = SingleContents::find(&folder, &mut waste);
    let store = Store::new(root.snapshots());
    // A table that cannot be read may reference anything.
    let segments = store.segments().unwrap_or_default();
    let in_segments = segments.iter().flat_map(|segment| &segment.table().hashes);
    let wanted: HashSet<String> =
        single.files.keys().cloned().chain(in_segments.map(ToString::to_string)).collect();
    let Some(named) = named_by_records(sessions, living, &wanted) else { return waste };
    let Some(named) = single.with_manifests(&store, &wanted, named) else { return waste };
    waste.extend(single.unnamed(&named));
    waste.extend(unnamed_segments(&folder, &segments, &named));
    waste
}

/// The contents that Logs and snapshot records name; `None` when one cannot be read: it may name anything.
fn named_by_records(
    sessions: &Nook,
    living: &[&Session],
    wanted: &HashSet<String>,
) -> Option<HashSet<String>> {
    let mut named = HashSet::new();
    for session in living {
        let records =
            sessions.inner(session.id.as_str()).and_then(|folder| folder.inner("snapshots"));
        let files = records
            .iter()
            .flat_map(|nook| nook.names().into_iter().map(move |found| nook.file(&found.name)));
        for file in files.chain([sessions.file(&session.found.name)]) {
            mentioned(file?, wanted, &mut named).ok()?;
        }
    }
    Some(named)
}

/// Contents in files of their own.
struct SingleContents {
    folders: Vec<Nook>,
    /// By hash: the index of the folder, and the file.
    files: BTreeMap<String, (usize, Found)>,
}

impl SingleContents {
    fn find(store: &Nook, waste: &mut Vec<Waste>) -> Self {
        let is_folder = |found: &&Found| is_hex(&found.name, &[2]);
        let names = store.names();
        let folders = names.iter().filter(is_folder).filter_map(|found| store.inner(&found.name));
        let folders: Vec<Nook> = folders.collect();
        let mut files = BTreeMap::new();
        for (number, folder) in folders.iter().enumerate() {
            let entries = folder.names().into_iter();
            for found in entries.filter(|found| found.sort == FileType::RegularFile) {
                if is_hex(&found.name, &[64]) {
                    files.insert(found.name.clone(), (number, found));
                } else if is_content_draft(&found.name) && is_settled(&found) {
                    waste.push(thing("leftover", folder, &found, None));
                }
            }
        }
        Self { folders, files }
    }

    /// Adds the contents that named Manifests name in turn; `None` when one cannot be read.
    fn with_manifests(
        &self,
        store: &Store,
        wanted: &HashSet<String>,
        mut named: HashSet<String>,
    ) -> Option<HashSet<String>> {
        let mut waiting: Vec<String> = named.iter().cloned().collect();
        while let Some(name) = waiting.pop() {
            let Some((number, found)) = self.files.get(&name) else { continue };
            let file = self.folders.get(*number).and_then(|folder| folder.file(&found.name));
            let Some(file) = file else { continue };
            let mut more = HashSet::new();
            names_in(file, store, wanted, &mut more).ok()?;
            waiting.extend(more.into_iter().filter(|name| named.insert(name.clone())));
        }
        Some(named)
    }

    fn unnamed(&self, named: &HashSet<String>) -> Vec<Waste> {
        let unnamed = self.files.iter().filter(|(name, _)| !named.contains(*name));
        let settled = unnamed.filter(|(_, (_, found))| is_settled(found));
        let waste = settled.filter_map(|(_, (number, found))| {
            Some(thing("snapshot", self.folders.get(*number)?, found, None))
        });
        waste.collect()
    }
}

/// Collects the contents that a content names: a Manifest lists all files.
fn names_in(
    mut file: File,
    store: &Store,
    wanted: &HashSet<String>,
    found: &mut HashSet<String>,
) -> io::Result<()> {
    let mut start = vec![0; manifest_file::MAGIC.len()];
    let count = file.read(&mut start)?;
    start.truncate(count);
    if start != manifest_file::MAGIC {
        return mentioned(start.as_slice().chain(file), wanted, found);
    }
    file.read_to_end(&mut start)?;
    for hash in manifest_file::hashes(&start, store)? {
        let name = hash.to_string();
        if wanted.contains(&name) {
            found.insert(name);
        }
    }
    Ok(())
}

/// Segments without a named content, and pins that no other segment needs.
fn unnamed_segments(
    store: &Nook,
    segments: &[Arc<OpenSegment>],
    named: &HashSet<String>,
) -> Vec<Waste> {
    let Some(folder) = store.inner(SEGMENTS) else { return Vec::new() };
    let files = folder.names();
    let is_young = |segment: &OpenSegment| {
        let index = format!("{}.index", segment.name());
        files.iter().any(|found| found.name == index && !is_settled(found))
    };
    let is_needed = |segment: &&Arc<OpenSegment>| {
        let mut hashes = segment.table().hashes.iter();
        is_young(segment) || hashes.any(|hash| named.contains(&hash.to_string()))
    };
    let (needed, unneeded): (Vec<_>, Vec<_>) = segments.iter().partition(is_needed);
    let unneeded: BTreeSet<&str> = unneeded.iter().map(|segment| segment.name()).collect();
    let mut waste = Vec::new();
    for found in files.iter().filter(|found| found.sort == FileType::RegularFile) {
        let name = found.name.strip_suffix(".index").or(found.name.strip_suffix(".data"));
        if name.is_some_and(|name| unneeded.contains(name)) {
            waste.push(thing("snapshot", &folder, found, None));
        } else if is_content_draft(&found.name) && is_settled(found) {
            waste.push(thing("leftover", &folder, found, None));
        }
    }
    // A table that could not be read may need any of them.
    let indexes = files.iter().filter(|found| found.name.strip_suffix(".index").is_some()).count();
    if indexes == segments.len() {
        waste.extend(unneeded_pins(store, &needed));
    }
    waste
}

fn unneeded_pins(store: &Nook, needed: &[&Arc<OpenSegment>]) -> Vec<Waste> {
    let Some(folder) = store.inner(PINS) else { return Vec::new() };
    let packs: HashSet<&str> =
        needed.iter().flat_map(|own| &own.table().packs).map(String::as_str).collect();
    let loose: HashSet<String> =
        needed.iter().flat_map(|own| &own.table().loose).map(ToString::to_string).collect();
    let mut waste = Vec::new();
    for found in folder.names() {
        if found.sort == FileType::Directory {
            let Some(inner) = folder.inner(&found.name) else { continue };
            let objects = inner.names().into_iter();
            let unneeded =
                objects.filter(|own| !loose.contains(&format!("{}{}", found.name, own.name)));
            waste.extend(unneeded.map(|own| thing("snapshot", &inner, &own, None)));
        } else {
            let name = found.name.strip_suffix(".pack").or(found.name.strip_suffix(".idx"));
            if name.is_some_and(|name| !packs.contains(name)) {
                waste.push(thing("snapshot", &folder, &found, None));
            }
        }
    }
    waste
}
