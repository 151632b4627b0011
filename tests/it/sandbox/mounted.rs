//! Machines with mounts in the home folder, and with sockets in `/dev`.
//!
//! The tests start a driver in a mount namespace that looks like such a machine.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use pixir::workbench::{ToolAnswer, Workbench, WorkbenchSetup};
use serde_json::json;

use super::escape::skip;

/// The variable that makes a test process a driver, and selects its part.
const DRIVE: &str = "PIXIR_TEST_MOUNTED";
/// Content that no command may read.
const SECRET: &str = "s3cr3t-of-the-mounts";
/// More entries than a folder with mounts may have if it is to be covered.
const MANY: usize = 600;

/// Script that mounts a file system in the home folder.
const MOUNT_HOME: &str = "mount -t tmpfs none home/mnt";
/// Script that makes a writable folder of devices, as in containers.
const MOUNT_DEVICES: &str = "mount -t tmpfs none dev; mkdir dev/pts dev/shm
for name in null zero full random urandom tty; do cp -a /dev/$name dev/$name; done
mount --bind dev /dev; mount -t devpts -o newinstance,ptmxmode=0666 none /dev/pts";

struct MountedEnv {
    root: PathBuf,
    bench: Workbench,
    /// One runtime for all commands, so that a supervisor can serve several.
    runtime: tokio::runtime::Runtime,
}

impl MountedEnv {
    fn new(root: &Path) -> Self {
        let setup = WorkbenchSetup {
            own_binary: env!("CARGO_BIN_EXE_pixir").into(),
            folder: &root.join("work"),
            environment: vec![
                ("PATH".into(), "/usr/local/bin:/usr/bin:/bin".into()),
                ("HOME".into(), root.join("home").into()),
                ("TMPDIR".into(), root.join("temp").into()),
            ],
            subreaper: false,
            drain: Duration::from_millis(20),
            grace: Duration::from_millis(50),
        };
        let home = pixir::Home::new(root.join("home/.pixir"));
        let adjust = |config: &mut pixir::Config| {
            config.home = home;
            // The whole home is visible, with its mounts.
            config.sandbox.read = vec!["~".into()];
        };
        let bench = Workbench::with_config(setup, adjust).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        Self { root: root.to_owned(), bench, runtime }
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.root.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        // A new inode each time, as editors write files.
        fs::write(path.with_extension("new"), text).unwrap();
        fs::rename(path.with_extension("new"), path).unwrap();
    }

    fn run(&self, command: &str) -> ToolAnswer {
        let args = json!({"command": command, "timeout_ms": 60_000});
        let answer = self.runtime.block_on(self.bench.call("bash", args)).unwrap();
        assert_eq!(answer.details["sandbox"], "full", "{}", answer.text);
        answer
    }
}

/// The next command sees files that the user added, replaced or removed in the home folder.
fn home_changes(machine: &MountedEnv) {
    machine.write("home/settings", "old\n");
    machine.write("home/mnt/inside", "on a mount\n");
    machine.write("home/folder/file", "one\n");
    let look = "cd; cat settings mnt/inside folder/file late/file tool .netrc 2>&1; true";
    let first = machine.run(look).text;
    for shown in ["old", "on a mount", "one", "late/file: No such file"] {
        assert!(first.contains(shown), "{shown}: {first}");
    }
    machine.write("home/settings", "new\n");
    machine.write("home/folder/file", "two\n");
    machine.write("home/late/file", "made later\n");
    machine.write("home/tool", "installed\n");
    let second = machine.run(look).text;
    for shown in ["new\n", "two\n", "made later\n", "installed\n", "on a mount\n"] {
        assert!(second.contains(shown), "{shown}: {second}");
    }
    fs::remove_file(machine.root.join("home/tool")).unwrap();
    let third = machine.run(look).text;
    assert!(third.contains("tool: No such file") && third.contains("made later"), "{third}");
    machine.write("home/.netrc", SECRET);
    let last = machine.run(look).text;
    assert!(!last.contains(SECRET) && last.contains("made later"), "{last}");
}

/// A folder in which another program adds entries all the time stops no command.
fn busy_folder(machine: &MountedEnv) {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..60_000 {
                if is_over.load(Ordering::Relaxed) {
                    return;
                }
                fs::write(machine.root.join(format!("home/added-{number}")), "").unwrap();
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let answers: Vec<ToolAnswer> =
            (0..4).map(|_| machine.run("cat ~/mnt/../.profile")).collect();
        is_over.store(true, Ordering::Relaxed);
        assert!(answers.iter().all(|answer| answer.text.contains("No such file")));
    });
}

