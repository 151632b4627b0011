//! Runs the check commands of a step; Pixir runs them, not the model.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::{RunContext, write_bounds};
use crate::agent::child_workspace::{ChildChanges, ChildWorkspace, ChildWorkspaceError};
use crate::agent::workflow::checkpoint::{CHANGES_UNKNOWN, CheckpointBundle, VerificationResult};
use crate::agent::workflow::outcome::{Readiness, StepStatus};
use crate::agent::workflow::spec::{CheckCommand, Step, StepPosture, WorkspaceMode};
use crate::base::blocking;
use crate::base::error::Report;
use crate::base::id::{SessionId, sha256};
use crate::base::text::bound_text;
use crate::host::process::SpillFile;
use crate::host::process::{CaptureRequest, StopCause};
use crate::host::sandbox::Profile;
use crate::host::workspace::Workspace;
use crate::record::event::PermissionMode;
use crate::settings::role::stricter_mode;

/// How much of a command's output is kept, in bytes.
const MAX_OUTPUT_BYTES: usize = 4 * 1024;

impl RunContext {
    /// Runs the checks of a step until one fails. `turn` is the last Turn of its child.
    pub(super) async fn run_checks(
        &self,
        step: &Step,
        child: Option<&SessionId>,
        turn: Option<u64>,
        bundle: &mut CheckpointBundle,
        halt: &CancellationToken,
    ) -> Result<(), Report> {
        let workspace = match self.check_workspace(step, child) {
            Ok(workspace) => workspace,
            Err(reason) => {
                bundle.lower_readiness(Readiness::Failed, "workspace_gone");
                bundle.summary = format!("{}\n[not verified: {reason}]", bundle.summary);
                return Ok(());
            }
        };
        let footprint = self.changes_before_checks(step, child).await;
        let child = child.filter(|_| step.writes_shared() && self.tracker.is_some());
        let reopened = match child.zip(turn) {
            None => None,
            Some((child, turn)) => Some((child, self.reopen_record(child, turn).await)),
        };
        self.run_each_check(step, &workspace, bundle, halt).await?;
        if let Some((child, reopened)) = reopened {
            let closed = match reopened {
                Ok(record) => self.close_record(child, record).await,
                Err(reason) => Err(reason),
            };
            if let Err(reason) = closed {
                tracing::warn!(%reason, step = %step.id, "the changes of the checks are not known");
                bundle.known_limitations.push(CHANGES_UNKNOWN.to_owned());
            }
        }
        let put_back = match footprint {
            Ok(None) => Ok(()),
            Ok(Some((child_workspace, before))) => {
                self.restore_after_checks(step, child_workspace, before).await
            }
            Err(reason) => Err(reason),
        };
        if let Err(reason) = put_back {
            tracing::warn!(%reason, step = %step.id, "files that the checks left could not be restored");
            if bundle.checkpoint_status == Readiness::CheckpointReady {
                bundle.lower_readiness(Readiness::Partial, "checks_left_files");
            }
            bundle.summary = format!(
                "{}\n[files that the checks left could not be restored: {reason}]",
                bundle.summary
            );
        }
        Ok(())
    }

    async fn run_each_check(
        &self,
        step: &Step,
        workspace: &Workspace,
        bundle: &mut CheckpointBundle,
        halt: &CancellationToken,
    ) -> Result<(), Report> {
        for (place, check) in step.verify.iter().enumerate() {
            let verified = self.run_check(step, place, check, workspace, halt).await;
            self.record_verified(&step.id, &verified).await?;
            let (is_ok, was_cancelled) =
                (verified.ok, verified.reason.as_deref() == Some("cancelled"));
            if !is_ok {
                let command = bound_text(&check.command, 200).into_owned();
                bundle.summary = format!("{}\n[`{command}` did not pass]", bundle.summary);
            }
            bundle.verification.push(verified);
            if was_cancelled {
                bundle.status = StepStatus::Cancelled;
                bundle.lower_readiness(Readiness::Failed, "cancelled");
                return Ok(());
            }
            if !is_ok {
                bundle.lower_readiness(Readiness::Failed, "verification_failed");
                return Ok(());
            }
        }
        Ok(())
    }

