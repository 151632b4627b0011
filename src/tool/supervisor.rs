//! The supervisor: the process between Pixir and a command, which sees to it that nothing stays.
//!
//! `pixir __supervise` enters a new pid namespace and starts `pixir __supervise init` as its first
//! process; when that one ends, for whatever reason, the kernel kills everything inside. Where
//! namespaces are not allowed, both are subreapers: the second one watches the command and sweeps
//! its descendants, and the first one does when the second is gone or stopped.
//! Pixir holds the other end of standard input (`lifeline`): when it closes, by will or by death, all
//! is killed.
//! Standard output carries the command's output and standard error the status lines.
//!
//! A namespace serves one command after the other as long as each leaves it as it was: nobody in
//! it, nothing mounted. Making a new one costs more than most commands.
//!
//! Nothing here knows tokio: the outer process must stay single-threaded, and both must start fast.

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

use super::covers::Covers;
use super::lifeline::Given;
use super::namespace::Entry;
use super::oom_score::OomScore;
use super::order::Order;
use super::refresh::{Answerer, Asker};
use super::watch::{Family, Peace, Reach, Watch, report, report_leftovers};
use super::{descendants, lifeline, namespace};
use crate::sandbox::{
    self, CacheAccess, Confined, Enforcement, Level, LocalSockets, PrivateCaches, Spec,
};

/// The hidden first argument that makes `pixir` a supervisor.
pub const SUPERVISE: &str = "__supervise";
/// The hidden second argument of the first process in a namespace.
const INIT: &str = "init";
/// The hidden second argument that asks for namespaces where they are allowed.
pub const BEST: &str = "best";
/// The hidden second argument that asks not to try namespaces.
pub const SUBREAPER: &str = "subreaper";
/// The hidden second argument of the inner process without a namespace.
const INNER: &str = "inner";

/// Asks everything to end.
pub const TERMINATE: u8 = b'T';
/// Ends everything.
pub const KILL: u8 = b'K';

/// The status line that says: nothing was run, because the world is no longer as it was built.
pub const STALE: &str = "stale";

/// The first word of the status line that says: this path lost its cover while the command ran.
pub const UNCOVERED: &str = "uncovered";

/// The status line that says: nobody is left, and another order is welcome.
pub const FREE: &str = "free";

/// The status line that says: no process is left inside, and the package caches are being given back.
pub const RETURNING: &str = "returning";

/// The first word of the status line that says: this command cannot be confined as it must be.
pub const UNCONFINED: &str = "unconfined";

/// The status line that says: this `/proc` does not show what would have to be watched.
pub const BLIND: &str = "blind";

/// How long the inner process may take to sweep once Pixir has let go, before the outer one does.
const INNER_PATIENCE: Duration = Duration::from_millis(500);
/// Descriptors up to this one are closed where `/proc` does not list them.
const GUESSED_DESCRIPTORS: i32 = 256;

/// Runs as a supervisor; `arguments` are those after [`SUPERVISE`]: the role. The rest comes through the
/// lifeline, because this process is started while Pixir still works it out.
pub fn supervise(mut arguments: impl Iterator<Item = OsString>) -> ExitCode {
    // Pixir blocks it for itself, and a mask is inherited; commands expect it as ever.
    SigSet::from(nix::sys::signal::Signal::SIGXFSZ).thread_unblock().ok();
    let role = arguments.next().unwrap_or_default();
    if role == INIT {
        return match Asker::inherited(&arguments.next().unwrap_or_default()) {
            Ok(Some((asker, spec))) => {
                with_spec(spec, |spec| serve(Reach::Namespace, spec.as_ref(), Some(asker)))
            }
            // The process outside has said why.
            Ok(None) => ExitCode::FAILURE,
            Err(error) => {
                report(format_args!("unsupported {error}"));
                ExitCode::FAILURE
            }
        };
    }
    if role == INNER {
        let spec = arguments.collect();
        return with_spec(spec, |spec| serve(Reach::Descendants, spec.as_ref(), None));
    }
    close_inherited();
    OomScore::of_supervisor();
    // Without a terminal a command cannot ask on it, and Ctrl-C reaches Pixir alone.
    rustix::process::setsid().ok();
    match lifeline::receive_setup() {
        Ok(Some(mut setup)) if !setup.is_empty() => {
            let group = setup.remove(0);
            with_spec(setup.clone(), |spec| supervise_outside(&role, &group, setup, spec))
        }
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => {
            report(format_args!("failed {error}"));
            ExitCode::FAILURE
        }
    }
}

/// Reads the Spec, and goes on with it.
fn with_spec(fields: Vec<OsString>, go_on: impl FnOnce(Option<Spec>) -> ExitCode) -> ExitCode {
    match Spec::read(fields.into_iter()) {
        Ok(spec) => go_on(spec),
        Err(error) => {
            report(format_args!("{UNCONFINED} the specification cannot be read: {error}"));
            ExitCode::FAILURE
        }
    }
}

