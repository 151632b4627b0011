//! The supervisor: the process between Pixir and a command, which sees to it that nothing stays.
//!
//! `pixir __supervise` enters a new pid namespace and starts `pixir __supervise init` as its first
//! process; when that one ends, for whatever reason, the kernel kills everything inside. Where
//! namespaces are not allowed, both are subreapers: the second one watches the command and sweeps
//! its descendants, and the first one does when the second is gone or stopped.
//! Pixir holds the other end of standard input: when it closes, by will or by death, all is killed.
//! Standard output carries the command's output and standard error the status lines.
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
    DumpableBehavior, Pid, PidfdFlags, Signal, WaitOptions, WaitStatus, kill_process_group,
    pidfd_open,
};

use super::namespace::Entry;
use super::order::{LARGEST_ORDER, Order};
use super::{descendants, namespace};

/// The hidden first argument that makes `pixir` a supervisor.
pub const SUPERVISE: &str = "__supervise";
/// The hidden second argument of the first process in a namespace.
const INIT: &str = "init";
/// The hidden second argument that asks not to try namespaces.
pub const SUBREAPER: &str = "subreaper";
/// The hidden second argument of the inner process without a namespace.
const INNER: &str = "inner";

/// Asks everything to end.
pub const TERMINATE: u8 = b'T';
/// Ends everything.
pub const KILL: u8 = b'K';

/// How often orphans are reaped while the command runs.
const REAP_INTERVAL: Duration = Duration::from_millis(500);
/// How often it is looked whether the last process has gone.
const DRAIN_INTERVAL: Duration = Duration::from_millis(2);
/// How long killing is tried; what survives this sits in the kernel.
const SWEEP_LIMIT: Duration = Duration::from_secs(5);
/// How long the inner process may take to sweep once Pixir has let go, before the outer one does.
const INNER_PATIENCE: Duration = Duration::from_millis(500);
/// Descriptors up to this one are closed where `/proc` does not list them.
const GUESSED_DESCRIPTORS: i32 = 256;

/// Runs as a supervisor; `arguments` are those after [`SUPERVISE`].
pub fn supervise(mut arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let role = arguments.next().unwrap_or_default();
    if role == INIT {
        return serve(Reach::Namespace);
    }
    if role == INNER {
        return serve(Reach::Descendants);
    }
    close_inherited();
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
    if !descendants::are_known() {
        report("blind");
        return ExitCode::FAILURE;
    }
    start_inner()
}

/// Closes what Pixir was started with: a command has its three standard descriptors and no other.
fn close_inherited() {
    let listed = std::fs::read_dir("/proc/self/fd").map(|entries| {
        let numbers = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        numbers.collect::<Vec<i32>>()
    });
    for descriptor in listed.unwrap_or_else(|_| (0..GUESSED_DESCRIPTORS).collect()) {
        // Nothing in this process owns a descriptor yet.
        if descriptor > 2 {
            nix::unistd::close(descriptor).ok();
        }
    }
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

/// Starts the process that watches the command, and takes its place when it is gone: a command can
/// see it here, and kill or stop it.
#[expect(clippy::disallowed_methods, reason = "the supervisor is the far half of tool::command")]
fn start_inner() -> ExitCode {
    let started = adopt_orphans()
        .and_then(|()| Command::new("/proc/self/exe").args([SUPERVISE, INNER]).spawn())
        .and_then(|inner| {
            let pid = Pid::from_child(&inner);
            Ok((pid, pidfd_open(pid, PidfdFlags::empty())?))
        });
    let (pid, inner) = match started {
        Ok(started) => started,
        Err(error) => {
            report(format_args!("failed {error}"));
            return ExitCode::FAILURE;
        }
    };
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable).ok();
    // Nothing is asked of standard input, so it wakes this process only when Pixir lets go.
    let mut polled = [
        PollFd::from_borrowed_fd(rustix::stdio::stdin(), PollFlags::empty()),
        PollFd::new(&inner, PollFlags::IN),
    ];
    while polled.iter().all(|polled| polled.revents().is_empty()) {
        rustix::event::poll(&mut polled, None).ok();
    }
    let patience = Timespec::try_from(INNER_PATIENCE).ok();
    rustix::event::poll(&mut [PollFd::new(&inner, PollFlags::IN)], patience.as_ref()).ok();
    let mut watch = Watch::new(Reach::Descendants, pid);
    if watch.reap() == Family::Alive {
        report_leftovers();
        watch.sweep();
    }
    ExitCode::SUCCESS
}

