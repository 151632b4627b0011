//! The lifecycle of a Session: creation, working directory, and use by a second process.

use std::collections::HashSet;

use serde_json::{Value, json};

use super::case::{CaseEnv, ConformanceCase, ConformanceTopic, case, run_prompt};
use super::scripted_model::script_prompt;

pub const TOPIC: ConformanceTopic =
    ConformanceTopic::new("session lifecycle", CASES).with_args(&["--auto"]);

#[track_caller]
fn assert_refused(env: &mut CaseEnv, params: &Value) {
    let error = env.client.send_invalid("session/new", params).unwrap_err();
    assert_eq!(error["code"], -32_602, "{params}: {error}");
}

/// Creates a Session with one further parameter.
#[track_caller]
fn create_session_with(env: &mut CaseEnv, key: &str, value: Value) -> Result<Value, Value> {
    let mut params = json!({"cwd": env.workspace(), "mcpServers": []});
    params[key] = value;
    env.client.send_invalid("session/new", &params)
}

const CASES: &[ConformanceCase] = &[
    case("a Session has an id, modes and options", |env| {
        let params = json!({"cwd": env.workspace(), "mcpServers": []});
        let made = env.client.call("session/new", params).unwrap();
        assert!(!made["sessionId"].as_str().unwrap().is_empty());
        assert!(made["modes"].is_object() && made["configOptions"].is_array(), "{made}");
    }),
    case("no two Sessions have one id", |env| {
        let ids: HashSet<String> = (0..10).map(|_| env.session()).collect();
        assert_eq!(ids.len(), 10);
    }),
    case("Sessions asked for at once are all made", |env| {
        let params = json!({"cwd": env.workspace(), "mcpServers": []});
        let asked: Vec<u64> =
            (0..10).map(|_| env.client.send_request("session/new", params.clone())).collect();
        let ids: HashSet<String> = asked
            .iter()
            .map(|id| env.client.wait_for_answer(*id).unwrap()["sessionId"].to_string())
            .collect();
        assert_eq!(ids.len(), 10);
    }),
    case("a Session is on the disk when it is told", |env| {
        let id = env.session();
        let log = env.log(&id);
        assert_eq!(log[0]["type"], "session_started");
        assert_eq!(log[0]["data"]["permission_mode"], "auto");
    }),
    case("the directory is absolute", |env| {
        for cwd in [json!("work"), json!("./work"), json!("../work"), json!("~"), json!("")] {
            assert_refused(env, &json!({"cwd": cwd, "mcpServers": []}));
        }
    }),
    case("the directory is a text", |env| {
        for params in
            [json!({"mcpServers": []}), json!({"cwd": 3}), json!({"cwd": null}), json!({})]
        {
            assert_refused(env, &params);
        }
        assert_refused(env, &Value::Null);
    }),
    case("the directory is there, and is one", |env| {
        let file = env.write("a-file", "x");
        assert_refused(env, &json!({"cwd": "/no/such/place", "mcpServers": []}));
        assert_refused(env, &json!({"cwd": file, "mcpServers": []}));
        assert_refused(env, &json!({"cwd": "/a\u{0}b", "mcpServers": []}));
    }),
    case("the directory of the Session counts, not that of the process", |env| {
        let elsewhere = env.workspace().parent().unwrap().join("elsewhere");
        std::fs::create_dir_all(&elsewhere).unwrap();
        let id = env.client.new_session(&elsewhere);
        let turn = run_prompt(&mut env.client, &id, &script_prompt("where", &["bash pwd", "echo"]));
        assert!(turn.text().contains(elsewhere.to_str().unwrap()), "{turn:?}");
        assert!(elsewhere.join(format!(".pixir/sessions/{id}.ndjson")).is_file());
    }),
    case("a directory behind a link is the directory", |env| {
        let link = env.workspace().parent().unwrap().join("link");
        std::os::unix::fs::symlink(env.workspace(), &link).unwrap();
        let id = env.client.new_session(&link);
        let listed = env.client.call("session/list", json!({"cwd": link})).unwrap();
        let listed = listed["sessions"].as_array().unwrap();
        assert!(listed.iter().any(|one| one["sessionId"] == id), "{listed:?}");
    }),
    case("a directory with odd letters is a directory", |env| {
        let odd = env.workspace().join("größe 'quoted' 🦀");
        std::fs::create_dir_all(&odd).unwrap();
        let id = env.client.new_session(&odd);
        assert_eq!(run_prompt(&mut env.client, &id, "hello").stop(), "end_turn");
    }),
    case("further directories are absolute", |env| {
        let error =
            create_session_with(env, "additionalDirectories", json!(["relative"])).unwrap_err();
        assert_eq!(error["code"], -32_602, "{error}");
        let error = create_session_with(env, "additionalDirectories", json!("/tmp")).unwrap_err();
        assert_eq!(error["code"], -32_602, "{error}");
    }),
    case("further directories that are there are taken", |env| {
        let further = env.workspace().parent().unwrap().join("further");
        std::fs::create_dir_all(&further).unwrap();
        create_session_with(env, "additionalDirectories", json!([further])).unwrap();
        create_session_with(env, "additionalDirectories", json!([])).unwrap();
    }),
    case("servers may be absent or null", |env| {
        env.client.send_invalid("session/new", &json!({"cwd": env.workspace()})).unwrap();
        create_session_with(env, "mcpServers", Value::Null).unwrap();
    }),
    case("servers are a list", |env| {
        for servers in [json!(3), json!({}), json!("x")] {
            let error = create_session_with(env, "mcpServers", servers).unwrap_err();
            assert_eq!(error["code"], -32_602, "{error}");
        }
    }),
    case("a server that cannot be used does not refuse the Session", |env| {
        let servers = json!([
            {"name": "odd", "type": "carrier-pigeon"},
            {"name": "sse", "type": "sse", "url": "http://127.0.0.1:1/", "headers": []},
            {"type": "stdio"},
            {"name": "no-command"},
            7,
            {"name": "gone", "command": "/no/such/program", "args": [], "env": []},
        ]);
        create_session_with(env, "mcpServers", servers).unwrap();
    }),
    case("a server without its lists is taken", |env| {
        create_session_with(
            env,
            "mcpServers",
            json!([{"name": "short", "command": "/no/such/program"}]),
        )
        .unwrap();
        let web = json!([{"name": "web", "type": "http", "url": "http://127.0.0.1:1/"}]);
        create_session_with(env, "mcpServers", web).unwrap();
    }),
    case("unknown fields and meta are skipped", |env| {
        create_session_with(env, "somethingNew", json!({"a": 1})).unwrap();
        create_session_with(env, "_meta", json!({"trace": "x"})).unwrap();
    }),
    case("nothing is told about a Session before it is answered", |env| {
        let mut other = env.start_other(&["--auto"], json!({}));
        let id = other.new_session(&env.workspace());
        other.wait_for_update("available_commands_update");
        let place = |wished: &dyn Fn(&Value) -> bool| other.received.iter().position(wished);
        let made = place(&|message| message["result"]["sessionId"] == id.as_str());
        let first_update = place(&|message| message["method"] == "session/update");
        assert!(made.unwrap() < first_update.unwrap(), "{:?}", other.received);
    }),
    case("a Session that is open elsewhere is refused by name of the holder", |env| {
        let id = env.session();
        let mut other = env.start_other(&[], json!({}));
        for method in ["session/load", "session/resume"] {
            let params = json!({"sessionId": id, "cwd": env.workspace(), "mcpServers": []});
            let error = other.call(method, params).unwrap_err();
            let holder = env.client.child.id().to_string();
            assert!(error["message"].as_str().unwrap().contains(&holder), "{error}");
        }
        // The Session of its holder is not affected.
        assert_eq!(env.run_prompt(&id, "hello").stop(), "end_turn");
    }),
    case("the terminal goes on where the editor was", |env| {
        let id = env.session();
        env.run_prompt(&id, "first");
        env.client.call("session/close", json!({"sessionId": id})).unwrap();
        let resumed = env.binary_env.run(&["resume", &id, "second » repeat"]);
        let output = &resumed.expect_code(0).stdout;
        assert!(output.contains("first") && output.contains("second"), "{output}");
    }),
];
