//! A command that a supervisor runs, seen from Pixir: its output, status lines, deadline and end.

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};
use tokio::io::{AsyncReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStderr, ChildStdout};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::command::{
    CommandError, CommandExit, CommandRequest, LeftoverProcess, ProcessOutcome, StopCause,
};
use super::descendants::{self, LiveProcess};
use super::lifeline::{CommandPipes, Lifeline};
use super::output::OutputCollector;
use super::supervisor::{
    FREE, KILL, RETURNING, STALE, TERMINATE, UNCONFINED, UNCOVERED, UNUSABLE_PROC,
};
use crate::base::blocking;
use crate::host::sandbox::{
    CacheAccess, CommandGroup, EnforcementLevel, HiddenWatch, LimitEvents, LocalSockets,
};

/// The size of the read buffer, in bytes.
const READ_SIZE: usize = 64 * 1024;
/// The maximum number of reads that empty the pipe at the end.
const MAX_FINAL_READS: usize = 16;
/// The interval at which hidden paths are checked.
const HIDDEN_CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// Time limit for a killed supervisor to end before Pixir goes on without it.
const SUPERVISOR_EXIT_TIMEOUT: Duration = Duration::from_secs(3);
/// Time limit for Pixir to kill processes that a supervisor did not kill.
const LAST_KILL_TIMEOUT: Duration = Duration::from_secs(1);
/// Time limit for output after the supervisor has ended; only a process that passed the pipe out of its
/// namespace can hold it open then.
const LAST_OUTPUT_TIMEOUT: Duration = Duration::from_millis(200);

/// A supervisor process. Closing or dropping the lifeline kills the processes it watches; Pixir kills
/// the supervisor itself only when it no longer responds, because a subreaper must be running to kill
/// its descendants.
pub struct SupervisorProcess {
    pub process: Child,
    pub lifeline: Lifeline,
    pub output: ChildStdout,
    pub status: Lines<BufReader<ChildStderr>>,
    /// The control group of the supervisor, if one could be created.
    pub group: Option<Arc<CommandGroup>>,
}

impl Drop for SupervisorProcess {
    fn drop(&mut self) {
        // A command may have sent it SIGSTOP; the supervisor must run to notice that the lifeline is closed.
        if let Some(pid) = self.pid() {
            rustix::process::kill_process(pid, Signal::CONT).ok();
        }
    }
}

impl SupervisorProcess {
    /// A pidfd of the process, to wait for its end.
    pub fn open_pidfd(&self) -> Option<OwnedFd> {
        pidfd_open(self.pid()?, PidfdFlags::empty()).ok()
    }

    /// Closes the lifeline, and waits until the supervisor starts to release the package caches; then the
    /// supervisor ends on its own.
    pub async fn release(mut self) {
        self.lifeline.close();
        let is_returning = async {
            while let Ok(Some(line)) = self.status.next_line().await {
                if line == RETURNING {
                    break;
                }
            }
        };
        if timeout(SUPERVISOR_EXIT_TIMEOUT, is_returning).await.is_err() {
            tracing::debug!("a supervisor is still ending");
        }
    }

    /// Closes the lifeline, and waits until the supervisor has ended.
    pub async fn close_and_wait(mut self) {
        self.lifeline.close();
        if timeout(SUPERVISOR_EXIT_TIMEOUT, self.process.wait()).await.is_err() {
            tracing::debug!("a supervisor is still ending");
        }
    }

    /// The process id, until the process has been reaped.
    fn pid(&self) -> Option<Pid> {
        self.process.id().and_then(|pid| Pid::from_raw(pid.cast_signed()))
    }
}

/// A command that is running in a supervisor.
pub struct SupervisedCommand<'a> {
    supervisor: SupervisorProcess,
    cancel: &'a CancellationToken,
    stdin: Option<&'a CommandPipes>,
    grace: Duration,
    started_at: Instant,
    phase: StopPhase,
    /// The end of the phase; `None` for a command without a deadline.
    phase_deadline: Option<Instant>,
    open: OpenStreams,
    report: StatusReport,
    /// The paths that must stay hidden from the command, and when to check them next.
    hidden: Option<HiddenWatch>,
    next_hidden_check: Option<Instant>,
    /// The process id of the supervisor, which is also the Unix session id of its processes.
    pid: Option<Pid>,
    survivors: Vec<LeftoverProcess>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StopPhase {
    Running,
    Terminating,
    Killing,
}

