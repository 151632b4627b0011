//! Links and files that a command makes. They must not widen the visible part of the home, the
//! caches, the sandbox level, or access to other Workspaces.

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use pixir::workbench::{ToolAnswer, Workbench, WorkbenchSetup};
use serde_json::json;

const PROGRAMS: &str = "/usr/local/bin:/usr/bin:/bin";
const SECRET: &str = "private letter";
const DEADLINE: Duration = Duration::from_mins(1);

/// A home with a private file, a temp folder, and Workspaces beside each other, where commands can see them.
struct WidenedEnv {
    root: PathBuf,
    _folder: tempfile::TempDir,
}

impl WidenedEnv {
    fn new() -> Self {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let root = folder.path().canonicalize().unwrap();
        for name in
            ["home/documents", "home/.cache", "home/projects/one", "home/projects/two", "temp"]
        {
            fs::create_dir_all(root.join(name)).unwrap();
        }
        fs::write(root.join("home/documents/letter"), SECRET).unwrap();
        Self { root, _folder: folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.join("home").join(name)
    }

    /// Commands in a Workspace, with further variables.
    fn bench(&self, workspace: &str, subreaper: bool, variables: &[(&str, PathBuf)]) -> Workbench {
        let home = self.root.join("home");
        let mut environment = vec![
            ("HOME".into(), home.clone().into()),
            ("TMPDIR".into(), self.root.join("temp").into()),
        ];
        if !variables.iter().any(|(name, _)| *name == "PATH") {
            environment.push(("PATH".into(), PROGRAMS.into()));
        }
        environment.extend(variables.iter().map(|(name, path)| (name.into(), path.clone().into())));
        let setup = WorkbenchSetup {
            own_binary: env!("CARGO_BIN_EXE_pixir").into(),
            folder: &self.path(workspace),
            environment,
            subreaper,
            drain: Duration::from_millis(20),
            grace: Duration::from_millis(50),
        };
        let home = pixir::Home::new(home.join(".pixir"));
        Workbench::with_config(setup, |config| config.home = home).unwrap()
    }
}

async fn bash(bench: &Workbench, command: &str) -> ToolAnswer {
    bench.call("bash", json!({ "command": command, "timeout_ms": 30_000 })).await.unwrap()
}

/// Checks that a command ran to its last word, `went on`, and has not seen the secret.
#[track_caller]
fn assert_shows_nothing(answer: &ToolAnswer) {
    let text = &answer.text;
    assert!(text.contains("went on") && !text.contains(SECRET), "{text}");
}

fn run<T>(future: impl Future<Output = T>) -> T {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(DEADLINE * 2, future).await.expect("in time") })
}

/// `PATH` with a folder in front of the usual ones.
fn path_with(folder: &Path) -> PathBuf {
    let mut path = folder.as_os_str().to_owned();
    path.push(":");
    path.push(PROGRAMS);
    path.into()
}

#[test]
fn a_link_in_place_of_a_folder_that_the_environment_names_shows_nothing() {
    for subreaper in [false, true] {
        let place = WidenedEnv::new();
        let bin = place.path("projects/one/node_modules/.bin");
        let venv = place.path("projects/one/.venv");
        fs::create_dir_all(&bin).unwrap();
        fs::create_dir_all(&venv).unwrap();
        let variables = [("PATH", path_with(&bin)), ("VIRTUAL_ENV", venv)];
        run(async {
            let bench = place.bench("projects/one", subreaper, &variables);
            let plant = "rmdir node_modules/.bin .venv && ln -s ~/documents node_modules/.bin && \
                ln -s ~ .venv";
            let planted = bash(&bench, plant).await;
            assert!(planted.ok, "{}", planted.text);
            let read = "cat ~/documents/letter; \
                cat node_modules/.bin/letter .venv/documents/letter; echo went on";
            let answer = bash(&bench, read).await;
            assert_shows_nothing(&answer);
            // The next Session finds the same checkout.
            let answer = bash(&place.bench("projects/one", subreaper, &variables), read).await;
            assert_shows_nothing(&answer);
        });
    }
}

#[test]
fn a_socket_that_the_environment_names_is_not_shown() {
    let place = WidenedEnv::new();
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().canonicalize().unwrap().join("daemon.sock");
    let _listener = UnixListener::bind(&socket).unwrap();
    symlink(&socket, place.path("projects/one/bin")).unwrap();
    symlink(&socket, place.path("bin")).unwrap();
    let connect = format!(
        "python3 -c 'import socket; socket.socket(socket.AF_UNIX).connect(\"{}\")'",
        socket.display()
    );
    let control = Command::new("sh").args(["-c", &connect]).env("PATH", PROGRAMS).status();
    assert!(control.unwrap().success(), "the socket is reached outside the sandbox");
    for named in [place.path("projects/one/bin"), place.path("bin"), socket.clone()] {
        run(async {
            let bench = place.bench("projects/one", false, &[("PATH", path_with(&named))]);
            let answer = bash(&bench, &connect).await;
            assert!(!answer.ok, "{}: {}", named.display(), answer.text);
        });
    }
}

