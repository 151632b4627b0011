//! Tests of exact changes: encodings, line endings, hard links, secrets and changes from outside.

use std::time::{Duration, Instant};

use super::*;

fn replace_all(bench: &Bench, old: &str, new: &str) -> Result<ToolOutput, ToolError> {
    let edit = json!({"old_string": old, "new_string": new, "replace_all": true});
    bench.call("edit", json!({"path": "file", "edits": [edit]}))
}

#[track_caller]
fn check_refused(content: &[u8], old: &str, new: &str, kind: Kind) {
    let bench = Bench::new();
    bench.put("file", content);
    assert_eq!(bench.edit("file", old, new).unwrap_err().kind, kind, "{content:?} {old:?}");
    assert_eq!(bench.bytes("file"), content);
}

#[test]
fn who_writes_cr_means_it() {
    check_edit(b"a\r\nb\r\n", "a\r\nb", "a\nb", b"a\nb\r\n");
    check_edit(b"a\r\nb\r\n", "a\r\n", "x\ny\n", b"x\ny\nb\r\n");
    check_refused(b"a\r\nb\r\n", "a\nb", "a\r\nb", Kind::InvalidArgs);
}

#[test]
fn an_edit_that_changes_nothing_is_no_success() {
    let bench = Bench::new();
    bench.put("a", "one\n");
    let edits = json!([
        {"old_string": "one", "new_string": "two"},
        {"old_string": "two", "new_string": "one"},
    ]);
    assert_eq!(bench.kind("edit", json!({"path": "a", "edits": edits})), Kind::InvalidArgs);
}

#[test]
fn overlapping_places_are_several() {
    check_refused(b"aaa", "aa", "b", Kind::NotUnique);
    check_refused(b"\r\n\r\n\r\n", "\n\n", "\n", Kind::NotUnique);
    check_edit(b"xaay", "aa", "b", b"xby");
    let bench = Bench::new();
    bench.put("file", "aaaaa");
    replace_all(&bench, "aa", "b").unwrap();
    assert_eq!(bench.bytes("file"), b"bba");
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
    let bench = Bench::new();
    bench.put("file", b"a\nb\r\na\r\nb\na\rb\n");
    replace_all(&bench, "a\nb", "x\ny").unwrap();
    assert_eq!(bench.bytes("file"), b"x\ny\r\nx\r\ny\nx\ry\n");
}

#[test]
fn many_places_in_a_large_file_take_no_time_and_a_plan_takes_less() {
    let bench = Bench::new();
    bench.put("file", b"ab\r\n".repeat(500_000));
    let edit = json!({"old_string": "a", "new_string": "x\ny", "replace_all": true});
    let began = Instant::now();
    let plan = bench.plan("edit", &json!({"path": "file", "edits": [edit]})).unwrap();
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    assert!(plan.diff.is_none() && plan.summary.contains("too many for a preview"));
    replace_all(&bench, "a", "x\ny").unwrap();
    assert!(bench.bytes("file").starts_with(b"x\r\nyb\r\nx\r\n"));
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
}

#[test]
fn a_script_gets_no_carriage_return_and_no_mark() {
    let bench = Bench::new();
    bench.put("run", b"\xef\xbb\xbfold\r\nfile\r\n");
    bench.call("write", json!({"path": "run", "content": "#!/bin/sh\ntrue\n"})).unwrap();
    assert_eq!(bench.bytes("run"), b"#!/bin/sh\ntrue\n");
    bench.put("mac", b"a\rb\r");
    let output = bench.call("write", json!({"path": "mac", "content": "x\ny"})).unwrap();
    assert_eq!(bench.bytes("mac"), b"x\ry");
    assert!(
        output.text.ends_with("; kept CR line endings; the file no longer ends with a newline")
    );
}

#[test]
fn a_file_that_is_gone_since_it_was_read_is_not_made_anew_unseen() {
    let bench = Bench::new();
    fs::create_dir(bench.path("sub")).unwrap();
    bench.put("sub/a", "one\n");
    bench.read(json!({"path": "sub/a"}));
    fs::remove_file(bench.path("sub/a")).unwrap();
    let write = json!({"path": "./sub/../sub/a", "content": "x"});
    assert_eq!(bench.plan("write", &write).unwrap_err().kind, Kind::FileChanged);
    assert_eq!(bench.kind("write", write.clone()), Kind::FileChanged);
    fs::remove_dir(bench.path("sub")).unwrap();
    let write = json!({"path": "./sub/a", "content": "x"});
    assert_eq!(bench.kind("write", write.clone()), Kind::FileChanged);
    assert_eq!(bench.kind("read", json!({"path": "sub/a"})), Kind::NotFound);
    assert!(bench.call("write", write).unwrap().text.starts_with("created sub/a"));
}

