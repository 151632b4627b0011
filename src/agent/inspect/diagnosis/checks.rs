//! The checks of a diagnosis, with the next actions for what they find.

use serde_json::{Value, json};

use super::{CheckStatus, DiagnosedTurn, DiagnosisCheck, EventCounts, SessionLineage};
use crate::agent::inspect::request_anatomy::RequestAnatomy;
use crate::agent::inspect::usage::Spending;
use crate::base::error::counted;
use crate::base::id::SessionId;
use crate::record::event::{Canonical, WorkflowEventKind};
use crate::record::history::History;
use crate::record::log::{LogBreak, Verification};

fn new_check(id: &'static str, status: CheckStatus, message: impl Into<String>) -> DiagnosisCheck {
    let (message, details) = (message.into(), Value::Null);
    DiagnosisCheck { id, status, message, details, next_actions: Vec::new() }
}

impl DiagnosisCheck {
    fn with_details(mut self, details: Value) -> Self {
        self.details = details;
        self
    }
    fn with_next_action(mut self, action: impl Into<String>) -> Self {
        self.next_actions.push(action.into());
        self
    }
}

/// The input of the checks.
pub struct DiagnosisInput<'a> {
    pub id: &'a SessionId,
    pub damage: &'a Verification,
    pub events: &'a EventCounts,
    pub turns: &'a [DiagnosedTurn],
    pub last_success: Option<usize>,
}

