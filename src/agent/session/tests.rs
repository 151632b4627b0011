//! Tests of a Session: ends of Turns, late messages, and refusals.

use std::time::Duration;

use futures_util::FutureExt;

use super::*;
use crate::record::event::{
    AssistantMessage, EventKind, Extra, ListenerItem, PermissionAnswer, Phase, ToolCall,
    UserMessage,
};

fn session_options() -> SessionOptions {
    SessionOptions {
        secrets: Arc::default(),
        durability: LogDurability::None,
        grace: Duration::from_millis(100),
    }
}

struct SessionFixture {
    folder: tempfile::TempDir,
    session: Session,
}

impl SessionFixture {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let session =
            Session::create(folder.path(), &SessionId::mint(), started(), session_options())
                .unwrap();
        Self { folder, session }
    }

    async fn transcript(&self) -> Vec<String> {
        transcript(&self.session.history().await.unwrap())
    }
}

fn transcript(history: &History) -> Vec<String> {
    history
        .iter()
        .map(|event| match event.fact().unwrap() {
            Canonical::TurnFailed(failed) => format!("turn_failed {}", failed.terminal_status),
            Canonical::ToolResult(result) => {
                format!("tool_result {}", result.error.as_ref().map_or("ok", |error| &error.kind))
            }
            fact => fact.type_name().to_owned(),
        })
        .collect()
}

fn started() -> Canonical {
    let nothing = serde_json::value::RawValue::from_string("{}".to_owned()).unwrap();
    Canonical::decode("session_started", &nothing)
}

fn user(text: &str) -> UserMessage {
    UserMessage { text: text.to_owned(), ..UserMessage::default() }
}

fn answer() -> AssistantMessage {
    AssistantMessage { phase: Some(Phase::Final), text: "done".into(), ..Default::default() }
}

fn call(id: &str) -> ToolCall {
    ToolCall {
        call_id: CallId::new(id),
        name: "bash".into(),
        args: serde_json::Value::Null,
        raw_args: None,
        extra: Extra::new(),
    }
}

