//! Attachments: files that the user names, read whole and checked before anything is recorded.
//!
//! The user may name any file, also outside the Workspace and through links, except through a link in
//! the Workspace that leads out of it: a checkout can bring one. Nothing here blocks: a pipe or a
//! device is refused before it is opened.
#![expect(clippy::disallowed_methods, reason = "the user names the file, and it is only read")]

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::sniff::{ContentKind, detect_content};
use super::{
    AttachmentProblem, MAX_ATTACHMENT_BYTES, MAX_TURN_BYTES, MOST, ResourceError, display_name,
};
use crate::base::link_escape::escape_by_link;

/// A file that will be attached: its name, its bytes, and the kind of its content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attachment {
    pub(super) name: String,
    pub(super) bytes: Vec<u8>,
    pub(super) content_kind: ContentKind,
}

impl Attachment {
    /// Reads a file that the user named.
    pub fn open(path: &Path) -> Result<Self, ResourceError> {
        Self::read_file(path).map_err(|flaw| ResourceError { path: path.to_owned(), flaw })
    }

    /// Checks bytes that did not come from a path.
    pub fn from_bytes(name: &str, bytes: Vec<u8>) -> Result<Self, ResourceError> {
        let path = PathBuf::from(name);
        Self::check_bytes(&path, bytes).map_err(|flaw| ResourceError { path, flaw })
    }

    /// Whether the file is an image.
    pub fn is_image(&self) -> bool {
        matches!(self.content_kind, ContentKind::Image(_))
    }

    /// The size in bytes.
    pub fn size(&self) -> usize {
        self.bytes.len()
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    fn read_file(path: &Path) -> Result<Self, AttachmentProblem> {
        let refused = |error: std::io::Error| match error.kind() {
            std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory => {
                AttachmentProblem::Missing
            }
            _ => AttachmentProblem::Unreadable(error),
        };
        // Checked before it is opened, because opening some devices has an effect.
        refuse_irregular(&fs::metadata(path).map_err(refused)?)?;
        let no_waiting = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or_default();
        let file = File::options().read(true).custom_flags(no_waiting).open(path);
        let file = file.map_err(refused)?;
        // Checked again, because the path may lead elsewhere by now.
        let facts = file.metadata().map_err(refused)?;
        refuse_irregular(&facts)?;
        if facts.len() > MAX_ATTACHMENT_BYTES {
            return Err(too_large(facts.len()));
        }
        let mut bytes = Vec::with_capacity(usize::try_from(facts.len()).unwrap_or_default());
        file.take(MAX_ATTACHMENT_BYTES + 1).read_to_end(&mut bytes).map_err(refused)?;
        Self::check_bytes(path, bytes)
    }

    fn check_bytes(path: &Path, bytes: Vec<u8>) -> Result<Self, AttachmentProblem> {
        if bytes.is_empty() {
            return Err(AttachmentProblem::Empty);
        }
        if bytes.len() as u64 > MAX_ATTACHMENT_BYTES {
            return Err(too_large(bytes.len() as u64));
        }
        let content_kind = detect_content(&bytes)?;
        Ok(Self { name: display_name(path), bytes, content_kind })
    }
}

/// Reads all files that the user named, in their order; the same file counts once. `workspace` is the
/// real path of the Workspace.
pub fn read_attachments(
    paths: &[PathBuf],
    workspace: &Path,
) -> Result<Vec<Attachment>, ResourceError> {
    let mut gathered: Vec<Attachment> = Vec::new();
    let mut sum = 0;
    for path in paths {
        let refuse = |flaw| Err(ResourceError { path: path.clone(), flaw });
        if gathered.len() == MOST {
            return refuse(AttachmentProblem::TooMany(MOST + 1));
        }
        let attachment = Attachment::open(path)?;
        if let Some(target) = escape_by_link(workspace, path) {
            return refuse(AttachmentProblem::LeadsOutside(target));
        }
        if gathered.contains(&attachment) {
            continue;
        }
        sum += attachment.bytes.len() as u64;
        if sum > MAX_TURN_BYTES {
            let what = "all attachments together";
            return refuse(AttachmentProblem::TooLarge { bytes: sum, limit: MAX_TURN_BYTES, what });
        }
        gathered.push(attachment);
    }
    Ok(gathered)
}

fn too_large(bytes: u64) -> AttachmentProblem {
    AttachmentProblem::TooLarge { bytes, limit: MAX_ATTACHMENT_BYTES, what: "an attachment" }
}

fn refuse_irregular(facts: &fs::Metadata) -> Result<(), AttachmentProblem> {
    let kind = facts.file_type();
    if kind.is_file() {
        return Ok(());
    }
    Err(AttachmentProblem::NotAFile(if kind.is_dir() {
        "a directory"
    } else if kind.is_fifo() {
        "a named pipe"
    } else if kind.is_socket() {
        "a socket"
    } else {
        "a device"
    }))
}
