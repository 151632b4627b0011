//! `docs/events.md`: one sample of every Event, written by this test and compared with the page.

use std::fmt::Write;

use serde_json::json;

use super::*;
use crate::base::error::{Kind, Report};
use crate::base::id::CallId;

const INTRODUCTION: &str = "# Events

Written by a test from one sample of every Event; it doubles as the wire contract.

Every line of a Log, and every line of `pixir --events`, is one envelope
`{id, session_id, seq, ts, type, data}`. `seq` counts canonical Events from 0 and is null on
ephemeral ones, which are never in a Log. In a Log each line ends in `,\"h\":\"…\"}`, its proof.
Version of this contract: LOG_VERSION (`log_version` in `session_started`). A reader ignores types
and fields that it does not know. `events.schema.json` in this folder is the same as a JSON schema.
";

fn facts() -> Vec<(Canonical, &'static str)> {
    Canonical::TYPES.iter().map(|name| sample(name)).collect()
}

/// A sample for a name; the match below makes a new variant ask for one.
fn sample(type_name: &str) -> (Canonical, &'static str) {
    let (data, says) = match type_name {
        "session_started" => (
            json!({"pixir_version": "0.1.0", "log_version": 1, "workspace": "/home/ada/app", "role": "build",
                "permission_mode": "auto", "sandbox_mode": "off", "model": "gpt-5.5"}),
            "Seq 0 of every Log that is not a fork: the identity of the Session and what it may do.",
        ),
        "user_message" => (
            json!({"text": "make it look like this", "context": "Workspace: /home/ada/app", "resources": [{"id":
                "res_9f86d081884c7d65", "kind": "image", "name": "shot.png", "media_type": "image/png", "bytes": 48213,
                "sha256": "9f86d081884c7d65…", "width": 640, "height": 480}]}),
            "A Turn begins. `context` is the late developer context, present when it changed. `resources` names what is attached (`image`, `text` or `file`); the bytes lie in the Session's folder under their `sha256`, and `inlined` says how many of a text the model sees on this Turn.",
        ),
        "assistant_message" => (
            json!({"text": "They pass now.", "phase": "final"}),
            "`commentary` with tool calls, `final` at the end; `metadata.partial` marks the text of a broken stream.",
        ),
        "reasoning" => (
            json!({"item": {"type": "reasoning", "encrypted_content": "…"}, "model": "gpt-5.5", "account": "3fa9c1d20b77"}),
            "An opaque item, replayed only to the model and the account that made it; `account` is a fingerprint, not a name.",
        ),
        "tool_call" => (
            json!({"call_id": "call_1", "name": "bash", "args": {"command": "cargo test"}}),
            "Recorded before anything else happens to the call. `raw_args` holds arguments that are not an object.",
        ),
        "tool_result" => (
            json!({"call_id": "call_1", "ok": true, "output": "ok\n\nexit code 0", "details": {"exit_code": 0}}),
            "`output` is what the model reads; `error` is `{kind, message, details{next_actions}}`. `details.resource` names an image that the model sees with the result for the rest of the Turn.",
        ),
        "permission_decision" => (
            json!({"call_id": "call_1", "decision": "deny", "mode": "ask", "rule": "ask", "answered_by": "user",
                "answer": "no", "words": "keep that file", "digest": "…"}),
            "Why a call was allowed or denied: in `ask` and `read_only` each one, in `auto` those that write bounds refuse. `answered_by` is `mode`, `bounds`, `parser`, `user`, `session`, `project`, `prefix` or `nobody`; `digest` is what an answer is bound to.",
        ),
        "provider_usage" => (
            json!({"model": "gpt-5.5", "iteration": 0, "status": "completed", "usage": {"input_tokens": 1200,
                "cached_tokens": 1024, "output_tokens": 40, "reasoning_tokens": 16, "total_tokens": 1240},
                "transport": "websocket", "continuation": {"used": false, "reset_reason": "history_changed"},
                "retries": 0, "first_byte_ms": 310, "duration_ms": 900}),
            "One Provider call, failed ones too. `continuation` is absent over SSE; `fallback_reason` says why SSE was used, `reasoning_dropped` that the server could not read reasoning. `estimated_cost_usd` is absent when the price is not known, `failed_usage` counts what failed attempts were billed for, `web_search` says how often the Provider searched and what it found, never the queries. `rate_limits` is what the server said was left.",
        ),
        "turn_failed" => (
            json!({"terminal_status": "interrupted", "error_kind": "interrupted", "error_message": "the Turn was interrupted"}),
            "The Turn ended without an answer: provider_error, configuration_error, tool_error, interrupted, timed_out, iteration_cap, doom_loop, budget_exceeded, incomplete or crashed.",
        ),
        "plan" => (
            json!({"entries": [{"content": "read the code", "priority": "medium", "status": "completed"}],
                "explanation": "the code was short"}),
            "The model's plan, always whole: pending, in_progress or completed. `explanation` says why it changed, and is absent when no reason was given.",
        ),
        "skill_activation" => (
            json!({"name": "tidy", "path": "skills/tidy/SKILL.md", "content_hash": "…", "content": "…", "activated_by": "user"}),
            "A Skill became part of the context.",
        ),
        "skill_context_hydration" => (
            json!({"name": "tidy", "content_hash": "…", "source": "changes", "kind": "git", "request": "git status",
                "tools": ["bash"], "requested_by": "user", "mode": "auto", "ok": true, "content": "## main\n M a.rs",
                "sha256": "…"}),
            "A source of a Skill's context was read, for one Turn.",
        ),
        "subagent_event" => (
            json!({"event": "finished", "subagent_id": "sub_0123456789", "child_session_id": "20260101T000000-fedcba",
                "agent": "explorer", "status": "completed", "summary": "All fine.", "task": "Look around.", "depth": 1,
                "attempt": 1, "elapsed_ms": 2100, "child_seq": 7,
                "usage": {"calls": 2, "input_tokens": 200, "cached_tokens": 120, "output_tokens": 40,
                    "reasoning_tokens": 10, "total_tokens": 240}}),
            "Something happened to a child Session: queued, starting, started, input, retrying or closed; or its run ended: finished, failed, timed_out, cancelled or detached; or its changes were merged, or that merge was undone: merge_taken_back.",
        ),
        "workflow_event" => (
            json!({"kind": "verification", "workflow_id": "wf_0123456789", "step_id": "implement", "command": "cargo test",
                "ok": true, "exit_code": 0, "elapsed_ms": 5200, "output": "…", "sha256": "…"}),
            "Something happened to a run of a Workflow: started (with its spec and hash), resumed or finished; or to a step of it: step_scheduled, step_retrying, step_taken_back, step_held, verification, merged or checkpoint_decided (with its Checkpoint Bundle).",
        ),
        "session_fork" => (
            json!({"parent_session_id": "20260101T000000-abcdef", "fork_root_session_id": "20260101T000000-abcdef",
                "forked_to_seq": 12, "pixir_version": "0.1.0", "log_version": 1, "workspace": "/home/ada/app",
                "role": "build", "permission_mode": "auto", "sandbox_mode": "off"}),
            "Seq 0 of a fork.",
        ),
        "branch_summary" => (
            json!({"parent_session_id": "20260101T000000-abcdef", "summary": "Tried another way."}),
            "What happened on the branch that was left.",
        ),
        "history_compaction" => (
            json!({"from_seq": 1, "to_seq": 40, "strategy": "deterministic", "trigger": "manual", "summary": "…",
                "prune_to_seq": 52, "prune_over_bytes": 400, "checkpoint": {"user_instructions": ["make it faster"]},
                "turns_compacted": 9, "turns_kept": 2, "outputs_pruned": 4, "tokens_before": 91_000, "tokens_after": 21_000, "window_tokens": 272_000}),
            "What the model sees of older History from here on; the Log keeps everything. `summary` stands for everything up to `to_seq` (null when nothing is replaced), `context` is the late context that holds there; up to `prune_to_seq`, outputs and arguments over `prune_over_bytes` are replayed as a marker. Only the last one that counts has an effect. `trigger` is `manual`, `critical_pressure` or `overflow_recovery`; `strategy` is `deterministic` or `model_assisted`, and `fallback_reason` says why the model did not help.",
        ),
        "history_rewound" => {
            (json!({"to_seq": 12}), "The conversation went back to before this seq.")
        }
        "posture_changed" => (
            json!({"permission_mode": "ask", "allow_write": ["src/**"]}),
            "Mode, model, effort or role changed; absent fields stay. `allow_write` and `deny_write` only ever narrow: each adds one more set to the earlier ones.",
        ),
        "log_repaired" => (
            json!({"offset": 4096, "length": 77, "sha256": "…", "kept": false}),
            "A torn last line was closed with a newline when the Log was opened.",
        ),
        other => panic!("no sample for {other}"),
    };
    let raw = serde_json::value::RawValue::from_string(data.to_string()).unwrap();
    (Canonical::decode(type_name, &raw), says)
}

