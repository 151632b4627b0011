//! What a step changed in the Workspace that all share, and how that is taken back.

use std::path::PathBuf;
use std::sync::Arc;

use serde_json::json;

use super::{Stage, pulse, set_of};
use crate::disk;
use crate::error::{Kind, Report};
use crate::history::History;
use crate::id::SessionId;
use crate::rewind::{Rewind, RewindError, Site};
use crate::snapshot::{Limits, Reason};
use crate::workflow::checkpoint::{Artifact, Bundle};
use crate::workflow::digest::digest;
use crate::workflow::spec::Step;

/// How much of what earlier steps changed apart is handed on, in bytes.
const DIFFS: usize = 24 * 1024;

impl Stage {
    /// What a child changed in the shared Workspace: what its file tools wrote, and what was
    /// different after its commands.
    pub(super) async fn changed_shared(
        &self,
        child: &SessionId,
        history: &History,
    ) -> Result<Vec<PathBuf>, Report> {
        let (site, history) = (self.site(child), history.clone());
        let looking = move || match all_back(&history, &site) {
            Ok(rewind) => {
                let plan = rewind.plan;
                let conflicts = plan.conflicts.into_iter().map(|conflict| conflict.change);
                Ok(plan.changes.into_iter().chain(conflicts).map(|change| change.path).collect())
            }
            Err(RewindError::NothingToUndo { .. }) => Ok(Vec::new()),
            Err(error) => Err(Report::from(&error)),
        };
        joined(disk::work(looking).await)
    }

    /// What a child changed in a Workspace of its own; the bundle says where to look at it.
    pub(super) async fn changed_apart(
        &self,
        child: &SessionId,
        bundle: &mut Bundle,
    ) -> Result<Vec<PathBuf>, Report> {
        let annex = self.family.annexes().find(self.logs(), child);
        let annex = annex.map_err(|error| Report::from(&error))?;
        let Some(annex) = annex else { return Err(Report::new(Kind::NotFound, "no Workspace")) };
        let parent = self.workspace.clone();
        let changes = disk::work(move || annex.changes(&parent)).await;
        let changes = changes.map_err(|error| Report::new(Kind::Crashed, error.to_string()))?;
        let changes = changes.map_err(|error| Report::from(&error))?;
        if !changes.is_empty() {
            bundle.artifacts.push(Artifact {
                kind: "change_set".to_owned(),
                provenance: "artifact".to_owned(),
                at: format!("pixir changes {child} --diff"),
                sha256: digest(&changes.json()),
                files: changes.files.len(),
            });
        }
        Ok(changes.files.into_iter().map(|change| change.path).collect())
    }

    /// What the steps before this one changed in Workspaces of their own, where this one cannot look:
    /// step, diff, and how many files of it are left out.
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
            match disk::work(looking).await {
                Ok(Ok((diff, more))) => handed.push((bundle.step_id.clone(), diff, more)),
                Ok(Err(error)) => {
                    tracing::warn!(%error, step = bundle.step_id, "its changes are not handed on");
                }
                Err(error) => {
                    tracing::warn!(%error, step = bundle.step_id, "its changes are not handed on");
                }
            }
        }
        handed
    }

    /// Whether what a step left in a Workspace of its own is still there.
    pub(super) fn has_files(&self, bundle: &Bundle) -> bool {
        let child = bundle.child_session_id.as_deref().and_then(|id| SessionId::parse(id).ok());
        let found = child.map(|child| self.family.annexes().find(self.logs(), &child));
        matches!(found, Some(Ok(Some(_))))
    }

    /// Takes back what children of a step did to the shared Workspace, within the step's own set:
    /// whatever lies outside, or was changed after `until`, may be somebody else's. The outer error
    /// is a Log that cannot be written.
    pub(super) async fn take_back(
        &self,
        step: &Step,
        children: &[SessionId],
        until: i128,
    ) -> Result<Result<(), Report>, Report> {
        let mut files = 0;
        for child in children.iter().rev() {
            match self.take_back_one(step, child, until).await {
                Ok(count) => files += count,
                Err(report) => return Ok(Err(report)),
            }
        }
        let children: Vec<String> = children.iter().map(ToString::to_string).collect();
        let facts = json!({ "children": children, "files": files });
        self.record("step_taken_back", Some(&step.id), facts).await?;
        Ok(Ok(()))
    }

    async fn take_back_one(
        &self,
        step: &Step,
        child: &SessionId,
        until: i128,
    ) -> Result<usize, Report> {
        // Its name is on record before its Log is made.
        if !crate::paths::log(self.logs(), child).exists() {
            return Ok(0);
        }
        let session = self.family.open(child).await.map_err(|error| Report::from(&error))?;
        let history = session.history().await.map_err(|error| Report::from(&error))?;
        let (site, set) = (self.site(child), set_of(step));
        let taking = move || -> Result<_, Report> {
            let explain = |error: RewindError| Report::from(&error);
            let mut rewind = match all_back(&history, &site) {
                Err(RewindError::NothingToUndo { .. }) => return Ok((0, None)),
                other => other.map_err(explain)?,
            };
            rewind.plan.changes.retain(|change| set.allow(&change.path));
            rewind.plan.conflicts.retain(|conflict| set.allow(&conflict.change.path));
            let strangers: Vec<String> = rewind
                .plan
                .conflicts
                .iter()
                // A Turn that was cut off did not say how it left them; they are in its set, and
                // nobody touched them since.
                .filter(|conflict| {
                    let path = site.workspace.root().join(&conflict.change.path);
                    conflict.reason != Reason::Unsure || pulse::is_younger(&path, until)
                })
                .map(|conflict| conflict.change.path.to_string_lossy().into_owned())
                .collect();
            if !strangers.is_empty() {
                let message = format!("somebody else changed {}", strangers.join(", "));
                return Err(Report::new(Kind::FileChanged, message));
            }
            rewind.check(true, &site).map_err(explain)?;
            let restored = rewind.restore(&site).map_err(explain)?;
            if let Some((path, reason)) = restored.failed.first() {
                let message = format!("{}: {reason}", path.display());
                return Err(Report::new(Kind::WriteFailed, message));
            }
            let count = rewind.plan.changes.len() + rewind.plan.conflicts.len();
            Ok((count, Some(rewind.fact(&restored))))
        };
        let (count, fact) = joined(disk::work(taking).await)?;
        if let Some(fact) = fact {
            session.record(fact).await.map_err(|error| Report::from(&error))?;
        }
        Ok(count)
    }

    fn site(&self, child: &SessionId) -> Site {
        Site {
            workspace: self.workspace.clone(),
            session_folder: crate::paths::session_folder(self.logs(), child),
            limits: Limits::of(self.family.config().undo),
        }
    }
}

/// All Turns of a child that were not taken back yet.
fn all_back(history: &History, site: &Site) -> Result<Rewind, RewindError> {
    Rewind::back(history, history.live_turns().len().max(1), site)
}

fn joined<T>(done: Result<Result<T, Report>, tokio::task::JoinError>) -> Result<T, Report> {
    done.unwrap_or_else(|error| Err(Report::new(Kind::Crashed, error.to_string())))
}
