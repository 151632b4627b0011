//! The specification of a child: the arguments of `spawn_agent`, checked, narrowed and completed.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::base::error::Kind;
use crate::base::names::names;
use crate::base::text::truncate_chars;
use crate::base::tool_error::ToolError;
use crate::model::roles::{RoleCatalog, RoleError};
use crate::record::event::PermissionMode;
use crate::settings::config::SubagentLimits as Limits;
use crate::settings::role::{CustomRole, Role, stricter_mode};

/// The role of a child whose parent names none.
const DEFAULT_ROLE: &str = "worker";

/// The longest task, in bytes; longer texts belong into files.
const LONGEST_TASK: usize = 128 * 1024;

/// The longest name of a model or an effort.
const LONGEST_WORD: usize = 100;

/// How many Resources a child may be given.
const MAX_RESOURCES: usize = 16;

// Where a child works.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum WorkspaceMode {
    // Plain comments, because doc comments are sent to the model. The parent's Workspace itself.
    #[default]
    Shared,
    // A copy.
    Isolated,
    // A worktree on its own branch.
    Worktree,
}

names!(WorkspaceMode { Shared = "shared", Isolated = "isolated", Worktree = "worktree" });

impl WorkspaceMode {
    /// The mode of that name; `Shared` if it is unknown or missing, as in old Logs.
    pub fn from_name(name: Option<&str>) -> Self {
        match name {
            Some("isolated") => WorkspaceMode::Isolated,
            Some("worktree") => WorkspaceMode::Worktree,
            _ => WorkspaceMode::Shared,
        }
    }
}

/// The arguments of `spawn_agent`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SpawnArgs {
    /// The complete task and the expected answer; the Subagent does not see this conversation.
    pub task: String,
    /// worker (default); explorer and reviewer only read.
    pub role: Option<String>,
    pub model: Option<String>,
    pub effort: Option<String>,
    /// Default: shared, your own files. The others are separate copies; merge their changes with `merge_child`.
    pub workspace: Option<WorkspaceMode>,
    /// Time limit.
    pub timeout_ms: Option<u64>,
    /// Ids of Resources to pass to it.
    pub resources: Option<Vec<String>>,
    /// Only report what would be started.
    pub validate_only: Option<bool>,
}

/// The parent that requests a child.
#[derive(Debug, Clone)]
pub struct Requester {
    pub mode: PermissionMode,
    /// The depth in the tree; a root has 0.
    pub depth: u32,
    /// The role of the parent.
    pub role: &'static Role,
    /// The roles that it can choose from.
    pub role_catalog: RoleCatalog,
}

/// A complete specification of a child.
#[derive(Debug, Clone, PartialEq)]
pub struct SubagentSpec {
    pub task: String,
    pub role: &'static Role,
    /// The model; `None` is the parent's.
    pub model: Option<String>,
    pub effort: Option<String>,
    pub workspace: WorkspaceMode,
    pub timeout: Duration,
    pub resources: Vec<String>,
    /// The permission mode, never laxer than the parent's or the role's.
    pub mode: PermissionMode,
    pub depth: u32,
}

impl SubagentSpec {
    /// Completes the arguments, or fails with everything that a parent needs to correct them.
    pub fn from_args(
        args: &SpawnArgs,
        requester: &Requester,
        limits: &Limits,
    ) -> Result<Self, ToolError> {
        let depth = requester.depth + 1;
        if depth > limits.max_depth {
            let message = format!("a Subagent of depth {depth} is not allowed");
            return Err(ToolError::new(Kind::PermissionDenied, message)
                .with_details(json!({ "depth": depth, "max_depth": limits.max_depth }))
                .with_next_action("do the work yourself"));
        }
        let task = args.task.trim();
        if task.is_empty() {
            return Err(ToolError::invalid_args("the task is empty")
                .with_next_action("say what it has to do"));
        }
        if task.len() > LONGEST_TASK {
            let message = format!("the task has {} bytes, {LONGEST_TASK} are allowed", task.len());
            return Err(ToolError::invalid_args(message)
                .with_next_action("put long texts into a file and name it"));
        }
        let workspace = args.workspace.unwrap_or_default();
        let role =
            find_role(args.role.as_deref().unwrap_or(DEFAULT_ROLE), &requester.role_catalog)?;
        let role = role.restricted_to(requester.role);
        let wants =
            |of: fn(&CustomRole) -> Option<&String>| role.custom.as_ref().and_then(of).cloned();
        let resources = args.resources.clone().unwrap_or_default();
        if resources.len() > MAX_RESOURCES {
            let message = format!("at most {MAX_RESOURCES} Resources can be handed on");
            return Err(ToolError::invalid_args(message));
        }
        Ok(Self {
            task: task.to_owned(),
            role,
            model: check_name("model", args.model.as_deref())?
                .or_else(|| wants(|it| it.model.as_ref())),
            effort: check_name("effort", args.effort.as_deref())?
                .or_else(|| wants(|it| it.effort.as_ref())),
            workspace,
            timeout: check_timeout(args.timeout_ms, limits)?,
            resources,
            mode: role.limit_mode(&requester.mode),
            depth,
        })
    }

