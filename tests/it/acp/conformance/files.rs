//! Files that a client has open: they are read and written through the client if it supports that.

use serde_json::{Value, json};

use super::case::{
    CaseEnv, ConformanceCase, ConformanceTopic, RecordedTurn, ValidatingClient, case,
    run_prompt_with, wait_for_turn_end,
};
use super::scripted_model::script_prompt;

pub const TOPIC: ConformanceTopic =
    ConformanceTopic::new("client files", CASES).with_args(&["--auto"]);

/// A process for a client with these file capabilities, and a Session.
fn opened(env: &CaseEnv, capabilities: &Value) -> (ValidatingClient, String) {
    let mut client = env.start_other(&["--auto"], json!({ "fs": capabilities }));
    let session = client.new_session(&env.workspace());
    (client, session)
}

fn both() -> Value {
    json!({"readTextFile": true, "writeTextFile": true})
}

/// The number of requests for a method.
fn count(turn: &RecordedTurn, method: &str) -> usize {
    turn.asked.iter().filter(|asked| asked["method"] == method).count()
}

fn edit(name: &str) -> String {
    let edits = json!([{"old_string": "unsaved", "new_string": "mended"}]);
    format!("call edit {}", json!({"path": name, "edits": edits}))
}

const CASES: &[ConformanceCase] = &[
    case("what is not saved is what is read", |env| {
        let path = env.write("open.txt", "saved words\n");
        let (mut client, session) = opened(env, &both());
        let prompt = script_prompt("go", &[r#"call read {"path":"open.txt"}"#, "echo"]);
        let turn = run_prompt_with(&mut client, &session, &prompt, |asked| {
            assert_eq!(
                (&asked["method"], &asked["params"]["path"]),
                (&json!("fs/read_text_file"), &json!(path))
            );
            json!({"content": "unsaved words\n"})
        });
        assert!(turn.text().contains("unsaved words"), "{turn:?}");
    }),
    case("a change goes through the client, with its true old text", |env| {
        let path = env.write("buffer.txt", "saved\n");
        let (mut client, session) = opened(env, &both());
        let mut buffer = "unsaved\n".to_owned();
        let prompt = script_prompt("go", &[&edit("buffer.txt"), "say done"]);
        let turn = run_prompt_with(&mut client, &session, &prompt, |asked| {
            assert_eq!(asked["params"]["path"], json!(path), "{asked}");
            if asked["method"] == "fs/write_text_file" {
                asked["params"]["content"].as_str().unwrap().clone_into(&mut buffer);
                return json!({});
            }
            json!({"content": buffer})
        });
        assert_eq!((count(&turn, "fs/write_text_file"), buffer.as_str()), (1, "mended\n"));
        let call = turn.call();
        assert_eq!(
            (&call["status"], &call["content"][0]["oldText"]),
            (&json!("completed"), &json!("unsaved\n"))
        );
        // Saving is left to the editor.
        assert_eq!(std::fs::read_to_string(path).unwrap(), "saved\n");
    }),
    case("a client that cannot read a file does not stop Pixir", |env| {
        env.write("on-disk.txt", "words of the disk\n");
        let (mut client, session) = opened(env, &both());
        let prompt = script_prompt("go", &[r#"call read {"path":"on-disk.txt"}"#, "echo"]);
        let id = client.send_prompt(&session, &prompt);
        let asked = client.wait_for_request("fs/read_text_file");
        let error = json!({"code": -32_002, "message": "it is not open"});
        client.send_message(&json!({"jsonrpc": "2.0", "id": asked["id"], "error": error}));
        let turn = wait_for_turn_end(&mut client, &session, id, |asked| panic!("{asked}"));
        assert!(turn.text().contains("words of the disk"), "{turn:?}");
    }),
    case("a client that only reads is never asked to write", |env| {
        let path = env.write("reader.txt", "unsaved\n");
        let (mut client, session) = opened(env, &json!({"readTextFile": true}));
        let prompt = script_prompt("go", &[&edit("reader.txt"), "say done"]);
        let turn = run_prompt_with(&mut client, &session, &prompt, |asked| {
            assert_eq!(asked["method"], "fs/read_text_file");
            json!({"content": "unsaved\n"})
        });
        assert_eq!(turn.call()["status"], "completed");
        assert_eq!(std::fs::read_to_string(path).unwrap(), "mended\n");
    }),
    case("a client without files is asked nothing", |env| {
        let path = env.write("alone.txt", "unsaved\n");
        let turn = env.run_in_new_session(&script_prompt("go", &[&edit("alone.txt"), "say done"]));
        assert!(turn.asked.is_empty());
        assert_eq!(std::fs::read_to_string(path).unwrap(), "mended\n");
    }),
    case("what is outside the Workspace is not asked of the client", |env| {
        let (mut client, session) = opened(env, &both());
        let prompt = script_prompt("go", &[r#"call read {"path":"/etc/hostname"}"#, "say done"]);
        let turn = run_prompt_with(&mut client, &session, &prompt, |asked| panic!("{asked}"));
        assert_eq!(turn.call()["status"], "failed");
    }),
];
