//! Subagents: tasks, answers, ends, and their records in the Logs.

mod afterwards;
mod ends;
mod given;
mod killed;
mod limits;
mod permission;
mod random;
mod roles;
pub mod scripted_family;
mod shown;
mod workspaces;

use pixir::SessionStatus;
use pixir::scripted::Reply;
use serde_json::json;

use crate::support::TestEnv;
use crate::support::test_env::{log_files, send_and_finish};
use scripted_family::{
    GO, always, check_family_logs, count_subagent_events, first_id, read_events, scripted_family,
    spawn_reply, subagent_events, text_reply, wait_reply,
};

#[tokio::test]
async fn a_child_does_its_task_and_the_wait_tells_what_it_came_to() {
    let script = scripted_family(
        [spawn_reply(&["write hello"], "worker"), wait_reply(), text_reply("All done.")],
        |_, step| match step {
            0 => Reply::calls("write", json!({"path": "hello.txt", "content": "hello\n"})),
            _ => Reply::says("I wrote hello.txt:1."),
        },
    );
    let env = TestEnv::with_script(script).await;
    let (conversation, status) = env.run_turn(GO).await;
    assert_eq!(status, SessionStatus::Done);
    assert_eq!(env.read("hello.txt"), "hello\n");
    let transcript = env.transcript(&conversation);
    let facts: Vec<&str> =
        transcript.lines().filter_map(|line| line.split_once(' ')).map(|(_, fact)| fact).collect();
    let place = |fact: &str| {
        let found = facts.iter().position(|own| own.starts_with(fact));
        found.unwrap_or_else(|| panic!("{fact}: {facts:#?}"))
    };
    let order = [
        "tool_call spawn_agent",
        "subagent_event queued worker queued",
        "subagent_event started worker running",
        "subagent_event finished worker completed",
        "assistant_message final",
    ];
    assert!(order.map(place).is_sorted(), "{facts:#?}");
    assert!(
        place(order[1]) < place("tool_result ok=true \"sub_"),
        "it returns when that is recorded"
    );
    assert!(place(order[3]) < place("tool_result ok=true \"All 1 completed"), "{facts:#?}");
    let requests = env.requests();
    let last =
        requests.iter().rfind(|request| scripted_family::last_task(request).is_none()).unwrap();
    let output = last.outputs().last().copied().unwrap();
    assert!(
        output.contains("All 1 completed.") && output.contains("I wrote hello.txt:1."),
        "{output}"
    );
    let life = subagent_events(conversation.log_path()).pop().unwrap();
    let child = life["child_session_id"].as_str().unwrap();
    assert!(output.contains(&format!("[Log {child} seq {}]", life["child_seq"])), "{output}");
    let asides: Vec<&str> =
        last.user_texts().into_iter().filter(|text| text.starts_with("[Subagent")).collect();
    assert!(asides.is_empty(), "what the wait told is not told twice: {asides:?}");
    assert_eq!(check_family_logs(&env.workspace()), 1);
}

