//! Slash commands: that they are told, that each of them works, and what is none.

use serde_json::{Value, json};

use super::case::{Case, Scene, Topic, case};

pub const TOPIC: Topic = Topic::new("commands", CASES);

#[track_caller]
fn told(scene: &mut Scene) -> (String, Vec<Value>) {
    let session = scene.session();
    let update = scene.told(&session, "available_commands_update");
    let list = update["availableCommands"].as_array().unwrap().clone();
    (session, list)
}

const CASES: &[Case] = &[
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
        assert_eq!(turn.of("current_mode_update")[0]["currentModeId"], "plan");
        assert_eq!(turn.of("config_option_update").len(), 1);
    }),
    case("/plan with words plans them", |scene| {
        let turn = scene.once("/plan mend the parser » repeat");
        assert!(turn.text().contains("mend the parser"), "{turn:?}");
        assert!(!turn.text().contains("/plan"), "the model gets the words, not the order");
        assert_eq!(turn.of("current_mode_update")[0]["currentModeId"], "plan");
    }),
    case("/model tells which one it is, without asking it", |scene| {
        let before = scene.stage.server.requests().len();
        let turn = scene.once("/model");
        assert!(turn.text().contains("gpt-5.5"), "{turn:?}");
        assert_eq!(scene.stage.server.requests().len(), before);
    }),
    case("/model with a name changes it", |scene| {
        let turn = scene.once("/model gpt-5.5");
        let options = turn.of("config_option_update")[0]["configOptions"].clone();
        let model =
            options.as_array().unwrap().iter().find(|one| one["category"] == "model").unwrap();
        assert_eq!(model["currentValue"], "gpt-5.5");
    }),
    case("/model with a name that nobody knows says so", |scene| {
        let turn = scene.once("/model no-such-model");
        assert_eq!(turn.stop(), "end_turn");
        assert!(turn.text().contains("no-such-model"), "{turn:?}");
        assert!(turn.of("config_option_update").is_empty());
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
        assert!(turn.of("current_mode_update").is_empty());
    }),
];
