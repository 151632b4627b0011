//! Tests of `apply_patch`: several files at once, all of them or none.

use super::*;

fn patch(env: &ToolTestEnv, body: &str) -> Result<ToolOutput, ToolError> {
    env.call("apply_patch", envelope(body))
}

fn envelope(body: &str) -> Value {
    json!({ "patch": format!("*** Begin Patch\n{body}*** End Patch\n") })
}

/// All paths and contents of the Workspace, to compare before and after.
fn workspace_contents(env: &ToolTestEnv) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    let mut waiting = vec![env.folder.path().to_owned()];
    while let Some(folder) = waiting.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() && !path.is_symlink() {
                waiting.push(path.clone());
                found.push((path, Vec::new()));
            } else {
                let bytes = fs::read(&path).unwrap_or_default();
                found.push((path, bytes));
            }
        }
    }
    found.sort();
    found
}

#[test]
fn one_patch_adds_updates_moves_and_deletes() {
    let env = ToolTestEnv::new();
    env.write_file("a.py", "class A:\n    def f(self):\n        x = 1\n        return x\n");
    env.write_file("old.txt", "old\n");
    env.write_file("run.sh", "#!/bin/sh\necho 1\n");
    fs::set_permissions(env.path("run.sh"), fs::Permissions::from_mode(0o755)).unwrap();
    let body = "*** Add File: deep/er/new.txt\n+one\n+two\n\
        *** Update File: a.py\n@@ class A:\n@@     def f(self):\n-        x = 1\n+        x = 2\n\
        *** Update File: run.sh\n*** Move to: bin/run.sh\n #!/bin/sh\n-echo 1\n+echo 2\n\
        *** Delete File: old.txt\n";
    let plan = env.plan("apply_patch", &envelope(body)).unwrap();
    assert_eq!((plan.effect, plan.summary.as_str()), (CallEffect::Write, "patch 4 files (+4 -3)"));
    let names = ["deep/er/new.txt", "a.py", "run.sh", "bin/run.sh", "old.txt"];
    assert_eq!(plan.paths, names.map(PathBuf::from));
    assert!(!env.path("deep").exists(), "a plan changes nothing");
    let output = patch(&env, body).unwrap();
    assert_eq!(
        output.text,
        "patched 4 files (+4 -3)\nA deep/er/new.txt (+2 -0)\nM a.py (+1 -1)\n\
         R run.sh -> bin/run.sh (+1 -1)\nD old.txt (+0 -1)"
    );
    assert_eq!(output.details["diff"].as_str(), plan.diff.as_deref());
    let diff = plan.diff.unwrap();
    assert!(diff.contains("-        x = 1\n+        x = 2\n"), "{diff}");
    assert!(diff.contains("--- a/run.sh\n+++ b/bin/run.sh\n"), "{diff}");
    assert_eq!(env.read_bytes("deep/er/new.txt"), b"one\ntwo\n");
    assert_eq!(env.read_bytes("bin/run.sh"), b"#!/bin/sh\necho 2\n");
    assert_eq!(fs::metadata(env.path("bin/run.sh")).unwrap().mode() & 0o7777, 0o755);
    let left: Vec<_> = workspace_contents(&env).into_iter().map(|(path, _)| path).collect();
    let names = ["a.py", "bin", "bin/run.sh", "deep", "deep/er", "deep/er/new.txt"];
    assert_eq!(left, names.map(|name| env.path(name)));
}

#[test]
fn a_patch_that_does_not_fit_changes_nothing_and_tells_every_file() {
    let env = ToolTestEnv::new();
    env.write_file("a", "one\n");
    env.write_file("b", "x\nx\n");
    let before = workspace_contents(&env);
    let body = "*** Update File: a\n-one\n+two\n*** Add File: new/c\n+c\n*** Update File: b\n-x\n+y\n\
        *** Delete File: missing\n*** Add File: .Pixir/x\n+x\n*** Update File: ../out\n-x\n";
    let error = patch(&env, body).unwrap_err();
    assert_eq!(error.kind, Kind::NotUnique);
    assert!(error.message.starts_with("4 of 6 files cannot be patched: b: "), "{}", error.message);
    assert!(error.message.contains("at lines 1, 2"), "{}", error.message);
    let states: Vec<_> = error.details["files"]
        .as_array()
        .unwrap()
        .iter()
        .map(|file| (file["path"].as_str().unwrap(), file["kind"].as_str().unwrap_or("fits")))
        .collect();
    let expected = [
        ("a", "fits"),
        ("new/c", "fits"),
        ("b", "not_unique"),
        ("missing", "not_found"),
        (".Pixir/x", "protected_path"),
        ("../out", "outside_workspace"),
    ];
    assert_eq!(states, expected);
    assert_eq!(env.plan("apply_patch", &envelope(body)).unwrap_err().kind, Kind::NotUnique);
    assert_eq!(workspace_contents(&env), before);
    assert_eq!(env.kind("apply_patch", json!({"patch": "*** Begin Patch"})), Kind::InvalidArgs);
}

