//! Live smoke tests for people with an account: one small Turn each, and a report of every check.
//!
//! `cargo run --example smoke -- e2e|login|prompt-cache|websocket|web-search|skills|subagents|workflows [--dry-run|--scripted] [--json]`
//!
//! Nothing here runs by itself: starting it is the consent to send one or two small requests, which
//! may cost money. `--dry-run` shows what would be sent and needs no network and no credential.
//! `--scripted` runs against the model and the issuer that are part of Pixir, on loopback: it checks
//! the smoke test itself, not an account.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "an example is a separate program"
)]

use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use pixir::scripted::{ModelScript, ReceivedRequest, Reply, ScriptedIssuer, ScriptedServer};
use serde_json::{Value, json};

/// The argument that makes this program act as Pixir, in a separate process.
const AS_PIXIR: &str = "__as-pixir";

/// The flags.
const FLAGS: [&str; 3] = ["--dry-run", "--scripted", "--json"];

/// One smoke test: what it sends, and what it must see.
struct Smoke {
    name: &'static str,
    what: &'static str,
    arguments: &'static [&'static str],
    variables: &'static [(&'static str, &'static str)],
    most_requests: u64,
    judge: fn(&SmokeResult) -> Vec<SmokeCheck>,
}

/// Prompt that leads to a Turn of two requests.
const TWO_REQUESTS: &[&str] =
    &["Run the command `echo pong` with your bash tool, once, then answer with what it printed."];

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
        what: "the credential is accepted: the list of models is asked for; and a sign-in by code begins: the \
               service gives a code, which is not entered. No tokens are spent",
        arguments: &["models", "refresh"],
        variables: &[],
        most_requests: 0,
        judge: |seen| vec![seen.ok(), seen.lists_models()],
    },
    Smoke {
        name: "prompt-cache",
        what: "one Turn of two requests; the second finds the prefix of the first in the cache",
        arguments: TWO_REQUESTS,
        variables: &[],
        most_requests: 2,
        judge: |seen| vec![seen.answered(), seen.cached()],
    },
    Smoke {
        name: "websocket",
        what: "one Turn of two requests over one WebSocket; the second continues the first",
        arguments: TWO_REQUESTS,
        variables: &[("PIXIR_TRANSPORT", "websocket")],
        most_requests: 2,
        judge: |seen| vec![seen.answered(), seen.transport("websocket"), seen.continued()],
    },
    Smoke {
        name: "web-search",
        what: "one Turn in which the Provider searches the web",
        arguments: &["--web-search", "Search the web: which is the newest stable Rust version?"],
        variables: &[],
        most_requests: 2,
        judge: |seen| vec![seen.answered(), seen.searched()],
    },
    Smoke {
        name: "skills",
        what: "one Turn with a Skill that alone contains the expected word",
        arguments: &["Follow $smoke-word."],
        variables: &[],
        most_requests: 2,
        judge: |seen| vec![seen.answered(), seen.says(SKILL_WORD), seen.activated()],
    },
    Smoke {
        name: "subagents",
        what: "one Turn that hands a question to a Subagent and waits for its answer",
        arguments: &[
            "Call spawn_agent once, with role explorer and the task `Answer with the word pong.`, then call \
             wait_agent, then answer with the word that the Subagent said.",
        ],
        variables: &[],
        most_requests: 4,
        judge: |seen| vec![seen.answered(), seen.delegated()],
    },
    Smoke {
        name: "workflows",
        what: "two parallel steps, and one that depends on them and receives their output",
        arguments: &["workflow", "run", "smoke.json"],
        variables: &[],
        most_requests: 6,
        judge: |seen| vec![seen.ok(), seen.stepped(), seen.overlapped()],
    },
];

/// The graph of the smoke test `workflows`; its check is run by Pixir, not by the model.
const GRAPH: &str = r#"{
  "id": "smoke",
  "steps": [
    { "id": "left", "role": "explorer", "task": "Deliver the word `ping` as `word`. Use no tool.",
      "output": { "type": "object", "required": ["word"], "additionalProperties": false,
                  "properties": { "word": { "type": "string" } } } },
    { "id": "right", "role": "explorer", "task": "Deliver the word `pong` as `word`. Use no tool.",
      "output": { "type": "object", "required": ["word"], "additionalProperties": false,
                  "properties": { "word": { "type": "string" } } } },
    { "id": "both", "role": "explorer", "task": "Deliver both words as `words`, the left one first. Use no tool.",
      "needs": { "left": "left/word", "right": "right/word" },
      "output": { "type": "object", "required": ["words"], "additionalProperties": false,
                  "properties": { "words": { "type": "array", "items": { "enum": ["ping", "pong"] } } } },
      "verify": "test -f smoke.json" }
  ]
}"#;

