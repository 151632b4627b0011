//! Trust: settings of a Workspace that want more than a stranger's may.

use pixir::scripted::{Reply, Script};
use serde_json::json;

use crate::support::House;
use crate::support::desk::{Ran, ran};
use crate::support::house::{PIXIR, newest_log};
use crate::support::leaks;
use crate::support::terminal::Terminal;

async fn house() -> House {
    let house = House::scripted(Script::answering(|_| Reply::says("all done"))).await;
    std::fs::create_dir(house.workspace().join(".pixir")).unwrap();
    house
}

fn pixir(house: &House, args: &[&str]) -> Ran {
    let run = ran(std::process::Command::new(PIXIR)
        .args(args)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap())
        .env("HOME", house.home())
        .env("OPENAI_BASE_URL", house.server.base_url())
        .env("OPENAI_API_KEY", "sk-test-of-the-house")
        .current_dir(house.workspace())
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped()));
    leaks::check_stream(&format!("{}{}", run.out, run.err));
    run
}

fn is_asking(house: &House) -> bool {
    let log = std::fs::read_to_string(newest_log(&house.workspace())).unwrap();
    log.lines().next().unwrap().contains(r#""permission_mode":"ask""#)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_workspace_is_asked_about_once_by_path_and_content() {
    let house = house().await;
    house.write(".pixir/config.json", json!({"permission_mode": "ask"}).to_string());
    let untrusted = pixir(&house, &["hi"]).exits(0);
    assert!(untrusted.err.contains("`permission_mode` ignored"), "{}", untrusted.err);
    assert!(!is_asking(&house));

    let mut terminal = Terminal::run(&house, &["hi"], &[]);
    terminal.shows("permission_mode = \"ask\"");
    terminal.shows("Trust this file as it is now?");
    terminal.types("y\n");
    assert_eq!(terminal.ends(), Some(0));
    assert!(is_asking(&house));
    // Not asked again, and it counts where nobody can be asked.
    pixir(&house, &["hi"]).exits(0);
    assert!(is_asking(&house));

    // One byte more is another file.
    house.write(
        ".pixir/config.json",
        json!({"permission_mode": "ask", "max_iterations": 9}).to_string(),
    );
    assert!(pixir(&house, &["hi"]).exits(0).err.contains("not trusted"));
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
    assert!(pixir(&house, &["trust"]).exits(0).out.contains("nothing in"));
    house.write(
        ".pixir/config.json",
        r#"{"bash": {"env": ["\u001b[2JSECRET", "A"]}, "transport": "sse"}"#,
    );
    let refused = pixir(&house, &["trust", "--json"]).exits(3).envelope();
    assert_eq!(refused["error"]["kind"], "permission_denied");
    assert!(!house.home().join(".pixir/trust.json").exists());
    let mut terminal = Terminal::run(&house, &["trust"], &[]);
    terminal.shows("bash.env = ");
    terminal.shows("[n] no");
    assert!(!terminal.screen().contains('\u{1b}'), "{:?}", terminal.screen());
    terminal.types("yes\n");
    assert_eq!(terminal.ends(), Some(0));
    let told = pixir(&house, &["trust", "--json"]).exits(0).envelope();
    assert_eq!(told["output"]["trusted"], true);
    assert_eq!(told["output"]["wanted"][1]["key"], "transport");
    let back = pixir(&house, &["untrust", "--json"]).exits(0).envelope();
    assert_eq!(back["output"]["was_trusted"], true);
    pixir(&house, &["trust"]).exits(3);
}
