//! Doors: what the command line hands in, because this room reads no environment and no settings.

use std::path::PathBuf;
use std::sync::Arc;

use futures_util::future::BoxFuture;

use crate::config::Config;
use crate::error::Report;
use crate::harness::Harness;

/// A Harness to come.
pub type Opening = BoxFuture<'static, Result<Arc<Harness>, Report>>;

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
    /// Opens a Harness for a Workspace; fails when nobody is signed in.
    pub open: Box<dyn Fn(PathBuf) -> Opening + Send + Sync>,
    /// Signs in, and returns when that is done.
    pub sign_in: Box<dyn Fn(SignIn) -> BoxFuture<'static, Result<(), Report>> + Send + Sync>,
    /// Signs out of the subscription.
    pub sign_out: Box<dyn Fn() -> BoxFuture<'static, Result<(), Report>> + Send + Sync>,
}