impl DiagnosisInput<'_> {
    pub fn run_checks(&self, holder: Option<u32>) -> Vec<DiagnosisCheck> {
        vec![
            self.check_log(),
            check_lock(holder),
            self.check_unknown_events(),
            self.check_tool_pairing(holder),
            self.check_turn_end(holder),
            self.check_failures(),
            self.check_partial_answers(),
        ]
    }

    /// Checks the Log file; pairs of call and result, and Turns, have separate checks.
    fn check_log(&self) -> DiagnosisCheck {
        const ID: &str = "log";
        let Verification { lines, proven_lines, .. } = self.damage;
        let breaks: Vec<&LogBreak> = self
            .damage
            .breaks
            .iter()
            .filter(|found| !matches!(found.kind, "call_without_result" | "result_without_call"))
            .collect();
        if let Some(first) = breaks.first() {
            let places = counted(breaks.len(), "damaged place");
            let message = format!(
                "{places}, the first in line {} at offset {}: {}",
                first.line, first.offset, first.message
            );
            return new_check(ID, CheckStatus::Failed, message)
                .with_details(json!({ "breaks": breaks }))
                .with_next_action(format!("see all of it with `pixir verify {}`", self.id))
                .with_next_action(format!("write a cleaned copy with `pixir repair {}`", self.id));
        }
        if self.events.count == 0 {
            return new_check(ID, CheckStatus::Failed, "nothing in the Log can be read")
                .with_next_action(format!("`pixir sessions delete {}` removes it", self.id));
        }
        let repaired = self.damage.repaired.len();
        let closed = match repaired {
            0 => String::new(),
            count => format!(", {} closed and skipped", counted(count, "torn line")),
        };
        let lines = counted(*lines, "line");
        new_check(ID, CheckStatus::Passed, format!("{lines}, {proven_lines} proven{closed}"))
    }

    fn check_unknown_events(&self) -> DiagnosisCheck {
        const ID: &str = "unknown_events";
        if self.events.unknown.is_empty() {
            return new_check(ID, CheckStatus::Passed, "every Event is known");
        }
        let names: Vec<String> =
            self.events.unknown.iter().map(|(name, count)| format!("{count} {name}")).collect();
        let message = format!("kept and skipped: {}", names.join(", "));
        new_check(ID, CheckStatus::Warning, message)
            .with_details(json!({ "types": self.events.unknown }))
            .with_next_action("use the version of Pixir that wrote them to read them")
    }

    fn check_tool_pairing(&self, holder: Option<u32>) -> DiagnosisCheck {
        const ID: &str = "tool_pairing";
        let lost: Vec<&str> = self
            .turns
            .iter()
            .filter(|turn| turn.status != "open" || holder.is_none())
            .flat_map(|turn| turn.unanswered_calls.iter().map(String::as_str))
            .collect();
        let stray: Vec<u64> = self
            .damage
            .breaks
            .iter()
            .filter(|found| found.kind == "result_without_call")
            .map(|found| found.line)
            .collect();
        if lost.is_empty() && stray.is_empty() {
            return new_check(ID, CheckStatus::Passed, "every call has its result");
        }
        let message = format!(
            "{} without a result, {} without a call",
            counted(lost.len(), "call"),
            counted(stray.len(), "result")
        );
        new_check(ID, CheckStatus::Warning, message)
            .with_details(
                json!({ "calls_without_result": lost, "result_lines_without_call": stray }),
            )
            .with_next_action(format!("`pixir resume {}` closes calls that were cut", self.id))
    }

    fn check_turn_end(&self, holder: Option<u32>) -> DiagnosisCheck {
        const ID: &str = "turn_end";
        let open: Vec<&DiagnosedTurn> =
            self.turns.iter().filter(|turn| turn.status == "open").collect();
        let Some(last) = open.last() else {
            let message = format!("Turns with one end each: {}", self.turns.len());
            return new_check(ID, CheckStatus::Passed, message);
        };
        let number = last.number;
        if holder.is_some() && number == self.turns.len() && open.len() == 1 {
            return new_check(ID, CheckStatus::Passed, format!("Turn {number} is running"));
        }
        let message = format!("Turn {number} was cut: it has no end");
        new_check(ID, CheckStatus::Warning, message)
            .with_details(
                json!({ "turns": open.iter().map(|turn| turn.number).collect::<Vec<_>>() }),
            )
            .with_next_action(format!("`pixir resume {}` records its end and goes on", self.id))
    }

    fn check_failures(&self) -> DiagnosisCheck {
        const ID: &str = "failures";
        let failed = |turn: &&DiagnosedTurn| !matches!(turn.status.as_str(), "answered" | "open");
        let is_past =
            |turn: &&DiagnosedTurn| self.last_success.is_some_and(|last| turn.number < last);
        let past = self.turns.iter().filter(failed).filter(is_past).count();
        let now: Vec<&DiagnosedTurn> =
            self.turns.iter().filter(failed).filter(|turn| !is_past(turn)).collect();
        let Some(last) = now.last() else {
            let message = match past {
                0 => "no Turn failed".to_owned(),
                count => format!("{} failed, and a later one was answered", counted(count, "Turn")),
            };
            return new_check(ID, CheckStatus::Passed, message)
                .with_details(json!({ "past": past }));
        };
        let message = format!(
            "Turn {} ended as {}: {}",
            last.number,
            last.status,
            last.error_message.as_deref().unwrap_or_default()
        );
        let mut found = new_check(ID, CheckStatus::Warning, message).with_details(json!({
            "past": past,
            "since_success": now.iter().map(|turn| turn.number).collect::<Vec<_>>(),
            "error_kind": last.error_kind,
        }));
        found.next_actions.extend(last.next_actions.iter().cloned());
        found.with_next_action(suggest_action(last, self.id))
    }

    fn check_partial_answers(&self) -> DiagnosisCheck {
        const ID: &str = "partial_answers";
        let last = self.last_success.unwrap_or(0);
        let count: usize = self
            .turns
            .iter()
            .filter(|turn| turn.number > last)
            .map(|turn| turn.partial_messages)
            .sum();
        if count == 0 {
            return new_check(
                ID,
                CheckStatus::Passed,
                "no answer broke off since the last success",
            );
        }
        let message = format!("{count} answers broke off; their text is kept and not replayed");
        new_check(ID, CheckStatus::Warning, message)
    }
}

/// The next action after a Turn that ended like this.
fn suggest_action(turn: &DiagnosedTurn, id: &SessionId) -> String {
    match turn.error_kind.as_deref().unwrap_or_default() {
        "not_authenticated" | "auth_refused" => "sign in with `pixir login`".to_owned(),
        "context_overflow" => format!("make room with `pixir compact {id}`"),
        "network" | "tls" => {
            "check whether the endpoint answers: `pixir doctor --online`".to_owned()
        }
        "model_not_supported" => "choose another model: `pixir models`".to_owned(),
        "log_write_failed" => "free disk space, then check with `pixir doctor`".to_owned(),
        _ => format!("go on with `pixir resume {id}`"),
    }
}

fn check_lock(holder: Option<u32>) -> DiagnosisCheck {
    match holder {
        Some(pid) => new_check("lock", CheckStatus::Passed, format!("open in process {pid}"))
            .with_details(json!({ "pid": pid })),
        None => new_check("lock", CheckStatus::Passed, "no process has it open"),
    }
}

