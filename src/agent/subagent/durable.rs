//! Subagents as reconstructed from Logs, for other processes and after a restart.

use std::collections::BTreeMap;
use std::time::Duration;

use super::progress::Progress;
use super::record::{Record, View};
use crate::base::id::SessionId;
use crate::base::text::first_chars;
use crate::record::event::{Canonical, EventKind, SubagentUsage, Timestamp, ToolCall};
use crate::record::history::History;
use crate::record::log::{Log, LogError};
use crate::record::state_dir::StateRoot;

/// How deep trees are followed; a Log can be planted, and name itself.
const DEEPEST: u32 = 8;

/// The children of a Session. One whose run has no end is at work if `is_open`, and detached
/// otherwise: the next resume of its parent records that.
pub fn children(
    root: &StateRoot,
    parent: &SessionId,
    is_open: bool,
) -> Result<Vec<View>, LogError> {
    let history = History::from_events(Log::read(root, parent)?.events);
    let views = Record::all(&history).into_iter().map(|mut record| {
        let mut doing = String::new();
        if record.status.is_over() {
            return View { record, doing, place: 0 };
        }
        if !is_open {
            record.detach(root);
        }
        if let Some(seen) = record.child.as_ref().and_then(|child| Seen::of(root, child)) {
            record.elapsed = seen.worked(is_open.then(Timestamp::now).as_ref());
            doing = seen.doing;
        }
        record.usage = billed(root, &record);
        View { record, doing, place: 0 }
    });
    Ok(views.collect())
}

/// Usage and working time of a run whose process died, from the Logs of the child. The record has
/// the usage of earlier runs.
pub fn spent(root: &StateRoot, record: &Record) -> (SubagentUsage, Duration) {
    let seen = record.child.as_ref().and_then(|child| Seen::of(root, child));
    let worked = seen.unwrap_or_default().worked(None);
    (billed(root, record).less(&record.usage), worked)
}

/// Usage of all runs of a child: from the Logs of all its attempts, and from those of its own
/// children that have no end yet. The ends of others are in its Log.
fn billed(root: &StateRoot, record: &Record) -> SubagentUsage {
    Bills { root, known: BTreeMap::new() }.of(record, DEEPEST)
}

/// Usage by Log; each is read once, however often it is named.
struct Bills<'w> {
    root: &'w StateRoot,
    known: BTreeMap<SessionId, SubagentUsage>,
}

impl Bills<'_> {
    fn of(&mut self, record: &Record, depth: u32) -> SubagentUsage {
        let mut usage = SubagentUsage::default();
        let mut own: Vec<&SessionId> = record.tried.iter().chain(&record.child).collect();
        own.dedup();
        for child in own {
            usage.add(&self.of_log(child, depth));
        }
        usage
    }

    fn of_log(&mut self, child: &SessionId, depth: u32) -> SubagentUsage {
        if let Some(known) = self.known.get(child) {
            return *known;
        }
        // A Log that names itself adds nothing.
        self.known.insert(child.clone(), SubagentUsage::default());
        let seen = Seen::of(self.root, child).unwrap_or_default();
        let mut usage = seen.usage;
        let lost = seen.children.iter().filter(|child| !child.status.is_over());
        for child in lost.filter(|_| depth > 0) {
            usage.add(&self.of(child, depth - 1).less(&child.usage));
        }
        self.known.insert(child.clone(), usage);
        usage
    }
}

/// The work of a child, from its Log.
#[derive(Default)]
struct Seen {
    /// Usage of all its runs.
    usage: SubagentUsage,
    doing: String,
    /// Its own children.
    children: Vec<Record>,
    /// Times of its last user message and of its last Event.
    span: Option<(Timestamp, Timestamp)>,
}

impl Seen {
    fn of(root: &StateRoot, child: &SessionId) -> Option<Self> {
        let reading = Log::read(root, child).ok()?;
        let (progress, mut seen) = (Progress::default(), Self::default());
        for event in &reading.events {
            progress.hear(event);
            match event.kind() {
                EventKind::Canonical(Canonical::UserMessage(_)) => {
                    seen.span = Some((event.ts().clone(), event.ts().clone()));
                }
                EventKind::Canonical(Canonical::ToolCall(call)) => seen.doing = about(call),
                EventKind::Canonical(_) | EventKind::Ephemeral(_) => {}
            }
            if let Some((_, last)) = &mut seen.span {
                last.clone_from(event.ts());
            }
        }
        seen.usage = progress.usage();
        seen.children = Record::all(&History::from_events(reading.events));
        Some(seen)
    }

    /// Duration of its last run, until `now` or until its last Event.
    fn worked(&self, now: Option<&Timestamp>) -> Duration {
        let since = |(began, last): &(Timestamp, Timestamp)| now.unwrap_or(last).since(began);
        self.span.as_ref().map(since).unwrap_or_default()
    }
}

fn about(call: &ToolCall) -> String {
    first_chars(&format!("{} {}", call.name, call.args), 100)
}
