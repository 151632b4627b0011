//! Host processes: all processes of a command are gone at the end of the call.
//!
//! Survivors are found by a mark in their command line, which no other test shares.

/// Commands that resist containment, and machines with missing features.
mod containment;

use std::ffi::OsString;
use std::fs;
use std::future::Future;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use pixir::workbench::{ToolAnswer, Workbench, WorkbenchSetup};
use serde_json::{Value, json};

use crate::support::drivers::run_driver;

/// The variable that makes a test process a driver, and names what it drives.
const DRIVE: &str = "PIXIR_TEST_DRIVE";

const PATIENCE: Duration = Duration::from_secs(20);

struct ProcessEnv {
    folder: tempfile::TempDir,
    bench: Workbench,
    mark: String,
}

#[derive(Clone, Copy, PartialEq)]
enum ContainmentMode {
    Namespace,
    Subreaper,
}

struct ProcessEnvSettings<'a> {
    variables: &'a [(&'a str, &'a str)],
    drain: Duration,
    grace: Duration,
}

impl Default for ProcessEnvSettings<'_> {
    fn default() -> Self {
        Self {
            variables: &[],
            drain: Duration::from_millis(100),
            grace: Duration::from_millis(300),
        }
    }
}

const MODES: [ContainmentMode; 2] = [ContainmentMode::Namespace, ContainmentMode::Subreaper];

impl ProcessEnv {
    fn new(mode: ContainmentMode) -> Self {
        Self::with_settings(mode, &ProcessEnvSettings::default())
    }

    fn with_settings(mode: ContainmentMode, settings: &ProcessEnvSettings<'_>) -> Self {
        let ProcessEnvSettings { variables, drain, grace } = *settings;
        let folder = tempfile::tempdir().unwrap();
        let path = std::env::var_os("PATH").unwrap();
        let mut environment: Vec<(OsString, OsString)> = vec![("PATH".into(), path)];
        environment.extend(variables.iter().map(|(name, value)| (name.into(), value.into())));
        let bench = Workbench::new(WorkbenchSetup {
            own_binary: env!("CARGO_BIN_EXE_pixir").into(),
            folder: folder.path(),
            environment,
            subreaper: mode == ContainmentMode::Subreaper,
            drain,
            grace,
        })
        .unwrap();
        let name = folder.path().file_name().unwrap().to_str().unwrap().to_owned();
        Self { folder, bench, mark: format!("mark{}", name.replace('.', "-")) }
    }

    /// Runs a command in which `MARK` stands for the mark.
    async fn bash(&self, command: &str) -> ToolAnswer {
        self.bash_within(command, 60_000).await
    }

    async fn bash_within(&self, command: &str, timeout_ms: u64) -> ToolAnswer {
        let command = command.replace("MARK", &self.mark);
        let args = json!({"command": command, "timeout_ms": timeout_ms});
        self.bench.call("bash", args).await.unwrap()
    }

    #[track_caller]
    fn assert_nothing_survives(&self) {
        assert_eq!(wait_for(|| survivors(&self.mark), Vec::is_empty), Vec::<String>::new());
    }
}

/// The command lines of living processes that carry the mark.
fn survivors(mark: &str) -> Vec<String> {
    let own = std::process::id().to_string();
    let processes = fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    let command_lines = processes.filter_map(|process| {
        let name = process.file_name().into_string().ok()?;
        let is_process = name.bytes().all(|byte| byte.is_ascii_digit()) && name != own;
        let line = fs::read(process.path().join("cmdline")).ok().filter(|_| is_process)?;
        Some(String::from_utf8_lossy(&line).replace('\0', " "))
    });
    command_lines.filter(|line| line.contains(mark)).collect()
}

/// Number of marked processes that have become `sleep`.
fn sleepers(mark: &str) -> usize {
    survivors(mark).iter().filter(|line| line.starts_with(mark)).count()
}

/// Calls `look` until its value is accepted or the time is over; gives the last value.
fn wait_for<T>(look: impl Fn() -> T, wished: impl Fn(&T) -> bool) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        let seen = look();
        if wished(&seen) || Instant::now() > end {
            return seen;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn run<T>(future: impl Future<Output = T>) -> T {
    run_within(PATIENCE * 3, future)
}

fn run_within<T>(limit: Duration, future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(limit, future).await.unwrap() })
}

