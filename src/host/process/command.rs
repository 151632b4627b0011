//! [`CommandRunner`]: the only code that starts host processes.
//!
//! A command is never a direct child of Pixir: a supervisor process (see `supervisor`) runs between
//! them. The supervisor ends, with all its descendants, as soon as Pixir closes its standard input.

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use serde::Serialize;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, ChildStderr, ChildStdout, Command};
use tokio_util::sync::CancellationToken;

use super::environment;
use super::lifeline::{CommandPipes, Lifeline};
use super::output::OutputCollector;
use super::running::{SupervisedCommand, SupervisorProcess};
use super::slot::{CommandSlots, ProcessSlots};
use super::supervisor::{BEST, SUBREAPER, SUPERVISE};
use crate::base::error::{Explain, Explanation, Kind};
use crate::host::process::post_run::{ExitWatch, PendingChecks};
use crate::host::process::protocol::{SupervisorRequest, encode_frame};
use crate::host::sandbox::{
    CacheAccess, CommandGroup, DelegatedGroup, EnforcementLevel, LimitEvents, LocalSockets,
    OomKillCounter, Sandbox, SandboxSpec,
};
use crate::settings::bounds::WriteBounds;
use crate::settings::config::Config;

/// Starts commands through supervisors; cheap to clone.
#[derive(Clone)]
pub struct CommandRunner(Arc<RunnerShared>);

/// The process environment that commands need, read once at startup.
#[derive(Debug, Clone)]
pub struct HostEnvironment {
    /// Pixir's own program; `/proc/self/exe` works even after an update has replaced the file.
    pub own_binary: PathBuf,
    /// The whole environment; commands only get an allow-list of it.
    pub environment: Vec<(OsString, OsString)>,
    pub containment: Containment,
}

/// The mechanism that tracks the processes of a command, so that all of them can be killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Containment {
    /// A pid namespace where the kernel allows it, else the subreaper.
    Best,
    /// Always the subreaper.
    Subreaper,
}

struct RunnerShared {
    own_binary: PathBuf,
    environment: Vec<(OsString, OsString)>,
    /// The shell, looked up by the first command.
    shell: OnceLock<PathBuf>,
    configured_shell: Option<PathBuf>,
    drain: Duration,
    grace: Duration,
    subreaper_only: AtomicBool,
    /// Idle supervisors, new or used, so that the next command need not wait; each serves one
    /// `SandboxSpec`. The most recently used is last.
    spares: Mutex<Vec<(Option<SandboxSpec>, SupervisorProcess)>>,
    /// A supervisor that was started before its `SandboxSpec` was known.
    prestarted: Mutex<Option<UnassignedSupervisor>>,
    sandbox: Sandbox,
    /// The parent of control groups for commands, if they can be created; found by the first command.
    groups: OnceLock<Option<DelegatedGroup>>,
    /// Counts the out-of-memory kills in Pixir's own control group.
    oom_kills: OnceLock<OomKillCounter>,
    slots: ProcessSlots,
    max_commands: usize,
    /// Integrity checks that have not finished.
    pending_checks: PendingChecks,
    /// Cancelled when the run ends.
    closing: CancellationToken,
}

impl RunnerShared {
    fn shell(&self) -> &Path {
        let find = || environment::find_shell(&self.environment, self.configured_shell.as_deref());
        self.shell.get_or_init(find)
    }
}

/// A supervisor process that has not received its `SandboxSpec`.
struct UnassignedSupervisor {
    containment: &'static str,
    process: Child,
    lifeline: UnixStream,
    output: ChildStdout,
    status: ChildStderr,
}

/// Time limit for a supervisor to read its setup frame.
const SETUP_TIMEOUT: Duration = Duration::from_secs(5);

/// The maximum number of attempts of a command while the folders mounted for it change.
const MAX_ATTEMPTS: usize = 5;

/// The maximum number of idle supervisors.
const MAX_SPARES: usize = 3;

