//! Transcript: a Session exported for readers, in a stable format.
//!
//! Lines that cannot be read are counted and left out, bytes of attachments are never included, and tool
//! output is shortened.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;

use serde::Serialize;
use serde_json::Value;

use crate::base::id::SessionId;
use crate::record::event::{
    Canonical, Event, HistoryCompaction, HistoryRewound, InitialPosture, PlanEntry,
    ResourceDescriptor, Seq,
};
use crate::record::history::{History, TurnMarker, live_turns_in};
use crate::record::log::{Log, LogError, LogReader};
use crate::record::state_dir::StateRoot;

/// The version of the format.
const VERSION: u32 = 1;

/// The most bytes of a tool's output, half of them from the end.
const MAX_OUTPUT_BYTES: usize = 8_000;

/// The most bytes of a diff.
const MAX_DIFF_BYTES: usize = 64_000;

/// The fields of a transcript before its Turns; its JSON form is a stable interface.
#[derive(Debug, PartialEq, Serialize)]
pub struct TranscriptHead {
    pub format: &'static str,
    pub version: u32,
    pub session_id: SessionId,
    #[serde(serialize_with = "crate::base::paths::as_text")]
    pub workspace: PathBuf,
    pub started: Option<String>,
    pub model: Option<String>,
    pub role: Option<String>,
    pub permission_mode: Option<String>,
    pub parent_session_id: Option<String>,
}

/// The fields of a transcript after its Turns.
#[derive(Debug, Default, PartialEq, Serialize)]
pub struct TranscriptTail {
    /// Lines that could not be read, and are missing here.
    pub damaged_lines: usize,
    /// Events that this version does not know, and are missing here.
    pub unknown_events: usize,
}

/// A transcript that yields Turn by Turn. The Log is read twice, so that no more than one Turn is held.
#[derive(Debug)]
pub struct Transcript {
    pub head: TranscriptHead,
    pub tail: TranscriptTail,
    pub turn_count: usize,
    log: LogReader,
    /// The length of the Log when it was opened; a writer may add to it meanwhile.
    end: u64,
    live: HashSet<Seq>,
    /// All Events, if the file is not in the order of seqs.
    sorted: Option<History>,
}

/// One Turn of a transcript.
#[derive(Debug, PartialEq, Serialize)]
pub struct TranscriptTurn {
    pub number: usize,
    pub seq: Option<Seq>,
    pub started: String,
    /// `answered`, `open`, or a terminal status.
    pub status: String,
    /// Whether the Turn is undone.
    pub is_undone: bool,
    pub entries: Vec<TranscriptEntry>,
}

/// One entry of a Turn.
#[derive(Debug, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum TranscriptEntry {
    User {
        text: String,
        attachments: Vec<TranscriptAttachment>,
    },
    Assistant {
        text: String,
        phase: &'static str,
    },
    Reasoning {
        summary: String,
    },
    Tool(Box<TranscriptCall>),
    Plan {
        entries: Vec<PlanEntry>,
    },
    Compaction {
        from_seq: Seq,
        to_seq: Seq,
        /// The first and the last replaced Turn; `None` when only outputs were left out.
        turns: Option<(usize, usize)>,
        trigger: String,
    },
    Rewound {
        to_seq: Seq,
        /// `undo` or `redo`.
        direction: &'static str,
        /// The Turns that were undone or redone.
        turns: Vec<usize>,
    },
    Failure {
        terminal_status: String,
        error_kind: String,
        message: String,
    },
}

/// The metadata of an attachment.
#[derive(Debug, PartialEq, Serialize)]
pub struct TranscriptAttachment {
    pub id: String,
    pub name: String,
    pub kind: String,
    pub media_type: String,
    pub bytes: u64,
}

