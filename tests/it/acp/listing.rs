//! `session/list`: one directory or all, newest first, in pages.

use pixir::scripted::Reply;
use serde_json::{Value, json};

use super::{new_binary_env, new_client};

#[tokio::test(flavor = "multi_thread")]
async fn sessions_are_listed_in_pages_and_newest_first() {
    let env = new_binary_env([Reply::says("hello")]).await;
    let (mut editor, first) = new_client(&env, &[], json!({}));
    for _ in 0..60 {
        editor.new_session(&env.workspace());
    }
    // Modification times have a granularity of a few milliseconds.
    std::thread::sleep(std::time::Duration::from_millis(50));
    editor.run_prompt(&first, "the first one\nagain").unwrap();
    let mut seen = Vec::<Value>::new();
    let mut cursor = Value::Null;
    for _ in 0..5 {
        let page =
            editor.call("session/list", json!({"cwd": env.workspace(), "cursor": cursor})).unwrap();
        seen.extend(page["sessions"].as_array().unwrap().iter().cloned());
        cursor = page["nextCursor"].clone();
        if cursor.is_null() {
            break;
        }
    }
    let ids: std::collections::BTreeSet<&str> =
        seen.iter().map(|session| session["sessionId"].as_str().unwrap()).collect();
    assert_eq!((seen.len(), ids.len()), (61, 61), "each of them once");
    assert_eq!(seen[0]["sessionId"], first);
    assert_eq!(seen[0]["title"], "the first one again");
    assert_eq!(seen[0]["cwd"], json!(env.workspace().canonicalize().unwrap()));
    assert!(seen[0]["updatedAt"].as_str().unwrap().ends_with('Z'));
    let times: Vec<&str> =
        seen.iter().map(|session| session["updatedAt"].as_str().unwrap()).collect();
    assert!(times.windows(2).all(|pair| pair[0] >= pair[1]), "{times:?}");
    assert!(editor.close_and_wait().0.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_directory_all_that_were_used_are_listed() {
    let env = new_binary_env([]).await;
    let (mut editor, here) = new_client(&env, &[], json!({}));
    let other = env.workspace().join("deeper");
    std::fs::create_dir(&other).unwrap();
    let there = editor.new_session(&other);
    let all = editor.call("session/list", json!({})).unwrap().to_string();
    assert!(all.contains(&here) && all.contains(&there), "{all}");
    let some = editor.call("session/list", json!({ "cwd": other })).unwrap().to_string();
    assert!(!some.contains(&here) && some.contains(&there), "{some}");
    // A Session of any directory can be deleted.
    assert_eq!(editor.call("session/delete", json!({ "sessionId": there })).unwrap(), json!({}));
    let none = editor.call("session/list", json!({ "cwd": other })).unwrap();
    assert_eq!(none["sessions"], json!([]));
    assert!(editor.close_and_wait().0.success());
}
