//! Children in Workspaces of their own, where it gets odd: what is nowhere else is never lost, and a
//! merge is done and recorded, or neither.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::{Duration, SystemTime};

use pixir::scripted::Reply;
use serde_json::json;

use crate::annex::{Family, git, picture};
use crate::subagents::cast::{GO, cast, first_id, line, says, waits};
use crate::support::house::{PIXIR, newest_log};
use crate::support::{Stage, leaks, tracer};

fn commit_all(folder: &Path) {
    git(folder, &["init", "-q", "-b", "main"]);
    git(folder, &["add", "-A"]);
    git(folder, &["commit", "-qm", "first"]);
}

/// As old as something must be that nobody may be at.
fn age(file: &Path) {
    let past = SystemTime::now() - Duration::from_hours(2);
    fs::File::open(file).unwrap().set_modified(past).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_after_its_last_step_a_merge_is_in_the_log_or_taken_back() {
    let family = Family::with([]).await;
    let here = family.house.workspace();
    family.house.write("a", "old\n");
    let (child, folder) = family.child("isolated").await;
    fs::write(folder.join("a"), "new\n").unwrap();
    let log = here.join(format!(".pixir/sessions/{}.ndjson", family.parent));
    let journal = here.join(format!(".pixir/sessions/{}/snapshots/merge.json", family.parent));
    let is_recorded = || fs::read_to_string(&log).unwrap().contains(r#""event":"merged""#);
    let program = [PIXIR, "merge", "--yes", &child];
    let run = |is_here: &mut dyn FnMut() -> bool| {
        tracer::kill_when(&program, |command| family.house.dress(command), is_here)
    };

    // There is no moment at which everything is done, and nobody would know.
    let is_written = || fs::read_to_string(here.join("a")).unwrap() == "new\n";
    assert!(!run(&mut || is_written() && !journal.exists() && !is_recorded()));
    family.house.pixir(&["merge", "--yes", &child, "--undo"]).exits(0);
    assert_eq!(family.house.read("a"), "old\n");

    // The way back is recorded as well, or not gone.
    family.house.pixir(&["merge", "--yes", &child]).exits(0);
    let count = |word: &str| fs::read_to_string(&log).unwrap().matches(word).count();
    let back = [PIXIR, "merge", "--yes", &child, "--undo"];
    let is_lost =
        || !is_written() && !journal.exists() && count(r#""event":"merge_taken_back""#) < 2;
    assert!(!tracer::kill_when(&back, |command| family.house.dress(command), is_lost));
    assert_eq!((family.house.read("a"), family.merges().len()), ("old\n".into(), 4));

    // What was killed before it began leaves nothing that stays.
    let draft = journal.with_extension("draft");
    assert!(run(&mut || draft.exists()));
    family.house.pixir(&["merge", &child, "--dry-run"]).exits(0);
    family.house.pixir(&["merge", "--yes", &child]).exits(0);
    assert!(is_written() && !draft.exists() && !journal.exists());
    family.house.pixir(&["merge", "--yes", &child, "--undo"]).exits(0);

    // Killed when it is recorded, it stays, although its journal is still there.
    let before = count(r#""event":"merged""#);
    assert!(run(&mut || journal.exists() && count(r#""event":"merged""#) > before));
    let again = family.house.pixir(&["merge", "--yes", &child]).exits(0);
    assert_eq!((again.out.as_str(), again.err.as_str()), ("there is nothing to merge\n", ""));
    assert!(!journal.exists() && is_written());
    family.house.pixir(&["merge", "--yes", &child, "--undo"]).exits(0);
    assert_eq!(family.house.read("a"), "old\n");
    leaks::look();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_child_whose_workspace_is_gone_never_works_in_its_parents() {
    let script = cast(
        [
            line(Reply::calls("spawn_agent", json!({"task": "write it", "workspace": "isolated"}))),
            waits(),
            Box::new(|request| Reply::calls("merge_child", json!({"id": first_id(request)}))),
            Box::new(|request| Reply::calls("close_agent", json!({"id": first_id(request)}))),
            says("closed"),
        ],
        |_, step| match step {
            0 => Reply::calls("write", json!({"path": "a.txt", "content": "again\n"})),
            _ => Reply::says("done"),
        },
    );
    let stage = Stage::new(Stage::mark(), script).await;
    let file = stage.workspace().join("a.txt");
    fs::write(&file, "old\n").unwrap();
    tokio::task::block_in_place(|| {
        stage.run(&[GO]).expect_code(0);
        let parent = newest_log(&stage.workspace());
        let text = fs::read_to_string(parent).unwrap();
        let name = text.find(r#""child_session_id":""#).unwrap() + 20;
        let child = &text[name..name + 22];
        fs::write(&file, "the parent's\n").unwrap();
        for words in [&["resume", child, "go on"][..], &["undo", "--yes", child, "--force"]] {
            let refused = stage.run(words);
            assert_ne!(refused.status.code(), Some(0), "{words:?}");
            assert!(refused.stderr.contains("has no Workspace of its own any more"), "{refused:?}");
            assert!(refused.stderr.contains("try: "), "{refused:?}");
            assert_eq!(fs::read_to_string(&file).unwrap(), "the parent's\n");
        }
        // Whoever only looks is told what there is.
        let looked = stage.run(&["inspect-replay", child, "--prompt", "go on", "--items"]);
        looked.expect_code(0);
        let told = format!("{}{}", looked.stdout, looked.stderr);
        assert!(told.contains("has no Workspace of its own any more; shown as"), "{told}");
        for words in
            [&["changes", child][..], &["changes", child, "--json"], &["merge", "--yes", child]]
        {
            let refused = stage.run(words);
            assert_eq!(refused.status.code(), Some(2), "{refused:?}");
            let told = format!("{}{}", refused.stdout, refused.stderr);
            assert!(told.contains("has no Workspace of its own any more"), "{refused:?}");
            assert!(!told.contains("shared"), "{refused:?}");
        }
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_workspace_that_was_moved_keeps_its_children_also_when_another_takes_its_place() {
    let family = Family::with([]).await;
    let here = family.house.workspace();
    family.house.write("a", "old\n");
    let (child, folder) = family.child("isolated").await;
    fs::write(folder.join("a"), "new\n").unwrap();
    let moved = here.with_file_name("moved");
    fs::rename(&here, &moved).unwrap();
    fs::create_dir_all(here.join(".pixir/sessions")).unwrap();
    age(&folder.with_extension("json"));
    assert_eq!(family.nursery.collect().await.len(), 0, "nobody deleted its Log");
    assert!(folder.join("a").exists());
    let cwd = moved.to_str().unwrap();
    let listed = family.house.pixir(&["changes", "--cwd", cwd]).exits(0);
    assert!(listed.out.starts_with(&child), "{}", listed.out);
    family.house.pixir(&["merge", "--yes", "sub_1", "--cwd", cwd]).exits(0);
    assert_eq!(fs::read_to_string(moved.join("a")).unwrap(), "new\n");
    assert!(!here.join("a").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn commits_that_no_branch_names_keep_a_worktree() {
    let family = Family::with([]).await;
    let here = family.house.workspace();
    family.house.write("a", "old\n");
    family.house.write(".gitignore", ".pixir\n");
    commit_all(&here);
    let (child, tree) = family.child("worktree").await;
    git(&tree, &["checkout", "-q", "--detach"]);
    fs::write(tree.join("draft"), "a thought\n").unwrap();
    git(&tree, &["add", "-A"]);
    git(&tree, &["commit", "-qm", "a thought"]);
    git(&tree, &["rm", "-q", "draft"]);
    git(&tree, &["commit", "-qm", "not any more"]);
    let report = family.nursery.close(&here, &child).await.unwrap_err();
    assert!(report.message.contains("on no branch"), "{report:?}");
    assert!(report.next_actions()[0].contains("git branch"), "{report:?}");
    let commit = git(&tree, &["rev-parse", "HEAD"]);
    git(&here, &["branch", "thoughts", commit.trim()]);
    assert_eq!(family.nursery.close(&here, &child).await.unwrap(), "removed");
    assert!(!tree.exists());
    assert!(git(&here, &["log", "--format=%s", "thoughts"]).contains("a thought"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_that_holds_more_than_the_child_knew_stays_and_is_no_reason_to_merge_again() {
    let family = Family::with([]).await;
    let here = family.house.workspace();
    fs::create_dir_all(here.join("d/deep")).unwrap();
    family.house.write(".gitignore", "*.o\n");
    family.house.write("d/deep/x", "x\n");
    family.house.write("d/deep/x.o", "built\n");
    fs::create_dir(here.join(".git")).unwrap();
    let (child, folder) = family.child("isolated").await;
    fs::remove_dir_all(folder.join("d")).unwrap();
    let merged = family.house.pixir(&["merge", "--yes", &child]).exits(0);
    assert_eq!(merged.out, "  remove d/deep/x\nmerged\n");
    assert_eq!(family.house.read("d/deep/x.o"), "built\n");
    let again = family.house.pixir(&["merge", "--yes", &child]).exits(0);
    assert_eq!(again.out, "there is nothing to merge\n");
    assert_eq!(family.nursery.close(&here, &child).await.unwrap(), "removed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_that_became_a_link_is_merged_and_goes_back() {
    let family = Family::with([]).await;
    let here = family.house.workspace();
    for name in ["real/file", "folder/deep/file"] {
        fs::create_dir_all(here.join(name).parent().unwrap()).unwrap();
        family.house.write(name, "x\n");
    }
    let before = picture(&here);
    let (child, folder) = family.child("isolated").await;
    fs::remove_dir_all(folder.join("folder")).unwrap();
    symlink("real", folder.join("folder")).unwrap();
    family.house.pixir(&["merge", "--yes", &child]).exits(0);
    assert_eq!(fs::read_link(here.join("folder")).unwrap(), Path::new("real"));
    family.house.pixir(&["merge", "--yes", &child, "--undo"]).exits(0);
    assert_eq!(picture(&here), before);

    // Two links that point elsewhere are told as what they are.
    symlink("here", here.join("link")).unwrap();
    let (child, folder) = family.child("isolated").await;
    for (place, target) in [(&here, "ours"), (&folder, "theirs")] {
        fs::remove_file(place.join("link")).unwrap();
        symlink(target, place.join("link")).unwrap();
        symlink(target, place.join("new")).unwrap();
    }
    let refused = family.house.pixir(&["merge", "--yes", &child]).exits(1);
    assert!(refused.err.contains("link (both changed where it points)"), "{}", refused.err);
    assert!(
        refused.err.contains("new (both created it, with different contents)"),
        "{}",
        refused.err
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_of_two_lines_is_shown_on_one() {
    let family = Family::with([]).await;
    let (child, folder) = family.child("isolated").await;
    fs::write(folder.join("a\n  remove everything"), "x\n").unwrap();
    let name = "a\\n  remove everything";
    let changes = family.house.pixir(&["changes", &child, "--diff"]).exits(0);
    let head: Vec<&str> = changes.out.lines().take(4).collect();
    let expected =
        [format!("A {name}"), String::new(), format!("--- a/{name}"), format!("+++ b/{name}")];
    assert_eq!(head, expected);
    let dry = family.house.pixir(&["merge", &child, "--dry-run"]).exits(0);
    assert_eq!(dry.out.lines().next().unwrap(), format!("  make   {name}"));
    family.house.pixir(&["merge", "--yes", &child]).exits(0);
    assert_eq!(family.house.read("a\n  remove everything"), "x\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_merged_is_cleared_away_by_gc_and_nothing_else() {
    let family = Family::with([]).await;
    let here = family.house.workspace();
    family.house.write("a", "old\n");
    let (merged, one) = family.child("isolated").await;
    let (_, other) = family.child("isolated").await;
    let (_, young) = family.child("isolated").await;
    fs::write(one.join("a"), "new\n").unwrap();
    fs::write(other.join("b"), "nowhere else\n").unwrap();
    family.house.pixir(&["merge", "--yes", &merged]).exits(0);
    for folder in [&one, &other] {
        age(&folder.with_extension("json"));
    }
    let looked = family.house.pixir(&["gc"]).exits(0);
    assert_eq!(looked.out.matches("  annex ").count(), 1, "{}", looked.out);
    assert!(looked.out.contains(&merged) && one.exists());
    family.house.pixir(&["gc", "--apply"]).exits(0);
    assert!(!one.exists() && other.join("b").exists() && young.exists());
    assert!(here.join(format!(".pixir/sessions/{merged}.ndjson")).exists(), "its Log stays");
}

#[tokio::test(flavor = "multi_thread")]
async fn git_that_fails_says_what_can_be_done() {
    let family = Family::with([]).await;
    let here = family.house.workspace();
    family.house.write("a", "old\n");
    commit_all(&here);
    git(&here, &["branch", "pixir"]);
    let report =
        family.nursery.child(&here, &family.parent, "sub_1", "worktree").await.unwrap_err();
    assert!(report.message.contains("refs/heads/pixir"), "{report:?}");
    assert!(report.next_actions()[0].contains("`isolated`"), "{report:?}");
    assert_eq!(git(&here, &["branch", "--format=%(refname:short)"]), "main\npixir\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_read_is_named_and_keeps_an_annex() {
    let family = Family::with([]).await;
    let here = family.house.workspace();
    family.house.write("a", "old\n");
    let (child, folder) = family.child("isolated").await;
    // A path that is longer than the kernel takes: nobody may be too mighty for this.
    let deep = |name: &str| {
        let names = std::iter::repeat_n("d".repeat(200), 12);
        names.fold(folder.join(name), |path, name| path.join(name))
    };
    for name in ["one", "two"] {
        fs::create_dir_all(deep(name)).unwrap();
    }
    fs::write(deep("two").join("thought"), "nowhere else\n").unwrap();
    fs::rename(folder.join("two"), deep("one").join("two")).unwrap();
    let changes = family.house.pixir(&["changes", &child]).exits(0);
    let last = changes.out.lines().last().unwrap();
    assert!(last.starts_with("? one/ddd"), "{last}");
    let refused = family.house.pixir(&["merge", "--yes", &child]).exits(1);
    assert!(refused.err.contains("nothing was merged"), "{}", refused.err);
    assert!(!here.join("one").exists());
    let kept = family.nursery.close(&here, &child).await.unwrap();
    assert!(kept.starts_with("kept with"), "{kept}");
}
