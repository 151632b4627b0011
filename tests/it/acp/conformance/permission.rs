//! Permission requests: their options and details, and the meaning and lifetime of each answer.

use serde_json::{Value, json};

use super::case::{
    CaseEnv, ConformanceCase, ConformanceTopic, RecordedTurn, case, run_prompt_with,
    wait_for_turn_end,
};
use super::scripted_model::script_prompt;

pub const TOPIC: ConformanceTopic = ConformanceTopic::new("permission", CASES);

fn chosen(option: &str) -> Value {
    json!({"outcome": {"outcome": "selected", "optionId": option}})
}

/// Runs a prompt and answers each of its questions with one option.
#[track_caller]
fn run_and_answer(
    env: &mut CaseEnv,
    session: &str,
    replies: &[&str],
    option: &str,
) -> RecordedTurn {
    let prompt = script_prompt("go", replies);
    run_prompt_with(&mut env.client, session, &prompt, |asked| {
        assert_eq!(asked["method"], "session/request_permission");
        chosen(option)
    })
}

fn write(name: &str) -> String {
    format!("call write {}", json!({"path": name, "content": "written\n"}))
}

fn is_there(env: &CaseEnv, name: &str) -> bool {
    env.workspace().join(name).exists()
}

/// An open permission request, with its Session and prompt.
#[track_caller]
fn open(env: &mut CaseEnv, name: &str) -> (String, u64, Value) {
    let session = env.session();
    let id = env.client.send_prompt(&session, &script_prompt("go", &[&write(name), "say done"]));
    let asked = env.client.wait_for_request("session/request_permission");
    (session, id, asked)
}

