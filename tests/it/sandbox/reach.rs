//! Sockets and named pipes of programs outside: no spelling of a name reaches them, with the network or
//! without, and sockets that a command makes in its Workspace work.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use pixir::SandboxLevel;
use pixir::workbench::{ToolAnswer, Workbench};
use serde_json::json;

use super::endpoints::{AGAIN, EndpointEnv, parent};
use super::escape::{print_note, skip};

/// The variable that makes a test process a driver, and holds its folder.
const DRIVE: &str = "PIXIR_TEST_REACH";
/// A user that owns nothing.
const NOBODY: u32 = 65534;

fn run<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        tokio::time::timeout(Duration::from_mins(5), future).await.expect("in time")
    })
}

async fn bash(bench: &Workbench, command: &str, network: bool) -> ToolAnswer {
    let args = json!({"command": command, "timeout_ms": 60_000, "network": network});
    bench.call("bash", args).await.unwrap()
}

/// Runs all attempts as one command; gives the endpoints that were reached, and the sandbox level.
fn reached_endpoints(
    around: &EndpointEnv,
    sandbox_level: SandboxLevel,
    partial: bool,
    network: bool,
) -> (BTreeSet<String>, String) {
    let bench = around.bench(sandbox_level, partial);
    let mut reached = BTreeSet::new();
    let answer = run(async {
        let command = around.command();
        let mut call = std::pin::pin!(bash(&bench, &command, network));
        loop {
            // Datagrams are read meanwhile, because a sender blocks when too many are unread.
            tokio::select! {
                answer = &mut call => break answer,
                () = tokio::time::sleep(Duration::from_millis(20)) => reached.extend(around.connected_endpoints()),
            }
        }
    });
    reached.extend(around.connected_endpoints());
    let all = format!("made {} attempts", around.names().len());
    assert!(answer.text.contains(&all), "{}", answer.text);
    let level = answer.details["sandbox"].as_str().unwrap().to_owned();
    (reached, level)
}

/// Runs all attempts at every sandbox level, with and without the network.
fn try_everything(below: &Path) {
    let around = EndpointEnv::below(below);
    let mut tried = 0;
    for partial in [false, true] {
        for sandbox_level in [SandboxLevel::Workspace, SandboxLevel::ReadOnly] {
            for network in [false, true] {
                let (reached, level) = reached_endpoints(&around, sandbox_level, partial, network);
                if level != if partial { "partial" } else { "full" } {
                    skip(&format!("reach: the level here is {level}"));
                }
                let what = format!("{sandbox_level:?}, level {level}, network {network}");
                assert_eq!(reached, BTreeSet::new(), "{what}");
                tried += around.names().len();
            }
        }
    }
    print_note(&format!("reach: {tried} attempts, 0 effects outside"));
}

#[test]
fn there_are_more_than_120_attempts_and_without_a_sandbox_each_reaches_an_endpoint() {
    let around = EndpointEnv::below(&parent());
    assert!(around.names().len() >= 120, "{}", around.names().len());
    let (reached, level) = reached_endpoints(&around, SandboxLevel::Off, false, false);
    assert_eq!(level, "off");
    let silent: Vec<_> = around.names().difference(&reached).cloned().collect();
    assert_eq!(silent, Vec::<String>::new());
}

#[test]
fn no_socket_and_no_pipe_outside_is_reached() {
    try_everything(&parent());
}

#[test]
fn no_socket_beside_a_workspace_in_a_temp_folder_is_reached() {
    try_everything(&std::env::temp_dir());
}

/// A driver: the process that the next tests start.
#[test]
fn driver() {
    let Some(below) = std::env::var_os(DRIVE) else { return };
    try_everything(Path::new(&below));
}

