//! Damage: cuts at every byte of a Log's end and bit flips all over it are reported, survived and repaired.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use pixir::scripted::{ModelScript, ReceivedRequest, Reply};
use pixir::{
    Conversation, LogBreak, SessionId, SessionStatus, SessionTarget, StartOptions, Verification,
    repair_log, verify_log,
};
use serde_json::{Value, json};

use crate::support::TestEnv;
use crate::support::test_env::send_and_finish;
use crate::support::torture::{self, SuiteSize};

/// The part of the Log's end in which every byte is cut.
const CUT_BYTES: usize = 20 * 1024;

/// The model's answer in a resumed Session.
const RESUMED: &str = "I know where we were.";

/// A Log made by real Turns, and its lines as an independent reader parses them.
struct RealLog {
    id: SessionId,
    bytes: Vec<u8>,
    lines: Vec<RealLine>,
}

struct RealLine {
    /// Offset after the newline.
    end: usize,
    event: Value,
}

impl RealLog {
    /// Seven Turns with everything that a Log usually holds.
    async fn make() -> Self {
        let env = TestEnv::with_script(ModelScript::answering(reply)).await;
        env.write("poem.txt", "roses are red\nviolets are blue\n");
        let conversation = env.start().await;
        for turn in ["long", "look", "change", "look", "several", "fail", "look"] {
            let status = send_and_finish(&conversation, turn).await;
            assert_eq!(status == SessionStatus::Done, turn != "fail", "{turn}: {status:?}");
        }
        Self::new(conversation.id().clone(), fs::read(conversation.log_path()).unwrap())
    }

    fn new(id: SessionId, bytes: Vec<u8>) -> Self {
        let mut lines = Vec::new();
        for line in bytes.split_inclusive(|byte| *byte == b'\n') {
            let start = lines.last().map_or(0, |line: &RealLine| line.end);
            let event = serde_json::from_slice(line).unwrap();
            lines.push(RealLine { end: start + line.len(), event });
        }
        Self { id, bytes, lines }
    }

    /// The line that holds a byte, from 1.
    fn line_of(&self, place: usize) -> u64 {
        self.lines.partition_point(|line| line.end <= place) as u64 + 1
    }

    /// Number of Turns in the first lines, and seq and calls of the open Turn.
    fn turns(&self, count: usize) -> (usize, Option<(u64, Vec<String>)>) {
        let mut turns = 0;
        let mut open = None;
        for RealLine { event, .. } in &self.lines[..count] {
            let data = &event["data"];
            let call_id = || data["call_id"].as_str().unwrap().to_owned();
            match (event["type"].as_str().unwrap(), &mut open) {
                ("user_message", _) => {
                    turns += 1;
                    open = Some((event["seq"].as_u64().unwrap(), Vec::new()));
                }
                ("turn_failed", _) => open = None,
                ("assistant_message", _) if data["phase"] == "final" => open = None,
                ("tool_call", Some((_, calls))) => calls.push(call_id()),
                ("tool_result", Some((_, calls))) => calls.retain(|call| *call != call_id()),
                _ => {}
            }
        }
        (turns, open)
    }
}

