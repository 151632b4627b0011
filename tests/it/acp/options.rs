//! Options of a Session: mode, model and reasoning effort, kept in the Log.

use pixir::scripted::Reply;
use serde_json::{Value, json};

use super::{facts, new_binary_env, new_client};
use crate::support::acp_client::{AcpClient, joined_text};

fn current(options: &Value, id: &str) -> Value {
    let option = options.as_array().unwrap().iter().find(|option| option["id"] == id);
    option.map(|option| option["currentValue"].clone()).unwrap_or_default()
}

fn set(client: &mut AcpClient, session: &str, id: &str, value: &str) -> Result<Value, Value> {
    let params = json!({"sessionId": session, "configId": id, "value": value});
    client.call("session/set_config_option", params)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_begins_asking_and_its_pickers_are_complete() {
    let env = new_binary_env([]).await;
    let mut client = AcpClient::initialized(&env, json!({}));
    let params = json!({"cwd": env.workspace(), "mcpServers": []});
    let made = client.call("session/new", params).unwrap();
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
        assert_eq!(set(&mut client, id, option, value).unwrap_err()["code"], -32_602, "{option}");
    }
    let unknown = json!({"sessionId": id, "modeId": "yolo"});
    assert_eq!(client.call("session/set_mode", unknown).unwrap_err()["code"], -32_602);
    assert!(client.close_and_wait().0.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_chosen_is_asked_for_recorded_and_kept() {
    let env = new_binary_env([Reply::says("a"), Reply::says("b")]).await;
    let (mut client, id) = new_client(&env, &[], json!({}));
    let changed = set(&mut client, &id, "model", "gpt-6-sol").unwrap();
    let levels = &changed["configOptions"][2]["options"];
    assert!(levels.to_string().contains("ultra"), "levels follow the model: {levels}");
    set(&mut client, &id, "thought_level", "ultra").unwrap();
    set(&mut client, &id, "mode", "auto").unwrap();
    assert_eq!(
        client.call("session/set_model", json!({"sessionId": id, "modelId": "gpt-5.5"})).unwrap(),
        json!({})
    );
    client.run_prompt(&id, "go").unwrap();
    let body = &env.server.requests()[0].body;
    assert_eq!(
        (&body["model"], &body["reasoning"]["effort"]),
        (&json!("gpt-5.5"), &json!("medium"))
    );
    assert_eq!(facts(&env, "posture_changed").len(), 4);
    assert!(client.close_and_wait().0.success());
    // Another process keeps the choice, also where it is laxer than the settings.
    let mut again = AcpClient::initialized(&env, json!({}));
    let params = json!({"sessionId": id, "cwd": env.workspace(), "mcpServers": []});
    let resumed = again.call("session/resume", params).unwrap();
    assert_eq!(resumed["modes"]["currentModeId"], "auto");
    assert_eq!(current(&resumed["configOptions"], "model"), "gpt-5.5");
    assert!(again.close_and_wait().0.success());
    // Without the user's own grant on this machine, the Log alone widens no permission.
    std::fs::remove_file(env.workspace().join("../home/.pixir/grants.json")).unwrap();
    let mut elsewhere = AcpClient::initialized(&env, json!({}));
    let params = json!({"sessionId": id, "cwd": env.workspace()});
    let resumed = elsewhere.call("session/resume", params).unwrap();
    assert_eq!(resumed["modes"]["currentModeId"], "ask");
    assert!(elsewhere.close_and_wait().0.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_change_the_session_and_other_slashes_are_words() {
    let env = new_binary_env([Reply::says("a plan"), Reply::says("words")]).await;
    let (mut client, id) = new_client(&env, &[], json!({}));
    let commands = client.wait_for_update("available_commands_update");
    let names = commands["availableCommands"].to_string();
    assert!(names.contains("\"plan\"") && names.contains("\"model\""), "{names}");
    assert_eq!(client.run_prompt(&id, "/model gpt-6-sol").unwrap()["stopReason"], "end_turn");
    let updates = client.updates();
    assert!(joined_text(&updates, "agent_message_chunk").contains("gpt-6-sol"));
    assert!(updates.iter().any(|update| update["sessionUpdate"] == "config_option_update"));
    assert_eq!(env.server.requests().len(), 0, "no model was asked");
    client.run_prompt(&id, "/plan the work").unwrap();
    assert_eq!(client.wait_for_update("current_mode_update")["currentModeId"], "plan");
    let request = env.server.requests().pop().unwrap();
    assert_eq!(request.user_texts().last(), Some(&"the work"));
    assert!(!request.body["tools"].to_string().contains("apply_patch"), "a plan changes nothing");
    client.run_prompt(&id, "/unknown thing").unwrap();
    let request = env.server.requests().pop().unwrap();
    assert_eq!(request.user_texts().last(), Some(&"/unknown thing"));
    assert!(client.close_and_wait().0.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn skills_and_prompts_are_commands_too() {
    let env = new_binary_env([Reply::says("tidied"), Reply::says("reviewed")]).await;
    let home = env.workspace().join("../home");
    let plant = |path: &str, text: &str| {
        let path = home.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    plant(".agents/skills/tidy/SKILL.md", "---\nname: tidy\ndescription: Tidy up\n---\nSort.\n");
    plant(".pixir/prompts/review.md", "---\nargument-hint: what\n---\nReview $1 well.\n");
    plant(".pixir/prompts/plan.md", "Never: the name is taken.\n");
    let (mut client, id) = new_client(&env, &[], json!({}));
    let commands = client.wait_for_update("available_commands_update");
    let commands = commands["availableCommands"].as_array().unwrap();
    let names: Vec<&str> = commands.iter().filter_map(|one| one["name"].as_str()).collect();
    assert!(names.ends_with(&["review", "tidy"]), "{names:?}");
    assert_eq!(names.iter().filter(|name| **name == "plan").count(), 1, "{names:?}");
    let review = commands.iter().find(|one| one["name"] == "review").unwrap();
    assert_eq!(review["input"]["hint"], "what");
    client.run_prompt(&id, "/tidy the shelf").unwrap();
    let request = env.server.requests().pop().unwrap();
    assert_eq!(request.user_texts().last(), Some(&"$tidy the shelf"));
    assert_eq!(facts(&env, "skill_activation").len(), 1);
    client.run_prompt(&id, "/review 'the diff'").unwrap();
    let request = env.server.requests().pop().unwrap();
    assert_eq!(request.user_texts().last(), Some(&"Review the diff well."));
    assert!(client.close_and_wait().0.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_settings_say_what_editors_may_do() {
    let env = new_binary_env([]).await;
    let mode = |args: &[&str]| {
        let mut client = AcpClient::start(&env, args);
        client.initialize(json!({}));
        let made = client.call("session/new", json!({"cwd": env.workspace()})).unwrap();
        assert!(client.close_and_wait().0.success());
        made["modes"]["currentModeId"].as_str().unwrap().to_owned()
    };
    env.configure(&json!({"acp": {"mode": "auto"}}));
    assert_eq!(mode(&[]), "auto");
    assert_eq!(mode(&["--read-only"]), "read_only");
    env.configure(&json!({"permission_mode": "read_only"}));
    assert_eq!(mode(&[]), "read_only", "an editor is not laxer than everywhere else");
    assert_eq!(mode(&["--role", "plan"]), "plan");
}
