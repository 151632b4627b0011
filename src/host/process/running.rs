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

use super::command::{CommandError, End, Job, Leftover, Outcome, Stop};
use super::descendants::{self, Process};
use super::lifeline::{Lifeline, Stdin};
use super::output::Output;
use super::supervisor::{BLIND, FREE, KILL, RETURNING, STALE, TERMINATE, UNCONFINED, UNCOVERED};
use crate::base::blocking;
use crate::host::sandbox::{
    CacheAccess, CommandGroup, HiddenWatch, Level, LimitEvents, LocalSockets,
};

/// The size of the read buffer, in bytes.
const READ_SIZE: usize = 64 * 1024;
/// How many reads at most empty the pipe at the end.
const READS_OWED: usize = 16;
/// How often hidden paths are checked.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);
/// How long a killed supervisor may take before Pixir goes on without it.
const GIVE_UP: Duration = Duration::from_secs(3);
/// How long Pixir itself tries to kill processes that a supervisor did not.
const LAST_KILLING: Duration = Duration::from_secs(1);
/// How long output is awaited after the supervisor has ended; only a process that passed the pipe
/// out of its namespace can hold it open then.
const LAST_OUTPUT: Duration = Duration::from_millis(200);

/// A supervisor process. Closing the lifeline, also by dropping it, kills the processes it watches; the
/// supervisor itself is killed from here only when it no longer responds, because a subreaper must be
/// running to kill its descendants.
pub struct Supervisor {
    pub process: Child,
    pub lifeline: Lifeline,
    pub output: ChildStdout,
    pub status: Lines<BufReader<ChildStderr>>,
    /// Its control group, if one could be created.
    pub group: Option<Arc<CommandGroup>>,
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        // A command may have stopped it with SIGSTOP; it must run to notice that the lifeline is closed.
        if let Some(pid) = self.pid() {
            rustix::process::kill_process(pid, Signal::CONT).ok();
        }
    }
}

impl Supervisor {
    /// A pidfd of the process, to wait for its end.
    pub fn descriptor(&self) -> Option<OwnedFd> {
        pidfd_open(self.pid()?, PidfdFlags::empty()).ok()
    }

    /// Closes the lifeline, and waits until the supervisor gives back the package caches; then it ends on
    /// its own.
    pub async fn release(mut self) {
        self.lifeline.close();
        let is_returning = async {
            while let Ok(Some(line)) = self.status.next_line().await {
                if line == RETURNING {
                    break;
                }
            }
        };
        if timeout(GIVE_UP, is_returning).await.is_err() {
            tracing::debug!("a supervisor is still ending");
        }
    }

    /// Closes the lifeline, and waits until the supervisor has ended.
    pub async fn end(mut self) {
        self.lifeline.close();
        if timeout(GIVE_UP, self.process.wait()).await.is_err() {
            tracing::debug!("a supervisor is still ending");
        }
    }

    /// Its process id, until it has been reaped.
    fn pid(&self) -> Option<Pid> {
        self.process.id().and_then(|pid| Pid::from_raw(pid.cast_signed()))
    }
}

/// A command that is running in a supervisor.
pub struct Running<'a> {
    supervisor: Supervisor,
    cancel: &'a CancellationToken,
    stdin: Option<&'a Stdin>,
    grace: Duration,
    began: Instant,
    phase: Phase,
    /// When the phase ends; `None` for a command without a deadline.
    until: Option<Instant>,
    open: Open,
    news: News,
    /// The paths that must stay hidden from the command, and when to check them next.
    hidden: Option<HiddenWatch>,
    look: Option<Instant>,
    /// The process id of the supervisor, which is also the Unix session id of its processes.
    pid: Option<Pid>,
    survivors: Vec<Leftover>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Running,
    Terminating,
    Killing,
}

/// Which streams are open, and whether the supervisor runs.
struct Open {
    output: bool,
    status: bool,
    process: bool,
}

/// The state that the status lines have reported.
#[derive(Default)]
pub struct News {
    started: Option<String>,
    end: Option<End>,
    leftovers: Vec<Leftover>,
    failure: Option<CommandError>,
    stopped: Option<Stop>,
    uncovered: Vec<PathBuf>,
    /// All processes have ended, and the supervisor waits for another request.
    is_free: bool,
}

enum Wake {
    Output(io::Result<usize>),
    Status(Option<String>),
    Ended(io::Result<ExitStatus>),
    PhaseOver,
    Interrupted,
    Look,
    Tell,
}

impl<'a> Running<'a> {
    /// Starts to watch a supervisor that has received its request.
    pub fn new(
        supervisor: Supervisor,
        job: &Job<'a>,
        grace: Duration,
        hidden: Option<HiddenWatch>,
    ) -> Self {
        let began = Instant::now();
        Self {
            pid: supervisor.pid(),
            survivors: Vec::new(),
            supervisor,
            cancel: job.cancel,
            stdin: job.stdin,
            grace,
            began,
            phase: Phase::Running,
            until: job.timeout.map(|timeout| began + timeout),
            open: Open { output: true, status: true, process: true },
            news: News::default(),
            look: hidden.as_ref().map(|_| began + LOOK_INTERVAL),
            hidden,
        }
    }

