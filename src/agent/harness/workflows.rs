//! Workflow runs in the Session of a Conversation.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::Harness;
use crate::agent::conversation::Conversation;
use crate::agent::subagent::Family;
use crate::agent::turn::Settings;
use crate::agent::workflow::{
    Finished, Order, Past, RunWorkflow, Sources, Stage, Workflow, run, run_id,
};
pub use crate::agent::workflow::{StepState, Watch as WorkflowWatch, WatchedStep};
use crate::base::blocking;
use crate::base::error::{Kind, Report};
use crate::record::event::{AssistantMessage, Extra, Phase, REPORT_OF, UserMessage};
use crate::tools::tool::AnyTool;
use crate::tools::toolbox::Rest;

/// How much of a run's report is recorded for the model that continues the Session, in bytes.
const TOLD: usize = 16 * 1024;

impl Harness {
    /// These settings with the Tool that runs Workflows, if the Session may have children.
    pub(super) fn with_workflows(&self, family: &Arc<Family>, settings: Settings) -> Settings {
        if settings.tools.find("spawn_agent").is_err() {
            return settings;
        }
        let sources = Sources {
            skills: settings.skills.clone(),
            places: self.places(settings.session_folder.root().workspace()),
            limits: self.config.subagents,
        };
        let tool: Arc<dyn AnyTool> = Arc::new(RunWorkflow { family: Arc::clone(family), sources });
        let rest: Rest = Arc::new(|| Box::pin(async {}));
        settings.with_tools(vec![tool], rest)
    }

    /// Runs a Workflow in the Session of a Conversation, or resumes a run of it. Returns when every
    /// step is over; `cancel` cancels them all.
    ///
    /// In the Log it is a Turn that no model answered: it can be undone, and a model that continues
    /// the Session reads its report.
    pub fn run_workflow(
        &self,
        conversation: &Conversation,
        order: WorkflowOrder,
        cancel: CancellationToken,
    ) -> impl Future<Output = Result<Finished, Report>> + Send + use<> {
        let family = self.family(conversation.settings());
        let session = conversation.session().clone();
        let (tracker, secrets) =
            (conversation.settings().tracker.clone(), Arc::clone(&conversation.settings().secrets));
        async move {
            let gone = || Report::new(Kind::SessionClosed, "the Session is closed");
            let family = family.ok_or_else(gone)?;
            let WorkflowOrder { workflow, template, past, horizon } = order;
            let id = past.as_ref().map_or_else(run_id, |past| past.id.clone());
            let words = match past {
                None => format!("Run the Workflow `{}` ({id}).", workflow.name),
                Some(_) => format!("Go on with the Workflow `{}` ({id}).", workflow.name),
            };
            let stage = Stage::new(family, id.clone(), &workflow)?;
            let text = secrets.clean(&words).into_owned();
            let message = UserMessage { text, ..UserMessage::default() };
            let said = session.record(message.into()).await?;
            if let (Some(tracker), Some(seq)) = (&tracker, said.seq()) {
                tracker.begin(seq);
            }
            let order = Order { workflow: Arc::new(workflow), template, past, horizon };
            let finished = run(stage, order, cancel).await;
            if let Some(tracker) = tracker
                && let Ok(Err(error)) = blocking::work(move || tracker.end()).await
            {
                tracing::warn!(%error, "file changes of commands are not recorded");
            }
            let finished = finished?;
            let answer = AssistantMessage {
                text: secrets.clean(&finished.report(TOLD)).into_owned(),
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
pub struct WorkflowOrder {
    pub workflow: Workflow,
    /// The template that it was made from.
    pub template: Option<String>,
    /// The run to resume.
    pub past: Option<Past>,
    /// A time limit, if it is shorter than the Workflow's.
    pub horizon: Option<Duration>,
}