#[test]
fn sections_of_one_file_follow_each_other() {
    let env = ToolTestEnv::new();
    env.write_file("a", "one\r\n");
    let body = "*** Update File: a\n-one\n+two\n*** Update File: ./a\n-two\n+three\n";
    patch(&env, body).unwrap();
    assert_eq!(env.read_bytes("a"), b"three\r\n");
    // A file that is deleted and added keeps its style; one that is added and moved is just new.
    let body = "*** Delete File: a\n*** Add File: a\n+x\n+y\n\
        *** Add File: b\n+b\n*** Update File: b\n*** Move to: c\n";
    let output = patch(&env, body).unwrap();
    assert_eq!(env.read_bytes("a"), b"x\r\ny\r\n");
    assert!(!env.path("b").exists() && env.read_bytes("c") == b"b\n", "{}", output.text);
    let undone = "*** Add File: d\n+d\n*** Delete File: d\n";
    assert_eq!(patch(&env, undone).unwrap_err().kind, Kind::InvalidArgs);
    patch(&env, "*** Update File: c\n*** Move to: ./c\n-b\n+c\n").unwrap();
    assert_eq!(env.read_bytes("c"), b"c\n");
    let occupied = "*** Update File: a\n*** Move to: c\n";
    assert_eq!(patch(&env, occupied).unwrap_err().kind, Kind::AlreadyExists);
    assert_eq!(patch(&env, "*** Add File: a\n+a\n").unwrap_err().kind, Kind::AlreadyExists);
    patch(&env, "*** Delete File: c\n*** Update File: a\n*** Move to: c\n").unwrap();
    assert_eq!(env.read_bytes("c"), b"x\r\ny\r\n");
}

#[test]
fn a_move_alone_keeps_the_very_file() {
    let env = ToolTestEnv::new();
    env.write_file("a", b"caf\xe9\0\n");
    fs::hard_link(env.path("a"), env.path("other")).unwrap();
    fs::set_permissions(env.path("a"), fs::Permissions::from_mode(0o4750)).unwrap();
    let inode = fs::metadata(env.path("a")).unwrap().ino();
    patch(&env, "*** Update File: a\n*** Move to: dir/b\n").unwrap();
    let moved = fs::metadata(env.path("dir/b")).unwrap();
    assert_eq!((moved.ino(), moved.mode() & 0o7777, moved.nlink()), (inode, 0o4750, 2));
    assert!(!env.path("a").exists());
}

#[test]
fn links_and_other_names_are_never_guessed_about() {
    let env = ToolTestEnv::new();
    env.write_file("a", "one\n");
    symlink("a", env.path("link")).unwrap();
    symlink("nowhere", env.path("dangling")).unwrap();
    symlink("/etc/hostname", env.path("out")).unwrap();
    let before = workspace_contents(&env);
    for (body, kind) in [
        ("*** Delete File: link\n", Kind::InvalidArgs),
        ("*** Update File: link\n*** Move to: b\n-one\n+two\n", Kind::InvalidArgs),
        ("*** Delete File: dangling\n", Kind::NotFound),
        ("*** Add File: dangling\n+x\n", Kind::InvalidArgs),
        ("*** Update File: a\n*** Move to: dangling\n-one\n+two\n", Kind::InvalidArgs),
        ("*** Delete File: out\n", Kind::OutsideWorkspace),
        ("*** Update File: a\n*** Move to: ../b\n-one\n+two\n", Kind::OutsideWorkspace),
        ("*** Update File: a\n*** Move to: .pixir/b\n", Kind::ProtectedPath),
        ("*** Delete File: .\n", Kind::InvalidArgs),
    ] {
        assert_eq!(patch(&env, body).unwrap_err().kind, kind, "{body}");
        assert_eq!(workspace_contents(&env), before, "{body}");
    }
    patch(&env, "*** Update File: link\n-one\n+two\n").unwrap();
    assert!(env.path("link").is_symlink() && env.read_bytes("a") == b"two\n");
    fs::hard_link(env.path("a"), env.path("b")).unwrap();
    let both = "*** Update File: a\n-two\n+x\n*** Update File: b\n-two\n+y\n";
    assert!(patch(&env, both).unwrap_err().message.contains("two names of one file"));
    let output = patch(&env, "*** Update File: a\n-two\n+three\n").unwrap();
    assert!(output.text.ends_with("also changes 1 other name of this file"), "{}", output.text);
    assert_eq!(env.read_bytes("b"), b"three\n");
    let output = patch(&env, "*** Delete File: a\n").unwrap();
    assert!(output.text.ends_with("1 other name keeps the old file"), "{}", output.text);
    assert_eq!(env.read_bytes("b"), b"three\n");
}

