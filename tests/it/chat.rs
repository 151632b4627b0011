//! The chat: an editor on a real terminal, and what it leaves in the scrollback and in the Log.

use std::time::Duration;

use pixir::scripted::{ModelScript, Reply};
use rustix::process::Signal;
use serde_json::json;

use crate::support::TestEnv;
use crate::support::terminal::TestTerminal;
use crate::support::test_env::{DEADLINE, newest_log};

/// A model that answers everything with the number of prompts so far.
async fn answering() -> TestEnv {
    let answer = |texts: usize| Reply::says(&format!("answer {texts}."));
    TestEnv::with_script(ModelScript::answering(move |request| answer(request.user_texts().len())))
        .await
}

fn prompts(env: &TestEnv) -> Vec<String> {
    let requests = env.requests();
    let texts = requests.last().map(|request| request.user_texts()).unwrap_or_default();
    texts.into_iter().map(str::to_owned).collect()
}

/// A chat whose editor is on the screen.
fn open_chat(env: &TestEnv, args: &[&str]) -> TestTerminal {
    let terminal = TestTerminal::run(env, &[&["chat"], args].concat(), &[]);
    terminal.wait_for_text("/help shows commands");
    terminal.wait_for_text("› ");
    terminal
}

/// Sequences that lose lines or take the mouse.
fn check_sequences(terminal: &TestTerminal) {
    let screen = terminal.screen();
    let forbidden =
        ["\u{1b}[2J", "\u{1b}[3J", "\u{1b}[?1049", "\u{1b}[?100", "\u{1b}c", "\u{1b}[?47"];
    for bad in forbidden {
        assert!(!screen.contains(bad), "{bad:?} in {screen:?}");
    }
}

