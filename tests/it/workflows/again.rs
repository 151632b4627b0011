//! What a run that goes on finds gone, what it never knew, and what it says of both.

use pixir::scripted::Reply;
use serde_json::json;

use super::runs::{READY, house, run};
use super::troupe::{decided, root_log, workflow};

#[tokio::test(flavor = "multi_thread")]
async fn checks_that_leave_too_much_to_look_at_do_not_make_the_step_forgotten() {
    let house = house(|told| match (told.step(), told.turn) {
        ("one", 0) => Reply::calls("bash", json!({"command": "echo line >> d/a.txt"})),
        _ => Reply::says(READY),
    })
    .await;
    std::fs::create_dir(house.workspace().join("d")).unwrap();
    std::fs::create_dir_all(house.home().join(".pixir")).unwrap();
    let settings = json!({"undo": {"max_total_bytes": 200_000}}).to_string();
    std::fs::write(house.home().join(".pixir/config.json"), settings).unwrap();
    let check = "head -c 300000 /dev/zero > d/big; false";
    let graph = workflow(json!([
        {"id": "one", "task": "one", "workspace": "shared", "write_set": ["d/"], "retries": 1, "verify": [check]},
    ]));
    run(&house, &graph, 6);
    assert_eq!(house.read("d/a.txt"), "line\n", "it is not done twice");
    let bundle = decided(&root_log(&house.workspace()), "one");
    assert_eq!(bundle["attempts"], 1, "{bundle}");
    let limits = bundle["known_limitations"].as_array().unwrap();
    for limit in ["not_taken_back", "changes_unknown"] {
        assert!(limits.contains(&json!(limit)), "{bundle}");
    }
}
