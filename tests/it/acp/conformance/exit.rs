//! The end of the process: what causes it, and that no process survives it.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::case::{CaseEnv, ConformanceCase, ConformanceTopic, ValidatingClient, case, run_prompt};
use super::scripted_model::script_prompt;
use crate::support::acp_client::AcpClient;
use crate::support::binary_env::wait_for;
use crate::support::test_env::DEADLINE;

pub const TOPIC: ConformanceTopic = ConformanceTopic::new("exit", CASES);

/// A process with a running command that does not end by itself.
#[track_caller]
fn busy(env: &CaseEnv) -> (ValidatingClient, String) {
    let mut client = env.start_other(&["--auto"], json!({}));
    let session = client.new_session(&env.workspace());
    let command = format!("bash echo begun; sleep 611; echo {}", env.binary_env.mark);
    client.send_prompt(&session, &script_prompt("go", &[&command]));
    client.wait_for_message("its output", |message| message.to_string().contains("begun\\n"));
    client.mark_cut();
    (client, session)
}

#[track_caller]
fn assert_interrupted(env: &CaseEnv, session: &str) {
    let log = env.log(session);
    let end = log.iter().rev().find(|event| event["type"] == "turn_failed");
    assert_eq!(end.expect("it ended")["data"]["terminal_status"], "interrupted");
    let commands = || {
        env.binary_env.survivors().into_iter().filter(|line| line.contains("sleep 611")).collect()
    };
    let left: Vec<String> = wait_for(DEADLINE, commands, Vec::is_empty);
    assert_eq!(left, Vec::<String>::new());
}

