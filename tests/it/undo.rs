//! Undo and redo: conversation and files, through the binary.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use pixir::scripted::{Reply, Script};
use serde_json::{Value, json};

use crate::support::House;
use crate::support::house::newest_log;
use crate::support::terminal::Terminal;
use crate::support::torture::{self, Size};
use crate::support::transcript;

/// Everything that must be as it was: mode, and bytes or target.
type Picture = BTreeMap<PathBuf, (u32, Vec<u8>)>;

fn picture(folder: &Path) -> Picture {
    let mut picture = Picture::new();
    let mut waiting = vec![folder.to_owned()];
    while let Some(folder) = waiting.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.ends_with(".pixir") || path.ends_with(".git") {
                continue;
            }
            let stat = fs::symlink_metadata(&path).unwrap();
            let content = if stat.is_symlink() {
                fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes()
            } else if stat.is_dir() {
                waiting.push(path.clone());
                Vec::new()
            } else {
                fs::read(&path).unwrap()
            };
            let mode = if stat.is_symlink() { 0 } else { stat.mode() };
            picture.insert(path, (mode, content));
        }
    }
    picture
}

fn log_of(house: &House) -> String {
    transcript::of(&newest_log(&house.workspace()), &house.workspace())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_is_taken_back_with_its_files_and_brought_back() {
    let edit = json!({"path": "a.txt", "edits": [{"old_string": "one", "new_string": "1"}]});
    let mess =
        "rm b.txt; mkdir -p new/deep; echo hi > new/deep/c; chmod 755 run.sh; ln -sfn b.txt link";
    let house = House::with([
        Reply::says("noted"),
        Reply::calls("edit", edit),
        Reply::calls("bash", json!({ "command": mess })),
        Reply::calls("write", json!({"path": "made/d.txt", "content": "d\n"})),
        Reply::says("changed everything"),
        Reply::says("as if nothing happened"),
    ])
    .await;
    house.write("a.txt", "one\ntwo\n");
    house.write("b.txt", "bee\r\n");
    house.write("run.sh", "#!/bin/sh\n");
    symlink("a.txt", house.workspace().join("link")).unwrap();
    let before = picture(&house.workspace());

    house.pixir(&["remember this"]).exits(0);
    house.pixir(&["resume", "--last", "change everything"]).exits(0);
    let after = picture(&house.workspace());
    assert_ne!(before, after);

    let looked = house.pixir(&["undo", "--dry-run"]).exits(0);
    for line in ["takes back 1 Turn", "restore a.txt", "make    b.txt", "remove  new/deep/c"] {
        assert!(looked.out.contains(line), "{line}: {}", looked.out);
    }
    assert_eq!(picture(&house.workspace()), after, "a preview changes nothing");

    house.pixir(&["undo", "--yes"]).exits(1);
    assert_eq!(picture(&house.workspace()), after, "what commands changed needs --force");
    house.pixir(&["undo", "--yes", "--force"]).exits(0);
    assert_eq!(picture(&house.workspace()), before);
    let again = house.pixir(&["redo", "--yes", "--json"]).exits(0);
    let again: Value = serde_json::from_str(&again.out).unwrap();
    assert_eq!(again["output"]["direction"], "redo");
    assert_eq!(picture(&house.workspace()), after);
    house.pixir(&["redo", "--yes"]).exits(1);

    house.pixir(&["undo", "--yes", "--force"]).exits(0);
    house.pixir(&["resume", "--last", "what did I say?"]).exits(0);
    let requests = house.requests();
    let last = requests.last().unwrap();
    assert_eq!(last.user_texts(), ["remember this", "what did I say?"]);
    assert!(!last.body_text.contains("changed everything"));
    house.pixir(&["verify", newest_id(&house).as_str()]).exits(0);
    insta::assert_snapshot!(log_of(&house));
}

fn newest_id(house: &House) -> String {
    newest_log(&house.workspace()).file_stem().unwrap().to_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_somebody_else_changed_is_named_and_kept_unless_they_insist() {
    let house = House::with([
        Reply::calls("bash", json!({"command": "echo theirs > a.txt; echo theirs > b.txt"})),
        Reply::says("done"),
    ])
    .await;
    house.write("a.txt", "a\n");
    house.write("b.txt", "b\n");
    house.pixir(&["change it"]).exits(0);
    house.write("b.txt", "mine\n");
    let refused = house.pixir(&["undo", "--yes"]).exits(1);
    assert!(refused.err.contains("b.txt was changed outside this session"), "{}", refused.err);
    assert!(refused.err.contains("--force"), "{}", refused.err);
    assert_eq!((house.read("a.txt"), house.read("b.txt")), ("theirs\n".into(), "mine\n".into()));
    house.pixir(&["undo", "--yes", "--force"]).exits(0);
    assert_eq!((house.read("a.txt"), house.read("b.txt")), ("a\n".into(), "b\n".into()));
    let log = fs::read_to_string(newest_log(&house.workspace())).unwrap();
    assert!(
        log.contains(r#""overwritten":[{"path":"b.txt""#),
        "what was there is named by its hash"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_is_shown_what_will_happen_and_may_say_no() {
    let house = House::with([
        Reply::calls("write", json!({"path": "a.txt", "content": "new\n"})),
        Reply::says("done"),
    ])
    .await;
    house.pixir(&["change it"]).exits(0);
    let mut terminal = Terminal::run(&house, &["undo"], &[]);
    terminal.shows("remove  a.txt");
    terminal.shows("Take this back?");
    terminal.types("n\n");
    assert_eq!(terminal.ends(), Some(3));
    assert_eq!(house.read("a.txt"), "new\n");
    let mut terminal = Terminal::run(&house, &["undo"], &[]);
    terminal.shows("Take this back?");
    terminal.types("y\n");
    assert_eq!(terminal.ends(), Some(0));
    assert!(!house.workspace().join("a.txt").exists());
    // There is nothing left to take back.
    let error = house.pixir(&["undo", "--yes", "--json"]).exits(1);
    assert!(error.out.contains("no_turn"), "{}", error.out);
    house.pixir(&["undo", "--yes", "20200101T000000-000000"]).exits(2);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_saved_while_the_question_is_open_is_not_lost() {
    let house = House::with([
        Reply::calls("write", json!({"path": "a.txt", "content": "new\n"})),
        Reply::says("done"),
    ])
    .await;
    house.pixir(&["change it"]).exits(0);
    let mut terminal = Terminal::run(&house, &["undo"], &[]);
    terminal.shows("Take this back?");
    house.write("a.txt", "saved by a person\n");
    terminal.types("y\n");
    assert_eq!(terminal.ends(), Some(1));
    assert_eq!(house.read("a.txt"), "saved by a person\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_that_was_killed_is_taken_back_only_when_the_user_insists() {
    let house = House::with([
        Reply::calls("write", json!({"path": "tool.txt", "content": "new\n"})),
        Reply::calls("bash", json!({"command": "echo two > a.txt; touch here; sleep 60"})),
    ])
    .await;
    house.write("a.txt", "one\n");
    let here = house.workspace().join("here");
    house.pixir_killed_when(&["change it"], || here.exists());
    house.write("mine.txt", "written by a person meanwhile\n");
    let before = picture(&house.workspace());
    let refused = house.pixir(&["undo", "--yes"]).exits(1);
    assert!(
        refused.err.contains("changed by a Turn that was cut off, or outside this session"),
        "{}",
        refused.err
    );
    assert!(refused.err.contains("mine.txt"), "{}", refused.err);
    assert_eq!(picture(&house.workspace()), before, "nothing was touched");
    house.pixir(&["undo", "--yes", "--force"]).exits(0);
    assert_eq!(house.read("a.txt"), "one\n");
    assert!(!house.workspace().join("mine.txt").exists());
    assert!(!house.workspace().join("tool.txt").exists());
    // It was a mistake; nothing is lost.
    house.pixir(&["redo", "--yes"]).exits(0);
    assert_eq!(picture(&house.workspace()), before);
    // Now everything is known; what changed while a command ran is still not certain.
    let refused = house.pixir(&["undo", "--yes"]).exits(1);
    assert!(refused.err.contains("changed while a command ran"), "{}", refused.err);
    assert!(!refused.err.contains("cut off"), "{}", refused.err);
    house.pixir(&["undo", "--yes", "--force"]).exits(0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_stands_in_the_way_is_named_before_anything_changes() {
    let house = House::with([
        Reply::calls("bash", json!({"command": "rm gone; rm -r deep; echo new > a.txt"})),
        Reply::says("done"),
        Reply::calls("bash", json!({"command": "rm file; mkdir file; echo 1 > file/1"})),
        Reply::says("done"),
    ])
    .await;
    house.write("a.txt", "old\n");
    house.write("gone", "here\n");
    house.write("file", "a file\n");
    fs::create_dir(house.workspace().join("deep")).unwrap();
    house.write("deep/one", "1\n");
    house.pixir(&["change it"]).exits(0);
    fs::create_dir(house.workspace().join("gone")).unwrap();
    house.write("gone/mine", "mine\n");
    house.write("deep", "now a file\n");
    let before = picture(&house.workspace());
    let words = ["changed while a command ran", "other files are in the way: deep, gone"];
    for (args, words) in
        [&["undo", "--yes"][..], &["undo", "--yes", "--force"]].into_iter().zip(words)
    {
        let refused = house.pixir(args).exits(1);
        assert!(refused.err.contains(words), "{}", refused.err);
        assert_eq!(picture(&house.workspace()), before, "nothing was touched");
    }
    fs::remove_file(house.workspace().join("deep")).unwrap();
    fs::remove_dir_all(house.workspace().join("gone")).unwrap();
    house.pixir(&["undo", "--yes", "--force"]).exits(0);
    assert_eq!((house.read("gone"), house.read("deep/one")), ("here\n".into(), "1\n".into()));
    // A folder that the Turn itself made is not in the way.
    house.pixir(&["resume", "--last", "go on"]).exits(0);
    house.pixir(&["undo", "--yes", "--force"]).exits(0);
    assert_eq!(house.read("file"), "a file\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn more_files_than_are_synced_one_by_one_come_back_too() {
    let command = "for n in $(seq 100); do echo new > f$n; done; rm f1; chmod 600 f2";
    let house =
        House::with([Reply::calls("bash", json!({ "command": command })), Reply::says("done")])
            .await;
    for number in 1..=90 {
        house.write(&format!("f{number}"), format!("{number}\n"));
    }
    let before = picture(&house.workspace());
    house.pixir(&["change it"]).exits(0);
    let after = picture(&house.workspace());
    let told = house.pixir(&["undo", "--yes", "--force"]).exits(0);
    assert!(told.out.contains("100 files changed"), "{}", told.out);
    assert_eq!(picture(&house.workspace()), before);
    house.pixir(&["redo", "--yes"]).exits(0);
    assert_eq!(picture(&house.workspace()), after);
}

/// A Turn of random calls.
fn calls(random: &mut fastrand::Rng) -> Vec<Reply> {
    let name = |random: &mut fastrand::Rng| {
        let folder = ["", "a/", "a/b/", "c/"][random.usize(..4)];
        format!("{folder}{}", ["one", "two", "three.txt", ".hidden"][random.usize(..4)])
    };
    let mut replies = Vec::new();
    for step in 0..random.usize(1..6) {
        let file = name(random);
        replies.push(match random.u8(..6) {
            0 => Reply::calls("write", json!({"path": file, "content": format!("{step}\n")})),
            1 => Reply::calls(
                "write",
                json!({"path": "ignored.txt", "content": format!("{step}\n")}),
            ),
            2 => {
                let patch =
                    format!("*** Begin Patch\n*** Add File: {file}.added\n+{step}\n*** End Patch");
                Reply::calls("apply_patch", json!({ "patch": patch }))
            }
            _ => {
                let command = [
                    format!("rm -rf a; echo {step} > {file}.sh 2>/dev/null"),
                    format!("mkdir -p \"$(dirname {file})\"; printf '%s' {step} >> {file}"),
                    format!("chmod 640 {file}; mkdir -p made/by/hand"),
                    format!("rm -f {file}; mkdir -p \"$(dirname {file})\"; ln -s nowhere {file}"),
                    "mv c d 2>/dev/null || mkdir c".to_owned(),
                ][random.usize(..5)]
                .clone();
                Reply::calls("bash", json!({ "command": command }))
            }
        });
    }
    replies.push(Reply::says("done"));
    replies
}

#[tokio::test(flavor = "multi_thread")]
async fn random_workspaces_come_back_and_go_forward_again() {
    let started = Instant::now();
    let (seed, count) = (torture::seed(), Size::asked().of(20, 200));
    for number in 0..count as u64 {
        let mut random = fastrand::Rng::with_seed(seed.wrapping_add(number));
        let turns = random.usize(1..4);
        let replies: Vec<Reply> = (0..turns).flat_map(|_| calls(&mut random)).collect();
        let replies = Arc::new(Mutex::new(replies.into_iter()));
        let house = House::scripted(Script::answering(move |_| {
            replies.lock().unwrap().next().unwrap_or_else(|| Reply::says("nothing left"))
        }))
        .await;
        house.write(".gitignore", "ignored*\n");
        for name in ["one", "two", "c/one", "a/b/two"] {
            if random.bool() {
                let path = house.workspace().join(name);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(&path, format!("{name}\r\n")).unwrap();
                let mode = [0o644, 0o600, 0o755][random.usize(..3)];
                fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            }
        }
        let mut pictures = vec![picture(&house.workspace())];
        for turn in 0..turns {
            let words =
                if turn == 0 { vec!["change it"] } else { vec!["resume", "--last", "go on"] };
            house.pixir(&words).exits(0);
            pictures.push(picture(&house.workspace()));
        }
        let undone = random.usize(1..=turns);
        let told =
            house.pixir(&["undo", "--yes", "--force", "--turns", &undone.to_string()]).exits(0);
        let place = format!("seed {seed}, number {number}, {undone} of {turns}: {}", told.out);
        assert_eq!(picture(&house.workspace()), pictures[turns - undone], "undo, {place}");
        house.pixir(&["redo", "--yes"]).exits(0);
        assert_eq!(picture(&house.workspace()), pictures[turns], "redo, {place}");
    }
    let seconds = started.elapsed().as_secs_f64();
    torture::say(&format!(
        "undo: {count} of 200 Workspaces came back exactly and went forward again, seed={seed}, {seconds:.1} s"
    ));
}
