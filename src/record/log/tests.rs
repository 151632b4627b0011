//! Tests of the Log: damage that it survives, proofs, and refusals.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde_json::json;

use super::*;
use crate::base::id::CallId;
use crate::record::event::{AssistantMessage, Phase, ToolCall, ToolResult, UserMessage};

fn says(text: &str) -> Canonical {
    UserMessage { text: text.to_owned(), ..UserMessage::default() }.into()
}

fn answers(text: &str) -> Canonical {
    AssistantMessage {
        text: text.to_owned(),
        phase: Some(Phase::Final),
        ..AssistantMessage::default()
    }
    .into()
}

fn calls(id: &str) -> Canonical {
    ToolCall {
        call_id: CallId::new(id),
        name: "bash".to_owned(),
        args: json!({"command": "true"}),
        raw_args: None,
        extra: Extra::new(),
    }
    .into()
}

fn results(id: &str, output: &str) -> Canonical {
    ToolResult {
        call_id: CallId::new(id),
        ok: true,
        output: Some(output.to_owned()),
        error: None,
        details: serde_json::Value::Null,
        extra: Extra::new(),
    }
    .into()
}

/// A Workspace with one Session of two answered Turns.
struct LogFixture {
    folder: tempfile::TempDir,
    id: SessionId,
}

impl LogFixture {
    fn new() -> Self {
        let place = Self { folder: tempfile::tempdir().unwrap(), id: SessionId::mint() };
        let mut log = Log::create(place.workspace(), &place.id).unwrap();
        let facts =
            [says("one"), calls("a"), results("a", "x"), answers("1"), says("two"), answers("2")];
        for fact in facts {
            log.append(fact).unwrap();
        }
        place
    }
    fn workspace(&self) -> &Path {
        self.folder.path()
    }
    fn path(&self) -> PathBuf {
        StateRoot::in_workspace(self.workspace()).log(&self.id)
    }
    fn bytes(&self) -> Vec<u8> {
        fs::read(self.path()).unwrap()
    }
    fn lines(&self) -> Vec<String> {
        String::from_utf8(self.bytes()).unwrap().lines().map(str::to_owned).collect()
    }
    fn rewrite(&self, bytes: &[u8]) {
        fs::write(self.path(), bytes).unwrap();
    }
    fn rewrite_lines(&self, lines: &[String]) {
        self.rewrite((lines.join("\n") + "\n").as_bytes());
    }
    fn verify(&self) -> Verification {
        verify_log(self.workspace(), &self.id).unwrap()
    }
    fn breaks(&self) -> Vec<(&'static str, u64)> {
        self.verify().breaks.iter().map(|found| (found.kind, found.line)).collect()
    }
}

#[test]
fn a_log_comes_back_as_it_was_written() {
    let place = LogFixture::new();
    let (log, opened) = Log::open(place.workspace(), &place.id).unwrap();
    assert!(opened.damage.is_empty() && opened.torn.is_none());
    let types: Vec<_> = log.history().iter().map(|event| event.type_name().to_owned()).collect();
    assert_eq!(
        types,
        [
            "user_message",
            "tool_call",
            "tool_result",
            "assistant_message",
            "user_message",
            "assistant_message"
        ]
    );
    assert_eq!(log.next_seq(), 6);
    drop(log);
    assert!(place.verify().ok);
}

