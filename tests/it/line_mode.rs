//! Line mode: prompts from a person on a real terminal, one per line or paste, until they leave.

use std::path::PathBuf;

use pixir::scripted::{Reply, Script};
use serde_json::json;

use crate::support::House;
use crate::support::house::{DEADLINE, newest_log};
use crate::support::stage::wait_for;
use crate::support::terminal::Terminal;

/// A model that answers everything.
async fn answering() -> House {
    House::scripted(Script::answering(|_| Reply::says("understood"))).await
}

/// A terminal whose Pixir writes a trace, for tests that must know when it has read what was typed.
fn traced(house: &House, args: &[&str]) -> Terminal {
    let trace = trace(house);
    let args = [&["--log-file", trace.to_str().unwrap()], args].concat();
    Terminal::run(house, &args, &[("PIXIR_LOG", "trace")])
}

fn trace(house: &House) -> PathBuf {
    house.workspace().parent().unwrap().join("trace.log")
}

/// Waits until the trace has said something so many times.
#[track_caller]
fn traces(house: &House, words: &str, times: usize) {
    let count = || std::fs::read_to_string(trace(house)).unwrap_or_default().matches(words).count();
    let seen = wait_for(DEADLINE, count, |count| *count >= times);
    assert!(seen >= times, "{words:?} came {seen} times");
}

const QUEUED: &str = "what was typed is queued";

