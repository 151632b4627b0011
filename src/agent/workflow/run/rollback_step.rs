//! Determines what a step changed, and rolls back its changes in the shared Workspace.

use std::path::PathBuf;
use std::sync::Arc;

use serde_json::json;

use super::{RunContext, heartbeat, write_bounds};
use crate::agent::rewind::{Rewind, RewindContext, RewindError};
use crate::agent::workflow::checkpoint::{
    CHANGE_SET, CHANGES_UNKNOWN, CheckpointBundle, StepArtifact,
};
use crate::agent::workflow::spec::Step;
use crate::base::blocking;
use crate::base::error::{Kind, Report};
use crate::base::id::SessionId;
use crate::host::snapshot::{
    ContentStore, Manifest, RestoreConflictReason, Survey, SurveyLimits, TurnRecord,
    load_last_manifest,
};
use crate::record::event::{Canonical, WorkflowEventKind};
use crate::record::history::History;
use crate::tools::permission::canonical_digest;

/// How much of the diffs of earlier steps a step gets, in bytes.
const MAX_DIFF_BYTES: usize = 24 * 1024;

impl RunContext {
    /// The files that a child changed in the shared Workspace, with its file tools or its commands.
    pub(super) async fn changes_in_shared(
        &self,
        child: &SessionId,
        history: &History,
        bundle: &mut CheckpointBundle,
    ) -> Result<Vec<PathBuf>, Report> {
        let (context, history) = (self.rewind_context(child), history.clone());
        let is_tracked = self.tracker.is_some();
        let looking = move || {
            let is_known = refuse_unknown_changes(&history, &context, is_tracked).is_ok();
            match rewind_all_turns(&history, &context) {
                Ok(Rewind { plan, .. }) => {
                    let conflicts = plan.conflicts.into_iter().map(|conflict| conflict.change);
                    let all = plan.changes.into_iter().chain(conflicts);
                    Ok((all.map(|change| change.path).collect(), is_known))
                }
                Err(RewindError::NothingToUndo { .. }) => Ok((Vec::new(), is_known)),
                Err(error) => Err(Report::describe(&error)),
            }
        };
        let (changed, is_known) = flatten_join(blocking::run_blocking(looking).await)?;
        if !is_known {
            bundle.known_limitations.push(CHANGES_UNKNOWN.to_owned());
        }
        Ok(changed)
    }

    /// The files that a child changed in its own Workspace; adds a `change_set` artifact to the bundle.
    pub(super) async fn changes_in_own_workspace(
        &self,
        child: &SessionId,
        bundle: &mut CheckpointBundle,
    ) -> Result<Vec<PathBuf>, Report> {
        let child_workspace = self.children.child_workspaces().find(self.state_root(), child)?;
        let Some(child_workspace) = child_workspace else {
            return Err(Report::new(Kind::NotFound, "no Workspace"));
        };
        let parent = self.workspace.clone();
        let changes = blocking::run_blocking(move || child_workspace.find_changes(&parent)).await;
        let changes = changes.map_err(|error| Report::new(Kind::Crashed, error.to_string()))??;
        if !changes.is_empty() {
            bundle.artifacts.push(StepArtifact {
                kind: CHANGE_SET.to_owned(),
                provenance: "artifact".to_owned(),
                at: format!("pixir changes {child} --diff"),
                sha256: canonical_digest(&changes.to_json()),
                files: changes.files.len(),
            });
        }
        Ok(changes.files.into_iter().map(|change| change.path).collect())
    }

