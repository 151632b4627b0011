//! Tests of exact changes: encodings, line endings, hard links, Secrets and changes outside the Session.

use std::time::{Duration, Instant};

use super::*;

fn replace_all(env: &ToolTestEnv, old: &str, new: &str) -> Result<ToolOutput, ToolError> {
    let edit = json!({"old_string": old, "new_string": new, "replace_all": true});
    env.call("edit", json!({"path": "file", "edits": [edit]}))
}

#[track_caller]
fn check_refused(content: &[u8], old: &str, new: &str, kind: Kind) {
    let env = ToolTestEnv::new();
    env.write_file("file", content);
    assert_eq!(env.edit("file", old, new).unwrap_err().kind, kind, "{content:?} {old:?}");
    assert_eq!(env.read_bytes("file"), content);
}

#[test]
fn explicit_cr_is_kept() {
    check_edit(b"a\r\nb\r\n", "a\r\nb", "a\nb", b"a\nb\r\n");
    check_edit(b"a\r\nb\r\n", "a\r\n", "x\ny\n", b"x\ny\nb\r\n");
    check_refused(b"a\r\nb\r\n", "a\nb", "a\r\nb", Kind::InvalidArgs);
}

#[test]
fn an_edit_that_changes_nothing_is_no_success() {
    let env = ToolTestEnv::new();
    env.write_file("a", "one\n");
    let edits = json!([
        {"old_string": "one", "new_string": "two"},
        {"old_string": "two", "new_string": "one"},
    ]);
    assert_eq!(env.kind("edit", json!({"path": "a", "edits": edits})), Kind::InvalidArgs);
}

#[test]
fn overlapping_places_are_several() {
    check_refused(b"aaa", "aa", "b", Kind::NotUnique);
    check_refused(b"\r\n\r\n\r\n", "\n\n", "\n", Kind::NotUnique);
    check_edit(b"xaay", "aa", "b", b"xby");
    let env = ToolTestEnv::new();
    env.write_file("file", "aaaaa");
    replace_all(&env, "aa", "b").unwrap();
    assert_eq!(env.read_bytes("file"), b"bba");
}

#[test]
fn no_encoding_is_damaged() {
    // UTF-16 with and without a mark, and UTF-32.
    check_refused(b"\xff\xfea\0b\0", "a", "x", Kind::BinaryFile);
    check_refused(b"\xfe\xff\0a\0b", "a", "x", Kind::BinaryFile);
    check_refused(b"a\0b\0c\0\n\0", "a", "x", Kind::BinaryFile);
    check_refused(b"\0\0\xfe\xff\0\0\0a", "a", "x", Kind::BinaryFile);
    // Latin-1: no UTF-8 is mixed in, ASCII is exact.
    check_refused(b"caf\xe9 noir\n", "noir", "frapp\u{e9}", Kind::InvalidArgs);
    check_edit(b"caf\xe9 noir\n", "noir", "latte", b"caf\xe9 latte\n");
    // Shift-JIS: the second byte of this character is the letter A.
    check_refused(b"\x83A\n", "A", "x", Kind::InvalidArgs);
    check_edit(b"\x83A\nA\n", "\nA", "\nB", b"\x83A\nB\n");
    check_edit(b"\x83A = 1\n", " = 1", " = 2", b"\x83A = 2\n");
}

#[test]
fn all_places_of_mixed_endings_are_replaced() {
    let env = ToolTestEnv::new();
    env.write_file("file", b"a\nb\r\na\r\nb\na\rb\n");
    replace_all(&env, "a\nb", "x\ny").unwrap();
    assert_eq!(env.read_bytes("file"), b"x\ny\r\nx\r\ny\nx\ry\n");
}

#[test]
fn many_places_in_a_large_file_take_no_time_and_a_plan_takes_less() {
    let env = ToolTestEnv::new();
    env.write_file("file", b"ab\r\n".repeat(500_000));
    let edit = json!({"old_string": "a", "new_string": "x\ny", "replace_all": true});
    let began = Instant::now();
    let plan = env.plan("edit", &json!({"path": "file", "edits": [edit]})).unwrap();
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    assert!(plan.diff.is_none() && plan.summary.contains("too many for a preview"));
    replace_all(&env, "a", "x\ny").unwrap();
    assert!(env.read_bytes("file").starts_with(b"x\r\nyb\r\nx\r\n"));
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
}

