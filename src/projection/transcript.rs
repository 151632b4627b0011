//! A transcript: a Session as somebody else would read it, in a shape that stays.
//!
//! What cannot be read is counted and left out; bytes of attachments are never in it, and tool
//! output only as far as a reader wants.

use std::path::PathBuf;

use serde::Serialize;
use serde_json::Value;

use crate::event::{Canonical, Descriptor, PlanEntry, Seq};
use crate::history::History;
use crate::id::SessionId;
use crate::log::{Log, LogError};
use crate::state::StateRoot;

/// The version of the shape.
const VERSION: u32 = 1;

/// How much of a tool's output is kept, half of it from the end.
const OUTPUT: usize = 8_000;

/// How much of a diff.
const DIFF: usize = 64_000;

/// A Session, retold; a promise to machines, so it serializes.
#[derive(Debug, PartialEq, Serialize)]
pub struct Transcript {
    pub format: &'static str,
    pub version: u32,
    pub session_id: SessionId,
    #[serde(serialize_with = "crate::paths::as_text")]
    pub workspace: PathBuf,
    pub started: Option<String>,
    pub model: Option<String>,
    pub role: Option<String>,
    pub permission_mode: Option<String>,
    pub parent_session_id: Option<String>,
    pub turns: Vec<Turn>,
    /// Lines that could not be read, and are missing here.
    pub damaged_lines: usize,
    /// Events that this version does not know, and are missing here.
    pub unknown_events: usize,
}

/// One Turn.
#[derive(Debug, PartialEq, Serialize)]
pub struct Turn {
    pub number: usize,
    pub seq: Option<Seq>,
    pub started: String,
    /// `answered`, `open`, or a terminal status.
    pub status: String,
    /// Taken back by an undo that still counts.
    pub is_undone: bool,
    pub entries: Vec<Entry>,
}

/// One thing that was said or done.
#[derive(Debug, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Entry {
    User { text: String, attachments: Vec<Attachment> },
    Assistant { text: String, phase: &'static str },
    Reasoning { summary: String },
    Tool(Box<Call>),
    Plan { entries: Vec<PlanEntry> },
    Compaction { from_seq: Seq, to_seq: Seq, trigger: String },
    Rewound { to_seq: Seq },
    Failure { terminal_status: String, error_kind: String, message: String },
}

/// An attachment by its name.
#[derive(Debug, PartialEq, Serialize)]
pub struct Attachment {
    pub id: String,
    pub name: String,
    pub kind: String,
    pub media_type: String,
    pub bytes: u64,
}

/// A call and what came of it.
#[derive(Debug, PartialEq, Serialize)]
#[expect(clippy::struct_field_names, reason = "call_id is the name of the wire")]
pub struct Call {
    pub call_id: String,
    pub name: String,
    pub args: Value,
    /// `None` when it has no result.
    pub ok: Option<bool>,
    pub output: String,
    /// How long the output was before it was cut.
    pub output_bytes: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub diff: Option<String>,
    pub attachments: Vec<Attachment>,
}

/// Retells a Session, damaged or not.
pub fn transcript(root: &StateRoot, id: &SessionId) -> Result<Transcript, LogError> {
    let reading = Log::read(root, id)?;
    let damaged_lines = reading.damage.len();
    let history = History::from_events(reading.events);
    let mut told = Transcript {
        format: "pixir-transcript",
        version: VERSION,
        session_id: id.clone(),
        workspace: root.workspace().to_owned(),
        started: history.iter().next().map(|event| event.ts().to_string()),
        model: None,
        role: None,
        permission_mode: None,
        parent_session_id: None,
        turns: Vec::new(),
        damaged_lines,
        unknown_events: 0,
    };
    let live = history.live_turns();
    for event in history.iter() {
        let Some(fact) = event.fact() else { continue };
        if let Canonical::UserMessage(message) = fact {
            let attachments = message.descriptors().map(Attachment::of).collect();
            told.turns.push(Turn {
                number: told.turns.len() + 1,
                seq: event.seq(),
                started: event.ts().to_string(),
                status: "open".to_owned(),
                is_undone: event.seq().is_some_and(|seq| !live.contains(&seq)),
                entries: vec![Entry::User { text: message.text.clone(), attachments }],
            });
        } else if let Some(turn) = told.turns.last_mut() {
            turn.take(fact);
        }
        told.posture(fact);
    }
    Ok(told)
}

