//! What a Turn asks: the request and the late context, made here alone, so that whoever shows them
//! shows what would leave.

use std::sync::Arc;

use super::Settings;
use crate::history::History;
use crate::id::SessionId;
use crate::prompt::Context;
use crate::provider::Request;
use crate::resource::Contents;
use crate::tool::{AnyTool, Rest, ToolSpec};

impl Settings {
    /// The same settings with more Tools, of which the role uses those that it may.
    #[must_use]
    pub fn with_tools(self, more: Vec<Arc<dyn AnyTool>>, rest: Rest) -> Self {
        let toolbox = self.toolbox.clone().and(more.clone(), rest.clone()).of_role(self.role);
        let tools = self.tools.clone().and(more, rest);
        Self { toolbox, tools, ..self }
    }

    /// One call to the model after this History.
    pub fn request(
        &self,
        session: &SessionId,
        history: History,
        contents: Contents,
        tools: Arc<[ToolSpec]>,
        resends: u32,
    ) -> Request {
        Request {
            model: self.model.clone(),
            effort: self.effort.clone(),
            instructions: self.prompt.instructions.clone(),
            project: self.prompt.project.clone(),
            tools,
            history,
            contents,
            cache_key: self.prompt.cache_key.clone(),
            wishes: self.wishes.clone(),
            session: session.clone(),
            resends,
        }
    }

    /// What is true at this moment, as the model is told.
    pub fn late_context(&self) -> String {
        let (shell, mode) = (&self.prompt.shell, self.stance.mode());
        let now = Context::now(&self.workspace, shell, &mode, self.role);
        Context { servers: self.connections.instructions(), ..now }.text()
    }
}
