//! Verification of a Log: its proofs, seqs, pairs of calls and results, blobs and Resources.

use std::collections::{HashMap, HashSet, VecDeque};
use std::path::PathBuf;

use serde::Serialize;

use super::{DamageKind, LinePosition, Log, LogContents, LogError};
use crate::base::error::counted;
use crate::base::id::{CallId, SessionId};
use crate::record::event::{Canonical, LogRepaired, ResourceDescriptor, Seq};
use crate::record::history::{History, OpenTurn};
use crate::record::resource::ResourceStore;
use crate::record::state_dir::StateRoot;

/// The result of checking a Log. The serialized fields are a contract with scripts.
#[derive(Debug, Serialize)]
pub struct Verification {
    /// The Session of the Log.
    pub session_id: SessionId,
    /// The path of the Log.
    #[serde(serialize_with = "crate::base::paths::as_text")]
    pub path: PathBuf,
    /// Whether no break was found.
    pub ok: bool,
    /// All lines, damaged or not.
    pub lines: u64,
    /// Lines that could be read.
    pub events: usize,
    /// Lines that carry a proof that holds.
    pub proven_lines: u64,
    /// Lines that carry a proof that does not hold: they, or the lines before them, were changed.
    pub broken_lines: u64,
    /// Lines without a proof, as the first Pixir wrote them.
    pub unproven_lines: u64,
    /// How many Turns have begun.
    pub turns: usize,
    /// The last Turn, when it has no terminal event yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub open_turn: Option<UnfinishedTurn>,
    /// All breaks, in the order of the file.
    pub breaks: Vec<LogBreak>,
    /// Torn lines that a later `log_repaired` accounts for.
    pub repaired: Vec<LogBreak>,
    /// The limits of this check, for people.
    pub notes: Vec<String>,
}

/// A Turn that has begun and not ended.
#[derive(Debug, Serialize)]
pub struct UnfinishedTurn {
    /// The number of the Turn, from 1.
    pub number: usize,
    /// The seq at which the Turn began.
    pub seq: Option<Seq>,
    /// Calls of the Turn that have no result.
    pub pending_calls: Vec<CallId>,
}

/// One break of a Log, and its position.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LogBreak {
    /// One word for machines, such as `unreadable_line` or `broken_proof`.
    pub kind: &'static str,
    /// The number of the line, from 1.
    pub line: u64,
    /// The offset of the line's first byte.
    pub offset: u64,
    /// The length of the line without its newline.
    pub length: u64,
    /// One sentence for people.
    pub message: String,
}

/// Checks chain, seq, pairs of calls and results, blobs and Resources of a Log; never changes it.
pub fn verify_log(root: impl Into<StateRoot>, id: &SessionId) -> Result<Verification, LogError> {
    let root = &root.into();
    let reading = Log::read(root, id)?;
    let mut findings = VerifyFindings::default();
    findings.check_damage(&reading);
    findings.check_sequence(&reading);
    findings.check_call_pairs(&reading);
    findings.check_turn_ends(&reading);
    findings.check_resources(&reading, &ResourceStore::new(&root.session_folder(id).folder()));
    let history = History::from_events(reading.events.clone());
    let turns = history.turns();
    let open_turn = turns.open.map(|OpenTurn { number, seq }| UnfinishedTurn {
        number,
        seq,
        pending_calls: findings.pending.clone(),
    });
    findings.breaks.sort_by_key(|found| found.line);
    let mut notes =
        vec!["lines missing at the very end cannot be detected by the proof chain".to_owned()];
    let with_proof = reading.proven + reading.broken;
    let unproven = (reading.events.len() as u64).saturating_sub(with_proof);
    if unproven > 0 {
        let carry = if unproven == 1 { "carries" } else { "carry" };
        let lines = counted(unproven, "line");
        notes.push(format!("{lines} {carry} no proof and cannot be proven unchanged"));
    }
    Ok(Verification {
        session_id: id.clone(),
        path: root.log(id),
        ok: findings.breaks.is_empty(),
        lines: reading.lines,
        events: reading.events.len(),
        proven_lines: reading.proven,
        broken_lines: reading.broken,
        unproven_lines: unproven,
        turns: turns.count,
        open_turn,
        breaks: findings.breaks,
        repaired: findings.repaired,
        notes,
    })
}

#[derive(Default)]
struct VerifyFindings {
    breaks: Vec<LogBreak>,
    repaired: Vec<LogBreak>,
    /// Calls without a result in the Turn that is still open.
    pending: Vec<CallId>,
}

impl VerifyFindings {
    fn check_damage(&mut self, reading: &LogContents) {
        let accounted: Vec<&LogRepaired> = reading
            .events
            .iter()
            .filter_map(|event| match event.fact() {
                Some(Canonical::LogRepaired(repaired)) => Some(repaired),
                _ => None,
            })
            .collect();
        for damage in &reading.damage {
            let (kind, message) = describe_damage(&damage.kind);
            let found = break_at(damage.place, kind, message);
            if is_recorded_repair(&accounted, damage.place, &damage.kind) {
                self.repaired.push(found);
            } else {
                self.breaks.push(found);
            }
        }
        if let Some(torn) = &reading.torn
            && torn.whole
        {
            let message = "the last line has no newline".to_owned();
            self.breaks.push(break_at(torn.place, "torn_tail", message));
        }
    }

