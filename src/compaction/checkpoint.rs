//! The checkpoint: what is kept of Turns that are no longer replayed, gathered without any model.
//!
//! Paths, never contents; the user's words before the model's; and nothing is dropped in silence:
//! what does not fit is counted.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::event::{Canonical, PlanEntry, ToolCall, ToolResult};

/// How much of one text is kept at most, in characters.
const LONGEST: usize = 2_000;
/// How much of what the model answered: the user's words matter more.
const ANSWER: usize = 600;
/// How much of a command is shown: what it is, not what it was fed.
const COMMAND: usize = 120;
/// The length of the word about what was cut.
const SLACK: usize = 32;

/// What is known of the Turns that a checkpoint stands for.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Checkpoint {
    pub turns: u64,
    pub tool_calls: u64,
    pub failed_calls: u64,
    /// In the user's words, the oldest first.
    pub user_instructions: Vec<String>,
    /// What was answered, and what the user refused.
    pub decisions: Vec<String>,
    pub files_changed: Vec<String>,
    pub files_read: Vec<String>,
    pub commands: Vec<String>,
    pub open_tasks: Vec<String>,
    pub plan: Vec<String>,
    pub skills: Vec<Skill>,
    /// What a checkpoint of another version said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub earlier: Option<String>,
    /// What the Session's own model wrote, if it was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub notes: Option<Notes>,
    /// How many of each list did not fit.
    pub left_out: BTreeMap<String, u64>,
}

/// A Skill that is active.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Skill {
    pub name: String,
    pub path: String,
    pub content_hash: String,
}

/// What a model adds to the facts.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Notes {
    pub summary: String,
    pub decisions: Vec<String>,
    pub open_tasks: Vec<String>,
    pub open_questions: Vec<String>,
}

impl Checkpoint {
    /// What a compaction said before, to be carried on.
    pub fn carried(checkpoint: &Value, summary: &Value) -> Self {
        if let Ok(known) = Self::deserialize(checkpoint) {
            return known;
        }
        let earlier = match summary {
            Value::Null => None,
            Value::String(text) => Some(text.clone()),
            other => Some(other.to_string()),
        };
        Self { earlier: earlier.map(|text| cut(&text, LONGEST * 4)), ..Self::default() }
    }

    /// Takes in facts that will not be replayed any more, in order.
    pub fn gather<'a>(&mut self, facts: impl Iterator<Item = &'a Canonical>) {
        let mut calls: HashMap<&str, &ToolCall> = HashMap::new();
        for fact in facts {
            match fact {
                Canonical::UserMessage(message) => {
                    self.turns += 1;
                    self.user_instructions.push(cut(&message.text, LONGEST));
                    // What failed and was spoken of since is no longer open.
                    self.open_tasks.clear();
                }
                Canonical::AssistantMessage(message) if message.is_final() => {
                    self.decisions.push(format!("answered: {}", cut(&message.text, ANSWER)));
                }
                Canonical::TurnFailed(failed) => {
                    let reason = cut(&failed.error_message, LONGEST / 8);
                    self.open_tasks.push(format!("a Turn ended without an answer: {reason}"));
                }
                Canonical::PermissionDecision(decision) if decision.decision == "deny" => {
                    if let Some(words) = &decision.words {
                        self.decisions.push(format!("the user refused: {}", cut(words, LONGEST)));
                    }
                }
                Canonical::ToolCall(call) => {
                    self.tool_calls += 1;
                    calls.insert(call.call_id.as_str(), call);
                }
                Canonical::ToolResult(result) => {
                    let call = calls.remove(result.call_id.as_str());
                    self.take_result(call, result);
                }
                Canonical::Plan(plan) => self.plan = plan.entries.iter().map(entry).collect(),
                Canonical::SkillActivation(skill) => {
                    self.skills.retain(|known| known.name != skill.name);
                    self.skills.push(Skill {
                        name: skill.name.clone(),
                        path: skill.path.clone(),
                        content_hash: skill.content_hash.clone(),
                    });
                }
                Canonical::SubagentEvent(child) => {
                    if let Some(summary) = &child.summary {
                        self.decisions.push(format!("a child reported: {}", cut(summary, LONGEST)));
                    }
                }
                Canonical::BranchSummary(branch) => {
                    let summary = cut(&branch.summary, LONGEST);
                    self.decisions.push(format!("on another branch: {summary}"));
                }
                _ => {}
            }
        }
        keep_last(&mut self.files_changed);
        keep_last(&mut self.files_read);
    }

    /// Where it was, and whether it was changed; the path is what the Tool says it is, never an
    /// argument that looks like one.
    fn take_result(&mut self, call: Option<&ToolCall>, result: &ToolResult) {
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
            self.commands.push(format!("{} ({code})", cut(first, COMMAND)));
        }
    }
}

/// Each of them once, where it stands last.
fn keep_last(list: &mut Vec<String>) {
    let mut seen = HashSet::new();
    list.reverse();
    list.retain(|own| seen.insert(own.clone()));
    list.reverse();
}

fn entry(entry: &PlanEntry) -> String {
    format!("[{}] {}", entry.status, cut(&entry.content, LONGEST / 8))
}

/// The beginning of a text, with a word about the rest.
pub fn cut(text: &str, limit: usize) -> String {
    let text = text.trim();
    // What was cut to this limit before is not cut again for the word about it.
    if text.char_indices().nth(limit + SLACK).is_none() {
        return text.to_owned();
    }
    let end = text.char_indices().nth(limit).map_or(text.len(), |(end, _)| end);
    format!("{}… ({} more bytes)", &text[..end], text.len() - end)
}