/// A request to run one command.
pub struct CommandRequest<'a> {
    pub command: &'a str,
    pub directory: &'a Path,
    /// The extra roots of the Workspace.
    pub extra_roots: &'a [PathBuf],
    /// `None` for no deadline.
    pub timeout: Option<Duration>,
    pub cancel: &'a CancellationToken,
    /// The pipes of the command; `None` for an empty standard input.
    pub stdin: Option<&'a CommandPipes>,
    /// The write bounds within the directory.
    pub bounds: &'a WriteBounds,
    /// The sandbox; `None` if it is turned off.
    pub spec: Option<&'a SandboxSpec>,
    /// Receives the supervisor process, whose end is the end of the command.
    pub exit_watch: Option<&'a ExitWatch>,
}

/// The result of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessOutcome {
    pub exit: CommandExit,
    pub stopped: Option<StopCause>,
    pub leftovers: Vec<LeftoverProcess>,
    /// Processes that could not be killed.
    pub survivors: Vec<LeftoverProcess>,
    /// Paths that the sandbox had covered and that were replaced from outside while the command ran.
    pub uncovered: Vec<PathBuf>,
    pub duration: Duration,
    /// `namespace` or `subreaper`.
    pub containment: String,
    /// The limits that the kernel enforced while the command ran.
    pub limit_events: LimitEvents,
    /// The sandbox level that was reached.
    pub level: EnforcementLevel,
    /// Whether a call had to declare that it needs Unix sockets.
    pub sockets: LocalSockets,
    /// The access to package caches.
    pub caches: CacheAccess,
}

impl ProcessOutcome {
    /// Whether the command ended on its own with exit code 0.
    pub fn is_success(&self) -> bool {
        self.exit == CommandExit::Code(0) && self.stopped.is_none()
    }
}

/// The exit status of the command's shell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommandExit {
    Code(i32),
    Signal(i32),
    /// Killed before its exit status was reported.
    Unknown,
}

/// The reason why Pixir stopped a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopCause {
    TimedOut,
    Interrupted,
    /// A path that the sandbox had covered was replaced.
    Uncovered,
}

/// A process that was still running when the command had ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LeftoverProcess {
    pub pid: i32,
    pub name: String,
}

impl CommandRunner {
    /// A runner with its own command slots; starts nothing yet.
    pub fn new(host: HostEnvironment, config: &Config) -> Self {
        Self::with_slots(host, config, ProcessSlots::default())
    }

    /// A runner that shares the command slots of this process.
    pub fn with_slots(host: HostEnvironment, config: &Config, slots: ProcessSlots) -> Self {
        let HostEnvironment { own_binary, environment, containment } = host;
        let environment = environment::command_environment(&environment, &config.bash.env);
        let sandbox = Sandbox::new(config, &environment);
        Self(Arc::new(RunnerShared {
            own_binary,
            shell: OnceLock::new(),
            configured_shell: config.bash.shell.clone(),
            environment,
            drain: config.bash.drain,
            grace: config.grace.process,
            subreaper_only: AtomicBool::new(containment == Containment::Subreaper),
            spares: Mutex::new(Vec::new()),
            prestarted: Mutex::new(None),
            sandbox,
            groups: OnceLock::new(),
            oom_kills: OnceLock::new(),
            slots,
            max_commands: config.bash.max_commands,
            pending_checks: PendingChecks::default(),
            closing: CancellationToken::new(),
        }))
    }

    /// The sandbox of this machine.
    pub fn sandbox(&self) -> &Sandbox {
        &self.0.sandbox
    }

    /// The slots that limit how many commands run at once.
    pub fn slots(&self) -> &CommandSlots {
        self.0.slots.get(self.0.max_commands)
    }

    /// The integrity checks that have not finished.
    pub fn pending_checks(&self) -> &PendingChecks {
        &self.0.pending_checks
    }

