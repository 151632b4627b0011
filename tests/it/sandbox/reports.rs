//! Reports of the sandbox: declarations, denials, notices and recorded facts.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use pixir::scripted::Reply;
use pixir::workbench::{Workbench, WorkbenchSetup};
use pixir::{NetworkRule, PermissionMode, SandboxLevel, SocketRule};
use seccompiler::{SeccompAction, SeccompFilter, TargetArch};
use serde_json::{Value, json};

use crate::support::TestEnv;
use crate::support::drivers::assert_driver_passed;

/// The variable that makes a test process a driver, and names the missing kernel feature.
const DRIVE: &str = "PIXIR_TEST_KERNEL";
/// Number of the first system call of Landlock.
const LANDLOCK: i64 = 444;

/// A test environment whose model runs these commands, one after the other.
async fn new_test_env(commands: &[(&str, bool)]) -> TestEnv {
    let calls = commands.iter().map(|(command, network)| {
        let mut args = json!({ "command": command });
        if *network {
            args["network"] = json!(true);
        }
        Reply::calls("bash", args)
    });
    TestEnv::with_replies(calls.chain([Reply::says("done")])).await
}

/// The Events of the only Session.
fn events(env: &TestEnv, kind: &str) -> Vec<Value> {
    let logs = crate::support::test_env::log_files(&env.workspace());
    let text = fs::read_to_string(&logs[0]).unwrap();
    let all = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    all.filter(|event| event["type"] == kind).map(|event| event["data"].clone()).collect()
}

