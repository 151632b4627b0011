//! The draft of a patch: the old and new content of every file it names, before any is written.

use std::path::{Path, PathBuf};

use super::super::redaction::refuse_near_markers;
use super::super::rewrite::{
    CurrentFile, FileRewriter, MAX_FILE_BYTES, other_names_note, refuse_large,
};
use super::super::write::content_to_write;
use super::lines;
use super::parser::{PatchSection, SectionAction};
use crate::base::error::{Kind, counted};
use crate::base::secret::Secrets;
use crate::base::tool_error::ToolError;
use crate::tools::tool::ToolContext;

/// How many files one patch may name.
const MAX_FILES: usize = 200;

/// All files of a patch, in the order in which they are named.
#[derive(Debug, Default)]
pub struct PatchDraft {
    pub files: Vec<DraftFile>,
}

/// A file of the draft: its content before and after the patch.
#[derive(Debug, Default)]
pub struct DraftFile {
    /// The path in the patch.
    pub patch_path: PathBuf,
    /// The real path of the file.
    pub real_path: PathBuf,
    pub before: Option<CurrentFile>,
    pub after: Option<Vec<u8>>,
    /// The index of the file that was moved here.
    pub origin: Option<usize>,
    pub notes: Vec<String>,
    pub error: Option<ToolError>,
}

impl DraftFile {
    /// Whether the patch changes the file.
    pub fn is_changed(&self) -> bool {
        self.before.as_ref().map(|before| &before.bytes) != self.after.as_ref()
    }
    /// The content before the patch; empty if there was no file.
    pub fn old_content(&self) -> &[u8] {
        self.before.as_ref().map_or(&[], |before| &before.bytes)
    }
    /// The content after the patch; empty if there is no file.
    pub fn new_content(&self) -> &[u8] {
        self.after.as_deref().unwrap_or_default()
    }
}

impl PatchDraft {
    /// Applies all sections in memory. Each file keeps its error, so that all errors can be reported at
    /// once.
    pub fn from_sections(
        sections: &[PatchSection],
        rewriter: &FileRewriter,
        context: &ToolContext,
    ) -> Self {
        let mut draft = Self::default();
        for section in sections {
            let at = draft.file_index(&section.path, rewriter, context);
            if draft.files[at].error.is_some() {
                continue;
            }
            if let Err(error) = draft.apply_section(at, &section.action, rewriter, context) {
                draft.files[at].error = Some(error);
            }
        }
        draft.refuse_near_markers(&context.secrets);
        draft.refuse_shared_inodes();
        draft.refuse_total_size();
        draft
    }

    fn apply_section(
        &mut self,
        at: usize,
        action: &SectionAction,
        rewriter: &FileRewriter,
        context: &ToolContext,
    ) -> Result<(), ToolError> {
        match action {
            SectionAction::Add { content } => self.add_file(at, content, &context.secrets),
            SectionAction::Delete => self.delete_file(at, context),
            SectionAction::Update { to, chunks } => {
                let old = self.existing_content(at)?;
                let applied = lines::apply_chunks(old, chunks, &context.secrets)?;
                refuse_large(&self.files[at].patch_path, applied.bytes.len() as u64)?;
                let other = match to {
                    Some(to) => Some(self.load_file(to, rewriter, context)?),
                    None => None,
                };
                let file = &mut self.files[at];
                file.notes.extend(applied.notes);
                // A move to its own path only changes the content.
                let Some(other) = other.filter(|other| other.real_path != file.real_path) else {
                    file.notes
                        .extend(file.before.as_ref().and_then(|now| other_names_note(&now.stat)));
                    file.after = Some(applied.bytes);
                    return Ok(());
                };
                self.move_file(at, applied.bytes, other, context)
            }
        }
    }

    fn add_file(&mut self, at: usize, content: &str, secrets: &Secrets) -> Result<(), ToolError> {
        let file = &mut self.files[at];
        if file.after.is_some() {
            let message = format!("{} already exists", file.patch_path.display());
            return Err(ToolError::new(Kind::AlreadyExists, message)
                .with_next_action("change it with *** Update File, or overwrite it with write"));
        }
        // A file that an earlier section deleted keeps its line endings.
        let before = file.before.as_ref().map(|before| &*before.bytes);
        let (bytes, notes) = content_to_write(before, content, secrets)?;
        file.notes.extend(notes);
        file.after = Some(bytes);
        Ok(())
    }

    fn delete_file(&mut self, at: usize, context: &ToolContext) -> Result<(), ToolError> {
        self.existing_content(at)?;
        self.refuse_link(at, context)?;
        let file = &mut self.files[at];
        file.after = None;
        file.notes.extend(remaining_names_note(file.before.as_ref()));
        Ok(())
    }