fn notices() -> Vec<(Ephemeral, &'static str)> {
    let report = || Report::new(Kind::ProviderOverloaded, "the model is overloaded");
    let request = || PermissionRequest {
        call_id: CallId::new("call_1"),
        agent: None,
        tool: "bash".into(),
        summary: "run `rm x`".into(),
        args: json!({"command": "rm x"}),
        paths: vec![],
        directory: "/home/ada/app".into(),
        diff: None,
        command: Some(ShownCommand { text: "rm x".into(), parts: vec!["rm x".into()] }),
        diff_is_cut: false,
        is_unsandboxed: false,
        network: false,
        local_sockets: false,
        answers: vec![
            PermissionAnswer::Once,
            PermissionAnswer::Session,
            PermissionAnswer::Project,
            PermissionAnswer::Prefix,
            PermissionAnswer::No,
        ],
        prefix: Some("rm".into()),
        digest: "…".into(),
    };
    let samples = vec![
        Ephemeral::TextDelta("They ".into()),
        Ephemeral::ReasoningDelta("Looking at ".into()),
        Ephemeral::ToolOutputDelta {
            call_id: CallId::new("call_1"),
            chunk: "running 3 tests\n".into(),
        },
        Ephemeral::Status(SessionStatus::Thinking { iteration: 0 }),
        Ephemeral::ContextPressure(ContextPressure {
            tier: PressureTier::Warning,
            model: "gpt-5.5".into(),
            input_tokens: 223_000,
            window_tokens: 272_000,
            window_is_assumed: false,
            estimated_tokens: 4_100,
            next_actions: vec!["make room with `pixir compact`".into()],
        }),
        Ephemeral::ProviderRetry(ProviderRetry {
            attempt: 2,
            max_attempts: 5,
            delay_ms: 480,
            error: report(),
        }),
        Ephemeral::PermissionRequest(Box::new(request())),
        Ephemeral::PermissionResolved {
            call_id: CallId::new("call_1"),
            answer: PermissionAnswer::Once,
        },
    ];
    samples
        .into_iter()
        .map(|notice| {
            let says = describe_notice(&notice);
            (notice, says)
        })
        .collect()
}