#[test]
fn a_patch_knows_what_the_session_has_seen_also_after_a_resume() {
    let env = ToolTestEnv::new();
    env.write_file("a", "one\n");
    env.write_file("b", "one\n");
    env.write_file("gone", "one\n");
    for name in ["a", "b", "gone"] {
        env.read(json!({ "path": name }));
    }
    env.write_file("a", "theirs\none\n");
    for body in ["*** Update File: a\n-one\n", "*** Delete File: a\n"] {
        assert_eq!(patch(&env, body).unwrap_err().kind, Kind::FileChanged, "{body}");
    }
    let body = "*** Update File: b\n-one\n+two\n*** Delete File: gone\n";
    let output = patch(&env, body).unwrap();
    env.edit("b", "two", "three").unwrap();
    env.call("write", json!({"path": "gone", "content": "new\n"})).unwrap();
    let history = exact::history_of([env.call("read", json!({"path": "gone"})).unwrap(), output]);
    fs::remove_file(env.path("gone")).unwrap();
    let resumed = ToolTestEnv { toolbox: toolbox(env.folder.path(), &history), ..env };
    // The Log says that this Session deleted the file, so nothing outside the Session removed it.
    resumed.call("write", json!({"path": "gone", "content": "again\n"})).unwrap();
    assert_eq!(resumed.edit("b", "three", "four").unwrap_err().kind, Kind::FileChanged);
}

/// A folder in which nothing can be renamed lets the last step fail after the others were done.
#[test]
fn a_step_that_fails_puts_the_others_back() {
    use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};
    let env = ToolTestEnv::new();
    fs::create_dir(env.path("stuck")).unwrap();
    env.write_file("stuck/file", "stays\n");
    env.write_file("a", "one\n");
    env.write_file("linked", "one\n");
    fs::hard_link(env.path("linked"), env.path("other")).unwrap();
    env.write_file("moved", "one\n");
    let before = workspace_contents(&env);
    let inode = fs::metadata(env.path("a")).unwrap().ino();
    let folder = fs::File::open(env.path("stuck")).unwrap();
    let flags = ioctl_getflags(&folder).unwrap_or(IFlags::empty());
    let is_root = rustix::process::geteuid().is_root();
    if is_root && ioctl_setflags(&folder, flags | IFlags::APPEND).is_err() {
        std::io::stderr().write_all(b"skipped: no folder can be made append-only\n").unwrap();
        return;
    }
    fs::set_permissions(env.path("stuck"), fs::Permissions::from_mode(0o555)).ok();
    let result = patch(
        &env,
        "*** Add File: new/deep/file\n+x\n*** Update File: a\n-one\n+two\n\
         *** Update File: linked\n-one\n+two\n*** Update File: moved\n*** Move to: elsewhere\n\
         *** Delete File: stuck/file\n",
    );
    if is_root {
        ioctl_setflags(&folder, flags).unwrap();
    }
    let error = result.unwrap_err();
    fs::set_permissions(env.path("stuck"), fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(error.kind, Kind::WriteFailed);
    assert!(error.message.ends_with("every file is as it was"), "{}", error.message);
    let states: Vec<_> = error.details["files"]
        .as_array()
        .unwrap()
        .iter()
        .map(|file| (file["path"].as_str().unwrap(), file["status"].as_str().unwrap()))
        .collect();
    let expected = [
        ("new/deep/file", "put_back"),
        ("a", "put_back"),
        ("linked", "put_back"),
        ("elsewhere", "put_back"),
        ("stuck/file", "failed"),
    ];
    assert_eq!(states, expected);
    assert_eq!(workspace_contents(&env), before);
    assert_eq!(fs::metadata(env.path("a")).unwrap().ino(), inode);
}

#[test]
fn large_files_get_no_preview_but_are_patched() {
    let env = ToolTestEnv::new();
    env.write_file("large", "line\n".repeat(400_000) + "end\n");
    let body = envelope("*** Update File: large\n-end\n+END\n");
    let plan = env.plan("apply_patch", &body).unwrap();
    assert!(plan.diff.is_none() && plan.summary.contains("too many for a preview"));
    env.call("apply_patch", body).unwrap();
    assert!(env.read_bytes("large").ends_with(b"line\nEND\n"));
}
