//! Loads Workflows from graphs and from templates of Skills.

use serde_json::{Map, Value};

use super::spec::{SpecContext, SpecError, Workflow};
use super::template::WorkflowSource;
use crate::base::tool_error::ToolError;
use crate::model::roles::RoleCatalog;
use crate::model::skill::{DiscoveryFolders, Skills};
use crate::settings::config::SubagentLimits;

/// Everything that is needed to load a Workflow.
#[derive(Clone)]
pub struct WorkflowLoader {
    pub skills: Skills,
    /// The folders that are searched for role files.
    pub role_places: DiscoveryFolders,
    pub limits: SubagentLimits,
}

impl WorkflowLoader {
    /// Reads a graph.
    pub fn load_graph(
        &self,
        written: &Value,
        arguments: Map<String, Value>,
    ) -> Result<Workflow, ToolError> {
        self.load_with(arguments, |context| Workflow::from_json(written, context))
            .map_err(into_tool_error)
    }

    /// Fills a template of a trusted Skill.
    pub fn load_template(
        &self,
        id: &str,
        arguments: Map<String, Value>,
    ) -> Result<Workflow, ToolError> {
        let written = WorkflowSource::find_template(&self.skills, id)?;
        written.check_trust()?;
        self.load_with(arguments, |context| written.read(context)).map_err(into_tool_error)
    }

    /// Runs `read` with the roles, limits and arguments that a spec may refer to.
    pub fn load_with<E>(
        &self,
        arguments: Map<String, Value>,
        read: impl FnOnce(&SpecContext<'_>) -> Result<Workflow, E>,
    ) -> Result<Workflow, E> {
        let roles = RoleCatalog::new(&self.role_places);
        let role = |name: &str| roles.find(name).ok();
        read(&SpecContext {
            find_role: &role,
            role_names: roles.names(),
            limits: self.limits,
            arguments,
        })
    }
}

/// A tool error that lists all flaws and accepted words at once, because each attempt costs a call of the model.
fn into_tool_error(error: SpecError) -> ToolError {
    let mut next_actions = error.correction_lines();
    next_actions.push("correct all of this and try again".to_owned());
    ToolError { next_actions, ..ToolError::from(error) }
}
