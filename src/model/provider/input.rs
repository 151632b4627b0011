//! Input items of a request: which Events of a History are replayed to the model, and in what form.
//!
//! The API is strict: every call has exactly one output after its batch, no output stands alone,
//! and a reasoning item is followed by what it produced. `InputWriter` keeps these rules for any
//! sequence of Events, damaged ones included. It skips audit Events, so they never change the
//! bytes of the prefix that a Provider has cached.
//!
//! Items are written directly into one buffer; no tree of values is built.

mod delegated;
mod shown;
mod skilled;

use serde::Serialize;
use serde_json::Value;

use crate::model::provider::Item;
use crate::record::compaction::prune;
use crate::record::event::{
    AssistantMessage, Canonical, Extra, HistoryCompaction, Reasoning, Seq, SubagentEvent, ToolCall,
    ToolResult, UserMessage,
};
use crate::record::history::{History, link};
use crate::record::resource::Contents;

/// Stands for an empty tool output; the API refuses empty outputs.
const NO_OUTPUT: &str = "(no output)";
/// The output of a call whose result was never recorded.
const ORPHAN: &str = "error orphan_tool_call: this call was interrupted and its result is not known; \
    check what it did before relying on it";

/// Options of the input. Encrypted reasoning is sent only to the model and account that produced it.
#[derive(Debug, Clone, Copy)]
pub struct Reader<'a> {
    pub model: &'a str,
    /// Fingerprint of endpoint and paying account; `None` when unknown.
    pub account: Option<&'a str>,
    /// Reasoning up to this Event was refused as unreadable and is left out.
    pub unreadable_to: Option<Seq>,
    /// Contents of the Resources that the current Turn shows.
    pub contents: Option<&'a Contents>,
}

impl<'a> Reader<'a> {
    /// Options for a model, without account and Resources.
    pub fn of(model: &'a str) -> Self {
        Self { model, account: None, unreadable_to: None, contents: None }
    }

    fn can_read(&self, reasoning: &Reasoning) -> bool {
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
pub fn write(out: &mut Vec<u8>, history: &History, reader: &Reader<'_>, project: Option<&str>) {
    let mut fold = Fold::new(out, *reader);
    fold.out.push(b'[');
    if let Some(project) = project {
        fold.message(Role::Developer, project);
    }
    let visible = history.visible();
    if let Some(checkpoint) = visible.checkpoint.filter(|own| own.hidden_to().is_some()) {
        if let Some(context) = &checkpoint.context {
            fold.message(Role::Developer, context);
        }
        fold.message(Role::User, &checkpoint_text(checkpoint));
    }
    let limit = |seq: Seq| visible.checkpoint.and_then(|checkpoint| checkpoint.prunes(seq));
    let is_read = |(seq, fact): &(Seq, &Canonical)| {
        let is_unreadable = reader.unreadable_to.is_some_and(|last| *seq <= last);
        !matches!(fact, Canonical::Reasoning(_)) || !(is_unreadable || limit(*seq).is_some())
    };
    let facts = visible.facts.into_iter().filter(is_read);
    let (seqs, facts): (Vec<Seq>, Vec<&Canonical>) = facts.unzip();
    fold.limits = seqs.into_iter().map(limit).collect();
    let links = link(&facts);
    let is_user = |fact: &&Canonical| matches!(fact, Canonical::UserMessage(_));
    fold.turn_start = facts.iter().rposition(is_user).unwrap_or_default();
    for (place, fact) in facts.iter().enumerate() {
        fold.take(place, fact, &facts, &links);
    }
    fold.settle();
    fold.out.push(b']');
}

/// Writes an answer as an array, in the form in which `write_input` replays it once it is recorded.
/// Tool outputs are not part of it: the server does not produce them.
pub fn write_answer(items: &[Item], reader: &Reader<'_>) -> Vec<u8> {
    let facts: Vec<Canonical> = items.iter().filter_map(|item| recorded(item, reader)).collect();
    let facts: Vec<&Canonical> = facts.iter().collect();
    let links = vec![None; facts.len()];
    let mut out = vec![b'['];
    let mut fold = Fold::new(&mut out, *reader);
    for (place, fact) in facts.iter().enumerate() {
        fold.batch.clear();
        fold.take(place, fact, &facts, &links);
    }
    out.push(b']');
    out
}

/// The Event that the Turn records for an item.
fn recorded(item: &Item, reader: &Reader<'_>) -> Option<Canonical> {
    let extra = Extra::new();
    Some(match item {
        Item::Message { text, .. } if !text.trim().is_empty() => {
            AssistantMessage { text: text.clone(), phase: None, metadata: None, extra }.into()
        }
        Item::Reasoning { item } => {
            Reasoning { item: item.clone(), model: reader.model.to_owned(), extra }.into()
        }
        Item::Call(call) => call.recorded(&call.args()).into(),
        Item::Message { .. } | Item::WebSearch(_) | Item::Other { .. } => return None,
    })
}

/// A message that is written after the outputs of the current batch.
enum Aside<'a> {
    Text(Role, String),
    /// The end of a Subagent.
    End(&'a SubagentEvent),
}

#[derive(Clone, Copy)]
enum Role {
    Developer,
    User,
}

/// A call whose output has not been written.
struct Open<'a> {
    call: &'a ToolCall,
    result: Option<&'a ToolResult>,
    /// The largest output that is replayed whole, in bytes; `None` for any size.
    limit: Option<u64>,
}

/// Writes input items; keeps the current batch of calls and the messages that follow its outputs.
struct Fold<'a> {
    out: &'a mut Vec<u8>,
    reader: Reader<'a>,
    is_first: bool,
    /// Calls whose outputs have not been written.
    batch: Vec<Open<'a>>,
    /// For each Event, the size above which a marker replaces it.
    limits: Vec<Option<u64>>,
    /// Index of the batch's first call; results of earlier calls are already written.
    batch_start: usize,
    unanswered: usize,
    /// Reasoning items that are written before the item they produced.
    held: Vec<&'a Reasoning>,
    deferred: Vec<Aside<'a>>,
    /// Size of the Subagent ends written since the last message of the user.
    ends: delegated::Room,
    scratch: Vec<u8>,
    /// Index of the current Turn's first Event; Resources of earlier Turns are only named.
    turn_start: usize,
}