    /// The changes in the step's own Workspace before its checks. Files that the checks leave outside the write set are
    /// not changes of the step, and are neither merged nor shown as such.
    async fn changes_before_checks(
        &self,
        step: &Step,
        child: Option<&SessionId>,
    ) -> Result<Option<(ChildWorkspace, ChildChanges)>, String> {
        let (WorkspaceMode::Isolated | WorkspaceMode::Worktree, Some(child)) =
            (step.workspace, child)
        else {
            return Ok(None);
        };
        let (child_workspace, parent) = (self.find_child_workspace(child)?, self.workspace.clone());
        let looking =
            move || child_workspace.find_changes(&parent).map(|changes| (child_workspace, changes));
        let looked =
            blocking::run_blocking(looking).await.unwrap_or(Err(ChildWorkspaceError::TaskPanicked));
        looked.map(Some).map_err(|error| error.to_string())
    }

    async fn restore_after_checks(
        &self,
        step: &Step,
        child_workspace: ChildWorkspace,
        before: ChildChanges,
    ) -> Result<(), String> {
        let (parent, set) = (self.workspace.clone(), write_bounds(step));
        let putting =
            move || child_workspace.revert_side_effects(&before, &parent, &|path| set.allows(path));
        let put =
            blocking::run_blocking(putting).await.unwrap_or(Err(ChildWorkspaceError::TaskPanicked));
        match put.map_err(|error| error.to_string())?.failed.first() {
            Some((path, reason)) => Err(format!("{}: {reason}", path.display())),
            None => Ok(()),
        }
    }

    /// The Workspace in which the checks of a step run, with bounds on what they may write. In the shared Workspace they
    /// may write what the step may. In the step's own Workspace they may write everything, because tests also build;
    /// files outside the write set are restored afterwards.
    fn check_workspace(&self, step: &Step, child: Option<&SessionId>) -> Result<Workspace, String> {
        if step.apply.is_some() {
            return Ok(self.workspace.clone());
        }
        let mut bounds = self.workspace.bounds().clone();
        let workspace = if let (WorkspaceMode::Isolated | WorkspaceMode::Worktree, Some(child)) =
            (step.workspace, child)
        {
            let child_workspace = self.find_child_workspace(child)?;
            let opened =
                Workspace::open(child_workspace.folder()).map_err(|error| error.to_string())?;
            opened.with_hidden_folder(self.children.config().home.path())
        } else {
            for globs in write_bounds(step).sets() {
                bounds.add_globs(globs)?;
            }
            self.workspace.clone()
        };
        Ok(workspace.with_bounds(bounds))
    }

    fn find_child_workspace(&self, child: &SessionId) -> Result<ChildWorkspace, String> {
        let found = self.children.child_workspaces().find(self.state_root(), child);
        found
            .map_err(|error| error.to_string())?
            .ok_or_else(|| "its Workspace no longer exists".to_owned())
    }

    /// Runs one check command.
    async fn run_check(
        &self,
        step: &Step,
        place: usize,
        check: &CheckCommand,
        workspace: &Workspace,
        cancel: &CancellationToken,
    ) -> VerificationResult {
        let mode = match step.posture {
            StepPosture::ReadOnly => {
                stricter_mode(&self.permissions.mode(), &PermissionMode::ReadOnly)
            }
            StepPosture::Write => self.permissions.mode(),
        };
        let profile = Profile::for_mode(self.children.config().sandbox.level, &mode);
        let name = format!("{}-{}-{place}.txt", self.run_id, step.id);
        let spill = SpillFile::new(self.session_folder.join("output"), name);
        let tried = self
            .children
            .commands()
            .capture_with_slot(CaptureRequest {
                command: &check.command,
                directory: workspace.root(),
                extra_roots: &[],
                bounds: workspace.bounds(),
                profile,
                timeout: Duration::from_millis(check.timeout_ms),
                cancel,
                secrets: &self.secrets,
                limit: MAX_OUTPUT_BYTES,
                spill,
            })
            .await;
        let command = check.command.clone();
        match tried {
            Ok(tried) => {
                let reason = match (tried.stopped, tried.exit_code) {
                    (Some(StopCause::TimedOut), _) => Some("timed_out"),
                    (Some(StopCause::Interrupted), _) => Some("cancelled"),
                    (Some(StopCause::Uncovered), _) => Some("uncovered"),
                    (None, None) => Some("signal"),
                    (None, Some(_)) => None,
                };
                VerificationResult {
                    command,
                    ok: tried.is_success(),
                    exit_code: tried.exit_code,
                    reason: reason.map(str::to_owned),
                    elapsed_ms: u64::try_from(tried.duration.as_millis()).unwrap_or(u64::MAX),
                    sha256: sha256(tried.text.as_bytes()),
                    output: tried.text,
                }
            }
            Err(error) => VerificationResult {
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