    /// Ends background commands, and waits for all integrity checks and until no command runs in a supervisor.
    /// Supervisors release the package caches meanwhile; the next supervisor waits for those.
    pub async fn close(&self) {
        self.0.closing.cancel();
        self.0.pending_checks.wait_all().await;
        self.0.prestarted.lock().take();
        let spares: Vec<_> = self.0.spares.lock().drain(..).collect();
        for (_, supervisor) in spares {
            supervisor.release().await;
        }
    }

    /// Waits until [`Self::close`] is called.
    pub async fn wait_closing(&self) {
        self.0.closing.cancelled().await;
    }

    /// Whether namespaces are known to be unavailable, or must not be used.
    pub fn is_without_namespaces(&self) -> bool {
        self.0.subreaper_only.load(Ordering::Relaxed)
    }

    /// Runs a command to its end, its deadline or its interruption, and leaves nothing running.
    /// Dropping the future kills all its processes at once.
    pub async fn run(
        &self,
        request: &CommandRequest<'_>,
        output: &mut OutputCollector<'_>,
    ) -> Result<ProcessOutcome, CommandError> {
        let supervisor_request = SupervisorRequest {
            directory: request.directory.into(),
            shell: self.0.shell().to_owned().into(),
            command: request.command.into(),
            drain: self.0.drain,
            environment: self.0.environment.clone(),
        };
        let frame = supervisor_request.encode().map_err(|_| CommandError::InvalidCommand)?;
        let mut outcome = self.run_once(&frame, request, output).await;
        for _ in 1..MAX_ATTEMPTS {
            // The folders mounted for the command have changed; nothing has run yet.
            let Err(CommandError::StaleMounts) = outcome else { break };
            self.0.spares.lock().retain(|(own, _)| own.as_ref() != request.spec);
            outcome = self.run_once(&frame, request, output).await;
        }
        if let Err(CommandError::Unsupported { .. }) = outcome {
            self.0.subreaper_only.store(true, Ordering::Relaxed);
            self.0.spares.lock().clear();
            self.0.prestarted.lock().take();
            return outcome;
        }
        outcome
    }

    async fn run_once(
        &self,
        frame: &[u8],
        request: &CommandRequest<'_>,
        output: &mut OutputCollector<'_>,
    ) -> Result<ProcessOutcome, CommandError> {
        let mut supervisor = if let Some(spare) = self.take_spare(request.spec) {
            spare
        } else {
            Box::pin(self.end_other_spares(request.spec)).await;
            self.start_supervisor(request.spec)?
        };
        if supervisor.lifeline.send_request(frame, request.stdin).await.is_err() {
            supervisor = self.start_supervisor(request.spec)?;
            // A supervisor that fails at once reports the reason on its status line.
            supervisor.lifeline.send_request(frame, request.stdin).await.ok();
        }
        if let Some(exit_watch) = request.exit_watch {
            exit_watch.set_process(supervisor.open_pidfd());
        }
        let group = supervisor.group.clone();
        let before = self.limit_events(group.as_deref());
        let hidden = request.spec.map(|spec| self.0.sandbox.hidden_watch(request.directory, spec));
        let running = SupervisedCommand::new(supervisor, request, self.0.grace, hidden);
        let (mut outcome, free) = Box::pin(running.watch(output)).await?;
        outcome.limit_events = self.limit_events(group.as_deref()).since(before);
        if let Some(supervisor) = free {
            self.store_spare(request.spec, supervisor);
        }
        Ok(outcome)
    }

    /// The limit events so far: of the command's control group, or of Pixir's if it has none.
    fn limit_events(&self, group: Option<&CommandGroup>) -> LimitEvents {
        let of_pixir = || {
            let kills = self.0.oom_kills.get_or_init(OomKillCounter::for_own_group);
            LimitEvents { oom_kills: kills.read(), refused_processes: 0 }
        };
        group.map_or_else(of_pixir, CommandGroup::events)
    }

