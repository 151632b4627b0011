//! Modes and options: their values, the agreement of both views, and the persistence of a choice.

use serde_json::{Value, json};

use super::case::{CaseEnv, ConformanceCase, ConformanceTopic, case, wait_for_turn_end};

pub const TOPIC: ConformanceTopic = ConformanceTopic::new("modes and options", CASES);

#[track_caller]
fn fresh(env: &mut CaseEnv) -> (String, Value) {
    let params = json!({"cwd": env.workspace(), "mcpServers": []});
    let made = env.client.call("session/new", params).unwrap();
    (made["sessionId"].as_str().unwrap().to_owned(), made)
}

fn option<'v>(options: &'v Value, category: &str) -> &'v Value {
    let options = options.as_array().unwrap();
    options.iter().find(|option| option["category"] == category).expect("the option is there")
}

fn values(option: &Value) -> Vec<String> {
    let options = option["options"].as_array().unwrap();
    options.iter().map(|one| one["value"].as_str().unwrap().to_owned()).collect()
}

#[track_caller]
fn set(env: &mut CaseEnv, session: &str, id: &str, value: &str) -> Result<Value, Value> {
    let params = json!({"sessionId": session, "configId": id, "value": value});
    env.client.call("session/set_config_option", params)
}

#[track_caller]
fn mode(env: &mut CaseEnv, session: &str, id: &str) -> Result<Value, Value> {
    env.client.call("session/set_mode", json!({"sessionId": session, "modeId": id}))
}

