//! Tests of the renderer: Events in, updates out.

#![expect(clippy::needless_pass_by_value, reason = "tables read best with a bare `json!`")]

use std::path::{Path, PathBuf};

use proptest::prelude::*;
use serde_json::{Value, json};

use super::diff::{Hunk, parse_hunks};
use super::*;
use crate::base::id::SessionId;
use crate::record::event::{CanonicalParts, Extra, Timestamp};

fn fact(type_name: &str, data: Value) -> Event {
    let raw = serde_json::value::RawValue::from_string(data.to_string()).unwrap();
    let fact = Canonical::decode(type_name, &raw);
    assert!(!matches!(fact, Canonical::Unknown(_)), "{type_name} {data}");
    Event::new_canonical(CanonicalParts {
        id: EventId::mint(),
        session_id: SessionId::mint(),
        seq: None,
        ts: Timestamp::now(),
        fact,
        extra: Extra::new(),
    })
}

/// A renderer whose updates are returned as JSON.
struct TestRenderer(UpdateRenderer);

impl TestRenderer {
    fn new(client: ClientCapabilities) -> Self {
        Self(UpdateRenderer::new("/w".into(), client, 1000))
    }

    fn fact(&mut self, type_name: &str, data: Value) -> Vec<Value> {
        shown(self.0.render_event(&fact(type_name, data)))
    }

    fn live(&mut self, notice: &Ephemeral) -> Vec<Value> {
        shown(self.0.render_notice(notice))
    }

    fn says(&mut self, text: &str) -> Vec<Value> {
        self.live(&Ephemeral::TextDelta(text.to_owned()))
    }

    fn prints(&mut self, text: &str) -> Vec<Value> {
        let call_id = CallId::new("c");
        self.live(&Ephemeral::ToolOutputDelta { call_id, chunk: text.to_owned() })
    }
}

fn shown(updates: Vec<SessionUpdate>) -> Vec<Value> {
    updates.into_iter().map(|update| serde_json::to_value(update).unwrap()).collect()
}

fn replayed(events: Vec<Event>) -> Vec<Value> {
    let events = events.into_iter().map(std::sync::Arc::new).collect();
    shown(
        TestRenderer::new(ClientCapabilities::default())
            .0
            .replay(&History::from_events(events), &Attachments::default()),
    )
}

fn terminals() -> ClientCapabilities {
    ClientCapabilities { shows_terminals: true, ..ClientCapabilities::default() }
}

#[test]
fn a_message_sent_in_pieces_is_not_sent_again() {
    let mut screen = TestRenderer::new(ClientCapabilities::default());
    let first = screen.says("one ");
    let second = screen.says("two");
    assert_eq!(first[0]["messageId"], second[0]["messageId"]);
    assert!(
        screen
            .fact("assistant_message", json!({"text": "one two", "phase": "commentary"}))
            .is_empty()
    );
    // The next message has another id.
    let third = screen.says("three");
    assert_ne!(first[0]["messageId"], third[0]["messageId"]);
    let rest = screen.fact("assistant_message", json!({"text": "three four", "phase": "final"}));
    assert_eq!(rest[0]["content"]["text"], " four");
    assert_eq!(rest[0]["messageId"], third[0]["messageId"]);
    // Two messages of one response are separated by an empty delta.
    let parted = [screen.says("a"), screen.says(""), screen.says("b")].concat();
    assert_eq!(parted.len(), 2);
    assert_ne!(parted[0]["messageId"], parted[1]["messageId"]);
    for text in ["a", "b"] {
        let whole = json!({"text": text, "phase": "commentary"});
        assert!(screen.fact("assistant_message", whole).is_empty());
    }
    // A message whose deltas were lost is sent whole.
    let whole = screen.fact("assistant_message", json!({"text": "five", "phase": "final"}));
    assert_eq!(whole[0]["content"]["text"], "five");
    screen.says("lost");
    let again = screen.fact("assistant_message", json!({"text": "found", "phase": "final"}));
    assert_eq!(again[0]["content"]["text"], "found");
}

#[test]
fn a_thought_is_sent_live_or_from_its_summary() {
    let item = json!({"item": {"summary": [{"text": "a"}, {"text": "b"}]}, "model": "m"});
    let mut screen = TestRenderer::new(ClientCapabilities::default());
    let updates = screen.fact("reasoning", item.clone());
    assert_eq!(
        (&updates[0]["sessionUpdate"], &updates[0]["content"]["text"]),
        (&json!("agent_thought_chunk"), &json!("a\n\nb"))
    );
    screen.live(&Ephemeral::ReasoningDelta("a".into()));
    assert!(screen.fact("reasoning", item).is_empty());
    assert!(screen.fact("reasoning", json!({"item": {"summary": []}})).is_empty());
}

