//! Approvals: what the user allowed beyond a single call, and whether a call is covered by it.
//!
//! An approval is bound to a digest of tool, arguments, resolved paths and directory, to a command
//! prefix that the user saw, or to a kind of calls in one Session. Those of a Session are kept in
//! memory; those of a project in the user's own folder, by the project's path, where nothing of the
//! project can write.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::prefix;
use crate::base::id::{SessionId, sha256};
use crate::base::locked_file::{LockedFile, LockedFileError};
use crate::base::names::names;
use crate::base::paths::Home;
use crate::record::event::PermissionAnswer;
use crate::tools::tool::CallPlan;

/// How many characters of a summary are stored.
const SUMMARY_LIMIT: usize = 200;

/// The properties of a call that approvals are matched against.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApprovalSubject {
    pub tool: String,
    /// Digest of tool, arguments, resolved paths and directory.
    pub digest: String,
    /// One line for the list of approvals.
    pub summary: String,
    /// The shell text, if it is a command.
    pub command: Option<String>,
    /// Whether the call asks for the network.
    pub network: bool,
    /// Whether the call is a command that would run without a sandbox.
    pub is_unsandboxed: bool,
    /// Whether the code that runs is known beforehand, so that an answer may last.
    pub may_last: bool,
    /// The kind of the call, if calls of its kind can be allowed for a Session.
    pub kind: Option<CallKind>,
}

/// Calls that can be allowed together while a Session is open.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum CallKind {
    /// Every call of one tool of an MCP server, as long as the server says the same about it.
    McpTool { name: String, identity: String },
    /// Every change that a file tool makes.
    Edits,
}

impl CallKind {
    /// The kind of a call by its plan; commands and everything else have none.
    pub fn for_call(tool: &str, plan: &CallPlan) -> Option<Self> {
        match &plan.agent {
            Some(identity) => {
                Some(Self::McpTool { name: tool.to_owned(), identity: identity.clone() })
            }
            None => plan.is_file_edit.then_some(Self::Edits),
        }
    }

    /// The answer that allows calls of this kind.
    pub fn answer(&self) -> PermissionAnswer {
        match self {
            Self::McpTool { .. } => PermissionAnswer::SessionTool,
            Self::Edits => PermissionAnswer::SessionEdits,
        }
    }
}

impl ApprovalSubject {
    /// The command prefix that may be offered as an approval.
    pub fn prefix(&self) -> Option<Vec<String>> {
        self.command.as_deref().filter(|_| self.may_last).and_then(prefix::offer_prefix)
    }
}

/// The digest to which an approval is bound: the SHA-256 of all arguments, with sorted keys.
pub fn approval_digest(tool: &str, args: &Value, paths: &[String], directory: &str) -> String {
    let bound = json!({ "args": args, "directory": directory, "paths": paths, "tool": tool });
    canonical_digest(&bound)
}

/// An approval for a project.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Approval {
    /// The id by which it can be removed.
    pub id: String,
    pub project: PathBuf,
    pub tool: String,
    pub summary: String,
    #[serde(flatten)]
    pub scope: ApprovalScope,
    /// Whether the approved call asked for the network.
    #[serde(default)]
    pub network: bool,
    /// Whether the approved call is a command without a sandbox.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_unheld: bool,
    pub granted_at: String,
}

/// The scope of an approval.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ApprovalScope {
    /// Exactly one call.
    Digest(String),
    /// Simple commands that begin with these words.
    Prefix(Vec<String>),
}

impl Approval {
    fn new(project: &Path, subject: &ApprovalSubject, scope: ApprovalScope) -> Self {
        let network = subject.network;
        let mut named =
            json!({ "network": network, "project": project, "scope": scope, "tool": subject.tool });
        if subject.is_unsandboxed {
            named["is_unheld"] = true.into();
        }
        let mut id = canonical_digest(&named);
        id.truncate(12);
        Self {
            id,
            project: project.to_owned(),
            tool: subject.tool.clone(),
            summary: subject.summary.chars().take(SUMMARY_LIMIT).collect(),
            scope,
            network,
            is_unheld: subject.is_unsandboxed,
            granted_at: jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        }
    }

    fn covers(&self, project: &Path, subject: &ApprovalSubject) -> bool {
        self.project == project
            && self.tool == subject.tool
            // An approval for a sandbox does not cover a command without one.
            && (self.is_unheld || !subject.is_unsandboxed)
            && match &self.scope {
                ApprovalScope::Digest(digest) => *digest == subject.digest,
                ApprovalScope::Prefix(words) => {
                    // An approval without network does not cover a command with it.
                    (self.network || !subject.network)
                        && subject
                            .command
                            .as_deref()
                            .is_some_and(|text| prefix::prefix_covers(words, text))
                }
            }
    }
}

/// The kind of approval that covers a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ApprovalSource {
    Session,
    SessionTool,
    SessionEdits,
    Project,
    Prefix,
}

names!(ApprovalSource {
    Session = "session", SessionTool = "session_tool", SessionEdits = "session_edits",
    Project = "project", Prefix = "prefix",
});

/// The approvals of one user; cheap to clone.
#[derive(Debug, Clone)]
pub struct ApprovalStore {
    file: LockedFile<Approval>,
    /// A leaf lock: nothing is awaited while it is held.
    sessions: Arc<Mutex<HashMap<SessionId, SessionApprovals>>>,
}

/// Approvals that last while one Session is open.
#[derive(Debug, Default)]
struct SessionApprovals {
    /// Digests of single calls.
    calls: HashSet<String>,
    kinds: HashSet<CallKind>,
}

