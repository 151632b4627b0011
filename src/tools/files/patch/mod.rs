//! `apply_patch` tool: changes several files by one patch, all of them or none.
//!
//! The patch is parsed (`parser`) and applied in memory (`draft`, `lines`, `place`); only if every
//! chunk fits are the files written, as one batch of the Workspace.

mod draft;
mod lines;
mod parser;
mod place;
mod report;

use schemars::JsonSchema;
use serde::Deserialize;

use super::rewrite::{
    COMPARE_TIME, FileRewriter, MAX_PLANNED_BYTES, PLAN_COMPARE_TIME, digest_changes,
    file_changed_error, run_file_work, snapshot_after, snapshot_before, unsaved_error,
    write_through_editor,
};
use crate::base::error::{Kind, counted};
use crate::base::tool_error::ToolError;
use crate::host::workspace;
use crate::host::workspace::{BatchStep, OpenFile, StepResult, WriteTarget, file_version};
use crate::tools::files::read_tracker::ReadFingerprint;
use crate::tools::tool::arg_aliases::ArgAliases;
use crate::tools::tool::editor::EditorWrite;
use crate::tools::tool::{CallPlan, Tool, ToolContext, ToolOutput};
use draft::{DraftFile, PatchDraft};
use parser::{PatchSection, SectionAction};

/// The `apply_patch` tool.
#[derive(Debug)]
pub struct ApplyPatchTool(pub FileRewriter);

/// The arguments of `apply_patch`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Args {
    /// The whole patch.
    patch: String,
}

impl Tool for ApplyPatchTool {
    type Args = Args;
    const NAME: &'static str = "apply_patch";
    const ARG_ALIASES: ArgAliases = &[("input", "patch")];
    const DESCRIPTION: &'static str = "Changes several files at once, all or none. Form of a patch:
*** Begin Patch
*** Add File: new.txt
+each line of it
*** Delete File: old.txt
*** Update File: src/a.py
*** Move to: src/b.py
@@ class A
@@     def f(self):
         kept = 1
-        x = 1
+        x = 2
         return x
*** End Patch
Paths are relative. In an update each line begins with a space (kept), - (removed) or + (added). \
Give about 3 kept lines around a change. If they occur more than once, put @@ lines before them: \
each names a line above, and the first match below counts. `*** Move to` is optional. \
`*** End of File` after the last line puts a change at the end.";

    fn plan(&self, args: &Args, context: &ToolContext) -> Result<CallPlan, ToolError> {
        let sections = parser::parse_patch(&args.patch)?;
        let paths = patch_paths(&sections, context);
        let size: i64 = paths
            .iter()
            .map(|path| context.workspace.metadata(path).map_or(0, |stat| stat.st_size))
            .sum();
        let work = u64::try_from(size).unwrap_or_default().saturating_mul(work_factor(&sections));
        if work > MAX_PLANNED_BYTES {
            for path in &paths {
                context.workspace.check_writable(path)?;
            }
            let files = counted(paths.len(), "file");
            let summary = format!("patch {files}, {size} bytes, too many for a preview");
            return Ok(CallPlan::for_edit(summary, paths));
        }
        let draft = report::check_draft(PatchDraft::from_sections(&sections, &self.0, context))?;
        let changes = report::collect_changes(&draft, context, PLAN_COMPARE_TIME);
        let summary = report::summary("patch", &changes);
        let (diff, diff_is_cut) = report::join_diffs(&changes);
        let diff = Some(diff);
        let files = draft.files.iter();
        let bytes_digest = Some(digest_changes(files.map(|file| {
            (file.before.as_ref().map(|before| &*before.bytes), file.after.as_deref())
        })));
        Ok(CallPlan { diff, diff_is_cut, bytes_digest, ..CallPlan::for_edit(summary, paths) })
    }