    /// Watches until everything has ended. Returns the supervisor if it can run another command.
    pub async fn watch(
        mut self,
        output: &mut Output<'_>,
    ) -> Result<(Outcome, Option<Supervisor>), CommandError> {
        let mut buffer = vec![0; READ_SIZE];
        while self.open.output || self.open.status || self.open.process {
            if self.news.is_free {
                let is_drained = self.drain(&mut buffer, output).await;
                self.note_revealed();
                let outcome = self.news.outcome(self.began.elapsed())?;
                let is_reusable = is_drained && outcome.stopped.is_none();
                return Ok((outcome, is_reusable.then_some(self.supervisor)));
            }
            match self.next(&mut buffer, output.due()).await {
                Wake::Output(Ok(count)) if count > 0 => output.push(&buffer[..count]).await,
                Wake::Output(_) => self.open.output = false,
                Wake::Status(Some(line)) => self.learn(&line),
                Wake::Status(None) => self.open.status = false,
                Wake::Ended(status) => {
                    self.open.process = false;
                    self.phase = Phase::Killing;
                    if !status.is_ok_and(|status| status.code().is_some()) {
                        self.kill_session().await;
                    }
                    self.until = Some(Instant::now() + LAST_OUTPUT);
                }
                Wake::Tell => output.tell(),
                Wake::Look => {
                    self.look = Some(Instant::now() + LOOK_INTERVAL);
                    if self.note_revealed() && self.phase != Phase::Killing {
                        self.kill().await;
                    }
                }
                Wake::Interrupted => self.stop(Stop::Interrupted).await,
                Wake::PhaseOver => match self.phase {
                    Phase::Running => self.stop(Stop::TimedOut).await,
                    Phase::Terminating => self.kill().await,
                    Phase::Killing => break,
                },
            }
        }
        if self.open.process {
            self.give_up().await;
        }
        self.take_rest(&mut buffer, output).await;
        self.note_revealed();
        let duration = self.began.elapsed();
        Ok((Outcome { survivors: self.survivors, ..self.news.outcome(duration)? }, None))
    }

    fn learn(&mut self, line: &str) {
        self.news.take(line);
        if self.news.started.is_some()
            && let Some(stdin) = self.stdin.take()
        {
            stdin.let_go();
        }
    }

    /// Records paths that are no longer hidden from the command, once; returns whether there are any.
    fn note_revealed(&mut self) -> bool {
        let Some(hidden) = &self.hidden else { return false };
        let revealed = hidden.revealed();
        if revealed.is_empty() {
            return false;
        }
        (self.hidden, self.look) = (None, None);
        for path in revealed {
            self.news.note_uncovered(path);
        }
        true
    }

    /// Kills the Unix session of a supervisor that was killed; processes that have left it are missed.
    async fn kill_session(&mut self) {
        let Some(pid) = self.pid else { return };
        self.survivors = kill_all(move || descendants::of_session(pid)).await;
    }

    /// Kills the descendants of a supervisor that does not respond, then the supervisor. It goes last,
    /// because it adopts orphans as long as it exists, even when it is stopped.
    async fn give_up(&mut self) {
        let Some(pid) = self.supervisor.pid() else { return };
        self.survivors = kill_all(move || descendants::of(pid)).await;
        self.supervisor.process.start_kill().ok();
        timeout(LAST_OUTPUT, self.supervisor.process.wait()).await.ok();
    }

    /// Empties the output pipe after the last writer has ended; false if it never becomes empty. Reads
    /// directly, because the runtime may not have noticed the last data yet.
    async fn drain(&mut self, buffer: &mut [u8], output: &mut Output<'_>) -> bool {
        for _ in 0..READS_OWED {
            match rustix::io::read(&self.supervisor.output, &mut *buffer) {
                Ok(0) => return false,
                Ok(count) => output.push(&buffer[..count]).await,
                Err(Errno::INTR) => {}
                Err(errno) => return errno == Errno::AGAIN,
            }
        }
        false
    }

    /// Reads status lines and output that have already arrived, so that a slow disk loses nothing.
    async fn take_rest(&mut self, buffer: &mut [u8], output: &mut Output<'_>) {
        let Supervisor { output: pipe, status, .. } = &mut self.supervisor;
        while self.open.status
            && let Ok(Ok(Some(line))) = timeout(Duration::ZERO, status.next_line()).await
        {
            self.news.take(&line);
        }
        // A process that passed the pipe out may write for ever, so at most a full pipe is read.
        for _ in 0..READS_OWED {
            match timeout(Duration::ZERO, pipe.read(buffer)).await {
                Ok(Ok(count)) if count > 0 && self.open.output => {
                    output.push(&buffer[..count]).await;
                }
                _ => break,
            }
        }
    }

