//! Pixir on a terminal: a real one, as the kernel makes it, with a test at the other end.

use std::time::Duration;

use pixir::scripted::Reply;

use super::support::house::House;
use super::support::terminal::Terminal;

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
