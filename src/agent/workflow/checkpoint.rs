//! Checkpoint Bundles: the result of a step, with the provenance of each statement and where its evidence is.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::outcome::{Readiness, StepStatus};
use crate::record::event::SubagentUsage;
use crate::tools::permission::canonical_digest;

/// The version of the bundle format.
pub const BUNDLE_VERSION: u32 = 3;

/// The limitation of a step whose answer does not state its readiness.
pub const NOT_STATED: &str = "checkpoint_not_stated";

/// The limitation of a step whose changes are not known.
pub const CHANGES_UNKNOWN: &str = "changes_unknown";

/// The kind of artifact that shows what a step changed in its own Workspace.
pub const CHANGE_SET: &str = "change_set";

/// The recorded result of a step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CheckpointBundle {
    pub version: u32,
    pub step_id: String,
    pub status: StepStatus,
    pub checkpoint_status: Readiness,
    /// Whether dependent steps may rely on this result.
    pub dependent_safe: bool,
    /// A summary for people and for later steps.
    pub summary: String,
    /// Why the step is not ready, as a `snake_case` word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub known_limitations: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub typed_payloads: Vec<StepPayload>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub artifacts: Vec<StepArtifact>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub verification: Vec<VerificationResult>,
    /// The files that the step changed, as far as known; a long list is truncated.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub written: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subagent_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub child_session_id: Option<String>,
    /// The sequence number of its last Event in its own Log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub child_seq: Option<u64>,
    /// How many attempts were made.
    #[serde(default)]
    pub attempts: u32,
    #[serde(default)]
    pub elapsed_ms: u64,
    #[serde(default)]
    pub usage: SubagentUsage,
    /// A digest of the step as specified and of the results of earlier steps. A resumed run reuses this bundle while
    /// the key is the same.
    #[serde(default)]
    pub key: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub safe_next_actions: Vec<String>,
}

/// A typed value that a step delivered, with its provenance.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StepPayload {
    /// `step_output` or `review_verdict`.
    pub schema_id: String,
    /// The digest of the schema, if the Workflow states one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schema_sha256: Option<String>,
    /// `model_declared`: the Subagent stated it, and Pixir checked it against the schema.
    pub provenance: String,
    /// Always `valid`: a value that does not fit its schema is not kept as a payload.
    pub validation: String,
    pub sha256: String,
    pub payload: Value,
}

impl StepPayload {
    /// A payload that the Subagent of a step declared.
    pub fn from_model(schema_id: &str, schema: Option<&Value>, payload: Value) -> Self {
        Self {
            schema_id: schema_id.to_owned(),
            schema_sha256: schema.map(canonical_digest),
            provenance: "model_declared".to_owned(),
            validation: "valid".to_owned(),
            sha256: canonical_digest(&payload),
            payload,
        }
    }
}

/// Evidence that a step left, and the command that shows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StepArtifact {
    /// `change_set` or `merge`.
    pub kind: String,
    /// `artifact`: Pixir inspected the files itself.
    pub provenance: String,
    /// The command that shows it.
    pub at: String,
    pub sha256: String,
    pub files: usize,
}

/// The result of a check command that Pixir ran.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct VerificationResult {
    pub command: String,
    pub ok: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// `timed_out`, `cancelled`, `signal` or why it could not be run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    pub elapsed_ms: u64,
    /// The end of its output.
    pub output: String,
    /// The digest of `output`.
    pub sha256: String,
}

impl CheckpointBundle {
    /// Whether the step left changes in its own Workspace.
    pub fn has_changes(&self) -> bool {
        self.artifacts.iter().any(|artifact| artifact.kind == CHANGE_SET)
    }

    /// Removes everything about changes, before they are determined again.
    pub fn clear_changes(&mut self) {
        self.artifacts.retain(|artifact| artifact.kind != CHANGE_SET);
        self.known_limitations.retain(|limitation| limitation != CHANGES_UNKNOWN);
        self.written.clear();
    }

    /// A bundle of a step that has ended, with nothing but its status.
    pub fn new(step_id: &str, status: StepStatus, readiness: Readiness, summary: String) -> Self {
        Self {
            version: BUNDLE_VERSION,
            step_id: step_id.to_owned(),
            status,
            checkpoint_status: readiness,
            dependent_safe: readiness == Readiness::CheckpointReady,
            summary,
            reason: None,
            known_limitations: Vec::new(),
            typed_payloads: Vec::new(),
            artifacts: Vec::new(),
            verification: Vec::new(),
            written: Vec::new(),
            subagent_id: None,
            child_session_id: None,
            child_seq: None,
            attempts: 0,
            elapsed_ms: 0,
            usage: SubagentUsage::default(),
            key: String::new(),
            safe_next_actions: Vec::new(),
        }
    }

    /// The bundle of a step that failed for this reason.
    pub fn failed(step_id: &str, reason: &str, summary: String) -> Self {
        let bundle = Self::new(step_id, StepStatus::Failed, Readiness::Failed, summary);
        Self { reason: Some(reason.to_owned()), ..bundle }
    }

    /// Lowers the readiness for a reason, which becomes a known limitation; the first reason is kept.
    pub fn lower_readiness(&mut self, to: Readiness, reason: &str) {
        self.checkpoint_status = to;
        self.dependent_safe = false;
        self.reason.get_or_insert_with(|| reason.to_owned());
        self.known_limitations.push(reason.to_owned());
    }

    /// The value that fits the step's `output` schema.
    pub fn output(&self) -> Option<&Value> {
        let found = self.typed_payloads.iter().find(|own| own.schema_id == "step_output");
        found.map(|payload| &payload.payload)
    }

    /// The verdict of a review step.
    pub fn verdict(&self) -> Option<String> {
        let found = self.typed_payloads.iter().find_map(|own| own.payload.get("verdict"));
        found.and_then(Value::as_str).map(str::to_owned)
    }

    /// The parts of the bundle that a later step relies on; part of that step's key.
    pub fn key_input(&self) -> Value {
        serde_json::json!({
            "step": self.step_id,
            "status": self.checkpoint_status,
            "summary": self.summary,
            "payloads": self.typed_payloads.iter().map(|own| &own.sha256).collect::<Vec<_>>(),
        })
    }

    /// Sets the safe next actions: words that a program can match.
    pub fn set_next_actions(&mut self) {
        let actions: &[&str] = match (self.checkpoint_status, self.status) {
            (Readiness::CheckpointReady, _) => &[],
            (Readiness::Partial, _) => &["inspect_step", "synthesize_from_partial_or_rerun"],
            (Readiness::NeedsOrchestrator, _) => &["ask_user_or_orchestrator"],
            (Readiness::Held, _) => &["rerun_after_dependencies_are_ready"],
            (Readiness::Failed, StepStatus::TimedOut) => &["resume_with_larger_timeout"],
            (Readiness::Failed, StepStatus::Cancelled) => &["resume_workflow"],
            (Readiness::Failed, _) => &["inspect_step", "resume_workflow"],
        };
        self.safe_next_actions = actions.iter().map(|action| (*action).to_owned()).collect();
    }
}