    async fn run(&self, args: Args, context: ToolContext) -> Result<ToolOutput, ToolError> {
        let rewriter = self.0.clone();
        run_file_work(move || {
            let sections = parser::parse_patch(&args.patch)?;
            let mut draft =
                report::check_draft(PatchDraft::from_sections(&sections, &rewriter, &context))?;
            if context.cancel.is_cancelled() {
                return Err(ToolError::new(Kind::Interrupted, "the patch was interrupted"));
            }
            write_draft(&mut draft, &context)?;
            let prints = record_files(&draft, &rewriter, &context);
            let changes = report::collect_changes(&draft, &context, COMPARE_TIME);
            Ok(report::patched_output(&draft, &changes, &prints))
        })
        .await
    }
}

/// All paths of a patch, as they are shown to the user.
fn patch_paths(sections: &[PatchSection], context: &ToolContext) -> Vec<std::path::PathBuf> {
    let mut paths: Vec<std::path::PathBuf> = Vec::new();
    for section in sections {
        let to = match &section.action {
            SectionAction::Update { to, .. } => to.as_ref(),
            SectionAction::Add { .. } | SectionAction::Delete => None,
        };
        for path in std::iter::once(&section.path).chain(to) {
            let path = context.workspace.display(path);
            if !paths.iter().any(|known| known == path) {
                paths.push(path.to_owned());
            }
        }
    }
    paths
}

/// An estimate of how often the files' content is scanned.
fn work_factor(sections: &[PatchSection]) -> u64 {
    let chunks = sections.iter().map(|section| match &section.action {
        SectionAction::Update { chunks, .. } => {
            chunks.iter().map(|chunk| 1 + chunk.anchors.len() as u64).sum()
        }
        SectionAction::Add { .. } | SectionAction::Delete => 1,
    });
    chunks.sum::<u64>().div_ceil(16).max(1)
}

/// Writes the draft: through the editor the files that it accepts, the others as one batch.
fn write_draft(draft: &mut PatchDraft, context: &ToolContext) -> Result<(), ToolError> {
    let changed = || draft.files.iter().filter(|file| file.is_changed());
    changed().for_each(|file| snapshot_before(context, &file.real_path, file.before.as_ref()));
    let mut accepted = Vec::new();
    let written = write_to_editor(draft, context, &mut accepted)
        .and_then(|()| write_to_disk(draft, context, &accepted));
    if written.is_err() {
        for at in accepted {
            let DraftFile { real_path: real, before, after, .. } = &draft.files[at];
            let (Some(before), Some(after)) = (before, after) else { continue };
            let real = context.workspace.root().join(real);
            let back = context.editor.write_text(&real, after, &before.bytes);
            if back != EditorWrite::Accepted {
                tracing::warn!(path = %real.display(), ?back, "the editor kept a part of a failed patch");
            }
        }
    }
    let changed = draft.files.iter().filter(|file| written.is_ok() && file.is_changed());
    changed.for_each(|file| snapshot_after(context, &file.real_path, file.after.as_deref()));
    written
}

/// Writes existing files through the editor unless they are moved; `accepted` gets those that it accepted.
fn write_to_editor(
    draft: &mut PatchDraft,
    context: &ToolContext,
    accepted: &mut Vec<usize>,
) -> Result<(), ToolError> {
    for at in 0..draft.files.len() {
        let file = &draft.files[at];
        let (Some(before), Some(after)) = (&file.before, &file.after) else { continue };
        if file.origin.is_some() || !file.is_changed() {
            continue;
        }
        let now = context.workspace.metadata(&file.patch_path).ok();
        let handover = if now.as_ref().map(file_version) == Some(file_version(&before.stat)) {
            write_through_editor(context, &file.real_path, Some(before), after)
        } else {
            Err(file_changed_error(&file.patch_path))
        };
        match handover {
            Ok(handover) => {
                draft.files[at].notes.extend(handover.notes);
                if handover.is_accepted {
                    accepted.push(at);
                }
            }
            Err(error) => {
                draft.files[at].error = Some(error);
                return Err(report::draft_error(draft));
            }
        }
    }
    Ok(())
}