impl SessionApprovals {
    fn find(&self, subject: &ApprovalSubject) -> Option<ApprovalSource> {
        if self.calls.contains(&subject.digest) {
            return Some(ApprovalSource::Session);
        }
        let kind = subject.kind.as_ref().filter(|kind| self.kinds.contains(kind))?;
        Some(match kind {
            CallKind::McpTool { .. } => ApprovalSource::SessionTool,
            CallKind::Edits => ApprovalSource::SessionEdits,
        })
    }
}

impl ApprovalStore {
    /// The approvals of this user.
    pub fn new(home: &Home) -> Self {
        Self { file: LockedFile::new(home.permissions_file()), sessions: Arc::default() }
    }

    /// The approval that covers a call, if there is one. A file that cannot be read allows nothing.
    pub fn find(
        &self,
        session: &SessionId,
        project: &Path,
        subject: &ApprovalSubject,
    ) -> Option<ApprovalSource> {
        if !subject.may_last {
            return None;
        }
        let found = self.sessions.lock().get(session).and_then(|known| known.find(subject));
        if found.is_some() {
            return found;
        }
        let all = self
            .file
            .read()
            .inspect_err(|error| tracing::warn!(%error, "approvals are not used"))
            .ok()?;
        let found = all.iter().find(|approval| approval.covers(project, subject))?;
        Some(match found.scope {
            ApprovalScope::Digest(_) => ApprovalSource::Project,
            ApprovalScope::Prefix(_) => ApprovalSource::Prefix,
        })
    }

    /// Stores a lasting answer. Blocks on the disk.
    pub fn remember(
        &self,
        session: &SessionId,
        project: &Path,
        subject: &ApprovalSubject,
        answer: PermissionAnswer,
    ) -> Result<(), LockedFileError> {
        let scope = match answer {
            PermissionAnswer::Once | PermissionAnswer::No => return Ok(()),
            _ if !subject.may_last => return Ok(()),
            PermissionAnswer::Session
            | PermissionAnswer::SessionTool
            | PermissionAnswer::SessionEdits => {
                self.remember_in_session(session, subject, answer);
                return Ok(());
            }
            PermissionAnswer::Project => ApprovalScope::Digest(subject.digest.clone()),
            PermissionAnswer::Prefix => match subject.prefix() {
                Some(words) => ApprovalScope::Prefix(words),
                None => ApprovalScope::Digest(subject.digest.clone()),
            },
        };
        let approval = Approval::new(project, subject, scope);
        let kept = self.store(approval);
        // Even if the file cannot be written, this Session does not ask again.
        kept.inspect_err(|_| self.remember_in_session(session, subject, PermissionAnswer::Session))
    }

    /// Stores an answer while the Session is open. An answer for a kind to which the call does not
    /// belong allows exactly this call.
    fn remember_in_session(
        &self,
        session: &SessionId,
        subject: &ApprovalSubject,
        answer: PermissionAnswer,
    ) {
        let mut sessions = self.sessions.lock();
        let known = sessions.entry(session.clone()).or_default();
        match subject.kind.as_ref().filter(|kind| kind.answer() == answer) {
            Some(kind) => known.kinds.insert(kind.clone()),
            None => known.calls.insert(subject.digest.clone()),
        };
    }

    /// Stored approvals, oldest first; of one project, or of all.
    pub fn list(&self, project: Option<&Path>) -> Result<Vec<Approval>, LockedFileError> {
        let mut all = self.file.read()?;
        all.retain(|approval| project.is_none_or(|project| approval.project == project));
        Ok(all)
    }

    /// Allows simple commands that begin with these words in a project, as the user asked on the command
    /// line. `None` when such words cannot be allowed. Blocks on the disk.
    pub fn allow_prefix(
        &self,
        project: &Path,
        words: &[String],
        network: bool,
    ) -> Result<Option<Approval>, LockedFileError> {
        let command = words.join(" ");
        let is_exact = prefix::offer_prefix(&command).is_some_and(|offered| offered == words);
        if !is_exact {
            return Ok(None);
        }
        let subject = ApprovalSubject {
            tool: "bash".to_owned(),
            digest: String::new(),
            summary: format!("run {command} …"),
            command: Some(command),
            network,
            is_unsandboxed: false,
            may_last: true,
            kind: None,
        };
        let approval = Approval::new(project, &subject, ApprovalScope::Prefix(words.to_vec()));
        self.store(approval.clone())?;
        Ok(Some(approval))
    }

    /// Stores an approval, replacing the one with its id.
    fn store(&self, approval: Approval) -> Result<(), LockedFileError> {
        self.file.update(|all| {
            all.retain(|other| other.id != approval.id);
            all.push(approval);
        })
    }

    /// Removes the approvals that match, and returns them.
    pub fn remove(
        &self,
        mut matches: impl FnMut(&Approval) -> bool,
    ) -> Result<Vec<Approval>, LockedFileError> {
        if self.file.read()?.is_empty() {
            return Ok(Vec::new());
        }
        self.file.update(|all| {
            let (gone, kept) = std::mem::take(all).into_iter().partition(|one| matches(one));
            *all = kept;
            gone
        })
    }
}

/// The SHA-256 of a value, serialised with sorted keys.
pub fn canonical_digest(value: &impl Serialize) -> String {
    let value = serde_json::to_value(value).unwrap_or_default();
    sha256(sort_keys(&value).to_string().as_bytes())
}

/// A value whose objects have sorted keys, so that equal values have equal bytes.
pub fn sort_keys(value: &Value) -> Value {
    let mut sorted = value.clone();
    sorted.sort_all_objects();
    sorted
}

#[cfg(test)]
mod tests;
