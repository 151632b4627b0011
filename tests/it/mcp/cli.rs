//! `pixir mcp`, and servers from the files of a Workspace.

use pixir::scripted::{ModelScript, Reply};
use rustix::process::Signal;
use serde_json::{Value, json};

use super::of_server;
use super::server::{arguments, entry};
use super::web::{HttpMcpServer, KEY};
use crate::support::TestEnv;
use crate::support::binary_env::{BinaryEnv, wait_for};
use crate::support::terminal::TestTerminal;
use crate::support::test_env::DEADLINE;

async fn new_test_env(servers: &Value) -> TestEnv {
    let env = TestEnv::with_script(ModelScript::answering(|_| Reply::says("all done"))).await;
    std::fs::create_dir_all(env.home().join(".pixir")).unwrap();
    let config = json!({"mcp_servers": servers, "mcp": {"wait_ms": 60_000, "connect_ms": 3000}});
    std::fs::write(env.home().join(".pixir/config.json"), config.to_string()).unwrap();
    env
}

#[tokio::test(flavor = "multi_thread")]
async fn the_list_shows_servers_and_no_secret() {
    let token = "tok_0123456789abcdef";
    let env = new_test_env(&json!({
        "files": {"command": "npx", "args": ["-y", "server", token], "env": {"API_KEY": token}},
        "web": {"url": format!("https://x.example/mcp?key={token}"), "trusted": true,
            "headers": {"Authorization": format!("Bearer {token}")}},
    }))
    .await;
    let shown = env.run_pixir(&["mcp"]).assert_exit_code(0).out;
    assert_eq!(
        shown,
        "files  stdio  npx -y server …  (user)\nweb    http  https://x.example/mcp?…  (user, trusted)\n"
    );
    let listed = env.run_pixir(&["mcp", "list", "--json"]).assert_exit_code(0);
    assert!(!listed.out.contains(token), "{}", listed.out);
    let output = &listed.envelope()["output"];
    let files = json!({"name": "files", "transport": "stdio", "place": "npx -y server …",
        "origin": "user", "trusted": false, "env": ["API_KEY"]});
    let web = json!({"name": "web", "transport": "http", "place": "https://x.example/mcp?…",
        "origin": "user", "trusted": true, "headers": ["Authorization"]});
    assert_eq!(*output, json!([files, web]), "the full envelope");
    let odd = env.run_pixir(&["mcp", "test", "nobody", "--json"]).assert_exit_code(2).envelope();
    assert_eq!(odd["error"]["details"]["next_actions"][0], "use one of: files, web");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_test_says_what_a_server_offers() {
    let web = HttpMcpServer::start();
    let env = new_test_env(&json!({
        "story": entry(&json!({"instructions": "Be kind."}), "plain-"),
        "web": {"url": web.url, "headers": {"Authorization": format!("Bearer ${{THE_KEY:-{KEY}}}")}},
    }))
    .await;
    let text = env.run_pixir(&["mcp", "test", "story"]).assert_exit_code(0).out;
    assert!(text.starts_with("story: story-server 1.2.3, MCP 2025-11-25, 13 tools, "), "{text}");
    assert!(
        text.contains("\n  mcp__story__echo  [MCP server story] Does what echo does.\n"),
        "{text}"
    );
    let output = env.run_pixir(&["mcp", "test", "story", "--json"]).assert_exit_code(0).envelope();
    let mut shape = output["output"].clone();
    assert!(shape["took_ms"].is_u64());
    shape["took_ms"] = json!(0);
    shape["tools"] = json!([shape["tools"][1]]);
    let echo = json!({"name": "mcp__story__echo", "read_only": false,
        "description": "[MCP server story] Does what echo does."});
    assert_eq!(
        shape,
        json!({"name": "story", "transport": "stdio", "protocol": "2025-11-25", "took_ms": 0,
            "server": {"name": "story-server", "version": "1.2.3"}, "instructions": "Be kind.",
            "tools": [echo], "tools_left_out": 0}),
        "the full envelope"
    );
    let output = env.run_pixir(&["mcp", "test", "web", "--json"]).assert_exit_code(0).envelope();
    assert_eq!(output["output"]["tools"][0]["name"], "mcp__web__add");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_test_that_fails_says_why_and_what_to_do() {
    let web = HttpMcpServer::start();
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let nowhere = format!("http://{}/mcp", closed.local_addr().unwrap());
    drop(closed);
    let env = new_test_env(&json!({
        "absent": {"command": "no-such-program-anywhere"},
        "relative": {"command": "./server"},
        "exits": entry(&json!({"mode": "exit"}), "plain-"),
        "mute": entry(&json!({"mode": "mute"}), "plain-"),
        "yes": {"command": "yes"},
        "stranger": {"url": web.url, "headers": {"Authorization": "Bearer wrong-key-here"}},
        "nowhere": {"url": nowhere},
        "open": {"url": "http://x.example/mcp", "headers": {"Authorization": "Bearer something"}},
    }))
    .await;
    for (name, code, kind, words) in [
        ("absent", 2, "not_found", "there is no program `no-such-program-anywhere`"),
        ("relative", 2, "invalid_config", "neither a name nor an absolute path"),
        ("exits", 1, "mcp_server_failed", "ended with exit code 3: no database"),
        ("mute", 124, "timeout", "did not answer within 3 s"),
        ("yes", 1, "mcp_server_failed", "violates the MCP protocol"),
        ("stranger", 4, "auth_refused", "HTTP 401"),
        ("nowhere", 1, "network", "cannot be reached"),
        ("open", 2, "insecure_transport", "not protected"),
    ] {
        let failed =
            env.run_pixir(&["mcp", "test", name, "--json"]).assert_exit_code(code).envelope();
        let error = &failed["error"];
        assert_eq!(error["kind"], kind, "{error}");
        assert!(error["message"].as_str().unwrap().contains(words), "{error}");
        assert!(error["details"]["next_actions"][0].is_string(), "{error}");
    }
    let failed = env.run_pixir(&["mcp", "test", "exits", "--json"]).assert_exit_code(1).envelope();
    assert!(failed["error"]["details"]["stderr"].as_str().unwrap().starts_with("no database"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_entry_is_reported_by_its_name_and_the_others_work() {
    let env = new_test_env(&json!({
        "typo": {"comand": "npx"},
        "lost": {"url": "https://x.example/${NO_SUCH_VARIABLE}"},
        "story": entry(&json!({}), "plain-"),
    }))
    .await;
    let typo = "`comand` is none of type, command, args";
    let listed = env.run_pixir(&["mcp", "list", "--json"]).assert_exit_code(0);
    let all = listed.envelope()["output"].clone();
    let names: Vec<&str> =
        all.as_array().unwrap().iter().filter_map(|one| one["name"].as_str()).collect();
    assert_eq!(names, ["lost", "story", "typo"]);
    assert_eq!(
        (&all[2]["transport"], &all[2]["place"]),
        (&json!("broken"), &json!("mcp_servers.typo"))
    );
    assert!(all[2]["problem"].as_str().unwrap().starts_with(typo), "{all}");
    let shown = env.run_pixir(&["mcp"]).assert_exit_code(0);
    assert!(
        shown.out.contains(&format!("typo   broken  mcp_servers.typo: {typo}")),
        "{}",
        shown.out
    );
    for (name, words) in [("typo", typo), ("lost", "the variable NO_SUCH_VARIABLE is not set")] {
        let failed = env.run_pixir(&["mcp", "test", name, "--json"]).assert_exit_code(2).envelope();
        assert_eq!(failed["error"]["kind"], "invalid_config", "{failed}");
        let message = failed["error"]["message"].as_str().unwrap();
        let place = format!("MCP server `{name}`: `mcp_servers.{name}`: {words}");
        assert!(message.starts_with(&place), "{message}");
        assert!(failed["error"]["details"]["next_actions"][0].is_string(), "{failed}");
    }
    env.run_pixir(&["mcp", "test", "story"]).assert_exit_code(0);
    let run = env.run_pixir(&["hi"]).assert_exit_code(0);
    assert!(
        run.err.contains("MCP server `typo` cannot be used: `mcp_servers.typo`"),
        "{}",
        run.err
    );
    let offered = of_server(env.requests().last().unwrap());
    assert!(offered.contains(&"mcp__story__echo".to_owned()), "{offered:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_test_takes_as_long_as_it_is_given_and_can_be_stopped() {
    let binary_env = BinaryEnv::new(BinaryEnv::new_mark(), ModelScript::new([])).await;
    let mute = json!({"mode": "mute"});
    binary_env.configure(&json!({"mcp_servers": {"mute": entry(&mute, &binary_env.mark)}}));
    let ended = binary_env.run(&["mcp", "test", "mute", "--json", "--timeout", "1s"]);
    ended.expect_code(124);
    let failed: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(failed["error"]["kind"], "timeout", "{failed}");
    let message = failed["error"]["message"].as_str().unwrap();
    assert!(message.contains("MCP server `mute`: it did not answer within 1 s"), "{message}");
    let next = failed["error"]["details"]["next_actions"].to_string();
    assert!(next.contains("by hand") && next.contains("--timeout"), "{next}");
    binary_env.assert_nothing_survives();

    let running = binary_env.start(&["mcp", "test", "mute", "--timeout", "10m"]);
    let is_there = |left: &Vec<String>| left.iter().any(|line| line.contains("when_asked"));
    assert!(is_there(&wait_for(DEADLINE, || binary_env.survivors(), is_there)), "it runs");
    running.signal(Signal::INT);
    running.end().expect_code(130);
    binary_env.assert_nothing_survives();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_servers_of_a_workspace_start_when_it_is_trusted_and_not_before() {
    let env = new_test_env(&json!({})).await;
    let marker = env.workspace().join("started");
    let entry = |log: &str| {
        let script = json!({"log": env.workspace().join(log)}).to_string();
        json!({"mcpServers": {"story": {"command": "/bin/sh", "args": arguments("plain-"),
            "env": {"STORY_SERVER": script}}}})
    };
    env.write(".mcp.json", entry("started").to_string());
    let untrusted = env.run_pixir(&["hi"]).assert_exit_code(0);
    assert!(untrusted.err.contains("its MCP servers are ignored"), "{}", untrusted.err);
    assert!(env.run_pixir(&["mcp"]).assert_exit_code(0).out.is_empty());
    assert!(!marker.exists(), "nothing was started");
    assert_eq!(of_server(&env.requests()[0]), Vec::<String>::new());

    let mut terminal = TestTerminal::run(&env, &["trust"], &[]);
    terminal.wait_for_text("mcpServers.story = ");
    terminal.type_keys("y\n");
    assert_eq!(terminal.wait_for_exit(), Some(0));
    env.run_pixir(&["hi"]).assert_exit_code(0);
    assert!(marker.exists(), "it was started");
    assert!(of_server(env.requests().last().unwrap()).contains(&"mcp__story__echo".to_owned()));
    assert!(env.run_pixir(&["mcp"]).assert_exit_code(0).out.contains("(workspace)"));

    // Changed content needs trust again.
    env.write(".mcp.json", entry("changed").to_string());
    assert!(env.run_pixir(&["hi"]).assert_exit_code(0).err.contains("not trusted"));
    assert!(!env.workspace().join("changed").exists());
    env.write(".mcp.json", entry("started").to_string());
    let back = env.run_pixir(&["untrust", "--json"]).assert_exit_code(0).envelope();
    assert_eq!(back["output"]["was_trusted"], true);
    assert!(env.run_pixir(&["hi"]).assert_exit_code(0).err.contains("not trusted"));
}

#[tokio::test(flavor = "multi_thread")]
async fn arguments_are_filled_from_the_own_variables_of_an_entry() {
    let mut own = entry(&json!({}), "plain-");
    let sentence = own["args"][1].take();
    own["args"][1] = json!("${LAUNCH}");
    own["env"]["LAUNCH"] = sentence;
    let mut absent = own.clone();
    absent["env"].as_object_mut().unwrap().remove("LAUNCH");
    let env = new_test_env(&json!({"own": own, "absent": absent})).await;
    let text = env.run_pixir(&["mcp", "test", "own"]).assert_exit_code(0).out;
    assert!(text.contains("mcp__own__echo"), "{text}");
    let failed = env.run_pixir(&["mcp", "test", "absent", "--json"]).assert_exit_code(2).envelope();
    let message = failed["error"]["message"].as_str().unwrap();
    assert!(message.contains("the variable LAUNCH is not set"), "{message}");
}
