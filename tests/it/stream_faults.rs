//! Stream faults: every broken stream, on both transports, ends in an answer or in an
//! error with a kind, with few requests, no text shown twice, and a Session that can continue.

use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use pixir::scripted::{ModelScript, ReceivedRequest, Reply};
use pixir::{
    Ephemeral, EventKind, Harness, ListenFrom, ListenerItem, SessionStatus, SessionTarget,
    StartOptions, TransportSetting, UserInput,
};
use serde_json::{Value, json};

use crate::support::TestEnv;
use crate::support::test_env::{DEADLINE, send_and_finish, wait_for_turn_end};
use crate::support::torture::{self, SuiteSize};

/// Commentary and answer of the model without a fault.
const COMMENTARY: &str = "Let me look at it.";
const ANSWER: &str = "Roses, mostly.";

/// A length greater than that of the first answer on either transport, so that every byte of it is cut.
const LONGEST: usize = 4200;

/// Number of faults per test environment, because the model keeps every request.
const CHUNK: usize = 60;

/// Largest number of requests in one iteration.
const MOST_REQUESTS: usize = 5;

/// One fault: the reply of the server, and the settings of the client.
#[derive(Clone)]
struct StreamFault {
    name: String,
    wire: TransportSetting,
    reply: Reply,
    /// Whether the fault is repeated at every attempt.
    always: bool,
    /// Status with which a WebSocket handshake is refused.
    refusal: Option<u16>,
    /// Time limit on silence.
    idle: Duration,
}

fn complete_reply() -> Reply {
    Reply::new()
        .reasoning("Where is it?")
        .text(COMMENTARY)
        .call("read", json!({"path": "poem.txt"}))
}

struct StreamFaults(Vec<StreamFault>);

impl StreamFaults {
    /// Adds a fault on both transports, once and at every attempt.
    fn add(&mut self, name: impl Into<String>, reply: &Reply) {
        let name = name.into();
        for wire in [TransportSetting::Sse, TransportSetting::WebSocket, TransportSetting::Auto] {
            for always in [false, true] {
                self.push(
                    format!("{name}, {wire:?}, always={always}"),
                    wire,
                    reply.clone(),
                    always,
                );
            }
        }
    }

    fn push(&mut self, name: String, wire: TransportSetting, reply: Reply, always: bool) {
        let idle = Duration::from_secs(20);
        self.0.push(StreamFault { name, wire, reply, always, refusal: None, idle });
    }

    fn stalls(&mut self) {
        let events: Vec<Reply> = vec![
            Reply::new(),
            Reply::new().reasoning("Where is it?"),
            Reply::new().reasoning("Where is it?").text(COMMENTARY),
            complete_reply(),
        ];
        for (place, reply) in events.into_iter().enumerate() {
            let first = self.0.len();
            self.add(format!("stall {place}"), &reply.clone().stalls());
            self.add(format!("silent end {place}"), &reply.ends_silently());
            for fault in &mut self.0[first..] {
                fault.idle = Duration::from_millis(250);
                // A repeated stall would last five times as long, so only the first place is repeated.
                fault.always &= place == 1;
            }
        }
    }

    fn refusals(&mut self) {
        for status in [400, 401, 403, 404, 405, 426, 429, 500, 501, 502, 503] {
            for wire in [TransportSetting::WebSocket, TransportSetting::Auto] {
                self.push(format!("handshake {status}, {wire:?}"), wire, complete_reply(), false);
                self.0.last_mut().unwrap().refusal = Some(status);
            }
        }
    }
}

