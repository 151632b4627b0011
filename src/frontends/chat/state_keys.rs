//! What keys do in the chat. Pure.

use std::time::Instant;

use crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::editor_keys::{EditorKeyOutcome, apply_key};
use super::input_history::HistorySearch;
use super::live_view::editor_width;
use super::popup::{CompletedWord, completed_word};
use super::questions::QuestionKeyOutcome;
use super::state::{ChatEffect, ChatPhase, ChatState, QueuedPrompt};
use crate::frontends::commands::{CommandId, parse_slash_command, split_slash_name};
use crate::frontends::render::one_line;

type Effects = Vec<ChatEffect>;

impl ChatState {
    /// Applies a key.
    pub fn press(&mut self, key: KeyEvent, now: Instant) -> Effects {
        if key.kind == KeyEventKind::Release {
            return Vec::new();
        }
        let effects = self.press_key(key, now);
        self.last_key = now;
        let may_want = self.sources.wants_files(self.editor.before_cursor());
        if may_want { [effects, vec![ChatEffect::ListFiles]].concat() } else { effects }
    }

    /// Inserts a paste.
    pub fn paste(&mut self, text: &str, now: Instant) {
        self.last_key = now;
        if self.questions.paste(text) {
            return;
        }
        self.search = None;
        self.history.stop_browsing();
        self.editor.paste(text);
        self.popup = None;
    }

    fn press_key(&mut self, key: KeyEvent, now: Instant) -> Effects {
        if self.questions.is_focused() {
            let width = editor_width(self.size);
            match self.questions.apply_key(key, width) {
                QuestionKeyOutcome::Answered { call_id, response } => {
                    return vec![self.answer_question(call_id, response, now)];
                }
                QuestionKeyOutcome::Open => return Vec::new(),
                QuestionKeyOutcome::Unused => {}
            }
        } else if self.questions.first().is_some()
            && key.code == KeyCode::Tab
            && self.popup.is_none()
        {
            self.questions.focus();
            return Vec::new();
        }
        if self.search.is_some() && self.press_in_search(key) {
            return Vec::new();
        }
        if let Some(effects) = self.press_in_popup(key, now) {
            return effects;
        }
        self.press_in_editor(key, now)
    }

