//! Changes of mode, role, model or effort, and of other settings of an open Session.

use std::path::PathBuf;
use std::sync::Arc;

use super::posture::Posture;
use super::{Harness, HarnessError};
use crate::agent::conversation::Conversation;
use crate::agent::subagent::senses;
use crate::agent::turn::{Budget, Prompt, Settings};
use crate::base::blocking;
use crate::host::sandbox::Profile;
use crate::host::workspace::Workspace;
use crate::model::credential::FieldPolicy;
use crate::model::prompt;
use crate::model::roles::Roster;
use crate::record::event::PermissionMode;
use crate::settings::config::McpServer;
use crate::settings::config::models;
use crate::settings::config::models::Model;
use crate::settings::role::strictest;

/// Settings to change; `None` keeps the present value.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Change {
    /// The permission mode.
    pub mode: Option<PermissionMode>,
    /// The name of the role.
    pub role: Option<&'static str>,
    /// The name of the model.
    pub model: Option<String>,
    /// The reasoning effort.
    pub effort: Option<String>,
}

impl Harness {
    /// Changes settings of a Session, and records them. The mode holds from the next call on, also
    /// during a Turn; everything else from the next Turn on.
    pub async fn change(
        &self,
        conversation: &Conversation,
        change: Change,
    ) -> Result<Conversation, HarnessError> {
        let session = conversation.session();
        let history = session.history().await?;
        let roster = Roster::new(&self.places(session.state_root().workspace()));
        let before = Posture::of(&history, &roster);
        let after = before.changed(&change, self.models());
        if let Some(fact) = after.news(&before) {
            session.record(fact.into()).await?;
        }
        self.keep_choice(conversation, &after.mode).await;
        let old = conversation.settings();
        let confinement = Profile::of(self.config.sandbox.level, &after.mode);
        old.stance.set(after.mode.clone(), confinement);
        let toolbox = old.tools.clone().of_role(after.role);
        let (sight, window) = senses(&self.config, &self.credential, &after.model);
        let settings = Settings {
            toolbox,
            role: after.role,
            sight,
            window,
            prompt: Prompt {
                cache_key: prompt::cache_key(
                    prompt::VERSION,
                    &after.model,
                    &history.family(session.id()),
                ),
                ..old.prompt.clone()
            },
            model: after.model,
            effort: after.effort,
            ..old.clone()
        };
        let conversation = conversation.with(settings);
        self.lead(&conversation);
        Ok(conversation)
    }

    /// Takes over a Session that another Harness of this process opened: signing in or out in the
    /// meantime has changed the credential.
    pub fn adopt(&self, conversation: &Conversation, from: &Self) -> Conversation {
        self.sessions.remember(conversation.session());
        self.take_family(conversation, from);
        let old = conversation.settings();
        let (sight, window) = senses(&self.config, &self.credential, &old.model);
        let conversation = conversation.with(Settings {
            provider: Arc::clone(&self.provider),
            secrets: Arc::clone(&self.secrets),
            sight,
            window,
            ..old.clone()
        });
        self.lead(&conversation);
        conversation
    }

    /// The same Session with a new budget: the limits of a run are counted from here. A front-end
    /// that runs for days calls this for each prompt.
    pub fn afresh(&self, conversation: &Conversation) -> Conversation {
        let budget = Budget::new(self.config.budget, self.config.prices.clone());
        let old = conversation.settings();
        let conversation = conversation.with(Settings { budget: Arc::new(budget), ..old.clone() });
        self.lead(&conversation);
        conversation
    }

    /// The same Session with these MCP servers of its caller, in place of those before; and notices
    /// about those that are not used. Servers that a Turn uses stay until its end.
    pub fn connect(
        &self,
        conversation: &Conversation,
        brought: Vec<McpServer>,
    ) -> (Conversation, Vec<String>) {
        let old = conversation.settings();
        let root = old.workspace.root();
        let (connections, notices) = self.connections(&old.session_folder, root, brought);
        let conversation = conversation.with(Settings { connections, ..old.clone() });
        self.lead(&conversation);
        (conversation, notices)
    }

    /// The same Session with additional directories, in place of those before; and notices about
    /// those that cannot be used.
    pub fn widen(
        &self,
        conversation: &Conversation,
        directories: &[PathBuf],
    ) -> (Conversation, Vec<String>) {
        let old = conversation.settings();
        let (mut spaces, mut notes) = (Vec::new(), Vec::new());
        for directory in directories {
            let refuse = |reason: String| format!("additional directory not used: {reason}");
            match Workspace::open(directory) {
                Err(error) => notes.push(refuse(error.to_string())),
                Ok(space) => match self.commands.sandbox().objection(space.root()) {
                    Some(reason) => notes.push(refuse(reason)),
                    None => spaces.push(space.hiding(self.config.home.folder())),
                },
            }
        }
        let workspace = old.workspace.clone().beside(spaces);
        let conversation = conversation.with(Settings { workspace, ..old.clone() });
        self.lead(&conversation);
        (conversation, notes)
    }

    /// Stores a mode that is laxer than the settings, so that the Session has it again when it is
    /// resumed.
    async fn keep_choice(&self, conversation: &Conversation, mode: &PermissionMode) {
        let usual = &self.config.permission_mode;
        let is_laxer = strictest(mode, usual) == *usual && mode != usual;
        let mode = is_laxer.then(|| mode.clone());
        let (grants, id) = (self.grants.clone(), conversation.id().clone());
        let workspace = conversation.workspace().to_owned();
        let keeping = move || grants.keep(&id, &workspace, mode);
        blocking::work(keeping).await.ok();
    }

    /// The models that can be chosen: those that the endpoint has listed, or else the built-in
    /// ones, and in any case the one of the settings. Looked up once.
    pub fn models(&self) -> &[Model] {
        self.models.get_or_init(|| {
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
        })
    }
}
