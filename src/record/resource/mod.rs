//! Resources: files that the user attached and images that the model viewed, stored by the hash
//! of their bytes in the Session's folder.
//!
//! A Log has descriptors, never bytes. The model is shown the content on the Turn in which a
//! Resource enters, and later its descriptor, unless it views the Resource again. Problems with an
//! attachment are found before its Turn begins.

mod attach;
mod contents;
mod resources;
mod sniff;
mod store;
#[cfg(test)]
mod tests;

use std::path::PathBuf;

use serde_json::json;

pub use attach::{Attachment, read_attachments};
pub use contents::{ContentPart, ResourceContents, escape_controls, shown_resources};
pub use resources::{Resources, ShowResult, fitting_prefix};
pub use sniff::{ContentKind, detect_content, is_image};
pub use store::{ResourceReadError, ResourceStore};

use crate::base::error::{Explain, Explanation, Kind};

/// How many attachments a Turn takes.
pub const MOST: usize = 20;
/// The largest attachment, in bytes.
pub const MAX_ATTACHMENT_BYTES: u64 = 16 << 20;
/// The largest image, in bytes; servers refuse larger ones, or scale them down.
pub const MAX_IMAGE_BYTES: u64 = 8 << 20;
/// All attachments of a Turn together, in bytes.
pub const MAX_TURN_BYTES: u64 = 48 << 20;
/// The longest side of an image, in pixels.
pub const LONGEST_SIDE: u32 = 16_000;
/// How many bytes of a text are shown on its Turn; the model can page through the rest.
pub const MAX_INLINED_BYTES: usize = 64 << 10;
/// How many bytes of all texts together are shown on a Turn.
pub const MAX_TURN_INLINED_BYTES: usize = 256 << 10;
/// How many images a Turn shows, attached or viewed; every request of the Turn carries them.
pub const MAX_TURN_IMAGES: usize = 40;
/// How many bytes of images a Turn shows.
pub const MAX_TURN_IMAGE_BYTES: u64 = 32 << 20;

/// Why a file cannot be attached.
#[derive(Debug, thiserror::Error)]
#[error("cannot attach {}: {flaw}", path.display())]
pub struct ResourceError {
    /// The file, as the user named it.
    pub path: PathBuf,
    /// The problem with it.
    pub flaw: AttachmentProblem,
}

/// A problem with a file that should be attached.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each says what it is")]
pub enum AttachmentProblem {
    #[error("there is no such file")]
    Missing,
    #[error("it is {0}, not a file")]
    NotAFile(&'static str),
    #[error("a link in the Workspace leads out of it, to {}", .0.display())]
    LeadsOutside(PathBuf),
    #[error("it cannot be read: {0}")]
    Unreadable(std::io::Error),
    #[error("it is empty")]
    Empty,
    #[error("it has {bytes} bytes; at most {limit} are allowed for {what}")]
    TooLarge { bytes: u64, limit: u64, what: &'static str },
    #[error("it is number {0}; at most {MOST} attachments are allowed")]
    TooMany(usize),
    #[error("no Provider accepts images of type {0}")]
    Unsupported(&'static str),
    #[error("it begins like {0}, but is broken")]
    Broken(&'static str),
    #[error("it is {width}x{height} pixels; at most {LONGEST_SIDE} are allowed for a side")]
    TooWide { width: u32, height: u32 },
}

impl AttachmentProblem {
    /// The next action for the user.
    pub fn next_action(&self) -> String {
        match self {
            Self::Missing => "check the path; it is relative to the current directory".to_owned(),
            Self::NotAFile(_) => "name a regular file".to_owned(),
            Self::LeadsOutside(target) => {
                format!("to attach that file, name it directly: {}", target.display())
            }
            Self::Unreadable(_) => "check its permissions".to_owned(),
            Self::Empty => "leave it out".to_owned(),
            Self::TooLarge { .. } => "attach a smaller file, or a part of it".to_owned(),
            Self::TooMany(_) => "attach fewer files, or name them in the prompt".to_owned(),
            Self::Unsupported(_) => "convert it to PNG, JPEG, GIF or WebP".to_owned(),
            Self::Broken(_) => "check that the file is complete".to_owned(),
            Self::TooWide { .. } => "make the image smaller".to_owned(),
        }
    }
}

impl Explain for ResourceError {
    fn explain(&self) -> Explanation {
        let kind = match self.flaw {
            AttachmentProblem::Missing => Kind::NotFound,
            AttachmentProblem::LeadsOutside(_) => Kind::OutsideWorkspace,
            _ => Kind::InvalidArgs,
        };
        kind.with_details(json!({ "path": self.path.to_string_lossy() }))
            .with_next_action(self.flaw.next_action())
    }
}

/// A name for Logs, models and screens: the last part of a path, on one line and without
/// invisible characters.
pub fn display_name(path: &std::path::Path) -> String {
    const LONGEST_NAME: usize = 120;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let is_odd = |c: char| {
        c.is_control()
            || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}')
            || matches!(c, '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}')
    };
    let name: String =
        name.chars().map(|c| if is_odd(c) { '_' } else { c }).take(LONGEST_NAME).collect();
    if name.is_empty() { "unnamed".to_owned() } else { name }
}
