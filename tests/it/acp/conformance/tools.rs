//! Tool calls: titles, locations, diffs and final states.

use serde_json::{Value, json};

use super::case::{
    CaseEnv, ConformanceCase, ConformanceTopic, RecordedTurn, case, merged, run_prompt,
};
use super::scripted_model::script_prompt;

pub const TOPIC: ConformanceTopic =
    ConformanceTopic::new("tools and diffs", CASES).with_args(&["--auto"]);

/// Runs one tool call; gives the Turn and the merged call.
#[track_caller]
fn run_call(env: &mut CaseEnv, call: &str) -> (RecordedTurn, Value) {
    let turn = env.run_in_new_session(&script_prompt("go", &[call, "say done"]));
    assert_eq!(turn.stop(), "end_turn");
    let call = turn.call();
    (turn, call)
}

fn shown(call: &Value) -> String {
    call["content"].to_string()
}

/// The capabilities of a client that shows the output of the agent's commands.
fn terminal() -> Value {
    json!({"_meta": {"terminal_output": true}})
}

const CASES: &[ConformanceCase] = &[
    case("a command is called by what it runs", |env| {
        let (_, call) = run_call(env, "bash echo one && echo two");
        assert_eq!(
            (&call["title"], &call["kind"]),
            (&json!("echo one && echo two"), &json!("execute"))
        );
        assert_eq!(call["status"], "completed");
    }),
    case("a call begins pending, runs, and ends", |env| {
        let (turn, _) = run_call(env, "bash echo x");
        let own = turn.updates.iter().filter(|update| update.get("toolCallId").is_some());
        // A new call without a status is `pending`.
        let status = |update: &'_ Value| {
            let is_new = update["sessionUpdate"] == "tool_call";
            update["status"].as_str().or(is_new.then_some("pending")).map(str::to_owned)
        };
        let mut statuses: Vec<String> = own.filter_map(status).collect();
        // A recording of files for undo that takes long is shown as `pending` once more.
        statuses.dedup();
        assert_eq!(statuses, ["pending", "in_progress", "completed"]);
    }),
    case("raw input is told, and raw output without what is shown", |env| {
        let (_, call) = run_call(env, "bash echo raw-words");
        assert_eq!(call["rawInput"]["command"], "echo raw-words");
        assert_eq!(call["rawOutput"]["details"]["exit_code"], 0, "{call}");
        assert!(shown(&call).contains("raw-words"), "{call}");
        assert!(!call["rawOutput"].to_string().contains("raw-words"), "{call}");
    }),
    case("a command that fails has failed, with its output", |env| {
        let (_, call) = run_call(env, "bash echo before; exit 3");
        assert!(shown(&call).contains("before"), "{call}");
        assert!(["failed", "completed"].contains(&call["status"].as_str().unwrap()));
        assert!(call["rawOutput"].to_string().contains('3'), "{call}");
    }),
    case("output is shown in a fence", |env| {
        let (_, call) = run_call(env, "bash echo '```'; echo inside");
        let text = call["content"][0]["content"]["text"].as_str().unwrap();
        assert!(text.starts_with("````") && text.contains("inside"), "{text}");
    }),
    case("output is told while the command runs", |env| {
        let session = env.session();
        let prompt = script_prompt("go", &["bash echo early; sleep 0.3; echo late", "say done"]);
        let turn = env.run_prompt(&session, &prompt);
        let running = turn.updates.iter().find(|update| {
            update["sessionUpdate"] == "tool_call_update" && update.to_string().contains("early")
        });
        assert!(!running.unwrap().to_string().contains("late\\n"), "{running:?}");
    }),
    case("reading is a read with its place", |env| {
        let path = env.write("read-me.txt", "one\ntwo\nthree\n");
        let (_, call) = run_call(env, r#"call read {"path":"read-me.txt","offset":2}"#);
        assert_eq!((&call["kind"], &call["status"]), (&json!("read"), &json!("completed")));
        assert!(call["title"].as_str().unwrap().contains("read-me.txt"));
        assert_eq!(call["locations"][0], json!({"path": path, "line": 2}));
    }),
    case("searching is a search", |env| {
        env.write("hay/needle.txt", "a needle\n");
        for call in
            [r#"call grep {"pattern":"needle"}"#, r#"call glob {"pattern":"**/needle.txt"}"#]
        {
            let (_, call) = run_call(env, call);
            assert_eq!((&call["kind"], &call["status"]), (&json!("search"), &json!("completed")));
            assert!(call["title"].as_str().unwrap().contains("needle"), "{call}");
        }
    }),
    case("listing has a title and a place", |env| {
        env.write("folder/file", "x");
        let (_, call) = run_call(env, r#"call list {"path":"folder"}"#);
        assert_eq!(call["locations"][0]["path"], json!(env.workspace().join("folder")));
        assert!(call["title"].as_str().unwrap().contains("folder"));
    }),
    case("a new file is a diff from nothing", |env| {
        let (_, call) = run_call(env, r#"call write {"path":"new.txt","content":"a\nb\n"}"#);
        let path = env.workspace().join("new.txt");
        let diff = &call["content"][0];
        assert_eq!(
            (&diff["type"], &diff["path"], &diff["newText"]),
            (&json!("diff"), &json!(path), &json!("a\nb\n"))
        );
        assert!(diff.get("oldText").is_none_or(Value::is_null), "{diff}");
        assert_eq!((&call["kind"], &call["status"]), (&json!("edit"), &json!("completed")));
    }),
    case("a file that was there never looks new", |env| {
        env.write("there.txt", "old\n");
        let turn = env.run_in_new_session(&script_prompt(
            "go",
            &[
                r#"call read {"path":"there.txt"}"#,
                r#"call write {"path":"there.txt","content":"new\n"}"#,
                "say done",
            ],
        ));
        let calls = turn.updates_of_kind("tool_call");
        let call = merged(&turn.updates, calls[1]["toolCallId"].as_str().unwrap());
        assert_eq!(
            (&call["content"][0]["oldText"], &call["content"][0]["newText"]),
            (&json!("old\n"), &json!("new\n")),
            "{call}"
        );
    }),
    case("an empty file that was there never looks new", |env| {
        env.write("empty.txt", "");
        let turn = env.run_in_new_session(&script_prompt(
            "go",
            &[
                r#"call read {"path":"empty.txt"}"#,
                r#"call write {"path":"empty.txt","content":"new\n"}"#,
                "say done",
            ],
        ));
        let calls = turn.updates_of_kind("tool_call");
        let call = merged(&turn.updates, calls[1]["toolCallId"].as_str().unwrap());
        assert_eq!(call["content"][0]["oldText"], "", "{call}");
    }),
    case("an edit is a diff with the true text of both sides", |env| {
        env.write("edit.txt", "one\ntwo\nthree\n");
        let edit =
            r#"call edit {"path":"edit.txt","edits":[{"old_string":"two","new_string":"2"}]}"#;
        let (_, call) = run_call(env, edit);
        let diff = &call["content"][0];
        assert_eq!(
            (&diff["oldText"], &diff["newText"]),
            (&json!("one\ntwo\nthree\n"), &json!("one\n2\nthree\n"))
        );
        assert_eq!(call["locations"][0]["path"], json!(env.workspace().join("edit.txt")));
        assert!(
            shown(&call).matches("\"diff\"").count() == 1
                && !shown(&call).contains("\"content\":{"),
            "{call}"
        );
    }),
    case("two distant edits are two diffs of one file", |env| {
        let lines: Vec<String> = (1..=60).map(|number| format!("line {number}\n")).collect();
        let text = lines.concat();
        env.write("long.txt", &text);
        let edit = r#"call edit {"path":"long.txt","edits":[{"old_string":"line 2\n","new_string":"LINE 2\n"},{"old_string":"line 59\n","new_string":"LINE 59\n"}]}"#;
        let (_, call) = run_call(env, edit);
        let diffs = call["content"].as_array().unwrap();
        assert!(
            diffs.iter().all(|diff| diff["type"] == "diff" && diff["oldText"].is_string()),
            "{call}"
        );
        let new: String = diffs.iter().filter_map(|diff| diff["newText"].as_str()).collect();
        assert!(new.contains("LINE 2\n") && new.contains("LINE 59\n"));
    }),
    case("a patch of two files has a diff of each", |env| {
        env.write("p1.txt", "a\n");
        let patch = "*** Begin Patch\n*** Update File: p1.txt\n@@\n-a\n+A\n*** Add File: p2.txt\n+new\n*** End Patch\n";
        let call = format!("call apply_patch {}", json!({"patch": patch}));
        let (_, call) = run_call(env, &call);
        let paths: Vec<&str> = call["content"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(|diff| diff["path"].as_str())
            .collect();
        assert!(paths.iter().any(|path| path.ends_with("p1.txt")), "{call}");
        assert!(paths.iter().any(|path| path.ends_with("p2.txt")), "{call}");
    }),
    case("a file without its last newline keeps its text", |env| {
        env.write("bare.txt", "a\nb");
        let edit = r#"call edit {"path":"bare.txt","edits":[{"old_string":"b","new_string":"c"}]}"#;
        let (_, call) = run_call(env, edit);
        assert_eq!(
            (&call["content"][0]["oldText"], &call["content"][0]["newText"]),
            (&json!("a\nb"), &json!("a\nc"))
        );
    }),
    case("a call that cannot be done has failed and says why", |env| {
        for call in [
            r#"call read {"path":"no-such-file"}"#,
            r#"call edit {"path":"no-such-file","edits":[{"old_string":"a","new_string":"b"}]}"#,
            r#"call read {"paht":"typo"}"#,
            r#"call no_such_tool {"a":1}"#,
            r#"call read {"path":"../../outside"}"#,
            "raw read {broken",
        ] {
            let (_, shown_call) = run_call(env, call);
            assert_eq!(shown_call["status"], "failed", "{call}");
            assert!(!shown_call["content"].as_array().unwrap().is_empty(), "{shown_call}");
        }
    }),
    case("calls of one reply are told apart and all end", |env| {
        env.write("x.txt", "x\n");
        let read = r#"call read {"path":"x.txt"}"#;
        let prompt = script_prompt(
            "go",
            &[&format!("{read} ;; bash echo 1 ;; bash echo 2"), "say", "say", "say done"],
        );
        let turn = env.run_in_new_session(&prompt);
        let ids: Vec<&str> = turn
            .updates_of_kind("tool_call")
            .iter()
            .map(|call| call["toolCallId"].as_str().unwrap())
            .collect();
        assert_eq!(ids.len(), 3);
        assert!(ids.iter().all(|id| merged(&turn.updates, id)["status"] == "completed"));
    }),
    case("the name of the tool is told beside its title", |env| {
        let (_, call) = run_call(env, "bash true");
        assert!(call["name"] == "bash" || call["_meta"]["tool_name"] == "bash", "{call}");
    }),
    case("a client with terminals sees the command in one", |env| {
        let mut other = env.start_other(&["--auto"], terminal());
        let session = other.new_session(&env.workspace());
        let turn = run_prompt(
            &mut other,
            &session,
            &script_prompt("go", &["bash echo in-a-terminal; exit 4", "say done"]),
        );
        let first = turn.updates_of_kind("tool_call")[0];
        let id = first["content"][0]["terminalId"].as_str().unwrap();
        assert_eq!(first["_meta"]["terminal_info"]["terminal_id"], id);
        let metas: Vec<&Value> = turn
            .updates_of_kind("tool_call_update")
            .iter()
            .map(|update| &update["_meta"])
            .collect();
        let output: String =
            metas.iter().filter_map(|meta| meta["terminal_output"]["data"].as_str()).collect();
        assert!(output.contains("in-a-terminal"), "{metas:?}");
        let exit = metas.iter().find(|meta| meta["terminal_exit"].is_object()).unwrap();
        assert_eq!(exit["terminal_exit"]["exit_code"], 4);
    }),
    case("a client without them is sent no terminal", |env| {
        let (turn, _) = run_call(env, "bash echo x");
        assert!(!json!(turn.updates).to_string().contains("terminal"), "{turn:?}");
    }),
];
