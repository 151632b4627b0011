//! Permissions: questions, remembered answers, the binding of answers, and refusals.

use std::sync::Arc;

use pixir::scripted::{ModelScript, Reply};
use pixir::{
    Conversation, Ephemeral, Event, EventKind, ListenFrom, Listener, PermissionAnswer,
    PermissionMode, PermissionRequest, PermissionResponse, SessionStatus, SessionTarget, UserInput,
    WriteGlobs,
};
use serde_json::{Value, json};

use crate::support::TestEnv;
use crate::support::test_env::{
    DEADLINE, listen_until, log_files, send_and_finish, subscribe_from_now, wait_for_turn_end,
};

/// A model that runs these commands one after the other, in every Turn, and then answers.
pub fn running(commands: &[&str]) -> ModelScript {
    let commands: Vec<String> = commands.iter().map(|command| (*command).to_owned()).collect();
    ModelScript::answering(move |request| match commands.get(request.outputs().len()) {
        Some(command) => Reply::calls("bash", json!({ "command": command })),
        None => Reply::says("done"),
    })
}

fn permission_request(event: &Event) -> Option<&PermissionRequest> {
    match event.kind() {
        EventKind::Ephemeral(Ephemeral::PermissionRequest(request)) => Some(&**request),
        _ => None,
    }
}

async fn next_question(listener: &mut Listener) -> PermissionRequest {
    let events = listen_until(listener, |event| permission_request(event).is_some()).await;
    events.last().and_then(|event| permission_request(event)).unwrap().clone()
}

/// Runs a Turn, answers every question by the function, and gives the questions.
pub async fn turn_with(
    conversation: &Conversation,
    text: &str,
    mut answer: impl FnMut(&PermissionRequest) -> PermissionResponse,
) -> Vec<PermissionRequest> {
    let mut listener = subscribe_from_now(conversation);
    conversation.send(UserInput { text: text.to_owned() }).await.unwrap();
    let mut questions = Vec::new();
    loop {
        let is_end = |event: &Event| matches!(event.kind(), EventKind::Ephemeral(Ephemeral::Status(status)) if status.is_terminal());
        let events = listen_until(&mut listener, |event| {
            permission_request(event).is_some() || is_end(event)
        })
        .await;
        let last: &Arc<Event> = events.last().unwrap();
        let Some(request) = permission_request(last) else { return questions };
        conversation.answer(&request.call_id, answer(request)).await.unwrap();
        questions.push(request.clone());
    }
}

fn decisions(env: &TestEnv, conversation: &Conversation) -> Vec<String> {
    let transcript = env.transcript(conversation);
    let lines = transcript.lines().filter(|line| line.contains("permission_decision"));
    lines.map(|line| line.split("permission_decision ").nth(1).unwrap().to_owned()).collect()
}

