//! Runs a step with `apply`: merges what another step changed in its own Workspace into the shared one, all or
//! nothing.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::step::StepInputs;
use super::{MAX_NAMED_FILES, RunContext, write_bounds};
use crate::agent::child_workspace;
use crate::agent::child_workspace::{AppliedMerge, ChildWorkspace, ChildWorkspaceError};
use crate::agent::workflow::checkpoint::{CHANGES_UNKNOWN, CheckpointBundle, StepArtifact};
use crate::agent::workflow::outcome::{Readiness, StepStatus};
use crate::agent::workflow::spec::Step;
use crate::base::blocking;
use crate::base::error::{Explain, Report};
use crate::base::id::SessionId;
use crate::host::snapshot::{ContentStore, TurnTracker};
use crate::host::workspace::Workspace;
use crate::record::event::WorkflowEventKind;
use crate::tools::permission::canonical_digest;

/// The reason of a step whose time ran out.
const TIMED_OUT: &str = "timed_out";

impl RunContext {
    /// Applies within the time limit of the step. A merge that has begun is completed; checks without time left fail.
    pub(super) async fn apply_in_time(
        &self,
        step: &Step,
        inputs: &StepInputs,
        halt: &CancellationToken,
    ) -> Result<(CheckpointBundle, Vec<PathBuf>), Report> {
        let Some(time) = step.timeout_ms else { return self.apply_step(step, inputs, halt).await };
        let cancel = halt.child_token();
        let mut work = std::pin::pin!(self.apply_step(step, inputs, &cancel));
        let (mut bundle, strays) = tokio::select! {
            ended = &mut work => return ended,
            () = tokio::time::sleep(Duration::from_millis(time)) => {
                cancel.cancel();
                work.await?
            }
        };
        if bundle.status == StepStatus::Cancelled && !halt.is_cancelled() {
            bundle.status = StepStatus::TimedOut;
            bundle.reason = Some(TIMED_OUT.to_owned());
            for words in bundle.known_limitations.iter_mut().filter(|words| *words == "cancelled") {
                TIMED_OUT.clone_into(words);
            }
        }
        Ok((bundle, strays))
    }

    /// Merges and runs the checks; returns also the files that the checks changed outside the step's write set.
    async fn apply_step(
        &self,
        step: &Step,
        inputs: &StepInputs,
        halt: &CancellationToken,
    ) -> Result<(CheckpointBundle, Vec<PathBuf>), Report> {
        let source = inputs.before.iter().find(|own| Some(&own.step_id) == step.apply.as_ref());
        let child = source.and_then(|own| own.child_session_id.as_deref());
        let failed = |reason: &str, summary: String| {
            (CheckpointBundle::failed(&step.id, reason, summary), Vec::new())
        };
        if let Err(report) = self.check_may_write() {
            return Ok(failed("permission_denied", report.message));
        }
        let Some(child) = child.and_then(|id| SessionId::parse(id).ok()) else {
            return Ok(failed("nothing_to_apply", "there is nothing to apply".to_owned()));
        };
        let child_workspace = match self.children.child_workspaces().find(self.state_root(), &child)
        {
            Ok(Some(child_workspace)) => child_workspace,
            Ok(None) => {
                let summary = format!("the Workspace of {child} no longer exists");
                return Ok(failed("nothing_to_apply", summary));
            }
            Err(error) => return Ok(failed(error.kind().name(), error.to_string())),
        };
        let alone = child_workspace::merge_lock().await;
        if halt.is_cancelled() {
            let (mut bundle, none) = failed("cancelled", "it was cancelled".to_owned());
            bundle.status = StepStatus::Cancelled;
            return Ok((bundle, none));
        }
        let (own, workspace, tracker) =
            (child_workspace.clone(), self.workspace.clone(), self.tracker.clone());
        let merging = move || merge_child(&own, &workspace, tracker.as_ref());
        let merged =
            blocking::run_blocking(merging).await.unwrap_or(Err(ChildWorkspaceError::TaskPanicked));
        let done = match merged {
            Ok(done) => done,
            Err(error) => {
                let reason = match error {
                    ChildWorkspaceError::Conflicts(_) => "conflicts",
                    _ => error.kind().name(),
                };
                let (mut bundle, none) = failed(reason, error.to_string());
                bundle.child_session_id = Some(child.to_string());
                return Ok((bundle, none));
            }
        };
        let mut bundle = CheckpointBundle::new(
            &step.id,
            StepStatus::Completed,
            Readiness::CheckpointReady,
            String::new(),
        );
        bundle.child_session_id = Some(child.to_string());
        let mut files: Vec<String> = Vec::new();
        if let Some(done) = done {
            let session = self.children.session();
            let recorded = session.record(self.merged_event(step, &child_workspace, &done)).await;
            recorded?;
            files =
                done.transaction.files().map(|path| path.to_string_lossy().into_owned()).collect();
            done.mark_recorded();
            bundle.artifacts.push(StepArtifact {
                kind: "merge".to_owned(),
                provenance: "artifact".to_owned(),
                at: format!("pixir changes {child}"),
                sha256: canonical_digest(&files),
                files: files.len(),
            });
        }
        drop(alone);
        let count = files.len();
        bundle.summary = match count {
            0 => "nothing to apply: the files are as the step left them".to_owned(),
            1 => format!("applied 1 file: {}", files[0]),
            _ => format!("applied {count} files"),
        };
        files.truncate(MAX_NAMED_FILES);
        bundle.written = files;
        let facts = json!({
            "from": step.apply,
            "child_session_id": child,
            "files": bundle.written,
            "file_count": count,
        });
        self.record(WorkflowEventKind::Merged, Some(&step.id), facts).await?;
        let mut strays = Vec::new();
        if !step.verify.is_empty() {
            strays = self.verify_merged(step, &mut bundle, halt).await?;
            if bundle.checkpoint_status != Readiness::CheckpointReady {
                bundle.known_limitations.push("merged_but_not_verified".to_owned());
            }
        }
        Ok((bundle, strays))
    }

