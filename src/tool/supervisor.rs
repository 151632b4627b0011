//! The supervisor: the process between Pixir and a command, which sees to it that nothing stays.
//!
//! `pixir __supervise` enters a new pid namespace and starts `pixir __supervise init` as its first
//! process; when that one ends, for whatever reason, the kernel kills everything inside. Where
//! namespaces are not allowed, the first process becomes a subreaper and sweeps its descendants.
//! Pixir holds the other end of standard input: when it closes, by will or by death, all is killed.
//! Standard output carries the command's output and standard error the status lines.
//!
//! A namespace serves one command after the other as long as each leaves it as it was: nobody in
//! it, nothing mounted. Making a new one costs more than most commands.
//!
//! Nothing here knows tokio: the outer process must stay single-threaded, and both must start fast.

use std::ffi::OsString;
use std::fmt::Display;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::{
    DumpableBehavior, Pid, PidfdFlags, Signal, WaitOptions, WaitStatus, kill_process, pidfd_open,
};

use super::namespace::{Entry, Mounts};
use super::order::{LARGEST_ORDER, Order};
use super::{descendants, namespace};

/// The hidden first argument that makes `pixir` a supervisor.
pub const SUPERVISE: &str = "__supervise";
/// The hidden second argument of the first process in a namespace.
const INIT: &str = "init";
/// The hidden second argument that asks not to try namespaces.
pub const SUBREAPER: &str = "subreaper";

/// Asks everything to end.
pub const TERMINATE: u8 = b'T';
/// Ends everything.
pub const KILL: u8 = b'K';

/// The status line that says: nobody is left, and another order is welcome.
pub const FREE: &str = "free";

/// How often orphans are reaped while the command runs.
const REAP_INTERVAL: Duration = Duration::from_millis(500);
/// How often it is looked whether the last process has gone.
const DRAIN_INTERVAL: Duration = Duration::from_millis(2);
/// How long killing is tried; what survives this sits in the kernel.
const SWEEP_LIMIT: Duration = Duration::from_secs(5);

/// Runs as a supervisor; `arguments` are those after [`SUPERVISE`].
pub fn supervise(mut arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let role = arguments.next().unwrap_or_default();
    if role == INIT {
        return serve(Reach::Namespace);
    }
    // Without a terminal a command cannot ask on it, and Ctrl-C reaches Pixir alone.
    rustix::process::setsid().ok();
    if role != SUBREAPER {
        match namespace::enter() {
            Ok(()) => return start_init(),
            Err(Entry::Refused) => {}
            Err(Entry::Stuck(error)) => {
                report(format_args!("unsupported {error}"));
                return ExitCode::FAILURE;
            }
        }
    }
    if let Err(error) = rustix::process::set_child_subreaper(Some(rustix::process::getpid())) {
        report(format_args!("failed cannot adopt orphans: {error}"));
        return ExitCode::FAILURE;
    }
    serve(Reach::Descendants)
}

/// Starts the first process of the namespace and stays until it has ended.
#[expect(clippy::disallowed_methods, reason = "the supervisor is the far half of tool::command")]
fn start_init() -> ExitCode {
    let init = Command::new("/proc/self/exe").args([SUPERVISE, INIT]).spawn();
    match init.and_then(|mut init| init.wait()) {
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => {
            report(format_args!("unsupported {error}"));
            ExitCode::FAILURE
        }
    }
}

/// How far this process can see and kill.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reach {
    Namespace,
    Descendants,
}

/// Waits for orders, runs them one by one, and leaves nothing behind.
fn serve(reach: Reach) -> ExitCode {
    if reach == Reach::Namespace {
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).ok();
        namespace::show_own_processes();
        if !rustix::process::geteuid().is_root()
            && let Err(error) = namespace::give_up_mounting()
        {
            report(format_args!("unsupported {error}"));
            return ExitCode::FAILURE;
        }
    }
    // The command must not look into, or write to, the process that watches it.
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable).ok();
    let mounts = Mounts::watch();
    loop {
        let order = match read_order() {
            Ok(Some(order)) => order,
            Ok(None) => return ExitCode::SUCCESS,
            Err(error) => {
                report(format_args!("failed {error}"));
                return ExitCode::FAILURE;
            }
        };
        let peace = match carry_out(&order, reach) {
            Ok(peace) => peace,
            Err(error) => {
                report(format_args!("failed {error}"));
                return ExitCode::FAILURE;
            }
        };
        if peace == Peace::Broken || reach != Reach::Namespace || mounts.have_changed() {
            return ExitCode::SUCCESS;
        }
        report(FREE);
    }
}

fn carry_out(order: &Order, reach: Reach) -> io::Result<Peace> {
    let command = start(order)?;
    let descriptor = pidfd_open(command, PidfdFlags::empty())?;
    let reach_name = if reach == Reach::Namespace { "namespace" } else { "subreaper" };
    report(format_args!("started {} {reach_name}", command.as_raw_nonzero()));
    let watch = Watch { reach, command, status: None, fate: Fate::Open };
    Ok(watch.run(&descriptor, order.drain))
}

/// How a command left the place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Peace {
    /// Everybody went by themselves.
    Kept,
    Broken,
}