#[test]
fn the_proof_is_the_documented_one() {
    let place = LogFixture::new();
    let mut previous = String::new();
    for line in place.lines() {
        let (body, suffix) = line.split_at(line.len() - 24);
        assert!(suffix.starts_with(r#","h":""#) && suffix.ends_with(r#""}"#), "{line}");
        let expected = &crate::base::id::sha256(format!("{previous}{body}").as_bytes())[..16];
        assert_eq!(&suffix[6..22], expected);
        previous = expected.to_owned();
    }
}

#[test]
fn files_are_private_and_ignored_by_git() {
    let place = LogFixture::new();
    let mode = |path: PathBuf| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(place.path()), 0o600);
    assert_eq!(mode(StateRoot::in_workspace(place.workspace()).sessions().path()), 0o700);
    let ignore =
        fs::read_to_string(crate::base::paths::state_folder(place.workspace()).join(".gitignore"))
            .unwrap();
    assert!(ignore.contains("/sessions/") && !ignore.contains("config"));
}

#[test]
fn a_second_writer_is_refused_with_the_holder() {
    let place = LogFixture::new();
    let held = Log::open(place.workspace(), &place.id).unwrap();
    let refused = Log::open(place.workspace(), &place.id).unwrap_err();
    assert!(
        matches!(refused, LogError::Busy { holder: Some(pid), .. } if pid == std::process::id())
    );
    drop(held);
    Log::open(place.workspace(), &place.id).unwrap();
}

#[test]
fn changed_dropped_swapped_and_inserted_lines_show() {
    let place = LogFixture::new();
    let lines = place.lines();

    let mut changed = lines.clone();
    changed[1] = changed[1].replace("true", "evil");
    place.rewrite_lines(&changed);
    assert_eq!(place.breaks(), [("broken_proof", 2)]);

    let mut dropped = lines.clone();
    dropped.remove(4);
    place.rewrite_lines(&dropped);
    assert_eq!(place.breaks(), [("broken_proof", 5), ("seq_order", 5)]);

    let mut swapped = lines.clone();
    swapped.swap(3, 4);
    place.rewrite_lines(&swapped);
    assert!(place.breaks().contains(&("broken_proof", 4)));

    let mut inserted = lines.clone();
    inserted.insert(3, lines[0].clone());
    place.rewrite_lines(&inserted);
    assert!(place.breaks().contains(&("broken_proof", 4)));

    let mut stripped = lines.clone();
    let cut = stripped[3].len() - 24;
    stripped[3] = stripped[3][..cut].to_owned() + "}";
    place.rewrite_lines(&stripped);
    assert!(place.breaks().contains(&("unproven_line", 4)));
}

#[test]
fn a_torn_tail_is_closed_skipped_recorded_and_reported() {
    let place = LogFixture::new();
    let whole = place.bytes();
    place.rewrite(&whole[..whole.len() - 10]);
    assert_eq!(place.breaks(), [("unreadable_line", 6)]);
    assert_eq!(place.verify().open_turn.unwrap().number, 2);

    let (mut log, opened) = Log::open(place.workspace(), &place.id).unwrap();
    assert!(!opened.torn.unwrap().whole);
    log.append(answers("again")).unwrap();
    drop(log);

    let verification = place.verify();
    assert!(verification.ok, "{verification:?}");
    assert_eq!(verification.repaired.len(), 1);
    assert!(place.bytes().starts_with(&whole[..whole.len() - 10]), "nothing is deleted");
    let (log, _) = Log::open(place.workspace(), &place.id).unwrap();
    let seqs: Vec<_> = log.history().iter().filter_map(|event| event.seq()).collect();
    assert_eq!(seqs, [0, 1, 2, 3, 4, 5, 6]);
}

#[test]
fn a_death_while_a_torn_tail_is_closed_is_made_good_by_the_next_open() {
    let place = LogFixture::new();
    let whole = place.bytes();
    let torn = &whole[..whole.len() - 10];
    place.rewrite(torn);
    drop(Log::open(place.workspace(), &place.id).unwrap());
    let closed = place.bytes();
    for cut in torn.len()..closed.len() {
        place.rewrite(&closed[..cut]);
        drop(Log::open(place.workspace(), &place.id).unwrap());
        let verification = place.verify();
        assert!(verification.ok, "cut at {cut}: {:?}", verification.breaks);
        assert!(!verification.repaired.is_empty(), "cut at {cut}");
        let again = place.bytes();
        place.rewrite(&again[..again.len() - 7]);
        drop(Log::open(place.workspace(), &place.id).unwrap());
        assert!(place.verify().ok, "cut at {cut}, then again: {:?}", place.breaks());
    }
}

#[test]
fn a_line_that_only_lost_its_newline_counts() {
    let place = LogFixture::new();
    let whole = place.bytes();
    place.rewrite(&whole[..whole.len() - 1]);
    assert_eq!(place.breaks(), [("torn_tail", 6)]);
    let (log, opened) = Log::open(place.workspace(), &place.id).unwrap();
    assert!(opened.torn.unwrap().whole);
    assert_eq!(log.history().len(), 7);
    drop(log);
    assert!(place.verify().ok);
}

#[test]
fn damage_in_the_middle_never_blocks_and_names_its_place() {
    let place = LogFixture::new();
    let lines = place.lines();
    for rubbish in
        [&b"\0\0\0\0"[..], b"{\"half\":", b"\xff\xfe", "\u{2028}".as_bytes(), b"[]", b"7"]
    {
        let mut bytes = (lines[..2].join("\n") + "\n").into_bytes();
        let offset = bytes.len() as u64;
        bytes.extend_from_slice(rubbish);
        bytes.push(b'\n');
        bytes.extend_from_slice((lines[2..].join("\n") + "\n").as_bytes());
        place.rewrite(&bytes);
        let verification = place.verify();
        let [found] = verification.breaks.as_slice() else { panic!("{verification:?}") };
        assert_eq!((found.kind, found.line, found.offset), ("unreadable_line", 3, offset));
        let (log, opened) = Log::open(place.workspace(), &place.id).unwrap();
        assert_eq!((log.history().len(), opened.damage.len()), (6, 1));
    }
}

#[test]
fn unknown_types_and_fields_survive_and_are_not_damage() {
    let place = LogFixture::new();
    let mut log = Log::open(place.workspace(), &place.id).unwrap().0;
    let data = serde_json::value::RawValue::from_string(r#"{"z":1,"a":[2.50]}"#.into()).unwrap();
    log.append(Canonical::decode("from_the_future", &data)).unwrap();
    let extra = json!({"text": "hi", "mood": "good"}).as_object().unwrap().clone();
    let message: UserMessage = serde_json::from_value(serde_json::Value::Object(extra)).unwrap();
    log.append(message.into()).unwrap();
    drop(log);
    assert!(place.verify().ok);
    let (log, _) = Log::open(place.workspace(), &place.id).unwrap();
    let [.., future, friendly] = &log.history().since(0)[..] else { panic!() };
    assert_eq!(serde_json::to_string(future.fact().unwrap()).unwrap(), r#"{"z":1,"a":[2.50]}"#);
    assert_eq!(future.type_name(), "from_the_future");
    assert!(serde_json::to_string(friendly).unwrap().contains(r#""mood":"good""#));
}

#[test]
fn a_large_payload_goes_to_a_blob_and_comes_back() {
    let place = LogFixture::new();
    let large = "x".repeat(blob::LARGEST_INLINE + 1);
    let mut log = Log::open(place.workspace(), &place.id).unwrap().0;
    log.append(says("three")).unwrap();
    log.append(calls("b")).unwrap();
    log.append(results("b", &large)).unwrap();
    log.append(answers("3")).unwrap();
    drop(log);
    assert!(place.bytes().len() < 10_000);
    assert!(place.verify().ok);
    let reading = Log::read(place.workspace(), &place.id).unwrap();
    let Some(Canonical::ToolResult(result)) = reading.events[8].fact() else { panic!() };
    assert_eq!(result.output.as_deref(), Some(large.as_str()));

    let blobs =
        StateRoot::in_workspace(place.workspace()).session_folder(&place.id).path().join("blobs");
    let blob = fs::read_dir(blobs).unwrap().next().unwrap().unwrap().path();
    fs::OpenOptions::new().append(true).open(&blob).unwrap().write_all(b" ").unwrap();
    assert_eq!(place.breaks(), [("blob", 9)]);
    fs::remove_file(blob).unwrap();
    assert_eq!(place.breaks(), [("blob", 9)], "calls and results still pair");
    let repaired = repair_log(place.workspace(), &place.id).unwrap();
    let copy = verify_log(place.workspace(), &repaired.session_id).unwrap();
    assert!(copy.ok && repaired.events_dropped == 0, "{:?}", copy.breaks);
}

#[test]
fn repair_drops_a_payload_that_cannot_be_read() {
    let place = LogFixture::new();
    let mut lines = place.lines();
    let result = lines.iter().position(|line| line.contains("tool_result")).unwrap();
    lines[result] = lines[result].replace("call_id", "cell_id");
    place.rewrite_lines(&lines);
    assert!(place.breaks().contains(&("payload", result as u64 + 1)), "{:?}", place.breaks());
    let repaired = repair_log(place.workspace(), &place.id).unwrap();
    assert_eq!((repaired.events_dropped, repaired.events_added), (1, 2));
    let copy = verify_log(place.workspace(), &repaired.session_id).unwrap();
    assert!(copy.ok, "{:?}", copy.breaks);
}

#[test]
fn a_log_of_the_first_pixir_opens_and_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let id = SessionId::parse("20260721T101112-abcdef").unwrap();
    fs::create_dir_all(StateRoot::in_workspace(folder.path()).sessions().path()).unwrap();
    let fixture = include_bytes!("../../../tests/fixtures/first-pixir.ndjson");
    fs::write(StateRoot::in_workspace(folder.path()).log(&id), fixture).unwrap();
    let before = verify_log(folder.path(), &id).unwrap();
    assert!(before.ok, "{:?}", before.breaks);
    assert_eq!((before.proven_lines, before.unproven_lines), (0, before.events as u64));

    let (mut log, opened) = Log::open(folder.path(), &id).unwrap();
    assert!(opened.damage.is_empty(), "{:?}", opened.damage);
    let next = log.next_seq();
    log.append(says("go on")).unwrap();
    log.append(answers("gladly")).unwrap();
    drop(log);
    let after = verify_log(folder.path(), &id).unwrap();
    assert!(after.ok, "{:?}", after.breaks);
    assert_eq!((after.proven_lines, after.events as u64), (2, next + 2));
}

#[test]
fn a_closed_log_can_be_opened_even_while_a_child_is_being_started() {
    let place = LogFixture::new();
    let (log, _) = Log::open(place.workspace(), &place.id).unwrap();
    // A fork leaves a copy of the descriptor in the child until its exec.
    let copy = log.file.try_clone().unwrap();
    drop(log);
    assert!(Log::open(place.workspace(), &place.id).is_ok());
    drop(copy);
}

#[test]
fn links_where_state_should_be_are_refused() {
    let elsewhere = tempfile::tempdir().unwrap();
    let folder = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(elsewhere.path(), folder.path().join(".pixir")).unwrap();
    let refused = Log::create(folder.path(), &SessionId::mint()).unwrap_err();
    assert!(matches!(refused, LogError::UnsafePath { .. }), "{refused}");
    assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), 0);

    let place = LogFixture::new();
    let target = place.folder.path().join("target");
    fs::rename(place.path(), &target).unwrap();
    std::os::unix::fs::symlink(&target, place.path()).unwrap();
    assert!(matches!(Log::open(place.workspace(), &place.id), Err(LogError::UnsafePath { .. })));
}

#[test]
fn a_deleted_log_does_not_pretend_to_be_durable() {
    let place = LogFixture::new();
    let (mut log, _) = Log::open(place.workspace(), &place.id).unwrap();
    fs::remove_file(place.path()).unwrap();
    let refused = log.append(says("into the void"));
    assert!(matches!(refused, Err(LogError::Altered { alteration: Alteration::Removed, .. })));
    assert!(log.syncer().sync().is_err());
    log.poison();
    assert!(matches!(log.append(says("no")), Err(LogError::Write { .. })));
}

#[test]
fn repair_writes_a_clean_copy_and_leaves_the_original_alone() {
    let place = LogFixture::new();
    let lines = place.lines();
    let mut broken = lines.clone();
    broken[2] = "torn".to_owned();
    broken.push(lines[2].replace("\"a\"", "\"nobody\""));
    broken.pop();
    place.rewrite_lines(&broken[..5]);
    let before = place.bytes();
    let repaired = repair_log(place.workspace(), &place.id).unwrap();
    assert_eq!(place.bytes(), before);
    let copy = verify_log(place.workspace(), &repaired.session_id).unwrap();
    assert!(copy.ok, "{:?}", copy.breaks);
    assert!(copy.open_turn.is_none());
    assert!(repaired.report_path.exists());
    assert!(!repaired.breaks.is_empty());
    let again = repair_log(place.workspace(), &place.id).unwrap();
    assert_ne!(again.session_id, repaired.session_id);
}

#[test]
fn a_call_id_that_is_used_twice_still_pairs() {
    let place = LogFixture::new();
    let mut log = Log::open(place.workspace(), &place.id).unwrap().0;
    let twice = [calls("same"), calls("same"), results("same", "1"), results("same", "2")];
    for fact in [says("three")].into_iter().chain(twice).chain([answers("3")]) {
        log.append(fact).unwrap();
    }
    drop(log);
    assert_eq!(place.breaks(), []);
}

#[test]
fn a_turn_that_another_one_follows_needs_an_end() {
    let place = LogFixture::new();
    let mut log = Log::open(place.workspace(), &place.id).unwrap().0;
    for fact in [says("three"), says("four"), answers("4")] {
        log.append(fact).unwrap();
    }
    drop(log);
    assert_eq!(place.breaks(), [("turn_without_end", 7)]);
    let copy = repair_log(place.workspace(), &place.id).unwrap();
    assert!(verify_log(place.workspace(), &copy.session_id).unwrap().ok);
}

#[test]
fn a_seq_beyond_reason_is_damage_and_does_not_lead_the_next_one_astray() {
    let place = LogFixture::new();
    let mut lines = place.lines();
    lines[3] = lines[3].replace(r#""seq":3"#, r#""seq":9007199254740992"#);
    place.rewrite_lines(&lines);
    let (log, _) = Log::open(place.workspace(), &place.id).unwrap();
    assert_eq!(log.next_seq(), 6);
}

#[test]
fn bytes_that_could_not_be_taken_back_are_never_cut_into_later() {
    let place = LogFixture::new();
    let mut log = Log::open(place.workspace(), &place.id).unwrap().0;
    // A failed append left half a line behind, and the file could not be shortened.
    fs::OpenOptions::new().append(true).open(place.path()).unwrap().write_all(b"{\"half").unwrap();
    log.state = WriteState::Torn;
    log.end = fs::metadata(place.path()).unwrap().len();
    log.append(says("three")).unwrap();
    log.append(answers("3")).unwrap();
    assert_eq!(log.end, fs::metadata(place.path()).unwrap().len());
    drop(log);
    let (log, opened) = Log::open(place.workspace(), &place.id).unwrap();
    assert_eq!(opened.damage.len(), 1);
    assert!(log.history().turns().open.is_none());
}

#[test]
fn a_damaged_blob_is_written_again() {
    let place = LogFixture::new();
    let large = "x".repeat(blob::LARGEST_INLINE + 1);
    let mut log = Log::open(place.workspace(), &place.id).unwrap().0;
    log.append(says(&large)).unwrap();
    let blobs =
        StateRoot::in_workspace(place.workspace()).session_folder(&place.id).path().join("blobs");
    let blob = fs::read_dir(blobs).unwrap().next().unwrap().unwrap().path();
    fs::write(&blob, "torn").unwrap();
    log.append(answers("1")).unwrap();
    log.append(says(&large)).unwrap();
    log.append(answers("2")).unwrap();
    drop(log);
    assert_eq!(place.breaks(), []);
}

#[test]
fn a_log_never_grows_beyond_what_can_be_opened() {
    let place = LogFixture::new();
    let mut log = Log::open(place.workspace(), &place.id).unwrap().0;
    let file = fs::OpenOptions::new().write(true).open(place.path()).unwrap();
    // A sparse file takes no space on the disk.
    file.set_len(LARGEST - 10).unwrap();
    log.end = LARGEST - 10;
    let error = log.append(says("three")).unwrap_err();
    let LogError::Write { source, .. } = &error else { panic!("{error:?}") };
    assert_eq!(source.kind(), std::io::ErrorKind::FileTooLarge);
    assert!(source.to_string().contains("16 GiB"), "{source}");
    assert_eq!(error.kind(), Kind::LogWriteFailed);
    assert!(error.next_actions()[0].contains("new Session"), "{error:?}");
    assert_eq!(fs::metadata(place.path()).unwrap().len(), LARGEST - 10, "nothing was written");
    file.set_len(LARGEST - 4096).unwrap();
    log.end = LARGEST - 4096;
    log.append(says("three")).unwrap();
}
