//! What a parent's model may do with children, one Tool per file.

mod close;
mod list;
mod send;
mod spawn;
mod wait;

use std::sync::Arc;

use super::Family;
use crate::annex::MergeChild;
use crate::tool::{AnyTool, ToolSpec, spec_of};

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

/// What a model is told of them, for a look without a Session.
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
    fn of<T: crate::tool::Tool>() -> (String, serde_json::Value) {
        (T::NAME.to_owned(), crate::tool::draw_schema::<T::Args>())
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
