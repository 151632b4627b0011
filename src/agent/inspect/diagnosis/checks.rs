//! The checks of a diagnosis, with the next actions for what they find.

use serde_json::{Value, json};

use super::{Check, Events, Health, Lineage, Turn};
use crate::agent::inspect::replay::Anatomy;
use crate::agent::inspect::usage::Spending;
use crate::base::error::counted;
use crate::base::id::SessionId;
use crate::record::event::{Canonical, WorkflowEventKind};
use crate::record::history::History;
use crate::record::log::{Break, Verification};

fn check(id: &'static str, status: Health, message: impl Into<String>) -> Check {
    let (message, details) = (message.into(), Value::Null);
    Check { id, status, message, details, next_actions: Vec::new() }
}

impl Check {
    fn with(mut self, details: Value) -> Self {
        self.details = details;
        self
    }
    fn next(mut self, action: impl Into<String>) -> Self {
        self.next_actions.push(action.into());
        self
    }
}

/// The input of the checks.
pub struct Facts<'a> {
    pub id: &'a SessionId,
    pub damage: &'a Verification,
    pub events: &'a Events,
    pub turns: &'a [Turn],
    pub last_success: Option<usize>,
}

impl Facts<'_> {
    pub fn checks(&self, holder: Option<u32>) -> Vec<Check> {
        vec![
            self.log(),
            lock(holder),
            self.unknown(),
            self.pairing(holder),
            self.open_turn(holder),
            self.failures(),
            self.partial(),
        ]
    }

    /// Breaks of the file itself; those of pairs and Turns have checks of their own.
    fn log(&self) -> Check {
        const ID: &str = "log";
        let Verification { lines, proven_lines, .. } = self.damage;
        let breaks: Vec<&Break> = self
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
            return check(ID, Health::Failed, message)
                .with(json!({ "breaks": breaks }))
                .next(format!("see all of it with `pixir verify {}`", self.id))
                .next(format!("write a cleaned copy with `pixir repair {}`", self.id));
        }
        if self.events.count == 0 {
            return check(ID, Health::Failed, "nothing in the Log can be read")
                .next(format!("`pixir sessions delete {}` removes it", self.id));
        }
        let repaired = self.damage.repaired.len();
        let closed = match repaired {
            0 => String::new(),
            count => format!(", {} closed and skipped", counted(count, "torn line")),
        };
        let lines = counted(*lines, "line");
        check(ID, Health::Passed, format!("{lines}, {proven_lines} proven{closed}"))
    }

    fn unknown(&self) -> Check {
        const ID: &str = "unknown_events";
        if self.events.unknown.is_empty() {
            return check(ID, Health::Passed, "every Event is known");
        }
        let names: Vec<String> =
            self.events.unknown.iter().map(|(name, count)| format!("{count} {name}")).collect();
        let message = format!("kept and skipped: {}", names.join(", "));
        check(ID, Health::Warning, message)
            .with(json!({ "types": self.events.unknown }))
            .next("use the version of Pixir that wrote them to see what they say")
    }

    fn pairing(&self, holder: Option<u32>) -> Check {
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
            return check(ID, Health::Passed, "every call has its result");
        }
        let message = format!(
            "{} without a result, {} without a call",
            counted(lost.len(), "call"),
            counted(stray.len(), "result")
        );
        check(ID, Health::Warning, message)
            .with(json!({ "calls_without_result": lost, "result_lines_without_call": stray }))
            .next(format!("`pixir resume {}` closes calls that were cut", self.id))
    }

    fn open_turn(&self, holder: Option<u32>) -> Check {
        const ID: &str = "turn_end";
        let open: Vec<&Turn> = self.turns.iter().filter(|turn| turn.status == "open").collect();
        let Some(last) = open.last() else {
            let message = format!("Turns with one end each: {}", self.turns.len());
            return check(ID, Health::Passed, message);
        };
        let number = last.number;
        if holder.is_some() && number == self.turns.len() && open.len() == 1 {
            return check(ID, Health::Passed, format!("Turn {number} is running"));
        }
        let message = format!("Turn {number} was cut: it has no end");
        check(ID, Health::Warning, message)
            .with(json!({ "turns": open.iter().map(|turn| turn.number).collect::<Vec<_>>() }))
            .next(format!("`pixir resume {}` records its end and goes on", self.id))
    }

    fn failures(&self) -> Check {
        const ID: &str = "failures";
        let failed = |turn: &&Turn| !matches!(turn.status.as_str(), "answered" | "open");
        let is_past = |turn: &&Turn| self.last_success.is_some_and(|last| turn.number < last);
        let past = self.turns.iter().filter(failed).filter(is_past).count();
        let now: Vec<&Turn> =
            self.turns.iter().filter(failed).filter(|turn| !is_past(turn)).collect();
        let Some(last) = now.last() else {
            let message = match past {
                0 => "no Turn failed".to_owned(),
                count => format!("{} failed, and a later one was answered", counted(count, "Turn")),
            };
            return check(ID, Health::Passed, message).with(json!({ "past": past }));
        };
        let message = format!(
            "Turn {} ended as {}: {}",
            last.number,
            last.status,
            last.error_message.as_deref().unwrap_or_default()
        );
        let mut found = check(ID, Health::Warning, message).with(json!({
            "past": past,
            "since_success": now.iter().map(|turn| turn.number).collect::<Vec<_>>(),
            "error_kind": last.error_kind,
        }));
        found.next_actions.extend(last.next_actions.iter().cloned());
        found.next(advice(last, self.id))
    }

    fn partial(&self) -> Check {
        const ID: &str = "partial_answers";
        let last = self.last_success.unwrap_or(0);
        let count: usize = self
            .turns
            .iter()
            .filter(|turn| turn.number > last)
            .map(|turn| turn.partial_messages)
            .sum();
        if count == 0 {
            return check(ID, Health::Passed, "no answer broke off since the last success");
        }
        let message = format!("{count} answers broke off; their text is kept and not replayed");
        check(ID, Health::Warning, message)
    }
}

