//! Output of Pixir on a pseudo-terminal.

use std::io::Write;
use std::time::Duration;

use pixir::scripted::{ModelScript, Reply};

use super::support::sign_in_env::run_command;
use super::support::terminal::TestTerminal;
use super::support::test_env::TestEnv;

#[tokio::test(flavor = "multi_thread")]
async fn prompts_are_read_line_by_line_until_the_end_of_input() {
    let env = TestEnv::with_replies([Reply::says("one"), Reply::says("two")]).await;
    let mut terminal = TestTerminal::run(&env, &[], &[]);
    terminal.wait_for_text("› ");
    assert!(!env.workspace().join(".pixir").exists(), "no Session before the first prompt");
    terminal.type_keys("\nfirst prompt\n");
    terminal.wait_for_text("one\r\n› ");
    terminal.type_keys("second prompt\n");
    terminal.wait_for_text("two\r\n› ");
    terminal.type_keys("\u{4}");
    assert_eq!(terminal.wait_for_exit(), Some(0));
    terminal.wait_for_text("resume: ");
    let requests = env.requests();
    assert_eq!(requests.len(), 2);
    assert_eq!(requests[1].user_texts(), ["first prompt", "second prompt"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn text_streams_while_the_model_speaks_and_the_status_line_goes_away() {
    let command = "until [ -e go ]; do sleep 0.05; done; exit 3";
    let slow = Reply::new().call("bash", serde_json::json!({ "command": command }));
    let half =
        Reply::new().text("ha\u{1b}]0;evil\u{7}lf of ").pause(Duration::from_secs(30)).text("it");
    let env = TestEnv::with_replies([slow, half]).await;
    let mut terminal = TestTerminal::run(&env, &["do", "it"], &[]);
    terminal.wait_for_text("… bash until");
    env.write("go", "");
    terminal.wait_for_text("✗ exit 3");
    // Text is shown before the message is complete.
    terminal.wait_for_text("half of ");
    let screen = terminal.screen();
    let status = screen.rfind("\u{1b}[2m…").unwrap();
    assert!(screen[status..].contains("\r\u{1b}[2K"), "erased before anything else: {screen:?}");
    assert!(screen.contains("\u{1b}[31m✗ exit 3\u{1b}[0m"), "{screen:?}");
    assert!(!screen.contains("evil"), "{screen:?}");
    terminal.child.kill().unwrap();
    terminal.wait_for_exit();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dumb_terminal_and_no_color_get_plain_text() {
    for (name, value, mark) in
        [("TERM", "dumb", "bash exit 3: exit 3"), ("NO_COLOR", "1", "✗ exit 3")]
    {
        let call = Reply::new().call("bash", serde_json::json!({"command": "exit 3"}));
        let env = TestEnv::with_replies([call, Reply::says("done")]).await;
        let mut terminal = TestTerminal::run(&env, &["do", "it"], &[(name, value)]);
        assert_eq!(terminal.wait_for_exit(), Some(0));
        terminal.wait_for_text(mark);
        let screen = terminal.screen();
        assert!(!screen.contains("\u{1b}[31m"), "{name}: {screen:?}");
        assert!(name != "TERM" || !screen.contains('\u{1b}'), "{screen:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_line_that_the_terminal_cut_is_refused_where_a_dash_reads_it() {
    let env = TestEnv::with_replies([Reply::says("understood")]).await;
    let mut terminal = TestTerminal::run(&env, &["-"], &[]);
    terminal.type_keys(&format!("{}\n\u{4}", "z".repeat(5000)));
    assert_eq!(terminal.wait_for_exit(), Some(2));
    terminal.wait_for_text("nothing was sent: a line of 4095 bytes or more is cut by the terminal");
    terminal.wait_for_text("pixir < FILE");
    assert!(env.requests().is_empty());
    let mut terminal = TestTerminal::run(&env, &["-"], &[]);
    terminal.type_keys("a short line\n\u{4}");
    assert_eq!(terminal.wait_for_exit(), Some(0));
    assert_eq!(env.requests()[0].user_texts(), ["a short line"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lone_word_for_pixir_that_is_piped_in_is_no_prompt() {
    let env = TestEnv::with_script(ModelScript::answering(|_| Reply::says("understood"))).await;
    let pipe = |args: &[&str], text: &str| {
        let (reader, mut writer) = std::io::pipe().unwrap();
        writer.write_all(text.as_bytes()).unwrap();
        drop(writer);
        run_command(env.command(args).stdin(reader))
    };
    for word in ["exit", "quit\n", "/quit", "/help\n", "/reviw\n"] {
        let refused = pipe(&[], word).assert_exit_code(2).err;
        let offered = format!("pixir -- {}\n", word.trim());
        assert!(refused.contains(&offered), "{word:?}: {refused}");
    }
    assert!(env.requests().is_empty());
    for text in ["exit codes are wrong", "exit\nquit\n", "/reviw\nthe diff\n", "word"] {
        pipe(&[], text).assert_exit_code(0);
    }
    assert_eq!(env.requests().len(), 4);
    let refused = pipe(&["resume", "--last"], "exit\n").assert_exit_code(2).err;
    assert!(refused.contains("pixir resume 20") && refused.contains(" -- exit\n"), "{refused}");
    assert_eq!(env.requests().len(), 4);
}

/// Characters that a terminal obeys or hides: C1, DEL, bidi controls, tags, zero-width ones.
const HIDDEN: &str = "\u{7f}\u{85}\u{9b}31m\u{9d}0;evil\u{9c}\u{61c}\u{200b}\u{200d}\u{200e}\u{200f}\
                      \u{202e}\u{2060}\u{2066}\u{2069}\u{feff}\u{e0041}\u{e007f}";

fn is_plain(c: char) -> bool {
    matches!(c, '\n' | '\r' | ' '..='~') || (!c.is_control() && !HIDDEN.contains(c))
}

#[tokio::test(flavor = "multi_thread")]
async fn json_on_a_terminal_shows_hidden_characters_as_escapes_and_means_the_same() {
    let text = format!("before{HIDDEN}after");
    let call = Reply::calls("bash", serde_json::json!({"command": format!("echo '{HIDDEN}'")}));
    let replies = [call, Reply::says(&text), Reply::says(&text)];
    let env = TestEnv::with_replies(replies).await;
    let prompt = format!("look{HIDDEN}here");
    let runs: [&[&str]; 5] = [
        &["--events", &prompt],
        &["--json", "--quiet", &prompt],
        &["sessions", "--json"],
        &["export", "--last", "--format", "json"],
        &["export", "--last", "--format", "json", "--json"],
    ];
    for args in runs {
        let mut terminal = TestTerminal::run(&env, args, &[]);
        assert_eq!(terminal.wait_for_exit(), Some(0), "{args:?}: {}", terminal.screen());
        terminal.wait_for_text("\n");
        let screen = terminal.screen();
        let bad: Vec<char> = screen.chars().filter(|c| !is_plain(*c)).collect();
        assert!(bad.is_empty(), "{args:?}: {bad:?} in {screen:?}");
        assert!(screen.contains("\\u202e"), "{args:?}: {screen}");
        assert!(screen.contains("\\udb40\\udc41"), "{args:?}: {screen}");
        if args[0] == "--json" {
            let envelope: serde_json::Value = serde_json::from_str(screen.trim()).unwrap();
            assert_eq!(envelope["output"], text);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn links_in_an_answer_are_neutralised_however_they_are_written_and_cut() {
    let links = [
        "\u{1b}]8;;https://evil.example/\u{1b}\\ShownA\u{1b}]8;;\u{1b}\\",
        "\u{1b}]8;id=1;file:///etc/passwd\u{7}ShownB\u{1b}]8;;\u{7}",
        "\u{9d}8;;javascript:evil\u{9c}ShownC\u{9d}8;;\u{9c}",
        "\u{1b}\u{1b}]8;;https://evil.example\u{1b}\u{1b}\\ShownD\n",
    ];
    let whole = links.join(" ");
    let pieces: Vec<String> = whole.chars().map(String::from).collect();
    let cut = Reply::new().text_in(pieces.iter().map(String::as_str));
    let env = TestEnv::with_replies([cut, Reply::says(&whole)]).await;
    for _ in 0..2 {
        let mut terminal = TestTerminal::run(&env, &["do", "it"], &[]);
        assert_eq!(terminal.wait_for_exit(), Some(0));
        terminal.wait_for_text("ShownD");
        let screen = terminal.screen();
        assert!(screen.contains("ShownA ShownB ShownC ShownD"), "{screen:?}");
        for bad in ["]8;", "evil", "passwd", "\u{9d}", "\u{9c}"] {
            assert!(!screen.contains(bad), "{bad:?} in {screen:?}");
        }
    }
}

/// Only text that Pixir adds is ASCII; the model's answer is unchanged.
#[tokio::test(flavor = "multi_thread")]
async fn without_term_and_in_the_c_locale_everything_beside_the_answer_is_ascii() {
    for (name, value) in [("TERM", ""), ("LC_ALL", "C"), ("LANG", "POSIX")] {
        let long = format!("echo {}; exit 3", "x".repeat(200));
        let call = Reply::new().call("bash", serde_json::json!({ "command": long }));
        let plan = serde_json::json!({"plan": [{"step": "look", "status": "completed"},
            {"step": "mend", "status": "in_progress"}]});
        let replies = [call, Reply::calls("update_plan", plan), Reply::says("done: naïve …")];
        let env = TestEnv::with_replies(replies).await;
        let mut terminal = TestTerminal::run(&env, &[], &[(name, value)]);
        terminal.wait_for_text("> ");
        terminal.type_keys("do it\n");
        terminal.wait_for_text("done: naïve …");
        terminal.type_keys("\u{4}");
        assert_eq!(terminal.wait_for_exit(), Some(0));
        terminal.wait_for_text("exit 3");
        terminal.wait_for_text("resume: ");
        let screen = terminal.screen().replace("naïve …", "");
        assert!(screen.is_ascii() && !screen.contains('\u{1b}'), "{name}: {screen:?}");
    }
}
