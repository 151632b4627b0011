//! Change: another mode, role, model or effort for a Session that goes on.

use super::posture::Posture;
use super::{Harness, HarnessError};
use crate::config::models::{self, Model};
use crate::conversation::Conversation;
use crate::credential::FieldPolicy;
use crate::event::PermissionMode;
use crate::prompt;
use crate::sandbox::Profile;
use crate::turn::{Prompt, Settings};

/// What is to be different from now on; what is not named stays.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Change {
    /// What may be done without asking.
    pub mode: Option<PermissionMode>,
    /// The name of what the Session is for.
    pub role: Option<&'static str>,
    /// Which model is asked.
    pub model: Option<String>,
    /// How hard it thinks.
    pub effort: Option<String>,
}

impl Harness {
    /// Changes what a Session is set to, and records it. The mode holds from the next call on, also
    /// under a running Turn; everything else from the next Turn on.
    pub async fn change(
        &self,
        conversation: &Conversation,
        change: Change,
    ) -> Result<Conversation, HarnessError> {
        let session = conversation.session();
        let before = Posture::of(&session.history().await?);
        let after = before.changed(&change, &self.models());
        if let Some(fact) = after.news(&before) {
            session.record(fact.into()).await?;
        }
        let old = conversation.settings();
        let confinement = Profile::of(self.config.sandbox.level, &after.mode);
        old.stance.set(after.mode.clone(), confinement);
        let toolbox = old.tools.clone().without(after.role.withheld);
        let settings = Settings {
            toolbox,
            role: after.role,
            sight: self.sight(&after.model),
            prompt: Prompt {
                cache_key: prompt::cache_key(prompt::VERSION, &after.model, session.id()),
                ..old.prompt.clone()
            },
            model: after.model,
            effort: after.effort,
            ..old.clone()
        };
        Ok(conversation.with(settings))
    }

    /// The models that can be chosen: what the endpoint has listed, or what is known of it, and in
    /// any case the one of the settings.
    pub fn models(&self) -> Vec<Model> {
        let listed = models::remembered(&self.config.home, self.credential.base_url());
        let mut models = match listed {
            Some(listing) if !listing.models.is_empty() => listing.models,
            // A server that is not OpenAI's has models of its own.
            _ if self.credential.policy() == FieldPolicy::Portable => Vec::new(),
            _ => models::built_in().collect(),
        };
        if !models.iter().any(|model| model.name == self.config.model) {
            models.insert(0, Model::named(&self.config.model));
        }
        models
    }
}
