//! The Tools by which a model uses Subagents, one per file.

mod close;
mod list;
mod send;
mod spawn;
mod wait;

use std::sync::Arc;

use super::Family;
use crate::agent::child_workspace::MergeChild;
use crate::model::tool_spec::ToolSpec;
use crate::tools::tool::{AnyTool, spec_of};

/// The Tools of a Session that may have children.
pub fn all(family: &Arc<Family>) -> Vec<Arc<dyn AnyTool>> {
    vec![
        Arc::new(close::CloseAgent(Arc::clone(family))),
        Arc::new(list::ListAgents(Arc::clone(family))),
        Arc::new(MergeChild::new(family.subagents.nursery.annexes.clone())),
        Arc::new(send::SendInput(Arc::clone(family))),
        Arc::new(spawn::SpawnAgent(Arc::clone(family))),
        Arc::new(wait::WaitAgent(Arc::clone(family))),
    ]
}

/// The specs of these Tools, for a preview without a Session.
pub fn specs() -> [ToolSpec; 6] {
    [
        spec_of::<close::CloseAgent>(),
        spec_of::<list::ListAgents>(),
        spec_of::<MergeChild>(),
        spec_of::<send::SendInput>(),
        spec_of::<spawn::SpawnAgent>(),
        spec_of::<wait::WaitAgent>(),
    ]
}

/// The schemas that their types have now.
#[cfg(test)]
pub fn drawn() -> Vec<(String, serde_json::Value)> {
    fn of<T: crate::tools::tool::Tool>() -> (String, serde_json::Value) {
        (T::NAME.to_owned(), crate::model::tool_spec::draw_schema::<T::Args>())
    }
    vec![
        of::<close::CloseAgent>(),
        of::<list::ListAgents>(),
        of::<MergeChild>(),
        of::<send::SendInput>(),
        of::<spawn::SpawnAgent>(),
        of::<wait::WaitAgent>(),
    ]
}
