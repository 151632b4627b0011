//! Checkpoint Bundles: what is known of a step at its end, who says so, and where the evidence is.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::digest::digest;
use super::outcome::{Readiness, StepStatus};
use crate::event::SubagentUsage;

/// The shape of a bundle.
pub const VERSION: u32 = 3;

/// The limitation of a step that did not say whether it is ready.
pub const NOT_STATED: &str = "checkpoint_not_stated";

/// The limitation of a step of which it is not known what it changed.
pub const CHANGES_UNKNOWN: &str = "changes_unknown";

/// The kind of the artifact that shows what a step changed in a Workspace of its own.
pub const CHANGE_SET: &str = "change_set";

/// What is known of a step at its end.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Bundle {
    pub version: u32,
    pub step_id: String,
    pub status: StepStatus,
    pub checkpoint_status: Readiness,
    /// Others may build on it.
    pub dependent_safe: bool,
    /// In short, for people and for steps that come after it.
    pub summary: String,
    /// Why it is not ready, in a word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub known_limitations: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub typed_payloads: Vec<Payload>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub artifacts: Vec<Artifact>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub verification: Vec<Verified>,
    /// What it really changed, as far as that is known; not all of a long list.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub written: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subagent_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub child_session_id: Option<String>,
    /// Its last word in its own Log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub child_seq: Option<u64>,
    /// How often it was begun.
    #[serde(default)]
    pub attempts: u32,
    #[serde(default)]
    pub elapsed_ms: u64,
    #[serde(default)]
    pub usage: SubagentUsage,
    /// Of the step as it was written and of what earlier ones handed on: a later run may use this
    /// bundle as long as both are the same.
    #[serde(default)]
    pub key: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub safe_next_actions: Vec<String>,
}

/// A value with a type, and who vouches for it.
#[expect(
    clippy::struct_field_names,
    reason = "the payload of a payload is what others call it, too"
)]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Payload {
    /// `step_output` or `review_verdict`.
    pub schema_id: String,
    /// Of the schema, where the Workflow states one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schema_sha256: Option<String>,
    /// `model_declared`: the Subagent said it, and Pixir checked its shape.
    pub provenance: String,
    /// `valid`, always: what does not fit is not kept as a payload.
    pub validation: String,
    pub sha256: String,
    pub payload: Value,
}

impl Payload {
    /// What the Subagent of a step declared.
    pub fn declared(schema_id: &str, schema: Option<&Value>, payload: Value) -> Self {
        Self {
            schema_id: schema_id.to_owned(),
            schema_sha256: schema.map(digest),
            provenance: "model_declared".to_owned(),
            validation: "valid".to_owned(),
            sha256: digest(&payload),
            payload,
        }
    }
}

/// Something that a step left, and where it is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Artifact {
    /// `change_set` or `merge`.
    pub kind: String,
    /// `artifact`: Pixir looked itself.
    pub provenance: String,
    /// Where: a command that shows it.
    pub at: String,
    pub sha256: String,
    pub files: usize,
}

/// A command that Pixir ran, and what it came to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Verified {
    pub command: String,
    pub ok: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// `timed_out`, `cancelled`, `signal` or why it could not be run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    pub elapsed_ms: u64,
    /// The end of what it printed.
    pub output: String,
    /// Of that.
    pub sha256: String,
}

impl Bundle {
    /// Whether the step left changes in a Workspace of its own.
    pub fn has_changes(&self) -> bool {
        self.artifacts.iter().any(|artifact| artifact.kind == CHANGE_SET)
    }

    /// Drops what is known of its changes, before they are looked at again.
    pub fn forget_changes(&mut self) {
        self.artifacts.retain(|artifact| artifact.kind != CHANGE_SET);
        self.known_limitations.retain(|limitation| limitation != CHANGES_UNKNOWN);
        self.written.clear();
    }

    /// A step that is over, of which nothing else is known yet.
    pub fn new(step_id: &str, status: StepStatus, readiness: Readiness, summary: String) -> Self {
        Self {
            version: VERSION,
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

    /// It is not what it seemed: the readiness only gets worse.
    pub fn lower(&mut self, to: Readiness, reason: &str) {
        self.checkpoint_status = to;
        self.dependent_safe = false;
        self.reason.get_or_insert_with(|| reason.to_owned());
        self.known_limitations.push(reason.to_owned());
    }

    /// What it delivered.
    pub fn output(&self) -> Option<&Value> {
        let found = self.typed_payloads.iter().find(|own| own.schema_id == "step_output");
        found.map(|payload| &payload.payload)
    }

    /// What its review came to.
    pub fn verdict(&self) -> Option<String> {
        let found = self.typed_payloads.iter().find_map(|own| own.payload.get("verdict"));
        found.and_then(Value::as_str).map(str::to_owned)
    }

    /// What a later step is built on.
    pub fn essence(&self) -> Value {
        serde_json::json!({
            "step": self.step_id,
            "status": self.checkpoint_status,
            "summary": self.summary,
            "payloads": self.typed_payloads.iter().map(|own| &own.sha256).collect::<Vec<_>>(),
        })
    }

    /// What may be done next, in words that a program can match.
    pub fn advise(&mut self) {
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
