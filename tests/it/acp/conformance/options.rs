//! Modes and options: their values, the agreement of both views, and the persistence of a choice.

use serde_json::{Value, json};

use super::case::{CaseEnv, ConformanceCase, ConformanceTopic, case, finished};

pub const TOPIC: ConformanceTopic = ConformanceTopic::new("modes and options", CASES);

#[track_caller]
fn fresh(scene: &mut CaseEnv) -> (String, Value) {
    let params = json!({"cwd": scene.workspace(), "mcpServers": []});
    let made = scene.probe.call("session/new", params).unwrap();
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
fn set(scene: &mut CaseEnv, session: &str, id: &str, value: &str) -> Result<Value, Value> {
    let params = json!({"sessionId": session, "configId": id, "value": value});
    scene.probe.call("session/set_config_option", params)
}

#[track_caller]
fn mode(scene: &mut CaseEnv, session: &str, id: &str) -> Result<Value, Value> {
    scene.probe.call("session/set_mode", json!({"sessionId": session, "modeId": id}))
}

const CASES: &[ConformanceCase] = &[
    case("the current mode is one of the modes", |scene| {
        let (_, made) = fresh(scene);
        let modes = made["modes"]["availableModes"].as_array().unwrap();
        let ids: Vec<&Value> = modes.iter().map(|mode| &mode["id"]).collect();
        assert!(ids.contains(&&made["modes"]["currentModeId"]), "{made}");
        assert_eq!(made["modes"]["currentModeId"], "ask");
    }),
    case("there are ask, auto, read_only and plan", |scene| {
        let (_, made) = fresh(scene);
        let modes = made["modes"]["availableModes"].as_array().unwrap();
        for id in ["ask", "auto", "read_only", "plan"] {
            let mode = modes.iter().find(|mode| mode["id"] == id).expect("the mode is there");
            assert!(!mode["name"].as_str().unwrap().is_empty() && mode["description"].is_string());
        }
    }),
    case("mode, model and effort are options with their categories", |scene| {
        let (_, made) = fresh(scene);
        for category in ["mode", "model", "thought_level"] {
            let option = option(&made["configOptions"], category);
            let current = option["currentValue"].as_str().unwrap().to_owned();
            assert!(values(option).contains(&current), "{option}");
        }
        assert_eq!(made["configOptions"][0]["category"], "mode", "the most important first");
    }),
    case("the mode is the same in both views", |scene| {
        let (_, made) = fresh(scene);
        let modes = made["modes"]["availableModes"].as_array().unwrap();
        let ids: Vec<String> =
            modes.iter().map(|mode| mode["id"].as_str().unwrap().to_owned()).collect();
        assert_eq!(values(option(&made["configOptions"], "mode")), ids);
    }),
    case("no option is a yes or no unless the client knows it", |scene| {
        let (_, made) = fresh(scene);
        let options = made["configOptions"].as_array().unwrap();
        let is_select = |option: &Value| option["type"] == "select";
        assert!(!options.is_empty() && options.iter().all(is_select), "{options:?}");
    }),
    case("every mode can be chosen, and both views are told", |scene| {
        let (session, made) = fresh(scene);
        for value in values(option(&made["configOptions"], "mode")) {
            assert!(mode(scene, &session, &value).unwrap().is_object());
            assert_eq!(
                scene.told(&session, "current_mode_update")["currentModeId"],
                value.as_str()
            );
            let options = scene.told(&session, "config_option_update")["configOptions"].clone();
            assert_eq!(option(&options, "mode")["currentValue"], value.as_str());
        }
    }),
    case("every mode can be chosen as an option, with the same news", |scene| {
        let (session, made) = fresh(scene);
        for value in values(option(&made["configOptions"], "mode")) {
            let all = set(scene, &session, "mode", &value).unwrap()["configOptions"].clone();
            assert_eq!(option(&all, "mode")["currentValue"], value.as_str());
            assert_eq!(
                all.as_array().unwrap().len(),
                made["configOptions"].as_array().unwrap().len()
            );
            assert_eq!(
                scene.told(&session, "current_mode_update")["currentModeId"],
                value.as_str()
            );
        }
    }),
    case("every effort can be chosen", |scene| {
        let (session, made) = fresh(scene);
        let effort = option(&made["configOptions"], "thought_level");
        let id = effort["id"].as_str().unwrap();
        for value in values(effort) {
            let all = set(scene, &session, id, &value).unwrap()["configOptions"].clone();
            assert_eq!(option(&all, "thought_level")["currentValue"], value.as_str());
        }
    }),
    case("every model can be chosen, and efforts are those of the model", |scene| {
        let (session, made) = fresh(scene);
        for value in values(option(&made["configOptions"], "model")) {
            let all = set(scene, &session, "model", &value).unwrap()["configOptions"].clone();
            assert_eq!(option(&all, "model")["currentValue"], value.as_str());
            for one in all.as_array().unwrap() {
                let current = one["currentValue"].as_str().unwrap().to_owned();
                assert!(values(one).contains(&current), "{value}: {one}");
            }
        }
    }),
    case("the model that was chosen is asked", |scene| {
        let (session, made) = fresh(scene);
        let other = values(option(&made["configOptions"], "model")).pop().unwrap();
        set(scene, &session, "model", &other).unwrap();
        scene.turn(&session, "which-model-case");
        let requests = scene.env.server.requests();
        let asked = requests.iter().find(|request| request.body_text.contains("which-model-case"));
        assert_eq!(asked.unwrap().body["model"], other.as_str());
    }),
    case("the effort that was chosen is asked for", |scene| {
        let (session, made) = fresh(scene);
        let effort = option(&made["configOptions"], "thought_level");
        let id = effort["id"].as_str().unwrap().to_owned();
        let value = values(effort).pop().unwrap();
        set(scene, &session, &id, &value).unwrap();
        scene.turn(&session, "which-effort-case");
        let requests = scene.env.server.requests();
        let asked = requests.iter().find(|request| request.body_text.contains("which-effort-case"));
        assert_eq!(asked.unwrap().body["reasoning"]["effort"], value.as_str());
    }),
    case("a mode that is not there is refused", |scene| {
        let (session, _) = fresh(scene);
        for id in ["yolo", "", "ASK"] {
            assert_eq!(mode(scene, &session, id).unwrap_err()["code"], -32_602);
        }
        let error = scene
            .probe
            .send_invalid("session/set_mode", &json!({"sessionId": session}))
            .unwrap_err();
        assert_eq!(error["code"], -32_602);
    }),
    case("an option or a value that is not there is refused", |scene| {
        let (session, _) = fresh(scene);
        for (id, value) in
            [("colour", "red"), ("mode", "yolo"), ("model", ""), ("thought_level", "infinite")]
        {
            let error = set(scene, &session, id, value).unwrap_err();
            assert_eq!(error["code"], -32_602, "{id} {value}: {error}");
        }
        let yes =
            json!({"sessionId": session, "configId": "mode", "type": "boolean", "value": true});
        assert_eq!(
            scene.probe.send_invalid("session/set_config_option", &yes).unwrap_err()["code"],
            -32_602
        );
    }),
    case("a refused choice changes nothing", |scene| {
        let (session, _) = fresh(scene);
        set(scene, &session, "mode", "yolo").unwrap_err();
        let all = set(scene, &session, "mode", "ask").unwrap()["configOptions"].clone();
        assert_eq!(option(&all, "mode")["currentValue"], "ask");
    }),
    case("the old name of a choice of model works", |scene| {
        let (session, made) = fresh(scene);
        let other = values(option(&made["configOptions"], "model")).pop().unwrap();
        let params = json!({"sessionId": session, "modelId": other});
        assert!(scene.probe.call("session/set_model", params).unwrap().is_object());
        let options = scene.told(&session, "config_option_update")["configOptions"].clone();
        assert_eq!(option(&options, "model")["currentValue"], other.as_str());
        let odd = json!({"sessionId": session, "modelId": "no-such-model"});
        assert_eq!(scene.probe.call("session/set_model", odd).unwrap_err()["code"], -32_602);
    }),
    case("a choice can be made while a Turn runs", |scene| {
        let (session, _) = fresh(scene);
        let id = scene.probe.send_prompt(&session, "go » say begun ;; pause 300 ;; say ended");
        scene.told(&session, "agent_message_chunk");
        mode(scene, &session, "auto").unwrap();
        scene.told(&session, "current_mode_update");
        let told = finished(&mut scene.probe, &session, id, |asked| panic!("{asked}"));
        assert_eq!(told.stop(), "end_turn");
    }),
    case("a choice is on record", |scene| {
        let (session, _) = fresh(scene);
        mode(scene, &session, "read_only").unwrap();
        let log = scene.log(&session);
        let changed = log.iter().find(|event| event["type"] == "posture_changed").unwrap();
        assert!(changed["data"].to_string().contains("read_only"), "{changed}");
    }),
    case("a choice is kept when the Session is opened again", |scene| {
        let (session, made) = fresh(scene);
        let effort = option(&made["configOptions"], "thought_level").clone();
        let level = values(&effort).first().unwrap().clone();
        mode(scene, &session, "plan").unwrap();
        set(scene, &session, effort["id"].as_str().unwrap(), &level).unwrap();
        scene.probe.call("session/close", json!({"sessionId": session})).unwrap();
        let mut other = scene.other(&[], json!({}));
        let params = json!({"sessionId": session, "cwd": scene.workspace()});
        let resumed = other.call("session/resume", params).unwrap();
        assert_eq!(resumed["modes"]["currentModeId"], "plan");
        assert_eq!(
            option(&resumed["configOptions"], "thought_level")["currentValue"],
            level.as_str()
        );
    }),
    case("a mode of the command line is where a Session starts", |scene| {
        for (flag, id) in [("--auto", "auto"), ("--read-only", "read_only"), ("--ask", "ask")] {
            let mut other = scene.other(&[flag], json!({}));
            let params = json!({"cwd": scene.workspace(), "mcpServers": []});
            let made = other.call("session/new", params).unwrap();
            assert_eq!(made["modes"]["currentModeId"], id);
        }
    }),
    case("a mode of the settings is where a Session starts", |scene| {
        scene.env.configure(&json!({"durability": "none", "acp": {"mode": "auto"}}));
        let mut other = scene.other(&[], json!({}));
        let params = json!({"cwd": scene.workspace(), "mcpServers": []});
        let made = other.call("session/new", params).unwrap();
        scene.env.configure(&json!({"durability": "none"}));
        assert_eq!(made["modes"]["currentModeId"], "auto");
    }),
];