#[tokio::test]
async fn a_child_knows_its_task_its_role_and_itself_and_nothing_else() {
    let script = scripted_family(
        [spawn_reply(&["look around"], "explorer"), wait_reply(), text_reply("ok")],
        |_, _| Reply::says("Nothing to see."),
    );
    let env = TestEnv::with_script(script).await;
    env.write("AGENTS.md", "Use tabs.");
    let (conversation, _) = env.run_turn(GO).await;
    let requests = env.requests();
    let child =
        requests.iter().find(|request| scripted_family::last_task(request).is_some()).unwrap();
    assert_eq!(child.user_texts(), ["look around"]);
    let text = serde_json::to_string(child.input()).unwrap();
    for words in ["Use tabs.", "Role: explorer", "evidence as path:line", "read_only"] {
        assert!(text.contains(words), "{words}: {text}");
    }
    let parent = conversation.id().to_string();
    assert!(text.contains(&format!(r#"\"parent_session_id\": \"{parent}\""#)), "{text}");
    let names = |request: &pixir::scripted::ReceivedRequest| {
        let tools = request.body["tools"].as_array().unwrap().clone();
        tools.iter().filter_map(|tool| tool["name"].as_str().map(str::to_owned)).collect::<Vec<_>>()
    };
    let own = names(child);
    for withheld in ["write", "edit", "apply_patch", "merge_child"] {
        assert!(!own.iter().any(|name| name == withheld), "{own:?}");
    }
    assert!(own.contains(&"spawn_agent".to_owned()), "{own:?}");
    assert_eq!(requests[0].body["instructions"], child.body["instructions"]);
    check_family_logs(&env.workspace());
}

#[tokio::test]
async fn the_end_of_a_child_starts_no_turn_and_comes_with_the_next_prompt() {
    let script = scripted_family(
        [spawn_reply(&["look"], "explorer"), text_reply("Started."), text_reply("I see.")],
        |_, _| Reply::says("Found it in a.rs:7."),
    );
    let env = TestEnv::with_script(script).await;
    let harness = env.harness();
    let conversation = env.start_with(&harness).await;
    assert_eq!(send_and_finish(&conversation, GO).await, SessionStatus::Done);
    harness.wait_for_children(&conversation).await;
    let before = env.requests().len();
    let life = subagent_events(conversation.log_path()).pop().unwrap();
    assert_eq!(
        (&life["event"], &life["summary"]),
        (&json!("finished"), &json!("Found it in a.rs:7."))
    );
    tokio::task::yield_now().await;
    assert_eq!(env.requests().len(), before, "no Turn was started");
    send_and_finish(&conversation, "and?").await;
    let last = env.requests().pop().unwrap();
    let texts = last.user_texts();
    assert!(texts.iter().any(|text| text.contains("Found it in a.rs:7.")), "{texts:?}");
    check_family_logs(&env.workspace());
}

#[tokio::test]
async fn a_child_that_ended_gets_more_input_and_remembers() {
    let script = scripted_family(
        [
            spawn_reply(&["first"], "worker"),
            wait_reply(),
            Box::new(|request| {
                Reply::calls("send_input", json!({"id": first_id(request), "text": "second"}))
            }),
            wait_reply(),
            text_reply("ok"),
        ],
        |task, _| Reply::says(&format!("did {task}")),
    );
    let env = TestEnv::with_script(script).await;
    let (conversation, status) = env.run_turn(GO).await;
    assert_eq!(status, SessionStatus::Done);
    let requests = env.requests();
    let again =
        requests.iter().rfind(|request| scripted_family::last_task(request).is_some()).unwrap();
    assert_eq!(again.user_texts(), ["first", "second"]);
    assert!(serde_json::to_string(again.input()).unwrap().contains("did first"));
    let kinds: Vec<_> = subagent_events(conversation.log_path())
        .iter()
        .map(|life| life["event"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(
        kinds,
        ["queued", "starting", "started", "finished", "input", "started", "finished"]
    );
    assert_eq!(log_files(&env.workspace()).len(), 2, "it is the same Session");
    check_family_logs(&env.workspace());
}

#[tokio::test]
async fn after_a_restart_a_child_goes_on_and_what_was_lost_is_said() {
    let script = scripted_family(
        [
            spawn_reply(&["first"], "worker"),
            wait_reply(),
            text_reply("ok"),
            Box::new(|request| {
                Reply::calls("send_input", json!({"id": first_id(request), "text": "second"}))
            }),
            wait_reply(),
            always(Reply::calls("list_agents", json!({}))),
            text_reply("done"),
        ],
        |task, _| Reply::says(&format!("did {task}")),
    );
    let env = TestEnv::with_script(script).await;
    let (conversation, _) = env.run_turn(GO).await;
    let id = conversation.id().clone();
    let path = conversation.log_path().to_owned();
    conversation.close().await;
    // A Log as after a kill while a child was running.
    let lost = json!({"event": "queued", "subagent_id": "sub_00000000ff", "agent": "worker",
        "status": "queued", "permission_mode": "auto", "depth": 1});
    scripted_family::append(&path, "subagent_event", &lost);
    let again = env.resume(&id).await;
    let detached = subagent_events(&path).pop().unwrap();
    assert_eq!(
        (&detached["event"], &detached["subagent_id"]),
        (&json!("detached"), &json!("sub_00000000ff"))
    );
    assert!(detached["next_actions"].to_string().contains("spawn it again"), "{detached}");
    assert_eq!(send_and_finish(&again, "go on").await, SessionStatus::Done);
    let listed = env.requests().pop().unwrap();
    let listed = listed.outputs().join("\n");
    assert!(listed.contains("sub_00000000ff (worker) detached"), "{listed}");
    assert!(listed.contains("\n  did second\n"), "its result is known after a restart: {listed}");
    assert_eq!(count_subagent_events(&path, "finished"), 2);
    assert_eq!(check_family_logs(&env.workspace()), 2);
}

#[tokio::test]
async fn a_spawn_request_can_be_validated_and_a_bad_one_starts_nothing() {
    let script = scripted_family(
        [
            always(Reply::calls("spawn_agent", json!({"task": "x", "validate_only": true}))),
            always(Reply::calls("spawn_agent", json!({"task": "x", "role": "wizard"}))),
            always(Reply::calls("spawn_agent", json!({"task": "x", "workspace": "elsewhere"}))),
            always(Reply::calls("wait_agent", json!({"ids": ["sub_nobody"]}))),
            wait_reply(),
            text_reply("ok"),
        ],
        |_, _| Reply::says("never"),
    );
    let env = TestEnv::with_script(script).await;
    let (conversation, _) = env.run_turn(GO).await;
    let results: Vec<String> = read_events(conversation.log_path())
        .iter()
        .filter(|event| event["type"] == "tool_result")
        .map(|event| match event["data"]["error"]["kind"].as_str() {
            Some(kind) => kind.to_owned(),
            None => event["data"]["details"]["plan"]["permission_mode"].to_string(),
        })
        .collect();
    assert_eq!(results, [r#""auto""#, "not_found", "invalid_args", "not_found", "null"]);
    let output = env.requests()[1].outputs().join("\n");
    assert!(output.contains(r#""permission_mode":"auto""#), "the model reads the plan: {output}");
    assert!(subagent_events(conversation.log_path()).is_empty());
    assert_eq!(log_files(&env.workspace()).len(), 1);
}

#[tokio::test]
async fn a_review_ends_with_a_verdict_on_record() {
    let verdict = r#"One thing. {"verdict": "request_changes", "findings": [], "limitations": []}"#;
    let script = scripted_family(
        [spawn_reply(&["review"], "reviewer"), wait_reply(), text_reply("ok")],
        move |_, _| Reply::says(verdict),
    );
    let env = TestEnv::with_script(script).await;
    let (conversation, _) = env.run_turn(GO).await;
    let life = subagent_events(conversation.log_path()).pop().unwrap();
    assert_eq!(life["verdict"], "request_changes");
}
