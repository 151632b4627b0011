//! Resource limits: a command that uses up memory, processes or files ends, Pixir continues, and the result
//! names the limit.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use pixir::SandboxLevel;
use pixir::scripted::{ModelScript, Reply};
use pixir::workbench::{Workbench, WorkbenchSetup};
use seccompiler::{SeccompAction, SeccompFilter, TargetArch};
use serde_json::{Value, json};

use super::escape::{print_note, skip};
use super::resource_attempts::{DEADLY, FURTHER, ResourceAttempt, Takes};
use crate::support::BinaryEnv;
use crate::support::binary_env::wait_for;
use crate::support::memory_cgroup::MemoryCgroup;
use crate::support::torture::{SuiteSize, seed};

/// Memory limit of the control group.
const MEMORY: u64 = 700 << 20;
/// Time limit of one attempt in milliseconds.
const PATIENCE_MS: u64 = 15_000;
/// Number of further attempts in a sample.
const SAMPLE: usize = 4;

/// Sandbox level of the attempts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ContainmentLevel {
    Full,
    Partial,
    Off,
}

fn memory_cgroup() -> Option<MemoryCgroup> {
    let cgroup = MemoryCgroup::new(MEMORY);
    if cgroup.is_none() {
        skip("no control group with a limit on memory can be made here");
    }
    cgroup
}

/// The shell command of an attempt.
fn to_script(command: &str) -> String {
    match command.strip_prefix("py:") {
        Some(program) => format!("python3 - <<'PROGRAM'\n{program}\nPROGRAM"),
        None => command.to_owned(),
    }
}

/// Forbids namespaces to this thread and to the processes that it starts.
fn forbid_namespaces() {
    let rules = BTreeMap::from([(nix::libc::SYS_unshare, Vec::new())]);
    let refused = SeccompAction::Errno(nix::libc::EPERM.cast_unsigned());
    let arch = TargetArch::try_from(std::env::consts::ARCH).unwrap();
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refused, arch).unwrap();
    let program: seccompiler::BpfProgram = filter.try_into().unwrap();
    seccompiler::apply_filter(&program).unwrap();
}

/// Runs an attempt in a control group; gives the tool result if Pixir survived.
fn survived(
    env: &BinaryEnv,
    level: ContainmentLevel,
    attempt: &ResourceAttempt,
) -> Result<String, String> {
    let Some(cgroup) = MemoryCgroup::new(MEMORY) else { return Err("no cgroup".to_owned()) };
    let sandbox: &[&str] = if level == ContainmentLevel::Off { &["--sandbox", "off"] } else { &[] };
    let args: Vec<&str> = sandbox.iter().copied().chain(["use it up"]).collect();
    let start = || env.start_prepared(&args, &[], |running| cgroup.add_process(running.child.id()));
    let running = if level == ContainmentLevel::Partial {
        let in_thread = || {
            forbid_namespaces();
            start()
        };
        std::thread::scope(|scope| scope.spawn(in_thread).join().unwrap())
    } else {
        start()
    };
    let ended = running.end();
    let kills = cgroup.oom_kills();
    if ended.status.code() != Some(0) || ended.stdout != "done\n" {
        return Err(format!("Pixir ended with {:?} after {kills} kills", ended.status));
    }
    env.assert_nothing_survives();
    let left = wait_for(Duration::from_secs(10), || cgroup.processes(), Vec::is_empty);
    if !left.is_empty() {
        return Err(format!("{left:?} are left"));
    }
    let results: Vec<Value> =
        env.events().into_iter().filter(|event| event["type"] == "tool_result").collect();
    let bash_text = results.first().and_then(|result| result["data"]["output"].as_str());
    let bash_text = format!("\n{}", bash_text.unwrap_or_default());
    if attempt.expected_result.iter().any(|words| bash_text.contains(words)) {
        Ok(bash_text)
    } else {
        Err(format!("not told ({kills} kills): {bash_text}"))
    }
}

