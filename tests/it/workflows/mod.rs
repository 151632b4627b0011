//! Workflows: what a spec may say, and what becomes of a run.

mod runs;
mod shown;
mod storm;
mod troupe;