#[test]
fn a_cache_behind_a_link_of_the_workspace_shows_nothing() {
    for subreaper in [false, true] {
        let place = WidenedEnv::new();
        fs::create_dir_all(place.path("projects/one/.cargo-home")).unwrap();
        symlink(place.path("documents"), place.path("projects/one/xdg")).unwrap();
        let variables = [
            ("CARGO_HOME", place.path("projects/one/.cargo-home")),
            ("XDG_CACHE_HOME", place.path("projects/one/xdg")),
        ];
        run(async {
            let bench = place.bench("projects/one", subreaper, &variables);
            let read = "cat ~/documents/letter; \
                cat xdg/letter .cargo-home/registry/documents/letter; echo went on";
            let answer = bash(&bench, read).await;
            assert_shows_nothing(&answer);
            bash(&bench, "rm -rf .cargo-home/registry; ln -s ~ .cargo-home/registry").await;
            let answer = bash(&bench, read).await;
            assert_shows_nothing(&answer);
            assert!(!place.path("documents/registry").exists());
        });
    }
}

#[test]
fn what_a_command_puts_in_the_way_of_a_cover_costs_no_namespaces() {
    let place = WidenedEnv::new();
    run(async {
        let bench = place.bench("projects/one", false, &[]);
        let planted = bash(&bench, "echo x > ~/.cache/huggingface").await;
        if planted.details["sandbox"] != "full" {
            return super::escape::skip("covers in caches: there are no namespaces here");
        }
        assert!(planted.ok, "{}", planted.text);
        bench.close().await;
        // The user signs in outside the sandbox.
        fs::create_dir(place.path(".cache/huggingface")).unwrap();
        fs::write(place.path(".cache/huggingface/token"), SECRET).unwrap();
        let bench = place.bench("projects/one", false, &[]);
        let answer = bash(&bench, "cat ~/.cache/huggingface ~/.cache/huggingface/token").await;
        assert_eq!(answer.details["sandbox"], "full", "{}", answer.text);
        assert!(!answer.text.contains(SECRET), "{}", answer.text);
        bash(&bench, "rm ~/.cache/huggingface").await;
        let answer = bash(&bench, "cat ~/.cache/huggingface/token; find ~/.cache").await;
        assert!(!answer.text.contains(SECRET), "{}", answer.text);
    });
}

#[test]
fn workspaces_share_no_private_layers() {
    for subreaper in [false, true] {
        let place = WidenedEnv::new();
        run(async {
            // Variables lead to private folders where nothing can be mounted.
            let cache = "${XDG_CACHE_HOME:-$HOME/.cache}";
            let one = place.bench("projects/one", subreaper, &[]);
            let planted = bash(&one, &format!("echo evil > {cache}/build.rs")).await;
            assert!(planted.ok, "{}", planted.text);
            one.close().await;
            let two = place.bench("projects/two", subreaper, &[]);
            let answer = bash(&two, &format!("cat {cache}/build.rs")).await;
            assert!(!answer.ok && !answer.text.contains("evil"), "{}", answer.text);
            let one = place.bench("projects/one", subreaper, &[]);
            let again = bash(&one, &format!("cat {cache}/build.rs")).await;
            assert!(again.ok && again.text.contains("evil"), "{}", again.text);
        });
    }
}

#[test]
fn a_link_to_a_credential_that_leads_back_hides_both_ends() {
    let place = WidenedEnv::new();
    let outside = place.root.join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("first"), SECRET).unwrap();
    fs::write(outside.join("second"), SECRET).unwrap();
    let netrc = place.path(".netrc");
    symlink(outside.join("first"), &netrc).unwrap();
    let other = place.path("other");
    symlink(outside.join("second"), &other).unwrap();
    run(async {
        let bench = place.bench("projects/one", false, &[]);
        let read = format!("cat {0}/first {0}/second; echo went on", outside.display());
        bash(&bench, "true").await;
        // The names are swapped, so that the first link returns with its own inode.
        let swap = place.path("swap");
        fs::rename(&netrc, &swap).unwrap();
        fs::rename(&other, &netrc).unwrap();
        let args = json!({ "command": read, "network": true });
        let answer = bench.call("bash", args).await.unwrap();
        assert_shows_nothing(&answer);
        fs::rename(&netrc, &other).unwrap();
        fs::rename(&swap, &netrc).unwrap();
        let answer = bash(&bench, &read).await;
        assert_shows_nothing(&answer);
    });
}

#[test]
fn a_workspace_that_the_user_moves_meanwhile_stays_where_it_was_put() {
    for subreaper in [false, true] {
        let place = WidenedEnv::new();
        let work = place.path("projects/one");
        fs::create_dir_all(work.join(".git/hooks")).unwrap();
        fs::create_dir_all(work.join(".pixir")).unwrap();
        let moved = place.path("projects/moved");
        run(async {
            let bench = place.bench("projects/one", subreaper, &[]);
            let user = async {
                let began = Instant::now();
                while !work.join("started").exists() {
                    assert!(began.elapsed() < DEADLINE, "the command starts");
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                fs::rename(&work, &moved).unwrap();
                symlink("moved", &work).unwrap();
                fs::write(moved.join("go"), "").unwrap();
            };
            let wait = "touch started; until test -e go; do sleep 0.02; done";
            tokio::join!(bash(&bench, wait), user);
            bench.call("bash", json!({ "command": "true" })).await.ok();
            assert!(work.is_symlink(), "the user's link, subreaper {subreaper}");
            assert_eq!(fs::read_link(&work).unwrap(), Path::new("moved"));
        });
    }
}
