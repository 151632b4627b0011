//! Permission requests: their options and details, and the meaning and lifetime of each answer.

use serde_json::{Value, json};

use super::case::{
    CaseEnv, ConformanceCase, ConformanceTopic, RecordedTurn, case, finished, turn_with,
};
use super::scripted_model::script_prompt;

pub const TOPIC: ConformanceTopic = ConformanceTopic::new("permission", CASES);

fn chosen(option: &str) -> Value {
    json!({"outcome": {"outcome": "selected", "optionId": option}})
}

/// Runs a prompt and answers each of its questions with one option.
#[track_caller]
fn answered(scene: &mut CaseEnv, session: &str, replies: &[&str], option: &str) -> RecordedTurn {
    let prompt = script_prompt("go", replies);
    turn_with(&mut scene.probe, session, &prompt, |asked| {
        assert_eq!(asked["method"], "session/request_permission");
        chosen(option)
    })
}

fn write(name: &str) -> String {
    format!("call write {}", json!({"path": name, "content": "written\n"}))
}

fn is_there(scene: &CaseEnv, name: &str) -> bool {
    scene.workspace().join(name).exists()
}

/// An open permission request, with its Session and prompt.
#[track_caller]
fn open(scene: &mut CaseEnv, name: &str) -> (String, u64, Value) {
    let session = scene.session();
    let id = scene.probe.send_prompt(&session, &script_prompt("go", &[&write(name), "say done"]));
    let asked = scene.probe.wait_for_request("session/request_permission");
    (session, id, asked)
}