/// The time limit of the flood: 300 MB cost many seconds in a build without optimisation, and more beside other work.
const FLOOD_LIMIT: Duration = Duration::from_mins(10);

/// A long sleep under the mark.
const SLEEP: &str = "exec -a MARK sleep 300";

#[test]
fn output_order_exit_code_and_signal_are_reported() {
    for mode in MODES {
        let env = ProcessEnv::new(mode);
        run(async {
            let answer = env.bash("echo one; echo two >&2; echo three; exit 3").await;
            assert_eq!(
                (answer.ok, answer.text.as_str()),
                (false, "one\ntwo\nthree\n[exit code 3]")
            );
            assert_eq!(answer.details["exit_code"], 3);
            let answer = env.bash("true").await;
            assert_eq!((answer.ok, answer.text.as_str()), (true, "(no output)\n[exit code 0]"));
            let answer = env.bash("kill -SEGV $$").await;
            assert_eq!((answer.ok, &answer.details["signal"]), (false, &json!(11)));
            assert!(answer.text.contains("[killed by signal 11]"), "{}", answer.text);
        });
    }
}

#[test]
fn the_containment_is_the_one_asked_for() {
    let words = MODES.map(|mode| {
        let env = ProcessEnv::new(mode);
        run(env.bash("true")).details["containment"].as_str().unwrap().to_owned()
    });
    let best = if has_namespaces() { "namespace" } else { "subreaper" };
    assert_eq!(words, [best, "subreaper"]);
}

/// Reports, past the capture of test output, that a check is not possible here.
fn skip(why: &str) {
    std::io::stderr().write_all(format!("\nskipped: {why}\n").as_bytes()).unwrap();
}

/// Whether this user may make namespaces, according to `unshare`.
fn has_namespaces() -> bool {
    let mut unshare = Command::new("unshare");
    if !rustix::process::geteuid().is_root() {
        unshare.arg("--user");
    }
    let made = unshare.args(["--pid", "--mount", "--fork", "true"]).stderr(Stdio::null()).status();
    let made = made.is_ok_and(|status| status.success());
    if !made {
        skip("without namespaces both ways are the same");
    }
    made
}

#[test]
fn standard_input_is_closed_and_pipes_break_as_usual() {
    for mode in MODES {
        let env = ProcessEnv::new(mode);
        run(async {
            assert_eq!(env.bash("cat; echo end").await.text, "end\n[exit code 0]");
            let answer = env.bash("yes | head -n 1; echo ${PIPESTATUS[0]}").await;
            assert_eq!(answer.text, "y\n141\n[exit code 0]");
            let answer = env.bash("cat </dev/tty || echo no terminal").await;
            assert!(answer.text.contains("no terminal"), "{}", answer.text);
        });
    }
}

#[test]
fn the_environment_is_an_allow_list_and_secrets_do_not_come_back() {
    let variables = [
        ("LANG", "C"),
        ("OPENAI_API_KEY", "sk-0123456789abcdef"),
        ("MY_SECRET", "very-hidden-value"),
        ("ODD", "x"),
    ];
    for mode in MODES {
        let env = ProcessEnv::with_settings(
            mode,
            &ProcessEnvSettings { variables: &variables, ..ProcessEnvSettings::default() },
        );
        run(async {
            let answer = env.bash("env | cut -d= -f1 | sort | tr '\\n' ' '").await;
            let names: Vec<&str> = answer.text.split_whitespace().collect();
            for name in ["PATH", "LANG", "PIXIR", "GIT_TERMINAL_PROMPT", "PAGER"] {
                assert!(names.contains(&name), "{name} in {names:?}");
            }
            for name in ["OPENAI_API_KEY", "MY_SECRET", "ODD"] {
                assert!(!names.contains(&name), "{name} in {names:?}");
            }
            let answer = env.bash("cat /proc/$PPID/environ | tr '\\0' '\\n'; true").await;
            assert!(!answer.text.contains("very-hidden"), "{}", answer.text);
            let answer = env.bash("printf very-hid; sleep 0.2; echo den-value").await;
            assert_eq!(answer.text, "[redacted:MY_SECRET]\n[exit code 0]");
        });
    }
}

