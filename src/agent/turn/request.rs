//! The request and the late context of a Turn, built only here, so that a preview shows what would
//! be sent.

use std::sync::Arc;

use super::Settings;
use crate::base::id::SessionId;
use crate::model::prompt::Context;
use crate::model::provider::Request;
use crate::model::tool_spec::ToolSpec;
use crate::record::history::History;
use crate::record::resource::Contents;
use crate::tools::tool::AnyTool;
use crate::tools::toolbox::Rest;

impl Settings {
    /// These settings with more Tools, of which the role gets those that it may use.
    #[must_use]
    pub fn with_tools(self, more: Vec<Arc<dyn AnyTool>>, rest: Rest) -> Self {
        let toolbox = self.toolbox.clone().and(more.clone(), rest.clone()).of_role(self.role);
        let tools = self.tools.clone().and(more, rest);
        Self { toolbox, tools, ..self }
    }

    /// The request of one model call after this History.
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

    /// The current late context.
    pub fn late_context(&self) -> String {
        let (shell, mode) = (&self.prompt.shell, self.stance.mode());
        let now = Context::now(&self.workspace, shell, &mode, self.role);
        Context { servers: self.connections.instructions(), ..now }.text()
    }
}
