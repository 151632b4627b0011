//! The supervisor process between Pixir and a command, which kills all processes of the command.
//!
//! `pixir __supervise`, the outer process, enters a new pid namespace and starts `pixir __supervise init`
//! as its first process; when that one ends, for any reason, the kernel kills everything inside. Where
//! namespaces are not allowed, both are subreapers: the inner process watches the command and kills
//! its descendants, and the outer one does so if the inner one has ended or is stopped.
//! Pixir holds the other end of standard input (`lifeline`): when that end closes, also because Pixir was
//! killed, all processes are killed.
//! Standard output carries the command's output and standard error the status lines.
//!
//! A namespace runs one command after the other as long as each leaves it unchanged: no processes,
//! no new mounts. Creating a new namespace takes longer than most commands.
//!
//! No tokio here: the outer process must stay single-threaded, and both must start fast.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use nix::sched::CloneFlags;
use nix::sys::signal::SigSet;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{Mode, OFlags};
use rustix::process::{DumpableBehavior, Pid, PidfdFlags, Signal, pidfd_open};

use super::covered_paths::CoveredPaths;
use super::lifeline::ReceivedDescriptors;
use super::mount_refresh::{RefreshClient, RefreshServer};
use super::namespace::NamespaceError;
use super::oom_score::OomScore;
use super::process_watch::{
    ChildState, KillScope, ProcessWatch, RunEnd, report_leftovers, write_status_line,
};
use super::{descendants, lifeline, namespace};
use crate::host::process::protocol::SupervisorRequest;
use crate::host::sandbox;
use crate::host::sandbox::{
    CacheAccess, Enforcement, EnforcementLevel, Isolation, LocalSockets, PrivateCaches, SandboxSpec,
};

/// The hidden first argument that makes `pixir` a supervisor.
pub const SUPERVISE: &str = "__supervise";
/// The hidden second argument of the first process in a namespace.
const INIT: &str = "init";
/// The hidden second argument that requests namespaces where they are allowed.
pub const BEST: &str = "best";
/// The hidden second argument that disables namespaces.
pub const SUBREAPER: &str = "subreaper";
/// The hidden second argument of the inner process without a namespace.
const INNER: &str = "inner";

/// Control byte: send SIGTERM to all processes.
pub const TERMINATE: u8 = b'T';
/// Control byte: kill all processes.
pub const KILL: u8 = b'K';

/// Status line: nothing was run, because the mounts are out of date.
pub const STALE: &str = "stale";

/// First word of a status line: the sandbox stopped covering this path while the command ran.
pub const UNCOVERED: &str = "uncovered";

/// Status line: all processes have ended, and another request can be sent.
pub const FREE: &str = "free";

/// Status line: all processes have ended, and the package caches are being released.
pub const RETURNING: &str = "returning";

/// First word of a status line: this command cannot be confined as required.
pub const UNCONFINED: &str = "unconfined";

/// Status line: this `/proc` does not show the processes that must be watched.
pub const UNUSABLE_PROC: &str = "blind";

/// Time limit for the inner process to kill everything after the lifeline closed, before the outer one does it.
const INNER_TIMEOUT: Duration = Duration::from_millis(500);
/// The number of descriptors to close if `/proc` does not list them.
const GUESSED_DESCRIPTORS: i32 = 256;

/// Runs as a supervisor; `arguments` are those after [`SUPERVISE`], the first is the role. The
/// `SandboxSpec` is sent over the lifeline, because Pixir may still compute it when this process starts.
pub fn supervise(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    // Pixir blocks SIGXFSZ for itself, and the mask is inherited; commands expect the default.
    SigSet::from(nix::sys::signal::Signal::SIGXFSZ).thread_unblock().ok();
    run_role(arguments).unwrap_or_else(|line| {
        write_status_line(line);
        ExitCode::FAILURE
    })
}