#[tokio::test]
async fn once_is_once_and_the_decision_says_who_answered() {
    let env = TestEnv::with_script(running(&["touch x", "touch x"])).await.in_ask_mode();
    let conversation = env.start().await;
    let questions = turn_with(&conversation, "go", |_| PermissionAnswer::Once.into()).await;
    assert_eq!(questions.len(), 2);
    let question = &questions[0];
    assert_eq!((question.tool.as_str(), question.network), ("bash", false));
    assert_eq!(question.command.as_ref().unwrap().parts, ["touch x"]);
    assert_eq!(question.directory, env.workspace().canonicalize().unwrap().to_str().unwrap());
    assert_eq!(question.prefix.as_deref(), Some("touch"));
    assert_eq!(decisions(&env, &conversation), ["allow ask by user", "allow ask by user"]);
    let log = std::fs::read_to_string(&log_files(&env.workspace())[0]).unwrap();
    assert!(log.contains(&format!(r#""answer":"once","digest":"{}""#, question.digest)), "{log}");
    assert!(env.workspace().join("x").exists());
}

#[tokio::test]
async fn always_in_this_session_ends_with_the_session() {
    let env = TestEnv::with_script(running(&["touch x", "touch y", "touch x"])).await.in_ask_mode();
    let conversation = env.start().await;
    let questions = turn_with(&conversation, "go", |_| PermissionAnswer::Session.into()).await;
    assert_eq!(questions.len(), 2, "the identical call is not asked twice");
    assert!(turn_with(&conversation, "again", |_| PermissionAnswer::No.into()).await.is_empty());
    let other = env.start().await;
    assert_eq!(turn_with(&other, "go", |_| PermissionAnswer::No.into()).await.len(), 3);
    assert!(!env.home().join("permissions.json").exists());
}

#[tokio::test]
async fn always_in_this_project_lasts_until_it_is_forgotten() {
    let env = TestEnv::with_script(running(&["touch x"])).await.in_ask_mode();
    let first = env.start().await;
    assert_eq!(turn_with(&first, "go", |_| PermissionAnswer::Project.into()).await.len(), 1);
    let second = env.start().await;
    assert!(turn_with(&second, "go", |_| PermissionAnswer::No.into()).await.is_empty());
    assert_eq!(decisions(&env, &second), ["allow ask by project"]);
    assert!(!env.workspace().join(".pixir/permissions.json").exists(), "outside the Workspace");
    std::fs::remove_file(env.home().join("permissions.json")).unwrap();
    let third = env.start().await;
    assert_eq!(turn_with(&third, "go", |_| PermissionAnswer::No.into()).await.len(), 1);
}

#[tokio::test]
async fn a_prefix_covers_simple_commands_and_no_others() {
    let commands = ["touch x", "touch y", "touch z; rm x", "touch $(rm x)", "touch z > out"];
    let env = TestEnv::with_script(running(&commands)).await.in_ask_mode();
    env.write("x", "precious");
    let conversation = env.start().await;
    let mut first = true;
    let questions = turn_with(&conversation, "go", |request| {
        let answer = if std::mem::take(&mut first) {
            PermissionAnswer::Prefix
        } else {
            PermissionAnswer::No
        };
        assert_eq!(request.prefix.is_some(), answer == PermissionAnswer::Prefix);
        answer.into()
    })
    .await;
    let asked: Vec<&str> =
        questions.iter().map(|asked| asked.command.as_ref().unwrap().text.as_str()).collect();
    assert_eq!(asked, ["touch x", "touch z; rm x", "touch $(rm x)", "touch z > out"]);
    assert_eq!(decisions(&env, &conversation)[1], "allow ask by prefix");
    assert!(env.workspace().join("y").exists() && env.workspace().join("x").exists());
}

#[tokio::test]
async fn a_question_shows_the_diff_and_what_runs_is_what_was_shown() {
    let write = || Reply::calls("write", json!({"path": "x", "content": "new\n"}));
    let env = TestEnv::with_replies([write(), write(), Reply::says("ok")]).await.in_ask_mode();
    env.write("x", "old\n");
    let conversation = env.start().await;
    let mut listener = subscribe_from_now(&conversation);
    conversation.send(UserInput { text: "go".into() }).await.unwrap();
    let question = next_question(&mut listener).await;
    assert_eq!(question.paths, ["x"]);
    let diff = question.diff.unwrap();
    assert!(diff.contains("-old") && diff.contains("+new"), "{diff}");
    // Another program changes the file before the user answers.
    env.write("x", "important\n");
    conversation.answer(&question.call_id, PermissionAnswer::Once).await.unwrap();
    let question = next_question(&mut listener).await;
    assert_eq!(env.read("x"), "important\n", "the first call was refused");
    assert!(question.diff.unwrap().contains("-important"));
    conversation.answer(&question.call_id, PermissionAnswer::Once).await.unwrap();
    assert_eq!(wait_for_turn_end(&conversation).await, SessionStatus::Done);
    assert_eq!(env.read("x"), "new\n");
    insta::assert_snapshot!(env.transcript(&conversation), @r#"
    0 session_started build ask
    1 user_message "go"
    2 provider_usage completed retries=0
    3 tool_call write {"path":"x","content":"new\n"}
    4 permission_decision allow ask by user
    5 tool_result error file_changed
    6 provider_usage completed retries=0
    7 tool_call write {"path":"x","content":"new\n"}
    8 permission_decision allow ask by user
    9 tool_result ok=true "wrote x, 4 bytes (+1 -1)"
    10 provider_usage completed retries=0
    11 assistant_message final "ok"
    "#);
}

#[tokio::test]
async fn an_approval_is_bound_to_where_a_path_leads() {
    let env = TestEnv::with_script(ModelScript::answering(|request| {
        if request.outputs().len() < request.user_texts().len() {
            return Reply::calls("write", json!({"path": "link/x", "content": "1"}));
        }
        Reply::says("ok")
    }))
    .await
    .in_ask_mode();
    let link = env.workspace().join("link");
    let lead_to = |folder: &str| {
        std::fs::remove_file(&link).ok();
        std::fs::create_dir(env.workspace().join(folder)).ok();
        std::os::unix::fs::symlink(folder, &link).unwrap();
    };
    lead_to("a");
    let first = turn_with(&env.start().await, "go", |_| PermissionAnswer::Project.into()).await;
    assert_eq!(first[0].paths, ["a/x"]);
    assert!(turn_with(&env.start().await, "go", |_| PermissionAnswer::No.into()).await.is_empty());
    lead_to("b");
    let other = turn_with(&env.start().await, "go", |_| PermissionAnswer::No.into()).await;
    assert_eq!(other[0].paths, ["b/x"], "the same words mean another file");
    assert!(!env.workspace().join("b/x").exists());
}

#[tokio::test]
async fn words_with_a_no_reach_the_model() {
    let env = TestEnv::with_script(running(&["rm x"])).await.in_ask_mode();
    let conversation = env.start().await;
    let response = PermissionResponse {
        answer: PermissionAnswer::No,
        message: Some("move it to the attic".into()),
    };
    turn_with(&conversation, "go", |_| response.clone()).await;
    let output = env.requests()[1].body_text.clone();
    assert!(output.contains("they say: move it to the attic"), "{output}");
    let log = std::fs::read_to_string(&log_files(&env.workspace())[0]).unwrap();
    assert!(log.contains(r#""words":"move it to the attic""#));
}

#[tokio::test]
async fn an_interrupt_ends_a_turn_that_waits_for_an_answer() {
    let env = TestEnv::with_script(running(&["rm x"])).await.in_ask_mode();
    let conversation = env.start().await;
    let mut listener = subscribe_from_now(&conversation);
    conversation.send(UserInput { text: "go".into() }).await.unwrap();
    let question = next_question(&mut listener).await;
    conversation.interrupt().await.unwrap();
    assert_eq!(wait_for_turn_end(&conversation).await, SessionStatus::Interrupted);
    let resolved =
        listen_until(&mut listener, |event| event.type_name() == "permission_resolved").await;
    assert!(!resolved.is_empty());
    assert!(conversation.answer(&question.call_id, PermissionAnswer::Once).await.is_err());
    insta::assert_snapshot!(env.transcript(&conversation), @r#"
    0 session_started build ask
    1 user_message "go"
    2 provider_usage completed retries=0
    3 tool_call bash {"command":"rm x"}
    4 tool_result error orphan_tool_call
    5 turn_failed interrupted interrupted
    "#);
}

#[tokio::test]
async fn a_client_that_comes_back_is_asked_again_and_the_first_answer_counts() {
    let env = TestEnv::with_script(running(&["touch x"])).await.in_ask_mode();
    let harness = env.harness();
    let start = |session| pixir::StartOptions {
        workspace: env.workspace(),
        session,
        can_ask: true,
        mcp_servers: Vec::new(),
    };
    let conversation = harness.start(start(SessionTarget::New)).await.unwrap();
    let mut first = subscribe_from_now(&conversation);
    conversation.send(UserInput { text: "go".into() }).await.unwrap();
    let question = next_question(&mut first).await;
    let again =
        harness.start(start(SessionTarget::Resume(conversation.id().clone()))).await.unwrap();
    let mut second = again.subscribe(ListenFrom::Start);
    assert_eq!(next_question(&mut second).await, question);
    again.answer(&question.call_id, PermissionAnswer::Once).await.unwrap();
    assert!(conversation.answer(&question.call_id, PermissionAnswer::No).await.is_err());
    tokio::time::timeout(DEADLINE, conversation.wait_until_idle()).await.unwrap().unwrap();
    assert!(env.workspace().join("x").exists());
}

/// A program with a harmless name that writes: the kernel prevents it.
#[tokio::test]
async fn a_plain_look_runs_where_nothing_can_be_written() {
    let env = TestEnv::with_script(running(&["ls", "cat x | ls", "ls > /dev/null", "touch x; ls"]))
        .await
        .in_ask_mode();
    env.install_program("ls", "echo x > written && echo wrote; echo x > /tmp/y && echo scratch");
    let conversation = env.start().await;
    let mut seen = Vec::new();
    let written = env.workspace().join("written");
    let questions = turn_with(&conversation, "go", |_| {
        seen.push(written.exists());
        PermissionAnswer::Once.into()
    })
    .await;
    assert_eq!(questions.len(), 1, "reading commands need no permission");
    assert_eq!(seen, [false], "the commands wrote nothing");
    assert!(written.exists(), "the permitted command may write");
    let request = env.requests().last().unwrap().clone();
    let outputs = request.outputs();
    for look in &outputs[..2] {
        assert!(!look.contains("wrote") && look.contains("scratch"), "{look}");
        assert!(look.contains("written: "), "the refusal is reported: {look}");
    }
    assert!(outputs[3].contains("wrote"), "{}", outputs[3]);
    assert_eq!(decisions(&env, &conversation)[0], "allow plainly_read_only by parser");
}

/// Input for a background command is bound to that command.
#[tokio::test]
async fn what_may_be_typed_for_good_is_bound_to_the_command() {
    let asking = async |command: &'static str, env: Option<TestEnv>| {
        let script = ModelScript::answering(move |request| match request.outputs().len() {
            0 => Reply::calls("bash", json!({"command": command, "background": true})),
            1 => Reply::calls("bash_input", json!({"id": "b1", "text": "touch typed\n"})),
            _ => Reply::says("done"),
        });
        let mut next = TestEnv::with_script(script).await.in_ask_mode();
        if let Some(before) = &env {
            next.config.home = before.config.home.clone();
        }
        let workspace = env.as_ref().map_or_else(|| next.workspace(), TestEnv::workspace);
        let start = pixir::StartOptions {
            workspace,
            session: SessionTarget::New,
            can_ask: true,
            mcp_servers: Vec::new(),
        };
        let conversation = next.harness().start(start).await.unwrap();
        let questions = turn_with(&conversation, "go", |_| PermissionAnswer::Project.into()).await;
        let tools: Vec<String> = questions.iter().map(|asked| asked.summary.clone()).collect();
        (tools, env.unwrap_or(next))
    };
    let (first, env) = asking("sh -s one", None).await;
    let typed = "type into b1 (sh -s one): touch typed";
    assert_eq!(first, ["run in the background sh -s one", typed]);
    let (again, env) = asking("sh -s one", Some(env)).await;
    assert!(again.is_empty(), "the identical call is not asked twice: {again:?}");
    let (other, _) = asking("sh -s two", Some(env)).await;
    assert_eq!(other.len(), 2, "{other:?}");
}

#[tokio::test]
async fn read_only_records_what_it_allows_and_what_it_refuses() {
    let mut env = TestEnv::with_replies([
        Reply::calls("read", json!({"path": "x"})),
        Reply::calls("write", json!({"path": "x", "content": "2"})),
        Reply::says("ok"),
    ])
    .await;
    env.config.permission_mode = PermissionMode::ReadOnly;
    env.write("x", "1");
    let (conversation, status) = env.run_turn("go").await;
    assert_eq!(status, SessionStatus::Done);
    assert_eq!(env.read("x"), "1");
    insta::assert_snapshot!(env.transcript(&conversation), @r#"
    0 session_started build read_only
    1 user_message "go"
    2 provider_usage completed retries=0
    3 tool_call read {"path":"x"}
    4 permission_decision allow reading by mode
    5 tool_result ok=true "     1\t1\n[no newline at the end]\n"
    6 provider_usage completed retries=0
    7 tool_call write {"path":"x","content":"2"}
    8 permission_decision deny read_only by mode
    9 tool_result error permission_denied
    10 provider_usage completed retries=0
    11 assistant_message final "ok"
    "#);
}

#[tokio::test]
async fn a_session_keeps_its_posture_and_a_named_one_is_recorded() {
    let mut env = TestEnv::with_script(ModelScript::answering(|_| Reply::says("ok"))).await;
    env.config.permission_mode = PermissionMode::Ask;
    let (conversation, _) = env.run_turn("one").await;
    let id = conversation.id().clone();
    drop(conversation);
    env.config.permission_mode = PermissionMode::Auto;
    send_and_finish(&env.resume(&id).await, "two").await;
    env.config.mode_named = true;
    let last = env.resume(&id).await;
    send_and_finish(&last, "three").await;
    insta::assert_snapshot!(env.transcript(&last), @r#"
    0 session_started build ask
    1 user_message "one"
    2 provider_usage completed retries=0
    3 assistant_message final "ok"
    4 user_message "two"
    5 provider_usage completed retries=0
    6 assistant_message final "ok"
    7 posture_changed {"permission_mode":"auto"}
    8 user_message "three"
    9 provider_usage completed retries=0
    10 assistant_message final "ok"
    "#);
    let contexts = env.requests()[2].body_text.clone();
    assert!(
        contexts.contains("Permission mode: ask") && contexts.contains("Permission mode: auto")
    );
}

fn globs(allow: &[&str], deny: &[&str]) -> WriteGlobs {
    let owned = |globs: &[&str]| globs.iter().map(|glob| (*glob).to_owned()).collect();
    WriteGlobs { allow: owned(allow), deny: owned(deny) }
}

#[tokio::test]
async fn write_bounds_hold_for_file_tools_wherever_a_link_leads() {
    let write = |path: &str| Reply::calls("write", json!({"path": path, "content": "1\n"}));
    let patch = |section: &str| {
        let patch = format!("*** Begin Patch\n{section}\n*** End Patch");
        Reply::calls("apply_patch", json!({ "patch": patch }))
    };
    let mut env = TestEnv::with_replies([
        write("src/a.rs"),
        write("b.rs"),
        write("src/gen/x.rs"),
        write("src/out/x.rs"),
        write("src/file.rs"),
        write("deep/new/folder/x"),
        patch("*** Delete File: other/file.rs"),
        patch("*** Update File: src/a.rs\n*** Move to: moved.rs\n@@\n-1\n+2"),
        Reply::says("ok"),
    ])
    .await;
    env.config.writes = globs(&["src/**"], &["src/gen"]);
    std::fs::create_dir_all(env.workspace().join("src")).unwrap();
    std::fs::create_dir_all(env.workspace().join("other")).unwrap();
    std::os::unix::fs::symlink("../other", env.workspace().join("src/out")).unwrap();
    env.write("other/file.rs", "old\n");
    std::os::unix::fs::symlink("../other/file.rs", env.workspace().join("src/file.rs")).unwrap();
    let (conversation, status) = env.run_turn("go").await;
    assert_eq!(status, SessionStatus::Done);
    assert_eq!(env.read("src/a.rs"), "1\n");
    assert_eq!(env.read("other/file.rs"), "old\n");
    for path in ["b.rs", "src/gen", "other/x.rs", "deep", "moved.rs"] {
        assert!(!env.workspace().join(path).exists(), "{path}");
    }
    assert_eq!(decisions(&env, &conversation), ["deny write_bounds by bounds"; 7]);
    let log = std::fs::read_to_string(&log_files(&env.workspace())[0]).unwrap();
    assert!(log.contains(r#""allow_write":["src/**"],"deny_write":["src/gen"]"#), "{log}");
    let context = env.requests()[0].body_text.clone();
    assert!(
        context.contains("Write only to: src/**") && context.contains("Never write to: src/gen")
    );
}

#[tokio::test]
async fn write_bounds_only_narrow_when_a_session_goes_on() {
    let write = |path: &str| Reply::calls("write", json!({"path": path, "content": "1\n"}));
    let mut env = TestEnv::with_replies([
        Reply::says("ok"),
        write("src/a.md"),
        write("src/a.rs"),
        write("b.rs"),
        Reply::says("ok"),
    ])
    .await;
    env.config.writes = globs(&["src/**"], &[]);
    let (conversation, _) = env.run_turn("one").await;
    let id = conversation.id().clone();
    drop(conversation);
    env.config.writes = globs(&["**/*.rs"], &[]);
    let resumed = env.resume(&id).await;
    send_and_finish(&resumed, "two").await;
    let written = |path: &str| env.workspace().join(path).exists();
    assert!(written("src/a.rs") && !written("src/a.md") && !written("b.rs"));
    assert!(env.transcript(&resumed).contains(r#"posture_changed {"allow_write":["**/*.rs"]}"#));
}

#[tokio::test]
async fn bad_bounds_are_refused_before_anything_happens() {
    let mut env = TestEnv::with_replies([]).await;
    env.config.writes = globs(&["../x"], &[]);
    let error = env.start_session(SessionTarget::New).await.err().unwrap();
    assert!(error.to_string().contains("`..`"), "{error}");
    assert!(log_files(&env.workspace()).is_empty());
}

#[tokio::test]
async fn a_plan_is_made_without_tools_that_write() {
    let mut env = TestEnv::with_replies([
        Reply::calls("write", json!({"path": "x", "content": "1"})),
        Reply::says("the plan"),
        Reply::says("built"),
    ])
    .await;
    env.config.role = pixir::Role::find("plan");
    let (conversation, _) = env.run_turn("plan it").await;
    let names = |body: &Value| -> Vec<String> {
        let tools = body["tools"].as_array().unwrap().iter();
        tools.map(|tool| tool["name"].as_str().unwrap().to_owned()).collect()
    };
    let requests = env.requests();
    assert!(names(&requests[0].body).contains(&"read".to_owned()));
    for withheld in ["write", "edit", "apply_patch", "merge_child"] {
        assert!(!names(&requests[0].body).contains(&withheld.to_owned()), "{withheld}");
    }
    assert!(requests[0].body_text.contains("You plan and change nothing."));
    let id = conversation.id().clone();
    assert!(env.transcript(&conversation).starts_with("0 session_started plan read_only\n"));
    drop(conversation);
    env.config.role = pixir::Role::find("build");
    let built = env.resume(&id).await;
    send_and_finish(&built, "build it").await;
    let requests = env.requests();
    assert!(names(&requests[2].body).contains(&"write".to_owned()));
    let before = requests[1].input();
    assert_eq!(&requests[2].input()[..before.len()], before, "append-only");
    let transcript = env.transcript(&built);
    let change = r#"posture_changed {"permission_mode":"auto","role":"build"}"#;
    assert!(transcript.contains(change), "{transcript}");
    assert!(transcript.contains("tool_result error unknown_tool"), "{transcript}");
}

#[tokio::test]
async fn a_plain_look_is_not_asked_and_everything_else_is() {
    let commands = ["ls | head -1", "cat /etc/hostname", "git status", "ls > listing"];
    let env = TestEnv::with_script(running(&commands)).await.in_ask_mode();
    env.write("a", "1");
    let conversation = env.start().await;
    let questions = turn_with(&conversation, "go", |_| PermissionAnswer::No.into()).await;
    let asked: Vec<&str> =
        questions.iter().map(|asked| asked.command.as_ref().unwrap().text.as_str()).collect();
    assert_eq!(asked, &commands[1..]);
    let transcript = env.transcript(&conversation);
    assert!(
        transcript.contains("permission_decision allow plainly_read_only by parser"),
        "{transcript}"
    );
    assert!(transcript.contains(r#"tool_result ok=true "a\n[exit code 0]""#), "{transcript}");
}

#[tokio::test]
async fn without_a_sandbox_every_command_is_asked_and_bounds_refuse_commands() {
    let mut env = TestEnv::with_script(running(&["ls"])).await.in_ask_mode();
    env.config.sandbox.level = pixir::SandboxLevel::Off;
    let conversation = env.start().await;
    assert_eq!(turn_with(&conversation, "go", |_| PermissionAnswer::Once.into()).await.len(), 1);
    env.config.permission_mode = PermissionMode::Auto;
    env.config.writes = globs(&["src/**"], &[]);
    let (conversation, _) = env.run_turn("go").await;
    assert_eq!(decisions(&env, &conversation), ["deny write_bounds by bounds"]);
}

/// A forbidden path cannot be changed by moving its folder.
#[tokio::test]
async fn a_forbidden_place_is_not_moved_aside() {
    let command = "mv src moved; mv src/gen other; mkdir -p src/gen/deep; \
        echo 1 > src/gen/deep/x; echo 1 > src/gen/deep/old; echo 1 > src/gen/fine";
    let mut env = TestEnv::with_script(running(&[command])).await;
    std::fs::create_dir_all(env.workspace().join("src/gen/deep")).unwrap();
    env.write("src/gen/deep/old", "precious");
    env.config.writes = globs(&[], &["src//gen/./deep"]);
    env.run_turn("go").await;
    assert_eq!(env.read("src/gen/deep/old"), "precious");
    assert!(!env.workspace().join("src/gen/deep/x").exists());
    assert_eq!(env.read("src/gen/fine"), "1\n");
}

#[tokio::test]
async fn write_bounds_hold_for_commands_by_the_kernel() {
    let command = "echo 1 > src/a; echo 1 > b; echo 1 > src/gen/x; echo 1 > docs/a.md; mv src/gen src/moved; \
        ln -s ../docs src/link; echo 1 > src/link/y; echo done";
    let mut env = TestEnv::with_script(running(&[command])).await;
    for folder in ["src/gen", "docs"] {
        std::fs::create_dir_all(env.workspace().join(folder)).unwrap();
    }
    env.write("src/gen/old", "precious");
    env.config.writes = globs(&["src/**", "docs/*.md"], &["src/gen"]);
    let (conversation, status) = env.run_turn("go").await;
    assert_eq!(status, SessionStatus::Done);
    assert_eq!(env.read("src/a"), "1\n");
    assert_eq!(env.read("src/gen/old"), "precious");
    for path in ["b", "src/gen/x", "docs/a.md", "docs/y"] {
        assert!(!env.workspace().join(path).exists(), "{path}: {}", env.transcript(&conversation));
    }
}
