//! Input items of a request: which Events of a History are replayed to the model, and in what form.
//!
//! The API is strict: every call has exactly one output after its batch, no output stands alone,
//! and a reasoning item is followed by what it produced. `InputWriter` keeps these rules for any
//! sequence of Events, damaged ones included. It skips audit Events, so they never change the
//! bytes of the prefix that a Provider has cached.
//!
//! Items are written directly into one buffer; no tree of values is built.

mod resources;
mod skills;
mod subagent_ends;

use serde::Serialize;
use serde_json::Value;

use crate::model::provider::OutputItem;
use crate::record::compaction::prune;
use crate::record::event::{
    AssistantMessage, Canonical, Extra, HistoryCompaction, Reasoning, Seq, SubagentEvent, ToolCall,
    ToolResult, UserMessage,
};
use crate::record::history::{History, link_calls};
use crate::record::resource::ResourceContents;

/// The replacement of an empty tool output; the API refuses empty outputs.
const NO_OUTPUT: &str = "(no output)";
/// The output of a call whose result was never recorded.
const ORPHAN_OUTPUT: &str = "error orphan_tool_call: this call was interrupted and its result is not known; \
    check what it did before relying on it";

/// Options of the input. Encrypted reasoning is sent only to the model and account that produced it.
#[derive(Debug, Clone, Copy)]
pub struct InputOptions<'a> {
    pub model: &'a str,
    /// Fingerprint of endpoint and paying account; `None` when unknown.
    pub account: Option<&'a str>,
    /// The last Event whose reasoning was refused as unreadable; reasoning up to it is left out.
    pub unreadable_to: Option<Seq>,
    /// Contents of the Resources that the current Turn shows.
    pub contents: Option<&'a ResourceContents>,
}

impl<'a> InputOptions<'a> {
    /// Options for a model, without account and Resources.
    pub fn for_model(model: &'a str) -> Self {
        Self { model, account: None, unreadable_to: None, contents: None }
    }

    fn accepts_reasoning(&self, reasoning: &Reasoning) -> bool {
        let text = |name: &str| reasoning.item.get(name).and_then(Value::as_str);
        let maker = reasoning.extra.get("account").and_then(Value::as_str);
        !self.model.is_empty()
            && reasoning.model == self.model
            && (maker.is_none() || self.account.is_none() || maker == self.account)
            && text("type") == Some("reasoning")
            && text("encrypted_content").is_some_and(|content| !content.is_empty())
    }
}

/// Writes the `input` array: the project's developer message first, then the items of the History.
pub fn write_input(
    out: &mut Vec<u8>,
    history: &History,
    options: &InputOptions<'_>,
    project: Option<&str>,
) {
    let mut writer = InputWriter::new(out, *options);
    writer.out.push(b'[');
    if let Some(project) = project {
        writer.write_message(InputRole::Developer, project);
    }
    let visible = history.visible();
    if let Some(checkpoint) = visible.checkpoint.filter(|own| own.hidden_to().is_some()) {
        if let Some(context) = &checkpoint.context {
            writer.write_message(InputRole::Developer, context);
        }
        writer.write_message(InputRole::User, &checkpoint_text(checkpoint));
    }
    let limit = |seq: Seq| visible.checkpoint.and_then(|checkpoint| checkpoint.prune_limit(seq));
    let is_read = |(seq, fact): &(Seq, &Canonical)| {
        let is_unreadable = options.unreadable_to.is_some_and(|last| *seq <= last);
        !matches!(fact, Canonical::Reasoning(_)) || !(is_unreadable || limit(*seq).is_some())
    };
    let facts = visible.facts.into_iter().filter(is_read);
    let (seqs, facts): (Vec<Seq>, Vec<&Canonical>) = facts.unzip();
    writer.limits = seqs.into_iter().map(limit).collect();
    let links = link_calls(&facts);
    let is_user = |fact: &&Canonical| matches!(fact, Canonical::UserMessage(_));
    writer.turn_start = facts.iter().rposition(is_user).unwrap_or_default();
    for (place, fact) in facts.iter().enumerate() {
        writer.write_fact(place, fact, &facts, &links);
    }
    writer.finish_batch();
    writer.out.push(b']');
}