impl<'a> Fold<'a> {
    fn new(out: &'a mut Vec<u8>, reader: Reader<'a>) -> Self {
        Self {
            out,
            reader,
            is_first: true,
            batch: Vec::new(),
            limits: Vec::new(),
            batch_start: 0,
            unanswered: 0,
            held: Vec::new(),
            deferred: Vec::new(),
            ends: delegated::Room::default(),
            scratch: Vec::new(),
            turn_start: 0,
        }
    }

    fn take(
        &mut self,
        place: usize,
        fact: &'a Canonical,
        facts: &[&'a Canonical],
        links: &[Option<usize>],
    ) {
        match fact {
            Canonical::UserMessage(message) => self.user(message, place >= self.turn_start),
            Canonical::AssistantMessage(message)
                if !message.is_partial() && !message.text.is_empty() =>
            {
                self.settle();
                self.release_reasoning();
                self.assistant(&message.text);
            }
            Canonical::Reasoning(reasoning) => {
                if self.reader.can_read(reasoning) {
                    self.held.push(reasoning);
                }
            }
            Canonical::ToolCall(call) => {
                let result = links[place].and_then(|result| match facts[result] {
                    Canonical::ToolResult(result) => Some(result),
                    _ => None,
                });
                let limit = links[place].and_then(|result| self.limit(result));
                self.call(place, Open { call, result, limit });
            }
            Canonical::ToolResult(_) => {
                if links[place].is_some_and(|call| call >= self.batch_start) && self.unanswered > 0
                {
                    self.held.clear();
                    self.unanswered -= 1;
                    if self.unanswered == 0 {
                        self.settle();
                    }
                }
            }
            Canonical::SkillActivation(skill) => self.aside(skilled::activation(skill)),
            // Skill context is valid for its own Turn only.
            Canonical::SkillContextHydration(context) if place >= self.turn_start => {
                self.put_aside(Role::Developer, skilled::hydration(context));
            }
            Canonical::SubagentEvent(child) if child.ends_run() => {
                if self.batch.is_empty() {
                    self.ended(child);
                } else {
                    self.deferred.push(Aside::End(child));
                }
            }
            Canonical::BranchSummary(branch) => self.aside(format!(
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

    fn user(&mut self, message: &UserMessage, is_current: bool) {
        self.settle();
        self.held.clear();
        self.ends = delegated::Room::default();
        if let Some(context) = &message.context {
            self.message(Role::Developer, context);
        }
        self.said(message, is_current);
    }

    fn limit(&self, place: usize) -> Option<u64> {
        self.limits.get(place).copied().flatten()
    }

    fn call(&mut self, place: usize, open: Open<'a>) {
        let call = open.call;
        if !self.held.is_empty() {
            self.settle();
            self.release_reasoning();
        }
        if self.batch.is_empty() {
            self.batch_start = place;
        }
        self.open_item("{\"type\":\"function_call\",\"call_id\":");
        json(self.out, call.call_id.as_str());
        self.out.extend_from_slice(b",\"name\":");
        json(self.out, &call.name);
        self.out.extend_from_slice(b",\"arguments\":");
        let pruned = self.limit(place).and_then(|limit| prune::arguments(call, limit));
        match (&call.raw_args, &call.args) {
            _ if let Some(args) = &pruned => json_text(self.out, &mut self.scratch, args),
            (Some(raw), _) => json(self.out, raw),
            (None, Value::Null) => self.out.extend_from_slice(b"\"{}\""),
            (None, args) => json_text(self.out, &mut self.scratch, args),
        }
        self.out.push(b'}');
        self.batch.push(open);
        self.unanswered += 1;
    }

    /// Writes the outputs of the batch in the order of its calls, then the deferred messages.
    fn settle(&mut self) {
        let is_current = self.batch_start >= self.turn_start;
        let batch = std::mem::take(&mut self.batch);
        let results = batch.iter().filter_map(|open| open.result);
        let told: Vec<&str> = results.flat_map(ToolResult::told).collect();
        for Open { call, result, limit } in batch {
            self.open_item("{\"type\":\"function_call_output\",\"call_id\":");
            json(self.out, call.call_id.as_str());
            self.out.extend_from_slice(b",\"output\":");
            let marker = result.zip(limit).and_then(|(result, limit)| prune::output(result, limit));
            match result {
                _ if let Some(marker) = &marker => json(self.out, marker),
                Some(result) => self.result(result, is_current),
                None => json(self.out, ORPHAN),
            }
            self.out.push(b'}');
        }
        self.unanswered = 0;
        for aside in std::mem::take(&mut self.deferred) {
            match aside {
                Aside::Text(role, text) => self.message(role, &text),
                // Left out when an output of the batch has already reported it.
                Aside::End(child) => {
                    let id = child.subagent_id.as_deref();
                    if !id.is_some_and(|id| told.contains(&id)) {
                        self.ended(child);
                    }
                }
            }
        }
    }

    fn output(&mut self, result: &ToolResult) {
        match (&result.output, &result.error) {
            (Some(text), _) if !text.is_empty() => json(self.out, text),
            (Some(_), Some(error)) => json(self.out, &error.to_string()),
            (Some(_), None) => json(self.out, NO_OUTPUT),
            (None, _) => {
                let mut data = serde_json::to_value(result).unwrap_or_default();
                if let Some(fields) = data.as_object_mut() {
                    fields.shift_remove("call_id");
                }
                json_text(self.out, &mut self.scratch, &data);
            }
        }
    }

    /// Writes the end of a Subagent that no tool call waited for.
    fn ended(&mut self, child: &SubagentEvent) {
        if let Some(text) = self.ends.take(child) {
            self.message(Role::User, &text);
        }
    }

    /// Writes a message with role `user` that the user did not write; never between a call and its output.
    fn aside(&mut self, text: String) {
        self.put_aside(Role::User, text);
    }

    fn put_aside(&mut self, role: Role, text: String) {
        if self.batch.is_empty() {
            self.message(role, &text);
        } else {
            self.deferred.push(Aside::Text(role, text));
        }
    }

    fn message(&mut self, role: Role, text: &str) {
        self.open_item(match role {
            Role::Developer => {
                "{\"type\":\"message\",\"role\":\"developer\",\"content\":[{\"type\":\"input_text\",\"text\":"
            }
            Role::User => "{\"type\":\"message\",\"role\":\"user\",\"content\":[{\"type\":\"input_text\",\"text\":",
        });
        json(self.out, text);
        self.out.extend_from_slice(b"}]}");
    }

    fn assistant(&mut self, text: &str) {
        self.open_item(
            "{\"type\":\"message\",\"role\":\"assistant\",\"content\":[{\"type\":\"output_text\",\"text\":",
        );
        json(self.out, text);
        self.out.extend_from_slice(b"}]}");
    }

    /// Writes reasoning verbatim but for the id, which would make the server look for an item it never stored.
    fn release_reasoning(&mut self) {
        let held = std::mem::take(&mut self.held);
        for fields in held.iter().filter_map(|reasoning| reasoning.item.as_object()) {
            self.open_item("{");
            let kept = fields.iter().filter(|(name, _)| *name != "id");
            for (position, (name, value)) in kept.enumerate() {
                if position > 0 {
                    self.out.push(b',');
                }
                json(self.out, name);
                self.out.push(b':');
                json(self.out, value);
            }
            self.out.push(b'}');
        }
    }

    fn open_item(&mut self, opening: &str) {
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

fn json<T: Serialize + ?Sized>(out: &mut Vec<u8>, value: &T) {
    // Strings and `Value`s always serialise, and writing to a `Vec` cannot fail.
    if let Err(error) = serde_json::to_writer(&mut *out, value) {
        tracing::error!(%error, "a replayed value has no JSON form");
    }
}

/// Writes a value's JSON as a JSON string.
fn json_text(out: &mut Vec<u8>, scratch: &mut Vec<u8>, value: &Value) {
    scratch.clear();
    json(scratch, value);
    json(out, &String::from_utf8_lossy(scratch));
}

#[cfg(test)]
mod tests;
