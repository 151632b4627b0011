//! Skills of a Turn: those that the user names become active before the message, and their tool
//! restrictions apply until the Turn ends.

use std::sync::Arc;

use parking_lot::Mutex;

use super::execute::PreparedCall;
use super::{Turn, TurnEnd, TurnInput, TurnSettings};
use crate::base::blocking;
use crate::base::error::Kind;
use crate::base::tool_error::ToolError;
use crate::model::skill::{AllowedTools, Skill, find_mentions};
use crate::record::event::{Canonical, SkillActivation};
use crate::record::history::History;
use crate::tools::permission;
use crate::tools::skills::skill_activation;

/// Tool restrictions of the active Skills of a Turn.
#[derive(Debug, Default)]
pub(super) struct SkillToolLimits(Mutex<Vec<(String, AllowedTools)>>);

impl SkillToolLimits {
    /// Adds the restriction of a Skill that became active.
    pub(super) fn add(&self, fact: &Canonical) {
        let Canonical::SkillActivation(fact) = fact else { return };
        let Some(tools) = AllowedTools::from_words(&fact.allowed_tools) else { return };
        self.0.lock().push((fact.name.clone(), tools));
    }
}

/// The trusted Skills that a text names, in its order.
pub fn find_named_skills(text: &str, found: &[Arc<Skill>]) -> Vec<Arc<Skill>> {
    let find = |name| found.iter().find(|skill| skill.name() == name && skill.is_trusted).cloned();
    find_mentions(text).into_iter().filter_map(find).collect()
}

impl TurnSettings {
    /// The Event for a Skill that the user named. A text that the model has is not repeated.
    pub fn activation_event(&self, skill: &Skill, history: &History) -> SkillActivation {
        self.activation_event_by("user", skill, history)
    }

    fn activation_event_by(&self, whom: &str, skill: &Skill, history: &History) -> SkillActivation {
        omit_known_text(skill_activation(skill, whom, &self.secrets), history)
    }
}

/// Removes the text from an activation if the model has it.
pub(super) fn omit_known_text(mut fact: SkillActivation, history: &History) -> SkillActivation {
    if history.active_skill(&fact.name) == Some(fact.content_hash.as_str()) {
        (fact.repeated, fact.content, fact.cut_from) = (true, String::new(), None);
    }
    fact
}

impl Turn {
    /// Activates the Skills that the input names; each is recorded with its current text. Untrusted
    /// Skills are ignored, and so are user-only Skills if another agent wrote the input.
    pub(super) async fn activate_skills(
        &self,
        input: &TurnInput,
        history: &History,
    ) -> Result<Vec<Arc<Skill>>, TurnEnd> {
        if find_mentions(&input.text).is_empty() {
            return Ok(Vec::new());
        }
        let (skills, text) = (self.settings.skills.clone(), input.text.clone());
        let named =
            blocking::run_blocking(move || find_named_skills(&text, &skills.read_all().skills));
        let mut named: Vec<Arc<Skill>> = named.await.unwrap_or_default();
        named.retain(|skill| !input.is_delegated || !skill.front_matter.is_user_only);
        let whom = if input.is_delegated { "parent" } else { "user" };
        for skill in &named {
            let fact = Canonical::from(self.settings.activation_event_by(whom, skill, history));
            self.skill_tool_limits.add(&fact);
            self.context.record(fact).await?;
        }
        Ok(named)
    }

    /// The error for a call that an active Skill does not allow; all of them must allow it.
    pub(super) fn check_skill_limits(&self, prepared: &PreparedCall) -> Option<ToolError> {
        let skill_tool_limits = self.skill_tool_limits.0.lock();
        if skill_tool_limits.is_empty() {
            return None;
        }
        let parts = prepared.plan.command.as_deref().map(permission::command_parts);
        let name = &prepared.event.name;
        let is_outside = |tools: &AllowedTools| !tools.permits(name, parts.as_deref());
        let (skill, tools) = skill_tool_limits.iter().find(|(_, tools)| is_outside(tools))?;
        let words = tools.words().join(", ");
        let message = format!("the active skill `{skill}` allows only: {words}");
        Some(
            ToolError::new(Kind::PermissionDenied, message)
                .with_next_action("go on with those tools, or tell the user what else it takes"),
        )
    }
}
