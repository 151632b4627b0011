//! `apply_patch` tool: changes several files by one patch, all of them or none.
//!
//! The patch is parsed (`parser`) and applied in memory (`draft`, `lines`, `place`); only if every
//! chunk fits are the files written, as one batch of the Workspace.

mod draft;
mod envelope;
mod lines;
mod place;
mod report;

use schemars::JsonSchema;
use serde::Deserialize;

use super::rewrite::{
    COMPARE_TIME, LARGEST_PLANNED, PLAN_COMPARE_TIME, Rewriter, digest_of, file_changed, hand_over,
    keep_after, keep_before, on_disk, unsaved,
};
use crate::base::error::{Kind, counted};
use crate::base::tool_error::ToolError;
use crate::host::workspace;
use crate::host::workspace::{Done, OpenFile, Step, Target, identity};
use crate::tools::files::read_tracker::Print;
use crate::tools::tool::editor::Handed;
use crate::tools::tool::spelling::Aliases;
use crate::tools::tool::{Plan, Tool, ToolContext, ToolOutput};
use draft::{Draft, Drafted};
use envelope::{Deed, Section};

/// The `apply_patch` tool.
#[derive(Debug)]
pub struct ApplyPatch(pub Rewriter);

/// The arguments of `apply_patch`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Args {
    /// The whole patch.
    patch: String,
}

impl Tool for ApplyPatch {
    type Args = Args;
    const NAME: &'static str = "apply_patch";
    const ALIASES: Aliases = &[("input", "patch")];
    const MANUAL: &'static str = "Changes several files at once, all or none. Form of a patch:
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
Paths are relative. In an update each line begins with a blank (kept), - (removed) or + (added). \
Give about 3 kept lines around a change. If they occur more than once, put @@ lines before them: \
each names a line above, and the first match below counts. `*** Move to` is optional. \
`*** End of File` behind the last line puts a change at the end.";

    fn plan(&self, args: &Args, context: &ToolContext) -> Result<Plan, ToolError> {
        let sections = envelope::parse(&args.patch)?;
        let paths = paths(&sections, context);
        let size: i64 = paths
            .iter()
            .map(|path| context.workspace.metadata(path).map_or(0, |stat| stat.st_size))
            .sum();
        let work = u64::try_from(size).unwrap_or_default().saturating_mul(steps(&sections));
        if work > LARGEST_PLANNED {
            for path in &paths {
                context.workspace.check_writable(path)?;
            }
            let files = counted(paths.len(), "file");
            let summary = format!("patch {files}, {size} bytes, too many for a preview");
            return Ok(Plan::edit(summary, paths));
        }
        let draft = report::sound(Draft::of(&sections, &self.0, context))?;
        let changes = report::changes(&draft, context, PLAN_COMPARE_TIME);
        let summary = report::summary("patch", &changes);
        let (diff, diff_is_cut) = report::diff(&changes);
        let diff = Some(diff);
        let files = draft.files.iter();
        let bytes_digest = Some(digest_of(files.map(|file| {
            (file.before.as_ref().map(|before| &*before.bytes), file.after.as_deref())
        })));
        Ok(Plan { diff, diff_is_cut, bytes_digest, ..Plan::edit(summary, paths) })
    }

    async fn run(&self, args: Args, context: ToolContext) -> Result<ToolOutput, ToolError> {
        let rewriter = self.0.clone();
        on_disk(move || {
            let sections = envelope::parse(&args.patch)?;
            let mut draft = report::sound(Draft::of(&sections, &rewriter, &context))?;
            if context.cancel.is_cancelled() {
                return Err(ToolError::new(Kind::Interrupted, "the patch was interrupted"));
            }
            write(&mut draft, &context)?;
            let prints = note_seen(&draft, &rewriter, &context);
            let changes = report::changes(&draft, &context, COMPARE_TIME);
            Ok(report::told(&draft, &changes, &prints))
        })
        .await
    }
}

