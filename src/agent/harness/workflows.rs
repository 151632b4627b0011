//! Workflow runs in the Session of a Conversation.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::Harness;
use crate::agent::conversation::Conversation;
use crate::agent::subagent::Children;
use crate::agent::turn::TurnSettings;
use crate::agent::workflow::{
    FinishedRun, RecordedRun, RunContext, RunWorkflow, Workflow, WorkflowLoader, WorkflowRunInput,
    new_run_id, run,
};
pub use crate::agent::workflow::{StepState, WatchedRun as WorkflowWatch, WatchedStep};
use crate::base::blocking;
use crate::base::error::{Kind, Report};
use crate::record::event::{AssistantMessage, Extra, Phase, REPORT_OF, UserMessage};
use crate::tools::tool::AnyTool;
use crate::tools::toolbox::Cleanup;

/// How much of a run's report is recorded for the model that continues the Session, in bytes.
const MAX_REPORT_BYTES: usize = 16 * 1024;

impl Harness {
    /// Adds the Tool that runs Workflows to settings, if the Session may have children.
    pub(super) fn with_workflows(
        &self,
        children: &Arc<Children>,
        settings: TurnSettings,
    ) -> TurnSettings {
        if settings.tools.find_tool("spawn_agent").is_err() {
            return settings;
        }
        let sources = WorkflowLoader {
            skills: settings.skills.clone(),
            role_places: self.discovery_folders(settings.session_folder.root().workspace()),
            limits: self.config.subagents,
        };
        let tool: Arc<dyn AnyTool> =
            Arc::new(RunWorkflow { children: Arc::clone(children), loader: sources });
        let rest: Cleanup = Arc::new(|| Box::pin(async {}));
        settings.with_tools(vec![tool], rest)
    }

    /// Runs a Workflow in the Session of a Conversation, or resumes a run of it. Returns when every
    /// step is over; `cancel` cancels them all.
    ///
    /// In the Log the run is a Turn that no model answered: it can be undone, and a model that
    /// continues the Session reads its report.
    pub fn run_workflow(
        &self,
        conversation: &Conversation,
        options: RunWorkflowOptions,
        cancel: CancellationToken,
    ) -> impl Future<Output = Result<FinishedRun, Report>> + Send + use<> {
        let children = self.live_children(conversation.settings());
        let session = conversation.session().clone();
        let (tracker, secrets) =
            (conversation.settings().tracker.clone(), Arc::clone(&conversation.settings().secrets));
        async move {
            let gone = || Report::new(Kind::SessionClosed, "the Session is closed");
            let children = children.ok_or_else(gone)?;
            let RunWorkflowOptions { workflow, template, recorded_run: past, time_limit } = options;
            let id = past.as_ref().map_or_else(new_run_id, |past| past.id.clone());
            let words = match past {
                None => format!("Run the Workflow `{}` ({id}).", workflow.name),
                Some(_) => format!("Go on with the Workflow `{}` ({id}).", workflow.name),
            };
            let context = RunContext::new(children, id.clone(), &workflow)?;
            let text = secrets.redact(&words).into_owned();
            let message = UserMessage { text, ..UserMessage::default() };
            let recorded = session.record(message.into()).await?;
            if let (Some(tracker), Some(seq)) = (&tracker, recorded.seq()) {
                tracker.begin_turn(seq);
            }
            let input = WorkflowRunInput {
                workflow: Arc::new(workflow),
                template,
                resumed_from: past,
                time_limit,
            };
            let finished = run(context, input, cancel).await;
            if let Some(tracker) = tracker
                && let Ok(Err(error)) = blocking::run_blocking(move || tracker.end_turn()).await
            {
                tracing::warn!(%error, "file changes of commands are not recorded");
            }
            let finished = finished?;
            let answer = AssistantMessage {
                text: secrets.redact(&finished.report(MAX_REPORT_BYTES)).into_owned(),
                phase: Some(Phase::Final),
                metadata: Some(Extra::from_iter([(REPORT_OF.to_owned(), json!(id))])),
                ..AssistantMessage::default()
            };
            session.record(answer.into()).await?;
            Ok(finished)
        }
    }
}

/// A Workflow to run, or a run of it to resume.
pub struct RunWorkflowOptions {
    pub workflow: Workflow,
    /// The template that it was made from.
    pub template: Option<String>,
    /// The run to resume.
    pub recorded_run: Option<RecordedRun>,
    /// A time limit, if it is shorter than the Workflow's.
    pub time_limit: Option<Duration>,
}