/// The messages that a process prints for these bytes of input.
#[track_caller]
fn printed(env: &CaseEnv, bytes: &[u8], environment: &[(&str, &str)]) -> Vec<Value> {
    let mut command = env.binary_env.command(&["acp"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    command.envs(environment.iter().copied());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(bytes).unwrap();
    drop(stdin);
    let mut out = Vec::new();
    child.stdout.take().unwrap().read_to_end(&mut out).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let text = String::from_utf8(out).expect("stdout is UTF-8");
    assert!(text.is_empty() || text.ends_with('\n'), "{text}");
    text.lines().map(|line| serde_json::from_str(line).expect("every line is JSON")).collect()
}

const HELLO: &str =
    r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":1}}"#;

const CASES: &[ConformanceCase] = &[
    case("the end of input ends it well", |env| {
        let mut client = env.start_other(&[], json!({}));
        client.new_session(&env.workspace());
        client.finish();
    }),
    case("no input at all ends it well, without a byte", |env| {
        assert_eq!(printed(env, b"", &[]), Vec::<Value>::new());
        assert_eq!(printed(env, b"\n\n", &[]), Vec::<Value>::new());
    }),
    case("a last line without its end is a line", |env| {
        let lines = printed(env, HELLO.as_bytes(), &[]);
        assert_eq!(lines[0]["result"]["protocolVersion"], 1);
    }),
    case("half a line at the end is refused, and that is the end", |env| {
        let lines = printed(env, format!("{HELLO}\n{{\"jsonrpc\":").as_bytes(), &[]);
        assert_eq!(lines.last().unwrap()["error"]["code"], -32_700);
    }),
    case("requests before the end are answered before it", |env| {
        let list = r#"{"jsonrpc":"2.0","id":2,"method":"session/list","params":{}}"#;
        let lines = printed(env, format!("{HELLO}\n{list}\n").as_bytes(), &[]);
        assert!(
            lines.iter().any(|line| line["id"] == 2 && line.get("result").is_some()),
            "{lines:?}"
        );
    }),
    case("stdout is clean under any locale", |env| {
        let list =
            json!({"jsonrpc": "2.0", "id": "größe 🦀", "method": "session/list", "params": {}});
        let bytes = format!("{HELLO}\n{list}\n");
        for locale in ["C", "POSIX", "en_US.ISO-8859-1", "tr_TR.UTF-8", "no_SUCH"] {
            let lines = printed(env, bytes.as_bytes(), &[("LC_ALL", locale), ("LANG", locale)]);
            assert!(lines.iter().any(|line| line["id"] == "größe 🦀"), "{locale}: {lines:?}");
        }
    }),
    case("stdout is clean when a terminal is promised", |env| {
        let colour = [("TERM", "xterm-256color"), ("CLICOLOR_FORCE", "1"), ("FORCE_COLOR", "3")];
        assert_eq!(printed(env, HELLO.as_bytes(), &colour).len(), 1);
    }),
    case("the end of input ends a command that runs", |env| {
        let (mut client, session) = busy(env);
        client.finish();
        assert_interrupted(env, &session);
    }),
    case("the end of input ends a Turn that streams", |env| {
        let mut client = env.start_other(&[], json!({}));
        let session = client.new_session(&env.workspace());
        client.send_prompt(&session, "go » say begun ;; pause 600000");
        client.wait_for_update("agent_message_chunk");
        client.mark_cut();
        client.finish();
        assert_interrupted(env, &session);
    }),
    case("the end of input ends a question that is open", |env| {
        let mut client = env.start_other(&[], json!({}));
        let session = client.new_session(&env.workspace());
        client.send_prompt(&session, &script_prompt("go", &["bash touch never"]));
        client.wait_for_request("session/request_permission");
        client.mark_cut();
        client.finish();
        assert!(!env.workspace().join("never").exists());
        assert_interrupted(env, &session);
    }),
    case("SIGTERM, SIGHUP and SIGINT end it well, and what runs", |env| {
        for signal in [Signal::TERM, Signal::HUP, Signal::INT] {
            let (mut client, session) = busy(env);
            kill_process(Pid::from_child(&client.child), signal).unwrap();
            let status = wait_for(DEADLINE, || client.child.try_wait().unwrap(), Option::is_some);
            assert_eq!(status.unwrap().code(), Some(0), "{signal:?}");
            client.finish();
            assert_interrupted(env, &session);
        }
    }),
    case("SIGKILL leaves no process and a Session that opens", |env| {
        let (mut client, session) = busy(env);
        client.child.kill().unwrap();
        client.child.wait().unwrap();
        drop(client.take_client());
        let params = json!({"sessionId": session, "cwd": env.workspace()});
        env.client.call("session/resume", params).unwrap();
        assert_interrupted(env, &session);
        assert_eq!(env.run_prompt(&session, "on we go").stop(), "end_turn");
    }),
    case("a reader that left ends it, although its input is open", |env| {
        let mut command = env.binary_env.command(&["acp"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        drop(child.stdout.take());
        let mut stdin = child.stdin.take().unwrap();
        let new = json!({"jsonrpc": "2.0", "id": 2, "method": "session/new", "params": {"cwd": env.workspace(), "mcpServers": []}});
        // The process may have exited before it reads this.
        stdin.write_all(format!("{HELLO}\n{new}\n{HELLO}\n").as_bytes()).ok();
        let status = wait_for(DEADLINE, || child.try_wait().unwrap(), Option::is_some);
        assert_eq!(status.unwrap().code(), Some(0));
        drop(stdin);
    }),
    case("the end of input ends it also when nobody reads what it says", |env| {
        // Few or many lines may be queued behind the one that cannot be answered.
        for more in [3, 500] {
            let mut command = env.binary_env.command(&["acp", "--auto"]);
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
            let mut child = command.spawn().unwrap();
            let mut stdin = child.stdin.take().unwrap();
            let mut stdout = BufReader::new(child.stdout.take().unwrap());
            let new = json!({"jsonrpc": "2.0", "id": 2, "method": "session/new",
                "params": {"cwd": env.workspace(), "mcpServers": []}});
            stdin.write_all(format!("{HELLO}\n{new}\n").as_bytes()).unwrap();
            let mut lines = stdout.by_ref().lines().map(|line| line.unwrap());
            let session = lines.find_map(|line| {
                let message: Value = serde_json::from_str(&line).unwrap();
                Some(message["result"]["sessionId"].as_str()?.to_owned())
            });
            let session = session.unwrap();
            let loud = script_prompt("go", &["deltas 20000 ;; bash echo begun; sleep 611"]);
            let prompt = json!({"jsonrpc": "2.0", "id": 3, "method": "session/prompt", "params":
                {"sessionId": session, "prompt": [{"type": "text", "text": loud}]}});
            stdin.write_all(format!("{prompt}\n").as_bytes()).unwrap();
            let begun = || env.log(&session).iter().any(|fact| fact["type"] == "user_message");
            assert!(wait_for(DEADLINE, begun, |begun| *begun), "the Turn begins");
            // No more reads from here on: answers to these requests do not fit into the pipe.
            for _ in 0..more {
                stdin.write_all(format!("{HELLO}\n").as_bytes()).unwrap();
                stdin.flush().unwrap();
            }
            std::thread::sleep(std::time::Duration::from_millis(300));
            drop(stdin);
            let status = wait_for(DEADLINE, || child.try_wait().unwrap(), Option::is_some);
            let status = status.unwrap_or_else(|| {
                child.kill().unwrap();
                panic!("it does not end")
            });
            assert_eq!(status.code(), Some(0));
            drop(stdout);
            assert_interrupted(env, &session);
        }
    }),
    case("a reader that is slow loses nothing", |env| {
        let mut client = env.start_other(&["--auto"], json!({}));
        let session = client.new_session(&env.workspace());
        let turn = run_prompt(&mut client, &session, "go » deltas 20000");
        assert_eq!(turn.text().len(), 100_000);
    }),
    case("traces go to stderr and never to stdout", |env| {
        let mut command = env.binary_env.command(&["acp"]);
        command.env("PIXIR_LOG", "trace");
        let mut client = ValidatingClient::new(AcpClient::spawn(&mut command));
        client.initialize(json!({}));
        let session = client.new_session(&env.workspace());
        assert_eq!(run_prompt(&mut client, &session, "hello").stop(), "end_turn");
        client.finish();
    }),
];
