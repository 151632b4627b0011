//! The terminal of the chat: its modes, its one writer, its keys, and how it is left. Everything impure is here.
//!
//! Modes are restored on every way out that a process can see: at the end, on an error, in a panic, on a signal and
//! when the process is suspended. Nothing is asked of the terminal, so that no late answer can reach the shell.

use std::io;
use std::sync::Arc;

use crossterm::event::Event as TerminalEvent;
use crossterm::terminal::{disable_raw_mode, enable_raw_mode};
use parking_lot::Mutex;
use rustix::process::{Signal, getpid, kill_process};
use rustix::stdio::{stdin, stdout};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use tokio::signal::unix::{Signal as SignalStream, SignalKind, signal};

use super::input_reader::InputReader;
use super::screen::{LiveFrame, Screen, ScreenSize};
use crate::frontends::render::{SignalCount, StdioOutput, StdoutClosed};

/// Bracketed paste, and keys that say which modifiers were held.
const ENTER: &str = "\x1b[?2004h\x1b[>1u";

/// The same when the keyboard protocol may still be set: a second entry on its stack would outlive the chat.
const ENTER_AGAIN: &str = "\x1b[?2004h\x1b[=1u";

/// Undoes `ENTER` and what a drawing sets.
const LEAVE: &str = "\x1b[<u\x1b[?2004l\x1b[?7h\x1b[?25h";

/// Undoes what a Pixir that was killed may have left; harmless otherwise.
const RESET: &str = "\x1b[?2026l\x1b[?2004l\x1b[?7h\x1b[?25h";

/// The largest screen that is drawn.
const MOST_WIDTH: u16 = 500;
const MOST_HEIGHT: u16 = 200;