fn drive(mut driver: Command, below: &Path) {
    driver.args(["--exact", "sandbox::reach::driver", "--nocapture"]).env(DRIVE, below);
    driver.env("TMPDIR", below).env("HOME", below).current_dir(below);
    let output = driver.output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}{}", String::from_utf8_lossy(&output.stdout));
    let line = stderr.lines().find(|line| line.starts_with("reach:"));
    print_note(line.expect("it says what it did"));
}

#[test]
fn no_socket_outside_is_reached_by_an_ordinary_user() {
    if !rustix::process::geteuid().is_root() {
        skip("these tests already run as an ordinary user");
        return;
    }
    let folder = tempfile::tempdir_in(parent()).unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let can_run = Command::new(env!("CARGO_BIN_EXE_pixir")).arg("--version").uid(NOBODY).output();
    if !can_run.is_ok_and(|output| output.status.success()) {
        skip("another user cannot run the program where it was built");
        return;
    }
    let mut driver = Command::new(std::env::current_exe().unwrap());
    driver.uid(NOBODY).gid(NOBODY);
    drive(driver, folder.path());
}

/// A machine with mounts in a folder above the Workspace, which prevent an overlay; one
/// of them shows the same sockets at another place.
#[test]
fn no_socket_is_reached_around_other_mounts() {
    let folder = tempfile::tempdir_in(parent()).unwrap();
    let below = folder.path().canonicalize().unwrap();
    fs::create_dir(below.join("mounted")).unwrap();
    let unshare = || {
        let mut unshare = Command::new("unshare");
        let user = if rustix::process::geteuid().is_root() { "-m" } else { "-rm" };
        unshare.args([user, "--propagation", "private"]);
        unshare
    };
    if !unshare().arg("true").status().is_ok_and(|status| status.success()) {
        skip("there are no mount namespaces here");
        return;
    }
    let mut driver = unshare();
    let script =
        "set -e; mount -t tmpfs none mounted; mkdir \"$0\"; mount --bind . \"$0\"; exec \"$@\"";
    driver.args(["sh", "-c", script, AGAIN]);
    driver.arg(std::env::current_exe().unwrap());
    drive(driver, &below);
}

/// Whether commands run at level `full` on this machine.
fn is_full(bench: &Workbench) -> bool {
    let level = run(bash(bench, "true", false)).details["sandbox"].clone();
    let is_full = level == "full";
    if !is_full {
        skip(&format!("the level here is {level}"));
    }
    is_full
}

#[test]
fn a_socket_that_appears_while_a_command_runs_is_not_reached() {
    let mut around = EndpointEnv::below(&parent());
    let bench = around.bench(SandboxLevel::Workspace, false);
    let work = around.root().join("work");
    let program = "import os, socket, time
open('ready', 'w').close()
while not os.path.exists('go'): time.sleep(0.01)
for name in ['../outside/late.sock', '../home/late.sock']:
    try:
        s = socket.socket(socket.AF_UNIX); s.connect(name); s.send(b'late')
    except OSError as error: print(name, error)";
    let answer = run(async {
        let command = format!("python3 - <<'PROGRAM'\n{program}\nPROGRAM");
        let appear = async {
            while !work.join("ready").exists() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            around.bind("outside/late.sock");
            around.bind("home/late.sock");
            fs::write(work.join("go"), "").unwrap();
        };
        tokio::join!(bash(&bench, &command, true), appear).0
    });
    assert_eq!(around.connected_endpoints(), BTreeSet::new(), "{}", answer.text);
    // The same supervisor, and a new socket.
    let again = run(bash(
        &bench,
        "python3 -c 'import socket; s=socket.socket(1); s.connect(\"../outside/late.sock\"); s.send(b\"x\")'",
        true,
    ));
    assert!(!again.ok, "{}", again.text);
    assert_eq!(around.connected_endpoints(), BTreeSet::new(), "{}", again.text);
}