    /// Runs the checks in the shared Workspace after a merge. They may build, so they may write everywhere; files that
    /// they changed outside the step's write set are reported, unless they are ignored.
    async fn verify_merged(
        &self,
        step: &Step,
        bundle: &mut CheckpointBundle,
        halt: &CancellationToken,
    ) -> Result<Vec<PathBuf>, Report> {
        let running = self.tracker.as_ref().map(TurnTracker::command_started);
        if let Some(tracker) = self.tracker.clone()
            && let Ok(Err(error)) = blocking::run_blocking(move || tracker.before_command()).await
        {
            tracing::warn!(%error, "files were not recorded before the checks");
        }
        let before = self.survey_workspace().await;
        let verified = self.run_checks(step, None, None, bundle, halt).await;
        drop(running);
        if let Some(tracker) = self.tracker.clone()
            && let Ok(Err(error)) = blocking::run_blocking(move || tracker.after_command()).await
        {
            tracing::warn!(%error, "files were not recorded after the checks");
        }
        verified?;
        let looked = match before {
            Ok(before) => self.survey_workspace().await.map(|now| before.changed_paths(&now)),
            Err(reason) => Err(reason),
        };
        let set = write_bounds(step);
        match looked {
            Ok(changed) => Ok(changed.into_iter().filter(|path| !set.allows(path)).collect()),
            Err(reason) => {
                bundle.known_limitations.push(CHANGES_UNKNOWN.to_owned());
                tracing::warn!(%reason, step = %step.id, "the changes of the checks are not known");
                Ok(Vec::new())
            }
        }
    }
}

/// Merges the changes of a child and stores the transaction; `None` when nothing is left to merge.
fn merge_child(
    child_workspace: &ChildWorkspace,
    workspace: &Workspace,
    tracker: Option<&TurnTracker>,
) -> Result<Option<AppliedMerge>, ChildWorkspaceError> {
    child_workspace.refuse_busy()?;
    let store: ContentStore = child_workspace.store();
    let recovered =
        child_workspace::recover_merge(workspace, &store, &child_workspace.parent_folder());
    if let Some(recovered) = recovered.map_err(ChildWorkspaceError::Storage)? {
        tracing::warn!(%recovered, "recovered from an interrupted merge");
    }
    let changes = child_workspace.find_changes(workspace)?;
    let merge = child_workspace.plan_merge(&changes, workspace, &|_| false)?;
    if merge.is_up_to_date() {
        return Ok(None);
    }
    // A merge that has begun is not cancelled.
    child_workspace
        .apply_merge(&merge, &changes, workspace, tracker, &CancellationToken::new())
        .map(Some)
}