/// The scripted model of this file; the user's text selects the reply.
fn reply(request: &ReceivedRequest) -> Reply {
    let prompt = request.user_texts().last().copied().unwrap_or_default().to_owned();
    let step = request.outputs().len();
    let read = json!({"path": "poem.txt"});
    match (prompt.as_str(), step) {
        ("long", 0) => Reply::new()
            .reasoning("A long look first.")
            .text("I will count.")
            .call("bash", json!({"command": "seq 1 2400"})),
        ("look", 0) => Reply::new().reasoning("Hm.").text("Let me see.").call("read", read),
        ("change", 0) => Reply::calls("read", read),
        ("change", 1) => Reply::new().text("Now I change it.").call(
            "edit",
            json!({"path": "poem.txt", "edits": [{"old_string": "red", "new_string": "grün\u{2028}"}]}),
        ),
        ("change", 2) => Reply::calls("bash", json!({"command": "cat poem.txt; exit 3"})),
        ("several", 0) => Reply::new()
            .reasoning("Three at once.")
            .call("read", read.clone())
            .call("read", json!({"path": "nowhere"}))
            .call("write", json!({"path": "copy.txt", "content": "a\r\nb\0c\n".repeat(40)})),
        ("fail", 0) => Reply::calls("bash", json!({"command": "echo \"quoted\" 'and' \\\\"})),
        ("fail", _) => Reply::status(403, r#"{"error":{"message":"not for you"}}"#),
        ("go on", _) => Reply::says(RESUMED),
        _ => Reply::says("That is all there is to say about it, in a sentence of some length."),
    }
}

/// One kind of damage to the Log.
#[derive(Debug, Clone, Copy)]
enum LogDamage {
    /// The Log is cut to this many bytes.
    Cut(usize),
    Flip {
        place: usize,
        bit: u8,
    },
}

impl LogDamage {
    fn apply(self, bytes: &[u8]) -> Vec<u8> {
        match self {
            Self::Cut(length) => bytes[..length].to_vec(),
            Self::Flip { place, bit } => {
                let mut bytes = bytes.to_vec();
                bytes[place] ^= 1 << bit;
                bytes
            }
        }
    }
}

/// A Workspace that holds one Log and nothing else.
struct ScratchWorkspace {
    folder: tempfile::TempDir,
    path: PathBuf,
}

impl ScratchWorkspace {
    fn with_log(log: &RealLog, bytes: &[u8]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let sessions = folder.path().join(".pixir/sessions");
        fs::create_dir_all(&sessions).unwrap();
        let path = sessions.join(format!("{}.ndjson", log.id));
        fs::write(&path, bytes).unwrap();
        Self { folder, path }
    }

    fn workspace(&self) -> &Path {
        self.folder.path()
    }

    fn file(&self) -> File {
        File::options().write(true).open(&self.path).unwrap()
    }
}

fn places(breaks: &[LogBreak]) -> Vec<(&'static str, u64)> {
    breaks.iter().map(|found| (found.kind, found.line)).collect()
}

/// Checks the verification of a Log that ends at `cut`.
#[track_caller]
fn check_cut(log: &RealLog, cut: usize, seen: &Verification) {
    let whole = log.lines.partition_point(|line| line.end <= cut);
    let start = log.lines[..whole].last().map_or(0, |line| line.end);
    let (turns, open) = log.turns(whole);
    let reported: Vec<_> =
        seen.breaks.iter().map(|b| (b.kind, b.line, b.offset, b.length)).collect();
    if cut == start {
        assert!(seen.ok && reported.is_empty(), "cut {cut}: {reported:?}");
        let reported_open = seen.open_turn.as_ref().map(|open| {
            (open.seq.unwrap(), open.pending_calls.iter().map(ToString::to_string).collect())
        });
        assert_eq!((seen.lines, seen.turns), (whole as u64, turns), "cut {cut}");
        assert_eq!(reported_open, open, "cut {cut}");
        assert_eq!(seen.open_turn.as_ref().map_or(turns, |open| open.number), turns);
    } else {
        // A line without its newline is torn; a shorter one cannot be read.
        let kind = if cut + 1 == log.lines[whole].end { "torn_tail" } else { "unreadable_line" };
        let torn = (kind, whole as u64 + 1, start as u64, (cut - start) as u64);
        assert_eq!((seen.ok, reported), (false, vec![torn]), "cut {cut}");
    }
}

/// Checks the verification of a Log with one flipped bit.
#[track_caller]
fn check_flip(log: &RealLog, damage: LogDamage, seen: &Verification) {
    let LogDamage::Flip { place, .. } = damage else { panic!("{damage:?}") };
    let line = log.line_of(place);
    assert!(!seen.ok, "{damage:?} in line {line} is not reported");
    // A first line without proof is valid in Logs of the first Pixir; the second line shows the damage.
    let expected = if line == 1 { 1..=2 } else { line..=line };
    let is_named = seen.breaks.iter().any(|found| expected.contains(&found.line));
    assert!(is_named, "{damage:?} in line {line}: {:?}", seen.breaks);
}

/// The cuts to make, the longest Log first, so that a file need only shrink.
fn cuts(log: &RealLog, size: SuiteSize, random: &mut fastrand::Rng) -> Vec<usize> {
    let first = log.bytes.len() - CUT_BYTES;
    let ends = log.lines.iter().map(|line| line.end).filter(|end| *end > first);
    // Every sample has all line boundaries and their neighbours, because they are few and matter most.
    let mut cuts: Vec<usize> = match size {
        SuiteSize::Full => (first..log.bytes.len()).collect(),
        SuiteSize::Sample => {
            let mut cuts: Vec<usize> = ends.flat_map(|end| [end - 1, end, end + 1]).collect();
            cuts.extend((0..CUT_BYTES / 10).map(|_| random.usize(first..log.bytes.len())));
            cuts
        }
    };
    cuts.retain(|cut| *cut < log.bytes.len());
    cuts.sort_unstable_by(|one, other| other.cmp(one));
    cuts.dedup();
    cuts
}

fn flips(log: &RealLog, count: usize, random: &mut fastrand::Rng) -> Vec<LogDamage> {
    let flip = |place, bit| LogDamage::Flip { place, bit };
    let mut flips: Vec<LogDamage> =
        (0..count).map(|_| flip(random.usize(0..log.bytes.len()), random.u8(0..8))).collect();
    // Flips in each newline, and in the proof before it.
    for line in &log.lines {
        flips.push(flip(line.end - 1, random.u8(0..8)));
        flips.push(flip(line.end - 2 - random.usize(0..24), random.u8(0..8)));
    }
    flips
}

/// Verifies all cuts and flips, on two threads per kind with a file each.
fn verify_all(log: &RealLog, cuts: &[usize], flips: &[LogDamage]) {
    let share = |count: usize| count.div_ceil(2).max(1);
    std::thread::scope(|scope| {
        for cuts in cuts.chunks(share(cuts.len())) {
            scope.spawn(move || {
                let scratch = ScratchWorkspace::with_log(log, &log.bytes);
                let file = scratch.file();
                for cut in cuts {
                    file.set_len(*cut as u64).unwrap();
                    check_cut(log, *cut, &verify_log(scratch.workspace(), &log.id).unwrap());
                }
            });
        }
        for flips in flips.chunks(share(flips.len())) {
            scope.spawn(move || {
                let scratch = ScratchWorkspace::with_log(log, &log.bytes);
                let file = scratch.file();
                for damage in flips {
                    let LogDamage::Flip { place, bit } = *damage else { panic!("{damage:?}") };
                    let byte = log.bytes[place];
                    file.write_all_at(&[byte ^ (1 << bit)], place as u64).unwrap();
                    check_flip(log, *damage, &verify_log(scratch.workspace(), &log.id).unwrap());
                    file.write_all_at(&[byte], place as u64).unwrap();
                }
            });
        }
    });
}

async fn open(env: &TestEnv, scratch: &ScratchWorkspace, id: &SessionId) -> Conversation {
    let workspace = scratch.workspace().to_owned();
    let session = SessionTarget::Resume(id.clone());
    env.harness()
        .start(StartOptions { workspace, session, can_ask: false, mcp_servers: Vec::new() })
        .await
        .unwrap()
}

/// Resumes the damaged Log and runs one Turn; checks that there is no new damage.
async fn resume(env: &TestEnv, log: &RealLog, damage: LogDamage) {
    let damaged = damage.apply(&log.bytes);
    let scratch = ScratchWorkspace::with_log(log, &damaged);
    let before = verify_log(scratch.workspace(), &log.id).unwrap();
    let conversation = open(env, &scratch, &log.id).await;
    let notices = conversation.notices().join("\n");
    for found in before.breaks.iter().filter(|found| found.kind == "unreadable_line") {
        let line = format!("line {}", found.line);
        assert!(notices.contains(&line), "{damage:?}: {line} is not reported: {notices}");
    }
    assert_eq!(before.ok, notices.is_empty(), "{damage:?}: {notices}");
    // The scripted server refuses calls and outputs that do not pair, as the real one does.
    assert_eq!(send_and_finish(&conversation, "go on").await, SessionStatus::Done, "{damage:?}");
    let history = conversation.history().await.unwrap();
    assert!(history.turns().open.is_none(), "{damage:?}");
    let after = verify_log(scratch.workspace(), &log.id).unwrap();
    assert!(after.open_turn.is_none(), "{damage:?}");
    let known = places(&before.breaks);
    let left = places(&after.breaks);
    let news: Vec<_> = left.iter().filter(|found| !known.contains(found)).collect();
    assert!(news.is_empty(), "{damage:?} left {news:?}");
    let bytes = fs::read(&scratch.path).unwrap();
    assert!(bytes.starts_with(&damaged), "{damage:?}: earlier bytes were changed");
    if let LogDamage::Cut(cut) = damage {
        assert!(after.ok, "{damage:?}: a closed tail is accounted for: {:?}", after.breaks);
        let is_torn = log.lines.iter().all(|line| line.end != cut && line.end != cut + 1);
        assert_eq!(after.repaired.len(), usize::from(is_torn), "{damage:?}");
    }
}

/// Repairs into a copy; checks that the copy verifies and the original is unchanged.
async fn repair_copy(env: &TestEnv, log: &RealLog, damage: LogDamage) {
    let damaged = damage.apply(&log.bytes);
    let scratch = ScratchWorkspace::with_log(log, &damaged);
    let before = verify_log(scratch.workspace(), &log.id).unwrap();
    let repaired = repair_log(scratch.workspace(), &log.id).unwrap();
    assert_eq!(fs::read(&scratch.path).unwrap(), damaged, "{damage:?}: the original is untouched");
    assert_eq!(repaired.breaks, before.breaks, "{damage:?}");
    let copy = verify_log(scratch.workspace(), &repaired.session_id).unwrap();
    assert!(copy.ok && copy.open_turn.is_none(), "{damage:?}: {:?}", copy.breaks);
    assert_eq!(copy.events, repaired.events_kept + repaired.events_added, "{damage:?}");
    let conversation = open(env, &scratch, &repaired.session_id).await;
    assert_eq!(conversation.notices().len(), 0, "{damage:?}: {:?}", conversation.notices());
    assert_eq!(send_and_finish(&conversation, "go on").await, SessionStatus::Done, "{damage:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_cut_and_every_flip_is_reported_survived_and_repaired() {
    let size = SuiteSize::from_environment();
    let seed = torture::seed();
    let began = Instant::now();
    let mut random = fastrand::Rng::with_seed(seed);
    let log = RealLog::make().await;
    assert!(log.bytes.len() >= 30 * 1024, "{} bytes", log.bytes.len());
    let cuts = cuts(&log, size, &mut random);
    let flips = flips(&log, size.choose(200, 2000), &mut random);
    verify_all(&log, &cuts, &flips);
    let env = TestEnv::with_script(ModelScript::answering(reply)).await;
    let mut resumes: Vec<LogDamage> = (0..size.choose(10, 100))
        .map(|_| LogDamage::Cut(cuts[random.usize(0..cuts.len())]))
        .collect();
    // Some cuts at line boundaries leave an open Turn as the only problem.
    resumes.extend((0..size.choose(4, 20)).map(|_| {
        let line = &log.lines[random.usize(1..log.lines.len())];
        LogDamage::Cut(line.end - random.usize(0..2))
    }));
    resumes.extend((0..size.choose(12, 100)).map(|_| flips[random.usize(0..flips.len())]));
    for damage in &resumes {
        resume(&env, &log, *damage).await;
    }
    let repairs = size.choose(8, 60);
    for _ in 0..repairs {
        repair_copy(&env, &log, flips[random.usize(0..flips.len())]).await;
    }
    torture::print_summary(&format!(
        "damage: {} bytes in {} lines, {} cuts, {} flips, {} resumes, {repairs} repairs, \
         seed={seed}, {:.1} s",
        log.bytes.len(),
        log.lines.len(),
        cuts.len(),
        flips.len(),
        resumes.len(),
        began.elapsed().as_secs_f64(),
    ));
}