#[test]
fn calls_are_called_what_they_run() {
    for (tool, args, title, kind) in [
        ("bash", json!({"command": "cargo test\n&& ls"}), "cargo test && ls", "execute"),
        ("read", json!({"path": "a.rs", "offset": 7}), "Read a.rs", "read"),
        ("edit", json!({"path": "a.rs"}), "Edit a.rs", "edit"),
        ("write", json!({"path": "a.rs"}), "Write a.rs", "edit"),
        ("grep", json!({"pattern": "x", "path": "src"}), "Search src", "search"),
        (
            "apply_patch",
            json!({"patch": "*** Begin Patch\n*** Update File: a\n*** Add File: b\n"}),
            "Edit a, b",
            "edit",
        ),
        ("list", json!({}), "List", "read"),
        ("docs__search", json!({"query": "q"}), "docs__search q", "other"),
        ("odd", json!("text"), "odd", "other"),
    ] {
        let mut screen = TestRenderer::new(ClientCapabilities::default());
        let call = screen.fact("tool_call", json!({"call_id": "c", "name": tool, "args": args}));
        assert_eq!(
            (call[0]["title"].as_str(), call[0]["kind"].as_str().unwrap_or("other")),
            (Some(title), kind),
            "{tool}"
        );
        assert_eq!(call[0]["sessionUpdate"], "tool_call");
    }
    let look =
        call::CallSummary::for_call("read", &json!({"path": "a.rs", "offset": 7}), Path::new("/w"));
    assert_eq!(
        serde_json::to_value(&look.locations).unwrap(),
        json!([{"path": "/w/a.rs", "line": 7}])
    );
}

#[test]
fn nothing_of_a_command_vanishes_from_its_title() {
    for (evil, mark) in [
        ("echo \x1b]0;; rm -rf x", "<U+001B>"),
        ("rm -rf x\recho all good", "<U+000D>"),
        ("echo \u{9d}0; rm -rf x\u{9c} ok", "<U+009D>"),
        ("echo \u{202e} rm -rf x", "<U+202E>"),
    ] {
        let look =
            call::CallSummary::for_call("bash", &json!({ "command": evil }), Path::new("/w"));
        assert!(look.title.contains("rm -rf x") && look.title.contains(mark), "{}", look.title);
    }
    let padded = format!("ls{}; rm -rf x", " ".repeat(5000));
    let look = call::CallSummary::for_call("bash", &json!({ "command": padded }), Path::new("/w"));
    assert_eq!(look.title, "ls ; rm -rf x");
    let asked = json!({"path": "a\u{200b}.rs"});
    assert_eq!(
        call::CallSummary::for_call("edit", &asked, Path::new("/w")).title,
        "Edit a<U+200B>.rs"
    );
}

#[test]
fn tools_of_workflows_and_steps_have_human_titles() {
    for (tool, args, title) in [
        (
            "run_workflow",
            json!({"workflow": {"name": "fix-all", "steps": []}}),
            "Run workflow fix-all",
        ),
        ("run_workflow", json!({"template": "review/deep"}), "Run workflow review/deep"),
        ("run_workflow", json!({"resume": "wf_1"}), "Resume workflow wf_1"),
        (
            "run_workflow",
            json!({"workflow": {"name": "fix-all"}, "validate_only": true}),
            "Check workflow fix-all",
        ),
        ("merge_child", json!({"id": "sub_1"}), "Merge changes of sub_1"),
        ("skills_list", json!({}), "List skills"),
        ("skill_view", json!({"name": "review"}), "Read skill review"),
    ] {
        assert_eq!(
            call::CallSummary::for_call(tool, &args, Path::new("/w")).title,
            title,
            "{tool}"
        );
    }
}

