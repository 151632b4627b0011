//! Ends of Subagents that nobody waited for, as the model reads them.
//!
//! Many may end at once. What each of them gets depends on those before it alone: what was sent once is
//! sent again with the same bytes.

use std::fmt::Write;

use crate::compaction::ENDS_TOLD;
use crate::event::SubagentEvent;
use crate::tool::bound;

/// How many bytes are told whole.
const WHOLE: usize = 16 * 1024;

/// Up to where each has its beginning told; those behind are named.
const BEGINNINGS: usize = 24 * 1024;

/// How much a beginning is.
const BEGINNING: usize = 160;

/// Where even names are too many.
const NAMES: usize = ENDS_TOLD;

/// What ends have taken so far.
#[derive(Debug, Default)]
pub struct Room {
    used: usize,
    is_full: bool,
}

impl Room {
    /// What the model is told of an end, if anything.
    pub fn take(&mut self, child: &SubagentEvent) -> Option<String> {
        if self.is_full {
            return None;
        }
        let mut text = head(child);
        match self.used {
            ..WHOLE => body(&mut text, child),
            WHOLE..BEGINNINGS => {
                let words =
                    child.summary.as_deref().or(child.reason.as_deref()).unwrap_or_default();
                write!(text, "\n{}", bound(words, BEGINNING)).ok();
            }
            BEGINNINGS..NAMES => {}
            NAMES.. => {
                self.is_full = true;
                return Some(
                    "[Subagents: more of them ended; `list_agents` names them]".to_owned(),
                );
            }
        }
        self.used += text.len();
        Some(text)
    }
}

/// Who, how, and where the evidence is.
fn head(child: &SubagentEvent) -> String {
    let mut text = format!(
        "[Subagent {} ({}) {}",
        child.subagent_id.as_deref().unwrap_or("unnamed"),
        child.agent.as_deref().unwrap_or("no role"),
        child.status.as_deref().unwrap_or(child.event.as_str()),
    );
    if let Some(log) = &child.child_session_id {
        write!(text, ", Log {log}").ok();
        if let Some(seq) = child.child_seq {
            write!(text, " seq {seq}").ok();
        }
    }
    text.push(']');
    text
}

/// What it came to, or why it came to nothing, and what can be done.
fn body(text: &mut String, child: &SubagentEvent) {
    let words = child.summary.as_deref().or(child.reason.as_deref());
    write!(text, "\n{}", words.unwrap_or("It left no summary.")).ok();
    for action in &child.next_actions {
        write!(text, "\n- {action}").ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::SubagentEventKind;

    fn end(number: usize, summary: Option<&str>) -> SubagentEvent {
        SubagentEvent {
            event: SubagentEventKind::Finished,
            subagent_id: Some(format!("sub_{number:010x}")),
            agent: Some("worker".to_owned()),
            status: Some("completed".to_owned()),
            child_session_id: Some("20260101T000000-abcdef".to_owned()),
            child_seq: Some(7),
            summary: summary.map(str::to_owned),
            ..SubagentEvent::default()
        }
    }

    #[test]
    fn however_many_end_there_is_a_bound() {
        let (mut room, long) = (Room::default(), "word ".repeat(800));
        let told: Vec<String> = (0..2000).filter_map(|n| room.take(&end(n, Some(&long)))).collect();
        let all: usize = told.iter().map(String::len).sum();
        assert!(all < NAMES + 4096, "{all}");
        assert!(told[0].contains(&long) && told[0].contains("Log 20260101T000000-abcdef seq 7"));
        assert!(told.len() > 100, "{}", told.len());
        assert!(told.last().unwrap().contains("list_agents"));
    }

    #[test]
    fn who_left_nothing_says_why_and_what_can_be_done() {
        let lost = SubagentEvent {
            reason: Some("the process that ran it ended".to_owned()),
            next_actions: vec!["send_input to let it go on".to_owned()],
            ..end(1, None)
        };
        let told = Room::default().take(&lost).unwrap();
        assert!(
            told.ends_with("\nthe process that ran it ended\n- send_input to let it go on"),
            "{told}"
        );
    }
}
