//! Background commands: they outlive their calls but not their Session, and their output is shown once.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::Duration;

use pixir::scripted::{ModelScript, Reply};
use pixir::{
    Conversation, Ephemeral, EventKind, PermissionAnswer, PermissionMode, SessionId, SessionStatus,
    UserInput,
};
use serde_json::{Value, json};

use crate::support::marked_processes::{find_marked_processes, new_mark, wait_until_gone};
use crate::support::test_env::{
    DEADLINE, listen_until, send_and_finish, subscribe_from_now, wait_for_turn_end,
};
use crate::support::{BinaryEnv, TestEnv};

/// One step of the scripted model.
enum ModelStep {
    Call(&'static str, Value),
    /// Calls `bash_output` for a command until its output contains a text.
    Until(&'static str, &'static str),
    Say(&'static str),
}

fn start(command: &str) -> ModelStep {
    ModelStep::Call("bash", json!({"command": command, "background": true}))
}
fn output(id: &str) -> ModelStep {
    ModelStep::Call("bash_output", json!({ "id": id }))
}
fn input(id: &str, text: &str) -> ModelStep {
    ModelStep::Call("bash_input", json!({"id": id, "text": text}))
}
fn stop(id: &str) -> ModelStep {
    ModelStep::Call("bash_stop", json!({ "id": id }))
}

/// A test environment whose model takes these steps, with as many calls of `bash_output` as they need.
async fn new_test_env(steps: impl IntoIterator<Item = ModelStep>) -> TestEnv {
    let state = Mutex::new((steps.into_iter().collect::<VecDeque<_>>(), 0));
    TestEnv::with_script(ModelScript::answering(move |request| {
        let (steps, since) = &mut *state.lock().unwrap();
        let outputs = request.outputs();
        loop {
            match steps.front() {
                Some(ModelStep::Until(id, text)) => {
                    if !outputs[*since..].concat().contains(text) {
                        return Reply::calls("bash_output", json!({"id": id, "wait_ms": 20_000}));
                    }
                    steps.pop_front();
                }
                Some(ModelStep::Call(name, args)) => {
                    *since = outputs.len();
                    let reply = Reply::calls(name, args.clone());
                    steps.pop_front();
                    return reply;
                }
                Some(ModelStep::Say(text)) => {
                    let reply = Reply::says(text);
                    steps.pop_front();
                    return reply;
                }
                None => return Reply::says("There is nothing left to do."),
            }
        }
    }))
    .await
}

/// The tool results in a Session's Log.
fn results(conversation: &Conversation) -> Vec<Value> {
    let log = std::fs::read_to_string(conversation.log_path()).unwrap();
    let events = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    events
        .filter(|event| event["type"] == "tool_result")
        .map(|event| event["data"].clone())
        .collect()
}

fn texts(results: &[Value]) -> String {
    results.iter().map(|result| result["output"].as_str().unwrap()).collect::<Vec<_>>().join("\n")
}

/// The output of commands, without Pixir's own lines.
fn printed(results: &[Value]) -> String {
    let is_ours = |line: &&str| line.starts_with('[') || *line == "(no new output)";
    texts(results).lines().filter(|line| !is_ours(line)).collect::<Vec<_>>().join("\n")
}

#[tokio::test]
async fn a_command_is_started_watched_typed_to_and_ended() {
    let env = new_test_env([
        start("echo ready; while read -r line; do echo \"got $line\"; done; echo bye; exit 3"),
        ModelStep::Until("b1", "ready"),
        input("b1", "one\ntwo\n"),
        ModelStep::Until("b1", "got two"),
        output("b1"),
        ModelStep::Call("bash_input", json!({"id": "b1", "text": "three", "close": true})),
        ModelStep::Until("b1", "exit code"),
        ModelStep::Call("bash_output", json!({"id": "b1", "all": true})),
        input("b1", "four\n"),
        stop("b1"),
        output("b7"),
        ModelStep::Say("Done."),
    ])
    .await;
    let (conversation, status) = env.run_turn("talk to it").await;
    assert_eq!(status, SessionStatus::Done);
    let results = results(&conversation);
    assert_eq!(results[0]["details"]["background"], "b1");
    let from_the_end = |place: usize| &results[results.len() - place];
    // The shell's loop condition does not read a last line without a newline.
    assert_eq!(
        from_the_end(4)["output"],
        "ready\ngot one\ngot two\nbye\n[b1 ended: exit code 3]",
        "everything once more"
    );
    let details = &from_the_end(4)["details"];
    assert_eq!((&details["running"], &details["exit_code"]), (&json!(false), &json!(3)));
    assert_eq!(from_the_end(3)["error"]["kind"], "command_failed", "nobody reads any more");
    assert_eq!(from_the_end(2)["output"], "(no new output)\n[b1 ended: exit code 3]");
    assert_eq!(from_the_end(1)["error"]["kind"], "not_found");
    let looked = &results[..results.len() - 4];
    assert_eq!(printed(looked), "ready\ngot one\ngot two\nbye", "and before that each line once");
}

#[tokio::test]
async fn a_secret_in_two_pieces_is_redacted_although_output_is_read_between_them() {
    let env = new_test_env([
        start("printf 'it is secret-of-'; read -r go; echo test-env; echo over"),
        ModelStep::Until("b1", "it is"),
        output("b1"),
        input("b1", "go\n"),
        ModelStep::Until("b1", "exit code 0"),
        ModelStep::Say("Done."),
    ])
    .await;
    let (conversation, _) = env.run_turn("go").await;
    let all = texts(&results(&conversation));
    assert!(all.contains("[redacted:STORY_TOKEN]"), "{all}");
    assert!(!all.contains("secret-of-"), "not even the first half of the secret: {all}");
}

#[tokio::test]
async fn what_was_dropped_is_counted_and_the_whole_is_on_disk() {
    let env = new_test_env([
        start("head -c 3000000 /dev/zero | tr '\\0' 'x'; echo; echo end"),
        ModelStep::Until("b1", "exit code 0"),
        ModelStep::Call("bash_output", json!({"id": "b1", "all": true})),
        ModelStep::Say("Done."),
    ])
    .await;
    let (conversation, _) = env.run_turn("go").await;
    let results = results(&conversation);
    let last = results.last().unwrap();
    let text = last["output"].as_str().unwrap();
    assert!(
        text.len() <= 16 * 1024 && text.contains("bytes before this are no longer kept"),
        "{text}"
    );
    let dropped = last["details"]["dropped_bytes"].as_u64().unwrap();
    assert!((1_500_000..2_100_000).contains(&dropped), "{dropped}");
    let path = last["details"]["output_path"].as_str().unwrap();
    assert!(text.contains(path), "{text}");
    assert_eq!(std::fs::metadata(path).unwrap().len(), 3_000_005);
}

#[tokio::test]
async fn there_are_so_many_and_no_more() {
    let mut env = new_test_env([
        start("sleep 300"),
        start("sleep 300"),
        start("sleep 300"),
        stop("b1"),
        start("echo third"),
        ModelStep::Until("b3", "third"),
        ModelStep::Say("Done."),
    ])
    .await;
    env.config.bash.max_background = 2;
    let (conversation, _) = env.run_turn("go").await;
    let results = results(&conversation);
    let refused = &results[2]["error"];
    assert_eq!(refused["kind"], "command_failed");
    assert!(
        refused["details"]["next_actions"].to_string().contains("bash_stop: b1, b2"),
        "{refused}"
    );
    assert_eq!(results[3]["ok"], true, "stopping is what was asked for");
    assert_eq!(results[3]["output"], "(no new output)\n[b1 ended: stopped, killed by signal 15]");
    assert!(texts(&results[4..]).contains("third"));
}

#[tokio::test]
async fn a_deadline_is_kept_only_where_one_was_given() {
    let mut env = new_test_env([
        ModelStep::Call(
            "bash",
            json!({"command": "echo a; sleep 300", "background": true, "timeout_ms": 400}),
        ),
        start("read -r go; echo went on"),
        ModelStep::Until("b1", "timed out after 400 ms"),
        input("b2", "go\n"),
        ModelStep::Until("b2", "exit code 0"),
        ModelStep::Say("Done."),
    ])
    .await;
    env.config.bash.timeout = Duration::from_millis(100);
    env.config.bash.max_timeout = Duration::from_millis(100);
    let (conversation, _) = env.run_turn("go").await;
    assert!(texts(&results(&conversation)).contains("went on"));
}

#[tokio::test]
async fn looking_again_and_again_is_no_doom_loop() {
    let looks = (0..7).map(|_| output("b1"));
    let env = new_test_env(
        [start("sleep 300")].into_iter().chain(looks).chain([stop("b1"), ModelStep::Say("Done.")]),
    )
    .await;
    let (conversation, status) = env.run_turn("go").await;
    assert_eq!(status, SessionStatus::Done);
    let results = results(&conversation);
    assert!(results.iter().all(|result| result["ok"] == true), "{results:?}");
    assert_eq!(results[7]["output"], "(no new output)\n[b1 runs]");
}

fn marked_sleep(mark: &str) -> ModelStep {
    start(&format!("setsid bash -c 'exec -a {mark} sleep 300' & exec -a {mark} sleep 300"))
}

/// Waits until this many processes with the mark have become `sleep`.
async fn wait_for_sleepers(mark: &str, count: usize) {
    let look = async {
        while find_marked_processes(mark).iter().filter(|line| line.ends_with(" 300 ")).count()
            < count
        {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(DEADLINE, look).await.expect("it runs in time");
}

#[tokio::test]
async fn an_interrupt_ends_what_its_turn_started_and_spares_what_was_there_before() {
    let early = new_mark();
    let late = new_mark();
    let env = new_test_env([
        marked_sleep(&early),
        ModelStep::Say("It runs."),
        marked_sleep(&late),
        ModelStep::Call("bash", json!({"command": "touch begun; sleep 300"})),
        output("b1"),
        output("b2"),
        ModelStep::Say("One of them."),
    ])
    .await;
    let conversation = env.start().await;
    send_and_finish(&conversation, "start one").await;
    conversation.send(UserInput { text: "and another".into() }).await.unwrap();
    wait_for_sleepers(&late, 2).await;
    let begun = env.workspace().join("begun");
    while !begun.exists() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    conversation.interrupt().await.unwrap();
    assert_eq!(wait_for_turn_end(&conversation).await, SessionStatus::Interrupted);
    wait_until_gone(&late, "of the interrupted Turn").await;
    wait_for_sleepers(&early, 2).await;
    send_and_finish(&conversation, "which of them run?").await;
    let results = results(&conversation);
    let last = &results[results.len() - 2..];
    assert_eq!(last[0]["output"], "(no new output)\n[b1 runs]");
    let ended = last[1]["output"].as_str().unwrap();
    assert!(ended.contains("[b2 ended: stopped with the Turn that started it"), "{ended}");
    drop(conversation);
    wait_until_gone(&early, "of the Session that ended").await;
}

#[tokio::test]
async fn an_interrupted_start_leaves_nothing() {
    let mark = new_mark();
    let env = new_test_env([marked_sleep(&mark), ModelStep::Say("never")]).await;
    let conversation = env.start().await;
    let mut listener = subscribe_from_now(&conversation);
    conversation.send(UserInput { text: "go".into() }).await.unwrap();
    listen_until(&mut listener, |event| {
        matches!(
            event.kind(),
            EventKind::Ephemeral(Ephemeral::Status(SessionStatus::Working { .. }))
        )
    })
    .await;
    conversation.interrupt().await.unwrap();
    assert_eq!(wait_for_turn_end(&conversation).await, SessionStatus::Interrupted);
    wait_until_gone(&mark, "of the interrupted call").await;
}

#[tokio::test]
async fn the_end_of_the_session_is_the_end_of_its_commands_and_resume_says_so() {
    let mark = new_mark();
    let env = new_test_env([
        marked_sleep(&mark),
        start("exit 4"),
        ModelStep::Until("b2", "exit code 4"),
        ModelStep::Say("They run."),
        output("b1"),
        output("b2"),
        input("b1", "x\n"),
        stop("b1"),
        start("echo anew"),
        ModelStep::Until("b3", "exit code 0"),
        ModelStep::Say("They ran."),
    ])
    .await;
    let (conversation, _) = env.run_turn("go").await;
    wait_for_sleepers(&mark, 2).await;
    let id: SessionId = conversation.id().clone();
    let before = results(&conversation).len();
    drop(conversation);
    wait_until_gone(&mark, "of the Session that ended").await;
    let conversation = env.resume(&id).await;
    send_and_finish(&conversation, "what became of them?").await;
    let results = results(&conversation).split_off(before);
    let ended = "(its output is no longer kept)\n[b1 ended with the process that ran it]";
    assert_eq!((&results[0]["ok"], &results[0]["output"]), (&json!(true), &json!(ended)));
    assert_eq!(results[1]["output"], "(its output is no longer kept)\n[b2 ended: exit code 4]");
    assert_eq!(results[2]["error"]["kind"], "command_failed");
    assert_eq!(results[3]["output"], ended, "there is nothing left to stop");
    assert_eq!(results[4]["details"]["background"], "b3", "numbers are never given twice");
}

#[tokio::test]
async fn a_conversation_that_reattaches_finds_the_commands() {
    let env = new_test_env([
        start("read -r line; echo \"got $line\""),
        ModelStep::Say("It waits."),
        input("b1", "news\n"),
        ModelStep::Until("b1", "got news"),
        ModelStep::Say("It answered."),
    ])
    .await;
    let harness = env.harness();
    let open = |session| pixir::StartOptions {
        workspace: env.workspace(),
        session,
        can_ask: false,
        mcp_servers: Vec::new(),
    };
    let first = harness.start(open(pixir::SessionTarget::New)).await.unwrap();
    send_and_finish(&first, "start it").await;
    let second =
        harness.start(open(pixir::SessionTarget::Resume(first.id().clone()))).await.unwrap();
    drop(first);
    send_and_finish(&second, "talk to it").await;
    assert!(texts(&results(&second)).contains("got news"));
}

#[tokio::test]
async fn typing_is_asked_for_while_looking_and_stopping_are_not() {
    let env = new_test_env([
        start("touch begun; read -r line; echo \"got $line\""),
        output("b1"),
        input("b1", "rm -rf\n"),
        stop("b1"),
        ModelStep::Say("Done."),
    ])
    .await
    .in_ask_mode();
    let conversation = env.start().await;
    let mut listener = subscribe_from_now(&conversation);
    conversation.send(UserInput { text: "go".into() }).await.unwrap();
    let mut asked = Vec::new();
    for answer in [PermissionAnswer::Once, PermissionAnswer::No] {
        let events =
            listen_until(&mut listener, |event| event.type_name() == "permission_request").await;
        let EventKind::Ephemeral(Ephemeral::PermissionRequest(request)) =
            events.last().unwrap().kind()
        else {
            unreachable!()
        };
        asked.push(request.summary.clone());
        conversation.answer(&request.call_id, answer).await.unwrap();
    }
    assert_eq!(wait_for_turn_end(&conversation).await, SessionStatus::Done);
    assert_eq!(asked[1], "type into b1 (touch begun; read -r line; echo \"got $line\"): rm -rf");
    let all = texts(&results(&conversation));
    assert!(!all.contains("got rm"), "{all}");
}

#[tokio::test]
async fn a_background_command_is_confined_like_any_other() {
    let mut env = new_test_env([
        start("echo x > file && echo wrote; touch /etc/x && echo outside; echo tried"),
        ModelStep::Until("b1", "ended"),
        ModelStep::Say("Done."),
    ])
    .await;
    env.config.permission_mode = PermissionMode::ReadOnly;
    let (conversation, _) = env.run_turn("go").await;
    let all = texts(&results(&conversation));
    assert!(all.contains("tried") && !all.contains("wrote") && !all.contains("outside"), "{all}");
    assert!(!env.workspace().join("file").exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_ends_takes_its_commands_along_and_shows_their_handles() {
    let mark = BinaryEnv::new_mark();
    let command = format!("exec -a {mark} sleep 300");
    let script = ModelScript::answering(move |request| match request.outputs().len() {
        0 => Reply::calls("bash", json!({"command": command, "background": true})),
        1 => Reply::calls("bash_output", json!({"id": "b1"})),
        _ => Reply::says("It runs."),
    });
    let binary_env = BinaryEnv::new(mark, script).await;
    tokio::task::block_in_place(|| {
        let ended = binary_env.run(&["begin now"]);
        ended.expect_code(0);
        assert_eq!(ended.stdout, "It runs.\n");
        assert!(ended.stderr.contains("→ b1: ok\nbash_output b1: ok\n"), "{}", ended.stderr);
        binary_env.assert_nothing_survives();
    });
}
