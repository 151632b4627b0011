//! Contents that no Session needs for undo: files of the snapshot store, its segments, and objects pinned in git.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs::File;
use std::io::{self, Read};
use std::sync::Arc;

use rustix::fs::FileType;

use super::gc_folder::{FolderEntry, GcFolder};
use super::references::collect_references;
use super::{GarbageItem, GarbageKind, SessionLog, garbage_item, is_content_draft, is_settled};
use crate::base::files::StatePath;
use crate::base::id::is_hex;
use crate::host::snapshot::{
    ContentHash, ContentStore, OpenSegment, SegmentLocation, manifest_file,
};
use crate::record::state_dir::StateRoot;

/// The folders of a store that hold no single contents.
const SEGMENTS: &str = "segments";
const GIT_PINS: &str = "git";

/// Contents of the snapshot store that no Session of `living` references.
pub fn unreferenced_contents(
    root: &StateRoot,
    sessions: &GcFolder,
    living: &[&SessionLog],
) -> Vec<GarbageItem> {
    let Some(folder) = GcFolder::open(&root.snapshots()) else { return Vec::new() };
    let mut garbage = Vec::new();
    let single = SingleContents::find(&folder, &mut garbage);
    let store = ContentStore::new(root.snapshots());
    // When a table cannot be read, no segment is listed, so none is removed.
    let segments = store.segments().unwrap_or_default();
    let in_segments = segments.iter().flat_map(|segment| &segment.table().hashes);
    let wanted: HashSet<String> =
        single.files.keys().cloned().chain(in_segments.map(ToString::to_string)).collect();
    let Some(named) = named_by_records(sessions, living, &wanted) else { return garbage };
    let Some(named) = single.add_named_by_manifests(&store, &wanted, named) else { return garbage };
    garbage.extend(single.unreferenced(&named));
    garbage.extend(unreferenced_segments(&folder, &segments, &named, has_own_objects(root)));
    garbage
}

/// The contents that Logs and snapshot records name; `None` when one cannot be read: it may name anything.
fn named_by_records(
    sessions: &GcFolder,
    living: &[&SessionLog],
    wanted: &HashSet<String>,
) -> Option<HashSet<String>> {
    let mut named = HashSet::new();
    for session in living {
        let records = sessions
            .open_folder(session.id.as_str())
            .and_then(|folder| folder.open_folder("snapshots"));
        let files = records.iter().flat_map(|gc_folder| {
            gc_folder.entries().into_iter().map(move |found| gc_folder.open_file(&found.name))
        });
        for file in files.chain([sessions.open_file(&session.found.name)]) {
            collect_references(file?, wanted, &mut named).ok()?;
        }
    }
    Some(named)
}

/// Contents that are stored in separate files.
struct SingleContents {
    folders: Vec<GcFolder>,
    /// The index of the folder and the entry of each file, by hash.
    files: BTreeMap<String, (usize, FolderEntry)>,
}

impl SingleContents {
    fn find(store: &GcFolder, garbage: &mut Vec<GarbageItem>) -> Self {
        let is_folder = |found: &&FolderEntry| is_hex(&found.name, 2);
        let names = store.entries();
        let folders =
            names.iter().filter(is_folder).filter_map(|found| store.open_folder(&found.name));
        let folders: Vec<GcFolder> = folders.collect();
        let mut files = BTreeMap::new();
        for (number, folder) in folders.iter().enumerate() {
            let entries = folder.entries().into_iter();
            for found in entries.filter(|found| found.file_type == FileType::RegularFile) {
                if is_hex(&found.name, 64) {
                    files.insert(found.name.clone(), (number, found));
                } else if is_content_draft(&found.name) && is_settled(&found) {
                    garbage.push(garbage_item(GarbageKind::Leftover, folder, &found, None));
                }
            }
        }
        Self { folders, files }
    }

    /// Adds the contents that named and young Manifests name in turn; `None` when one cannot be read.
    fn add_named_by_manifests(
        &self,
        store: &ContentStore,
        wanted: &HashSet<String>,
        mut named: HashSet<String>,
    ) -> Option<HashSet<String>> {
        // A young Manifest may be about to be referenced, and the next survey relies on the last one.
        let young = self.files.iter().filter(|(_, (_, found))| !is_settled(found));
        let mut waiting: Vec<String> =
            named.iter().cloned().chain(young.map(|(name, _)| name.clone())).collect();
        while let Some(name) = waiting.pop() {
            let Some((number, found)) = self.files.get(&name) else { continue };
            let file = self.folders.get(*number).and_then(|folder| folder.open_file(&found.name));
            let Some(file) = file else { continue };
            let mut more = HashSet::new();
            collect_named_contents(file, store, wanted, &mut more).ok()?;
            waiting.extend(more.into_iter().filter(|name| named.insert(name.clone())));
        }
        Some(named)
    }

    fn unreferenced(&self, named: &HashSet<String>) -> Vec<GarbageItem> {
        let unnamed = self.files.iter().filter(|(name, _)| !named.contains(*name));
        let settled = unnamed.filter(|(_, (_, found))| is_settled(found));
        let garbage = settled.filter_map(|(_, (number, found))| {
            Some(garbage_item(GarbageKind::Snapshot, self.folders.get(*number)?, found, None))
        });
        garbage.collect()
    }
}