/// Commands that leave processes behind; each prints `left` and exits at once.
const LEAVING_COMMANDS: &[(&str, &str)] = &[
    ("background holding the pipe", "(exec -a MARK sleep 300) & echo left"),
    ("background, detached", "(exec -a MARK sleep 300) >/dev/null 2>&1 & disown; echo left"),
    ("new session", "setsid bash -c 'exec -a MARK sleep 300' & sleep 0.05; echo left"),
    (
        "double fork",
        "perl -e 'use POSIX; if (!fork) { setsid(); if (!fork) { exec {\"sleep\"} \"MARK\", 300 } \
         exit 0 } sleep 1 if 0;'; sleep 0.05; echo left",
    ),
    ("deaf to TERM", "(trap '' TERM HUP INT; exec -a MARK sleep 300) & sleep 0.05; echo left"),
    (
        "grandchildren",
        "(bash -c '(exec -a MARK sleep 300) & (exec -a MARK sleep 301) & wait') & sleep 0.1; echo left",
    ),
];

#[test]
fn leftovers_of_a_finished_command_are_killed_and_reported() {
    for mode in MODES {
        let env = ProcessEnv::new(mode);
        run(async {
            for (what, command) in LEAVING_COMMANDS {
                let began = Instant::now();
                let answer = env.bash(command).await;
                assert!(answer.ok && answer.text.starts_with("left\n"), "{what}: {}", answer.text);
                assert!(began.elapsed() < Duration::from_secs(10), "{what}");
                assert!(answer.text.contains("background processes were killed"), "{what}");
                let leftovers = answer.details["leftovers"].as_array().unwrap();
                assert!(!leftovers.is_empty(), "{what}");
                env.assert_nothing_survives();
            }
        });
    }
}

#[test]
fn a_namespace_serves_again_only_when_it_was_left_as_it_was() {
    let env = ProcessEnv::new(ContainmentMode::Namespace);
    run(async {
        // The kernel gives the number of a dead namespace to the next one, so its age counts too.
        let look = "readlink /proc/self/ns/pid; cut -d' ' -f22 /proc/1/stat";
        let list_processes = async || env.bash(look).await.text;
        let first = env.bash(look).await;
        if first.details["containment"] != "namespace" {
            return skip("there are no namespaces here");
        }
        assert_eq!(list_processes().await, first.text, "the namespace is used again");
        env.bash("sleep 60 & echo left").await;
        let second = list_processes().await;
        assert_ne!(second, first.text, "a process was left, so the namespace is new");
        // Only root may mount, so for other users the namespace does not change.
        let mounted = env.bash("mount -t tmpfs none /mnt").await.ok;
        assert_eq!(list_processes().await == second, !mounted, "something was mounted");
    });
}

#[test]
fn all_output_arrives_although_the_supervisor_lives_on() {
    let env = ProcessEnv::new(ContainmentMode::Namespace);
    run(async {
        for size in [0, 1, 4_000, 70_000, 300_000] {
            let answer = env.bash(&format!("head -c {size} /dev/zero | tr '\\0' x")).await;
            assert_eq!(answer.details["output_bytes"], size, "{}", answer.text);
        }
    });
}

#[test]
fn a_background_process_that_ends_by_itself_is_no_leftover() {
    for mode in MODES {
        let env = ProcessEnv::with_settings(
            mode,
            &ProcessEnvSettings { drain: PATIENCE, ..ProcessEnvSettings::default() },
        );
        let answer = run(env.bash("(sleep 0.02; echo late) & echo early"));
        assert_eq!(answer.text, "early\nlate\n[exit code 0]");
    }
}

#[test]
fn a_deadline_asks_first() {
    for mode in MODES {
        let env = ProcessEnv::with_settings(
            mode,
            &ProcessEnvSettings { grace: PATIENCE, ..ProcessEnvSettings::default() },
        );
        let answer = run(env.bash_within(SLEEP, 300));
        assert!(!answer.ok && answer.text.contains("[timed out after 300 ms"), "{}", answer.text);
        let facts = (&answer.details["timed_out"], &answer.details["signal"]);
        assert_eq!(facts, (&json!(true), &json!(15)));
        env.assert_nothing_survives();
    }
}

