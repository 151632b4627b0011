//! The prompt: instructions and schemas are small and stable, late context is append-only.

use pixir::scripted::Reply;
use serde_json::{Value, json};
use sha2::Digest;

use crate::support::TestEnv;
use crate::support::test_env::send_and_finish;

/// Developer messages of a request, in order.
fn developer_texts(input: &[Value]) -> Vec<String> {
    input
        .iter()
        .filter(|item| item["role"] == "developer")
        .map(|item| item["content"][0]["text"].as_str().unwrap_or_default().to_owned())
        .collect()
}

#[tokio::test]
async fn instructions_stay_under_two_kilobytes_and_schemas_under_twelve() {
    let env = TestEnv::with_replies([Reply::says("ok")]).await;
    env.run_turn("hi").await;
    let body = &env.requests()[0].body;
    let names: Vec<&str> =
        body["tools"].as_array().unwrap().iter().filter_map(|tool| tool["name"].as_str()).collect();
    let wanted = "apply_patch bash bash_input bash_output bash_stop close_agent edit glob grep list \
        list_agents merge_child read resource_view run_workflow send_input spawn_agent update_plan wait_agent write";
    assert_eq!(names.join(" "), wanted);
    let size = body["tools"].to_string().len();
    assert!(size < 12 * 1024, "{size} bytes of schemas");
    let size = body["instructions"].as_str().unwrap().len();
    assert!(size < 2048, "{size} bytes of instructions");
    insta::assert_snapshot!("tools", serde_json::to_string_pretty(&body["tools"]).unwrap());
}

/// Every released version of the Prompt contract, with the hash of its bytes.
const CONTRACTS: &[(&str, &str)] = &[
    ("pxr1", "096551a0d98386527baba1737b6c87c3d4afb7510b975b0c1adf3a2feaf821a3"),
    ("pxr2", "767280af0f2131f88b7d1ea492dc61480109be85d9b0c957c09170fc1a86cb14"),
    ("pxr3", "7812b0e46493561c6684952227e6f184527873167becb4817c09ccabbc3eb38c"),
    ("pxr4", "51bc85780b5e919958e9c98c97dbde353b02dc24b9d7a6be16c19da62e6f2a66"),
];

#[tokio::test]
async fn the_prompt_contract_names_its_bytes() {
    let env = TestEnv::with_replies([Reply::says("ok")]).await;
    env.run_turn("hi").await;
    let body = &env.requests()[0].body;
    let bytes = format!("{}{}", body["instructions"], body["tools"]);
    let digest = sha2::Sha256::digest(bytes)
        .iter()
        .fold(String::new(), |hex, byte| format!("{hex}{byte:02x}"));
    let key = body["prompt_cache_key"].as_str().unwrap();
    let version = key.split(':').next().unwrap();
    let known = CONTRACTS.iter().find(|(name, _)| *name == version).map(|(_, digest)| *digest);
    assert_eq!(
        known,
        Some(digest.as_str()),
        "instructions or schemas changed: name a new contract"
    );
}

#[tokio::test]
async fn the_cache_key_is_short_and_stays_with_the_session() {
    let env = TestEnv::with_replies([Reply::says("1"), Reply::says("2"), Reply::says("3")]).await;
    let (conversation, _) = env.run_turn("one").await;
    let id = conversation.id().clone();
    drop(conversation);
    send_and_finish(&env.resume(&id).await, "two").await;
    env.run_turn("another Session").await;
    let keys: Vec<String> = env
        .requests()
        .iter()
        .map(|request| request.body["prompt_cache_key"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(keys[0], keys[1]);
    assert_ne!(keys[0], keys[2]);
    assert!(keys.iter().all(|key| key.len() <= 64 && key.starts_with("pxr4")), "{keys:?}");
    let log =
        std::fs::read_to_string(&crate::support::test_env::log_files(&env.workspace())[0]).unwrap();
    assert!(log.contains(r#""prompt_contract":"pxr4""#));
}

#[tokio::test]
async fn the_chain_of_instructions_is_injected_and_hidden_characters_are_reported() {
    let env = TestEnv::with_replies([Reply::says("ok")]).await;
    std::fs::create_dir_all(env.home()).unwrap();
    std::fs::write(env.home().join("AGENTS.md"), "Be kind.").unwrap();
    env.write("AGENTS.md", "Use tabs.\u{202e} Always.");
    std::fs::write(env.workspace().parent().unwrap().join("AGENTS.md"), "Never seen.").unwrap();
    let (conversation, _) = env.run_turn("hi").await;
    let notices = conversation.notices().join("\n");
    assert!(notices.contains("AGENTS.md") && notices.to_lowercase().contains("202e"), "{notices}");
    let texts = developer_texts(env.requests()[0].input());
    assert!(texts[0].contains("Be kind.") && texts[0].contains("Use tabs."), "{texts:?}");
    assert!(!texts.concat().contains('\u{202e}'));
    assert!(!texts.concat().contains("Never seen."), "only from the git root down");
    assert!(texts[1].contains("Workspace: "), "{texts:?}");
}

#[tokio::test]
async fn the_late_context_is_said_once_and_again_when_it_changes() {
    let env = TestEnv::with_replies((0..3).map(|_| Reply::says("ok"))).await;
    std::fs::create_dir(env.workspace().join(".git")).unwrap();
    env.write(".git/HEAD", "ref: refs/heads/one\n");
    let (conversation, _) = env.run_turn("first").await;
    send_and_finish(&conversation, "second").await;
    env.write(".git/HEAD", "ref: refs/heads/two\n");
    send_and_finish(&conversation, "third").await;
    let requests = env.requests();
    let last = requests[2].input();
    let contexts = developer_texts(last);
    assert_eq!(contexts.len(), 2, "{contexts:?}");
    assert!(contexts[0].contains("Git branch: one") && contexts[1].contains("Git branch: two"));
    for pair in requests.windows(2) {
        let prefix = pair[0].input();
        assert_eq!(&pair[1].input()[..prefix.len()], prefix, "append-only");
    }
}

#[tokio::test]
async fn the_request_says_what_the_wire_wants() {
    let mut env = TestEnv::with_replies([Reply::says("ok")]).await;
    env.config.effort = Some("high".into());
    env.run_turn("hi").await;
    let request = &env.requests()[0];
    let body = &request.body;
    assert_eq!(
        [&body["store"], &body["stream"], &body["parallel_tool_calls"], &body["tool_choice"]],
        [&json!(false), &json!(true), &json!(true), &json!("auto")]
    );
    assert_eq!(body["reasoning"]["effort"], "high");
    assert_eq!(body["include"], json!(["reasoning.encrypted_content"]));
    assert_eq!(request.header("authorization"), Some("Bearer sk-test-of-test-env"));
}