/// Runs until the work of a role is done; an error is the status line that says why nothing was run.
fn run_role(mut arguments: impl Iterator<Item = OsString>) -> Result<ExitCode, String> {
    let role = arguments.next().unwrap_or_default();
    if role == INIT {
        let end = arguments.next().unwrap_or_default();
        let Some((refresh, spec)) =
            RefreshClient::from_inherited(&end).map_err(|error| format!("unsupported {error}"))?
        else {
            // The process outside has reported the reason.
            return Ok(ExitCode::FAILURE);
        };
        let spec = parse_spec(spec)?;
        return serve_requests(KillScope::Namespace, spec.as_ref(), Some(refresh));
    }
    if role == INNER {
        let spec = parse_spec(arguments.collect())?;
        return serve_requests(KillScope::Descendants, spec.as_ref(), None);
    }
    close_inherited();
    OomScore::for_supervisor();
    // In a session without a terminal, commands cannot prompt there, and Ctrl-C reaches Pixir alone.
    rustix::process::setsid().ok();
    match lifeline::receive_setup().map_err(|error| format!("failed {error}"))? {
        Some(mut setup) if !setup.is_empty() => {
            let group = setup.remove(0);
            let spec = parse_spec(setup.clone())?;
            supervise_outside(&role, &group, setup, spec)
        }
        _ => Ok(ExitCode::SUCCESS),
    }
}

fn parse_spec(fields: Vec<OsString>) -> Result<Option<SandboxSpec>, String> {
    SandboxSpec::from_arguments(fields.into_iter())
        .map_err(|error| format!("{UNCONFINED} the specification cannot be read: {error}"))
}

/// Builds the mounts for commands, and waits until the process inside has ended. `group` is the folder of a
/// control group, or empty.
fn supervise_outside(
    role: &OsStr,
    group: &OsStr,
    spec_fields: Vec<OsString>,
    mut spec: Option<SandboxSpec>,
) -> Result<ExitCode, String> {
    // If joining fails, the command runs without the limits of the group.
    if !group.is_empty() {
        sandbox::join_group(Path::new(group)).ok();
    }
    if role != SUBREAPER {
        match enter_namespaces(spec.as_ref()) {
            Ok(()) => return build_and_serve(spec_fields, spec.as_ref()),
            // Pixir retries without namespaces, so that it knows the containment beforehand.
            Err(NamespaceError::Refused) if spec.is_some() => {
                return Err("unsupported namespaces are not allowed".to_owned());
            }
            Err(NamespaceError::Refused) => {}
            Err(NamespaceError::HalfEntered(error)) => return Err(stuck(&error)),
        }
    }
    if !descendants::is_proc_usable() {
        return Err(UNUSABLE_PROC.to_owned());
    }
    let caches = spec.as_mut().and_then(|spec| PrivateCaches::prepare(&mut spec.caches));
    let spec_fields = spec.map(|spec| spec.arguments()).unwrap_or_default();
    let outcome = start_inner(&spec_fields);
    if let Some(caches) = caches {
        caches.release();
    }
    outcome
}

