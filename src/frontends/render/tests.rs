//! Tests of the view: Events in, text on stdout and stderr out.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::write_queue::Channel;
use super::*;
use crate::base::error::{Kind, Report};
use crate::base::id::{CallId, EventId, SessionId};
use crate::record::event::{
    AssistantMessage, BusPosition, Canonical, CanonicalParts, ContextPressure, Ephemeral, Event,
    Extra, HistoryCompaction, Phase, PressureTier, ProviderRetry, ProviderUsage, RecordedFiles,
    SessionStatus, TerminalStatus, Timestamp, TokenUsage, ToolCall, ToolResult, TurnFailed,
    UserMessage,
};

fn fact(fact: impl Into<Canonical>) -> ListenerItem {
    ListenerItem::Event(Arc::new(Event::new_canonical(CanonicalParts {
        id: EventId::mint(),
        session_id: SessionId::parse("s").unwrap(),
        seq: Some(1),
        ts: Timestamp::from_text("2026-01-01T00:00:00.000000Z"),
        fact: fact.into(),
        extra: Extra::new(),
    })))
}

fn live(notice: Ephemeral) -> ListenerItem {
    ListenerItem::Event(Arc::new(Event::new_ephemeral(
        SessionId::parse("s").unwrap(),
        notice,
        BusPosition::default(),
    )))
}

fn delta(text: &str) -> ListenerItem {
    live(Ephemeral::TextDelta(text.into()))
}

fn thinking() -> ListenerItem {
    live(Ephemeral::Status(SessionStatus::Thinking { iteration: 1 }))
}

fn message(text: &str, phase: Phase) -> ListenerItem {
    fact(AssistantMessage { text: text.into(), phase: Some(phase), ..Default::default() })
}

fn answer(text: &str) -> ListenerItem {
    message(text, Phase::Final)
}

fn partial(text: &str) -> ListenerItem {
    let metadata = json!({"partial": true}).as_object().cloned();
    let phase = Some(Phase::Commentary);
    fact(AssistantMessage { text: text.into(), phase, metadata, ..Default::default() })
}

fn call(name: &str, args: Value) -> ListenerItem {
    let call_id = CallId::new("c");
    fact(ToolCall { call_id, name: name.into(), args, raw_args: None, extra: Extra::new() })
}

fn result(ok: bool, details: Value) -> ListenerItem {
    let error = (!ok && details.is_null()).then(|| Report::new(Kind::NoMatch, "no such text"));
    let call_id = CallId::new("c");
    fact(ToolResult { call_id, ok, output: None, error, details, extra: Extra::new() })
}

fn waiting(reason: Option<&str>) -> ListenerItem {
    live(Ephemeral::Status(SessionStatus::Working {
        call_id: CallId::new("c"),
        tool: "bash".into(),
        summary: "run it".into(),
        waiting: reason.map(str::to_owned),
    }))
}

fn failed(status: TerminalStatus, message: &str, details: Value) -> ListenerItem {
    fact(TurnFailed {
        terminal_status: status,
        error_kind: "x".into(),
        error_message: message.into(),
        details,
        extra: Extra::new(),
    })
}

fn style(answer: Surface, activity: Surface) -> ViewStyle {
    ViewStyle { answer, activity, colour: false, quiet: false, verbose: false }
}

/// Everything written, stderr between brackets.
fn shown(look: ViewStyle, items: &[ListenerItem]) -> String {
    let mut line = text_view::TextView::new(look);
    let mut sheet = WriteQueue::default();
    for item in items {
        line.show(item, &mut sheet);
    }
    let stroke = |(channel, text): (Channel, &str)| match channel {
        Channel::Answer => text.to_owned(),
        Channel::Activity => format!("[{text}]"),
    };
    sheet.writes().map(stroke).collect()
}

fn on_terminal(items: &[ListenerItem]) -> String {
    shown(style(Surface::Terminal, Surface::Terminal), items)
}

fn in_pipe(items: &[ListenerItem]) -> String {
    shown(style(Surface::Plain, Surface::Plain), items)
}