fn outputs(env: &TestEnv) -> Vec<String> {
    let text = |result: Value| result["output"].as_str().unwrap_or_default().to_owned();
    events(env, "tool_result").into_iter().map(text).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_network_is_there_for_a_call_that_declares_it_and_that_is_recorded() {
    let env = new_test_env(&[("echo x > /dev/tcp/192.0.2.1/80", false), ("true", true)]).await;
    env.run_turn("go").await;
    let outputs = outputs(&env);
    assert!(
        outputs[0].contains("did not declare it; repeat it with network: true"),
        "{}",
        outputs[0]
    );
    let decisions = events(&env, "permission_decision");
    assert_eq!(decisions.len(), 1, "{decisions:?}");
    assert_eq!(
        (&decisions[0]["decision"], &decisions[0]["rule"]),
        (&json!("allow"), &json!("network_declared"))
    );
}

/// Unix sockets need permission like the network, because they may not be harmless.
#[tokio::test(flavor = "multi_thread")]
async fn declared_sockets_are_permitted_like_the_network() {
    let call = || Reply::calls("bash", json!({"command": "true", "local_sockets": true}));
    for (mode, rule, socket_rule) in [
        (PermissionMode::Auto, Some("network_declared"), SocketRule::Declare),
        (PermissionMode::ReadOnly, Some("read_only"), SocketRule::Declare),
        (PermissionMode::Auto, Some("local_sockets_unasked"), SocketRule::Ask),
        (PermissionMode::ReadOnly, Some("read_only"), SocketRule::Ask),
        (PermissionMode::Auto, None, SocketRule::Deny),
    ] {
        let mut env = TestEnv::with_replies([call(), call(), Reply::says("done")]).await;
        env.config.permission_mode = mode.clone();
        env.config.sandbox.local_sockets = socket_rule;
        env.run_turn("go").await;
        let decisions = events(&env, "permission_decision");
        let first = decisions.first().and_then(|decision| decision["rule"].as_str());
        assert_eq!(first, rule, "{mode:?} {decisions:?}");
        // Also where no socket outside can be reached, so that questions do not depend on the moment.
        let count = if rule.is_some() { 2 } else { 0 };
        assert_eq!(decisions.len(), count, "{mode:?} {decisions:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_declared_network_reaches_the_machine() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let reach = format!("exec 3<>/dev/tcp/127.0.0.1/{port} && echo reached");
    let env = new_test_env(&[(&reach, false), (&reach, true)]).await;
    env.run_turn("go").await;
    let outputs = outputs(&env);
    assert!(!outputs[0].contains("reached"), "{}", outputs[0]);
    assert!(outputs[1].contains("reached"), "{}", outputs[1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_network_that_the_user_denies_is_denied() {
    let mut env = new_test_env(&[("true", true)]).await;
    env.config.sandbox.network = NetworkRule::Deny;
    env.run_turn("go").await;
    let results = events(&env, "tool_result");
    assert_eq!(results[0]["error"]["kind"], "permission_denied", "{results:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_only_session_runs_commands_that_change_nothing() {
    let mut env =
        new_test_env(&[("cat f", false), ("echo x > f; echo x > new", false), ("true", true)])
            .await;
    env.config.permission_mode = PermissionMode::ReadOnly;
    env.write("f", "mine\n");
    env.run_turn("go").await;
    let outputs = outputs(&env);
    assert!(outputs[0].starts_with("mine\n"), "{}", outputs[0]);
    assert!(outputs[1].contains("because this Session is read-only"), "{}", outputs[1]);
    assert_eq!(env.read("f"), "mine\n");
    assert!(!env.workspace().join("new").exists());
    let decisions = events(&env, "permission_decision");
    let rules: Vec<&str> = decisions.iter().filter_map(|one| one["rule"].as_str()).collect();
    assert_eq!(rules, ["read_only_sandbox", "read_only_sandbox", "read_only"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_sandbox_it_is_said_and_read_only_runs_nothing() {
    let mut env = new_test_env(&[("true", false)]).await;
    env.config.sandbox.level = SandboxLevel::Off;
    env.config.permission_mode = PermissionMode::ReadOnly;
    let (conversation, _) = env.run_turn("go").await;
    assert!(conversation.notices().iter().any(|notice| notice.contains("the sandbox is off")));
    assert_eq!(events(&env, "session_started")[0]["sandbox_mode"], "off");
    assert_eq!(events(&env, "tool_result")[0]["error"]["kind"], "permission_denied");
}

#[tokio::test(flavor = "multi_thread")]
async fn temporary_files_stay_for_the_session_and_are_private_to_it() {
    let name = format!("story-{:08x}", fastrand::u32(..));
    let write = format!("echo kept > \"$TMPDIR/{name}\"");
    let read = format!("cat \"$TMPDIR/{name}\"");
    let env = new_test_env(&[(&write, false), (&read, true)]).await;
    let (conversation, _) = env.run_turn("go").await;
    assert!(outputs(&env)[1].starts_with("kept\n"), "{:?}", outputs(&env));
    assert!(!Path::new("/tmp").join(&name).exists());
    assert_eq!(events(&env, "session_started")[0]["sandbox_mode"], "workspace");
    drop(conversation);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_denied_access_is_explained_in_one_line() {
    let mut env = new_test_env(&[
        ("echo x > ~/outside", false),
        ("cat ~/.ssh/id", false),
        ("head -c 300000 /dev/zero > big", false),
    ])
    .await;
    env.config.sandbox.file_bytes = 100_000;
    fs::create_dir_all(env.home().join(".ssh")).unwrap();
    fs::write(env.home().join(".ssh/id"), "planted-key").unwrap();
    env.run_turn("go").await;
    let outputs = outputs(&env);
    assert!(outputs[0].contains("[sandbox: if this was a refused access"), "{}", outputs[0]);
    assert!(outputs[1].contains(".ssh/id is hidden from commands"), "{}", outputs[1]);
    assert!(!outputs[1].contains("planted-key"), "{}", outputs[1]);
    assert_eq!(fs::metadata(env.workspace().join("big")).unwrap().len(), 100_000);
    assert!(!env.home().join("outside").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_storm_of_processes_ends_at_the_limit() {
    let fork_bomb = "python3 -c '\nimport os,time\nn=0\nwhile n<3000:\n  try:\n    if os.fork()==0:\n      \
        time.sleep(20); os._exit(0)\n  except OSError: break\n  n+=1\nprint(\"forks\", n)'";
    let mut env = new_test_env(&[(fork_bomb, false)]).await;
    env.config.sandbox.processes = 600;
    env.run_turn("go").await;
    let output = outputs(&env).remove(0);
    let forks = output.lines().next().unwrap().rsplit(' ').next().unwrap().parse::<u32>();
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    if rustix::process::geteuid().is_root() && release.starts_with("5.") {
        super::escape::skip("this kernel does not limit root's processes");
        return;
    }
    assert!(forks.is_ok_and(|forks| forks < 600), "{output}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_would_redirect_git_is_moved_away_and_reported() {
    let env = new_test_env(&[("mkdir -p evil && echo ../evil > .git/commondir", false)]).await;
    fs::create_dir_all(env.workspace().join(".git/hooks")).unwrap();
    env.write(".git/config", "");
    env.run_turn("go").await;
    let outputs = outputs(&env);
    assert!(outputs[0].contains("which were restored") && outputs[0].contains("commondir"));
    assert!(!env.workspace().join(".git/commondir").exists());
}

fn bench(folder: &Path, level: SandboxLevel) -> Workbench {
    let setup = WorkbenchSetup {
        own_binary: env!("CARGO_BIN_EXE_pixir").into(),
        folder,
        environment: vec![("PATH".into(), std::env::var_os("PATH").unwrap())],
        subreaper: false,
        drain: Duration::from_millis(100),
        grace: Duration::from_millis(300),
    };
    Workbench::with_config(setup, |config| config.sandbox.level = level).unwrap()
}

/// Forbids a system call to this process and the processes that it starts.
fn forbid_syscall(call: i64) {
    let arch = TargetArch::try_from(std::env::consts::ARCH).unwrap();
    let rules = [(call, Vec::new())].into();
    let answer = SeccompAction::Errno(rustix::io::Errno::NOSYS.raw_os_error().unsigned_abs());
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, answer, arch).unwrap();
    let program: seccompiler::BpfProgram = filter.try_into().unwrap();
    seccompiler::apply_filter_all_threads(&program).unwrap();
}

/// A driver: a process on a kernel with a missing feature.
#[test]
fn driver() {
    let Some(drive) = std::env::var_os(DRIVE) else { return };
    let folder = tempfile::tempdir().unwrap();
    let git = folder.path().join(".git");
    fs::create_dir_all(git.join("hooks")).unwrap();
    fs::write(git.join("config"), "one").unwrap();
    forbid_syscall(if drive == "landlock" { LANDLOCK } else { nix::libc::SYS_unshare });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let call = async |level, command: &str| {
        bench(folder.path(), level).call("bash", json!({ "command": command })).await
    };
    runtime.block_on(async {
        if drive == "landlock" {
            let error = call(SandboxLevel::Workspace, "touch ran").await.unwrap_err();
            assert_eq!(error.kind, "sandbox_unavailable", "{error:?}");
            assert!(error.next_actions().concat().contains("--sandbox off"), "{error:?}");
            assert!(!folder.path().join("ran").exists(), "nothing ran");
            assert!(call(SandboxLevel::Off, "touch ran").await.unwrap().ok);
            return;
        }
        let evil = "echo two > .git/config; echo evil > .git/hooks/pre-commit";
        let answer = call(SandboxLevel::Workspace, evil).await.unwrap();
        assert_eq!(answer.details["sandbox"], "partial");
        assert!(answer.details["notice"].as_str().unwrap().contains("partial"));
        assert!(answer.text.contains("which were restored"), "{}", answer.text);
        assert_eq!(fs::read_to_string(git.join("config")).unwrap(), "one");
        assert!(!git.join("hooks/pre-commit").exists());
        let error = call(SandboxLevel::Required, "touch ran").await.unwrap_err();
        assert_eq!(error.kind, "sandbox_unavailable", "{error:?}");
        assert!(!folder.path().join("ran").exists(), "nothing ran");
    });
}

fn drive(lacking: &str) {
    let mut driver = Command::new(std::env::current_exe().unwrap());
    driver.args(["--exact", "sandbox::reports::driver", "--nocapture"]).env(DRIVE, lacking);
    let output = driver.output().unwrap();
    assert_driver_passed(&output, lacking);
}

#[test]
fn without_landlock_commands_are_refused_unless_the_user_chose_otherwise() {
    drive("landlock");
}

#[test]
fn without_namespaces_the_sandbox_is_partial_and_reported_once_and_recovers() {
    drive("namespaces");
}

/// Tools with or without namespaces.
fn plain_bench(folder: &Path, subreaper: bool) -> Workbench {
    let setup = WorkbenchSetup {
        own_binary: env!("CARGO_BIN_EXE_pixir").into(),
        folder,
        environment: vec![("PATH".into(), std::env::var_os("PATH").unwrap())],
        subreaper,
        drain: Duration::from_millis(100),
        grace: Duration::from_millis(300),
    };
    Workbench::new(setup).unwrap()
}

/// Input on the user's terminals must not be read through their devices.
#[tokio::test(flavor = "multi_thread")]
async fn terminals_of_the_user_are_out_of_reach_and_own_ones_work() {
    let flags = rustix::pty::OpenptFlags::RDWR | rustix::pty::OpenptFlags::NOCTTY;
    let master = rustix::pty::openpt(flags).unwrap();
    rustix::pty::grantpt(&master).unwrap();
    rustix::pty::unlockpt(&master).unwrap();
    let name = rustix::pty::ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
    for subreaper in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let bench = plain_bench(folder.path(), subreaper);
        let write = format!("echo x > {name} && echo wrote; exec 3<>{name} && echo wrote");
        let answer = bench.call("bash", json!({ "command": write })).await.unwrap();
        assert!(!answer.text.contains("wrote"), "{}", answer.text);
        let own = "python3 -c 'import pty; pty.spawn([\"echo\", \"on a terminal\"])'";
        let answer = bench.call("bash", json!({ "command": own })).await.unwrap();
        // Among the machine's own terminals, owners cannot be told apart.
        let is_full = answer.details["sandbox"] == "full";
        assert_eq!(answer.text.contains("on a terminal"), is_full, "{}", answer.text);
    }
}

/// Python program that makes a System V object with a text, and prints its id.
const SHARE: &str = "import ctypes\nc=ctypes.CDLL(None)\nc.shmat.restype=ctypes.c_void_p\n\
    i=c.shmget(0,4096,0o1666)\na=c.shmat(i,None,0)\nctypes.memmove(a,b'planted-word',12)\nprint(i)";

#[tokio::test(flavor = "multi_thread")]
async fn memory_and_queues_of_the_machine_are_out_of_reach() {
    let made = Command::new("python3").args(["-c", SHARE]).output();
    let Ok(made) = made else { return super::escape::skip("there is no python3") };
    let id = String::from_utf8(made.stdout).unwrap().trim().to_owned();
    let queue = format!("/story-{:08x}", fastrand::u32(..));
    let attach = format!(
        "python3 -c \"import ctypes\nc=ctypes.CDLL(None)\nc.shmat.restype=ctypes.c_void_p\n\
         a=c.shmat({id},None,0)\nprint(ctypes.string_at(a,12) if a!=2**64-1 else 'nothing')\n\
         print('queue', c.mq_open(b'{queue}',0o102,0o600,None))\""
    );
    for subreaper in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let bench = plain_bench(folder.path(), subreaper);
        let answer = bench.call("bash", json!({ "command": attach })).await.unwrap();
        assert!(answer.text.contains("nothing"), "{}", answer.text);
        // In its own namespace a command may have its own queues.
        let has_none = answer.text.contains("queue -1");
        assert!(has_none || answer.details["sandbox"] == "full", "{}", answer.text);
    }
    Command::new("ipcrm").args(["-m", &id]).status().ok();
}