/// A tool call and its result.
#[derive(Debug, PartialEq, Default, Serialize)]
pub struct TranscriptCall {
    pub call_id: String,
    pub name: String,
    pub args: Value,
    /// `None` when the call has no result.
    pub ok: Option<bool>,
    pub output: String,
    /// The length of the output before it was shortened, in bytes.
    pub output_bytes: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub diff: Option<String>,
    pub attachments: Vec<TranscriptAttachment>,
}

/// Opens the transcript of a Session, damaged or not.
pub fn open_transcript(root: &StateRoot, id: &SessionId) -> Result<Transcript, LogError> {
    let log = Log::open_reader(root, id)?;
    let mut transcript = Transcript {
        head: TranscriptHead::new(root, id),
        tail: TranscriptTail::default(),
        turn_count: 0,
        log,
        end: 0,
        live: HashSet::new(),
        sorted: None,
    };
    let (mut outline, mut is_sorted, mut last) = (Vec::new(), true, 0);
    let mut scan = transcript.log.scan(u64::MAX);
    while let Some((event, _)) =
        scan.next_event().map_err(|source| transcript.log.unreadable(source))?
    {
        is_sorted &= event.seq().is_none_or(|seq| seq >= last);
        last = event.seq().unwrap_or(last);
        let Some(fact) = event.fact() else { continue };
        outline.push((event.seq(), TurnMarker::from_fact(fact)));
        transcript.head.apply_event(&event, fact);
        transcript.turn_count += usize::from(matches!(fact, Canonical::UserMessage(_)));
        transcript.tail.unknown_events += usize::from(matches!(fact, Canonical::Unknown(_)));
    }
    transcript.tail.damaged_lines = scan.reading.damage.len();
    transcript.end = scan.reading.end;
    drop(scan);
    if is_sorted {
        transcript.live = live_turns_in(&outline).into_iter().collect();
    } else {
        transcript.load_sorted(root, id)?;
    }
    Ok(transcript)
}

impl TranscriptHead {
    fn new(root: &StateRoot, id: &SessionId) -> Self {
        Self {
            format: "pixir-transcript",
            version: VERSION,
            session_id: id.clone(),
            workspace: root.workspace().to_owned(),
            started: None,
            model: None,
            role: None,
            permission_mode: None,
            parent_session_id: None,
        }
    }

    fn apply_posture(&mut self, posture: &InitialPosture, parent_session_id: Option<String>) {
        self.model.clone_from(&posture.model);
        self.role = Some(posture.role.clone());
        self.permission_mode = Some(posture.permission_mode.to_string());
        self.parent_session_id = parent_session_id;
    }

    /// Updates start time and posture, so that the last settings of the Session remain.
    fn apply_event(&mut self, event: &Event, fact: &Canonical) {
        self.started.get_or_insert_with(|| event.ts().to_string());
        match fact {
            Canonical::SessionStarted(started) => {
                self.apply_posture(&started.posture, started.parent_session_id.clone());
            }
            Canonical::SessionFork(fork) => {
                self.apply_posture(&fork.posture, Some(fork.parent_session_id.clone()));
            }
            Canonical::PostureChanged(changed) => {
                self.model = changed.model.clone().or(self.model.take());
                self.role = changed.role.clone().or(self.role.take());
                let mode = changed.permission_mode.as_ref().map(|mode| mode.as_str().to_owned());
                self.permission_mode = mode.or(self.permission_mode.take());
            }
            _ => {}
        }
    }
}

impl Transcript {
    /// Loads all Events of a damaged Log, because they must be sorted first.
    fn load_sorted(&mut self, root: &StateRoot, id: &SessionId) -> Result<(), LogError> {
        let mut scan = self.log.scan(self.end);
        let mut events = Vec::new();
        while let Some((event, _)) =
            scan.next_event().map_err(|source| self.log.unreadable(source))?
        {
            events.push(Arc::new(event));
        }
        drop(scan);
        let history = History::from_events(events);
        self.head = TranscriptHead::new(root, id);
        for event in history.iter() {
            if let Some(fact) = event.fact() {
                self.head.apply_event(event, fact);
            }
        }
        self.live = history.live_turns().into_iter().collect();
        self.sorted = Some(history);
        Ok(())
    }

