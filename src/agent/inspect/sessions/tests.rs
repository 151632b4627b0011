//! The list of Sessions over bytes and over a folder.

use std::io::Cursor;

use std::fs;

use super::*;
use crate::record::log::Log;

fn line(type_name: &str, data: &str) -> String {
    format!(
        r#"{{"id":"i","session_id":"s","seq":0,"ts":"t","type":"{type_name}","data":{data},"h":"x"}}"#
    ) + "\n"
}

#[test]
fn the_title_is_the_first_user_message() {
    let head = line("session_started", "{}") + &line("user_message", r#"{"text":"fix\nit"}"#);
    assert_eq!(parse_title(head.as_bytes()).unwrap(), "fix\nit");
    assert_eq!(parse_title(b"rubbish\n"), None);
    let blob = line("user_message", r#"{"$blob":"abc"}"#);
    assert_eq!(parse_title(blob.as_bytes()).unwrap(), "(a very long prompt)");
}

#[test]
fn the_status_is_read_from_the_last_lines() {
    let check = |lines: &[(&str, &str)], expected: Option<SummaryStatus>| {
        let tail: String = lines.iter().map(|(name, data)| line(name, data)).collect();
        assert_eq!(status_from_tail(tail.as_bytes()), expected, "{lines:?}");
    };
    check(&[("session_started", "{}")], None);
    check(&[("user_message", r#"{"text":"x"}"#)], Some(SummaryStatus::Open));
    let answer = ("assistant_message", r#"{"text":"x","phase":"final"}"#);
    check(&[answer], Some(SummaryStatus::Answered));
    check(&[answer, ("log_repaired", "{}")], Some(SummaryStatus::Answered));
    check(&[("assistant_message", r#"{"text":"x"}"#)], Some(SummaryStatus::Answered));
    check(
        &[("assistant_message", r#"{"text":"x","phase":"commentary"}"#)],
        Some(SummaryStatus::Open),
    );
    let stopped = ("turn_failed", r#"{"terminal_status":"interrupted"}"#);
    check(&[answer, stopped], Some(SummaryStatus::Interrupted));
    let broke = ("turn_failed", r#"{"terminal_status":"provider_error","error_message":"m"}"#);
    let failed =
        SummaryStatus::Failed { terminal_status: "provider_error".into(), message: "m".into() };
    check(&[broke], Some(failed));
    // A torn last line is skipped.
    let torn = line("assistant_message", r#"{"text":"x"}"#) + r#"{"id":"i","type":"user_m"#;
    assert_eq!(status_from_tail(torn.as_bytes()), Some(SummaryStatus::Answered));
}

#[test]
fn turns_are_counted_across_pieces_and_not_in_quoted_text() {
    let quoted = line("tool_result", r#"{"output":",\"type\":\"user_message\",\"data\":"}"#);
    let one = line("user_message", r#"{"text":"x"}"#);
    for padding in [0, 100, 262_130, 262_144, 262_150, 600_000] {
        let filler = line("reasoning", &format!("\"{}\"", "y".repeat(padding)));
        let log = format!("{one}{quoted}{filler}{one}{one}");
        assert_eq!(
            occurrences(&mut Cursor::new(log), USER_MESSAGE_MARK).unwrap().len(),
            3,
            "{padding}"
        );
    }
    for cut in 0..120 {
        let filler = "y".repeat(262_144 - cut);
        let log = format!("{filler}{one}");
        assert_eq!(
            occurrences(&mut Cursor::new(log), USER_MESSAGE_MARK).unwrap().len(),
            1,
            "{cut}"
        );
    }
}

#[test]
fn the_list_is_newest_first_names_a_holder_and_omits_foreign_files() {
    let folder = tempfile::tempdir().unwrap();
    let root = StateRoot::in_workspace(folder.path());
    let [old, new] = ["20260101T000000-aaaaaa", "20260102T000000-bbbbbb"]
        .map(|id| SessionId::parse(id).unwrap());
    let mut log = Log::create(&root, &old).unwrap();
    log.append(
        crate::record::event::UserMessage { text: "first".into(), ..Default::default() }.into(),
    )
    .unwrap();
    drop(log);
    let log_path = root.log(&old);
    let long_ago = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1000);
    File::options().append(true).open(&log_path).unwrap().set_modified(long_ago).unwrap();
    let held = Log::create(&root, &new).unwrap();
    fs::write(root.sessions().path().join("notes.txt"), "x").unwrap();
    std::os::unix::fs::symlink(&log_path, root.sessions().path().join("link.ndjson")).unwrap();

    let list = list_sessions(std::slice::from_ref(&root), usize::MAX);
    let ids: Vec<_> = list.iter().map(|summary| &summary.session_id).collect();
    assert_eq!(ids, [&new, &old]);
    assert_eq!(list[0].status, SummaryStatus::Running { pid: std::process::id() });
    assert_eq!((list[1].title.as_str(), list[1].turns), ("first", 1));
    assert_eq!(list[1].status, SummaryStatus::Open);

    assert!(matches!(delete_session(&root, &new), Err(LogError::Busy { .. })));
    drop(held);
    assert_eq!(delete_session(&root, &new).unwrap(), [root.log(&new)]);
    assert!(!root.has_log(&new) && root.has_log(&old));
    assert!(matches!(delete_session(&root, &new), Err(LogError::NotFound { .. })));
}

#[test]
fn the_last_named_model_is_found_wherever_it_stands() {
    let folder = tempfile::tempdir().unwrap();
    let root = StateRoot::in_workspace(folder.path());
    let id = SessionId::parse("20260101T000000-aaaaaa").unwrap();
    let log = root.log(&id);
    fs::create_dir_all(log.parent().unwrap()).unwrap();
    let filler = line("reasoning", &format!("\"{}\"", "y".repeat(300_000)));
    let start = line("session_started", r#"{"model":"one"}"#);
    let named = line("posture_changed", r#"{"model":"two"}"#);
    let unnamed = line("posture_changed", r#"{"effort":"low"}"#);
    for (text, expected) in [
        (format!("{start}{filler}"), Some("one")),
        (format!("{start}{filler}{named}{unnamed}{filler}"), Some("two")),
        (format!("{start}{unnamed}"), Some("one")),
        (filler.clone(), None),
    ] {
        fs::write(&log, text).unwrap();
        assert_eq!(posture_model(&root, &id).as_deref(), expected);
    }
}
