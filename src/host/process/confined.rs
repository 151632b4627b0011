//! Sandboxed commands of one Session: its scratch folder, the sandbox Spec of each call, and the
//! integrity check afterwards.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::command::{CommandError, Commands, Job, Outcome};
use super::output::Output;
use super::slot::Slots;
use crate::host::process::post_run::{Before, Mended, SharedGuard, SharedNested, Witness};
use crate::host::sandbox::{
    CacheAccess, CommandLimits, HiddenPaths, Level, LocalSockets, NestedRepositories, Profile,
    Scratch, Wish,
};
use crate::settings::config::SocketRule;

/// Runs the commands of one Session in the sandbox; cheap to clone.
#[derive(Debug, Clone)]
pub struct Confined {
    commands: Commands,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    /// Created by the first command, removed with the Session.
    scratch: Mutex<Option<Arc<Scratch>>>,
    /// Protects files from commands that run without namespaces.
    guard: SharedGuard,
    /// The repositories below the Workspace, as they are before a command.
    nested: SharedNested,
    /// Whether the folders for private layers over package caches have been created.
    has_caches: AtomicBool,
    /// The topics of the notices that the user has seen.
    told: Mutex<HashSet<&'static str>>,
}

/// Notice: the Workspace is too large to be searched for repositories.
const TOO_LARGE: &str = "this Workspace has too many folders to look for repositories that commands \
    make in it: git may run programs that a command configured; start Pixir in a smaller folder";

/// Notice: the sandbox has no namespaces.
const PARTIAL: &str = "the sandbox is partial here: without namespaces, commands are confined by \
    Landlock and seccomp alone (see `pixir doctor`)";

/// Notice: namespaces work, but the sockets of other programs cannot be hidden.
const WITHOUT_SOCKETS: &str = "commands cannot use Unix sockets here unless they declare it, because \
    those of other programs cannot be hidden from them (more than 512 entries beside a mount, or a \
    file system that cannot be covered)";

/// Notice: package caches are replaced by private folders.
const PRIVATE_CACHES: &str = "commands cannot see your package caches through a private layer here, \
    and use private folders instead: the first build downloads again";

/// Notice: package caches are read-only.
const READ_ONLY_CACHES: &str = "package caches are read-only for commands here, because there is no \
    place for private layers in Pixir's home: builds that download will fail";

/// The sandbox profile of a call, and the rights that it declared.
#[derive(Debug, Clone, Copy)]
pub struct Needs {
    pub profile: Profile,
    pub network: bool,
    /// Whether the call declared Unix sockets, where that is required.
    pub local_sockets: bool,
}

/// The result of a sandboxed command and of the check after it.
#[derive(Debug)]
pub struct Ran {
    pub outcome: Outcome,
    /// What the integrity check found.
    pub mended: Mended,
    /// The paths that were hidden from a failed command.
    pub hidden: HiddenPaths,
    /// `None` if the sandbox is turned off.
    pub limits: Option<CommandLimits>,
}

impl Confined {
    /// Sandboxed commands that `commands` starts.
    pub fn new(commands: Commands) -> Self {
        let home = commands.sandbox().user_home().map(Into::into);
        let nested = Arc::new(Mutex::new(NestedRepositories::new(home)));
        Self { commands, shared: Arc::new(Shared { nested, ..Shared::default() }) }
    }

    /// Whether calls may declare that they need the network.
    pub fn may_declare_network(&self) -> bool {
        self.commands.sandbox().may_declare_network()
    }

    /// Whether calls may declare that they need Unix sockets.
    pub fn may_declare_sockets(&self) -> bool {
        self.commands.sandbox().may_declare_sockets()
    }

    /// The rule by which calls that declare Unix sockets get them.
    pub fn socket_rule(&self) -> SocketRule {
        self.commands.sandbox().socket_rule()
    }

    /// The command slots, shared by all Sessions.
    pub fn slots(&self) -> &Slots {
        self.commands.slots()
    }

    /// Waits until the runner closes; background commands then end.
    pub async fn closing(&self) {
        self.commands.closing().await;
    }