/// All faults except for the cuts at every byte.
fn kinds_of_faults() -> Vec<StreamFault> {
    let mut faults = StreamFaults(Vec::new());
    faults.stalls();
    faults.refusals();
    for place in 0..26 {
        faults.add(format!("event {place} twice"), &complete_reply().twice(place));
    }
    let bodies = [
        r#"{"error":{"message":"no","code":"x"}}"#,
        r#"{"detail":"no"}"#,
        "<html><title>No</title></html>",
        "",
    ];
    for status in [
        200, 204, 302, 400, 401, 402, 403, 404, 408, 409, 413, 422, 425, 429, 500, 502, 503, 504,
        520, 529,
    ] {
        let body = bodies[status as usize % bodies.len()];
        faults.add(
            format!("status {status}"),
            &Reply::status(status, body).header("retry-after-ms", "2"),
        );
    }
    for code in [
        "server_error",
        "rate_limit_exceeded",
        "context_length_exceeded",
        "invalid_prompt",
        "insufficient_quota",
        "server_is_overloaded",
        "previous_response_not_found",
        "websocket_connection_limit_reached",
        "invalid_encrypted_content",
        "brand_new",
    ] {
        let words = "try again in 2ms";
        faults.add(format!("fails {code}"), &Reply::new().fails(code, words).left_open());
        faults.add(format!("errors {code}"), &Reply::new().errors(code, words).left_open());
        faults.add(format!("errors {code} late"), &complete_reply().errors(code, words));
        let body = json!({"error": {"code": code, "message": words}});
        faults.add(format!("refuses {code}"), &Reply::status(400, body.to_string()));
    }
    for (name, text) in [
        ("half an object", "data: {\"type\":\n\n"),
        ("no object", "data: 7\n\n"),
        ("a list", "data: []\n\n"),
        ("a number for a type", "data: {\"type\": 5}\n\n"),
        (
            "an odd delta",
            "data: {\"type\": \"response.output_text.delta\", \"delta\": {\"a\": 1}}\n\n",
        ),
        ("no item", "data: {\"type\": \"response.output_item.done\"}\n\n"),
        (
            "an item without a type",
            "data: {\"type\": \"response.output_item.done\", \"item\": {}}\n\n",
        ),
        (
            "a call without a name",
            "data: {\"type\": \"response.output_item.done\", \"item\": {\"type\": \"function_call\"}}\n\n",
        ),
        ("a broken last word", "event: response.completed\ndata: {\"type\": \"response.comp\n\n"),
        ("an empty last word", "data: {\"type\": \"response.failed\"}\n\n"),
        ("a bare error", "data: {\"error\": {\"message\": \"oops\"}}\n\n"),
        ("the end of another dialect", "data: [DONE]\n\n"),
        ("nothing at all", "\n\n\n"),
        ("zeros", "\0\0\0\n\n"),
    ] {
        faults.add(
            format!("{name} first"),
            &Reply::new().garbage(text).text(COMMENTARY).call("read", json!({"path": "poem.txt"})),
        );
        faults.add(format!("{name} last"), &complete_reply().garbage(text));
    }
    for code in [1000, 1001, 1006, 1009, 1011, 1012, 3000] {
        faults.add(format!("close {code} first"), &Reply::new().closes(code));
        faults.add(format!("close {code} late"), &complete_reply().closes(code));
    }
    faults.add("binary first", &Reply::new().binary().text(COMMENTARY));
    faults.add("binary late", &complete_reply().binary());
    faults.add("byte by byte", &complete_reply().byte_by_byte());
    faults.0
}

/// A cut or a reset at every byte of the first answer.
fn cuts(size: SuiteSize) -> Vec<StreamFault> {
    let mut faults = StreamFaults(Vec::new());
    let mut random = fastrand::Rng::with_seed(torture::seed());
    for byte in 0..LONGEST {
        for wire in [TransportSetting::Sse, TransportSetting::WebSocket] {
            if size == SuiteSize::Full || random.usize(..10) == 0 {
                faults.push(
                    format!("cut at {byte}, {wire:?}"),
                    wire,
                    complete_reply().cut_at(byte),
                    false,
                );
            }
        }
        if random.usize(..size.choose(200, 20)) == 0 {
            let wire = random
                .choice([
                    TransportSetting::Sse,
                    TransportSetting::WebSocket,
                    TransportSetting::Auto,
                ])
                .unwrap();
            let always = random.bool();
            faults.push(
                format!("reset at {byte}, {wire:?}"),
                wire,
                complete_reply().reset_at(byte),
                always,
            );
        }
    }
    faults.0
}

