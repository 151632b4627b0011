//! Diagnosis of a Session: what happened, which problems it has now, and what to do next.
//!
//! A failure before a later answer is past: it is listed, but is no problem any more.

mod checks;

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Serialize;
use serde_json::Value;

use checks::{DiagnosisInput, check_lineage, check_replay, check_usage, check_workflows};

use super::request_anatomy::RequestAnatomy;
use super::sessions::{SessionSummary, session_holder};
use super::usage::{UsagePeriod, UsageSum, session_spending};
use crate::base::id::SessionId;
use crate::record::event::{Canonical, Seq, SharedEvent, SubagentEventKind};
use crate::record::history::History;
use crate::record::log::{Log, LogError, Verification, verify_log};
use crate::record::state_dir::StateRoot;
use crate::settings::config::Prices;

/// How many characters of its prompt identify a Turn.
const MAX_PROMPT_CHARS: usize = 200;

/// The result of a diagnosis; its JSON form is a stable interface.
#[derive(Debug, Serialize)]
pub struct Diagnosis {
    pub session_id: SessionId,
    #[serde(serialize_with = "crate::base::paths::as_text")]
    pub path: PathBuf,
    pub bytes: u64,
    /// The process that has the Session open.
    pub holder_pid: Option<u32>,
    pub events: EventCounts,
    pub turns: Vec<DiagnosedTurn>,
    /// The number of the last Turn that was answered.
    pub last_success: Option<usize>,
    pub checks: Vec<DiagnosisCheck>,
    pub damage: Verification,
    /// The usage of the Session, with its Subagents and theirs.
    pub usage: UsageSum,
    pub lineage: SessionLineage,
    /// The next actions of all checks, the most useful first.
    pub next_actions: Vec<String>,
}

/// The number of Events, in total and by type.
#[derive(Debug, Default, Serialize)]
pub struct EventCounts {
    pub count: usize,
    pub first_seq: Option<Seq>,
    pub last_seq: Option<Seq>,
    pub by_type: BTreeMap<String, usize>,
    /// Types that this build does not know; their Events are kept and skipped.
    pub unknown: BTreeMap<String, usize>,
}

/// One Turn and how it ended.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct DiagnosedTurn {
    pub number: usize,
    pub seq: Option<Seq>,
    pub started: String,
    pub prompt: String,
    /// `answered`, `open`, or a terminal status.
    pub status: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_kind: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_message: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub next_actions: Vec<String>,
    pub provider_calls: usize,
    pub tool_calls: usize,
    pub tool_failures: usize,
    pub unanswered_calls: Vec<String>,
    pub partial_messages: usize,
    /// Whether the Turn is undone.
    pub is_undone: bool,
}

/// The parent of a Session, its forks and its children.
#[derive(Debug, Default, PartialEq, Serialize)]
pub struct SessionLineage {
    pub parent_session_id: Option<String>,
    pub parent_is_here: Option<bool>,
    pub forks: Vec<SessionId>,
    pub children: Vec<ChildSession>,
}

/// A child Session, as recorded in its parent's Log.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ChildSession {
    pub subagent_id: String,
    pub session_id: Option<String>,
    pub status: String,
    pub is_over: bool,
}

/// One check and its result.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DiagnosisCheck {
    pub id: &'static str,
    pub status: CheckStatus,
    pub message: String,
    #[serde(skip_serializing_if = "Value::is_null")]
    pub details: Value,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub next_actions: Vec<String>,
}

/// The result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckStatus {
    Passed,
    Warning,
    Failed,
}

impl Diagnosis {
    /// Whether no check failed.
    pub fn is_sound(&self) -> bool {
        self.checks.iter().all(|check| check.status != CheckStatus::Failed)
    }

    /// The diagnosis without the Turns up to the last answered one.
    #[must_use]
    pub fn since_success(mut self) -> Self {
        let last = self.last_success.unwrap_or(0);
        self.turns.retain(|turn| turn.number > last);
        self
    }
}

/// Diagnoses a Session. `replay` analyses the request that would be sent now.
pub fn diagnose(
    root: &StateRoot,
    id: &SessionId,
    prices: &Prices,
    replay: impl FnOnce(History) -> RequestAnatomy,
) -> Result<Diagnosis, LogError> {
    let damage = verify_log(root, id)?;
    let reading = Log::read(root, id)?;
    let holder_pid = session_holder(root, id);
    let history = History::from_events(reading.events.clone());
    let events = count_events(&reading.events);
    let turns = diagnose_turns(&history);
    let last_success =
        turns.iter().rev().find(|turn| turn.status == "answered").map(|turn| turn.number);
    let all = super::list_sessions(std::slice::from_ref(root), usize::MAX);
    let lineage = find_lineage(root, id, &history, &all);
    let spending =
        session_spending(root, id, &all, UsagePeriod::default(), prices).unwrap_or_default();
    let workflows = check_workflows(&history, holder_pid);
    let replay = replay(history);
    let facts =
        DiagnosisInput { id, damage: &damage, events: &events, turns: &turns, last_success };
    let mut checks = facts.run_checks(holder_pid);
    checks.push(check_replay(&replay));
    checks.push(check_usage(&spending));
    checks.push(check_lineage(&lineage, holder_pid));
    checks.extend(workflows);
    let mut next_actions: Vec<String> = Vec::new();
    for health in [CheckStatus::Failed, CheckStatus::Warning, CheckStatus::Passed] {
        let actions = checks.iter().filter(|check| check.status == health);
        for action in actions.flat_map(|check| &check.next_actions) {
            if !next_actions.contains(action) {
                next_actions.push(action.clone());
            }
        }
    }
    Ok(Diagnosis {
        session_id: id.clone(),
        path: root.log(id),
        bytes: reading.end,
        holder_pid,
        events,
        turns,
        last_success,
        checks,
        damage,
        usage: spending.total,
        lineage,
        next_actions,
    })
}

