//! Permission questions in the chat: one at a time, answered by single keys; pure.
//!
//! Keys that were typed before a question was shown are no answer to it. So it takes the keyboard only when the editor
//! is empty and no key came for a moment, or when the user asks for it with Tab; until then keys go to the editor.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::editor::PromptEditor;
use super::editor_keys::apply_key;
use crate::base::id::CallId;
use crate::frontends::render::{TypedAnswer, parse_answer};
use crate::record::event::{PermissionAnswer, PermissionRequest, PermissionResponse};

/// How long no key may have come before a question takes the keyboard.
pub const QUIET: Duration = Duration::from_millis(300);

/// What a key did to the shown question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QuestionKeyOutcome {
    Answered {
        call_id: CallId,
        response: PermissionResponse,
    },
    /// The question stays open.
    Open,
    /// The key is for others, such as Ctrl+C.
    Unused,
}

/// The open questions; the first one is shown.
#[derive(Debug, Default)]
pub struct QuestionQueue {
    open: VecDeque<PermissionRequest>,
    /// Whether keys answer the first one.
    is_focused: bool,
    /// The chosen answer, for those who use the arrows.
    selected: usize,
    /// What the model should do instead, while it is typed.
    instead: Option<PromptEditor>,
}

impl QuestionQueue {
    /// The shown question.
    pub fn first(&self) -> Option<&PermissionRequest> {
        self.open.front()
    }

    pub fn is_focused(&self) -> bool {
        self.is_focused
    }

    pub fn selected(&self) -> usize {
        self.selected
    }

    /// What the model should do instead, while it is typed.
    pub fn instead(&self) -> Option<&PromptEditor> {
        self.instead.as_ref()
    }

    /// Adds a question; a repeated one is not asked again. True when it is the first.
    pub fn push(&mut self, request: &PermissionRequest) -> bool {
        if self.open.iter().any(|open| open.call_id == request.call_id) {
            return false;
        }
        self.open.push_back(request.clone());
        self.open.len() == 1
    }

    /// Removes a question that was settled; true when it was the shown one.
    pub fn settle(&mut self, call_id: &CallId) -> bool {
        let was_first = self.open.front().is_some_and(|open| open.call_id == *call_id);
        self.open.retain(|open| open.call_id != *call_id);
        if was_first {
            self.begin_next();
        }
        was_first
    }

    /// Removes the questions of the Session itself; those of Subagents outlive its Turn.
    pub fn end_turn(&mut self) {
        self.open.retain(|open| open.agent.is_some());
        self.begin_next();
    }

    fn begin_next(&mut self) {
        self.is_focused = false;
        self.selected = 0;
        self.instead = None;
    }

    /// Takes the keyboard after a quiet moment; true when it did so now.
    pub fn focus_when_quiet(
        &mut self,
        last_key: Instant,
        is_editor_empty: bool,
        now: Instant,
    ) -> bool {
        let is_quiet = now.saturating_duration_since(last_key) >= QUIET;
        let takes = !self.is_focused && self.first().is_some() && is_editor_empty && is_quiet;
        self.is_focused |= takes;
        takes
    }

    /// Takes the keyboard because the user asks for it.
    pub fn focus(&mut self) -> bool {
        self.is_focused = self.first().is_some();
        self.is_focused
    }

    /// Pastes into what the model should do instead; false when that is not being typed.
    pub fn paste(&mut self, text: &str) -> bool {
        let is_typed = self.is_focused && self.instead.is_some();
        if let Some(instead) = self.instead.as_mut().filter(|_| is_typed) {
            instead.paste(text);
        }
        is_typed
    }

    /// Applies a key to the shown question.
    pub fn apply_key(&mut self, key: KeyEvent, width: usize) -> QuestionKeyOutcome {
        let Some(request) = self.open.front() else { return QuestionKeyOutcome::Unused };
        if let Some(instead) = &mut self.instead {
            return match key.code {
                KeyCode::Enter => {
                    let words = Some(instead.text().trim().to_owned());
                    let message = words.filter(|words| !words.is_empty());
                    answered(request, PermissionResponse { answer: PermissionAnswer::No, message })
                }
                KeyCode::Esc => {
                    self.instead = None;
                    QuestionKeyOutcome::Open
                }
                _ => {
                    apply_key(instead, key, width);
                    QuestionKeyOutcome::Open
                }
            };
        }
        if key.modifiers.intersects(KeyModifiers::CONTROL | KeyModifiers::ALT) {
            return QuestionKeyOutcome::Unused;
        }
        let count = request.answers.len();
        match key.code {
            KeyCode::Esc => answered(request, PermissionAnswer::No.into()),
            KeyCode::Up => {
                self.selected = (self.selected + count.saturating_sub(1)) % count.max(1);
                QuestionKeyOutcome::Open
            }
            KeyCode::Down => {
                self.selected = (self.selected + 1) % count.max(1);
                QuestionKeyOutcome::Open
            }
            KeyCode::Enter => self.choose(request.answers.get(self.selected).copied()),
            KeyCode::Char(letter) => {
                let digit = letter.to_digit(10).and_then(|digit| usize::try_from(digit).ok());
                match digit.and_then(|digit| digit.checked_sub(1)) {
                    Some(place) => self.choose(request.answers.get(place).copied()),
                    None => self.choose(answer_of_letter(letter, request)),
                }
            }
            _ => QuestionKeyOutcome::Open,
        }
    }

    fn choose(&mut self, answer: Option<PermissionAnswer>) -> QuestionKeyOutcome {
        let Some(request) = self.open.front() else { return QuestionKeyOutcome::Unused };
        match answer {
            None => QuestionKeyOutcome::Open,
            Some(PermissionAnswer::No) => {
                self.instead = Some(PromptEditor::default());
                QuestionKeyOutcome::Open
            }
            Some(answer) => answered(request, answer.into()),
        }
    }
}

fn answered(request: &PermissionRequest, response: PermissionResponse) -> QuestionKeyOutcome {
    QuestionKeyOutcome::Answered { call_id: request.call_id.clone(), response }
}

/// The answer of a letter: the letters are those of the line mode.
fn answer_of_letter(letter: char, request: &PermissionRequest) -> Option<PermissionAnswer> {
    match parse_answer(letter.encode_utf8(&mut [0; 4]), request) {
        TypedAnswer::Response(response) => Some(response.answer),
        TypedAnswer::Unclear => None,
    }
}
