//! The draft of a patch: the old and new content of every file it names, before any is written.

use std::path::{Path, PathBuf};

use super::super::redaction::refuse_near_markers;
use super::super::rewrite::{Current, LARGEST, Rewriter, other_names, refuse_large};
use super::super::write::restored;
use super::envelope::{Deed, Section};
use super::lines;
use crate::base::error::{Kind, counted};
use crate::base::secret::Secrets;
use crate::base::tool_error::ToolError;
use crate::tools::tool::ToolContext;

/// How many files one patch may name.
const MOST_FILES: usize = 200;

/// All files of a patch, in the order in which they are named.
#[derive(Debug, Default)]
pub struct Draft {
    pub files: Vec<Drafted>,
}

/// A file of the draft: its content before and after the patch.
#[derive(Debug, Default)]
pub struct Drafted {
    /// The path in the patch.
    pub given: PathBuf,
    /// The real path of the file.
    pub real: PathBuf,
    pub before: Option<Current>,
    pub after: Option<Vec<u8>>,
    /// The index of the file that was moved here.
    pub origin: Option<usize>,
    pub notes: Vec<String>,
    pub error: Option<ToolError>,
}

impl Drafted {
    /// Whether the patch changes the file.
    pub fn is_changed(&self) -> bool {
        self.before.as_ref().map(|before| &before.bytes) != self.after.as_ref()
    }
    /// The content before the patch; empty if there was no file.
    pub fn old(&self) -> &[u8] {
        self.before.as_ref().map_or(&[], |before| &before.bytes)
    }
    /// The content after the patch; empty if there is no file.
    pub fn fresh(&self) -> &[u8] {
        self.after.as_deref().unwrap_or_default()
    }
}

impl Draft {
    /// Applies all sections in memory. Each file keeps its error, so that all errors can be reported at
    /// once.
    pub fn of(sections: &[Section], rewriter: &Rewriter, context: &ToolContext) -> Self {
        let mut draft = Self::default();
        for section in sections {
            let at = draft.entry(&section.path, rewriter, context);
            if draft.files[at].error.is_some() {
                continue;
            }
            if let Err(error) = draft.take(at, &section.deed, rewriter, context) {
                draft.files[at].error = Some(error);
            }
        }
        draft.refuse_near_markers(&context.secrets);
        draft.refuse_shared();
        draft.refuse_much();
        draft
    }

    fn take(
        &mut self,
        at: usize,
        deed: &Deed,
        rewriter: &Rewriter,
        context: &ToolContext,
    ) -> Result<(), ToolError> {
        match deed {
            Deed::Add { content } => self.add(at, content, &context.secrets),
            Deed::Delete => self.delete(at, context),
            Deed::Update { to, chunks } => {
                let old = self.present(at)?;
                let applied = lines::apply(old, chunks, &context.secrets)?;
                refuse_large(&self.files[at].given, applied.bytes.len() as u64)?;
                let other = match to {
                    Some(to) => Some(self.entry_of(to, rewriter, context)?),
                    None => None,
                };
                let file = &mut self.files[at];
                file.notes.extend(applied.notes);
                // A move to its own path only changes the content.
                let Some(other) = other.filter(|other| other.real != file.real) else {
                    file.notes.extend(file.before.as_ref().and_then(|now| other_names(&now.stat)));
                    file.after = Some(applied.bytes);
                    return Ok(());
                };
                self.rename(at, applied.bytes, other, context)
            }
        }
    }

    fn add(&mut self, at: usize, content: &str, secrets: &Secrets) -> Result<(), ToolError> {
        let file = &mut self.files[at];
        if file.after.is_some() {
            let message = format!("{} already exists", file.given.display());
            return Err(ToolError::new(Kind::AlreadyExists, message)
                .next("change it with *** Update File, or overwrite it with write"));
        }
        // A file that an earlier section deleted keeps its line endings.
        let before = file.before.as_ref().map(|before| &*before.bytes);
        let (bytes, notes) = restored(before, content, secrets)?;
        file.notes.extend(notes);
        file.after = Some(bytes);
        Ok(())
    }

    fn delete(&mut self, at: usize, context: &ToolContext) -> Result<(), ToolError> {
        self.present(at)?;
        self.refuse_link(at, context)?;
        let file = &mut self.files[at];
        file.after = None;
        file.notes.extend(kept_names(file.before.as_ref()));
        Ok(())
    }