/// Leaves with Ctrl-D.
fn leave(mut terminal: TestTerminal) {
    terminal.type_keys("\u{4}");
    assert_eq!(terminal.wait_for_exit(), Some(0));
    check_sequences(&terminal);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_stands_in_the_scrollback_once_and_in_order() {
    let lines = (0..60).map(|line| format!("line {line} of it\n")).collect::<Vec<_>>().concat();
    let env = TestEnv::with_replies([Reply::says(&lines), Reply::says("second answer")]).await;
    let mut terminal = open_chat(&env, &[]);
    assert!(!env.workspace().join(".pixir").exists(), "no Session before the first prompt");
    terminal.type_keys("first\nof two lines\r");
    terminal.wait_for_row("line 59 of it");
    terminal.wait_for_row("✓ ");
    terminal.type_keys("again\r");
    terminal.wait_for_row("second answer");
    terminal.wait_for_text_times("✓ ", 2);
    terminal.type_keys("\u{4}");
    assert_eq!(terminal.wait_for_exit(), Some(0));
    terminal.wait_for_text("resume: ");
    check_sequences(&terminal);
    let rows = terminal.rows();
    let mut expected = vec!["› first".to_owned(), "  of two lines".to_owned()];
    expected.extend((0..60).map(|line| format!("line {line} of it")));
    expected.extend(["› again".to_owned(), "second answer".to_owned()]);
    let shown: Vec<&String> = rows.iter().filter(|row| expected.contains(row)).collect();
    assert_eq!(shown, expected.iter().collect::<Vec<_>>(), "{rows:#?}");
    assert_eq!(prompts(&env), ["first\nof two lines", "again"]);
    let log = std::fs::read_to_string(newest_log(&env.workspace())).unwrap();
    assert_eq!(log.matches(r#""type":"user_message""#).count(), 2, "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_terminal_is_as_before_after_every_way_out() {
    for (way, code) in [
        ("\u{4}", Some(0)),
        ("/quit\r", Some(0)),
        ("exit\r", Some(0)),
        ("\u{3}\u{3}", Some(0)),
        ("TERM", Some(130)),
        ("HUP", Some(130)),
    ] {
        let env = answering().await;
        let before = {
            let mut quiet = std::process::Command::new("true");
            let mut terminal = TestTerminal::start(&mut quiet);
            terminal.wait_for_exit();
            terminal.modes()
        };
        let mut terminal = open_chat(&env, &[]);
        assert_ne!(terminal.modes(), before, "raw");
        match way {
            "TERM" => terminal.signal(Signal::TERM),
            "HUP" => terminal.signal(Signal::HUP),
            keys => terminal.type_keys(keys),
        }
        assert_eq!(terminal.wait_for_exit(), code, "{way:?}");
        assert_eq!(terminal.modes(), before, "{way:?}");
        // The last bytes may still be on their way.
        terminal.wait_for_text("\u{1b}[<u\u{1b}[?2004l\u{1b}[?7h\u{1b}[?25h");
        let screen = terminal.screen();
        for (set, unset) in [
            ("\u{1b}[?2004h", "\u{1b}[?2004l"),
            ("\u{1b}[>1u", "\u{1b}[<u"),
            ("\u{1b}[?25l", "\u{1b}[?25h"),
            ("\u{1b}[?2026h", "\u{1b}[?2026l"),
        ] {
            assert!(screen.rfind(set) < screen.rfind(unset), "{way:?} {set:?}: {screen:?}");
        }
        assert!(env.requests().is_empty());
        assert!(!env.workspace().join(".pixir").exists(), "{way:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_paste_is_sent_whole_and_its_line_ends_send_nothing() {
    let env = answering().await;
    let mut terminal = open_chat(&env, &[]);
    let pasted =
        (0..400).map(|line| format!("pasted line number {line}\n")).collect::<Vec<_>>().concat();
    assert!(pasted.len() > 9_000);
    terminal.type_keys("look at ");
    terminal.paste(&pasted.replace('\n', "\r"));
    terminal.wait_for_row("› look at [Pasted text #1 +400 lines]");
    terminal.type_keys("please");
    terminal.paste("two\rlines");
    terminal.wait_for_row("lines");
    terminal.type_keys("\r");
    terminal.wait_for_row("answer 1.");
    assert_eq!(prompts(&env), [format!("look at {pasted}pleasetwo\nlines")]);
    leave(terminal);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_is_stopped_by_escape_and_nothing_that_was_typed_is_lost() {
    let slow = Reply::new().text("begun").pause(Duration::from_mins(5)).text("never");
    let env = TestEnv::with_replies([slow, Reply::says("heard you")]).await;
    let mut terminal = open_chat(&env, &[]);
    terminal.type_keys("one\r");
    terminal.wait_for_row("begun");
    terminal.type_keys("two\r");
    terminal.wait_for_row("queued: two");
    terminal.type_keys("a draft");
    terminal.wait_for_row("› a draft");
    terminal.type_keys("\u{1b}");
    terminal.wait_for_row("interrupted");
    // What was queued is back in the editor, before the draft.
    terminal.wait_for_row("› two");
    terminal.wait_for_row("  a draft");
    assert_eq!(env.requests().len(), 1, "nothing is sent by itself");
    terminal.type_keys(" and more\r");
    terminal.wait_for_row("heard you");
    assert_eq!(prompts(&env), ["one", "two\na draft and more"]);
    leave(terminal);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queued_prompt_is_sent_after_the_turn_or_taken_back() {
    let (is_asked, asked) = std::sync::mpsc::sync_channel(8);
    let (go_on, may_go_on) = std::sync::mpsc::sync_channel::<()>(8);
    let may_go_on = std::sync::Mutex::new(may_go_on);
    let env = TestEnv::with_script(ModelScript::answering(move |request| {
        let texts = request.user_texts().len();
        if texts == 1 {
            is_asked.send(()).unwrap();
            may_go_on.lock().unwrap().recv_timeout(DEADLINE).unwrap();
        }
        Reply::says(&format!("answer {texts}."))
    }))
    .await;
    let mut terminal = open_chat(&env, &[]);
    terminal.type_keys("one\r");
    asked.recv_timeout(DEADLINE).unwrap();
    terminal.type_keys("two\r");
    terminal.wait_for_row("queued: two");
    terminal.type_keys("thre\r");
    terminal.wait_for_row("queued: thre");
    terminal.type_keys("\u{1b}[1;3A");
    terminal.wait_until_gone("queued: thre");
    terminal.type_keys("e");
    terminal.wait_for_row("› three");
    go_on.send(()).unwrap();
    terminal.wait_for_row("answer 2.");
    terminal.type_keys("\r");
    terminal.wait_for_row("answer 3.");
    assert_eq!(prompts(&env), ["one", "two", "three"]);
    leave(terminal);
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_from_before_a_question_are_no_answer_and_the_draft_stays() {
    let (is_asked, asked) = std::sync::mpsc::channel();
    let (go_on, may_go_on) = std::sync::mpsc::channel::<()>();
    let may_go_on = std::sync::Mutex::new(may_go_on);
    let env = TestEnv::with_script(ModelScript::answering(move |request| {
        match (request.user_texts().len(), request.outputs().len()) {
            (1, 0) => {
                is_asked.send(()).unwrap();
                may_go_on.lock().unwrap().recv_timeout(DEADLINE).unwrap();
                Reply::calls("bash", json!({"command": "touch made"}))
            }
            (1, _) => Reply::says("answer 1."),
            _ => Reply::says("answer 2."),
        }
    }))
    .await;
    let mut terminal = open_chat(&env, &["--ask"]);
    terminal.type_keys("one\r");
    asked.recv_timeout(DEADLINE).unwrap();
    terminal.type_keys("yes please");
    terminal.wait_for_row("› yes please");
    go_on.send(()).unwrap();
    terminal.wait_for_row("? bash asks: run touch made");
    terminal.wait_for_row("a question waits: Tab answers it");
    assert!(!env.workspace().join("made").exists());
    terminal.type_keys("\t");
    terminal.wait_for_row("1 [y] yes, once");
    terminal.type_keys("n");
    terminal.wait_for_row("what should it do instead?");
    terminal.type_keys("look first\r");
    terminal.wait_for_row("→ no: look first");
    terminal.wait_for_row("answer 1.");
    terminal.wait_for_row("› yes please");
    assert!(!env.workspace().join("made").exists());
    let output = env.requests()[1].outputs().last().unwrap().to_string();
    assert!(output.contains("look first"), "{output}");
    terminal.type_keys("\r");
    terminal.wait_for_row("answer 2.");
    assert_eq!(prompts(&env), ["one", "yes please"]);
    leave(terminal);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_is_answered_by_one_key() {
    for (keys, is_made) in [("y", true), ("1", true), ("\r", true), ("\u{1b}", false)] {
        let env =
            TestEnv::with_script(ModelScript::answering(|request| match request.outputs().len() {
                0 => Reply::calls("bash", json!({"command": "touch made"})),
                _ => Reply::says("all done."),
            }))
            .await;
        let mut terminal = open_chat(&env, &["--ask"]);
        terminal.type_keys("make it\r");
        terminal.wait_for_row("1 [y] yes, once");
        terminal.type_keys(keys);
        terminal.wait_for_row("all done.");
        assert_eq!(env.workspace().join("made").exists(), is_made, "{keys:?}");
        leave(terminal);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn words_for_pixir_are_never_sent() {
    let env = answering().await;
    let mut terminal = open_chat(&env, &[]);
    terminal.type_keys("/reviw the diff\r");
    terminal.wait_for_row("there is no command, prompt or Skill called /reviw");
    terminal.type_keys("\u{3}");
    terminal.wait_for_row("cleared");
    terminal.type_keys("/help\r");
    terminal.wait_for_row("/compact");
    terminal.wait_for_row("Ctrl+Z suspends");
    terminal.type_keys("/undo\r");
    terminal.wait_for_row("there is no Session yet");
    assert!(env.requests().is_empty());
    terminal.type_keys("/path/like this\r");
    terminal.wait_for_row("answer 1.");
    assert_eq!(prompts(&env), ["/path/like this"]);
    leave(terminal);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_is_undone_and_redone() {
    let env = TestEnv::with_replies([
        Reply::calls("write", json!({"path": "made", "content": "1"})),
        Reply::says("written."),
    ])
    .await;
    let mut terminal = open_chat(&env, &[]);
    terminal.type_keys("make it\r");
    terminal.wait_for_row("written.");
    terminal.wait_for_row("✓ ");
    assert!(env.workspace().join("made").exists());
    terminal.type_keys("/undo\r");
    terminal.wait_for_row("1 Turn taken back");
    assert!(!env.workspace().join("made").exists());
    terminal.type_keys("/redo\r");
    terminal.wait_for_row("1 Turn brought back");
    assert!(env.workspace().join("made").exists());
    let log = std::fs::read_to_string(newest_log(&env.workspace())).unwrap();
    assert_eq!(log.matches(r#""type":"history_rewound""#).count(), 2, "{log}");
    leave(terminal);
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_and_files_are_completed() {
    let env = answering().await;
    env.write("notes.md", "");
    env.write("other.txt", "");
    let mut terminal = open_chat(&env, &[]);
    terminal.type_keys("/stat");
    terminal.wait_for_row("Show Session, model, mode and folder");
    terminal.type_keys("\r");
    terminal.wait_for_row("nothing was used yet");
    terminal.type_keys("read @not");
    terminal.wait_for_row("› @notes.md");
    terminal.type_keys("\tnow\r");
    terminal.wait_for_row("answer 1.");
    assert_eq!(prompts(&env), ["read @notes.md now"]);
    leave(terminal);
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_output_never_reaches_the_terminal() {
    let evil = "\u{1b}]0;evil\u{7}\u{1b}]52;c;ZXZpbA==\u{7}\u{1b}[2J\u{9b}31mplain\u{202e}\r text";
    let call = Reply::calls("bash", json!({"command": format!("printf '{evil}'; exit 3")}));
    let env = TestEnv::with_replies([call, Reply::says(evil)]).await;
    let mut terminal = open_chat(&env, &[]);
    terminal.paste(evil);
    terminal.type_keys("\r");
    terminal.wait_for_row("✓ ");
    terminal.type_keys("\u{4}");
    assert_eq!(terminal.wait_for_exit(), Some(0));
    check_sequences(&terminal);
    let screen = terminal.screen();
    for bad in ["\u{1b}]", "\u{9b}", "\u{202e}", "\u{7}"] {
        assert!(!screen.contains(bad), "{bad:?} in {screen:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_resumed_session_shows_its_last_exchange_and_goes_on() {
    let env = answering().await;
    env.run_pixir(&["the first prompt"]).assert_exit_code(0);
    let mut terminal = open_chat(&env, &["--last"]);
    terminal.wait_for_row("› the first prompt");
    terminal.wait_for_row("answer 1.");
    terminal.type_keys("go on\r");
    terminal.wait_for_row("answer 2.");
    assert_eq!(prompts(&env), ["the first prompt", "go on"]);
    leave(terminal);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_session_is_begun_and_the_earlier_one_is_gone_on_with() {
    let env = answering().await;
    let mut terminal = open_chat(&env, &[]);
    terminal.type_keys("one\r");
    terminal.wait_for_row("answer 1.");
    terminal.wait_for_row("✓ ");
    let log = newest_log(&env.workspace());
    let id = log.file_stem().unwrap().to_str().unwrap().to_owned();
    terminal.type_keys("/new\r");
    terminal.wait_for_row("a new Session begins with the next prompt");
    terminal.type_keys("two\r");
    terminal.wait_for_text_times("✓ ", 2);
    assert_eq!(prompts(&env), ["two"]);
    terminal.type_keys("/sessions\r");
    terminal.wait_for_row("› /sessions");
    terminal.wait_for_row(&format!("{id}     1 Turn  one"));
    terminal.type_keys(&format!("/resume {id}\r"));
    terminal.wait_for_row(&format!("Session {id}: one"));
    terminal.type_keys("three\r");
    terminal.wait_for_row("answer 2.");
    assert_eq!(prompts(&env), ["one", "three"]);
    leave(terminal);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_terminal_is_given_back_while_the_chat_is_stopped() {
    let env = answering().await;
    let mut terminal = open_chat(&env, &[]);
    let raw = terminal.modes();
    for (place, (stop, draft)) in
        [("\u{1a}", "one draft"), ("TSTP", "other")].into_iter().enumerate()
    {
        let shown = format!("› {draft}");
        terminal.type_keys(draft);
        terminal.wait_for_row(&shown);
        match stop {
            "TSTP" => terminal.signal(Signal::TSTP),
            keys => terminal.type_keys(keys),
        }
        let start = std::time::Instant::now();
        while terminal.modes() == raw {
            assert!(start.elapsed() < DEADLINE, "it never stopped");
            std::thread::sleep(Duration::from_millis(10));
        }
        terminal.wait_until_gone(&shown);
        terminal.signal(Signal::CONT);
        terminal.wait_for_row(&shown);
        terminal.type_keys(" more\r");
        terminal.wait_for_row(&format!("answer {}.", place + 1));
        assert_eq!(terminal.modes(), raw);
    }
    assert_eq!(prompts(&env), ["one draft more", "other more"]);
    leave(terminal);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_is_written_in_the_editor_of_the_user() {
    let env = answering().await;
    let variables = [("VISUAL", "sed -i -e s/plain/fancy/")];
    let mut terminal = TestTerminal::run(&env, &["chat"], &variables);
    terminal.wait_for_text("/help shows commands");
    terminal.type_keys("something plain\u{7}");
    terminal.wait_for_row("› something fancy");
    terminal.type_keys(" indeed\r");
    terminal.wait_for_row("answer 1.");
    assert_eq!(prompts(&env), ["something fancy indeed"]);
    leave(terminal);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_terminal_or_with_an_envelope_the_chat_is_refused() {
    let env = answering().await;
    let refused = env.run_pixir(&["chat"]).assert_exit_code(2);
    for words in ["a chat needs a terminal", "which reads prompts line by line"] {
        assert!(refused.err.contains(words), "{words}: {}", refused.err);
    }
    let envelope = env.run_pixir(&["chat", "--json"]).assert_exit_code(2).envelope();
    assert_eq!(envelope["error"]["kind"], "invalid_args");
    let refused = env.run_pixir(&["chat", "--events"]).assert_exit_code(2);
    assert!(refused.err.contains("--events has no effect on `pixir chat`"), "{}", refused.err);
    assert!(env.requests().is_empty());
    assert!(!env.workspace().join(".pixir").exists());
}