#[test]
fn a_notice_has_a_title_that_says_what_it_is_about() {
    let client = ClientCapabilities { takes_notices: true, ..ClientCapabilities::default() };
    for (note, title) in [
        ("gpt-x takes no images: they will only be described to it", "gpt-x takes no images"),
        ("the sandbox is off: commands can do whatever you can do", "The sandbox is off"),
        ("one; two", "One"),
        ("MCP server `a` is still starting", "MCP server `a` is still starting"),
    ] {
        let notice = serde_json::to_value(note_update(client, NoticeSeverity::Info, note)).unwrap();
        assert_eq!(notice["title"], title);
        let description = notice["description"].as_str();
        assert_eq!(description, (note.len() > title.len()).then_some(note), "{note}");
    }
    let long = "word ".repeat(100);
    let notice = serde_json::to_value(note_update(client, NoticeSeverity::Info, &long)).unwrap();
    assert!(notice["title"].as_str().unwrap().chars().count() <= 81, "{notice}");
    assert_eq!(notice["description"], long);
}

#[test]
fn the_raw_output_does_not_repeat_what_is_shown() {
    let finish = |client: ClientCapabilities, tool: &str, result: Value| {
        let mut screen = TestRenderer::new(client);
        screen.fact("tool_call", json!({"call_id": "c", "name": tool, "args": {}}));
        screen.fact("tool_result", result).pop().unwrap()
    };
    let details = json!({"exit_code": 0});
    let ran = json!({"call_id": "c", "ok": true, "output": "lots", "details": details});
    for client in [ClientCapabilities::default(), terminals()] {
        let finished = finish(client, "bash", ran.clone());
        assert_eq!(finished["rawOutput"], json!({"ok": true, "details": {"exit_code": 0}}));
    }
    let diff = "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n";
    let details = json!({"path": "x", "created": false, "diff": diff});
    let edited = json!({"call_id": "c", "ok": true, "output": "edited x", "details": details});
    let finished = finish(ClientCapabilities::default(), "edit", edited);
    let details = json!({"path": "x", "created": false});
    assert_eq!(
        finished["rawOutput"],
        json!({"ok": true, "output": "edited x", "details": details})
    );
    let details = json!({"structured": {"a": 1}});
    let mcp_result = json!({"call_id": "c", "ok": true, "output": "{\"a\":1}", "details": details});
    let finished = finish(ClientCapabilities::default(), "mcp__s__t", mcp_result);
    assert_eq!(finished["rawOutput"], json!({"ok": true}));
    let error = json!({"kind": "not_found", "message": "no"});
    let failed = json!({"call_id": "c", "ok": false, "output": "no", "error": error});
    assert_eq!(
        finish(ClientCapabilities::default(), "read", failed)["rawOutput"],
        json!({"ok": false, "error": {"kind": "not_found"}})
    );
    // An error that the content does not show stays in `rawOutput`.
    let failed = json!({"call_id": "c", "ok": false, "error": error});
    let finished = finish(ClientCapabilities::default(), "read", failed);
    assert_eq!(finished["rawOutput"], json!({"ok": false, "error": error}));
}

#[test]
fn a_plan_is_shown_and_the_call_that_made_it_is_not() {
    let mut screen = TestRenderer::new(ClientCapabilities::default());
    assert!(
        screen
            .fact("tool_call", json!({"call_id": "c", "name": "update_plan", "args": {}}))
            .is_empty()
    );
    let entries = json!([{"content": "a", "status": "in_progress"}, {"content": "b", "priority": "high", "status": "odd"}]);
    let plan = screen.fact("plan", json!({ "entries": entries }));
    assert_eq!(
        plan[0]["entries"],
        json!([
            {"content": "a", "priority": "medium", "status": "in_progress"},
            {"content": "b", "priority": "high", "status": "pending"},
        ])
    );
    assert!(
        screen
            .fact("tool_result", json!({"call_id": "c", "ok": true, "output": "noted"}))
            .is_empty()
    );
}

#[test]
fn a_command_shows_its_output_in_a_fence_that_holds() {
    let mut screen = TestRenderer::new(ClientCapabilities::default());
    screen.fact("tool_call", json!({"call_id": "c", "name": "bash", "args": {"command": "x"}}));
    let working = SessionStatus::Working {
        call_id: CallId::new("c"),
        tool: "bash".into(),
        summary: "x".into(),
        waiting: None,
    };
    let started = screen.live(&Ephemeral::Status(working.clone()));
    assert_eq!(started[0]["status"], "in_progress");
    assert!(screen.live(&Ephemeral::Status(working)).is_empty(), "once is enough");
    let text =
        |update: &Value| update["content"][0]["content"]["text"].as_str().unwrap().to_owned();
    assert_eq!(text(&screen.prints("a\n")[0]), "```\na\n```");
    assert_eq!(text(&screen.prints("```\n")[0]), "````\na\n```\n````");
    let done = screen
        .fact("tool_result", json!({"call_id": "c", "ok": false, "output": "a\n[exit code 1]"}));
    assert_eq!(
        (&done[0]["status"], text(&done[0]).as_str()),
        (&json!("failed"), "```\na\n[exit code 1]\n```")
    );
    assert_eq!(done[0]["rawOutput"]["ok"], false);
}

