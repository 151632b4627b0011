//! Live smokes for people with an account: one small Turn each, an honest report, nothing hidden.
//!
//! `cargo run --example smoke -- e2e|login|prompt-cache|websocket|web-search [--dry-run] [--json]`
//!
//! Nothing here runs by itself: starting it is the consent to send one or two small requests, which
//! may cost money. `--dry-run` says what would be sent and needs no network and no credential.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "an example is a program of its own"
)]

use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, ExitCode};

use serde_json::{Value, json};

/// Tells this program to be Pixir for once, in a process of its own.
const AS_PIXIR: &str = "__as-pixir";

/// What one smoke sends and what it must see.
struct Smoke {
    name: &'static str,
    what: &'static str,
    arguments: &'static [&'static str],
    variables: &'static [(&'static str, &'static str)],
    most_requests: u64,
    judge: fn(&Seen) -> Vec<Check>,
}

const SMOKES: &[Smoke] = &[
    Smoke {
        name: "e2e",
        what: "one Turn with one answer, over the default transport",
        arguments: &["Answer with the single word: pong"],
        variables: &[],
        most_requests: 2,
        judge: |seen| vec![seen.answered(), seen.says("pong"), seen.billed()],
    },
    Smoke {
        name: "login",
        what: "the credential is accepted: the list of models is asked for, no tokens are spent",
        arguments: &["models", "refresh"],
        variables: &[],
        most_requests: 0,
        judge: |seen| vec![seen.ok(), seen.lists_models()],
    },
    Smoke {
        name: "prompt-cache",
        what: "one Turn of two requests; the second finds the prefix of the first in the cache",
        arguments: &[
            "Run the command `echo pong` with your bash tool, once, then answer with what it printed.",
        ],
        variables: &[],
        most_requests: 2,
        judge: |seen| vec![seen.answered(), seen.cached()],
    },
    Smoke {
        name: "websocket",
        what: "one Turn over the WebSocket transport",
        arguments: &["Answer with the single word: pong"],
        variables: &[("PIXIR_TRANSPORT", "websocket")],
        most_requests: 2,
        judge: |seen| vec![seen.answered(), seen.transport("websocket")],
    },
    Smoke {
        name: "web-search",
        what: "one Turn in which the Provider searches the web",
        arguments: &["--web-search", "Search the web: which is the newest stable Rust version?"],
        variables: &[],
        most_requests: 2,
        judge: |seen| vec![seen.answered(), seen.searched()],
    },
];

/// One thing that was looked at.
struct Check {
    name: &'static str,
    ok: bool,
    found: Value,
}

/// What came of it: the envelope, and the bills in the Log.
struct Seen {
    envelope: Value,
    bills: Vec<Value>,
}

