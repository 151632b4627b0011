//! Commands: the only door through which Pixir starts host processes.
//!
//! A command never is a child of Pixir: a supervisor (see `supervisor`) stands between, and dies
//! with everything beneath it as soon as Pixir lets go of its standard input.

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use serde::Serialize;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, ChildStderr, ChildStdout, Command};
use tokio_util::sync::CancellationToken;

use super::aftermath::{Pending, Witness};
use super::environment;
use super::lifeline::{Lifeline, Stdin};
use super::order::{Order, encode_frame};
use super::output::Output;
use super::running::{Running, Supervisor};
use super::slot::{ProcessSlots, Slots};
use super::supervisor::{BEST, SUBREAPER, SUPERVISE};
use crate::bounds::Bounds;
use crate::config::Config;
use crate::error::{Explain, Kind};
use crate::sandbox::{
    CacheAccess, CommandGroup, DelegatedGroup, Level, LimitEvents, LocalSockets, OomKillCounter,
    Sandbox, Spec,
};

/// Starts commands; cheap to clone.
#[derive(Clone)]
pub struct Commands(Arc<Shared>);

/// What commands need to know about this machine, handed in at the door.
#[derive(Debug, Clone)]
pub struct Host {
    /// Pixir's own program; `/proc/self/exe` works even after an update has replaced the file.
    pub own_binary: PathBuf,
    /// The whole environment; commands see only what is allowed.
    pub environment: Vec<(OsString, OsString)>,
    pub containment: Containment,
}

/// How processes are kept together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Containment {
    /// A pid namespace where the kernel allows it, else the subreaper.
    Best,
    /// The subreaper alone.
    Subreaper,
}

struct Shared {
    own_binary: PathBuf,
    environment: Vec<(OsString, OsString)>,
    /// Found when the first command needs it.
    shell: OnceLock<PathBuf>,
    wanted_shell: Option<PathBuf>,
    drain: Duration,
    grace: Duration,
    subreaper_only: AtomicBool,
    /// Supervisors that are already up, new or used, so that the next command need not wait; each
    /// serves one Spec. The last one was used last.
    spares: Mutex<Vec<(Option<Spec>, Supervisor)>>,
    /// A supervisor that was started before its Spec was ready.
    early: Mutex<Option<UnassignedSupervisor>>,
    sandbox: Sandbox,
    /// Where control groups for commands are made, if they can be; found with the first command.
    groups: OnceLock<Option<DelegatedGroup>>,
    /// Counts what the kernel killed in Pixir's own control group.
    kills: OnceLock<OomKillCounter>,
    slots: ProcessSlots,
    max_commands: usize,
    /// What is still to be looked at after commands.
    pending: Pending,
    /// Cancelled when the run ends.
    closing: CancellationToken,
}

impl Shared {
    fn shell(&self) -> &Path {
        let find = || environment::shell(&self.environment, self.wanted_shell.as_deref());
        self.shell.get_or_init(find)
    }
}

/// A supervisor process that waits to be told what to build.
struct UnassignedSupervisor {
    containment: &'static str,
    process: Child,
    lifeline: UnixStream,
    output: ChildStdout,
    status: ChildStderr,
}

/// How long a supervisor may take to read what it is to build.
const SETUP_TIMEOUT: Duration = Duration::from_secs(5);

/// How often a command is attempted while folders that are mounted for it change.
const MOST_ATTEMPTS: usize = 5;

/// How many supervisors wait for another command.
const MOST_SPARES: usize = 3;

/// One command to run.
pub struct Job<'a> {
    pub command: &'a str,
    pub directory: &'a Path,
    /// Directories beside it that belong to the work.
    pub further: &'a [PathBuf],
    /// `None` when it may run as long as it likes.
    pub timeout: Option<Duration>,
    pub cancel: &'a CancellationToken,
    /// What it reads; `None` when there is nothing to read.
    pub stdin: Option<&'a Stdin>,
    /// Where in the directory it may write.
    pub bounds: &'a Bounds,
    /// What holds it; `None` when the user wants nothing to.
    pub spec: Option<&'a Spec>,
    /// Learns of the process with which everything of it ends.
    pub witness: Option<&'a Witness>,
}

/// How a command went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    pub end: End,
    pub stopped: Option<Stop>,
    pub leftovers: Vec<Leftover>,
    /// Processes that could not be killed.
    pub survivors: Vec<Leftover>,
    /// What the sandbox had covered and somebody outside replaced while the command ran.
    pub uncovered: Vec<PathBuf>,
    pub duration: Duration,
    /// `namespace` or `subreaper`.
    pub containment: String,
    /// Which limits the kernel enforced while it ran.
    pub events: LimitEvents,
    /// How well it was confined.
    pub level: Level,
    /// Whether Unix sockets had to be declared.
    pub sockets: LocalSockets,
    /// How it used the package caches.
    pub caches: CacheAccess,
}

