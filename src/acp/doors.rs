//! Doors: what the command line hands in, because this room reads no environment and no settings.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures_util::future::BoxFuture;

use crate::config::Config;
use crate::error::Report;
use crate::harness::Harness;

/// A Harness to come.
pub type Opening = BoxFuture<'static, Result<Arc<Harness>, Report>>;

/// The judgement of a directory.
pub type Admission = Box<dyn Fn(&Path) -> Result<(), Report> + Send + Sync>;

/// Which way to sign in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SignIn {
    /// A ChatGPT subscription, through a browser on this machine.
    ChatGpt,
    /// The API key of the environment.
    ApiKey,
}

/// The way to everything that depends on the user's settings.
pub struct Doors {
    /// The user's settings, without those of any Workspace.
    pub config: Config,
    /// Whether the model of the settings can be shown images.
    pub sees_images: bool,
    /// Whether a directory may be a Workspace: not the root, the home or its parents, unless the
    /// user named them.
    pub admit: Admission,
    /// Opens a Harness for a Workspace; fails when nobody is signed in.
    pub open: Box<dyn Fn(PathBuf) -> Opening + Send + Sync>,
    /// Signs in, and returns when that is done.
    pub sign_in: Box<dyn Fn(SignIn) -> BoxFuture<'static, Result<(), Report>> + Send + Sync>,
    /// Signs out of the subscription.
    pub sign_out: Box<dyn Fn() -> BoxFuture<'static, Result<(), Report>> + Send + Sync>,
}
