//! Which Session a command is about: one by its id, or the last one.

use clap::Args;

use super::Context;
use crate::error::Report;
use crate::id::SessionId;
use crate::state::StateRoot;

/// The Session of a command.
#[derive(Debug, Args)]
pub struct Chosen {
    /// The Session, by its id or the beginning or end of it; without it, the one of this Workspace that was used last
    #[arg(value_name = "ID", conflicts_with = "last")]
    id: Option<String>,
    /// The Session of this Workspace that was used last, as without an id
    #[arg(long)]
    last: bool,
}

impl Chosen {
    /// The Session, and the state that it is a part of.
    pub fn find(&self, context: &Context) -> Result<(SessionId, StateRoot), Report> {
        context.session_or_last(self.id.as_deref())
    }
}
