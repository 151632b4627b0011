//! Updates during a prompt: their content, their order, and their Session.

use serde_json::{Value, json};

use super::case::{ConformanceCase, ConformanceTopic, case, run_prompt, wait_for_turn_end};
use super::scripted_model::script_prompt;

pub const TOPIC: ConformanceTopic = ConformanceTopic::new("updates", CASES).with_args(&["--auto"]);

fn kinds(updates: &[Value]) -> Vec<&str> {
    updates.iter().map(|update| update["sessionUpdate"].as_str().unwrap()).collect()
}

fn distinct<'v>(updates: &[&'v Value], key: &str) -> Vec<&'v Value> {
    let mut found: Vec<&Value> = Vec::new();
    for update in updates {
        if found.last() != Some(&&update[key]) {
            found.push(&update[key]);
        }
    }
    found
}

const CASES: &[ConformanceCase] = &[
    case("the pieces are the answer", |env| {
        let turn = env.run_in_new_session("count » say one two three");
        assert_eq!((turn.text().as_str(), turn.stop()), ("one two three", "end_turn"));
    }),
    case("the prompt is answered with its reason alone", |env| {
        assert_eq!(
            env.run_in_new_session("hello").outcome.unwrap(),
            json!({"stopReason": "end_turn"})
        );
    }),
    case("pieces of one message have one id", |env| {
        let turn = env.run_in_new_session("go » deltas 20");
        let chunks = turn.updates_of_kind("agent_message_chunk");
        assert!(!chunks.is_empty());
        assert!(distinct(&chunks, "messageId").len() == 1 && chunks[0]["messageId"].is_string());
    }),
    case("two messages have two ids", |env| {
        let turn = env
            .run_in_new_session(&script_prompt("go", &["note first ;; bash true", "say second"]));
        let chunks = turn.updates_of_kind("agent_message_chunk");
        assert_eq!(distinct(&chunks, "messageId").len(), 2, "{chunks:?}");
        assert_eq!(turn.text(), "firstsecond");
    }),
    case("messages of two Turns have two ids", |env| {
        let session = env.session();
        let first = env.run_prompt(&session, "a » say x");
        let second = env.run_prompt(&session, "b » say x");
        let id = |turn: &super::case::RecordedTurn| {
            turn.updates_of_kind("agent_message_chunk")[0]["messageId"].clone()
        };
        assert_ne!(id(&first), id(&second));
    }),
    case("thoughts are told as thoughts, before the words", |env| {
        let turn = env.run_in_new_session("go » think pondering deeply ;; say answer");
        let thoughts = turn.updates_of_kind("agent_thought_chunk");
        let words: String =
            thoughts.iter().filter_map(|thought| thought["content"]["text"].as_str()).collect();
        assert_eq!(words.trim(), "pondering deeply");
        let kinds = kinds(&turn.updates);
        let place = |kind| kinds.iter().position(|other| *other == kind).unwrap();
        assert!(place("agent_thought_chunk") < place("agent_message_chunk"), "{kinds:?}");
        assert_ne!(
            thoughts[0]["messageId"],
            turn.updates_of_kind("agent_message_chunk")[0]["messageId"]
        );
    }),
    case("usage is told with each call of the model, and fits the window", |env| {
        let turn = env.run_in_new_session(&script_prompt("go", &["bash true", "say done"]));
        let usage = turn.updates_of_kind("usage_update");
        assert_eq!(usage.len(), 2, "{usage:?}");
        let number = |key: &str| usage[0][key].as_u64().unwrap();
        assert!(number("used") > 0 && number("used") <= number("size"));
    }),
    case("without a price there is no cost", |env| {
        let turn = env.run_in_new_session("hello");
        assert!(turn.updates_of_kind("usage_update")[0].get("cost").is_none_or(Value::is_null));
    }),
    case("with a price there is one, and it adds up", |env| {
        let prices = json!({"gpt-5.5": {"input": 1.0, "cached_input": 0.1, "output": 8.0}});
        env.binary_env.configure(&json!({"durability": "none", "prices": prices}));
        let mut other = env.start_other(&["--auto"], json!({}));
        let session = other.new_session(&env.workspace());
        let cost = |turn: super::case::RecordedTurn| {
            let usage = turn.updates_of_kind("usage_update").last().unwrap()["cost"].clone();
            assert_eq!(usage["currency"], "USD");
            usage["amount"].as_f64().unwrap()
        };
        let first = cost(run_prompt(&mut other, &session, "a"));
        let second = cost(run_prompt(&mut other, &session, "b"));
        assert!(first > 0.0 && second > first, "{first} {second}");
        env.binary_env.configure(&json!({"durability": "none"}));
    }),
    case("the first prompt becomes the title, on one line", |env| {
        let session = env.session();
        let turn = env.run_prompt(&session, "mend\nthe\tdate parser");
        let titles = turn.updates_of_kind("session_info_update");
        assert_eq!(titles[0]["title"], "mend the date parser");
        let again = env.run_prompt(&session, "something else");
        let others = again.updates_of_kind("session_info_update");
        assert!(
            others.iter().all(|update| update["title"] == "mend the date parser"),
            "{others:?}"
        );
    }),
    case("a long prompt becomes a short title", |env| {
        let turn = env.run_in_new_session(&"word ".repeat(100));
        let title =
            turn.updates_of_kind("session_info_update")[0]["title"].as_str().unwrap().to_owned();
        assert!(title.chars().count() <= 100 && title.starts_with("word word"), "{title}");
    }),
    case("a plan is told whole, each time", |env| {
        let plan = |status: &str| {
            format!(
                r#"call update_plan {{"plan":[{{"step":"look","status":"{status}"}},{{"step":"mend","status":"pending"}}]}}"#
            )
        };
        let turn = env.run_in_new_session(&script_prompt(
            "plan",
            &[&plan("in_progress"), &plan("completed"), "say done"],
        ));
        let plans = turn.updates_of_kind("plan");
        assert_eq!(plans.len(), 2, "{:?}", turn.updates);
        for (plan, status) in plans.iter().zip(["in_progress", "completed"]) {
            assert_eq!(plan["entries"].as_array().unwrap().len(), 2);
            assert_eq!(
                (&plan["entries"][0]["content"], &plan["entries"][0]["status"]),
                (&json!("look"), &json!(status))
            );
        }
    }),
    case("commands are told after the Session, and once more before the first words", |env| {
        let session = env.session();
        env.wait_for_update(&session, "available_commands_update");
        let turn = env.run_prompt(&session, "hello");
        assert_eq!(kinds(&turn.updates)[0], "available_commands_update");
        let second = env.run_prompt(&session, "hello again");
        assert!(second.updates_of_kind("available_commands_update").is_empty());
    }),
    case("everything of a Turn is told before its answer", |env| {
        let session = env.session();
        env.wait_for_update(&session, "available_commands_update");
        env.run_prompt(&session, &script_prompt("go", &["bash echo x", "say done"]));
        env.client.still_answers();
        std::thread::sleep(std::time::Duration::from_millis(300));
        let late = env.client.drain();
        assert!(
            late.iter().all(|message| message["params"]["sessionId"] != session.as_str()),
            "{late:?}"
        );
    }),
    case("two Sessions at once are told apart", |env| {
        let a = env.session();
        let b = env.session();
        let first = env.client.send_prompt(&a, "a » deltas 30 ;; pause 50 ;; say ends-a");
        let second = env.client.send_prompt(&b, "b » deltas 30 ;; pause 50 ;; say ends-b");
        let mut mixed = Vec::new();
        for id in [first, second] {
            env.client.wait_for_answer(id).unwrap();
        }
        mixed.extend(env.client.drain());
        let words = |session: &str| -> String {
            let own = mixed.iter().filter(|message| message["params"]["sessionId"] == session);
            own.filter_map(|message| message["params"]["update"]["content"]["text"].as_str())
                .collect()
        };
        assert!(words(&a).ends_with("ends-a") && !words(&a).contains("ends-b"));
        assert!(words(&b).ends_with("ends-b") && !words(&b).contains("ends-a"));
    }),
    case("a long answer is told without a gap", |env| {
        let turn = env.run_in_new_session("go » deltas 3000");
        assert_eq!(turn.text(), "word ".repeat(3000));
    }),
    case("notices go to who opted in, and to nobody else", |env| {
        let odd = json!([{"name": "odd", "type": "carrier-pigeon"}]);
        let params = json!({"cwd": env.workspace(), "mcpServers": odd});
        let mut opted = env.start_other(&["--auto"], json!({"session": {"notices": {}}}));
        opted.send_invalid("session/new", &params).unwrap();
        let notice = opted.wait_for_update("notice");
        let words = format!("{}{}", notice["title"], notice["description"]);
        assert!(words.contains("odd"), "{notice}");
        // Other clients get it as text before the first answer.
        let made = env.client.send_invalid("session/new", &params).unwrap();
        let session = made["sessionId"].as_str().unwrap().to_owned();
        assert!(run_prompt(&mut env.client, &session, "hello").text().contains("odd"));
    }),
    case("a Turn of the past is no news in the next", |env| {
        let session = env.session();
        env.run_prompt(&session, "a » say earlier");
        let id = env.client.send_prompt(&session, "b » say later");
        let turn = wait_for_turn_end(&mut env.client, &session, id, |asked| panic!("{asked}"));
        assert_eq!(turn.text(), "later");
    }),
];
