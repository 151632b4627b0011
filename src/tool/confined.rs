//! Confined commands of one Session: its scratch folder, a Spec for each call, and a look
//! afterwards at what the kernel could not protect.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::aftermath::{Before, SharedGuard, Witness};
use super::command::{CommandError, Commands, Job, Outcome};
use super::output::Output;
use super::slot::Slots;
use crate::sandbox::{Level, Profile, Scratch, Wish};

/// The commands of one Session; cheap to clone.
#[derive(Debug, Clone)]
pub struct Confined {
    commands: Commands,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    /// Made with the first command, removed with the Session.
    scratch: Mutex<Option<Arc<Scratch>>>,
    /// What all commands that run without namespaces are held to.
    guard: SharedGuard,
    /// The person has been told that the sandbox is not what it could be.
    is_told: AtomicBool,
}

/// What a person must know about a sandbox without namespaces.
const PARTIAL: &str = "the sandbox is partial here: without namespaces, commands are held by \
    Landlock and seccomp alone (see `pixir doctor`)";

/// What a call asks for.
#[derive(Debug, Clone, Copy)]
pub struct Needs {
    pub profile: Profile,
    pub network: bool,
}

/// How a confined command went.
#[derive(Debug)]
pub struct Ran {
    pub outcome: Outcome,
    /// What it had changed against the rules, and what was put back.
    pub mended: Vec<PathBuf>,
    /// What it could not see.
    pub hidden: Vec<PathBuf>,
}

impl Confined {
    /// Commands that `commands` starts.
    pub fn new(commands: Commands) -> Self {
        Self { commands, shared: Arc::default() }
    }

    /// Whether a call may declare that it needs the network.
    pub fn may_declare_network(&self) -> bool {
        self.commands.sandbox().may_declare_network()
    }

    /// How many commands may run at once, in all Sessions together.
    pub fn slots(&self) -> &Slots {
        self.commands.slots()
    }

    /// The end of everything is near: background commands are to end.
    pub async fn closing(&self) {
        self.commands.closing().await;
    }

    /// What the person must be told about this command's sandbox, once per Session.
    pub fn notice(&self, level: Level) -> Option<&'static str> {
        let is_news = level == Level::Partial && !self.shared.is_told.swap(true, Ordering::Relaxed);
        is_news.then_some(PARTIAL)
    }

    /// Runs a command as its Spec says, and mends what it must not have changed.
    pub async fn run(
        &self,
        mut job: Job<'_>,
        needs: Needs,
        output: &mut Output<'_>,
    ) -> Result<Ran, CommandError> {
        let scratch = if needs.profile == Profile::Off { None } else { Some(self.scratch()?) };
        let spec = scratch.as_ref().and_then(|scratch| {
            self.commands.sandbox().spec(&Wish {
                profile: needs.profile,
                network: needs.network,
                workspace: job.directory,
                // Bounds name places of the Workspace, and nothing beside it.
                further: if job.bounds.is_empty() { job.further } else { &[] },
                scratch: scratch.folder(),
            })
        });
        let spec = spec.map(|spec| spec.bounded(job.directory, job.bounds));
        job.spec = spec.as_ref();
        match self.guarded(&job, scratch.as_deref(), output).await {
            // Now it is known that there are no namespaces, and the guard comes along.
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
            return Ok(Ran { outcome, mended: Vec::new(), hidden: Vec::new() });
        };
        let witness = Arc::new(Witness::default());
        let before = Before {
            spec: spec.clone(),
            workspace: job.directory.to_owned(),
            witness: Arc::clone(&witness),
            pending: self.commands.pending().clone(),
        };
        let aftermath = if needs_guard {
            before.guarded(&self.shared.guard, scratch.folder()).await?
        } else {
            before.unguarded()
        };
        let ran = self.commands.run(&Job { witness: Some(&witness), ..*job }, output).await;
        let mended = aftermath.mend().await;
        Ok(Ran { outcome: ran?, mended, hidden: spec.hidden.clone() })
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
        Ok(made)
    }
}
