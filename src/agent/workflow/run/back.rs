//! Determines what a step changed, and rolls back its changes in the shared Workspace.

use std::path::PathBuf;
use std::sync::Arc;

use serde_json::json;

use super::{Stage, pulse, set_of};
use crate::agent::rewind::{Rewind, RewindError, Site};
use crate::agent::workflow::checkpoint::{Artifact, Bundle, CHANGE_SET, CHANGES_UNKNOWN};
use crate::agent::workflow::digest::digest;
use crate::agent::workflow::spec::Step;
use crate::base::blocking;
use crate::base::error::{Kind, Report};
use crate::base::id::SessionId;
use crate::host::snapshot::{Limits, Manifest, Reason, Record, Store, Survey, last_manifest};
use crate::record::event::{Canonical, WorkflowEventKind};
use crate::record::history::History;

/// How much of the diffs of earlier steps is handed on, in bytes.
const DIFFS: usize = 24 * 1024;

impl Stage {
    /// The files that a child changed in the shared Workspace, with its file tools or its commands.
    pub(super) async fn changed_shared(
        &self,
        child: &SessionId,
        history: &History,
        bundle: &mut Bundle,
    ) -> Result<Vec<PathBuf>, Report> {
        let (site, history) = (self.site(child), history.clone());
        let is_tracked = self.tracker.is_some();
        let looking = move || {
            let is_known = refuse_unknown(&history, &site, is_tracked).is_ok();
            match all_back(&history, &site) {
                Ok(Rewind { plan, .. }) => {
                    let conflicts = plan.conflicts.into_iter().map(|conflict| conflict.change);
                    let all = plan.changes.into_iter().chain(conflicts);
                    Ok((all.map(|change| change.path).collect(), is_known))
                }
                Err(RewindError::NothingToUndo { .. }) => Ok((Vec::new(), is_known)),
                Err(error) => Err(Report::describe(&error)),
            }
        };
        let (changed, is_known) = joined(blocking::work(looking).await)?;
        if !is_known {
            bundle.known_limitations.push(CHANGES_UNKNOWN.to_owned());
        }
        Ok(changed)
    }

    /// The files that a child changed in its own Workspace; adds a `change_set` artifact to the bundle.
    pub(super) async fn changed_apart(
        &self,
        child: &SessionId,
        bundle: &mut Bundle,
    ) -> Result<Vec<PathBuf>, Report> {
        let annex = self.family.annexes().find(self.logs(), child)?;
        let Some(annex) = annex else { return Err(Report::new(Kind::NotFound, "no Workspace")) };
        let parent = self.workspace.clone();
        let changes = blocking::work(move || annex.changes(&parent)).await;
        let changes = changes.map_err(|error| Report::new(Kind::Crashed, error.to_string()))??;
        if !changes.is_empty() {
            bundle.artifacts.push(Artifact {
                kind: CHANGE_SET.to_owned(),
                provenance: "artifact".to_owned(),
                at: format!("pixir changes {child} --diff"),
                sha256: digest(&changes.json()),
                files: changes.files.len(),
            });
        }
        Ok(changes.files.into_iter().map(|change| change.path).collect())
    }

