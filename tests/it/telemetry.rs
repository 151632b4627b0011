//! No telemetry: Pixir contacts the Provider and no other host, as recorded by a
//! ptrace watcher.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::process::{ChildStdin, ChildStdout};

use pixir::scripted::{EXAMPLE_WORKFLOWS, ModelScript, ReceivedRequest, Reply, demo_answer};
use serde_json::{Value, json};

use crate::support::TestEnv;
use crate::support::contact_watcher::{ObservedRun, observe_contacts, read_stdout};
use crate::support::leaks;
use crate::support::test_env::PIXIR;

/// The variable with the addresses for the driver below.
const TO: &str = "TELEMETRY_CONTROL";

/// Replies of a model that uses tools, spawns a Subagent, and answers the steps of a Workflow.
fn answer(request: &ReceivedRequest) -> Reply {
    let prompt = request.user_texts().first().copied().unwrap_or_default().to_owned();
    match (prompt.as_str(), request.outputs().len()) {
        ("do the work", 0) => Reply::new()
            .call("list", json!({}))
            .call("write", json!({"path": "new.txt", "content": "new\n"}))
            .call("bash", json!({"command": "cat new.txt && echo more >> new.txt"})),
        ("do the work", 3) => {
            Reply::calls("spawn_agent", json!({"task": "Look around.", "role": "explorer"}))
        }
        ("do the work", 4) => Reply::calls("wait_agent", json!({})),
        ("do the work", _) => Reply::says("Done."),
        // A task contains more than its prompt: instructions for its end.
        (prompt, _) if prompt.starts_with("say hello") => Reply::says("Done."),
        ("Look around.", 0) => Reply::calls("bash", json!({"command": "ls"})),
        ("Look around.", _) => Reply::says("Nothing here."),
        _ => demo_answer(request),
    }
}

fn run(env: &TestEnv, args: &[&str]) -> (String, ObservedRun) {
    let program = [&[PIXIR], args].concat();
    let (out, watched) =
        observe_contacts(&program, |command| env.configure_command(command), read_stdout);
    leaks::check_stream(&format!("{out}{}", watched.stderr));
    (out, watched)
}

