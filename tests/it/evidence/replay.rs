//! `pixir inspect-replay`: the shown request is the one that is sent next.

use serde_json::{Value, json};

use super::{log_of, new_test_env, state};

#[tokio::test(flavor = "multi_thread")]
async fn what_is_shown_is_what_leaves_byte_for_byte() {
    let (env, id) = new_test_env().await;
    let before = state(&env.workspace());
    let sent = env.requests().len();
    let args = ["inspect-replay", &id, "--prompt", "and now?", "--items", "--json"];
    let shown = env.run_pixir(&args).assert_exit_code(0).envelope();
    assert_eq!(state(&env.workspace()), before, "the preview changes nothing");
    assert_eq!(env.requests().len(), sent, "the preview sends nothing");

    env.run_pixir(&["resume", &id, "and now?"]).assert_exit_code(0);
    let left = env.requests().pop().unwrap();
    let request = &shown["output"]["replay"]["request"];
    assert_eq!(request.to_string(), left.body.to_string());

    let replay = &shown["output"]["replay"];
    assert_eq!(
        (&replay["is_valid"], &replay["counts"]["function_call"]),
        (&json!(true), &json!(3))
    );
    let tokens = replay["parts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|part| part["estimated_tokens"].as_u64().unwrap());
    let sum: u64 = tokens.sum();
    assert_eq!(replay["estimated_tokens"], sum);
    assert_eq!(shown["output"]["estimate"]["tokens"], sum);
    assert!(sum > 500 && shown["output"]["estimate"]["window"].as_u64() > Some(sum));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_earlier_point_shows_what_was_known_there() {
    let (env, id) = new_test_env().await;
    let texts = |args: &[&str]| -> Vec<String> {
        let run = env.run_pixir(&[&["inspect-replay", &id, "--items", "--json"], args].concat());
        let replay = run.assert_exit_code(0).envelope()["output"]["replay"].clone();
        let items = replay["items"].as_array().unwrap().clone();
        items.iter().map(|item| item["excerpt"].as_str().unwrap().to_owned()).collect()
    };
    let events = std::fs::read_to_string(log_of(&env, &id)).unwrap();
    let call = events.lines().position(|line| line.contains("\"type\":\"tool_call\"")).unwrap();
    let whole = texts(&[]);
    let part = texts(&["--after-seq", &call.to_string()]);
    assert!(part.len() < whole.len());
    assert!(part.last().unwrap().contains("did not finish"), "a cut call is closed: {part:?}");
    assert!(!whole.iter().any(|text| text.contains("did not finish")));
    assert!(!whole.iter().any(|text| text.contains("no such thing")), "failures are not replayed");
    let nothing = texts(&["--after-seq", "0"]);
    assert!(nothing.len() <= 1, "{nothing:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_sees_the_parts_and_needs_no_credential() {
    let (env, id) = new_test_env().await;
    let run = env.run_pixir(&["inspect-replay", &id]).assert_exit_code(0);
    for words in
        ["the next request to gpt-5.5", "instructions", "tools", "input", "valid: every call"]
    {
        assert!(run.out.contains(words), "{}", run.out);
    }
    let run = std::process::Command::new(crate::support::test_env::PIXIR)
        .args(["inspect-replay", &id, "--json"])
        .env_clear()
        .env("HOME", env.home())
        .current_dir(env.workspace())
        .output()
        .unwrap();
    let envelope: Value = serde_json::from_slice(&run.stdout).unwrap();
    assert_eq!(envelope["ok"], true, "{envelope}");
    assert!(envelope["output"]["notes"].to_string().contains("as with an API key"), "{envelope}");
    for args in [&["inspect-replay", "../x"][..], &["inspect-replay", "20990101T000000-ffffff"]] {
        env.run_pixir(args).assert_exit_code(2);
    }
}