/// All paths of a patch, as they are shown to the user.
fn paths(sections: &[Section], context: &ToolContext) -> Vec<std::path::PathBuf> {
    let mut paths: Vec<std::path::PathBuf> = Vec::new();
    for section in sections {
        let to = match &section.deed {
            Deed::Update { to, .. } => to.as_ref(),
            Deed::Add { .. } | Deed::Delete => None,
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
fn steps(sections: &[Section]) -> u64 {
    let chunks = sections.iter().map(|section| match &section.deed {
        Deed::Update { chunks, .. } => {
            chunks.iter().map(|chunk| 1 + chunk.anchors.len() as u64).sum()
        }
        Deed::Add { .. } | Deed::Delete => 1,
    });
    chunks.sum::<u64>().div_ceil(16).max(1)
}

/// Writes the draft: through the editor the files that it accepts, the others as one batch.
fn write(draft: &mut Draft, context: &ToolContext) -> Result<(), ToolError> {
    let changed = || draft.files.iter().filter(|file| file.is_changed());
    changed().for_each(|file| keep_before(context, &file.real, file.before.as_ref()));
    let mut handed = Vec::new();
    let written =
        to_editor(draft, context, &mut handed).and_then(|()| to_disk(draft, context, &handed));
    if written.is_err() {
        for at in handed {
            let Drafted { real, before, after, .. } = &draft.files[at];
            let (Some(before), Some(after)) = (before, after) else { continue };
            let real = context.workspace.root().join(real);
            let back = context.desk.hand_over(&real, after, &before.bytes);
            if back != Handed::Over {
                tracing::warn!(path = %real.display(), ?back, "the editor kept a part of a failed patch");
            }
        }
    }
    let changed = draft.files.iter().filter(|file| written.is_ok() && file.is_changed());
    changed.for_each(|file| keep_after(context, &file.real, file.after.as_deref()));
    written
}

/// Writes files that are not moved through the editor, and collects those that it took.
fn to_editor(
    draft: &mut Draft,
    context: &ToolContext,
    handed: &mut Vec<usize>,
) -> Result<(), ToolError> {
    for at in 0..draft.files.len() {
        let file = &draft.files[at];
        let (Some(before), Some(after)) = (&file.before, &file.after) else { continue };
        if file.origin.is_some() || !file.is_changed() {
            continue;
        }
        let now = context.workspace.metadata(&file.given).ok();
        let taken = if now.as_ref().map(identity) == Some(identity(&before.stat)) {
            hand_over(context, &file.real, Some(before), after)
        } else {
            Err(file_changed(&file.given))
        };
        match taken {
            Ok(taken) => {
                draft.files[at].notes.extend(taken.notes);
                if taken.is_taken {
                    handed.push(at);
                }
            }
            Err(error) => {
                draft.files[at].error = Some(error);
                return Err(report::refusal(draft));
            }
        }
    }
    Ok(())
}

/// Writes the remaining files as one batch.
fn to_disk(draft: &mut Draft, context: &ToolContext, handed: &[usize]) -> Result<(), ToolError> {
    let mut steps = Vec::new();
    let mut files = Vec::new();
    for at in (0..draft.files.len()).filter(|at| !handed.contains(at)) {
        match step(draft, at, context) {
            Ok(None) => {}
            Ok(Some(step)) => {
                steps.push(step);
                files.push(at);
            }
            Err(error) => {
                workspace::abandon(&steps);
                draft.files[at].error = Some(error);
                return Err(report::refusal(draft));
            }
        }
    }
    let done = workspace::commit(steps).map_err(|broken| report::broken(draft, &files, broken))?;
    for (at, Done { notes, .. }) in files.into_iter().zip(done) {
        draft.files[at].notes.extend(notes);
    }
    Ok(())
}

/// The step of the batch that gives a file its new content, name or absence.
fn step(draft: &Draft, at: usize, context: &ToolContext) -> Result<Option<Step>, ToolError> {
    let file = &draft.files[at];
    let workspace = &context.workspace;
    if !file.is_changed() {
        return Ok(None);
    }
    let Some(bytes) = &file.after else {
        let is_renamed =
            draft.files.iter().any(|other| other.origin == Some(at) && is_pure(draft, other));
        if is_renamed {
            return Ok(None);
        }
        let target = workspace.target_itself(&file.given)?;
        return checked(target, file).map(|target| Some(Step::Remove(target)));
    };
    let origin = file.origin.map(|origin| &draft.files[origin]);
    let pure = origin.filter(|_| is_pure(draft, file));
    if let Some(origin) = pure {
        let from = checked(workspace.target_itself(&origin.given)?, origin)?;
        let to = checked(workspace.target(&file.given)?, file)?;
        return Ok(Some(Step::Rename { from, to }));
    }
    let like: Option<OpenFile> = match origin {
        Some(origin) => Some(workspace.open_file(&origin.given)?),
        None => None,
    };
    let target = checked(workspace.target(&file.given)?, file)?;
    Ok(Some(Step::Put { target, content: bytes.clone(), like }))
}

/// Whether a file is only renamed.
fn is_pure(draft: &Draft, file: &Drafted) -> bool {
    let origin = file.origin.map(|origin| &draft.files[origin]);
    origin.is_some_and(|origin| {
        let is_same = origin.before.is_some() && file.after.as_deref() == Some(origin.old());
        is_same && origin.after.is_none() && file.before.is_none()
    })
}

/// Refuses a file that has changed since the draft was made.
fn checked(target: Target, file: &Drafted) -> Result<Target, ToolError> {
    if file.before.as_ref().is_some_and(|before| before.is_unsaved) {
        return Err(unsaved(&file.given));
    }
    let before = file.before.as_ref().map(|before| identity(&before.stat));
    if target.stat().as_ref().map(identity) == before {
        return Ok(target);
    }
    Err(file_changed(&file.given))
}

/// Records the files as they are now in the `ReadTracker`.
fn note_seen(draft: &Draft, rewriter: &Rewriter, context: &ToolContext) -> Vec<Option<Print>> {
    let seen = rewriter.seen();
    let note = |file: &Drafted| match &file.after {
        None => {
            seen.forget(&file.real);
            None
        }
        Some(bytes) => {
            let stat = context.workspace.metadata(&file.real).ok()?;
            let print = Print::of(bytes, &stat);
            seen.note(&file.real, print.clone());
            Some(print)
        }
    };
    draft.files.iter().map(note).collect()
}
