//! Loads Workflows from graphs and from templates of Skills.

use serde_json::{Map, Value};

use super::spec::{Ground, SpecError, Workflow};
use super::template::Written;
use crate::base::tool_error::ToolError;
use crate::model::roles::Roster;
use crate::model::skill::{Places, Skills};
use crate::settings::config::Subagents;

/// Everything that is needed to load a Workflow.
#[derive(Clone)]
pub struct Sources {
    pub skills: Skills,
    /// Where files of roles are searched.
    pub places: Places,
    pub limits: Subagents,
}

impl Sources {
    /// Reads a graph.
    pub fn graph(
        &self,
        written: &Value,
        arguments: Map<String, Value>,
    ) -> Result<Workflow, ToolError> {
        self.reading(arguments, |ground| Workflow::of(written, ground)).map_err(refused)
    }

    /// Fills a template of a trusted Skill.
    pub fn template(&self, id: &str, arguments: Map<String, Value>) -> Result<Workflow, ToolError> {
        let written = Written::template(&self.skills, id)?;
        written.check_trust()?;
        self.reading(arguments, |ground| written.read(ground)).map_err(refused)
    }

    /// Runs `read` with the roles, limits and arguments that a spec may refer to.
    pub fn reading<E>(
        &self,
        arguments: Map<String, Value>,
        read: impl FnOnce(&Ground<'_>) -> Result<Workflow, E>,
    ) -> Result<Workflow, E> {
        let roster = Roster::new(&self.places);
        let role = |name: &str| roster.find(name).ok();
        read(&Ground { role: &role, roles: roster.names(), limits: self.limits, arguments })
    }
}

/// A tool error that lists all flaws and accepted words at once, because each attempt costs a call of the model.
fn refused(error: SpecError) -> ToolError {
    let mut next_actions = error.lines();
    next_actions.push("correct all of this and try again".to_owned());
    ToolError { next_actions, ..ToolError::from(error) }
}
