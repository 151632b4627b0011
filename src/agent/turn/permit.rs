//! Permission check of a call: write bounds, mode, earlier approvals, and the question to the user.
//!
//! A question shows what would run, and its answer is bound to exactly that: the plan is made
//! again right before the call runs, and a call whose plan has changed is refused.

use std::path::PathBuf;

use serde_json::json;

use super::execute::PreparedCall;
use super::permission_state::PermissionSnapshot;
use super::{Turn, TurnEnd};
use crate::base::blocking;
use crate::base::error::{Kind, Report};
use crate::base::tool_error::ToolError;
use crate::host::sandbox::Profile;
use crate::host::workspace::WorkspaceError;
use crate::record::event::{
    Extra, PermissionAnswer, PermissionDecision, PermissionMode, PermissionRequest,
    PermissionResponse, ShownCommand, ToolCall,
};
use crate::settings::role::stricter_mode;
use crate::tools::permission;
use crate::tools::permission::{
    ApprovalSubject, CallKind, Decision, SandboxAvailability, ScriptFiles,
};
use crate::tools::tool::{CallEffect, CallPlan};

/// The approval under which a call may run.
pub(super) struct CallApproval {
    digest: String,
    /// The plan that the user saw; `None` for an earlier approval.
    shown: Option<CallPlan>,
}

/// The facts of a call that an approval is bound to.
struct ApprovalBinding {
    digest: String,
    /// Paths of the call, links resolved.
    paths: Vec<String>,
    /// Whether everything that would run is known, so that an approval may last.
    may_last: bool,
}

/// A permission decision, as it is recorded.
struct PermissionVerdict {
    is_allowed: bool,
    rule: &'static str,
    answered_by: &'static str,
    response: Option<PermissionResponse>,
    digest: Option<String>,
    notice: Option<String>,
}

impl PermissionVerdict {
    fn new(answered_by: &'static str, rule: &'static str, is_allowed: bool) -> Self {
        Self { is_allowed, rule, answered_by, response: None, digest: None, notice: None }
    }
}

impl Turn {
    /// Checks a call against write bounds, Skills and permission; the inner error is the result that
    /// the model reads.
    pub(super) async fn check_permission(
        &self,
        mut prepared: PreparedCall,
    ) -> Result<Result<PreparedCall, ToolError>, TurnEnd> {
        let mode = &prepared.permission.mode.clone();
        if let Some(outside) = self.path_outside_bounds(&prepared.plan) {
            let error = WorkspaceError::Bounded { path: outside };
            return Ok(Err(self
                .record_bounds_refusal(&prepared.event, ToolError::from(error))
                .await?));
        }
        if self.is_unbounded_command(&prepared) {
            let verdict = PermissionVerdict::new("bounds", "write_bounds", false);
            self.record_verdict(&prepared.event, mode, &verdict).await?;
            let (message, next) = match prepared.plan.agent {
                Some(_) => (
                    "write bounds do not hold for other programs, so their tools may only read",
                    "use the file tools",
                ),
                None => (
                    "write bounds hold for commands only in a sandbox, and it is off",
                    "use the file tools, or ask the user to switch the sandbox on",
                ),
            };
            return Ok(Err(ToolError::new(Kind::PermissionDenied, message).with_next_action(next)));
        }
        // A Skill's allowed tools restrict the model, not the sources that the Skill itself
        // declares.
        if let Some(outside) = self.check_skill_limits(&prepared).filter(|_| !prepared.is_source) {
            let verdict = PermissionVerdict::new("skill", "allowed_tools", false);
            self.record_verdict(&prepared.event, mode, &verdict).await?;
            return Ok(Err(outside));
        }
        let decision =
            permission::decide_call(mode, &prepared.plan, sandbox_availability(&prepared));
        let verdict = match decision {
            Decision::Allow { rule } => PermissionVerdict::new("mode", rule, true),
            Decision::AllowReadOnly { rule } => {
                prepared.is_sandboxed_read_only = true;
                PermissionVerdict::new("parser", rule, true)
            }
            Decision::Deny { rule } => PermissionVerdict::new("mode", rule, false),
            Decision::Ask { rule } => {
                let verdict = self.ask_approval(&mut prepared, rule).await?;
                // A switch to a stricter mode while the question was open applies to this call as
                // well.
                let now = self.settings.permission_state.snapshot();
                let is_stricter = now.mode != *mode && stricter_mode(&now.mode, mode) == now.mode;
                if verdict.is_allowed && is_stricter {
                    return self.judge_again(prepared, now, verdict).await;
                }
                verdict
            }
        };
        if decision.is_recorded(mode) {
            self.record_verdict(&prepared.event, mode, &verdict).await?;
        }
        if verdict.is_allowed {
            return Ok(Ok(prepared));
        }
        Ok(Err(denial_error(&prepared.plan, mode, &verdict)))
    }

