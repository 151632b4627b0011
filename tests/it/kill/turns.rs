//! A Session of three Turns that write, edit and run commands, and the states between them.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use pixir::SessionId;
use pixir::scripted::{ModelScript, ReceivedRequest, Reply};
use serde_json::json;

use crate::support::BinaryEnv;
use crate::support::binary_env::copy_tree;

/// Number of Turns of the Session.
pub const TURNS: usize = 3;

/// The edited file: large, so that an incomplete write would show.
pub const FILE: &str = "big.txt";

/// The prompt and the answer of each Turn.
pub const PROMPTS: [&str; TURNS] = ["write it", "change it", "change it again"];
pub const ANSWERS: [&str; TURNS] = ["Written.", "Changed.", "Changed again."];

/// Prompt and answer of the Turn after a kill.
pub const GO_ON: &str = "go on";
pub const WENT_ON: &str = "I went on.";

/// Content of the edited file after a Turn.
///
/// The call of the first Turn contains it, so the Log is longer than the file before the
/// file is written: a limit on file sizes affects the Log only.
pub fn content(version: usize) -> String {
    use std::fmt::Write;
    let mut text = format!("version {version}\n");
    for line in 0..6000 {
        writeln!(text, "{line:05} the quick brown fox jumps").unwrap();
    }
    text
}

/// Behaviour of the model in the killed Turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModelBehaviour {
    Normal,
    /// Stalls in the middle of the answer to this request, from 1.
    StallAt(usize),
    /// Replaces commands by endless ones.
    Hang,
}

/// An endless command with three processes, one of them in its own session.
const HANG: &str =
    "setsid bash -c 'exec -a MARK sleep 300' & (exec -a MARK sleep 300) & exec -a MARK sleep 300";

/// The scripted model; it counts its requests.
pub fn script(mark: &str, behaviour: ModelBehaviour, seen: Arc<AtomicUsize>) -> ModelScript {
    let mark = mark.to_owned();
    ModelScript::answering(move |request| {
        let number = seen.fetch_add(1, Ordering::SeqCst) + 1;
        let prompt = request.user_texts().last().copied().unwrap_or_default().to_owned();
        if prompt != GO_ON && behaviour == ModelBehaviour::StallAt(number) {
            return Reply::new().reasoning("Hm.").text("Half an ans").stalls();
        }
        let hangs = prompt != GO_ON && behaviour == ModelBehaviour::Hang;
        reply(request, &prompt, &|command| {
            let command = if hangs { HANG } else { command };
            ("bash", json!({"command": command.replace("MARK", &mark)}))
        })
    })
}

fn reply(
    request: &ReceivedRequest,
    prompt: &str,
    run: &dyn Fn(&str) -> (&'static str, serde_json::Value),
) -> Reply {
    let edit = |version: usize| {
        let old = format!("version {version}\n");
        let new = format!("version {}\n", version + 1);
        json!({"path": FILE, "edits": [{"old_string": old, "new_string": new}]})
    };
    let call = |reply: Reply, (name, arguments): (&str, _)| reply.call(name, arguments);
    let new = Reply::new;
    match (prompt, request.outputs().len()) {
        ("write it", 0) => new()
            .reasoning("It does not exist yet.")
            .text("I will write it.")
            .call("write", json!({"path": FILE, "content": content(1)})),
        ("write it", 1) => call(
            new(),
            run("(exec -a MARK sleep 300) & setsid bash -c 'exec -a MARK sleep 300' & echo left"),
        ),
        ("write it", _) => Reply::says(ANSWERS[0]),
        ("change it", 0) => call(new().call("edit", edit(1)), run("echo after the edit")),
        ("change it", 2) => call(
            new().reasoning("Let it run."),
            run("bash -c 'exec -a MARK sleep 0.05'; (setsid bash -c 'exec -a MARK sleep 300' &)"),
        ),
        ("change it", _) => Reply::says(ANSWERS[1]),
        ("change it again", 0) => new()
            .text("Looking.")
            .call("read", json!({"path": FILE, "limit": 20}))
            .call("read", json!({"path": FILE, "offset": 100, "limit": 20})),
        ("change it again", 2) => new()
            .call("edit", edit(2))
            .call("write", json!({"path": "notes.txt", "content": "done\n"})),
        ("change it again", _) => Reply::says(ANSWERS[2]),
        (GO_ON, 0) => call(new().text("I look around."), run("echo around")),
        (GO_ON, _) => Reply::says(WENT_ON),
        (other, _) => Reply::status(404, format!("{{\"error\":{{\"message\":\"{other}?\"}}}}")),
    }
}

/// The Session before a Turn, and measures of that Turn from a run without kills.
pub struct SessionBeforeTurn {
    pub folder: tempfile::TempDir,
    /// `None` before the first Turn.
    pub id: Option<SessionId>,
    pub log: Vec<u8>,
    /// Length of the Log at the end of the Turn.
    pub end: u64,
    /// Number of lines that the Turn adds.
    pub lines: usize,
    pub requests: usize,
    pub took: Duration,
}

/// Runs the three Turns once without kills; gives the states between them.
pub async fn record_undisturbed_turns() -> Vec<SessionBeforeTurn> {
    let mark = BinaryEnv::new_mark();
    let seen = Arc::new(AtomicUsize::new(0));
    let env =
        BinaryEnv::new(mark.clone(), script(&mark, ModelBehaviour::Normal, seen.clone())).await;
    let mut states = Vec::new();
    for (turn, answer) in ANSWERS.into_iter().enumerate() {
        let folder = tempfile::tempdir().unwrap();
        copy_tree(&env.workspace(), folder.path());
        let session = env.session();
        let log = session.as_ref().map(|(_, path)| fs::read(path).unwrap()).unwrap_or_default();
        let id = session.map(|(id, _)| id);
        let began = Instant::now();
        let asked = seen.load(Ordering::SeqCst);
        let ended = env.run(&words(id.as_ref(), turn));
        let took = began.elapsed();
        ended.expect_code(0);
        assert_eq!(ended.stdout.trim_end(), answer);
        let after = fs::read(env.session().unwrap().1).unwrap();
        states.push(SessionBeforeTurn {
            folder,
            id,
            end: after.len() as u64,
            lines: count_lines(&after) - count_lines(&log),
            log,
            requests: seen.load(Ordering::SeqCst) - asked,
            took,
        });
    }
    assert_eq!(read(&env.workspace()).as_deref(), Some(content(TURNS).as_str()));
    env.assert_nothing_survives();
    states
}

/// The command line of a Turn.
pub fn words(id: Option<&SessionId>, turn: usize) -> Vec<&str> {
    match id {
        None => vec![PROMPTS[turn]],
        Some(id) => vec!["resume", id.as_str(), PROMPTS[turn]],
    }
}

/// The edited file, if it exists.
pub fn read(workspace: &Path) -> Option<String> {
    let bytes = fs::read(workspace.join(FILE)).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Name, inode, size and time of every file in the Workspace that a tool may touch.
pub fn traces(workspace: &Path) -> Vec<(String, u64, u64, i64)> {
    let entries = fs::read_dir(workspace).unwrap().filter_map(Result::ok);
    let mut traces: Vec<_> = entries
        .filter(|entry| entry.file_name() != ".pixir")
        .filter_map(|entry| {
            let now = entry.metadata().ok()?;
            let name = entry.file_name().display().to_string();
            Some((name, now.ino(), now.len(), now.mtime_nsec()))
        })
        .collect();
    traces.sort();
    traces
}

pub fn count_lines(bytes: &[u8]) -> usize {
    memchr::memchr_iter(b'\n', bytes).count()
}
