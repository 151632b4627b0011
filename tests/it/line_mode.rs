//! Line mode: prompts typed on a terminal, one per line or paste.

use std::path::PathBuf;

use pixir::scripted::{ModelScript, Reply};
use serde_json::json;

use crate::support::TestEnv;
use crate::support::binary_env::wait_for;
use crate::support::terminal::TestTerminal;
use crate::support::test_env::{DEADLINE, newest_log};

/// A test environment whose model answers every prompt.
async fn answering() -> TestEnv {
    TestEnv::with_script(ModelScript::answering(|_| Reply::says("understood"))).await
}

/// A terminal whose Pixir writes a trace, which shows when Pixir has read the input.
fn traced(env: &TestEnv, args: &[&str]) -> TestTerminal {
    let trace = trace(env);
    let args = [&["--log-file", trace.to_str().unwrap()], args].concat();
    TestTerminal::run(env, &args, &[("PIXIR_LOG", "trace")])
}

fn trace(env: &TestEnv) -> PathBuf {
    env.workspace().parent().unwrap().join("trace.log")
}

/// Waits until the trace contains a text this many times.
#[track_caller]
fn traces(env: &TestEnv, words: &str, times: usize) {
    let count = || std::fs::read_to_string(trace(env)).unwrap_or_default().matches(words).count();
    let seen = wait_for(DEADLINE, count, |count| *count >= times);
    assert!(seen >= times, "{words:?} came {seen} times");
}

const QUEUED: &str = "what was typed is queued";

