//! Permission for a call: the bounds, the mode, what was allowed before, and the question.
//!
//! A question shows what would run, and its answer is bound to exactly that: the plan is made
//! again right before the call runs, and a call that turned into another one is refused.

use std::path::PathBuf;

use serde_json::json;

use super::execute::Prepared;
use super::stance::Held;
use super::{End, Turn};
use crate::base::blocking;
use crate::base::error::{Kind, Report};
use crate::base::tool_error::ToolError;
use crate::host::sandbox::Profile;
use crate::host::workspace::WorkspaceError;
use crate::record::event::{
    Answer, Extra, PermissionDecision, PermissionMode, PermissionRequest, Said, ShownCommand,
    ToolCall,
};
use crate::settings::role::strictest;
use crate::tools::permission;
use crate::tools::permission::{CallKind, Decision, Hold, Scripts, Subject};
use crate::tools::tool::{Effect, Plan};

/// The approval under which a call may run.
pub(super) struct Allowed {
    digest: String,
    /// The plan that the user saw; `None` for an earlier approval.
    shown: Option<Plan>,
}

/// What an answer is bound to.
struct Binding {
    digest: String,
    /// Paths of the call, links resolved.
    paths: Vec<String>,
    /// Whether everything that would run is known, so that an approval may last.
    may_last: bool,
}

/// A permission decision, as it is recorded.
struct Verdict {
    is_allowed: bool,
    rule: &'static str,
    answered_by: &'static str,
    said: Option<Said>,
    digest: Option<String>,
    notice: Option<String>,
}

impl Verdict {
    fn by(answered_by: &'static str, rule: &'static str, is_allowed: bool) -> Self {
        Self { is_allowed, rule, answered_by, said: None, digest: None, notice: None }
    }
}

impl Turn {
    /// Checks a call against write bounds, Skills and permission; the inner error is what the model
    /// reads.
    pub(super) async fn permit(
        &self,
        mut prepared: Prepared,
    ) -> Result<Result<Prepared, ToolError>, End> {
        let mode = &prepared.held.mode.clone();
        if let Some(outside) = self.outside_bounds(&prepared.plan) {
            let error = WorkspaceError::Bounded { path: outside };
            return Ok(Err(self.bounded(&prepared.fact, ToolError::from(error)).await?));
        }
        if self.is_unbounded_command(&prepared) {
            let verdict = Verdict::by("bounds", "write_bounds", false);
            self.record_verdict(&prepared.fact, mode, &verdict).await?;
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
            return Ok(Err(ToolError::new(Kind::PermissionDenied, message).next(next)));
        }
        // A Skill's allowed tools restrict the model, not the sources that the Skill itself
        // declares.
        if let Some(outside) = self.outside_skills(&prepared).filter(|_| !prepared.is_source) {
            let verdict = Verdict::by("skill", "allowed_tools", false);
            self.record_verdict(&prepared.fact, mode, &verdict).await?;
            return Ok(Err(outside));
        }
        let decision = permission::decide(mode, &prepared.plan, hold(&prepared));
        let verdict = match decision {
            Decision::Allow { rule } => Verdict::by("mode", rule, true),
            Decision::Hold { rule } => {
                prepared.is_held = true;
                Verdict::by("parser", rule, true)
            }
            Decision::Deny { rule } => Verdict::by("mode", rule, false),
            Decision::Ask { rule } => {
                let verdict = self.ask(&mut prepared, rule).await?;
                // A switch to a stricter mode while the question was open applies to this call as
                // well.
                let now = self.settings.stance.now();
                let is_stricter = now.mode != *mode && strictest(&now.mode, mode) == now.mode;
                if verdict.is_allowed && is_stricter {
                    return self.judge_again(prepared, now, verdict).await;
                }
                verdict
            }
        };
        if decision.is_recorded(mode) {
            self.record_verdict(&prepared.fact, mode, &verdict).await?;
        }
        if verdict.is_allowed {
            return Ok(Ok(prepared));
        }
        Ok(Err(denied(&prepared.plan, mode, &verdict)))
    }

    /// Judges an approved call again, under a stricter mode that was set while the question was
    /// open.
    async fn judge_again(
        &self,
        mut prepared: Prepared,
        now: Held,
        answered: Verdict,
    ) -> Result<Result<Prepared, ToolError>, End> {
        let mode = &now.mode.clone();
        prepared.held = now;
        prepared.plan = match prepared.tool.plan(&prepared.args, &self.tool_context(&prepared)) {
            Ok(plan) => plan,
            Err(error) => return Ok(Err(error)),
        };
        let verdict = match permission::decide(mode, &prepared.plan, hold(&prepared)) {
            Decision::Allow { rule } => Verdict { rule, ..answered },
            Decision::Hold { rule } => {
                prepared.is_held = true;
                Verdict { rule, ..answered }
            }
            Decision::Ask { .. } => answered,
            Decision::Deny { rule } => {
                Verdict { is_allowed: false, rule, answered_by: "mode", ..answered }
            }
        };
        self.record_verdict(&prepared.fact, mode, &verdict).await?;
        if !verdict.is_allowed {
            return Ok(Err(denied(&prepared.plan, mode, &verdict)));
        }
        if let Some(allowed) = &mut prepared.allowed {
            allowed.shown = Some(prepared.plan.clone());
        }
        Ok(Ok(prepared))
    }

