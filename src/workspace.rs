//! The Workspace: the directory a Session may touch, and paths that cannot leave it.

/// An open Workspace, cheap to clone.
#[derive(Debug, Clone)]
pub struct Workspace;
