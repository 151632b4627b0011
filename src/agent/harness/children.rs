//! The Subagents of a Session: their Tools, and the operations on them for front-ends.

use std::sync::{Arc, Weak};

use super::{Harness, HarnessError};
use crate::agent::conversation::Conversation;
use crate::agent::session::Session;
use crate::agent::subagent::{ChildFactory, Children, ParentSession, SubagentRegistry, tool_specs};
pub use crate::agent::subagent::{
    SubagentRecord as Child, SubagentStatus as ChildStatus, SubagentView as ChildView,
};
use crate::agent::turn::TurnSettings;
use crate::model::tool_spec::ToolSpec;
use crate::record::event::Canonical;
use crate::record::history::History;
use crate::settings::role::Role;

impl Harness {
    /// Adds the Tools for Subagents to settings. All Conversations of a Session in this process share its
    /// children and its `UsageTotal`.
    pub(super) async fn with_children(
        &self,
        session: &Session,
        settings: TurnSettings,
        history: &History,
    ) -> Result<TurnSettings, HarnessError> {
        if let Some(children) = self.live_children(&settings) {
            let settings = TurnSettings {
                usage_total: children.base_settings().usage_total.clone(),
                ..settings
            };
            children.set_base_settings(&settings);
            return Ok(self.with_workflows(&children, children.with_tools(settings)));
        }
        let (depth, own) = depth_and_id(history);
        let (session, settings_of) = (session.clone(), settings.clone());
        let parent_session = ParentSession {
            session,
            depth,
            subagent_id: own,
            is_usage_counted: false,
            settings: settings_of,
        };
        let children = self.subagents().register_parent(parent_session, history).await?;
        let mut live_children = self.live_children.lock();
        live_children.retain(|_, weak| weak.strong_count() > 0);
        live_children.insert(settings.session_folder.clone(), Arc::downgrade(&children));
        drop(live_children);
        Ok(self.with_workflows(&children, children.with_tools(settings)))
    }

    /// Lets children inherit the current settings of a Conversation.
    pub(super) fn update_children(&self, conversation: &Conversation) {
        if let Some(children) = self.live_children(conversation.settings()) {
            children.set_base_settings(conversation.settings());
        }
    }

    /// Takes over the children of a Conversation that another Harness of this process started.
    pub(super) fn adopt_children(&self, conversation: &Conversation, from: &Self) {
        if let Some(children) = from.live_children(conversation.settings()) {
            let mut live_children = self.live_children.lock();
            let folder = conversation.settings().session_folder.clone();
            live_children.insert(folder, Arc::downgrade(&children));
        }
    }

    /// The children of a Conversation, in the order they were started.
    pub async fn children(&self, conversation: &Conversation) -> Vec<ChildView> {
        match self.live_children(conversation.settings()) {
            Some(children) => children.all_views().await,
            None => Vec::new(),
        }
    }

    /// Waits until no child of a Conversation is running or queued.
    pub fn wait_for_children(
        &self,
        conversation: &Conversation,
    ) -> impl Future<Output = ()> + Send + use<> {
        let children = self.live_children(conversation.settings());
        async move {
            if let Some(children) = children {
                children.wait_idle().await;
            }
        }
    }

    /// Cancels all children of a Conversation; returns when that is recorded.
    pub fn cancel_children(
        &self,
        conversation: &Conversation,
    ) -> impl Future<Output = ()> + Send + use<> {
        let children = self.live_children(conversation.settings());
        async move {
            if let Some(children) = children {
                children.cancel_all().await;
            }
        }
    }

    pub(super) fn live_children(&self, settings: &TurnSettings) -> Option<Arc<Children>> {
        let live_children = self.live_children.lock();
        live_children.get(&settings.session_folder).and_then(Weak::upgrade)
    }

    /// Adds the Tools for Subagents to tools, for a preview of the next request.
    pub(super) fn with_subagent_tools(
        &self,
        tools: Arc<[ToolSpec]>,
        history: &History,
        role: &Role,
    ) -> Arc<[ToolSpec]> {
        if depth_and_id(history).0 >= self.config.subagents.max_depth {
            return tools;
        }
        let graphs = crate::agent::workflow::tool_spec();
        let more = tool_specs().into_iter().chain([graphs]);
        let more = more.filter(|spec| role.may_use(&spec.name));
        let mut all: Vec<ToolSpec> = tools.iter().cloned().chain(more).collect();
        all.sort_by(|one, other| one.name.cmp(&other.name));
        all.into()
    }

    fn subagents(&self) -> &SubagentRegistry {
        self.subagents.get_or_init(|| {
            let child_factory = ChildFactory {
                sessions: Arc::clone(&self.sessions),
                session_options: self.session_options(),
                config: self.config.clone(),
                commands: self.commands.clone(),
                child_workspaces: self.child_workspaces.clone(),
                user_home: self.user_home(),
                credential: self.credential.clone(),
            };
            SubagentRegistry::new(child_factory, self.subagent_limit.clone())
        })
    }
}