fn prompts(house: &House) -> Vec<String> {
    let requests = house.requests();
    let texts = requests.last().map(|request| request.user_texts()).unwrap_or_default();
    texts.into_iter().map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paste_of_many_lines_is_one_prompt() {
    let house = answering().await;
    let mut terminal = Terminal::run(&house, &[], &[]);
    terminal.shows("› ");
    let trace = "thread 'main' panicked at src/main.rs:4:5:\nindex out of bounds\n   0: std::panicking\n   1: main";
    terminal.types(&format!("{trace}\n"));
    terminal.shows_times("understood", 1);
    terminal.shows_times("› ", 2);
    // A paste that does not end with a line end is completed by Enter.
    terminal.types("first line\nsecond line\nunfinished");
    terminal.shows("unfinished");
    terminal.types(" and done\n");
    terminal.shows_times("understood", 2);
    terminal.types("\u{4}");
    assert_eq!(terminal.ends(), Some(0));
    assert_eq!(house.requests().len(), 2, "two Turns and no more");
    assert_eq!(prompts(&house), [trace, "first line\nsecond line\nunfinished and done"]);
    let log = std::fs::read_to_string(newest_log(&house.workspace())).unwrap();
    assert_eq!(log.matches(r#""type":"user_message""#).count(), 2, "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_typed_during_a_turn_is_a_prompt_of_its_own() {
    let (is_asked, asked) = std::sync::mpsc::sync_channel(8);
    let (go_on, may_go_on) = std::sync::mpsc::sync_channel(8);
    let may_go_on = std::sync::Mutex::new(may_go_on);
    let house = House::scripted(Script::answering(move |request| {
        let texts = request.user_texts();
        if texts.len() == 1 {
            is_asked.send(()).unwrap();
            may_go_on.lock().unwrap().recv_timeout(DEADLINE).unwrap();
        }
        Reply::says(&format!("answer {}", texts.len()))
    }))
    .await;
    let mut terminal = traced(&house, &[]);
    terminal.shows("› ");
    terminal.types("one\n");
    asked.recv_timeout(DEADLINE).unwrap();
    terminal.types("two\n");
    traces(&house, QUEUED, 2);
    terminal.types("three\n");
    traces(&house, QUEUED, 3);
    go_on.send(()).unwrap();
    terminal.shows("answer 3");
    terminal.types("exit\n");
    assert_eq!(terminal.ends(), Some(0));
    assert_eq!(prompts(&house), ["one", "two", "three"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_that_was_typed_before_a_question_is_no_answer_and_is_sent_afterwards() {
    let (is_asked, asked) = std::sync::mpsc::channel();
    let (go_on, may_go_on) = std::sync::mpsc::channel::<()>();
    let may_go_on = std::sync::Mutex::new(may_go_on);
    let house = House::scripted(Script::answering(move |request| {
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
    let mut terminal = traced(&house, &["--ask"]);
    terminal.shows("› ");
    terminal.types("one\n");
    asked.recv_timeout(DEADLINE).unwrap();
    terminal.types("yes please, two\n");
    traces(&house, QUEUED, 2);
    go_on.send(()).unwrap();
    terminal.shows("? bash asks: run touch made");
    terminal.shows("  › ");
    assert!(!house.workspace().join("made").exists());
    terminal.types("n\n");
    terminal.shows("answer 2");
    terminal.types("exit\n");
    assert_eq!(terminal.ends(), Some(0));
    assert!(!house.workspace().join("made").exists());
    assert_eq!(prompts(&house), ["one", "yes please, two"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_typed_during_a_turn_is_dropped_when_the_turn_is_interrupted() {
    let slow = Reply::new().text("begun").pause(std::time::Duration::from_mins(5)).text("never");
    let house = House::with([slow, Reply::says("heard you")]).await;
    let mut terminal = traced(&house, &[]);
    terminal.shows("› ");
    terminal.types("one\n");
    terminal.shows("begun");
    // A paste whose last line has no end is held until Enter.
    terminal.types("typed too early\nand half");
    traces(&house, "a typed line waits for its end", 1);
    terminal.signal(rustix::process::Signal::INT);
    terminal.shows("interrupted");
    terminal.types("two\n");
    terminal.shows("heard you");
    terminal.types("exit\n");
    assert_eq!(terminal.ends(), Some(0));
    assert_eq!(prompts(&house), ["one", "two"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_line_that_the_terminal_cut_is_refused_and_nothing_is_sent() {
    let house = answering().await;
    let mut terminal = Terminal::run(&house, &["--quiet"], &[]);
    terminal.shows("› ");
    terminal.types(&format!("{}\n", "z".repeat(6000)));
    terminal.shows("nothing was sent: a line of 4095 bytes or more is cut by the terminal");
    terminal.shows("save the text in a file");
    terminal.shows("pipe it in");
    terminal.types(&format!("{}\n", "y".repeat(4094)));
    terminal.shows("understood");
    terminal.types("\u{4}");
    assert_eq!(terminal.ends(), Some(0));
    assert_eq!(prompts(&house), ["y".repeat(4094)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn words_for_pixir_are_never_sent_and_leave_no_session() {
    for leave in ["exit\n", "quit\n", "/quit\n", "Exit\n", "\u{4}"] {
        let house = answering().await;
        let mut terminal = Terminal::run(&house, &[], &[]);
        terminal.shows("› ");
        terminal.types("/help\n");
        terminal.shows("so do exit, quit and Ctrl-D");
        terminal.types("/reviw the diff\n");
        terminal.shows("there is no command, prompt or Skill called /reviw");
        terminal.types("/undo\n");
        terminal.shows("run `pixir undo`");
        terminal.shows_times("› ", 4);
        terminal.types(leave);
        assert_eq!(terminal.ends(), Some(0), "{leave}");
        assert!(house.requests().is_empty(), "{leave}");
        assert!(!house.workspace().join(".pixir").exists(), "{leave}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn paths_and_the_users_own_prompts_are_sent_and_the_same_holds_within_a_session() {
    let house = answering().await;
    let folder = house.home().join(".pixir/prompts");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("review.md"), "Review this: $ARGUMENTS").unwrap();
    let mut terminal = Terminal::run(&house, &[], &[]);
    terminal.shows("› ");
    terminal.types("/path/like this\n");
    terminal.shows_times("understood", 1);
    terminal.types("/review the diff\n");
    terminal.shows_times("understood", 2);
    terminal.types("/reviw the diff\n");
    terminal.shows("called /reviw");
    terminal.types("/help\n");
    terminal.shows("/review");
    terminal.shows_times("› ", 5);
    terminal.types("quit\n");
    assert_eq!(terminal.ends(), Some(0));
    terminal.shows("resume: ");
    assert_eq!(prompts(&house), ["/path/like this", "Review this: the diff"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lone_word_for_pixir_on_the_command_line_is_no_prompt_either() {
    let house = answering().await;
    for word in ["exit", "quit", "/quit", "/help", "/reviw", "/reviw the diff"] {
        let refused = house.pixir(&[word]).exits(2);
        let quoted = if word.contains(' ') { format!("'{word}'") } else { word.to_owned() };
        assert!(refused.err.contains(&format!("pixir -- {quoted}\n")), "{word}: {}", refused.err);
    }
    house.pixir(&["/reviw", "the", "diff"]).exits(2);
    assert!(house.requests().is_empty());
    house.pixir(&["--", "/reviw"]).exits(0);
    house.pixir(&["/etc/passwd"]).exits(0);
    house.pixir(&["/etc/passwd", "is", "odd"]).exits(0);
    house.pixir(&["exit", "codes", "are", "wrong"]).exits(0);
    assert_eq!(house.requests().len(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_that_is_offered_for_a_refused_prompt_sends_it_where_it_was_meant() {
    let house = answering().await;
    house.pixir(&["hello"]).exits(0);
    let log = newest_log(&house.workspace());
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
        let refused = house.pixir(args).exits(2).err;
        assert!(refused.contains(&format!("prompt: {offered}\n")), "{args:?}: {refused}");
    }
    assert_eq!(house.requests().len(), 1);
    // What is offered goes on with the Session.
    house.pixir(&["resume", "--last", "--", "exit"]).exits(0);
    house.pixir(&["resume", id, "--", "exit"]).exits(0);
    assert_eq!(prompts(&house), ["hello", "exit", "exit"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_start_line_names_model_mode_folder_and_the_way_out() {
    let house = answering().await;
    let args = ["--model", "some-model", "--read-only"];
    let mut terminal = Terminal::run(&house, &args, &[]);
    terminal.shows("› ");
    let screen = terminal.screen();
    let folder = house.workspace().canonicalize().unwrap();
    for words in ["some-model", "mode read-only", folder.to_str().unwrap(), "/quit", "Ctrl-D"] {
        assert!(screen.contains(words), "{words}: {screen}");
    }
    terminal.types("/quit\n");
    assert_eq!(terminal.ends(), Some(0));
    let mut terminal = Terminal::run(&house, &["--quiet"], &[]);
    terminal.shows("› ");
    assert!(!terminal.screen().contains("Ctrl-D"), "{}", terminal.screen());
    terminal.types("/quit\n");
    assert_eq!(terminal.ends(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn resume_shows_the_title_and_the_last_exchange() {
    let lines: Vec<String> = (1..=40).map(|number| format!("line {number}\n")).collect();
    let long = lines.concat();
    let house =
        House::with([Reply::says("first answer"), Reply::says(&long), Reply::says("third")]).await;
    house.pixir(&["the title of it all"]).exits(0);
    house.pixir(&["resume", "--last", "the second prompt"]).exits(0);
    // Without an id it is the last one.
    let mut terminal = Terminal::run(&house, &["resume"], &[]);
    terminal.shows("› ");
    terminal.shows("line 40");
    terminal.types("go on\n");
    terminal.shows("third");
    terminal.types("\u{4}");
    assert_eq!(terminal.ends(), Some(0));
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
    let house = House::with(script()).await;
    let short = house.pixir(&["do it"]).exits(0);
    assert_eq!(short.out, "done\n");
    assert!(short.err.contains("  | line 30\n  | bad\n"), "{}", short.err);
    assert!(!short.err.contains("line 1\n") && !short.err.contains('\u{1b}'), "{}", short.err);
    assert!(!short.err.contains("quiet success\n"), "{}", short.err);
    assert!(!short.err.contains("Considering"), "{}", short.err);

    let house = House::with(script()).await;
    let all = house.pixir(&["--verbose", "do it"]).exits(0);
    assert_eq!(all.out, "done\n");
    for words in ["  | line 1\n", "  | line 30\n  | bad\n", "  | quiet success\n", "Considering"] {
        assert!(all.err.contains(words), "{words}: {}", all.err);
    }
    assert_eq!(all.err.matches("line 30\n").count(), 1, "{}", all.err);
    house.pixir(&["--verbose", "--quiet", "do it"]).exits(2);

    let house = House::with(script()).await;
    let quiet = house.pixir(&["--quiet", "do it"]).exits(0);
    assert_eq!(quiet.err, "");
}