#[test]
fn a_script_gets_no_carriage_return_and_no_mark() {
    let env = ToolTestEnv::new();
    env.write_file("run", b"\xef\xbb\xbfold\r\nfile\r\n");
    env.call("write", json!({"path": "run", "content": "#!/bin/sh\ntrue\n"})).unwrap();
    assert_eq!(env.read_bytes("run"), b"#!/bin/sh\ntrue\n");
    env.write_file("mac", b"a\rb\r");
    let output = env.call("write", json!({"path": "mac", "content": "x\ny"})).unwrap();
    assert_eq!(env.read_bytes("mac"), b"x\ry");
    assert!(
        output.text.ends_with("; kept CR line endings; the file no longer ends with a newline")
    );
}

#[test]
fn a_file_deleted_since_it_was_read_is_not_recreated() {
    let env = ToolTestEnv::new();
    fs::create_dir(env.path("sub")).unwrap();
    env.write_file("sub/a", "one\n");
    env.read(json!({"path": "sub/a"}));
    fs::remove_file(env.path("sub/a")).unwrap();
    let write = json!({"path": "./sub/../sub/a", "content": "x"});
    assert_eq!(env.plan("write", &write).unwrap_err().kind, Kind::FileChanged);
    assert_eq!(env.kind("write", write.clone()), Kind::FileChanged);
    fs::remove_dir(env.path("sub")).unwrap();
    let write = json!({"path": "./sub/a", "content": "x"});
    assert_eq!(env.kind("write", write.clone()), Kind::FileChanged);
    assert_eq!(env.kind("read", json!({"path": "sub/a"})), Kind::NotFound);
    assert!(env.call("write", write).unwrap().text.starts_with("created sub/a"));
}

/// A History with these tool results.
pub fn history_of(results: impl IntoIterator<Item = ToolOutput>) -> History {
    use crate::base::id::{EventId, SessionId};
    use crate::record::event::{CanonicalParts, Event, Extra, Timestamp, ToolResult};
    let mut history = History::default();
    for output in results {
        let result = ToolResult {
            call_id: CallId::new("call"),
            ok: true,
            output: None,
            error: None,
            details: output.details,
            extra: Extra::new(),
        };
        history.push(Arc::new(Event::new_canonical(CanonicalParts {
            id: EventId::mint(),
            session_id: SessionId::mint(),
            seq: None,
            ts: Timestamp::now(),
            fact: result.into(),
            extra: Extra::new(),
        })));
    }
    history
}

#[test]
fn what_was_seen_is_known_again_after_a_resume() {
    let env = ToolTestEnv::new();
    env.write_file("a", "one\n");
    env.write_file("b", "one\n");
    let results =
        [env.call("read", json!({"path": "a"})).unwrap(), env.edit("b", "one", "two").unwrap()];
    assert!(results.iter().all(|one| one.details["sha256"].as_str().unwrap().len() == 64));
    let history = history_of(results);
    let resumed = ToolTestEnv { toolbox: toolbox(env.folder.path(), &history), ..env };
    resumed.write_file("a", "theirs one\n");
    assert_eq!(resumed.edit("a", "one", "two").unwrap_err().kind, Kind::FileChanged);
    resumed.edit("b", "two", "three").unwrap();
    fs::remove_file(resumed.path("b")).unwrap();
    assert_eq!(resumed.kind("write", json!({"path": "b", "content": ""})), Kind::FileChanged);
}

