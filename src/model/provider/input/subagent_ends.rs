//! Messages to the model about Subagents that ended without a tool call waiting for them.
//!
//! Many may end at once, so the text of each shrinks as the total grows. A text depends only on the ends
//! before it, so that a replay has the same bytes.

use std::fmt::Write;

use crate::base::text::bound_text;
use crate::record::compaction::MAX_SUBAGENT_END_BYTES;
use crate::record::event::SubagentEvent;

/// Total size up to which summaries are sent whole, in bytes.
const FULL_TEXT_LIMIT: usize = 16 * 1024;

/// Total size up to which an excerpt of each summary is sent; beyond it only the header.
const EXCERPT_LIMIT: usize = 24 * 1024;

/// Size of an excerpt, in bytes.
const EXCERPT_BYTES: usize = 160;

/// Total size at which further ends are left out.
const NAME_LIMIT: usize = MAX_SUBAGENT_END_BYTES;

/// Size of the Subagent ends sent so far.
#[derive(Debug, Default)]
pub struct SubagentEndBudget {
    used: usize,
    is_full: bool,
}

impl SubagentEndBudget {
    /// The message about one end; `None` once the budget is used up.
    pub fn render_end(&mut self, child: &SubagentEvent) -> Option<String> {
        if self.is_full {
            return None;
        }
        let mut text = end_header(child);
        match self.used {
            ..FULL_TEXT_LIMIT => push_summary(&mut text, child),
            FULL_TEXT_LIMIT..EXCERPT_LIMIT => {
                let words =
                    child.summary.as_deref().or(child.reason.as_deref()).unwrap_or_default();
                write!(text, "\n{}", bound_text(words, EXCERPT_BYTES)).ok();
            }
            EXCERPT_LIMIT..NAME_LIMIT => {}
            NAME_LIMIT.. => {
                self.is_full = true;
                return Some("[More Subagents ended; `list_agents` lists them]".to_owned());
            }
        }
        self.used += text.len();
        Some(text)
    }
}

/// The header of an end: Subagent, status and Log.
fn end_header(child: &SubagentEvent) -> String {
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

/// Appends the summary or the reason of failure, and the next actions.
fn push_summary(text: &mut String, child: &SubagentEvent) {
    let words = child.summary.as_deref().or(child.reason.as_deref());
    write!(text, "\n{}", words.unwrap_or("It left no summary.")).ok();
    for action in &child.next_actions {
        write!(text, "\n- {action}").ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::event::SubagentEventKind;

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
        let (mut budget, long) = (SubagentEndBudget::default(), "word ".repeat(800));
        let texts: Vec<String> =
            (0..2000).filter_map(|n| budget.render_end(&end(n, Some(&long)))).collect();
        let all: usize = texts.iter().map(String::len).sum();
        assert!(all < NAME_LIMIT + 4096, "{all}");
        assert!(texts[0].contains(&long) && texts[0].contains("Log 20260101T000000-abcdef seq 7"));
        assert!(texts.len() > 100, "{}", texts.len());
        assert!(texts.last().unwrap().contains("list_agents"));
    }

    #[test]
    fn who_left_nothing_says_why_and_what_can_be_done() {
        let lost = SubagentEvent {
            reason: Some("the process that ran it ended".to_owned()),
            next_actions: vec!["send_input to let it go on".to_owned()],
            ..end(1, None)
        };
        let text = SubagentEndBudget::default().render_end(&lost).unwrap();
        assert!(
            text.ends_with("\nthe process that ran it ended\n- send_input to let it go on"),
            "{text}"
        );
    }
}