fn main() -> ExitCode {
    let mut arguments: Vec<OsString> = std::env::args_os().collect();
    match arguments.get(1).and_then(|first| first.to_str()) {
        // Host commands of a Turn are supervised by the program that started it.
        Some(first) if first == pixir::SUPERVISE => {
            return pixir::supervise(arguments.into_iter().skip(2));
        }
        Some(AS_PIXIR) => {
            arguments.remove(1);
            return pixir::run(arguments);
        }
        _ => {}
    }
    let words: Vec<String> =
        arguments.iter().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    let has = |flag: &str| words.iter().any(|word| word == flag);
    let names: Vec<&str> = SMOKES.iter().map(|smoke| smoke.name).collect();
    let usage = || {
        eprintln!("usage: smoke {} [--dry-run] [--json]", names.join("|"));
        ExitCode::from(2)
    };
    let is_odd =
        |word: &String| word.starts_with('-') && !matches!(word.as_str(), "--dry-run" | "--json");
    if words.iter().any(is_odd) {
        return usage();
    }
    let wanted: Vec<&String> = words.iter().filter(|word| !word.starts_with('-')).collect();
    let [name] = wanted.as_slice() else { return usage() };
    let Some(smoke) = SMOKES.iter().find(|smoke| smoke.name == name.as_str()) else {
        return usage();
    };
    let report = if has("--dry-run") { Ok(rehearsal(smoke)) } else { run(smoke) };
    match report {
        Ok(report) => {
            tell(&report, has("--json"));
            if report["ok"] == true { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// What it would do.
fn rehearsal(smoke: &Smoke) -> Value {
    json!({
        "smoke": smoke.name,
        "dry_run": true,
        "ok": true,
        "what": smoke.what,
        "command": command_words(smoke),
        "variables": smoke.variables.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>(),
        "most_requests": smoke.most_requests,
    })
}

fn command_words(smoke: &Smoke) -> Vec<String> {
    let requests = smoke.most_requests.max(1).to_string();
    let bounds = ["--json", "--timeout", "2m", "--max-requests", &requests];
    bounds.iter().chain(smoke.arguments).map(|word| (*word).to_owned()).collect()
}

/// Does it, in a scratch Workspace, with the settings and the credential of the user.
fn run(smoke: &Smoke) -> Result<Value, Box<dyn std::error::Error>> {
    let workspace = std::env::temp_dir().join(format!("pixir-smoke-{}", std::process::id()));
    std::fs::create_dir_all(&workspace)?;
    let output = Command::new(std::env::current_exe()?)
        .arg(AS_PIXIR)
        .args(command_words(smoke))
        .current_dir(&workspace)
        .envs(smoke.variables.iter().copied())
        .stdin(std::process::Stdio::null())
        .output()?;
    let envelope: Value = serde_json::from_slice(&output.stdout).map_err(|_| {
        format!("Pixir gave no envelope: {}", String::from_utf8_lossy(&output.stderr).trim())
    })?;
    let bills = bills(&workspace);
    std::fs::remove_dir_all(&workspace)?;
    let seen = Seen { envelope, bills };
    let checks = (smoke.judge)(&seen);
    Ok(json!({
        "smoke": smoke.name,
        "dry_run": false,
        "ok": checks.iter().all(|check| check.ok),
        "what": smoke.what,
        "exit_code": output.status.code(),
        "requests": seen.requests(),
        "most_requests": smoke.most_requests,
        "usage": seen.envelope["usage"],
        "duration_ms": seen.envelope["duration_ms"],
        "error": seen.envelope["error"],
        "checks": checks.iter()
            .map(|check| json!({"name": check.name, "ok": check.ok, "found": check.found}))
            .collect::<Vec<_>>(),
    }))
}

/// The bills of the one Session in a Workspace.
fn bills(workspace: &Path) -> Vec<Value> {
    let folder = std::fs::read_dir(workspace.join(".pixir/sessions"));
    let logs = folder.into_iter().flatten().flatten().map(|entry| entry.path());
    let logs = logs.filter(|path| path.extension().is_some_and(|end| end == "ndjson"));
    let text: String = logs.filter_map(|path| std::fs::read_to_string(path).ok()).collect();
    let events = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let bills = events.filter(|event| event["type"] == "provider_usage");
    bills.map(|event| event["data"].clone()).collect()
}

impl Seen {
    fn requests(&self) -> u64 {
        self.bills.iter().map(|bill| 1 + bill["retries"].as_u64().unwrap_or(0)).sum()
    }

    fn ok(&self) -> Check {
        let ok = self.envelope["ok"] == true;
        Check { name: "it worked", ok, found: self.envelope["error"]["kind"].clone() }
    }

    fn answered(&self) -> Check {
        Check { name: "there is an answer", ok: self.envelope["ok"] == true, ..self.ok() }
    }

    fn says(&self, word: &str) -> Check {
        let answer = self.envelope["output"].as_str().unwrap_or_default().to_lowercase();
        let found = json!(answer.chars().take(80).collect::<String>());
        Check { name: "the answer is the expected one", ok: answer.contains(word), found }
    }

    fn billed(&self) -> Check {
        let tokens = self.envelope["usage"]["total_tokens"].as_u64().unwrap_or(0);
        Check { name: "the Provider counted tokens", ok: tokens > 0, found: json!(tokens) }
    }

    fn lists_models(&self) -> Check {
        let count = self.envelope["output"]["models"].as_array().map_or(0, Vec::len);
        Check { name: "models are listed", ok: count > 0, found: json!(count) }
    }

    fn cached(&self) -> Check {
        let counts: Vec<u64> = self
            .bills
            .iter()
            .map(|bill| bill["usage"]["cached_tokens"].as_u64().unwrap_or(0))
            .collect();
        let ok = counts.len() > 1 && counts.iter().skip(1).any(|count| *count > 0);
        Check { name: "a later request found cached tokens", ok, found: json!(counts) }
    }

    fn transport(&self, wanted: &str) -> Check {
        let used: Vec<&Value> = self.bills.iter().map(|bill| &bill["transport"]).collect();
        let ok = !used.is_empty() && used.iter().all(|name| **name == wanted);
        Check { name: "the wanted transport was used", ok, found: json!(used) }
    }

    fn searched(&self) -> Check {
        let calls: u64 =
            self.bills.iter().filter_map(|bill| bill["web_search"]["calls"].as_u64()).sum();
        Check { name: "the Provider searched", ok: calls > 0, found: json!(calls) }
    }
}

fn tell(report: &Value, json: bool) {
    if json {
        println!("{report}");
        return;
    }
    let text = |name: &str| report[name].as_str().unwrap_or_default().to_owned();
    println!("{}: {}", text("smoke"), text("what"));
    if report["dry_run"] == true {
        let words = report["command"].as_array().into_iter().flatten();
        let words: Vec<&str> = words.filter_map(Value::as_str).collect();
        println!("would run: pixir {}", words.join(" "));
        println!("would make at most {} requests; nothing was sent", report["most_requests"]);
        return;
    }
    for check in report["checks"].as_array().into_iter().flatten() {
        let mark = if check["ok"] == true { "ok  " } else { "FAIL" };
        println!("{mark} {}: {}", check["name"].as_str().unwrap_or_default(), check["found"]);
    }
    println!("{} requests, {} ms", report["requests"], report["duration_ms"]);
    if !report["error"].is_null() {
        println!("error: {}", report["error"]["message"]);
    }
}
