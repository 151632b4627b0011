//! Tools that read and change files.

mod diff;
mod edit;
mod file_page;
mod image;
mod patch;
mod read;
mod read_tracker;
mod redaction;
mod replace;
mod resource_view;
mod rewrite;
mod similar_line;
mod write;

pub use diff::{FileDiff, FileVersions};
pub use edit::EditTool;
pub use image::show_image;
pub use patch::ApplyPatchTool;
pub use read::{ReadTool, suggest_similar_names};
pub use read_tracker::ReadTracker;
pub use resource_view::ResourceViewTool;
pub use rewrite::{FileRewriter, run_file_work};
pub use write::WriteTool;