    /// Creates a control group for a supervisor with this `SandboxSpec`, where that is possible.
    fn create_group(&self, spec: Option<&SandboxSpec>) -> Option<Arc<CommandGroup>> {
        let limits = &spec?.limits;
        let groups = self.0.groups.get_or_init(DelegatedGroup::for_this_process).as_ref()?;
        let made = groups.create(limits);
        made.inspect_err(|error| tracing::debug!(%error, "no control group")).ok().map(Arc::new)
    }

    fn take_spare(&self, spec: Option<&SandboxSpec>) -> Option<SupervisorProcess> {
        let mut spares = self.0.spares.lock();
        let place = spares.iter().rposition(|(own, _)| own.as_ref() == spec)?;
        let (_, mut spare) = spares.remove(place);
        matches!(spare.process.try_wait(), Ok(None)).then_some(spare)
    }

    /// Ends idle supervisors of the same Session with other `SandboxSpec`s, so that the next supervisor finds
    /// in the package caches what their commands wrote. The most recently used one ends last.
    async fn end_other_spares(&self, spec: Option<&SandboxSpec>) {
        let Some(spec) = spec.filter(|spec| !spec.caches.places.is_empty()) else { return };
        let is_other = |own: &Option<SandboxSpec>| {
            own.as_ref().is_some_and(|own| {
                own.scratch == spec.scratch && own != spec && !own.caches.places.is_empty()
            })
        };
        let others: Vec<_> =
            self.0.spares.lock().extract_if(.., |(own, _)| is_other(own)).collect();
        for (_, supervisor) in others {
            supervisor.close_and_wait().await;
        }
    }

    fn store_spare(&self, spec: Option<&SandboxSpec>, supervisor: SupervisorProcess) {
        let mut spares = self.0.spares.lock();
        spares.push((spec.cloned(), supervisor));
        if spares.len() > MAX_SPARES {
            spares.remove(0);
        }
    }

    /// The environment of every command.
    pub(super) fn environment(&self) -> &[(OsString, OsString)] {
        &self.0.environment
    }

    /// Starts a supervisor process if none is idle, while its `SandboxSpec` is still being computed.
    pub fn prestart_supervisor(&self) {
        let mut early = self.0.prestarted.lock();
        if early.is_none() && self.0.spares.lock().is_empty() {
            // The command will fail in the same way, and report it.
            *early = self.spawn_supervisor().ok();
        }
    }

    /// Starts a supervisor with this `SandboxSpec`, or sends the spec to the one that was started early.
    pub(super) fn start_supervisor(
        &self,
        spec: Option<&SandboxSpec>,
    ) -> Result<SupervisorProcess, CommandError> {
        let early = self.0.prestarted.lock().take();
        let fits = |early: &UnassignedSupervisor| early.containment == self.containment();
        let supervisor = match early.filter(fits) {
            Some(early) => early,
            None => self.spawn_supervisor()?,
        };
        let UnassignedSupervisor { process, mut lifeline, output, status, .. } = supervisor;
        let group = self.create_group(spec);
        let folder = group.as_ref().map_or_else(OsString::new, |group| group.folder().into());
        let spec = spec.map(SandboxSpec::arguments).unwrap_or_default();
        let setup = encode_frame([folder].into_iter().chain(spec))
            .map_err(CommandError::StartSupervisor)?;
        // A supervisor that ends at once reports the reason on its status line.
        lifeline.write_all(&setup).ok();
        let lifeline = Lifeline::new(lifeline).map_err(CommandError::StartSupervisor)?;
        let status = BufReader::new(status).lines();
        Ok(SupervisorProcess { process, lifeline, output, status, group })
    }

