//! Pixir on a terminal: a real one, as the kernel makes it, with a test at the other end.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use pixir::scripted::Reply;
use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use super::support::house::{DEADLINE, House, PIXIR};
use super::support::leaks;

/// A terminal with Pixir in it.
struct Terminal {
    keyboard: File,
    screen: Arc<Mutex<Vec<u8>>>,
    child: Child,
}

impl Terminal {
    fn run(house: &House, args: &[&str], variables: &[(&str, &str)]) -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let slave = || -> OwnedFd {
            rustix::fs::open(&name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).unwrap()
        };
        let child = Command::new(PIXIR)
            .args(args)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap())
            .env("HOME", house.home())
            .env("TERM", "xterm")
            .env("OPENAI_BASE_URL", house.server.base_url())
            .env("OPENAI_API_KEY", "sk-test-of-the-house")
            .envs(variables.iter().copied())
            .current_dir(house.workspace())
            .stdin(slave())
            .stdout(slave())
            .stderr(slave())
            .spawn()
            .unwrap();
        let keyboard = File::from(master);
        let screen = Arc::new(Mutex::new(Vec::new()));
        let (mut source, shown) = (keyboard.try_clone().unwrap(), Arc::clone(&screen));
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // The last slave that closes ends the reading with an error.
            while let Ok(count @ 1..) = source.read(&mut bytes) {
                shown.lock().unwrap().extend_from_slice(&bytes[..count]);
            }
        });
        Self { keyboard, screen, child }
    }

    fn types(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    fn screen(&self) -> String {
        String::from_utf8_lossy(&self.screen.lock().unwrap()).into_owned()
    }

    fn shows(&self, text: &str) {
        let start = Instant::now();
        while !self.screen().contains(text) {
            assert!(start.elapsed() < DEADLINE, "{text:?} never came: {:?}", self.screen());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn ends(&mut self) -> Option<i32> {
        let status = self.child.wait().unwrap();
        leaks::check_stream(&self.screen());
        status.code()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn prompts_are_read_line_by_line_until_the_end_of_input() {
    let house = House::with([Reply::says("one"), Reply::says("two")]).await;
    let mut terminal = Terminal::run(&house, &[], &[]);
    terminal.shows("› ");
    assert!(!house.workspace().join(".pixir").exists(), "no Session before the first prompt");
    terminal.types("\nfirst prompt\n");
    terminal.shows("one\r\n› ");
    terminal.types("second prompt\n");
    terminal.shows("two\r\n› ");
    terminal.types("\u{4}");
    assert_eq!(terminal.ends(), Some(0));
    terminal.shows("resume: ");
    let requests = house.requests();
    assert_eq!(requests.len(), 2);
    assert_eq!(requests[1].user_texts(), ["first prompt", "second prompt"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn text_streams_while_the_model_speaks_and_the_status_line_goes_away() {
    let slow = Reply::new().call("bash", serde_json::json!({"command": "sleep 0.4; exit 3"}));
    let half =
        Reply::new().text("ha\u{1b}]0;evil\u{7}lf of ").pause(Duration::from_secs(30)).text("it");
    let house = House::with([slow, half]).await;
    let mut terminal = Terminal::run(&house, &["do", "it"], &[]);
    terminal.shows("… bash sleep 0.4");
    terminal.shows("✗ exit 3");
    // Shown although the message is not complete.
    terminal.shows("half of ");
    let screen = terminal.screen();
    let status = screen.rfind("\u{1b}[2m…").unwrap();
    assert!(screen[status..].contains("\r\u{1b}[2K"), "erased before anything else: {screen:?}");
    assert!(screen.contains("\u{1b}[31m✗ exit 3\u{1b}[0m"), "{screen:?}");
    assert!(!screen.contains("evil"), "{screen:?}");
    terminal.child.kill().unwrap();
    terminal.ends();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dumb_terminal_and_no_color_get_plain_text() {
    for (name, value, mark) in
        [("TERM", "dumb", "bash exit 3: exit 3"), ("NO_COLOR", "1", "✗ exit 3")]
    {
        let call = Reply::new().call("bash", serde_json::json!({"command": "exit 3"}));
        let house = House::with([call, Reply::says("done")]).await;
        let mut terminal = Terminal::run(&house, &["do", "it"], &[(name, value)]);
        assert_eq!(terminal.ends(), Some(0));
        terminal.shows(mark);
        let screen = terminal.screen();
        assert!(!screen.contains("\u{1b}[31m"), "{name}: {screen:?}");
        assert!(name != "TERM" || !screen.contains('\u{1b}'), "{screen:?}");
    }
}
