//! The tool `merge_child`: merges the changes of a child into the Workspace of its parent.

use std::fmt::Write;
use std::path::Path;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use super::changes::shown;
use super::{Annex, AnnexError, Annexes, Changes, Done, Merge, Recovered, alone, recover};
use crate::base::blocking;
use crate::base::error::{Kind, counted};
use crate::base::id::SessionId;
use crate::base::secret::Secrets;
use crate::base::tool_error::ToolError;
use crate::host::snapshot::{Hash, Store};
use crate::host::workspace::Workspace;
use crate::record::event::{Canonical, Extra, SubagentEvent, SubagentEventKind};
use crate::tools::tool::{Effect, Plan, Tool, ToolContext, ToolOutput};

/// How many paths an Event names; its record has all of them.
const NAMED: usize = 50;

/// How much of the diff a permission request shows, in bytes.
const SHOWN_DIFF: usize = 64 * 1024;

/// The tool `merge_child`.
#[derive(Debug)]
pub struct MergeChild(Annexes);

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
    pub fn new(annexes: Annexes) -> Self {
        Self(annexes)
    }

    /// Finds the Workspace of a child of this Session, by Subagent id or Session id.
    fn annex(&self, id: &str, context: &ToolContext) -> Result<Annex, AnnexError> {
        let unknown = || AnnexError::NoAnnex(id.to_owned());
        let logs = context.session_folder.root();
        let parent = context.session_folder.id();
        let mut own = self.0.of_parent(logs, parent).into_iter();
        if let Some(annex) = own.rfind(|annex| annex.subagent() == Some(id)) {
            return Ok(annex);
        }
        let child = SessionId::parse(id).map_err(|_| unknown())?;
        let found = self.0.find(logs, &child)?;
        found.filter(|annex| annex.parent() == parent).ok_or_else(unknown)
    }
}

impl Tool for MergeChild {
    type Args = Args;
    const NAME: &'static str = "merge_child";
    const MANUAL: &'static str = "Brings the files that a child changed in its own workspace \
        (isolated or worktree) into yours, all or none. Text that both changed is merged line by \
        line; on a conflict nothing is written and every conflict is named.";

    fn plan(&self, args: &Args, context: &ToolContext) -> Result<Plan, ToolError> {
        let annex = self.annex(&args.id, context)?;
        annex.refuse_busy()?;
        let look = look(&annex, context)?;
        let effect = if args.dry_run == Some(true) { Effect::Read } else { Effect::Write };
        let (diff, more) = look.changes.diff(&annex.store(), &context.secrets, SHOWN_DIFF);
        let summary = format!("merge {} of {}", counted(look.merge.files.len(), "file"), args.id);
        let paths = look.merge.files.iter().map(|change| change.path.clone()).collect();
        // An approval holds for this child and these changes only.
        let about = Hash::of(look.changes.json().to_string().as_bytes()).to_string();
        Ok(Plan {
            paths,
            diff: Some(diff),
            diff_is_cut: more > 0,
            about: Some(about),
            ..Plan::new(effect, summary)
        })
    }

    async fn run(&self, args: Args, context: ToolContext) -> Result<ToolOutput, ToolError> {
        let annex = self.annex(&args.id, &context)?;
        let is_dry = args.dry_run == Some(true);
        // A merge that has begun is finished and recorded also when its caller is dropped.
        let merging = tokio::spawn(async move { bring(annex, context, is_dry).await });
        merging.await.unwrap_or_else(|_| Err(ToolError::from(AnnexError::Crashed)))
    }
}

/// Merges and records the merge in the Log, or does neither.
async fn bring(annex: Annex, context: ToolContext, is_dry: bool) -> Result<ToolOutput, ToolError> {
    let _alone = alone().await;
    if context.cancel.is_cancelled() {
        return Err(ToolError::new(Kind::Interrupted, "interrupted; nothing was merged"));
    }
    let (own, inside) = (annex.clone(), context.clone());
    let work = move || carry_out(&own, &inside, is_dry);
    let (look, done) = blocking::work(work).await.unwrap_or(Err(AnnexError::Crashed))?;
    let is_done = done.is_some();
    if let Some(done) = done {
        if let Err(error) = context.signals.record(merged(&annex, &done)).await {
            // The lock has to be released first; the unrecorded merge must not be built upon.
            drop(done);
            let back = blocking::work(move || recovered(&annex, &context.workspace)).await;
            back.unwrap_or(Err(AnnexError::Crashed))?;
            return Err(error);
        }
        done.recorded();
    }
    Ok(told(&look, is_done, is_dry))
}

