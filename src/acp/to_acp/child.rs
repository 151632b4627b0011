//! Children of the Session: each is shown as a call of its own, with what it does.
//!
//! What it does is looked at now and then and told only when it changed, so that many children do
//! not flood the client.

use std::collections::HashMap;
use std::path::Path;

use agent_client_protocol_schema::v1::{
    SessionUpdate, ToolCall, ToolCallStatus, ToolCallUpdate, ToolCallUpdateFields, ToolKind,
};

use super::call::{self, Look};
use super::title;
use crate::event::{PermissionRequest, SubagentEvent, SubagentEventKind, spell_hidden};
use crate::harness::{ChildStatus, ChildView};
use crate::id::CallId;

/// How many children are told of at one look; the others have their turn at the next.
const AT_ONCE: usize = 32;

/// The children that were shown, and what was said of each.
#[derive(Debug, Default)]
pub struct Children {
    told: HashMap<String, String>,
    /// With whom the next look begins, among those that work.
    turn: usize,
}

impl Children {
    /// Shows what happened to a child.
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

    /// Shows what children do that work.
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
                // Nobody waits because others always have news.
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

/// What it came to, and where that is written.
fn words(life: &SubagentEvent) -> Option<call::Words> {
    if !life.ends_run() {
        return None;
    }
    let summary = life.summary.as_deref().unwrap_or("It left no summary.");
    let log = life.child_session_id.as_deref().map(|id| format!("\n\nSession {id}"));
    Some(call::text(&format!("{summary}{}", log.unwrap_or_default())))
}

/// The call that a child asks about: the client hears of it before it is asked.
pub fn asked(asked: &PermissionRequest, root: &Path) -> SessionUpdate {
    let look = Look::of(&asked.tool, &asked.args, root);
    let first = ToolCall::new(asked.call_id.to_string(), asked_title(asked, &look.title))
        .kind(look.kind)
        .status(ToolCallStatus::Pending)
        .raw_input(asked.args.clone());
    SessionUpdate::ToolCall(first)
}

/// What a question is called: whose it is, and what it is about.
pub fn asked_title(asked: &PermissionRequest, title: &str) -> String {
    let agent = asked.agent.as_deref().map(spell_hidden);
    agent.map_or_else(|| title.to_owned(), |agent| format!("{agent}: {title}"))
}

/// The question of a child is settled.
pub fn settled(call_id: &CallId, is_allowed: bool) -> SessionUpdate {
    let status = if is_allowed { ToolCallStatus::Completed } else { ToolCallStatus::Failed };
    let fields = ToolCallUpdateFields::new().status(status);
    SessionUpdate::ToolCallUpdate(ToolCallUpdate::new(call_id.to_string(), fields))
}
