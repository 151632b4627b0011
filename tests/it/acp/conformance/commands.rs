//! Slash commands: the list sent to the client, the effect of each, and text that only looks like one.

use serde_json::{Value, json};

use super::case::{CaseEnv, ConformanceCase, ConformanceTopic, case, turn};
use super::scripted_model::script_prompt;

pub const TOPIC: ConformanceTopic = ConformanceTopic::new("commands", CASES);

#[track_caller]
fn told(scene: &mut CaseEnv) -> (String, Vec<Value>) {
    let session = scene.session();
    let update = scene.told(&session, "available_commands_update");
    let list = update["availableCommands"].as_array().unwrap().clone();
    (session, list)
}

const CASES: &[ConformanceCase] = &[
    case("commands have names without a slash, and words", |scene| {
        let (_, commands) = told(scene);
        for command in &commands {
            let name = command["name"].as_str().unwrap();
            assert!(!name.is_empty() && !name.starts_with('/') && !name.contains(' '), "{command}");
            assert!(!command["description"].as_str().unwrap().is_empty(), "{command}");
        }
        let names: Vec<&str> = commands.iter().map(|one| one["name"].as_str().unwrap()).collect();
        assert!(names.contains(&"plan") && names.contains(&"model"), "{names:?}");
    }),
    case("every command that is told does something", |scene| {
        let (_, commands) = told(scene);
        for command in commands {
            let turn = scene.once(&format!("/{}", command["name"].as_str().unwrap()));
            assert_eq!(turn.stop(), "end_turn");
            assert!(!turn.updates.is_empty() && !turn.text().is_empty(), "{command}");
        }
    }),
    case("/plan changes the mode, and says so everywhere", |scene| {
        let turn = scene.once("/plan");
        assert_eq!(turn.updates_of_kind("current_mode_update")[0]["currentModeId"], "plan");
        assert_eq!(turn.updates_of_kind("config_option_update").len(), 1);
    }),
    case("/plan with words plans them", |scene| {
        let turn = scene.once("/plan mend the parser » repeat");
        assert!(turn.text().contains("mend the parser"), "{turn:?}");
        assert!(!turn.text().contains("/plan"), "the model gets the text, not the command");
        assert_eq!(turn.updates_of_kind("current_mode_update")[0]["currentModeId"], "plan");
    }),
    case("/model tells which one it is, without asking it", |scene| {
        let before = scene.env.server.requests().len();
        let turn = scene.once("/model");
        assert!(turn.text().contains("gpt-5.5"), "{turn:?}");
        assert_eq!(scene.env.server.requests().len(), before);
    }),
    case("/model with a name changes it", |scene| {
        let turn = scene.once("/model gpt-5.5");
        let options = turn.updates_of_kind("config_option_update")[0]["configOptions"].clone();
        let model =
            options.as_array().unwrap().iter().find(|one| one["category"] == "model").unwrap();
        assert_eq!(model["currentValue"], "gpt-5.5");
    }),
    case("/model with a name that nobody knows says so", |scene| {
        let turn = scene.once("/model no-such-model");
        assert_eq!(turn.stop(), "end_turn");
        assert!(turn.text().contains("no-such-model"), "{turn:?}");
        assert!(turn.updates_of_kind("config_option_update").is_empty());
    }),
    case("a command may be followed by other blocks", |scene| {
        let session = scene.session();
        let link = json!({"type": "resource_link", "uri": "https://example.org/x", "name": "x"});
        let blocks = json!([{"type": "text", "text": "/plan look at "}, link, {"type": "text", "text": " » repeat"}]);
        let params = json!({"sessionId": session, "prompt": blocks});
        assert_eq!(scene.probe.call("session/prompt", params).unwrap()["stopReason"], "end_turn");
        let mode = scene.told(&session, "current_mode_update");
        assert_eq!(mode["currentModeId"], "plan");
    }),
    case("a slash in the middle is no command", |scene| {
        let turn = scene.once("please /plan » repeat");
        assert!(turn.text().contains("please /plan"), "{turn:?}");
        assert!(turn.updates_of_kind("current_mode_update").is_empty());
    }),
    case("/undo takes back the last Turn with its files, and /redo brings it back", |scene| {
        let mut probe = scene.other(&["--auto"], json!({}));
        let session = probe.new_session(&scene.workspace());
        let file = scene.workspace().join("undone.txt");
        let write = r#"call write {"path": "undone.txt", "content": "made\n"}"#;
        turn(&mut probe, &session, "keep this » say kept");
        turn(&mut probe, &session, &script_prompt("make it", &[write]));
        assert!(file.is_file());
        let told = turn(&mut probe, &session, "/undo").text();
        assert!(told.contains("1 Turn taken back") && told.contains("make it"), "{told}");
        assert!(told.contains("removed `undone.txt`"), "{told}");
        assert!(!file.exists());
        let told = turn(&mut probe, &session, "/redo").text();
        assert!(told.contains("1 Turn brought back") && file.is_file(), "{told}");
        turn(&mut probe, &session, "/undo 2");
        let said = turn(&mut probe, &session, "what was said? » repeat").text();
        assert!(!said.contains("keep this") && !said.contains("make it"), "{said}");
    }),
    case("/undo leaves alone what somebody else changed, and says so", |scene| {
        let mut probe = scene.other(&["--auto"], json!({}));
        let session = probe.new_session(&scene.workspace());
        let write = r#"call write {"path": "theirs.txt", "content": "made\n"}"#;
        turn(&mut probe, &session, &script_prompt("make it", &[write]));
        scene.write("theirs.txt", "and changed by hand\n");
        let told = turn(&mut probe, &session, "/undo").text();
        assert!(told.contains("Nothing was changed") && told.contains("theirs.txt"), "{told}");
        assert_eq!(
            std::fs::read_to_string(scene.workspace().join("theirs.txt")).unwrap(),
            "and changed by hand\n"
        );
        for odd in ["/undo x", "/undo 0", "/undo 7"] {
            let told = turn(&mut probe, &session, odd);
            assert!(told.stop() == "end_turn" && told.text().contains('\u{26a0}'), "{told:?}");
        }
    }),
    case("/undo takes back what changed while a command ran only with --force", |scene| {
        let mut probe = scene.other(&["--auto"], json!({}));
        let session = probe.new_session(&scene.workspace());
        let file = scene.workspace().join("by_command.txt");
        let command = r#"call bash {"command": "echo made > by_command.txt"}"#;
        turn(&mut probe, &session, &script_prompt("make it", &[command]));
        assert!(file.is_file());
        let told = turn(&mut probe, &session, "/undo").text();
        assert!(told.contains("changed while a command ran") && file.is_file(), "{told}");
        assert!(told.contains("`/undo` with `--force`"), "{told}");
        let told = turn(&mut probe, &session, "/undo 1 --force").text();
        assert!(told.contains("removed `by_command.txt`") && !file.exists(), "{told}");
        turn(&mut probe, &session, "/redo");
        assert!(file.is_file());
        let odd = turn(&mut probe, &session, "/redo 3").text();
        assert!(odd.contains("takes nothing but"), "{odd}");
    }),
    case("/fork names another Session that knows what this one knew", |scene| {
        let session = scene.session();
        scene.turn(&session, "the word is tulip » say noted");
        let told = scene.turn(&session, "/fork").text();
        let id = told.split_whitespace().nth(1).unwrap().to_owned();
        assert!(told.contains("the word is tulip") && id != session, "{told}");
        let params = json!({"sessionId": id, "cwd": scene.workspace(), "mcpServers": []});
        scene.probe.call("session/resume", params).unwrap();
        assert!(scene.turn(&id, "and? » repeat").text().contains("tulip"));
        assert!(scene.turn(&session, "still here » repeat").text().contains("tulip"));
    }),
];
