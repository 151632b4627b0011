//! Merges that fail, are stopped, or are not recorded in the Log.

use super::*;

#[test]
fn a_merge_that_fails_in_the_middle_is_taken_back() {
    let yard = ChildWorkspaceFixture::new();
    for name in ["a", "b", "c"] {
        fs::write(yard.work().join(name), "old\n").unwrap();
    }
    let annex = yard.create_child_workspace();
    for name in ["a", "b", "c"] {
        fs::write(annex.folder().join(name), "new\n").unwrap();
    }
    let plan = yard.plan_merge(&annex);
    // A file is changed between the plan and the merge.
    fs::write(yard.work().join("c"), "theirs\n").unwrap();
    let before = read_file_tree(&yard.work());
    let changes = annex.find_changes(&yard.workspace).unwrap();
    let error = annex
        .apply_merge(&plan, &changes, &yard.workspace, None, &CancellationToken::new())
        .unwrap_err();
    assert!(
        matches!(&error, ChildWorkspaceError::MergeFailed(broken) if broken.left.is_empty()),
        "{error}"
    );
    assert!(error.to_string().contains("rolled back"), "{error}");
    assert_eq!(read_file_tree(&yard.work()), before);
    assert_eq!(
        fs::read_dir(annex.parent_folder().path().join("snapshots")).unwrap().count(),
        0,
        "no journal is left"
    );
}

#[tokio::test]
async fn a_merge_that_the_log_does_not_know_counts_for_nothing() {
    let yard = ChildWorkspaceFixture::new();
    let annex = yard.create_child_workspace();
    fs::write(annex.folder().join("a"), "nowhere else").unwrap();
    fs::create_dir_all(annex.parent_folder().path()).unwrap();
    fs::write(StateRoot::in_workspace(yard.work()).log(&yard.parent), "").unwrap();
    let before = read_file_tree(&yard.work());
    let (plan, changes) = (yard.plan_merge(&annex), annex.find_changes(&yard.workspace).unwrap());
    let stop = CancellationToken::new();
    // The call was ended between the last file and the Log.
    drop(annex.apply_merge(&plan, &changes, &yard.workspace, None, &stop).unwrap());
    assert!(yard.work().join("a").exists());
    let closed = yard.annexes.close(&annex).await.unwrap();
    assert!(matches!(closed, CloseOutcome::Kept { changes: 1 }), "{closed:?}");
    assert_eq!(read_file_tree(&yard.work()), before);
    // A merge that is stopped in the middle leaves nothing.
    stop.cancel();
    let error = annex.apply_merge(&plan, &changes, &yard.workspace, None, &stop).unwrap_err();
    assert!(error.to_string().contains("stopped"), "{error}");
    assert_eq!(read_file_tree(&yard.work()), before);
    assert!(!has_pending_merge(&annex.parent_folder()));
}

#[test]
fn a_merge_whose_lease_cannot_be_written_is_taken_back() {
    let yard = ChildWorkspaceFixture::new();
    fs::write(yard.work().join("a"), "1\n2\n3\n4\n5\n").unwrap();
    let annex = yard.create_child_workspace();
    fs::create_dir_all(annex.parent_folder().path()).unwrap();
    fs::write(StateRoot::in_workspace(yard.work()).log(&yard.parent), "").unwrap();
    fs::write(annex.folder().join("a"), "one\n2\n3\n4\n5\n").unwrap();
    fs::write(yard.work().join("a"), "1\n2\n3\n4\nfive\n").unwrap();
    let before = read_file_tree(&yard.work());
    let lease = yard.home().child_workspaces().join(format!("{}.json", annex.child()));
    fs::remove_file(&lease).unwrap();
    fs::create_dir(&lease).unwrap();
    assert!(matches!(yard.apply_merge(&annex), Err(ChildWorkspaceError::Storage(_))));
    assert_eq!(read_file_tree(&yard.work()), before);
    assert!(!has_pending_merge(&annex.parent_folder()));
}
