//! Repair: a cleaned copy of a damaged Log, and a report; the original is never touched.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;

use serde::Serialize;

use super::verify::named_resources;
use super::{Log, LogBreak, LogContents, LogError, blob, verify_log};
use crate::base::files::WriteDurability;
use crate::base::id::SessionId;
use crate::record::event::{Canonical, Event, Extra, LogRepaired, SharedEvent, ToolCall};
use crate::record::history;
use crate::record::history::History;
use crate::record::resource::ResourceStore;
use crate::record::state_dir::{SessionFolder, StateRoot};

/// The file name of a repair's report, in the folder of the copy.
const REPORT: &str = "repair.json";

/// The report of a repair.
#[derive(Debug, Serialize)]
pub struct RepairReport {
    /// The Session that was damaged.
    pub original: SessionId,
    /// The Log of the original, which is unchanged.
    #[serde(serialize_with = "crate::base::paths::as_text")]
    pub original_path: PathBuf,
    /// The copy, which is a separate Session.
    pub session_id: SessionId,
    /// The copy's Log.
    #[serde(serialize_with = "crate::base::paths::as_text")]
    pub path: PathBuf,
    /// The path of this report.
    #[serde(serialize_with = "crate::base::paths::as_text")]
    pub report_path: PathBuf,
    /// Events that were copied.
    pub events_kept: usize,
    /// Lines of the original that were copied although no proof shows that they are unchanged. In the copy they
    /// have a proof like every other line.
    pub unproven_lines_kept: Vec<u64>,
    /// Payloads that cannot be read, results without a call, and results that came twice.
    pub events_dropped: usize,
    /// Ends and results that were missing and were added.
    pub events_added: usize,
    /// All breaks of the original.
    pub breaks: Vec<LogBreak>,
}

/// Writes a cleaned copy under a new id, and the report into the copy's folder.
pub fn repair_log(root: impl Into<StateRoot>, id: &SessionId) -> Result<RepairReport, LogError> {
    let root = &root.into();
    let verification = verify_log(root, id)?;
    let reading = Log::read(root, id)?;
    let total = reading.events.len();
    let suspects = unproven_events(&reading, &verification.breaks);
    let sound = sound_events(reading, &verification.breaks);
    let kept = drop_unpaired_results(&History::from_events(sound));
    let (mut copy, copy_id) = create_copy(root, id)?;
    copy_resources(root, id, &copy, &kept)?;
    copy_events(&mut copy, &kept)?;
    close_open_ends(&mut copy, &verification.breaks)?;
    let added = copy.next_seq() - kept.len() as u64;
    copy.syncer().sync()?;
    let folder = root.session_folder(&copy_id);
    let repaired = RepairReport {
        original: id.clone(),
        original_path: root.log(id),
        path: copy.path().to_owned(),
        report_path: folder.path().join(REPORT),
        session_id: copy_id,
        events_kept: kept.len(),
        unproven_lines_kept: kept_lines(&suspects, &kept),
        events_dropped: total - kept.len(),
        events_added: usize::try_from(added).unwrap_or(usize::MAX),
        breaks: verification.breaks,
    };
    write_report(&folder, &repaired)?;
    Ok(repaired)
}

/// Events whose proof is missing or does not hold, with their lines.
fn unproven_events(reading: &LogContents, breaks: &[LogBreak]) -> Vec<(u64, SharedEvent)> {
    let is_unproven = |found: &&LogBreak| matches!(found.kind, "broken_proof" | "unproven_line");
    let lines: HashSet<u64> = breaks.iter().filter(is_unproven).map(|found| found.line).collect();
    let placed = reading.places.iter().map(|place| place.line).zip(&reading.events);
    placed
        .filter(|(line, _)| lines.contains(line))
        .map(|(line, event)| (line, event.clone()))
        .collect()
}

/// The lines of those Events that are among the kept ones.
fn kept_lines(suspects: &[(u64, SharedEvent)], kept: &[SharedEvent]) -> Vec<u64> {
    let kept: HashSet<*const Event> = kept.iter().map(Arc::as_ptr).collect();
    let is_kept = |(_, event): &&(u64, SharedEvent)| kept.contains(&Arc::as_ptr(event));
    suspects.iter().filter(is_kept).map(|(line, _)| *line).collect()
}

/// Drops payloads that cannot be read, and references to blobs that are lost.
fn sound_events(reading: LogContents, breaks: &[LogBreak]) -> Vec<SharedEvent> {
    let lost_blobs: Vec<u64> =
        breaks.iter().filter(|found| found.kind == "blob").map(|found| found.line).collect();
    let placed = reading.events.into_iter().zip(reading.places);
    placed
        .filter_map(|(event, place)| {
            if lost_blobs.contains(&place.line) {
                return without_blob(&event);
            }
            match event.fact()? {
                Canonical::Unknown(unknown) if unknown.problem.is_some() => None,
                _ => Some(event),
            }
        })
        .collect()
}