fn adopt_orphans() -> io::Result<()> {
    Ok(rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?)
}

/// How far this process can see and kill.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reach {
    Namespace,
    Descendants,
}

/// Waits for an order, runs it, and leaves nothing behind.
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
    } else if let Err(error) = adopt_orphans() {
        report(format_args!("failed cannot adopt orphans: {error}"));
        return ExitCode::FAILURE;
    }
    // The command must not look into, or write to, the process that watches it.
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable).ok();
    let order = match read_order() {
        Ok(Some(order)) => order,
        Ok(None) => return ExitCode::SUCCESS,
        Err(error) => {
            report(format_args!("failed {error}"));
            return ExitCode::FAILURE;
        }
    };
    let drain = order.drain;
    // Said beforehand: the first thing a command does may be to kill this process.
    let reach_name = if reach == Reach::Namespace { "namespace" } else { "subreaper" };
    report(format_args!("starting {reach_name}"));
    match start(&order).and_then(|command| Ok((command, pidfd_open(command, PidfdFlags::empty())?)))
    {
        Ok((command, descriptor)) => {
            let mut watch = Watch::new(reach, command);
            if reach == Reach::Descendants && !descendants::has_child(command) {
                // Who does not see the command cannot see what it starts.
                watch.sweep();
                report("blind");
                return ExitCode::FAILURE;
            }
            watch.run(&descriptor, drain);
            ExitCode::SUCCESS
        }
        Err(error) => {
            report(format_args!("failed {error}"));
            ExitCode::FAILURE
        }
    }
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
    /// The outer process, where it can be killed; then this one ends everything.
    outer: Option<OwnedFd>,
}

impl Watch {
    fn new(reach: Reach, command: Pid) -> Self {
        let parent = rustix::process::getppid().filter(|_| reach == Reach::Descendants);
        let outer = parent.and_then(|parent| pidfd_open(parent, PidfdFlags::empty()).ok());
        Self { reach, command, status: None, fate: Fate::Open, outer }
    }

    fn run(mut self, command: &OwnedFd, drain: Duration) {
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
                return;
            }
            self.listen(None, DRAIN_INTERVAL);
        }
    }

    /// Waits for a word from Pixir, the end of the command, or the time to look around.
    fn listen(&mut self, command: Option<&OwnedFd>, patience: Duration) {
        let mut polled = vec![PollFd::from_borrowed_fd(rustix::stdio::stdin(), PollFlags::IN)];
        polled.extend(self.outer.as_ref().map(|outer| PollFd::new(outer, PollFlags::IN)));
        let outer_place = polled.len() - 1;
        polled.extend(command.map(|command| PollFd::new(command, PollFlags::IN)));
        let timeout = Timespec::try_from(patience).ok();
        let polled_well = rustix::event::poll(&mut polled, timeout.as_ref()).is_ok();
        let has_news = |place: usize| polled_well && !polled[place].revents().is_empty();
        if outer_place > 0 && has_news(outer_place) {
            self.fate = Fate::Kill;
            return;
        }
        if !has_news(0) {
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
        // The number of the group is taken as long as the command has not been reaped. To be asked
        // to end, once is enough.
        if self.status.is_none() && signal == Signal::KILL {
            kill_process_group(self.command, signal).ok();
        }
        descendants::signal(&descendants::of_this_process(), signal);
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
