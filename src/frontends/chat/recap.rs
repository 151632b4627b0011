//! What the chat says about itself and about a resumed Session: the help, and the last exchange. Pure.

use std::fmt::Write;

use super::state::ChatState;
use crate::base::error::counted;
use crate::base::id::SessionId;
use crate::frontends::commands::COMMANDS;
use crate::frontends::render::{clean, one_line};
use crate::record::event::Canonical;
use crate::record::history::History;

/// How many lines of the last answer are shown.
const ANSWER_LINES: usize = 12;

/// How much of a title is shown, in cells.
const TITLE_WIDTH: usize = 80;

const KEYS: &str = "\
Enter sends; Shift+Enter, Ctrl+J or \\ and Enter begin a new line
Esc or Ctrl+C stops a Turn; Ctrl+C clears the editor, twice leaves; Ctrl+D leaves
Enter during a Turn queues a prompt, Alt+Up takes it back
@ names a file, $ a Skill; Tab or Enter completes; Up and Ctrl+R search earlier prompts
Ctrl+G opens your own editor; Ctrl+Z suspends";

impl ChatState {
    /// Shows all commands and keys.
    pub fn show_help(&mut self) {
        let mut text = String::new();
        for command in COMMANDS {
            let hint = if command.hint.is_empty() {
                String::new()
            } else {
                format!(" [{}]", command.hint)
            };
            writeln!(text, "/{:<10}{}{hint}", command.name, command.description).ok();
        }
        for named in &self.sources.slash_names {
            let description = one_line(&named.description, TITLE_WIDTH);
            writeln!(text, "/{:<10}{description}", one_line(&named.name, 40)).ok();
        }
        self.feed.push_text(&format!("{text}{KEYS}"));
    }

    /// Shows which Session is resumed, its last exchange and its open plan.
    pub fn show_history(&mut self, id: &SessionId, history: &History) {
        let title = history.first_user_message().map(|words| one_line(&words.text, TITLE_WIDTH));
        let title = title.unwrap_or_else(|| "(no prompt yet)".to_owned());
        self.feed.push_faint(&format!("Session {id}: {title}"));
        let mut answer = None;
        for (_, fact) in history.live_backwards() {
            match fact {
                Canonical::AssistantMessage(message) if answer.is_none() && message.is_final() => {
                    answer = Some(last_lines(&message.text));
                }
                Canonical::TurnFailed(failed) if answer.is_none() => {
                    let why = one_line(&failed.error_message, 200);
                    answer = Some(format!("({}: {why})", failed.terminal_status.as_str()));
                }
                Canonical::UserMessage(message) => {
                    self.feed.forget_prompt();
                    self.feed.show_prompt(&message.text);
                    break;
                }
                _ => {}
            }
        }
        if let Some(answer) = answer {
            self.feed.push_text(&answer);
        }
        let plan = history.current_plan();
        if let Some(plan) =
            plan.filter(|plan| plan.entries.iter().any(|entry| entry.status != "completed"))
        {
            self.feed.show_plan(plan);
        }
        for fact in history.facts() {
            self.facts.record(fact);
        }
    }
}

fn last_lines(text: &str) -> String {
    let text = clean(text);
    let lines: Vec<&str> = text.trim_end().lines().collect();
    let hidden = lines.len().saturating_sub(ANSWER_LINES);
    let shown = lines[hidden..].join("\n");
    if hidden == 0 { shown } else { format!("… ({})\n{shown}", counted(hidden, "earlier line")) }
}