    /// Notices about this command's sandbox that the user has not seen in this Session.
    pub fn notices(&self, outcome: &Outcome) -> Vec<&'static str> {
        let is_large = {
            let nested = self.shared.nested.lock().unwrap_or_else(PoisonError::into_inner);
            nested.is_too_large()
        };
        let must_declare =
            outcome.sockets == LocalSockets::OnDeclaration && outcome.level == Level::Full;
        let caches = match outcome.caches {
            CacheAccess::Layered => None,
            CacheAccess::Private => Some(PRIVATE_CACHES),
            CacheAccess::ReadOnly => Some(READ_ONLY_CACHES),
        };
        let notices = [
            ("sandbox", (outcome.level == Level::Partial).then_some(PARTIAL)),
            ("size", is_large.then_some(TOO_LARGE)),
            ("sockets", must_declare.then_some(WITHOUT_SOCKETS)),
            ("caches", caches),
        ];
        let mut told = self.shared.told.lock().unwrap_or_else(PoisonError::into_inner);
        let mut once = |(about, notice): (_, Option<_>)| notice.filter(|_| told.insert(about));
        notices.into_iter().filter_map(&mut once).collect()
    }

    /// Runs a command in the sandbox, and restores protected files that it changed.
    pub async fn run(
        &self,
        mut job: Job<'_>,
        needs: Needs,
        output: &mut Output<'_>,
    ) -> Result<Ran, CommandError> {
        self.commands.start_early();
        let scratch = if needs.profile == Profile::Off { None } else { Some(self.scratch()?) };
        if needs.profile == Profile::Workspace
            && !self.shared.has_caches.swap(true, Ordering::Relaxed)
        {
            self.commands.sandbox().prepare_caches();
        }
        let spec = scratch.as_ref().and_then(|scratch| {
            self.commands.sandbox().spec(&Wish {
                profile: needs.profile,
                network: needs.network,
                local_sockets: needs.local_sockets,
                workspace: job.directory,
                // Bounds name places in the Workspace, not in its extra roots.
                further: if job.bounds.is_empty() { job.further } else { &[] },
                scratch: scratch.folder(),
            })
        });
        let spec = spec.map(|spec| spec.bounded(job.directory, job.bounds));
        job.spec = spec.as_ref();
        match self.guarded(&job, scratch.as_deref(), output).await {
            // Namespaces are now known to be unavailable, so the second attempt uses the guard.
            Err(CommandError::Unsupported { .. }) => {
                self.guarded(&job, scratch.as_deref(), output).await
            }
            other => other,
        }
    }

    async fn guarded(
        &self,
        job: &Job<'_>,
        scratch: Option<&Scratch>,
        output: &mut Output<'_>,
    ) -> Result<Ran, CommandError> {
        let needs_guard = self.commands.is_without_namespaces();
        let (Some(spec), Some(scratch)) = (job.spec, scratch) else {
            let outcome = self.commands.run(job, output).await?;
            let (mended, hidden) = (Mended::default(), HiddenPaths::default());
            return Ok(Ran { outcome, mended, hidden, limits: None });
        };
        let witness = Arc::new(Witness::default());
        let before = Before {
            spec: spec.clone(),
            workspace: job.directory.to_owned(),
            roots: roots_of(job),
            nested: Arc::clone(&self.shared.nested),
            witness: Arc::clone(&witness),
            pending: self.commands.pending().clone(),
        };
        let aftermath = if needs_guard {
            before.guarded(&self.shared.guard, scratch.folder()).await?
        } else {
            before.unguarded().await?
        };
        let ran = self.commands.run(&Job { witness: Some(&witness), ..*job }, output).await;
        let uncovered = ran.as_ref().is_ok_and(|outcome| !outcome.uncovered.is_empty());
        let mended = aftermath.mend(uncovered).await;
        let outcome = ran?;
        // Hidden paths are only used to explain a failure.
        let hidden = if outcome.is_success() {
            HiddenPaths::default()
        } else {
            self.commands.sandbox().hidden_paths(spec)
        };
        Ok(Ran { outcome, mended, hidden, limits: Some(spec.limits) })
    }

    fn scratch(&self) -> Result<Arc<Scratch>, CommandError> {
        let mut scratch = self.shared.scratch.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(scratch) = &*scratch {
            return Ok(Arc::clone(scratch));
        }
        let made = Arc::new(
            Scratch::new(self.commands.sandbox().temp()).map_err(CommandError::NoScratch)?,
        );
        *scratch = Some(Arc::clone(&made));
        // Not awaited: if the process ends first, or no thread can be started, the next process prunes.
        let sandbox = self.commands.sandbox().clone();
        std::thread::Builder::new().spawn(move || sandbox.prune_caches()).ok();
        Ok(made)
    }
}

/// The folders in which a command may create repositories that the user's git finds.
fn roots_of(job: &Job<'_>) -> Vec<PathBuf> {
    let further = if job.bounds.is_empty() { job.further } else { &[] };
    [job.directory].into_iter().map(Into::into).chain(further.iter().cloned()).collect()
}
