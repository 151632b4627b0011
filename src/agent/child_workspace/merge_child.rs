//! The tool `merge_child`: merges the changes of a child into the Workspace of its parent.

use std::fmt::Write;
use std::path::Path;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use super::changes::escape_path;
use super::{
    AppliedMerge, ChildChanges, ChildWorkspace, ChildWorkspaceError, ChildWorkspaces, MergePlan,
    RecoveredMerge, merge_lock, recover_merge,
};
use crate::base::blocking;
use crate::base::error::{Kind, counted};
use crate::base::id::SessionId;
use crate::base::secret::Secrets;
use crate::base::tool_error::ToolError;
use crate::host::snapshot::{ContentHash, ContentStore};
use crate::host::workspace::Workspace;
use crate::record::event::{Canonical, Extra, SubagentEvent, SubagentEventKind};
use crate::tools::tool::{CallEffect, CallPlan, Tool, ToolContext, ToolOutput};

/// How many paths an Event names; its record has all of them.
const MAX_NAMED_FILES: usize = 50;

/// How much of the diff a permission request shows, in bytes.
const MAX_DIFF_BYTES: usize = 64 * 1024;

/// The tool `merge_child`.
#[derive(Debug)]
pub struct MergeChild(ChildWorkspaces);

/// The arguments of `merge_child`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Args {
    /// The child's id.
    id: String,
    /// Only say what would be merged.
    dry_run: Option<bool>,
}

impl MergeChild {
    /// A `merge_child` for these child Workspaces.
    pub fn new(child_workspaces: ChildWorkspaces) -> Self {
        Self(child_workspaces)
    }

    /// Finds the Workspace of a child of this Session, by Subagent id or Session id.
    fn child_workspace(
        &self,
        id: &str,
        context: &ToolContext,
    ) -> Result<ChildWorkspace, ChildWorkspaceError> {
        let unknown = || ChildWorkspaceError::NoChildWorkspace(id.to_owned());
        let logs = context.session_folder.root();
        let parent = context.session_folder.id();
        let mut own = self.0.list_for_parent(logs, parent).into_iter();
        if let Some(child_workspace) =
            own.rfind(|child_workspace| child_workspace.subagent() == Some(id))
        {
            return Ok(child_workspace);
        }
        let child = SessionId::parse(id).map_err(|_| unknown())?;
        let found = self.0.find(logs, &child)?;
        found.filter(|child_workspace| child_workspace.parent() == parent).ok_or_else(unknown)
    }
}

impl Tool for MergeChild {
    type Args = Args;
    const NAME: &'static str = "merge_child";
    const DESCRIPTION: &'static str = "Merges the files that a child changed in its own workspace \
        (isolated or worktree) into yours, all or none. Text that both changed is merged line by \
        line; on a conflict nothing is written and every conflict is named.";

    fn plan(&self, args: &Args, context: &ToolContext) -> Result<CallPlan, ToolError> {
        let child_workspace = self.child_workspace(&args.id, context)?;
        child_workspace.refuse_busy()?;
        let look = preview_merge(&child_workspace, context)?;
        let effect = if args.dry_run == Some(true) { CallEffect::Read } else { CallEffect::Write };
        let (diff, more) =
            look.changes.format_diffs(&child_workspace.store(), &context.secrets, MAX_DIFF_BYTES);
        let summary = format!("merge {} of {}", counted(look.merge.files.len(), "file"), args.id);
        let paths = look.merge.files.iter().map(|change| change.path.clone()).collect();
        // An approval holds for this child and these changes only.
        let about = ContentHash::digest(look.changes.to_json().to_string().as_bytes()).to_string();
        Ok(CallPlan {
            paths,
            diff: Some(diff),
            diff_is_cut: more > 0,
            target_command: Some(about),
            ..CallPlan::new(effect, summary)
        })
    }

    async fn run(&self, args: Args, context: ToolContext) -> Result<ToolOutput, ToolError> {
        let child_workspace = self.child_workspace(&args.id, &context)?;
        let is_dry = args.dry_run == Some(true);
        // A merge that has begun is finished and recorded also when its caller is dropped.
        let merging =
            tokio::spawn(async move { merge_and_record(child_workspace, context, is_dry).await });
        merging.await.unwrap_or_else(|_| Err(ToolError::from(ChildWorkspaceError::TaskPanicked)))
    }
}

/// Merges and records the merge in the Log, or does neither.
async fn merge_and_record(
    child_workspace: ChildWorkspace,
    context: ToolContext,
    is_dry: bool,
) -> Result<ToolOutput, ToolError> {
    let _alone = merge_lock().await;
    if context.cancel.is_cancelled() {
        return Err(ToolError::new(Kind::Interrupted, "interrupted; nothing was merged"));
    }
    let (own, inside) = (child_workspace.clone(), context.clone());
    let work = move || merge_unless_dry_run(&own, &inside, is_dry);
    let (look, applied) =
        blocking::run_blocking(work).await.unwrap_or(Err(ChildWorkspaceError::TaskPanicked))?;
    let is_done = applied.is_some();
    if let Some(applied) = applied {
        if let Err(error) = context.events.record(merged_event(&child_workspace, &applied)).await {
            // The lock has to be released first; the unrecorded merge must not be built upon.
            drop(applied);
            let back = blocking::run_blocking(move || {
                roll_back_unrecorded(&child_workspace, &context.workspace)
            })
            .await;
            back.unwrap_or(Err(ChildWorkspaceError::TaskPanicked))?;
            return Err(error);
        }
        applied.mark_recorded();
    }
    Ok(format_output(&look, is_done, is_dry))
}