/// Writes an answer as an array, in the form in which `write_input` replays it once it is recorded.
/// Tool outputs are not part of it: the server does not produce them.
pub fn write_answer(items: &[OutputItem], options: &InputOptions<'_>) -> Vec<u8> {
    let facts: Vec<Canonical> =
        items.iter().filter_map(|item| recorded_fact(item, options)).collect();
    let facts: Vec<&Canonical> = facts.iter().collect();
    let links = vec![None; facts.len()];
    let mut out = vec![b'['];
    let mut writer = InputWriter::new(&mut out, *options);
    for (place, fact) in facts.iter().enumerate() {
        writer.pending_calls.clear();
        writer.write_fact(place, fact, &facts, &links);
    }
    out.push(b']');
    out
}

/// The Event that the Turn records for an item.
fn recorded_fact(item: &OutputItem, options: &InputOptions<'_>) -> Option<Canonical> {
    let extra = Extra::new();
    Some(match item {
        OutputItem::Message { text, .. } if !text.trim().is_empty() => {
            AssistantMessage { text: text.clone(), phase: None, metadata: None, extra }.into()
        }
        OutputItem::Reasoning { item } => {
            Reasoning { item: item.clone(), model: options.model.to_owned(), extra }.into()
        }
        OutputItem::Call(call) => call.to_tool_call(&call.parse_arguments()).into(),
        OutputItem::Message { .. } | OutputItem::WebSearch(_) | OutputItem::Other { .. } => {
            return None;
        }
    })
}

/// A message that is written after the outputs of the current batch.
enum DeferredMessage<'a> {
    Text(InputRole, String),
    /// The end of a Subagent.
    SubagentEnd(&'a SubagentEvent),
}

#[derive(Clone, Copy)]
enum InputRole {
    Developer,
    User,
}

/// A call whose output has not been written.
struct PendingCall<'a> {
    call: &'a ToolCall,
    result: Option<&'a ToolResult>,
    /// The largest output that is replayed whole, in bytes; `None` for any size.
    limit: Option<u64>,
}

/// Writes input items; keeps the current batch of calls and the messages that follow its outputs.
struct InputWriter<'a> {
    out: &'a mut Vec<u8>,
    options: InputOptions<'a>,
    is_first: bool,
    /// Calls whose outputs have not been written.
    pending_calls: Vec<PendingCall<'a>>,
    /// For each Event, the size above which a marker replaces it.
    limits: Vec<Option<u64>>,
    /// Index of the batch's first call; results of earlier calls are already written.
    batch_start: usize,
    unanswered: usize,
    /// Reasoning items that are written before the item they produced.
    pending_reasoning: Vec<&'a Reasoning>,
    deferred: Vec<DeferredMessage<'a>>,
    /// Size of the Subagent ends written since the last message of the user.
    end_budget: subagent_ends::SubagentEndBudget,
    scratch: Vec<u8>,
    /// Index of the current Turn's first Event; Resources of earlier Turns are only named.
    turn_start: usize,
}

impl<'a> InputWriter<'a> {
    fn new(out: &'a mut Vec<u8>, options: InputOptions<'a>) -> Self {
        Self {
            out,
            options,
            is_first: true,
            pending_calls: Vec::new(),
            limits: Vec::new(),
            batch_start: 0,
            unanswered: 0,
            pending_reasoning: Vec::new(),
            deferred: Vec::new(),
            end_budget: subagent_ends::SubagentEndBudget::default(),
            scratch: Vec::new(),
            turn_start: 0,
        }
    }

