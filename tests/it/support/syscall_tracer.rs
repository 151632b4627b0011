//! Ptrace tracer: stops a program at each of its system calls, and kills it when a condition holds.
//!
//! Between two system calls of a thread nothing it does is visible from outside, so the stops show
//! every state of a file that the program makes.

use std::io::Write;
use std::process::{Command, Stdio};

use nix::sys::ptrace::{self, Options};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

/// Runs a program and kills it once `is_here` is true; false when it ended before that. `configure` sets
/// the environment of the command.
#[expect(clippy::zombie_processes, reason = "the loop below waits for it, as for all its threads")]
pub fn kill_when(
    program: &[&str],
    configure: impl FnOnce(&mut Command),
    mut is_here: impl FnMut() -> bool,
) -> bool {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", r#"read go && exec "$@" </dev/null"#, "sh"]).args(program);
    configure(&mut command);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    let main = Pid::from_raw(i32::try_from(child.id()).unwrap());
    let options =
        Options::PTRACE_O_TRACESYSGOOD | Options::PTRACE_O_TRACECLONE | Options::PTRACE_O_EXITKILL;
    ptrace::seize(main, options).unwrap();
    ptrace::interrupt(main).unwrap();
    child.stdin.take().unwrap().write_all(b"go\n").unwrap();
    let mut was_killed = false;
    loop {
        // Only tracees of this thread, because other tests have children too.
        let flags = WaitPidFlag::__WALL | WaitPidFlag::__WNOTHREAD;
        let status = waitpid(None, Some(flags)).unwrap();
        let Some(pid) = status.pid() else { continue };
        let passed_on = match status {
            WaitStatus::Exited(..) | WaitStatus::Signaled(..) if pid == main => return was_killed,
            WaitStatus::Exited(..) | WaitStatus::Signaled(..) => continue,
            WaitStatus::Stopped(_, signal) => Some(signal),
            _ => None,
        };
        if !was_killed && is_here() {
            was_killed = true;
            kill(main, Signal::SIGKILL).unwrap();
        }
        // A thread that is being killed cannot be resumed.
        ptrace::syscall(pid, passed_on).ok();
    }
}