/// Writes the remaining files as one batch.
fn write_to_disk(
    draft: &mut PatchDraft,
    context: &ToolContext,
    accepted: &[usize],
) -> Result<(), ToolError> {
    let mut steps = Vec::new();
    let mut files = Vec::new();
    for at in (0..draft.files.len()).filter(|at| !accepted.contains(at)) {
        match batch_step(draft, at, context) {
            Ok(None) => {}
            Ok(Some(step)) => {
                steps.push(step);
                files.push(at);
            }
            Err(error) => {
                workspace::abandon_batch(&steps);
                draft.files[at].error = Some(error);
                return Err(report::draft_error(draft));
            }
        }
    }
    let done = workspace::commit_batch(steps)
        .map_err(|broken| report::rollback_error(draft, &files, broken))?;
    for (at, StepResult { notes, .. }) in files.into_iter().zip(done) {
        draft.files[at].notes.extend(notes);
    }
    Ok(())
}

/// The step of the batch that gives a file its new content, name or absence.
fn batch_step(
    draft: &PatchDraft,
    at: usize,
    context: &ToolContext,
) -> Result<Option<BatchStep>, ToolError> {
    let file = &draft.files[at];
    let workspace = &context.workspace;
    if !file.is_changed() {
        return Ok(None);
    }
    let Some(bytes) = &file.after else {
        let is_renamed = draft
            .files
            .iter()
            .any(|other| other.origin == Some(at) && is_pure_rename(draft, other));
        if is_renamed {
            return Ok(None);
        }
        let target = workspace.open_target_no_follow(&file.patch_path)?;
        return check_unchanged(target, file).map(|target| Some(BatchStep::Remove(target)));
    };
    let origin = file.origin.map(|origin| &draft.files[origin]);
    let pure = origin.filter(|_| is_pure_rename(draft, file));
    if let Some(origin) = pure {
        let from = check_unchanged(workspace.open_target_no_follow(&origin.patch_path)?, origin)?;
        let to = check_unchanged(workspace.open_target(&file.patch_path)?, file)?;
        return Ok(Some(BatchStep::Rename { from, to }));
    }
    let like: Option<OpenFile> = match origin {
        Some(origin) => Some(workspace.open_file(&origin.patch_path)?),
        None => None,
    };
    let target = check_unchanged(workspace.open_target(&file.patch_path)?, file)?;
    Ok(Some(BatchStep::Write { target, content: bytes.clone(), like }))
}

/// Whether a file is only renamed.
fn is_pure_rename(draft: &PatchDraft, file: &DraftFile) -> bool {
    let origin = file.origin.map(|origin| &draft.files[origin]);
    origin.is_some_and(|origin| {
        let is_same =
            origin.before.is_some() && file.after.as_deref() == Some(origin.old_content());
        is_same && origin.after.is_none() && file.before.is_none()
    })
}

/// Refuses a file that has changed since the draft was made.
fn check_unchanged(target: WriteTarget, file: &DraftFile) -> Result<WriteTarget, ToolError> {
    if file.before.as_ref().is_some_and(|before| before.is_unsaved) {
        return Err(unsaved_error(&file.patch_path));
    }
    let before = file.before.as_ref().map(|before| file_version(&before.stat));
    if target.stat().as_ref().map(file_version) == before {
        return Ok(target);
    }
    Err(file_changed_error(&file.patch_path))
}

/// Records the files as they are now in the `ReadTracker`.
fn record_files(
    draft: &PatchDraft,
    rewriter: &FileRewriter,
    context: &ToolContext,
) -> Vec<Option<ReadFingerprint>> {
    let seen = rewriter.read_tracker();
    let note = |file: &DraftFile| match &file.after {
        None => {
            seen.forget_file(&file.real_path);
            None
        }
        Some(bytes) => {
            let stat = context.workspace.metadata(&file.real_path).ok()?;
            let print = ReadFingerprint::new(bytes, &stat);
            seen.record_file(&file.real_path, print.clone());
            Some(print)
        }
    };
    draft.files.iter().map(note).collect()
}
