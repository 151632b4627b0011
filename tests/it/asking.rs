//! Questions on a terminal, and runs without a terminal to ask on.

use pixir::scripted::{Reply, Script};
use serde_json::{Value, json};

use crate::support::House;
use crate::support::house::{DEADLINE, newest_log};
use crate::support::terminal::Terminal;

/// A model that makes one call in every Turn, and then answers.
fn calling(name: &'static str, args: Value) -> Script {
    Script::answering(move |request| {
        let is_due = request.outputs().len() < request.user_texts().len();
        if is_due { Reply::calls(name, args.clone()) } else { Reply::says("all done") }
    })
}

fn log(house: &House) -> String {
    std::fs::read_to_string(newest_log(&house.workspace())).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_sees_what_would_run_and_says_yes() {
    let house = House::scripted(calling("bash", json!({"command": "touch x && touch y"}))).await;
    let mut terminal = Terminal::run(&house, &["--ask", "make it"], &[]);
    terminal.shows("? bash asks: run touch x && touch y");
    terminal.shows("parts      touch x\r\n             touch y");
    terminal.shows("[n] no");
    assert!(!terminal.screen().contains("[c]"), "no prefix for two commands");
    terminal.types("perhaps\n");
    terminal.shows_times("[y] yes, once", 2);
    assert!(!house.workspace().join("x").exists());
    terminal.types("y\n");
    terminal.shows("all done");
    assert_eq!(terminal.ends(), Some(0));
    assert!(house.workspace().join("y").exists());
    assert!(log(&house).contains(r#""answered_by":"user","answer":"once""#));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_no_with_words_reaches_the_model() {
    let args = json!({"path": "x", "content": "new\u{202e}\u{1b}[2J\n"});
    let house = House::scripted(calling("write", args)).await;
    let mut terminal = Terminal::run(&house, &["--ask", "make it"], &[("NO_COLOR", "1")]);
    terminal.shows("files      x");
    terminal.shows("+new");
    terminal.shows("beware");
    terminal.shows("  › ");
    terminal.types("n write y instead\n");
    terminal.shows("all done");
    assert_eq!(terminal.ends(), Some(0), "a denial followed by an answer");
    assert!(!house.workspace().join("x").exists());
    assert!(house.requests()[1].body_text.contains("they say: write y instead"));
    let question = terminal.screen();
    let question = &question[question.find("? write").unwrap()..question.find("[y]").unwrap()];
    assert!(!question.contains(['\u{1b}', '\u{202e}']), "{question:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_typed_before_the_question_is_no_answer() {
    let (is_asked, asked) = std::sync::mpsc::sync_channel(8);
    let (go_on, may_go_on) = std::sync::mpsc::sync_channel(8);
    let may_go_on = std::sync::Mutex::new(may_go_on);
    let house = House::scripted(Script::answering(move |request| {
        if !request.outputs().is_empty() {
            return Reply::says("all done");
        }
        is_asked.send(()).unwrap();
        may_go_on.lock().unwrap().recv_timeout(DEADLINE).unwrap();
        Reply::calls("bash", json!({"command": "touch x"}))
    }))
    .await;
    let mut terminal = Terminal::run(&house, &["--ask", "make it"], &[]);
    asked.recv_timeout(DEADLINE).unwrap();
    // The model still thinks. The echo says that the kernel has the keys: two lines and a half.
    terminal.types("y\ny\nyes");
    terminal.shows("y\r\ny\r\nyes");
    go_on.send(()).unwrap();
    terminal.shows("  › ");
    terminal.types("n\n");
    terminal.shows("all done");
    assert_eq!(terminal.ends(), Some(0));
    assert!(!house.workspace().join("x").exists());
    let log = log(&house);
    assert_eq!(log.matches("permission_decision").count(), 1);
    assert!(log.contains(r#""answered_by":"user","answer":"no""#), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_yes_in_one_breath_does_not_answer_the_next_question() {
    let two = Reply::new()
        .call("bash", json!({"command": "touch x"}))
        .call("bash", json!({"command": "touch y"}));
    let house = House::with([two, Reply::says("all done")]).await;
    let mut terminal = Terminal::run(&house, &["--ask", "make it"], &[]);
    terminal.shows("  › ");
    terminal.types("y\ny\n");
    terminal.shows("asks: run touch y");
    terminal.shows_times("  › ", 2);
    terminal.types("n\n");
    terminal.shows("all done");
    assert_eq!(terminal.ends(), Some(0));
    assert!(house.workspace().join("x").exists() && !house.workspace().join("y").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_says_when_nothing_would_hold_the_command() {
    let house = House::scripted(calling("bash", json!({"command": "touch x"}))).await;
    let args = ["--ask", "--sandbox", "off", "make it"];
    let mut terminal = Terminal::run(&house, &args, &[]);
    terminal.shows("sandbox    off: this command is not confined");
    terminal.shows("  › ");
    terminal.types("n\n");
    assert_eq!(terminal.ends(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_cannot_be_kept_is_told() {
    let house = House::scripted(calling("bash", json!({"command": "touch x"}))).await;
    let ledger = house.home().join(".pixir/permissions.json");
    std::fs::create_dir_all(ledger.parent().unwrap()).unwrap();
    std::fs::write(&ledger, "{").unwrap();
    let mut terminal = Terminal::run(&house, &["--ask", "make it"], &[]);
    terminal.shows("  › ");
    terminal.types("p\n");
    terminal.shows("this answer lasts for this Session only");
    terminal.shows("cannot be understood");
    terminal.shows("all done");
    assert_eq!(terminal.ends(), Some(0));
    assert!(house.workspace().join("x").exists(), "the user said yes");
    assert!(log(&house).contains(r#""notice":"this answer lasts for this Session only"#));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_input_is_a_no_and_a_signal_ends_the_turn() {
    let house = House::scripted(calling("bash", json!({"command": "touch x"}))).await;
    let mut terminal = Terminal::run(&house, &["--ask", "make it"], &[]);
    terminal.shows("  › ");
    terminal.types("\u{4}");
    terminal.shows("all done");
    assert_eq!(terminal.ends(), Some(0));
    assert!(log(&house).contains(r#""answer":"no""#));

    let mut terminal = Terminal::run(&house, &["--ask", "make it"], &[]);
    terminal.shows("  › ");
    terminal.signal(rustix::process::Signal::INT);
    assert_eq!(terminal.ends(), Some(130));
    let log = log(&house);
    assert!(log.contains(r#""terminal_status":"interrupted""#), "{log}");
    assert!(log.contains("orphan_tool_call") && !house.workspace().join("x").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_question_does_not_swallow_the_next_prompt() {
    let house =
        House::scripted(Script::answering(|request| match request.user_texts().as_slice() {
            ["first"] => Reply::calls("bash", json!({"command": "touch x"})),
            _ => Reply::says("heard you"),
        }))
        .await;
    let mut terminal = Terminal::run(&house, &["--ask"], &[]);
    terminal.shows("› ");
    terminal.types("first\n");
    terminal.shows("  › ");
    terminal.signal(rustix::process::Signal::INT);
    terminal.shows("interrupted");
    terminal.types("second\n");
    terminal.shows("heard you");
    terminal.types("\u{4}");
    assert_eq!(terminal.ends(), Some(0));
    assert_eq!(house.requests().last().unwrap().user_texts(), ["first", "second"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_allowed_for_good_is_listed_and_forgotten() {
    let house = House::scripted(calling("bash", json!({"command": "touch x"}))).await;
    let mut terminal = Terminal::run(&house, &["--ask", "make it"], &[]);
    terminal.shows("[c] always `touch …` in this project");
    terminal.types("c\n");
    assert_eq!(terminal.ends(), Some(0));
    // Now nobody needs to be asked.
    house.pixir(&["--ask", "make it"]).exits(0);
    assert!(log(&house).contains(r#""answered_by":"prefix""#));
    let listed = house.pixir(&["permissions", "--json"]).exits(0).envelope();
    let approval = &listed["output"][0];
    assert_eq!(approval["prefix"], json!(["touch"]), "{listed}");
    let text = house.pixir(&["permissions", "list"]).exits(0).out;
    assert!(text.contains("run touch …"), "{text}");
    house.pixir(&["permissions", "forget", "nothing"]).exits(2);
    // The end of an id is enough.
    house.pixir(&["permissions", "forget", &approval["id"].as_str().unwrap()[8..]]).exits(0);
    assert_eq!(house.pixir(&["permissions", "--json"]).exits(0).envelope()["output"], json!([]));
    house.pixir(&["--ask", "make it"]).exits(0);
    assert!(log(&house).contains(r#""answered_by":"nobody""#));
}

#[tokio::test(flavor = "multi_thread")]
async fn without_anybody_to_ask_it_is_denied_at_once_and_the_exit_code_tells() {
    let house = House::scripted(calling("bash", json!({"command": "touch x"}))).await;
    let answered = house.pixir(&["--ask", "make it"]).exits(0);
    assert!(answered.err.contains("there is no terminal to ask on"), "{}", answered.err);
    assert!(!house.workspace().join("x").exists());
    let empty =
        House::with([Reply::calls("bash", json!({"command": "touch x"})), Reply::new()]).await;
    let denied = empty.pixir(&["--ask", "--json", "make it"]).exits(3).envelope();
    assert_eq!((&denied["ok"], &denied["status"]), (&json!(false), &json!("incomplete")));
    let strict = House::with([Reply::says("x")]).await;
    strict.pixir(&["--ask", "--read-only", "make it"]).exits(2);
    strict.pixir(&["--role", "wizard", "make it"]).exits(2);
    strict.pixir(&["--allow-write", "/etc/**", "make it"]).exits(2);
    assert!(strict.requests().is_empty());
}

/// Characters without a shape.
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
        let house = House::scripted(calling(tool, args)).await;
        let mut terminal = Terminal::run(&house, &["--ask", "make it"], &[("NO_COLOR", "1")]);
        terminal.shows("[n] no");
        terminal.types("n\n");
        terminal.shows("all done");
        assert_eq!(terminal.ends(), Some(0));
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
    let house = House::scripted(Script::answering(|request| match request.outputs().len() {
        0 => Reply::calls("write", json!({"path": "x", "content": "1"})),
        1 => Reply::calls("write", json!({"path": "y", "content": "2"})),
        _ => Reply::says("all done"),
    }))
    .await;
    let mut terminal = Terminal::run(&house, &["--ask", "make it"], &[]);
    terminal.shows("[s] always exactly this call in this Session");
    terminal.shows("[e] always let write, edit and apply_patch change, create, move and delete files in this Session");
    terminal.shows("[p] always exactly this call in this project");
    terminal.shows("  › ");
    terminal.types("e\n");
    terminal.shows("all done");
    assert_eq!(terminal.ends(), Some(0));
    assert!(house.workspace().join("y").exists());
    let log = log(&house);
    assert!(log.contains(r#""answered_by":"user","answer":"session_edits""#), "{log}");
    assert!(log.contains(r#""answered_by":"session_edits""#), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_in_the_background_does_not_ask_on_the_terminal() {
    let house = House::scripted(calling("bash", json!({"command": "touch x"}))).await;
    // Job control gives each job a process group of its own.
    let script = r#"set -m; echo "the diff" | "$PIXIR" --ask review it & wait $!; echo "ended $?""#;
    let mut terminal = Terminal::script(&house, script);
    terminal.shows("ended ");
    assert_eq!(terminal.ends(), Some(0));
    assert!(!house.workspace().join("x").exists(), "nobody could be asked");
    assert!(log(&house).contains("permission_denied"), "{}", log(&house));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_piped_prompt_leaves_the_terminal_for_questions() {
    let house = House::scripted(calling("bash", json!({"command": "touch x"}))).await;
    for (answer, is_made) in [("n", false), ("y", true)] {
        let script = r#"echo "the diff" | "$PIXIR" --ask review it"#;
        let mut terminal = Terminal::script(&house, script);
        terminal.shows("? bash asks: run touch x");
        terminal.shows("  › ");
        terminal.types(&format!("{answer}\n"));
        terminal.shows("all done");
        assert_eq!(terminal.ends(), Some(0));
        assert_eq!(house.workspace().join("x").exists(), is_made);
        let last = house.requests().pop().unwrap();
        assert_eq!(last.user_texts(), ["review it\n\nthe diff"]);
    }
    assert!(log(&house).contains(r#""answered_by":"user","answer":"once""#));
    // Without a controlling terminal nobody can answer, also where the screen is one.
    let mut detached = Terminal::script(&house, r#"setsid -w "$PIXIR" --ask it </dev/null"#);
    assert_eq!(detached.ends(), Some(0));
    detached.shows("there is no terminal to ask on");
}
