//! The Tools by which a model uses Subagents, one per file.

mod close;
mod list;
mod send;
mod spawn;
mod wait;

use std::sync::Arc;

use super::Children;
use crate::agent::child_workspace::MergeChild;
use crate::model::tool_spec::ToolSpec;
use crate::tools::tool::{AnyTool, tool_spec};

/// The Tools of a Session that may have children.
pub fn subagent_tools(children: &Arc<Children>) -> Vec<Arc<dyn AnyTool>> {
    vec![
        Arc::new(close::CloseAgent(Arc::clone(children))),
        Arc::new(list::ListAgents(Arc::clone(children))),
        Arc::new(MergeChild::new(children.subagents.child_factory.child_workspaces.clone())),
        Arc::new(send::SendInput(Arc::clone(children))),
        Arc::new(spawn::SpawnAgent(Arc::clone(children))),
        Arc::new(wait::WaitAgent(Arc::clone(children))),
    ]
}

/// The specs of these Tools, for a preview without a Session.
pub fn subagent_tool_specs() -> [ToolSpec; 6] {
    [
        tool_spec::<close::CloseAgent>(),
        tool_spec::<list::ListAgents>(),
        tool_spec::<MergeChild>(),
        tool_spec::<send::SendInput>(),
        tool_spec::<spawn::SpawnAgent>(),
        tool_spec::<wait::WaitAgent>(),
    ]
}

/// The schemas that are generated from the argument types.
#[cfg(test)]
pub fn generated_schemas() -> Vec<(String, serde_json::Value)> {
    fn of<T: crate::tools::tool::Tool>() -> (String, serde_json::Value) {
        (T::NAME.to_owned(), crate::model::tool_spec::generate_schema::<T::Args>())
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