/// Checks that only the Provider was contacted, and that it was if `is_called`.
#[track_caller]
fn only_the_provider(env: &TestEnv, what: &str, watched: &ObservedRun, is_called: bool) {
    assert_eq!(watched.unreadable_calls, Vec::<String>::new(), "{what}");
    assert_eq!(watched.code, Some(0), "{what}: {}", watched.stderr);
    let url = env.server.base_url();
    let provider = url.trim_start_matches("http://").split('/').next().unwrap().to_owned();
    let wanted = if is_called { BTreeSet::from([provider]) } else { BTreeSet::new() };
    // A shell looks up the name of its user. That is local, and not by Pixir.
    let is_own =
        |contact: &&String| !contact.starts_with("unix:") || contact.ends_with(" by pixir");
    let contacts: BTreeSet<String> = watched.contacts.iter().filter(is_own).cloned().collect();
    assert_eq!(contacts, wanted, "{what}");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_address_but_the_provider_is_ever_called() {
    let env = TestEnv::with_script(ModelScript::answering(answer)).await;
    let migrate = EXAMPLE_WORKFLOWS.iter().find(|own| own.name == "migrate").unwrap();
    for (path, content) in migrate.files {
        let place = env.workspace().join(path);
        std::fs::create_dir_all(place.parent().unwrap()).unwrap();
        std::fs::write(place, content).unwrap();
    }
    env.write("migrate.json", migrate.spec);
    env.write(
        "tasks.json",
        r#"{"tasks": ["say hello", {"task": "say hello", "posture": "write"}]}"#,
    );
    tokio::task::block_in_place(|| {
        let (out, watched) = run(&env, &["do the work"]);
        assert_eq!(out, "Done.\n", "{}", watched.stderr);
        only_the_provider(&env, "a Turn with tools and a Subagent", &watched, true);
        assert!(
            watched.programs.contains("cat") || watched.programs.contains("ls"),
            "children are watched: {watched:?}"
        );
        let workflow =
            ["workflow", "run", "migrate.json", "--arg", "from=old_name", "--arg", "to=greeting"];
        for (args, is_called) in [
            (&["resume", "--last", "say hello"][..], true),
            (&["undo", "--dry-run"], false),
            (&workflow[..], true),
            (&["delegate", "--spec", "tasks.json", "--json", "--progress"], true),
            (&["delegate", "--spec", "tasks.json", "--dry-run"], false),
            (&["models", "refresh"], true),
            (&["models"], false),
            (&["doctor"], false),
            (&["sessions", "--all"], false),
            (&["verify", "--all"], false),
            (&["usage", "--all"], false),
            (&["login", "status"], false),
            (&["config", "list"], false),
            (&["skills"], false),
            (&["agents"], false),
            (&["mcp"], false),
            (&["workflow", "list"], false),
            (&["workflow", "status"], false),
            (&["workflow", "plan", workflow[2], "--arg", "from=a", "--arg", "to=b"], false),
            (&["changes"], false),
            (&["tree", "--all"], false),
            (&["diagnose", "--last"], false),
            (&["gc"], false),
            (&["--version"], false),
        ] {
            let (_, watched) = run(&env, args);
            only_the_provider(&env, &args.join(" "), &watched, is_called);
        }
        let program = [PIXIR, "acp"];
        let (answered, watched) = observe_contacts(
            &program,
            |command| env.configure_command(command),
            |stdin, stdout| edit(&env, stdin, stdout),
        );
        assert_eq!(answered["stopReason"], "end_turn");
        only_the_provider(&env, "acp", &watched, true);
    });
}

/// Runs an editor's Session with one prompt; gives the answer to it.
fn edit(env: &TestEnv, mut stdin: ChildStdin, stdout: ChildStdout) -> Value {
    let mut lines = BufReader::new(stdout).lines();
    let mut ask = |id: u64, method: &str, params: Value| {
        let message = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        writeln!(stdin, "{message}").unwrap();
        loop {
            let line = lines.next().expect("it answers").unwrap();
            let received: Value = serde_json::from_str(&line).unwrap();
            if received["id"] == id && received.get("method").is_none() {
                return received["result"].clone();
            }
        }
    };
    ask(1, "initialize", json!({"protocolVersion": 1, "clientCapabilities": {}}));
    let session =
        ask(2, "session/new", json!({"cwd": env.workspace(), "mcpServers": []}))["sessionId"]
            .clone();
    let prompt = json!([{"type": "text", "text": "say hello"}]);
    ask(3, "session/prompt", json!({"sessionId": session, "prompt": prompt}))
}

/// The watcher sees a connection, a DNS query, and a datagram,
/// also from a child of the watched program.
#[test]
fn a_foreign_address_would_be_seen() {
    let stranger = TcpListener::bind("127.0.0.3:0").unwrap();
    let name_server = UdpSocket::bind("127.0.0.4:0").unwrap();
    let tcp = stranger.local_addr().unwrap();
    let udp = name_server.local_addr().unwrap();
    let own = std::env::current_exe().unwrap();
    let line = format!(
        "{} --ignored --exact telemetry::a_program_that_calls_foreign_addresses; true",
        own.display()
    );
    let dress = |command: &mut std::process::Command| {
        command.env(TO, format!("{tcp} {udp}"));
    };
    let (out, watched) = observe_contacts(&["/bin/sh", "-c", &line], dress, read_stdout);
    assert!(out.contains("1 passed"), "{out}{}", watched.stderr);
    assert_eq!(watched.unreadable_calls, Vec::<String>::new());
    assert_eq!(
        watched.contacts,
        BTreeSet::from([tcp.to_string(), udp.to_string(), "127.0.0.6:9".to_owned()])
    );
}

/// The check reports a connection of Pixir itself to another server.
#[tokio::test(flavor = "multi_thread")]
async fn another_server_than_the_provider_would_be_seen() {
    let env = TestEnv::with_replies([]).await;
    let other = TcpListener::bind("127.0.0.5:0").unwrap();
    let address = other.local_addr().unwrap();
    // The server closes every connection.
    std::thread::spawn(move || other.incoming().for_each(drop));
    tokio::task::block_in_place(|| {
        let dress = |command: &mut std::process::Command| {
            env.configure_command(command);
            command.env("OPENAI_BASE_URL", format!("http://{address}/v1"));
        };
        let (_, watched) = observe_contacts(&[PIXIR, "models", "refresh"], dress, read_stdout);
        assert_eq!(watched.contacts, BTreeSet::from([address.to_string()]));
    });
}

#[test]
#[ignore = "a program that the watcher is tried on"]
fn a_program_that_calls_foreign_addresses() {
    let Ok(to) = std::env::var(TO) else { return };
    let (tcp, udp) = to.split_once(' ').unwrap();
    TcpStream::connect(tcp).unwrap();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.send_to(b"who is it?", udp).unwrap();
    // The attempt is enough; nothing listens there.
    TcpStream::connect("127.0.0.6:9").ok();
}
