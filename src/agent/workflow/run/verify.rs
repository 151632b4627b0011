//! Runs the check commands of a step, by Pixir and not by the model.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::{Stage, set_of};
use crate::agent::child_workspace::{Annex, AnnexError, Changes};
use crate::agent::workflow::checkpoint::{Bundle, CHANGES_UNKNOWN, Verified};
use crate::agent::workflow::outcome::{Readiness, StepStatus};
use crate::agent::workflow::spec::{Check, Posture, Step, Workspace as Where};
use crate::base::blocking;
use crate::base::error::Report;
use crate::base::id::SessionId;
use crate::base::text::bound;
use crate::host::process::SpillFile;
use crate::host::process::{Stop, Trial};
use crate::host::sandbox::Profile;
use crate::host::workspace::Workspace;
use crate::model::skill::sha256;
use crate::record::event::PermissionMode;
use crate::settings::role::strictest;

/// How much of a command's output is kept, in bytes.
const KEPT: usize = 4 * 1024;

impl Stage {
    /// Runs the checks of a step until one fails. `turn` is the last Turn of its child.
    pub(super) async fn verify(
        &self,
        step: &Step,
        child: Option<&SessionId>,
        turn: Option<u64>,
        bundle: &mut Bundle,
        halt: &CancellationToken,
    ) -> Result<(), Report> {
        let workspace = match self.place_of(step, child) {
            Ok(workspace) => workspace,
            Err(reason) => {
                bundle.lower(Readiness::Failed, "workspace_gone");
                bundle.summary = format!("{}\n[not verified: {reason}]", bundle.summary);
                return Ok(());
            }
        };
        let footprint = self.footprint(step, child).await;
        let child = child.filter(|_| step.writes_shared() && self.tracker.is_some());
        let reopened = match child.zip(turn) {
            None => None,
            Some((child, turn)) => Some((child, self.reopen(child, turn).await)),
        };
        self.each_check(step, &workspace, bundle, halt).await?;
        if let Some((child, reopened)) = reopened {
            let closed = match reopened {
                Ok(record) => self.close(child, record).await,
                Err(reason) => Err(reason),
            };
            if let Err(reason) = closed {
                tracing::warn!(%reason, step = %step.id, "the changes of the checks are not known");
                bundle.known_limitations.push(CHANGES_UNKNOWN.to_owned());
            }
        }
        let put_back = match footprint {
            Ok(None) => Ok(()),
            Ok(Some((annex, before))) => self.put_back(step, annex, before).await,
            Err(reason) => Err(reason),
        };
        if let Err(reason) = put_back {
            tracing::warn!(%reason, step = %step.id, "files that the checks left could not be restored");
            if bundle.checkpoint_status == Readiness::CheckpointReady {
                bundle.lower(Readiness::Partial, "checks_left_files");
            }
            bundle.summary = format!(
                "{}\n[files that the checks left could not be restored: {reason}]",
                bundle.summary
            );
        }
        Ok(())
    }

    async fn each_check(
        &self,
        step: &Step,
        workspace: &Workspace,
        bundle: &mut Bundle,
        halt: &CancellationToken,
    ) -> Result<(), Report> {
        for (place, check) in step.verify.iter().enumerate() {
            let verified = self.check(step, place, check, workspace, halt).await;
            self.record_verified(&step.id, &verified).await?;
            let (is_ok, was_cancelled) =
                (verified.ok, verified.reason.as_deref() == Some("cancelled"));
            if !is_ok {
                let command = bound(&check.command, 200).into_owned();
                bundle.summary = format!("{}\n[`{command}` did not pass]", bundle.summary);
            }
            bundle.verification.push(verified);
            if was_cancelled {
                bundle.status = StepStatus::Cancelled;
                bundle.lower(Readiness::Failed, "cancelled");
                return Ok(());
            }
            if !is_ok {
                bundle.lower(Readiness::Failed, "verification_failed");
                return Ok(());
            }
        }
        Ok(())
    }