impl Outcome {
    /// Whether the command ended by itself with exit code 0.
    pub fn is_success(&self) -> bool {
        self.end == End::Code(0) && self.stopped.is_none()
    }
}

/// How the command itself ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    Code(i32),
    Signal(i32),
    /// It was killed before it could be seen to end.
    Unknown,
}

/// Why Pixir stopped it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    TimedOut,
    Interrupted,
    /// Something that the sandbox had covered was replaced.
    Uncovered,
}

/// A process that the command left behind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Leftover {
    pub pid: i32,
    pub name: String,
}

impl Commands {
    /// Prepares to start commands; starts nothing yet.
    pub fn new(host: Host, config: &Config) -> Self {
        Self::sharing(host, config, ProcessSlots::default())
    }

    /// The same, with the slots that others of this process share.
    pub fn sharing(host: Host, config: &Config, slots: ProcessSlots) -> Self {
        let Host { own_binary, environment, containment } = host;
        let environment = environment::for_commands(&environment, &config.bash.env);
        let sandbox = Sandbox::new(config, &environment);
        Self(Arc::new(Shared {
            own_binary,
            shell: OnceLock::new(),
            wanted_shell: config.bash.shell.clone(),
            environment,
            drain: config.bash.drain,
            grace: config.grace.process,
            subreaper_only: AtomicBool::new(containment == Containment::Subreaper),
            spares: Mutex::new(Vec::new()),
            early: Mutex::new(None),
            sandbox,
            groups: OnceLock::new(),
            kills: OnceLock::new(),
            slots,
            max_commands: config.bash.max_commands,
            pending: Pending::default(),
            closing: CancellationToken::new(),
        }))
    }

    /// What may be said about confinement on this machine.
    pub fn sandbox(&self) -> &Sandbox {
        &self.0.sandbox
    }

    /// How many commands may run at once.
    pub fn slots(&self) -> &Slots {
        self.0.slots.get(self.0.max_commands)
    }

    /// What is still to be looked at after commands.
    pub fn pending(&self) -> &Pending {
        &self.0.pending
    }

    /// Ends the commands in the background, and waits until everything was looked at and nothing runs in the
    /// supervisors. They give back the package caches meanwhile; the next supervisor waits for those.
    pub async fn close(&self) {
        self.0.closing.cancel();
        self.0.pending.none().await;
        self.early().take();
        let spares: Vec<_> = self.spares().drain(..).collect();
        for (_, supervisor) in spares {
            supervisor.release().await;
        }
    }

    /// Waits for the end of the run.
    pub async fn closing(&self) {
        self.0.closing.cancelled().await;
    }

    /// Whether namespaces are out of the question, as far as is known by now.
    pub fn is_without_namespaces(&self) -> bool {
        self.0.subreaper_only.load(Ordering::Relaxed)
    }

    /// Runs a command to its end, its deadline or its interruption, and leaves nothing running.
    /// Dropping the future kills everything at once.
    pub async fn run(
        &self,
        job: &Job<'_>,
        output: &mut Output<'_>,
    ) -> Result<Outcome, CommandError> {
        let order = Order {
            directory: job.directory.into(),
            shell: self.0.shell().to_owned().into(),
            command: job.command.into(),
            drain: self.0.drain,
            environment: self.0.environment.clone(),
        };
        let frame = order.encode().map_err(|_| CommandError::Unsayable)?;
        let mut outcome = self.attempt(&frame, job, output).await;
        for _ in 1..MOST_ATTEMPTS {
            // What it was confined by has changed under it; nothing has run yet.
            let Err(CommandError::Stale) = outcome else { break };
            self.spares().retain(|(own, _)| own.as_ref() != job.spec);
            outcome = self.attempt(&frame, job, output).await;
        }
        if let Err(CommandError::Unsupported { .. }) = outcome {
            self.0.subreaper_only.store(true, Ordering::Relaxed);
            self.spares().clear();
            self.early().take();
            return outcome;
        }
        outcome
    }