    fn move_file(
        &mut self,
        at: usize,
        bytes: Vec<u8>,
        other: DraftFile,
        context: &ToolContext,
    ) -> Result<(), ToolError> {
        self.refuse_link(at, context)?;
        if let Some(error) = other.error {
            return Err(error);
        }
        let known = self.files.iter().position(|file| file.real_path == other.real_path);
        let is_there = known.map_or(&other.after, |known| &self.files[known].after).is_some();
        if is_there {
            let message = format!("{} already exists", other.patch_path.display());
            return Err(ToolError::new(Kind::AlreadyExists, message)
                .with_next_action("delete it in the same patch, before this section"));
        }
        let to = known.unwrap_or_else(|| {
            self.files.push(other);
            self.files.len() - 1
        });
        // A file that the patch itself adds has no origin.
        let own = self.files[at].before.is_some().then_some(at);
        let origin = self.files[at].origin.or(own);
        let is_same = self.files[at].old_content() == bytes;
        self.files[to].after = Some(bytes);
        self.files[to].origin = origin;
        let file = &mut self.files[at];
        file.after = None;
        if !is_same {
            file.notes.extend(remaining_names_note(file.before.as_ref()));
        }
        Ok(())
    }

    /// The content that a section may change, or an error if there is no file.
    fn existing_content(&self, at: usize) -> Result<&[u8], ToolError> {
        let file = &self.files[at];
        file.after.as_deref().ok_or_else(|| {
            let message = format!("{} does not exist", file.patch_path.display());
            ToolError::new(Kind::NotFound, message).with_next_action("create it with *** Add File")
        })
    }

    /// Refuses to move or delete a symbolic link, whose name is not the file's.
    fn refuse_link(&self, at: usize, context: &ToolContext) -> Result<(), ToolError> {
        let file = &self.files[at];
        if !context.workspace.is_link(&file.patch_path) {
            return Ok(());
        }
        let (given, real) = (file.patch_path.display(), file.real_path.display());
        Err(ToolError::invalid_args(format!(
            "{given} is a link, which a patch cannot move or delete"
        ))
        .with_next_action(format!("name the file itself: {real}; or use bash for the link")))
    }

    /// The index of the file with this path, which is added to the draft if it is new.
    fn file_index(&mut self, path: &Path, rewriter: &FileRewriter, context: &ToolContext) -> usize {
        let entry = self.load_file(path, rewriter, context).unwrap_or_else(|error| DraftFile {
            patch_path: path.to_owned(),
            real_path: context.workspace.resolve_missing(path),
            error: Some(error),
            ..DraftFile::default()
        });
        if let Some(known) = self.files.iter().position(|file| file.real_path == entry.real_path) {
            return known;
        }
        self.files.push(entry);
        self.files.len() - 1
    }

    fn load_file(
        &self,
        path: &Path,
        rewriter: &FileRewriter,
        context: &ToolContext,
    ) -> Result<DraftFile, ToolError> {
        if self.files.len() >= MAX_FILES {
            return Err(ToolError::invalid_args(format!(
                "a patch names at most {MAX_FILES} files"
            ))
            .with_next_action("send several patches"));
        }
        let workspace = &context.workspace;
        workspace.check_writable(path)?;
        let before = rewriter.load_current(context, path)?;
        let real = match &before {
            Some(current) => current.path.clone(),
            None => workspace.resolve_missing(path),
        };
        let after = before.as_ref().map(|before| before.bytes.clone());
        Ok(DraftFile {
            patch_path: path.to_owned(),
            real_path: real,
            before,
            after,
            ..DraftFile::default()
        })
    }

    /// Refuses lost secrets of a path, also if it is deleted and added again.
    fn refuse_near_markers(&mut self, secrets: &Secrets) {
        for file in &mut self.files {
            let (Some(before), Some(after)) = (&file.before, &file.after) else { continue };
            if let Err(error) = refuse_near_markers(&before.bytes, after, secrets) {
                file.error.get_or_insert(error);
            }
        }
    }

    /// Refuses a patch that changes one file under two names.
    fn refuse_shared_inodes(&mut self) {
        for at in 1..self.files.len() {
            let inode = |file: &DraftFile| {
                file.before.as_ref().map(|now| (now.stat.st_dev, now.stat.st_ino))
            };
            let own = inode(&self.files[at]);
            let other = self.files[..at].iter().find(|file| own.is_some() && inode(file) == own);
            if let Some(other) = other {
                let (own, other) =
                    (self.files[at].patch_path.display(), other.patch_path.display());
                let message = format!("{own} and {other} are two names of one file");
                self.files[at].error.get_or_insert(ToolError::invalid_args(message));
            }
        }
    }

    fn refuse_total_size(&mut self) {
        let bytes =
            |file: &DraftFile| file.old_content().len() as u64 + file.new_content().len() as u64;
        let total: u64 = self.files.iter().map(bytes).sum();
        if total > 2 * MAX_FILE_BYTES
            && let Some(last) = self.files.last_mut()
        {
            let message = format!("the files of the patch are too large together: {total} bytes");
            last.error.get_or_insert(
                ToolError::invalid_args(message).with_next_action("send several patches"),
            );
        }
    }
}

/// A note about the other hard links of a file that is deleted or moved, which keep the old content.
fn remaining_names_note(before: Option<&CurrentFile>) -> Option<String> {
    let others = before?.stat.st_nlink.checked_sub(1).filter(|others| *others > 0)?;
    let keep = if others == 1 { "keeps" } else { "keep" };
    Some(format!("{} {keep} the old file", counted(others, "other name")))
}
