//! Projections: read models computed from Logs, for every presenter; the Logs alone are authoritative.

mod diagnosis;
mod replay;
mod sessions;
mod transcript;
mod usage;
mod waste;
mod workspaces;

pub use crate::record::state_dir::StateRoot;
pub use diagnosis::{Diagnosis, Health, Turn, diagnose};
pub use replay::{Anatomy, METHOD, anatomy};
pub use sessions::{
    Place, Standing, Summary, delete, holder_of, lineage_folders, list, page, posture_model,
};
pub use transcript::{
    Attachment as Exported, Call, Entry, Transcript, TranscriptHead, TranscriptTail,
    Turn as ExportedTurn, transcript,
};
pub use usage::{Spending, Sum, Window, spending, spending_of};
pub use waste::{Cleared, Plan, Waste, Wish, annex, clear, drafts, home_waste, leftovers, plan};
pub use workspaces::{forget_gone, gone, known, remember, roots_around, state_roots};
