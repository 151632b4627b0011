//! Process watch: waits inside a supervisor until a command and all its descendants have ended.

use std::fmt::Display;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, WaitStatus, kill_process_group, pidfd_open,
};

use super::covered_paths::CoveredPaths;
use super::descendants;
use super::supervisor::{KILL, TERMINATE, UNCOVERED};
use crate::base::files::MountWatch;

/// The interval at which orphans are reaped while the command runs.
const REAP_INTERVAL: Duration = Duration::from_millis(500);
/// The interval of checks whether the last process has ended.
const DRAIN_INTERVAL: Duration = Duration::from_millis(2);
/// Time limit for killing; a process that survives it is blocked in the kernel.
const SWEEP_LIMIT: Duration = Duration::from_secs(5);
/// The processes that this supervisor can see and kill.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KillScope {
    Namespace,
    Descendants,
}

/// Whether a command left processes behind or was killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunEnd {
    /// All processes ended without being killed.
    Clean,
    Unclean,
}

/// Whether all processes are to be killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WatchState {
    Watching,
    Killing,
}

/// Watches one command and its descendants.
pub struct ProcessWatch {
    scope: KillScope,
    command: Pid,
    status: Option<WaitStatus>,
    state: WatchState,
    /// A pidfd of the outer process, if commands can kill it; when it ends, this process kills everything.
    outer: Option<OwnedFd>,
    /// Whether a path was found uncovered and reported.
    is_uncovered: bool,
}

impl ProcessWatch {
    pub fn new(scope: KillScope, command: Pid) -> Self {
        let parent = rustix::process::getppid().filter(|_| scope == KillScope::Descendants);
        let outer = parent.and_then(|parent| pidfd_open(parent, PidfdFlags::empty()).ok());
        Self {
            scope,
            command,
            status: None,
            state: WatchState::Watching,
            outer,
            is_uncovered: false,
        }
    }

    pub fn run(mut self, command: &OwnedFd, drain: Duration, covers: &CoveredPaths) -> RunEnd {
        while self.status.is_none() {
            self.wait_event(Some(command), covers.mount_watch(), REAP_INTERVAL);
            self.reap_children();
            if self.status.is_some() {
                break;
            }
            self.check_covers(covers);
            if self.state == WatchState::Killing {
                self.kill_all();
                break;
            }
        }
        self.report_status();
        let deadline = Instant::now() + drain;
        while self.reap_children() == ChildState::Alive {
            if self.state == WatchState::Killing || Instant::now() >= deadline {
                report_leftovers();
                self.kill_all();
                self.check_covers(covers);
                return RunEnd::Unclean;
            }
            self.wait_event(None, covers.mount_watch(), DRAIN_INTERVAL);
        }
        self.check_covers(covers);
        if self.state == WatchState::Watching { RunEnd::Clean } else { RunEnd::Unclean }
    }

    /// Reports paths that are no longer covered; after that, all processes are to be killed.
    fn check_covers(&mut self, covers: &CoveredPaths) {
        if self.is_uncovered {
            return;
        }
        for path in covers.uncovered_paths() {
            let path = path.to_string_lossy().replace('\n', "?");
            write_status_line(format_args!("{UNCOVERED} {path}"));
            self.is_uncovered = true;
            self.state = WatchState::Killing;
        }
    }

    /// Waits for a control byte, the end of the command, a change of the mounts, or the timeout.
    fn wait_event(&mut self, command: Option<&OwnedFd>, mounts: &MountWatch, patience: Duration) {
        let mut polled = vec![PollFd::from_borrowed_fd(rustix::stdio::stdin(), PollFlags::IN)];
        polled.extend(self.outer.as_ref().map(|outer| PollFd::new(outer, PollFlags::IN)));
        let outer_place = polled.len() - 1;
        polled.extend(command.map(|command| PollFd::new(command, PollFlags::IN)));
        let mounts_place = polled.len();
        polled.extend(mounts.poll_fd());
        let timeout = Timespec::try_from(patience).ok();
        let polled_well = rustix::event::poll(&mut polled, timeout.as_ref()).is_ok();
        let has_news = |place: usize| polled_well && !polled[place].revents().is_empty();
        if mounts_place < polled.len() && has_news(mounts_place) {
            mounts.mark_changed();
        }
        if outer_place > 0 && has_news(outer_place) {
            self.state = WatchState::Killing;
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
                    self.state = WatchState::Killing;
                }
            }
            Err(Errno::INTR) => {}
            // The lifeline is closed.
            Ok(_) | Err(_) => self.state = WatchState::Killing,
        }
    }

    pub fn reap_children(&mut self) -> ChildState {
        loop {
            match rustix::process::wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) => {
                    if pid == self.command {
                        self.status = Some(status);
                    }
                }
                Ok(None) => return ChildState::Alive,
                Err(Errno::INTR) => {}
                Err(_) => return ChildState::Gone,
            }
        }
    }

    /// Kills until no process is left, for `SWEEP_LIMIT` at most.
    pub fn kill_all(&mut self) {
        let end = Instant::now() + SWEEP_LIMIT;
        while Instant::now() < end {
            self.signal_all(Signal::KILL);
            if self.reap_children() == ChildState::Gone {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn signal_all(&self, signal: Signal) {
        // Outside a namespace `kill(-1)` would reach everything of this user.
        if self.scope == KillScope::Namespace && rustix::process::getpid() == Pid::INIT {
            let everyone = nix::unistd::Pid::from_raw(-1);
            nix::sys::signal::kill(everyone, nix_signal(signal)).ok();
            return;
        }
        // The process group id is not reused until the command has been reaped. SIGTERM is not sent to the
        // group, so that each process gets it once.
        if self.status.is_none() && signal == Signal::KILL {
            kill_process_group(self.command, signal).ok();
        }
        descendants::signal_processes(&descendants::own_descendants(), signal);
    }

    fn report_status(&self) {
        let Some(status) = self.status else { return };
        match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => write_status_line(format_args!("exit {code}")),
            (None, Some(signal)) => write_status_line(format_args!("signal {signal}")),
            (None, None) => {}
        }
    }
}

pub fn report_leftovers() {
    for process in descendants::own_descendants() {
        write_status_line(format_args!("leftover {} {}", process.pid, process.name));
    }
}

/// Whether this process has children.
#[derive(PartialEq, Eq)]
pub enum ChildState {
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

/// Writes one status line, in one write; errors are ignored, because the reader may have ended.
pub fn write_status_line(line: impl Display) {
    io::stderr().write_all(format!("{line}\n").as_bytes()).ok();
}
