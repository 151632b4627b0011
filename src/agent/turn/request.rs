//! The request and the late context of a Turn, built only here, so that a preview shows what would
//! be sent.

use std::sync::Arc;

use super::TurnSettings;
use crate::base::id::SessionId;
use crate::model::prompt::LateContext;
use crate::model::provider::ModelRequest;
use crate::model::tool_spec::ToolSpec;
use crate::record::history::History;
use crate::record::resource::ResourceContents;
use crate::tools::tool::AnyTool;
use crate::tools::toolbox::Cleanup;

impl TurnSettings {
    /// Adds Tools to settings; the role gets those that it may use.
    #[must_use]
    pub fn with_tools(self, more: Vec<Arc<dyn AnyTool>>, rest: Cleanup) -> Self {
        let toolbox =
            self.toolbox.clone().with_tools(more.clone(), rest.clone()).for_role(self.role);
        let tools = self.tools.clone().with_tools(more, rest);
        Self { toolbox, tools, ..self }
    }

    /// The request of one model call after this History.
    pub fn request(
        &self,
        session: &SessionId,
        history: History,
        contents: ResourceContents,
        tools: Arc<[ToolSpec]>,
        resends: u32,
    ) -> ModelRequest {
        ModelRequest {
            model: self.model.clone(),
            effort: self.effort.clone(),
            instructions: self.prompt.instructions.clone(),
            project: self.prompt.project.clone(),
            tools,
            history,
            contents,
            cache_key: self.prompt.cache_key.clone(),
            response_options: self.response_options.clone(),
            session: session.clone(),
            resends,
        }
    }

    /// The current late context.
    pub fn late_context(&self) -> String {
        let (shell, mode) = (&self.prompt.shell, self.permission_state.mode());
        let now = LateContext::now(&self.workspace, shell, &mode, self.role);
        LateContext { servers: self.mcp_servers.instructions(), ..now }.text()
    }
}