impl Transcript {
    /// What the Session was set to in the end.
    fn posture(&mut self, fact: &Canonical) {
        match fact {
            Canonical::SessionStarted(started) => {
                self.model.clone_from(&started.model);
                self.role = Some(started.role.clone());
                self.permission_mode = Some(started.permission_mode.as_str().to_owned());
                self.parent_session_id.clone_from(&started.parent_session_id);
            }
            Canonical::SessionFork(fork) => {
                self.model.clone_from(&fork.model);
                self.role = Some(fork.role.clone());
                self.permission_mode = Some(fork.permission_mode.as_str().to_owned());
                self.parent_session_id = Some(fork.parent_session_id.clone());
            }
            Canonical::PostureChanged(changed) => {
                self.model = changed.model.clone().or(self.model.take());
                self.role = changed.role.clone().or(self.role.take());
                let mode = changed.permission_mode.as_ref().map(|mode| mode.as_str().to_owned());
                self.permission_mode = mode.or(self.permission_mode.take());
            }
            Canonical::Unknown(_) => self.unknown_events += 1,
            _ => {}
        }
    }
}

impl Turn {
    fn take(&mut self, fact: &Canonical) {
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
                Entry::Assistant { text: message.text.clone(), phase }
            }
            Canonical::Reasoning(reasoning) => {
                let parts = reasoning.item["summary"].as_array().into_iter().flatten();
                let parts = parts.filter_map(|part| part["text"].as_str());
                let summary = parts.collect::<Vec<_>>().join("\n\n");
                if summary.is_empty() {
                    return;
                }
                Entry::Reasoning { summary }
            }
            Canonical::ToolCall(call) => Entry::Tool(Box::new(Call {
                call_id: call.call_id.to_string(),
                name: call.name.clone(),
                args: call.args.clone(),
                ok: None,
                output: String::new(),
                output_bytes: 0,
                diff: None,
                attachments: Vec::new(),
            })),
            Canonical::ToolResult(result) => {
                let id = result.call_id.as_str();
                let open = self.entries.iter_mut().find_map(|entry| match entry {
                    Entry::Tool(call) if call.call_id == id && call.ok.is_none() => Some(call),
                    _ => None,
                });
                // A result without a call is damage, which `diagnose` explains.
                let Some(call) = open else { return };
                let error = || result.error.as_ref().map(ToString::to_string);
                let output = result.output.clone().or_else(error).unwrap_or_default();
                call.ok = Some(result.ok);
                call.output_bytes = output.len();
                call.output = bounded(&output, OUTPUT);
                let diff = result.details.get("diff").and_then(Value::as_str);
                call.diff = diff.filter(|diff| !diff.is_empty()).map(|diff| bounded(diff, DIFF));
                call.attachments = result.descriptor().into_iter().map(Attachment::of).collect();
                return;
            }
            Canonical::Plan(plan) => Entry::Plan { entries: plan.entries.clone() },
            Canonical::HistoryCompaction(compaction) => Entry::Compaction {
                from_seq: compaction.from_seq,
                to_seq: compaction.to_seq,
                trigger: compaction.trigger.clone(),
            },
            Canonical::HistoryRewound(rewound) => Entry::Rewound { to_seq: rewound.to_seq },
            Canonical::TurnFailed(failed) => {
                failed.terminal_status.as_str().clone_into(&mut self.status);
                Entry::Failure {
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

impl Attachment {
    fn of(own: Descriptor) -> Self {
        let Descriptor { id, name, kind, media_type, bytes, .. } = own;
        Self { id, name, kind, media_type, bytes }
    }
}

/// Head and tail of a text, and how much is missing between them.
fn bounded(text: &str, limit: usize) -> String {
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
            let cut = bounded(&text, limit);
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