    async fn attempt(
        &self,
        frame: &[u8],
        job: &Job<'_>,
        output: &mut Output<'_>,
    ) -> Result<Outcome, CommandError> {
        let mut supervisor = if let Some(spare) = self.take_spare(job.spec) {
            spare
        } else {
            Box::pin(self.end_other_spares(job.spec)).await;
            self.start(job.spec)?
        };
        if supervisor.lifeline.send(frame, job.stdin).await.is_err() {
            supervisor = self.start(job.spec)?;
            // One that refuses at once says why on its way out.
            supervisor.lifeline.send(frame, job.stdin).await.ok();
        }
        if let Some(witness) = job.witness {
            witness.watches(supervisor.descriptor());
        }
        let group = supervisor.group.clone();
        let before = self.limit_events(group.as_deref());
        let hidden = job.spec.map(|spec| self.0.sandbox.hidden_watch(job.directory, spec));
        let running = Running::new(supervisor, job, self.0.grace, hidden);
        let (mut outcome, free) = Box::pin(running.watch(output)).await?;
        outcome.events = self.limit_events(group.as_deref()).since(before);
        if let Some(supervisor) = free {
            self.keep(job.spec, supervisor);
        }
        Ok(outcome)
    }

    /// How often limits were met so far: those of a command's own control group, else of Pixir's.
    fn limit_events(&self, group: Option<&CommandGroup>) -> LimitEvents {
        let of_pixir = || {
            let kills = self.0.kills.get_or_init(OomKillCounter::of_own_group);
            LimitEvents { oom_kills: kills.read(), refused_processes: 0 }
        };
        group.map_or_else(of_pixir, CommandGroup::events)
    }

    /// A control group for a supervisor with this Spec, where one can be made.
    fn new_group(&self, spec: Option<&Spec>) -> Option<Arc<CommandGroup>> {
        let limits = &spec?.limits;
        let groups = self.0.groups.get_or_init(DelegatedGroup::of_this_process).as_ref()?;
        let made = groups.create(limits);
        made.inspect_err(|error| tracing::debug!(%error, "no control group")).ok().map(Arc::new)
    }

    fn spares(&self) -> MutexGuard<'_, Vec<(Option<Spec>, Supervisor)>> {
        self.0.spares.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_spare(&self, spec: Option<&Spec>) -> Option<Supervisor> {
        let mut spares = self.spares();
        let place = spares.iter().rposition(|(own, _)| own.as_ref() == spec)?;
        let (_, mut spare) = spares.remove(place);
        matches!(spare.process.try_wait(), Ok(None)).then_some(spare)
    }

    /// Ends the spares of the same Session that serve other Specs, so that the next supervisor finds in the
    /// package caches what their commands wrote. The one that was used last gives its slot back last.
    async fn end_other_spares(&self, spec: Option<&Spec>) {
        let Some(spec) = spec.filter(|spec| !spec.caches.places.is_empty()) else { return };
        let is_other = |own: &Option<Spec>| {
            own.as_ref().is_some_and(|own| {
                own.scratch == spec.scratch && own != spec && !own.caches.places.is_empty()
            })
        };
        let others: Vec<_> = self.spares().extract_if(.., |(own, _)| is_other(own)).collect();
        for (_, supervisor) in others {
            supervisor.end().await;
        }
    }

    fn keep(&self, spec: Option<&Spec>, supervisor: Supervisor) {
        let mut spares = self.spares();
        spares.push((spec.cloned(), supervisor));
        if spares.len() > MOST_SPARES {
            spares.remove(0);
        }
    }

    /// The environment that every command gets.
    pub(super) fn environment(&self) -> &[(OsString, OsString)] {
        &self.0.environment
    }

    fn early(&self) -> MutexGuard<'_, Option<UnassignedSupervisor>> {
        self.0.early.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a supervisor process where none waits, while its Spec is still being worked out.
    pub fn start_early(&self) {
        let mut early = self.early();
        if early.is_none() && self.spares().is_empty() {
            // A failure will be met again, and reported, by the command.
            *early = self.spawn_supervisor().ok();
        }
    }

    /// Starts a supervisor for this Spec.
    pub(super) fn start(&self, spec: Option<&Spec>) -> Result<Supervisor, CommandError> {
        let early = self.early().take();
        let fits = |early: &UnassignedSupervisor| early.containment == self.containment();
        let supervisor = match early.filter(fits) {
            Some(early) => early,
            None => self.spawn_supervisor()?,
        };
        let UnassignedSupervisor { process, mut lifeline, output, status, .. } = supervisor;
        let group = self.new_group(spec);
        let folder = group.as_ref().map_or_else(OsString::new, |group| group.folder().into());
        let spec = spec.map(Spec::arguments).unwrap_or_default();
        let setup = encode_frame([folder].into_iter().chain(spec)).map_err(CommandError::Start)?;
        // A supervisor that ends at once says why on its status line.
        lifeline.write_all(&setup).ok();
        let lifeline = Lifeline::new(lifeline).map_err(CommandError::Start)?;
        let status = BufReader::new(status).lines();
        Ok(Supervisor { process, lifeline, output, status, group })
    }

