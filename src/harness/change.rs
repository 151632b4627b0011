//! Change: another mode, role, model or effort for a Session that goes on.

use std::path::PathBuf;
use std::sync::Arc;

use super::posture::Posture;
use super::{Harness, HarnessError};
use crate::config::McpServer;
use crate::config::models::{self, Model};
use crate::conversation::Conversation;
use crate::credential::FieldPolicy;
use crate::disk;
use crate::event::PermissionMode;
use crate::prompt;
use crate::role::strictest;
use crate::roster::Roster;
use crate::sandbox::Profile;
use crate::subagent::senses;
use crate::turn::{Budget, Prompt, Settings};
use crate::workspace::Workspace;

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

    /// Goes on with a Session that another Harness of this process opened: who signed in or out in
    /// the meantime has changed who pays.
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

    /// The same Session at the beginning of a run of its own: what a run may use up is counted from
    /// here. A front-end that lives for days calls this for each prompt.
    pub fn afresh(&self, conversation: &Conversation) -> Conversation {
        let budget = Budget::new(self.config.budget, self.config.prices.clone());
        let old = conversation.settings();
        let conversation = conversation.with(Settings { budget: Arc::new(budget), ..old.clone() });
        self.lead(&conversation);
        conversation
    }

    /// The same Session with these MCP servers of its caller, in place of those it brought before;
    /// and what is to be said of those that are not used. Those that a Turn uses live until its end.
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

    /// The same Session with further directories beside its Workspace, in place of those it had;
    /// and what is to be said of those that cannot be used.
    pub fn widen(
        &self,
        conversation: &Conversation,
        directories: &[PathBuf],
    ) -> (Conversation, Vec<String>) {
        let old = conversation.settings();
        let (mut spaces, mut notes) = (Vec::new(), Vec::new());
        for directory in directories {
            let refuse = |reason: String| format!("a further directory is not used: {reason}");
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

    /// Remembers a mode that is laxer than the settings, so that the Session has it again when it
    /// is resumed.
    async fn keep_choice(&self, conversation: &Conversation, mode: &PermissionMode) {
        let usual = &self.config.permission_mode;
        let is_laxer = strictest(mode, usual) == *usual && mode != usual;
        let mode = is_laxer.then(|| mode.clone());
        let (grants, id) = (self.grants.clone(), conversation.id().clone());
        let workspace = conversation.workspace().to_owned();
        let keeping = move || grants.keep(&id, &workspace, mode);
        disk::work(keeping).await.ok();
    }

    /// The models that can be chosen: what the endpoint has listed, or what is known of it, and in
    /// any case the one of the settings. Looked up once.
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