fn read_order() -> io::Result<Option<Order>> {
    let mut length = [0; 4];
    if !read_exactly(&mut length)? {
        return Ok(None);
    }
    let length = u32::from_le_bytes(length) as usize;
    if length > LARGEST_ORDER {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut body = vec![0; length];
    if !read_exactly(&mut body)? {
        return Ok(None);
    }
    Order::decode(&body).map(Some).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Reads without a buffer of its own: what follows the order belongs to the control channel.
fn read_exactly(mut buffer: &mut [u8]) -> io::Result<bool> {
    while !buffer.is_empty() {
        match rustix::io::read(rustix::stdio::stdin(), &mut *buffer) {
            Ok(0) => return Ok(false),
            Ok(count) => buffer = &mut buffer[count..],
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(true)
}

/// Starts the shell. Both outputs share one pipe, so their order is kept; std resets SIGPIPE and
/// the signal mask for it.
#[expect(clippy::disallowed_methods, reason = "the supervisor is the far half of tool::command")]
fn start(order: &Order) -> io::Result<Pid> {
    let output = io::stdout().as_fd().try_clone_to_owned()?;
    let child = Command::new(&order.shell)
        .arg("-c")
        .arg(&order.command)
        .current_dir(&order.directory)
        .env_clear()
        .envs(order.environment.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::null())
        .stdout(Stdio::from(output.try_clone()?))
        .stderr(Stdio::from(output))
        .process_group(0)
        .spawn()?;
    Ok(Pid::from_child(&child))
}

/// What Pixir wants by now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Open,
    Kill,
}

struct Watch {
    reach: Reach,
    command: Pid,
    status: Option<WaitStatus>,
    fate: Fate,
}

impl Watch {
    fn run(mut self, command: &OwnedFd, drain: Duration) -> Peace {
        while self.status.is_none() {
            self.listen(Some(command), REAP_INTERVAL);
            if self.fate == Fate::Kill {
                self.sweep();
                break;
            }
            self.reap();
        }
        self.report_status();
        let deadline = Instant::now() + drain;
        while self.reap() == Family::Alive {
            if self.fate == Fate::Kill || Instant::now() >= deadline {
                report_leftovers();
                self.sweep();
                return Peace::Broken;
            }
            self.listen(None, DRAIN_INTERVAL);
        }
        if self.fate == Fate::Open { Peace::Kept } else { Peace::Broken }
    }

    /// Waits for a word from Pixir, the end of the command, or the time to look around.
    fn listen(&mut self, command: Option<&OwnedFd>, patience: Duration) {
        let mut polled = vec![PollFd::from_borrowed_fd(rustix::stdio::stdin(), PollFlags::IN)];
        polled.extend(command.map(|command| PollFd::new(command, PollFlags::IN)));
        let timeout = Timespec::try_from(patience).ok();
        if rustix::event::poll(&mut polled, timeout.as_ref()).is_err()
            || polled.first().is_none_or(|control| control.revents().is_empty())
        {
            return;
        }
        let mut words = [0; 16];
        match rustix::io::read(rustix::stdio::stdin(), &mut words) {
            Ok(count) if count > 0 => {
                if words[..count].contains(&TERMINATE) {
                    self.signal_all(Signal::TERM);
                }
                if words[..count].contains(&KILL) {
                    self.fate = Fate::Kill;
                }
            }
            Err(Errno::INTR) => {}
            // Pixir has let go, or is gone.
            Ok(_) | Err(_) => self.fate = Fate::Kill,
        }
    }

    fn reap(&mut self) -> Family {
        loop {
            match rustix::process::wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) => {
                    if pid == self.command {
                        self.status = Some(status);
                    }
                }
                Ok(None) => return Family::Alive,
                Err(Errno::INTR) => {}
                Err(_) => return Family::Gone,
            }
        }
    }

    /// Kills until nobody is left.
    fn sweep(&mut self) {
        let end = Instant::now() + SWEEP_LIMIT;
        while Instant::now() < end {
            self.signal_all(Signal::KILL);
            if self.reap() == Family::Gone {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn signal_all(&self, signal: Signal) {
        // Outside a namespace `kill(-1)` would reach everything of this user.
        if self.reach == Reach::Namespace && rustix::process::getpid() == Pid::INIT {
            let everyone = nix::unistd::Pid::from_raw(-1);
            nix::sys::signal::kill(everyone, nix_signal(signal)).ok();
            return;
        }
        for process in descendants::of_this_process() {
            if let Some(pid) = Pid::from_raw(process.pid) {
                kill_process(pid, signal).ok();
            }
        }
    }

    fn report_status(&self) {
        let Some(status) = self.status else { return };
        match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => report(format_args!("exit {code}")),
            (None, Some(signal)) => report(format_args!("signal {signal}")),
            (None, None) => {}
        }
    }
}

fn report_leftovers() {
    for process in descendants::of_this_process() {
        report(format_args!("leftover {} {}", process.pid, process.name));
    }
}

#[derive(PartialEq, Eq)]
enum Family {
    Alive,
    Gone,
}

fn nix_signal(signal: Signal) -> nix::sys::signal::Signal {
    if signal == Signal::TERM {
        nix::sys::signal::Signal::SIGTERM
    } else {
        nix::sys::signal::Signal::SIGKILL
    }
}

/// Writes one status line, in one write; a reader that has gone is normal.
fn report(line: impl Display) {
    io::stderr().write_all(format!("{line}\n").as_bytes()).ok();
}