    /// Looks for an earlier approval, and asks the user if there is none.
    async fn ask(&self, prepared: &mut Prepared, rule: &'static str) -> Result<Verdict, End> {
        let settings = &self.settings;
        let (session, project) = (self.context.session_id(), settings.workspace.root());
        let (subject, paths) = self.subject(prepared);
        let digest = subject.digest.clone();
        let verdict = |answered_by, is_allowed| Verdict {
            digest: Some(digest.clone()),
            ..Verdict::by(answered_by, rule, is_allowed)
        };
        if let Some(memory) = settings.approvals.find(session, project, &subject) {
            prepared.allowed = Some(Allowed { digest: digest.clone(), shown: None });
            return Ok(verdict(memory.name(), true));
        }
        if !settings.can_ask {
            return Ok(verdict("nobody", false));
        }
        let asked = self.context.ask_user(self.question(prepared, &subject, paths));
        let said = match self.context.cancel().run_until_cancelled(asked).await {
            Some(said) => said?,
            None => return Err(End::Interrupted),
        };
        let is_allowed = said.answer != Answer::No;
        let mut notice = None;
        if is_allowed {
            let shown = Some(prepared.plan.clone());
            prepared.allowed = Some(Allowed { digest: digest.clone(), shown });
            notice = self.remember(subject, said.answer).await;
        }
        Ok(Verdict { said: Some(said), notice, ..verdict("user", is_allowed) })
    }

    /// Stores a lasting answer. A write failure becomes a notice and does not refuse the call,
    /// which the user approved.
    async fn remember(&self, subject: Subject, answer: Answer) -> Option<String> {
        let approvals = self.settings.approvals.clone();
        let session = self.context.session_id().clone();
        let project = self.settings.workspace.root().to_owned();
        let keep = move || approvals.remember(&session, &project, &subject, answer);
        let failure = match blocking::work(keep).await {
            Ok(Ok(())) => return None,
            Ok(Err(error)) => Report::describe(&error).message,
            Err(error) => error.to_string(),
        };
        tracing::warn!(failure, "an answer was not kept");
        Some(format!("this answer lasts for this Session only: {failure}"))
    }

    /// Fails if the call would now do something else than what was approved.
    pub(super) fn check_allowed(&self, prepared: &Prepared) -> Result<(), ToolError> {
        let Some(allowed) = &prepared.allowed else { return Ok(()) };
        let again = prepared.tool.plan(&prepared.args, &self.tool_context(prepared))?;
        let is_shown = allowed.shown.as_ref().is_none_or(|shown| *shown == again);
        if is_shown && self.binding(prepared, &again).digest == allowed.digest {
            return Ok(());
        }
        let message = "what this call would do changed while its permission was asked for";
        Err(ToolError::new(Kind::FileChanged, message)
            .next("look at what is there now, then repeat the call"))
    }

    fn binding(&self, prepared: &Prepared, plan: &Plan) -> Binding {
        let workspace = &self.settings.workspace;
        let resolved = plan.paths.iter().map(|path| workspace.resolve(path));
        let paths: Vec<String> = resolved.map(|path| path.to_string_lossy().into_owned()).collect();
        let directory = workspace.root().to_string_lossy();
        // An MCP tool counts as another one when its server or its description changed.
        let name = &prepared.fact.name;
        let tool = plan.agent.as_ref().map_or(name.clone(), |agent| format!("{name} {agent}"));
        let mut bound = match &plan.about {
            None => prepared.args.clone(),
            Some(about) => json!({ "about": about, "args": prepared.args }),
        };
        // A command that runs files of the Workspace is bound to their content.
        let command = plan.command.as_deref().unwrap_or_default();
        let scripts = permission::scripts(command, workspace);
        if let Scripts::Known(files) = &scripts
            && !files.is_empty()
        {
            bound = json!({ "bound": bound, "scripts": files });
        }
        let digest = permission::digest(&tool, &bound, &paths, &directory);
        Binding { digest, paths, may_last: scripts != Scripts::Unknown }
    }

