//! Malformed messages of every kind, made from a seed.

use fastrand::Rng;
use serde_json::{Value, json};

/// Session options, some of which do not exist.
pub const OPTIONS: [(&str, &str); 7] = [
    ("mode", "ask"),
    ("mode", "auto"),
    ("mode", "yolo"),
    ("model", "gpt-5.5"),
    ("model", ""),
    ("thought_level", "high"),
    ("colour", "red"),
];

/// Prompts with instructions for the scripted model.
const SCRIPTS: [&str; 14] = [
    "hello",
    "go » deltas 5",
    "go » think a ;; say b",
    "go » say begun ;; pause 30 ;; say ended",
    "go » status 400 no",
    "go » status 401 who",
    "go » say half ;; break",
    "go » cut",
    "go » refuse no",
    "go » call write {\"path\":\"fuzz.txt\",\"content\":\"x\\n\"}\nsay done",
    "go » call read {\"path\":\"fuzz.txt\"}\ncall grep {\"pattern\":\"x\"}\nsay done",
    "go » bash echo $RANDOM > fuzz-made\nsay done",
    "/plan",
    "/model",
];

/// Prompts whose Turns do not end by themselves.
const ENDLESS: [&str; 2] = ["go » pause 100000", "go » say begun ;; stall"];

/// Content blocks of a prompt; one prompt in thirty runs until it is cancelled.
pub fn prompt(rng: &mut Rng) -> Value {
    let is_endless = rng.u8(0..30) == 0;
    let words = if is_endless { rng.choice(ENDLESS) } else { rng.choice(SCRIPTS) };
    let text = json!({"type": "text", "text": words.unwrap()});
    match rng.u8(0..20) {
        0 => json!([]),
        1 => json!([{"type": "resource_link", "uri": "file:///a", "name": "a"}, text]),
        2 => json!([{"type": "resource", "resource": {"uri": "file:///b", "text": "b"}}, text]),
        3 => json!([{"type": "hologram"}, text]),
        4 => json!([{"type": "image", "mimeType": "image/png", "data": "####"}, text]),
        _ => json!([text]),
    }
}

/// Parameters of `session/list`.
pub fn listing(rng: &mut Rng, cwd: &str) -> Value {
    match rng.u8(0..5) {
        0 => json!({"cwd": cwd}),
        1 => json!({"cursor": "nonsense"}),
        2 => json!({"cwd": "relative"}),
        3 => Value::Null,
        _ => json!({}),
    }
}

/// A request that is rare, early, late or unknown.
pub fn odd_request(rng: &mut Rng) -> (&'static str, Value) {
    let all = [
        ("initialize", json!({"protocolVersion": rng.u16(..)})),
        ("authenticate", json!({"methodId": "carrier pigeon"})),
        ("authenticate", json!({"methodId": "openai-api-key"})),
        ("logout", json!({})),
        ("session/new", json!({"cwd": "relative"})),
        ("session/new", json!({"cwd": "/no/such/place", "mcpServers": []})),
        ("session/set_model", json!({"sessionId": "x", "modelId": "y"})),
        ("session/fork", json!({})),
        ("_vendor/thing", json!([1, 2])),
        ("nope", json!("text")),
    ];
    all[rng.usize(..all.len())].clone()
}

/// An answer to a request of the agent.
pub fn reply(rng: &mut Rng) -> Result<Value, Value> {
    let selected = |id: &str| json!({"outcome": {"outcome": "selected", "optionId": id}});
    Ok(match rng.u8(0..10) {
        0..4 => selected("once"),
        4 => selected("session"),
        5 => selected("reject"),
        6 => selected("made up"),
        7 => json!({"outcome": {"outcome": "cancelled"}}),
        8 => json!(7),
        _ => return Err(json!({"code": rng.i32(..), "message": "no"})),
    })
}

/// A malformed line; its id, if one is left, belongs to no other request.
pub fn broken(rng: &mut Rng, id: &str, session: &str) -> Vec<u8> {
    let whole = json!({"jsonrpc": "2.0", "id": id, "method": method(rng), "params": {"sessionId": session, "cwd": "/", "mcpServers": [], "prompt": []}});
    let mut value = whole.clone();
    match rng.u8(0..10) {
        // A field of another type, or none.
        0 => value[field(rng)] = odd_value(rng),
        1 => value["params"] = odd_value(rng),
        2 => {
            let key = *rng.choice(&["sessionId", "cwd", "mcpServers", "prompt"]).unwrap();
            value["params"][key] = odd_value(rng);
        }
        3 => {
            value.as_object_mut().unwrap().remove(field(rng));
        }
        // Bytes are removed, changed or added.
        4..6 => {
            let mut bytes = whole.to_string().into_bytes();
            bytes.truncate(rng.usize(..bytes.len()));
            return bytes;
        }
        6 => {
            let mut bytes = whole.to_string().into_bytes();
            for _ in 0..=rng.usize(0..4) {
                let place = rng.usize(..bytes.len());
                bytes[place] = rng.u8(..);
            }
            return bytes;
        }
        7 => return (0..rng.usize(0..200)).map(|_| rng.u8(..)).collect(),
        8 => return format!("[{whole},{whole}]").into_bytes(),
        _ => {
            let depth = rng.usize(1..300);
            return format!("{}1{}", "{\"a\":".repeat(depth), "}".repeat(depth)).into_bytes();
        }
    }
    value.to_string().into_bytes()
}

fn method(rng: &mut Rng) -> &'static str {
    let all = [
        "session/prompt",
        "session/new",
        "session/load",
        "session/list",
        "session/close",
        "initialize",
        "session/cancel",
        "nope",
    ];
    all[rng.usize(..all.len())]
}

fn field(rng: &mut Rng) -> &'static str {
    ["jsonrpc", "id", "method", "params"][rng.usize(..4)]
}

fn odd_value(rng: &mut Rng) -> Value {
    let all = [
        Value::Null,
        json!(true),
        json!(-1),
        json!(1.5),
        json!(""),
        json!([]),
        json!({}),
        json!([[{}]]),
        json!("x\u{0}y"),
        json!(u64::MAX),
    ];
    all[rng.usize(..all.len())].clone()
}
