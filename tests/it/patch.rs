//! Patches: several files in one call, and kills in the middle of a patch.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use pixir::SessionStatus;
use pixir::scripted::{ModelScript, Reply};
use serde_json::{Value, json};

use crate::support::binary_env::{RunningProcess, wait_for};
use crate::support::torture::{self, SuiteSize};
use crate::support::{BinaryEnv, TestEnv};

fn patch(body: &str) -> Value {
    json!({ "patch": format!("*** Begin Patch\n{body}*** End Patch\n") })
}

#[tokio::test]
async fn a_patch_that_does_not_fit_is_sent_again_and_changes_all_files() {
    let wrong =
        "*** Update File: a.rs\n-fn one() {}\n+fn two() {}\n*** Update File: b.rs\n-x\n+y\n";
    let right = "*** Update File: a.rs\n-fn one() {}\n+fn two() {}\n*** Update File: b.rs\n\
        @@ mod tests\n-x\n+y\n*** Add File: c.rs\n+new\n";
    let env = TestEnv::with_replies([
        Reply::calls("apply_patch", patch(wrong)),
        Reply::calls("apply_patch", patch(right)),
        Reply::says("Done."),
    ])
    .await;
    env.write("a.rs", "fn one() {}\r\n");
    env.write("b.rs", "x\nmod tests\nx\n");
    let (conversation, status) = env.run_turn("rename it").await;
    assert_eq!(status, SessionStatus::Done);
    let files = ["a.rs", "b.rs", "c.rs"].map(|name| env.read(name));
    assert_eq!(files, ["fn two() {}\r\n", "x\nmod tests\ny\n", "new\n"]);
    let requests = env.requests();
    let text = requests[1].outputs().join("");
    assert!(text.contains("fits 2 places, at lines 1, 3"), "{text}");
    assert!(text.contains("no file was changed"), "{text}");
    let transcript = env.transcript(&conversation);
    let results: Vec<&str> =
        transcript.lines().filter(|line| line.contains("tool_result")).collect();
    insta::assert_snapshot!(results.join("\n"), @r#"
    4 tool_result error not_unique
    7 tool_result ok=true "patched 3 files (+3 -2)\nM a.rs (+1 -1)\nM b.rs (+1 -1)\nA c.rs (+1 -0)"
    "#);
}

/// Number of files before the patch; the patch adds as many.
const FILES: usize = 16;

/// Number of files that the patch moves.
const MOVED: usize = FILES / 8;

/// Content of a file in a version; large enough that an incomplete write would show.
fn content(file: usize, version: &str) -> String {
    let mut text = format!("file {file}\nversion {version}\n");
    for line in 0..400 {
        writeln!(text, "{line:05} the quick brown fox").unwrap();
    }
    text
}

fn lay_out(folder: &Path) {
    for file in 0..FILES {
        fs::write(folder.join(format!("{file}.txt")), content(file, "old")).unwrap();
    }
}

/// A patch that updates most files, moves some, deletes some, and adds some.
fn great_patch() -> String {
    let mut body = String::new();
    for file in 0..FILES {
        match file % 8 {
            6 => writeln!(body, "*** Delete File: {file}.txt").unwrap(),
            kind => {
                writeln!(body, "*** Update File: {file}.txt").unwrap();
                if kind == 7 {
                    writeln!(body, "*** Move to: moved/{file}.txt").unwrap();
                }
                body.push_str("@@\n-version old\n+version new\n");
            }
        }
        writeln!(body, "*** Add File: new/{file}.txt\n+new {file}").unwrap();
    }
    body
}

/// Checks that every file is old or new, and gives how many are new.
fn count_new(folder: &Path) -> usize {
    let mut new = 0;
    for file in 0..FILES {
        let name = format!("{file}.txt");
        let here = fs::read_to_string(folder.join(&name)).ok();
        let moved = fs::read_to_string(folder.join("moved").join(&name)).ok();
        let old = content(file, "old");
        let changed = content(file, "new");
        let is_new = match file % 8 {
            6 => here.is_none(),
            7 => here.is_none() && moved.is_some(),
            _ => here.as_deref() == Some(&*changed),
        };
        assert!(here.is_none() && file % 8 > 5 || here == Some(old) || is_new, "{name}");
        assert!(moved.is_none() || file % 8 == 7 && moved == Some(changed), "moved {name}");
        assert!(here.is_some() || moved.is_some() || file % 8 == 6, "{name} is lost");
        let added = fs::read_to_string(folder.join("new").join(&name)).ok();
        assert!(added.is_none() || added == Some(format!("new {file}\n")), "new {name}");
        new += usize::from(is_new);
    }
    new
}

/// The moment of a kill.
#[derive(Debug, Clone, Copy)]
enum PatchKillPoint {
    /// Instead of the n-th system call of this name, from 1.
    Call(&'static str, usize),
    /// After this time since the first new folder exists.
    Later(Duration),
}

/// Runs the patch and kills it. `strace` hits every point exactly; without it, kills are timed.
fn kill_at(binary_env: &BinaryEnv, point: PatchKillPoint) {
    let folder = binary_env.workspace();
    match point {
        PatchKillPoint::Call(name, number) => {
            let mut command = Command::new("strace");
            let inject = format!("inject={name}:signal=KILL:when={number}");
            command.args(["-f", "-qq", "-o", "/dev/null", "-e", &format!("trace={name}")]);
            command.args(["-e", &inject, "--"]).arg(binary_env.program()).arg("patch it");
            binary_env.configure_command(&mut command);
            let ended = RunningProcess::start(&mut command).end();
            assert_eq!(ended.status.code(), None, "{point:?}: {ended:?}");
        }
        PatchKillPoint::Later(later) => {
            let running = binary_env.start(&["patch it"]);
            wait_for(Duration::from_secs(30), || folder.join("new").exists(), |is_there| *is_there);
            std::thread::sleep(later);
            running.signal(rustix::process::Signal::KILL);
            running.end();
        }
    }
}

fn has_strace() -> bool {
    Command::new("strace").arg("-V").output().is_ok()
}

/// Every rename and every removal that the patch makes, and some moments before them.
fn kill_points(random: &mut fastrand::Rng) -> Vec<PatchKillPoint> {
    let later = |random: &mut fastrand::Rng| {
        PatchKillPoint::Later(Duration::from_micros(random.u64(0..60_000)))
    };
    let mut points: Vec<PatchKillPoint> = (0..16).map(|_| later(random)).collect();
    let has_strace = has_strace();
    // Every new name and every old file takes one rename, and every old file one removal.
    let renames = FILES + MOVED + FILES;
    let removals = FILES;
    let exact = (1..=renames)
        .map(|number| PatchKillPoint::Call("renameat2", number))
        .chain((1..=removals).map(|number| PatchKillPoint::Call("unlinkat", number)));
    points.extend(exact.map(|point| if has_strace { point } else { later(random) }));
    points
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_kill_in_the_middle_of_a_patch_leaves_each_file_old_or_new() {
    let seed = torture::seed();
    let began = Instant::now();
    let mut random = fastrand::Rng::with_seed(seed);
    let mut points = kill_points(&mut random);
    random.shuffle(&mut points);
    points.truncate(SuiteSize::from_environment().choose(points.len() / 5, points.len()));
    // New names come first, then the exchange of old files: this kill is in the middle of those.
    let middle = PatchKillPoint::Call("renameat2", FILES + MOVED + FILES / 2);
    points.extend(has_strace().then_some(middle));
    let mut untouched = 0;
    let mut between = 0;
    let mut whole = 0;
    for point in &points {
        let script = ModelScript::new([
            Reply::calls("apply_patch", patch(&great_patch())),
            Reply::says("Done."),
        ]);
        let binary_env = BinaryEnv::new(BinaryEnv::new_mark(), script).await;
        lay_out(&binary_env.workspace());
        tokio::task::block_in_place(|| kill_at(&binary_env, *point));
        match count_new(&binary_env.workspace()) {
            0 => untouched += 1,
            FILES => whole += 1,
            _ => between += 1,
        }
    }
    assert!(between > 0 || !has_strace(), "no kill hit the middle of a patch: {points:?}");
    torture::print_summary(&format!(
        "patch: kills={} untouched={untouched} between={between} whole={whole} torn files=0 seed={seed}, {:.1} s",
        points.len(),
        began.elapsed().as_secs_f64(),
    ));
}