/// Collects the contents that another content names: a Manifest lists all files.
fn collect_named_contents(
    mut file: File,
    store: &ContentStore,
    wanted: &HashSet<String>,
    found: &mut HashSet<String>,
) -> io::Result<()> {
    let mut start = vec![0; manifest_file::MAGIC.len()];
    let count = file.read(&mut start)?;
    start.truncate(count);
    if start != manifest_file::MAGIC {
        return collect_references(start.as_slice().chain(file), wanted, found);
    }
    file.read_to_end(&mut start)?;
    for hash in manifest_file::content_hashes(&start, store)? {
        let name = hash.to_string();
        if wanted.contains(&name) {
            found.insert(name);
        }
    }
    Ok(())
}

/// Whether git still has objects of its own. Where it has none, the pins may be all that is left of a repository.
fn has_own_objects(root: &StateRoot) -> bool {
    if !root.workspace().is_dir() {
        return true;
    }
    let objects = StatePath::root(root.workspace()).join(".git").join("objects");
    let Some(objects) = GcFolder::open(&objects) else { return false };
    objects.entries().iter().filter(|found| found.file_type == FileType::Directory).any(|found| {
        let is_object = |own: &FolderEntry| match found.name.as_str() {
            "pack" => own.name.strip_suffix(".pack").is_some(),
            folder => is_hex(folder, 2),
        };
        objects.open_folder(&found.name).is_some_and(|it| it.entries().iter().any(is_object))
    })
}

/// Segments without a named content, and, unless all pins stay, those that no named content needs.
fn unreferenced_segments(
    store: &GcFolder,
    segments: &[Arc<OpenSegment>],
    named: &HashSet<String>,
    may_remove_pins: bool,
) -> Vec<GarbageItem> {
    let Some(folder) = store.open_folder(SEGMENTS) else { return Vec::new() };
    let files = folder.entries();
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
    let mut garbage = Vec::new();
    for found in files.iter().filter(|found| found.file_type == FileType::RegularFile) {
        let name = found.name.strip_suffix(".index").or(found.name.strip_suffix(".data"));
        if name.is_some_and(|name| unneeded.contains(name)) {
            garbage.push(garbage_item(GarbageKind::Snapshot, &folder, found, None));
        } else if is_content_draft(&found.name) && is_settled(found) {
            garbage.push(garbage_item(GarbageKind::Leftover, &folder, found, None));
        }
    }
    // A table that could not be read may need any pin.
    let indexes = files.iter().filter(|found| found.name.strip_suffix(".index").is_some()).count();
    if indexes == segments.len() && may_remove_pins {
        let mut pins = NeededPins::default();
        for segment in needed {
            let are_all_needed = is_young(segment);
            pins.add_segment(segment, |hash| are_all_needed || named.contains(&hash.to_string()));
        }
        garbage.extend(unneeded_pins(store, &pins));
    }
    garbage
}

/// The packs and loose objects that hold needed contents.
#[derive(Default)]
struct NeededPins {
    packs: BTreeSet<String>,
    loose: BTreeSet<String>,
}

impl NeededPins {
    /// Adds the pins of the needed contents of a segment.
    fn add_segment(&mut self, segment: &OpenSegment, is_needed: impl Fn(&ContentHash) -> bool) {
        let table = segment.table();
        for (hash, location) in table.hashes.iter().zip(&table.locations) {
            let pin = match location {
                SegmentLocation::Data { .. } => None,
                SegmentLocation::Pack { pack, .. } => {
                    table.packs.get(*pack).map(|name| (&mut self.packs, name.clone()))
                }
                SegmentLocation::Loose { object } => {
                    table.loose.get(*object).map(|id| (&mut self.loose, id.to_string()))
                }
            };
            if let Some((pins, name)) = pin
                && !pins.contains(&name)
                && is_needed(hash)
            {
                pins.insert(name);
            }
        }
    }
}

fn unneeded_pins(store: &GcFolder, needed: &NeededPins) -> Vec<GarbageItem> {
    let Some(folder) = store.open_folder(GIT_PINS) else { return Vec::new() };
    let mut garbage = Vec::new();
    for found in folder.entries() {
        if found.file_type == FileType::Directory {
            let Some(inner) = folder.open_folder(&found.name) else { continue };
            let objects = inner.entries().into_iter();
            let is_unneeded = |own: &FolderEntry| {
                !needed.loose.contains(&format!("{}{}", found.name, own.name))
                    && (!is_content_draft(&own.name) || is_settled(own))
            };
            let unneeded = objects.filter(is_unneeded);
            garbage.extend(
                unneeded.map(|own| garbage_item(GarbageKind::Snapshot, &inner, &own, None)),
            );
        } else {
            let kinds = [".pack", ".idx", ".pin"];
            let name = kinds.into_iter().find_map(|kind| found.name.strip_suffix(kind));
            if name.is_some_and(|name| !needed.packs.contains(name)) {
                garbage.push(garbage_item(GarbageKind::Snapshot, &folder, &found, None));
            } else if is_content_draft(&found.name) && is_settled(&found) {
                garbage.push(garbage_item(GarbageKind::Leftover, &folder, &found, None));
            }
        }
    }
    garbage
}