/// Rolls back a merge that is not in the Log.
fn recovered(annex: &Annex, workspace: &Workspace) -> Result<Option<Recovered>, AnnexError> {
    recover(workspace, &annex.store(), &annex.parent_folder()).map_err(AnnexError::Keep)
}

/// What a merge would do.
struct Look {
    changes: Changes,
    merge: Merge,
    /// An interrupted merge that was rolled back first.
    recovered: Option<Recovered>,
}

fn look(annex: &Annex, context: &ToolContext) -> Result<Look, AnnexError> {
    let workspace = &context.workspace;
    let is_unsaved = |path: &Path| {
        let Ok(bytes) = std::fs::read(workspace.root().join(path)) else { return false };
        context.desk.unsaved(&workspace.root().join(path), &bytes).is_some()
    };
    let changes = annex.changes(workspace)?;
    let merge = annex.merge(&changes, workspace, &is_unsaved)?;
    Ok(Look { changes, merge, recovered: None })
}

/// Merges unless `is_dry`; the second value is the applied merge.
fn carry_out(
    annex: &Annex,
    context: &ToolContext,
    is_dry: bool,
) -> Result<(Look, Option<Done>), AnnexError> {
    annex.refuse_busy()?;
    let recovered = if is_dry { None } else { recovered(annex, &context.workspace)? };
    let look = Look { recovered, ..look(annex, context)? };
    if is_dry || (look.merge.is_done()) {
        return Ok((look, None));
    }
    let tracker = context.tracker.as_ref();
    let (workspace, stop) = (&context.workspace, &context.cancel);
    let done = annex.carry_out(&look.merge, &look.changes, workspace, tracker, stop)?;
    Ok((look, Some(done)))
}

fn told(look: &Look, is_done: bool, is_dry: bool) -> ToolOutput {
    let Look { changes, merge, recovered } = look;
    let mut text = String::new();
    if let Some(recovered) = recovered {
        writeln!(text, "{recovered}").ok();
    }
    if !merge.conflicts.is_empty() {
        writeln!(text, "{} in conflict:", counted(merge.conflicts.len(), "file")).ok();
        for conflict in &merge.conflicts {
            writeln!(text, "! {}: {}", shown(&conflict.path), conflict.reason).ok();
        }
    }
    let first = match (changes.is_empty(), merge.is_done(), is_done) {
        (true, _, _) => "the child changed nothing".to_owned(),
        (_, true, _) => "everything that the child changed is here already".to_owned(),
        (_, _, true) => format!("merged {}:", counted(merge.files.len(), "file")),
        _ => format!("would merge {}:", counted(merge.files.len(), "file")),
    };
    writeln!(text, "{first}").ok();
    for change in &merge.files {
        let woven = if merge.woven.contains(&change.path) { " (both changed it)" } else { "" };
        writeln!(text, "{}{woven}", shown(&change.path)).ok();
    }
    let mut details = merge.json();
    details["dry_run"] = json!(is_dry);
    ToolOutput::new(merge.conflicts.is_empty(), text, details)
}

/// The Event of a merge.
pub fn merged(annex: &Annex, done: &Done) -> Canonical {
    event(annex, SubagentEventKind::Merged, done)
}

/// The Event of a merge that was rolled back.
pub fn taken_back(annex: &Annex, done: &Done) -> Canonical {
    event(annex, SubagentEventKind::MergeTakenBack, done)
}

fn event(annex: &Annex, kind: SubagentEventKind, Done { deed, record, .. }: &Done) -> Canonical {
    let files: Vec<String> =
        deed.files().take(NAMED).map(|path| path.to_string_lossy().into_owned()).collect();
    let count = deed.files().count();
    let facts = json!({
        "workspace_mode": annex.mode().name(),
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
        subagent_id: annex.subagent().map(str::to_owned),
        child_session_id: Some(annex.child().to_string()),
        summary: Some(counted(count, "file")),
        extra,
        ..SubagentEvent::default()
    }
    .into()
}

/// The diff of all changes for people, and the number of files left out.
pub fn diff(changes: &Changes, store: &Store, secrets: &Secrets) -> (String, usize) {
    changes.diff(store, secrets, SHOWN_DIFF * 16)
}