    /// The changes of dependencies in their own Workspaces, which this step cannot see: step id, diff, and number of
    /// files left out.
    pub(super) async fn diffs_of_dependencies(
        &self,
        before: &[CheckpointBundle],
    ) -> Vec<(String, String, usize)> {
        let left: Vec<&CheckpointBundle> =
            before.iter().filter(|bundle| bundle.has_changes()).collect();
        let share = MAX_DIFF_BYTES / left.len().max(1);
        let mut handed = Vec::new();
        for bundle in left {
            let child = bundle.child_session_id.as_deref().and_then(|id| SessionId::parse(id).ok());
            let found =
                child.map(|child| self.children.child_workspaces().find(self.state_root(), &child));
            let Some(Ok(Some(child_workspace))) = found else { continue };
            let (parent, secrets) = (self.workspace.clone(), Arc::clone(&self.secrets));
            let looking = move || {
                child_workspace
                    .find_changes(&parent)
                    .map(|changes| changes.format_diffs(&child_workspace.store(), &secrets, share))
            };
            match blocking::run_blocking(looking).await {
                Ok(Ok((diff, more))) => handed.push((bundle.step_id.clone(), diff, more)),
                Ok(Err(error)) => {
                    tracing::warn!(%error, step = bundle.step_id, "the changes of a step are not handed on");
                }
                Err(error) => {
                    tracing::warn!(%error, step = bundle.step_id, "the changes of a step are not handed on");
                }
            }
        }
        handed
    }

    /// Whether the child Workspace of a step still exists.
    pub(super) fn has_own_workspace(&self, bundle: &CheckpointBundle) -> bool {
        let child = bundle.child_session_id.as_deref().and_then(|id| SessionId::parse(id).ok());
        let found =
            child.map(|child| self.children.child_workspaces().find(self.state_root(), &child));
        matches!(found, Some(Ok(Some(_))))
    }

    /// Rolls back what children of a step changed in the shared Workspace, within the step's write set. Files outside
    /// of it are left alone, and files changed after `until` stop the rollback, because others may have changed them.
    /// The outer error is a Log that cannot be written.
    pub(super) async fn roll_back_step(
        &self,
        step: &Step,
        children: &[SessionId],
        until: i128,
    ) -> Result<Result<(), Report>, Report> {
        if let Err(report) = self.check_may_write() {
            return Ok(Err(report));
        }
        let mut files = 0;
        for child in children.iter().rev() {
            match self.roll_back_child(step, child, until).await {
                Ok(count) => files += count,
                Err(report) => return Ok(Err(report)),
            }
        }
        let children: Vec<String> = children.iter().map(ToString::to_string).collect();
        let facts = json!({ "children": children, "files": files });
        self.record(WorkflowEventKind::StepTakenBack, Some(&step.id), facts).await?;
        Ok(Ok(()))
    }

    async fn roll_back_child(
        &self,
        step: &Step,
        child: &SessionId,
        until: i128,
    ) -> Result<usize, Report> {
        // The child's id is recorded before its Log is created.
        if !self.state_root().has_log(child) {
            return Ok(0);
        }
        let session = self.children.open_child(child).await?;
        let history = session.history().await?;
        let (context, set) = (self.rewind_context(child), write_bounds(step));
        let is_tracked = self.tracker.is_some();
        let taking = move || -> Result<_, Report> {
            refuse_unknown_changes(&history, &context, is_tracked)?;
            let mut rewind = match rewind_all_turns(&history, &context) {
                Err(RewindError::NothingToUndo { .. }) => return Ok((0, None)),
                other => other?,
            };
            rewind.plan.changes.retain(|change| set.allows(&change.path));
            rewind.plan.conflicts.retain(|conflict| set.allows(&conflict.change.path));
            let changed_elsewhere: Vec<String> = rewind
                .plan
                .conflicts
                .iter()
                // Changes of an interrupted Turn, or made while a command ran, are uncertain; but these are in the
                // step's write set, and were not touched since.
                .filter(|conflict| {
                    let path = context.workspace.root().join(&conflict.change.path);
                    let may_be_own = matches!(
                        conflict.reason,
                        RestoreConflictReason::Unsure | RestoreConflictReason::WhileCommandRan
                    );
                    !may_be_own || heartbeat::changed_after(&path, until)
                })
                .map(|conflict| conflict.change.path.to_string_lossy().into_owned())
                .collect();
            if !changed_elsewhere.is_empty() {
                let message = format!("{} changed outside this run", changed_elsewhere.join(", "));
                return Err(Report::new(Kind::FileChanged, message));
            }
            rewind.check_conflicts(true, &context)?;
            let restored = rewind.restore(&context)?;
            if let Some((path, reason)) = restored.failed.first() {
                let message = format!("{}: {reason}", path.display());
                return Err(Report::new(Kind::WriteFailed, message));
            }
            let count = rewind.plan.changes.len() + rewind.plan.conflicts.len();
            Ok((count, Some(rewind.rewound_event(&restored))))
        };
        let (count, fact) = flatten_join(blocking::run_blocking(taking).await)?;
        if let Some(fact) = fact {
            session.record(fact).await?;
        }
        Ok(count)
    }

