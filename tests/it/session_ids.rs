//! Sessions by a part of their id, confirmations, and errors for wrong arguments.

use pixir::scripted::{Reply, Script};
use serde_json::{Value, json};

use crate::annex::Family;
use crate::support::House;
use crate::support::house::logs;
use crate::support::terminal::Terminal;

async fn two_sessions() -> (House, String, String) {
    let house = House::scripted(Script::answering(|request| {
        if request.user_texts().last() == Some(&"write it") && request.outputs().is_empty() {
            return Reply::calls("write", json!({"path": "made.txt", "content": "new\n"}));
        }
        Reply::says("done")
    }))
    .await;
    let run = |prompt: &str| {
        let run = house.pixir(&["--json", prompt]).exits(0);
        run.envelope()["session_id"].as_str().unwrap().to_owned()
    };
    let first = run("the first Session");
    let second = run("write it");
    (house, first, second)
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
        let (house, first, second) = two_sessions().await;
        let told = house.pixir(args).exits(0).out;
        assert!(!told.contains(&first), "{args:?}: {told}");
        let names_it = told.contains(&second) || ["compact", "undo"].contains(&args[0]);
        assert!(names_it, "{args:?}: {told}");
        assert!(args[0] != "undo" || told.contains("made.txt"), "{told}");
    }
    let empty = House::with([]).await;
    for args in COMMANDS {
        let refused = empty.pixir(args).exits(2).out;
        assert!(refused.contains("there are no Sessions in"), "{args:?}: {refused}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_unique_beginning_or_end_of_an_id_names_a_session_everywhere() {
    for args in COMMANDS {
        let (house, first, _) = two_sessions().await;
        let end = &first[first.len() - 6..];
        let mut with_id: Vec<&str> = args.to_vec();
        let place = if args[0] == "agents" { 2 } else { 1 };
        with_id.insert(place, end);
        if args[0] == "undo" {
            let told = house.pixir(&with_id).exits(0).out;
            assert!(told.contains("the first Session"), "{with_id:?}: {told}");
            continue;
        }
        let told = house.pixir(&with_id).exits(0).out;
        assert!(told.contains(&first) || args[0] == "compact", "{with_id:?}: {told}");
    }
    let (house, first, second) = two_sessions().await;
    let usage = house.pixir(&["usage", &second[second.len() - 6..], "--json"]).exits(0).out;
    assert!(usage.contains(&second) && !usage.contains(&first), "{usage}");
    // Both began in the same year; a word of three letters is not looked up.
    let refused = house.pixir(&["verify", "20"]).exits(2).err;
    assert!(refused.contains("there is no Session 20"), "{refused}");
    let refused = house.pixir(&["verify", &first[..4], "--json"]).exits(2);
    let error = &refused.envelope()["error"];
    assert!(error["message"].as_str().unwrap().starts_with("2 Sessions begin or end"), "{error}");
    assert_eq!(error["details"]["candidates"].as_array().map(Vec::len), Some(2), "{error}");
    // A word that names nothing never becomes a prompt.
    let before = house.requests().len();
    let refused = house.pixir(&["resume", "explain", "this"]).exits(2).err;
    assert!(refused.contains("pixir resume --last -- 'explain this'"), "{refused}");
    assert_eq!(house.requests().len(), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_was_not_named_in_full_is_deleted_after_a_yes() {
    let (house, first, second) = two_sessions().await;
    let refused = house.pixir(&["sessions", "delete"]).exits(3).err;
    assert!(refused.contains("--yes"), "{refused}");
    let looked = house.pixir(&["sessions", "delete", &second, "--dry-run"]).exits(0).out;
    assert!(looked.contains(&format!("deletes {second}")), "{looked}");
    house.pixir(&["sessions", "delete", &second, "--dry-run", "--json"]).exits(0);
    house.pixir(&["logout", "--dry-run"]).exits(2);
    assert_eq!(logs(&house.workspace()).len(), 2);
    let mut terminal =
        Terminal::run(&house, &["sessions", "delete", &first[first.len() - 6..]], &[]);
    terminal.shows("the first Session");
    terminal.shows("Delete it for good?");
    terminal.types("y\n");
    assert_eq!(terminal.ends(), Some(0));
    house.pixir(&["sessions", "delete", "--yes"]).exits(0);
    assert!(logs(&house.workspace()).is_empty(), "{second} was the last one");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_changes_files_needs_a_yes_and_shows_its_plan_once() {
    let (house, _, second) = two_sessions().await;
    for (args, flags) in
        [(&["undo"][..], ""), (&["undo", "--json"], ""), (&["undo", "--force"], " --force")]
    {
        let refused = house.pixir(args).exits(3);
        let told = format!("{}{}", refused.out, refused.err);
        assert!(told.contains("no terminal to ask on"), "{args:?}: {told}");
        let command = format!("pixir undo {second}{flags} --yes");
        assert!(told.contains(&command), "{command} of {args:?}: {told}");
    }
    assert_eq!(house.read("made.txt"), "new\n");
    house.pixir(&["resume", &second, "only talk"]).exits(0);
    let shown = house.pixir(&["undo", "--dry-run"]).exits(0).out;
    // The number of the Turn, and not that of the Event.
    assert!(shown.contains("Turn 2: only talk"), "{shown}");
    house.pixir(&["undo", "--yes"]).exits(0);
    let mut terminal = Terminal::run(&house, &["undo"], &[]);
    terminal.shows("Take this back?");
    terminal.types("y\n");
    assert_eq!(terminal.ends(), Some(0));
    terminal.shows("1 file changed");
    let screen = terminal.screen();
    assert!(screen.contains("Turn 1: write it"), "{screen}");
    assert_eq!(screen.matches("remove  made.txt").count(), 1, "{screen}");
    assert_eq!(screen.matches("takes back 1 Turn").count(), 1, "{screen}");
    let refused = house.pixir(&["redo"]).exits(3).err;
    assert!(refused.contains(&format!("pixir redo {second} --yes")), "{refused}");
    let redone = house.pixir(&["redo", "-y"]).exits(0).out;
    assert!(redone.contains("make    made.txt"), "{redone}");
    assert_eq!(house.read("made.txt"), "new\n");
    // On a terminal --yes asks nothing.
    let mut terminal = Terminal::run(&house, &["undo", "--yes"], &[]);
    assert_eq!(terminal.ends(), Some(0));
    terminal.shows("1 file changed");
    assert!(!terminal.screen().contains('?'), "{}", terminal.screen());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_merge_needs_a_yes_and_its_undo_says_what_it_removes() {
    let family = Family::with([]).await;
    family.house.write("a.txt", "old\n");
    family.house.write("gone.txt", "gone\n");
    let (child, folder) = family.child("isolated").await;
    std::fs::write(folder.join("a.txt"), "changed\n").unwrap();
    std::fs::write(folder.join("added.txt"), "added\n").unwrap();
    std::fs::remove_file(folder.join("gone.txt")).unwrap();
    let house = &family.house;
    let refused = house.pixir(&["merge"]).exits(3).err;
    assert!(refused.contains(&format!("pixir merge {child} --yes")), "{refused}");
    assert_eq!(house.read("a.txt"), "old\n");
    // The only child need not be named; the end of its id is enough.
    house.pixir(&["merge", "--yes"]).exits(0);
    assert_eq!(house.read("added.txt"), "added\n");
    let refused = house.pixir(&["merge", &child[child.len() - 6..], "--undo"]).exits(3).err;
    assert!(refused.contains("--yes"), "{refused}");
    for args in
        [&["merge", &child, "--undo", "--dry-run"][..], &["merge", &child, "--undo", "--yes"]]
    {
        let told = house.pixir(args).exits(0).out;
        for line in ["  remove  added.txt\n", "  restore a.txt\n", "  make    gone.txt\n"] {
            assert_eq!(told.matches(line).count(), 1, "{line}: {told}");
        }
    }
    assert!(!house.workspace().join("added.txt").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_argument_is_told_what_its_own_command_accepts() {
    let house = House::with([]).await;
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
        let refused = house.pixir(args).exits(2).err;
        for words in wanted {
            assert!(refused.contains(words), "{args:?}: {words}: {refused}");
        }
        for words in unwanted {
            assert!(!refused.contains(words), "{args:?}: {words}: {refused}");
        }
    }
    assert!(house.requests().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn events_are_refused_where_there_are_none_and_stand_alone_where_there_are() {
    let (house, _, _) = two_sessions().await;
    let before = house.requests().len();
    for args in [
        &["sessions", "--events"][..],
        &["undo", "--events", "--yes"],
        &["export", "--events"],
        &["doctor", "--events"],
        &["workflow", "list", "--events"],
        &["verify", "--events"],
        &["acp", "--events"],
    ] {
        let refused = house.pixir(args).exits(2);
        assert!(refused.err.contains("--events goes with a prompt"), "{args:?}: {}", refused.err);
        assert_eq!(refused.out, "", "{args:?}");
    }
    assert_eq!(house.requests().len(), before);
    house.write(
        "flow.json",
        json!({"id": "flow", "steps": [{"id": "one", "role": "explorer", "task": "look"}]})
            .to_string(),
    );
    let run = house.pixir(&["workflow", "run", "flow.json", "--events"]);
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
    let house = House::scripted(Script::answering(|_| Reply::says("no checkpoint"))).await;
    let refused = house.pixir(&["workflow", "resume"]).exits(2).err;
    assert!(
        refused.contains("there is no run in this Workspace that is not complete"),
        "{refused}"
    );
    let step = json!({"id": "one", "role": "explorer", "task": "look"});
    house.write("flow.json", json!({"id": "flow", "steps": [step]}).to_string());
    let run = house.pixir(&["workflow", "run", "flow.json", "--json"]).exits(6).envelope();
    let id = run["output"]["workflow_id"].as_str().unwrap();
    let session = run["session_id"].as_str().unwrap();
    for part in
        [&id[..id.len() - 2], &id[id.len() - 6..], &session[session.len() - 6..], id, session]
    {
        let status = house.pixir(&["workflow", "status", part, "--json"]).exits(0).envelope();
        assert_eq!(status["output"]["workflow_id"], id, "{part}");
    }
    let resumed = house.pixir(&["workflow", "resume", "--json"]).exits(6).envelope();
    assert_eq!(resumed["output"]["workflow_id"], id);
}
