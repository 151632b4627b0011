//! Preview of the next request, built by the code of a Turn, but not sent.
//!
//! Facts that opening the Session would record are only assumed: results of interrupted calls, and the
//! next user message. No lock is taken, no process is started, nothing is written.

use std::sync::Arc;

use super::posture::{Posture, ResumedPosture};
use super::{Harness, HarnessError, LogLocation};
use crate::agent::child_workspace::ChildWorkspaceError;
use crate::agent::turn::find_named_skills;
use crate::base::id::SessionId;
use crate::host::workspace::Workspace;
use crate::model::roles::RoleCatalog;
use crate::model::skill::ExpandedInput;
use crate::record::event::{Canonical, Event, UserMessage};
use crate::record::history;
use crate::record::history::History;
use crate::record::resource;
use crate::tools::mcp::McpServers;

/// The assumptions of a preview about what happens next.
#[derive(Debug, Clone, Copy, Default)]
pub struct PreviewAssumptions<'a> {
    /// The next prompt; without it the request ends where the Log does.
    pub prompt: Option<&'a str>,
    /// Whether a process has the Session open, which will record the results of open calls itself.
    pub is_running: bool,
}

/// The next request, and the settings it was built from.
#[derive(Debug)]
pub struct RequestPreview {
    /// The body of the request; `None` if the Provider has none to show.
    pub body: Option<Vec<u8>>,
    pub model: String,
    pub effort: Option<String>,
    pub mode: String,
    pub role: &'static str,
    pub contract: &'static str,
    pub cache_key: String,
    /// The late context of the next user message; `None` if it is unchanged.
    pub late_context: Option<String>,
    /// Skills that the prompt would activate; their text is in the request, their sources are not,
    /// because a preview runs nothing.
    pub activated_skills: Vec<String>,
    /// The number of calls without a result, which opening the Session would close.
    pub orphans: usize,
    /// MCP servers; their tools and instructions are missing, because a preview starts nothing.
    pub servers: Vec<String>,
    pub notices: Vec<String>,
}

impl Harness {
    /// The next request after this History of a Session.
    pub fn preview(
        &self,
        workspace: &Workspace,
        id: &SessionId,
        mut history: History,
        assumptions: PreviewAssumptions<'_>,
    ) -> Result<RequestPreview, HarnessError> {
        let root = self.resolve_state(workspace.root()).root_for_session(id);
        let logs = root.workspace();
        let own = self.session_workspace(workspace.clone(), &root, id, &history);
        let (own, gone) = match own {
            // A preview runs nothing, so it can use the parent's Workspace instead.
            Err(HarnessError::ChildWorkspace(
                error @ (ChildWorkspaceError::AlreadyClosed { .. }
                | ChildWorkspaceError::FolderMissing { .. }),
            )) => (workspace.clone(), Some(format!("{error}; preview in its parent's Workspace"))),
            own => (own?, None),
        };
        let workspace = own.with_hidden_folder(self.config.home.path());
        let orphans = if assumptions.is_running { Vec::new() } else { history.orphan_calls() };
        let suppose = |history: &mut History, fact: Canonical| {
            history.push(Arc::new(Event::new_hypothetical(id.clone(), fact)));
        };
        for call in &orphans {
            let result = history::orphan_result(call, "the process that ran it ended");
            suppose(&mut history, result.into());
        }
        let granted = self.mode_grants.find(id, logs);
        let roles = RoleCatalog::new(&self.discovery_folders(logs));
        let before = Posture::from_history(&history, &roles);
        let ResumedPosture { posture, .. } = before.resume_with(&self.config, granted.as_ref());
        let workspace = workspace.with_bounds(posture.bounds()?);
        let mcp_servers = McpServers::default();
        let log_location = LogLocation { logs: &root, id };
        let (settings, mut notices) =
            self.turn_settings(log_location, workspace, posture, &history, mcp_servers, false);
        notices.extend(gone);
        let context = settings.late_context();
        let late_context = Some(context).filter(|now| history.latest_context() != Some(now));
        let mut activates = Vec::new();
        if let Some(prompt) = assumptions.prompt {
            let ExpandedInput { text, notices: expansion_notices, .. } =
                settings.skills.expand(prompt);
            notices.extend(expansion_notices);
            let found = settings.skills.read_all().skills;
            for skill in find_named_skills(&text, &found) {
                activates.push(skill.name().to_owned());
                let fact = settings.activation_event(&skill, &history);
                suppose(&mut history, fact.into());
            }
            let message = UserMessage {
                text: self.secrets.redact(&text).into_owned(),
                context: late_context.clone(),
                ..UserMessage::default()
            };
            suppose(&mut history, message.into());
        }
        let wanted = resource::shown_resources(&history);
        let contents =
            settings.resources.load_contents(&wanted, settings.image_support.is_supported());
        let tools = self.with_subagent_tools(settings.toolbox.specs(), &history, settings.role);
        let request = settings.request(id, history, contents, tools, 0);
        let body = settings.provider.request_body(&request);
        Ok(RequestPreview {
            body,
            mode: settings.permission_state.mode().as_str().to_owned(),
            role: settings.role.name,
            contract: settings.prompt.contract,
            cache_key: settings.prompt.cache_key,
            model: settings.model,
            effort: settings.effort,
            late_context,
            activated_skills: activates,
            orphans: orphans.len(),
            servers: self.config.mcp.servers.iter().map(|server| server.name.clone()).collect(),
            notices,
        })
    }
}