    async fn next(&mut self, buffer: &mut [u8], due: Option<Instant>) -> Wake {
        let Supervisor { process, output, status, .. } = &mut self.supervisor;
        tokio::select! {
            read = output.read(buffer), if self.open.output => Wake::Output(read),
            line = status.next_line(), if self.open.status => Wake::Status(line.ok().flatten()),
            status = process.wait(), if self.open.process => Wake::Ended(status),
            () = at(self.until) => Wake::PhaseOver,
            () = self.cancel.cancelled(), if self.phase == Phase::Running => Wake::Interrupted,
            () = at(self.look) => Wake::Look,
            () = at(due) => Wake::Tell,
        }
    }

    async fn stop(&mut self, why: Stop) {
        self.news.stopped = Some(why);
        self.phase = Phase::Terminating;
        self.until = Some(Instant::now() + self.grace);
        // If sending fails, the supervisor has ended or is about to be killed.
        self.supervisor.lifeline.say(TERMINATE).await.ok();
    }

    async fn kill(&mut self) {
        self.phase = Phase::Killing;
        self.until = Some(Instant::now() + GIVE_UP);
        self.supervisor.lifeline.say(KILL).await.ok();
    }
}

/// Sleeps until then; `None` never returns.
async fn at(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

/// Kills until no process is found; returns the survivors.
async fn kill_all(find: impl Fn() -> Vec<Process> + Send + 'static) -> Vec<Leftover> {
    let work = move || {
        let end = std::time::Instant::now() + LAST_KILLING;
        // In the `/proc` of another pid namespace the ids mean other processes.
        while descendants::are_known() {
            let found = find();
            if found.is_empty() || std::time::Instant::now() > end {
                return found;
            }
            descendants::signal(&found, Signal::KILL);
            std::thread::sleep(Duration::from_millis(2));
        }
        Vec::new()
    };
    let found = blocking::work(work).await.unwrap_or_default();
    found.into_iter().map(|Process { pid, name }| Leftover { pid, name }).collect()
}

impl News {
    /// Whether the command has started, and so has its descriptors.
    pub fn has_started(&self) -> bool {
        self.started.is_some()
    }

    /// Whether the command has ended or failed to start.
    pub fn is_decided(&self) -> bool {
        self.end.is_some() || self.failure.is_some() || self.is_free
    }

    /// How the command ended, or why it failed.
    pub fn ending(&mut self) -> Result<End, CommandError> {
        match (self.failure.take(), self.end) {
            (Some(failure), _) => Err(failure),
            (None, Some(end)) => Ok(end),
            (None, None) => Err(CommandError::Lost),
        }
    }

    /// Parses a status line of a supervisor.
    pub fn take(&mut self, line: &str) {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match word {
            "starting" => self.started = Some(rest.to_owned()),
            "exit" => self.end = rest.parse().ok().map(End::Code),
            "signal" => self.end = rest.parse().ok().map(End::Signal),
            "leftover" => {
                let (pid, name) = rest.split_once(' ').unwrap_or((rest, ""));
                let pid = pid.parse().unwrap_or_default();
                self.leftovers.push(Leftover { pid, name: name.to_owned() });
            }
            "unsupported" => {
                self.failure = Some(CommandError::Unsupported { reason: rest.to_owned() });
            }
            UNCONFINED => {
                self.failure = Some(CommandError::Unconfined { reason: rest.to_owned() });
            }
            STALE => self.failure = Some(CommandError::Stale),
            BLIND => self.failure = Some(CommandError::Blind),
            FREE => self.is_free = true,
            RETURNING => {}
            UNCOVERED => self.note_uncovered(rest.into()),
            "failed" => self.failure = Some(CommandError::Refused { reason: rest.to_owned() }),
            _ => {
                // Such as the panic message of a supervisor.
                tracing::warn!(line, "unexpected status line of a supervisor");
            }
        }
    }

    /// Records a path that the sandbox no longer covers.
    fn note_uncovered(&mut self, path: PathBuf) {
        if !self.uncovered.contains(&path) {
            self.uncovered.push(path);
        }
        // A command that has already ended was not stopped by this.
        if self.end.is_none() {
            self.stopped.get_or_insert(Stop::Uncovered);
        }
    }

    fn outcome(self, duration: Duration) -> Result<Outcome, CommandError> {
        if let Some(failure) = self.failure {
            return Err(failure);
        }
        if self.started.is_none() && self.stopped.is_none() {
            return Err(CommandError::Lost);
        }
        let started = self.started.unwrap_or_default();
        let mut words = started.split(' ');
        let mut word = || words.next().unwrap_or_default();
        let (containment, level, sockets, caches) = (word(), word(), word(), word());
        Ok(Outcome {
            end: self.end.unwrap_or(End::Unknown),
            stopped: self.stopped,
            leftovers: self.leftovers,
            survivors: Vec::new(),
            uncovered: self.uncovered,
            duration,
            containment: containment.to_owned(),
            events: LimitEvents::default(),
            level: Level::from_name(level).unwrap_or(Level::Off),
            sockets: LocalSockets::from_name(sockets).unwrap_or(LocalSockets::Harmless),
            caches: CacheAccess::from_name(caches).unwrap_or_default(),
        })
    }
}