fn body<F>(turn: impl FnOnce(TurnContext) -> F + Send + 'static) -> TurnBody
where
    F: Future<Output = SessionStatus> + Send + 'static,
{
    Box::new(move |context| turn(context).boxed())
}

#[tokio::test]
async fn a_turn_records_its_end_and_the_session_says_so() {
    let fixture = SessionFixture::new();
    let mut listener = fixture.session.subscribe(ListenFrom::Now);
    let turn = body(|context| async move {
        context.record(user("go")).await.unwrap();
        context.record(answer()).await.unwrap();
        SessionStatus::Done
    });
    fixture.session.start_turn(turn).await.unwrap();
    assert_eq!(fixture.session.wait_until_idle().await.unwrap(), SessionStatus::Done);
    let mut event_types = Vec::new();
    while let Some(ListenerItem::Event(event)) = listener.next().await {
        event_types.push(event.type_name().to_owned());
        if matches!(event.kind(), EventKind::Ephemeral(Ephemeral::Status(SessionStatus::Done))) {
            break;
        }
    }
    assert_eq!(event_types, ["user_message", "assistant_message", "status"]);
}

#[tokio::test]
async fn a_panicking_turn_is_evidence_not_an_outage() {
    let fixture = SessionFixture::new();
    let turn = body(|context| async move {
        context.record(user("go")).await.unwrap();
        context.record(call("a")).await.unwrap();
        panic!("on purpose");
    });
    fixture.session.start_turn(turn).await.unwrap();
    let SessionStatus::Error { terminal_status, error } =
        fixture.session.wait_until_idle().await.unwrap()
    else {
        panic!("not an error")
    };
    assert_eq!((terminal_status.as_str(), error.kind.as_str()), ("crashed", "crashed"));
    assert!(error.message.contains("on purpose"));
    assert_eq!(
        fixture.transcript().await[1..],
        ["user_message", "tool_call", "tool_result orphan_tool_call", "turn_failed crashed"]
    );
    fixture.session.start_turn(body(|_| async { SessionStatus::Done })).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_turn_that_ignores_its_cancel_is_aborted_and_emits_nothing_more() {
    let fixture = SessionFixture::new();
    let (hands_on, context_of_turn) = oneshot::channel();
    let turn = body(|context| async move {
        context.record(user("go")).await.unwrap();
        context.record(call("a")).await.unwrap();
        hands_on.send(context.clone()).ok();
        // The Turn blocks its thread and never checks the token.
        std::thread::sleep(Duration::from_millis(1500));
        SessionStatus::Done
    });
    fixture.session.start_turn(turn).await.unwrap();
    let context = context_of_turn.await.unwrap();
    fixture.session.interrupt().await.unwrap();
    assert_eq!(fixture.session.wait_until_idle().await.unwrap(), SessionStatus::Interrupted);
    assert!(matches!(context.record(answer()).await, Err(SessionError::NoTurn)));
    assert!(matches!(context.make_durable().await, Err(SessionError::NoTurn)));
    let mut listener = fixture.session.subscribe(ListenFrom::Now);
    context.emit(Ephemeral::TextDelta("ghost".into()));
    drop(context);
    assert!(listener.next().now_or_never().is_none(), "an aborted Turn emits nothing");
    assert_eq!(
        fixture.transcript().await[1..],
        ["user_message", "tool_call", "tool_result orphan_tool_call", "turn_failed interrupted"]
    );
}

#[tokio::test]
async fn a_polite_turn_ends_itself_when_interrupted() {
    let fixture = SessionFixture::new();
    let turn = body(|context| async move {
        context.record(user("go")).await.unwrap();
        context.cancel().cancelled().await;
        context.record(crate::record::history::interrupted_turn("stopped")).await.unwrap();
        SessionStatus::Interrupted
    });
    fixture.session.start_turn(turn).await.unwrap();
    fixture.session.interrupt().await.unwrap();
    assert_eq!(fixture.transcript().await[1..], ["user_message", "turn_failed interrupted"]);
    assert!(matches!(fixture.session.interrupt().await, Err(SessionError::NoTurn)));
}

#[tokio::test]
async fn a_second_turn_is_refused_while_one_runs() {
    let fixture = SessionFixture::new();
    let waits = body(|context| async move {
        context.cancel().cancelled().await;
        context.record(crate::record::history::interrupted_turn("stopped")).await.unwrap();
        SessionStatus::Interrupted
    });
    fixture.session.start_turn(waits).await.unwrap();
    let second = fixture.session.start_turn(body(|_| async { SessionStatus::Done })).await;
    assert!(matches!(second, Err(SessionError::Busy)));
    fixture.session.interrupt().await.unwrap();
}

#[tokio::test]
async fn a_subscriber_that_lags_gets_every_canonical_event_once_and_in_order() {
    let fixture = SessionFixture::new();
    let mut listener = fixture.session.subscribe(ListenFrom::Start);
    let turn = body(|context| async move {
        context.record(user("go")).await.unwrap();
        for round in 0..30 {
            for _ in 0..200 {
                context.emit(Ephemeral::TextDelta("x".into()));
            }
            context.record(call(&format!("c{round}"))).await.unwrap();
        }
        context.record(answer()).await.unwrap();
        SessionStatus::Done
    });
    fixture.session.start_turn(turn).await.unwrap();
    fixture.session.wait_until_idle().await.unwrap();
    let (mut seqs, mut missed) = (Vec::new(), 0);
    loop {
        match listener.next().await.unwrap() {
            ListenerItem::Missed(count) => missed += count,
            ListenerItem::Event(event) => {
                seqs.extend(event.seq());
                if matches!(
                    event.kind(),
                    EventKind::Ephemeral(Ephemeral::Status(SessionStatus::Done))
                ) {
                    break;
                }
            }
        }
    }
    assert!(missed > 0, "lost deltas are reported");
    assert!(listener.next().now_or_never().is_none(), "the end is reported once");
    assert_eq!(seqs, (0..=62).collect::<Vec<_>>(), "32 Events and the ends of 30 calls");
}

#[tokio::test]
async fn a_late_subscriber_hears_the_status_and_the_open_question() {
    let fixture = SessionFixture::new();
    let turn = body(|context| async move {
        context.record(user("go")).await.unwrap();
        context.emit(Ephemeral::Status(SessionStatus::Thinking { iteration: 0 }));
        let request = PermissionRequest {
            call_id: CallId::new("q"),
            agent: None,
            tool: "bash".into(),
            summary: "rm x".into(),
            args: serde_json::Value::Null,
            paths: Vec::new(),
            directory: String::new(),
            diff: None,
            command: None,
            diff_is_cut: false,
            is_unsandboxed: false,
            network: false,
            local_sockets: false,
            answers: Vec::new(),
            prefix: None,
            digest: String::new(),
        };
        assert_eq!(context.ask_user(request).await.unwrap(), PermissionAnswer::Once.into());
        context.record(answer()).await.unwrap();
        SessionStatus::Done
    });
    let mut early = fixture.session.subscribe(ListenFrom::Now);
    fixture.session.start_turn(turn).await.unwrap();
    while let Some(ListenerItem::Event(event)) = early.next().await {
        if event.type_name() == "permission_request" {
            break;
        }
    }
    let mut late_listener = fixture.session.subscribe(ListenFrom::After(0));
    let mut event_types = Vec::new();
    for _ in 0..3 {
        let Some(ListenerItem::Event(event)) = late_listener.next().await else { panic!() };
        event_types.push(event.type_name().to_owned());
    }
    assert_eq!(event_types, ["user_message", "status", "permission_request"]);
    let refused = fixture.session.answer(&CallId::new("other"), PermissionAnswer::No.into()).await;
    assert!(matches!(refused, Err(SessionError::NoQuestion)));
    fixture.session.answer(&CallId::new("q"), PermissionAnswer::Once.into()).await.unwrap();
    assert_eq!(fixture.session.wait_until_idle().await.unwrap(), SessionStatus::Done);
}

#[tokio::test]
async fn starting_a_live_session_again_reattaches_and_a_closed_one_reopens() {
    let sessions = LiveSessions::default();
    let folder = tempfile::tempdir().unwrap();
    let id = SessionId::mint();
    let first = sessions.create(folder.path(), &id, user("one").into(), session_options()).unwrap();
    let (again, _) = sessions.open(folder.path(), &id, session_options()).await.unwrap();
    again.record(user("two").into()).await.unwrap();
    assert_eq!(first.history().await.unwrap().len(), 2);
    let mut listener = first.subscribe(ListenFrom::Now);
    drop((first, again));
    assert!(listener.next().await.is_none(), "listeners end with the Session");
    let (reopened, _) = sessions.open(folder.path(), &id, session_options()).await.unwrap();
    assert_eq!(
        transcript(&reopened.history().await.unwrap()),
        ["user_message", "user_message", "turn_failed interrupted"]
    );
}

#[tokio::test]
async fn a_turn_cut_by_the_death_of_its_process_is_closed_on_the_next_open() {
    let folder = tempfile::tempdir().unwrap();
    let id = SessionId::mint();
    let mut log = Log::create(folder.path(), &id).unwrap();
    log.append(user("go").into()).unwrap();
    log.append(call("a").into()).unwrap();
    drop(log);
    for _ in 0..2 {
        let (session, _) = Session::open(folder.path(), &id, session_options()).unwrap();
        assert_eq!(
            transcript(&session.history().await.unwrap()),
            [
                "user_message",
                "tool_call",
                "tool_result orphan_tool_call",
                "turn_failed interrupted"
            ],
            "and only once"
        );
        drop(session);
        while Log::open(folder.path(), &id).is_err() {
            tokio::task::yield_now().await;
        }
    }
}

#[tokio::test]
async fn an_event_that_could_not_be_written_is_not_published() {
    let fixture = SessionFixture::new();
    let mut listener = fixture.session.subscribe(ListenFrom::Now);
    std::fs::remove_file(fixture.session.log_path()).unwrap();
    let options = SessionOptions { durability: LogDurability::Turn, ..session_options() };
    let id = SessionId::mint();
    let session = Session::create(fixture.folder.path(), &id, started(), options).unwrap();
    std::fs::remove_file(session.log_path()).unwrap();
    let mut durable = session.subscribe(ListenFrom::Now);
    let turn = body(|context| async move {
        let refused = context.record(user("go")).await.unwrap_err();
        refused.to_status()
    });
    session.start_turn(turn).await.unwrap();
    let SessionStatus::Error { error, .. } = session.wait_until_idle().await.unwrap() else {
        panic!()
    };
    assert_eq!(error.kind, "log_write_failed");
    let Some(ListenerItem::Event(event)) = durable.next().await else { panic!() };
    assert_eq!(event.type_name(), "status", "the lost message was never published");
    assert!(listener.next().now_or_never().is_none());
}

/// A Session of four Turns, the first three of which are replaced by a checkpoint.
async fn compacted_session() -> SessionFixture {
    let fixture = SessionFixture::new();
    for turn in 0..4 {
        let body = body(move |context| async move {
            if turn == 3 {
                let short = crate::record::event::HistoryCompaction {
                    summary: "what happened".into(),
                    to_seq: 6,
                    ..Default::default()
                };
                context.record(short).await.unwrap();
            }
            context.record(user(&format!("turn {turn}"))).await.unwrap();
            context.record(answer()).await.unwrap();
            SessionStatus::Done
        });
        fixture.session.start_turn(body).await.unwrap();
        fixture.session.wait_until_idle().await.unwrap();
    }
    fixture
}

fn texts(history: &History) -> Vec<String> {
    let text = |fact: &Canonical| match fact {
        Canonical::UserMessage(message) => Some(message.text.clone()),
        _ => None,
    };
    history.facts().filter_map(text).collect()
}

#[tokio::test]
async fn compacted_events_are_dropped_from_memory_and_read_on_request() {
    let fixture = compacted_session().await;
    let held = fixture.session.recent_history().await.unwrap();
    assert_eq!(texts(&held), ["turn 3"]);
    assert_eq!(held.first_user_message().unwrap().text, "turn 0");
    let whole = fixture.session.history().await.unwrap();
    assert_eq!(texts(&whole), ["turn 0", "turn 1", "turn 2", "turn 3"]);
    assert_eq!((whole.forgotten(), whole.last_seq()), (None, held.last_seq()));
    let mut listener = fixture.session.subscribe(ListenFrom::Start);
    for seq in 0..=whole.last_seq().unwrap() {
        let Some(ListenerItem::Event(event)) = listener.next().await else {
            panic!("{seq} is missing")
        };
        assert_eq!(event.seq(), Some(seq));
    }
    let mut late_listener = fixture.session.subscribe(ListenFrom::After(4));
    let Some(ListenerItem::Event(event)) = late_listener.next().await else {
        panic!("nothing was heard")
    };
    assert_eq!(event.seq(), Some(5));
}

#[tokio::test]
async fn a_compaction_that_is_taken_back_lets_everything_count_again() {
    let fixture = compacted_session().await;
    let back = crate::record::event::HistoryRewound { to_seq: 7, ..Default::default() };
    fixture.session.record(back.into()).await.unwrap();
    let held = fixture.session.recent_history().await.unwrap();
    assert_eq!(held.forgotten(), None);
    assert!(held.visible().checkpoint.is_none());
    let visible = held.visible().facts.iter().map(|(seq, _)| *seq).collect::<Vec<_>>();
    assert_eq!(visible, (0..7).collect::<Vec<_>>());
    // After a redo the compaction counts again, and the next Turn drops the Events that it hides.
    let again = crate::record::event::HistoryRewound { to_seq: 10, ..Default::default() };
    fixture.session.record(again.into()).await.unwrap();
    fixture.session.start_turn(body(|_| async { SessionStatus::Done })).await.unwrap();
    fixture.session.wait_until_idle().await.unwrap();
    assert!(fixture.session.recent_history().await.unwrap().forgotten().is_some());
}
