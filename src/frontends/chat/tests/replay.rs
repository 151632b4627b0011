//! Random scripts of typing, pasting, streaming, questions, interrupts and changes of the window, replayed into
//! emulated terminals: what is final stands there once and in order.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use serde_json::json;

use super::reflow::ReflowTerminal;
use crate::base::id::{CallId, EventId, SessionId};
use crate::frontends::chat::footer::SessionFacts;
use crate::frontends::chat::live_view::live_frame;
use crate::frontends::chat::screen::{Screen, ScreenSize};
use crate::frontends::chat::state::{ChatEffect, ChatState};
use crate::frontends::render::{Surface, ViewStyle};
use crate::record::event::{
    AssistantMessage, BusPosition, Canonical, CanonicalParts, Ephemeral, Event, Extra,
    ListenerItem, PermissionAnswer, PermissionRequest, Phase, SessionStatus, TerminalStatus,
    Timestamp, TurnFailed, UserMessage,
};

const SCRIPTS: u64 = 300;
const STEPS: usize = 120;

fn fact(fact: impl Into<Canonical>) -> ListenerItem {
    ListenerItem::Event(Arc::new(Event::new_canonical(CanonicalParts {
        id: EventId::mint(),
        session_id: SessionId::parse("s").unwrap(),
        seq: Some(1),
        ts: Timestamp::from_text("2026-01-01T00:00:00.000000Z"),
        fact: fact.into(),
        extra: Extra::new(),
    })))
}

fn live(notice: Ephemeral) -> ListenerItem {
    let id = SessionId::parse("s").unwrap();
    ListenerItem::Event(Arc::new(Event::new_ephemeral(id, notice, BusPosition::default())))
}

fn question(number: usize) -> Ephemeral {
    Ephemeral::PermissionRequest(Box::new(PermissionRequest {
        call_id: CallId::new(format!("c{number}")),
        agent: None,
        tool: "bash".into(),
        summary: format!("run number {number}"),
        args: json!({}),
        paths: Vec::new(),
        directory: "/w".into(),
        diff: None,
        command: None,
        network: false,
        local_sockets: false,
        answers: vec![PermissionAnswer::Once, PermissionAnswer::Session, PermissionAnswer::No],
        prefix: None,
        digest: "d".into(),
        diff_is_cut: false,
        is_unsandboxed: false,
    }))
}

/// A chat with a Session that is only pretended.
struct Rehearsal {
    random: fastrand::Rng,
    state: ChatState,
    screen: Screen,
    now: Instant,
    /// The text of the running Turn's answer so far.
    answer: Option<String>,
    finished: Vec<String>,
    count: usize,
}

impl Rehearsal {
    fn new(seed: u64, size: ScreenSize, reflows: bool) -> Self {
        let now = Instant::now();
        let style = ViewStyle {
            answer: Surface::Terminal,
            activity: Surface::Terminal,
            colour: seed.is_multiple_of(2),
            ..ViewStyle::default()
        };
        let mut state = ChatState::new(style, SessionFacts::default(), size, now);
        state.feed.push_faint("begin");
        let random = fastrand::Rng::with_seed(seed);
        let screen = Screen::new(size, reflows);
        Self { random, state, screen, now, answer: None, finished: Vec::new(), count: 0 }
    }

    fn record(&mut self, heard: &ListenerItem) {
        let effects = self.state.record(heard, self.now);
        self.perform(effects);
    }

    fn perform(&mut self, effects: Vec<ChatEffect>) {
        for effect in effects {
            match effect {
                ChatEffect::Send { text } => {
                    assert!(self.answer.is_none(), "one Turn at a time");
                    self.answer = Some(String::new());
                    self.record(&fact(UserMessage { text, ..UserMessage::default() }));
                    self.record(&live(Ephemeral::Status(SessionStatus::Thinking { iteration: 1 })));
                }
                ChatEffect::Interrupt => {
                    self.answer = None;
                    self.record(&fact(TurnFailed {
                        terminal_status: TerminalStatus::Interrupted,
                        error_kind: "interrupted".into(),
                        error_message: String::new(),
                        details: serde_json::Value::Null,
                        extra: Extra::new(),
                    }));
                    self.record(&live(Ephemeral::Status(SessionStatus::Interrupted)));
                }
                _ => {}
            }
        }
    }

    fn press(&mut self, code: KeyCode, modifiers: KeyModifiers) {
        let effects = self.state.press(KeyEvent::new(code, modifiers), self.now);
        self.perform(effects);
    }

    /// Something that the user or the model does.
    fn step(&mut self) {
        self.count += 1;
        self.now += Duration::from_millis(self.random.u64(0..400));
        match self.random.u32(0..16) {
            0..=3 => {
                let letter = char::from(*self.random.choice(b"abc /@$wxyz").unwrap());
                self.press(KeyCode::Char(letter), KeyModifiers::NONE);
            }
            4 => {
                let lines = self.random.usize(1..40);
                self.state.paste(&"pasted line\n".repeat(lines), self.now);
            }
            5 | 6 => self.press(KeyCode::Enter, KeyModifiers::NONE),
            7 => {
                let code = self.random.choice([
                    KeyCode::Up,
                    KeyCode::Down,
                    KeyCode::Tab,
                    KeyCode::Backspace,
                ]);
                let alt = self.random.choice([KeyModifiers::NONE, KeyModifiers::ALT]);
                self.press(code.unwrap(), alt.unwrap());
            }
            8 => {
                let letter = char::from(*self.random.choice(b"cujkywr").unwrap());
                self.press(KeyCode::Char(letter), KeyModifiers::CONTROL);
            }
            9 => self.press(KeyCode::Esc, KeyModifiers::NONE),
            10 if self.answer.is_some() => {
                let asked = question(self.count);
                self.record(&live(asked));
            }
            11 => self.end_turn(),
            12 => self.state.tick(self.now),
            _ => self.stream(),
        }
    }

