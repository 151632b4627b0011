//! Sandboxed commands of one Session: its scratch folder, the `SandboxSpec` of each call, and the
//! integrity check afterwards.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::command::{CommandError, CommandRequest, CommandRunner, ProcessOutcome};
use super::output::OutputCollector;
use super::slot::CommandSlots;
use crate::host::process::post_run::{
    ExitWatch, PostRunFindings, PostRunSetup, SharedGuard, SharedNestedRepos,
};
use crate::host::sandbox::{
    CacheAccess, CommandLimits, EnforcementLevel, HiddenPaths, LocalSockets, NestedRepositories,
    Profile, SandboxRequest, ScratchFolder,
};
use crate::settings::config::SocketRule;

/// Runs the commands of one Session in the sandbox; cheap to clone.
#[derive(Debug, Clone)]
pub struct SandboxedCommands {
    commands: CommandRunner,
    shared: Arc<SandboxedShared>,
}

#[derive(Debug, Default)]
struct SandboxedShared {
    /// The scratch folder, created by the first command and removed with the Session.
    scratch: Mutex<Option<Arc<ScratchFolder>>>,
    /// Protects files from commands that run without namespaces.
    guard: SharedGuard,
    /// The repositories below the Workspace, as they are before a command.
    nested_repos: SharedNestedRepos,
    /// Whether the folders for private layers over package caches have been created.
    has_caches: AtomicBool,
    /// The topics of the notices that the user has seen.
    notices_shown: Mutex<HashSet<&'static str>>,
}

/// Notice: the Workspace is too large to be searched for repositories.
const TOO_LARGE_NOTICE: &str = "this Workspace has too many folders to look for repositories that commands \
    make in it: git may run programs that a command configured; start Pixir in a smaller folder";

/// Notice: the sandbox has no namespaces.
const PARTIAL_NOTICE: &str = "the sandbox is partial here: without namespaces, commands are confined by \
    Landlock and seccomp alone (see `pixir doctor`)";

/// Notice: namespaces work, but the sockets of other programs cannot be hidden.
const SOCKETS_NOTICE: &str = "commands cannot use Unix sockets here unless they declare it, because \
    those of other programs cannot be hidden from them (more than 512 entries next to a mount, or a \
    file system that cannot be covered)";

/// Notice: package caches are replaced by private folders.
const PRIVATE_CACHES_NOTICE: &str = "commands cannot see your package caches through a private layer here, \
    and use private folders instead: the first build downloads again";

/// Notice: package caches are read-only.
const READ_ONLY_CACHES_NOTICE: &str = "package caches are read-only for commands here, because there is no \
    place for private layers in Pixir's home: builds that download will fail";

/// The sandbox profile of a call, and the rights that it declared.
#[derive(Debug, Clone, Copy)]
pub struct SandboxNeeds {
    pub profile: Profile,
    pub network: bool,
    /// Whether the call declared Unix sockets, where that is required.
    pub local_sockets: bool,
}

/// The result of a sandboxed command and of the check after it.
#[derive(Debug)]
pub struct CompletedCommand {
    pub outcome: ProcessOutcome,
    /// The findings of the integrity check.
    pub findings: PostRunFindings,
    /// The paths that were hidden from a failed command.
    pub hidden: HiddenPaths,
    /// `None` if the sandbox is turned off.
    pub limits: Option<CommandLimits>,
}

impl SandboxedCommands {
    /// The sandboxed commands of a Session, started by `commands`.
    pub fn new(commands: CommandRunner) -> Self {
        let home = commands.sandbox().user_home().map(Into::into);
        let nested = Arc::new(Mutex::new(NestedRepositories::new(home)));
        Self {
            commands,
            shared: Arc::new(SandboxedShared {
                nested_repos: nested,
                ..SandboxedShared::default()
            }),
        }
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
    pub fn slots(&self) -> &CommandSlots {
        self.commands.slots()
    }

    /// Waits until the runner closes; background commands then end.
    pub async fn wait_closing(&self) {
        self.commands.wait_closing().await;
    }

    /// Notices about this command's sandbox that the user has not seen in this Session.
    pub fn take_notices(&self, outcome: &ProcessOutcome) -> Vec<&'static str> {
        let is_large = {
            let nested = self.shared.nested_repos.lock();
            nested.is_too_large()
        };
        let must_declare = outcome.sockets == LocalSockets::OnDeclaration
            && outcome.level == EnforcementLevel::Full;
        let caches = match outcome.caches {
            CacheAccess::Layered => None,
            CacheAccess::Private => Some(PRIVATE_CACHES_NOTICE),
            CacheAccess::ReadOnly => Some(READ_ONLY_CACHES_NOTICE),
        };
        let notices = [
            ("sandbox", (outcome.level == EnforcementLevel::Partial).then_some(PARTIAL_NOTICE)),
            ("size", is_large.then_some(TOO_LARGE_NOTICE)),
            ("sockets", must_declare.then_some(SOCKETS_NOTICE)),
            ("caches", caches),
        ];
        let mut shown = self.shared.notices_shown.lock();
        let mut once = |(about, notice): (_, Option<_>)| notice.filter(|_| shown.insert(about));
        notices.into_iter().filter_map(&mut once).collect()
    }

