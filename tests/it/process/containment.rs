//! Containment of commands that resist it, and on machines that lack something.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::process::Output;

use rustix::process::{Signal, kill_process};

use super::*;
use crate::support::drivers::assert_driver_passed;

const OWN_DRIVER: &str = "process::containment::driver";
/// The variable with the path of the file that an idle driver creates.
const READY: &str = "PIXIR_TEST_READY";
/// A user that owns nothing.
const NOBODY: u32 = 65534;

/// Commands that kill or stop the supervisor, which is visible to them without a namespace.
const SUPERVISOR_ATTACKS: &[(&str, &str)] = &[
    ("the inner is killed", "kill -9 $PPID; exec -a MARK sleep 300"),
    ("the outer is killed", "kill -9 $OUTER; exec -a MARK sleep 300"),
    ("both are killed", "kill -9 $OUTER $PPID; exec -a MARK sleep 300"),
    (
        "the inner is killed, from another session",
        "kill -9 $PPID; setsid bash -c 'exec -a MARK sleep 300' & exec -a MARK sleep 300",
    ),
    ("the inner is stopped", "kill -STOP $PPID; exec -a MARK sleep 300"),
    ("both are stopped", "kill -STOP $OUTER $PPID; exec -a MARK sleep 300"),
    (
        "both are stopped again and again",
        "trap '' TERM; while kill -STOP $OUTER $PPID; do sleep 0.05; done & exec -a MARK sleep 300",
    ),
];

/// Finds the outer supervisor: the parent of the shell's parent.
fn escape_script(command: &str) -> String {
    format!("OUTER=$(cut -d' ' -f4 /proc/$PPID/stat); [ $OUTER -gt 1 ] || exit 9; {command}")
}

#[test]
fn a_command_that_rids_itself_of_its_supervisor_gains_nothing() {
    for (what, command) in SUPERVISOR_ATTACKS {
        let env = ProcessEnv::new(ContainmentMode::Subreaper);
        let began = Instant::now();
        run(async {
            let answer = env.bash_within(&escape_script(command), 1000).await;
            assert!(!answer.ok, "{what}: {}", answer.text);
            assert_eq!(answer.details["survivors"], json!([]), "{what}");
        });
        assert!(began.elapsed() < PATIENCE, "{what}");
        let left = wait_for(|| survivors(&env.mark), Vec::is_empty);
        assert_eq!(left, Vec::<String>::new(), "{what}");
    }
}