/// Builds what commands are to see, and stays until the process inside has ended. `group` is the folder of a
/// control group, or empty.
fn supervise_outside(
    role: &OsStr,
    group: &OsStr,
    told: Vec<OsString>,
    mut spec: Option<Spec>,
) -> ExitCode {
    // A command runs without its limits where this fails.
    if !group.is_empty() {
        sandbox::join_group(Path::new(group)).ok();
    }
    if role != SUBREAPER {
        match enter_namespaces(spec.as_ref()) {
            Ok(()) => return build_and_serve(told, spec.as_ref()),
            // Pixir asks again for less, so that it knows beforehand what it gets.
            Err(Entry::Refused) if spec.is_some() => {
                report("unsupported namespaces are not allowed");
                return ExitCode::FAILURE;
            }
            Err(Entry::Refused) => {}
            Err(Entry::Stuck(error)) => return report_stuck(&error),
        }
    }
    if !descendants::are_known() {
        report(BLIND);
        return ExitCode::FAILURE;
    }
    let caches = spec.as_mut().and_then(|spec| PrivateCaches::prepare(&mut spec.caches));
    let told = spec.map(|spec| spec.arguments()).unwrap_or_default();
    let outcome = start_inner(&told);
    if let Some(caches) = caches {
        caches.release();
    }
    outcome
}

