//! Resources: files that the user attached and images that the model looked at, kept by the hash
//! of their bytes in the Session's folder.
//!
//! A Log holds descriptors, never bytes. The model is shown the content on the Turn in which a
//! Resource enters, and later its descriptor, until it asks again. Everything that can be wrong
//! with an attachment is found before its Turn begins.

mod attach;
mod contents;
mod shelf;
mod sniff;
mod store;
#[cfg(test)]
mod tests;

use std::path::PathBuf;

use serde_json::{Value, json};

pub use attach::{Attachment, gather};
pub use contents::{Contents, Part, picture, visible, wanted};
pub use shelf::{Shelf, Showing, head};
pub use sniff::{Nature, is_image, look};
pub use store::{Lost, Store};

use crate::error::{Explain, Kind};

/// How many attachments a Turn takes.
pub const MOST: usize = 20;
/// The largest attachment, in bytes.
pub const LARGEST: u64 = 16 << 20;
/// The largest image; servers refuse larger ones, or make them small anyway.
pub const LARGEST_IMAGE: u64 = 8 << 20;
/// All attachments of a Turn together, in bytes.
pub const LARGEST_SUM: u64 = 48 << 20;
/// The longest side of an image, in pixels.
pub const LONGEST_SIDE: u32 = 16_000;
/// How much of a text is shown on its Turn; the rest can be paged.
pub const INLINED: usize = 64 << 10;
/// How much of all texts of a Turn together.
pub const INLINED_SUM: usize = 256 << 10;
/// How many images a Turn shows, however they came in; every request of the Turn carries them.
pub const MOST_IMAGES: usize = 40;
/// The same in bytes.
pub const IMAGES_SUM: u64 = 32 << 20;

/// Why a file cannot be attached.
#[derive(Debug, thiserror::Error)]
#[error("cannot attach {}: {flaw}", path.display())]
pub struct ResourceError {
    /// The file, as it was named.
    pub path: PathBuf,
    /// What is wrong with it.
    pub flaw: Flaw,
}

/// What is wrong with a file.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each says what it is")]
pub enum Flaw {
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
    #[error("it has {bytes} bytes, and {limit} are the most for {what}")]
    TooLarge { bytes: u64, limit: u64, what: &'static str },
    #[error("it is number {0}, and {MOST} attachments are the most")]
    TooMany(usize),
    #[error("{0} is a kind of image that no Provider takes")]
    Unsupported(&'static str),
    #[error("it begins like {0}, but it is broken")]
    Broken(&'static str),
    #[error("it is {width}x{height} pixels, and {LONGEST_SIDE} are the most for a side")]
    TooWide { width: u32, height: u32 },
}

impl Flaw {
    /// What to do about it.
    pub fn next_action(&self) -> String {
        match self {
            Self::Missing => "check the path; it is relative to the current directory".to_owned(),
            Self::NotAFile(_) => "name a regular file".to_owned(),
            Self::LeadsOutside(target) => {
                format!("if that file is meant, name it itself: {}", target.display())
            }
            Self::Unreadable(_) => "check its permissions".to_owned(),
            Self::Empty => "leave it out".to_owned(),
            Self::TooLarge { .. } => "attach a smaller file, or a part of it".to_owned(),
            Self::TooMany(_) => "attach fewer files, or name them in the prompt".to_owned(),
            Self::Unsupported(_) => "convert it to PNG, JPEG, GIF or WebP".to_owned(),
            Self::Broken(_) => "check that the file is whole".to_owned(),
            Self::TooWide { .. } => "make the image smaller".to_owned(),
        }
    }
}

impl Explain for ResourceError {
    fn kind(&self) -> Kind {
        match self.flaw {
            Flaw::Missing => Kind::NotFound,
            Flaw::LeadsOutside(_) => Kind::OutsideWorkspace,
            _ => Kind::InvalidArgs,
        }
    }
    fn details(&self) -> Value {
        json!({ "path": self.path.to_string_lossy() })
    }
    fn next_actions(&self) -> Vec<String> {
        vec![self.flaw.next_action()]
    }
}

/// A name for Logs, models and screens: the last part of a path, on one line and without
/// characters that cannot be seen.
pub fn plain_name(path: &std::path::Path) -> String {
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
