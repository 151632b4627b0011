//! Children that work in Workspaces of their own, from the spawn to the merge.

use std::fs;

use pixir::Status;
use pixir::scripted::{Received, Reply};
use serde_json::json;

use super::cast::{GO, Line, agree, cast, count, lives, says, waits};
use crate::support::House;

/// The Subagents that the model was told of, in the order they came.
fn ids(request: &Received) -> Vec<String> {
    let text = serde_json::to_string(request.input()).unwrap();
    let mut ids = Vec::new();
    for (place, _) in text.match_indices("sub_") {
        let id = text[place..place + 14].to_owned();
        if !ids.contains(&id) {
            ids.push(id);
        }
    }
    ids
}

fn spawns(tasks: &[&str], workspace: &str) -> Line {
    let reply = tasks.iter().fold(Reply::new(), |reply, task| {
        reply.call("spawn_agent", json!({"task": task, "workspace": workspace}))
    });
    super::line(reply)
}

/// Calls a tool with the id of the nth child.
fn of_child(tool: &'static str, place: usize) -> Line {
    Box::new(move |request| Reply::calls(tool, json!({ "id": ids(request)[place] })))
}

#[tokio::test(flavor = "multi_thread")]
async fn isolated_children_change_copies_and_the_parent_merges_them() {
    let script = cast(
        [
            spawns(&["change a", "change b"], "isolated"),
            waits(),
            of_child("merge_child", 0),
            of_child("merge_child", 1),
            of_child("close_agent", 0),
            says("All done."),
        ],
        |task, step| match (task, step) {
            ("change a", 0) => Reply::calls("write", json!({"path": "a.txt", "content": "A\n"})),
            (_, 0) => Reply::calls("bash", json!({"command": "echo B > b.txt; cat a.txt"})),
            _ => Reply::says("Changed it."),
        },
    );
    let house = House::scripted(script).await;
    house.write("a.txt", "a\n");
    house.write("b.txt", "b\n");
    let (conversation, status) = house.turn(GO).await;
    assert_eq!(status, Status::Done);
    let told = house.transcript(&conversation);
    assert_eq!((house.read("a.txt"), house.read("b.txt")), ("A\n".into(), "B\n".into()), "{told}");
    let log = conversation.log_path();
    assert_eq!((count(log, "finished"), count(log, "merged")), (2, 2), "{told}");
    let queued = lives(log).into_iter().find(|life| life["event"] == "queued").unwrap();
    assert_eq!(queued["workspace_mode"], "isolated");
    let requests = house.requests();
    let saw = |it: &Received| it.outputs().iter().any(|it| it.starts_with("a\n"));
    assert!(requests.iter().any(saw), "it saw its own a.txt: {told}");
    // The one that was closed and merged is gone, the other still has its place.
    assert_eq!(agree(&house.workspace()), 2);
    let left = fs::read_dir(house.home().join("workspaces")).unwrap().flatten();
    assert_eq!(left.filter(|entry| entry.path().is_dir()).count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_child_that_cannot_have_its_workspace_fails_and_touches_nothing() {
    let script = cast([spawns(&["change a"], "worktree"), waits(), says("So be it.")], |_, _| {
        Reply::calls("write", json!({"path": "a.txt", "content": "A\n"}))
    });
    let house = House::scripted(script).await;
    house.write("a.txt", "a\n");
    let (conversation, status) = house.turn(GO).await;
    assert_eq!(status, Status::Done);
    assert_eq!(house.read("a.txt"), "a\n");
    let end = lives(conversation.log_path()).pop().unwrap();
    assert_eq!((&end["event"], &end["reason"]), (&json!("failed"), &json!("setup_failed")));
    assert!(end["summary"].as_str().unwrap().contains("not in a git repository"), "{end}");
    assert_eq!(agree(&house.workspace()), 1);
}
