//! Workflows: what a spec may say, and what becomes of a run.

mod runs;
mod storm;
mod troupe;
