//! Tools that read and change files.

mod difference;
mod edit;
mod hint;
mod image;
mod page;
mod patch;
mod read;
mod read_tracker;
mod redaction;
mod replace;
mod resource_view;
mod rewrite;
mod write;

pub use difference::{Difference, Versions};
pub use edit::Edit;
pub use image::show as show_image;
pub use patch::ApplyPatch;
pub use read::{Read, suggest_near};
pub use read_tracker::Seen;
pub use resource_view::ResourceView;
pub use rewrite::{Rewriter, on_disk};
pub use write::Write;
