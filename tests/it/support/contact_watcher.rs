//! Ptrace watcher: records every address to which a program and its child processes connect or send. Every
//! system call of every process and thread stops here before it happens.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{Read, Seek, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::FileExt;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Sender, channel};

use nix::errno::Errno;
use nix::libc;
use nix::sys::ptrace::{self, Options};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

/// The recorded contacts and programs of a run.
#[derive(Debug, Default)]
pub struct ObservedRun {
    pub code: Option<i32>,
    pub stderr: String,
    /// Addresses, `unix:` paths, families without addresses, and other channels.
    pub contacts: BTreeSet<String>,
    /// Programs that were started, which shows that children are watched too.
    pub programs: BTreeSet<String>,
    /// Calls that could not be read; there must be none.
    pub unreadable_calls: Vec<String>,
}

/// Runs a program to its end while `talk` uses its streams. `configure` sets the environment of the command.
pub fn observe_contacts<T>(
    line: &[&str],
    configure: impl FnOnce(&mut Command) + Send,
    talk: impl FnOnce(ChildStdin, ChildStdout) -> T,
) -> (T, ObservedRun) {
    std::thread::scope(|scope| {
        let (streams, taken) = channel();
        // The tracing thread waits only for its tracees, not for children of other tests.
        let tracing = scope.spawn(move || trace(line, configure, &streams));
        let (stdin, stdout) = taken.recv().expect("it starts");
        let result = talk(stdin, stdout);
        (result, tracing.join().unwrap())
    })
}

/// Closes stdin and reads stdout to its end.
pub fn read_stdout(stdin: ChildStdin, mut stdout: ChildStdout) -> String {
    drop(stdin);
    let mut text = String::new();
    stdout.read_to_string(&mut text).unwrap();
    text
}

