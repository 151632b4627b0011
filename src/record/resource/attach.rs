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

use super::sniff::{Nature, look};
use super::{Flaw, LARGEST, LARGEST_SUM, MOST, ResourceError, plain_name};
use crate::base::link_escape::escape_by_link;

/// A file that will be attached: its name, its bytes, and the kind of its content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attachment {
    pub(super) name: String,
    pub(super) bytes: Vec<u8>,
    pub(super) nature: Nature,
}

impl Attachment {
    /// Reads a file that the user named.
    pub fn open(path: &Path) -> Result<Self, ResourceError> {
        Self::read(path).map_err(|flaw| ResourceError { path: path.to_owned(), flaw })
    }

    /// Checks bytes that did not come from a path.
    pub fn from_bytes(name: &str, bytes: Vec<u8>) -> Result<Self, ResourceError> {
        let path = PathBuf::from(name);
        Self::judge(&path, bytes).map_err(|flaw| ResourceError { path, flaw })
    }

    /// Whether it is an image.
    pub fn is_image(&self) -> bool {
        matches!(self.nature, Nature::Image(_))
    }

    /// The number of its bytes.
    pub fn size(&self) -> usize {
        self.bytes.len()
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    fn read(path: &Path) -> Result<Self, Flaw> {
        let refused = |error: std::io::Error| match error.kind() {
            std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory => Flaw::Missing,
            _ => Flaw::Unreadable(error),
        };
        // Checked before it is opened, because opening some devices has an effect.
        refuse_irregular(&fs::metadata(path).map_err(refused)?)?;
        let no_waiting = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or_default();
        let file = File::options().read(true).custom_flags(no_waiting).open(path);
        let file = file.map_err(refused)?;
        // Checked again, because the path may lead elsewhere by now.
        let facts = file.metadata().map_err(refused)?;
        refuse_irregular(&facts)?;
        if facts.len() > LARGEST {
            return Err(too_large(facts.len()));
        }
        let mut bytes = Vec::with_capacity(usize::try_from(facts.len()).unwrap_or_default());
        file.take(LARGEST + 1).read_to_end(&mut bytes).map_err(refused)?;
        Self::judge(path, bytes)
    }

    fn judge(path: &Path, bytes: Vec<u8>) -> Result<Self, Flaw> {
        if bytes.is_empty() {
            return Err(Flaw::Empty);
        }
        if bytes.len() as u64 > LARGEST {
            return Err(too_large(bytes.len() as u64));
        }
        let nature = look(&bytes)?;
        Ok(Self { name: plain_name(path), bytes, nature })
    }
}

/// Reads all files that the user named, in their order; the same file counts once. `workspace` is the
/// real path of the Workspace.
pub fn gather(paths: &[PathBuf], workspace: &Path) -> Result<Vec<Attachment>, ResourceError> {
    let mut gathered: Vec<Attachment> = Vec::new();
    let mut sum = 0;
    for path in paths {
        let refuse = |flaw| Err(ResourceError { path: path.clone(), flaw });
        if gathered.len() == MOST {
            return refuse(Flaw::TooMany(MOST + 1));
        }
        let attachment = Attachment::open(path)?;
        if let Some(target) = escape_by_link(workspace, path) {
            return refuse(Flaw::LeadsOutside(target));
        }
        if gathered.contains(&attachment) {
            continue;
        }
        sum += attachment.bytes.len() as u64;
        if sum > LARGEST_SUM {
            let what = "all attachments together";
            return refuse(Flaw::TooLarge { bytes: sum, limit: LARGEST_SUM, what });
        }
        gathered.push(attachment);
    }
    Ok(gathered)
}

fn too_large(bytes: u64) -> Flaw {
    Flaw::TooLarge { bytes, limit: LARGEST, what: "an attachment" }
}

fn refuse_irregular(facts: &fs::Metadata) -> Result<(), Flaw> {
    let kind = facts.file_type();
    if kind.is_file() {
        return Ok(());
    }
    Err(Flaw::NotAFile(if kind.is_dir() {
        "a directory"
    } else if kind.is_fifo() {
        "a named pipe"
    } else if kind.is_socket() {
        "a socket"
    } else {
        "a device"
    }))
}