    /// Keys of the search in the history; false when the key ends it and is used by others.
    fn press_in_search(&mut self, key: KeyEvent) -> bool {
        let Some(search) = &mut self.search else { return false };
        let is_ctrl = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('r') if is_ctrl => search.find_older(&self.history),
            KeyCode::Char('c' | 'g') if is_ctrl => self.search = None,
            KeyCode::Esc => self.search = None,
            KeyCode::Char(letter) if !is_ctrl => search.push(letter, &self.history),
            KeyCode::Backspace => search.pop(&self.history),
            _ => {
                let found = search.found(&self.history).map(str::to_owned);
                self.search = None;
                if let Some(found) = found {
                    self.editor.replace_all(&found);
                }
                return matches!(key.code, KeyCode::Enter | KeyCode::Tab);
            }
        }
        true
    }

    /// Keys of the popup; `None` when the key is for the editor.
    fn press_in_popup(&mut self, key: KeyEvent, now: Instant) -> Option<Effects> {
        let popup = self.popup.as_mut()?;
        let is_ctrl = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Up => popup.move_selection(true),
            KeyCode::Down => popup.move_selection(false),
            KeyCode::Char('p') if is_ctrl => popup.move_selection(true),
            KeyCode::Char('n') if is_ctrl => popup.move_selection(false),
            KeyCode::Esc => self.popup = None,
            KeyCode::Tab => self.accept_candidate(),
            KeyCode::Enter if key.modifiers.is_empty() => return self.accept_with_enter(now),
            _ => return None,
        }
        Some(Vec::new())
    }

    fn accept_candidate(&mut self) {
        let Some(popup) = self.popup.take() else { return };
        let Some(chosen) = popup.chosen() else { return };
        let blank = if chosen.is_open { "" } else { " " };
        self.editor.replace_before_cursor(popup.start, &format!("{}{blank}", chosen.insert));
        if chosen.is_open {
            self.popup = self.sources.popup(self.editor.before_cursor());
        }
    }

    /// Enter completes a file or Skill; a command is completed and runs.
    fn accept_with_enter(&mut self, now: Instant) -> Option<Effects> {
        let before = self.editor.before_cursor();
        match completed_word(before)? {
            CompletedWord::File { .. } | CompletedWord::Skill { .. } => {
                self.accept_candidate();
                Some(Vec::new())
            }
            CompletedWord::Argument { word: "", .. } => {
                self.popup = None;
                None
            }
            CompletedWord::Command { .. } | CompletedWord::Argument { .. } => {
                self.accept_candidate();
                self.popup = None;
                Some(self.submit(now))
            }
        }
    }

    fn press_in_editor(&mut self, key: KeyEvent, now: Instant) -> Effects {
        let is_ctrl = key.modifiers.contains(KeyModifiers::CONTROL);
        let is_alt = key.modifiers.contains(KeyModifiers::ALT);
        let is_shift = key.modifiers.contains(KeyModifiers::SHIFT);
        match key.code {
            KeyCode::Char('c') if is_ctrl => return self.press_ctrl_c(now),
            KeyCode::Char('d') if is_ctrl && self.editor.is_empty() => {
                return vec![ChatEffect::Leave];
            }
            KeyCode::Char('z') if is_ctrl => return vec![ChatEffect::Suspend],
            KeyCode::Char('g') if is_ctrl => {
                return vec![ChatEffect::EditExternally { text: self.editor.text() }];
            }
            KeyCode::Char('r') if is_ctrl => {
                self.search = Some(HistorySearch::default());
                return Vec::new();
            }
            KeyCode::Esc => return self.stop_turn(),
            KeyCode::Enter if is_shift || is_ctrl => self.editor.insert("\n"),
            KeyCode::Enter if self.editor.break_after_backslash() => {}
            // Until steering exists, both wait for the end of the Turn.
            KeyCode::Enter => return self.submit(now),
            KeyCode::Up if is_alt => {
                self.take_back_last();
                return Vec::new();
            }
            KeyCode::Tab => {
                self.popup = self.sources.popup(self.editor.before_cursor());
                return Vec::new();
            }
            _ => return self.press_editing_key(key),
        }
        self.after_edit();
        Vec::new()
    }

    fn press_editing_key(&mut self, key: KeyEvent) -> Effects {
        let width = editor_width(self.size);
        match apply_key(&mut self.editor, key, width) {
            EditorKeyOutcome::AtTop => {
                let draft = self.editor.text();
                if let Some(entry) = self.history.earlier(&draft).map(str::to_owned) {
                    self.editor.replace_all(&entry);
                }
                self.popup = None;
            }
            EditorKeyOutcome::AtBottom => {
                if let Some(entry) = self.history.later() {
                    self.editor.replace_all(&entry);
                }
                self.popup = None;
            }
            EditorKeyOutcome::Done => {
                let is_motion =
                    !matches!(key.code, KeyCode::Char(_) | KeyCode::Backspace | KeyCode::Delete);
                if !is_motion {
                    self.after_edit();
                } else if self.popup.is_some() {
                    self.popup = self.sources.popup(self.editor.before_cursor());
                }
            }
            EditorKeyOutcome::Unused => {}
        }
        Vec::new()
    }

    fn after_edit(&mut self) {
        self.may_leave = false;
        self.history.stop_browsing();
        self.popup = self.sources.popup(self.editor.before_cursor());
    }

    /// Stops a Turn, else clears the editor, else leaves when pressed twice.
    fn press_ctrl_c(&mut self, now: Instant) -> Effects {
        if self.phase == (ChatPhase::Turn { is_stopping: false }) {
            return self.stop_turn();
        }
        if !self.editor.is_empty() {
            let cleared = self.editor.take();
            self.history.push(&cleared);
            self.popup = None;
            self.set_hint("cleared; Up brings it back", now);
            return Vec::new();
        }
        if self.may_leave {
            return vec![ChatEffect::Leave];
        }
        self.may_leave = true;
        self.set_hint("Ctrl+C again leaves", now);
        Vec::new()
    }

    /// Stops the running Turn.
    pub fn stop_turn(&mut self) -> Effects {
        if self.phase != (ChatPhase::Turn { is_stopping: false }) {
            return Vec::new();
        }
        self.phase = ChatPhase::Turn { is_stopping: true };
        vec![ChatEffect::Interrupt]
    }

    /// Takes the last queued prompt back into the editor.
    fn take_back_last(&mut self) {
        let Some(queued) = self.queue.pop_back() else { return };
        let draft = self.editor.text();
        let text = if draft.is_empty() { queued.text } else { format!("{}\n{draft}", queued.text) };
        self.editor.replace_all(&text);
    }

    /// Sends what is in the editor, queues it, or runs it as a command.
    fn submit(&mut self, now: Instant) -> Effects {
        self.popup = None;
        self.may_leave = false;
        let text = self.editor.text().trim().to_owned();
        if text.is_empty() {
            let skips = self.is_recording && self.editor.is_empty();
            return if skips { vec![ChatEffect::SkipRecording] } else { Vec::new() };
        }
        if let Some(effects) = self.submit_command(&text, now) {
            return effects;
        }
        let shown = self.editor.shown_text().trim().to_owned();
        self.editor.take();
        self.history.push(&text);
        let prompt = QueuedPrompt { text, shown };
        if self.phase == ChatPhase::Idle {
            return vec![self.begin_turn(prompt)];
        }
        self.queue.push_back(prompt);
        Vec::new()
    }

    /// Runs a command; `None` when the text is a prompt. Words that are meant for Pixir are never sent.
    fn submit_command(&mut self, text: &str, now: Instant) -> Option<Effects> {
        if matches!(text.to_lowercase().as_str(), "exit" | "quit") {
            return Some(vec![ChatEffect::Leave]);
        }
        let Some((command, rest)) = parse_slash_command(text) else {
            let (name, _) = split_slash_name(text)?;
            if self.sources.has_slash_name(name) {
                return None;
            }
            let name = one_line(name, 60);
            let hint =
                format!("there is no command, prompt or Skill called /{name}; /help shows all");
            self.set_hint(hint, now);
            return Some(Vec::new());
        };
        if self.phase != ChatPhase::Idle && !command.runs_during_turn {
            self.set_hint(
                format!("/{} waits until the Turn has ended; Esc stops it", command.name),
                now,
            );
            return Some(Vec::new());
        }
        let rest = rest.to_owned();
        self.feed.push_text("");
        self.feed.push_faint(&format!("› {text}"));
        self.editor.take();
        self.history.push(text);
        if command.id == CommandId::Quit {
            return Some(vec![ChatEffect::Leave]);
        }
        Some(vec![ChatEffect::Run { id: command.id, rest }])
    }
}
