//! Changes of mode, role, model or effort, and of other settings of an open Session.

use std::path::PathBuf;
use std::sync::Arc;

use super::posture::Posture;
use super::{Harness, HarnessError};
use crate::agent::conversation::Conversation;
use crate::agent::subagent::image_support_and_window;
use crate::agent::turn::{PromptParts, RunBudget, TurnSettings};
use crate::base::blocking;
use crate::host::sandbox::Profile;
use crate::host::workspace::Workspace;
use crate::model::credential::FieldPolicy;
use crate::model::prompt;
use crate::model::roles::RoleCatalog;
use crate::record::event::PermissionMode;
use crate::settings::config::McpServer;
use crate::settings::config::models;
use crate::settings::config::models::Model;
use crate::settings::role::stricter_mode;

/// Settings to change; `None` keeps the present value.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SettingsChange {
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
    /// Changes settings of a Session, and records them. The mode applies from the next call on, also
    /// during a Turn; everything else from the next Turn on.
    pub async fn change_settings(
        &self,
        conversation: &Conversation,
        change: SettingsChange,
    ) -> Result<Conversation, HarnessError> {
        let session = conversation.session();
        let history = session.history().await?;
        let roles = RoleCatalog::new(&self.discovery_folders(session.state_root().workspace()));
        let before = Posture::from_history(&history, &roles);
        let after = before.with_change(&change, self.models());
        if let Some(fact) = after.changed_since(&before) {
            session.record(fact.into()).await?;
        }
        self.store_mode_choice(conversation, &after.mode).await;
        let old = conversation.settings();
        let sandbox_profile = Profile::for_mode(self.config.sandbox.level, &after.mode);
        old.permission_state.set(after.mode.clone(), sandbox_profile);
        let toolbox = old.tools.clone().for_role(after.role);
        let (image_support, window) =
            image_support_and_window(&self.config, &self.credential, &after.model);
        let settings = TurnSettings {
            toolbox,
            role: after.role,
            image_support,
            window,
            prompt: PromptParts {
                cache_key: prompt::cache_key(
                    prompt::VERSION,
                    &after.model,
                    &history.fork_root_id(session.id()),
                ),
                ..old.prompt.clone()
            },
            model: after.model,
            effort: after.effort,
            ..old.clone()
        };
        Ok(self.use_settings(conversation, settings))
    }

    /// Takes over a Session that another Harness of this process opened with another credential: the
    /// user has signed in or out since.
    pub fn adopt_session(&self, conversation: &Conversation, from: &Self) -> Conversation {
        self.sessions.register(conversation.session());
        self.adopt_children(conversation, from);
        let old = conversation.settings();
        let (image_support, window) =
            image_support_and_window(&self.config, &self.credential, &old.model);
        let settings = TurnSettings {
            provider: Arc::clone(&self.provider),
            secrets: Arc::clone(&self.secrets),
            image_support,
            window,
            ..old.clone()
        };
        self.use_settings(conversation, settings)
    }

    /// The Conversation with other settings, which its children inherit.
    fn use_settings(&self, conversation: &Conversation, settings: TurnSettings) -> Conversation {
        let conversation = conversation.with_settings(settings);
        self.update_children(&conversation);
        conversation
    }

    /// The Conversation with a new budget: limits of a run are counted from here on. A front-end that
    /// runs for days calls this for each prompt.
    pub fn with_new_budget(&self, conversation: &Conversation) -> Conversation {
        let budget = RunBudget::new(self.config.budget, self.config.prices.clone());
        let old = conversation.settings();
        let settings = TurnSettings { budget: Arc::new(budget), ..old.clone() };
        self.use_settings(conversation, settings)
    }

    /// The Conversation with other MCP servers of its caller, and notices about servers that are not
    /// used. Servers that a running Turn uses stay until its end.
    pub fn with_mcp_servers(
        &self,
        conversation: &Conversation,
        brought: Vec<McpServer>,
    ) -> (Conversation, Vec<String>) {
        let old = conversation.settings();
        let root = old.workspace.root();
        let (mcp_servers, notices) = self.session_mcp_servers(&old.session_folder, root, brought);
        let settings = TurnSettings { mcp_servers, ..old.clone() };
        (self.use_settings(conversation, settings), notices)
    }

    /// The Conversation with other additional directories, and notices about those that cannot be
    /// used.
    pub fn with_extra_roots(
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
                Ok(space) => match self.commands.sandbox().write_objection(space.root()) {
                    Some(reason) => notes.push(refuse(reason)),
                    None => spaces.push(space.with_hidden_folder(self.config.home.path())),
                },
            }
        }
        let workspace = old.workspace.clone().with_extra_roots(spaces);
        let settings = TurnSettings { workspace, ..old.clone() };
        (self.use_settings(conversation, settings), notes)
    }

    /// Stores a mode that is laxer than the settings, so that the Session has it again when it is
    /// resumed.
    async fn store_mode_choice(&self, conversation: &Conversation, mode: &PermissionMode) {
        let usual = &self.config.permission_mode;
        let is_laxer = stricter_mode(mode, usual) == *usual && mode != usual;
        let mode = is_laxer.then(|| mode.clone());
        let (grants, id) = (self.mode_grants.clone(), conversation.id().clone());
        let workspace = conversation.workspace().to_owned();
        let keeping = move || grants.store(&id, &workspace, mode);
        blocking::run_blocking(keeping).await.ok();
    }

    /// The models that can be chosen: those that the endpoint has listed, or else the built-in
    /// ones, and in any case the one of the settings. Looked up once.
    pub fn models(&self) -> &[Model] {
        self.models.get_or_init(|| {
            let listed = models::read_cached_listing(&self.config.home, self.credential.base_url());
            let mut models = match listed {
                Some(listing) if !listing.models.is_empty() => listing.models,
                // A server other than OpenAI's has its own models.
                _ if self.credential.policy() == FieldPolicy::Portable => Vec::new(),
                _ => models::built_in().collect(),
            };
            if !models.iter().any(|model| model.name == self.config.model) {
                models.insert(0, Model::from_name(&self.config.model));
            }
            models
        })
    }
}