/// Flags of the streams that are open, and of the supervisor if it runs.
struct OpenStreams {
    output: bool,
    status: bool,
    process: bool,
}

/// The state that the status lines have reported.
#[derive(Default)]
pub struct StatusReport {
    started: Option<String>,
    exit: Option<CommandExit>,
    leftovers: Vec<LeftoverProcess>,
    failure: Option<CommandError>,
    stopped: Option<StopCause>,
    uncovered: Vec<PathBuf>,
    /// Whether all processes have ended and the supervisor waits for another request.
    is_free: bool,
}

enum Wake {
    Output(io::Result<usize>),
    Status(Option<String>),
    Ended(io::Result<ExitStatus>),
    PhaseOver,
    Interrupted,
    CheckHidden,
    EmitOutput,
}

impl<'a> SupervisedCommand<'a> {
    /// Starts to watch a supervisor that has received its request.
    pub fn new(
        supervisor: SupervisorProcess,
        request: &CommandRequest<'a>,
        grace: Duration,
        hidden: Option<HiddenWatch>,
    ) -> Self {
        let started_at = Instant::now();
        Self {
            pid: supervisor.pid(),
            survivors: Vec::new(),
            supervisor,
            cancel: request.cancel,
            stdin: request.stdin,
            grace,
            started_at,
            phase: StopPhase::Running,
            phase_deadline: request.timeout.map(|timeout| started_at + timeout),
            open: OpenStreams { output: true, status: true, process: true },
            report: StatusReport::default(),
            next_hidden_check: hidden.as_ref().map(|_| started_at + HIDDEN_CHECK_INTERVAL),
            hidden,
        }
    }

    /// Watches until all processes have ended. Returns the supervisor if it can run another command.
    pub async fn watch(
        mut self,
        output: &mut OutputCollector<'_>,
    ) -> Result<(ProcessOutcome, Option<SupervisorProcess>), CommandError> {
        let mut buffer = vec![0; READ_SIZE];
        while self.open.output || self.open.status || self.open.process {
            if self.report.is_free {
                let is_drained = self.drain_output(&mut buffer, output).await;
                self.record_revealed();
                let outcome = self.report.into_outcome(self.started_at.elapsed())?;
                let is_reusable = is_drained && outcome.stopped.is_none();
                return Ok((outcome, is_reusable.then_some(self.supervisor)));
            }
            match self.next(&mut buffer, output.next_emit()).await {
                Wake::Output(Ok(count)) if count > 0 => output.push(&buffer[..count]).await,
                Wake::Output(_) => self.open.output = false,
                Wake::Status(Some(line)) => self.apply_status_line(&line),
                Wake::Status(None) => self.open.status = false,
                Wake::Ended(status) => {
                    self.open.process = false;
                    self.phase = StopPhase::Killing;
                    if !status.is_ok_and(|status| status.code().is_some()) {
                        self.kill_session().await;
                    }
                    self.phase_deadline = Some(Instant::now() + LAST_OUTPUT_TIMEOUT);
                }
                Wake::EmitOutput => output.emit_pending(),
                Wake::CheckHidden => {
                    self.next_hidden_check = Some(Instant::now() + HIDDEN_CHECK_INTERVAL);
                    if self.record_revealed() && self.phase != StopPhase::Killing {
                        self.kill().await;
                    }
                }
                Wake::Interrupted => self.stop(StopCause::Interrupted).await,
                Wake::PhaseOver => match self.phase {
                    StopPhase::Running => self.stop(StopCause::TimedOut).await,
                    StopPhase::Terminating => self.kill().await,
                    StopPhase::Killing => break,
                },
            }
        }
        if self.open.process {
            self.kill_descendants().await;
        }
        self.read_rest(&mut buffer, output).await;
        self.record_revealed();
        let duration = self.started_at.elapsed();
        Ok((
            ProcessOutcome { survivors: self.survivors, ..self.report.into_outcome(duration)? },
            None,
        ))
    }

    fn apply_status_line(&mut self, line: &str) {
        self.report.apply_line(line);
        if self.report.started.is_some()
            && let Some(stdin) = self.stdin.take()
        {
            stdin.close();
        }
    }