const CASES: &[ConformanceCase] = &[
    case("an editor's user is asked, unless they said otherwise", |env| {
        let session = env.session();
        let turn = run_and_answer(env, &session, &[&write("asked.txt"), "say done"], "once");
        assert_eq!(turn.asked.len(), 1);
        assert!(is_there(env, "asked.txt"));
        assert_eq!(env.log(&session)[0]["data"]["permission_mode"], "ask");
    }),
    case("a question belongs to its Session and its call", |env| {
        let (session, id, asked) = open(env, "whose.txt");
        assert_eq!(asked["params"]["sessionId"], session);
        env.client.choose(&asked, "once");
        let turn = wait_for_turn_end(&mut env.client, &session, id, |asked| panic!("{asked}"));
        let call = &asked["params"]["toolCall"]["toolCallId"];
        assert_eq!(turn.updates_of_kind("tool_call")[0]["toolCallId"], *call);
    }),
    case("a question about a file shows what would change", |env| {
        env.write("shown.txt", "one\ntwo\n");
        let session = env.session();
        let edit =
            r#"call edit {"path":"shown.txt","edits":[{"old_string":"two","new_string":"2"}]}"#;
        let turn = run_and_answer(env, &session, &[edit, "say done"], "once");
        let call = &turn.asked[0]["params"]["toolCall"];
        let path = env.workspace().join("shown.txt");
        let diff =
            json!({"type": "diff", "path": path, "oldText": "one\ntwo\n", "newText": "one\n2\n"});
        assert_eq!(call["content"], json!([diff]));
        assert_eq!(call["locations"][0]["path"], json!(path));
        assert_eq!(
            (&call["kind"], &call["rawInput"]["path"]),
            (&json!("edit"), &json!("shown.txt"))
        );
        assert!(call["title"].as_str().unwrap().contains("shown.txt"));
    }),
    case("a question about a command shows all of it", |env| {
        let session = env.session();
        let turn =
            run_and_answer(env, &session, &["bash touch made && rm made", "say done"], "once");
        let call = &turn.asked[0]["params"]["toolCall"];
        assert_eq!(
            (&call["title"], &call["kind"]),
            (&json!("touch made && rm made"), &json!("execute"))
        );
        assert!(call["content"].to_string().contains("touch made && rm made"), "{call}");
        assert_eq!(call["rawInput"]["command"], "touch made && rm made");
    }),
    case("there is a once, an always and a no, each with its own id", |env| {
        let (session, id, asked) = open(env, "options.txt");
        let options = asked["params"]["options"].as_array().unwrap();
        let kinds: Vec<&str> =
            options.iter().map(|option| option["kind"].as_str().unwrap()).collect();
        for kind in ["allow_once", "allow_always", "reject_once"] {
            assert!(kinds.contains(&kind), "{kinds:?}");
        }
        let mut ids: Vec<&str> = options.iter().map(|o| o["optionId"].as_str().unwrap()).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), options.len());
        env.client.choose(&asked, "reject");
        wait_for_turn_end(&mut env.client, &session, id, |asked| panic!("{asked}"));
    }),
    case("an always says for how long", |env| {
        let (session, id, asked) = open(env, "scope.txt");
        for option in asked["params"]["options"].as_array().unwrap() {
            if option["kind"] == "allow_always" {
                let name = option["name"].as_str().unwrap();
                assert!(name.contains("session") || name.contains("project"), "{option}");
            }
        }
        env.client.choose(&asked, "reject");
        wait_for_turn_end(&mut env.client, &session, id, |asked| panic!("{asked}"));
    }),
    case("once is once", |env| {
        let session = env.session();
        for round in 0..2 {
            let turn = run_and_answer(
                env,
                &session,
                &[&write(&format!("once-{round}")), "say done"],
                "once",
            );
            assert_eq!(turn.asked.len(), 1, "{round}");
        }
    }),
    case("always for this Session is not asked again in it", |env| {
        let session = env.session();
        let command = "bash echo always > always.txt";
        let first = run_and_answer(env, &session, &[command, "say done"], "session");
        let second = run_and_answer(env, &session, &[command, "say done"], "session");
        assert_eq!((first.asked.len(), second.asked.len()), (1, 0));
        let other = env.session();
        let elsewhere = run_and_answer(env, &other, &[command, "say done"], "once");
        assert_eq!(elsewhere.asked.len(), 1, "the grant does not extend to another Session");
    }),
    case("there is one always, and an option that was not offered is a no", |env| {
        let (session, id, asked) = open(env, "least.txt");
        let options = asked["params"]["options"].as_array().unwrap().iter();
        let always: Vec<&Value> =
            options.filter(|option| option["kind"] == "allow_always").collect();
        assert_eq!(always.len(), 1, "a client may have one button: {always:?}");
        assert_eq!(always[0]["optionId"], "session_edits", "the least that covers another edit");
        env.client.choose(&asked, "project");
        wait_for_turn_end(&mut env.client, &session, id, |asked| panic!("{asked}"));
        assert!(!is_there(env, "least.txt"));
    }),
    case("a no is told to the model, and the Turn goes on", |env| {
        let session = env.session();
        let turn = run_and_answer(env, &session, &[&write("never.txt"), "echo"], "reject");
        assert_eq!((turn.stop(), turn.call()["status"].as_str()), ("end_turn", Some("failed")));
        assert!(!is_there(env, "never.txt"));
        assert!(!turn.text().is_empty());
    }),
    case("what the user says with a no reaches the model", |env| {
        let session = env.session();
        let prompt = script_prompt("go", &[&write("feedback.txt"), "echo"]);
        let turn = run_prompt_with(
            &mut env.client,
            &session,
            &prompt,
            |_| json!({"outcome": {"outcome": "selected", "optionId": "reject"}, "_meta": {"feedback": "use the other folder"}}),
        );
        assert!(turn.text().contains("use the other folder"), "{turn:?}");
    }),
    case("an answer is on record", |env| {
        let session = env.session();
        run_and_answer(env, &session, &[&write("record.txt"), "say done"], "once");
        let log = env.log(&session);
        let decision = log.iter().find(|event| event["type"] == "permission_decision").unwrap();
        assert_eq!(decision["data"]["mode"], "ask", "{decision}");
    }),
    case("an option that was not offered allows nothing", |env| {
        let session = env.session();
        let turn =
            run_and_answer(env, &session, &[&write("odd-option.txt"), "say done"], "made-up");
        assert_eq!((turn.stop(), is_there(env, "odd-option.txt")), ("end_turn", false));
    }),
    case("an error as an answer allows nothing", |env| {
        let (session, id, asked) = open(env, "error.txt");
        let error = json!({"code": -32603, "message": "the dialog broke"});
        env.client.send_message(&json!({"jsonrpc": "2.0", "id": asked["id"], "error": error}));
        let turn = wait_for_turn_end(&mut env.client, &session, id, |asked| panic!("{asked}"));
        assert_eq!((turn.stop(), is_there(env, "error.txt")), ("end_turn", false));
    }),
    case("an answer without sense allows nothing", |env| {
        let (session, id, asked) = open(env, "senseless.txt");
        let line = json!({"jsonrpc": "2.0", "id": asked["id"], "result": {"outcome": 7}});
        env.client.write_raw(format!("{line}\n").as_bytes());
        let turn = wait_for_turn_end(&mut env.client, &session, id, |asked| panic!("{asked}"));
        assert_eq!((turn.stop(), is_there(env, "senseless.txt")), ("end_turn", false));
    }),
    case("a cancelled question is a cancelled Turn", |env| {
        let (session, id, asked) = open(env, "cancelled.txt");
        env.client.send_reply(&asked, json!({"outcome": {"outcome": "cancelled"}}));
        let turn = wait_for_turn_end(&mut env.client, &session, id, |asked| panic!("{asked}"));
        assert_eq!((turn.stop(), is_there(env, "cancelled.txt")), ("cancelled", false));
    }),
    case("a cancelled Turn takes its question back", |env| {
        let (session, id, asked) = open(env, "taken-back.txt");
        env.client.notify("session/cancel", json!({"sessionId": session}));
        let back = env.client.wait_for_message("the question back", |message| {
            message["method"] == "$/cancel_request" && message["params"]["requestId"] == asked["id"]
        });
        assert!(back.get("id").is_none());
        // A late answer of the client has no effect.
        env.client.send_reply(&asked, json!({"outcome": {"outcome": "cancelled"}}));
        let turn = wait_for_turn_end(&mut env.client, &session, id, |asked| panic!("{asked}"));
        assert_eq!((turn.stop(), is_there(env, "taken-back.txt")), ("cancelled", false));
    }),
    case("two Sessions ask at once and each gets its own answer", |env| {
        let (_, first_id, first_asked) = open(env, "both-a.txt");
        let (_, second_id, second_asked) = open(env, "both-b.txt");
        env.client.choose(&second_asked, "once");
        env.client.choose(&first_asked, "reject");
        for id in [second_id, first_id] {
            assert_eq!(env.client.wait_for_answer(id).unwrap()["stopReason"], "end_turn");
        }
        assert!(is_there(env, "both-b.txt") && !is_there(env, "both-a.txt"));
    }),
    case("what only looks is not asked", |env| {
        env.write("look.txt", "words\n");
        let session = env.session();
        let replies = [
            r#"call read {"path":"look.txt"}"#,
            r#"call grep {"pattern":"words"}"#,
            "bash ls look.txt",
            "say done",
        ];
        let turn = run_and_answer(env, &session, &replies, "reject");
        assert_eq!((turn.stop(), turn.asked.len()), ("end_turn", 0));
    }),
    case("mode auto asks nothing", |env| {
        let session = env.session();
        env.client
            .call("session/set_mode", json!({"sessionId": session, "modeId": "auto"}))
            .unwrap();
        let turn = run_and_answer(env, &session, &[&write("auto.txt"), "say done"], "reject");
        assert_eq!((turn.asked.len(), is_there(env, "auto.txt")), (0, true));
    }),
    case("mode read_only refuses without asking", |env| {
        let session = env.session();
        let mode = json!({"sessionId": session, "modeId": "read_only"});
        env.client.call("session/set_mode", mode).unwrap();
        let turn = run_and_answer(env, &session, &[&write("refused.txt"), "say done"], "once");
        assert_eq!((turn.asked.len(), is_there(env, "refused.txt")), (0, false));
        assert_eq!(turn.call()["status"], "failed");
    }),
    case("a question that is open keeps nobody else waiting", |env| {
        let (session, id, asked) = open(env, "patient.txt");
        env.client.still_answers();
        let other = env.session();
        assert_eq!(env.run_prompt(&other, "hello").stop(), "end_turn");
        env.client.choose(&asked, "once");
        wait_for_turn_end(&mut env.client, &session, id, |asked| panic!("{asked}"));
    }),
];