    /// The changes in the step's own Workspace before its checks. Files that the checks leave outside the write set are
    /// not changes of the step, and are neither merged nor shown as such.
    async fn footprint(
        &self,
        step: &Step,
        child: Option<&SessionId>,
    ) -> Result<Option<(Annex, Changes)>, String> {
        let (Where::Isolated | Where::Worktree, Some(child)) = (step.workspace, child) else {
            return Ok(None);
        };
        let (annex, parent) = (self.annex_of(child)?, self.workspace.clone());
        let looking = move || annex.changes(&parent).map(|changes| (annex, changes));
        let looked = blocking::work(looking).await.unwrap_or(Err(AnnexError::Crashed));
        looked.map(Some).map_err(|error| error.to_string())
    }

    async fn put_back(&self, step: &Step, annex: Annex, before: Changes) -> Result<(), String> {
        let (parent, set) = (self.workspace.clone(), set_of(step));
        let putting = move || annex.put_back(&before, &parent, &|path| set.allow(path));
        let put = blocking::work(putting).await.unwrap_or(Err(AnnexError::Crashed));
        match put.map_err(|error| error.to_string())?.failed.first() {
            Some((path, reason)) => Err(format!("{}: {reason}", path.display())),
            None => Ok(()),
        }
    }

    /// The Workspace in which the checks of a step run, with bounds on what they may write. In the shared Workspace they
    /// may write what the step may. In the step's own Workspace they may write everything, because tests also build;
    /// files outside the write set are restored afterwards.
    fn place_of(&self, step: &Step, child: Option<&SessionId>) -> Result<Workspace, String> {
        if step.apply.is_some() {
            return Ok(self.workspace.clone());
        }
        let mut bounds = self.workspace.bounds().clone();
        let workspace =
            if let (Where::Isolated | Where::Worktree, Some(child)) = (step.workspace, child) {
                let annex = self.annex_of(child)?;
                let opened = Workspace::open(annex.folder()).map_err(|error| error.to_string())?;
                opened.hiding(self.family.config().home.folder())
            } else {
                for globs in set_of(step).sets() {
                    bounds.narrow(globs)?;
                }
                self.workspace.clone()
            };
        Ok(workspace.bounded(bounds))
    }

    fn annex_of(&self, child: &SessionId) -> Result<Annex, String> {
        let found = self.family.annexes().find(self.logs(), child);
        found
            .map_err(|error| error.to_string())?
            .ok_or_else(|| "its Workspace no longer exists".to_owned())
    }

    /// Runs one check command.
    async fn check(
        &self,
        step: &Step,
        place: usize,
        check: &Check,
        workspace: &Workspace,
        cancel: &CancellationToken,
    ) -> Verified {
        let mode = match step.posture {
            Posture::ReadOnly => strictest(&self.stance.mode(), &PermissionMode::ReadOnly),
            Posture::Write => self.stance.mode(),
        };
        let profile = Profile::of(self.family.config().sandbox.level, &mode);
        let name = format!("{}-{}-{place}.txt", self.run, step.id);
        let spill = SpillFile::new(self.folder.join("output"), name);
        let tried = self
            .family
            .commands()
            .put_to_the_test(Trial {
                command: &check.command,
                directory: workspace.root(),
                further: &[],
                bounds: workspace.bounds(),
                profile,
                timeout: Duration::from_millis(check.timeout_ms),
                cancel,
                secrets: &self.secrets,
                limit: KEPT,
                spill,
            })
            .await;
        let command = check.command.clone();
        match tried {
            Ok(tried) => {
                let reason = match (tried.stopped, tried.exit_code) {
                    (Some(Stop::TimedOut), _) => Some("timed_out"),
                    (Some(Stop::Interrupted), _) => Some("cancelled"),
                    (Some(Stop::Uncovered), _) => Some("uncovered"),
                    (None, None) => Some("signal"),
                    (None, Some(_)) => None,
                };
                Verified {
                    command,
                    ok: tried.is_ok(),
                    exit_code: tried.exit_code,
                    reason: reason.map(str::to_owned),
                    elapsed_ms: u64::try_from(tried.duration.as_millis()).unwrap_or(u64::MAX),
                    sha256: sha256(tried.text.as_bytes()),
                    output: tried.text,
                }
            }
            Err(error) => Verified {
                command,
                ok: false,
                exit_code: None,
                reason: Some(error.to_string()),
                elapsed_ms: 0,
                output: String::new(),
                sha256: sha256(b""),
            },
        }
    }
}