    /// Records paths that are no longer hidden from the command, once; returns whether there are any.
    fn record_revealed(&mut self) -> bool {
        let Some(hidden) = &self.hidden else { return false };
        let revealed = hidden.revealed();
        if revealed.is_empty() {
            return false;
        }
        (self.hidden, self.next_hidden_check) = (None, None);
        for path in revealed {
            self.report.record_uncovered(path);
        }
        true
    }

    /// Kills the Unix session of a supervisor that was killed; processes that have left the session are missed.
    async fn kill_session(&mut self) {
        let Some(pid) = self.pid else { return };
        self.survivors = kill_until_gone(move || descendants::session_processes(pid)).await;
    }

    /// Kills the descendants of a supervisor that does not respond, then the supervisor. It is killed last,
    /// because it adopts orphans as long as it exists, even when it is stopped.
    async fn kill_descendants(&mut self) {
        let Some(pid) = self.supervisor.pid() else { return };
        self.survivors = kill_until_gone(move || descendants::descendants_of(pid)).await;
        self.supervisor.process.start_kill().ok();
        timeout(LAST_OUTPUT_TIMEOUT, self.supervisor.process.wait()).await.ok();
    }

    /// Empties the output pipe after the last writer has ended; false if it never becomes empty. Reads
    /// directly, because the runtime may not have noticed the last data yet.
    async fn drain_output(&mut self, buffer: &mut [u8], output: &mut OutputCollector<'_>) -> bool {
        for _ in 0..MAX_FINAL_READS {
            match rustix::io::read(&self.supervisor.output, &mut *buffer) {
                Ok(0) => return false,
                Ok(count) => output.push(&buffer[..count]).await,
                Err(Errno::INTR) => {}
                Err(errno) => return errno == Errno::AGAIN,
            }
        }
        false
    }

    /// Reads status lines and output that have already arrived, so that none is lost on a slow disk.
    async fn read_rest(&mut self, buffer: &mut [u8], output: &mut OutputCollector<'_>) {
        let SupervisorProcess { output: pipe, status, .. } = &mut self.supervisor;
        while self.open.status
            && let Ok(Ok(Some(line))) = timeout(Duration::ZERO, status.next_line()).await
        {
            self.report.apply_line(&line);
        }
        // A process to which the pipe was passed may write forever, so at most a full pipe is read.
        for _ in 0..MAX_FINAL_READS {
            match timeout(Duration::ZERO, pipe.read(buffer)).await {
                Ok(Ok(count)) if count > 0 && self.open.output => {
                    output.push(&buffer[..count]).await;
                }
                _ => break,
            }
        }
    }

    async fn next(&mut self, buffer: &mut [u8], due: Option<Instant>) -> Wake {
        let SupervisorProcess { process, output, status, .. } = &mut self.supervisor;
        tokio::select! {
            read = output.read(buffer), if self.open.output => Wake::Output(read),
            line = status.next_line(), if self.open.status => Wake::Status(line.ok().flatten()),
            status = process.wait(), if self.open.process => Wake::Ended(status),
            () = sleep_until(self.phase_deadline) => Wake::PhaseOver,
            () = self.cancel.cancelled(), if self.phase == StopPhase::Running => Wake::Interrupted,
            () = sleep_until(self.next_hidden_check) => Wake::CheckHidden,
            () = sleep_until(due) => Wake::EmitOutput,
        }
    }

    async fn stop(&mut self, why: StopCause) {
        self.report.stopped = Some(why);
        self.phase = StopPhase::Terminating;
        self.phase_deadline = Some(Instant::now() + self.grace);
        // If sending fails, the supervisor has ended or is about to be killed.
        self.supervisor.lifeline.send_control(TERMINATE).await.ok();
    }

    async fn kill(&mut self) {
        self.phase = StopPhase::Killing;
        self.phase_deadline = Some(Instant::now() + SUPERVISOR_EXIT_TIMEOUT);
        self.supervisor.lifeline.send_control(KILL).await.ok();
    }
}

