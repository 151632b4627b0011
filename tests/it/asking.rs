//! Questions on a terminal, and runs without a terminal to ask on.

use pixir::scripted::{ModelScript, Reply};
use serde_json::{Value, json};

use crate::support::TestEnv;
use crate::support::terminal::TestTerminal;
use crate::support::test_env::{DEADLINE, newest_log};

/// A model that makes one call in every Turn, and then answers.
fn calling(name: &'static str, args: Value) -> ModelScript {
    ModelScript::answering(move |request| {
        let is_due = request.outputs().len() < request.user_texts().len();
        if is_due { Reply::calls(name, args.clone()) } else { Reply::says("all done") }
    })
}

fn log(env: &TestEnv) -> String {
    std::fs::read_to_string(newest_log(&env.workspace())).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_sees_what_would_run_and_says_yes() {
    let env = TestEnv::with_script(calling("bash", json!({"command": "touch x && touch y"}))).await;
    let mut terminal = TestTerminal::run(&env, &["--ask", "make it"], &[]);
    terminal.wait_for_text("? bash asks: run touch x && touch y");
    terminal.wait_for_text("parts      touch x\r\n             touch y");
    terminal.wait_for_text("[n] no");
    assert!(!terminal.screen().contains("[c]"), "no prefix for two commands");
    terminal.type_keys("perhaps\n");
    terminal.wait_for_text_times("[y] yes, once", 2);
    assert!(!env.workspace().join("x").exists());
    terminal.type_keys("y\n");
    terminal.wait_for_text("all done");
    assert_eq!(terminal.wait_for_exit(), Some(0));
    assert!(env.workspace().join("y").exists());
    assert!(log(&env).contains(r#""answered_by":"user","answer":"once""#));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_no_with_words_reaches_the_model() {
    let args = json!({"path": "x", "content": "new\u{202e}\u{1b}[2J\n"});
    let env = TestEnv::with_script(calling("write", args)).await;
    let mut terminal = TestTerminal::run(&env, &["--ask", "make it"], &[("NO_COLOR", "1")]);
    terminal.wait_for_text("files      x");
    terminal.wait_for_text("+new");
    terminal.wait_for_text("beware");
    terminal.wait_for_text("  › ");
    terminal.type_keys("n write y instead\n");
    terminal.wait_for_text("all done");
    assert_eq!(terminal.wait_for_exit(), Some(0), "a denial followed by an answer");
    assert!(!env.workspace().join("x").exists());
    assert!(env.requests()[1].body_text.contains("they say: write y instead"));
    let question = terminal.screen();
    let question = &question[question.find("? write").unwrap()..question.find("[y]").unwrap()];
    assert!(!question.contains(['\u{1b}', '\u{202e}']), "{question:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_typed_before_the_question_is_no_answer() {
    let (is_asked, asked) = std::sync::mpsc::sync_channel(8);
    let (go_on, may_go_on) = std::sync::mpsc::sync_channel(8);
    let may_go_on = std::sync::Mutex::new(may_go_on);
    let env = TestEnv::with_script(ModelScript::answering(move |request| {
        if !request.outputs().is_empty() {
            return Reply::says("all done");
        }
        is_asked.send(()).unwrap();
        may_go_on.lock().unwrap().recv_timeout(DEADLINE).unwrap();
        Reply::calls("bash", json!({"command": "touch x"}))
    }))
    .await;
    let mut terminal = TestTerminal::run(&env, &["--ask", "make it"], &[]);
    asked.recv_timeout(DEADLINE).unwrap();
    // The model still answers. The echo shows that the kernel has the keys: two lines and a half.
    terminal.type_keys("y\ny\nyes");
    terminal.wait_for_text("y\r\ny\r\nyes");
    go_on.send(()).unwrap();
    terminal.wait_for_text("  › ");
    terminal.type_keys("n\n");
    terminal.wait_for_text("all done");
    assert_eq!(terminal.wait_for_exit(), Some(0));
    assert!(!env.workspace().join("x").exists());
    let log = log(&env);
    assert_eq!(log.matches("permission_decision").count(), 1);
    assert!(log.contains(r#""answered_by":"user","answer":"no""#), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_yes_in_one_breath_does_not_answer_the_next_question() {
    let two = Reply::new()
        .call("bash", json!({"command": "touch x"}))
        .call("bash", json!({"command": "touch y"}));
    let env = TestEnv::with_replies([two, Reply::says("all done")]).await;
    let mut terminal = TestTerminal::run(&env, &["--ask", "make it"], &[]);
    terminal.wait_for_text("  › ");
    terminal.type_keys("y\ny\n");
    terminal.wait_for_text("asks: run touch y");
    terminal.wait_for_text_times("  › ", 2);
    terminal.type_keys("n\n");
    terminal.wait_for_text("all done");
    assert_eq!(terminal.wait_for_exit(), Some(0));
    assert!(env.workspace().join("x").exists() && !env.workspace().join("y").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_says_when_nothing_would_hold_the_command() {
    let env = TestEnv::with_script(calling("bash", json!({"command": "touch x"}))).await;
    let args = ["--ask", "--sandbox", "off", "make it"];
    let mut terminal = TestTerminal::run(&env, &args, &[]);
    terminal.wait_for_text("sandbox    off: this command is not confined");
    terminal.wait_for_text("  › ");
    terminal.type_keys("n\n");
    assert_eq!(terminal.wait_for_exit(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_cannot_be_stored_is_reported() {
    let env = TestEnv::with_script(calling("bash", json!({"command": "touch x"}))).await;
    let approvals = env.home().join(".pixir/permissions.json");
    std::fs::create_dir_all(approvals.parent().unwrap()).unwrap();
    std::fs::write(&approvals, "{").unwrap();
    let mut terminal = TestTerminal::run(&env, &["--ask", "make it"], &[]);
    terminal.wait_for_text("  › ");
    terminal.type_keys("p\n");
    terminal.wait_for_text("this answer lasts for this Session only");
    terminal.wait_for_text("cannot be understood");
    terminal.wait_for_text("all done");
    assert_eq!(terminal.wait_for_exit(), Some(0));
    assert!(env.workspace().join("x").exists(), "the user said yes");
    assert!(log(&env).contains(r#""notice":"this answer lasts for this Session only"#));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_input_is_a_no_and_a_signal_ends_the_turn() {
    let env = TestEnv::with_script(calling("bash", json!({"command": "touch x"}))).await;
    let mut terminal = TestTerminal::run(&env, &["--ask", "make it"], &[]);
    terminal.wait_for_text("  › ");
    terminal.type_keys("\u{4}");
    terminal.wait_for_text("all done");
    assert_eq!(terminal.wait_for_exit(), Some(0));
    assert!(log(&env).contains(r#""answer":"no""#));

    let mut terminal = TestTerminal::run(&env, &["--ask", "make it"], &[]);
    terminal.wait_for_text("  › ");
    terminal.signal(rustix::process::Signal::INT);
    assert_eq!(terminal.wait_for_exit(), Some(130));
    let log = log(&env);
    assert!(log.contains(r#""terminal_status":"interrupted""#), "{log}");
    assert!(log.contains("orphan_tool_call") && !env.workspace().join("x").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_question_does_not_swallow_the_next_prompt() {
    let env = TestEnv::with_script(ModelScript::answering(|request| {
        match request.user_texts().as_slice() {
            ["first"] => Reply::calls("bash", json!({"command": "touch x"})),
            _ => Reply::says("heard you"),
        }
    }))
    .await;
    let mut terminal = TestTerminal::run(&env, &["--ask"], &[]);
    terminal.wait_for_text("› ");
    terminal.type_keys("first\n");
    terminal.wait_for_text("  › ");
    terminal.signal(rustix::process::Signal::INT);
    terminal.wait_for_text("interrupted");
    terminal.type_keys("second\n");
    terminal.wait_for_text("heard you");
    terminal.type_keys("\u{4}");
    assert_eq!(terminal.wait_for_exit(), Some(0));
    assert_eq!(env.requests().last().unwrap().user_texts(), ["first", "second"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_allowed_for_good_is_listed_and_forgotten() {
    let env = TestEnv::with_script(calling("bash", json!({"command": "touch x"}))).await;
    let mut terminal = TestTerminal::run(&env, &["--ask", "make it"], &[]);
    terminal.wait_for_text("[c] always `touch …` in this project");
    terminal.type_keys("c\n");
    assert_eq!(terminal.wait_for_exit(), Some(0));
    // The stored approval applies without a terminal.
    env.run_pixir(&["--ask", "make it"]).assert_exit_code(0);
    assert!(log(&env).contains(r#""answered_by":"prefix""#));
    let listed = env.run_pixir(&["permissions", "--json"]).assert_exit_code(0).envelope();
    let approval = &listed["output"][0];
    assert_eq!(approval["prefix"], json!(["touch"]), "{listed}");
    let text = env.run_pixir(&["permissions", "list"]).assert_exit_code(0).out;
    assert!(text.contains("run touch …"), "{text}");
    env.run_pixir(&["permissions", "forget", "nothing"]).assert_exit_code(2);
    // The end of an id is enough.
    env.run_pixir(&["permissions", "forget", &approval["id"].as_str().unwrap()[8..]])
        .assert_exit_code(0);
    assert_eq!(
        env.run_pixir(&["permissions", "--json"]).assert_exit_code(0).envelope()["output"],
        json!([])
    );
    env.run_pixir(&["--ask", "make it"]).assert_exit_code(0);
    assert!(log(&env).contains(r#""answered_by":"nobody""#));
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_user_to_ask_a_call_is_denied_at_once_and_the_exit_code_says_so() {
    let env = TestEnv::with_script(calling("bash", json!({"command": "touch x"}))).await;
    let answered = env.run_pixir(&["--ask", "make it"]).assert_exit_code(0);
    assert!(answered.err.contains("there is no terminal to ask on"), "{}", answered.err);
    assert!(!env.workspace().join("x").exists());
    let empty =
        TestEnv::with_replies([Reply::calls("bash", json!({"command": "touch x"})), Reply::new()])
            .await;
    let denied = empty.run_pixir(&["--ask", "--json", "make it"]).assert_exit_code(3).envelope();
    assert_eq!((&denied["ok"], &denied["status"]), (&json!(false), &json!("incomplete")));
    let strict = TestEnv::with_replies([Reply::says("x")]).await;
    strict.run_pixir(&["--ask", "--read-only", "make it"]).assert_exit_code(2);
    strict.run_pixir(&["--role", "wizard", "make it"]).assert_exit_code(2);
    strict.run_pixir(&["--allow-write", "/etc/**", "make it"]).assert_exit_code(2);
    assert!(strict.requests().is_empty());
}

/// Invisible characters.
const INVISIBLE: &str = "\u{200b}\u{200c}\u{200d}\u{2060}\u{feff}\u{ad}\u{fe0f}\u{e0100}\u{3164}\u{115f}\u{1160}\
                         \u{ffa0}\u{180e}\u{34f}\u{61c}\u{200e}\u{2800}";

#[tokio::test(flavor = "multi_thread")]
async fn invisible_characters_are_spelled_in_every_part_of_a_question() {
    let named = format!("a{INVISIBLE}b");
    let command = format!("touch '{named}' && echo 'c{INVISIBLE}'");
    for (tool, args, label) in [
        ("bash", json!({ "command": command }), "parts      touch"),
        (
            "write",
            json!({"path": named, "content": format!("👩\u{200d}💻 {INVISIBLE}\n")}),
            "+👩<U+200D>💻 ",
        ),
    ] {
        let env = TestEnv::with_script(calling(tool, args)).await;
        let mut terminal = TestTerminal::run(&env, &["--ask", "make it"], &[("NO_COLOR", "1")]);
        terminal.wait_for_text("[n] no");
        terminal.type_keys("n\n");
        terminal.wait_for_text("all done");
        assert_eq!(terminal.wait_for_exit(), Some(0));
        let screen = terminal.screen();
        assert!(!screen.contains(|c| INVISIBLE.contains(c)), "{tool}: {screen:?}");
        let question = &screen[screen.find("? ").unwrap()..screen.find("[y]").unwrap()];
        assert!(question.contains(label), "{question}");
        assert!(question.contains("beware"), "{question}");
        for c in INVISIBLE.chars() {
            let code = format!("<U+{:04X}>", u32::from(c));
            assert!(question.matches(&code).count() >= 2, "{tool}: {code} in {question}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_allows_edits_for_the_session_by_a_choice_that_says_so() {
    let env =
        TestEnv::with_script(ModelScript::answering(|request| match request.outputs().len() {
            0 => Reply::calls("write", json!({"path": "x", "content": "1"})),
            1 => Reply::calls("write", json!({"path": "y", "content": "2"})),
            _ => Reply::says("all done"),
        }))
        .await;
    let mut terminal = TestTerminal::run(&env, &["--ask", "make it"], &[]);
    terminal.wait_for_text("[s] always exactly this call in this Session");
    terminal.wait_for_text("[e] always let write, edit and apply_patch change, create, move and delete files in this Session");
    terminal.wait_for_text("[p] always exactly this call in this project");
    terminal.wait_for_text("  › ");
    terminal.type_keys("e\n");
    terminal.wait_for_text("all done");
    assert_eq!(terminal.wait_for_exit(), Some(0));
    assert!(env.workspace().join("y").exists());
    let log = log(&env);
    assert!(log.contains(r#""answered_by":"user","answer":"session_edits""#), "{log}");
    assert!(log.contains(r#""answered_by":"session_edits""#), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_in_the_background_does_not_ask_on_the_terminal() {
    let env = TestEnv::with_script(calling("bash", json!({"command": "touch x"}))).await;
    // With job control, each job has its own process group.
    let script = r#"set -m; echo "the diff" | "$PIXIR" --ask review it & wait $!; echo "ended $?""#;
    let mut terminal = TestTerminal::run_script(&env, script);
    terminal.wait_for_text("ended ");
    assert_eq!(terminal.wait_for_exit(), Some(0));
    assert!(!env.workspace().join("x").exists(), "no question was possible");
    assert!(log(&env).contains("permission_denied"), "{}", log(&env));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_piped_prompt_leaves_the_terminal_for_questions() {
    let env = TestEnv::with_script(calling("bash", json!({"command": "touch x"}))).await;
    for (answer, is_made) in [("n", false), ("y", true)] {
        let script = r#"echo "the diff" | "$PIXIR" --ask review it"#;
        let mut terminal = TestTerminal::run_script(&env, script);
        terminal.wait_for_text("? bash asks: run touch x");
        terminal.wait_for_text("  › ");
        terminal.type_keys(&format!("{answer}\n"));
        terminal.wait_for_text("all done");
        assert_eq!(terminal.wait_for_exit(), Some(0));
        assert_eq!(env.workspace().join("x").exists(), is_made);
        let last = env.requests().pop().unwrap();
        assert_eq!(last.user_texts(), ["review it\n\nthe diff"]);
    }
    assert!(log(&env).contains(r#""answered_by":"user","answer":"once""#));
    // Without a controlling terminal no answer is possible, even if stderr is a terminal.
    let mut detached = TestTerminal::run_script(&env, r#"setsid -w "$PIXIR" --ask it </dev/null"#);
    assert_eq!(detached.wait_for_exit(), Some(0));
    detached.wait_for_text("there is no terminal to ask on");
}
