//! Integrity check after a command: finds and restores protected files that it changed.
//!
//! Usually the call waits for the check and reports its findings. When a call is dropped while its command
//! runs, a thread waits for the supervisor to end and then checks. [`PendingChecks`] waits for all checks.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec};
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::command::CommandError;
use crate::base::blocking;
use crate::host::sandbox::{
    DotGitBefore, Guard, NestedRepositories, RepositoryFindings, SandboxSpec, none_appeared,
    remove_appeared,
};

/// Time limit of a thread that waits for the end of an abandoned supervisor.
const EXIT_TIMEOUT: Duration = Duration::from_secs(10);

/// Waits for the end of a supervisor process.
#[derive(Debug, Default)]
pub struct ExitWatch(Mutex<Option<OwnedFd>>);

impl ExitWatch {
    /// Sets the process to wait for, as a pidfd.
    pub fn set_process(&self, process: Option<OwnedFd>) {
        *self.0.lock() = process;
    }

    /// Blocks until the process has ended.
    fn wait_exit(&self) {
        let Some(process) = self.0.lock().take() else {
            return;
        };
        let mut polled = [PollFd::new(&process, PollFlags::IN)];
        rustix::event::poll(&mut polled, Timespec::try_from(EXIT_TIMEOUT).ok().as_ref()).ok();
    }
}

/// The checks that have not finished.
#[derive(Debug, Clone)]
pub struct PendingChecks(TaskTracker);

impl Default for PendingChecks {
    fn default() -> Self {
        let tracker = TaskTracker::new();
        // A closed tracker still hands out tokens, and only a closed one can be waited for.
        tracker.close();
        Self(tracker)
    }
}

impl PendingChecks {
    /// Waits until all checks have finished.
    pub async fn wait_all(&self) {
        self.0.wait().await;
    }
}

/// The guard of a Session, created by the first command that needs it.
pub type SharedGuard = Arc<Mutex<Option<Guard>>>;

/// The repositories below the roots of a Session.
pub type SharedNestedRepos = Arc<Mutex<NestedRepositories>>;

/// The maximum number of folders that are checked on the calling thread, which is cheaper than spawning.
const MAX_INLINE_FOLDERS: usize = 128;

/// The findings of the check after a command.
#[derive(Debug, Default)]
pub struct PostRunFindings {
    /// Protected files that the command had changed and that were restored.
    pub restored: Vec<PathBuf>,
    /// Git settings that would run programs, and files that programs outside the sandbox execute.
    pub nested: RepositoryFindings,
}

/// The input of a check, taken before the command starts.
pub struct PostRunSetup {
    pub spec: SandboxSpec,
    pub workspace: PathBuf,
    /// The Workspace and its extra roots.
    pub roots: Vec<PathBuf>,
    pub nested: SharedNestedRepos,
    pub exit_watch: Arc<ExitWatch>,
    pub pending_checks: PendingChecks,
}

impl PostRunSetup {
    /// Records the state before a command that runs in namespaces.
    pub async fn prepare(self) -> Result<PostRunCheck, CommandError> {
        if self.spec.writable.is_empty() || self.nested.lock().is_small(MAX_INLINE_FOLDERS) {
            return Ok(self.into_check(None));
        }
        blocking::run_blocking(move || self.into_check(None))
            .await
            .map_err(|_| CommandError::SupervisorLost)
    }

    /// Records the state before a command without namespaces, including the files of the guard.
    pub async fn prepare_with_guard(
        self,
        shared: &SharedGuard,
        scratch: &Path,
    ) -> Result<PostRunCheck, CommandError> {
        let (shared, scratch) = (Arc::clone(shared), scratch.to_owned());
        // This closure runs to its end, so a recorded state is always checked, even if the call is dropped.
        let work = move || -> io::Result<PostRunCheck> {
            let mut guard = shared.lock();
            match &mut *guard {
                Some(guard) => guard.record_state(&self.spec)?,
                none => none.insert(Guard::new(&scratch)?).record_state(&self.spec)?,
            }
            drop(guard);
            Ok(self.into_check(Some(shared)))
        };
        let looked = blocking::run_blocking(work).await;
        looked.map_err(|_| CommandError::SupervisorLost)?.map_err(CommandError::StartSupervisor)
    }

