//! Redaction markers in files: text that a model reads as `[redacted:NAME]` and writes back.

use pixir::scripted::{ModelScript, ReceivedRequest, Reply};
use pixir::{
    Conversation, Ephemeral, Event, EventKind, PermissionAnswer, PermissionRequest,
    PermissionResponse, SessionStatus, UserInput,
};
use serde_json::{Value, json};

use crate::support::TestEnv;
use crate::support::test_env::{listen_until, log_files, subscribe_from_now};

const SECRET: &str = "secret-of-test-env";
const MARKER: &str = "[redacted:STORY_TOKEN]";

/// A test environment with one file that holds the secret, whose model makes these calls in one Turn.
async fn new_test_env(calls: Vec<(&'static str, Value)>, content: &str) -> TestEnv {
    let replies = calls.into_iter().map(|(tool, args)| Reply::calls(tool, args));
    let mut env =
        TestEnv::with_replies(replies.chain([Reply::says("done")]).collect::<Vec<_>>()).await;
    env.files_with_secrets = vec![".env", "notes.md"];
    env.write(".env", content);
    env
}

/// The results of all calls, as the model read them.
fn results(env: &TestEnv) -> Vec<String> {
    let last: ReceivedRequest = env.requests().pop().unwrap();
    last.outputs().iter().map(|output| (*output).to_owned()).collect()
}

#[track_caller]
fn assert_secret_stays_in_files(env: &TestEnv) {
    let logs = log_files(&env.workspace());
    let requests = env.requests();
    assert!(!logs.is_empty() && !requests.is_empty(), "no Turn was run");
    for log in logs {
        let log = std::fs::read_to_string(log).unwrap();
        assert!(!log.contains(SECRET), "{log}");
    }
    for request in requests {
        assert!(!request.body_text.contains(SECRET), "{}", request.body_text);
    }
}

#[track_caller]
fn assert_refused(env: &TestEnv, result: &str) {
    assert!(result.contains("error (redaction_marker)"), "{result}");
    assert!(result.contains("keep the line"), "a next action: {result}");
    assert_secret_stays_in_files(env);
}

fn patch(body: &str) -> Value {
    json!({ "patch": format!("*** Begin Patch\n{body}*** End Patch\n") })
}

#[tokio::test]
async fn a_marker_that_is_written_back_keeps_the_secret() {
    let written = format!("A=2\nTOKEN={MARKER}\nB=1\nC=3\n");
    let calls = vec![
        ("read", json!({"path": ".env"})),
        ("write", json!({"path": ".env", "content": written})),
    ];
    let env = new_test_env(calls, &format!("A=1\nTOKEN={SECRET}\nB=1\n")).await;
    let (_, status) = env.run_turn("go").await;
    assert_eq!(status, SessionStatus::Done);
    assert_eq!(env.read(".env"), format!("A=2\nTOKEN={SECRET}\nB=1\nC=3\n"));
    assert!(results(&env)[0].contains(MARKER), "the secret is hidden on reading");
    assert_secret_stays_in_files(&env);
}

#[tokio::test]
async fn a_line_that_changes_around_its_marker_keeps_the_secret() {
    let calls = vec![
        (
            "write",
            json!({"path": ".env", "content": format!("export TOKEN='{MARKER}'\r\nB=1\r\n")}),
        ),
        ("write", json!({"path": ".env", "content": format!("TOKEN = {MARKER}\nB=2\n")})),
    ];
    let env = new_test_env(calls, &format!("TOKEN={SECRET}\r\nB=1\r\n")).await;
    env.run_turn("go").await;
    assert_eq!(env.read(".env"), format!("TOKEN = {SECRET}\r\nB=2\r\n"), "{:?}", results(&env));
}

#[tokio::test]
async fn a_marker_at_another_place_or_in_another_file_is_refused() {
    let before = format!("A=1\nB=2\nTOKEN={SECRET}\nC=3\nD=4\n");
    let moved = format!("COPY={MARKER}\nA=1\nB=2\nTOKEN={MARKER}\nC=3\nD=4\n");
    let unknown = "A=[redacted:OTHER_TOKEN]\nB=2\n";
    let calls = vec![
        ("write", json!({"path": ".env", "content": moved})),
        ("write", json!({"path": "other", "content": format!("TOKEN={MARKER}\n")})),
        ("write", json!({"path": "other", "content": unknown})),
        ("write", json!({"path": ".env", "content": unknown})),
    ];
    let env = new_test_env(calls, &before).await;
    env.run_turn("go").await;
    assert_eq!(env.read(".env"), before);
    assert!(!env.workspace().join("other").exists());
    let results = results(&env);
    assert_eq!(results.len(), 4);
    for result in &results {
        assert_refused(&env, result);
    }
}

#[tokio::test]
async fn an_edit_matches_the_hidden_value_and_keeps_it() {
    let edit = |old: &str, new: &str| json!({"path": ".env", "edits": [{"old_string": old, "new_string": new}]});
    let calls = vec![
        ("edit", edit(&format!("TOKEN={MARKER}\nB=1"), &format!("TOKEN=\"{MARKER}\"\nB=2"))),
        ("edit", edit("B=2", &format!("B={MARKER}"))),
        ("edit", edit("A=1", "A=[redacted:OTHER]")),
        ("edit", edit(&format!("TOKEN=\"{MARKER}\"\n"), "")),
    ];
    let env = new_test_env(calls, &format!("A=1\nTOKEN={SECRET}\nB=1\n")).await;
    env.run_turn("go").await;
    let results = results(&env);
    assert!(results[0].contains("1 replaced (+2 -2)"), "{}", results[0]);
    assert_refused(&env, &results[1]);
    assert_refused(&env, &results[2]);
    assert_eq!(env.read(".env"), "A=1\nB=2\n", "what was to go is gone: {results:?}");
}

#[tokio::test]
async fn a_patch_matches_the_hidden_value_and_keeps_it() {
    let calls = vec![
        (
            "apply_patch",
            patch(&format!(
                "*** Update File: .env\n A=1\n-TOKEN={MARKER}\n+TOKEN='{MARKER}'\n-B=1\n+B=2\n"
            )),
        ),
        ("apply_patch", patch(&format!("*** Update File: .env\n TOKEN='{MARKER}'\n+C=3\n B=2\n"))),
        ("apply_patch", patch(&format!("*** Update File: .env\n A=1\n+COPY={MARKER}\n"))),
        ("apply_patch", patch(&format!("*** Add File: other\n+TOKEN={MARKER}\n"))),
        ("apply_patch", patch("*** Update File: .env\n*** Move to: notes.md\n")),
    ];
    let env = new_test_env(calls, &format!("A=1\nTOKEN={SECRET}\nB=1\n")).await;
    env.run_turn("go").await;
    let results = results(&env);
    assert_refused(&env, &results[2]);
    assert_refused(&env, &results[3]);
    assert!(!env.workspace().join("other").exists());
    let moved = format!("A=1\nTOKEN='{SECRET}'\nC=3\nB=2\n");
    assert_eq!(env.read("notes.md"), moved, "{results:?}");
}

#[tokio::test]
async fn a_text_like_a_marker_does_not_overwrite_the_secret() {
    let before = format!("A=1\nTOKEN={SECRET}\nB=1\n");
    for near in [
        "[REDACTED:STORY_TOKEN]",
        "[redacted]",
        "[redacted: STORY_TOKEN]",
        "<Redacted>",
        "***REDACTED***",
    ] {
        let line = format!("TOKEN={near}");
        let edits = json!([{"old_string": format!("TOKEN={MARKER}"), "new_string": line}]);
        let body = format!("*** Update File: .env\n A=1\n-TOKEN={MARKER}\n+{line}\n B=1\n");
        let calls = vec![
            ("write", json!({"path": ".env", "content": format!("A=2\n{line}\nB=1\n")})),
            ("edit", json!({"path": ".env", "edits": edits})),
            ("apply_patch", patch(&body)),
        ];
        let env = new_test_env(calls, &before).await;
        env.run_turn("go").await;
        assert_eq!(env.read(".env"), before, "{near}: {:?}", results(&env));
        for result in results(&env) {
            assert!(result.contains("error (redaction_marker)"), "{near}: {result}");
            let next = [MARKER, "keep the line"];
            assert!(next.iter().any(|next| result.contains(next)), "what to do: {result}");
        }
        assert_secret_stays_in_files(&env);
    }
}

#[tokio::test]
async fn a_text_like_a_marker_overwrites_no_secret_whatever_else_says_redacted() {
    let before = format!("# values are redacted in logs\nTOKEN={SECRET}\nA=1\n");
    let calls = vec![
        (
            "write",
            json!({"path": ".env", "content": "# values are hidden in logs\nTOKEN=[REDACTED]\nA=2\n"}),
        ),
        (
            "write",
            json!({"path": ".env", "content": "A=1\n# values are redacted in logs\nTOKEN=[REDACTED]\n"}),
        ),
        ("apply_patch", patch("*** Delete File: .env\n*** Add File: .env\n+TOKEN=[REDACTED]\n")),
        (
            "apply_patch",
            patch(
                "*** Add File: x\n+TOKEN=[REDACTED]\n*** Delete File: .env\n*** Update File: x\n*** Move to: .env\n@@\n TOKEN=[REDACTED]\n+B=1\n",
            ),
        ),
    ];
    let env = new_test_env(calls, &before).await;
    env.run_turn("go").await;
    assert_eq!(env.read(".env"), before, "{:?}", results(&env));
    let results = results(&env);
    assert_eq!(results.len(), 4);
    for result in &results {
        assert!(result.contains("error (redaction_marker)"), "{result}");
        assert!(result.contains(MARKER), "what to write: {result}");
    }
    assert_secret_stays_in_files(&env);
}

#[tokio::test]
async fn words_about_redaction_can_be_written_elsewhere_and_a_secret_can_be_removed() {
    let about = "// [REDACTED], [redacted] and <redacted:X> are no markers.\n";
    let calls = vec![
        ("write", json!({"path": "notes.md", "content": about})),
        (
            "write",
            json!({"path": ".env", "content": format!("# redacted below\nA=1\nTOKEN={MARKER}\n")}),
        ),
        (
            "edit",
            json!({"path": ".env", "edits": [{"old_string": "A=1", "new_string": "A=[redacted]"}]}),
        ),
        (
            "edit",
            json!({"path": ".env", "edits": [{"old_string": format!("TOKEN={MARKER}\n"), "new_string": "TOKEN=\n"}]}),
        ),
    ];
    let env = new_test_env(calls, &format!("A=1\nTOKEN={SECRET}\n")).await;
    env.run_turn("go").await;
    assert_eq!(env.read("notes.md"), about);
    let expected = "# redacted below\nA=[redacted]\nTOKEN=\n";
    assert_eq!(env.read(".env"), expected, "{:?}", results(&env));
}

#[tokio::test]
async fn a_file_about_markers_stays_editable() {
    let text = format!("# Notes\nA secret is shown as `{MARKER}` or `[redacted:NAME]`.\nEnd.\n");
    let again = text.replace("End.", "The end.");
    let calls = vec![
        ("write", json!({"path": "notes.md", "content": again})),
        (
            "edit",
            json!({"path": "notes.md", "edits": [{
                "old_string": format!("`{MARKER}` or"), "new_string": format!("`{MARKER}`, or"),
            }]}),
        ),
        (
            "apply_patch",
            patch(&format!(
                "*** Update File: notes.md\n-A secret is shown as `{MARKER}`, or `[redacted:NAME]`.\n\
                 +A value is shown as `{MARKER}`, or `[redacted:NAME]`.\n"
            )),
        ),
    ];
    let env = new_test_env(calls, "").await;
    env.write("notes.md", &text);
    env.run_turn("go").await;
    let expected =
        format!("# Notes\nA value is shown as `{MARKER}`, or `[redacted:NAME]`.\nThe end.\n");
    assert_eq!(env.read("notes.md"), expected, "{:?}", results(&env));
}

#[tokio::test]
async fn a_literal_marker_beside_the_secret_stays_literal() {
    let text = |word: &str| format!("# shown as {MARKER}{word}\nTOKEN={SECRET}\n");
    let calls = vec![
        (
            "write",
            json!({"path": ".env", "content": format!("# shown as {MARKER}!\nTOKEN={MARKER}\n")}),
        ),
        ("edit", json!({"path": ".env", "edits": [{"old_string": MARKER, "new_string": "x"}]})),
    ];
    let env = new_test_env(calls, &text("")).await;
    env.run_turn("go").await;
    assert_eq!(env.read(".env"), text("!"));
    assert!(results(&env)[1].contains("2 times"), "{}", results(&env)[1]);
}

fn permission_request(event: &Event) -> Option<&PermissionRequest> {
    match event.kind() {
        EventKind::Ephemeral(Ephemeral::PermissionRequest(request)) => Some(&**request),
        _ => None,
    }
}

/// Runs a Turn up to its first question, calls `meanwhile`, and answers yes.
async fn question(conversation: &Conversation, meanwhile: impl FnOnce()) -> PermissionRequest {
    let mut listener = subscribe_from_now(conversation);
    conversation.send(UserInput { text: "go".to_owned() }).await.unwrap();
    let events = listen_until(&mut listener, |event| permission_request(event).is_some()).await;
    let request = events.last().and_then(|event| permission_request(event)).unwrap().clone();
    meanwhile();
    let response: PermissionResponse = PermissionAnswer::Once.into();
    conversation.answer(&request.call_id, response).await.unwrap();
    crate::support::test_env::wait_for_turn_end(conversation).await;
    request
}

#[tokio::test]
async fn a_line_whose_hidden_part_differs_is_shown_as_changed() {
    let content = format!("TOKEN={SECRET}\nA=1\n");
    let calls = vec![("write", json!({"path": ".env", "content": content}))];
    let env = new_test_env(calls, &format!("TOKEN={MARKER}\nA=1\n")).await.in_ask_mode();
    let conversation = env.start().await;
    let request = question(&conversation, || {}).await;
    let diff = request.diff.unwrap();
    assert!(request.summary.contains("(+1 -1)"), "{}", request.summary);
    assert!(diff.contains(&format!("-TOKEN={MARKER}\n")), "{diff}");
    assert!(diff.contains(&format!("+TOKEN={MARKER} (hidden part differs)\n")), "{diff}");
    assert_eq!(env.read(".env"), content);
    assert_secret_stays_in_files(&env);
}

#[tokio::test]
async fn an_answer_does_not_cover_a_hidden_part_that_changed_meanwhile() {
    let content = format!("TOKEN={MARKER}\nA=2\n");
    let calls = vec![("write", json!({"path": ".env", "content": content}))];
    let env = new_test_env(calls, &format!("TOKEN={SECRET}\nA=1\n")).await.in_ask_mode();
    let conversation = env.start().await;
    let rotated = format!("TOKEN={MARKER}\nA=1\n");
    let request = question(&conversation, || env.write(".env", &rotated)).await;
    assert!(!request.diff.unwrap().contains("-TOKEN"), "the line is unchanged");
    assert_eq!(env.read(".env"), rotated, "the diff is not the one that the user saw");
    assert!(results(&env)[0].contains("changed while its permission"), "{:?}", results(&env));
}

#[tokio::test]
async fn the_same_script_of_a_model_that_only_reads_and_searches_is_not_touched() {
    let env = TestEnv::with_script(ModelScript::new([
        Reply::calls("grep", json!({"pattern": "TOKEN"})),
        Reply::calls("read", json!({"path": "a"})),
        Reply::says("done"),
    ]))
    .await;
    let mut env = env;
    env.files_with_secrets = vec!["a"];
    env.write("a", format!("TOKEN={SECRET} and [redacted:LITERAL]\n"));
    env.run_turn("go").await;
    for result in results(&env) {
        assert!(result.contains(&format!("TOKEN={MARKER} and [redacted:LITERAL]")), "{result}");
    }
}
