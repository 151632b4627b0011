//! Many merges of one run at the same time.

use pixir::scripted::Reply;
use serde_json::{Value, json};

use super::runs::{READY, house, run, status_of};
use super::troupe::workflow;
use crate::subagents::cast::agree;

/// Their sets have nothing in common, so nothing keeps them apart but the merges themselves; and every
/// Event is forced to the disk while others wait for their turn.
#[tokio::test(flavor = "multi_thread")]
async fn many_steps_apply_at_once_and_all_of_them_land() {
    const MANY: usize = 24;
    let house = house(|told| match (told.step(), told.turn) {
        ("gate", _) => Reply::says(READY),
        (step, 0) => Reply::calls("write", json!({"path": format!("{step}/x"), "content": step})),
        _ => Reply::says(READY),
    })
    .await;
    let settings = json!({"durability": "event", "subagents": {"max_running": 32}});
    std::fs::create_dir_all(house.home().join(".pixir")).unwrap();
    std::fs::write(house.home().join(".pixir/config.json"), settings.to_string()).unwrap();
    let names: Vec<String> = (0..MANY).map(|n| format!("s{n}")).collect();
    let mut steps: Vec<Value> = names
        .iter()
        .map(|name| json!({"id": name, "task": name, "write_set": format!("{name}/")}))
        .collect();
    steps.push(json!({"id": "gate", "task": "gate", "role": "explorer", "depends_on": names}));
    steps.extend(
        names
            .iter()
            .map(|name| json!({"id": format!("land_{name}"), "apply": name, "depends_on": "gate"})),
    );
    let output = run(&house, &workflow(json!(steps)), 0);
    for name in &names {
        assert_eq!(status_of(&output, &format!("land_{name}")), "checkpoint_ready", "{name}");
        assert_eq!(house.read(&format!("{name}/x")), *name);
    }
    agree(&house.workspace());
}
