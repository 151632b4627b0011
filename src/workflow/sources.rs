//! Where Workflows come from: graphs that somebody states, and templates of Skills.

use serde_json::{Map, Value};

use super::spec::{Ground, SpecError, Workflow};
use super::template::Written;
use crate::config::Subagents;
use crate::roster::Roster;
use crate::skill::{Places, Skills};
use crate::tool::ToolError;

/// What is needed to read one.
#[derive(Clone)]
pub struct Sources {
    pub skills: Skills,
    /// Where roles may be.
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

    /// Fills a template of a Skill that may be used.
    pub fn template(&self, id: &str, arguments: Map<String, Value>) -> Result<Workflow, ToolError> {
        let written = Written::template(&self.skills, id)?;
        written.check_trust()?;
        self.reading(arguments, |ground| written.read(ground)).map_err(refused)
    }

    /// Reads something that may name roles of files.
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

/// A model sees all flaws at once, and what could have stood there: each look costs a call.
fn refused(error: SpecError) -> ToolError {
    let mut next_actions = error.lines();
    next_actions.push("correct all of this and try again".to_owned());
    ToolError { next_actions, ..ToolError::from(error) }
}
