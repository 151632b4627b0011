//! Scripted model: the last word of the user selects its calls.

use pixir::scripted::{ModelScript, ReceivedRequest, Reply};
use serde_json::json;

/// A command that the sandbox must prevent.
const ESCAPE: &str =
    "touch ../outside/made; echo x >> ../outside/canary.txt; echo x >> ../home/.bashrc";

pub fn script() -> ModelScript {
    ModelScript::answering(answer)
}

fn answer(request: &ReceivedRequest) -> Reply {
    let texts = request.user_texts();
    let played =
        texts.iter().rev().find_map(|text| text.rsplit_once("play ")).map(|(_, play)| play);
    let play = played.unwrap_or_default().split_whitespace().next().unwrap_or_default();
    let step = request.outputs().len();
    match play {
        "work" if step == 0 => looks(),
        "work" if step < 12 => changes(),
        "strict" if step == 0 => Reply::new()
            .call("write", json!({"path": "believed.txt", "content": "x"}))
            .call("bash", json!({"command": format!("touch believed-too.txt; {ESCAPE}")})),
        "background" if step == 0 => {
            Reply::calls("bash", json!({"command": "echo begun; sleep 60", "background": true}))
        }
        "share" if step == 0 => {
            Reply::calls("spawn_agent", json!({"task": "play make", "workspace": "isolated"}))
        }
        "share" if step == 1 => Reply::calls("wait_agent", json!({})),
        "make" if step == 0 => {
            Reply::calls("write", json!({"path": "made/by-child.txt", "content": "x\n"}))
        }
        _ => Reply::says("Done."),
    }
}

/// Calls of every tool that only reads.
fn looks() -> Reply {
    Reply::new()
        .call("read", json!({"path": "AGENTS.md"}))
        .call("read", json!({"path": "README.md"}))
        .call("list", json!({"path": ".", "depth": 3, "all": true}))
        .call("list", json!({"path": ".pixir", "depth": 3, "all": true}))
        .call("glob", json!({"pattern": "**/*.rs"}))
        .call("grep", json!({"pattern": "fn ", "path": "."}))
}

/// Calls of every tool that changes files, a command that changes one, a value too large for a line of the Log, and
/// more output than a model is shown.
fn changes() -> Reply {
    let patch = "*** Begin Patch\n*** Add File: patched.txt\n+patched\n*** End Patch";
    let edits = json!([{"old_string": "hello", "new_string": "hello hello"}]);
    // The file is replaced as a whole, because writes of commands through hard links are tested elsewhere.
    let replace = "date +%N > by-command.new; mv -T by-command.new by-command.txt";
    let command = format!("{replace}; seq 1 60000; {ESCAPE}");
    Reply::new()
        .call("write", json!({"path": "made/by-model.txt", "content": "x\n"}))
        .call("write", json!({"path": "large.txt", "content": "large\n".repeat(50_000)}))
        .call("edit", json!({"path": "README.md", "edits": edits}))
        .call("apply_patch", json!({"patch": patch}))
        .call("bash", json!({"command": command}))
        .call("update_plan", json!({"plan": [{"step": "one", "status": "completed"}]}))
}