#[test]
fn a_dropped_call_ends_even_under_stopped_supervisors() {
    let env = ProcessEnv::new(ContainmentMode::Subreaper);
    run(async {
        let command = escape_script("kill -STOP $OUTER $PPID; exec -a MARK sleep 300");
        let look = async {
            while sleepers(&env.mark) < 1 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::select! {
            answer = env.bash(&command) => panic!("ended: {answer:?}"),
            () = look => {}
        }
    });
    env.assert_nothing_survives();
}

#[test]
fn a_command_has_its_own_group_and_no_descriptor_but_three() {
    for mode in MODES {
        let env = ProcessEnv::new(mode);
        run(async {
            let answer = env.bash("cut -d' ' -f5 /proc/$$/stat; echo $$").await;
            let words: Vec<&str> = answer.text.lines().collect();
            assert_eq!(words[0], words[1], "{}", answer.text);
        });
    }
    // A descriptor that Pixir itself inherited must not reach the command either.
    let open = "exec 7</dev/null; exec \"$0\" \"$@\"";
    for drive in ["descriptors namespace", "descriptors subreaper"] {
        let inner = driver_command(OWN_DRIVER, drive);
        let mut shell = Command::new("bash");
        shell.args(["-c", open]).arg(inner.get_program()).args(inner.get_args());
        run_driver(shell.env(DRIVE, drive), drive);
    }
}

#[test]
fn many_calls_leave_no_descriptor_and_no_zombie() {
    for drive in ["many namespace", "many subreaper"] {
        run_driver(&mut driver_command(OWN_DRIVER, drive), drive);
    }
}

#[test]
fn eight_commands_run_side_by_side_and_leave_nothing() {
    for mode in MODES {
        let env = ProcessEnv::new(mode);
        run(async {
            let calls = (0..8).map(|number| {
                let command = format!("(exec -a MARK sleep 300) & echo {number}; sleep 0.2");
                let env = &env;
                async move { env.bash(&command).await.text }
            });
            let texts = futures_util::future::join_all(calls).await;
            for (number, text) in texts.iter().enumerate() {
                assert!(text.starts_with(&format!("{number}\n")), "{text}");
            }
        });
        env.assert_nothing_survives();
    }
}

#[test]
fn killing_the_outer_supervisor_ends_the_namespace() {
    if !has_namespaces() {
        return;
    }
    run_driver(&mut driver_command(OWN_DRIVER, "outer namespace"), "the outer supervisor");
}

#[test]
fn killing_pixir_with_an_idle_spare_leaves_nothing() {
    for mode in ["namespace", "subreaper"] {
        let folder = tempfile::tempdir().unwrap();
        let ready = folder.path().join("ready");
        let mut driver = driver_command(OWN_DRIVER, &format!("idle {mode}"));
        let mut driver = driver.env(READY, &ready).spawn().unwrap();
        assert!(wait_for(|| ready.exists(), |ready| *ready), "{mode}");
        let id = driver.id();
        let own = || descendants(id).into_iter().filter(|(_, line)| line.contains("__supervise"));
        // Only a supervisor with its own namespace can serve another command.
        let expected = if mode == "namespace" { 2 } else { 0 };
        let spare = wait_for(|| own().collect::<Vec<_>>(), |spare| spare.len() == expected);
        assert_eq!(spare.len(), expected, "{mode}: the spare is an outer and an inner process");
        driver.kill().unwrap();
        driver.wait().unwrap();
        let is_left = |pid: &u32| {
            fs::read(format!("/proc/{pid}/cmdline"))
                .is_ok_and(|line| String::from_utf8_lossy(&line).contains("__supervise"))
        };
        let left = || spare.iter().map(|(pid, _)| *pid).filter(is_left).collect::<Vec<_>>();
        assert_eq!(wait_for(left, Vec::is_empty), Vec::<u32>::new(), "{mode}");
    }
}

/// The processes beneath another one, with their command lines.
fn descendants(pid: u32) -> Vec<(u32, String)> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten();
    let lists =
        threads.filter_map(|thread| fs::read_to_string(thread.ok()?.path().join("children")).ok());
    let children: Vec<u32> =
        lists.collect::<String>().split_whitespace().map(|pid| pid.parse().unwrap()).collect();
    let with_line = |pid: u32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let own = (pid, String::from_utf8_lossy(&line).replace('\0', " "));
        std::iter::once(own).chain(descendants(pid)).collect::<Vec<_>>()
    };
    children.into_iter().flat_map(with_line).collect()
}

#[test]
fn without_a_true_proc_commands_are_refused() {
    let hide = "mount -t tmpfs none /proc && exec \"$0\" __supervise subreaper";
    let shift = "exec \"$0\" __supervise subreaper";
    for (flags, script) in [("--mount", hide), ("--pid", shift)] {
        let mut unshare = Command::new("unshare");
        if !rustix::process::geteuid().is_root() {
            unshare.args(["--user", "--map-root-user"]);
        }
        let binary = env!("CARGO_BIN_EXE_pixir");
        unshare.args([flags, "--fork", "bash", "-c", script, binary]);
        // The setup that Pixir sends first: no control group and no Spec.
        let (setup, mut near) = std::io::pipe().unwrap();
        near.write_all(&[1, 0, 0, 0, 0]).unwrap();
        let output = unshare.stdin(setup).output();
        let Ok(Output { stderr, .. }) = output else {
            skip("there is no `unshare`");
            continue;
        };
        let stderr = String::from_utf8_lossy(&stderr);
        if stderr.contains("unshare") || stderr.contains("mount:") {
            skip(&stderr);
            continue;
        }
        assert_eq!(stderr, "blind\n", "{flags}");
    }
}

