//! Pickers: mode, model and thinking of a Session, kept by the Log.

use pixir::scripted::Reply;
use serde_json::{Value, json};

use super::{editor, facts, stage};
use crate::support::editor::{Editor, text_of};

fn current(options: &Value, id: &str) -> Value {
    let option = options.as_array().unwrap().iter().find(|option| option["id"] == id);
    option.map(|option| option["currentValue"].clone()).unwrap_or_default()
}

fn set(editor: &mut Editor, session: &str, id: &str, value: &str) -> Result<Value, Value> {
    let params = json!({"sessionId": session, "configId": id, "value": value});
    editor.call("session/set_config_option", params)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_begins_asking_and_its_pickers_are_complete() {
    let stage = stage([]).await;
    let mut editor = Editor::greeted(&stage, json!({}));
    let params = json!({"cwd": stage.workspace(), "mcpServers": []});
    let made = editor.call("session/new", params).unwrap();
    assert_eq!(made["modes"]["currentModeId"], "ask");
    let ids: Vec<&str> = made["modes"]["availableModes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|mode| mode["id"].as_str().unwrap())
        .collect();
    assert_eq!(ids, ["ask", "auto", "read_only", "plan"]);
    let options = &made["configOptions"];
    let categories: Vec<&str> = options
        .as_array()
        .unwrap()
        .iter()
        .map(|option| option["category"].as_str().unwrap())
        .collect();
    assert_eq!(categories, ["mode", "model", "thought_level"]);
    assert_eq!(current(options, "model"), "gpt-5.5");
    assert_eq!(current(options, "thought_level"), "medium");
    let id = made["sessionId"].as_str().unwrap();
    for (option, value) in
        [("mode", "yolo"), ("model", "none"), ("thought_level", "ultra"), ("x", "y")]
    {
        assert_eq!(set(&mut editor, id, option, value).unwrap_err()["code"], -32_602, "{option}");
    }
    let unknown = json!({"sessionId": id, "modeId": "yolo"});
    assert_eq!(editor.call("session/set_mode", unknown).unwrap_err()["code"], -32_602);
    assert!(editor.end().0.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_chosen_is_asked_for_recorded_and_kept() {
    let stage = stage([Reply::says("a"), Reply::says("b")]).await;
    let (mut editor, id) = editor(&stage, &[], json!({}));
    let changed = set(&mut editor, &id, "model", "gpt-6-sol").unwrap();
    let levels = &changed["configOptions"][2]["options"];
    assert!(levels.to_string().contains("ultra"), "levels follow the model: {levels}");
    set(&mut editor, &id, "thought_level", "ultra").unwrap();
    set(&mut editor, &id, "mode", "auto").unwrap();
    assert_eq!(
        editor.call("session/set_model", json!({"sessionId": id, "modelId": "gpt-5.5"})).unwrap(),
        json!({})
    );
    editor.turn(&id, "go").unwrap();
    let body = &stage.server.requests()[0].body;
    assert_eq!(
        (&body["model"], &body["reasoning"]["effort"]),
        (&json!("gpt-5.5"), &json!("medium"))
    );
    assert_eq!(facts(&stage, "posture_changed").len(), 4);
    assert!(editor.end().0.success());
    // Another process goes on with what was chosen, also where it is laxer than the settings.
    let mut again = Editor::greeted(&stage, json!({}));
    let params = json!({"sessionId": id, "cwd": stage.workspace(), "mcpServers": []});
    let resumed = again.call("session/resume", params).unwrap();
    assert_eq!(resumed["modes"]["currentModeId"], "auto");
    assert_eq!(current(&resumed["configOptions"], "model"), "gpt-5.5");
    assert!(again.end().0.success());
    // On a machine where the user never chose it, the Log alone does not widen anything.
    std::fs::remove_file(stage.workspace().join("../home/.pixir/grants.json")).unwrap();
    let mut elsewhere = Editor::greeted(&stage, json!({}));
    let params = json!({"sessionId": id, "cwd": stage.workspace()});
    let resumed = elsewhere.call("session/resume", params).unwrap();
    assert_eq!(resumed["modes"]["currentModeId"], "ask");
    assert!(elsewhere.end().0.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_change_the_session_and_other_slashes_are_words() {
    let stage = stage([Reply::says("a plan"), Reply::says("words")]).await;
    let (mut editor, id) = editor(&stage, &[], json!({}));
    let commands = editor.update("available_commands_update");
    let names = commands["availableCommands"].to_string();
    assert!(names.contains("\"plan\"") && names.contains("\"model\""), "{names}");
    assert_eq!(editor.turn(&id, "/model gpt-6-sol").unwrap()["stopReason"], "end_turn");
    let updates = editor.updates();
    assert!(text_of(&updates, "agent_message_chunk").contains("gpt-6-sol"));
    assert!(updates.iter().any(|update| update["sessionUpdate"] == "config_option_update"));
    assert_eq!(stage.server.requests().len(), 0, "no model was asked");
    editor.turn(&id, "/plan the work").unwrap();
    assert_eq!(editor.update("current_mode_update")["currentModeId"], "plan");
    let request = stage.server.requests().pop().unwrap();
    assert_eq!(request.user_texts().last(), Some(&"the work"));
    assert!(!request.body["tools"].to_string().contains("apply_patch"), "a plan changes nothing");
    editor.turn(&id, "/unknown thing").unwrap();
    let request = stage.server.requests().pop().unwrap();
    assert_eq!(request.user_texts().last(), Some(&"/unknown thing"));
    assert!(editor.end().0.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn skills_and_prompts_are_commands_too() {
    let stage = stage([Reply::says("tidied"), Reply::says("reviewed")]).await;
    let home = stage.workspace().join("../home");
    let plant = |path: &str, text: &str| {
        let path = home.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    plant(".agents/skills/tidy/SKILL.md", "---\nname: tidy\ndescription: Tidy up\n---\nSort.\n");
    plant(".pixir/prompts/review.md", "---\nargument-hint: what\n---\nReview $1 well.\n");
    plant(".pixir/prompts/plan.md", "Never: the name is taken.\n");
    let (mut editor, id) = editor(&stage, &[], json!({}));
    let commands = editor.update("available_commands_update");
    let commands = commands["availableCommands"].as_array().unwrap();
    let names: Vec<&str> = commands.iter().filter_map(|one| one["name"].as_str()).collect();
    assert!(names.ends_with(&["review", "tidy"]), "{names:?}");
    assert_eq!(names.iter().filter(|name| **name == "plan").count(), 1, "{names:?}");
    let review = commands.iter().find(|one| one["name"] == "review").unwrap();
    assert_eq!(review["input"]["hint"], "what");
    editor.turn(&id, "/tidy the shelf").unwrap();
    let request = stage.server.requests().pop().unwrap();
    assert_eq!(request.user_texts().last(), Some(&"$tidy the shelf"));
    assert_eq!(facts(&stage, "skill_activation").len(), 1);
    editor.turn(&id, "/review 'the diff'").unwrap();
    let request = stage.server.requests().pop().unwrap();
    assert_eq!(request.user_texts().last(), Some(&"Review the diff well."));
    assert!(editor.end().0.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_settings_say_what_editors_may_do() {
    let stage = stage([]).await;
    let mode = |args: &[&str]| {
        let mut editor = Editor::start(&stage, args);
        editor.initialize(json!({}));
        let made = editor.call("session/new", json!({"cwd": stage.workspace()})).unwrap();
        assert!(editor.end().0.success());
        made["modes"]["currentModeId"].as_str().unwrap().to_owned()
    };
    stage.configure(&json!({"acp": {"mode": "auto"}}));
    assert_eq!(mode(&[]), "auto");
    assert_eq!(mode(&["--read-only"]), "read_only");
    stage.configure(&json!({"permission_mode": "read_only"}));
    assert_eq!(mode(&[]), "read_only", "an editor is not laxer than everywhere else");
    assert_eq!(mode(&["--role", "plan"]), "plan");
}
