//! Undo after a command removed or damaged what the recorded contents rely on.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use pixir::scripted::Reply;
use serde_json::json;

use crate::support::TestEnv;
use crate::undo_git::{files, git, repository, write_files};

/// Replies for one Turn with these commands.
fn turn(commands: &[&str]) -> Vec<Reply> {
    let calls = commands.iter().map(|command| Reply::calls("bash", json!({ "command": command })));
    calls.chain([Reply::says("done")]).collect()
}

/// An environment whose user limits the number of recorded files.
async fn limited_env(replies: Vec<Reply>, max_files: usize) -> TestEnv {
    let env = TestEnv::with_replies(replies).await;
    let config = env.home().join(".pixir");
    fs::create_dir_all(&config).unwrap();
    let settings = json!({ "undo": { "max_files": max_files } });
    fs::write(config.join("config.json"), settings.to_string()).unwrap();
    env
}

/// The files below a folder with this extension.
fn files_with_extension(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    paths.filter(|path| path.extension().is_some_and(|own| own == extension)).collect()
}

/// Undo and redo, each exactly.
fn assert_comes_back(env: &TestEnv, before: &crate::undo_git::GitFileStates) {
    let after = files(&env.workspace());
    assert_ne!(after, *before);
    let undone = env.run_pixir(&["undo", "--yes", "--force"]).assert_exit_code(0);
    assert_eq!(files(&env.workspace()), *before, "{}", undone.out);
    let redone = env.run_pixir(&["redo", "--yes"]).assert_exit_code(0);
    assert_eq!(files(&env.workspace()), after, "{}", redone.out);
    let undone = env.run_pixir(&["undo", "--yes", "--force"]).assert_exit_code(0);
    assert_eq!(files(&env.workspace()), *before, "{}", undone.out);
}