/// Sockets in the folder of devices are not reached, and devices work.
fn devices(machine: &MountedEnv) {
    let log = UnixDatagram::bind("/dev/log").unwrap();
    log.set_nonblocking(true).unwrap();
    fs::create_dir("/dev/deep").unwrap();
    let deep = UnixDatagram::bind("/dev/deep/log").unwrap();
    deep.set_nonblocking(true).unwrap();
    let say = "python3 - <<'P'
import socket
for name in ['/dev/log', '/dev/deep/log', '/dev/late']:
    try: socket.socket(1, socket.SOCK_DGRAM).sendto(b'outside', name)
    except OSError as error: print(name, error)
P
";
    let first = machine.run(say).text;
    let late = UnixDatagram::bind("/dev/late").unwrap();
    late.set_nonblocking(true).unwrap();
    let second = machine.run(say).text;
    let mut devices = BTreeSet::new();
    for (name, socket) in [("log", &log), ("deep", &deep), ("late", &late)] {
        if socket.recv(&mut [0; 64]).is_ok() {
            devices.insert(name);
        }
    }
    assert_eq!(devices, BTreeSet::new(), "{first}{second}");
    let work =
        "set -e; echo x > /dev/null; head -c 3 /dev/zero | wc -c; head -c 3 /dev/urandom | wc -c
ls -l /dev/fd/ > /dev/stdout; echo told > /dev/stderr; echo x > /dev/shm/x
python3 -c 'import pty, os; a, b = pty.openpty(); os.write(b, b\"typed\"); print(os.read(a, 5))'";
    let answer = machine.run(work);
    assert!(answer.ok && answer.text.contains("typed"), "{}", answer.text);
}

/// Unix sockets are refused where they cannot be covered, and a notice says so once.
fn too_many_entries(machine: &MountedEnv) {
    for number in 0..MANY {
        fs::write(machine.root.join(format!("home/{number}")), "").unwrap();
    }
    let answer = machine.run("python3 -c 'import socket; socket.socket(socket.AF_UNIX)'");
    assert!(!answer.ok && answer.text.contains("PermissionError"), "{}", answer.text);
    assert!(answer.text.contains("local_sockets: true"), "{}", answer.text);
    let notice = answer.details["notice"].as_str().unwrap_or_default();
    assert!(notice.contains("Unix sockets"), "{notice}");
    let again = machine.run("true");
    assert_eq!(again.details.get("notice"), None, "{:?}", again.details);
}

/// A driver: the process that the tests start.
#[test]
fn driver() {
    let Some(drive) = std::env::var_os(DRIVE) else { return };
    let machine = MountedEnv::new(&std::env::current_dir().unwrap());
    match drive.to_str().unwrap() {
        "home" => home_changes(&machine),
        "busy" => busy_folder(&machine),
        "devices" => devices(&machine),
        _ => too_many_entries(&machine),
    }
    writeln!(std::io::stdout(), "driven").unwrap();
}

fn drive(what: &str, mount: &str) {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let below = folder.path().canonicalize().unwrap();
    for name in ["home/mnt", "work", "temp", "dev"] {
        fs::create_dir_all(below.join(name)).unwrap();
    }
    let user = if rustix::process::geteuid().is_root() { "-m" } else { "-rm" };
    let mut unshare = Command::new("unshare");
    unshare.args([user, "--propagation", "private", "sh", "-c"]).current_dir(&below);
    let script = format!("( {mount} ) || {{ echo cannot mount; exit 0; }}; exec \"$@\"");
    unshare.arg(script).arg("sh").arg(std::env::current_exe().unwrap());
    unshare.args(["--exact", "sandbox::mounted::driver", "--nocapture"]).env(DRIVE, what);
    let Ok(output) = unshare.output() else {
        skip("there is no `unshare`");
        return;
    };
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    let obstacles = ["cannot mount", "unshare failed", "cannot create special file"];
    if obstacles.iter().any(|words| text.contains(words)) {
        skip(&format!("mounted: {text}"));
        return;
    }
    assert!(output.status.success() && text.contains("driven"), "{text}");
}

#[test]
fn what_changes_in_a_home_with_mounts_is_seen_by_the_next_command() {
    drive("home", MOUNT_HOME);
}

#[test]
fn a_home_folder_that_changes_all_the_time_stops_no_command() {
    drive("busy", MOUNT_HOME);
}

#[test]
fn a_socket_among_the_devices_is_not_reached() {
    drive("devices", MOUNT_DEVICES);
}

#[test]
fn where_sockets_cannot_be_covered_the_user_gets_one_notice() {
    drive("crowd", MOUNT_HOME);
}