/// Runs an attempt in its own Pixir process.
async fn try_one(
    level: ContainmentLevel,
    attempt: &'static ResourceAttempt,
) -> Result<String, String> {
    let mark = BinaryEnv::new_mark();
    let command = format!(": {mark}\n{}", to_script(attempt.command));
    let call = json!({"command": command, "timeout_ms": PATIENCE_MS});
    let script = ModelScript::new([Reply::calls("bash", call), Reply::says("done")]);
    let env = BinaryEnv::new(mark, script).await;
    let limits =
        json!({"max_processes": 600, "max_file_bytes": 3_u64 << 30, "max_open_files": 4096});
    env.configure(&json!({"durability": "none", "sandbox": limits}));
    tokio::task::spawn_blocking(move || survived(&env, level, attempt)).await.unwrap()
}

async fn try_all(
    level: ContainmentLevel,
    attempts: impl IntoIterator<Item = &'static ResourceAttempt>,
) {
    if memory_cgroup().is_none() {
        return;
    }
    let mut failed = Vec::new();
    let mut tried = 0;
    for attempt in attempts {
        tried += 1;
        if let Err(why) = try_one(level, attempt).await {
            failed.push(format!("{}: {why}", attempt.name));
        }
    }
    print_note(&format!(
        "limits: {level:?}: {tried} attempts, {} not held (seed={})",
        failed.len(),
        seed()
    ));
    assert!(failed.is_empty(), "{level:?}: {failed:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_uses_up_memory_dies_and_pixir_lives() {
    try_all(ContainmentLevel::Full, DEADLY).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_holds_without_namespaces_and_without_a_sandbox() {
    let of_memory = || DEADLY.iter().filter(|attempt| attempt.takes == Takes::Memory);
    try_all(ContainmentLevel::Partial, of_memory()).await;
    try_all(ContainmentLevel::Off, of_memory()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn other_ways_to_use_things_up_end_at_a_limit() {
    let mut attempts: Vec<&ResourceAttempt> = FURTHER.iter().collect();
    if SuiteSize::from_environment() != SuiteSize::Full {
        fastrand::Rng::with_seed(seed()).shuffle(&mut attempts);
        attempts.truncate(SAMPLE);
    }
    try_all(ContainmentLevel::Full, attempts).await;
}

fn bench(folder: &Path, subreaper: bool, adjust: impl FnOnce(&mut pixir::Config)) -> Workbench {
    let setup = WorkbenchSetup {
        own_binary: env!("CARGO_BIN_EXE_pixir").into(),
        folder,
        environment: vec![("PATH".into(), std::env::var_os("PATH").unwrap())],
        subreaper,
        drain: Duration::from_millis(100),
        grace: Duration::from_millis(300),
    };
    Workbench::with_config(setup, adjust).unwrap()
}

async fn bash_text(bench: &Workbench, command: &str) -> String {
    bench.call("bash", json!({ "command": command })).await.unwrap().text
}

/// Prints the OOM scores of a command and its supervisor, which has a command's score until it has started one.
const SCORES: &str = "for i in $(seq 200); do \
    grep -q 1000 /proc/$PPID/oom_score_adj || break; sleep 0.05; done; \
    cat /proc/self/oom_score_adj /proc/$PPID/oom_score_adj";

/// The kernel must kill a command before its supervisor, and both before Pixir.
#[tokio::test(flavor = "multi_thread")]
async fn a_command_is_to_die_before_its_supervisor() {
    let own = std::fs::read_to_string("/proc/self/oom_score_adj").unwrap();
    let own: i32 = own.trim().parse().unwrap();
    for (subreaper, level) in [
        (false, SandboxLevel::Workspace),
        (true, SandboxLevel::Workspace),
        (false, SandboxLevel::Off),
        (true, SandboxLevel::Off),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let bench = bench(folder.path(), subreaper, |config| config.sandbox.level = level);
        // Twice, because the second command has a supervisor that was used before.
        for _ in 0..2 {
            let text = bash_text(&bench, SCORES).await;
            let scores: Vec<i32> = text.lines().map_while(|line| line.parse().ok()).collect();
            assert_eq!(scores, [1000, own.max(500)], "{subreaper} {level:?}: {text}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_with_too_much_memory_is_killed_and_its_limit_is_named() {
    for subreaper in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let bench =
            bench(folder.path(), subreaper, |config| config.sandbox.process_bytes = 256 << 20);
        let text = bash_text(&bench, "perl -e 'push @a, qq(x$n) x 1000000 while ++$n'").await;
        assert!(text.contains("sandbox.max_process_bytes"), "{text}");
        assert!(
            bash_text(&bench, "ulimit -d unlimited && echo raised").await.contains("not permitted")
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_command_left_in_shared_memory_is_freed() {
    let folder = tempfile::tempdir().unwrap();
    let bench = bench(folder.path(), false, |_| {});
    let text =
        bash_text(&bench, "head -c 8M /dev/zero > /dev/shm/left && stat -f -c %b /dev/shm").await;
    assert!(text.contains("exit code 0"), "{text}");
    let text = bash_text(&bench, "ls /dev/shm").await;
    assert_eq!(text, "(no output)\n[exit code 0]");
}

/// Programs that reserve far more addresses than they use.
const RESERVING: &[(&str, &str)] = &[
    ("node", "node -e 'console.log(\"it runs\")'"),
    ("java", "java -version && echo it runs"),
    ("go", "go version && echo it runs"),
    ("gcc", "gcc -fsanitize=address x.c -o a && ASAN_OPTIONS=detect_leaks=0 ./a"),
    ("gcc", "gcc -fsanitize=thread x.c -o t && ./t"),
];

#[tokio::test(flavor = "multi_thread")]
async fn programs_that_reserve_much_memory_start() {
    for subreaper in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let source = "#include <stdio.h>\nint main() { puts(\"it runs\"); }\n";
        std::fs::write(folder.path().join("x.c"), source).unwrap();
        let bench = bench(folder.path(), subreaper, |_| {});
        for (program, command) in RESERVING {
            if bash_text(&bench, &format!("command -v {program}")).await.contains("exit code 1") {
                skip(&format!("there is no {program}"));
                continue;
            }
            let text = bash_text(&bench, command).await;
            assert!(text.contains("it runs\n[exit code 0]"), "{command}: {text}");
        }
    }
}

/// The control: without other limits, each attempt uses up the memory of the control group.
#[test]
fn without_limits_the_kernel_has_to_kill() {
    let Some(cgroup) = memory_cgroup() else { return };
    let can_mount = Command::new("unshare").args(["-mpif", "true"]).status();
    if !can_mount.is_ok_and(|status| status.success()) {
        return skip("`unshare` cannot make namespaces here");
    }
    for attempt in DEADLY.iter().filter(|attempt| attempt.takes != Takes::Other) {
        let before = cgroup.oom_kills();
        let inside = r#"read go && mount -t tmpfs tmpfs /dev/shm && bash -c "$0"; exit 0"#;
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new("unshare");
        command.current_dir(folder.path());
        command.args(["-mpif", "--kill-child", "/bin/sh", "-c", inside]);
        command.arg(to_script(attempt.command)).stdin(Stdio::piped());
        let command = command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        cgroup.add_process(child.id());
        // Both `unshare` and its child must be in the control group.
        let inner = || {
            let path = format!("/proc/{0}/task/{0}/children", child.id());
            std::fs::read_to_string(path).unwrap_or_default().trim().parse::<u32>().ok()
        };
        let inner = wait_for(Duration::from_secs(10), inner, Option::is_some).unwrap();
        cgroup.add_process(inner);
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"go\n").unwrap();
        let killed =
            wait_for(Duration::from_secs(30), || cgroup.oom_kills(), |kills| *kills > before);
        child.kill().ok();
        child.wait().unwrap();
        wait_for(Duration::from_secs(10), || cgroup.processes(), Vec::is_empty);
        assert!(killed > before, "{}", attempt.name);
    }
}