fn count_events(events: &[SharedEvent]) -> EventCounts {
    let mut counted = EventCounts { count: events.len(), ..EventCounts::default() };
    for event in events {
        counted.first_seq = counted.first_seq.or(event.seq());
        counted.last_seq = counted.last_seq.max(event.seq());
        let name = event.type_name().to_owned();
        if matches!(event.fact(), Some(Canonical::Unknown(_))) {
            *counted.unknown.entry(name.clone()).or_default() += 1;
        }
        *counted.by_type.entry(name).or_default() += 1;
    }
    counted
}

fn diagnose_turns(history: &History) -> Vec<DiagnosedTurn> {
    let live = history.live_turns();
    let mut turns: Vec<DiagnosedTurn> = Vec::new();
    for event in history.iter() {
        let Some(fact) = event.fact() else { continue };
        if let Canonical::UserMessage(message) = fact {
            turns.push(DiagnosedTurn {
                number: turns.len() + 1,
                seq: event.seq(),
                started: event.ts().to_string(),
                prompt: message.text.chars().take(MAX_PROMPT_CHARS).collect(),
                status: "open".to_owned(),
                is_undone: event.seq().is_some_and(|seq| !live.contains(&seq)),
                ..DiagnosedTurn::default()
            });
            continue;
        }
        let Some(turn) = turns.last_mut() else { continue };
        match fact {
            Canonical::AssistantMessage(message) if message.is_final() => {
                "answered".clone_into(&mut turn.status);
            }
            Canonical::AssistantMessage(message) => {
                turn.partial_messages += usize::from(message.is_partial());
            }
            Canonical::TurnFailed(failed) => {
                failed.terminal_status.as_str().clone_into(&mut turn.status);
                turn.error_kind = Some(failed.error_kind.clone());
                turn.error_message = Some(failed.error_message.clone());
                turn.next_actions = failed.report().next_actions();
            }
            Canonical::ProviderUsage(_) => turn.provider_calls += 1,
            Canonical::ToolCall(call) => {
                turn.tool_calls += 1;
                turn.unanswered_calls.push(call.call_id.to_string());
            }
            Canonical::ToolResult(result) => {
                turn.tool_failures += usize::from(!result.ok);
                let id = result.call_id.as_str();
                if let Some(place) = turn.unanswered_calls.iter().position(|open| open == id) {
                    turn.unanswered_calls.remove(place);
                }
            }
            _ => {}
        }
    }
    turns
}

fn find_lineage(
    root: &StateRoot,
    id: &SessionId,
    history: &History,
    all: &[SessionSummary],
) -> SessionLineage {
    let parent = history.parent_session_id().map(str::to_owned);
    let is_here =
        |parent: &String| SessionId::parse(parent).is_ok_and(|parent| root.has_log(&parent));
    let forks = all
        .iter()
        .filter(|summary| {
            let origin = summary.origin.as_ref();
            origin.is_some_and(|origin| origin.parent_session_id == id.as_str())
        })
        .map(|summary| summary.session_id.clone())
        .collect();
    let mut children: BTreeMap<String, ChildSession> = BTreeMap::new();
    for fact in history.facts() {
        let Canonical::SubagentEvent(event) = fact else { continue };
        let Some(name) = event.subagent_id.clone().filter(|_| !event.is_copy()) else { continue };
        let child = children.entry(name.clone()).or_insert_with(|| ChildSession {
            subagent_id: name,
            session_id: None,
            status: String::new(),
            is_over: false,
        });
        // A child that was about to start may never have had a Log.
        let named =
            event.child_session_id.clone().filter(|_| event.event != SubagentEventKind::Starting);
        child.session_id = named.or(child.session_id.take());
        child.status = event.status.clone().unwrap_or_else(|| event.event.to_string());
        match event.event {
            SubagentEventKind::Queued
            | SubagentEventKind::Input
            | SubagentEventKind::Retrying
            | SubagentEventKind::Starting
            | SubagentEventKind::Started => child.is_over = false,
            // Other events, such as a merge, neither begin nor end a run.
            _ => child.is_over |= event.ends_run(),
        }
    }
    SessionLineage {
        parent_is_here: parent.as_ref().map(is_here),
        parent_session_id: parent,
        forks,
        children: children.into_values().collect(),
    }
}