#[test]
fn a_deadline_ends_even_what_ignores_term() {
    for mode in MODES {
        let env = ProcessEnv::new(mode);
        let stubborn =
            "trap '' TERM; echo deaf; while true; do bash -c 'exec -a MARK sleep 5'; done";
        let began = Instant::now();
        let answer = run(env.bash_within(stubborn, 2000));
        assert!(answer.text.starts_with("deaf\n[timed out"), "{}", answer.text);
        assert_eq!(answer.details["signal"], 9);
        assert!(began.elapsed() < PATIENCE);
        env.assert_nothing_survives();
    }
}

#[test]
fn an_interrupt_ends_the_command_and_keeps_its_output() {
    for mode in MODES {
        let env = ProcessEnv::new(mode);
        run(async {
            let command =
                "echo begun; touch begun; (exec -a MARK sleep 300) & exec -a MARK sleep 300";
            let call = env.bash(command);
            let interrupt = async {
                while !env.folder.path().join("begun").exists() {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                env.bench.interrupt();
            };
            let (answer, ()) = tokio::join!(call, interrupt);
            assert!(
                !answer.ok
                    && answer.text.starts_with("begun\n")
                    && answer.text.contains("[interrupted"),
                "{}",
                answer.text
            );
            assert_eq!(answer.details["interrupted"], true);
            env.assert_nothing_survives();
        });
    }
}

#[test]
fn dropping_the_call_kills_everything() {
    for mode in MODES {
        let env = ProcessEnv::new(mode);
        run(async {
            for _ in 0..2 {
                let command = "setsid bash -c 'exec -a MARK sleep 300' & exec -a MARK sleep 300";
                let look = async {
                    while sleepers(&env.mark) < 2 {
                        tokio::time::sleep(Duration::from_millis(5)).await;
                    }
                };
                tokio::select! {
                    answer = env.bash(command) => panic!("ended: {answer:?}"),
                    () = look => {}
                }
                env.assert_nothing_survives();
            }
        });
    }
}

#[test]
fn long_output_is_spilled_whole_and_privately() {
    use std::os::unix::fs::PermissionsExt;
    let env = ProcessEnv::new(ContainmentMode::Namespace);
    let answer = run(env.bash("seq 1 100000"));
    assert!(answer.text.len() <= 16 * 1024 && answer.text.starts_with("1\n2\n"));
    assert!(answer.text.contains("lines omitted") && answer.text.contains("\n100000\n"));
    let path = Path::new(answer.details["output_path"].as_str().unwrap());
    assert!(answer.text.contains(path.to_str().unwrap()));
    let lines: Vec<String> = (1..=100_000).map(|n| format!("{n}\n")).collect();
    let expected = lines.concat();
    assert_eq!(fs::read_to_string(path).unwrap(), expected);
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(path), mode(path.parent().unwrap())), (0o600, 0o700));
    assert_eq!(answer.details["output_bytes"], expected.len());
}

#[test]
fn a_missing_folder_or_odd_command_is_an_answer() {
    let env = ProcessEnv::new(ContainmentMode::Namespace);
    run(async {
        let error = env.bench.call("bash", json!({"command": "a\0b"})).await.unwrap_err();
        assert_eq!(error.kind, "invalid_args");
        let error = env.bench.call("bash", json!({"command": " "})).await.unwrap_err();
        assert_eq!(error.kind, "invalid_args");
        let long = "x".repeat(300_000);
        let error = env.bench.call("bash", json!({"command": long})).await.unwrap_err();
        assert_eq!(error.kind, "command_failed");
        let answer = env.bash_within("echo still here", 10_000_000).await;
        assert!(answer.text.starts_with("still here\n[exit code 0]"));
        assert!(answer.text.contains("lowered to the maximum of 600000"), "{}", answer.text);
    });
}

