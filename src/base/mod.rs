//! Foundations: errors, ids, paths, secrets, text and files. No policy and no state.

pub mod blocking;
pub mod error;
pub mod files;
pub mod git_index;
pub mod id;
pub mod link_escape;
pub mod locked_file;
pub mod names;
pub mod paths;
pub mod secret;
pub mod text;
pub mod tokens;
pub mod tool_error;
