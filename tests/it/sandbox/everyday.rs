//! Ordinary commands work in the sandbox: builds, tests, commits, and all features of a shell.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use pixir::workbench::{Workbench, WorkbenchSetup};
use serde_json::json;

use crate::support::drivers::assert_driver_passed;

/// The variable that makes a test process a driver, and selects the sandbox level.
const DRIVE: &str = "PIXIR_TEST_EVERYDAY";
/// A user that owns nothing.
const NOBODY: u32 = 65534;

/// Ordinary commands: title, required program, and the command, which must succeed.
const WORK: &[(&str, &str, &str)] = &[
    ("redirections", "bash", "echo x 2>/dev/null >/dev/null; echo y >&2; cat </dev/null"),
    ("absolute paths", "bash", "/bin/ls / >/dev/null && /usr/bin/env true"),
    ("a here-document", "bash", "cat <<'END' > doc.txt\nline\nEND\ngrep -q line doc.txt"),
    (
        "pipes",
        "bash",
        "set -o pipefail; seq 1 100 | sort -rn | head -n 3 | wc -l | grep -q 3 || true",
    ),
    ("process substitution", "bash", "diff <(echo a) <(echo a)"),
    (
        "the other outputs",
        "bash",
        "echo a > /dev/stdout; echo b > /dev/stderr; echo c | cat /dev/stdin",
    ),
    ("a temp file by tool", "bash", "f=$(mktemp) && echo x > \"$f\" && rm \"$f\"; mktemp -d"),
    ("a temp file by variable", "bash", "echo x > \"$TMPDIR/a\" && grep -q x \"$TMPDIR/a\""),
    ("random numbers", "bash", "head -c 16 /dev/urandom | wc -c | grep -q 16"),
    ("background work", "bash", "(sleep 0.05; echo late > late) & wait; grep -q late late"),
    (
        "links and modes",
        "bash",
        "ln -s doc.txt l && ln doc.txt h && chmod 755 h && touch -d yesterday h && mv l m",
    ),
    (
        "moving across folders",
        "bash",
        "mkdir -p a b && echo 1 > a/f && mv a/f b/f && mv b c && test -f c/f",
    ),
    ("a pipe with a name", "bash", "mkfifo p && (echo x > p &) && grep -q x p"),
    (
        "archives",
        "tar",
        "mkdir -p t && echo 1 > t/f && tar cf t.tar t && rm -r t && tar xf t.tar && test -f t/f",
    ),
    ("processes", "ps", "ps -ef | grep -q bash && test -d /proc/$$"),
    ("who am I", "id", "id -u && whoami"),
    (
        "make",
        "make",
        "printf 'all: out\\nout:\\n\\techo built > out\\n' > Makefile && make -j2 && grep -q built out",
    ),
    ("a compiler", "cc", "echo 'int main(void){return 0;}' > m.c && cc -o m m.c && ./m"),
    (
        "python",
        "python3",
        "python3 -c 'import tempfile,json,subprocess; tempfile.mkdtemp(); subprocess.run([\"true\"], check=True)'",
    ),
    (
        "python's own tests",
        "python3",
        "printf 'import unittest\\nclass T(unittest.TestCase):\\n  def test(self): self.assertEqual(1, 1)\\n' > test_a.py && python3 -m unittest -q test_a",
    ),
    (
        "pytest",
        "pytest",
        "printf 'def test_b(tmp_path):\\n  (tmp_path / \"x\").write_text(\"1\")\\n' > test_b.py && pytest -q test_b.py",
    ),
    (
        "node",
        "node",
        "node -e 'require(\"fs\").writeFileSync(\"n.txt\", String(require(\"os\").cpus().length))' && test -s n.txt",
    ),
    (
        "npm test",
        "npm",
        "echo '{\"name\":\"x\",\"version\":\"1.0.0\",\"scripts\":{\"test\":\"node -e 1\"}}' > package.json && npm test",
    ),
    (
        "cargo test",
        "cargo",
        "cargo init -q --vcs none --name probe probe && cd probe && cargo test -q --offline",
    ),
    (
        "cargo with a dependency of the registry",
        "cargo",
        "ls ${CARGO_HOME:-$HOME/.cargo}/registry/cache/*/cfg-if-1*.crate || { echo skipped: no crate; exit 0; }
         cargo init -q --vcs none --name needy needy && cd needy && echo 'cfg-if = \"1\"' >> Cargo.toml && cargo build -q --offline",
    ),
    (
        "npm's cache",
        "npm",
        "mkdir -p dep && cd dep && echo '{\"name\":\"dep\",\"version\":\"1.0.0\"}' > package.json && npm pack && npm cache add ./dep-1.0.0.tgz && npm cache verify",
    ),
    (
        "pip's cache",
        "pip",
        "mkdir -p \"$(pip cache dir)\" && echo x > \"$(pip cache dir)/probe\" && pip cache info",
    ),
    (
        "git",
        "git",
        "git -C repo add -A && git -C repo commit -qm work && git -C repo log --oneline | grep -q work",
    ),
    (
        "git branches",
        "git",
        "git -C repo switch -qc side && echo 2 > repo/g && git -C repo add -A && git -C repo commit -qm side && git -C repo stash list && git -C repo gc -q",
    ),
    ("a new repository", "git", "git init -q fresh && git -C fresh status -s"),
];

