//! Verification of a Log: its proofs, seqs, pairs of calls and results, blobs and Resources.

use std::collections::{HashMap, HashSet, VecDeque};
use std::path::PathBuf;

use serde::Serialize;

use super::{Flaw, Log, LogError, Place, Reading};
use crate::base::error::counted;
use crate::base::id::{CallId, SessionId};
use crate::record::event::{Canonical, Descriptor, LogRepaired, Seq};
use crate::record::history::{History, OpenTurn};
use crate::record::resource::Store;
use crate::record::state_dir::StateRoot;

/// The result of checking a Log; a promise to machines, so it serializes.
#[derive(Debug, Serialize)]
pub struct Verification {
    /// The Session of the Log.
    pub session_id: SessionId,
    /// The path of the Log.
    #[serde(serialize_with = "crate::base::paths::as_text")]
    pub path: PathBuf,
    /// Whether no break was found.
    pub ok: bool,
    /// Everything between two newlines, damaged or not.
    pub lines: u64,
    /// Lines that could be read.
    pub events: usize,
    /// Lines that carry a proof that holds.
    pub proven_lines: u64,
    /// Lines that carry a proof that does not hold: they, or what stood before them, were changed.
    pub broken_lines: u64,
    /// Lines of the first Pixir, which carry none.
    pub unproven_lines: u64,
    /// How many Turns have begun.
    pub turns: usize,
    /// The last Turn, when it has no terminal event yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub open_turn: Option<Open>,
    /// Everything that is wrong, in the order of the file.
    pub breaks: Vec<Break>,
    /// Torn lines that a later `log_repaired` accounts for.
    pub repaired: Vec<Break>,
    /// The limits of this check, for people.
    pub notes: Vec<String>,
}

/// A Turn that has begun and not ended.
#[derive(Debug, Serialize)]
pub struct Open {
    /// The number of the Turn, from 1.
    pub number: usize,
    /// The seq at which it began.
    pub seq: Option<Seq>,
    /// Calls of it that have no result.
    pub pending_calls: Vec<CallId>,
}