#[test]
fn a_command_is_pending_while_files_are_recorded_or_no_slot_is_free() {
    let mut screen = TestRenderer::new(ClientCapabilities::default());
    screen.fact("tool_call", json!({"call_id": "c", "name": "bash", "args": {"command": "x"}}));
    let call_id = CallId::new("c");
    let recording = |files| SessionStatus::Recording { call_id: call_id.clone(), files };
    let working = |waiting: Option<&str>| SessionStatus::Working {
        call_id: call_id.clone(),
        tool: "bash".into(),
        summary: "x".into(),
        waiting: waiting.map(str::to_owned),
    };
    let numbers = Some(RecordedFiles { done: 3, total: 7 });
    let statuses = [
        (recording(None), "pending", "x (recording files for undo …)"),
        (recording(numbers), "pending", "x (recording files for undo … 3 of 7)"),
        (working(Some("for a free slot")), "pending", "x (waiting for a free slot)"),
        (working(None), "in_progress", "x"),
    ];
    for (status, wanted, title) in statuses {
        let update = screen.live(&Ephemeral::Status(status.clone()));
        assert_eq!((&update[0]["status"], &update[0]["title"]), (&json!(wanted), &json!(title)));
        assert!(screen.live(&Ephemeral::Status(status)).is_empty(), "once is enough");
    }
    let after = screen.live(&Ephemeral::Status(recording(None)));
    assert_eq!(after[0]["status"], "in_progress");
    assert_eq!(after[0]["title"], "x (recording files for undo …)");
    let done = screen.fact("tool_result", json!({"call_id": "c", "ok": false}));
    assert_eq!((&done[0]["status"], &done[0]["title"]), (&json!("failed"), &json!("x")));
}

#[test]
fn the_cost_of_a_session_has_that_of_its_subagents() {
    let usage_record = json!({"model": "m", "estimated_cost_usd": 1.0,
        "usage": {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15}});
    let usage = json!({"input_tokens": 10, "output_tokens": 5, "total_tokens": 15,
        "estimated_cost_usd": 0.25});
    let life = |event: &str| json!({"event": event, "subagent_id": "sub_1", "usage": usage});
    let copy = json!({"event": "finished", "subagent_id": "sub_9", "usage": usage,
        "copied_from": "s"});
    let cost = |updates: &[Value]| {
        let is_usage = |update: &&Value| update["sessionUpdate"] == "usage_update";
        updates.iter().rfind(is_usage).map(|update| update["cost"]["amount"].clone())
    };
    let mut screen = TestRenderer::new(ClientCapabilities::default());
    assert_eq!(cost(&screen.fact("provider_usage", usage_record.clone())), Some(json!(1.0)));
    assert_eq!(cost(&screen.fact("subagent_event", life("started"))), None);
    assert_eq!(cost(&screen.fact("subagent_event", life("finished"))), Some(json!(1.25)));
    assert_eq!(cost(&screen.fact("subagent_event", copy.clone())), None);

    let events = || {
        vec![
            fact("provider_usage", usage_record.clone()),
            fact("subagent_event", life("started")),
            fact("subagent_event", life("failed")),
            fact("subagent_event", copy.clone()),
        ]
    };
    assert_eq!(cost(&replayed(events())), Some(json!(1.25)));
    let mut screen = TestRenderer::new(ClientCapabilities::default());
    let history = History::from_events(events().into_iter().map(std::sync::Arc::new).collect());
    screen.0.catch_up(&history);
    assert_eq!(cost(&shown(screen.0.session_info_updates(&history))), Some(json!(1.25)));
}

#[test]
fn much_output_is_not_sent_again_and_again() {
    let mut screen = TestRenderer::new(ClientCapabilities::default());
    screen.fact("tool_call", json!({"call_id": "c", "name": "bash", "args": {"command": "x"}}));
    let sent: Vec<usize> = (0..20_000)
        .flat_map(|_| screen.prints("a line of output\n"))
        .map(|update| update.to_string().len())
        .collect();
    assert!(!sent.is_empty() && sent.len() < 400, "{} updates", sent.len());
    assert!(sent.iter().all(|bytes| *bytes < 20_000), "{sent:?}");
}