/// Whether an error says that a name does not lead where it did when the Spec was made.
fn is_about_names(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// Says why nothing can run in the namespaces that this process has entered.
fn report_stuck(error: &io::Error) -> ExitCode {
    // A command changed a folder on the way meanwhile; that must not cost the namespaces.
    if is_about_names(error) {
        report(STALE);
    } else {
        report(format_args!("unsupported {error}"));
    }
    ExitCode::FAILURE
}

fn enter_namespaces(spec: Option<&Spec>) -> Result<(), Entry> {
    namespace::enter(spec.map_or(CloneFlags::empty(), sandbox::name_spaces))
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

/// Starts the first process of the namespace, mounts what commands are to see while that process comes up, and
/// stays until it has ended.
fn build_and_serve(mut told: Vec<OsString>, spec: Option<&Spec>) -> ExitCode {
    let (answerer, mut init) = match start_init() {
        Ok(started) => started,
        Err(error) => {
            report(format_args!("unsupported {error}"));
            return ExitCode::FAILURE;
        }
    };
    let views = match spec.map(sandbox::build).transpose() {
        Ok(views) => views,
        Err(error) => return report_stuck(&error),
    };
    if let Some(views) = &views {
        told.extend(Spec::with_views(views));
    }
    let outcome = answerer.serve(told, views.as_ref()).and_then(|()| init.wait());
    if let Some(views) = views {
        views.begin_release();
        report(RETURNING);
        views.release();
    }
    match outcome {
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => {
            report(format_args!("unsupported {error}"));
            ExitCode::FAILURE
        }
    }
}

/// Starts the first process of the namespace. It waits for the rest of the Spec before it does anything, in a
/// folder from which the file system is seen as it will be.
#[expect(clippy::disallowed_methods, reason = "the supervisor is the far half of tool::command")]
fn start_init() -> io::Result<(Answerer, Child)> {
    let answerer = Answerer::new()?;
    let mut init = Command::new("/proc/self/exe");
    init.args([SUPERVISE, INIT]).arg(answerer.argument()).current_dir("/");
    let init = init.spawn()?;
    Ok((answerer, init))
}

/// Starts the process that watches the command, and takes its place when it is gone: a command can
/// see it here, and kill or stop it.
#[expect(clippy::disallowed_methods, reason = "the supervisor is the far half of tool::command")]
fn start_inner(told: &[OsString]) -> ExitCode {
    let started = adopt_orphans()
        .and_then(|()| Command::new("/proc/self/exe").args([SUPERVISE, INNER]).args(told).spawn())
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

/// Waits for orders, runs them one by one, and leaves nothing behind.
fn serve(reach: Reach, spec: Option<&Spec>, mut asker: Option<Asker>) -> ExitCode {
    let settled = match settle(reach, spec) {
        Ok(settled) => settled,
        Err(refusal) => {
            report(refusal);
            return ExitCode::FAILURE;
        }
    };
    // The command must not look into, or write to, the process that watches it.
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable).ok();
    let covers = Covers::new(spec, settled.enforcement.level);
    // A supervisor is started for a command, so its first command sees what was mounted for it. A folder in which others
    // add and remove entries all the time would never be found as it was a moment ago.
    let mut is_first = true;
    loop {
        let (mut order, given) = match lifeline::receive() {
            Ok(Some(received)) => received,
            Ok(None) => return ExitCode::SUCCESS,
            Err(error) => {
                report(format_args!("failed {error}"));
                return ExitCode::FAILURE;
            }
        };
        // Something outside replaced what a mount covers, and the mount is gone.
        if covers.are_stale() {
            report(STALE);
            return ExitCode::SUCCESS;
        }
        let is_stale = |asker: &mut Asker| asker.wait().and_then(|()| asker.is_stale());
        let is_new = std::mem::take(&mut is_first);
        match asker.as_mut().filter(|_| !is_new).map(is_stale) {
            None | Some(Ok(false)) => {}
            Some(Ok(true)) => {
                report(STALE);
                return ExitCode::SUCCESS;
            }
            Some(Err(error)) => {
                report(format_args!("failed {error}"));
                return ExitCode::FAILURE;
            }
        }
        if let Some(spec) = spec {
            order.set("TMPDIR", spec.temp(reach == Reach::Namespace).into());
            for (name, folder) in spec.caches.environment() {
                order.set(name, folder.into());
            }
        }
        let peace = match carry_out(&order, given, reach, &settled, &covers) {
            Ok(peace) => peace,
            Err(error) => {
                report(format_args!("failed {error}"));
                return ExitCode::FAILURE;
            }
        };
        let is_reusable = reach == Reach::Namespace && !covers.mounts().has_changed();
        if peace == Peace::Broken || !is_reusable || sandbox::holds_shared_memory() {
            return ExitCode::SUCCESS;
        }
        report(FREE);
        if let Some(asker) = &mut asker {
            asker.owe();
            if let Err(error) = asker.settle() {
                report(format_args!("failed {error}"));
                return ExitCode::FAILURE;
            }
        }
    }
}

/// The process that starts commands, once it is confined.
struct Settled {
    enforcement: Enforcement,
    score: OomScore,
}

/// Takes its place: whoever is first in a namespace, or gathers orphans, and is confined.
fn settle(reach: Reach, spec: Option<&Spec>) -> Result<Settled, String> {
    if reach == Reach::Namespace {
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).ok();
        namespace::show_own_processes();
        if !rustix::process::geteuid().is_root() {
            namespace::give_up_mounting().map_err(|error| format!("unsupported {error}"))?;
        }
    } else {
        adopt_orphans().map_err(|error| format!("failed cannot adopt orphans: {error}"))?;
    }
    let score = OomScore::of_supervisor();
    let Some(spec) = spec else {
        let (level, sockets) = (Level::Off, LocalSockets::Harmless);
        let enforcement = Enforcement { level, sockets, caches: CacheAccess::Layered };
        return Ok(Settled { enforcement, score });
    };
    let place = if reach == Reach::Namespace { Confined::InOwnWorld } else { Confined::OnMachine };
    let enforcement =
        sandbox::confine(spec, place).map_err(|reason| format!("{UNCONFINED} {reason}"))?;
    Ok(Settled { enforcement, score })
}

fn carry_out(
    order: &Order,
    given: Given,
    reach: Reach,
    settled: &Settled,
    covers: &Covers,
) -> io::Result<Peace> {
    // Said beforehand: the first thing a command does may be to kill this process.
    let reach_name = if reach == Reach::Namespace { "namespace" } else { "subreaper" };
    let Enforcement { level, sockets, caches } = settled.enforcement;
    let (level, sockets, caches) = (level.name(), sockets.name(), caches.name());
    report(format_args!("starting {reach_name} {level} {sockets} {caches}"));
    let command = settled.score.start_command(|| start(order, given))?;
    let mut watch = Watch::new(reach, command);
    if reach == Reach::Descendants && !descendants::has_child(command) {
        // Who does not see the command cannot see what it starts.
        watch.sweep();
        report(BLIND);
        return Ok(Peace::Broken);
    }
    let descriptor = pidfd_open(command, PidfdFlags::empty())?;
    Ok(watch.run(&descriptor, order.drain, covers))
}

/// Starts the shell. Both outputs share one pipe, so their order is kept, unless Pixir sent another
/// along for errors; std resets SIGPIPE and the signal mask for it. It reads what Pixir sent along,
/// else nothing.
#[expect(clippy::disallowed_methods, reason = "the supervisor is the far half of tool::command")]
fn start(order: &Order, given: Given) -> io::Result<Pid> {
    let errors = given.errors.map_or_else(open_output, Ok)?;
    let child = Command::new(&order.shell)
        .arg("-c")
        .arg(&order.command)
        .current_dir(&order.directory)
        .env_clear()
        .envs(order.environment.iter().map(|(name, value)| (name, value)))
        .stdin(given.stdin.map_or_else(Stdio::null, Stdio::from))
        .stdout(Stdio::from(open_output()?))
        .stderr(Stdio::from(errors))
        .process_group(0)
        .spawn()?;
    Ok(Pid::from_child(&child))
}

/// Opens the output pipe again. Status flags such as `O_NONBLOCK` belong to an open file description:
/// what one command sets must reach neither the next one nor its own standard error.
fn open_output() -> io::Result<OwnedFd> {
    let flags = OFlags::WRONLY | OFlags::CLOEXEC;
    if let Ok(output) = rustix::fs::open("/proc/self/fd/1", flags, Mode::empty()) {
        return Ok(output);
    }
    // Without a `/proc` of this process the description is shared, as it was at the start.
    rustix::fs::fcntl_setfl(io::stdout(), OFlags::empty())?;
    io::stdout().as_fd().try_clone_to_owned()
}