/// Rolls back a merge that is not in the Log.
fn roll_back_unrecorded(
    child_workspace: &ChildWorkspace,
    workspace: &Workspace,
) -> Result<Option<RecoveredMerge>, ChildWorkspaceError> {
    recover_merge(workspace, &child_workspace.store(), &child_workspace.parent_folder())
        .map_err(ChildWorkspaceError::Storage)
}

/// The changes of a child, and the plan to merge them.
struct MergePreview {
    changes: ChildChanges,
    merge: MergePlan,
    /// An interrupted merge that was rolled back first.
    recovered: Option<RecoveredMerge>,
}

fn preview_merge(
    child_workspace: &ChildWorkspace,
    context: &ToolContext,
) -> Result<MergePreview, ChildWorkspaceError> {
    let workspace = &context.workspace;
    let is_unsaved = |path: &Path| {
        let Ok(bytes) = std::fs::read(workspace.root().join(path)) else { return false };
        context.editor.unsaved_text(&workspace.root().join(path), &bytes).is_some()
    };
    let changes = child_workspace.find_changes(workspace)?;
    let merge = child_workspace.plan_merge(&changes, workspace, &is_unsaved)?;
    Ok(MergePreview { changes, merge, recovered: None })
}

/// Merges unless `is_dry`; the second value is the applied merge.
fn merge_unless_dry_run(
    child_workspace: &ChildWorkspace,
    context: &ToolContext,
    is_dry: bool,
) -> Result<(MergePreview, Option<AppliedMerge>), ChildWorkspaceError> {
    child_workspace.refuse_busy()?;
    let recovered =
        if is_dry { None } else { roll_back_unrecorded(child_workspace, &context.workspace)? };
    let look = MergePreview { recovered, ..preview_merge(child_workspace, context)? };
    if is_dry || (look.merge.is_up_to_date()) {
        return Ok((look, None));
    }
    let tracker = context.tracker.as_ref();
    let (workspace, stop) = (&context.workspace, &context.cancel);
    let applied =
        child_workspace.apply_merge(&look.merge, &look.changes, workspace, tracker, stop)?;
    Ok((look, Some(applied)))
}

fn format_output(look: &MergePreview, is_done: bool, is_dry: bool) -> ToolOutput {
    let MergePreview { changes, merge, recovered } = look;
    let mut text = String::new();
    if let Some(recovered) = recovered {
        writeln!(text, "{recovered}").ok();
    }
    if !merge.conflicts.is_empty() {
        writeln!(text, "{} in conflict:", counted(merge.conflicts.len(), "file")).ok();
        for conflict in &merge.conflicts {
            writeln!(text, "! {}: {}", escape_path(&conflict.path), conflict.reason).ok();
        }
    }
    let first = match (changes.is_empty(), merge.is_up_to_date(), is_done) {
        (true, _, _) => "the child changed nothing".to_owned(),
        (_, true, _) => "everything that the child changed is here already".to_owned(),
        (_, _, true) => format!("merged {}:", counted(merge.files.len(), "file")),
        _ => format!("would merge {}:", counted(merge.files.len(), "file")),
    };
    writeln!(text, "{first}").ok();
    for change in &merge.files {
        let note =
            if merge.merged_by_line.contains(&change.path) { " (both changed it)" } else { "" };
        writeln!(text, "{}{note}", escape_path(&change.path)).ok();
    }
    let mut details = merge.to_json();
    details["dry_run"] = json!(is_dry);
    ToolOutput::new(merge.conflicts.is_empty(), text, details)
}

/// The Event of a merge.
pub fn merged_event(child_workspace: &ChildWorkspace, applied: &AppliedMerge) -> Canonical {
    subagent_event(child_workspace, SubagentEventKind::Merged, applied)
}

/// The Event of a merge that was rolled back.
pub fn merge_taken_back_event(
    child_workspace: &ChildWorkspace,
    applied: &AppliedMerge,
) -> Canonical {
    subagent_event(child_workspace, SubagentEventKind::MergeTakenBack, applied)
}

fn subagent_event(
    child_workspace: &ChildWorkspace,
    kind: SubagentEventKind,
    AppliedMerge { transaction, record, .. }: &AppliedMerge,
) -> Canonical {
    let files: Vec<String> = transaction
        .files()
        .take(MAX_NAMED_FILES)
        .map(|path| path.to_string_lossy().into_owned())
        .collect();
    let count = transaction.files().count();
    let facts = json!({
        "workspace_mode": child_workspace.mode().name(),
        "files": files,
        "file_count": count,
        "record": record,
    });
    let extra: Extra = match facts {
        serde_json::Value::Object(facts) => facts.into_iter().collect(),
        _ => Extra::new(),
    };
    SubagentEvent {
        event: kind,
        subagent_id: child_workspace.subagent().map(str::to_owned),
        child_session_id: Some(child_workspace.child().to_string()),
        summary: Some(counted(count, "file")),
        extra,
        ..SubagentEvent::default()
    }
    .into()
}

/// The diff of all changes for people, and the number of files left out.
pub fn full_diff(
    changes: &ChildChanges,
    store: &ContentStore,
    secrets: &Secrets,
) -> (String, usize) {
    changes.format_diffs(store, secrets, MAX_DIFF_BYTES * 16)
}
