//! The checkpoint: the facts that are kept of Turns that are no longer replayed, gathered without a model.
//!
//! A checkpoint has paths and never contents; messages of the user come before those of the model. Nothing is
//! dropped silently: entries that do not fit are counted.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::record::event::{Canonical, PlanEntry, ToolCall, ToolResult};

/// The most characters that are kept of one text.
const MAX_TEXT_CHARS: usize = 2_000;
/// The most characters of an answer of the model: the user's messages matter more.
const MAX_ANSWER_CHARS: usize = 600;
/// The most characters of a command: enough to recognise it.
const MAX_COMMAND_CHARS: usize = 120;
/// The length of the note about what was cut.
const CUT_NOTE_CHARS: usize = 32;

/// The facts about the Turns that a checkpoint replaces.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Checkpoint {
    pub turns: u64,
    pub tool_calls: u64,
    pub failed_calls: u64,
    /// The messages of the user, the oldest first.
    pub user_instructions: Vec<String>,
    /// Final answers, refusals of the user, and reports of Subagents and branches.
    pub decisions: Vec<String>,
    pub files_changed: Vec<String>,
    pub files_read: Vec<String>,
    pub commands: Vec<String>,
    pub open_tasks: Vec<String>,
    pub plan: Vec<String>,
    pub skills: Vec<CheckpointSkill>,
    /// The summary of a checkpoint of another version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub earlier: Option<String>,
    /// The notes of the Session's model, if it was asked for them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub notes: Option<ModelNotes>,
    /// How many entries of each list did not fit.
    pub left_out: BTreeMap<String, u64>,
}

/// An active Skill in a checkpoint.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct CheckpointSkill {
    pub name: String,
    pub path: String,
    pub content_hash: String,
}

/// The notes that a model adds to a checkpoint.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct ModelNotes {
    pub summary: String,
    pub decisions: Vec<String>,
    pub open_tasks: Vec<String>,
    pub open_questions: Vec<String>,
}

impl Checkpoint {
    /// The checkpoint of an earlier compaction, to be continued.
    pub fn from_earlier(checkpoint: &Value, summary: &Value) -> Self {
        if let Ok(known) = Self::deserialize(checkpoint) {
            return known;
        }
        let earlier = match summary {
            Value::Null => None,
            Value::String(text) => Some(text.clone()),
            other => Some(other.to_string()),
        };
        Self {
            earlier: earlier.map(|text| shorten_text(&text, MAX_TEXT_CHARS * 4)),
            ..Self::default()
        }
    }

    /// Adds facts that will not be replayed any more, in order.
    pub fn add_facts<'a>(&mut self, facts: impl Iterator<Item = &'a Canonical>) {
        let mut calls: HashMap<&str, &ToolCall> = HashMap::new();
        for fact in facts {
            match fact {
                Canonical::UserMessage(message) => {
                    self.turns += 1;
                    self.user_instructions.push(shorten_text(&message.text, MAX_TEXT_CHARS));
                    // A failure before a new message of the user is no longer open.
                    self.open_tasks.clear();
                }
                Canonical::AssistantMessage(message) if message.is_final() => {
                    self.decisions.push(format!(
                        "answered: {}",
                        shorten_text(&message.text, MAX_ANSWER_CHARS)
                    ));
                }
                Canonical::TurnFailed(failed) => {
                    let reason = shorten_text(&failed.error_message, MAX_TEXT_CHARS / 8);
                    self.open_tasks.push(format!("a Turn ended without an answer: {reason}"));
                }
                Canonical::PermissionDecision(decision) if decision.decision == "deny" => {
                    if let Some(words) = &decision.words {
                        self.decisions.push(format!(
                            "the user refused: {}",
                            shorten_text(words, MAX_TEXT_CHARS)
                        ));
                    }
                }
                Canonical::ToolCall(call) => {
                    self.tool_calls += 1;
                    calls.insert(call.call_id.as_str(), call);
                }
                Canonical::ToolResult(result) => {
                    let call = calls.remove(result.call_id.as_str());
                    self.add_result(call, result);
                }
                Canonical::Plan(plan) => self.plan = plan.entries.iter().map(plan_line).collect(),
                Canonical::SkillActivation(skill) => {
                    self.skills.retain(|known| known.name != skill.name);
                    self.skills.push(CheckpointSkill {
                        name: skill.name.clone(),
                        path: skill.path.clone(),
                        content_hash: skill.content_hash.clone(),
                    });
                }
                Canonical::SubagentEvent(child) => {
                    if let Some(summary) = &child.summary {
                        self.decisions.push(format!(
                            "a child reported: {}",
                            shorten_text(summary, MAX_TEXT_CHARS)
                        ));
                    }
                }
                Canonical::BranchSummary(branch) => {
                    let summary = shorten_text(&branch.summary, MAX_TEXT_CHARS);
                    self.decisions.push(format!("on another branch: {summary}"));
                }
                _ => {}
            }
        }
        dedup_keep_last(&mut self.files_changed);
        dedup_keep_last(&mut self.files_read);
    }

    /// Adds the files and the command of a result. Paths come from the details of the Tool, never from an
    /// argument that looks like one.
    fn add_result(&mut self, call: Option<&ToolCall>, result: &ToolResult) {
        self.failed_calls += u64::from(!result.ok);
        for file in result.files().filter(|_| result.ok) {
            let list = if file.is_changed { &mut self.files_changed } else { &mut self.files_read };
            list.push(file.path.to_owned());
        }
        let command =
            call.filter(|call| call.name == "bash").and_then(|call| call.args["command"].as_str());
        if let Some(command) = command {
            let first = command.lines().next().unwrap_or_default();
            let code = match result.exit_code() {
                Some(code) => format!("exit {code}"),
                None if result.ok => "ok".to_owned(),
                None => "failed".to_owned(),
            };
            self.commands.push(format!("{} ({code})", shorten_text(first, MAX_COMMAND_CHARS)));
        }
    }
}

/// Removes duplicates; the last occurrence stays.
fn dedup_keep_last(list: &mut Vec<String>) {
    let mut seen = HashSet::new();
    list.reverse();
    list.retain(|own| seen.insert(own.clone()));
    list.reverse();
}

fn plan_line(entry: &PlanEntry) -> String {
    format!("[{}] {}", entry.status, shorten_text(&entry.content, MAX_TEXT_CHARS / 8))
}

/// The first `limit` characters of a text, with a note about the rest.
pub fn shorten_text(text: &str, limit: usize) -> String {
    let text = text.trim();
    // A text that was cut to this limit before is not cut again for its note.
    if text.char_indices().nth(limit + CUT_NOTE_CHARS).is_none() {
        return text.to_owned();
    }
    let end = text.char_indices().nth(limit).map_or(text.len(), |(end, _)| end);
    format!("{}… ({} more bytes)", &text[..end], text.len() - end)
}