/// Commands that need their own network or shared memory, which only level `full` provides.
const FULL_WORK: &[(&str, &str, &str)] = &[
    (
        "a temp file by name",
        "bash",
        "echo x > /tmp/file && grep -q x /tmp/file && echo y > /var/tmp/z",
    ),
    ("shared memory", "bash", "echo x > /dev/shm/file && grep -q x /dev/shm/file"),
    (
        "a server on the loopback",
        "python3",
        "python3 -c 'import socket; s=socket.create_server((\"127.0.0.1\",0)); c=socket.create_connection(s.getsockname()); s.accept()'",
    ),
    (
        "a socket with a name",
        "python3",
        "python3 -c 'import socket; s=socket.socket(socket.AF_UNIX); s.bind(\"s.sock\"); s.listen(); c=socket.socket(socket.AF_UNIX); c.connect(\"s.sock\")'",
    ),
    (
        "python's pool",
        "python3",
        "python3 -c 'import multiprocessing as m; p=m.Pool(2); print(p.map(abs, [-1, 2]))'",
    ),
];

fn bench(folder: &Path, subreaper: bool) -> Workbench {
    let variable = |name: &str| std::env::var_os(name).map(|value| (OsString::from(name), value));
    let setup = WorkbenchSetup {
        own_binary: env!("CARGO_BIN_EXE_pixir").into(),
        folder,
        environment: ["PATH", "HOME", "CARGO_HOME", "RUSTUP_HOME", "PYENV_ROOT"]
            .into_iter()
            .filter_map(variable)
            .collect(),
        subreaper,
        drain: Duration::from_millis(100),
        grace: Duration::from_millis(300),
    };
    // The home is beside the Workspace, so that caches have private layers.
    let home = pixir::Home::new(folder.with_extension("pixir"));
    Workbench::with_config(setup, |config| config.home = home).unwrap()
}

fn has(program: &str) -> bool {
    let asked = Command::new(program).arg("--version").output();
    asked.is_ok_and(|output| output.status.success())
}

fn git(folder: &Path, args: &[&str]) {
    let status = Command::new("git")
        .args(["-c", "user.name=A", "-c", "user.email=a@b.c", "-c", "init.defaultBranch=main"])
        .arg("-C")
        .arg(folder)
        .args(args)
        .stdout(Stdio::null())
        .status();
    assert!(status.unwrap().success(), "git {args:?}");
}

/// Makes a repository with one commit and a configured author.
fn repository(folder: &Path) {
    fs::create_dir_all(folder).unwrap();
    git(folder, &["init", "-q"]);
    git(folder, &["config", "user.name", "A"]);
    git(folder, &["config", "user.email", "a@b.c"]);
    fs::write(folder.join("f"), "1\n").unwrap();
    git(folder, &["add", "-A"]);
    git(folder, &["commit", "-qm", "first"]);
    fs::write(folder.join("f"), "2\n").unwrap();
}

fn run<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        tokio::time::timeout(Duration::from_mins(5), future).await.expect("in time")
    })
}

