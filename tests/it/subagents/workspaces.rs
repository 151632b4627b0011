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
    let summary = end["summary"].as_str().unwrap();
    assert!(summary.contains("not in a git repository"), "{end}");
    assert!(summary.contains("\n- use workspace `isolated` or `shared`"), "{end}");
    assert_eq!(agree(&house.workspace()), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_two_children_changed_in_one_line_is_a_conflict_and_nothing_is_written() {
    let script = cast(
        [
            spawns(&["one", "two"], "isolated"),
            waits(),
            of_child("merge_child", 0),
            of_child("merge_child", 1),
            says("The second one is left to you."),
        ],
        |task, step| match step {
            0 => Reply::new()
                .call("write", json!({"path": "a.txt", "content": format!("{task}\n")}))
                .call("write", json!({"path": format!("{task}.txt"), "content": "new\n"})),
            _ => Reply::says("Changed it."),
        },
    );
    let house = House::scripted(script).await;
    house.write("a.txt", "a\n");
    let (conversation, status) = house.turn(GO).await;
    assert_eq!(status, Status::Done);
    let log = conversation.log_path();
    let told = house.transcript(&conversation);
    assert_eq!((house.read("a.txt"), house.read("one.txt")), ("one\n".into(), "new\n".into()));
    assert!(!house.workspace().join("two.txt").exists(), "all or nothing: {told}");
    assert_eq!((count(log, "finished"), count(log, "merged")), (2, 1), "{told}");
    let refused = house.requests();
    let refused = refused.last().unwrap().outputs();
    assert!(refused.last().unwrap().contains("a.txt"), "{refused:?}");
    assert_eq!(agree(&house.workspace()), 2);
}

fn git(folder: &std::path::Path, words: &[&str]) -> String {
    let mut command = std::process::Command::new("git");
    command.arg("-C").arg(folder).args(["-c", "user.name=P", "-c", "user.email=p@x"]).args(words);
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap());
    let done = command.env("HOME", "/nowhere").output().unwrap();
    assert!(done.status.success(), "{words:?}: {done:?}");
    String::from_utf8(done.stdout).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worktree_child_below_the_top_of_its_repository_commits_and_is_merged() {
    let commit = "git add -A && git -c user.name=C -c user.email=c@x commit -qm child; \
        touch ../other/poked; git log --format=%s -1";
    let script = cast(
        [spawns(&["commit"], "worktree"), waits(), of_child("merge_child", 0), says("Merged.")],
        move |_, step| match step {
            0 => Reply::calls("write", json!({"path": "a.txt", "content": "A\n"})),
            1 => Reply::calls("bash", json!({ "command": commit })),
            _ => Reply::says("Committed."),
        },
    );
    let house = House::scripted(script).await;
    // The Workspace is a folder of a repository, and not its top.
    let top = house.workspace().parent().unwrap().to_owned();
    fs::create_dir_all(top.join("other")).unwrap();
    fs::write(top.join("other/b.txt"), "b\n").unwrap();
    fs::write(top.join(".gitignore"), ".pixir\nhome\n").unwrap();
    house.write("a.txt", "a\n");
    git(&top, &["init", "-q", "-b", "main"]);
    git(&top, &["add", "-A"]);
    git(&top, &["commit", "-qm", "first"]);
    let (conversation, status) = house.turn(GO).await;
    assert_eq!(status, Status::Done);
    let told = house.transcript(&conversation);
    let end = lives(conversation.log_path()).into_iter().find(|life| life["event"] == "finished");
    let child =
        end.unwrap_or_else(|| panic!("{:?}", lives(conversation.log_path())))["child_session_id"]
            .as_str()
            .unwrap()
            .to_owned();
    let branch = format!("pixir/{child}");
    assert_eq!(git(&top, &["log", "--format=%s", &branch]), "child\nfirst\n", "{told}");
    assert_eq!(git(&top, &["log", "--format=%s", "main"]), "first\n");
    assert_eq!(house.read("a.txt"), "A\n", "{told}");
    let annex = house.home().join("workspaces").join(&child);
    assert!(annex.join("tree/other/b.txt").exists(), "the whole repository is checked out");
    assert!(!annex.join("tree/other/poked").exists(), "but only its own part is its own");
    assert_eq!(agree(&house.workspace()), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worktree_that_conflicts_stays_as_it_is_until_it_can_be_merged() {
    let runs = |command: &str| super::line(Reply::calls("bash", json!({ "command": command })));
    let script = cast(
        [
            spawns(&["change"], "worktree"),
            waits(),
            runs("echo parent > a.txt"),
            of_child("merge_child", 0),
            of_child("close_agent", 0),
            runs("echo a > a.txt"),
            of_child("merge_child", 0),
            of_child("close_agent", 0),
            says("Merged in the end."),
        ],
        |_, step| match step {
            0 => Reply::new()
                .call("write", json!({"path": "a.txt", "content": "child\n"}))
                .call("write", json!({"path": "new.txt", "content": "new\n"})),
            _ => Reply::says("Changed it, and committed nothing."),
        },
    );
    let house = House::scripted(script).await;
    let top = house.workspace();
    fs::write(top.join(".gitignore"), ".pixir\n").unwrap();
    house.write("a.txt", "a\n");
    git(&top, &["init", "-q", "-b", "main"]);
    git(&top, &["add", "-A"]);
    git(&top, &["commit", "-qm", "first"]);
    let (conversation, status) = house.turn(GO).await;
    assert_eq!(status, Status::Done);
    let told = house.transcript(&conversation);
    let requests = house.requests();
    let last =
        |place: usize| requests[requests.len() - place].outputs().last().unwrap().to_string();
    assert!(last(5).contains("nothing was merged: a.txt"), "{told}");
    assert!(last(4).contains("its workspace was kept: 2 changes"), "{told}");
    assert!(last(2).contains("merged 2 files"), "{told}");
    assert!(!last(1).contains("stays"), "{told}");
    assert_eq!((house.read("a.txt"), house.read("new.txt")), ("child\n".into(), "new\n".into()));
    assert_eq!(count(conversation.log_path(), "merged"), 1);
    assert_eq!(git(&top, &["worktree", "list"]).lines().count(), 1, "it is gone with everything");
    assert_eq!(git(&top, &["branch", "--list", "pixir/*"]), "");
    assert_eq!(agree(&house.workspace()), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_child_with_a_workspace_of_its_own_is_not_forked() {
    let script =
        cast([spawns(&["change"], "isolated"), waits(), says("ok")], |_, step| match step {
            0 => Reply::calls("write", json!({"path": "a.txt", "content": "A\n"})),
            _ => Reply::says("Changed it."),
        });
    let house = House::scripted(script).await;
    house.write("a.txt", "a\n");
    house.pixir(&[GO]).exits(0);
    let id = |of_child: bool| {
        let all = crate::support::house::logs(&house.workspace()).into_iter();
        let mut own = all.filter(|log| {
            let first = super::events(log).swap_remove(0);
            first["data"]["parent_session_id"].is_string() == of_child
        });
        own.next().unwrap().file_stem().unwrap().to_str().unwrap().to_owned()
    };
    let (parent, child) = (id(false), id(true));
    let refused = house.pixir(&["fork", &child]).exits(2);
    for words in ["a Workspace of its own", "pixir resume", "pixir merge"] {
        assert!(refused.err.contains(words), "{words}: {}", refused.err);
    }
    house.pixir(&["fork", &parent]).exits(0);
    // Once everything is merged and its place is gone, it is a Session like any other.
    house.pixir(&["merge", "--yes", &child]).exits(0);
    assert_eq!(house.read("a.txt"), "A\n");
}
