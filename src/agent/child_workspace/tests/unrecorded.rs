//! Merges that fail, are stopped, or are not recorded in the Log.

use super::*;

#[test]
fn a_merge_that_fails_in_the_middle_is_taken_back() {
    let fixture = ChildWorkspaceFixture::new();
    for name in ["a", "b", "c"] {
        fs::write(fixture.work().join(name), "old\n").unwrap();
    }
    let child_workspace = fixture.create_child_workspace();
    for name in ["a", "b", "c"] {
        fs::write(child_workspace.folder().join(name), "new\n").unwrap();
    }
    let plan = fixture.plan_merge(&child_workspace);
    // A file is changed between the plan and the merge.
    fs::write(fixture.work().join("c"), "theirs\n").unwrap();
    let before = read_file_tree(&fixture.work());
    let changes = child_workspace.find_changes(&fixture.workspace).unwrap();
    let error = child_workspace
        .apply_merge(&plan, &changes, &fixture.workspace, None, &CancellationToken::new())
        .unwrap_err();
    assert!(
        matches!(&error, ChildWorkspaceError::MergeFailed(broken) if broken.left.is_empty()),
        "{error}"
    );
    assert!(error.to_string().contains("rolled back"), "{error}");
    assert_eq!(read_file_tree(&fixture.work()), before);
    assert_eq!(
        fs::read_dir(child_workspace.parent_folder().path().join("snapshots")).unwrap().count(),
        0,
        "no journal is left"
    );
}

#[tokio::test]
async fn a_merge_that_the_log_does_not_know_counts_for_nothing() {
    let fixture = ChildWorkspaceFixture::new();
    let child_workspace = fixture.create_child_workspace();
    fs::write(child_workspace.folder().join("a"), "nowhere else").unwrap();
    fs::create_dir_all(child_workspace.parent_folder().path()).unwrap();
    fs::write(StateRoot::in_workspace(fixture.work()).log(&fixture.parent), "").unwrap();
    let before = read_file_tree(&fixture.work());
    let (plan, changes) = (
        fixture.plan_merge(&child_workspace),
        child_workspace.find_changes(&fixture.workspace).unwrap(),
    );
    let stop = CancellationToken::new();
    // The call was ended between the last file and the Log.
    drop(child_workspace.apply_merge(&plan, &changes, &fixture.workspace, None, &stop).unwrap());
    assert!(fixture.work().join("a").exists());
    let closed = fixture.child_workspaces.close(&child_workspace).await.unwrap();
    assert!(matches!(closed, CloseOutcome::Kept { changes: 1 }), "{closed:?}");
    assert_eq!(read_file_tree(&fixture.work()), before);
    // A merge that is stopped in the middle leaves nothing.
    stop.cancel();
    let error =
        child_workspace.apply_merge(&plan, &changes, &fixture.workspace, None, &stop).unwrap_err();
    assert!(error.to_string().contains("stopped"), "{error}");
    assert_eq!(read_file_tree(&fixture.work()), before);
    assert!(!has_pending_merge(&child_workspace.parent_folder()));
}

#[test]
fn a_merge_whose_registration_cannot_be_written_is_rolled_back() {
    let fixture = ChildWorkspaceFixture::new();
    fs::write(fixture.work().join("a"), "1\n2\n3\n4\n5\n").unwrap();
    let child_workspace = fixture.create_child_workspace();
    fs::create_dir_all(child_workspace.parent_folder().path()).unwrap();
    fs::write(StateRoot::in_workspace(fixture.work()).log(&fixture.parent), "").unwrap();
    fs::write(child_workspace.folder().join("a"), "one\n2\n3\n4\n5\n").unwrap();
    fs::write(fixture.work().join("a"), "1\n2\n3\n4\nfive\n").unwrap();
    let before = read_file_tree(&fixture.work());
    let registration_file =
        fixture.home().child_workspaces().join(format!("{}.json", child_workspace.child()));
    fs::remove_file(&registration_file).unwrap();
    fs::create_dir(&registration_file).unwrap();
    assert!(matches!(fixture.apply_merge(&child_workspace), Err(ChildWorkspaceError::Storage(_))));
    assert_eq!(read_file_tree(&fixture.work()), before);
    assert!(!has_pending_merge(&child_workspace.parent_folder()));
}

#[tokio::test]
async fn a_child_workspace_stays_while_a_nested_one_has_unmerged_changes() {
    let fixture = ChildWorkspaceFixture::new();
    fs::write(fixture.work().join("a"), "x").unwrap();
    let child_workspace = fixture.create_child_workspace();
    let workspace = Workspace::open(child_workspace.folder()).unwrap();
    let wanted = ChildWorkspaceRequest {
        parent: child_workspace.child().clone(),
        workspace,
        ..fixture.request()
    };
    let inner = fixture.child_workspaces.create(wanted).await.unwrap();
    fs::write(inner.folder().join("b"), "nowhere else").unwrap();
    assert_eq!(
        fixture.child_workspaces.close(&child_workspace).await.unwrap(),
        CloseOutcome::Kept { changes: 1 }
    );
    assert!(child_workspace.folder().exists() && inner.folder().exists());
    fs::write(child_workspace.folder().join("b"), "nowhere else").unwrap();
    fs::write(fixture.work().join("b"), "nowhere else").unwrap();
    assert_eq!(
        fixture.child_workspaces.close(&child_workspace).await.unwrap(),
        CloseOutcome::Removed { branch: None }
    );
    assert!(!child_workspace.folder().exists() && !inner.folder().exists());
}