    /// Judges an approved call again, under a stricter mode that was set while the question was
    /// open.
    async fn judge_again(
        &self,
        mut prepared: PreparedCall,
        now: PermissionSnapshot,
        answered: PermissionVerdict,
    ) -> Result<Result<PreparedCall, ToolError>, TurnEnd> {
        let mode = &now.mode.clone();
        prepared.permission = now;
        prepared.plan = match prepared.tool.plan(&prepared.args, &self.tool_context(&prepared)) {
            Ok(plan) => plan,
            Err(error) => return Ok(Err(error)),
        };
        let verdict =
            match permission::decide_call(mode, &prepared.plan, sandbox_availability(&prepared)) {
                Decision::Allow { rule } => PermissionVerdict { rule, ..answered },
                Decision::AllowReadOnly { rule } => {
                    prepared.is_sandboxed_read_only = true;
                    PermissionVerdict { rule, ..answered }
                }
                Decision::Ask { .. } => answered,
                Decision::Deny { rule } => {
                    PermissionVerdict { is_allowed: false, rule, answered_by: "mode", ..answered }
                }
            };
        self.record_verdict(&prepared.event, mode, &verdict).await?;
        if !verdict.is_allowed {
            return Ok(Err(denial_error(&prepared.plan, mode, &verdict)));
        }
        if let Some(allowed) = &mut prepared.approval {
            allowed.shown = Some(prepared.plan.clone());
        }
        Ok(Ok(prepared))
    }

    /// Looks for an earlier approval, and asks the user if there is none.
    async fn ask_approval(
        &self,
        prepared: &mut PreparedCall,
        rule: &'static str,
    ) -> Result<PermissionVerdict, TurnEnd> {
        let settings = &self.settings;
        let (session, project) = (self.context.session_id(), settings.workspace.root());
        let (subject, paths) = self.approval_subject(prepared);
        let digest = subject.digest.clone();
        let verdict = |answered_by, is_allowed| PermissionVerdict {
            digest: Some(digest.clone()),
            ..PermissionVerdict::new(answered_by, rule, is_allowed)
        };
        if let Some(memory) = settings.approvals.find(session, project, &subject) {
            prepared.approval = Some(CallApproval { digest: digest.clone(), shown: None });
            return Ok(verdict(memory.name(), true));
        }
        if !settings.can_ask {
            return Ok(verdict("nobody", false));
        }
        let asked = self.context.ask_user(self.permission_request(prepared, &subject, paths));
        let response = match self.context.cancel().run_until_cancelled(asked).await {
            Some(response) => response?,
            None => return Err(TurnEnd::Interrupted),
        };
        let is_allowed = response.answer != PermissionAnswer::No;
        let mut notice = None;
        if is_allowed {
            let shown = Some(prepared.plan.clone());
            prepared.approval = Some(CallApproval { digest: digest.clone(), shown });
            notice = self.store_answer(subject, response.answer).await;
        }
        Ok(PermissionVerdict { response: Some(response), notice, ..verdict("user", is_allowed) })
    }

    /// Stores a lasting answer. A write failure becomes a notice and does not refuse the call,
    /// which the user approved.
    async fn store_answer(
        &self,
        subject: ApprovalSubject,
        answer: PermissionAnswer,
    ) -> Option<String> {
        let approvals = self.settings.approvals.clone();
        let session = self.context.session_id().clone();
        let project = self.settings.workspace.root().to_owned();
        let keep = move || approvals.remember(&session, &project, &subject, answer);
        let failure = match blocking::run_blocking(keep).await {
            Ok(Ok(())) => return None,
            Ok(Err(error)) => Report::describe(&error).message,
            Err(error) => error.to_string(),
        };
        tracing::warn!(failure, "an answer was not kept");
        Some(format!("this answer lasts for this Session only: {failure}"))
    }