/// A driver: the process that the tests below start and watch.
#[test]
fn driver() {
    let Some(drive) = std::env::var_os(DRIVE) else { return };
    let drive = drive.into_string().unwrap();
    let (what, mark) = drive.split_once(' ').unwrap();
    let mode =
        if what == "subreaper" { ContainmentMode::Subreaper } else { ContainmentMode::Namespace };
    let env = ProcessEnv { mark: mark.to_owned(), ..ProcessEnv::new(mode) };
    run_within(FLOOD_LIMIT, async {
        env.bash("true").await;
        if what == "flood" {
            let before = peak_memory_kb();
            let flood = "head -c 314572800 /dev/zero | tr '\\0' 'x'";
            let answer =
                env.bash_within(flood, u64::try_from(FLOOD_LIMIT.as_millis()).unwrap()).await;
            assert_eq!(answer.details["output_bytes"], 314_572_800);
            assert!(answer.text.len() <= 16 * 1024);
            let growth = peak_memory_kb() - before;
            assert!(growth < 30 * 1024, "300 MB of output cost {growth} KB");
        } else if what == "spare" {
            let spares = children();
            assert!(!spares.is_empty(), "a spare waits for the next command");
            for pid in &spares {
                rustix::process::kill_process(*pid, rustix::process::Signal::KILL).unwrap();
            }
            let dead = |pid: &rustix::process::Pid| {
                let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
                stat.map_or(true, |stat| stat.contains(") Z"))
            };
            assert!(wait_for(|| spares.iter().all(dead), |dead| *dead));
            assert_eq!(env.bash("echo again").await.text, "again\n[exit code 0]");
        } else {
            env.bash("setsid bash -c 'exec -a MARK sleep 300' & exec -a MARK sleep 300").await;
        }
    });
}

/// The children of this process.
fn children() -> Vec<rustix::process::Pid> {
    let threads = fs::read_dir("/proc/self/task").unwrap().filter_map(Result::ok);
    let lists = threads.map(|thread| fs::read_to_string(thread.path().join("children")).unwrap());
    let all = lists.collect::<String>();
    let pids = all.split_whitespace().map(|pid| pid.parse().unwrap());
    pids.filter_map(rustix::process::Pid::from_raw).collect()
}

fn peak_memory_kb() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

fn driver_command(test: &str, drive: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]).env(DRIVE, drive).stdout(Stdio::null());
    command
}

fn start_driver(drive: &str) -> std::process::Child {
    driver_command("process::driver", drive).spawn().unwrap()
}

#[test]
fn killing_pixir_outright_leaves_nothing() {
    for mode in ["namespace", "subreaper"] {
        let mark = format!("markdriver{}{mode}", std::process::id());
        let mut driver = start_driver(&format!("{mode} {mark}"));
        let begun = wait_for(|| sleepers(&mark), |count| *count >= 2);
        assert!(begun >= 2, "{mode}: the command did not start");
        driver.kill().unwrap();
        driver.wait().unwrap();
        let left = wait_for(|| survivors(&mark), Vec::is_empty);
        assert_eq!(left, Vec::<String>::new(), "{mode}");
    }
}

#[test]
fn three_hundred_megabytes_cost_little_memory() {
    run_driver(&mut driver_command("process::driver", "flood none"), "flood");
}

#[test]
fn a_spare_supervisor_that_died_is_replaced() {
    run_driver(&mut driver_command("process::driver", "spare none"), "spare");
}

/// A program that embeds Pixir and names no supervisor is told what to set.
#[tokio::test]
async fn without_a_supervisor_the_error_says_what_an_embedder_sets() {
    for own_binary in ["/nowhere/pixir", "/bin/true", ""] {
        let calls = crate::support::TestEnv::with_replies([
            pixir::scripted::Reply::calls("bash", json!({"command": "true"})),
            pixir::scripted::Reply::says("I could not."),
        ]);
        let env = calls.await;
        let credential = pixir::Credential::new(Some("sk-embedded"), &env.server.base_url());
        let harness = pixir::Harness::open(pixir::HarnessOptions {
            config: env.config.clone(),
            credential: credential.unwrap(),
            environment: vec![("PATH".into(), std::env::var_os("PATH").unwrap())],
            own_binary: own_binary.into(),
        });
        let conversation = env.start_with(&harness).await;
        crate::support::test_env::send_and_finish(&conversation, "run it").await;
        let log = fs::read_to_string(conversation.log_path()).unwrap();
        let mut events = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let result = events.find(|event| event["type"] == "tool_result").unwrap();
        let actions = result["data"]["error"]["details"]["next_actions"].to_string();
        assert!(actions.contains("HarnessOptions::own_binary"), "{own_binary}: {result}");
        assert!(actions.contains("pixir::SUPERVISE"), "{own_binary}: {result}");
        if own_binary.starts_with("/nowhere") {
            assert!(result["data"]["error"]["message"].as_str().unwrap().contains(own_binary));
        }
    }
}