const CASES: &[ConformanceCase] = &[
    case("an editor's user is asked, unless they said otherwise", |scene| {
        let session = scene.session();
        let told = answered(scene, &session, &[&write("asked.txt"), "say done"], "once");
        assert_eq!(told.asked.len(), 1);
        assert!(is_there(scene, "asked.txt"));
        assert_eq!(scene.log(&session)[0]["data"]["permission_mode"], "ask");
    }),
    case("a question belongs to its Session and its call", |scene| {
        let (session, id, asked) = open(scene, "whose.txt");
        assert_eq!(asked["params"]["sessionId"], session);
        scene.probe.choose(&asked, "once");
        let told = finished(&mut scene.probe, &session, id, |asked| panic!("{asked}"));
        let call = &asked["params"]["toolCall"]["toolCallId"];
        assert_eq!(told.updates_of_kind("tool_call")[0]["toolCallId"], *call);
    }),
    case("a question about a file shows what would change", |scene| {
        scene.write("shown.txt", "one\ntwo\n");
        let session = scene.session();
        let edit =
            r#"call edit {"path":"shown.txt","edits":[{"old_string":"two","new_string":"2"}]}"#;
        let told = answered(scene, &session, &[edit, "say done"], "once");
        let call = &told.asked[0]["params"]["toolCall"];
        let path = scene.workspace().join("shown.txt");
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
    case("a question about a command shows all of it", |scene| {
        let session = scene.session();
        let told = answered(scene, &session, &["bash touch made && rm made", "say done"], "once");
        let call = &told.asked[0]["params"]["toolCall"];
        assert_eq!(
            (&call["title"], &call["kind"]),
            (&json!("touch made && rm made"), &json!("execute"))
        );
        assert!(call["content"].to_string().contains("touch made && rm made"), "{call}");
        assert_eq!(call["rawInput"]["command"], "touch made && rm made");
    }),
    case("there is a once, an always and a no, each with its own id", |scene| {
        let (session, id, asked) = open(scene, "options.txt");
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
        scene.probe.choose(&asked, "reject");
        finished(&mut scene.probe, &session, id, |asked| panic!("{asked}"));
    }),
    case("an always says for how long", |scene| {
        let (session, id, asked) = open(scene, "scope.txt");
        for option in asked["params"]["options"].as_array().unwrap() {
            if option["kind"] == "allow_always" {
                let name = option["name"].as_str().unwrap();
                assert!(name.contains("session") || name.contains("project"), "{option}");
            }
        }
        scene.probe.choose(&asked, "reject");
        finished(&mut scene.probe, &session, id, |asked| panic!("{asked}"));
    }),
    case("once is once", |scene| {
        let session = scene.session();
        for round in 0..2 {
            let told =
                answered(scene, &session, &[&write(&format!("once-{round}")), "say done"], "once");
            assert_eq!(told.asked.len(), 1, "{round}");
        }
    }),
    case("always for this Session is not asked again in it", |scene| {
        let session = scene.session();
        let command = "bash echo always > always.txt";
        let first = answered(scene, &session, &[command, "say done"], "session");
        let second = answered(scene, &session, &[command, "say done"], "session");
        assert_eq!((first.asked.len(), second.asked.len()), (1, 0));
        let other = scene.session();
        let elsewhere = answered(scene, &other, &[command, "say done"], "once");
        assert_eq!(elsewhere.asked.len(), 1, "the grant does not extend to another Session");
    }),
    case("there is one always, and an option that was not offered is a no", |scene| {
        let (session, id, asked) = open(scene, "least.txt");
        let options = asked["params"]["options"].as_array().unwrap().iter();
        let always: Vec<&Value> =
            options.filter(|option| option["kind"] == "allow_always").collect();
        assert_eq!(always.len(), 1, "a client may have one button: {always:?}");
        assert_eq!(always[0]["optionId"], "session_edits", "the least that covers another edit");
        scene.probe.choose(&asked, "project");
        finished(&mut scene.probe, &session, id, |asked| panic!("{asked}"));
        assert!(!is_there(scene, "least.txt"));
    }),
    case("a no is told to the model, and the Turn goes on", |scene| {
        let session = scene.session();
        let told = answered(scene, &session, &[&write("never.txt"), "echo"], "reject");
        assert_eq!((told.stop(), told.call()["status"].as_str()), ("end_turn", Some("failed")));
        assert!(!is_there(scene, "never.txt"));
        assert!(!told.text().is_empty());
    }),
    case("what the user says with a no reaches the model", |scene| {
        let session = scene.session();
        let prompt = script_prompt("go", &[&write("feedback.txt"), "echo"]);
        let told = turn_with(
            &mut scene.probe,
            &session,
            &prompt,
            |_| json!({"outcome": {"outcome": "selected", "optionId": "reject"}, "_meta": {"feedback": "use the other folder"}}),
        );
        assert!(told.text().contains("use the other folder"), "{told:?}");
    }),
    case("an answer is on record", |scene| {
        let session = scene.session();
        answered(scene, &session, &[&write("record.txt"), "say done"], "once");
        let log = scene.log(&session);
        let decision = log.iter().find(|event| event["type"] == "permission_decision").unwrap();
        assert_eq!(decision["data"]["mode"], "ask", "{decision}");
    }),
    case("an option that was not offered allows nothing", |scene| {
        let session = scene.session();
        let told = answered(scene, &session, &[&write("odd-option.txt"), "say done"], "made-up");
        assert_eq!((told.stop(), is_there(scene, "odd-option.txt")), ("end_turn", false));
    }),
    case("an error as an answer allows nothing", |scene| {
        let (session, id, asked) = open(scene, "error.txt");
        let error = json!({"code": -32603, "message": "the dialog broke"});
        scene.probe.send_message(&json!({"jsonrpc": "2.0", "id": asked["id"], "error": error}));
        let told = finished(&mut scene.probe, &session, id, |asked| panic!("{asked}"));
        assert_eq!((told.stop(), is_there(scene, "error.txt")), ("end_turn", false));
    }),
    case("an answer without sense allows nothing", |scene| {
        let (session, id, asked) = open(scene, "senseless.txt");
        let line = json!({"jsonrpc": "2.0", "id": asked["id"], "result": {"outcome": 7}});
        scene.probe.write_raw(format!("{line}\n").as_bytes());
        let told = finished(&mut scene.probe, &session, id, |asked| panic!("{asked}"));
        assert_eq!((told.stop(), is_there(scene, "senseless.txt")), ("end_turn", false));
    }),
    case("a cancelled question is a cancelled Turn", |scene| {
        let (session, id, asked) = open(scene, "cancelled.txt");
        scene.probe.send_reply(&asked, json!({"outcome": {"outcome": "cancelled"}}));
        let told = finished(&mut scene.probe, &session, id, |asked| panic!("{asked}"));
        assert_eq!((told.stop(), is_there(scene, "cancelled.txt")), ("cancelled", false));
    }),
    case("a cancelled Turn takes its question back", |scene| {
        let (session, id, asked) = open(scene, "taken-back.txt");
        scene.probe.notify("session/cancel", json!({"sessionId": session}));
        let back = scene.probe.wait_for_message("the question back", |message| {
            message["method"] == "$/cancel_request" && message["params"]["requestId"] == asked["id"]
        });
        assert!(back.get("id").is_none());
        // A late answer of the client has no effect.
        scene.probe.send_reply(&asked, json!({"outcome": {"outcome": "cancelled"}}));
        let told = finished(&mut scene.probe, &session, id, |asked| panic!("{asked}"));
        assert_eq!((told.stop(), is_there(scene, "taken-back.txt")), ("cancelled", false));
    }),
    case("two Sessions ask at once and each gets its own answer", |scene| {
        let (_, first_id, first_asked) = open(scene, "both-a.txt");
        let (_, second_id, second_asked) = open(scene, "both-b.txt");
        scene.probe.choose(&second_asked, "once");
        scene.probe.choose(&first_asked, "reject");
        for id in [second_id, first_id] {
            assert_eq!(scene.probe.wait_for_answer(id).unwrap()["stopReason"], "end_turn");
        }
        assert!(is_there(scene, "both-b.txt") && !is_there(scene, "both-a.txt"));
    }),
    case("what only looks is not asked", |scene| {
        scene.write("look.txt", "words\n");
        let session = scene.session();
        let replies = [
            r#"call read {"path":"look.txt"}"#,
            r#"call grep {"pattern":"words"}"#,
            "bash ls look.txt",
            "say done",
        ];
        let told = answered(scene, &session, &replies, "reject");
        assert_eq!((told.stop(), told.asked.len()), ("end_turn", 0));
    }),
    case("mode auto asks nothing", |scene| {
        let session = scene.session();
        scene
            .probe
            .call("session/set_mode", json!({"sessionId": session, "modeId": "auto"}))
            .unwrap();
        let told = answered(scene, &session, &[&write("auto.txt"), "say done"], "reject");
        assert_eq!((told.asked.len(), is_there(scene, "auto.txt")), (0, true));
    }),
    case("mode read_only refuses without asking", |scene| {
        let session = scene.session();
        let mode = json!({"sessionId": session, "modeId": "read_only"});
        scene.probe.call("session/set_mode", mode).unwrap();
        let told = answered(scene, &session, &[&write("refused.txt"), "say done"], "once");
        assert_eq!((told.asked.len(), is_there(scene, "refused.txt")), (0, false));
        assert_eq!(told.call()["status"], "failed");
    }),
    case("a question that is open keeps nobody else waiting", |scene| {
        let (session, id, asked) = open(scene, "patient.txt");
        scene.probe.still_answers();
        let other = scene.session();
        assert_eq!(scene.turn(&other, "hello").stop(), "end_turn");
        scene.probe.choose(&asked, "once");
        finished(&mut scene.probe, &session, id, |asked| panic!("{asked}"));
    }),
];
