//! Tests of every file tool in an extra root outside the Workspace.

use super::*;

fn env_with_extra_root() -> (ToolTestEnv, TempDir, PathBuf) {
    let mut env = ToolTestEnv::new();
    let beside = tempfile::tempdir().unwrap();
    let root = beside.path().canonicalize().unwrap();
    let space = Workspace::open(&root).unwrap();
    env.context.workspace = env.context.workspace.clone().with_extra_roots(vec![space]);
    fs::create_dir_all(root.join("src/deep")).unwrap();
    fs::write(root.join("src/a.rs"), "fn main() {}\n").unwrap();
    fs::write(root.join("src/deep/b.rs"), "fn b() {}\n").unwrap();
    fs::write(root.join("src/deep/skip.log"), "fn log\n").unwrap();
    fs::write(root.join(".gitignore"), "*.log\n").unwrap();
    (env, beside, root)
}

#[test]
fn files_are_read_written_edited_and_patched_by_absolute_path() {
    let (env, _beside, root) = env_with_extra_root();
    let path = root.join("src/a.rs");
    let shown = path.to_str().unwrap();
    assert!(env.read(json!({ "path": shown })).contains("fn main"));
    let edited = env.edit(shown, "main", "start").unwrap();
    assert_eq!(edited.details["path"], shown);
    assert!(edited.details["diff"].as_str().unwrap().contains("+fn start"), "{}", edited.details);
    // A change outside the Session is noticed there too, and the file is not taken for one of the Workspace.
    fs::write(&path, "fn other() {}\n").unwrap();
    assert_eq!(env.edit(shown, "other", "x").unwrap_err().kind, Kind::FileChanged);
    let new = root.join("new.txt");
    env.call("write", json!({"path": new, "content": "hi\n"})).unwrap();
    assert_eq!(fs::read_to_string(&new).unwrap(), "hi\n");
    let changes =
        format!("*** Begin Patch\n*** Update File: {}\n-hi\n+ho\n*** End Patch", new.display());
    env.call("apply_patch", json!({ "patch": changes })).unwrap();
    assert_eq!(fs::read_to_string(&new).unwrap(), "ho\n");
    let plan = env.plan("write", &json!({"path": new, "content": "x"})).unwrap();
    assert_eq!(plan.paths, [new]);
}

#[test]
fn searches_begin_there_and_know_its_rules() {
    let (env, _beside, root) = env_with_extra_root();
    let output_of = |name: &str, args: Value| env.call(name, args).unwrap().text;
    let deep = root.join("src/deep");
    for start in [&root, &root.join("src")] {
        let found = output_of("grep", json!({"pattern": "fn ", "path": start}));
        let (a, b) = (root.join("src/a.rs"), deep.join("b.rs"));
        assert!(
            found.contains(a.to_str().unwrap()) && found.contains(b.to_str().unwrap()),
            "{found}"
        );
        assert!(!found.contains("skip.log"), "{found}");
        let names = output_of("glob", json!({"pattern": "*.rs", "path": start}));
        assert_eq!(names.matches(".rs").count(), 2, "{names}");
    }
    let listed = output_of("list", json!({ "path": deep }));
    assert!(
        listed.contains(deep.join("b.rs").to_str().unwrap()) && !listed.contains("skip.log"),
        "{listed}"
    );
    let one = output_of("grep", json!({"pattern": "log", "path": deep.join("skip.log")}));
    assert!(one.contains("fn log"), "a file that is named is searched: {one}");
    assert!(
        !output_of("glob", json!({"pattern": "*.rs"})).contains("a.rs"),
        "without a path, only the Workspace is searched"
    );
    let outside = root.parent().unwrap();
    assert_eq!(env.kind("list", json!({ "path": outside })), Kind::OutsideWorkspace);
}