#[test]
fn deltas_are_shown_as_they_come_and_the_message_adds_only_what_is_missing() {
    assert_eq!(on_terminal(&[delta("Hel"), delta("lo"), answer("Hello")]), "Hello\n");
    assert_eq!(on_terminal(&[delta("Hel"), answer("Hello")]), "Hello\n");
    assert_eq!(on_terminal(&[answer("Hello")]), "Hello\n");
    assert_eq!(on_terminal(&[delta("Hello\n"), answer("Hello\n")]), "Hello\n");
}

#[test]
fn a_text_that_diverged_is_set_right_on_a_new_line() {
    assert_eq!(on_terminal(&[delta("Good ev"), answer("Good morning")]), "Good ev\nGood morning\n");
}

#[test]
fn lost_deltas_leave_no_hole() {
    let items = [delta("ab"), ListenerItem::Missed(3), thinking(), delta("xyz"), answer("abcdxyz")];
    assert_eq!(on_terminal(&items), "abcdxyz\n");
    // The next response streams again.
    let later =
        [ListenerItem::Missed(1), thinking(), answer("a"), thinking(), delta("b"), answer("b")];
    assert_eq!(on_terminal(&later), "a\nb\n");
}

#[test]
fn two_messages_of_one_response_are_each_shown_once() {
    let items = [
        delta("one"),
        delta("two"),
        message("one", Phase::Commentary),
        message("two", Phase::Final),
    ];
    assert_eq!(on_terminal(&items), "onetwo\n");
}

#[test]
fn a_pipe_gets_the_answer_alone() {
    let items = [
        delta("Looking"),
        message("Looking.", Phase::Commentary),
        call("read", json!({"path": "a.rs"})),
        result(true, Value::Null),
        delta("Do"),
        answer("Done"),
    ];
    assert_eq!(in_pipe(&items), "[Looking.\nread a.rs: ok\n]Done\n");
    let quiet = ViewStyle { quiet: true, ..style(Surface::Plain, Surface::Plain) };
    assert_eq!(shown(quiet, &items), "Done\n");
}

#[test]
fn text_of_a_broken_stream_is_not_the_answer() {
    let items = [
        delta("half"),
        partial("half"),
        failed(TerminalStatus::ProviderError, "gone", json!({"next_actions": ["retry"]})),
    ];
    assert_eq!(in_pipe(&items), "[half\nerror: gone\n  try: retry\n]");
    assert_eq!(on_terminal(&items), "half\n[error: gone\n  try: retry\n]");
}

#[test]
fn a_failure_is_shown_once_even_when_the_log_could_not_be_written() {
    let end = || {
        live(Ephemeral::Status(SessionStatus::Error {
            terminal_status: "tool_error".into(),
            error: Report::new(Kind::LogWriteFailed, "the Log cannot be written"),
        }))
    };
    assert_eq!(in_pipe(&[end()]), "[error: the Log cannot be written\n]");
    let recorded = failed(TerminalStatus::ToolError, "gone", Value::Null);
    assert_eq!(in_pipe(&[recorded, end()]), "[error: gone\n]");
}

#[test]
fn tool_lines_say_how_it_went() {
    let table = [
        (
            call("bash", json!({"command": "cargo\n test"})),
            result(false, json!({"exit_code": 101})),
            "[• bash cargo test ✗ exit 101\n]",
        ),
        (
            call("edit", json!({"path": "x"})),
            result(false, Value::Null),
            "[• edit x ✗ no such text\n]",
        ),
        (call("odd", json!({"n": 1})), result(true, Value::Null), "[• odd {\"n\":1} ✓\n]"),
        (
            call("bash", json!({"command": "make serve", "background": true})),
            result(true, json!({"background": "b1", "running": true})),
            "[• bash make serve → b1 ✓\n]",
        ),
        (
            call("bash_output", json!({"id": "b1", "wait_ms": 9})),
            result(true, json!({"background": "b1", "running": true})),
            "[• bash_output b1 ✓\n]",
        ),
        (
            call("bash_output", json!({"id": "b1"})),
            result(false, json!({"background": "b1", "running": false, "exit_code": 2})),
            "[• bash_output b1 ✗ exit 2\n]",
        ),
        (
            call("bash_input", json!({"id": "b1", "text": "yes\n"})),
            result(true, json!({"background": "b1", "running": true})),
            "[• bash_input b1 ✓\n]",
        ),
        (
            call("bash_stop", json!({"id": "b1"})),
            result(true, json!({"background": "b1", "running": false, "signal": 15})),
            "[• bash_stop b1 ✓\n]",
        ),
        (
            call("bash", json!({"command": "\u{1b}[2Jls"})),
            result(false, json!({"signal": "SIGKILL"})),
            "[• bash <U+001B>[2Jls ✗ signal SIGKILL\n]",
        ),
    ];
    for (call, result, expected) in table {
        assert_eq!(on_terminal(&[call, result]), expected);
    }
}