    /// The containment of the next supervisor, as its argument.
    fn containment(&self) -> &'static str {
        if self.is_without_namespaces() { SUBREAPER } else { BEST }
    }

    #[expect(clippy::disallowed_methods, reason = "the only place that starts host processes")]
    fn spawn_supervisor(&self) -> Result<UnassignedSupervisor, CommandError> {
        let containment = self.containment();
        let (lifeline, far_end) = UnixStream::pair().map_err(CommandError::StartSupervisor)?;
        lifeline.set_write_timeout(Some(SETUP_TIMEOUT)).map_err(CommandError::StartSupervisor)?;
        let far_end = Stdio::from(OwnedFd::from(far_end));
        let mut command = Command::new(&self.0.own_binary);
        command.args([SUPERVISE, containment]);
        // The supervisor gets no environment: commands could read it there.
        command.env_clear().stdin(far_end).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = command.spawn().map_err(|source| CommandError::MissingSupervisor {
            program: self.0.own_binary.clone(),
            source,
        })?;
        let (Some(output), Some(status)) = (process.stdout.take(), process.stderr.take()) else {
            return Err(CommandError::StartSupervisor(io::ErrorKind::BrokenPipe.into()));
        };
        Ok(UnassignedSupervisor { containment, process, lifeline, output, status })
    }
}

impl std::fmt::Debug for CommandRunner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CommandRunner").field("shell", &self.0.shell()).finish_non_exhaustive()
    }
}

/// The next action for a program that embeds Pixir without a supervisor binary.
const EMBEDDER_ACTION: &str = "a program that embeds Pixir sets `HarnessOptions::own_binary` to a binary that calls \
    `pixir::supervise` when its first argument is `pixir::SUPERVISE`: its own, or `pixir`";

/// The reason why a command did not run.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    #[error("the command contains a NUL byte or is far too long")]
    InvalidCommand,
    #[error("cannot start the command supervisor")]
    StartSupervisor(#[source] io::Error),
    #[error("cannot start the command supervisor, \"{}\"", program.display())]
    MissingSupervisor { program: PathBuf, source: io::Error },
    #[error("cannot create a folder for the temporary files of commands")]
    NoScratch(#[source] io::Error),
    #[error("namespaces cannot be used: {reason}")]
    Unsupported { reason: String },
    #[error("this command cannot be sandboxed here: {reason}")]
    Unconfined { reason: String },
    #[error("the folders mounted for the command changed before it started")]
    StaleMounts,
    #[error("the shell could not be started: {reason}")]
    ShellFailed { reason: String },
    #[error("supervising commands needs /proc, which is missing or shows another pid namespace")]
    UnusableProc,
    #[error("the command supervisor ended unexpectedly")]
    SupervisorLost,
    #[error("there is no program `{0}`")]
    ProgramNotFound(String),
}

impl Explain for CommandError {
    fn explain(&self) -> Explanation {
        match self {
            Self::InvalidCommand => Kind::InvalidArgs.into(),
            Self::ProgramNotFound(_) => {
                Kind::NotFound.with_next_action("install it, or name it by its absolute path")
            }
            Self::Unconfined { .. } => Kind::SandboxUnavailable.with_next_action(
                "ask the user: `pixir doctor` shows what is missing, and `--sandbox off` runs \
                 commands without a sandbox",
            ),
            Self::ShellFailed { reason } if reason.contains("Argument list too long") => {
                Kind::CommandFailed.with_next_action(
                    "a command over 128 KB must go to a file first; write it and run the file",
                )
            }
            Self::MissingSupervisor { .. } => Kind::CommandFailed
                .with_next_action("start Pixir again if it was moved or replaced while it ran")
                .with_next_action(EMBEDDER_ACTION),
            Self::SupervisorLost => Kind::CommandFailed.with_next_action(EMBEDDER_ACTION),
            Self::UnusableProc => Kind::CommandFailed
                .with_next_action("go on without commands, or ask the user to mount /proc"),
            Self::StartSupervisor(_)
            | Self::NoScratch(_)
            | Self::Unsupported { .. }
            | Self::ShellFailed { .. }
            | Self::StaleMounts => Kind::CommandFailed.into(),
        }
    }
}
