//! Watches a command and its descendants inside a supervisor until all of them have ended.

use std::fmt::Display;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, WaitStatus, kill_process_group, pidfd_open,
};

use super::covers::Covers;
use super::descendants;
use super::supervisor::{KILL, TERMINATE, UNCOVERED};
use crate::base::files::MountWatch;

/// How often orphans are reaped while the command runs.
const REAP_INTERVAL: Duration = Duration::from_millis(500);
/// How often to check whether the last process has ended.
const DRAIN_INTERVAL: Duration = Duration::from_millis(2);
/// How long killing is tried; a process that survives this is blocked in the kernel.
const SWEEP_LIMIT: Duration = Duration::from_secs(5);
/// The processes that this supervisor can see and kill.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    Namespace,
    Descendants,
}

/// Whether a command left processes behind or was killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peace {
    /// All processes ended on their own.
    Kept,
    Broken,
}

/// Whether everything is to be killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Open,
    Kill,
}

/// Watches one command and its descendants.
pub struct Watch {
    reach: Reach,
    command: Pid,
    status: Option<WaitStatus>,
    fate: Fate,
    /// The outer process, if commands can kill it; when it ends, this process kills everything.
    outer: Option<OwnedFd>,
    /// Whether a path lost its cover, which was reported.
    is_uncovered: bool,
}

impl Watch {
    pub fn new(reach: Reach, command: Pid) -> Self {
        let parent = rustix::process::getppid().filter(|_| reach == Reach::Descendants);
        let outer = parent.and_then(|parent| pidfd_open(parent, PidfdFlags::empty()).ok());
        Self { reach, command, status: None, fate: Fate::Open, outer, is_uncovered: false }
    }

    pub fn run(mut self, command: &OwnedFd, drain: Duration, covers: &Covers) -> Peace {
        while self.status.is_none() {
            self.listen(Some(command), covers.mounts(), REAP_INTERVAL);
            self.reap();
            if self.status.is_some() {
                break;
            }
            self.check(covers);
            if self.fate == Fate::Kill {
                self.sweep();
                break;
            }
        }
        self.report_status();
        let deadline = Instant::now() + drain;
        while self.reap() == Family::Alive {
            if self.fate == Fate::Kill || Instant::now() >= deadline {
                report_leftovers();
                self.sweep();
                self.check(covers);
                return Peace::Broken;
            }
            self.listen(None, covers.mounts(), DRAIN_INTERVAL);
        }
        self.check(covers);
        if self.fate == Fate::Open { Peace::Kept } else { Peace::Broken }
    }

    /// Reports paths that are no longer covered; then everything is to be killed.
    fn check(&mut self, covers: &Covers) {
        if self.is_uncovered {
            return;
        }
        for path in covers.lost() {
            let path = path.to_string_lossy().replace('\n', "?");
            report(format_args!("{UNCOVERED} {path}"));
            self.is_uncovered = true;
            self.fate = Fate::Kill;
        }
    }

    /// Waits for a control byte, the end of the command, a change of the mounts, or the timeout.
    fn listen(&mut self, command: Option<&OwnedFd>, mounts: &MountWatch, patience: Duration) {
        let mut polled = vec![PollFd::from_borrowed_fd(rustix::stdio::stdin(), PollFlags::IN)];
        polled.extend(self.outer.as_ref().map(|outer| PollFd::new(outer, PollFlags::IN)));
        let outer_place = polled.len() - 1;
        polled.extend(command.map(|command| PollFd::new(command, PollFlags::IN)));
        let mounts_place = polled.len();
        polled.extend(mounts.polled());
        let timeout = Timespec::try_from(patience).ok();
        let polled_well = rustix::event::poll(&mut polled, timeout.as_ref()).is_ok();
        let has_news = |place: usize| polled_well && !polled[place].revents().is_empty();
        if mounts_place < polled.len() && has_news(mounts_place) {
            mounts.note_change();
        }
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
            // The lifeline is closed.
            Ok(_) | Err(_) => self.fate = Fate::Kill,
        }
    }

    pub fn reap(&mut self) -> Family {
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

    /// Kills until no process is left, for `SWEEP_LIMIT` at most.
    pub fn sweep(&mut self) {
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
        // The process group id is not reused until the command has been reaped. SIGTERM is not sent to the
        // group, so that each process gets it once.
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

pub fn report_leftovers() {
    for process in descendants::of_this_process() {
        report(format_args!("leftover {} {}", process.pid, process.name));
    }
}

/// Whether there are children.
#[derive(PartialEq, Eq)]
pub enum Family {
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
pub fn report(line: impl Display) {
    io::stderr().write_all(format!("{line}\n").as_bytes()).ok();
}