    fn check_sequence(&mut self, reading: &LogContents) {
        let mut expected: Option<Seq> = None;
        for (event, place) in reading.events.iter().zip(&reading.places) {
            let Some(seq) = event.seq() else {
                self.breaks.push(break_at(*place, "seq_missing", "it has no seq".to_owned()));
                continue;
            };
            let wanted = expected.unwrap_or(0);
            if seq != wanted {
                let message = format!("seq is {seq} where {wanted} was expected");
                self.breaks.push(break_at(*place, "seq_order", message));
            }
            expected = Some(seq + 1);
        }
    }

    fn check_call_pairs(&mut self, reading: &LogContents) {
        // An id may be used more than once: a result answers the oldest open call with its id.
        let mut open: HashMap<&CallId, VecDeque<UnansweredCall>> = HashMap::new();
        for (event, place) in reading.events.iter().zip(&reading.places) {
            match event.fact() {
                Some(Canonical::ToolCall(call)) => {
                    let unanswered = UnansweredCall { place: *place, turn_ended: false };
                    open.entry(&call.call_id).or_default().push_back(unanswered);
                }
                // A result may come after its Turn: an orphan is closed when the Log is opened.
                Some(Canonical::ToolResult(result)) => {
                    let answered = open.get_mut(&result.call_id).and_then(VecDeque::pop_front);
                    if answered.is_none() {
                        let message = format!("result {} has no call", result.call_id);
                        self.breaks.push(break_at(*place, "result_without_call", message));
                    }
                }
                Some(fact) if is_boundary(fact) => {
                    for call in open.values_mut().flatten() {
                        call.turn_ended = true;
                    }
                    open.retain(|_, calls| !calls.is_empty());
                }
                _ => {}
            }
        }
        let mut left: Vec<_> = open
            .into_iter()
            .flat_map(|(call_id, calls)| calls.into_iter().map(move |call| (call_id, call)))
            .collect();
        left.sort_by_key(|(_, call)| call.place.line);
        for (call_id, call) in left {
            if call.turn_ended {
                self.add_unanswered_call(call_id, call.place);
            } else {
                self.pending.push(call_id.clone());
            }
        }
    }

    /// Checks that every Turn but the last has an end. The first Pixir did not promise that, so its
    /// lines are not checked.
    fn check_turn_ends(&mut self, reading: &LogContents) {
        let mut open: Option<LinePosition> = None;
        for (event, place) in reading.events.iter().zip(&reading.places) {
            let Some(fact) = event.fact().filter(|fact| is_boundary(fact)) else { continue };
            let begins = matches!(fact, Canonical::UserMessage(_));
            if let Some(place) = open.filter(|_| begins) {
                let message = "a Turn begins here and has no end".to_owned();
                self.breaks.push(break_at(place, "turn_without_end", message));
            }
            let is_ours = reading.first_proven.is_some_and(|first| place.line >= first);
            open = Some(*place).filter(|_| begins && is_ours);
        }
    }

    /// Checks that every Resource that a line names is stored and unchanged; each is read once.
    fn check_resources(&mut self, reading: &LogContents, store: &ResourceStore) {
        let mut looked_at = HashSet::new();
        for (event, place) in reading.events.iter().zip(&reading.places) {
            for own in event.fact().map(named_resources).unwrap_or_default() {
                // The first Pixir stored Resources elsewhere, and without a hash.
                let Some(sha256) = own.sha256.as_deref() else { continue };
                if !looked_at.insert(sha256.to_owned()) {
                    continue;
                }
                if let Err(lost) = store.read_bytes(sha256, own.bytes) {
                    let message = format!("resource {} ({}): {lost}", own.id, own.name);
                    self.breaks.push(break_at(*place, "resource", message));
                }
            }
        }
    }

    fn add_unanswered_call(&mut self, call_id: &CallId, place: LinePosition) {
        let message = format!("call {call_id} never got its result");
        self.breaks.push(break_at(place, "call_without_result", message));
    }
}

/// The Resources that a fact names.
pub fn named_resources(fact: &Canonical) -> Vec<ResourceDescriptor> {
    match fact {
        Canonical::UserMessage(message) => message.descriptors().collect(),
        Canonical::ToolResult(result) => result.descriptor().into_iter().collect(),
        _ => Vec::new(),
    }
}

struct UnansweredCall {
    place: LinePosition,
    turn_ended: bool,
}

fn is_boundary(fact: &Canonical) -> bool {
    match fact {
        Canonical::UserMessage(_) | Canonical::TurnFailed(_) => true,
        Canonical::AssistantMessage(message) => message.is_final(),
        _ => false,
    }
}

fn describe_damage(flaw: &DamageKind) -> (&'static str, String) {
    match flaw {
        DamageKind::Unreadable { reason, .. } => ("unreadable_line", reason.clone()),
        DamageKind::BrokenProof => {
            ("broken_proof", "its proof does not follow from the line before".to_owned())
        }
        DamageKind::Unproven => {
            ("unproven_line", "it carries no proof among lines that do".to_owned())
        }
        DamageKind::Blob { reason } => ("blob", reason.clone()),
        DamageKind::Payload { reason } => ("payload", reason.clone()),
    }
}

fn is_recorded_repair(repairs: &[&LogRepaired], place: LinePosition, flaw: &DamageKind) -> bool {
    let DamageKind::Unreadable { sha256, .. } = flaw else { return false };
    repairs.iter().any(|repaired| {
        !repaired.kept && repaired.offset == place.offset && repaired.sha256 == *sha256
    })
}

fn break_at(place: LinePosition, kind: &'static str, message: String) -> LogBreak {
    LogBreak { kind, line: place.line, offset: place.offset, length: place.length, message }
}
