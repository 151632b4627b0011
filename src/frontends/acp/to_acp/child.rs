//! Child Sessions as ACP updates: each is shown as a tool call with its current activity.
//!
//! The activity is polled and sent only when it changed, so that many children do not flood the client.

use std::collections::HashMap;
use std::path::Path;

use agent_client_protocol_schema::v1::{
    SessionUpdate, ToolCall, ToolCallStatus, ToolCallUpdate, ToolCallUpdateFields, ToolKind,
};

use super::call::{self, CallSummary};
use super::title_text;
use crate::agent::harness::{ChildStatus, ChildView};
use crate::base::id::CallId;
use crate::record::event::{PermissionRequest, SubagentEvent, SubagentEventKind, spell_hidden};

/// How many children are updated per poll; the others follow at the next one.
const MAX_UPDATES: usize = 32;

/// The children that were sent, with the last activity of each.
#[derive(Debug, Default)]
pub struct ChildCalls {
    last_activity: HashMap<String, String>,
    /// Index of the running child with which the next poll begins.
    next_child: usize,
}

impl ChildCalls {
    /// Renders an Event of a child.
    pub fn render_event(&mut self, life: &SubagentEvent) -> Vec<SessionUpdate> {
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
        if !self.last_activity.contains_key(id) {
            self.last_activity.insert(id.clone(), String::new());
            let role = life.agent.as_deref().unwrap_or("Subagent");
            let task = title_text(life.task.as_deref().unwrap_or_default());
            let first = ToolCall::new(id.clone(), format!("{role}: {task}"))
                .kind(ToolKind::Think)
                .status(status)
                .content(run_summary(life).into_iter().collect());
            return vec![SessionUpdate::ToolCall(first)];
        }
        let mut fields = ToolCallUpdateFields::new().status(status);
        if let Some(words) = run_summary(life) {
            fields = fields.content(vec![words]);
        }
        vec![SessionUpdate::ToolCallUpdate(ToolCallUpdate::new(id.clone(), fields))]
    }

    /// Renders the activity of running children that changed.
    pub fn render_activity(&mut self, views: &[ChildView]) -> Vec<SessionUpdate> {
        let is_running = |view: &&ChildView| view.record.status == ChildStatus::Running;
        let running: Vec<&ChildView> = views.iter().filter(is_running).collect();
        let mut updates = Vec::new();
        let first = self.next_child.checked_rem(running.len()).unwrap_or_default();
        self.next_child = 0;
        for place in (first..running.len()).chain(0..first) {
            let view = running[place];
            let Some(sent_activity) = self.last_activity.get_mut(&view.record.id) else { continue };
            if *sent_activity == view.activity || view.activity.is_empty() {
                continue;
            }
            if updates.len() == MAX_UPDATES {
                // The next poll begins here, so that every child is updated in turn.
                self.next_child = place;
                break;
            }
            sent_activity.clone_from(&view.activity);
            let seconds = view.record.elapsed.as_secs();
            let tokens = view.record.usage.total_tokens;
            let text = format!("{} · {seconds} s · {tokens} tokens", view.activity);
            let fields = ToolCallUpdateFields::new().content(vec![call::text_content(&text)]);
            let update = ToolCallUpdate::new(view.record.id.clone(), fields);
            updates.push(SessionUpdate::ToolCallUpdate(update));
        }
        updates
    }
}

/// The summary of a child that ended, and its Session.
fn run_summary(life: &SubagentEvent) -> Option<call::CallContent> {
    if !life.ends_run() {
        return None;
    }
    let summary = life.summary.as_deref().unwrap_or("It left no summary.");
    let log = life.child_session_id.as_deref().map(|id| format!("\n\nSession {id}"));
    Some(call::text_content(&format!("{summary}{}", log.unwrap_or_default())))
}

/// The call that a child asks about, which is sent before the question.
pub fn question_call(request: &PermissionRequest, root: &Path) -> SessionUpdate {
    let summary = CallSummary::for_call(&request.tool, &request.args, root);
    let first = ToolCall::new(request.call_id.to_string(), question_title(request, &summary.title))
        .kind(summary.kind)
        .status(ToolCallStatus::Pending)
        .raw_input(request.args.clone());
    SessionUpdate::ToolCall(first)
}

/// The title of a question, with the name of the child that asks.
pub fn question_title(request: &PermissionRequest, title: &str) -> String {
    let agent = request.agent.as_deref().map(spell_hidden);
    agent.map_or_else(|| title.to_owned(), |agent| format!("{agent}: {title}"))
}

/// The update when a child's question is answered.
pub fn settled_update(call_id: &CallId, is_allowed: bool) -> SessionUpdate {
    let status = if is_allowed { ToolCallStatus::Completed } else { ToolCallStatus::Failed };
    let fields = ToolCallUpdateFields::new().status(status);
    SessionUpdate::ToolCallUpdate(ToolCallUpdate::new(call_id.to_string(), fields))
}