    fn subject(&self, prepared: &Prepared) -> (Subject, Vec<String>) {
        let plan = &prepared.plan;
        let Binding { digest, paths, may_last } = self.binding(prepared, plan);
        let subject = Subject {
            tool: prepared.fact.name.clone(),
            digest,
            summary: self.cleaned(plan.summary.clone()),
            // An approved prefix does not cover access to local sockets.
            command: plan.command.clone().filter(|_| plan.local_sockets.is_none()),
            network: plan.network,
            is_unheld: plan.effect == Effect::Execute && hold(prepared) == Hold::Impossible,
            may_last,
            kind: CallKind::of(&prepared.fact.name, plan),
        };
        (subject, paths)
    }

    fn question(
        &self,
        prepared: &Prepared,
        subject: &Subject,
        paths: Vec<String>,
    ) -> PermissionRequest {
        let Prepared { fact, plan, .. } = prepared;
        let prefix = subject.prefix().map(|words| words.join(" "));
        let mut answers = vec![Answer::Once];
        if subject.may_last {
            answers.push(Answer::Session);
            answers.extend(subject.kind.as_ref().map(CallKind::answer));
            answers.push(Answer::Project);
        }
        answers.extend(prefix.is_some().then_some(Answer::Prefix));
        answers.push(Answer::No);
        let command = plan.command.as_deref().map(|text| {
            let parts = permission::parts(text);
            ShownCommand {
                text: self.cleaned(text.to_owned()),
                parts: parts.into_iter().map(|part| self.cleaned(part)).collect(),
            }
        });
        PermissionRequest {
            call_id: fact.call_id.clone(),
            agent: None,
            tool: fact.name.clone(),
            summary: subject.summary.clone(),
            args: fact.args.clone(),
            paths: paths.into_iter().map(|path| self.cleaned(path)).collect(),
            directory: self.settings.workspace.root().to_string_lossy().into_owned(),
            diff: plan.diff.clone(),
            diff_is_cut: plan.diff_is_cut,
            command,
            network: plan.network,
            local_sockets: plan.local_sockets.is_some(),
            is_unsandboxed: subject.is_unheld,
            answers,
            prefix,
            digest: subject.digest.clone(),
        }
    }

    /// The first path of a call that is outside the write bounds.
    fn outside_bounds(&self, plan: &Plan) -> Option<PathBuf> {
        let workspace = &self.settings.workspace;
        if plan.effect != Effect::Write || workspace.bounds().is_empty() {
            return None;
        }
        let mut resolved = plan.paths.iter().map(|path| workspace.resolve(path));
        resolved.find(|path| !workspace.bounds().allow(path))
    }

    fn is_unbounded_command(&self, prepared: &Prepared) -> bool {
        prepared.plan.effect == Effect::Execute
            && !self.settings.workspace.bounds().is_empty()
            && (prepared.plan.agent.is_some() || hold(prepared) == Hold::Impossible)
    }

    /// Records a refusal by the write bounds, found in the plan's paths or, by a tool, in its
    /// resolved path.
    pub(super) async fn bounded(
        &self,
        fact: &ToolCall,
        error: ToolError,
    ) -> Result<ToolError, End> {
        if error.is_write_bounds {
            let verdict = Verdict::by("bounds", "write_bounds", false);
            self.record_verdict(fact, &self.settings.stance.mode(), &verdict).await?;
        }
        Ok(error)
    }

    async fn record_verdict(
        &self,
        fact: &ToolCall,
        mode: &PermissionMode,
        verdict: &Verdict,
    ) -> Result<(), End> {
        let said = verdict.said.as_ref();
        let words = said.and_then(|said| said.words.clone());
        self.context
            .record(PermissionDecision {
                call_id: fact.call_id.clone(),
                decision: if verdict.is_allowed { "allow" } else { "deny" }.to_owned(),
                mode: Some(mode.clone()),
                rule: Some(verdict.rule.to_owned()),
                answered_by: Some(verdict.answered_by.to_owned()),
                answer: said.map(|said| said.answer),
                words: words.map(|words| self.cleaned(words)),
                digest: verdict.digest.clone(),
                notice: verdict.notice.clone(),
                extra: Extra::new(),
            })
            .await?;
        Ok(())
    }
}

/// Whether commands run in a sandbox.
fn hold(prepared: &Prepared) -> Hold {
    match prepared.held.confinement {
        Profile::Off => Hold::Impossible,
        Profile::Workspace | Profile::ReadOnly => Hold::Possible,
    }
}

/// The error that the model reads instead of a result.
fn denied(plan: &Plan, mode: &PermissionMode, verdict: &Verdict) -> ToolError {
    let summary = &plan.summary;
    let words = verdict.said.as_ref().and_then(|said| said.words.as_deref());
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
    ToolError::new(Kind::PermissionDenied, message).next(next)
}
