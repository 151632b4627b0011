//! Subagents as reconstructed from Logs, for other processes and after a restart.

use std::collections::BTreeMap;
use std::time::Duration;

use super::progress::SubagentProgress;
use super::record::{SubagentRecord, SubagentView};
use crate::base::id::SessionId;
use crate::base::text::truncate_chars;
use crate::record::event::{Canonical, EventKind, SubagentUsage, Timestamp, ToolCall};
use crate::record::history::History;
use crate::record::log::{Log, LogError};
use crate::record::state_dir::StateRoot;

/// How deep trees are followed; a Log can be planted, and name itself.
const MAX_DEPTH: u32 = 8;

/// The children of a Session. A child whose run has no end is running if `is_open`, and detached
/// otherwise: the next resume of its parent records that.
pub fn read_children(
    root: &StateRoot,
    parent: &SessionId,
    is_open: bool,
) -> Result<Vec<SubagentView>, LogError> {
    let history = History::from_events(Log::read(root, parent)?.events);
    let views = SubagentRecord::read_all(&history).into_iter().map(|mut record| {
        let mut doing = String::new();
        if record.status.is_over() {
            return SubagentView { record, activity: doing, position: 0 };
        }
        if !is_open {
            record.detach(root);
        }
        if let Some(seen) =
            record.child.as_ref().and_then(|child| ChildLogSummary::read(root, child))
        {
            record.elapsed = seen.worked(is_open.then(Timestamp::now).as_ref());
            doing = seen.activity;
        }
        record.usage = read_total_usage(root, &record);
        SubagentView { record, activity: doing, position: 0 }
    });
    Ok(views.collect())
}

/// Usage and working time of a run whose process died, from the Logs of the child. The record has
/// the usage of earlier runs.
pub fn read_run_usage(root: &StateRoot, record: &SubagentRecord) -> (SubagentUsage, Duration) {
    let seen = record.child.as_ref().and_then(|child| ChildLogSummary::read(root, child));
    let worked = seen.unwrap_or_default().worked(None);
    (read_total_usage(root, record).minus(&record.usage), worked)
}

/// Usage of all runs of a child: from the Logs of all its attempts, and from those of its own
/// children that have no end yet. The ends of others are in its Log.
fn read_total_usage(root: &StateRoot, record: &SubagentRecord) -> SubagentUsage {
    RecordedUsage { root, known: BTreeMap::new() }.child_usage(record, MAX_DEPTH)
}

/// Usage by Log; each is read once, however often it is named.
struct RecordedUsage<'w> {
    root: &'w StateRoot,
    known: BTreeMap<SessionId, SubagentUsage>,
}

impl RecordedUsage<'_> {
    fn child_usage(&mut self, record: &SubagentRecord, depth: u32) -> SubagentUsage {
        let mut usage = SubagentUsage::default();
        let mut own: Vec<&SessionId> = record.failed_sessions.iter().chain(&record.child).collect();
        own.dedup();
        for child in own {
            usage.add(&self.log_usage(child, depth));
        }
        usage
    }

    fn log_usage(&mut self, child: &SessionId, depth: u32) -> SubagentUsage {
        if let Some(known) = self.known.get(child) {
            return *known;
        }
        // A Log that names itself adds nothing.
        self.known.insert(child.clone(), SubagentUsage::default());
        let seen = ChildLogSummary::read(self.root, child).unwrap_or_default();
        let mut usage = seen.usage;
        let lost = seen.children.iter().filter(|child| !child.status.is_over());
        for child in lost.filter(|_| depth > 0) {
            usage.add(&self.child_usage(child, depth - 1).minus(&child.usage));
        }
        self.known.insert(child.clone(), usage);
        usage
    }
}

/// The work of a child, from its Log.
#[derive(Default)]
struct ChildLogSummary {
    /// Usage of all its runs.
    usage: SubagentUsage,
    activity: String,
    /// Its own children.
    children: Vec<SubagentRecord>,
    /// Times of its last user message and of its last Event.
    span: Option<(Timestamp, Timestamp)>,
}

impl ChildLogSummary {
    fn read(root: &StateRoot, child: &SessionId) -> Option<Self> {
        let reading = Log::read(root, child).ok()?;
        let (progress, mut seen) = (SubagentProgress::default(), Self::default());
        for event in &reading.events {
            progress.apply_event(event);
            match event.kind() {
                EventKind::Canonical(Canonical::UserMessage(_)) => {
                    seen.span = Some((event.ts().clone(), event.ts().clone()));
                }
                EventKind::Canonical(Canonical::ToolCall(call)) => {
                    seen.activity = describe_call(call);
                }
                EventKind::Canonical(_) | EventKind::Ephemeral(_) => {}
            }
            if let Some((_, last)) = &mut seen.span {
                last.clone_from(event.ts());
            }
        }
        seen.usage = progress.usage();
        seen.children = SubagentRecord::read_all(&History::from_events(reading.events));
        Some(seen)
    }

    /// Duration of its last run, until `now` or until its last Event.
    fn worked(&self, now: Option<&Timestamp>) -> Duration {
        let since =
            |(began, last): &(Timestamp, Timestamp)| now.unwrap_or(last).duration_since(began);
        self.span.as_ref().map(since).unwrap_or_default()
    }
}

fn describe_call(call: &ToolCall) -> String {
    truncate_chars(&format!("{} {}", call.name, call.args), 100)
}