/// A History with these tool results.
pub fn history_of(results: impl IntoIterator<Item = ToolOutput>) -> History {
    use crate::base::id::{EventId, SessionId};
    use crate::record::event::{Event, Extra, Sequenced, Timestamp, ToolResult};
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
        history.push(Arc::new(Event::sequenced(Sequenced {
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
    let bench = Bench::new();
    bench.put("a", "one\n");
    bench.put("b", "one\n");
    let results =
        [bench.call("read", json!({"path": "a"})).unwrap(), bench.edit("b", "one", "two").unwrap()];
    assert!(results.iter().all(|one| one.details["sha256"].as_str().unwrap().len() == 64));
    let history = history_of(results);
    let resumed = Bench { toolbox: toolbox(bench.folder.path(), &history), ..bench };
    resumed.put("a", "theirs one\n");
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
    let mut bench = Bench::new();
    bench.context.secrets = Arc::new(secrets);
    bench.put("keys", format!("a\n{pem}\nb 0123456789abcdef\n"));
    let text = bench.read(json!({"path": "keys"}));
    assert!(!text.contains("MII") && !text.contains("kqh") && !text.contains("AAo"), "{text}");
    assert!(
        text.contains("     2\t[redacted:PEM]\n") && text.contains("     7\tb [redacted:TOKEN]")
    );
    for column in 1..20 {
        let text = bench.read(json!({"path": "keys", "offset": 7, "column": column}));
        assert!(!text.contains("abcdef"), "{column}: {text}");
    }
    let edit = json!({"path": "keys", "edits": [{"old_string": "a\n---", "new_string": "c\n---"}]});
    let planned = bench.plan("edit", &edit).unwrap().diff.unwrap();
    let output = bench.call("edit", edit).unwrap();
    for diff in [planned.as_str(), output.details["diff"].as_str().unwrap()] {
        assert!(diff.contains("+c\n") && !diff.contains("MII") && !diff.contains("AAo"), "{diff}");
    }
    assert_eq!(bench.bytes("keys"), format!("c\n{pem}\nb 0123456789abcdef\n").as_bytes());
}

#[test]
fn other_names_of_a_file_are_told_and_pixirs_own_are_refused() {
    let bench = Bench::new();
    bench.put("a", "one\n");
    fs::hard_link(bench.path("a"), bench.path("b")).unwrap();
    let edit =
        |path: &str| json!({"path": path, "edits": [{"old_string": "one", "new_string": "two"}]});
    let plan = bench.plan("edit", &edit("a")).unwrap();
    assert_eq!(plan.summary, "change a (+1 -1); also changes 1 other name of this file");
    let output = bench.call("edit", edit("a")).unwrap();
    assert!(output.text.ends_with("; also changes 1 other name of this file"), "{}", output.text);
    assert_eq!(bench.bytes("b"), b"two\n");
    fs::create_dir_all(bench.path(".pixir/sessions/deep")).unwrap();
    bench.put(".pixir/sessions/deep/log", "one\n");
    fs::hard_link(bench.path(".pixir/sessions/deep/log"), bench.path("alias")).unwrap();
    assert_eq!(bench.plan("edit", &edit("alias")).unwrap_err().kind, Kind::ProtectedPath);
    assert_eq!(bench.kind("edit", edit("alias")), Kind::ProtectedPath);
    assert_eq!(bench.kind("write", json!({"path": "alias", "content": ""})), Kind::ProtectedPath);
    assert_eq!(bench.bytes("alias"), b"one\n");
}

#[test]
fn a_large_file_with_several_names_is_refused_with_a_way_out() {
    let bench = Bench::new();
    bench.put("a", "x\n".repeat(600_000) + "end\n");
    fs::hard_link(bench.path("a"), bench.path("b")).unwrap();
    let error = bench.edit("a", "end", "END").unwrap_err();
    assert_eq!(error.kind, Kind::WriteFailed);
    assert!(error.next_actions[0].contains("one name"), "{:?}", error.next_actions);
    assert!(bench.bytes("a").ends_with(b"end\n"));
}

#[test]
fn a_program_that_loses_its_rights_is_told() {
    let bench = Bench::new();
    for linked in [false, true] {
        bench.put("tool", "one\n");
        if linked {
            fs::hard_link(bench.path("tool"), bench.path("other")).unwrap();
        }
        bench.read(json!({"path": "tool"}));
        fs::set_permissions(bench.path("tool"), fs::Permissions::from_mode(0o4755)).unwrap();
        let output = bench.edit("tool", "one", "two").unwrap();
        assert!(output.text.contains("set-user-id"), "{}", output.text);
        assert_eq!(fs::metadata(bench.path("tool")).unwrap().mode() & 0o7777, 0o755);
    }
}

#[test]
fn paths_that_name_no_file_are_bad_arguments() {
    let bench = Bench::new();
    for path in ["newdir/", "newdir/.", "a\0b", &"x/".repeat(4000), &"x".repeat(300)] {
        let write = json!({"path": path, "content": ""});
        assert_eq!(bench.kind("write", write.clone()), Kind::InvalidArgs, "{path:.20?}");
        assert_eq!(bench.plan("write", &write).unwrap_err().kind, Kind::InvalidArgs);
    }
    assert_eq!(bench.kind("read", json!({"path": "a\0b"})), Kind::InvalidArgs);
    assert_eq!(bench.kind("read", json!({"path": "x".repeat(5000)})), Kind::InvalidArgs);
    assert!(!bench.path("newdir").exists());
}
