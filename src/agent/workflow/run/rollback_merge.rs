//! Records what a run merged into the shared Workspace, and rolls back merges.

use serde_json::{Value, json};

use super::RunContext;
use crate::agent::child_workspace;
use crate::agent::child_workspace::{
    AppliedMerge, ChildWorkspace, ChildWorkspaceError, MergeTransaction,
};
use crate::agent::workflow::spec::Step;
use crate::base::blocking;
use crate::base::error::{Kind, Report};
use crate::host::snapshot::{ContentHash, ContentStore};
use crate::record::event::{
    Canonical, PermissionMode, SubagentEvent, SubagentEventKind, WorkflowEventKind,
};
use crate::record::history::History;

/// The field that names the run and step of a merge, so that merges by hand are never rolled back.
const APPLIED_BY: &str = "applied_by";

impl RunContext {
    /// The Event for a merge by a step.
    pub(super) fn merged_event(
        &self,
        step: &Step,
        child_workspace: &ChildWorkspace,
        done: &AppliedMerge,
    ) -> Canonical {
        let mut fact = child_workspace::merged_event(child_workspace, done);
        if let Canonical::SubagentEvent(event) = &mut fact {
            event.extra.insert(APPLIED_BY.to_owned(), self.step_name(step).into());
        }
        fact
    }

    fn step_name(&self, step: &Step) -> String {
        format!("{}/{}", self.run_id, step.id)
    }

    /// Rolls back what a step merged, the last merge first: a new attempt must not find it, and changes whose approval
    /// no longer counts must not stay. The outer error is a Log that cannot be written.
    pub(super) async fn roll_back_merges(&self, step: &Step) -> Result<Result<(), Report>, Report> {
        let session = self.children.session();
        let history = session.history().await?;
        let merges = live_merges(&history, &self.step_name(step));
        if merges.is_empty() {
            return Ok(Ok(()));
        }
        if let Err(report) = self.check_may_write() {
            return Ok(Err(report));
        }
        let _alone = child_workspace::merge_lock().await;
        let mut files = 0;
        for (merged, record) in merges.into_iter().rev() {
            let done = match self.roll_back_merge(record).await {
                Ok(done) => done,
                Err(report) => return Ok(Err(report)),
            };
            files += done.transaction.files().count();
            let gone = SubagentEvent { event: SubagentEventKind::MergeTakenBack, ..merged };
            session.record(gone.into()).await?;
            done.mark_recorded();
        }
        self.record(WorkflowEventKind::StepTakenBack, Some(&step.id), json!({ "files": files }))
            .await?;
        Ok(Ok(()))
    }

    /// Rolls back an interrupted merge, before the files are read or copied.
    pub(super) async fn recover_interrupted_merge(&self) -> Result<(), Report> {
        if self.check_may_write().is_err() {
            return Ok(());
        }
        let _alone = child_workspace::merge_lock().await;
        let (workspace, folder) = (self.workspace.clone(), self.session_folder.clone());
        let taking = move || {
            child_workspace::recover_merge(&workspace, &ContentStore::for_session(&folder), &folder)
        };
        match blocking::run_blocking(taking).await {
            Ok(Ok(None)) => Ok(()),
            Ok(Ok(Some(recovered))) => {
                tracing::warn!(%recovered, "recovered from an interrupted merge");
                Ok(())
            }
            Ok(Err(error)) => Err(Report::describe(&ChildWorkspaceError::Storage(error))),
            Err(error) => Err(Report::new(Kind::Crashed, error.to_string())),
        }
    }

    async fn roll_back_merge(&self, record: ContentHash) -> Result<AppliedMerge, Report> {
        let (workspace, folder, tracker) =
            (self.workspace.clone(), self.session_folder.clone(), self.tracker.clone());
        let taking = move || {
            let store = ContentStore::for_session(&folder);
            child_workspace::recover_merge(&workspace, &store, &folder)
                .map_err(ChildWorkspaceError::Storage)?;
            let transaction = MergeTransaction::load(&record, &store);
            let transaction = transaction.map_err(ChildWorkspaceError::BaseMissing)?;
            transaction.refuse_foreign_changes(&workspace)?;
            transaction
                .roll_back(record, &workspace, &store, &folder, tracker.as_ref())
                .map_err(|broken| Report::from(ChildWorkspaceError::MergeFailed(broken)))
        };
        let taken = blocking::run_blocking(taking).await;
        taken.unwrap_or_else(|error| Err(Report::new(Kind::Crashed, error.to_string())))
    }

    /// Refuses changes to the shared Workspace in read-only mode.
    pub(super) fn check_may_write(&self) -> Result<(), Report> {
        if self.permissions.mode() == PermissionMode::ReadOnly {
            let message = "read-only mode forbids changes; `--auto` allows them";
            return Err(Report::new(Kind::PermissionDenied, message));
        }
        Ok(())
    }
}

/// The merges of a step that were not rolled back, each with the hash of its stored transaction, the oldest first.
fn live_merges(history: &History, name: &str) -> Vec<(SubagentEvent, ContentHash)> {
    let mut live: Vec<&Canonical> = history.live_backwards().map(|(_, fact)| fact).collect();
    live.reverse();
    let mut merges: Vec<(SubagentEvent, ContentHash)> = Vec::new();
    for fact in live {
        let Canonical::SubagentEvent(event) = fact else { continue };
        let record = || serde_json::from_value(event.extra.get("record")?.clone()).ok();
        match event.event {
            SubagentEventKind::Merged => {
                merges.extend(record().map(|record| (event.clone(), record)));
            }
            SubagentEventKind::MergeTakenBack => {
                let is_its_own = |(merge, _): &(SubagentEvent, ContentHash)| {
                    merge.child_session_id == event.child_session_id
                };
                if let Some(last) = merges.iter().rposition(is_its_own) {
                    merges.remove(last);
                }
            }
            _ => {}
        }
    }
    let by = Some(Value::from(name));
    merges.retain(|(merge, _)| merge.extra.get(APPLIED_BY) == by.as_ref());
    merges
}
