//! Projections: read models recomputed from Logs; every presenter may use them, none is a truth.

mod sessions;
mod usage;
mod workspaces;

pub use sessions::{Place, Standing, Summary, delete, find, list, page, posture_model};
pub use usage::{Spending, Sum, Window, spending, spending_of};
pub use workspaces::{known, remember};
