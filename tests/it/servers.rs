//! Other providers with a compatible API, which only the user's settings can name.

use pixir::scripted::{ModelScript, Reply};
use serde_json::{Value, json};

use crate::support::BinaryEnv;
use crate::support::sign_in_env::SignInEnv;

async fn new_binary_env(replies: impl IntoIterator<Item = Reply>) -> BinaryEnv {
    let listing = json!({"object": "list", "data": [{"id": "gpt-oss:20b"}, {"id": "qwen"}]});
    let env =
        BinaryEnv::new(BinaryEnv::new_mark(), ModelScript::new(replies).listing(listing)).await;
    let local = env.server.portable_url();
    env.configure(&json!({"durability": "none", "providers": {
        "local": {"base_url": local, "models": ["gpt-oss:20b"]},
        "keyed": {"base_url": local, "key_env": "KEYED_SECRET", "policy": "portable"},
        "far": {"base_url": "https://models.example/v1", "key_env": "FAR_KEY"},
        "clear": {"base_url": "http://models.example/v1", "key_env": "KEYED_SECRET"},
    }}));
    env
}

#[tokio::test(flavor = "multi_thread")]
async fn a_portable_server_gets_only_what_it_understands() {
    let replies = [
        Reply::new().reasoning("Hm.").call("read", json!({"path": "a"})),
        Reply::says("done"),
        Reply::says("again"),
    ];
    let env = new_binary_env(replies).await;
    let ended = env.run(&["--provider", "local", "--json", "hi"]);
    ended.expect_code(0);
    let requests = env.server.requests();
    assert_eq!(requests.len(), 2, "nothing was refused");
    for request in &requests {
        assert_eq!(request.path, "/portable/v1/responses");
        assert_eq!(request.body["model"], "gpt-oss:20b", "its own model is used");
        assert_eq!(request.header("authorization"), None, "the environment's key is not sent");
        let fields: Vec<&str> =
            request.body.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(
            fields,
            ["model", "stream", "store", "instructions", "input", "tools", "tool_choice"]
        );
    }
    let printed: Value = serde_json::from_str(&ended.stdout).unwrap();
    let resume = printed["resume_command"].as_str().unwrap();
    assert!(resume.ends_with("--provider local"), "{resume}");
    env.run(&["resume", "--last", "--provider", "local", "hi"]).expect_code(0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_comes_from_its_own_variable_and_goes_nowhere_in_clear_text() {
    let env = new_binary_env([Reply::says("hello")]).await;
    let with_key = |args: &[&str]| {
        let mut command = env.command(args);
        command.env("KEYED_SECRET", "sk-of-the-keyed-server");
        crate::support::binary_env::RunningProcess::start(&mut command).end()
    };
    with_key(&["--provider", "keyed", "--model", "m", "hi"]).expect_code(0);
    let request = &env.server.requests()[0];
    assert_eq!(request.header("authorization"), Some("Bearer sk-of-the-keyed-server"));
    let clear = with_key(&["--provider", "clear", "hi"]);
    clear.expect_code(2);
    assert!(clear.stderr.contains("provider `clear`"), "{}", clear.stderr);
    assert!(clear.stderr.contains("plain http to models.example"), "{}", clear.stderr);
    let far = env.run(&["--provider", "far", "hi"]);
    far.expect_code(4);
    assert!(far.stderr.contains("FAR_KEY"), "{}", far.stderr);
    let unknown = env.run(&["--provider", "nowhere", "hi"]);
    unknown.expect_code(2);
    assert!(unknown.stderr.contains("clear, far, keyed, local"), "{}", unknown.stderr);
    assert_eq!(env.server.requests().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_is_asked_for_its_own_models() {
    let env = new_binary_env([]).await;
    let output = |args: &[&str]| -> Value {
        let ended = env.run(args);
        ended.expect_code(0);
        serde_json::from_str::<Value>(&ended.stdout).unwrap()["output"].clone()
    };
    let before = output(&["models", "--provider", "local", "--json"]);
    assert_eq!(
        (&before["source"], &before["models"][0]["name"]),
        (&json!("config"), &json!("gpt-oss:20b"))
    );
    let after = output(&["models", "refresh", "--provider", "local", "--json"]);
    assert_eq!(after["models"][1]["name"], "qwen");
    assert_eq!(env.server.listings()[0].path, "/portable/v1/models");
    // The list of models belongs to one endpoint.
    assert_eq!(output(&["models", "--json"])["source"], "built_in");
}

#[tokio::test(flavor = "multi_thread")]
async fn hosted_search_is_not_asked_of_a_portable_server() {
    let env = new_binary_env([Reply::says("hello")]).await;
    let ended = env.run(&["--provider", "local", "--web-search", "hi"]);
    ended.expect_code(2);
    assert!(ended.stderr.contains("cannot search the web"), "{}", ended.stderr);
    assert_eq!(env.server.requests().len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subscription_asks_its_own_catalogue_and_never_pays_elsewhere() {
    let sign_in_env = SignInEnv::new().await;
    sign_in_env.sign_in(3600);
    let listed = sign_in_env.run(&["models", "refresh", "--json"]).assert_exit_code(0);
    let asked = &sign_in_env.server.listings()[0];
    let path = format!("/backend-api/codex/models?client_version={}", env!("CARGO_PKG_VERSION"));
    assert_eq!(asked.path, path);
    assert!(asked.header("chatgpt-account-id").is_some());
    assert_eq!(listed.envelope()["output"]["source"], "endpoint");
    // The subscription's backend accepts all options.
    let schema = sign_in_env.auth_file().parent().unwrap().join("schema.json");
    std::fs::write(&schema, r#"{"type": "string"}"#).unwrap();
    let schema = schema.to_str().unwrap();
    let _ = sign_in_env
        .run(&["--web-search", "--output-schema", schema, "hello", "there"])
        .assert_exit_code(6);
    assert_eq!(sign_in_env.server.requests()[0].body["text"]["format"]["type"], "json_schema");
    // A named server is not the subscription's endpoint.
    let config = json!({"providers": {"local": {"base_url": sign_in_env.server.portable_url()}}});
    std::fs::write(sign_in_env.auth_file().with_file_name("config.json"), config.to_string())
        .unwrap();
    let _ = sign_in_env.run(&["--provider", "local", "hello", "there"]).assert_exit_code(0);
    let requests = sign_in_env.server.requests();
    let request = requests.last().unwrap();
    assert_eq!(request.path, "/portable/v1/responses");
    assert_eq!(request.header("authorization"), None);
    assert_eq!(request.header("chatgpt-account-id"), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_named_server_is_shown_as_what_would_be_used() {
    let env = new_binary_env([]).await;
    let shown = |args: &[&str]| -> Value {
        let ended = env.run(args);
        ended.expect_code(0);
        serde_json::from_str::<Value>(&ended.stdout).unwrap()["output"].clone()
    };
    let status = shown(&["login", "status", "--provider", "local", "--json"]);
    assert_eq!(status["endpoint"], env.server.portable_url());
    assert_eq!((&status["provider"], &status["variable"]), (&json!("local"), &Value::Null));
    assert!(status["reason"].as_str().unwrap().contains("`local`"), "{status}");
    let text = env.run(&["login", "status", "--provider", "local"]).expect_code(0).stdout.clone();
    assert!(text.contains("needs no key") && text.contains("/portable/v1"), "{text}");
    let keyed = |args: &[&str]| {
        let mut command = env.command(args);
        command.env("KEYED_SECRET", "sk-of-the-keyed-server");
        crate::support::binary_env::RunningProcess::start(&mut command).end()
    };
    let run = keyed(&["login", "status", "--provider", "keyed"]);
    assert!(run.stdout.contains("API key from KEYED_SECRET"), "{}", run.stdout);

    let checks = shown(&["doctor", "--provider", "local", "--json"])["checks"].clone();
    let check = |id: &str| checks.as_array().unwrap().iter().find(|own| own["id"] == id).unwrap();
    assert_eq!(check("credential")["details"]["endpoint"], env.server.portable_url());
    assert_eq!(check("config")["message"], "model gpt-oss:20b at provider `local`");
    // `login status` reports the same error as a Turn.
    let far = env.run(&["login", "status", "--provider", "far", "--json"]);
    far.expect_code(4);
    let printed: Value = serde_json::from_str(&far.stdout).unwrap();
    assert_eq!(printed["output"]["credential"], Value::Null);
    assert!(printed["error"]["message"].as_str().unwrap().contains("FAR_KEY"), "{printed}");
    let doctor = env.run(&["doctor", "--provider", "far"]);
    doctor.expect_code(1);
    assert!(doctor.stdout.contains("FAR_KEY"), "{}", doctor.stdout);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flag_that_says_who_pays_counts_more_than_a_server_in_the_config() {
    let env = new_binary_env([Reply::says("one"), Reply::says("two")]).await;
    let local = env.server.portable_url();
    env.configure(&json!({"durability": "none", "provider": "local",
        "providers": {"local": {"base_url": local, "models": ["gpt-oss:20b"]}}}));
    env.run(&["hi"]).expect_code(0);
    env.run(&["--credential", "api-key", "hi"]).expect_code(0);
    let paths: Vec<String> =
        env.server.requests().into_iter().map(|request| request.path).collect();
    assert_eq!(paths, ["/portable/v1/responses", "/v1/responses"]);
    let both = env.run(&["--provider", "local", "--credential", "api-key", "hi"]);
    both.expect_code(2);
    assert!(both.stderr.contains("cannot be used with"), "{}", both.stderr);
}
