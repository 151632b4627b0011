//! The host of the agent: callbacks from the CLI, because this module reads no environment and no settings.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures_util::future::BoxFuture;

use crate::agent::harness::Harness;
use crate::base::error::Report;
use crate::settings::config::Config;

/// The future of opening a Harness.
pub type HarnessFuture = BoxFuture<'static, Result<Arc<Harness>, Report>>;

/// A check whether a directory may be a Workspace.
pub type DirectoryCheck = Box<dyn Fn(&Path) -> Result<(), Report> + Send + Sync>;

/// A way to sign in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SignIn {
    /// A ChatGPT subscription, through a browser on this machine.
    ChatGpt,
    /// The API key from the environment.
    ApiKey,
}

/// Callbacks of the agent that depend on the user's settings and environment.
pub struct AcpHost {
    /// The user's settings, without those of a Workspace.
    pub config: Config,
    /// Whether the configured model accepts images.
    pub sees_images: bool,
    /// Whether a directory may be a Workspace: not the root, the home or its parents, unless the
    /// user named them.
    pub check_directory: DirectoryCheck,
    /// Opens a Harness for a Workspace; fails when there is no credential.
    pub open_harness: Box<dyn Fn(PathBuf) -> HarnessFuture + Send + Sync>,
    /// Signs in, and returns when that is done.
    pub sign_in: Box<dyn Fn(SignIn) -> BoxFuture<'static, Result<(), Report>> + Send + Sync>,
    /// Signs out of the subscription.
    pub sign_out: Box<dyn Fn() -> BoxFuture<'static, Result<(), Report>> + Send + Sync>,
}
