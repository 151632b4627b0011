//! What a run merged into the Workspace that all share, and how that is taken back.

use serde_json::{Value, json};

use super::Stage;
use crate::annex::{self, Annex, AnnexError, Deed, Done};
use crate::disk;
use crate::error::{Kind, Report};
use crate::event::{
    Canonical, PermissionMode, SubagentEvent, SubagentEventKind, WorkflowEventKind,
};
use crate::history::History;
use crate::snapshot::{Hash, Store};
use crate::workflow::spec::Step;

/// Which step of which run merged: nobody takes back what somebody merged by hand.
const APPLIED_BY: &str = "applied_by";

impl Stage {
    /// The fact that a step merged something.
    pub(super) fn applied(&self, step: &Step, annex: &Annex, done: &Done) -> Canonical {
        let mut fact = annex::merged(annex, done);
        if let Canonical::SubagentEvent(event) = &mut fact {
            event.extra.insert(APPLIED_BY.to_owned(), self.name_of(step).into());
        }
        fact
    }

    fn name_of(&self, step: &Step) -> String {
        format!("{}/{}", self.run, step.id)
    }

    /// Takes back what a step merged, the last merge first: whoever works anew must not find it, and
    /// what nobody approves any more must not stay. The outer error is a Log that cannot be written.
    pub(super) async fn take_back_merges(&self, step: &Step) -> Result<Result<(), Report>, Report> {
        let session = self.family.session();
        let history = session.history().await?;
        let merges = merges_by(&history, &self.name_of(step));
        if merges.is_empty() {
            return Ok(Ok(()));
        }
        if let Err(report) = self.may_write() {
            return Ok(Err(report));
        }
        let _alone = annex::alone().await;
        let mut files = 0;
        for (merged, record) in merges.into_iter().rev() {
            let done = match self.unmerge(record).await {
                Ok(done) => done,
                Err(report) => return Ok(Err(report)),
            };
            files += done.deed.files().count();
            let gone = SubagentEvent { event: SubagentEventKind::MergeTakenBack, ..merged };
            session.record(gone.into()).await?;
            done.recorded();
        }
        self.record(WorkflowEventKind::StepTakenBack, Some(&step.id), json!({ "files": files }))
            .await?;
        Ok(Ok(()))
    }

    /// What a merge had written that was cut off goes before anybody looks at the files, or copies them.
    pub(super) async fn take_back_half_a_merge(&self) -> Result<(), Report> {
        if self.may_write().is_err() {
            return Ok(());
        }
        let _alone = annex::alone().await;
        let (workspace, folder) = (self.workspace.clone(), self.folder.clone());
        let taking = move || annex::recover(&workspace, &Store::beside(&folder), &folder);
        match disk::work(taking).await {
            Ok(Ok(None)) => Ok(()),
            Ok(Ok(Some(recovered))) => {
                tracing::warn!(%recovered, "a merge was cut off");
                Ok(())
            }
            Ok(Err(error)) => Err(Report::describe(&AnnexError::Keep(error))),
            Err(error) => Err(Report::new(Kind::Crashed, error.to_string())),
        }
    }

    async fn unmerge(&self, record: Hash) -> Result<Done, Report> {
        let (workspace, folder, tracker) =
            (self.workspace.clone(), self.folder.clone(), self.tracker.clone());
        let taking = move || {
            let store = Store::beside(&folder);
            annex::recover(&workspace, &store, &folder).map_err(AnnexError::Keep)?;
            let deed = Deed::kept(&record, &store);
            let deed = deed.map_err(AnnexError::Lost)?;
            deed.refuse_strangers(&workspace)?;
            deed.take_back(record, &workspace, &store, &folder, tracker.as_ref())
                .map_err(|broken| Report::from(AnnexError::Broken(broken)))
        };
        let taken = disk::work(taking).await;
        taken.unwrap_or_else(|error| Err(Report::new(Kind::Crashed, error.to_string())))
    }

    /// Refuses whatever changes the files that all share, when nothing may.
    pub(super) fn may_write(&self) -> Result<(), Report> {
        if self.stance.mode() == PermissionMode::ReadOnly {
            let message = "nothing may be written in read-only mode, and `--auto` ends that";
            return Err(Report::new(Kind::PermissionDenied, message));
        }
        Ok(())
    }
}

/// The merges of a step that were not taken back, and where each is kept, the oldest first.
fn merges_by(history: &History, name: &str) -> Vec<(SubagentEvent, Hash)> {
    let mut live: Vec<&Canonical> = history.live_backwards().map(|(_, fact)| fact).collect();
    live.reverse();
    let mut merges: Vec<(SubagentEvent, Hash)> = Vec::new();
    for fact in live {
        let Canonical::SubagentEvent(event) = fact else { continue };
        let record = || serde_json::from_value(event.extra.get("record")?.clone()).ok();
        match event.event {
            SubagentEventKind::Merged => {
                merges.extend(record().map(|record| (event.clone(), record)));
            }
            SubagentEventKind::MergeTakenBack => {
                let is_its_own = |(merge, _): &(SubagentEvent, Hash)| {
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