const CASES: &[ConformanceCase] = &[
    case("the current mode is one of the modes", |env| {
        let (_, made) = fresh(env);
        let modes = made["modes"]["availableModes"].as_array().unwrap();
        let ids: Vec<&Value> = modes.iter().map(|mode| &mode["id"]).collect();
        assert!(ids.contains(&&made["modes"]["currentModeId"]), "{made}");
        assert_eq!(made["modes"]["currentModeId"], "ask");
    }),
    case("there are ask, auto, read_only and plan", |env| {
        let (_, made) = fresh(env);
        let modes = made["modes"]["availableModes"].as_array().unwrap();
        for id in ["ask", "auto", "read_only", "plan"] {
            let mode = modes.iter().find(|mode| mode["id"] == id).expect("the mode is there");
            assert!(!mode["name"].as_str().unwrap().is_empty() && mode["description"].is_string());
        }
    }),
    case("mode, model and effort are options with their categories", |env| {
        let (_, made) = fresh(env);
        for category in ["mode", "model", "thought_level"] {
            let option = option(&made["configOptions"], category);
            let current = option["currentValue"].as_str().unwrap().to_owned();
            assert!(values(option).contains(&current), "{option}");
        }
        assert_eq!(made["configOptions"][0]["category"], "mode", "the most important first");
    }),
    case("the mode is the same in both views", |env| {
        let (_, made) = fresh(env);
        let modes = made["modes"]["availableModes"].as_array().unwrap();
        let ids: Vec<String> =
            modes.iter().map(|mode| mode["id"].as_str().unwrap().to_owned()).collect();
        assert_eq!(values(option(&made["configOptions"], "mode")), ids);
    }),
    case("no option is a yes or no unless the client knows it", |env| {
        let (_, made) = fresh(env);
        let options = made["configOptions"].as_array().unwrap();
        let is_select = |option: &Value| option["type"] == "select";
        assert!(!options.is_empty() && options.iter().all(is_select), "{options:?}");
    }),
    case("every mode can be chosen, and both views are told", |env| {
        let (session, made) = fresh(env);
        for value in values(option(&made["configOptions"], "mode")) {
            assert!(mode(env, &session, &value).unwrap().is_object());
            assert_eq!(
                env.wait_for_update(&session, "current_mode_update")["currentModeId"],
                value.as_str()
            );
            let options =
                env.wait_for_update(&session, "config_option_update")["configOptions"].clone();
            assert_eq!(option(&options, "mode")["currentValue"], value.as_str());
        }
    }),
    case("every mode can be chosen as an option, with the same news", |env| {
        let (session, made) = fresh(env);
        for value in values(option(&made["configOptions"], "mode")) {
            let all = set(env, &session, "mode", &value).unwrap()["configOptions"].clone();
            assert_eq!(option(&all, "mode")["currentValue"], value.as_str());
            assert_eq!(
                all.as_array().unwrap().len(),
                made["configOptions"].as_array().unwrap().len()
            );
            assert_eq!(
                env.wait_for_update(&session, "current_mode_update")["currentModeId"],
                value.as_str()
            );
        }
    }),
    case("every effort can be chosen", |env| {
        let (session, made) = fresh(env);
        let effort = option(&made["configOptions"], "thought_level");
        let id = effort["id"].as_str().unwrap();
        for value in values(effort) {
            let all = set(env, &session, id, &value).unwrap()["configOptions"].clone();
            assert_eq!(option(&all, "thought_level")["currentValue"], value.as_str());
        }
    }),
    case("every model can be chosen, and efforts are those of the model", |env| {
        let (session, made) = fresh(env);
        for value in values(option(&made["configOptions"], "model")) {
            let all = set(env, &session, "model", &value).unwrap()["configOptions"].clone();
            assert_eq!(option(&all, "model")["currentValue"], value.as_str());
            for one in all.as_array().unwrap() {
                let current = one["currentValue"].as_str().unwrap().to_owned();
                assert!(values(one).contains(&current), "{value}: {one}");
            }
        }
    }),
    case("the model that was chosen is asked", |env| {
        let (session, made) = fresh(env);
        let other = values(option(&made["configOptions"], "model")).pop().unwrap();
        set(env, &session, "model", &other).unwrap();
        env.run_prompt(&session, "which-model-case");
        let requests = env.binary_env.server.requests();
        let asked = requests.iter().find(|request| request.body_text.contains("which-model-case"));
        assert_eq!(asked.unwrap().body["model"], other.as_str());
    }),
    case("the effort that was chosen is asked for", |env| {
        let (session, made) = fresh(env);
        let effort = option(&made["configOptions"], "thought_level");
        let id = effort["id"].as_str().unwrap().to_owned();
        let value = values(effort).pop().unwrap();
        set(env, &session, &id, &value).unwrap();
        env.run_prompt(&session, "which-effort-case");
        let requests = env.binary_env.server.requests();
        let asked = requests.iter().find(|request| request.body_text.contains("which-effort-case"));
        assert_eq!(asked.unwrap().body["reasoning"]["effort"], value.as_str());
    }),
    case("a mode that is not there is refused", |env| {
        let (session, _) = fresh(env);
        for id in ["yolo", "", "ASK"] {
            assert_eq!(mode(env, &session, id).unwrap_err()["code"], -32_602);
        }
        let error = env
            .client
            .send_invalid("session/set_mode", &json!({"sessionId": session}))
            .unwrap_err();
        assert_eq!(error["code"], -32_602);
    }),
    case("an option or a value that is not there is refused", |env| {
        let (session, _) = fresh(env);
        for (id, value) in
            [("colour", "red"), ("mode", "yolo"), ("model", ""), ("thought_level", "infinite")]
        {
            let error = set(env, &session, id, value).unwrap_err();
            assert_eq!(error["code"], -32_602, "{id} {value}: {error}");
        }
        let yes =
            json!({"sessionId": session, "configId": "mode", "type": "boolean", "value": true});
        assert_eq!(
            env.client.send_invalid("session/set_config_option", &yes).unwrap_err()["code"],
            -32_602
        );
    }),
    case("a refused choice changes nothing", |env| {
        let (session, _) = fresh(env);
        set(env, &session, "mode", "yolo").unwrap_err();
        let all = set(env, &session, "mode", "ask").unwrap()["configOptions"].clone();
        assert_eq!(option(&all, "mode")["currentValue"], "ask");
    }),
    case("the old name of a choice of model works", |env| {
        let (session, made) = fresh(env);
        let other = values(option(&made["configOptions"], "model")).pop().unwrap();
        let params = json!({"sessionId": session, "modelId": other});
        assert!(env.client.call("session/set_model", params).unwrap().is_object());
        let options =
            env.wait_for_update(&session, "config_option_update")["configOptions"].clone();
        assert_eq!(option(&options, "model")["currentValue"], other.as_str());
        let odd = json!({"sessionId": session, "modelId": "no-such-model"});
        assert_eq!(env.client.call("session/set_model", odd).unwrap_err()["code"], -32_602);
    }),
    case("a choice can be made while a Turn runs", |env| {
        let (session, _) = fresh(env);
        let id = env.client.send_prompt(&session, "go » say begun ;; pause 300 ;; say ended");
        env.wait_for_update(&session, "agent_message_chunk");
        mode(env, &session, "auto").unwrap();
        env.wait_for_update(&session, "current_mode_update");
        let turn = wait_for_turn_end(&mut env.client, &session, id, |asked| panic!("{asked}"));
        assert_eq!(turn.stop(), "end_turn");
    }),
    case("a choice is on record", |env| {
        let (session, _) = fresh(env);
        mode(env, &session, "read_only").unwrap();
        let log = env.log(&session);
        let changed = log.iter().find(|event| event["type"] == "posture_changed").unwrap();
        assert!(changed["data"].to_string().contains("read_only"), "{changed}");
    }),
    case("a choice is kept when the Session is opened again", |env| {
        let (session, made) = fresh(env);
        let effort = option(&made["configOptions"], "thought_level").clone();
        let level = values(&effort).first().unwrap().clone();
        mode(env, &session, "plan").unwrap();
        set(env, &session, effort["id"].as_str().unwrap(), &level).unwrap();
        env.client.call("session/close", json!({"sessionId": session})).unwrap();
        let mut other = env.start_other(&[], json!({}));
        let params = json!({"sessionId": session, "cwd": env.workspace()});
        let resumed = other.call("session/resume", params).unwrap();
        assert_eq!(resumed["modes"]["currentModeId"], "plan");
        assert_eq!(
            option(&resumed["configOptions"], "thought_level")["currentValue"],
            level.as_str()
        );
    }),
    case("a mode of the command line is where a Session starts", |env| {
        for (flag, id) in [("--auto", "auto"), ("--read-only", "read_only"), ("--ask", "ask")] {
            let mut other = env.start_other(&[flag], json!({}));
            let params = json!({"cwd": env.workspace(), "mcpServers": []});
            let made = other.call("session/new", params).unwrap();
            assert_eq!(made["modes"]["currentModeId"], id);
        }
    }),
    case("a mode of the settings is where a Session starts", |env| {
        env.binary_env.configure(&json!({"durability": "none", "acp": {"mode": "auto"}}));
        let mut other = env.start_other(&[], json!({}));
        let params = json!({"cwd": env.workspace(), "mcpServers": []});
        let made = other.call("session/new", params).unwrap();
        env.binary_env.configure(&json!({"durability": "none"}));
        assert_eq!(made["modes"]["currentModeId"], "auto");
    }),
];