    /// The changes of dependencies in their own Workspaces, which this step cannot see: step id, diff, and number of
    /// files left out.
    pub(super) async fn changes_before(&self, before: &[Bundle]) -> Vec<(String, String, usize)> {
        let left: Vec<&Bundle> = before.iter().filter(|bundle| bundle.has_changes()).collect();
        let share = DIFFS / left.len().max(1);
        let mut handed = Vec::new();
        for bundle in left {
            let child = bundle.child_session_id.as_deref().and_then(|id| SessionId::parse(id).ok());
            let found = child.map(|child| self.family.annexes().find(self.logs(), &child));
            let Some(Ok(Some(annex))) = found else { continue };
            let (parent, secrets) = (self.workspace.clone(), Arc::clone(&self.secrets));
            let looking = move || {
                annex.changes(&parent).map(|changes| changes.diff(&annex.store(), &secrets, share))
            };
            match blocking::work(looking).await {
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

    /// Whether the own Workspace of a step still exists.
    pub(super) fn has_files(&self, bundle: &Bundle) -> bool {
        let child = bundle.child_session_id.as_deref().and_then(|id| SessionId::parse(id).ok());
        let found = child.map(|child| self.family.annexes().find(self.logs(), &child));
        matches!(found, Some(Ok(Some(_))))
    }

    /// Rolls back what children of a step changed in the shared Workspace, within the step's write set. Files outside
    /// of it are left alone, and files changed after `until` stop the rollback, because others may have changed them.
    /// The outer error is a Log that cannot be written.
    pub(super) async fn take_back(
        &self,
        step: &Step,
        children: &[SessionId],
        until: i128,
    ) -> Result<Result<(), Report>, Report> {
        if let Err(report) = self.may_write() {
            return Ok(Err(report));
        }
        let mut files = 0;
        for child in children.iter().rev() {
            match self.take_back_one(step, child, until).await {
                Ok(count) => files += count,
                Err(report) => return Ok(Err(report)),
            }
        }
        let children: Vec<String> = children.iter().map(ToString::to_string).collect();
        let facts = json!({ "children": children, "files": files });
        self.record(WorkflowEventKind::StepTakenBack, Some(&step.id), facts).await?;
        Ok(Ok(()))
    }

    async fn take_back_one(
        &self,
        step: &Step,
        child: &SessionId,
        until: i128,
    ) -> Result<usize, Report> {
        // The child's id is recorded before its Log is created.
        if !self.logs().has_log(child) {
            return Ok(0);
        }
        let session = self.family.open(child).await?;
        let history = session.history().await?;
        let (site, set) = (self.site(child), set_of(step));
        let is_tracked = self.tracker.is_some();
        let taking = move || -> Result<_, Report> {
            refuse_unknown(&history, &site, is_tracked)?;
            let mut rewind = match all_back(&history, &site) {
                Err(RewindError::NothingToUndo { .. }) => return Ok((0, None)),
                other => other?,
            };
            rewind.plan.changes.retain(|change| set.allow(&change.path));
            rewind.plan.conflicts.retain(|conflict| set.allow(&conflict.change.path));
            let strangers: Vec<String> = rewind
                .plan
                .conflicts
                .iter()
                // Changes of an interrupted Turn, or made while a command ran, are uncertain; but these are in the
                // step's write set, and were not touched since.
                .filter(|conflict| {
                    let path = site.workspace.root().join(&conflict.change.path);
                    let may_be_own =
                        matches!(conflict.reason, Reason::Unsure | Reason::WhileCommandRan);
                    !may_be_own || pulse::is_younger(&path, until)
                })
                .map(|conflict| conflict.change.path.to_string_lossy().into_owned())
                .collect();
            if !strangers.is_empty() {
                let message = format!("{} changed outside this run", strangers.join(", "));
                return Err(Report::new(Kind::FileChanged, message));
            }
            rewind.check(true, &site)?;
            let restored = rewind.restore(&site)?;
            if let Some((path, reason)) = restored.failed.first() {
                let message = format!("{}: {reason}", path.display());
                return Err(Report::new(Kind::WriteFailed, message));
            }
            let count = rewind.plan.changes.len() + rewind.plan.conflicts.len();
            Ok((count, Some(rewind.fact(&restored))))
        };
        let (count, fact) = joined(blocking::work(taking).await)?;
        if let Some(fact) = fact {
            session.record(fact).await?;
        }
        Ok(count)
    }

    /// Reopens the record of a child's last Turn until `close_record`: files that the checks of a step change count as
    /// changes of its child, even when the checks are interrupted.
    pub(super) async fn reopen(&self, child: &SessionId, turn: u64) -> Result<Record, String> {
        let site = self.site(child);
        let opening = move || {
            let store = Store::beside(&site.session_folder);
            let _hold = store.hold()?;
            let survey = Survey { workspace: &site.workspace, store: &store, limits: site.limits };
            Record::reopen(&site.session_folder, turn, &survey)
        };
        let opened = blocking::work(opening).await.map_err(|error| error.to_string())?;
        opened.map_err(|error| error.to_string())
    }

    /// Closes a record that `reopen_record` opened.
    pub(super) async fn close(&self, child: &SessionId, mut record: Record) -> Result<(), String> {
        let site = self.site(child);
        let closing = move || {
            let store = Store::beside(&site.session_folder);
            let _hold = store.hold()?;
            let survey = Survey { workspace: &site.workspace, store: &store, limits: site.limits };
            record.close(&site.session_folder, &survey)
        };
        let closed = blocking::work(closing).await.map_err(|error| error.to_string())?;
        closed.map_err(|error| error.to_string())
    }

    /// A manifest of the shared Workspace as it is now; the error is the reason why there is none.
    pub(super) async fn survey(&self) -> Result<Manifest, String> {
        let undo = self.family.config().undo;
        if !undo.enabled {
            return Err("`undo.enabled` is off".to_owned());
        }
        let (workspace, folder) = (self.workspace.clone(), self.folder.clone());
        let looking = move || {
            let store = Store::beside(&folder);
            let _hold = store.hold().map_err(|error| error.to_string())?;
            let survey = Survey { workspace: &workspace, store: &store, limits: Limits::of(undo) };
            survey.take(last_manifest(&store).as_ref()).map_err(|error| error.to_string())
        };
        blocking::work(looking).await.unwrap_or_else(|error| Err(error.to_string()))
    }

    fn site(&self, child: &SessionId) -> Site {
        Site {
            workspace: self.workspace.clone(),
            session_folder: self.logs().session_folder(child),
            limits: Limits::of(self.family.config().undo),
            // Steps that run at the same time have write sets that do not overlap.
            neighbours: Vec::new(),
        }
    }
}

/// Fails when changes of a child were not recorded: they cannot be rolled back, and must not be taken for no changes.
fn refuse_unknown(history: &History, site: &Site, is_tracked: bool) -> Result<(), Report> {
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
        let record = Record::read(&site.session_folder, turn).map_err(RewindError::Read);
        if let Some(reason) = record?.gap() {
            return unknown(reason);
        }
    }
    Ok(())
}

/// A rewind of all live Turns of a child.
fn all_back(history: &History, site: &Site) -> Result<Rewind, RewindError> {
    Rewind::back(history, history.live_turns().len().max(1), site)
}

fn joined<T>(done: Result<Result<T, Report>, tokio::task::JoinError>) -> Result<T, Report> {
    done.unwrap_or_else(|error| Err(Report::new(Kind::Crashed, error.to_string())))
}