    fn into_check(self, guard: Option<SharedGuard>) -> PostRunCheck {
        let Self { spec, workspace, roots, nested, exit_watch, pending_checks: pending } = self;
        let top = DotGitBefore::record(&workspace);
        // A command without writable folders creates no repositories.
        let nested = (!spec.writable.is_empty()).then_some(nested);
        if let Some(nested) = &nested {
            nested.lock().record_before(&roots, &spec);
        }
        let token = pending.0.token();
        PostRunCheck(Some(PostRunState {
            spec,
            top,
            roots,
            nested,
            guard,
            exit_watch,
            _token: token,
        }))
    }
}

/// The pending check of one command; dropping it checks on another thread.
#[derive(Debug)]
pub struct PostRunCheck(Option<PostRunState>);

#[derive(Debug)]
struct PostRunState {
    spec: SandboxSpec,
    top: DotGitBefore,
    roots: Vec<PathBuf>,
    /// `Some` if the command can write.
    nested: Option<SharedNestedRepos>,
    /// `Some` if the guard has recorded the state.
    guard: Option<SharedGuard>,
    exit_watch: Arc<ExitWatch>,
    _token: TaskTrackerToken,
}

impl PostRunCheck {
    /// Checks what the command changed, and restores protected files; `uncovered` if a path that the
    /// sandbox had covered was replaced while the command ran.
    pub async fn check_and_restore(mut self, uncovered: bool) -> PostRunFindings {
        let Some(state) = self.0.take() else { return PostRunFindings::default() };
        // Spawning would cost more than most checks.
        if state.is_trivial() {
            return PostRunFindings {
                nested: state.check_nested(uncovered),
                ..PostRunFindings::default()
            };
        }
        // Dropping the future does not stop the thread: it finishes the check.
        let work = move || state.check_and_restore(uncovered);
        blocking::run_blocking(work).await.unwrap_or_default()
    }
}

impl Drop for PostRunCheck {
    fn drop(&mut self) {
        let Some(state) = self.0.take() else { return };
        blocking::spawn_or_run(move || {
            state.exit_watch.wait_exit();
            let findings = state.check_and_restore(false);
            if !findings.restored.is_empty() || !findings.nested.neutralised.is_empty() {
                tracing::warn!(?findings, "an abandoned command had changed protected files");
            }
        });
    }
}

impl PostRunState {
    /// Whether there is little to check and nothing to restore.
    fn is_trivial(&self) -> bool {
        let Some(nested) = &self.nested else { return self.guard.is_none() };
        self.guard.is_none()
            && self.top.is_unchanged()
            && none_appeared(&self.spec)
            && nested.lock().is_small(MAX_INLINE_FOLDERS)
    }

    fn check_and_restore(&self, uncovered: bool) -> PostRunFindings {
        let mut findings = PostRunFindings::default();
        if let Some(guard) = &self.guard {
            findings
                .restored
                .extend(guard.lock().as_mut().map(Guard::restore_changes).unwrap_or_default());
        }
        // A command without writable folders changed nothing; anything new there is the user's.
        if self.nested.is_some() {
            findings.restored.extend(remove_appeared(&self.spec));
            findings.restored.extend(self.top.neutralise());
            findings.nested = self.check_nested(uncovered);
        }
        findings
    }

    /// Checks the repositories below the roots, if the command can write.
    fn check_nested(&self, uncovered: bool) -> RepositoryFindings {
        let check = |nested: &SharedNestedRepos| {
            nested.lock().check_after(&self.roots, &self.spec, uncovered)
        };
        self.nested.as_ref().map(check).unwrap_or_default()
    }
}
