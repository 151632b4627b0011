//! Trust: settings of a Workspace that take effect only when they are trusted.

use pixir::scripted::{Reply, Script};
use serde_json::json;

use crate::support::House;
use crate::support::house::newest_log;
use crate::support::terminal::Terminal;

async fn house() -> House {
    let house = House::scripted(Script::answering(|_| Reply::says("all done"))).await;
    std::fs::create_dir(house.workspace().join(".pixir")).unwrap();
    house
}

fn is_asking(house: &House) -> bool {
    let log = std::fs::read_to_string(newest_log(&house.workspace())).unwrap();
    log.lines().next().unwrap().contains(r#""permission_mode":"ask""#)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_workspace_is_asked_about_once_by_path_and_content() {
    let house = house().await;
    house.write(".pixir/config.json", json!({"permission_mode": "ask"}).to_string());
    let untrusted = house.pixir(&["hi"]).exits(0);
    assert!(untrusted.err.contains("`permission_mode` ignored"), "{}", untrusted.err);
    assert!(!is_asking(&house));

    let mut terminal = Terminal::run(&house, &["hi"], &[]);
    terminal.shows("permission_mode = \"ask\"");
    terminal.shows("Trust this file as it is now?");
    terminal.types("y\n");
    assert_eq!(terminal.ends(), Some(0));
    assert!(is_asking(&house));
    // Not asked again, and it counts where nobody can be asked.
    house.pixir(&["hi"]).exits(0);
    assert!(is_asking(&house));

    // One byte more is another file.
    house.write(
        ".pixir/config.json",
        json!({"permission_mode": "ask", "max_iterations": 9}).to_string(),
    );
    assert!(house.pixir(&["hi"]).exits(0).err.contains("not trusted"));
    let mut terminal = Terminal::run(&house, &["hi"], &[]);
    terminal.shows("Trust this file");
    terminal.types("\n");
    assert_eq!(terminal.ends(), Some(0));
    assert!(!is_asking(&house));
    let mut terminal = Terminal::run(&house, &["hi"], &[]);
    assert_eq!(terminal.ends(), Some(0));
    assert!(!terminal.screen().contains("Trust this file"), "a no is remembered as well");
}

#[tokio::test(flavor = "multi_thread")]
async fn trust_is_given_on_a_terminal_and_taken_back_anywhere() {
    let house = house().await;
    assert!(house.pixir(&["trust"]).exits(0).out.contains("nothing in"));
    house.write(
        ".pixir/config.json",
        r#"{"bash": {"env": ["\u001b[2JSECRET", "A"]}, "transport": "sse"}"#,
    );
    let refused = house.pixir(&["trust", "--json"]).exits(3).envelope();
    assert_eq!(refused["error"]["kind"], "permission_denied");
    assert!(!house.home().join(".pixir/trust.json").exists());
    let mut terminal = Terminal::run(&house, &["trust"], &[]);
    terminal.shows("bash.env = ");
    terminal.shows("[n] no");
    assert!(!terminal.screen().contains('\u{1b}'), "{:?}", terminal.screen());
    terminal.types("yes\n");
    assert_eq!(terminal.ends(), Some(0));
    let told = house.pixir(&["trust", "--json"]).exits(0).envelope();
    assert_eq!(told["output"]["trusted"], true);
    assert_eq!(told["output"]["wanted"][1]["key"], "transport");
    let back = house.pixir(&["untrust", "--json"]).exits(0).envelope();
    assert_eq!(back["output"]["was_trusted"], true);
    house.pixir(&["trust"]).exits(3);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_hides_in_what_is_to_be_trusted() {
    let house = house().await;
    let value = "https://good.example\u{9d}0;.evil.example";
    let settings = json!({"permission_mode": value, "x\u{9b}y": 1});
    house.write(".pixir/config.json", settings.to_string());
    let mut terminal = Terminal::run(&house, &["hi"], &[]);
    terminal.shows("https://good.example<U+009D>0;.evil.example");
    terminal.shows("Trust this file as it is now?");
    terminal.types("n\n");
    assert_eq!(terminal.ends(), Some(0));
}
