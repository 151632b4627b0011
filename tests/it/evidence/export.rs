//! `pixir export`: Markdown and JSON of a Session.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use serde_json::json;

use super::{log_of, new_test_env};

#[tokio::test(flavor = "multi_thread")]
async fn a_document_tells_everything_and_nothing_breaks_out_of_it() {
    let (env, id) = new_test_env().await;
    let run = env.run_pixir(&["export", &id]).assert_exit_code(0);
    assert_eq!(run.err, "", "stdout has the document, stderr nothing");
    let page = run.out;
    for words in [
        &format!("# Session {id}"),
        "## Turn 1 (answered)",
        "> work on it",
        "Let me look.",
        "-roses are red\n+roses are green",
        "## Turn 2 (provider\\_error)",
        "### Answer",
    ] {
        let words = words.replace("\\_", "_");
        assert!(page.contains(&words), "{words}: {page}");
    }
    // The output contains a fence, so the fence around it is longer.
    assert!(page.contains("````text\n"), "{page}");
    assert!(
        page.contains("```rust\nfn main() {}\n```"),
        "the model's own Markdown stands as it is"
    );
    let headings: Vec<&str> = page.lines().filter(|line| line.starts_with("## ")).collect();
    assert_eq!(headings.len(), 3, "{headings:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_undone_or_compacted_is_named_by_its_turns() {
    let (env, id) = new_test_env().await;
    env.run_pixir(&["undo", &id, "--turns", "2", "--yes"]).assert_exit_code(0);
    env.run_pixir(&["redo", &id, "--yes"]).assert_exit_code(0);
    env.run_pixir(&["undo", &id, "--yes"]).assert_exit_code(0);
    env.run_pixir(&["compact", &id]).assert_exit_code(0);
    let page = env.run_pixir(&["export", &id]).assert_exit_code(0).out;
    let is_note = |line: &&str| line.starts_with("*Taken") || line.starts_with("*Brought");
    let notes: Vec<&str> = page.lines().filter(is_note).collect();
    let expected =
        ["*Taken back: Turns 2 to 3.*", "*Brought back: Turns 2 to 3.*", "*Taken back: Turn 3.*"];
    assert_eq!(notes, expected);
    assert!(!page.contains("Event"), "{page}");
    let json = env.run_pixir(&["export", &id, "--format", "json"]).assert_exit_code(0).out;
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let last = json["turns"][2]["entries"].as_array().unwrap();
    let redo = last.iter().find(|entry| entry["direction"] == "redo").unwrap();
    assert_eq!((&redo["type"], &redo["turns"]), (&json!("rewound"), &json!([2, 3])));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_json_has_a_shape_that_stays() {
    let (env, id) = new_test_env().await;
    let run = env.run_pixir(&["export", &id, "--format", "json"]).assert_exit_code(0);
    let json: serde_json::Value = serde_json::from_str(&run.out).unwrap();
    assert_eq!((&json["format"], &json["version"]), (&json!("pixir-transcript"), &json!(1)));
    let types: Vec<&str> = json["turns"][0]["entries"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| entry["type"].as_str().unwrap())
        .collect();
    assert_eq!(types, ["user", "reasoning", "assistant", "tool", "tool", "tool", "assistant"]);
    assert_eq!(json["turns"][1]["entries"][1]["terminal_status"], "provider_error");
    let envelope = env
        .run_pixir(&["export", &id, "--format", "json", "--json"])
        .assert_exit_code(0)
        .envelope();
    assert_eq!(envelope["output"]["document"], json);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_is_written_whole_and_stdout_stays_empty() {
    let (env, id) = new_test_env().await;
    let target = env.workspace().join("out.md");
    let run = env.run_pixir(&["export", &id, "-o", "out.md"]).assert_exit_code(0);
    assert_eq!(run.out, "");
    assert_eq!(
        fs::read_to_string(&target).unwrap(),
        env.run_pixir(&["export", &id]).assert_exit_code(0).out
    );
    assert_eq!(fs::metadata(&target).unwrap().permissions().mode() & 0o777, 0o600);
    for bad in [".", "nowhere/at/all.md"] {
        let envelope = env
            .run_pixir(&["export", &id, "--output", bad, "--json"])
            .assert_exit_code(1)
            .envelope();
        assert_eq!(envelope["error"]["kind"], "write_failed", "{bad}");
    }
    env.run_pixir(&["export", &id, "--format", "pdf"]).assert_exit_code(2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_secret_that_is_known_only_now_and_a_terminals_orders_are_left_out() {
    let (env, id) = new_test_env().await;
    let path = log_of(&env, &id);
    let log = fs::read_to_string(&path).unwrap();
    // A Secret that another program, or another environment, left in the Log.
    let planted =
        log.replace("Let me look.", "sk-test-of-test-env \\u001b]0;owned\\u0007\\u202e look");
    fs::write(&path, planted).unwrap();
    for format in ["markdown", "json"] {
        let run = env.run_pixir(&["export", &id, "--format", format]);
        run.assert_exit_code(0);
    }
    let page = env.run_pixir(&["export", &id]).out;
    assert!(!page.contains('\u{1b}') && !page.contains('\u{202e}'), "{page:?}");
    fs::write(&path, log).unwrap();
}

/// A Log of many Turns with large results, as the first Pixir wrote them: without proofs.
fn large_log(id: &str, turns: usize, output: usize) -> String {
    let mut log = String::new();
    let mut seq = 0;
    let mut line = |kind: &str, data: serde_json::Value| {
        let event = json!({"id": format!("{seq:016x}"), "session_id": id, "seq": seq,
            "ts": "2026-07-21T10:11:12.000000Z", "type": kind, "data": data});
        seq += 1;
        log.push_str(&event.to_string());
        log.push('\n');
    };
    line("session_started", json!({}));
    for turn in 0..turns {
        let call = format!("call_{turn}");
        line("user_message", json!({"text": format!("prompt {turn}")}));
        let args = json!({"command": "cat large"});
        line("tool_call", json!({"call_id": call, "name": "bash", "args": args}));
        line("tool_result", json!({"call_id": call, "ok": true, "output": "x".repeat(output)}));
        let answer = "y ".repeat(output / 2);
        line("assistant_message", json!({"text": answer, "phase": "final"}));
    }
    log
}

/// Peak memory of a process in bytes; `None` when the process is gone.
fn peak_memory(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().trim_end_matches(" kB").parse::<u64>().ok().map(|count| count * 1024)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_log_is_exported_without_being_held() {
    let (env, _) = new_test_env().await;
    let id = "20260721T101112-abcdef";
    let log = large_log(id, 600, 50_000);
    fs::write(log_of(&env, id), &log).unwrap();
    for (format, last) in [("markdown", "## Turn 600 (answered)"), ("json", r#""number": 600"#)] {
        let target = env.workspace().join("document");
        let args = ["export", id, "--format", format, "--output", "document"];
        let mut child = env.command(&args).spawn().unwrap();
        let mut peak = 0;
        while child.try_wait().unwrap().is_none() {
            peak = peak.max(peak_memory(child.id()).unwrap_or_default());
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        assert!(child.wait().unwrap().success());
        let document = fs::read_to_string(&target).unwrap();
        assert!(document.contains(last), "{format}");
        assert!(format != "json" || serde_json::from_str::<serde_json::Value>(&document).is_ok());
        let most = log.len() as u64 + (20 << 20);
        assert!(peak > 0 && peak < most, "{format}: {peak} of {} bytes", log.len());
    }
}
