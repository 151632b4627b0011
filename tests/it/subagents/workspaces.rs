//! Child Workspaces of Subagents, from the spawn to the merge.

use std::fs;

use pixir::SessionStatus;
use pixir::scripted::{ReceivedRequest, Reply};
use serde_json::json;

use super::scripted_family::{
    GO, ParentReply, check_family_logs, count_subagent_events, scripted_family, subagent_events,
    text_reply, wait_reply,
};
use crate::support::TestEnv;

/// Ids of the Subagents in a request, in the order of spawns.
fn ids(request: &ReceivedRequest) -> Vec<String> {
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

fn spawns(tasks: &[&str], workspace: &str) -> ParentReply {
    let reply = tasks.iter().fold(Reply::new(), |reply, task| {
        reply.call("spawn_agent", json!({"task": task, "workspace": workspace}))
    });
    super::always(reply)
}

/// Calls a tool with the id of the nth child.
fn of_child(tool: &'static str, place: usize) -> ParentReply {
    Box::new(move |request| Reply::calls(tool, json!({ "id": ids(request)[place] })))
}

#[tokio::test(flavor = "multi_thread")]
async fn isolated_children_change_copies_and_the_parent_merges_them() {
    let script = scripted_family(
        [
            spawns(&["change a", "change b"], "isolated"),
            wait_reply(),
            of_child("merge_child", 0),
            of_child("merge_child", 1),
            of_child("close_agent", 0),
            text_reply("All done."),
        ],
        |task, step| match (task, step) {
            ("change a", 0) => Reply::calls("write", json!({"path": "a.txt", "content": "A\n"})),
            (_, 0) => Reply::calls("bash", json!({"command": "echo B > b.txt; cat a.txt"})),
            _ => Reply::says("Changed it."),
        },
    );
    let env = TestEnv::with_script(script).await;
    env.write("a.txt", "a\n");
    env.write("b.txt", "b\n");
    let (conversation, status) = env.run_turn(GO).await;
    assert_eq!(status, SessionStatus::Done);
    let transcript = env.transcript(&conversation);
    assert_eq!(
        (env.read("a.txt"), env.read("b.txt")),
        ("A\n".into(), "B\n".into()),
        "{transcript}"
    );
    let log = conversation.log_path();
    assert_eq!(
        (count_subagent_events(log, "finished"), count_subagent_events(log, "merged")),
        (2, 2),
        "{transcript}"
    );
    let queued = subagent_events(log).into_iter().find(|life| life["event"] == "queued").unwrap();
    assert_eq!(queued["workspace_mode"], "isolated");
    let requests = env.requests();
    let saw = |it: &ReceivedRequest| it.outputs().iter().any(|it| it.starts_with("a\n"));
    assert!(requests.iter().any(saw), "it saw its own a.txt: {transcript}");
    // The child Workspace that was merged and closed is removed, the other one is kept.
    assert_eq!(check_family_logs(&env.workspace()), 2);
    let left = fs::read_dir(env.home().join("workspaces")).unwrap().flatten();
    assert_eq!(left.filter(|entry| entry.path().is_dir()).count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_child_that_cannot_have_its_workspace_fails_and_touches_nothing() {
    let script = scripted_family(
        [spawns(&["change a"], "worktree"), wait_reply(), text_reply("So be it.")],
        |_, _| Reply::calls("write", json!({"path": "a.txt", "content": "A\n"})),
    );
    let env = TestEnv::with_script(script).await;
    env.write("a.txt", "a\n");
    let (conversation, status) = env.run_turn(GO).await;
    assert_eq!(status, SessionStatus::Done);
    assert_eq!(env.read("a.txt"), "a\n");
    let end = subagent_events(conversation.log_path()).pop().unwrap();
    assert_eq!((&end["event"], &end["reason"]), (&json!("failed"), &json!("setup_failed")));
    let summary = end["summary"].as_str().unwrap();
    assert!(summary.contains("not in a git repository"), "{end}");
    assert!(summary.contains("\n- use workspace `isolated` or `shared`"), "{end}");
    assert_eq!(check_family_logs(&env.workspace()), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_two_children_changed_in_one_line_is_a_conflict_and_nothing_is_written() {
    let script = scripted_family(
        [
            spawns(&["one", "two"], "isolated"),
            wait_reply(),
            of_child("merge_child", 0),
            of_child("merge_child", 1),
            text_reply("The second one is left to you."),
        ],
        |task, step| match step {
            0 => Reply::new()
                .call("write", json!({"path": "a.txt", "content": format!("{task}\n")}))
                .call("write", json!({"path": format!("{task}.txt"), "content": "new\n"})),
            _ => Reply::says("Changed it."),
        },
    );
    let env = TestEnv::with_script(script).await;
    env.write("a.txt", "a\n");
    let (conversation, status) = env.run_turn(GO).await;
    assert_eq!(status, SessionStatus::Done);
    let log = conversation.log_path();
    let transcript = env.transcript(&conversation);
    assert_eq!((env.read("a.txt"), env.read("one.txt")), ("one\n".into(), "new\n".into()));
    assert!(!env.workspace().join("two.txt").exists(), "all or nothing: {transcript}");
    assert_eq!(
        (count_subagent_events(log, "finished"), count_subagent_events(log, "merged")),
        (2, 1),
        "{transcript}"
    );
    let refused = env.requests();
    let refused = refused.last().unwrap().outputs();
    assert!(refused.last().unwrap().contains("a.txt"), "{refused:?}");
    assert_eq!(check_family_logs(&env.workspace()), 2);
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
    let script = scripted_family(
        [
            spawns(&["commit"], "worktree"),
            wait_reply(),
            of_child("merge_child", 0),
            text_reply("Merged."),
        ],
        move |_, step| match step {
            0 => Reply::calls("write", json!({"path": "a.txt", "content": "A\n"})),
            1 => Reply::calls("bash", json!({ "command": commit })),
            _ => Reply::says("Committed."),
        },
    );
    let env = TestEnv::with_script(script).await;
    // The Workspace is a folder of a repository, and not its top.
    let top = env.workspace().parent().unwrap().to_owned();
    fs::create_dir_all(top.join("other")).unwrap();
    fs::write(top.join("other/b.txt"), "b\n").unwrap();
    fs::write(top.join(".gitignore"), ".pixir\nhome\n").unwrap();
    env.write("a.txt", "a\n");
    git(&top, &["init", "-q", "-b", "main"]);
    git(&top, &["add", "-A"]);
    git(&top, &["commit", "-qm", "first"]);
    let (conversation, status) = env.run_turn(GO).await;
    assert_eq!(status, SessionStatus::Done);
    let transcript = env.transcript(&conversation);
    let end = subagent_events(conversation.log_path())
        .into_iter()
        .find(|life| life["event"] == "finished");
    let child =
        end.unwrap_or_else(|| panic!("{:?}", subagent_events(conversation.log_path())))["child_session_id"]
            .as_str()
            .unwrap()
            .to_owned();
    let branch = format!("pixir/{child}");
    assert_eq!(git(&top, &["log", "--format=%s", &branch]), "child\nfirst\n", "{transcript}");
    assert_eq!(git(&top, &["log", "--format=%s", "main"]), "first\n");
    assert_eq!(env.read("a.txt"), "A\n", "{transcript}");
    let child_workspace = env.home().join("workspaces").join(&child);
    assert!(
        child_workspace.join("tree/other/b.txt").exists(),
        "the whole repository is checked out"
    );
    assert!(!child_workspace.join("tree/other/poked").exists(), "only the Workspace is writable");
    assert_eq!(check_family_logs(&env.workspace()), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worktree_that_conflicts_stays_as_it_is_until_it_can_be_merged() {
    let runs = |command: &str| super::always(Reply::calls("bash", json!({ "command": command })));
    let script = scripted_family(
        [
            spawns(&["change"], "worktree"),
            wait_reply(),
            runs("echo parent > a.txt"),
            of_child("merge_child", 0),
            of_child("close_agent", 0),
            runs("echo a > a.txt"),
            of_child("merge_child", 0),
            of_child("close_agent", 0),
            text_reply("Merged in the end."),
        ],
        |_, step| match step {
            0 => Reply::new()
                .call("write", json!({"path": "a.txt", "content": "child\n"}))
                .call("write", json!({"path": "new.txt", "content": "new\n"})),
            _ => Reply::says("Changed it, and committed nothing."),
        },
    );
    let env = TestEnv::with_script(script).await;
    let top = env.workspace();
    fs::write(top.join(".gitignore"), ".pixir\n").unwrap();
    env.write("a.txt", "a\n");
    git(&top, &["init", "-q", "-b", "main"]);
    git(&top, &["add", "-A"]);
    git(&top, &["commit", "-qm", "first"]);
    let (conversation, status) = env.run_turn(GO).await;
    assert_eq!(status, SessionStatus::Done);
    let transcript = env.transcript(&conversation);
    let requests = env.requests();
    let last =
        |place: usize| requests[requests.len() - place].outputs().last().unwrap().to_string();
    assert!(last(5).contains("nothing was merged: a.txt"), "{transcript}");
    assert!(last(4).contains("its workspace was kept: 2 changes"), "{transcript}");
    assert!(last(2).contains("merged 2 files"), "{transcript}");
    assert!(!last(1).contains("stays"), "{transcript}");
    assert_eq!((env.read("a.txt"), env.read("new.txt")), ("child\n".into(), "new\n".into()));
    assert_eq!(count_subagent_events(conversation.log_path(), "merged"), 1);
    assert_eq!(git(&top, &["worktree", "list"]).lines().count(), 1, "its worktree is removed");
    assert_eq!(git(&top, &["branch", "--list", "pixir/*"]), "");
    assert_eq!(check_family_logs(&env.workspace()), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_child_with_a_workspace_of_its_own_is_not_forked() {
    let script = scripted_family(
        [spawns(&["change"], "isolated"), wait_reply(), text_reply("ok")],
        |_, step| match step {
            0 => Reply::calls("write", json!({"path": "a.txt", "content": "A\n"})),
            _ => Reply::says("Changed it."),
        },
    );
    let env = TestEnv::with_script(script).await;
    env.write("a.txt", "a\n");
    env.run_pixir(&[GO]).assert_exit_code(0);
    let id = |of_child: bool| {
        let all = crate::support::test_env::log_files(&env.workspace()).into_iter();
        let mut own = all.filter(|log| {
            let first = super::read_events(log).swap_remove(0);
            first["data"]["parent_session_id"].is_string() == of_child
        });
        own.next().unwrap().file_stem().unwrap().to_str().unwrap().to_owned()
    };
    let parent = id(false);
    let child = id(true);
    let refused = env.run_pixir(&["fork", &child]).assert_exit_code(2);
    for words in ["a Workspace of its own", "pixir resume", "pixir merge"] {
        assert!(refused.err.contains(words), "{words}: {}", refused.err);
    }
    env.run_pixir(&["fork", &parent]).assert_exit_code(0);
    // After the merge and the removal of its Workspace, the child is an ordinary Session.
    env.run_pixir(&["merge", "--yes", &child]).assert_exit_code(0);
    assert_eq!(env.read("a.txt"), "A\n");
}