    /// Calls `visit` with each Turn in order.
    pub fn for_each_turn<E: From<LogError>>(
        &self,
        mut visit: impl FnMut(TranscriptTurn) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut turns = TurnBuilder { live: &self.live, turn: None, starts: TurnStarts::default() };
        if let Some(history) = &self.sorted {
            for event in history.iter() {
                turns.push_event(event).map_or(Ok(()), &mut visit)?;
            }
        } else {
            let mut scan = self.log.scan(self.end);
            while let Some((event, _)) =
                scan.next_event().map_err(|source| self.log.unreadable(source))?
            {
                turns.push_event(&event).map_or(Ok(()), &mut visit)?;
            }
        }
        turns.turn.map_or(Ok(()), visit)
    }
}

/// Builds the current Turn from Events.
struct TurnBuilder<'a> {
    live: &'a HashSet<Seq>,
    turn: Option<TranscriptTurn>,
    starts: TurnStarts,
}

/// The seqs at which the Turns so far began, in the order of their numbers.
#[derive(Default)]
struct TurnStarts(Vec<Seq>);

impl TurnStarts {
    /// The number of the last Turn that began at or before a seq.
    fn number_at(&self, seq: Seq) -> usize {
        self.0.iter().filter(|start| **start <= seq).count()
    }

    /// The Turns that a compaction replaces.
    fn compacted_turns(&self, compaction: &HistoryCompaction) -> Option<(usize, usize)> {
        let last = self.number_at(compaction.hidden_to()?);
        let first = self.0.iter().filter(|start| **start < compaction.from_seq).count() + 1;
        (first <= last).then_some((first, last))
    }

    /// The entry of an undo or redo. Logs of the first version of Pixir name only the seq that it goes back to.
    fn rewound_entry(&self, rewound: &HistoryRewound) -> TranscriptEntry {
        let is_redo = rewound.extra.get("direction").is_some_and(|way| way == "redo");
        let named = rewound.extra.get("turns").and_then(Value::as_array);
        let turns = match named {
            Some(named) => {
                named.iter().filter_map(Value::as_u64).map(|seq| self.number_at(seq)).collect()
            }
            None if is_redo => Vec::new(),
            None => {
                let kept = self.0.iter().filter(|start| **start < rewound.to_seq).count();
                (kept + 1..=self.0.len()).collect()
            }
        };
        let direction = if is_redo { "redo" } else { "undo" };
        TranscriptEntry::Rewound { to_seq: rewound.to_seq, direction, turns }
    }
}

impl TurnBuilder<'_> {
    /// Adds an Event, and returns the previous Turn when the Event begins the next.
    fn push_event(&mut self, event: &Event) -> Option<TranscriptTurn> {
        let fact = event.fact()?;
        let Canonical::UserMessage(message) = fact else {
            if let Some(turn) = &mut self.turn {
                turn.push_fact(fact, &self.starts);
            }
            return None;
        };
        // An Event without a seq gets the seq of the Event before it.
        let start = event.seq().or_else(|| self.starts.0.last().copied()).unwrap_or_default();
        self.starts.0.push(start);
        let attachments =
            message.descriptors().map(TranscriptAttachment::from_descriptor).collect();
        self.turn.replace(TranscriptTurn {
            number: self.starts.0.len(),
            seq: event.seq(),
            started: event.ts().to_string(),
            status: "open".to_owned(),
            is_undone: event.seq().is_some_and(|seq| !self.live.contains(&seq)),
            entries: vec![TranscriptEntry::User { text: message.text.clone(), attachments }],
        })
    }
}

