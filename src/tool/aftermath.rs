//! Aftermath: what is looked at when a command is gone, however it went.
//!
//! Usually the call waits for it and tells. A call that is dropped in the middle of its command
//! leaves it to a thread, which waits until nobody is left; and the end of a run waits for all.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::command::CommandError;
use crate::disk;
use crate::sandbox::{Findings, Guard, NestedRepositories, Spec, Top, expel, is_expelled};

/// How long a thread waits for the end of a supervisor that was let go.
const PATIENCE: Duration = Duration::from_secs(10);

/// Who is gone: the end of a supervisor can be seen here.
#[derive(Debug, Default)]
pub struct Witness(Mutex<Option<OwnedFd>>);

impl Witness {
    /// From now on this process is watched.
    pub fn watches(&self, process: Option<OwnedFd>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = process;
    }

    /// Waits until it has ended; blocks.
    fn wait(&self) {
        let Some(process) = self.0.lock().unwrap_or_else(PoisonError::into_inner).take() else {
            return;
        };
        let mut polled = [PollFd::new(&process, PollFlags::IN)];
        rustix::event::poll(&mut polled, Timespec::try_from(PATIENCE).ok().as_ref()).ok();
    }
}

/// The aftermaths that are still to come.
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
    /// Waits until there are none.
    pub async fn none(&self) {
        self.0.wait().await;
    }
}

/// The guard of a Session; made with the first command that needs it.
pub type SharedGuard = Arc<Mutex<Option<Guard>>>;

/// The repositories below the roots of a Session.
pub type SharedNested = Arc<Mutex<NestedRepositories>>;

/// A look at so many folders takes less than handing it to a thread.
const FEW_FOLDERS: usize = 128;

/// What was found after a command.
#[derive(Debug, Default)]
pub struct Mended {
    /// What the command had changed against the rules, and what was put back.
    pub put_back: Vec<PathBuf>,
    /// What it made git run, and which programs of others it wrote for.
    pub nested: Findings,
}

/// What must be known before a command.
pub struct Before {
    pub spec: Spec,
    pub workspace: PathBuf,
    /// The Workspace and the directories beside it that belong to the work.
    pub roots: Vec<PathBuf>,
    pub nested: SharedNested,
    pub witness: Arc<Witness>,
    pub pending: Pending,
}

impl Before {
    /// Looks at how things are.
    pub async fn unguarded(self) -> Result<Aftermath, CommandError> {
        if self.spec.writable.is_empty() || lock(&self.nested).is_small(FEW_FOLDERS) {
            return Ok(self.known(None));
        }
        disk::work(move || self.known(None)).await.map_err(|_| CommandError::Lost)
    }

    /// The same, with a guard that learns all of it.
    pub async fn guarded(
        self,
        shared: &SharedGuard,
        scratch: &Path,
    ) -> Result<Aftermath, CommandError> {
        let (shared, scratch) = (Arc::clone(shared), scratch.to_owned());
        // Whoever learned will also check, even when nobody waits for it any more.
        let work = move || -> io::Result<Aftermath> {
            let mut guard = lock(&shared);
            match &mut *guard {
                Some(guard) => guard.look(&self.spec)?,
                none => none.insert(Guard::new(&scratch)?).look(&self.spec)?,
            }
            drop(guard);
            Ok(self.known(Some(shared)))
        };
        let looked = disk::work(work).await;
        looked.map_err(|_| CommandError::Lost)?.map_err(CommandError::Start)
    }

    fn known(self, guard: Option<SharedGuard>) -> Aftermath {
        let Self { spec, workspace, roots, nested, witness, pending } = self;
        let top = Top::look(&workspace);
        // What can write nothing makes nothing.
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

/// What is to be looked at after one command.
#[derive(Debug)]
pub struct Aftermath(Option<Looks>);

#[derive(Debug)]
struct Looks {
    spec: Spec,
    top: Top,
    roots: Vec<PathBuf>,
    /// Set when the command can write.
    nested: Option<SharedNested>,
    /// Set when it has learned how things were.
    guard: Option<SharedGuard>,
    witness: Arc<Witness>,
    _token: TaskTrackerToken,
}

impl Aftermath {
    /// Looks at what a command has left, and mends it. `uncovered` says that something which the
    /// sandbox had covered was replaced while the command ran.
    pub async fn mend(mut self, uncovered: bool) -> Mended {
        let Some(looks) = self.0.take() else { return Mended::default() };
        // A thread for nothing would cost more than most looks.
        if looks.is_calm() {
            return Mended { nested: looks.check_nested(uncovered), ..Mended::default() };
        }
        // Nobody is dropped here any more: the thread ends what it began.
        let work = move || looks.mend(uncovered);
        disk::work(work).await.unwrap_or_default()
    }
}

impl Drop for Aftermath {
    fn drop(&mut self) {
        let Some(looks) = self.0.take() else { return };
        disk::spawn_or_run(move || {
            looks.witness.wait();
            let mended = looks.mend(false);
            if !mended.put_back.is_empty() || !mended.nested.neutralised.is_empty() {
                tracing::warn!(
                    ?mended,
                    "a command that was abandoned had changed what it must not"
                );
            }
        });
    }
}

impl Looks {
    /// Whether a glance tells that there is little to look at and nothing to mend.
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
        // What can write nothing has made nothing; whatever is new there is the user's.
        if self.nested.is_some() {
            mended.put_back.extend(expel(&self.spec));
            mended.put_back.extend(self.top.mend());
            mended.nested = self.check_nested(uncovered);
        }
        mended
    }

    /// Looks at the repositories below the roots, if the command can write.
    fn check_nested(&self, uncovered: bool) -> Findings {
        let check = |nested: &SharedNested| lock(nested).check(&self.roots, &self.spec, uncovered);
        self.nested.as_ref().map(check).unwrap_or_default()
    }
}
