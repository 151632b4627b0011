//! The `[ID]` and `--last` arguments that select the Session of a command.

use clap::Args;

use super::CliContext;
use crate::base::error::Report;
use crate::base::id::SessionId;
use crate::record::state_dir::StateRoot;

/// The Session that a command works on.
#[derive(Debug, Args)]
pub struct SessionArg {
    /// Session id, or the beginning or end of one; default: the last used Session of this Workspace
    #[arg(value_name = "ID", conflicts_with = "last")]
    id: Option<String>,
    /// Use the last used Session of this Workspace, which is the default
    #[arg(long)]
    last: bool,
}

impl SessionArg {
    /// Finds the Session, and the state root with its Log.
    pub fn find(&self, context: &CliContext) -> Result<(SessionId, StateRoot), Report> {
        context.find_session_or_last(self.id.as_deref())
    }
}