/// Checks that need an ordinary user: missing capabilities of commands, and a file owner that cannot be kept.
#[test]
fn an_ordinary_user_is_contained_as_well() {
    if !rustix::process::geteuid().is_root() {
        skip("these tests already run as an ordinary user");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let can_run = Command::new(env!("CARGO_BIN_EXE_pixir")).arg("--version").uid(NOBODY).output();
    if !can_run.is_ok_and(|output| output.status.success()) {
        skip("another user cannot run the program where it was built");
        return;
    }
    fs::write(folder.path().join("roots"), "one\n").unwrap();
    fs::set_permissions(folder.path().join("roots"), fs::Permissions::from_mode(0o666)).unwrap();
    for mode in ["namespace", "subreaper"] {
        let mut driver = driver_command(OWN_DRIVER, &format!("ordinary {mode}"));
        driver.env("TMPDIR", folder.path()).current_dir(folder.path()).uid(NOBODY).gid(NOBODY);
        run_driver(&mut driver, mode);
    }
}

/// A write to a file with several names on a full disk leaves the file unchanged.
#[test]
fn a_full_disk_leaves_a_file_with_several_names_whole() {
    let folder = tempfile::tempdir().unwrap();
    let script = "mount -t tmpfs -o size=300k none \"$MOUNT\" && exec \"$0\" \"$@\"";
    let inner = driver_command(OWN_DRIVER, "full namespace");
    let mut unshare = Command::new("unshare");
    if !rustix::process::geteuid().is_root() {
        unshare.args(["--user", "--map-root-user"]);
    }
    unshare.args(["--mount", "bash", "-c", script]).arg(inner.get_program());
    unshare.args(inner.get_args()).env(DRIVE, "full namespace").env("MOUNT", folder.path());
    let output = unshare.env("TMPDIR", folder.path()).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    if stderr.contains("unshare:") || stderr.contains("mount:") {
        skip(&stderr);
        return;
    }
    assert_driver_passed(&output, "a full disk");
}

/// A driver: the process that the tests above start and watch.
#[test]
fn driver() {
    let Some(drive) = std::env::var_os(DRIVE) else { return };
    let drive = drive.into_string().unwrap();
    let (what, mode) = drive.split_once(' ').unwrap();
    let mode =
        if mode == "subreaper" { ContainmentMode::Subreaper } else { ContainmentMode::Namespace };
    let env = ProcessEnv::new(mode);
    run(async {
        match what {
            "descriptors" => {
                assert!(Path::new("/proc/self/fd/7").exists(), "Pixir itself has it");
                let answer = env.bash("ls /proc/self/fd | tr '\\n' ' '").await;
                assert_eq!(answer.text, "0 1 2 3 \n[exit code 0]", "3 is the listing's own");
            }
            "many" => many_calls(&env).await,
            "outer" => kill_outer(&env).await,
            "idle" => {
                env.bash("true").await;
                fs::write(std::env::var_os(READY).unwrap(), "").unwrap();
                std::thread::sleep(PATIENCE);
            }
            "ordinary" => ordinary_user(&env, mode).await,
            _ => full_disk(&env).await,
        }
    });
}

async fn many_calls(env: &ProcessEnv) {
    let descriptors = || fs::read_dir("/proc/self/fd").unwrap().count();
    for _ in 0..5 {
        env.bash("true").await;
    }
    let before = descriptors();
    let family = children().len();
    for _ in 0..200 {
        assert!(env.bash("true").await.ok);
    }
    assert_eq!((descriptors(), children().len()), (before, family));
}

async fn kill_outer(env: &ProcessEnv) {
    let look = async {
        while sleepers(&env.mark) < 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        for outer in children() {
            kill_process(outer, Signal::KILL).unwrap();
        }
    };
    let command = "setsid bash -c 'exec -a MARK sleep 300' & exec -a MARK sleep 300";
    let (answer, ()) = tokio::join!(env.bash(command), look);
    assert!(!answer.ok, "{}", answer.text);
    env.assert_nothing_survives();
    // Pixir does not watch an idle pair, so the inner process must end with the outer one by itself.
    env.bash("true").await;
    let pair: Vec<i32> =
        descendants(std::process::id()).into_iter().map(|(pid, _)| pid.cast_signed()).collect();
    let [outer, inner] = pair[..] else { panic!("{pair:?}") };
    kill_process(rustix::process::Pid::from_raw(outer).unwrap(), Signal::KILL).unwrap();
    let is_there = || Path::new(&format!("/proc/{inner}/exe")).read_link().is_ok();
    assert!(!wait_for(is_there, |is_there| !is_there), "the inner process is left");
}

async fn ordinary_user(env: &ProcessEnv, mode: ContainmentMode) {
    for (what, command) in LEAVING_COMMANDS {
        let answer = env.bash(command).await;
        assert!(answer.ok && answer.text.starts_with("left\n"), "{what}: {}", answer.text);
        assert!(answer.text.contains("background processes were killed"), "{what}");
        env.assert_nothing_survives();
    }
    let expected = if mode == ContainmentMode::Namespace && has_namespaces() {
        "namespace"
    } else {
        "subreaper"
    };
    let answer = env.bash("readlink /proc/$PPID/exe || echo hidden").await;
    assert!(answer.text.contains("hidden"), "the supervisor cannot be inspected: {}", answer.text);
    assert_eq!(answer.details["containment"], expected);
    let answer = env.bash("grep CapEff /proc/self/status").await;
    assert!(answer.text.contains("0000000000000000"), "{}", answer.text);
    assert!(!rustix::process::geteuid().is_root());
    if mode == ContainmentMode::Subreaper {
        keeps_no_foreign_owner().await;
    }
}

/// Edits another user's file in an own folder; the new owner is reported.
async fn keeps_no_foreign_owner() {
    let folder = std::env::current_dir().unwrap();
    let bench = Workbench::new(WorkbenchSetup {
        own_binary: env!("CARGO_BIN_EXE_pixir").into(),
        folder: &folder,
        environment: Vec::new(),
        subreaper: true,
        drain: Duration::ZERO,
        grace: Duration::ZERO,
    });
    let edits = json!([{"old_string": "one", "new_string": "two"}]);
    let answer = bench.unwrap().call("edit", json!({"path": "roots", "edits": edits})).await;
    assert!(answer.unwrap().text.contains("its owner is now 65534:65534"));
    assert_eq!(fs::metadata("roots").unwrap().uid(), NOBODY);
}

async fn full_disk(env: &ProcessEnv) {
    let path = env.folder.path().join("a");
    let old = "x".repeat(50_000);
    fs::write(&path, &old).unwrap();
    fs::hard_link(&path, env.folder.path().join("b")).unwrap();
    fs::write(env.folder.path().join("ballast"), vec![0; 31 * 4096]).unwrap();
    // First there is no room for the backup copy, then none for the file itself.
    for size in [200_000, 100_000] {
        let write = json!({"path": "a", "content": "y".repeat(size)});
        let error = env.bench.call("write", write).await.unwrap_err();
        assert_eq!(error.kind, "write_failed");
        assert_eq!(fs::read_to_string(&path).unwrap(), old, "{size}");
    }
    let write = json!({"path": "a", "content": "y".repeat(30_000)});
    env.bench.call("write", write).await.unwrap();
    let names = fs::read_dir(env.folder.path()).unwrap().count();
    assert_eq!(names, 3, "no copy is left");
}
