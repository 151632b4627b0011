//! Repair: a cleaned copy of a damaged Log, and a report; the original is never touched.

use std::path::{Path, PathBuf};

use serde::Serialize;

use super::{Break, Log, LogError, verify};
use crate::event::{Canonical, Event, Extra, LogRepaired, SharedEvent, ToolCall};
use crate::history::{self, History};
use crate::id::SessionId;
use crate::paths;

/// What a repair did.
#[derive(Debug, Serialize)]
pub struct Repaired {
    pub original: SessionId,
    pub original_path: PathBuf,
    pub session_id: SessionId,
    pub path: PathBuf,
    pub report_path: PathBuf,
    pub events_kept: usize,
    /// Results without a call, and results that came twice.
    pub events_dropped: usize,
    /// Ends that were missing and were written.
    pub events_added: usize,
    /// Everything that was wrong with the original.
    pub breaks: Vec<Break>,
}

/// Writes a cleaned copy under a new id, and the report beside it.
pub fn repair(workspace: &Path, id: &SessionId) -> Result<Repaired, LogError> {
    let verification = verify(workspace, id)?;
    let reading = Log::read(workspace, id)?;
    let total = reading.events.len();
    let kept = paired(History::from_events(reading.events));
    let (mut copy, copy_id) = create_copy(workspace, id)?;
    for event in &kept {
        copy_event(&mut copy, event)?;
    }
    let before = copy.next_seq();
    close_open_ends(&mut copy, &verification.breaks)?;
    let added = copy.next_seq() - before;
    copy.syncer().sync()?;
    let folder = paths::session_folder(workspace, &copy_id);
    let repaired = Repaired {
        original: id.clone(),
        original_path: paths::log(workspace, id),
        path: copy.path().to_owned(),
        report_path: folder.join("repair.json"),
        session_id: copy_id,
        events_kept: kept.len(),
        events_dropped: total - kept.len(),
        events_added: usize::try_from(added).unwrap_or(usize::MAX),
        breaks: verification.breaks,
    };
    write_report(&folder, &repaired)?;
    Ok(repaired)
}

/// Drops results that no call asked for, and second results.
fn paired(history: History) -> Vec<SharedEvent> {
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

fn create_copy(workspace: &Path, id: &SessionId) -> Result<(Log, SessionId), LogError> {
    let mut number = 1;
    loop {
        let name = format!("{id}.repaired-{number}");
        let copy_id =
            SessionId::parse(&name).map_err(|_| LogError::AlreadyExists { id: id.clone() })?;
        match Log::create(workspace, &copy_id) {
            Ok(log) => return Ok((log, copy_id)),
            Err(LogError::AlreadyExists { .. }) => number += 1,
            Err(error) => return Err(error),
        }
    }
}

fn copy_event(copy: &mut Log, event: &Event) -> Result<(), LogError> {
    let Some(fact) = event.fact() else { return Ok(()) };
    let (id, ts) = (event.id().clone(), event.ts().clone());
    copy.append_as(id, ts, fact.clone(), event.extra().clone()).map(|_| ())
}

/// Gives every call a result and the last Turn an end, and says in the copy what was lost.
fn close_open_ends(copy: &mut Log, breaks: &[Break]) -> Result<(), LogError> {
    for call in copy.history().orphans() {
        copy.append(
            history::orphan_result(&call, "its result is missing in the damaged Log").into(),
        )?;
    }
    if copy.history().turns().open.is_some() {
        copy.append(history::cut_turn("the Log was repaired while this Turn was open").into())?;
    }
    for found in breaks.iter().filter(|found| found.kind == "unreadable_line") {
        let mut extra = Extra::new();
        extra.insert("original_line".to_owned(), found.line.into());
        let (offset, length) = (found.offset, found.length);
        copy.append(
            LogRepaired { offset, length, sha256: String::new(), kept: false, extra }.into(),
        )?;
    }
    Ok(())
}

fn write_report(folder: &Path, repaired: &Repaired) -> Result<(), LogError> {
    use std::os::unix::fs::DirBuilderExt;
    let failed = |source| LogError::Write { path: repaired.report_path.clone(), source };
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(failed)?;
    let text = serde_json::to_vec_pretty(repaired).map_err(|error| failed(error.into()))?;
    std::fs::write(&repaired.report_path, text).map_err(failed)
}
