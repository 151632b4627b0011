//! Which Session a command is about: one by its id, or the last one.

use clap::Args;

use super::resume::last;
use super::{Context, bad_argument};
use crate::error::Report;
use crate::id::SessionId;
use crate::state::StateRoot;

/// The Session of a command.
#[derive(Debug, Args)]
pub struct Chosen {
    /// The Session
    #[arg(value_name = "ID", required_unless_present = "last", conflicts_with = "last")]
    id: Option<String>,
    /// The Session of this Workspace that was used last
    #[arg(long)]
    last: bool,
}

impl Chosen {
    /// The Session, and the state that it is a part of.
    pub fn find(&self, context: &Context) -> Result<(SessionId, StateRoot), Report> {
        match &self.id {
            Some(id) => context.session_named(id),
            None if self.last => context.session_named(last(context)?.as_str()),
            None => Err(bad_argument("which Session? give its id, or --last")),
        }
    }
}