/// The model's state for the faults of one environment.
struct FaultModel {
    faults: Vec<StreamFault>,
    /// Number of requests in the first and in later iterations, by fault.
    asked: Mutex<Vec<[usize; 2]>>,
    /// The current fault, which decides on handshakes.
    current: AtomicUsize,
}

impl FaultModel {
    fn reply(&self, request: &ReceivedRequest) -> Reply {
        let texts = request.user_texts();
        let Some(place) = texts.last().and_then(|text| text.parse::<usize>().ok()) else {
            return Reply::says("Fine.");
        };
        let is_later = !request.outputs().is_empty();
        let mut asked = self.asked.lock().unwrap();
        let count = &mut asked[place][usize::from(is_later)];
        *count += 1;
        let fault = &self.faults[place];
        match (is_later, *count) {
            (false, 1) => fault.reply.clone(),
            (false, _) if fault.always => fault.reply.clone(),
            (false, _) => complete_reply(),
            (true, _) => Reply::says(ANSWER),
        }
    }
}

/// Runs a list of faults, each in its own Session, and checks the results.
async fn run_faults(faults: Vec<StreamFault>) {
    let mut failed = 0;
    let asked = Mutex::new(vec![[0, 0]; faults.len()]);
    let model = Arc::new(FaultModel { faults, asked, current: AtomicUsize::new(0) });
    let replies = model.clone();
    let handshakes = model.clone();
    let script =
        ModelScript::answering(move |request| replies.reply(request)).refusing_sockets(move |_| {
            handshakes.faults.get(handshakes.current.load(Ordering::Relaxed))?.refusal
        });
    let mut env = TestEnv::with_script(script).await;
    env.write("poem.txt", "roses are red\n");
    for place in 0..model.faults.len() {
        model.current.store(place, Ordering::Relaxed);
        let fault = &model.faults[place];
        env.config.transport = Some(fault.wire);
        env.config.stream.idle = fault.idle;
        let outcome = AssertUnwindSafe(check_fault(&env, &model, place)).catch_unwind().await;
        failed += usize::from(outcome.is_err());
    }
    assert_eq!(failed, 0, "the faults that failed are printed above");
}

async fn check_fault(env: &TestEnv, model: &FaultModel, place: usize) {
    let fault = &model.faults[place];
    let name = &fault.name;
    let harness = env.harness();
    let begin = |session| StartOptions {
        workspace: env.workspace(),
        session,
        can_ask: false,
        mcp_servers: Vec::new(),
    };
    let conversation = harness.start(begin(SessionTarget::New)).await.unwrap();
    let mut listener = conversation.subscribe(ListenFrom::Now);
    conversation.send(UserInput { text: place.to_string() }).await.unwrap();
    let mut shown = String::new();
    let listening = async {
        while let Some(news) = listener.next().await {
            let ListenerItem::Event(event) = news else { continue };
            match event.kind() {
                EventKind::Ephemeral(Ephemeral::TextDelta(delta)) => shown.push_str(delta),
                EventKind::Ephemeral(Ephemeral::Status(SessionStatus::Done)) => {
                    return SessionStatus::Done;
                }
                EventKind::Ephemeral(Ephemeral::Status(status @ SessionStatus::Error { .. })) => {
                    return status.clone();
                }
                _ => {}
            }
        }
        panic!("{name}: the Session closed");
    };
    let status = tokio::time::timeout(DEADLINE, listening)
        .await
        .unwrap_or_else(|_| panic!("{name}: it hangs"));
    let transcript = env.transcript(&conversation);
    let whole = format!("{COMMENTARY}{ANSWER}");
    match &status {
        SessionStatus::Done => {
            assert!(transcript.contains(ANSWER), "{name}: {transcript}");
            assert_eq!(shown, whole, "{name}: {transcript}");
            assert_eq!(transcript.matches(" tool_call ").count(), 1, "{name}: {transcript}");
        }
        SessionStatus::Error { error, .. } => {
            assert!(!matches!(error.kind.as_str(), "internal" | "crashed"), "{name}: {error:?}");
            assert!(whole.starts_with(&shown), "{name}: {shown:?}");
        }
        other => panic!("{name}: {other:?}"),
    }
    wait_for_turn_end(&conversation).await;
    drop(listener);
    let counts = model.asked.lock().unwrap()[place];
    assert!(counts[0] > 0 || fault.refusal.is_some(), "{name}: the model was never asked");
    assert!(counts[0] <= MOST_REQUESTS && counts[1] <= 1, "{name}: {counts:?}");
    model.current.store(usize::MAX, Ordering::Relaxed);
    resume(env, &harness, conversation, name).await;
}

