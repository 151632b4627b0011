//! Child Sessions as ACP updates: each is shown as a tool call with its current activity.
//!
//! The activity is polled and sent only when it changed, so that many children do not flood the client.

use std::collections::HashMap;
use std::path::Path;

use agent_client_protocol_schema::v1::{
    SessionUpdate, ToolCall, ToolCallStatus, ToolCallUpdate, ToolCallUpdateFields, ToolKind,
};

use super::call::{self, Look};
use super::title;
use crate::agent::harness::{ChildStatus, ChildView};
use crate::base::id::CallId;
use crate::record::event::{PermissionRequest, SubagentEvent, SubagentEventKind, spell_hidden};

/// How many children are updated per poll; the others follow at the next one.
const AT_ONCE: usize = 32;

/// The children that were sent, with the last activity of each.
#[derive(Debug, Default)]
pub struct Children {
    told: HashMap<String, String>,
    /// Index of the running child with which the next poll begins.
    turn: usize,
}

impl Children {
    /// Renders an Event of a child.
    pub fn hear(&mut self, life: &SubagentEvent) -> Vec<SessionUpdate> {
        let Some(id) = &life.subagent_id else { return Vec::new() };
        let status = match life.event {
            SubagentEventKind::Queued => ToolCallStatus::Pending,
            SubagentEventKind::Started | SubagentEventKind::Input | SubagentEventKind::Retrying => {
                ToolCallStatus::InProgress
            }
            SubagentEventKind::Finished => ToolCallStatus::Completed,
            _ if life.ends_run() => ToolCallStatus::Failed,
            _ => return Vec::new(),
        };
        if !self.told.contains_key(id) {
            self.told.insert(id.clone(), String::new());
            let role = life.agent.as_deref().unwrap_or("Subagent");
            let task = title(life.task.as_deref().unwrap_or_default());
            let first = ToolCall::new(id.clone(), format!("{role}: {task}"))
                .kind(ToolKind::Think)
                .status(status)
                .content(words(life).into_iter().collect());
            return vec![SessionUpdate::ToolCall(first)];
        }
        let mut fields = ToolCallUpdateFields::new().status(status);
        if let Some(words) = words(life) {
            fields = fields.content(vec![words]);
        }
        vec![SessionUpdate::ToolCallUpdate(ToolCallUpdate::new(id.clone(), fields))]
    }

    /// Renders the activity of running children that changed.
    pub fn look(&mut self, views: &[ChildView]) -> Vec<SessionUpdate> {
        let is_running = |view: &&ChildView| view.record.status == ChildStatus::Running;
        let running: Vec<&ChildView> = views.iter().filter(is_running).collect();
        let mut updates = Vec::new();
        let first = self.turn.checked_rem(running.len()).unwrap_or_default();
        self.turn = 0;
        for place in (first..running.len()).chain(0..first) {
            let view = running[place];
            let Some(told) = self.told.get_mut(&view.record.id) else { continue };
            if *told == view.doing || view.doing.is_empty() {
                continue;
            }
            if updates.len() == AT_ONCE {
                // The next poll begins here, so that every child is updated in turn.
                self.turn = place;
                break;
            }
            told.clone_from(&view.doing);
            let seconds = view.record.elapsed.as_secs();
            let tokens = view.record.usage.total_tokens;
            let text = format!("{} · {seconds} s · {tokens} tokens", view.doing);
            let fields = ToolCallUpdateFields::new().content(vec![call::text(&text)]);
            let update = ToolCallUpdate::new(view.record.id.clone(), fields);
            updates.push(SessionUpdate::ToolCallUpdate(update));
        }
        updates
    }
}

/// The summary of a child that ended, and its Session.
fn words(life: &SubagentEvent) -> Option<call::Words> {
    if !life.ends_run() {
        return None;
    }
    let summary = life.summary.as_deref().unwrap_or("It left no summary.");
    let log = life.child_session_id.as_deref().map(|id| format!("\n\nSession {id}"));
    Some(call::text(&format!("{summary}{}", log.unwrap_or_default())))
}

/// The call that a child asks about, which is sent before the question.
pub fn asked(asked: &PermissionRequest, root: &Path) -> SessionUpdate {
    let look = Look::of(&asked.tool, &asked.args, root);
    let first = ToolCall::new(asked.call_id.to_string(), asked_title(asked, &look.title))
        .kind(look.kind)
        .status(ToolCallStatus::Pending)
        .raw_input(asked.args.clone());
    SessionUpdate::ToolCall(first)
}

/// The title of a question, with the name of the child that asks.
pub fn asked_title(asked: &PermissionRequest, title: &str) -> String {
    let agent = asked.agent.as_deref().map(spell_hidden);
    agent.map_or_else(|| title.to_owned(), |agent| format!("{agent}: {title}"))
}

/// The update when a child's question is answered.
pub fn settled(call_id: &CallId, is_allowed: bool) -> SessionUpdate {
    let status = if is_allowed { ToolCallStatus::Completed } else { ToolCallStatus::Failed };
    let fields = ToolCallUpdateFields::new().status(status);
    SessionUpdate::ToolCallUpdate(ToolCallUpdate::new(call_id.to_string(), fields))
}