#[test]
fn sockets_and_pipes_in_the_workspace_and_the_temp_folder_work() {
    let mut around = EndpointEnv::below(&parent());
    let bench = around.bench(SandboxLevel::Workspace, false);
    if !is_full(&bench) {
        return;
    }
    // A server of another program in the Workspace.
    around.bind("work/tmp/server.sock");
    let program = "import os, socket
s = socket.socket(socket.AF_UNIX); s.connect('tmp/server.sock'); s.send(b'server'); s.close()
for place in ['own.sock', os.environ['TMPDIR'] + '/own.sock', '/tmp/other.sock']:
    server = socket.socket(socket.AF_UNIX); server.bind(place); server.listen()
    client = socket.socket(socket.AF_UNIX); client.connect(place)
    server.accept()
a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM); a.send(b'x'); b.recv(1)
os.mkfifo('pipe'); fd = os.open('pipe', os.O_RDWR); os.write(fd, b'x'); os.read(fd, 1)";
    for network in [false, true] {
        let command = format!("rm -f own.sock pipe $TMPDIR/*.sock; python3 - <<'P'\n{program}\nP");
        let answer = run(bash(&bench, &command, network));
        assert!(answer.ok, "{}", answer.text);
        assert_eq!(around.connected_endpoints(), BTreeSet::from(["server".to_owned()]));
    }
}

/// Node, Python and Rust's standard library start programs with socket pairs.
#[test]
fn connected_pairs_work_where_sockets_with_names_are_refused_and_reach_no_name() {
    let around = EndpointEnv::below(&parent());
    let bench = around.bench(SandboxLevel::Workspace, true);
    let program = "import socket, multiprocessing
for kind in [socket.SOCK_STREAM, socket.SOCK_SEQPACKET]:
    a, b = socket.socketpair(socket.AF_UNIX, kind)
    for place in ['../outside/run/udev/control', '../home/.docker/run/docker.sock']:
        for way in [lambda: a.connect(place), lambda: a.sendto(b'outside', place), lambda: a.sendmsg([b'outside'], [], 0, place)]:
            try: way()
            except OSError as error: print(error)
    b.close()
    try: a.connect('../outside/run/udev/control'); a.send(b'outside')
    except OSError as error: print(error)
for kind in [socket.SOCK_DGRAM, socket.SOCK_RAW]:
    try: socket.socketpair(socket.AF_UNIX, kind)
    except PermissionError: print('refused')
a, b = multiprocessing.Pipe(); a.send('x'); print('and', b.recv())";
    let answer = run(bash(&bench, &format!("python3 - <<'P'\n{program}\nP"), false));
    assert!(answer.ok && answer.text.contains("and x"), "{}", answer.text);
    assert_eq!(around.connected_endpoints(), BTreeSet::new(), "{}", answer.text);
    let refused = answer.text.matches("refused\n").count();
    // A newer kernel checks names itself.
    assert!(refused == 2 || refused == 0, "{}", answer.text);
}

/// A call can declare Unix sockets where foreign ones cannot be hidden; elsewhere the declaration has no effect.
#[test]
fn sockets_work_for_a_call_that_declares_them_where_they_are_refused() {
    let mut around = EndpointEnv::below(&parent());
    around.bind("outside/declared.sock");
    let program = "import socket, os
s = socket.socket(socket.AF_UNIX); s.bind(os.environ['TMPDIR'] + '/own.sock'); print('bound')
a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM); print('paired')
c = socket.socket(socket.AF_UNIX); c.connect('../outside/declared.sock'); c.send(b'declared'); print('reached')";
    let call = |bench: &Workbench, local_sockets: bool| {
        let command = format!("rm -f $TMPDIR/own.sock; python3 - <<'P'\n{program}\nP");
        let args = json!({"command": command, "local_sockets": local_sockets});
        run(bench.call("bash", args)).unwrap()
    };
    for sandbox_level in [SandboxLevel::Workspace, SandboxLevel::ReadOnly] {
        let partial = around.bench(sandbox_level, true);
        let refused = call(&partial, false);
        if refused.text.contains("bound") {
            skip("this kernel looks at the names of sockets itself");
            return;
        }
        let is_writing = sandbox_level == SandboxLevel::Workspace;
        let is_told = refused.text.contains("repeat it with local_sockets: true");
        assert_eq!(is_told, is_writing, "{}", refused.text);
        let declared = call(&partial, true);
        assert_eq!(
            declared.text.contains("bound\npaired\nreached"),
            is_writing,
            "{}",
            declared.text
        );
        let connected = around.connected_endpoints();
        assert_eq!(connected.contains("declared"), is_writing, "{connected:?}");
    }
    let full = around.bench(SandboxLevel::Workspace, false);
    if is_full(&full) {
        let answer = call(&full, true);
        assert!(answer.text.contains("bound\npaired") && !answer.ok, "{}", answer.text);
        assert_eq!(around.connected_endpoints(), BTreeSet::new(), "{}", answer.text);
    }
}

