//! Files that a client has open: they are read and written through the client if it supports that.

use serde_json::{Value, json};

use super::case::{
    CaseEnv, ConformanceCase, ConformanceTopic, JudgedClient, RecordedTurn, case, finished,
    turn_with,
};
use super::scripted_model::script_prompt;

pub const TOPIC: ConformanceTopic =
    ConformanceTopic::new("client files", CASES).with_args(&["--auto"]);

/// A process for a client with these file capabilities, and a Session.
fn opened(scene: &CaseEnv, capabilities: &Value) -> (JudgedClient, String) {
    let mut probe = scene.other(&["--auto"], json!({ "fs": capabilities }));
    let session = probe.new_session(&scene.workspace());
    (probe, session)
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
    case("what is not saved is what is read", |scene| {
        let path = scene.write("open.txt", "saved words\n");
        let (mut probe, session) = opened(scene, &both());
        let prompt = script_prompt("go", &[r#"call read {"path":"open.txt"}"#, "echo"]);
        let told = turn_with(&mut probe, &session, &prompt, |asked| {
            assert_eq!(
                (&asked["method"], &asked["params"]["path"]),
                (&json!("fs/read_text_file"), &json!(path))
            );
            json!({"content": "unsaved words\n"})
        });
        assert!(told.text().contains("unsaved words"), "{told:?}");
    }),
    case("a change goes through the client, with its true old text", |scene| {
        let path = scene.write("buffer.txt", "saved\n");
        let (mut probe, session) = opened(scene, &both());
        let mut buffer = "unsaved\n".to_owned();
        let prompt = script_prompt("go", &[&edit("buffer.txt"), "say done"]);
        let told = turn_with(&mut probe, &session, &prompt, |asked| {
            assert_eq!(asked["params"]["path"], json!(path), "{asked}");
            if asked["method"] == "fs/write_text_file" {
                asked["params"]["content"].as_str().unwrap().clone_into(&mut buffer);
                return json!({});
            }
            json!({"content": buffer})
        });
        assert_eq!((count(&told, "fs/write_text_file"), buffer.as_str()), (1, "mended\n"));
        let call = told.call();
        assert_eq!(
            (&call["status"], &call["content"][0]["oldText"]),
            (&json!("completed"), &json!("unsaved\n"))
        );
        // Saving is left to the editor.
        assert_eq!(std::fs::read_to_string(path).unwrap(), "saved\n");
    }),
    case("a client that cannot read a file does not stop Pixir", |scene| {
        scene.write("on-disk.txt", "words of the disk\n");
        let (mut probe, session) = opened(scene, &both());
        let prompt = script_prompt("go", &[r#"call read {"path":"on-disk.txt"}"#, "echo"]);
        let id = probe.send_prompt(&session, &prompt);
        let asked = probe.wait_for_request("fs/read_text_file");
        let error = json!({"code": -32_002, "message": "it is not open"});
        probe.send_message(&json!({"jsonrpc": "2.0", "id": asked["id"], "error": error}));
        let told = finished(&mut probe, &session, id, |asked| panic!("{asked}"));
        assert!(told.text().contains("words of the disk"), "{told:?}");
    }),
    case("a client that only reads is never asked to write", |scene| {
        let path = scene.write("reader.txt", "unsaved\n");
        let (mut probe, session) = opened(scene, &json!({"readTextFile": true}));
        let prompt = script_prompt("go", &[&edit("reader.txt"), "say done"]);
        let told = turn_with(&mut probe, &session, &prompt, |asked| {
            assert_eq!(asked["method"], "fs/read_text_file");
            json!({"content": "unsaved\n"})
        });
        assert_eq!(told.call()["status"], "completed");
        assert_eq!(std::fs::read_to_string(path).unwrap(), "mended\n");
    }),
    case("a client without files is asked nothing", |scene| {
        let path = scene.write("alone.txt", "unsaved\n");
        let told = scene.once(&script_prompt("go", &[&edit("alone.txt"), "say done"]));
        assert!(told.asked.is_empty());
        assert_eq!(std::fs::read_to_string(path).unwrap(), "mended\n");
    }),
    case("what is outside the Workspace is not asked of the client", |scene| {
        let (mut probe, session) = opened(scene, &both());
        let prompt = script_prompt("go", &[r#"call read {"path":"/etc/hostname"}"#, "say done"]);
        let told = turn_with(&mut probe, &session, &prompt, |asked| panic!("{asked}"));
        assert_eq!(told.call()["status"], "failed");
    }),
];
