//! Workflows: a run in the Session of a Conversation.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::Harness;
use crate::conversation::Conversation;
use crate::error::{Kind, Report};
use crate::paths;
use crate::subagent::Family;
use crate::tool::{AnyTool, Rest};
use crate::turn::Settings;
use crate::workflow::{Finished, Order, Past, RunWorkflow, Sources, Stage, Workflow, run, run_id};
pub use crate::workflow::{StepState, Watch as WorkflowWatch, WatchedStep};

impl Harness {
    /// The same settings with the Tool that runs graphs, where a Session may have children.
    pub(super) fn with_workflows(&self, family: &Arc<Family>, settings: Settings) -> Settings {
        if settings.tools.find("spawn_agent").is_err() {
            return settings;
        }
        let sources = Sources {
            skills: settings.skills.clone(),
            places: self.places(paths::holding(&settings.session_folder)),
            limits: self.config.subagents,
        };
        let tool: Arc<dyn AnyTool> = Arc::new(RunWorkflow { family: Arc::clone(family), sources });
        let rest: Rest = Arc::new(|| Box::pin(async {}));
        let role = settings.role;
        Settings {
            toolbox: settings
                .toolbox
                .clone()
                .and(vec![Arc::clone(&tool)], rest.clone())
                .of_role(role),
            tools: settings.tools.clone().and(vec![tool], rest),
            ..settings
        }
    }

    /// Runs a Workflow in the Session of a Conversation, or goes on with a run of it. Returns when
    /// every step is over; `cancel` ends them all.
    pub fn run_workflow(
        &self,
        conversation: &Conversation,
        order: WorkflowOrder,
        cancel: CancellationToken,
    ) -> impl Future<Output = Result<Finished, Report>> + Send + use<> {
        let family = self.family(conversation.settings());
        async move {
            let gone = || Report::new(Kind::SessionClosed, "the Session is closed");
            let family = family.ok_or_else(gone)?;
            let WorkflowOrder { workflow, template, past } = order;
            let id = past.as_ref().map_or_else(run_id, |past| past.id.clone());
            let order = Order { workflow: Arc::new(workflow), template, past };
            run(Stage::new(family, id), order, cancel).await
        }
    }
}

/// What is to be run.
pub struct WorkflowOrder {
    pub workflow: Workflow,
    /// The template that it was made from.
    pub template: Option<String>,
    /// The run to go on with.
    pub past: Option<Past>,
}