pub fn check_replay(replay: &RequestAnatomy) -> DiagnosisCheck {
    let tokens = replay.estimated_tokens;
    let details = json!({
        "items": replay.items.len(),
        "counts": replay.counts,
        "estimated_tokens": tokens,
        "problems": replay.problems,
    });
    if replay.is_valid {
        let message = format!(
            "valid: {}, about {}",
            counted(replay.items.len(), "item"),
            counted(tokens, "token")
        );
        return new_check("replay", CheckStatus::Passed, message).with_details(details);
    }
    let message = format!("a server would refuse the request: {}", replay.problems.join("; "));
    new_check("replay", CheckStatus::Failed, message)
        .with_details(details)
        .with_next_action("fork the Session before the damage with `pixir fork --to-seq`")
}

pub fn check_usage(spending: &Spending) -> DiagnosisCheck {
    let usage = &spending.total;
    let suffix = if spending.sessions.len() > 1 { " (with Subagents)" } else { "" };
    let message = format!(
        "{} of the model, {} failed, {}{suffix}",
        counted(usage.calls, "call"),
        usage.failed,
        counted(usage.tokens.total_tokens, "token")
    );
    let Some(first) = spending.unreadable_sessions.first() else {
        return new_check("usage", CheckStatus::Passed, message);
    };
    let missing = counted(spending.unreadable_sessions.len(), "Subagent");
    let message = format!("{message}, without {missing} whose Log cannot be read");
    new_check("usage", CheckStatus::Warning, message)
        .with_details(json!({ "unreadable_sessions": spending.unreadable_sessions }))
        .with_next_action(format!("pixir verify {first}"))
}

pub fn check_lineage(lineage: &SessionLineage, holder: Option<u32>) -> DiagnosisCheck {
    const ID: &str = "lineage";
    let open: Vec<&str> = lineage
        .children
        .iter()
        .filter(|child| !child.is_over && holder.is_none())
        .map(|child| child.subagent_id.as_str())
        .collect();
    if !open.is_empty() {
        let message = format!("children without an end that no process runs: {}", open.join(", "));
        return new_check(ID, CheckStatus::Warning, message);
    }
    let parent = match (&lineage.parent_session_id, lineage.parent_is_here) {
        (Some(parent), Some(true)) => format!("from {parent}, "),
        (Some(parent), _) => format!("from {parent}, which is not in this folder, "),
        (None, _) => String::new(),
    };
    let forks = counted(lineage.forks.len(), "fork");
    let children = match lineage.children.len() {
        1 => "1 child".to_owned(),
        count => format!("{count} children"),
    };
    new_check(ID, CheckStatus::Passed, format!("{parent}{forks}, {children}"))
}

/// Checks runs of Workflows: each has an end, or can be resumed. `None` when there was no run.
pub fn check_workflows(history: &History, holder: Option<u32>) -> Option<DiagnosisCheck> {
    const ID: &str = "workflows";
    let mut runs: Vec<(&str, Option<&str>)> = Vec::new();
    for fact in history.facts() {
        let Canonical::WorkflowEvent(event) = fact else { continue };
        let known = runs.iter_mut().find(|(id, _)| *id == event.workflow_id);
        match (&event.kind, known) {
            (WorkflowEventKind::Started, None) => runs.push((&event.workflow_id, None)),
            (WorkflowEventKind::Resumed, Some((_, status))) => *status = None,
            (WorkflowEventKind::Finished, Some((_, status))) => {
                *status = event.extra.get("status").and_then(Value::as_str);
            }
            _ => {}
        }
    }
    let (last, status) = runs.last().copied()?;
    let go_on = || format!("go on with `pixir workflow resume {last}`");
    Some(match status {
        Some("completed") => {
            new_check(ID, CheckStatus::Passed, format!("the last run is complete: {last}"))
        }
        Some(other) => {
            new_check(ID, CheckStatus::Warning, format!("the last run, {last}, is {other}"))
                .with_next_action(format!("see why with `pixir workflow status {last}`"))
                .with_next_action(go_on())
        }
        None if holder.is_some() => {
            new_check(ID, CheckStatus::Passed, format!("{last} is running"))
        }
        None => new_check(ID, CheckStatus::Warning, format!("the run {last} was cut off"))
            .with_next_action(go_on()),
    })
}