#[test]
fn a_terminal_gets_pieces_and_an_end() {
    let mut screen = TestRenderer::new(terminals());
    let call =
        screen.fact("tool_call", json!({"call_id": "c", "name": "bash", "args": {"command": "x"}}));
    assert_eq!(call[0]["content"], json!([{"type": "terminal", "terminalId": "c"}]));
    assert_eq!(call[0]["_meta"]["terminal_info"], json!({"terminal_id": "c", "cwd": "/w"}));
    let piece = screen.prints("a\n");
    assert_eq!(piece[0]["_meta"]["terminal_output"], json!({"terminal_id": "c", "data": "a\r\n"}));
    let details = json!({"exit_code": 3, "signal": null});
    let end = screen.fact(
        "tool_result",
        json!({"call_id": "c", "ok": false, "output": "a", "details": details}),
    );
    assert_eq!(
        end[0]["_meta"],
        json!({"terminal_exit": {"terminal_id": "c", "exit_code": 3, "signal": null}})
    );
    assert!(end[0].get("content").is_none(), "the terminal stays");
}

#[test]
fn a_call_of_the_past_is_replayed_once_with_everything() {
    let diff = "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n";
    let details = json!({"path": "x", "created": false, "diff": diff});
    let updates = replayed(vec![
        fact(
            "user_message",
            json!({"text": "do it", "resources": [{"id": "res_1", "kind": "image", "name": "i.png", "media_type": "image/png", "bytes": 5}]}),
        ),
        fact("assistant_message", json!({"text": "I will", "phase": "commentary"})),
        fact("tool_call", json!({"call_id": "c", "name": "edit", "args": {"path": "x"}})),
        fact(
            "tool_result",
            json!({"call_id": "c", "ok": true, "output": "edited x", "details": details}),
        ),
        fact("plan", json!({"entries": [{"content": "old"}]})),
        fact(
            "provider_usage",
            json!({"usage": {"input_tokens": 7, "output_tokens": 3}, "estimated_cost_usd": 0.5}),
        ),
        fact("assistant_message", json!({"text": "done", "phase": "final"})),
        fact("plan", json!({"entries": [{"content": "new"}]})),
    ]);
    let kinds: Vec<&str> =
        updates.iter().map(|update| update["sessionUpdate"].as_str().unwrap()).collect();
    assert_eq!(
        kinds,
        [
            "user_message_chunk",
            "user_message_chunk",
            "agent_message_chunk",
            "tool_call",
            "agent_message_chunk",
            "plan",
            "session_info_update",
            "usage_update",
        ]
    );
    assert_eq!(updates[0]["messageId"], updates[1]["messageId"]);
    assert_eq!(updates[1]["content"]["type"], "resource_link");
    let call = &updates[3];
    assert_eq!(
        call["content"],
        json!([{"type": "diff", "path": "/w/x", "oldText": "a\n", "newText": "b\n"}])
    );
    assert_eq!((&call["status"], &call["title"]), (&json!("completed"), &json!("Edit x")));
    assert_eq!(call["locations"], json!([{"path": "/w/x", "line": 1}]));
    assert_eq!(updates[5]["entries"][0]["content"], "new");
    assert_eq!(updates[6]["title"], "do it");
    assert_eq!((&updates[7]["used"], &updates[7]["cost"]["amount"]), (&json!(10), &json!(0.5)));
}