#[test]
fn an_edit_shows_its_diff_in_colour_only_where_wanted() {
    let items = [
        call("edit", json!({"path": "x"})),
        result(true, json!({"diff": "--- x\n+++ x\n@@ -1 +1 @@\n-a\n+b\n"})),
    ];
    assert_eq!(on_terminal(&items), "[• edit x ✓\n  --- x\n  +++ x\n  @@ -1 +1 @@\n  -a\n  +b\n]");
    let colour = ViewStyle { colour: true, ..style(Surface::Terminal, Surface::Terminal) };
    assert!(shown(colour, &items).contains("\u{1b}[32m+b\u{1b}[0m"));
}

#[test]
fn a_tool_line_never_lands_behind_text() {
    let items =
        [delta("Let me look"), call("read", json!({"path": "a"})), result(true, Value::Null)];
    assert_eq!(on_terminal(&items), "Let me look\n[• read a ✓\n]");
}

#[test]
fn retries_pressure_and_interrupts_are_shown() {
    let retry = live(Ephemeral::ProviderRetry(ProviderRetry {
        attempt: 2,
        max_attempts: 5,
        delay_ms: 1500,
        error: Report::new(Kind::Network, "connection reset"),
    }));
    assert_eq!(in_pipe(&[retry]), "[connection reset; attempt 2 of 5 in 1.5 s\n]");
    let full = live(Ephemeral::ContextPressure(ContextPressure {
        tier: PressureTier::Warning,
        model: "m".into(),
        input_tokens: 824,
        window_tokens: 1000,
        window_is_assumed: false,
        estimated_tokens: 24,
        next_actions: vec!["make room with `pixir compact x`".into(), "look first".into()],
    }));
    assert_eq!(
        in_pipe(&[full]),
        "[the model's window is 82 % full (warning): make room with `pixir compact x`\n]"
    );
    let compacted = fact(HistoryCompaction {
        trigger: "critical_pressure".into(),
        summary: "x".into(),
        tokens_before: Some(900),
        tokens_after: Some(400),
        ..HistoryCompaction::default()
    });
    assert_eq!(
        in_pipe(&[compacted]),
        "[older conversation is summarised from here on (the model's window was nearly full): \
         about 900 tokens became 400\n]"
    );
    assert_eq!(in_pipe(&[failed(TerminalStatus::Interrupted, "", Value::Null)]), "[interrupted\n]");
}

#[test]
fn where_there_is_no_status_line_a_wait_is_shown_in_words() {
    let items = [waiting(Some("for a free slot: 4 commands run")), waiting(None)];
    assert_eq!(in_pipe(&items), "[bash waits for a free slot: 4 commands run\n]");
    assert_eq!(on_terminal(&items), "");
}

#[test]
fn where_there_is_no_status_line_a_recording_is_told_once_for_a_call() {
    let recording = |call: &str, done: Option<u64>| {
        let files = done.map(|done| RecordedFiles { done, total: 9 });
        live(Ephemeral::Status(SessionStatus::Recording { call_id: CallId::new(call), files }))
    };
    let of_one = [recording("c", None), recording("c", None), recording("c", Some(3))];
    let later = [waiting(None), recording("c", None), recording("d", None)];
    let items = [of_one, later].concat();
    assert_eq!(in_pipe(&items).matches("recording files for undo …\n").count(), 2);
    assert_eq!(on_terminal(&items), "");
}

#[test]
fn escapes_cut_across_deltas_stay_harmless() {
    let items =
        [delta("a\u{1b}"), delta("]0;evil"), delta("\u{7}b"), answer("a\u{1b}]0;evil\u{7}b")];
    assert_eq!(on_terminal(&items), "ab\n");
    assert_eq!(in_pipe(&items), "ab\n");
}

