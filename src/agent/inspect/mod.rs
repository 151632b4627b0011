//! Read models computed from Logs, for every presenter; the Logs alone are authoritative.

mod diagnosis;
mod earlier_prompts;
mod gc;
mod request_anatomy;
mod sessions;
mod transcript;
mod usage;
mod workspace_files;
mod workspaces;

pub use crate::record::state_dir::StateRoot;
pub use diagnosis::{CheckStatus, DiagnosedTurn, Diagnosis, diagnose};
pub use earlier_prompts::earlier_prompts;
pub use gc::{
    GarbageItem, GcOptions, GcPlan, GcResult, abandoned_drafts, child_workspace_garbage,
    clear_garbage, home_garbage, leftover_paths, plan_gc,
};
pub use request_anatomy::{RequestAnatomy, TOKEN_METHOD, analyze_request};
pub use sessions::{
    ListPosition, SessionSummary, SummaryStatus, delete_session, lineage_folders, list_page,
    list_sessions, posture_model, session_holder,
};
pub use transcript::{
    Transcript, TranscriptAttachment as Exported, TranscriptCall, TranscriptEntry, TranscriptHead,
    TranscriptTail, TranscriptTurn as ExportedTurn, open_transcript,
};
pub use usage::{Spending, UsagePeriod, UsageSum, session_spending, sum_spending};
pub use workspace_files::workspace_files;
pub use workspaces::{
    forget_gone_workspaces, gone_workspaces, known_workspaces, remember_workspace, roots_around,
    state_roots,
};