    /// How the next supervisor keeps processes together, as its argument.
    fn containment(&self) -> &'static str {
        if self.is_without_namespaces() { SUBREAPER } else { BEST }
    }

    #[expect(clippy::disallowed_methods, reason = "this is the one door to host processes")]
    fn spawn_supervisor(&self) -> Result<UnassignedSupervisor, CommandError> {
        let containment = self.containment();
        let (lifeline, far_end) = UnixStream::pair().map_err(CommandError::Start)?;
        lifeline.set_write_timeout(Some(SETUP_TIMEOUT)).map_err(CommandError::Start)?;
        let far_end = Stdio::from(OwnedFd::from(far_end));
        let mut command = Command::new(&self.0.own_binary);
        command.args([SUPERVISE, containment]);
        // The supervisor gets no environment: commands could read it there.
        command.env_clear().stdin(far_end).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = command.spawn().map_err(|source| CommandError::NoSupervisor {
            program: self.0.own_binary.clone(),
            source,
        })?;
        let (Some(output), Some(status)) = (process.stdout.take(), process.stderr.take()) else {
            return Err(CommandError::Start(io::ErrorKind::BrokenPipe.into()));
        };
        Ok(UnassignedSupervisor { containment, process, lifeline, output, status })
    }
}

impl std::fmt::Debug for Commands {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Commands").field("shell", &self.0.shell()).finish_non_exhaustive()
    }
}

/// What a program that embeds Pixir does so that commands can be supervised.
const EMBEDDED: &str = "a program that embeds Pixir sets `Door::own_binary` to a binary that calls \
    `pixir::supervise` when its first argument is `pixir::SUPERVISE`: its own, or `pixir`";

/// Why a command did not run.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    #[error("the command contains a NUL byte or is far too long")]
    Unsayable,
    #[error("cannot start the supervisor of commands")]
    Start(#[source] io::Error),
    #[error("cannot start the supervisor of commands, \"{}\"", program.display())]
    NoSupervisor { program: PathBuf, source: io::Error },
    #[error("there is no place for the temporary files of commands")]
    NoScratch(#[source] io::Error),
    #[error("namespaces cannot be used: {reason}")]
    Unsupported { reason: String },
    #[error("this command cannot be sandboxed here: {reason}")]
    Unconfined { reason: String },
    #[error("the world of the command changed before it began")]
    Stale,
    #[error("the shell could not be started: {reason}")]
    Refused { reason: String },
    #[error("/proc is needed to supervise commands here, and it is missing or another's")]
    Blind,
    #[error("the supervisor of the command ended without a word")]
    Lost,
    #[error("there is no program `{0}`")]
    Missing(String),
}

impl Explain for CommandError {
    fn kind(&self) -> Kind {
        match self {
            Self::Unsayable => Kind::InvalidArgs,
            Self::Missing(_) => Kind::NotFound,
            Self::Unconfined { .. } => Kind::SandboxUnavailable,
            Self::Start(_)
            | Self::NoSupervisor { .. }
            | Self::NoScratch(_)
            | Self::Unsupported { .. }
            | Self::Refused { .. }
            | Self::Blind
            | Self::Stale
            | Self::Lost => Kind::CommandFailed,
        }
    }
    fn next_actions(&self) -> Vec<String> {
        match self {
            Self::Refused { reason } if reason.contains("Argument list too long") => {
                vec![
                    "a command over 128 KB must go to a file first; write it and run the file"
                        .into(),
                ]
            }
            Self::NoSupervisor { .. } => vec![
                "start Pixir again if it was moved or replaced while it ran".into(),
                EMBEDDED.into(),
            ],
            Self::Lost => vec![EMBEDDED.into()],
            Self::Blind => vec!["go on without commands, or ask the user to mount /proc".into()],
            Self::Missing(_) => vec!["install it, or name it by its absolute path".into()],
            Self::Unconfined { .. } => vec![
                "ask the user: `pixir doctor` says what is missing, and `--sandbox off` runs \
                 commands without a sandbox"
                    .into(),
            ],
            Self::Unsayable
            | Self::Start(_)
            | Self::NoScratch(_)
            | Self::Unsupported { .. }
            | Self::Refused { .. }
            | Self::Stale => Vec::new(),
        }
    }
}