#[expect(clippy::zombie_processes, reason = "the loop below waits for it, as for all its threads")]
fn trace(
    line: &[&str],
    configure: impl FnOnce(&mut Command),
    streams: &Sender<(ChildStdin, ChildStdout)>,
) -> ObservedRun {
    let mut errors = tempfile::tempfile().unwrap();
    let mut command = Command::new("/bin/sh");
    command.args(["-c", r#"read go && exec "$@""#, "sh"]).args(line);
    configure(&mut command);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(errors.try_clone().unwrap());
    let mut child = command.spawn().unwrap();
    let main = Pid::from_raw(i32::try_from(child.id()).unwrap());
    let options = Options::PTRACE_O_TRACESYSGOOD
        | Options::PTRACE_O_TRACECLONE
        | Options::PTRACE_O_TRACEFORK
        | Options::PTRACE_O_TRACEVFORK
        | Options::PTRACE_O_TRACEEXEC
        | Options::PTRACE_O_EXITKILL;
    let seized = ptrace::seize(main, options).and_then(|()| ptrace::interrupt(main));
    seized.expect("ptrace is not permitted here, so nothing can be said about connections");
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"go\n").unwrap();
    streams.send((stdin, child.stdout.take().unwrap())).unwrap();
    let mut watched = ObservedRun::default();
    loop {
        let flags = WaitPidFlag::__WALL | WaitPidFlag::__WNOTHREAD;
        let status = match waitpid(None, Some(flags)) {
            Ok(status) => status,
            // No process is left.
            Err(Errno::ECHILD) => break,
            Err(error) => panic!("{error}"),
        };
        let Some(pid) = status.pid() else { continue };
        let passed_on = match status {
            WaitStatus::Exited(_, code) => {
                if pid == main {
                    watched.code = Some(code);
                }
                continue;
            }
            WaitStatus::Signaled(..) => continue,
            WaitStatus::Stopped(_, signal) => Some(signal),
            WaitStatus::PtraceSyscall(_) => {
                watched.record_syscall(pid);
                None
            }
            WaitStatus::PtraceEvent(_, _, libc::PTRACE_EVENT_EXEC) => {
                watched.programs.insert(program(pid));
                None
            }
            _ => None,
        };
        // A thread that is being killed cannot be resumed.
        ptrace::syscall(pid, passed_on).ok();
    }
    errors.rewind().unwrap();
    errors.read_to_string(&mut watched.stderr).unwrap();
    watched
}

impl ObservedRun {
    /// Records the system call in which a thread has stopped.
    fn record_syscall(&mut self, pid: Pid) {
        let line = match fs::read_to_string(format!("/proc/{pid}/syscall")) {
            Ok(line) => line,
            // The thread was killed meanwhile.
            Err(error) if is_gone(&error) => return,
            Err(error) => return self.unreadable_calls.push(format!("{pid}: {error}")),
        };
        let mut words = line.split_whitespace();
        let Some(number) = words.next().and_then(|word| word.parse::<i64>().ok()) else { return };
        let numbers = words.map(|word| u64::from_str_radix(word.trim_start_matches("0x"), 16));
        let args: Vec<u64> = numbers.map_while(Result::ok).collect();
        if args.len() < 6 {
            return;
        }
        let found = match number {
            libc::SYS_connect => self.address(pid, args[1], args[2]),
            libc::SYS_sendto => self.address(pid, args[4], args[5]),
            libc::SYS_sendmsg => self.message(pid, args[1]),
            libc::SYS_sendmmsg => {
                for place in 0..args[2].min(64) {
                    if let Some(found) = self.message(pid, args[1] + place * 64) {
                        self.contacts.insert(found);
                    }
                }
                None
            }
            // Calls that are queued there cannot be traced.
            libc::SYS_io_uring_setup => Some("io_uring".to_owned()),
            _ => None,
        };
        self.contacts.extend(found);
    }

    /// The address of a `msghdr`.
    fn message(&mut self, pid: Pid, at: u64) -> Option<String> {
        let head = self.bytes(pid, at, 16)?;
        let name = u64::from_ne_bytes(head[..8].try_into().unwrap());
        let length = u32::from_ne_bytes(head[8..12].try_into().unwrap());
        self.address(pid, name, length.into())
    }

    /// An address in the memory of a process; `None` for a null pointer.
    fn address(&mut self, pid: Pid, at: u64, length: u64) -> Option<String> {
        if at == 0 || length < 2 {
            return None;
        }
        let bytes = self.bytes(pid, at, usize::try_from(length.min(128)).unwrap())?;
        let family = i32::from(u16::from_ne_bytes([bytes[0], bytes[1]]));
        let port = || u16::from_be_bytes([bytes[2], bytes[3]]);
        Some(match family {
            libc::AF_INET if bytes.len() >= 8 => {
                let own: [u8; 4] = bytes[4..8].try_into().unwrap();
                SocketAddr::from((Ipv4Addr::from(own), port())).to_string()
            }
            libc::AF_INET6 if bytes.len() >= 24 => {
                let own: [u8; 16] = bytes[8..24].try_into().unwrap();
                SocketAddr::from((Ipv6Addr::from(own), port())).to_string()
            }
            libc::AF_UNIX => {
                // An abstract name begins with a zero.
                let name = &bytes[2..];
                let start = usize::from(name.first() == Some(&0));
                let end =
                    name[start..].iter().position(|byte| *byte == 0).unwrap_or(name.len() - start);
                format!(
                    "unix:{} by {}",
                    String::from_utf8_lossy(&name[start..start + end]),
                    program(pid)
                )
            }
            // Netlink talks to the kernel; `AF_UNSPEC` disconnects a socket.
            libc::AF_NETLINK | libc::AF_UNSPEC => return None,
            other => format!("family {other}"),
        })
    }

    fn bytes(&mut self, pid: Pid, at: u64, length: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0; length];
        let read = File::open(format!("/proc/{pid}/mem"))
            .and_then(|memory| memory.read_exact_at(&mut bytes, at));
        match read {
            Ok(()) => Some(bytes),
            Err(error) if is_gone(&error) => None,
            Err(error) => {
                self.unreadable_calls.push(format!("{pid} at {at:x}: {error}"));
                None
            }
        }
    }
}

/// File name of the program of a process.
fn program(pid: Pid) -> String {
    let program = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
    program.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn is_gone(error: &std::io::Error) -> bool {
    let gone = [Some(libc::ESRCH), Some(libc::ENOENT)];
    gone.contains(&error.raw_os_error())
}