/// Runs all commands; gives those that failed.
fn work(subreaper: bool) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().canonicalize().unwrap().join("work");
    repository(&root.join("repo"));
    let bench = bench(&root, subreaper);
    run(async {
        let mut failed = Vec::new();
        let full = FULL_WORK.iter().filter(|_| !subreaper);
        let mut level = String::new();
        for (what, program, command) in WORK.iter().chain(full) {
            if !has(program) {
                super::escape::skip(&format!("everyday: {what}, because there is no {program}"));
                continue;
            }
            let answer = bench.call("bash", json!({"command": command})).await.unwrap();
            answer.details["sandbox"].as_str().unwrap().clone_into(&mut level);
            if level == "partial" && !subreaper && FULL_WORK.iter().any(|(name, ..)| name == what) {
                continue;
            }
            if !answer.ok {
                failed.push(format!("{what}: {}", answer.text));
            }
        }
        let expected = if subreaper { "partial" } else { "full" };
        if level != expected {
            super::escape::skip(&format!("everyday: the level here is {level}"));
        }
        failed
    })
}

#[test]
fn everyday_work_just_works() {
    assert_eq!(work(false), Vec::<String>::new());
}

#[test]
fn everyday_work_works_without_namespaces() {
    assert_eq!(work(true), Vec::<String>::new());
}

/// A driver: the process that the next test starts as another user.
#[test]
fn driver() {
    let Some(drive) = std::env::var_os(DRIVE) else { return };
    assert_eq!(work(drive == "partial"), Vec::<String>::new());
}

#[test]
fn everyday_work_works_for_an_ordinary_user() {
    if !rustix::process::geteuid().is_root() {
        super::escape::skip("these tests already run as an ordinary user");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let can_run = Command::new(env!("CARGO_BIN_EXE_pixir")).arg("--version").uid(NOBODY).output();
    if !can_run.is_ok_and(|output| output.status.success()) {
        super::escape::skip("another user cannot run the program where it was built");
        return;
    }
    for level in ["full", "partial"] {
        let mut driver = Command::new(std::env::current_exe().unwrap());
        driver.args(["--exact", "sandbox::everyday::driver", "--nocapture"]);
        driver.env(DRIVE, level).env("TMPDIR", folder.path()).env("HOME", folder.path());
        // Only tools of the system are certain to work for the other user.
        driver.env("PATH", "/usr/local/bin:/usr/bin:/bin").env_remove("PYENV_ROOT");
        let output = driver.current_dir(folder.path()).uid(NOBODY).gid(NOBODY).output().unwrap();
        assert_driver_passed(&output, level);
    }
}

/// Commits in a worktree reach its repository elsewhere; hooks and settings do not change.
#[test]
fn a_worktree_can_commit_and_cannot_change_what_git_runs() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().canonicalize().unwrap();
    repository(&root.join("main"));
    git(&root.join("main"), &["worktree", "add", "-q", "../tree"]);
    let tree = root.join("tree");
    for subreaper in [false, true] {
        let bench = bench(&tree, subreaper);
        run(async {
            let bash = async |command: &str| {
                bench.call("bash", json!({"command": command})).await.unwrap()
            };
            let commit = "date +%N > g && git add -A && git commit -qm tree && git log --oneline";
            let answer = bash(commit).await;
            assert!(answer.ok, "{}", answer.text);
            let main = root.join("main");
            let config = fs::read_to_string(main.join(".git/config")).unwrap();
            bash("git config core.fsmonitor /tmp/evil; echo evil > ../main/.git/hooks/pre-commit")
                .await;
            assert_eq!(fs::read_to_string(main.join(".git/config")).unwrap(), config);
            assert!(!main.join(".git/hooks/pre-commit").exists());
            bash("echo 'gitdir: /tmp/evil' > .git; rm -f .git").await;
            assert!(fs::read_to_string(tree.join(".git")).unwrap().contains("worktrees/tree"));
            // The files of the other tree are outside.
            bash("echo evil > ../main/f").await;
            assert_eq!(fs::read_to_string(main.join("f")).unwrap(), "2\n");
        });
    }
}