/// Whether an error means that a path of the `SandboxSpec` has been removed or replaced since.
fn is_about_names(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// Why no command can run in the namespaces that this process has entered.
fn stuck(error: &io::Error) -> String {
    // A command changed a folder meanwhile; that is no reason to give up namespaces.
    if is_about_names(error) { STALE.to_owned() } else { format!("unsupported {error}") }
}

fn enter_namespaces(spec: Option<&SandboxSpec>) -> Result<(), NamespaceError> {
    namespace::enter_pid_namespace(spec.map_or(CloneFlags::empty(), sandbox::namespace_flags))
}

/// Closes inherited descriptors: a command gets its three standard descriptors and no others.
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

/// Starts the first process of the namespace, builds the mounts while that process starts, and waits
/// until it has ended.
fn build_and_serve(
    mut spec_fields: Vec<OsString>,
    spec: Option<&SandboxSpec>,
) -> Result<ExitCode, String> {
    let (refresh_server, mut init) =
        start_init().map_err(|error| format!("unsupported {error}"))?;
    let views = spec.map(sandbox::build_mounts).transpose().map_err(|error| stuck(&error))?;
    if let Some(views) = &views {
        spec_fields.extend(SandboxSpec::view_arguments(views));
    }
    let outcome = refresh_server.serve(spec_fields, views.as_ref()).and_then(|()| init.wait());
    if let Some(views) = views {
        views.begin_release();
        write_status_line(RETURNING);
        views.release();
    }
    outcome.map_err(|error| format!("unsupported {error}"))?;
    Ok(ExitCode::SUCCESS)
}

/// Starts the first process of the namespace. It waits for the rest of the `SandboxSpec` in `/`, from
/// which it sees the later mounts.
#[expect(clippy::disallowed_methods, reason = "the supervisor is part of CommandRunner")]
fn start_init() -> io::Result<(RefreshServer, Child)> {
    let refresh_server = RefreshServer::new()?;
    let mut init = Command::new("/proc/self/exe");
    init.args([SUPERVISE, INIT]).arg(refresh_server.argument()).current_dir("/");
    let init = init.spawn()?;
    Ok((refresh_server, init))
}

/// Starts the inner process, which watches the command, and kills what is left once that process has ended
/// or the lifeline is closed: without a namespace a command can see, kill or stop the inner process.
#[expect(clippy::disallowed_methods, reason = "the supervisor is part of CommandRunner")]
fn start_inner(spec_fields: &[OsString]) -> Result<ExitCode, String> {
    let started = adopt_orphans()
        .and_then(|()| {
            Command::new("/proc/self/exe").args([SUPERVISE, INNER]).args(spec_fields).spawn()
        })
        .and_then(|inner| {
            let pid = Pid::from_child(&inner);
            Ok((pid, pidfd_open(pid, PidfdFlags::empty())?))
        });
    let (pid, inner) = started.map_err(|error| format!("failed {error}"))?;
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable).ok();
    // Polled for no events, so standard input wakes this process only when the lifeline closes.
    let mut polled = [
        PollFd::from_borrowed_fd(rustix::stdio::stdin(), PollFlags::empty()),
        PollFd::new(&inner, PollFlags::IN),
    ];
    while polled.iter().all(|polled| polled.revents().is_empty()) {
        rustix::event::poll(&mut polled, None).ok();
    }
    let patience = Timespec::try_from(INNER_TIMEOUT).ok();
    rustix::event::poll(&mut [PollFd::new(&inner, PollFlags::IN)], patience.as_ref()).ok();
    let mut watch = ProcessWatch::new(KillScope::Descendants, pid);
    if watch.reap_children() == ChildState::Alive {
        report_leftovers();
        watch.kill_all();
    }
    Ok(ExitCode::SUCCESS)
}

fn adopt_orphans() -> io::Result<()> {
    Ok(rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?)
}

/// Receives requests and runs them one by one; leaves no processes behind.
fn serve_requests(
    kill_scope: KillScope,
    spec: Option<&SandboxSpec>,
    mut refresh: Option<RefreshClient>,
) -> Result<ExitCode, String> {
    let confined = confine_process(kill_scope, spec)?;
    // The command must not read or write the memory of the process that watches it.
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable).ok();
    let covers = CoveredPaths::new(spec, confined.enforcement.level);
    // The first command runs without a check, with the mounts that were just built for it: a folder whose entries
    // change all the time would always be found stale.
    let mut is_first = true;
    loop {
        let received = lifeline::receive_request().map_err(|error| format!("failed {error}"))?;
        let Some((mut request, descriptors)) = received else { return Ok(ExitCode::SUCCESS) };
        // A covered file was replaced from outside, and its mount is gone.
        let is_new = std::mem::take(&mut is_first);
        let mut is_stale = covers.is_stale();
        if let Some(refresh) = refresh.as_mut().filter(|_| !is_stale && !is_new) {
            let answer = refresh.wait_answer().and_then(|()| refresh.is_stale());
            is_stale = answer.map_err(|error| format!("failed {error}"))?;
        }
        if is_stale {
            write_status_line(STALE);
            return Ok(ExitCode::SUCCESS);
        }
        if let Some(spec) = spec {
            request.set_variable(
                "TMPDIR",
                spec.temp_folder(kill_scope == KillScope::Namespace).into(),
            );
            for (name, folder) in spec.caches.private_variables() {
                request.set_variable(name, folder.into());
            }
        }
        let run_end = run_request(&request, descriptors, kill_scope, &confined, &covers)
            .map_err(|error| format!("failed {error}"))?;
        let is_reusable = kill_scope == KillScope::Namespace && !covers.mount_watch().has_changed();
        if run_end == RunEnd::Unclean || !is_reusable || sandbox::has_shared_memory_left() {
            return Ok(ExitCode::SUCCESS);
        }
        write_status_line(FREE);
        if let Some(refresh) = &mut refresh {
            refresh.mark_dirty();
            refresh.request_refresh().map_err(|error| format!("failed {error}"))?;
        }
    }
}

