//! Records a run in the Log: one `workflow_event` for everything that happens.

use serde_json::{Value, json};

use super::RunContext;
use crate::agent::workflow::checkpoint::{CheckpointBundle, VerificationResult};
use crate::agent::workflow::outcome::HoldReason;
use crate::agent::workflow::spec::{Step, Workflow};
use crate::base::error::Report;
use crate::record::event::{Extra, WorkflowEvent, WorkflowEventKind};

impl RunContext {
    /// Records an Event of the run. When this fails, the run must stop.
    pub async fn record(
        &self,
        kind: WorkflowEventKind,
        step: Option<&str>,
        facts: Value,
    ) -> Result<(), Report> {
        let mut facts = facts;
        self.secrets.redact_value(&mut facts);
        let extra: Extra = match facts {
            Value::Object(facts) => facts.into_iter().collect(),
            _ => Extra::new(),
        };
        let event = WorkflowEvent {
            kind,
            workflow_id: self.run_id.clone(),
            step_id: step.map(str::to_owned),
            extra,
        };
        let recorded = self.children.session().record(event.into()).await;
        recorded.map(drop).map_err(Report::from)
    }

    pub async fn record_started(
        &self,
        workflow: &Workflow,
        sha256: &str,
        template: Option<&str>,
    ) -> Result<(), Report> {
        let facts = json!({
            "workflow_name": workflow.name,
            "spec": workflow,
            "spec_sha256": sha256,
            "template": template,
            "step_count": workflow.steps.len(),
            "workspace": self.workspace.root().to_string_lossy(),
        });
        self.record(WorkflowEventKind::Started, None, facts).await
    }

    pub async fn record_scheduled(&self, step: &Step, wave: u32, key: &str) -> Result<(), Report> {
        let execution = if step.apply.is_some() { "apply" } else { "subagent" };
        let facts = json!({
            "wave": wave,
            "role": step.role,
            "depends_on": step.depends_on,
            "posture": step.posture,
            "workspace_mode": step.workspace,
            "read_set": step.read_set,
            "write_set": step.write_set,
            "execution_kind": execution,
            "key": key,
        });
        self.record(WorkflowEventKind::StepScheduled, Some(&step.id), facts).await
    }

    pub async fn record_held(&self, step: &Step, held: &HoldReason) -> Result<(), Report> {
        let facts = json!({
            "checkpoint_status": "held",
            "dependent_safe": false,
            "reason": held.name(),
            "details": held.details(),
            "optional": step.optional,
        });
        self.record(WorkflowEventKind::StepHeld, Some(&step.id), facts).await
    }

    pub async fn record_checkpoint(&self, bundle: &CheckpointBundle) -> Result<(), Report> {
        let facts = json!({
            "status": bundle.status,
            "checkpoint_status": bundle.checkpoint_status,
            "dependent_safe": bundle.dependent_safe,
            "child_session_id": bundle.child_session_id,
            "checkpoint": bundle,
        });
        self.record(WorkflowEventKind::CheckpointDecided, Some(&bundle.step_id), facts).await
    }

    pub async fn record_verified(
        &self,
        step: &str,
        verified: &VerificationResult,
    ) -> Result<(), Report> {
        let facts = serde_json::to_value(verified).unwrap_or_default();
        self.record(WorkflowEventKind::Verification, Some(step), facts).await
    }
}
