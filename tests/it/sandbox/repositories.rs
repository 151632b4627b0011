//! Repositories in a sandbox: settings and hooks that git would run for the user do not change,
//! whatever the command does and however it ends.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use pixir::scripted::Reply;
use pixir::workbench::{ToolAnswer, Workbench, WorkbenchSetup};
use serde_json::json;

use crate::support::TestEnv;
use crate::support::test_env::DEADLINE;

/// A Workspace in a folder of its own, and its tools.
struct RepositoryEnv {
    folder: tempfile::TempDir,
    subreaper: bool,
}

impl RepositoryEnv {
    fn new(subreaper: bool) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("work")).unwrap();
        Self { folder, subreaper }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().canonicalize().unwrap().join("work").join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::create_dir_all(self.path(name).parent().unwrap()).unwrap();
        fs::write(self.path(name), text).unwrap();
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }

    fn bench(&self) -> Workbench {
        let setup = WorkbenchSetup {
            own_binary: env!("CARGO_BIN_EXE_pixir").into(),
            folder: &self.path(""),
            environment: vec![
                ("PATH".into(), std::env::var_os("PATH").unwrap()),
                ("HOME".into(), self.folder.path().into()),
            ],
            subreaper: self.subreaper,
            drain: Duration::from_millis(50),
            grace: Duration::from_millis(100),
        };
        Workbench::new(setup).unwrap()
    }

    async fn run(&self, command: &str) -> ToolAnswer {
        self.bench().call("bash", json!({ "command": command })).await.unwrap()
    }
}

/// Git settings that start a program.
const EVIL: &str = "[core]\n\tfsmonitor = touch evil; false\n";

/// Shell commands that plant settings and a hook.
fn plant_command(git: &str) -> String {
    format!(
        "mkdir -p {git}/hooks; printf '[core]\\n\\tfsmonitor = evil\\n' >> {git}/config; \
         echo evil > {git}/hooks/pre-commit; chmod +x {git}/hooks/pre-commit"
    )
}

fn holds_nothing_evil(folder: &Path) {
    let config = fs::read_to_string(folder.join("config")).unwrap_or_default();
    assert!(!config.contains("evil"), "{config}");
    assert!(!folder.join("hooks/pre-commit").exists());
    assert!(!folder.join("commondir").exists());
}

