//! Sessions by a part of their id, confirmations, and errors for wrong arguments.

use pixir::scripted::{ModelScript, Reply};
use serde_json::{Value, json};

use crate::child_workspaces::FamilyEnv;
use crate::support::TestEnv;
use crate::support::terminal::TestTerminal;
use crate::support::test_env::log_files;

async fn two_sessions() -> (TestEnv, String, String) {
    let env = TestEnv::with_script(ModelScript::answering(|request| {
        if request.user_texts().last() == Some(&"write it") && request.outputs().is_empty() {
            return Reply::calls("write", json!({"path": "made.txt", "content": "new\n"}));
        }
        Reply::says("done")
    }))
    .await;
    let run = |prompt: &str| {
        let run = env.run_pixir(&["--json", prompt]).assert_exit_code(0);
        run.envelope()["session_id"].as_str().unwrap().to_owned()
    };
    let first = run("the first Session");
    let second = run("write it");
    (env, first, second)
}

/// Every command that takes a Session, without an id.
const COMMANDS: &[&[&str]] = &[
    &["resume", "--json", "--", "go on"],
    &["verify", "--json"],
    &["export", "--json", "--format", "json"],
    &["diagnose", "--json"],
    &["inspect-replay", "--json"],
    &["tree", "--json"],
    &["agents", "status", "--json"],
    &["fork", "--dry-run", "--json"],
    &["compact", "--dry-run", "--json"],
    &["undo", "--dry-run", "--json"],
    &["repair", "--json"],
];

