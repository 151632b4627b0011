//! Integrity check after a command: finds and restores protected files that it changed.
//!
//! Usually the call waits for the check and reports it. When a call is dropped while its command
//! runs, a thread waits for the supervisor to end and then checks. [`PendingChecks`] waits for all.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::command::CommandError;
use crate::base::blocking;
use crate::host::sandbox::{Findings, Guard, NestedRepositories, Spec, Top, expel, is_expelled};

/// How long a thread waits for the end of an abandoned supervisor.
const PATIENCE: Duration = Duration::from_secs(10);

/// Waits for the end of a supervisor process.
#[derive(Debug, Default)]
pub struct Witness(Mutex<Option<OwnedFd>>);

impl Witness {
    /// Sets the process to wait for, as a pidfd.
    pub fn watches(&self, process: Option<OwnedFd>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = process;
    }

    /// Blocks until the process has ended.
    fn wait(&self) {
        let Some(process) = self.0.lock().unwrap_or_else(PoisonError::into_inner).take() else {
            return;
        };
        let mut polled = [PollFd::new(&process, PollFlags::IN)];
        rustix::event::poll(&mut polled, Timespec::try_from(PATIENCE).ok().as_ref()).ok();
    }
}

/// The checks that have not finished.
#[derive(Debug, Clone)]
pub struct Pending(TaskTracker);

impl Default for Pending {
    fn default() -> Self {
        let tracker = TaskTracker::new();
        // A tracker that is closed still takes tokens, and can be waited for.
        tracker.close();
        Self(tracker)
    }
}

impl Pending {
    /// Waits until all checks have finished.
    pub async fn none(&self) {
        self.0.wait().await;
    }
}

/// The guard of a Session; created by the first command that needs it.
pub type SharedGuard = Arc<Mutex<Option<Guard>>>;

/// The repositories below the roots of a Session.
pub type SharedNested = Arc<Mutex<NestedRepositories>>;

/// Up to this many folders are checked on the calling thread, which is cheaper than spawning.
const FEW_FOLDERS: usize = 128;

/// What the check after a command found.
#[derive(Debug, Default)]
pub struct Mended {
    /// Protected files that the command had changed and that were restored.
    pub put_back: Vec<PathBuf>,
    /// Git settings that would run programs, and files that programs outside the sandbox execute.
    pub nested: Findings,
}

/// The input of a check, taken before the command starts.
pub struct Before {
    pub spec: Spec,
    pub workspace: PathBuf,
    /// The Workspace and its extra roots.
    pub roots: Vec<PathBuf>,
    pub nested: SharedNested,
    pub witness: Arc<Witness>,
    pub pending: Pending,
}

impl Before {
    /// Records the state before a command that runs in namespaces.
    pub async fn unguarded(self) -> Result<Aftermath, CommandError> {
        if self.spec.writable.is_empty() || lock(&self.nested).is_small(FEW_FOLDERS) {
            return Ok(self.known(None));
        }
        blocking::work(move || self.known(None)).await.map_err(|_| CommandError::Lost)
    }

    /// Records the state before a command without namespaces, including the files of the guard.
    pub async fn guarded(
        self,
        shared: &SharedGuard,
        scratch: &Path,
    ) -> Result<Aftermath, CommandError> {
        let (shared, scratch) = (Arc::clone(shared), scratch.to_owned());
        // This closure runs to its end, so a recorded state is always checked, even if the call is dropped.
        let work = move || -> io::Result<Aftermath> {
            let mut guard = lock(&shared);
            match &mut *guard {
                Some(guard) => guard.look(&self.spec)?,
                none => none.insert(Guard::new(&scratch)?).look(&self.spec)?,
            }
            drop(guard);
            Ok(self.known(Some(shared)))
        };
        let looked = blocking::work(work).await;
        looked.map_err(|_| CommandError::Lost)?.map_err(CommandError::Start)
    }

    fn known(self, guard: Option<SharedGuard>) -> Aftermath {
        let Self { spec, workspace, roots, nested, witness, pending } = self;
        let top = Top::look(&workspace);
        // A command without writable folders makes no repositories.
        let nested = (!spec.writable.is_empty()).then_some(nested);
        if let Some(nested) = &nested {
            lock(nested).look(&roots, &spec);
        }
        let token = pending.0.token();
        Aftermath(Some(Looks { spec, top, roots, nested, guard, witness, _token: token }))
    }
}

fn lock<T>(shared: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The pending check of one command; dropping it checks on another thread.
#[derive(Debug)]
pub struct Aftermath(Option<Looks>);

#[derive(Debug)]
struct Looks {
    spec: Spec,
    top: Top,
    roots: Vec<PathBuf>,
    /// `Some` if the command can write.
    nested: Option<SharedNested>,
    /// `Some` if the guard has recorded the state.
    guard: Option<SharedGuard>,
    witness: Arc<Witness>,
    _token: TaskTrackerToken,
}

impl Aftermath {
    /// Checks what the command changed, and restores protected files. `uncovered`: a path that the
    /// sandbox had covered was replaced while the command ran.
    pub async fn mend(mut self, uncovered: bool) -> Mended {
        let Some(looks) = self.0.take() else { return Mended::default() };
        // Spawning would cost more than most checks.
        if looks.is_calm() {
            return Mended { nested: looks.check_nested(uncovered), ..Mended::default() };
        }
        // Dropping the future does not stop the thread: it finishes the check.
        let work = move || looks.mend(uncovered);
        blocking::work(work).await.unwrap_or_default()
    }
}

impl Drop for Aftermath {
    fn drop(&mut self) {
        let Some(looks) = self.0.take() else { return };
        blocking::spawn_or_run(move || {
            looks.witness.wait();
            let mended = looks.mend(false);
            if !mended.put_back.is_empty() || !mended.nested.neutralised.is_empty() {
                tracing::warn!(?mended, "an abandoned command had changed protected files");
            }
        });
    }
}

impl Looks {
    /// Whether there is little to check and nothing to restore.
    fn is_calm(&self) -> bool {
        let Some(nested) = &self.nested else { return self.guard.is_none() };
        self.guard.is_none()
            && self.top.is_calm()
            && is_expelled(&self.spec)
            && lock(nested).is_small(FEW_FOLDERS)
    }

    fn mend(&self, uncovered: bool) -> Mended {
        let mut mended = Mended::default();
        if let Some(guard) = &self.guard {
            mended.put_back.extend(lock(guard).as_mut().map(Guard::check).unwrap_or_default());
        }
        // A command without writable folders changed nothing; anything new there is the user's.
        if self.nested.is_some() {
            mended.put_back.extend(expel(&self.spec));
            mended.put_back.extend(self.top.mend());
            mended.nested = self.check_nested(uncovered);
        }
        mended
    }

    /// Checks the repositories below the roots, if the command can write.
    fn check_nested(&self, uncovered: bool) -> Findings {
        let check = |nested: &SharedNested| lock(nested).check(&self.roots, &self.spec, uncovered);
        self.nested.as_ref().map(check).unwrap_or_default()
    }
}