fn describe_notice(notice: &Ephemeral) -> &'static str {
    match notice {
        Ephemeral::TextDelta(_) => {
            "A piece of the model's text; an empty one separates two messages of one response."
        }
        Ephemeral::ReasoningDelta(_) => "A piece of the model's reasoning summary.",
        Ephemeral::ToolOutputDelta { .. } => "A piece of a running tool's output.",
        Ephemeral::Status(_) => {
            "idle, starting (the first Turn waits a moment for the MCP servers that `servers` names), thinking, working (with `waiting` and the reason while a call waits for its turn), compacting, recording, waiting_for_budget, or the end of a Turn: done, error, interrupted."
        }
        Ephemeral::ContextPressure(_) => {
            "How full the model's window is before a request leaves: once at 70 % (advisory), 80 % (warning) and 90 % (critical), and again after a compaction. `estimated_tokens` of them are estimated, the others were counted by the Provider. `window_is_assumed` is true where no setting, server or table says how large the window is."
        }
        Ephemeral::ProviderRetry(_) => "A Provider call failed and will be tried again.",
        Ephemeral::PermissionRequest(_) => "The user is asked for permission.",
        Ephemeral::PermissionResolved { .. } => {
            "The question was answered: once, session, session_tool, session_edits, project, prefix or no."
        }
    }
}

/// Every sample fits the published schema, and a sample without its fields does not.
#[test]
fn the_schema_describes_every_event() {
    let validator = jsonschema::draft202012::new(&events_schema()).unwrap();
    let event = |name: &str, seq: Value, data: Value| {
        json!({"id": "0123456789abcdef", "session_id": "20260101T000000-abcdef", "seq": seq,
            "ts": "2026-01-01T00:00:00.000000Z", "type": name, "data": data})
    };
    let facts = facts().into_iter().map(|(fact, _)| {
        (fact.type_name().to_owned(), json!(7), serde_json::to_value(&fact).unwrap())
    });
    let notices = notices()
        .into_iter()
        .map(|(notice, _)| (notice.type_name().to_owned(), Value::Null, notice.data()));
    for (name, seq, data) in facts.chain(notices) {
        let whole = event(&name, seq.clone(), data.clone());
        let flaws: Vec<String> =
            validator.iter_errors(&whole).map(|flaw| flaw.to_string()).collect();
        assert!(flaws.is_empty(), "{name}: {flaws:?}");
        assert!(!validator.is_valid(&event(&name, seq.clone(), json!("words"))), "{name}");
        let other = if seq.is_null() { json!(7) } else { Value::Null };
        assert!(!validator.is_valid(&event(&name, other, data)), "{name} has the wrong seq");
    }
    for (name, data) in [("tool_result", json!({"ok": true})), ("status", json!({"status": "odd"}))]
    {
        let seq = if name == "status" { Value::Null } else { json!(7) };
        assert!(!validator.is_valid(&event(name, seq, data)), "{name}");
    }
    assert!(validator.is_valid(&event("invented_later", json!(7), json!({"anything": 1}))));
}

#[test]
fn the_events_page_is_true() {
    let mut page = INTRODUCTION.replace("LOG_VERSION", &LOG_VERSION.to_string());
    page.push_str("\n## Canonical\n");
    for (fact, says) in facts() {
        assert!(!matches!(fact, Canonical::Unknown(_)), "{}", fact.type_name());
        let data = serde_json::to_string_pretty(&fact).unwrap();
        write!(page, "\n### `{}`\n\n{says}\n\n```json\n{data}\n```\n", fact.type_name()).unwrap();
    }
    page.push_str("\n## Ephemeral\n");
    assert_eq!(notices().len(), Ephemeral::TYPES.len());
    for (notice, says) in notices() {
        let data = serde_json::to_string_pretty(&notice.data()).unwrap();
        let name = notice.type_name();
        write!(page, "\n### `{name}`\n\n{says}\n\n```json\n{data}\n```\n").unwrap();
    }
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/events.md");
    if std::fs::read_to_string(&path).unwrap_or_default() != page {
        std::fs::write(&path, page).unwrap();
        panic!("docs/events.md was stale and has been rewritten: commit it");
    }
}