#[tokio::test(flavor = "multi_thread")]
async fn without_an_id_every_command_takes_the_last_session() {
    for args in COMMANDS {
        let (env, first, second) = two_sessions().await;
        let output = env.run_pixir(args).assert_exit_code(0).out;
        assert!(!output.contains(&first), "{args:?}: {output}");
        let names_it = output.contains(&second) || ["compact", "undo"].contains(&args[0]);
        assert!(names_it, "{args:?}: {output}");
        assert!(args[0] != "undo" || output.contains("made.txt"), "{output}");
    }
    let empty = TestEnv::with_replies([]).await;
    for args in COMMANDS {
        let refused = empty.run_pixir(args).assert_exit_code(2).out;
        assert!(refused.contains("there are no Sessions in"), "{args:?}: {refused}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_unique_beginning_or_end_of_an_id_names_a_session_everywhere() {
    for args in COMMANDS {
        let (env, first, _) = two_sessions().await;
        let end = &first[first.len() - 6..];
        let mut with_id: Vec<&str> = args.to_vec();
        let place = if args[0] == "agents" { 2 } else { 1 };
        with_id.insert(place, end);
        if args[0] == "undo" {
            let output = env.run_pixir(&with_id).assert_exit_code(0).out;
            assert!(output.contains("the first Session"), "{with_id:?}: {output}");
            continue;
        }
        let output = env.run_pixir(&with_id).assert_exit_code(0).out;
        assert!(output.contains(&first) || args[0] == "compact", "{with_id:?}: {output}");
    }
    let (env, first, second) = two_sessions().await;
    let usage =
        env.run_pixir(&["usage", &second[second.len() - 6..], "--json"]).assert_exit_code(0).out;
    assert!(usage.contains(&second) && !usage.contains(&first), "{usage}");
    // Both began in the same year; a word of three letters is not looked up.
    let refused = env.run_pixir(&["verify", "20"]).assert_exit_code(2).err;
    assert!(refused.contains("there is no Session 20"), "{refused}");
    let refused = env.run_pixir(&["verify", &first[..4], "--json"]).assert_exit_code(2);
    let error = &refused.envelope()["error"];
    assert!(error["message"].as_str().unwrap().starts_with("2 Sessions begin or end"), "{error}");
    assert_eq!(error["details"]["candidates"].as_array().map(Vec::len), Some(2), "{error}");
    // A word that matches no Session never becomes a prompt.
    let before = env.requests().len();
    let refused = env.run_pixir(&["resume", "explain", "this"]).assert_exit_code(2).err;
    assert!(refused.contains("pixir resume --last -- 'explain this'"), "{refused}");
    assert_eq!(env.requests().len(), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_was_not_named_in_full_is_deleted_after_a_yes() {
    let (env, first, second) = two_sessions().await;
    let refused = env.run_pixir(&["sessions", "delete"]).assert_exit_code(3).err;
    assert!(refused.contains("--yes"), "{refused}");
    let looked =
        env.run_pixir(&["sessions", "delete", &second, "--dry-run"]).assert_exit_code(0).out;
    assert!(looked.contains(&format!("deletes {second}")), "{looked}");
    env.run_pixir(&["sessions", "delete", &second, "--dry-run", "--json"]).assert_exit_code(0);
    env.run_pixir(&["logout", "--dry-run"]).assert_exit_code(2);
    assert_eq!(log_files(&env.workspace()).len(), 2);
    let mut terminal =
        TestTerminal::run(&env, &["sessions", "delete", &first[first.len() - 6..]], &[]);
    terminal.wait_for_text("the first Session");
    terminal.wait_for_text("Delete it for good?");
    terminal.type_keys("y\n");
    assert_eq!(terminal.wait_for_exit(), Some(0));
    env.run_pixir(&["sessions", "delete", "--yes"]).assert_exit_code(0);
    assert!(log_files(&env.workspace()).is_empty(), "{second} was the last one");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_changes_files_needs_a_yes_and_shows_its_plan_once() {
    let (env, _, second) = two_sessions().await;
    for (args, flags) in
        [(&["undo"][..], ""), (&["undo", "--json"], ""), (&["undo", "--force"], " --force")]
    {
        let refused = env.run_pixir(args).assert_exit_code(3);
        let output = format!("{}{}", refused.out, refused.err);
        assert!(output.contains("no terminal to ask on"), "{args:?}: {output}");
        let command = format!("pixir undo {second}{flags} --yes");
        assert!(output.contains(&command), "{command} of {args:?}: {output}");
    }
    assert_eq!(env.read("made.txt"), "new\n");
    env.run_pixir(&["resume", &second, "only talk"]).assert_exit_code(0);
    let shown = env.run_pixir(&["undo", "--dry-run"]).assert_exit_code(0).out;
    // The number is that of the Turn, not of the Event.
    assert!(shown.contains("Turn 2: only talk"), "{shown}");
    env.run_pixir(&["undo", "--yes"]).assert_exit_code(0);
    let mut terminal = TestTerminal::run(&env, &["undo"], &[]);
    terminal.wait_for_text("Take this back?");
    terminal.type_keys("y\n");
    assert_eq!(terminal.wait_for_exit(), Some(0));
    terminal.wait_for_text("1 file changed");
    let screen = terminal.screen();
    assert!(screen.contains("Turn 1: write it"), "{screen}");
    assert_eq!(screen.matches("remove  made.txt").count(), 1, "{screen}");
    assert_eq!(screen.matches("takes back 1 Turn").count(), 1, "{screen}");
    let refused = env.run_pixir(&["redo"]).assert_exit_code(3).err;
    assert!(refused.contains(&format!("pixir redo {second} --yes")), "{refused}");
    let redone = env.run_pixir(&["redo", "-y"]).assert_exit_code(0).out;
    assert!(redone.contains("make    made.txt"), "{redone}");
    assert_eq!(env.read("made.txt"), "new\n");
    // On a terminal, `--yes` skips the question.
    let mut terminal = TestTerminal::run(&env, &["undo", "--yes"], &[]);
    assert_eq!(terminal.wait_for_exit(), Some(0));
    terminal.wait_for_text("1 file changed");
    assert!(!terminal.screen().contains('?'), "{}", terminal.screen());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_merge_needs_a_yes_and_its_undo_says_what_it_removes() {
    let family = FamilyEnv::with_replies([]).await;
    family.env.write("a.txt", "old\n");
    family.env.write("gone.txt", "gone\n");
    let (child, folder) = family.child("isolated").await;
    std::fs::write(folder.join("a.txt"), "changed\n").unwrap();
    std::fs::write(folder.join("added.txt"), "added\n").unwrap();
    std::fs::remove_file(folder.join("gone.txt")).unwrap();
    let env = &family.env;
    let refused = env.run_pixir(&["merge"]).assert_exit_code(3).err;
    assert!(refused.contains(&format!("pixir merge {child} --yes")), "{refused}");
    assert_eq!(env.read("a.txt"), "old\n");
    // The only child need not be named, and the end of an id is enough.
    env.run_pixir(&["merge", "--yes"]).assert_exit_code(0);
    assert_eq!(env.read("added.txt"), "added\n");
    let refused =
        env.run_pixir(&["merge", &child[child.len() - 6..], "--undo"]).assert_exit_code(3).err;
    assert!(refused.contains("--yes"), "{refused}");
    for args in
        [&["merge", &child, "--undo", "--dry-run"][..], &["merge", &child, "--undo", "--yes"]]
    {
        let output = env.run_pixir(args).assert_exit_code(0).out;
        for line in ["  remove  added.txt\n", "  restore a.txt\n", "  make    gone.txt\n"] {
            assert_eq!(output.matches(line).count(), 1, "{line}: {output}");
        }
    }
    assert!(!env.workspace().join("added.txt").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_argument_is_refused_with_what_its_own_command_accepts() {
    let env = TestEnv::with_replies([]).await;
    for (args, wanted, unwanted) in [
        (&["undo", "--turn", "2"][..], &["`--turns`", "pixir undo --help"][..], &["pixir -- "][..]),
        (
            &["export", "--format", "xml"],
            &["markdown, json", "pixir export --help"],
            &["pixir -- "],
        ),
        (&["export", "--frmat", "json"], &["`--format`"], &["pixir -- "]),
        (
            &["workflow", "run", "x.json", "--agr", "a=1"],
            &["`--arg`", "pixir workflow run --help"],
            &["pixir -- "],
        ),
        (
            &["workflow", "runn", "x.json"],
            &["`run`", "validate, plan, list, run, resume, status"],
            &[],
        ),
        (&["sessions", "--al"], &["`--all`", "pixir sessions --help"], &["pixir -- "]),
        (&["--color", "purple", "hi"], &["auto, always, never", "pixir --help"], &["pixir -- "]),
        (&["--credential", "gold", "hi"], &["chatgpt, api-key"], &["pixir -- "]),
        (&["--frobnicate", "hi"], &["pixir -- --frobnicate", "pixir --help"], &[]),
        (&["--x; rm -rf ~", "hi"], &["pixir -- '--x; rm -rf ~'"], &[]),
        (
            &["resume", "--last", "--nope"],
            &["pixir resume --last -- --nope", "pixir resume --help"],
            &["pixir -- "],
        ),
        (&["login", "page", "is", "broken"], &["pixir -- 'login page is broken'"], &[]),
        (&["--sandbox", "strong", "hi"], &["workspace", "read-only", "required", "off"], &[]),
        (&["--role", "wizard", "hi"], &["build", "explorer"], &[]),
    ] {
        let refused = env.run_pixir(args).assert_exit_code(2).err;
        for words in wanted {
            assert!(refused.contains(words), "{args:?}: {words}: {refused}");
        }
        for words in unwanted {
            assert!(!refused.contains(words), "{args:?}: {words}: {refused}");
        }
    }
    assert!(env.requests().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn events_are_refused_where_there_are_none_and_stand_alone_where_there_are() {
    let (env, _, _) = two_sessions().await;
    let before = env.requests().len();
    for args in [
        &["sessions", "--events"][..],
        &["undo", "--events", "--yes"],
        &["export", "--events"],
        &["doctor", "--events"],
        &["workflow", "list", "--events"],
        &["verify", "--events"],
        &["acp", "--events"],
    ] {
        let refused = env.run_pixir(args).assert_exit_code(2);
        assert!(refused.err.contains("--events has no effect on"), "{args:?}: {}", refused.err);
        assert_eq!(refused.out, "", "{args:?}");
    }
    assert_eq!(env.requests().len(), before);
    env.write(
        "flow.json",
        json!({"id": "flow", "steps": [{"id": "one", "role": "explorer", "task": "look"}]})
            .to_string(),
    );
    let run = env.run_pixir(&["workflow", "run", "flow.json", "--events"]);
    let lines: Vec<Value> = run
        .out
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("no Event: {line}")))
        .collect();
    assert!(lines.iter().all(|event| event["type"].is_string()), "{}", run.out);
    assert!(lines.iter().any(|event| event["type"] == "workflow_event"), "{}", run.out);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_is_named_by_a_part_of_its_id_and_resume_takes_the_last_that_is_not_complete() {
    let env = TestEnv::with_script(ModelScript::answering(|_| Reply::says("no checkpoint"))).await;
    let refused = env.run_pixir(&["workflow", "resume"]).assert_exit_code(2).err;
    assert!(
        refused.contains("there is no run in this Workspace that is not complete"),
        "{refused}"
    );
    let step = json!({"id": "one", "role": "explorer", "task": "look"});
    env.write("flow.json", json!({"id": "flow", "steps": [step]}).to_string());
    let run =
        env.run_pixir(&["workflow", "run", "flow.json", "--json"]).assert_exit_code(6).envelope();
    let id = run["output"]["workflow_id"].as_str().unwrap();
    let session = run["session_id"].as_str().unwrap();
    for part in
        [&id[..id.len() - 2], &id[id.len() - 6..], &session[session.len() - 6..], id, session]
    {
        let status =
            env.run_pixir(&["workflow", "status", part, "--json"]).assert_exit_code(0).envelope();
        assert_eq!(status["output"]["workflow_id"], id, "{part}");
    }
    let resumed = env.run_pixir(&["workflow", "resume", "--json"]).assert_exit_code(6).envelope();
    assert_eq!(resumed["output"]["workflow_id"], id);
}