    fn stream(&mut self) {
        let Some(answer) = &mut self.answer else { return };
        let end = if self.random.bool() { "\n" } else { "" };
        let words = "word ".repeat(self.random.usize(0..60));
        let chunk = format!("#{} {words}{end}", self.count);
        answer.push_str(&chunk);
        self.record(&live(Ephemeral::TextDelta(chunk)));
    }

    fn end_turn(&mut self) {
        let Some(text) = self.answer.take() else { return };
        let phase = Some(Phase::Final);
        self.record(&fact(AssistantMessage { text, phase, ..AssistantMessage::default() }));
        self.record(&live(Ephemeral::Status(SessionStatus::Done)));
    }

    fn draw(&mut self) -> String {
        let finished = self.state.feed.take_finished();
        let frame = live_frame(&self.state, self.screen.size(), self.now);
        assert!(frame.rows.len() <= self.screen.size().height.max(2), "{frame:#?}");
        let bytes = self.screen.draw(&finished, frame);
        for bad in ["\x1b[2J", "\x1b[3J", "\x1b[?100", "\x1b[?1049", "\x1bc", "\x1b]"] {
            assert!(!bytes.contains(bad), "{bytes:?}");
        }
        self.finished.extend(finished.iter().map(|line| plain(line)));
        bytes
    }
}

/// The line without colours.
fn plain(line: &str) -> String {
    crate::frontends::render::clean(line).trim_end().to_owned()
}

/// All lines of an emulator: rows that were wrapped are joined.
fn lines_of(parser: &mut vt100::Parser, width: u16) -> Vec<String> {
    let mut rows = Vec::new();
    parser.screen_mut().set_scrollback(usize::MAX);
    for back in (1..=parser.screen().scrollback()).rev() {
        parser.screen_mut().set_scrollback(back);
        rows.push((parser.screen().rows(0, width).next().unwrap(), parser.screen().row_wrapped(0)));
    }
    parser.screen_mut().set_scrollback(0);
    for (place, row) in parser.screen().rows(0, width).enumerate() {
        rows.push((row, parser.screen().row_wrapped(place.try_into().unwrap())));
    }
    let mut lines = vec![String::new()];
    for (row, is_wrapped) in rows {
        lines.last_mut().unwrap().push_str(&row);
        if !is_wrapped {
            lines.push(String::new());
        }
    }
    lines.iter().map(|line| line.trim_end().to_owned()).collect()
}

fn without_blanks(lines: Vec<String>) -> Vec<String> {
    lines.into_iter().filter(|line| !line.is_empty()).collect()
}

#[test]
fn random_scripts_leave_every_final_line_once_and_in_order() {
    for seed in 0..SCRIPTS {
        let mut sizes = fastrand::Rng::with_seed(seed ^ 0x5eed);
        let (width, height) = (sizes.u16(10..120), sizes.u16(2..50));
        let size = ScreenSize { width: width.into(), height: height.into() };
        let mut parser = vt100::Parser::new(height, width, 100_000);
        let mut chat = Rehearsal::new(seed, size, false);
        parser.process(chat.draw().as_bytes());
        for _ in 0..STEPS {
            chat.step();
            parser.process(chat.draw().as_bytes());
        }
        parser.process(chat.screen.erase().as_bytes());
        let lines = without_blanks(lines_of(&mut parser, width));
        for (shown, line) in lines.iter().zip(without_blanks(chat.finished.clone())) {
            assert_eq!(*shown, line, "seed {seed}, {size:?}");
        }
        assert_eq!(lines, without_blanks(chat.finished), "seed {seed}");
    }
}

#[test]
fn random_changes_of_the_window_lose_and_repeat_no_final_line() {
    for seed in 0..SCRIPTS {
        let size = ScreenSize { width: 80, height: 24 };
        let mut terminal = ReflowTerminal::new(size);
        let mut chat = Rehearsal::new(seed, size, true);
        terminal.write(&chat.draw());
        for _ in 0..STEPS {
            if chat.random.u32(0..8) == 0 {
                let size = ScreenSize {
                    width: chat.random.usize(1..160),
                    height: chat.random.usize(1..60),
                };
                terminal.resize(size);
                chat.screen.resize(size);
                chat.state.resize(size);
            }
            chat.step();
            terminal.write(&chat.draw());
        }
        let lines = without_blanks(terminal.lines());
        let mut place = 0;
        for line in without_blanks(chat.finished) {
            let found = lines[place..].iter().position(|shown| *shown == line);
            place += found.unwrap_or_else(|| panic!("seed {seed}: {line:?} in {lines:#?}")) + 1;
        }
    }
}