#[test]
fn secrets_of_a_file_are_out_before_it_is_numbered_paged_or_compared() {
    let pem = "-----BEGIN KEY-----\nMIIEvQIBADANBg\nkqhkiG9w0BAQEF\nAAo=\n-----END KEY-----";
    let secrets = [("PEM", pem), ("TOKEN", "0123456789abcdef")];
    let secrets = Secrets::new(secrets.map(|(name, value)| (name.into(), value.into())));
    let mut env = ToolTestEnv::new();
    env.context.secrets = Arc::new(secrets);
    env.write_file("keys", format!("a\n{pem}\nb 0123456789abcdef\n"));
    let text = env.read(json!({"path": "keys"}));
    assert!(!text.contains("MII") && !text.contains("kqh") && !text.contains("AAo"), "{text}");
    assert!(
        text.contains("     2\t[redacted:PEM]\n") && text.contains("     7\tb [redacted:TOKEN]")
    );
    for column in 1..20 {
        let text = env.read(json!({"path": "keys", "offset": 7, "column": column}));
        assert!(!text.contains("abcdef"), "{column}: {text}");
    }
    let edit = json!({"path": "keys", "edits": [{"old_string": "a\n---", "new_string": "c\n---"}]});
    let planned = env.plan("edit", &edit).unwrap().diff.unwrap();
    let output = env.call("edit", edit).unwrap();
    for diff in [planned.as_str(), output.details["diff"].as_str().unwrap()] {
        assert!(diff.contains("+c\n") && !diff.contains("MII") && !diff.contains("AAo"), "{diff}");
    }
    assert_eq!(env.read_bytes("keys"), format!("c\n{pem}\nb 0123456789abcdef\n").as_bytes());
}

#[test]
fn other_names_of_a_file_are_reported_and_pixirs_own_are_refused() {
    let env = ToolTestEnv::new();
    env.write_file("a", "one\n");
    fs::hard_link(env.path("a"), env.path("b")).unwrap();
    let edit =
        |path: &str| json!({"path": path, "edits": [{"old_string": "one", "new_string": "two"}]});
    let plan = env.plan("edit", &edit("a")).unwrap();
    assert_eq!(plan.summary, "change a (+1 -1); also changes 1 other name of this file");
    let output = env.call("edit", edit("a")).unwrap();
    assert!(output.text.ends_with("; also changes 1 other name of this file"), "{}", output.text);
    assert_eq!(env.read_bytes("b"), b"two\n");
    fs::create_dir_all(env.path(".pixir/sessions/deep")).unwrap();
    env.write_file(".pixir/sessions/deep/log", "one\n");
    fs::hard_link(env.path(".pixir/sessions/deep/log"), env.path("alias")).unwrap();
    assert_eq!(env.plan("edit", &edit("alias")).unwrap_err().kind, Kind::ProtectedPath);
    assert_eq!(env.kind("edit", edit("alias")), Kind::ProtectedPath);
    assert_eq!(env.kind("write", json!({"path": "alias", "content": ""})), Kind::ProtectedPath);
    assert_eq!(env.read_bytes("alias"), b"one\n");
}

#[test]
fn a_large_file_with_several_names_is_refused_with_a_way_out() {
    let env = ToolTestEnv::new();
    env.write_file("a", "x\n".repeat(600_000) + "end\n");
    fs::hard_link(env.path("a"), env.path("b")).unwrap();
    let error = env.edit("a", "end", "END").unwrap_err();
    assert_eq!(error.kind, Kind::WriteFailed);
    assert!(error.next_actions[0].contains("one name"), "{:?}", error.next_actions);
    assert!(env.read_bytes("a").ends_with(b"end\n"));
}

#[test]
fn a_program_that_loses_its_rights_is_reported() {
    let env = ToolTestEnv::new();
    for linked in [false, true] {
        env.write_file("tool", "one\n");
        if linked {
            fs::hard_link(env.path("tool"), env.path("other")).unwrap();
        }
        env.read(json!({"path": "tool"}));
        fs::set_permissions(env.path("tool"), fs::Permissions::from_mode(0o4755)).unwrap();
        let output = env.edit("tool", "one", "two").unwrap();
        assert!(output.text.contains("set-user-id"), "{}", output.text);
        assert_eq!(fs::metadata(env.path("tool")).unwrap().mode() & 0o7777, 0o755);
    }
}

#[test]
fn paths_that_name_no_file_are_bad_arguments() {
    let env = ToolTestEnv::new();
    for path in ["newdir/", "newdir/.", "a\0b", &"x/".repeat(4000), &"x".repeat(300)] {
        let write = json!({"path": path, "content": ""});
        assert_eq!(env.kind("write", write.clone()), Kind::InvalidArgs, "{path:.20?}");
        assert_eq!(env.plan("write", &write).unwrap_err().kind, Kind::InvalidArgs);
    }
    assert_eq!(env.kind("read", json!({"path": "a\0b"})), Kind::InvalidArgs);
    assert_eq!(env.kind("read", json!({"path": "x".repeat(5000)})), Kind::InvalidArgs);
    assert!(!env.path("newdir").exists());
}
