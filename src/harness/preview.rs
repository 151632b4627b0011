//! A preview: the request that would leave next, made by the code of a Turn and sent nowhere.
//!
//! What opening the Session would record is supposed, not recorded: results of calls that were cut,
//! and the next user message. No lock is taken, no process is started, nothing is written.

use std::sync::Arc;

use super::posture::{Posture, Resumed};
use super::{Harness, HarnessError, Seat};
use crate::annex::AnnexError;
use crate::event::{Canonical, Event, UserMessage};
use crate::history::{self, History};
use crate::id::SessionId;
use crate::mcp::Connections;
use crate::resource;
use crate::roster::Roster;
use crate::skill::Expanded;
use crate::turn::named_in;
use crate::workspace::Workspace;

/// What is supposed to happen next.
#[derive(Debug, Clone, Copy, Default)]
pub struct Supposed<'a> {
    /// The user says this; without it the request ends where the Log does.
    pub prompt: Option<&'a str>,
    /// A process is at work: what it left open is not for us to close.
    pub is_running: bool,
}

/// The request, and what it was made of.
#[derive(Debug)]
pub struct Preview {
    /// The bytes that would leave; `None` where a Provider has nothing to show.
    pub body: Option<Vec<u8>>,
    pub model: String,
    pub effort: Option<String>,
    pub mode: String,
    pub role: &'static str,
    pub contract: &'static str,
    pub cache_key: String,
    /// What the next user message would say about the moment; `None` when the model knows it.
    pub late_context: Option<String>,
    /// The Skills that the supposed prompt would make active; their text is in the request, and what they
    /// bring of the moment is not, because nothing is run for a look.
    pub activates: Vec<String>,
    /// Calls that have no result, and would get one that says so.
    pub orphans: usize,
    /// Servers whose tools and words are missing, because nothing is started for a look.
    pub servers: Vec<String>,
    pub notices: Vec<String>,
}

impl Harness {
    /// The request that would leave next, after this History of a Session.
    pub fn preview(
        &self,
        workspace: &Workspace,
        id: &SessionId,
        mut history: History,
        supposed: Supposed<'_>,
    ) -> Result<Preview, HarnessError> {
        let root = self.state(workspace.root()).root_of(id);
        let logs = root.workspace();
        let own = self.own_workspace(workspace.clone(), &root, id, &history);
        let (own, gone) = match own {
            // Nobody works for a look, so that of the Log stands in.
            Err(HarnessError::Annex(
                error @ (AnnexError::Closed { .. } | AnnexError::Gone { .. }),
            )) => (workspace.clone(), Some(format!("{error}; shown as in that of its parent"))),
            own => (own?, None),
        };
        let workspace = own.hiding(self.config.home.folder());
        let orphans = if supposed.is_running { Vec::new() } else { history.orphans() };
        let suppose = |history: &mut History, fact: Canonical| {
            history.push(Arc::new(Event::supposed(id.clone(), fact)));
        };
        for call in &orphans {
            let result = history::orphan_result(call, "the process that ran it ended");
            suppose(&mut history, result.into());
        }
        let granted = self.grants.find(id, logs);
        let roster = Roster::new(&self.places(logs));
        let before = Posture::of(&history, &roster);
        let Resumed { posture, .. } = before.resumed(&self.config, granted.as_ref());
        let workspace = workspace.bounded(posture.bounds()?);
        let connections = Connections::default();
        let seat = Seat { logs: &root, id };
        let (settings, mut notices) =
            self.settings(seat, workspace, posture, &history, connections, false);
        notices.extend(gone);
        let context = settings.late_context();
        let late_context = Some(context).filter(|now| history.latest_context() != Some(now));
        let mut activates = Vec::new();
        if let Some(prompt) = supposed.prompt {
            let Expanded { text, notices: told, .. } = settings.skills.expand(prompt);
            notices.extend(told);
            let found = settings.skills.all().skills;
            for skill in named_in(&text, &found) {
                activates.push(skill.name().to_owned());
                let fact = settings.activation(&skill, &history);
                suppose(&mut history, fact.into());
            }
            let message = UserMessage {
                text: self.secrets.clean(&text).into_owned(),
                context: late_context.clone(),
                ..UserMessage::default()
            };
            suppose(&mut history, message.into());
        }
        let wanted = resource::wanted(&history);
        let contents = settings.shelf.contents(&wanted, settings.sight.sees());
        let tools = self.with_tools_for_children(settings.toolbox.specs(), &history, settings.role);
        let request = settings.request(id, history, contents, tools, 0);
        let body = settings.provider.rehearse(&request);
        Ok(Preview {
            body,
            mode: settings.stance.mode().as_str().to_owned(),
            role: settings.role.name,
            contract: settings.prompt.contract,
            cache_key: settings.prompt.cache_key,
            model: settings.model,
            effort: settings.effort,
            late_context,
            activates,
            orphans: orphans.len(),
            servers: self.config.mcp.servers.iter().map(|server| server.name.clone()).collect(),
            notices,
        })
    }
}