#[test]
fn the_status_line_says_what_runs_and_for_how_long() {
    let start = Instant::now();
    let mut status = StatusLine::new(start);
    assert_eq!(status.status_text(start, 80), None);
    status.update(&fact(UserMessage::default()), start);
    status.update(&thinking(), start);
    let later = start + Duration::from_secs(75);
    assert_eq!(status.status_text(later, 80).unwrap(), "… thinking · 1m15s · no data for 75 s");
    let tokens = TokenUsage { total_tokens: 3400, ..Default::default() };
    status.update(&fact(ProviderUsage { usage: Some(tokens), ..Default::default() }), later);
    status.update(&call("bash", json!({"command": "sleep 9; echo a long command line"})), later);
    assert_eq!(
        status.status_text(later, 60).unwrap(),
        "… bash sleep 9; echo a long command … · 1m15s · 3.4k tokens"
    );
    status.update(&waiting(Some("for a free slot: 4 commands run")), later);
    assert_eq!(
        status.status_text(later, 80).unwrap(),
        "… waiting for a free slot: 4 commands run: bash sleep 9;… · 1m15s · 3.4k tokens"
    );
    status.update(&waiting(None), later);
    assert!(!status.draw(later, (60, 24)).is_empty());
    assert_eq!(status.draw(later, (60, 24)), "");
    assert_eq!(status.erase(), "\r\x1b[2K");
    status.update(&live(Ephemeral::Status(SessionStatus::Done)), later);
    assert_eq!(status.status_text(later, 60), None);
}

#[test]
fn what_is_drawn_fits_into_the_window_whatever_its_size() {
    use unicode_width::UnicodeWidthStr;
    let start = Instant::now();
    let mut status = StatusLine::new(start);
    let row =
        |number| format!("  ├ sub_{number} worker 3s · 120 tokens · run a rather long command");
    status.set_children((0..7).map(row).collect());
    for (width, height) in [(2, 1), (2, 2), (18, 24), (80, 5), (400, 3), (80, 24)] {
        status.erase();
        let drawn = status.draw(start, (width, height));
        let drawn = drawn.replace("\r\x1b[2K", "").replace("\x1b[2m", "").replace("\x1b[0m", "");
        let lines: Vec<&str> = drawn.lines().collect();
        assert!(lines.iter().all(|line| line.width() < width), "{width}: {drawn}");
        assert_eq!(lines.len(), 8.min(height.saturating_sub(1).max(1)), "{height}: {drawn}");
    }
}

#[test]
fn the_status_is_not_thinking_while_a_run_by_its_command_goes_on() {
    let start = Instant::now();
    let mut status = StatusLine::new(start);
    status.update(&fact(UserMessage::default()), start);
    status.update(&fact(crate::record::event::WorkflowEvent::default()), start);
    assert_eq!(status.status_text(start, 80), None);
    // A Workflow that a model started is a tool call, and is shown as one.
    status.update(&fact(UserMessage::default()), start);
    status.update(&call("run_workflow", json!({})), start);
    status.update(&fact(crate::record::event::WorkflowEvent::default()), start);
    assert!(status.status_text(start, 80).unwrap().contains("run_workflow"));
}