    /// Fails if the call would now do something else than what was approved.
    pub(super) fn check_unchanged(&self, prepared: &PreparedCall) -> Result<(), ToolError> {
        let Some(allowed) = &prepared.approval else { return Ok(()) };
        let again = prepared.tool.plan(&prepared.args, &self.tool_context(prepared))?;
        let is_shown = allowed.shown.as_ref().is_none_or(|shown| *shown == again);
        if is_shown && self.approval_binding(prepared, &again).digest == allowed.digest {
            return Ok(());
        }
        let message = "what this call would do changed while its permission was asked for";
        Err(ToolError::new(Kind::FileChanged, message)
            .with_next_action("look at what is there now, then repeat the call"))
    }

    fn approval_binding(&self, prepared: &PreparedCall, plan: &CallPlan) -> ApprovalBinding {
        let workspace = &self.settings.workspace;
        let resolved = plan.paths.iter().map(|path| workspace.resolve(path));
        let paths: Vec<String> = resolved.map(|path| path.to_string_lossy().into_owned()).collect();
        let directory = workspace.root().to_string_lossy();
        // An MCP tool counts as a different one when its server or its description changed.
        let name = &prepared.event.name;
        let tool = plan.agent.as_ref().map_or(name.clone(), |agent| format!("{name} {agent}"));
        let mut bound = match &plan.target_command {
            None => prepared.args.clone(),
            Some(about) => json!({ "about": about, "args": prepared.args }),
        };
        // A command that runs files of the Workspace is bound to their content.
        let command = plan.command.as_deref().unwrap_or_default();
        let scripts = permission::find_script_files(command, workspace);
        if let ScriptFiles::Known(files) = &scripts
            && !files.is_empty()
        {
            bound = json!({ "bound": bound, "scripts": files });
        }
        let digest = permission::approval_digest(&tool, &bound, &paths, &directory);
        ApprovalBinding { digest, paths, may_last: scripts != ScriptFiles::Unknown }
    }

    fn approval_subject(&self, prepared: &PreparedCall) -> (ApprovalSubject, Vec<String>) {
        let plan = &prepared.plan;
        let ApprovalBinding { digest, paths, may_last } = self.approval_binding(prepared, plan);
        let subject = ApprovalSubject {
            tool: prepared.event.name.clone(),
            digest,
            summary: self.redact_text(plan.summary.clone()),
            // An approved prefix does not cover access to local sockets.
            command: plan.command.clone().filter(|_| plan.local_sockets.is_none()),
            network: plan.network,
            is_unsandboxed: plan.effect == CallEffect::Execute
                && sandbox_availability(prepared) == SandboxAvailability::Unavailable,
            may_last,
            kind: CallKind::for_call(&prepared.event.name, plan),
        };
        (subject, paths)
    }

    fn permission_request(
        &self,
        prepared: &PreparedCall,
        subject: &ApprovalSubject,
        paths: Vec<String>,
    ) -> PermissionRequest {
        let PreparedCall { event: fact, plan, .. } = prepared;
        let prefix = subject.prefix().map(|words| words.join(" "));
        let mut answers = vec![PermissionAnswer::Once];
        if subject.may_last {
            answers.push(PermissionAnswer::Session);
            answers.extend(subject.kind.as_ref().map(CallKind::answer));
            answers.push(PermissionAnswer::Project);
        }
        answers.extend(prefix.is_some().then_some(PermissionAnswer::Prefix));
        answers.push(PermissionAnswer::No);
        let command = plan.command.as_deref().map(|text| {
            let parts = permission::command_parts(text);
            ShownCommand {
                text: self.redact_text(text.to_owned()),
                parts: parts.into_iter().map(|part| self.redact_text(part)).collect(),
            }
        });
        PermissionRequest {
            call_id: fact.call_id.clone(),
            agent: None,
            tool: fact.name.clone(),
            summary: subject.summary.clone(),
            args: fact.args.clone(),
            paths: paths.into_iter().map(|path| self.redact_text(path)).collect(),
            directory: self.settings.workspace.root().to_string_lossy().into_owned(),
            diff: plan.diff.clone(),
            diff_is_cut: plan.diff_is_cut,
            command,
            network: plan.network,
            local_sockets: plan.local_sockets.is_some(),
            is_unsandboxed: subject.is_unsandboxed,
            answers,
            prefix,
            digest: subject.digest.clone(),
        }
    }