/// The Event with the fields that its line still has; `None` when its type needs more.
fn without_blob(event: &Event) -> Option<SharedEvent> {
    let fact = event.fact()?;
    let data = blob::without_reference(serde_json::to_value(fact).ok()?)?;
    let fact = Canonical::decode(fact.type_name(), &data);
    if matches!(&fact, Canonical::Unknown(unknown) if unknown.problem.is_some()) {
        return None;
    }
    Some(Arc::new(event.with_fact(fact)))
}

/// Drops results that no call asked for, and second results.
fn drop_unpaired_results(history: &History) -> Vec<SharedEvent> {
    let mut open: Vec<&ToolCall> = Vec::new();
    let mut kept = Vec::with_capacity(history.len());
    for event in history.iter() {
        match event.fact() {
            Some(Canonical::ToolCall(call)) => open.push(call),
            Some(Canonical::ToolResult(result)) => {
                let asked = open.iter().position(|call| call.call_id == result.call_id);
                let Some(place) = asked else { continue };
                open.remove(place);
            }
            _ => {}
        }
        kept.push(event.clone());
    }
    kept
}

fn create_copy(root: &StateRoot, id: &SessionId) -> Result<(Log, SessionId), LogError> {
    let mut number = 1;
    loop {
        let name = format!("{id}.repaired-{number}");
        let copy_id =
            SessionId::parse(&name).map_err(|_| LogError::AlreadyExists { id: id.clone() })?;
        match Log::create(root, &copy_id) {
            Ok(log) => return Ok((log, copy_id)),
            Err(LogError::AlreadyExists { .. }) => number += 1,
            Err(error) => return Err(error),
        }
    }
}

/// Copies the Resources that the Events name, before the Events. Lost ones stay lost, and are reported.
fn copy_resources(
    root: &StateRoot,
    id: &SessionId,
    copy: &Log,
    events: &[SharedEvent],
) -> Result<(), LogError> {
    let from = ResourceStore::new(&root.session_folder(id).folder());
    let to = ResourceStore::new(&copy.folder().folder());
    for own in events.iter().filter_map(|event| event.fact()).flat_map(named_resources) {
        let Some(sha256) = own.sha256.as_deref() else { continue };
        to.copy_from(&from, sha256, own.bytes)
            .map_err(|source| LogError::Write { path: to.path(sha256), source })?;
    }
    Ok(())
}

/// Copies Events, and adds an end to a Turn whose end was lost.
fn copy_events(copy: &mut Log, events: &[SharedEvent]) -> Result<(), LogError> {
    let mut is_open = false;
    for event in events {
        match event.fact() {
            Some(Canonical::UserMessage(_)) => {
                if is_open {
                    copy.append(
                        history::interrupted_turn("its end is lost in the damaged Log").into(),
                    )?;
                }
                is_open = true;
            }
            Some(Canonical::TurnFailed(_)) => is_open = false,
            Some(Canonical::AssistantMessage(message)) if message.is_final() => is_open = false,
            _ => {}
        }
        copy_event(copy, event)?;
    }
    Ok(())
}

fn copy_event(copy: &mut Log, event: &Event) -> Result<(), LogError> {
    let Some(fact) = event.fact() else { return Ok(()) };
    let (id, ts) = (event.id().clone(), event.ts().clone());
    copy.append_as(id, ts, fact.clone(), event.extra().clone()).map(|_| ())
}

/// Adds missing results and the end of the last Turn, and records in the copy what was lost.
fn close_open_ends(copy: &mut Log, breaks: &[LogBreak]) -> Result<(), LogError> {
    copy.close_open_turn(
        "its result is missing in the damaged Log",
        "the Log was repaired while this Turn was open",
    )?;
    let is_lost = |found: &&LogBreak| matches!(found.kind, "unreadable_line" | "payload" | "blob");
    for found in breaks.iter().filter(is_lost) {
        let mut extra = Extra::new();
        extra.insert("original_line".to_owned(), found.line.into());
        let (offset, length) = (found.offset, found.length);
        copy.append(
            LogRepaired { offset, length, sha256: String::new(), kept: false, extra }.into(),
        )?;
    }
    Ok(())
}

fn write_report(folder: &SessionFolder, repaired: &RepairReport) -> Result<(), LogError> {
    let failed = |source| LogError::Write { path: repaired.report_path.clone(), source };
    let text = serde_json::to_vec_pretty(repaired).map_err(|error| failed(error.into()))?;
    let folder = folder.folder().create().map_err(LogError::writing)?;
    folder.replace(REPORT, &text, WriteDurability::Lazy).map_err(LogError::writing)
}