#[test]
fn the_steps_of_a_run_are_the_plan_again_when_it_is_loaded() {
    let run = |kind: &str, step: Option<&str>, more: Value| {
        let mut data = json!({"kind": kind, "workflow_id": "wf_1", "step_id": step});
        data.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        fact("workflow_event", data)
    };
    let steps = json!([{"id": "look", "task": "look around"}, {"id": "tell", "task": "tell it"}]);
    let events = || {
        vec![
            fact("user_message", json!({"text": "do it"})),
            run("started", None, json!({"workflow_name": "w", "spec": {"steps": steps}})),
            run("step_scheduled", Some("look"), json!({})),
            run(
                "checkpoint_decided",
                Some("look"),
                json!({"checkpoint_status": "checkpoint_ready"}),
            ),
            run("checkpoint_decided", Some("tell"), json!({"checkpoint_status": "held"})),
        ]
    };
    let plans = |events: Vec<Event>| -> Vec<Value> {
        replayed(events).into_iter().filter(|update| update["sessionUpdate"] == "plan").collect()
    };
    let updates = plans(events());
    let entries = updates[0]["entries"].as_array().unwrap();
    let words: Vec<&str> = entries.iter().map(|entry| entry["content"].as_str().unwrap()).collect();
    assert_eq!((updates.len(), words), (1, vec!["Look around", "Tell it (held)"]));
    assert_eq!(entries[0]["status"], "completed");
    // The later plan counts: here the model's own.
    let mut later = events();
    later.push(fact("plan", json!({"entries": [{"content": "new"}]})));
    let updates = plans(later);
    assert_eq!((updates.len(), &updates[0]["entries"][0]["content"]), (1, &json!("new")));
}

#[test]
fn a_failure_is_sent_and_an_interrupt_is_not() {
    let mut screen = TestRenderer::new(ClientCapabilities::default());
    let details = json!({"next_actions": ["sign in"]});
    let failed = json!({"terminal_status": "provider_error", "error_kind": "network", "error_message": "no way out", "details": details});
    let updates = screen.fact("turn_failed", failed);
    assert_eq!(updates[0]["content"]["text"], "\u{26a0} no way out; sign in");
    assert!(screen.fact("turn_failed", json!({"terminal_status": "interrupted"})).is_empty());
}

#[test]
fn a_title_is_one_short_line() {
    assert_eq!(title_text("  a\n\tb  "), "a b");
    assert_eq!(title_text(&"word ".repeat(40)).chars().count(), 80);
    assert_eq!(title_text("\u{1b}[2Jx"), "[2Jx");
    assert_eq!(title_text(""), "");
}

#[track_caller]
fn check(diff: &str, expected: &[(&str, Option<&str>, &str, u32)]) {
    let expected: Vec<Hunk> = expected
        .iter()
        .map(|(path, old, new, line)| Hunk {
            path: PathBuf::from(path),
            old: old.map(str::to_owned),
            new: (*new).to_owned(),
            line: *line,
        })
        .collect();
    assert_eq!(parse_hunks(diff), expected, "{diff}");
}

#[test]
fn a_diff_is_taken_apart_into_true_texts() {
    check(
        "--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n a\n-b\n+c\n@@ -9 +9,2 @@\n y\n+z\n",
        &[("x", Some("a\nb\n"), "a\nc\n", 2), ("x", Some("y\n"), "y\nz\n", 10)],
    );
    check("--- a/new\n+++ b/new\n@@ -0,0 +1,2 @@\n+a\n+b\n", &[("new", None, "a\nb\n", 1)]);
    check("--- a/gone\n+++ /dev/null\n@@ -1 +0,0 @@\n-a\n", &[("gone", Some("a\n"), "", 1)]);
    check(
        "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n\\ No newline at end of file\n+b\n\\ No newline at end of file\n",
        &[("x", Some("a"), "b", 1)],
    );
    // Lines that look like headers are content while the head promises more.
    check("--- a/x\n+++ b/x\n@@ -1,2 +1 @@\n---- a\n b\n", &[("x", Some("--- a\nb\n"), "b\n", 1)]);
    check("--- a/x\n+++ b/x\n@@ -1,9 +1,9 @@\n a\n… cut …\n", &[]);
    check("(binary content)\n", &[]);
    check("", &[]);
}

proptest! {
    #[test]
    fn any_text_can_be_taken_apart(text in "[-+ @a,0-9\n\\\\]{0,120}") {
        parse_hunks(&text);
    }

    #[test]
    fn both_sides_of_a_small_change_come_back(
        old in proptest::collection::vec("[a-c]{0,2}", 1..6),
        new in proptest::collection::vec("[a-c]{0,2}", 1..6),
    ) {
        let (old, new) = (old.join("\n") + "\n", new.join("\n") + "\n");
        prop_assume!(old != new);
        let diff = similar::TextDiff::from_lines(old.as_str(), new.as_str());
        let text = diff.unified_diff().context_radius(9).header("a/x", "b/x").to_string();
        let taken = parse_hunks(&text);
        prop_assert_eq!(taken.len(), 1);
        prop_assert_eq!(taken[0].old.as_deref(), Some(old.as_str()));
        prop_assert_eq!(&taken[0].new, &new);
    }
}
