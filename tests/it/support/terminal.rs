//! Pseudo-terminal with Pixir on one side and a test on the other.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use super::leaks;
use super::test_env::{DEADLINE, PIXIR, TestEnv};

/// A pseudo-terminal with a program in it.
pub struct TestTerminal {
    keyboard: File,
    screen: Arc<Mutex<Vec<u8>>>,
    pub child: Child,
}

impl TestTerminal {
    pub fn run(env: &TestEnv, args: &[&str], variables: &[(&str, &str)]) -> Self {
        let mut command = Command::new(PIXIR);
        command.args(args);
        Self::start_in(env, command, variables)
    }

    /// Runs a shell script with the terminal as its controlling one; `$PIXIR` is the program.
    pub fn run_script(env: &TestEnv, script: &str) -> Self {
        let mut command = Command::new("setsid");
        command.args(["--ctty", "sh", "-c", script]);
        Self::start_in(env, command, &[("PIXIR", PIXIR)])
    }

    /// Starts a program in the Workspace and with the environment of a test.
    fn start_in(env: &TestEnv, mut command: Command, variables: &[(&str, &str)]) -> Self {
        command
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap())
            .env("HOME", env.home())
            .env("TERM", "xterm")
            .env("OPENAI_BASE_URL", env.server.base_url())
            .env("OPENAI_API_KEY", "sk-test-of-test-env")
            .envs(variables.iter().copied())
            .current_dir(env.workspace());
        Self::start(&mut command)
    }

    /// Starts any program in a terminal of its own.
    pub fn start(command: &mut Command) -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let slave = || -> OwnedFd {
            rustix::fs::open(&name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).unwrap()
        };
        let child = command.stdin(slave()).stdout(slave()).stderr(slave()).spawn().unwrap();
        let keyboard = File::from(master);
        let screen = Arc::new(Mutex::new(Vec::new()));
        let mut source = keyboard.try_clone().unwrap();
        let shown = Arc::clone(&screen);
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // Reading fails when the last slave is closed.
            while let Ok(count @ 1..) = source.read(&mut bytes) {
                shown.lock().unwrap().extend_from_slice(&bytes[..count]);
            }
        });
        Self { keyboard, screen, child }
    }

    pub fn type_keys(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    /// Pastes a text as terminals do when the program asked for it.
    pub fn paste(&mut self, text: &str) {
        self.type_keys(&format!("\u{1b}[200~{text}\u{1b}[201~"));
    }

    /// The modes of the terminal, as `stty -a` shows them.
    pub fn modes(&self) -> String {
        let termios = rustix::termios::tcgetattr(&self.keyboard).unwrap();
        format!("{termios:?}")
    }

    /// What stands in the terminal: scrollback and screen, as rows of 80 cells.
    pub fn rows(&self) -> Vec<String> {
        let mut parser = vt100::Parser::new(24, 80, 10_000);
        parser.process(&self.screen.lock().unwrap());
        let mut rows = Vec::new();
        parser.screen_mut().set_scrollback(usize::MAX);
        for back in (1..=parser.screen().scrollback()).rev() {
            parser.screen_mut().set_scrollback(back);
            rows.extend(parser.screen().rows(0, 80).next());
        }
        parser.screen_mut().set_scrollback(0);
        rows.extend(parser.screen().rows(0, 80));
        rows.into_iter().map(|row| row.trim_end().to_owned()).collect()
    }

    /// Waits until a row of the terminal contains a text.
    pub fn wait_for_row(&self, text: &str) {
        let start = Instant::now();
        while !self.rows().iter().any(|row| row.contains(text)) {
            assert!(start.elapsed() < DEADLINE, "{text:?} never came: {:#?}", self.rows());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits until no row of the terminal contains a text.
    pub fn wait_until_gone(&self, text: &str) {
        let start = Instant::now();
        while self.rows().iter().any(|row| row.contains(text)) {
            assert!(start.elapsed() < DEADLINE, "{text:?} stays: {:#?}", self.rows());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub fn screen(&self) -> String {
        String::from_utf8_lossy(&self.screen.lock().unwrap()).into_owned()
    }

    pub fn wait_for_text(&self, text: &str) {
        let start = Instant::now();
        while !self.screen().contains(text) {
            assert!(start.elapsed() < DEADLINE, "{text:?} never came: {:?}", self.screen());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until the screen has shown a text this many times.
    pub fn wait_for_text_times(&self, text: &str, times: usize) {
        let start = Instant::now();
        while self.screen().matches(text).count() < times {
            assert!(start.elapsed() < DEADLINE, "{text:?} never came: {:?}", self.screen());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.child), signal)
            .unwrap();
    }

    pub fn wait_for_exit(&mut self) -> Option<i32> {
        let status = self.child.wait().unwrap();
        leaks::check_stream(&self.screen());
        status.code()
    }
}