/// Sockets of another network namespace are in no list that Pixir can read.
#[test]
fn a_socket_of_another_network_namespace_is_not_reached() {
    let around = EndpointEnv::below(&parent());
    let user = if rustix::process::geteuid().is_root() { "-n" } else { "-rn" };
    let program = "import socket, sys
s = socket.socket(socket.AF_UNIX); s.bind('outside/far.sock'); s.listen(); print('ready', flush=True)
word = b''
while word != b'stop':
    word = s.accept()[0].recv(100); print(word.decode(), flush=True)";
    let mut far = Command::new("unshare");
    far.args([user, "python3", "-c", program]).current_dir(around.root());
    let Ok(mut far) = far.stdout(Stdio::piped()).stderr(Stdio::null()).spawn() else {
        skip("there is no `unshare`");
        return;
    };
    let mut lines = BufReader::new(far.stdout.take().unwrap()).lines();
    if lines.next().is_none_or(|line| line.is_err()) {
        skip("there are no network namespaces here");
        return;
    }
    let attempt = |word: &str| {
        format!(
            "python3 -c 'import socket; s=socket.socket(1); s.connect(\"../outside/far.sock\"); s.send(b\"{word}\")'"
        )
    };
    for (sandbox_level, partial, network) in [
        (SandboxLevel::Workspace, false, false),
        (SandboxLevel::Workspace, false, true),
        (SandboxLevel::ReadOnly, false, false),
        (SandboxLevel::Workspace, true, true),
    ] {
        let bench = around.bench(sandbox_level, partial);
        let answer = run(bash(&bench, &attempt("confined"), network));
        assert!(!answer.ok, "{}", answer.text);
    }
    let open = around.bench(SandboxLevel::Off, false);
    for word in ["control", "stop"] {
        run(bash(&open, &attempt(word), false));
    }
    let received: Vec<String> = lines.map(Result::unwrap).collect();
    far.wait().unwrap();
    assert_eq!(received, ["control", "stop"]);
}

/// A read would take data that was meant for another program.
#[test]
fn a_named_pipe_outside_is_not_read() {
    let around = EndpointEnv::below(&parent());
    let pipe = around.root().join("home/initctl");
    let read = "python3 -c 'import os; print(os.read(os.open(\"../home/initctl\", os.O_RDONLY|os.O_NONBLOCK), 99))'";
    fs::OpenOptions::new().write(true).open(pipe).unwrap().write_all(b"for-another").unwrap();
    for sandbox_level in [SandboxLevel::Workspace, SandboxLevel::ReadOnly] {
        let bench = around.bench(sandbox_level, false);
        if !is_full(&bench) {
            return;
        }
        let answer = run(bash(&bench, read, false));
        assert!(!answer.text.contains("for-another"), "{}", answer.text);
    }
    let open = around.bench(SandboxLevel::Off, false);
    let answer = run(bash(&open, read, false));
    assert!(answer.text.contains("for-another"), "{}", answer.text);
}