/// The depth of a Session in its tree, and its Subagent id.
fn depth_and_id(history: &History) -> (u32, Option<String>) {
    let Some(Canonical::SessionStarted(started)) = history.facts().next() else {
        return (0, None);
    };
    let depth = started.extra.get("depth").and_then(serde_json::Value::as_u64).unwrap_or_default();
    (u32::try_from(depth).unwrap_or(u32::MAX), started.subagent_id.clone())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::StreamExt;
    use futures_util::stream::{self, BoxStream};
    use serde_json::{Value, json};

    use super::*;
    use crate::agent::harness::{HarnessOptions, SessionTarget, StartOptions};
    use crate::base::paths::Home;
    use crate::model::credential::Credential;
    use crate::model::provider::{
        CompletedResponse, FunctionCall, ModelEvent, ModelRequest, OutputItem, Provider,
        ProviderError,
    };
    use crate::record::event::{Canonical, SessionStatus};
    use crate::record::log::Log;
    use crate::settings::config::Config;

    /// A parent that starts a child and waits for it; the child's call panics.
    #[derive(Debug)]
    struct PanickingChildModel;

    impl Provider for PanickingChildModel {
        fn stream(
            &self,
            request: ModelRequest,
        ) -> BoxStream<'static, Result<ModelEvent, ProviderError>> {
            assert_eq!(depth_and_id(&request.history).0, 0, "this call crashes its Turn");
            let call = |name: &str, args: Value| {
                let (call_id, name) = (format!("c_{name}"), name.to_owned());
                OutputItem::Call(FunctionCall { call_id, name, arguments: args.to_string() })
            };
            let results =
                request.history.facts().filter(|fact| matches!(fact, Canonical::ToolResult(_)));
            let item = match results.count() {
                0 => call("spawn_agent", json!({"task": "fall"})),
                1 => call("wait_agent", json!({})),
                _ => {
                    let (text, citations) = ("So it fell.".to_owned(), Vec::new());
                    OutputItem::Message { text, is_refusal: false, citations }
                }
            };
            let end = ModelEvent::Completed(CompletedResponse::default());
            stream::iter([ModelEvent::Item(item), end].map(Ok)).boxed()
        }
    }

    /// A parent that starts a child and answers; the child never answers.
    #[derive(Debug)]
    struct PendingChildModel;

    impl Provider for PendingChildModel {
        fn stream(
            &self,
            request: ModelRequest,
        ) -> BoxStream<'static, Result<ModelEvent, ProviderError>> {
            if depth_and_id(&request.history).0 > 0 {
                return stream::pending().boxed();
            }
            let is_result = |fact: &Canonical| matches!(fact, Canonical::ToolResult(_));
            let item = if request.history.facts().any(is_result) {
                let (text, citations) = ("It thinks.".to_owned(), Vec::new());
                OutputItem::Message { text, is_refusal: false, citations }
            } else {
                let (call_id, name) = ("c_1".to_owned(), "spawn_agent".to_owned());
                let arguments = json!({"task": "think"}).to_string();
                OutputItem::Call(FunctionCall { call_id, name, arguments })
            };
            let end = ModelEvent::Completed(CompletedResponse::default());
            stream::iter([ModelEvent::Item(item), end].map(Ok)).boxed()
        }
    }

    #[tokio::test]
    async fn nothing_is_taken_back_while_children_are_at_work() {
        let folder = tempfile::tempdir().unwrap();
        let (harness, conversation) =
            started_conversation(folder.path(), Arc::new(PendingChildModel)).await;
        assert_eq!(conversation.wait_until_idle().await.unwrap(), SessionStatus::Done);
        let child = harness.children(&conversation).await.pop().unwrap().record;
        let back = crate::agent::harness::RewindDirection::Back(1);
        let refused = harness.rewind(&conversation, back, false).await.unwrap_err();
        assert_eq!(refused.kind, "busy");
        assert!(refused.message.contains(&child.id), "{}", refused.message);
        harness.cancel_children(&conversation).await;
        assert_eq!(harness.rewind(&conversation, back, false).await.unwrap().turns, ["go"]);
    }

    /// A new Session with a first message.
    async fn started_conversation(
        folder: &std::path::Path,
        provider: Arc<dyn Provider>,
    ) -> (Harness, Conversation) {
        let workspace = folder.canonicalize().unwrap().join("work");
        std::fs::create_dir(&workspace).unwrap();
        let mut harness = Harness::open(HarnessOptions {
            config: Config::new(Home::new(folder.join("home"))),
            credential: Credential::new(Some("sk-test"), "http://127.0.0.1:9/v1").unwrap(),
            environment: Vec::new(),
            own_binary: "/proc/self/exe".into(),
        });
        harness.provider = provider;
        let (session, can_ask) = (SessionTarget::New, false);
        let start = StartOptions { workspace, session, can_ask, mcp_servers: Vec::new() };
        let conversation = harness.start(start).await.unwrap();
        let input = crate::agent::conversation::UserInput { text: "go".to_owned() };
        conversation.send(input).await.unwrap();
        (harness, conversation)
    }

    #[tokio::test]
    async fn a_crash_of_a_child_is_reported_at_once_and_does_not_end_the_parent() {
        let folder = tempfile::tempdir().unwrap();
        let (harness, conversation) =
            started_conversation(folder.path(), Arc::new(PanickingChildModel)).await;
        let workspace = conversation.workspace().to_owned();
        // A child may work for ten minutes; a crashed one is not waited for.
        let status =
            tokio::time::timeout(Duration::from_mins(1), conversation.wait_until_idle()).await;
        assert_eq!(status.expect("at once").unwrap(), SessionStatus::Done, "the parent goes on");
        let child = harness.children(&conversation).await.pop().unwrap().record;
        assert_eq!((child.status, child.reason.as_deref()), (ChildStatus::Failed, Some("crashed")));
        let history =
            History::from_events(Log::read(&workspace, &child.child.unwrap()).unwrap().events);
        let end = history.facts().last().unwrap().clone();
        let Canonical::TurnFailed(end) = end else { panic!("{end:?}") };
        assert_eq!(end.terminal_status.as_str(), "crashed");
        let parent_history = conversation.history().await.unwrap();
        let ends = parent_history.facts().filter(|fact| match fact {
            Canonical::SubagentEvent(life) => life.ends_run(),
            _ => false,
        });
        assert_eq!(ends.count(), 1);
    }
}