#[tokio::test(flavor = "multi_thread")]
async fn more_files_than_allowed_come_back_after_a_command_removed_git() {
    for command in [
        "rm -rf .git a/file0",
        "git rm -rq --cached . ; rm a/file0",
        "rm -rf .git; mv a moved; echo x > c/file2",
    ] {
        let env = limited_env(turn(&[command]), 100).await;
        repository(&env.workspace(), 200);
        git(&env.workspace(), &["gc", "-q"]);
        let before = files(&env.workspace());
        env.run_pixir(&["change it"]).assert_exit_code(0);
        assert_comes_back(&env, &before);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_after_which_the_survey_is_refused_is_compared_with_the_current_files() {
    let many =
        "rm a/file0; echo x > c/file2; mkdir new; for i in $(seq 150); do echo $i > new/$i; done";
    let env = limited_env(turn(&[many, "rm a/file3"]), 100).await;
    repository(&env.workspace(), 200);
    git(&env.workspace(), &["gc", "-q"]);
    let before = files(&env.workspace());
    let ran = env.run_pixir(&["change it"]).assert_exit_code(0);
    assert!(ran.err.contains("undo.max_files"), "{}", ran.err);
    let refused = env.run_pixir(&["undo", "--yes"]).assert_exit_code(1);
    assert!(refused.err.contains("a/file0"), "{}", refused.err);
    let shown = env.run_pixir(&["undo", "--dry-run"]).assert_exit_code(0);
    assert!(shown.out.contains("was not recorded"), "{}", shown.out);
    assert_comes_back(&env, &before);
}

#[tokio::test(flavor = "multi_thread")]
async fn contents_are_stored_again_after_their_segment_was_truncated() {
    let replies = [turn(&["true"]), turn(&["rm -rf a c"])].concat();
    let env = TestEnv::with_replies(replies).await;
    write_files(&env.workspace(), 120);
    let before = files(&env.workspace());
    env.run_pixir(&["first"]).assert_exit_code(0);
    let data = files_with_extension(&env.workspace().join(".pixir/snapshots/segments"), "data");
    assert_eq!(data.len(), 1);
    fs::File::options().write(true).open(&data[0]).unwrap().set_len(100).unwrap();
    env.run_pixir(&["second"]).assert_exit_code(0);
    assert_comes_back(&env, &before);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pack_that_was_damaged_in_place_and_restored_by_the_user_is_relied_on_again() {
    let replies = [turn(&["true"]), turn(&["rm -rf .git a"])].concat();
    let env = TestEnv::with_replies(replies).await;
    repository(&env.workspace(), 200);
    git(&env.workspace(), &["gc", "-q"]);
    let before = files(&env.workspace());
    env.run_pixir(&["first"]).assert_exit_code(0);
    let packs = files_with_extension(&env.workspace().join(".git/objects/pack"), "pack");
    for pack in packs {
        let good = fs::read(&pack).unwrap();
        fs::set_permissions(&pack, fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(&pack, "").unwrap();
        fs::remove_file(&pack).unwrap();
        fs::write(&pack, good).unwrap();
    }
    env.run_pixir(&["second"]).assert_exit_code(0);
    assert_comes_back(&env, &before);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_split_index_counts_with_its_shared_file() {
    let env = limited_env(turn(&["rm -rf a"]), 100).await;
    repository(&env.workspace(), 200);
    git(&env.workspace(), &["update-index", "--split-index"]);
    let before = files(&env.workspace());
    env.run_pixir(&["change it"]).assert_exit_code(0);
    assert_comes_back(&env, &before);
}

/// Makes all files of the store as old as these hours.
fn age_store(env: &TestEnv, hours: u64) {
    let then = SystemTime::now() - Duration::from_hours(hours);
    let mut waiting = vec![env.workspace().join(".pixir/snapshots")];
    while let Some(folder) = waiting.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                waiting.push(path);
            } else {
                fs::File::open(path).unwrap().set_modified(then).unwrap();
            }
        }
    }
}

fn delete_sessions(env: &TestEnv) {
    for log in crate::support::test_env::log_files(&env.workspace()) {
        let id = log.file_stem().unwrap().to_str().unwrap().to_owned();
        env.run_pixir(&["sessions", "delete", &id, "--yes"]).assert_exit_code(0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_manifest_names_nothing_that_gc_has_removed() {
    let replies = [turn(&["true"]), turn(&["true"]), turn(&["rm file0"])].concat();
    let env = TestEnv::with_replies(replies).await;
    for number in 0..5 {
        env.write(&format!("file{number}"), format!("content {number}\n"));
    }
    let before = files(&env.workspace());
    env.run_pixir(&["first"]).assert_exit_code(0);
    age_store(&env, 3);
    // Only the Manifest becomes younger.
    env.run_pixir(&["second"]).assert_exit_code(0);
    delete_sessions(&env);
    env.run_pixir(&["gc", "--apply"]).assert_exit_code(0);
    env.run_pixir(&["third"]).assert_exit_code(0);
    assert_comes_back(&env, &before);
    // The Manifest is removed, too, once it is old, and the next Session does not rely on it.
    delete_sessions(&env);
    age_store(&env, 3);
    let cleared = env.run_pixir(&["gc", "--apply"]).assert_exit_code(0);
    assert!(!env.workspace().join(".pixir/snapshots/last").exists(), "{}", cleared.out);
}

#[tokio::test(flavor = "multi_thread")]
async fn undo_names_the_parts_of_git_that_are_gone_and_gc_keeps_what_is_left_of_them() {
    let remove = "rm -rf .git/objects .git/refs .git/HEAD .git/index a/file0";
    let env = TestEnv::with_replies([turn(&["true"]), turn(&[remove])].concat()).await;
    repository(&env.workspace(), 200);
    git(&env.workspace(), &["gc", "-q"]);
    let before = files(&env.workspace());
    env.run_pixir(&["first"]).assert_exit_code(0);
    let quiet = env.run_pixir(&["undo", "--dry-run"]).assert_exit_code(0);
    assert!(!quiet.out.contains("git's own state"), "{}", quiet.out);
    env.run_pixir(&["second"]).assert_exit_code(0);
    let undone = env.run_pixir(&["undo", "--yes", "--force"]).assert_exit_code(0);
    assert!(undone.out.contains(".git/HEAD and .git/objects were removed"), "{}", undone.out);
    assert!(undone.out.contains(".pixir/snapshots/git"), "{}", undone.out);
    assert_eq!(files(&env.workspace()), before);
    delete_sessions(&env);
    age_store(&env, 3);
    env.run_pixir(&["gc", "--apply"]).assert_exit_code(0);
    let pins = env.workspace().join(".pixir/snapshots/git");
    assert_eq!(files_with_extension(&pins, "pack").len(), 1);
    // An empty repository has none of these objects either.
    git(&env.workspace(), &["init", "-q"]);
    env.run_pixir(&["gc", "--apply"]).assert_exit_code(0);
    assert_eq!(files_with_extension(&pins, "pack").len(), 1);
    git(&env.workspace(), &["add", "-A"]);
    env.run_pixir(&["gc", "--apply"]).assert_exit_code(0);
    assert_eq!(files_with_extension(&pins, "pack"), Vec::<PathBuf>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn packs_that_only_undo_keeps_are_reported_and_go_with_their_sessions() {
    let change = "for f in a/* a/b/* c/*; do [ -f $f ] && echo $RANDOM >> $f; done; \
                  git -c user.name=a -c user.email=a@b.c commit -qam more; git gc -q --prune=now";
    let replies = [turn(&[change]), turn(&[change])].concat();
    let env = TestEnv::with_replies(replies).await;
    let config = env.home().join(".pixir");
    fs::create_dir_all(&config).unwrap();
    fs::write(config.join("config.json"), r#"{"undo": {"max_bytes": 200000}}"#).unwrap();
    repository(&env.workspace(), 200);
    let mut random = fastrand::Rng::with_seed(5);
    let noise: Vec<u8> = (0..300_000).map(|_| random.u8(..)).collect();
    env.write("noise", noise);
    git(&env.workspace(), &["add", "-A"]);
    git(&env.workspace(), &["commit", "-qm", "noise"]);
    git(&env.workspace(), &["gc", "-q"]);
    let first = env.run_pixir(&["first"]).assert_exit_code(0);
    let second = env.run_pixir(&["resume", "--last", "second"]).assert_exit_code(0);
    let text = format!("{}{}", first.err, second.err);
    assert!(text.contains("of packs for undo that git has removed"), "{text}");
    let pins = env.workspace().join(".pixir/snapshots/git");
    assert!(!files_with_extension(&pins, "pack").is_empty());
    delete_sessions(&env);
    age_store(&env, 3);
    env.run_pixir(&["gc", "--apply"]).assert_exit_code(0);
    assert_eq!(files_with_extension(&pins, "pack"), Vec::<PathBuf>::new());
}
