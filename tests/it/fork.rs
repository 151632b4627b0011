//! Forks: a Session that begins with the History of another one.

use std::fs;
use std::path::PathBuf;

use pixir::scripted::{ModelScript, Reply};
use serde_json::{Value, json};

use crate::support::TestEnv;
use crate::support::rendered_log;
use crate::support::test_env::newest_log;

fn id_of(log: &std::path::Path) -> String {
    log.file_stem().unwrap().to_str().unwrap().to_owned()
}

fn forked(env: &TestEnv, args: &[&str]) -> Value {
    let mut all = vec!["fork", "--json"];
    all.extend(args);
    serde_json::from_str(&env.run_pixir(&all).assert_exit_code(0).out).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fork_knows_what_its_parent_knew_and_goes_its_own_way() {
    let env = TestEnv::with_replies([
        Reply::says("noted: blue"),
        Reply::calls("write", json!({"path": "a.txt", "content": "red\n"})),
        Reply::says("painted it red"),
        Reply::says("still blue to me"),
    ])
    .await;
    env.run_pixir(&["my colour is blue"]).assert_exit_code(0);
    env.run_pixir(&["resume", "--last", "paint it red"]).assert_exit_code(0);
    let parent_log = newest_log(&env.workspace());
    let parent = id_of(&parent_log);
    let before = fs::read(&parent_log).unwrap();

    let looked = forked(&env, &[&parent, "--at", "1", "--dry-run"]);
    assert_eq!(
        (&looked["output"]["turns"], &looked["output"]["session_id"]),
        (&json!(1), &json!(null))
    );
    let made = forked(&env, &[&parent, "--at", "1", "--summarize"]);
    let child = made["session_id"].as_str().unwrap().to_owned();
    assert_eq!(fs::read(&parent_log).unwrap(), before, "the parent is not touched");
    env.run_pixir(&["verify", &child]).assert_exit_code(0);

    env.run_pixir(&["resume", &child, "which colour?"]).assert_exit_code(0);
    let requests = env.requests();
    let last = requests.last().unwrap();
    let texts = last.user_texts();
    assert_eq!((texts[0], *texts.last().unwrap()), ("my colour is blue", "which colour?"));
    assert!(last.body_text.contains("painted it red"), "the other branch is summarised");
    assert!(last.body_text.contains("a.txt"));
    let key = |at: usize| requests[at].body["prompt_cache_key"].clone();
    assert_eq!(key(0), key(requests.len() - 1), "parent and fork share the prompt cache");
    let log: PathBuf = env.workspace().join(format!(".pixir/sessions/{child}.ndjson"));
    insta::assert_snapshot!(rendered_log::render_log(&log, &env.workspace()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fork_of_a_fork_has_the_same_root_and_can_be_taken_back() {
    let env = TestEnv::with_replies([
        Reply::calls("bash", json!({"command": "echo new > a.txt"})),
        Reply::says("done"),
    ])
    .await;
    env.write("a.txt", "old\n");
    env.run_pixir(&["--deny-write", "secret/**", "change it"]).assert_exit_code(0);
    let parent = id_of(&newest_log(&env.workspace()));
    let child = forked(&env, &[&parent])["session_id"].as_str().unwrap().to_owned();
    let made = forked(&env, &[&child]);
    assert_eq!(made["output"]["fork_root_session_id"], json!(parent));
    assert_eq!(made["output"]["parent_session_id"], json!(child));
    let grandchild = made["session_id"].as_str().unwrap();
    let log = env.workspace().join(format!(".pixir/sessions/{grandchild}.ndjson"));
    let first = fs::read_to_string(log).unwrap().lines().next().unwrap().to_owned();
    assert!(first.contains(r#""deny_write":["secret/**"]"#), "bounds are inherited: {first}");
    env.run_pixir(&["undo", "--yes", grandchild, "--force"]).assert_exit_code(0);
    assert_eq!(env.read("a.txt"), "old\n");

    // `pixir tree` draws parent and child.
    let drawn = env.run_pixir(&["tree", &child]).assert_exit_code(0).out;
    let lines: Vec<&str> = drawn.lines().collect();
    assert!(lines[0].starts_with(&parent), "{drawn}");
    assert!(lines[1].starts_with(&format!("\u{2514}\u{2500} fork {child} *")), "{drawn}");
    assert!(lines[2].starts_with(&format!("   \u{2514}\u{2500} fork {grandchild}")), "{drawn}");
    let all: Value =
        serde_json::from_str(&env.run_pixir(&["tree", "--all", "--json"]).assert_exit_code(0).out)
            .unwrap();
    let inner = &all["output"][0]["children"][0];
    assert_eq!((&inner["session_id"], &inner["origin"]["kind"]), (&json!(child), &json!("fork")));
    assert_eq!(inner["children"][0]["session_id"], json!(grandchild));
    let drawn_again = env.run_pixir(&["tree"]).assert_exit_code(0).out;
    assert!(drawn_again.contains(grandchild), "not the last Session: {drawn_again}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_no_longer_counts_or_is_not_there_is_not_forked() {
    let env = TestEnv::with_script(ModelScript::answering(|_| Reply::says("yes"))).await;
    env.run_pixir(&["one and", "only"]).assert_exit_code(0);
    env.run_pixir(&["resume", "--last", "two"]).assert_exit_code(0);
    let parent = id_of(&newest_log(&env.workspace()));
    env.run_pixir(&["undo", "--yes", &parent]).assert_exit_code(0);
    assert_eq!(forked(&env, &[&parent, "--dry-run"])["output"]["turns"], 1);
    for (args, code) in [
        (vec!["fork", &parent, "--at", "2"], 2),
        (vec!["fork", &parent, "--at", "0"], 2),
        (vec!["fork", &parent, "--to-seq", "999"], 2),
        (vec!["fork", &parent, "--at", "1", "--to-seq", "3"], 2),
        (vec!["fork", "20200101T000000-000000"], 2),
        (vec!["fork", "../../etc/passwd"], 2),
    ] {
        env.run_pixir(&args).assert_exit_code(code);
    }
    // A fork in the middle of a Turn records an end of that Turn.
    let child = forked(&env, &[&parent, "--to-seq", "1"]);
    env.run_pixir(&["verify", child["session_id"].as_str().unwrap()]).assert_exit_code(0);
    let left: Vec<_> = fs::read_dir(env.workspace().join(".pixir/sessions"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.starts_with('.'))
        .collect();
    assert_eq!(left, Vec::<String>::new(), "no temporary folder is left");
}