/// The state of the process that starts commands, after confinement.
struct ConfinedProcess {
    enforcement: Enforcement,
    score: OomScore,
}

/// Sets this process up as the first of a namespace or as a subreaper, and confines it.
fn confine_process(
    kill_scope: KillScope,
    spec: Option<&SandboxSpec>,
) -> Result<ConfinedProcess, String> {
    if kill_scope == KillScope::Namespace {
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).ok();
        namespace::mount_own_proc();
        if !rustix::process::geteuid().is_root() {
            namespace::drop_mounting().map_err(|error| format!("unsupported {error}"))?;
        }
    } else {
        adopt_orphans().map_err(|error| format!("failed cannot adopt orphans: {error}"))?;
    }
    let score = OomScore::for_supervisor();
    let Some(spec) = spec else {
        let (level, sockets) = (EnforcementLevel::Off, LocalSockets::Harmless);
        let enforcement = Enforcement { level, sockets, caches: CacheAccess::Layered };
        return Ok(ConfinedProcess { enforcement, score });
    };
    let place = if kill_scope == KillScope::Namespace {
        Isolation::OwnNamespaces
    } else {
        Isolation::HostNamespaces
    };
    let enforcement =
        sandbox::confine(spec, place).map_err(|reason| format!("{UNCONFINED} {reason}"))?;
    Ok(ConfinedProcess { enforcement, score })
}

fn run_request(
    request: &SupervisorRequest,
    descriptors: ReceivedDescriptors,
    kill_scope: KillScope,
    confined: &ConfinedProcess,
    covers: &CoveredPaths,
) -> io::Result<RunEnd> {
    // Reported before the start, because the command may kill this process at once.
    let kill_scope_name =
        if kill_scope == KillScope::Namespace { "namespace" } else { "subreaper" };
    let Enforcement { level, sockets, caches } = confined.enforcement;
    let (level, sockets, caches) = (level.name(), sockets.name(), caches.name());
    write_status_line(format_args!("starting {kill_scope_name} {level} {sockets} {caches}"));
    let command = confined.score.with_command_score(|| spawn_shell(request, descriptors))?;
    let mut watch = ProcessWatch::new(kill_scope, command);
    if kill_scope == KillScope::Descendants && !descendants::has_child(command) {
        // A process that does not see the command cannot see its children either.
        watch.kill_all();
        write_status_line(UNUSABLE_PROC);
        return Ok(RunEnd::Unclean);
    }
    let descriptor = pidfd_open(command, PidfdFlags::empty())?;
    Ok(watch.run(&descriptor, request.drain, covers))
}

/// Starts the shell. Standard output and standard error share one pipe, so their order is kept, unless
/// Pixir sent a descriptor for standard error. Standard input is the descriptor that Pixir sent, else
/// `/dev/null`. std resets SIGPIPE and the signal mask.
#[expect(clippy::disallowed_methods, reason = "the supervisor is part of CommandRunner")]
fn spawn_shell(request: &SupervisorRequest, descriptors: ReceivedDescriptors) -> io::Result<Pid> {
    let errors = descriptors.stderr.map_or_else(open_output, Ok)?;
    let child = Command::new(&request.shell)
        .arg("-c")
        .arg(&request.command)
        .current_dir(&request.directory)
        .env_clear()
        .envs(request.environment.iter().map(|(name, value)| (name, value)))
        .stdin(descriptors.stdin.map_or_else(Stdio::null, Stdio::from))
        .stdout(Stdio::from(open_output()?))
        .stderr(Stdio::from(errors))
        .process_group(0)
        .spawn()?;
    Ok(Pid::from_child(&child))
}

/// Opens the output pipe again. Status flags such as `O_NONBLOCK` belong to an open file description:
/// flags that one command sets must affect neither the next one nor its own standard error.
fn open_output() -> io::Result<OwnedFd> {
    let flags = OFlags::WRONLY | OFlags::CLOEXEC;
    if let Ok(output) = rustix::fs::open("/proc/self/fd/1", flags, Mode::empty()) {
        return Ok(output);
    }
    // Without `/proc` the description is shared, and its flags are reset.
    rustix::fs::fcntl_setfl(io::stdout(), OFlags::empty())?;
    io::stdout().as_fd().try_clone_to_owned()
}