    /// The first path of a call that is outside the write bounds.
    fn path_outside_bounds(&self, plan: &CallPlan) -> Option<PathBuf> {
        let workspace = &self.settings.workspace;
        if plan.effect != CallEffect::Write || workspace.bounds().is_empty() {
            return None;
        }
        let mut resolved = plan.paths.iter().map(|path| workspace.resolve(path));
        resolved.find(|path| !workspace.bounds().allows(path))
    }

    fn is_unbounded_command(&self, prepared: &PreparedCall) -> bool {
        prepared.plan.effect == CallEffect::Execute
            && !self.settings.workspace.bounds().is_empty()
            && (prepared.plan.agent.is_some()
                || sandbox_availability(prepared) == SandboxAvailability::Unavailable)
    }

    /// Records a refusal by the write bounds, found in the plan's paths or, by a tool, in its
    /// resolved path.
    pub(super) async fn record_bounds_refusal(
        &self,
        fact: &ToolCall,
        error: ToolError,
    ) -> Result<ToolError, TurnEnd> {
        if error.is_write_bounds {
            let verdict = PermissionVerdict::new("bounds", "write_bounds", false);
            self.record_verdict(fact, &self.settings.permission_state.mode(), &verdict).await?;
        }
        Ok(error)
    }

    async fn record_verdict(
        &self,
        fact: &ToolCall,
        mode: &PermissionMode,
        verdict: &PermissionVerdict,
    ) -> Result<(), TurnEnd> {
        let response = verdict.response.as_ref();
        let words = response.and_then(|response| response.message.clone());
        self.context
            .record(PermissionDecision {
                call_id: fact.call_id.clone(),
                decision: if verdict.is_allowed { "allow" } else { "deny" }.to_owned(),
                mode: Some(mode.clone()),
                rule: Some(verdict.rule.to_owned()),
                answered_by: Some(verdict.answered_by.to_owned()),
                answer: response.map(|response| response.answer),
                words: words.map(|words| self.redact_text(words)),
                digest: verdict.digest.clone(),
                notice: verdict.notice.clone(),
                extra: Extra::new(),
            })
            .await?;
        Ok(())
    }
}

/// Whether commands run in a sandbox.
fn sandbox_availability(prepared: &PreparedCall) -> SandboxAvailability {
    match prepared.permission.sandbox_profile {
        Profile::Off => SandboxAvailability::Unavailable,
        Profile::Workspace | Profile::ReadOnly => SandboxAvailability::Available,
    }
}

/// The error of a denied call, which the model reads instead of a result.
fn denial_error(plan: &CallPlan, mode: &PermissionMode, verdict: &PermissionVerdict) -> ToolError {
    let summary = &plan.summary;
    let words = verdict.response.as_ref().and_then(|response| response.message.as_deref());
    let message = match (verdict.answered_by, words) {
        ("user", Some(words)) => format!("the user said no to: {summary}; they say: {words}"),
        ("user", None) => format!("the user said no to: {summary}"),
        ("nobody", _) => {
            format!("mode `ask` needs an answer to: {summary}; this run cannot ask the user")
        }
        _ => format!("mode `{mode}` does not allow: {summary}"),
    };
    let next = match mode {
        _ if verdict.rule == permission::SOCKETS_UNASKED => {
            "repeat it without local_sockets: where sockets are harmless they work without it; \
             otherwise the user can use mode `ask`, or set `sandbox.local_sockets`"
        }
        PermissionMode::ReadOnly => "go on without changing anything, and say what you would do",
        _ => "go on without it, or explain to the user what you need and why",
    };
    ToolError::new(Kind::PermissionDenied, message).with_next_action(next)
}