    /// Whether the child is read-only.
    pub fn is_read_only(&self) -> bool {
        stricter_mode(&self.mode, &PermissionMode::ReadOnly) == self.mode
    }
}

/// Finds the role of a child by name; no other function does.
pub fn find_role(name: &str, role_catalog: &RoleCatalog) -> Result<&'static Role, ToolError> {
    let name = truncate_chars(name, LONGEST_WORD);
    role_catalog.find(&name).map_err(|error| {
        // An unknown name is reported as not found.
        let is_unknown = matches!(error, RoleError::Unknown { .. });
        let error = ToolError::from(error);
        if is_unknown { ToolError { kind: Kind::NotFound, ..error } } else { error }
    })
}

fn check_name(what: &str, given: Option<&str>) -> Result<Option<String>, ToolError> {
    let Some(given) = given.map(str::trim).filter(|given| !given.is_empty()) else {
        return Ok(None);
    };
    if given.len() > LONGEST_WORD || given.chars().any(char::is_control) {
        return Err(ToolError::invalid_args(format!("this is not a valid name of a {what}")));
    }
    Ok(Some(given.to_owned()))
}

fn check_timeout(wanted: Option<u64>, limits: &Limits) -> Result<Duration, ToolError> {
    let Some(wanted) = wanted else { return Ok(limits.timeout) };
    let wanted = Duration::from_millis(wanted);
    if wanted.is_zero() || wanted > limits.max_timeout {
        let most = limits.max_timeout.as_millis();
        let message = format!("timeout_ms must be from 1 to {most}");
        return Err(ToolError::invalid_args(message));
    }
    Ok(wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spawn_args(task: &str) -> SpawnArgs {
        SpawnArgs {
            task: task.to_owned(),
            role: None,
            model: None,
            effort: None,
            workspace: None,
            timeout_ms: None,
            resources: None,
            validate_only: None,
        }
    }

    fn requester(mode: PermissionMode) -> Requester {
        Requester { mode, depth: 0, role: Role::build(), role_catalog: RoleCatalog::none() }
    }

    #[test]
    fn a_child_is_never_laxer_than_its_parent_or_its_role() {
        let modes = [PermissionMode::Auto, PermissionMode::Ask, PermissionMode::ReadOnly];
        for (role, keeps) in [("worker", true), ("explorer", false), ("reviewer", false)] {
            for mode in &modes {
                let args = SpawnArgs { role: Some(role.to_owned()), ..spawn_args("x") };
                let spec =
                    SubagentSpec::from_args(&args, &requester(mode.clone()), &Limits::default())
                        .unwrap();
                let expected = if keeps { mode.clone() } else { PermissionMode::ReadOnly };
                assert_eq!(spec.mode, expected, "{role} under {mode}");
                assert_eq!(spec.is_read_only(), expected == PermissionMode::ReadOnly);
            }
        }
    }

    #[test]
    fn what_cannot_be_is_refused_with_a_reason() {
        let auto = requester(PermissionMode::Auto);
        let limits = Limits::default();
        let refuse = |args: SpawnArgs, requester: &Requester| {
            SubagentSpec::from_args(&args, requester, &limits).unwrap_err()
        };
        assert_eq!(refuse(spawn_args("  "), &auto).kind, Kind::InvalidArgs);
        let unknown = SpawnArgs { role: Some("wizard".into()), ..spawn_args("x") };
        assert_eq!(refuse(unknown, &auto).kind, Kind::NotFound);
        let deep = Requester { depth: limits.max_depth, ..auto.clone() };
        assert_eq!(refuse(spawn_args("x"), &deep).kind, Kind::PermissionDenied);
        for timeout in [0, 3_600_001] {
            let long = SpawnArgs { timeout_ms: Some(timeout), ..spawn_args("x") };
            assert_eq!(refuse(long, &auto).kind, Kind::InvalidArgs);
        }
    }
}
