//! Trust: settings of a Workspace that take effect only when they are trusted.

use pixir::scripted::{ModelScript, Reply};
use serde_json::json;

use crate::support::TestEnv;
use crate::support::terminal::TestTerminal;
use crate::support::test_env::newest_log;

async fn new_test_env() -> TestEnv {
    let env = TestEnv::with_script(ModelScript::answering(|_| Reply::says("all done"))).await;
    std::fs::create_dir(env.workspace().join(".pixir")).unwrap();
    env
}

fn is_asking(env: &TestEnv) -> bool {
    let log = std::fs::read_to_string(newest_log(&env.workspace())).unwrap();
    log.lines().next().unwrap().contains(r#""permission_mode":"ask""#)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_workspace_is_asked_about_once_by_path_and_content() {
    let env = new_test_env().await;
    env.write(".pixir/config.json", json!({"permission_mode": "ask"}).to_string());
    let untrusted = env.run_pixir(&["hi"]).assert_exit_code(0);
    assert!(untrusted.err.contains("`permission_mode` ignored"), "{}", untrusted.err);
    assert!(!is_asking(&env));

    let mut terminal = TestTerminal::run(&env, &["hi"], &[]);
    terminal.wait_for_text("permission_mode = \"ask\"");
    terminal.wait_for_text("Trust this file as it is now?");
    terminal.type_keys("y\n");
    assert_eq!(terminal.wait_for_exit(), Some(0));
    assert!(is_asking(&env));
    // Trust is not asked again, and applies without a terminal.
    env.run_pixir(&["hi"]).assert_exit_code(0);
    assert!(is_asking(&env));

    // A changed file needs trust again.
    env.write(
        ".pixir/config.json",
        json!({"permission_mode": "ask", "max_iterations": 9}).to_string(),
    );
    assert!(env.run_pixir(&["hi"]).assert_exit_code(0).err.contains("not trusted"));
    let mut terminal = TestTerminal::run(&env, &["hi"], &[]);
    terminal.wait_for_text("Trust this file");
    terminal.type_keys("\n");
    assert_eq!(terminal.wait_for_exit(), Some(0));
    assert!(!is_asking(&env));
    let mut terminal = TestTerminal::run(&env, &["hi"], &[]);
    assert_eq!(terminal.wait_for_exit(), Some(0));
    assert!(!terminal.screen().contains("Trust this file"), "a refusal is remembered as well");
}

#[tokio::test(flavor = "multi_thread")]
async fn trust_is_given_on_a_terminal_and_taken_back_anywhere() {
    let env = new_test_env().await;
    assert!(env.run_pixir(&["trust"]).assert_exit_code(0).out.contains("nothing in"));
    env.write(
        ".pixir/config.json",
        r#"{"bash": {"env": ["\u001b[2JSECRET", "A"]}, "transport": "sse"}"#,
    );
    let refused = env.run_pixir(&["trust", "--json"]).assert_exit_code(3).envelope();
    assert_eq!(refused["error"]["kind"], "permission_denied");
    assert!(!env.home().join(".pixir/trust.json").exists());
    let mut terminal = TestTerminal::run(&env, &["trust"], &[]);
    terminal.wait_for_text("bash.env = ");
    terminal.wait_for_text("[n] no");
    assert!(!terminal.screen().contains('\u{1b}'), "{:?}", terminal.screen());
    terminal.type_keys("yes\n");
    assert_eq!(terminal.wait_for_exit(), Some(0));
    let status = env.run_pixir(&["trust", "--json"]).assert_exit_code(0).envelope();
    assert_eq!(status["output"]["trusted"], true);
    assert_eq!(status["output"]["wanted"][1]["key"], "transport");
    let back = env.run_pixir(&["untrust", "--json"]).assert_exit_code(0).envelope();
    assert_eq!(back["output"]["was_trusted"], true);
    env.run_pixir(&["trust"]).assert_exit_code(3);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_hides_in_what_is_to_be_trusted() {
    let env = new_test_env().await;
    let value = "https://good.example\u{9d}0;.evil.example";
    let settings = json!({"permission_mode": value, "x\u{9b}y": 1});
    env.write(".pixir/config.json", settings.to_string());
    let mut terminal = TestTerminal::run(&env, &["hi"], &[]);
    terminal.wait_for_text("https://good.example<U+009D>0;.evil.example");
    terminal.wait_for_text("Trust this file as it is now?");
    terminal.type_keys("n\n");
    assert_eq!(terminal.wait_for_exit(), Some(0));
}