    /// Reopens the record of a child's last Turn until `close_record`: files that the checks of a step change count as
    /// changes of its child, even when the checks are interrupted.
    pub(super) async fn reopen_record(
        &self,
        child: &SessionId,
        turn: u64,
    ) -> Result<TurnRecord, String> {
        let context = self.rewind_context(child);
        let opening = move || {
            let store = ContentStore::for_session(&context.session_folder);
            let _hold = store.lock_shared()?;
            let survey =
                Survey { workspace: &context.workspace, store: &store, limits: context.limits };
            TurnRecord::reopen(&context.session_folder, turn, &survey)
        };
        let opened = blocking::run_blocking(opening).await.map_err(|error| error.to_string())?;
        opened.map_err(|error| error.to_string())
    }

    /// Closes a record that `reopen_record` opened.
    pub(super) async fn close_record(
        &self,
        child: &SessionId,
        mut record: TurnRecord,
    ) -> Result<(), String> {
        let context = self.rewind_context(child);
        let closing = move || {
            let store = ContentStore::for_session(&context.session_folder);
            let _hold = store.lock_shared()?;
            let survey =
                Survey { workspace: &context.workspace, store: &store, limits: context.limits };
            record.close(&context.session_folder, &survey)
        };
        let closed = blocking::run_blocking(closing).await.map_err(|error| error.to_string())?;
        closed.map_err(|error| error.to_string())
    }

    /// A manifest of the shared Workspace as it is now; the error is the reason why there is none.
    pub(super) async fn survey_workspace(&self) -> Result<Manifest, String> {
        let undo = self.children.config().undo;
        if !undo.enabled {
            return Err("`undo.enabled` is off".to_owned());
        }
        let (workspace, folder) = (self.workspace.clone(), self.session_folder.clone());
        let looking = move || {
            let store = ContentStore::for_session(&folder);
            let _hold = store.lock_shared().map_err(|error| error.to_string())?;
            let survey = Survey {
                workspace: &workspace,
                store: &store,
                limits: SurveyLimits::from_undo_settings(undo),
            };
            survey.run(load_last_manifest(&store).as_ref()).map_err(|error| error.to_string())
        };
        blocking::run_blocking(looking).await.unwrap_or_else(|error| Err(error.to_string()))
    }

    fn rewind_context(&self, child: &SessionId) -> RewindContext {
        RewindContext {
            workspace: self.workspace.clone(),
            session_folder: self.state_root().session_folder(child),
            limits: SurveyLimits::from_undo_settings(self.children.config().undo),
            // Steps that run at the same time have write sets that do not overlap.
            other_roots: Vec::new(),
        }
    }
}

/// Fails when changes of a child were not recorded: they cannot be rolled back, and must not count as no changes.
fn refuse_unknown_changes(
    history: &History,
    context: &RewindContext,
    is_tracked: bool,
) -> Result<(), Report> {
    let unknown = |reason: &str| {
        let message = format!("the changes of the step are not known: {reason}");
        Err(Report::new(Kind::FileChanged, message))
    };
    let turns = history.live_turns();
    let has_called = || history.facts().any(|fact| matches!(fact, Canonical::ToolCall(_)));
    if !is_tracked && !turns.is_empty() && has_called() {
        return unknown("`undo.enabled` is off");
    }
    for turn in turns {
        let record = TurnRecord::read(&context.session_folder, turn).map_err(RewindError::Read);
        if let Some(reason) = record?.survey_failure() {
            return unknown(reason);
        }
    }
    Ok(())
}

/// A rewind of all live Turns of a child.
fn rewind_all_turns(history: &History, context: &RewindContext) -> Result<Rewind, RewindError> {
    Rewind::plan_undo(history, history.live_turns().len().max(1), context)
}

fn flatten_join<T>(done: Result<Result<T, Report>, tokio::task::JoinError>) -> Result<T, Report> {
    done.unwrap_or_else(|error| Err(Report::new(Kind::Crashed, error.to_string())))
}
