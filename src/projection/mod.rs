//! Projections: read models recomputed from Logs; every presenter may use them, none is a truth.

mod sessions;
mod workspaces;

pub use sessions::{Standing, Summary, delete, find, list, posture_model};
pub use workspaces::{known, remember};