    /// Runs a command in the sandbox, and restores protected files that it changed.
    pub async fn run(
        &self,
        mut request: CommandRequest<'_>,
        needs: SandboxNeeds,
        output: &mut OutputCollector<'_>,
    ) -> Result<CompletedCommand, CommandError> {
        self.commands.prestart_supervisor();
        let scratch =
            if needs.profile == Profile::Off { None } else { Some(self.scratch_folder()?) };
        if needs.profile == Profile::Workspace
            && !self.shared.has_caches.swap(true, Ordering::Relaxed)
        {
            self.commands.sandbox().prepare_caches();
        }
        let spec = scratch.as_ref().and_then(|scratch| {
            self.commands.sandbox().spec(&SandboxRequest {
                profile: needs.profile,
                network: needs.network,
                local_sockets: needs.local_sockets,
                workspace: request.directory,
                // Write bounds are paths in the Workspace, not in its extra roots.
                extra_roots: if request.bounds.is_empty() { request.extra_roots } else { &[] },
                scratch: scratch.path(),
            })
        });
        let spec = spec.map(|spec| spec.bounded(request.directory, request.bounds));
        request.spec = spec.as_ref();
        match self.run_checked(&request, scratch.as_deref(), output).await {
            // Namespaces are now known to be unavailable, so the second attempt uses the guard.
            Err(CommandError::Unsupported { .. }) => {
                self.run_checked(&request, scratch.as_deref(), output).await
            }
            other => other,
        }
    }

    async fn run_checked(
        &self,
        request: &CommandRequest<'_>,
        scratch: Option<&ScratchFolder>,
        output: &mut OutputCollector<'_>,
    ) -> Result<CompletedCommand, CommandError> {
        let needs_guard = self.commands.is_without_namespaces();
        let (Some(spec), Some(scratch)) = (request.spec, scratch) else {
            let outcome = self.commands.run(request, output).await?;
            let (findings, hidden) = (PostRunFindings::default(), HiddenPaths::default());
            return Ok(CompletedCommand { outcome, findings, hidden, limits: None });
        };
        let exit_watch = Arc::new(ExitWatch::default());
        let before = PostRunSetup {
            spec: spec.clone(),
            workspace: request.directory.to_owned(),
            roots: writable_roots(request),
            nested: Arc::clone(&self.shared.nested_repos),
            exit_watch: Arc::clone(&exit_watch),
            pending_checks: self.commands.pending_checks().clone(),
        };
        let check = if needs_guard {
            before.prepare_with_guard(&self.shared.guard, scratch.path()).await?
        } else {
            before.prepare().await?
        };
        let ran = self
            .commands
            .run(&CommandRequest { exit_watch: Some(&exit_watch), ..*request }, output)
            .await;
        let uncovered = ran.as_ref().is_ok_and(|outcome| !outcome.uncovered.is_empty());
        let findings = check.check_and_restore(uncovered).await;
        let outcome = ran?;
        // Hidden paths are only used to explain a failure.
        let hidden = if outcome.is_success() {
            HiddenPaths::default()
        } else {
            self.commands.sandbox().hidden_paths(spec)
        };
        Ok(CompletedCommand { outcome, findings, hidden, limits: Some(spec.limits) })
    }

    fn scratch_folder(&self) -> Result<Arc<ScratchFolder>, CommandError> {
        let mut scratch = self.shared.scratch.lock();
        if let Some(scratch) = &*scratch {
            return Ok(Arc::clone(scratch));
        }
        let made = Arc::new(
            ScratchFolder::new(self.commands.sandbox().temp_folder())
                .map_err(CommandError::NoScratch)?,
        );
        *scratch = Some(Arc::clone(&made));
        // The thread is not joined: if it does not finish or cannot be started, the next process prunes.
        let sandbox = self.commands.sandbox().clone();
        std::thread::Builder::new().spawn(move || sandbox.prune_caches()).ok();
        Ok(made)
    }
}

/// The folders in which a command may create repositories that the user's git finds.
fn writable_roots(request: &CommandRequest<'_>) -> Vec<PathBuf> {
    let further = if request.bounds.is_empty() { request.extra_roots } else { &[] };
    [request.directory].into_iter().map(Into::into).chain(further.iter().cloned()).collect()
}