#[test]
fn a_message_queue_of_another_program_is_not_reached() {
    const QUEUE: &str = "import ctypes, sys
name = sys.argv[2].encode(); libc = ctypes.CDLL(None, use_errno=True)
if sys.argv[1] == 'unlink': sys.exit(libc.mq_unlink(name) != 0)
queue = libc.mq_open(name, 0o4102 if sys.argv[1] == 'count' else 0o4001, 0o666, None)
if queue < 0: sys.exit('there is none')
if sys.argv[1] == 'send': sys.exit(libc.mq_send(queue, b'x', 1, 0) != 0)
attributes = (ctypes.c_long * 8)(); libc.mq_getattr(queue, attributes); print(attributes[3])";
    let around = EndpointEnv::below(&parent());
    let name = format!("/pixir-{:08x}", fastrand::u32(..));
    let outside = |what: &str| {
        let output = Command::new("python3").args(["-c", QUEUE, what, &name]).output().unwrap();
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    };
    if outside("count") != "0" {
        skip("there are no message queues here");
        return;
    }
    let send = format!("python3 - send {name} <<'P'\n{QUEUE}\nP");
    for partial in [false, true] {
        let bench = around.bench(SandboxLevel::Workspace, partial);
        let answer = run(bash(&bench, &send, true));
        assert_eq!((answer.ok, outside("count").as_str()), (false, "0"), "{}", answer.text);
    }
    let open = around.bench(SandboxLevel::Off, false);
    let answer = run(bash(&open, &send, false));
    let count = outside("count");
    outside("unlink");
    assert_eq!((answer.ok, count.as_str()), (true, "1"), "{}", answer.text);
}

/// The next command sees changes by the user, although overlays cache their lower layers.
#[test]
fn what_changed_outside_is_seen_by_the_next_command() {
    let around = EndpointEnv::below(&parent());
    let bench = around.bench(SandboxLevel::Workspace, false);
    let outside = |name: &str| -> PathBuf { around.root().join("outside").join(name) };
    fs::write(outside("settings"), "old\n").unwrap();
    let look = "cat ../outside/settings ../outside/tool 2>&1; true";
    let first = run(bash(&bench, look, false)).text;
    assert!(first.contains("old") && first.contains("No such file"), "{first}");
    fs::write(outside("new"), "new\n").unwrap();
    fs::rename(outside("new"), outside("settings")).unwrap();
    fs::write(outside("tool"), "installed\n").unwrap();
    let second = run(bash(&bench, look, false)).text;
    assert!(second.contains("new") && second.contains("installed"), "{second}");
    fs::remove_file(outside("tool")).unwrap();
    let third = run(bash(&bench, look, false)).text;
    assert!(third.contains("No such file"), "{third}");
}

/// Programs, libraries and caches outside the Workspace are used as before.
#[test]
fn programs_outside_are_run_and_read_as_before() {
    let around = EndpointEnv::below(&parent());
    let bench = around.bench(SandboxLevel::Workspace, false);
    let bin = around.root().join("outside/bin");
    fs::create_dir(&bin).unwrap();
    fs::copy("/bin/cat", bin.join("own-cat")).unwrap();
    fs::write(bin.join("script"), "#!/bin/sh\necho ran\n").unwrap();
    fs::set_permissions(bin.join("script"), fs::Permissions::from_mode(0o755)).unwrap();
    fs::hard_link(bin.join("script"), bin.join("twin")).unwrap();
    let command = "set -e; cd ../outside/bin; ./script; echo piped | ./own-cat
test script -ef twin; stat -c %h script; python3 -c '
import fcntl, mmap
f = open(\"script\"); fcntl.flock(f, fcntl.LOCK_SH)
m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ); print(m[:9])'
ls -d ../run; ! touch script; ! chmod 700 script; ! ln script \"$OLDPWD/linked\"";
    let answer = run(bash(&bench, command, false));
    assert!(answer.ok && answer.text.contains("ran\npiped\n2\n"), "{}", answer.text);
}