/// Sleeps until a moment; never returns for `None`.
async fn sleep_until(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

/// Kills processes until `find` returns none; returns the survivors.
async fn kill_until_gone(
    find: impl Fn() -> Vec<LiveProcess> + Send + 'static,
) -> Vec<LeftoverProcess> {
    let work = move || {
        let end = std::time::Instant::now() + LAST_KILL_TIMEOUT;
        // In the `/proc` of another pid namespace the ids belong to other processes.
        while descendants::is_proc_usable() {
            let found = find();
            if found.is_empty() || std::time::Instant::now() > end {
                return found;
            }
            descendants::signal_processes(&found, Signal::KILL);
            std::thread::sleep(Duration::from_millis(2));
        }
        Vec::new()
    };
    let found = blocking::run_blocking(work).await.unwrap_or_default();
    found.into_iter().map(|LiveProcess { pid, name }| LeftoverProcess { pid, name }).collect()
}

impl StatusReport {
    /// Whether the command has started and therefore has its descriptors.
    pub fn has_started(&self) -> bool {
        self.started.is_some()
    }

    /// Whether the command has ended or failed to start.
    pub fn is_decided(&self) -> bool {
        self.exit.is_some() || self.failure.is_some() || self.is_free
    }

    /// The exit of the command, or the reason why it failed.
    pub fn take_exit(&mut self) -> Result<CommandExit, CommandError> {
        match (self.failure.take(), self.exit) {
            (Some(failure), _) => Err(failure),
            (None, Some(end)) => Ok(end),
            (None, None) => Err(CommandError::SupervisorLost),
        }
    }

    /// Parses a status line of a supervisor.
    pub fn apply_line(&mut self, line: &str) {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match word {
            "starting" => self.started = Some(rest.to_owned()),
            "exit" => self.exit = rest.parse().ok().map(CommandExit::Code),
            "signal" => self.exit = rest.parse().ok().map(CommandExit::Signal),
            "leftover" => {
                let (pid, name) = rest.split_once(' ').unwrap_or((rest, ""));
                let pid = pid.parse().unwrap_or_default();
                self.leftovers.push(LeftoverProcess { pid, name: name.to_owned() });
            }
            "unsupported" => {
                self.failure = Some(CommandError::Unsupported { reason: rest.to_owned() });
            }
            UNCONFINED => {
                self.failure = Some(CommandError::Unconfined { reason: rest.to_owned() });
            }
            STALE => self.failure = Some(CommandError::StaleMounts),
            UNUSABLE_PROC => self.failure = Some(CommandError::UnusableProc),
            FREE => self.is_free = true,
            RETURNING => {}
            UNCOVERED => self.record_uncovered(rest.into()),
            "failed" => self.failure = Some(CommandError::ShellFailed { reason: rest.to_owned() }),
            _ => {
                // For example the panic message of a supervisor.
                tracing::warn!(line, "unexpected status line of a supervisor");
            }
        }
    }

    /// Records a path that the sandbox no longer covers.
    fn record_uncovered(&mut self, path: PathBuf) {
        if !self.uncovered.contains(&path) {
            self.uncovered.push(path);
        }
        // A command that has already ended was not stopped because of the path.
        if self.exit.is_none() {
            self.stopped.get_or_insert(StopCause::Uncovered);
        }
    }

    fn into_outcome(self, duration: Duration) -> Result<ProcessOutcome, CommandError> {
        if let Some(failure) = self.failure {
            return Err(failure);
        }
        if self.started.is_none() && self.stopped.is_none() {
            return Err(CommandError::SupervisorLost);
        }
        let started = self.started.unwrap_or_default();
        let mut words = started.split(' ');
        let mut word = || words.next().unwrap_or_default();
        let (containment, level, sockets, caches) = (word(), word(), word(), word());
        Ok(ProcessOutcome {
            exit: self.exit.unwrap_or(CommandExit::Unknown),
            stopped: self.stopped,
            leftovers: self.leftovers,
            survivors: Vec::new(),
            uncovered: self.uncovered,
            duration,
            containment: containment.to_owned(),
            limit_events: LimitEvents::default(),
            level: EnforcementLevel::from_name(level).unwrap_or(EnforcementLevel::Off),
            sockets: LocalSockets::from_name(sockets).unwrap_or(LocalSockets::Harmless),
            caches: CacheAccess::from_name(caches).unwrap_or_default(),
        })
    }
}
