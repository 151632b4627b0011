//! Merges of child Workspaces in rare situations: the only copy of a change is never lost, and a
//! merge is both applied and recorded, or neither.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::{Duration, SystemTime};

use pixir::scripted::Reply;
use serde_json::json;

use crate::child_workspaces::{FamilyEnv, file_states, git};
use crate::subagents::scripted_family::{
    GO, always, first_id, scripted_family, text_reply, wait_reply,
};
use crate::support::test_env::{PIXIR, newest_log};
use crate::support::{BinaryEnv, leaks, syscall_tracer};

fn commit_all(folder: &Path) {
    git(folder, &["init", "-q", "-b", "main"]);
    git(folder, &["add", "-A"]);
    git(folder, &["commit", "-qm", "first"]);
}

/// Makes a file old enough to count as unused.
fn age(file: &Path) {
    let past = SystemTime::now() - Duration::from_hours(2);
    fs::File::open(file).unwrap().set_modified(past).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_after_its_last_step_a_merge_is_in_the_log_or_taken_back() {
    let family = FamilyEnv::with_replies([]).await;
    let here = family.env.workspace();
    family.env.write("a", "old\n");
    let (child, folder) = family.child("isolated").await;
    fs::write(folder.join("a"), "new\n").unwrap();
    let log = here.join(format!(".pixir/sessions/{}.ndjson", family.parent));
    let journal = here.join(format!(".pixir/sessions/{}/snapshots/merge.json", family.parent));
    let is_recorded = || fs::read_to_string(&log).unwrap().contains(r#""event":"merged""#);
    let program = [PIXIR, "merge", "--yes", &child];
    let run = |is_here: &mut dyn FnMut() -> bool| {
        syscall_tracer::kill_when(
            &program,
            |command| family.env.configure_command(command),
            is_here,
        )
    };

    // At no moment is the merge complete, its journal removed, and the Event missing.
    let is_written = || fs::read_to_string(here.join("a")).unwrap() == "new\n";
    assert!(!run(&mut || is_written() && !journal.exists() && !is_recorded()));
    family.env.run_pixir(&["merge", "--yes", &child, "--undo"]).assert_exit_code(0);
    assert_eq!(family.env.read("a"), "old\n");

    // The same holds for the undo of a merge.
    family.env.run_pixir(&["merge", "--yes", &child]).assert_exit_code(0);
    let count = |word: &str| fs::read_to_string(&log).unwrap().matches(word).count();
    let back = [PIXIR, "merge", "--yes", &child, "--undo"];
    let is_lost =
        || !is_written() && !journal.exists() && count(r#""event":"merge_taken_back""#) < 2;
    assert!(!syscall_tracer::kill_when(
        &back,
        |command| family.env.configure_command(command),
        is_lost
    ));
    assert_eq!((family.env.read("a"), family.merges().len()), ("old\n".into(), 4));

    // A merge killed before it began leaves no file.
    let draft = journal.with_extension("draft");
    assert!(run(&mut || draft.exists()));
    family.env.run_pixir(&["merge", &child, "--dry-run"]).assert_exit_code(0);
    family.env.run_pixir(&["merge", "--yes", &child]).assert_exit_code(0);
    assert!(is_written() && !draft.exists() && !journal.exists());
    family.env.run_pixir(&["merge", "--yes", &child, "--undo"]).assert_exit_code(0);

    // A merge killed after its Event stays, although its journal is still there.
    let before = count(r#""event":"merged""#);
    assert!(run(&mut || journal.exists() && count(r#""event":"merged""#) > before));
    let again = family.env.run_pixir(&["merge", "--yes", &child]).assert_exit_code(0);
    assert_eq!((again.out.as_str(), again.err.as_str()), ("there is nothing to merge\n", ""));
    assert!(!journal.exists() && is_written());
    family.env.run_pixir(&["merge", "--yes", &child, "--undo"]).assert_exit_code(0);
    assert_eq!(family.env.read("a"), "old\n");
    leaks::scan_process_arguments();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_child_whose_workspace_is_gone_never_works_in_its_parents() {
    let script = scripted_family(
        [
            always(Reply::calls(
                "spawn_agent",
                json!({"task": "write it", "workspace": "isolated"}),
            )),
            wait_reply(),
            Box::new(|request| Reply::calls("merge_child", json!({"id": first_id(request)}))),
            Box::new(|request| Reply::calls("close_agent", json!({"id": first_id(request)}))),
            text_reply("closed"),
        ],
        |_, step| match step {
            0 => Reply::calls("write", json!({"path": "a.txt", "content": "again\n"})),
            _ => Reply::says("done"),
        },
    );
    let env = BinaryEnv::new(BinaryEnv::new_mark(), script).await;
    let file = env.workspace().join("a.txt");
    fs::write(&file, "old\n").unwrap();
    tokio::task::block_in_place(|| {
        env.run(&[GO]).expect_code(0);
        let parent = newest_log(&env.workspace());
        let text = fs::read_to_string(parent).unwrap();
        let name = text.find(r#""child_session_id":""#).unwrap() + 20;
        let child = &text[name..name + 22];
        fs::write(&file, "the parent's\n").unwrap();
        for words in [&["resume", child, "go on"][..], &["undo", "--yes", child, "--force"]] {
            let refused = env.run(words);
            assert_ne!(refused.status.code(), Some(0), "{words:?}");
            assert!(refused.stderr.contains("has no Workspace of its own any more"), "{refused:?}");
            assert!(refused.stderr.contains("try: "), "{refused:?}");
            assert_eq!(fs::read_to_string(&file).unwrap(), "the parent's\n");
        }
        // A command that only reads reports the interrupted merge.
        let looked = env.run(&["inspect-replay", child, "--prompt", "go on", "--items"]);
        looked.expect_code(0);
        let shown = format!("{}{}", looked.stdout, looked.stderr);
        assert!(
            shown.contains(
                "has no Workspace of its own any more; preview in its parent's Workspace"
            ),
            "{shown}"
        );
        for words in
            [&["changes", child][..], &["changes", child, "--json"], &["merge", "--yes", child]]
        {
            let refused = env.run(words);
            assert_eq!(refused.status.code(), Some(2), "{refused:?}");
            let shown = format!("{}{}", refused.stdout, refused.stderr);
            assert!(shown.contains("has no Workspace of its own any more"), "{refused:?}");
            assert!(!shown.contains("shared"), "{refused:?}");
        }
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_workspace_that_was_moved_keeps_its_children_also_when_another_takes_its_place() {
    let family = FamilyEnv::with_replies([]).await;
    let here = family.env.workspace();
    family.env.write("a", "old\n");
    let (child, folder) = family.child("isolated").await;
    fs::write(folder.join("a"), "new\n").unwrap();
    let moved = here.with_file_name("moved");
    fs::rename(&here, &moved).unwrap();
    fs::create_dir_all(here.join(".pixir/sessions")).unwrap();
    age(&folder.with_extension("json"));
    assert_eq!(family.child_factory.remove_ownerless().await.len(), 0, "its Log exists");
    assert!(folder.join("a").exists());
    let cwd = moved.to_str().unwrap();
    let listed = family.env.run_pixir(&["changes", "--cwd", cwd]).assert_exit_code(0);
    assert!(listed.out.starts_with(&child), "{}", listed.out);
    family.env.run_pixir(&["merge", "--yes", "sub_1", "--cwd", cwd]).assert_exit_code(0);
    assert_eq!(fs::read_to_string(moved.join("a")).unwrap(), "new\n");
    assert!(!here.join("a").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn commits_that_no_branch_names_keep_a_worktree() {
    let family = FamilyEnv::with_replies([]).await;
    let here = family.env.workspace();
    family.env.write("a", "old\n");
    family.env.write(".gitignore", ".pixir\n");
    commit_all(&here);
    let (child, tree) = family.child("worktree").await;
    git(&tree, &["checkout", "-q", "--detach"]);
    fs::write(tree.join("draft"), "a thought\n").unwrap();
    git(&tree, &["add", "-A"]);
    git(&tree, &["commit", "-qm", "a thought"]);
    git(&tree, &["rm", "-q", "draft"]);
    git(&tree, &["commit", "-qm", "not any more"]);
    let report = family.child_factory.close(&here, &child).await.unwrap_err();
    assert!(report.message.contains("on no branch"), "{report:?}");
    assert!(report.next_actions()[0].contains("git branch"), "{report:?}");
    let commit = git(&tree, &["rev-parse", "HEAD"]);
    git(&here, &["branch", "thoughts", commit.trim()]);
    assert_eq!(family.child_factory.close(&here, &child).await.unwrap(), "removed");
    assert!(!tree.exists());
    assert!(git(&here, &["log", "--format=%s", "thoughts"]).contains("a thought"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_that_holds_more_than_the_child_knew_stays_and_is_no_reason_to_merge_again() {
    let family = FamilyEnv::with_replies([]).await;
    let here = family.env.workspace();
    fs::create_dir_all(here.join("d/deep")).unwrap();
    family.env.write(".gitignore", "*.o\n");
    family.env.write("d/deep/x", "x\n");
    family.env.write("d/deep/x.o", "built\n");
    fs::create_dir(here.join(".git")).unwrap();
    let (child, folder) = family.child("isolated").await;
    fs::remove_dir_all(folder.join("d")).unwrap();
    let merged = family.env.run_pixir(&["merge", "--yes", &child]).assert_exit_code(0);
    assert_eq!(merged.out, "  remove d/deep/x\nmerged\n");
    assert_eq!(family.env.read("d/deep/x.o"), "built\n");
    let again = family.env.run_pixir(&["merge", "--yes", &child]).assert_exit_code(0);
    assert_eq!(again.out, "there is nothing to merge\n");
    assert_eq!(family.child_factory.close(&here, &child).await.unwrap(), "removed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_that_became_a_link_is_merged_and_goes_back() {
    let family = FamilyEnv::with_replies([]).await;
    let here = family.env.workspace();
    for name in ["real/file", "folder/deep/file"] {
        fs::create_dir_all(here.join(name).parent().unwrap()).unwrap();
        family.env.write(name, "x\n");
    }
    let before = file_states(&here);
    let (child, folder) = family.child("isolated").await;
    fs::remove_dir_all(folder.join("folder")).unwrap();
    symlink("real", folder.join("folder")).unwrap();
    family.env.run_pixir(&["merge", "--yes", &child]).assert_exit_code(0);
    assert_eq!(fs::read_link(here.join("folder")).unwrap(), Path::new("real"));
    family.env.run_pixir(&["merge", "--yes", &child, "--undo"]).assert_exit_code(0);
    assert_eq!(file_states(&here), before);

    // A conflict of two links is reported with their targets.
    symlink("here", here.join("link")).unwrap();
    let (child, folder) = family.child("isolated").await;
    for (place, target) in [(&here, "ours"), (&folder, "theirs")] {
        fs::remove_file(place.join("link")).unwrap();
        symlink(target, place.join("link")).unwrap();
        symlink(target, place.join("new")).unwrap();
    }
    let refused = family.env.run_pixir(&["merge", "--yes", &child]).assert_exit_code(1);
    assert!(refused.err.contains("link (both changed where it points)"), "{}", refused.err);
    assert!(
        refused.err.contains("new (both created it, with different contents)"),
        "{}",
        refused.err
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_of_two_lines_is_shown_on_one() {
    let family = FamilyEnv::with_replies([]).await;
    let (child, folder) = family.child("isolated").await;
    fs::write(folder.join("a\n  remove everything"), "x\n").unwrap();
    let name = "a\\n  remove everything";
    let changes = family.env.run_pixir(&["changes", &child, "--diff"]).assert_exit_code(0);
    let head: Vec<&str> = changes.out.lines().take(4).collect();
    let expected =
        [format!("A {name}"), String::new(), format!("--- a/{name}"), format!("+++ b/{name}")];
    assert_eq!(head, expected);
    let dry = family.env.run_pixir(&["merge", &child, "--dry-run"]).assert_exit_code(0);
    assert_eq!(dry.out.lines().next().unwrap(), format!("  make   {name}"));
    family.env.run_pixir(&["merge", "--yes", &child]).assert_exit_code(0);
    assert_eq!(family.env.read("a\n  remove everything"), "x\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_merged_is_cleared_away_by_gc_and_nothing_else() {
    let family = FamilyEnv::with_replies([]).await;
    let here = family.env.workspace();
    family.env.write("a", "old\n");
    let (merged, one) = family.child("isolated").await;
    let (_, other) = family.child("isolated").await;
    let (_, young) = family.child("isolated").await;
    fs::write(one.join("a"), "new\n").unwrap();
    fs::write(other.join("b"), "nowhere else\n").unwrap();
    family.env.run_pixir(&["merge", "--yes", &merged]).assert_exit_code(0);
    for folder in [&one, &other] {
        age(&folder.with_extension("json"));
    }
    let looked = family.env.run_pixir(&["gc"]).assert_exit_code(0);
    assert_eq!(looked.out.matches("  annex ").count(), 1, "{}", looked.out);
    assert!(looked.out.contains(&merged) && one.exists());
    family.env.run_pixir(&["gc", "--apply"]).assert_exit_code(0);
    assert!(!one.exists() && other.join("b").exists() && young.exists());
    assert!(here.join(format!(".pixir/sessions/{merged}.ndjson")).exists(), "its Log stays");
}

#[tokio::test(flavor = "multi_thread")]
async fn git_that_fails_says_what_can_be_done() {
    let family = FamilyEnv::with_replies([]).await;
    let here = family.env.workspace();
    family.env.write("a", "old\n");
    commit_all(&here);
    git(&here, &["branch", "pixir"]);
    let report = family
        .child_factory
        .create_child(&here, &family.parent, "sub_1", "worktree")
        .await
        .unwrap_err();
    assert!(report.message.contains("refs/heads/pixir"), "{report:?}");
    assert!(report.next_actions()[0].contains("`isolated`"), "{report:?}");
    assert_eq!(git(&here, &["branch", "--format=%(refname:short)"]), "main\npixir\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn unreadable_files_are_named_and_keep_a_child_workspace() {
    let family = FamilyEnv::with_replies([]).await;
    let here = family.env.workspace();
    family.env.write("a", "old\n");
    let (child, folder) = family.child("isolated").await;
    // A path longer than the kernel allows cannot be read, not even by root.
    let deep = |name: &str| {
        let names = std::iter::repeat_n("d".repeat(200), 12);
        names.fold(folder.join(name), |path, name| path.join(name))
    };
    for name in ["one", "two"] {
        fs::create_dir_all(deep(name)).unwrap();
    }
    fs::write(deep("two").join("thought"), "nowhere else\n").unwrap();
    fs::rename(folder.join("two"), deep("one").join("two")).unwrap();
    let changes = family.env.run_pixir(&["changes", &child]).assert_exit_code(0);
    let last = changes.out.lines().last().unwrap();
    assert!(last.starts_with("? one/ddd"), "{last}");
    let refused = family.env.run_pixir(&["merge", "--yes", &child]).assert_exit_code(1);
    assert!(refused.err.contains("nothing was merged"), "{}", refused.err);
    assert!(!here.join("one").exists());
    let kept = family.child_factory.close(&here, &child).await.unwrap();
    assert!(kept.starts_with("kept with"), "{kept}");
}
