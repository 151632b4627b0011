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
use tokio::sync::watch;

use super::command::CommandError;
use crate::disk;
use crate::sandbox::{Guard, Spec, Top, expel, is_expelled};

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

/// How many aftermaths are still to come.
#[derive(Debug, Clone)]
pub struct Pending(Arc<watch::Sender<usize>>);

impl Default for Pending {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(0)))
    }
}

impl Pending {
    fn one_more(&self) -> One {
        self.0.send_modify(|count| *count += 1);
        One(self.clone())
    }

    /// Waits until there are none.
    pub async fn none(&self) {
        self.0.subscribe().wait_for(|count| *count == 0).await.ok();
    }
}

/// One of them.
#[derive(Debug)]
struct One(Pending);

impl Drop for One {
    fn drop(&mut self) {
        self.0.0.send_modify(|count| *count -= 1);
    }
}

/// The guard of a Session; made with the first command that needs it.
pub type SharedGuard = Arc<Mutex<Option<Guard>>>;

/// What must be known before a command.
pub struct Before {
    pub spec: Spec,
    pub workspace: PathBuf,
    pub witness: Arc<Witness>,
    pub pending: Pending,
}

impl Before {
    /// Looks at how things are.
    pub fn unguarded(self) -> Aftermath {
        self.known(None)
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
            let mut guard = shared.lock().unwrap_or_else(PoisonError::into_inner);
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
        let Self { spec, workspace, witness, pending } = self;
        let top = Top::look(&workspace);
        Aftermath(Some(Looks { spec, top, guard, witness, _one: pending.one_more() }))
    }
}

/// What is to be looked at after one command.
#[derive(Debug)]
pub struct Aftermath(Option<Looks>);

#[derive(Debug)]
struct Looks {
    spec: Spec,
    top: Top,
    /// Set when it has learned how things were.
    guard: Option<SharedGuard>,
    witness: Arc<Witness>,
    _one: One,
}

impl Aftermath {
    /// Looks at what a command has left, and mends it.
    pub async fn mend(mut self) -> Vec<PathBuf> {
        let Some(looks) = self.0.take() else { return Vec::new() };
        // A thread for nothing would cost more than most looks.
        if looks.is_calm() {
            return Vec::new();
        }
        // Nobody is dropped here any more: the thread ends what it began.
        let work = move || looks.mend();
        disk::work(work).await.unwrap_or_default()
    }
}

impl Drop for Aftermath {
    fn drop(&mut self) {
        let Some(looks) = self.0.take() else { return };
        std::thread::spawn(move || {
            looks.witness.wait();
            let mended = looks.mend();
            if !mended.is_empty() {
                tracing::warn!(
                    ?mended,
                    "a command that was abandoned had changed what it must not"
                );
            }
        });
    }
}

impl Looks {
    /// Whether a glance tells that there is nothing to mend.
    fn is_calm(&self) -> bool {
        let can_write = !self.spec.writable.is_empty();
        self.guard.is_none() && (!can_write || (self.top.is_calm() && is_expelled(&self.spec)))
    }

    fn mend(&self) -> Vec<PathBuf> {
        let mut mended = Vec::new();
        if let Some(guard) = &self.guard {
            let mut guard = guard.lock().unwrap_or_else(PoisonError::into_inner);
            mended.extend(guard.as_mut().map(Guard::check).unwrap_or_default());
        }
        // What can write nothing has made nothing; whatever is new there is the user's.
        if !self.spec.writable.is_empty() {
            mended.extend(expel(&self.spec));
            mended.extend(self.top.mend());
        }
        mended
    }
}