fn prompts(env: &TestEnv) -> Vec<String> {
    let requests = env.requests();
    let texts = requests.last().map(|request| request.user_texts()).unwrap_or_default();
    texts.into_iter().map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paste_of_many_lines_is_one_prompt() {
    let env = answering().await;
    let mut terminal = TestTerminal::run(&env, &[], &[]);
    terminal.wait_for_text("› ");
    let trace = "thread 'main' panicked at src/main.rs:4:5:\nindex out of bounds\n   0: std::panicking\n   1: main";
    terminal.type_keys(&format!("{trace}\n"));
    terminal.wait_for_text_times("understood", 1);
    terminal.wait_for_text_times("› ", 2);
    // A paste that does not end with a line end is completed by Enter.
    terminal.type_keys("first line\nsecond line\nunfinished");
    terminal.wait_for_text("unfinished");
    terminal.type_keys(" and done\n");
    terminal.wait_for_text_times("understood", 2);
    terminal.type_keys("\u{4}");
    assert_eq!(terminal.wait_for_exit(), Some(0));
    assert_eq!(env.requests().len(), 2, "two Turns and no more");
    assert_eq!(prompts(&env), [trace, "first line\nsecond line\nunfinished and done"]);
    let log = std::fs::read_to_string(newest_log(&env.workspace())).unwrap();
    assert_eq!(log.matches(r#""type":"user_message""#).count(), 2, "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_typed_during_a_turn_is_a_prompt_of_its_own() {
    let (is_asked, asked) = std::sync::mpsc::sync_channel(8);
    let (go_on, may_go_on) = std::sync::mpsc::sync_channel(8);
    let may_go_on = std::sync::Mutex::new(may_go_on);
    let env = TestEnv::with_script(ModelScript::answering(move |request| {
        let texts = request.user_texts();
        if texts.len() == 1 {
            is_asked.send(()).unwrap();
            may_go_on.lock().unwrap().recv_timeout(DEADLINE).unwrap();
        }
        Reply::says(&format!("answer {}", texts.len()))
    }))
    .await;
    let mut terminal = traced(&env, &[]);
    terminal.wait_for_text("› ");
    terminal.type_keys("one\n");
    asked.recv_timeout(DEADLINE).unwrap();
    terminal.type_keys("two\n");
    traces(&env, QUEUED, 2);
    terminal.type_keys("three\n");
    traces(&env, QUEUED, 3);
    go_on.send(()).unwrap();
    terminal.wait_for_text("answer 3");
    terminal.type_keys("exit\n");
    assert_eq!(terminal.wait_for_exit(), Some(0));
    assert_eq!(prompts(&env), ["one", "two", "three"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_that_was_typed_before_a_question_is_no_answer_and_is_sent_afterwards() {
    let (is_asked, asked) = std::sync::mpsc::channel();
    let (go_on, may_go_on) = std::sync::mpsc::channel::<()>();
    let may_go_on = std::sync::Mutex::new(may_go_on);
    let env = TestEnv::with_script(ModelScript::answering(move |request| {
        match (request.user_texts().len(), request.outputs().len()) {
            (1, 0) => {
                is_asked.send(()).unwrap();
                may_go_on.lock().unwrap().recv_timeout(DEADLINE).unwrap();
                Reply::calls("bash", serde_json::json!({"command": "touch made"}))
            }
            (1, _) => Reply::says("answer 1"),
            _ => Reply::says("answer 2"),
        }
    }))
    .await;
    let mut terminal = traced(&env, &["--ask"]);
    terminal.wait_for_text("› ");
    terminal.type_keys("one\n");
    asked.recv_timeout(DEADLINE).unwrap();
    terminal.type_keys("yes please, two\n");
    traces(&env, QUEUED, 2);
    go_on.send(()).unwrap();
    terminal.wait_for_text("? bash asks: run touch made");
    terminal.wait_for_text("  › ");
    assert!(!env.workspace().join("made").exists());
    terminal.type_keys("n\n");
    terminal.wait_for_text("answer 2");
    terminal.type_keys("exit\n");
    assert_eq!(terminal.wait_for_exit(), Some(0));
    assert!(!env.workspace().join("made").exists());
    assert_eq!(prompts(&env), ["one", "yes please, two"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_typed_during_a_turn_is_dropped_when_the_turn_is_interrupted() {
    let slow = Reply::new().text("begun").pause(std::time::Duration::from_mins(5)).text("never");
    let env = TestEnv::with_replies([slow, Reply::says("heard you")]).await;
    let mut terminal = traced(&env, &[]);
    terminal.wait_for_text("› ");
    terminal.type_keys("one\n");
    terminal.wait_for_text("begun");
    // A paste whose last line has no end is held until Enter.
    terminal.type_keys("typed too early\nand half");
    traces(&env, "a typed line waits for its end", 1);
    terminal.signal(rustix::process::Signal::INT);
    terminal.wait_for_text("interrupted");
    terminal.type_keys("two\n");
    terminal.wait_for_text("heard you");
    terminal.type_keys("exit\n");
    assert_eq!(terminal.wait_for_exit(), Some(0));
    assert_eq!(prompts(&env), ["one", "two"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_line_that_the_terminal_cut_is_refused_and_nothing_is_sent() {
    let env = answering().await;
    let mut terminal = TestTerminal::run(&env, &["--quiet"], &[]);
    terminal.wait_for_text("› ");
    terminal.type_keys(&format!("{}\n", "z".repeat(6000)));
    terminal.wait_for_text("nothing was sent: a line of 4095 bytes or more is cut by the terminal");
    terminal.wait_for_text("save the text in a file");
    terminal.wait_for_text("pipe it in");
    terminal.type_keys(&format!("{}\n", "y".repeat(4094)));
    terminal.wait_for_text("understood");
    terminal.type_keys("\u{4}");
    assert_eq!(terminal.wait_for_exit(), Some(0));
    assert_eq!(prompts(&env), ["y".repeat(4094)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn words_for_pixir_are_never_sent_and_leave_no_session() {
    for leave in ["exit\n", "quit\n", "/quit\n", "Exit\n", "\u{4}"] {
        let env = answering().await;
        let mut terminal = TestTerminal::run(&env, &[], &[]);
        terminal.wait_for_text("› ");
        terminal.type_keys("/help\n");
        terminal.wait_for_text("so do exit, quit and Ctrl-D");
        terminal.type_keys("/reviw the diff\n");
        terminal.wait_for_text("there is no command, prompt or Skill called /reviw");
        terminal.type_keys("/undo\n");
        terminal.wait_for_text("run `pixir undo`");
        terminal.wait_for_text_times("› ", 4);
        terminal.type_keys(leave);
        assert_eq!(terminal.wait_for_exit(), Some(0), "{leave}");
        assert!(env.requests().is_empty(), "{leave}");
        assert!(!env.workspace().join(".pixir").exists(), "{leave}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn paths_and_the_users_own_prompts_are_sent_and_the_same_holds_within_a_session() {
    let env = answering().await;
    let folder = env.home().join(".pixir/prompts");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("review.md"), "Review this: $ARGUMENTS").unwrap();
    let mut terminal = TestTerminal::run(&env, &[], &[]);
    terminal.wait_for_text("› ");
    terminal.type_keys("/path/like this\n");
    terminal.wait_for_text_times("understood", 1);
    terminal.type_keys("/review the diff\n");
    terminal.wait_for_text_times("understood", 2);
    terminal.type_keys("/reviw the diff\n");
    terminal.wait_for_text("called /reviw");
    terminal.type_keys("/help\n");
    terminal.wait_for_text("/review");
    terminal.wait_for_text_times("› ", 5);
    terminal.type_keys("quit\n");
    assert_eq!(terminal.wait_for_exit(), Some(0));
    terminal.wait_for_text("resume: ");
    assert_eq!(prompts(&env), ["/path/like this", "Review this: the diff"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lone_word_for_pixir_on_the_command_line_is_no_prompt_either() {
    let env = answering().await;
    for word in ["exit", "quit", "/quit", "/help", "/reviw", "/reviw the diff"] {
        let refused = env.run_pixir(&[word]).assert_exit_code(2);
        let quoted = if word.contains(' ') { format!("'{word}'") } else { word.to_owned() };
        assert!(refused.err.contains(&format!("pixir -- {quoted}\n")), "{word}: {}", refused.err);
    }
    env.run_pixir(&["/reviw", "the", "diff"]).assert_exit_code(2);
    assert!(env.requests().is_empty());
    env.run_pixir(&["--", "/reviw"]).assert_exit_code(0);
    env.run_pixir(&["/etc/passwd"]).assert_exit_code(0);
    env.run_pixir(&["/etc/passwd", "is", "odd"]).assert_exit_code(0);
    env.run_pixir(&["exit", "codes", "are", "wrong"]).assert_exit_code(0);
    assert_eq!(env.requests().len(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_that_is_offered_for_a_refused_prompt_sends_it_where_it_was_meant() {
    let env = answering().await;
    env.run_pixir(&["hello"]).assert_exit_code(0);
    let log = newest_log(&env.workspace());
    let id = log.file_stem().unwrap().to_str().unwrap();
    let wordy = format!("/reviw {}", "the diff ".repeat(50));
    let quoted = r"'/its it'\''s; rm -rf ~'";
    for (args, offered) in [
        (&["resume", "exit"][..], "pixir resume --last -- exit"),
        (&["resume", "--last", "exit"], "pixir resume --last -- exit"),
        (&["resume", id, "exit"], &format!("pixir resume {id} -- exit")),
        (&["exit"], "pixir -- exit"),
        (&["/its it's; rm -rf ~"], &format!("pixir -- {quoted}")),
        (&["resume", "/its it's; rm -rf ~"], &format!("pixir resume --last -- {quoted}")),
        (&[&wordy], "pixir -- '<the prompt>'"),
        (&["/reviw\nthe diff"], "pixir -- '<the prompt>'"),
        (&["resume", "--last", &wordy], "pixir resume --last -- '<the prompt>'"),
    ] {
        let refused = env.run_pixir(args).assert_exit_code(2).err;
        assert!(refused.contains(&format!("prompt: {offered}\n")), "{args:?}: {refused}");
    }
    assert_eq!(env.requests().len(), 1);
    // The command in the hint resumes the Session.
    env.run_pixir(&["resume", "--last", "--", "exit"]).assert_exit_code(0);
    env.run_pixir(&["resume", id, "--", "exit"]).assert_exit_code(0);
    assert_eq!(prompts(&env), ["hello", "exit", "exit"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_start_line_names_model_mode_folder_and_the_way_out() {
    let env = answering().await;
    let args = ["--model", "some-model", "--read-only"];
    let mut terminal = TestTerminal::run(&env, &args, &[]);
    terminal.wait_for_text("› ");
    let screen = terminal.screen();
    let folder = env.workspace().canonicalize().unwrap();
    for words in ["some-model", "mode read-only", folder.to_str().unwrap(), "/quit", "Ctrl-D"] {
        assert!(screen.contains(words), "{words}: {screen}");
    }
    terminal.type_keys("/quit\n");
    assert_eq!(terminal.wait_for_exit(), Some(0));
    let mut terminal = TestTerminal::run(&env, &["--quiet"], &[]);
    terminal.wait_for_text("› ");
    assert!(!terminal.screen().contains("Ctrl-D"), "{}", terminal.screen());
    terminal.type_keys("/quit\n");
    assert_eq!(terminal.wait_for_exit(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn resume_shows_the_title_and_the_last_exchange() {
    let lines: Vec<String> = (1..=40).map(|number| format!("line {number}\n")).collect();
    let long = lines.concat();
    let env = TestEnv::with_replies([
        Reply::says("first answer"),
        Reply::says(&long),
        Reply::says("third"),
    ])
    .await;
    env.run_pixir(&["the title of it all"]).assert_exit_code(0);
    env.run_pixir(&["resume", "--last", "the second prompt"]).assert_exit_code(0);
    // Without an id, the last Session is resumed.
    let mut terminal = TestTerminal::run(&env, &["resume"], &[]);
    terminal.wait_for_text("› ");
    terminal.wait_for_text("line 40");
    terminal.type_keys("go on\n");
    terminal.wait_for_text("third");
    terminal.type_keys("\u{4}");
    assert_eq!(terminal.wait_for_exit(), Some(0));
    let screen = terminal.screen();
    for words in ["the title of it all", "› the second prompt", "earlier lines", "Ctrl-D"] {
        assert!(screen.contains(words), "{words}: {screen}");
    }
    assert!(!screen.contains("line 1\r\n"), "{screen}");
    assert!(!screen.contains("first answer"), "{screen}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_failed_shows_its_last_lines_and_verbose_shows_everything() {
    let failing = "for n in $(seq 1 30); do echo line $n; done; printf '\\033[31mbad\\n'; exit 3";
    let fine = "echo quiet success";
    let script = || {
        let thinking = Reply::new().reasoning("Considering the options.");
        [
            thinking.call("bash", json!({"command": failing})),
            Reply::calls("bash", json!({"command": fine})),
            Reply::says("done"),
        ]
    };
    let env = TestEnv::with_replies(script()).await;
    let short = env.run_pixir(&["do it"]).assert_exit_code(0);
    assert_eq!(short.out, "done\n");
    assert!(short.err.contains("  | line 30\n  | bad\n"), "{}", short.err);
    assert!(!short.err.contains("line 1\n") && !short.err.contains('\u{1b}'), "{}", short.err);
    assert!(!short.err.contains("quiet success\n"), "{}", short.err);
    assert!(!short.err.contains("Considering"), "{}", short.err);

    let env = TestEnv::with_replies(script()).await;
    let all = env.run_pixir(&["--verbose", "do it"]).assert_exit_code(0);
    assert_eq!(all.out, "done\n");
    for words in ["  | line 1\n", "  | line 30\n  | bad\n", "  | quiet success\n", "Considering"] {
        assert!(all.err.contains(words), "{words}: {}", all.err);
    }
    assert_eq!(all.err.matches("line 30\n").count(), 1, "{}", all.err);
    env.run_pixir(&["--verbose", "--quiet", "do it"]).assert_exit_code(2);

    let env = TestEnv::with_replies(script()).await;
    let quiet = env.run_pixir(&["--quiet", "do it"]).assert_exit_code(0);
    assert_eq!(quiet.err, "");
}
