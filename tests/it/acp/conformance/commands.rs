//! Slash commands: the list sent to the client, the effect of each, and text that only looks like one.

use serde_json::{Value, json};

use super::case::{CaseEnv, ConformanceCase, ConformanceTopic, case, run_prompt};
use super::scripted_model::script_prompt;

pub const TOPIC: ConformanceTopic = ConformanceTopic::new("commands", CASES);

#[track_caller]
fn new_session_commands(env: &mut CaseEnv) -> (String, Vec<Value>) {
    let session = env.session();
    let update = env.wait_for_update(&session, "available_commands_update");
    let list = update["availableCommands"].as_array().unwrap().clone();
    (session, list)
}

const CASES: &[ConformanceCase] = &[
    case("commands have names without a slash, and words", |env| {
        let (_, commands) = new_session_commands(env);
        for command in &commands {
            let name = command["name"].as_str().unwrap();
            assert!(!name.is_empty() && !name.starts_with('/') && !name.contains(' '), "{command}");
            assert!(!command["description"].as_str().unwrap().is_empty(), "{command}");
        }
        let names: Vec<&str> = commands.iter().map(|one| one["name"].as_str().unwrap()).collect();
        assert!(names.contains(&"plan") && names.contains(&"model"), "{names:?}");
    }),
    case("every command that is told does something", |env| {
        let (_, commands) = new_session_commands(env);
        for command in commands {
            let turn = env.run_in_new_session(&format!("/{}", command["name"].as_str().unwrap()));
            assert_eq!(turn.stop(), "end_turn");
            assert!(!turn.updates.is_empty() && !turn.text().is_empty(), "{command}");
        }
    }),
    case("/plan changes the mode, and says so everywhere", |env| {
        let turn = env.run_in_new_session("/plan");
        assert_eq!(turn.updates_of_kind("current_mode_update")[0]["currentModeId"], "plan");
        assert_eq!(turn.updates_of_kind("config_option_update").len(), 1);
    }),
    case("/plan with words plans them", |env| {
        let turn = env.run_in_new_session("/plan mend the parser » repeat");
        assert!(turn.text().contains("mend the parser"), "{turn:?}");
        assert!(!turn.text().contains("/plan"), "the model gets the text, not the command");
        assert_eq!(turn.updates_of_kind("current_mode_update")[0]["currentModeId"], "plan");
    }),
    case("/model tells which one it is, without asking it", |env| {
        let before = env.binary_env.server.requests().len();
        let turn = env.run_in_new_session("/model");
        assert!(turn.text().contains("gpt-5.5"), "{turn:?}");
        assert_eq!(env.binary_env.server.requests().len(), before);
    }),
    case("/model with a name changes it", |env| {
        let turn = env.run_in_new_session("/model gpt-5.5");
        let options = turn.updates_of_kind("config_option_update")[0]["configOptions"].clone();
        let model =
            options.as_array().unwrap().iter().find(|one| one["category"] == "model").unwrap();
        assert_eq!(model["currentValue"], "gpt-5.5");
    }),
    case("/model with a name that nobody knows says so", |env| {
        let turn = env.run_in_new_session("/model no-such-model");
        assert_eq!(turn.stop(), "end_turn");
        assert!(turn.text().contains("no-such-model"), "{turn:?}");
        assert!(turn.updates_of_kind("config_option_update").is_empty());
    }),
    case("a command may be followed by other blocks", |env| {
        let session = env.session();
        let link = json!({"type": "resource_link", "uri": "https://example.org/x", "name": "x"});
        let blocks = json!([{"type": "text", "text": "/plan look at "}, link, {"type": "text", "text": " » repeat"}]);
        let params = json!({"sessionId": session, "prompt": blocks});
        assert_eq!(env.client.call("session/prompt", params).unwrap()["stopReason"], "end_turn");
        let mode = env.wait_for_update(&session, "current_mode_update");
        assert_eq!(mode["currentModeId"], "plan");
    }),
    case("a slash in the middle is no command", |env| {
        let turn = env.run_in_new_session("please /plan » repeat");
        assert!(turn.text().contains("please /plan"), "{turn:?}");
        assert!(turn.updates_of_kind("current_mode_update").is_empty());
    }),
    case("/undo takes back the last Turn with its files, and /redo brings it back", |env| {
        let mut client = env.start_other(&["--auto"], json!({}));
        let session = client.new_session(&env.workspace());
        let file = env.workspace().join("undone.txt");
        let write = r#"call write {"path": "undone.txt", "content": "made\n"}"#;
        run_prompt(&mut client, &session, "keep this » say kept");
        run_prompt(&mut client, &session, &script_prompt("make it", &[write]));
        assert!(file.is_file());
        let text = run_prompt(&mut client, &session, "/undo").text();
        assert!(text.contains("1 Turn taken back") && text.contains("make it"), "{text}");
        assert!(text.contains("removed `undone.txt`"), "{text}");
        assert!(!file.exists());
        let text = run_prompt(&mut client, &session, "/redo").text();
        assert!(text.contains("1 Turn brought back") && file.is_file(), "{text}");
        run_prompt(&mut client, &session, "/undo 2");
        let text = run_prompt(&mut client, &session, "what was said? » repeat").text();
        assert!(!text.contains("keep this") && !text.contains("make it"), "{text}");
    }),
    case("/undo leaves alone what somebody else changed, and says so", |env| {
        let mut client = env.start_other(&["--auto"], json!({}));
        let session = client.new_session(&env.workspace());
        let write = r#"call write {"path": "theirs.txt", "content": "made\n"}"#;
        run_prompt(&mut client, &session, &script_prompt("make it", &[write]));
        env.write("theirs.txt", "and changed by hand\n");
        let text = run_prompt(&mut client, &session, "/undo").text();
        assert!(text.contains("Nothing was changed") && text.contains("theirs.txt"), "{text}");
        assert_eq!(
            std::fs::read_to_string(env.workspace().join("theirs.txt")).unwrap(),
            "and changed by hand\n"
        );
        for odd in ["/undo x", "/undo 0", "/undo 7"] {
            let turn = run_prompt(&mut client, &session, odd);
            assert!(turn.stop() == "end_turn" && turn.text().contains('\u{26a0}'), "{turn:?}");
        }
    }),
    case("/undo takes back what changed while a command ran only with --force", |env| {
        let mut client = env.start_other(&["--auto"], json!({}));
        let session = client.new_session(&env.workspace());
        let file = env.workspace().join("by_command.txt");
        let command = r#"call bash {"command": "echo made > by_command.txt"}"#;
        run_prompt(&mut client, &session, &script_prompt("make it", &[command]));
        assert!(file.is_file());
        let text = run_prompt(&mut client, &session, "/undo").text();
        assert!(text.contains("changed while a command ran") && file.is_file(), "{text}");
        assert!(text.contains("`/undo` with `--force`"), "{text}");
        let text = run_prompt(&mut client, &session, "/undo 1 --force").text();
        assert!(text.contains("removed `by_command.txt`") && !file.exists(), "{text}");
        run_prompt(&mut client, &session, "/redo");
        assert!(file.is_file());
        let odd = run_prompt(&mut client, &session, "/redo 3").text();
        assert!(odd.contains("takes nothing but"), "{odd}");
    }),
    case("/fork names another Session that knows what this one knew", |env| {
        let session = env.session();
        env.run_prompt(&session, "the word is tulip » say noted");
        let text = env.run_prompt(&session, "/fork").text();
        let id = text.split_whitespace().nth(1).unwrap().to_owned();
        assert!(text.contains("the word is tulip") && id != session, "{text}");
        let params = json!({"sessionId": id, "cwd": env.workspace(), "mcpServers": []});
        env.client.call("session/resume", params).unwrap();
        assert!(env.run_prompt(&id, "and? » repeat").text().contains("tulip"));
        assert!(env.run_prompt(&session, "still here » repeat").text().contains("tulip"));
    }),
];
