//! The lifecycle of a Session: creation, working directory, and use by a second process.

use std::collections::HashSet;

use serde_json::{Value, json};

use super::case::{CaseEnv, ConformanceCase, ConformanceTopic, case, turn};
use super::scripted_model::script_prompt;

pub const TOPIC: ConformanceTopic =
    ConformanceTopic::new("session lifecycle", CASES).with_args(&["--auto"]);

#[track_caller]
fn refused(scene: &mut CaseEnv, params: &Value) {
    let error = scene.probe.send_invalid("session/new", params).unwrap_err();
    assert_eq!(error["code"], -32_602, "{params}: {error}");
}

/// Creates a Session with one further parameter.
#[track_caller]
fn made(scene: &mut CaseEnv, key: &str, value: Value) -> Result<Value, Value> {
    let mut params = json!({"cwd": scene.workspace(), "mcpServers": []});
    params[key] = value;
    scene.probe.send_invalid("session/new", &params)
}

const CASES: &[ConformanceCase] = &[
    case("a Session has an id, modes and options", |scene| {
        let params = json!({"cwd": scene.workspace(), "mcpServers": []});
        let made = scene.probe.call("session/new", params).unwrap();
        assert!(!made["sessionId"].as_str().unwrap().is_empty());
        assert!(made["modes"].is_object() && made["configOptions"].is_array(), "{made}");
    }),
    case("no two Sessions have one id", |scene| {
        let ids: HashSet<String> = (0..10).map(|_| scene.session()).collect();
        assert_eq!(ids.len(), 10);
    }),
    case("Sessions asked for at once are all made", |scene| {
        let params = json!({"cwd": scene.workspace(), "mcpServers": []});
        let asked: Vec<u64> =
            (0..10).map(|_| scene.probe.send_request("session/new", params.clone())).collect();
        let ids: HashSet<String> = asked
            .iter()
            .map(|id| scene.probe.wait_for_answer(*id).unwrap()["sessionId"].to_string())
            .collect();
        assert_eq!(ids.len(), 10);
    }),
    case("a Session is on the disk when it is told", |scene| {
        let id = scene.session();
        let log = scene.log(&id);
        assert_eq!(log[0]["type"], "session_started");
        assert_eq!(log[0]["data"]["permission_mode"], "auto");
    }),
    case("the directory is absolute", |scene| {
        for cwd in [json!("work"), json!("./work"), json!("../work"), json!("~"), json!("")] {
            refused(scene, &json!({"cwd": cwd, "mcpServers": []}));
        }
    }),
    case("the directory is a text", |scene| {
        for params in
            [json!({"mcpServers": []}), json!({"cwd": 3}), json!({"cwd": null}), json!({})]
        {
            refused(scene, &params);
        }
        refused(scene, &Value::Null);
    }),
    case("the directory is there, and is one", |scene| {
        let file = scene.write("a-file", "x");
        refused(scene, &json!({"cwd": "/no/such/place", "mcpServers": []}));
        refused(scene, &json!({"cwd": file, "mcpServers": []}));
        refused(scene, &json!({"cwd": "/a\u{0}b", "mcpServers": []}));
    }),
    case("the directory of the Session counts, not that of the process", |scene| {
        let elsewhere = scene.workspace().parent().unwrap().join("elsewhere");
        std::fs::create_dir_all(&elsewhere).unwrap();
        let id = scene.probe.new_session(&elsewhere);
        let told = turn(&mut scene.probe, &id, &script_prompt("where", &["bash pwd", "echo"]));
        assert!(told.text().contains(elsewhere.to_str().unwrap()), "{told:?}");
        assert!(elsewhere.join(format!(".pixir/sessions/{id}.ndjson")).is_file());
    }),
    case("a directory behind a link is the directory", |scene| {
        let link = scene.workspace().parent().unwrap().join("link");
        std::os::unix::fs::symlink(scene.workspace(), &link).unwrap();
        let id = scene.probe.new_session(&link);
        let listed = scene.probe.call("session/list", json!({"cwd": link})).unwrap();
        let listed = listed["sessions"].as_array().unwrap();
        assert!(listed.iter().any(|one| one["sessionId"] == id), "{listed:?}");
    }),
    case("a directory with odd letters is a directory", |scene| {
        let odd = scene.workspace().join("größe 'quoted' 🦀");
        std::fs::create_dir_all(&odd).unwrap();
        let id = scene.probe.new_session(&odd);
        assert_eq!(turn(&mut scene.probe, &id, "hello").stop(), "end_turn");
    }),
    case("further directories are absolute", |scene| {
        let error = made(scene, "additionalDirectories", json!(["relative"])).unwrap_err();
        assert_eq!(error["code"], -32_602, "{error}");
        let error = made(scene, "additionalDirectories", json!("/tmp")).unwrap_err();
        assert_eq!(error["code"], -32_602, "{error}");
    }),
    case("further directories that are there are taken", |scene| {
        let further = scene.workspace().parent().unwrap().join("further");
        std::fs::create_dir_all(&further).unwrap();
        made(scene, "additionalDirectories", json!([further])).unwrap();
        made(scene, "additionalDirectories", json!([])).unwrap();
    }),
    case("servers may be absent or null", |scene| {
        scene.probe.send_invalid("session/new", &json!({"cwd": scene.workspace()})).unwrap();
        made(scene, "mcpServers", Value::Null).unwrap();
    }),
    case("servers are a list", |scene| {
        for servers in [json!(3), json!({}), json!("x")] {
            let error = made(scene, "mcpServers", servers).unwrap_err();
            assert_eq!(error["code"], -32_602, "{error}");
        }
    }),
    case("a server that cannot be used does not refuse the Session", |scene| {
        let servers = json!([
            {"name": "odd", "type": "carrier-pigeon"},
            {"name": "sse", "type": "sse", "url": "http://127.0.0.1:1/", "headers": []},
            {"type": "stdio"},
            {"name": "no-command"},
            7,
            {"name": "gone", "command": "/no/such/program", "args": [], "env": []},
        ]);
        made(scene, "mcpServers", servers).unwrap();
    }),
    case("a server without its lists is taken", |scene| {
        made(scene, "mcpServers", json!([{"name": "short", "command": "/no/such/program"}]))
            .unwrap();
        let web = json!([{"name": "web", "type": "http", "url": "http://127.0.0.1:1/"}]);
        made(scene, "mcpServers", web).unwrap();
    }),
    case("unknown fields and meta are skipped", |scene| {
        made(scene, "somethingNew", json!({"a": 1})).unwrap();
        made(scene, "_meta", json!({"trace": "x"})).unwrap();
    }),
    case("nothing is told about a Session before it is answered", |scene| {
        let mut other = scene.other(&["--auto"], json!({}));
        let id = other.new_session(&scene.workspace());
        other.wait_for_update("available_commands_update");
        let place = |wished: &dyn Fn(&Value) -> bool| other.received.iter().position(wished);
        let made = place(&|message| message["result"]["sessionId"] == id.as_str());
        let told = place(&|message| message["method"] == "session/update");
        assert!(made.unwrap() < told.unwrap(), "{:?}", other.received);
    }),
    case("a Session that is open elsewhere is refused by name of the holder", |scene| {
        let id = scene.session();
        let mut other = scene.other(&[], json!({}));
        for method in ["session/load", "session/resume"] {
            let params = json!({"sessionId": id, "cwd": scene.workspace(), "mcpServers": []});
            let error = other.call(method, params).unwrap_err();
            let holder = scene.probe.child.id().to_string();
            assert!(error["message"].as_str().unwrap().contains(&holder), "{error}");
        }
        // The Session of its holder is not affected.
        assert_eq!(scene.turn(&id, "hello").stop(), "end_turn");
    }),
    case("the terminal goes on where the editor was", |scene| {
        let id = scene.session();
        scene.turn(&id, "first");
        scene.probe.call("session/close", json!({"sessionId": id})).unwrap();
        let resumed = scene.env.run(&["resume", &id, "second » repeat"]);
        let told = &resumed.expect_code(0).stdout;
        assert!(told.contains("first") && told.contains("second"), "{told}");
    }),
];
