//! Checked segments: the segments of a store, with the contents that they can still hold as far as sizes and
//! times of their files show.
//!
//! A power failure truncates files that were not forced to the disk, and a command can overwrite git's objects in
//! place. A content that is lost in one of these ways must be stored again.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use super::git_pins::{GitPins, LARGEST_IN_GIT};
use super::open_segment::OpenSegment;
use super::segment::Location;
use super::{ContentStore, SEGMENTS};
use crate::host::git_objects::ObjectId;
use crate::host::snapshot::ContentHash;

/// The segments of a store at one time.
#[derive(Debug)]
pub struct CheckedSegments {
    segments: Vec<CheckedSegment>,
    pins: Option<GitPins>,
}

/// A segment and the state of its files.
#[derive(Debug)]
struct CheckedSegment {
    segment: Arc<OpenSegment>,
    /// The time of the last write of its table, in seconds and nanoseconds.
    written: (i64, i64),
    /// The length of its data file, in bytes.
    data_length: u64,
    /// Whether each pack of its list is intact.
    intact_packs: Vec<bool>,
}

/// What is known about a content of a segment.
#[derive(Debug, Clone, Copy)]
enum ContentCheck<'s> {
    Whole,
    Lost,
    /// A pinned loose object, which has no record of its time.
    Loose(&'s ObjectId),
}

impl CheckedSegments {
    /// Checks the files of all segments of a store.
    pub fn new(store: &ContentStore) -> io::Result<Self> {
        let loaded = store.segments()?;
        let pins = GitPins::open(&store.folder)?;
        let folder = store.folder.join(SEGMENTS).open()?;
        let stat = |name: String| folder.as_ref().and_then(|it| it.stat(name).ok().flatten());
        let mut known_packs = HashMap::new();
        let mut segments = Vec::new();
        for segment in loaded {
            let is_intact = |name: &String| {
                let check = || pins.as_ref().is_some_and(|pins| pins.is_intact(name));
                *known_packs.entry(name.clone()).or_insert_with(check)
            };
            segments.push(CheckedSegment {
                written: stat(format!("{}.index", segment.name())).map_or((0, 0), |it| it.modified),
                data_length: stat(format!("{}.data", segment.name())).map_or(0, |it| it.bytes),
                intact_packs: segment.table().packs.iter().map(is_intact).collect(),
                segment,
            });
        }
        Ok(Self { segments, pins })
    }

    /// Whether the store has no segment yet.
    pub fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    /// Whether a segment has a content that could be lost.
    pub fn has_doubts(&self) -> bool {
        self.segments.iter().any(|own| {
            let table = own.segment.table();
            !table.loose.is_empty()
                || own.intact_packs.contains(&false)
                || table.data_end() > own.data_length
        })
    }

    /// Whether a segment holds this content.
    pub fn holds(&self, hash: &ContentHash, content: &[u8]) -> bool {
        self.checks(hash).any(|(_, check)| match check {
            ContentCheck::Whole => true,
            ContentCheck::Lost => false,
            ContentCheck::Loose(id) => self.pins.as_ref().is_some_and(|pins| {
                pins.read_loose(id, content.len() as u64).is_ok_and(|own| own == content)
            }),
        })
    }

    /// Whether segments have a row for this content, but none can hold it any more.
    pub fn has_lost(&self, hash: &ContentHash) -> bool {
        let mut checks = self.checks(hash).peekable();
        checks.peek().is_some()
            && !checks.any(|(own, check)| match check {
                ContentCheck::Whole => true,
                ContentCheck::Lost => false,
                ContentCheck::Loose(id) => self.pins.as_ref().is_some_and(|pins| {
                    // An object that was written after the table is read: git sets the times of objects, too.
                    pins.is_loose_older(id, own.written)
                        || pins
                            .read_loose(id, LARGEST_IN_GIT)
                            .is_ok_and(|content| ContentHash::digest(&content) == *hash)
                }),
            })
    }

    /// The segments that have a row for a content, and the state of that content.
    fn checks<'s>(
        &'s self,
        hash: &'s ContentHash,
    ) -> impl Iterator<Item = (&'s CheckedSegment, ContentCheck<'s>)> {
        self.segments.iter().filter_map(|own| {
            let table = own.segment.table();
            let whole = |is_whole| if is_whole { ContentCheck::Whole } else { ContentCheck::Lost };
            let check = match table.location(hash)? {
                Location::Data { offset, length } => {
                    whole(offset.checked_add(length).is_some_and(|end| end <= own.data_length))
                }
                Location::Pack { pack, .. } => whole(own.intact_packs.get(pack) == Some(&true)),
                Location::Loose { object } => {
                    table.loose.get(object).map_or(ContentCheck::Lost, ContentCheck::Loose)
                }
            };
            Some((own, check))
        })
    }
}