/// Checks that the Log verifies, and that the next Turn succeeds.
async fn resume(env: &TestEnv, harness: &Harness, conversation: pixir::Conversation, name: &str) {
    let id = conversation.id().clone();
    drop(conversation);
    let session = SessionTarget::Resume(id.clone());
    let start = StartOptions {
        workspace: env.workspace(),
        session,
        can_ask: false,
        mcp_servers: Vec::new(),
    };
    let resumed = harness.start(start).await.unwrap();
    let status = send_and_finish(&resumed, "and on").await;
    assert_eq!(status, SessionStatus::Done, "{name}");
    let verification = pixir::verify_log(&env.workspace(), &id).unwrap();
    assert!(verification.ok, "{name}: {:?}", verification.breaks);
}

/// Runs many faults, in several environments at a time.
async fn run_all(what: &str, mut faults: Vec<StreamFault>) {
    let began = Instant::now();
    let count = faults.len();
    assert!(count > 0, "no {what}");
    fastrand::Rng::with_seed(torture::seed()).shuffle(&mut faults);
    let chunks: Vec<Vec<StreamFault>> = faults.chunks(CHUNK).map(<[StreamFault]>::to_vec).collect();
    let waiting = Arc::new(Mutex::new(chunks));
    let mut workers = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let waiting = waiting.clone();
        workers.spawn(async move {
            loop {
                let Some(chunk) = waiting.lock().unwrap().pop() else { return };
                run_faults(chunk).await;
            }
        });
    }
    while let Some(worker) = workers.join_next().await {
        worker.unwrap();
    }
    torture::print_summary(&format!("{count} {what} in {:?}", began.elapsed()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_cut_anywhere_is_an_answer_or_an_error_with_a_name() {
    run_all("cuts and resets of a stream", cuts(SuiteSize::from_environment())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_misbehaves_is_an_answer_or_an_error_with_a_name() {
    let mut faults = kinds_of_faults();
    if SuiteSize::from_environment() == SuiteSize::Sample {
        fastrand::Rng::with_seed(torture::seed()).shuffle(&mut faults);
        faults.truncate(faults.len() / 4);
    }
    run_all("faults of a stream", faults).await;
}

#[tokio::test]
async fn an_event_without_end_is_an_error_and_not_the_end_of_memory() {
    let huge: Value = json!({"type": "response.huge", "text": "x".repeat(17 << 20)});
    let mut faults = StreamFaults(Vec::new());
    for wire in [TransportSetting::Sse, TransportSetting::WebSocket] {
        faults.push(
            format!("huge, {wire:?}"),
            wire,
            complete_reply().event("response.huge", &huge),
            false,
        );
    }
    run_faults(faults.0).await;
}