#[test]
fn an_envelope_has_every_field_and_no_session_before_there_is_one() {
    let mut summary = TurnSummary::default();
    for item in [fact(UserMessage::default()), answer("42")] {
        assert!(!summary.record(&item));
    }
    assert!(summary.record(&live(Ephemeral::Status(SessionStatus::Done))));
    let id = SessionId::parse("20260101T000000-abcdef").unwrap();
    let envelope = JsonEnvelope::for_turn(&summary.into_outcome(), Duration::from_millis(7))
        .with_session(&id, "pixir resume 20260101T000000-abcdef".to_owned());
    insta::assert_snapshot!(envelope.to_line(), @r#"{"ok":true,"status":"completed","kind":"turn","session_id":"20260101T000000-abcdef","output":"42","usage":{"calls":0,"input_tokens":0,"cached_tokens":0,"output_tokens":0,"reasoning_tokens":0,"total_tokens":0},"duration_ms":7,"resume_command":"pixir resume 20260101T000000-abcdef","error":null}"#);
    let report = Report::new(Kind::NoPrompt, "there is no prompt");
    let envelope = JsonEnvelope::failure("turn", report, Duration::ZERO);
    insta::assert_snapshot!(envelope.to_line(), @r#"{"ok":false,"status":"error","kind":"turn","output":null,"usage":null,"duration_ms":0,"error":{"kind":"no_prompt","message":"there is no prompt"}}"#);
}

#[test]
fn an_envelope_names_the_way_a_turn_ended() {
    let table = [
        (TerminalStatus::Interrupted, "interrupted"),
        (TerminalStatus::TimedOut, "timed_out"),
        (TerminalStatus::DoomLoop, "incomplete"),
        (TerminalStatus::IterationCap, "incomplete"),
        (TerminalStatus::ProviderError, "error"),
        (TerminalStatus::Crashed, "error"),
    ];
    for (status, word) in table {
        let mut summary = TurnSummary::default();
        summary.record(&failed(status.clone(), "why", Value::Null));
        summary.record(&live(Ephemeral::Status(SessionStatus::Interrupted)));
        let envelope = JsonEnvelope::for_turn(&summary.into_outcome(), Duration::ZERO);
        assert_eq!(envelope.status, word, "{status}");
        assert_eq!(envelope.error.unwrap().message, "why");
    }
}

#[test]
fn pages_that_an_answer_cites_are_numbered_behind_it() {
    let metadata = json!({"citations": [
        {"url": "https://a.example/x", "title": "A \u{1b}[31mred\u{202e} title"},
        {"url": "https://b.example", "title": ""},
    ]});
    let cited = fact(AssistantMessage {
        text: "So it is.".into(),
        phase: Some(Phase::Final),
        metadata: metadata.as_object().cloned(),
        ..Default::default()
    });
    let terminal = on_terminal(&[thinking(), delta("So it is."), cited.clone()]);
    let pipe = in_pipe(&[thinking(), cited]);
    for output in [terminal, pipe] {
        assert!(output.contains("[1] A red title: https://a.example/x"), "{output}");
        assert!(output.contains("[2] https://b.example"), "{output}");
    }
}

fn plan(steps: usize, done: usize) -> ListenerItem {
    let step = |at: usize| {
        let status = match at {
            at if at < done => "completed",
            at if at == done => "in_progress",
            _ => "pending",
        };
        json!({"content": format!("step\u{1b}[31m {at}\n"), "status": status})
    };
    let plan = json!({"entries": (0..steps).map(step).collect::<Vec<_>>()});
    fact(Canonical::Plan(serde_json::from_value(plan).unwrap()))
}

#[test]
fn a_plan_is_shown_instead_of_its_call_and_stays_short() {
    let calls = [call("update_plan", json!({"plan": []})), plan(3, 1), result(true, json!({}))];
    assert_eq!(on_terminal(&calls), "[plan 1/3\n  ✓ step 0\n  ▸ step 1\n  · step 2\n]");
    assert_eq!(in_pipe(&calls), "[plan 1/3\n  [x] step 0\n  [>] step 1\n  [ ] step 2\n]");
    let refused = [call("update_plan", json!({"plan": []})), result(false, Value::Null)];
    assert_eq!(on_terminal(&refused), "[• update_plan ✗ no such text\n]");
    let long = on_terminal(&[plan(30, 12)]);
    assert!(long.starts_with("[plan 12/30\n  ✓ 12 done\n  ▸ step 12\n"), "{long}");
    assert!(long.ends_with("  · step 21\n  … 8 more\n]"), "{long}");
}

#[test]
fn a_patch_is_called_by_its_files() {
    let patch = "*** Begin Patch\n*** Add File: a\n+x\n*** Update File: b\n*** Move to: c\n\
        *** Delete File: d\n*** Delete File: e\n*** End Patch";
    let items = [call("apply_patch", json!({"patch": patch})), result(true, json!({}))];
    assert_eq!(on_terminal(&items), "[• apply_patch a, b, d and 1 more ✓\n]");
}