/// The next action after a Turn that ended like this.
fn advice(turn: &Turn, id: &SessionId) -> String {
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

fn lock(holder: Option<u32>) -> Check {
    match holder {
        Some(pid) => check("lock", Health::Passed, format!("open in process {pid}"))
            .with(json!({ "pid": pid })),
        None => check("lock", Health::Passed, "no process has it open"),
    }
}

pub fn replay_check(replay: &Anatomy) -> Check {
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
        return check("replay", Health::Passed, message).with(details);
    }
    let message = format!("a server would refuse the request: {}", replay.problems.join("; "));
    check("replay", Health::Failed, message)
        .with(details)
        .next("fork the Session before the damage with `pixir fork --to-seq`")
}

pub fn usage_check(spending: &Spending) -> Check {
    let usage = &spending.total;
    let family = if spending.sessions.len() > 1 { " (with Subagents)" } else { "" };
    let message = format!(
        "{} of the model, {} failed, {}{family}",
        counted(usage.calls, "call"),
        usage.failed,
        counted(usage.tokens.total_tokens, "token")
    );
    let Some(first) = spending.unreadable_sessions.first() else {
        return check("usage", Health::Passed, message);
    };
    let missing = counted(spending.unreadable_sessions.len(), "Subagent");
    let message = format!("{message}, without {missing} whose Log cannot be read");
    check("usage", Health::Warning, message)
        .with(json!({ "unreadable_sessions": spending.unreadable_sessions }))
        .next(format!("pixir verify {first}"))
}

pub fn lineage_check(lineage: &Lineage, holder: Option<u32>) -> Check {
    const ID: &str = "lineage";
    let open: Vec<&str> = lineage
        .children
        .iter()
        .filter(|child| !child.is_over && holder.is_none())
        .map(|child| child.subagent_id.as_str())
        .collect();
    if !open.is_empty() {
        let message = format!("children without an end that no process runs: {}", open.join(", "));
        return check(ID, Health::Warning, message);
    }
    let parent = match (&lineage.parent_session_id, lineage.parent_is_here) {
        (Some(parent), Some(true)) => format!("from {parent}, "),
        (Some(parent), _) => format!("from {parent}, which is not here, "),
        (None, _) => String::new(),
    };
    let forks = counted(lineage.forks.len(), "fork");
    let children = match lineage.children.len() {
        1 => "1 child".to_owned(),
        count => format!("{count} children"),
    };
    check(ID, Health::Passed, format!("{parent}{forks}, {children}"))
}

/// Checks runs of Workflows: each has an end, or can be resumed. `None` when there was no run.
pub fn workflow_check(history: &History, holder: Option<u32>) -> Option<Check> {
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
        Some("completed") => check(ID, Health::Passed, format!("the last run is complete: {last}")),
        Some(other) => check(ID, Health::Warning, format!("the last run, {last}, is {other}"))
            .next(format!("see why with `pixir workflow status {last}`"))
            .next(go_on()),
        None if holder.is_some() => check(ID, Health::Passed, format!("{last} is running")),
        None => check(ID, Health::Warning, format!("the run {last} was cut off")).next(go_on()),
    })
}