    fn write_fact(
        &mut self,
        place: usize,
        fact: &'a Canonical,
        facts: &[&'a Canonical],
        links: &[Option<usize>],
    ) {
        match fact {
            Canonical::UserMessage(message) => {
                self.write_user_message(message, place >= self.turn_start);
            }
            Canonical::AssistantMessage(message)
                if !message.is_partial() && !message.text.is_empty() =>
            {
                self.finish_batch();
                self.write_pending_reasoning();
                self.write_assistant_message(&message.text);
            }
            Canonical::Reasoning(reasoning) => {
                if self.options.accepts_reasoning(reasoning) {
                    self.pending_reasoning.push(reasoning);
                }
            }
            Canonical::ToolCall(call) => {
                let result = links[place].and_then(|result| match facts[result] {
                    Canonical::ToolResult(result) => Some(result),
                    _ => None,
                });
                let limit = links[place].and_then(|result| self.prune_limit(result));
                self.write_call(place, PendingCall { call, result, limit });
            }
            Canonical::ToolResult(_) => {
                if links[place].is_some_and(|call| call >= self.batch_start) && self.unanswered > 0
                {
                    self.pending_reasoning.clear();
                    self.unanswered -= 1;
                    if self.unanswered == 0 {
                        self.finish_batch();
                    }
                }
            }
            Canonical::SkillActivation(skill) => {
                self.write_or_defer_user(skills::activation_text(skill));
            }
            // Skill context is valid for its own Turn only.
            Canonical::SkillContextHydration(context) if place >= self.turn_start => {
                self.write_or_defer(InputRole::Developer, skills::hydration_text(context));
            }
            Canonical::SubagentEvent(child) if child.ends_run() => {
                if self.pending_calls.is_empty() {
                    self.write_subagent_end(child);
                } else {
                    self.deferred.push(DeferredMessage::SubagentEnd(child));
                }
            }
            Canonical::BranchSummary(branch) => self.write_or_defer_user(format!(
                "[Summary of the branch of Session {} that was left]\n{}",
                branch.parent_session_id, branch.summary
            )),
            // Audit Events; and rewinds and checkpoints, which `visible` has applied.
            Canonical::AssistantMessage(_)
            | Canonical::SubagentEvent(_)
            | Canonical::SessionStarted(_)
            | Canonical::PermissionDecision(_)
            | Canonical::ProviderUsage(_)
            | Canonical::TurnFailed(_)
            | Canonical::Plan(_)
            | Canonical::SkillContextHydration(_)
            | Canonical::WorkflowEvent(_)
            | Canonical::SessionFork(_)
            | Canonical::HistoryCompaction(_)
            | Canonical::HistoryRewound(_)
            | Canonical::PostureChanged(_)
            | Canonical::LogRepaired(_)
            | Canonical::Unknown(_) => {}
        }
    }

    fn write_user_message(&mut self, message: &UserMessage, is_current: bool) {
        self.finish_batch();
        self.pending_reasoning.clear();
        self.end_budget = subagent_ends::SubagentEndBudget::default();
        if let Some(context) = &message.context {
            self.write_message(InputRole::Developer, context);
        }
        self.write_user_content(message, is_current);
    }

    fn prune_limit(&self, place: usize) -> Option<u64> {
        self.limits.get(place).copied().flatten()
    }

    fn write_call(&mut self, place: usize, open: PendingCall<'a>) {
        let call = open.call;
        if !self.pending_reasoning.is_empty() {
            self.finish_batch();
            self.write_pending_reasoning();
        }
        if self.pending_calls.is_empty() {
            self.batch_start = place;
        }
        self.begin_item("{\"type\":\"function_call\",\"call_id\":");
        write_json(self.out, call.call_id.as_str());
        self.out.extend_from_slice(b",\"name\":");
        write_json(self.out, &call.name);
        self.out.extend_from_slice(b",\"arguments\":");
        let pruned = self.prune_limit(place).and_then(|limit| prune::prune_arguments(call, limit));
        match (&call.raw_args, &call.args) {
            _ if let Some(args) = &pruned => write_json_string(self.out, &mut self.scratch, args),
            (Some(raw), _) => write_json(self.out, raw),
            (None, Value::Null) => self.out.extend_from_slice(b"\"{}\""),
            (None, args) => write_json_string(self.out, &mut self.scratch, args),
        }
        self.out.push(b'}');
        self.pending_calls.push(open);
        self.unanswered += 1;
    }

    /// Writes the outputs of the batch in the order of its calls, then the deferred messages.
    fn finish_batch(&mut self) {
        let is_current = self.batch_start >= self.turn_start;
        let batch = std::mem::take(&mut self.pending_calls);
        let results = batch.iter().filter_map(|open| open.result);
        let reported: Vec<&str> = results.flat_map(ToolResult::reported_subagents).collect();
        for PendingCall { call, result, limit } in batch {
            self.begin_item("{\"type\":\"function_call_output\",\"call_id\":");
            write_json(self.out, call.call_id.as_str());
            self.out.extend_from_slice(b",\"output\":");
            let marker =
                result.zip(limit).and_then(|(result, limit)| prune::prune_output(result, limit));
            match result {
                _ if let Some(marker) = &marker => write_json(self.out, marker),
                Some(result) => self.write_result(result, is_current),
                None => write_json(self.out, ORPHAN_OUTPUT),
            }
            self.out.push(b'}');
        }
        self.unanswered = 0;
        for aside in std::mem::take(&mut self.deferred) {
            match aside {
                DeferredMessage::Text(role, text) => self.write_message(role, &text),
                // Left out when an output of the batch has already reported it.
                DeferredMessage::SubagentEnd(child) => {
                    let id = child.subagent_id.as_deref();
                    if !id.is_some_and(|id| reported.contains(&id)) {
                        self.write_subagent_end(child);
                    }
                }
            }
        }
    }

    fn write_output(&mut self, result: &ToolResult) {
        match (&result.output, &result.error) {
            (Some(text), _) if !text.is_empty() => write_json(self.out, text),
            (Some(_), Some(error)) => write_json(self.out, &error.to_string()),
            (Some(_), None) => write_json(self.out, NO_OUTPUT),
            (None, _) => {
                let mut data = serde_json::to_value(result).unwrap_or_default();
                if let Some(fields) = data.as_object_mut() {
                    fields.shift_remove("call_id");
                }
                write_json_string(self.out, &mut self.scratch, &data);
            }
        }
    }

    /// Writes the end of a Subagent that no tool call waited for.
    fn write_subagent_end(&mut self, child: &SubagentEvent) {
        if let Some(text) = self.end_budget.render_end(child) {
            self.write_message(InputRole::User, &text);
        }
    }

    /// Writes a message with role `user` that the user did not write; defers it while outputs are pending.
    fn write_or_defer_user(&mut self, text: String) {
        self.write_or_defer(InputRole::User, text);
    }

    fn write_or_defer(&mut self, role: InputRole, text: String) {
        if self.pending_calls.is_empty() {
            self.write_message(role, &text);
        } else {
            self.deferred.push(DeferredMessage::Text(role, text));
        }
    }

    fn write_message(&mut self, role: InputRole, text: &str) {
        self.begin_item(match role {
            InputRole::Developer => {
                "{\"type\":\"message\",\"role\":\"developer\",\"content\":[{\"type\":\"input_text\",\"text\":"
            }
            InputRole::User => "{\"type\":\"message\",\"role\":\"user\",\"content\":[{\"type\":\"input_text\",\"text\":",
        });
        write_json(self.out, text);
        self.out.extend_from_slice(b"}]}");
    }

    fn write_assistant_message(&mut self, text: &str) {
        self.begin_item(
            "{\"type\":\"message\",\"role\":\"assistant\",\"content\":[{\"type\":\"output_text\",\"text\":",
        );
        write_json(self.out, text);
        self.out.extend_from_slice(b"}]}");
    }

    /// Writes reasoning verbatim except the id, which would make the server look for an item it never stored.
    fn write_pending_reasoning(&mut self) {
        let held = std::mem::take(&mut self.pending_reasoning);
        for fields in held.iter().filter_map(|reasoning| reasoning.item.as_object()) {
            self.begin_item("{");
            let kept = fields.iter().filter(|(name, _)| *name != "id");
            for (position, (name, value)) in kept.enumerate() {
                if position > 0 {
                    self.out.push(b',');
                }
                write_json(self.out, name);
                self.out.push(b':');
                write_json(self.out, value);
            }
            self.out.push(b'}');
        }
    }

    fn begin_item(&mut self, opening: &str) {
        if !std::mem::replace(&mut self.is_first, false) {
            self.out.push(b',');
        }
        self.out.extend_from_slice(opening.as_bytes());
    }
}

fn checkpoint_text(checkpoint: &HistoryCompaction) -> String {
    let summary = match &checkpoint.summary {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    format!(
        "[Checkpoint: events {} to {} of this Session are replaced by this summary ({})]\n{summary}",
        checkpoint.from_seq,
        checkpoint.hidden_to().unwrap_or(checkpoint.to_seq),
        checkpoint.strategy
    )
}

fn write_json<T: Serialize + ?Sized>(out: &mut Vec<u8>, value: &T) {
    // Strings and `Value`s always serialise, and writing to a `Vec` cannot fail.
    if let Err(error) = serde_json::to_writer(&mut *out, value) {
        tracing::error!(%error, "a replayed value has no JSON form");
    }
}

/// Writes a value's JSON as a JSON string.
fn write_json_string(out: &mut Vec<u8>, scratch: &mut Vec<u8>, value: &Value) {
    scratch.clear();
    write_json(scratch, value);
    write_json(out, &String::from_utf8_lossy(scratch));
}

#[cfg(test)]
mod tests;