    fn rename(
        &mut self,
        at: usize,
        bytes: Vec<u8>,
        other: Drafted,
        context: &ToolContext,
    ) -> Result<(), ToolError> {
        self.refuse_link(at, context)?;
        if let Some(error) = other.error {
            return Err(error);
        }
        let known = self.files.iter().position(|file| file.real == other.real);
        let is_there = known.map_or(&other.after, |known| &self.files[known].after).is_some();
        if is_there {
            let message = format!("{} already exists", other.given.display());
            return Err(ToolError::new(Kind::AlreadyExists, message)
                .next("delete it in the same patch, before this section"));
        }
        let to = known.unwrap_or_else(|| {
            self.files.push(other);
            self.files.len() - 1
        });
        // A file that the patch itself adds has no origin.
        let own = self.files[at].before.is_some().then_some(at);
        let origin = self.files[at].origin.or(own);
        let is_same = self.files[at].old() == bytes;
        self.files[to].after = Some(bytes);
        self.files[to].origin = origin;
        let file = &mut self.files[at];
        file.after = None;
        if !is_same {
            file.notes.extend(kept_names(file.before.as_ref()));
        }
        Ok(())
    }

    /// The content that a section may change, or an error if there is no file.
    fn present(&self, at: usize) -> Result<&[u8], ToolError> {
        let file = &self.files[at];
        file.after.as_deref().ok_or_else(|| {
            let message = format!("{} does not exist", file.given.display());
            ToolError::new(Kind::NotFound, message).next("create it with *** Add File")
        })
    }

    /// Refuses to move or delete a symbolic link, whose name is not the file's.
    fn refuse_link(&self, at: usize, context: &ToolContext) -> Result<(), ToolError> {
        let file = &self.files[at];
        if !context.workspace.is_link(&file.given) {
            return Ok(());
        }
        let (given, real) = (file.given.display(), file.real.display());
        Err(ToolError::invalid(format!("{given} is a link, which a patch cannot move or delete"))
            .next(format!("name the file itself: {real}; or use bash for the link")))
    }

    /// The index of the file with this path, which is added to the draft if it is new.
    fn entry(&mut self, path: &Path, rewriter: &Rewriter, context: &ToolContext) -> usize {
        let entry = self.entry_of(path, rewriter, context).unwrap_or_else(|error| Drafted {
            given: path.to_owned(),
            real: context.workspace.place_of(path),
            error: Some(error),
            ..Drafted::default()
        });
        if let Some(known) = self.files.iter().position(|file| file.real == entry.real) {
            return known;
        }
        self.files.push(entry);
        self.files.len() - 1
    }

    fn entry_of(
        &self,
        path: &Path,
        rewriter: &Rewriter,
        context: &ToolContext,
    ) -> Result<Drafted, ToolError> {
        if self.files.len() >= MOST_FILES {
            return Err(ToolError::invalid(format!("a patch may name {MOST_FILES} files"))
                .next("send several patches"));
        }
        let workspace = &context.workspace;
        workspace.check_writable(path)?;
        let before = rewriter.current(context, path)?;
        let real = match &before {
            Some(current) => current.path.clone(),
            None => workspace.place_of(path),
        };
        let after = before.as_ref().map(|before| before.bytes.clone());
        Ok(Drafted { given: path.to_owned(), real, before, after, ..Drafted::default() })
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
    fn refuse_shared(&mut self) {
        for at in 1..self.files.len() {
            let inode =
                |file: &Drafted| file.before.as_ref().map(|now| (now.stat.st_dev, now.stat.st_ino));
            let own = inode(&self.files[at]);
            let other = self.files[..at].iter().find(|file| own.is_some() && inode(file) == own);
            if let Some(other) = other {
                let (own, other) = (self.files[at].given.display(), other.given.display());
                let message = format!("{own} and {other} are two names of one file");
                self.files[at].error.get_or_insert(ToolError::invalid(message));
            }
        }
    }

    fn refuse_much(&mut self) {
        let bytes = |file: &Drafted| file.old().len() as u64 + file.fresh().len() as u64;
        let total: u64 = self.files.iter().map(bytes).sum();
        if total > 2 * LARGEST
            && let Some(last) = self.files.last_mut()
        {
            let message = format!("the files of the patch are too large together: {total} bytes");
            last.error.get_or_insert(ToolError::invalid(message).next("send several patches"));
        }
    }
}

/// A note about the other hard links of a file that is deleted or moved, which keep the old content.
fn kept_names(before: Option<&Current>) -> Option<String> {
    let others = before?.stat.st_nlink.checked_sub(1).filter(|others| *others > 0)?;
    let keep = if others == 1 { "keeps" } else { "keep" };
    Some(format!("{} {keep} the old file", counted(others, "other name")))
}