impl TranscriptTurn {
    fn push_fact(&mut self, fact: &Canonical, starts: &TurnStarts) {
        let entry = match fact {
            Canonical::AssistantMessage(message) => {
                let phase = if message.is_partial() {
                    "partial"
                } else if message.is_final() {
                    "answered".clone_into(&mut self.status);
                    "final"
                } else {
                    "commentary"
                };
                TranscriptEntry::Assistant { text: message.text.clone(), phase }
            }
            Canonical::Reasoning(reasoning) => {
                let parts = reasoning.item["summary"].as_array().into_iter().flatten();
                let parts = parts.filter_map(|part| part["text"].as_str());
                let summary = parts.collect::<Vec<_>>().join("\n\n");
                if summary.is_empty() {
                    return;
                }
                TranscriptEntry::Reasoning { summary }
            }
            Canonical::ToolCall(call) => TranscriptEntry::Tool(Box::new(TranscriptCall {
                call_id: call.call_id.to_string(),
                name: call.name.clone(),
                args: call.args.clone(),
                ..TranscriptCall::default()
            })),
            Canonical::ToolResult(result) => {
                let id = result.call_id.as_str();
                let open = self.entries.iter_mut().find_map(|entry| match entry {
                    TranscriptEntry::Tool(call) if call.call_id == id && call.ok.is_none() => {
                        Some(call)
                    }
                    _ => None,
                });
                // A result without a call is damage, which `diagnose` explains.
                let Some(call) = open else { return };
                let error = || result.error.as_ref().map(ToString::to_string);
                let output = result.output.clone().or_else(error).unwrap_or_default();
                call.ok = Some(result.ok);
                call.output_bytes = output.len();
                call.output = truncate_middle(&output, MAX_OUTPUT_BYTES);
                call.diff = result
                    .diff()
                    .filter(|diff| !diff.is_empty())
                    .map(|diff| truncate_middle(diff, MAX_DIFF_BYTES));
                call.attachments = result
                    .descriptor()
                    .into_iter()
                    .map(TranscriptAttachment::from_descriptor)
                    .collect();
                return;
            }
            Canonical::Plan(plan) => TranscriptEntry::Plan { entries: plan.entries.clone() },
            Canonical::HistoryCompaction(compaction) => TranscriptEntry::Compaction {
                from_seq: compaction.from_seq,
                to_seq: compaction.to_seq,
                turns: starts.compacted_turns(compaction),
                trigger: compaction.trigger.clone(),
            },
            Canonical::HistoryRewound(rewound) => starts.rewound_entry(rewound),
            Canonical::TurnFailed(failed) => {
                failed.terminal_status.as_str().clone_into(&mut self.status);
                TranscriptEntry::Failure {
                    terminal_status: self.status.clone(),
                    error_kind: failed.error_kind.clone(),
                    message: failed.error_message.clone(),
                }
            }
            _ => return,
        };
        self.entries.push(entry);
    }
}

impl TranscriptAttachment {
    fn from_descriptor(own: ResourceDescriptor) -> Self {
        let ResourceDescriptor { id, name, kind, media_type, bytes, .. } = own;
        Self { id, name, kind, media_type, bytes }
    }
}

/// Head and tail of a text, and how much is missing between them.
fn truncate_middle(text: &str, limit: usize) -> String {
    if text.len() <= limit {
        return text.to_owned();
    }
    let head = &text[..text.floor_char_boundary(limit / 2)];
    let tail = &text[text.ceil_char_boundary(text.len() - limit / 2)..];
    let missing = text.len() - head.len() - tail.len();
    format!("{head}\n[… {missing} of {} bytes left out …]\n{tail}", text.len())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_long_text_keeps_its_ends(text in "\\PC{0,400}", limit in 2usize..100) {
            let cut = truncate_middle(&text, limit);
            if text.len() <= limit {
                prop_assert_eq!(&cut, &text);
            } else {
                let head: String = text.chars().take(1).collect();
                prop_assert!(cut.contains("left out"));
                prop_assert!(limit < 8 || cut.starts_with(&head));
                prop_assert!(cut.len() <= limit + 60);
            }
        }
    }
}