type PanicHook = Box<dyn Fn(&std::panic::PanicHookInfo<'_>) + Sync + Send + 'static>;

/// The terminal while the chat has it.
pub struct ChatTerminal {
    output: StdioOutput,
    original: Termios,
    screen: Screen,
    input: Option<InputReader>,
    stops: SignalStream,
    continues: SignalStream,
    /// Whether the modes of the chat are set.
    is_entered: bool,
    /// Whether this process has stopped itself: the next signal to go on says nothing new.
    has_suspended: bool,
    /// The texts of panics, which must not be written into the screen.
    panics: Arc<Mutex<Vec<String>>>,
    earlier_hook: Option<PanicHook>,
}

/// What comes from the terminal or concerns it.
#[derive(Debug)]
pub enum TerminalWake {
    Event(TerminalEvent),
    /// The terminal is gone.
    Closed,
    /// Another program asks to suspend this one.
    Stop,
    /// The process goes on after it was stopped.
    Continued,
}

impl ChatTerminal {
    /// Takes the terminal over; must be called inside a runtime.
    pub fn open(signals: SignalCount, reflows: bool) -> io::Result<Self> {
        let original = tcgetattr(stdin())?;
        let stops = signal(SignalKind::from_raw(Signal::TSTP.as_raw()))?;
        let continues = signal(SignalKind::from_raw(Signal::CONT.as_raw()))?;
        let panics = Arc::new(Mutex::new(Vec::new()));
        let earlier_hook = std::panic::take_hook();
        let texts = Arc::clone(&panics);
        std::panic::set_hook(Box::new(move |panic| {
            texts.lock().push(panic.to_string());
        }));
        let mut terminal = Self {
            output: StdioOutput::stdio(signals),
            original,
            screen: Screen::new(screen_size(), reflows),
            input: None,
            stops,
            continues,
            is_entered: false,
            has_suspended: false,
            panics,
            earlier_hook: Some(earlier_hook),
        };
        terminal.write(RESET).ok();
        terminal.enter()?;
        Ok(terminal)
    }

    /// The size of the screen as it was last noted.
    pub fn size(&self) -> ScreenSize {
        self.screen.size()
    }

    /// Notes the present size of the window; true when it has changed.
    pub fn update_size(&mut self) -> bool {
        let size = screen_size();
        let has_changed = size != self.screen.size();
        self.screen.resize(size);
        has_changed
    }

    /// The next key, paste or change. Nothing is lost when the future is dropped.
    pub async fn next(&mut self) -> TerminalWake {
        loop {
            let Some(input) = &mut self.input else { return TerminalWake::Closed };
            return tokio::select! {
                biased;
                _ = self.stops.recv() => TerminalWake::Stop,
                _ = self.continues.recv() => {
                    if std::mem::take(&mut self.has_suspended) {
                        continue;
                    }
                    TerminalWake::Continued
                }
                event = input.next() => match event {
                    Some(event) => TerminalWake::Event(event),
                    None => TerminalWake::Closed,
                },
            };
        }
    }

    /// The next key or paste, if it is there already.
    pub fn try_next(&mut self) -> Option<TerminalEvent> {
        self.input.as_mut().and_then(InputReader::try_next)
    }

    /// Writes finished lines and the live part.
    pub fn draw(&mut self, finished: &[String], frame: LiveFrame) -> Result<(), StdoutClosed> {
        let bytes = self.screen.draw(finished, frame);
        self.write(&bytes)
    }

    /// Sets the modes of the chat.
    fn enter(&mut self) -> io::Result<()> {
        // Others may have changed the modes meanwhile.
        disable_raw_mode().ok();
        enable_raw_mode()?;
        let is_new = !std::mem::replace(&mut self.is_entered, true);
        self.write(if is_new { ENTER } else { ENTER_AGAIN }).ok();
        if self.input.is_none() {
            self.input = Some(InputReader::start()?);
        }
        Ok(())
    }

    /// Removes the live part and restores the modes; finished lines stay.
    pub fn leave(&mut self) {
        if !std::mem::take(&mut self.is_entered) {
            return;
        }
        // Dropped, which ends its thread, so that it takes no input from others.
        self.input = None;
        let erased = self.screen.erase();
        self.write(&erased).ok();
        self.write(LEAVE).ok();
        disable_raw_mode().ok();
        // What was typed ahead was meant for the chat.
        tcsetattr(stdin(), OptionalActions::Flush, &self.original).ok();
    }

    /// Stops this process until it is continued.
    pub fn suspend(&mut self) -> io::Result<()> {
        self.leave();
        self.has_suspended = true;
        kill_process(getpid(), Signal::STOP)?;
        self.enter_again()
    }

    /// Sets the modes again after others had the terminal; everything below the finished lines is drawn again.
    pub fn enter_again(&mut self) -> io::Result<()> {
        self.screen.resize(screen_size());
        self.screen.forget();
        self.enter()
    }

    /// Writes a line behind the finished ones, after the terminal was left.
    pub fn write_after(&mut self, text: &str) {
        self.output.write_activity(text.as_bytes());
    }

    fn write(&mut self, text: &str) -> Result<(), StdoutClosed> {
        self.output.write_answer(text.as_bytes())?;
        self.output.flush()
    }
}

impl Drop for ChatTerminal {
    fn drop(&mut self) {
        self.leave();
        if !std::thread::panicking()
            && let Some(hook) = self.earlier_hook.take()
        {
            std::panic::set_hook(hook);
        }
        let panics = std::mem::take(&mut *self.panics.lock());
        for text in panics {
            self.write_after(&format!("{text}\n"));
        }
    }
}

/// The size of the window, in cells; windows of unknown size are taken for small ones.
fn screen_size() -> ScreenSize {
    let size = tcgetwinsize(stdout()).map_or((0, 0), |size| (size.ws_col, size.ws_row));
    let width = if size.0 == 0 { 80 } else { size.0.min(MOST_WIDTH) };
    let height = if size.1 == 0 { 24 } else { size.1.min(MOST_HEIGHT) };
    ScreenSize { width: width.into(), height: height.into() }
}
