//! Compaction as users see it: pressure notices, `pixir compact`, undo and editors.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use pixir::scripted::{ModelScript, ReceivedRequest, Reply};
use serde_json::{Value, json};

use super::{of_type, tokens, too_long};
use crate::support::acp_client::{AcpClient, joined_text};
use crate::support::test_env::send_and_finish;
use crate::support::{BinaryEnv, TestEnv};

const WINDOW: u64 = 24_000;

/// A test environment whose model gives long answers, and counts tokens correctly.
async fn long_conversation(window: u64) -> BinaryEnv {
    let script = ModelScript::answering(|request| {
        let turn = request.user_texts().len();
        let words = format!("Answer {turn}: {}", "and there is more to say ".repeat(500));
        Reply::says(&words).usage(tokens(request), 0, 2_600)
    });
    let binary_env = BinaryEnv::new(BinaryEnv::new_mark(), script).await;
    binary_env.configure(&json!({"durability": "none", "context_window": window}));
    binary_env
}

fn envelope(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn tiers_are_reported_once_and_the_last_one_compacts() {
    let binary_env = long_conversation(WINDOW).await;
    let mut stderr = String::new();
    stderr += &binary_env.run(&["begin"]).stderr;
    for turn in 0..8 {
        let ended = binary_env.run(&["resume", "--last", &format!("go on {turn}")]);
        ended.expect_code(0);
        stderr += &ended.stderr;
    }
    for words in [
        "(advisory): compacts automatically at 90 %, or now with `pixir compact 2",
        "(critical): compacting now",
    ] {
        assert!(stderr.contains(words), "{stderr}");
    }
    let events = binary_env.events();
    let compactions = of_type(&events, "history_compaction");
    assert!(!compactions.is_empty(), "{stderr}");
    assert_eq!(compactions[0]["data"]["trigger"], "critical_pressure");
    assert!(
        stderr.contains(
            "older conversation is summarised from here on (the model's window was nearly full)"
        ),
        "{stderr}"
    );
    assert_eq!(stderr.matches("older conversation is summarised").count(), compactions.len());
    let requests = binary_env.server.requests();
    let last = requests.last().unwrap();
    assert!(last.user_texts().iter().any(|text| text.contains("What the user said:\n- begin")));
    assert!(requests.iter().all(|request| tokens(request) <= WINDOW));
}

#[tokio::test(flavor = "multi_thread")]
async fn one_run_tells_a_tier_once() {
    let script = ModelScript::answering(|request| {
        let calls = request.outputs().len();
        let reply = match calls {
            0..12 => Reply::calls("bash", json!({"command": format!("echo {calls}; seq 1 1200")})),
            _ => Reply::says("done"),
        };
        reply.usage(tokens(request), 0, 40)
    });
    let binary_env = BinaryEnv::new(BinaryEnv::new_mark(), script).await;
    binary_env.configure(&json!({"durability": "none", "context_window": WINDOW}));
    let ended = binary_env.run(&["--events", "count"]);
    ended.expect_code(0);
    let events: Vec<Value> =
        ended.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let tiers: Vec<String> = of_type(&events, "context_pressure")
        .iter()
        .map(|event| event["data"]["tier"].as_str().unwrap().to_owned())
        .collect();
    let mut once = tiers.clone();
    once.dedup();
    assert_eq!(tiers, once);
    assert!(!tiers.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_preview_changes_nothing_and_the_command_keeps_what_it_showed() {
    let binary_env = long_conversation(200_000).await;
    binary_env.run(&["build a tower in tower.txt"]).expect_code(0);
    for turn in 0..4 {
        binary_env.run(&["resume", "--last", &format!("step {turn}")]).expect_code(0);
    }
    let (id, log) = binary_env.session().unwrap();
    let id = id.to_string();
    let before = std::fs::read(&log).unwrap();
    let shown = binary_env.run(&["compact", "--last", "--dry-run"]);
    shown.expect_code(0);
    assert_eq!(std::fs::read(&log).unwrap(), before, "nothing was changed");
    // The number of tokens depends on the path of the test environment.
    let (sizes, rest) = shown.stdout.split_once('\n').unwrap();
    assert!(sizes.starts_with(&format!("the conversation of {id} becomes about ")), "{sizes}");
    insta::assert_snapshot!(rest);
    let as_json = envelope(&binary_env.run(&["compact", &id, "--dry-run", "--json"]).stdout);
    assert_eq!(
        (&as_json["kind"], &as_json["output"]["compacted"]),
        (&json!("compact"), &json!(false))
    );

    let done = binary_env.run(&["compact", &id, "--keep-turns", "2", "--json"]);
    done.expect_code(0);
    let done = envelope(&done.stdout);
    assert_eq!(done["output"]["compacted"], true);
    assert_eq!(done["output"]["compaction"]["summary"], as_json["output"]["compaction"]["summary"]);
    assert_eq!(done["output"]["compaction"]["turns_compacted"], 3);
    binary_env.run(&["verify", &id]).expect_code(0);
    binary_env.run(&["resume", "--last", "go on"]).expect_code(0);
    let requests = binary_env.server.requests();
    let last = requests.last().unwrap();
    let texts = last.user_texts();
    assert!(texts[0].starts_with("[Checkpoint: events"), "{texts:?}");
    assert_eq!(&texts[1..], ["step 2", "step 3", "go on"]);
    assert_eq!(last.input()[0]["role"], "developer", "where it works is still told");

    // Compaction that saves nothing is not done.
    let binary_env = long_conversation(200_000).await;
    binary_env.run(&["hi"]).expect_code(0);
    let ended = binary_env.run(&["compact", "--last"]);
    ended.expect_code(0);
    assert!(ended.stdout.contains("nothing to compact"), "{}", ended.stdout);
    for (args, code) in [
        (vec!["compact", "20200101T000000-000000"], 2),
        (vec!["compact", "../../etc/passwd"], 2),
        (vec!["compact", "--last", "--keep-turns", "0"], 2),
    ] {
        binary_env.run(&args).expect_code(code);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn undo_brings_back_what_was_before_and_a_fork_stays_small() {
    let binary_env = long_conversation(200_000).await;
    binary_env.run(&["first wish"]).expect_code(0);
    for turn in 0..3 {
        binary_env.run(&["resume", "--last", &format!("step {turn}")]).expect_code(0);
    }
    let id = binary_env.session().unwrap().0.to_string();
    binary_env.run(&["compact", &id, "--keep-turns", "1"]).expect_code(0);
    let made = envelope(&binary_env.run(&["fork", &id, "--json"]).stdout);
    let child = made["session_id"].as_str().unwrap().to_owned();
    binary_env.run(&["resume", &child, "in the fork"]).expect_code(0);
    let texts = |binary_env: &BinaryEnv| {
        let requests = binary_env.server.requests();
        let texts = requests.last().unwrap().user_texts();
        texts.iter().map(|text| (*text).to_owned()).collect::<Vec<String>>()
    };
    let forked = texts(&binary_env);
    assert!(forked[0].starts_with("[Checkpoint"), "{forked:?}");
    assert_eq!(&forked[1..], ["step 2", "in the fork"]);
    // Undo past the compaction: the full History before it is replayed again.
    binary_env.run(&["undo", "--yes", &id]).expect_code(0);
    binary_env.run(&["resume", &id, "another way"]).expect_code(0);
    assert_eq!(texts(&binary_env), ["first wish", "step 0", "step 1", "another way"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_is_refused_as_too_long_is_shortened_and_sent_again_once() {
    for fits in [true, false] {
        let refused = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&refused);
        // Pixir does not know the real size of the window.
        let script = ModelScript::answering(move |request: &ReceivedRequest| {
            if request.user_texts().last() == Some(&"go on") && (!fits || tokens(request) > 10_000)
            {
                count.fetch_add(1, Ordering::Relaxed);
                return too_long();
            }
            Reply::says(&"word ".repeat(3_000)).usage(tokens(request), 0, 3_000)
        });
        let binary_env = BinaryEnv::new(BinaryEnv::new_mark(), script).await;
        binary_env.run(&["begin"]).expect_code(0);
        binary_env.run(&["resume", "--last", "more"]).expect_code(0);
        binary_env.run(&["resume", "--last", "more"]).expect_code(0);
        let ended = binary_env.run(&["resume", "--last", "go on"]);
        ended.expect_code(i32::from(!fits));
        assert_eq!(
            refused.load(Ordering::Relaxed),
            if fits { 1 } else { 2 },
            "the request is repeated once"
        );
        let events = binary_env.events();
        let compactions = of_type(&events, "history_compaction");
        assert_eq!(compactions.len(), 1);
        assert_eq!(compactions[0]["data"]["trigger"], "overflow_recovery");
        assert!(
            ended.stderr.contains("the model refused the conversation as too long"),
            "{}",
            ended.stderr
        );
        if !fits {
            assert_eq!(
                of_type(&events, "turn_failed")[0]["data"]["error_kind"],
                "context_overflow"
            );
            assert!(
                ended.stderr.contains("try: make room with `pixir compact`, or"),
                "{}",
                ended.stderr
            );
        }
        assert_eq!(of_type(&events, "provider_usage").len(), 4);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_switched_off_does_not_happen() {
    let binary_env = long_conversation(WINDOW).await;
    binary_env.configure(
        &json!({"durability": "none", "context_window": WINDOW, "compaction": {"auto": false}}),
    );
    binary_env.run(&["begin"]).expect_code(0);
    let mut stderr = String::new();
    for _ in 0..8 {
        stderr += &binary_env.run(&["resume", "--last", "go on"]).stderr;
    }
    assert!(stderr.contains("(critical): make room with `pixir compact 2"), "{stderr}");
    assert_eq!(of_type(&binary_env.events(), "history_compaction"), Vec::<Value>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_sessions_own_model_puts_it_into_words_or_it_is_done_without() {
    let notes = json!({"summary": "A tower of blocks was begun.", "decisions": ["use red blocks"],
        "open_tasks": ["the roof"], "open_questions": []});
    for (reply, strategy) in [
        (Reply::says(&notes.to_string()), "model_assisted"),
        (Reply::says("Sure! Here is your summary."), "deterministic"),
        (Reply::status(400, "{}"), "deterministic"),
        (Reply::new().text("{\"summ").ends_silently(), "deterministic"),
    ] {
        let script = ModelScript::answering(move |request| {
            let is_asked = request.body["text"]["format"]["name"] == "answer";
            if !is_asked {
                return Reply::says(&"word ".repeat(2_000)).usage(tokens(request), 0, 2_000);
            }
            assert_eq!(request.body["text"]["format"]["strict"], true);
            assert!(request.body.get("tools").is_none());
            assert!(request.user_texts()[0].contains("user: build a tower"));
            reply.clone().usage(4_321, 0, 99)
        });
        let binary_env = BinaryEnv::new(BinaryEnv::new_mark(), script).await;
        binary_env.run(&["--model", "gpt-6-sol", "build a tower"]).expect_code(0);
        for turn in 0..3 {
            binary_env.run(&["resume", "--last", &format!("step {turn}")]).expect_code(0);
        }
        let ended = binary_env.run(&["compact", "--last", "--model-assisted", "--json"]);
        ended.expect_code(0);
        let made = envelope(&ended.stdout)["output"]["compaction"].clone();
        assert_eq!(made["strategy"], strategy, "{made}");
        assert_eq!(made["fallback_reason"].is_string(), strategy == "deterministic", "{made}");
        let summary = made["summary"].as_str().unwrap();
        assert_eq!(summary.contains("A tower of blocks was begun."), strategy == "model_assisted");
        assert!(
            summary.contains("- build a tower"),
            "the user's words are never the model's: {summary}"
        );
        let events = binary_env.events();
        let usage_records = of_type(&events, "provider_usage");
        let usage_record = &usage_records.last().unwrap()["data"];
        assert_eq!(
            (&usage_record["purpose"], &usage_record["model"]),
            (&json!("compaction"), &json!("gpt-6-sol"))
        );
        let asked = binary_env
            .server
            .requests()
            .into_iter()
            .find(|request| request.body.get("text").is_some());
        assert_eq!(asked.unwrap().body["model"], "gpt-6-sol", "the Session's own model");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_stalls_is_waited_for_no_longer_than_was_said() {
    let script = ModelScript::answering(|request| match request.body.get("text") {
        Some(_) => Reply::new().text("{\"summ").stalls(),
        None => Reply::says(&"word ".repeat(2_000)).usage(tokens(request), 0, 2_000),
    });
    let binary_env = BinaryEnv::new(BinaryEnv::new_mark(), script).await;
    binary_env.run(&["build a tower"]).expect_code(0);
    for turn in 0..3 {
        binary_env.run(&["resume", "--last", &format!("step {turn}")]).expect_code(0);
    }
    let ended =
        binary_env.run(&["compact", "--last", "--model-assisted", "--timeout", "4s", "--json"]);
    ended.expect_code(0);
    let made = envelope(&ended.stdout)["output"]["compaction"].clone();
    assert_eq!(made["strategy"], "deterministic");
    assert_eq!(made["fallback_reason"], "it took too long");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_sign_in_compaction_does_not_fail() {
    let binary_env = long_conversation(200_000).await;
    binary_env.run(&["begin"]).expect_code(0);
    for turn in 0..3 {
        binary_env.run(&["resume", "--last", &format!("step {turn}")]).expect_code(0);
    }
    let mut command = binary_env.command(&["compact", "--last", "--model-assisted", "--json"]);
    command.env_remove("OPENAI_API_KEY").env_remove("OPENAI_BASE_URL");
    let ended = crate::support::binary_env::RunningProcess::start(&mut command).end();
    ended.expect_code(0);
    let made = envelope(&ended.stdout)["output"]["compaction"].clone();
    assert_eq!(made["strategy"], "deterministic");
    assert!(made["fallback_reason"].is_string(), "{made}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_editor_asks_for_a_compaction_and_gets_its_result() {
    let binary_env = long_conversation(200_000).await;
    let capabilities = json!({"session": {"compaction": {}}});
    let mut client = AcpClient::initialized(&binary_env, capabilities);
    let id = client.new_session(&binary_env.workspace());
    let nothing = client.run_prompt(&id, "/compact").unwrap();
    assert_eq!(nothing["stopReason"], "end_turn");
    assert!(
        joined_text(&client.updates(), "agent_message_chunk").contains("nothing to compact yet")
    );
    for odd in ["all", "0", "-1", "1.5"] {
        client.run_prompt(&id, &format!("/compact {odd}")).unwrap();
        let text = joined_text(&client.updates(), "agent_message_chunk");
        assert!(text.contains("takes the number of Turns to keep"), "{odd}: {text}");
    }
    for turn in 0..4 {
        client.run_prompt(&id, &format!("step {turn}")).unwrap();
    }
    client.updates();
    client.run_prompt(&id, "/compact 1").unwrap();
    let updates = client.updates();
    let compactions: Vec<&Value> =
        updates.iter().filter(|update| update["sessionUpdate"] == "compaction_update").collect();
    let [begun, update] = compactions[..] else { panic!("{compactions:?}") };
    assert_eq!((&begun["status"], &update["status"]), (&json!("in_progress"), &json!("completed")));
    assert_eq!(begun["compactionId"], update["compactionId"]);
    assert!(update["summary"][0]["text"].as_str().unwrap().contains("tokens became"), "{update}");
    assert!(joined_text(&updates, "agent_message_chunk").starts_with("Done: older conversation"));
    client.run_prompt(&id, "go on").unwrap();
    let requests = binary_env.server.requests();
    let texts = requests.last().unwrap().user_texts();
    assert!(texts[0].starts_with("[Checkpoint"), "{texts:?}");
    assert_eq!(&texts[1..], ["step 3", "go on"]);
    assert!(client.close_and_wait().0.success());
    assert_eq!(of_type(&binary_env.events(), "history_compaction").len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn over_a_socket_everything_is_sent_again_after_a_compaction() {
    let script = ModelScript::answering(|request| {
        Reply::says(&"word ".repeat(1_000)).usage(tokens(request), 0, 1_000)
    });
    let mut env = TestEnv::with_script(script).await;
    env.config.transport = Some(pixir::TransportSetting::WebSocket);
    let conversation = env.start().await;
    for turn in 0..3 {
        assert_eq!(
            send_and_finish(&conversation, &format!("step {turn}")).await,
            pixir::SessionStatus::Done
        );
    }
    assert!(conversation.compact(Some(1), false).await.unwrap().is_some());
    for text in ["go on", "and on"] {
        assert_eq!(send_and_finish(&conversation, text).await, pixir::SessionStatus::Done);
    }
    let continued: Vec<bool> = env.requests().iter().map(ReceivedRequest::is_continued).collect();
    assert_eq!(continued, [false, true, true, false, true]);
    let requests = env.requests();
    assert_eq!(&requests[3].user_texts()[1..], ["step 2", "go on"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_single_turn_that_outgrows_the_window_comes_to_its_end() {
    // 40 outputs of some 5,000 tokens: ten times the window, and the message stays.
    let largest = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&largest);
    let script = ModelScript::answering(move |request| {
        let size = tokens(request);
        seen.fetch_max(usize::try_from(size).unwrap(), Ordering::Relaxed);
        if size > WINDOW {
            return too_long();
        }
        assert_eq!(request.user_texts().last(), Some(&"one enormous task"));
        let calls = request.outputs().len();
        let reply = if calls < 40 {
            Reply::calls("bash", json!({"command": format!("echo step {calls}; seq 1 2400")}))
        } else {
            Reply::says("done")
        };
        reply.usage(size, 0, 40)
    });
    let binary_env = BinaryEnv::new(BinaryEnv::new_mark(), script).await;
    binary_env.configure(&json!({"durability": "none", "context_window": WINDOW}));
    binary_env.run(&["one enormous task"]).expect_code(0);
    let events = binary_env.events();
    assert_eq!(of_type(&events, "tool_call").len(), 40);
    let compactions = of_type(&events, "history_compaction");
    assert!(compactions.len() >= 3, "{}", compactions.len());
    for event in &compactions {
        assert!(event["data"]["summary"].is_null(), "only outputs were pruned");
    }
    assert!(largest.load(Ordering::Relaxed) as u64 <= WINDOW);
}

#[tokio::test(flavor = "multi_thread")]
async fn room_that_cannot_be_made_is_not_promised() {
    // One message that nearly fills the window: nothing is older, and nothing can be pruned.
    let script =
        ModelScript::answering(|request| Reply::says("read").usage(tokens(request), 0, 10));
    let binary_env = BinaryEnv::new(BinaryEnv::new_mark(), script).await;
    binary_env.configure(&json!({"durability": "none", "context_window": WINDOW}));
    let fixed = {
        binary_env.run(&["hi"]).expect_code(0);
        tokens(binary_env.server.requests().last().unwrap())
    };
    let words = usize::try_from(WINDOW * 94 / 100 - fixed).unwrap();
    let ended = binary_env.run(&[&"word ".repeat(words)]);
    ended.expect_code(0);
    let stderr = &ended.stderr;
    assert!(stderr.contains("(critical): no older Turns are left to compact"), "{stderr}");
    assert!(!stderr.contains("compacting now"), "{stderr}");
    let events = binary_env.events();
    assert_eq!(of_type(&events, "history_compaction"), Vec::<Value>::new());
}

/// Runs Turns in an editor's Session until it was compacted at least once; gives their prompts.
fn talked(client: &mut AcpClient, id: &str, turns: usize) -> Vec<String> {
    let sent_texts: Vec<String> = (0..turns).map(|turn| format!("step {turn}")).collect();
    for words in &sent_texts {
        client.run_prompt(id, words).unwrap();
    }
    sent_texts
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_open_session_sends_is_what_its_log_says_whatever_it_holds() {
    let binary_env = long_conversation(WINDOW).await;
    let mut client = AcpClient::initialized(&binary_env, json!({}));
    let id = client.new_session(&binary_env.workspace());
    let sent_texts = talked(&mut client, &id, 18);
    let compactions = of_type(&binary_env.events(), "history_compaction");
    assert!(compactions.len() >= 2, "{}", compactions.len());
    let check = |client: &mut AcpClient, prompt: &str| {
        let args = ["inspect-replay", &id, "--prompt", prompt, "--items", "--json"];
        let shown = envelope(&binary_env.run(&args).stdout)["output"]["replay"]["request"].clone();
        client.run_prompt(&id, prompt).unwrap();
        let left = binary_env.server.requests().pop().unwrap();
        assert_eq!(shown["input"].to_string(), left.body["input"].to_string(), "{prompt}");
        left.user_texts().iter().map(|text| (*text).to_owned()).collect::<Vec<_>>()
    };
    let texts = check(&mut client, "go on");
    assert!(texts[0].starts_with("[Checkpoint"), "{texts:?}");
    // After undo past the compaction, the full texts are sent again.
    client.updates();
    client.run_prompt(&id, "/undo 17").unwrap();
    let text = joined_text(&client.updates(), "agent_message_chunk");
    assert!(text.contains("17 Turns taken back"), "{text}");
    let texts = check(&mut client, "another way");
    assert_eq!(texts, [&sent_texts[..2], &["another way".to_owned()]].concat());
    // Loading replays everything that was not undone.
    client.updates();
    let load_params = json!({"sessionId": id, "cwd": binary_env.workspace(), "mcpServers": []});
    let loaded = client.call("session/load", load_params);
    assert!(loaded.is_ok(), "{loaded:?}");
    let shown = joined_text(&client.updates(), "user_message_chunk");
    assert_eq!(shown, "step 0step 1another way");
    assert!(client.close_and_wait().0.success());
    binary_env.run(&["verify", &id]).expect_code(0);
}