fn has_git() -> bool {
    Command::new("git").arg("--version").output().is_ok_and(|output| output.status.success())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repository_may_come_to_be_and_starts_nothing() {
    if !has_git() {
        super::escape::skip("there is no git");
        return;
    }
    for subreaper in [false, true] {
        let place = RepositoryEnv::new(subreaper);
        let commit = "git init -q . && git config user.name A && git config user.email a@b.c && \
            echo x > f && git add f && git commit -qm one && git log --oneline";
        let answer = place.run(commit).await;
        assert!(answer.ok && answer.text.contains(" one\n"), "{}", answer.text);
        assert!(!answer.text.contains("were restored"), "{}", answer.text);
        assert!(place.read(".git/config").contains("email = a@b.c"));
        // The new repository is protected like any other.
        place.run(&plant_command(".git")).await;
        holds_nothing_evil(&place.path(".git"));
        let again = place.run("echo y > f && git commit -qam two && git log --oneline").await;
        assert!(again.text.contains(" two\n"), "{}", again.text);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_planted_repository_is_neutralised_and_reported() {
    for subreaper in [false, true] {
        let place = RepositoryEnv::new(subreaper);
        // The Workspace lies below the top of a repository.
        fs::create_dir_all(place.folder.path().join(".git/hooks")).unwrap();
        let answer = place.run(&plant_command(".git")).await;
        assert!(answer.text.contains("which were restored"), "{}", answer.text);
        assert!(answer.text.contains(".git/config") && answer.text.contains("pre-commit"));
        holds_nothing_evil(&place.path(".git"));
        let place = RepositoryEnv::new(subreaper);
        let answer = place.run(&format!("{}; echo 'gitdir: g' > .git", plant_command("g"))).await;
        assert!(answer.text.contains("which were restored"), "{}", answer.text);
        assert!(!place.path(".git").exists());
        let answer = place.run("ln -s g .git").await;
        assert!(answer.text.contains("which were restored"), "{}", answer.text);
        assert!(place.path(".git").symlink_metadata().is_err());
        let bare = format!("mkdir -p objects refs && touch HEAD && {}", plant_command("."));
        place.run(&bare).await;
        holds_nothing_evil(&place.path(""));
        // It stays neutralised.
        place.run(&plant_command(".")).await;
        holds_nothing_evil(&place.path(""));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_link_for_a_repository_keeps_what_it_leads_to() {
    for subreaper in [false, true] {
        for attempt in [
            plant_command(".git"),
            plant_command("repo"),
            format!("mv repo other; mkdir repo; {}", plant_command("repo")),
            format!("rm .git; {}", plant_command(".git")),
            format!("{}; ln -sfn evil .git", plant_command("evil")),
        ] {
            let place = RepositoryEnv::new(subreaper);
            place.write("repo/HEAD", "ref: refs/heads/main\n");
            place.write("repo/config", "[core]\n\tbare = false\n");
            place.write("repo/hooks/x.sample", "true\n");
            symlink("repo", place.path(".git")).unwrap();
            place.run(&attempt).await;
            assert_eq!(fs::read_link(place.path(".git")).unwrap(), Path::new("repo"), "{attempt}");
            assert_eq!(place.read(".git/config"), "[core]\n\tbare = false\n", "{attempt}");
            holds_nothing_evil(&place.path(".git"));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repository_behind_a_link_is_not_moved_aside_with_its_folder() {
    for subreaper in [false, true] {
        let place = RepositoryEnv::new(subreaper);
        place.write("a/b/repo/HEAD", "ref: refs/heads/main\n");
        place.write("a/b/repo/config", "[core]\n\tbare = false\n");
        symlink("a/b/repo", place.path(".git")).unwrap();
        for way in ["a", "a/b", "a/b/repo"] {
            place.run(&format!("mv {way} aside; {}", plant_command("a/b/repo"))).await;
            holds_nothing_evil(&place.path("a/b/repo"));
            holds_nothing_evil(&place.path(".git"));
            place.run(&format!("rm -rf {way}; mv aside {way}")).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_link_to_a_repository_outside_is_not_written_through() {
    for subreaper in [false, true] {
        let place = RepositoryEnv::new(subreaper);
        let outside = place.folder.path().join("outside");
        fs::create_dir_all(outside.join("hooks")).unwrap();
        fs::write(outside.join("config"), "").unwrap();
        symlink("../outside", place.path(".git")).unwrap();
        place.run(&plant_command(".git")).await;
        place.run(&format!("rm -rf .git; {}", plant_command(".git"))).await;
        assert_eq!(fs::read_link(place.path(".git")).unwrap(), Path::new("../outside"));
        holds_nothing_evil(&outside);
    }
}

/// Waits until a condition holds.
fn until(what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < DEADLINE, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_is_abandoned_is_looked_at_all_the_same() {
    for subreaper in [false, true] {
        let place = RepositoryEnv::new(subreaper);
        place.write(".git/HEAD", "");
        place.write(".git/config", "one");
        let plant = format!(
            "trap '' TERM; {}; echo ../evil > .git/commondir; touch ready; sleep 600",
            plant_command(".git")
        );
        let bench = place.bench();
        {
            let call = bench.call("bash", json!({ "command": plant }));
            let ready = async {
                while !place.path("ready").exists() {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            // The call is dropped without an interrupt.
            tokio::select! {
                answer = call => panic!("{answer:?}"),
                () = ready => {}
            }
        }
        let git = place.path(".git");
        until("it is mended", || {
            !git.join("commondir").exists()
                && !git.join("hooks").exists()
                && place.read(".git/config") == "one"
        });
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_background_command_planted_is_gone_when_the_run_ends() {
    let plant = "echo ../evil > .git/commondir; touch ready; sleep 600";
    let env = TestEnv::with_replies([
        Reply::calls("bash", json!({ "command": plant, "background": true })),
        Reply::calls("bash", json!({"command": "while [ ! -e ready ]; do sleep 0.01; done"})),
        Reply::says("done"),
    ])
    .await;
    fs::create_dir_all(env.workspace().join(".git/hooks")).unwrap();
    env.write(".git/config", "one");
    env.run_pixir(&["serve it"]).assert_exit_code(0);
    assert!(env.workspace().join("ready").exists());
    assert!(!env.workspace().join(".git/commondir").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_background_command_cannot_pass_its_change_off_as_the_users() {
    let place = RepositoryEnv::new(true);
    place.write(".git/HEAD", "");
    place.write(".git/config", "one");
    let bench = place.bench();
    let change = "echo evil > .git/config; touch ready; read line; echo evil > .git/config";
    let args = json!({ "command": change, "background": true });
    let handle = bench.call("bash", args).await.unwrap().details["background"].clone();
    until("it has begun", || place.path("ready").exists());
    let answer = bench.call("bash", json!({"command": "cat .git/config"})).await.unwrap();
    assert!(answer.text.contains("which were restored"), "{}", answer.text);
    assert_eq!(place.read(".git/config"), "one");
    bench.call("bash_input", json!({"id": handle, "text": "\n"})).await.unwrap();
    let end = json!({"id": handle, "wait_ms": 20_000});
    let answer = bench.call("bash_output", end).await.unwrap();
    assert!(answer.text.contains("ended"), "{}", answer.text);
    assert_eq!(place.read(".git/config"), "one");
    // Without a running command, a change is the user's.
    place.write(".git/config", EVIL);
    bench.call("bash", json!({"command": "true"})).await.unwrap();
    assert_eq!(place.read(".git/config"), EVIL);
}