/// The word that only the Skill contains.
const SKILL_WORD: &str = "marigold";

/// The Skill of the smoke test `skills`.
const SKILL: &str = "---\nname: smoke-word\ndescription: Says which word a smoke is answered with\n---\n\
    Answer with the single word marigold and nothing else. Use no tool.\n";

/// How long the sign-in service may take to give a code.
const PATIENCE: Duration = Duration::from_secs(30);

/// One check and its result.
struct SmokeCheck {
    name: &'static str,
    ok: bool,
    found: Value,
}

/// The result of a run: the envelope, and from the Logs the usage records, Workflow Events and activations.
struct SmokeResult {
    envelope: Value,
    usage_records: Vec<Value>,
    graph: Vec<Value>,
    skills: Vec<Value>,
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
        eprintln!("usage: smoke {} [--dry-run|--scripted] [--json]", names.join("|"));
        ExitCode::from(2)
    };
    let is_odd = |word: &String| word.starts_with('-') && !FLAGS.contains(&word.as_str());
    if words.iter().any(is_odd) {
        return usage();
    }
    let wanted: Vec<&String> = words.iter().filter(|word| !word.starts_with('-')).collect();
    let [name] = wanted.as_slice() else { return usage() };
    let Some(smoke) = SMOKES.iter().find(|smoke| smoke.name == name.as_str()) else {
        return usage();
    };
    let report = match (has("--dry-run"), has("--scripted")) {
        (true, false) => Ok(dry_run_report(smoke)),
        (false, true) => run_scripted(smoke),
        (false, false) => run(smoke, None),
        (true, true) => return usage(),
    };
    match report {
        Ok(report) => {
            print_report(&report, has("--json"));
            if report["ok"] == true { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The report of `--dry-run`.
fn dry_run_report(smoke: &Smoke) -> Value {
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
    let requests = smoke.most_requests.to_string();
    let bounds = ["--json", "--timeout", "2m", "--max-requests", &requests];
    // A smoke without requests to the model runs no Turn, so it has nothing to limit.
    let bounds = if smoke.most_requests == 0 { &bounds[..1] } else { &bounds[..] };
    bounds.iter().chain(smoke.arguments).map(|word| (*word).to_owned()).collect()
}

/// A scripted model and issuer, and a home folder that is signed in to them.
struct ScriptedServices {
    home: PathBuf,
    issuer: ScriptedIssuer,
    server: ScriptedServer,
}

/// Runs a smoke with a scripted model, on the route of a subscription.
fn run_scripted(smoke: &Smoke) -> Result<Value, Box<dyn std::error::Error>> {
    let runtime = tokio::runtime::Runtime::new()?;
    let issuer = runtime.block_on(ScriptedIssuer::start())?;
    let script = ModelScript::answering(answer);
    let server = runtime.block_on(ScriptedServer::start_with_issuer(script, &issuer))?;
    let home = std::env::temp_dir().join(format!("pixir-smoke-home-{}", std::process::id()));
    std::fs::create_dir_all(&home)?;
    std::fs::write(home.join("auth.json"), issuer.sign_in(3600).to_string())?;
    let services = ScriptedServices { home, issuer, server };
    let report = run(smoke, Some(&services));
    std::fs::remove_dir_all(&services.home)?;
    report
}

/// The answers of the scripted model to each of the prompts.
fn answer(request: &ReceivedRequest) -> Reply {
    let wants_tool = request.user_texts().last().is_some_and(|text| text.contains("bash tool"));
    if wants_tool && request.outputs().is_empty() {
        return Reply::calls("bash", json!({"command": "echo pong"})).usage(2000, 0, 20);
    }
    if request.user_texts().iter().any(|text| text.contains(SKILL_WORD)) {
        return Reply::says(SKILL_WORD);
    }
    let prompt = request.user_texts().last().copied().unwrap_or_default().to_owned();
    match request.outputs().len() {
        0 if prompt.contains("spawn_agent") => {
            let args = json!({"task": "Answer with the word pong.", "role": "explorer"});
            return Reply::calls("spawn_agent", args);
        }
        1 if prompt.contains("spawn_agent") => return Reply::calls("wait_agent", json!({})),
        _ => {}
    }
    for (word, answer) in [
        ("`ping`", json!({ "word": "ping" })),
        ("`pong`", json!({ "word": "pong" })),
        ("both words", json!({ "words": ["ping", "pong"] })),
    ] {
        if prompt.contains("Deliver") && prompt.contains(word) {
            return Reply::says(&answer.to_string());
        }
    }
    let may_search = request.body["tools"].to_string().contains("web_search");
    let reply = if may_search {
        Reply::new().web_search("newest stable Rust", &["https://blog.rust-lang.org"])
    } else {
        Reply::new()
    };
    reply.text("pong").usage(2100, 1920, 5)
}

/// Runs a smoke in a temporary Workspace, with the settings and the credential of the user, or of scripted services.
fn run(
    smoke: &Smoke,
    services: Option<&ScriptedServices>,
) -> Result<Value, Box<dyn std::error::Error>> {
    let scratch = scratch("work");
    let workspace = scratch.join("work");
    std::fs::create_dir_all(&workspace)?;
    if smoke.arguments.contains(&"smoke.json") {
        std::fs::write(workspace.join("smoke.json"), GRAPH)?;
    }
    let mut command = pixir(services)?;
    if smoke.name == "skills" {
        give_skill(&mut command, &scratch, services)?;
    }
    let output = command
        .args(command_words(smoke))
        .current_dir(&workspace)
        .envs(smoke.variables.iter().copied())
        .stdin(std::process::Stdio::null())
        .output()?;
    let envelope: Value = serde_json::from_slice(&output.stdout).map_err(|_| {
        format!("Pixir gave no envelope: {}", String::from_utf8_lossy(&output.stderr).trim())
    })?;
    let usage_records = facts(&workspace, "provider_usage");
    let graph = facts(&workspace, "workflow_event");
    let skills = facts(&workspace, "skill_activation");
    std::fs::remove_dir_all(&scratch)?;
    let result = SmokeResult { envelope, usage_records, graph, skills };
    let mut checks = (smoke.judge)(&result);
    if smoke.name == "login" {
        checks.extend(device_code(services)?);
    }
    Ok(json!({
        "smoke": smoke.name,
        "dry_run": false,
        "scripted": services.is_some(),
        "ok": checks.iter().all(|check| check.ok),
        "what": smoke.what,
        "exit_code": output.status.code(),
        "requests": result.requests(),
        "most_requests": smoke.most_requests,
        "usage": result.envelope["usage"],
        "duration_ms": result.envelope["duration_ms"],
        "error": result.envelope["error"],
        "checks": checks.iter()
            .map(|check| json!({"name": check.name, "ok": check.ok, "found": check.found}))
            .collect::<Vec<_>>(),
    }))
}

/// A temporary folder of this process.
fn scratch(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("pixir-smoke-{name}-{}", std::process::id()))
}

/// This program as Pixir, with the settings and the credential of the user, or of scripted services.
fn pixir(services: Option<&ScriptedServices>) -> Result<Command, std::io::Error> {
    let mut command = Command::new(std::env::current_exe()?);
    if let Some(services) = services {
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy().into_owned();
            if name.starts_with("PIXIR_") || name.starts_with("OPENAI_") {
                command.env_remove(name);
            }
        }
        command
            .env("PIXIR_HOME", &services.home)
            .env("PIXIR_AUTH_ISSUER", services.issuer.base_url())
            .env("PIXIR_CHATGPT_BASE_URL", services.server.chatgpt_url());
    }
    command.arg(AS_PIXIR);
    Ok(command)
}

/// Puts the Skill into a temporary home; settings and credential stay where they are.
fn give_skill(
    command: &mut Command,
    scratch: &Path,
    services: Option<&ScriptedServices>,
) -> Result<(), Box<dyn std::error::Error>> {
    let home = scratch.join("home");
    let folder = home.join(".agents/skills/smoke-word");
    std::fs::create_dir_all(&folder)?;
    std::fs::write(folder.join("SKILL.md"), SKILL)?;
    if services.is_none() && std::env::var_os("PIXIR_HOME").is_none() {
        let own = std::env::var_os("HOME").ok_or("HOME is not set")?;
        command.env("PIXIR_HOME", Path::new(&own).join(".pixir"));
    }
    command.env("HOME", home);
    Ok(())
}

/// The first part of a sign-in by code, in a temporary home: the service gives a page and a code, the code is not
/// entered, and nothing is stored. The code itself is not shown.
fn device_code(
    services: Option<&ScriptedServices>,
) -> Result<Vec<SmokeCheck>, Box<dyn std::error::Error>> {
    let home = scratch("sign-in");
    std::fs::create_dir_all(&home)?;
    let mut child = pixir(services)?
        .env("PIXIR_HOME", &home)
        .args(["login", "--device-code"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()?;
    let (sender, lines) = std::sync::mpsc::channel();
    let stderr = child.stderr.take().ok_or("no stderr")?;
    std::thread::spawn(move || {
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            sender.send(line.trim().to_owned()).ok();
        }
    });
    let end = Instant::now() + PATIENCE;
    let mut lines_read: Vec<String> = Vec::new();
    // The output is complete when a line follows the page: the code.
    while !lines_read.iter().rev().nth(1).is_some_and(|line| line.starts_with("http")) {
        let left = end.saturating_duration_since(Instant::now());
        let Ok(line) = lines.recv_timeout(left) else { break };
        lines_read.push(line);
    }
    child.kill()?;
    child.wait()?;
    let page = lines_read.iter().rev().nth(1).filter(|line| line.starts_with("http")).cloned();
    let code = lines_read.last().filter(|_| page.is_some()).cloned().unwrap_or_default();
    let shape: String = code.chars().map(|c| if c.is_alphanumeric() { 'x' } else { c }).collect();
    let is_code = code.len() >= 4 && code.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
    let found = page.as_ref().map_or_else(|| json!(lines_read), |page| json!([page, shape]));
    let is_stored = home.join("auth.json").exists();
    std::fs::remove_dir_all(&home)?;
    Ok(vec![
        SmokeCheck { name: "the service gave a code for another device", ok: is_code, found },
        SmokeCheck { name: "nothing was stored", ok: !is_stored, found: json!(!is_stored) },
    ])
}

/// The facts of a kind in all Sessions of a Workspace.
fn facts(workspace: &Path, kind: &str) -> Vec<Value> {
    let folder = std::fs::read_dir(workspace.join(".pixir/sessions"));
    let logs = folder.into_iter().flatten().flatten().map(|entry| entry.path());
    let logs = logs.filter(|path| path.extension().is_some_and(|end| end == "ndjson"));
    let text: String = logs.filter_map(|path| std::fs::read_to_string(path).ok()).collect();
    let events = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let wanted = events.filter(|event| event["type"] == kind);
    wanted.map(|event| event["data"].clone()).collect()
}

impl SmokeResult {
    fn requests(&self) -> u64 {
        self.usage_records.iter().map(|record| 1 + record["retries"].as_u64().unwrap_or(0)).sum()
    }

    fn ok(&self) -> SmokeCheck {
        let ok = self.envelope["ok"] == true;
        SmokeCheck { name: "Pixir succeeded", ok, found: self.envelope["error"]["kind"].clone() }
    }

    fn answered(&self) -> SmokeCheck {
        SmokeCheck { name: "there is an answer", ok: self.envelope["ok"] == true, ..self.ok() }
    }

    fn says(&self, word: &str) -> SmokeCheck {
        let answer = self.envelope["output"].as_str().unwrap_or_default().to_lowercase();
        let found = json!(answer.chars().take(80).collect::<String>());
        SmokeCheck { name: "the answer is the expected one", ok: answer.contains(word), found }
    }

    fn billed(&self) -> SmokeCheck {
        let tokens = self.envelope["usage"]["total_tokens"].as_u64().unwrap_or(0);
        SmokeCheck { name: "the Provider counted tokens", ok: tokens > 0, found: json!(tokens) }
    }

    fn lists_models(&self) -> SmokeCheck {
        let count = self.envelope["output"]["models"].as_array().map_or(0, Vec::len);
        SmokeCheck { name: "models are listed", ok: count > 0, found: json!(count) }
    }

    fn cached(&self) -> SmokeCheck {
        let counts: Vec<u64> = self
            .usage_records
            .iter()
            .map(|record| record["usage"]["cached_tokens"].as_u64().unwrap_or(0))
            .collect();
        let ok = counts.len() > 1 && counts.iter().skip(1).any(|count| *count > 0);
        SmokeCheck { name: "a later request found cached tokens", ok, found: json!(counts) }
    }

    fn transport(&self, wanted: &str) -> SmokeCheck {
        let used: Vec<&Value> =
            self.usage_records.iter().map(|record| &record["transport"]).collect();
        let ok = !used.is_empty() && used.iter().all(|name| **name == wanted);
        SmokeCheck { name: "the wanted transport was used", ok, found: json!(used) }
    }

    fn continued(&self) -> SmokeCheck {
        let used: Vec<&Value> =
            self.usage_records.iter().map(|record| &record["continuation"]).collect();
        let ok = used.len() > 1 && used.iter().skip(1).all(|facts| facts["used"] == true);
        SmokeCheck { name: "later requests continued the first", ok, found: json!(used) }
    }

    fn delegated(&self) -> SmokeCheck {
        let calls = self.envelope["usage"]["calls"].as_u64().unwrap_or_default();
        let recorded = self.usage_records.len() as u64;
        let found = json!({ "bills": recorded, "calls": calls });
        // Three calls are the parent's own.
        SmokeCheck {
            name: "a Subagent was asked and its usage was counted",
            ok: calls > 3 && calls == recorded,
            found,
        }
    }

    fn stepped(&self) -> SmokeCheck {
        let steps = self.envelope["output"]["steps"].as_array().cloned().unwrap_or_default();
        let ended: Vec<&Value> = steps.iter().map(|step| &step["checkpoint_status"]).collect();
        let ok = ended.len() == 3 && ended.iter().all(|status| **status == "checkpoint_ready");
        SmokeCheck { name: "every step delivered what it must", ok, found: json!(ended) }
    }

    fn overlapped(&self) -> SmokeCheck {
        let step_event = |fact: &Value| {
            let step = fact["step_id"].as_str().unwrap_or_default();
            format!("{} {step}", fact["kind"].as_str().unwrap_or_default())
        };
        let order: Vec<String> = self.graph.iter().map(step_event).collect();
        let at = |what: &str| order.iter().position(|own| own == what);
        let (right, left) = (at("step_scheduled right"), at("checkpoint_decided left"));
        let ok = right.is_some() && right < left && at("verification both").is_some();
        SmokeCheck { name: "two steps ran at once, and the check was run", ok, found: json!(order) }
    }

    fn activated(&self) -> SmokeCheck {
        let names: Vec<&Value> = self.skills.iter().map(|fact| &fact["name"]).collect();
        let ok = names.len() == 1 && names.iter().all(|name| **name == "smoke-word");
        SmokeCheck { name: "the activation was recorded", ok, found: json!(names) }
    }

    fn searched(&self) -> SmokeCheck {
        let calls: u64 = self
            .usage_records
            .iter()
            .filter_map(|record| record["web_search"]["calls"].as_u64())
            .sum();
        SmokeCheck { name: "the Provider searched", ok: calls > 0, found: json!(calls) }
    }
}

fn print_report(report: &Value, json: bool) {
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
        if report["smoke"] == "login" {
            println!("would run: pixir login --device-code, until the code is shown");
        }
        println!("requests at most: {}; nothing was sent", report["most_requests"]);
        return;
    }
    for check in report["checks"].as_array().into_iter().flatten() {
        let mark = if check["ok"] == true { "ok  " } else { "FAIL" };
        println!("{mark} {}: {}", check["name"].as_str().unwrap_or_default(), check["found"]);
    }
    println!("requests: {}, {} ms", report["requests"], report["duration_ms"]);
    if !report["error"].is_null() {
        println!("error: {}", report["error"]["message"]);
    }
}