/// One thing that is wrong in a Log, and its position.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Break {
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
pub fn verify(root: impl Into<StateRoot>, id: &SessionId) -> Result<Verification, LogError> {
    let root = &root.into();
    let reading = Log::read(root, id)?;
    let mut findings = Findings::default();
    findings.damage(&reading);
    findings.sequence(&reading);
    findings.pairs(&reading);
    findings.ends(&reading);
    findings.resources(&reading, &Store::new(&root.session_folder(id).folder()));
    let history = History::from_events(reading.events.clone());
    let turns = history.turns();
    let open_turn = turns.open.map(|OpenTurn { number, seq }| Open {
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
struct Findings {
    breaks: Vec<Break>,
    repaired: Vec<Break>,
    /// Calls without a result in the Turn that is still open.
    pending: Vec<CallId>,
}

impl Findings {
    fn damage(&mut self, reading: &Reading) {
        let accounted: Vec<&LogRepaired> = reading
            .events
            .iter()
            .filter_map(|event| match event.fact() {
                Some(Canonical::LogRepaired(repaired)) => Some(repaired),
                _ => None,
            })
            .collect();
        for damage in &reading.damage {
            let (kind, message) = describe(&damage.flaw);
            let found = at(damage.place, kind, message);
            if is_accounted(&accounted, damage.place, &damage.flaw) {
                self.repaired.push(found);
            } else {
                self.breaks.push(found);
            }
        }
        if let Some(torn) = &reading.torn
            && torn.whole
        {
            let message = "the last line has no newline".to_owned();
            self.breaks.push(at(torn.place, "torn_tail", message));
        }
    }

    fn sequence(&mut self, reading: &Reading) {
        let mut expected: Option<Seq> = None;
        for (event, place) in reading.events.iter().zip(&reading.places) {
            let Some(seq) = event.seq() else {
                self.breaks.push(at(*place, "seq_missing", "it has no seq".to_owned()));
                continue;
            };
            let wanted = expected.unwrap_or(0);
            if seq != wanted {
                let message = format!("seq is {seq} where {wanted} was expected");
                self.breaks.push(at(*place, "seq_order", message));
            }
            expected = Some(seq + 1);
        }
    }

    fn pairs(&mut self, reading: &Reading) {
        // An id may be used more than once: a result answers the oldest open call with its id.
        let mut open: HashMap<&CallId, VecDeque<Unanswered>> = HashMap::new();
        for (event, place) in reading.events.iter().zip(&reading.places) {
            match event.fact() {
                Some(Canonical::ToolCall(call)) => {
                    let unanswered = Unanswered { place: *place, turn_ended: false };
                    open.entry(&call.call_id).or_default().push_back(unanswered);
                }
                // A result may come after its Turn: an orphan is closed when the Log is opened.
                Some(Canonical::ToolResult(result)) => {
                    let answered = open.get_mut(&result.call_id).and_then(VecDeque::pop_front);
                    if answered.is_none() {
                        let message = format!("result {} has no call", result.call_id);
                        self.breaks.push(at(*place, "result_without_call", message));
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
                self.unanswered(call_id, call.place);
            } else {
                self.pending.push(call_id.clone());
            }
        }
    }

    /// Every Turn but the last has an end. The first Pixir did not promise that, so its lines are
    /// not judged by it.
    fn ends(&mut self, reading: &Reading) {
        let mut open: Option<Place> = None;
        for (event, place) in reading.events.iter().zip(&reading.places) {
            let Some(fact) = event.fact().filter(|fact| is_boundary(fact)) else { continue };
            let begins = matches!(fact, Canonical::UserMessage(_));
            if let Some(place) = open.filter(|_| begins) {
                let message = "a Turn begins here and has no end".to_owned();
                self.breaks.push(at(place, "turn_without_end", message));
            }
            let is_ours = reading.first_proven.is_some_and(|first| place.line >= first);
            open = Some(*place).filter(|_| begins && is_ours);
        }
    }

    /// Every Resource that a line names is stored and unchanged; each is read once.
    fn resources(&mut self, reading: &Reading, store: &Store) {
        let mut looked_at = HashSet::new();
        for (event, place) in reading.events.iter().zip(&reading.places) {
            for own in event.fact().map(named).unwrap_or_default() {
                // The first Pixir stored Resources elsewhere, and without a hash.
                let Some(sha256) = own.sha256.as_deref() else { continue };
                if !looked_at.insert(sha256.to_owned()) {
                    continue;
                }
                if let Err(lost) = store.get(sha256, own.bytes) {
                    let message = format!("resource {} ({}): {lost}", own.id, own.name);
                    self.breaks.push(at(*place, "resource", message));
                }
            }
        }
    }

    fn unanswered(&mut self, call_id: &CallId, place: Place) {
        let message = format!("call {call_id} never got its result");
        self.breaks.push(at(place, "call_without_result", message));
    }
}

/// The Resources that a fact names.
pub fn named(fact: &Canonical) -> Vec<Descriptor> {
    match fact {
        Canonical::UserMessage(message) => message.descriptors().collect(),
        Canonical::ToolResult(result) => result.descriptor().into_iter().collect(),
        _ => Vec::new(),
    }
}

struct Unanswered {
    place: Place,
    turn_ended: bool,
}

fn is_boundary(fact: &Canonical) -> bool {
    match fact {
        Canonical::UserMessage(_) | Canonical::TurnFailed(_) => true,
        Canonical::AssistantMessage(message) => message.is_final(),
        _ => false,
    }
}

fn describe(flaw: &Flaw) -> (&'static str, String) {
    match flaw {
        Flaw::Unreadable { reason, .. } => ("unreadable_line", reason.clone()),
        Flaw::BrokenProof => {
            ("broken_proof", "its proof does not follow from the line before".to_owned())
        }
        Flaw::Unproven => ("unproven_line", "it carries no proof among lines that do".to_owned()),
        Flaw::Blob { reason } => ("blob", reason.clone()),
        Flaw::Payload { reason } => ("payload", reason.clone()),
    }
}

fn is_accounted(repairs: &[&LogRepaired], place: Place, flaw: &Flaw) -> bool {
    let Flaw::Unreadable { sha256, .. } = flaw else { return false };
    repairs.iter().any(|repaired| {
        !repaired.kept && repaired.offset == place.offset && repaired.sha256 == *sha256
    })
}

fn at(place: Place, kind: &'static str, message: String) -> Break {
    Break { kind, line: place.line, offset: place.offset, length: place.length, message }
}
