//! The agent loop: Sessions, Turns, Subagents, Workflows, and what front-ends use of them.

pub mod child_workspace;
pub mod conversation;
pub mod fork;
pub mod harness;
pub mod inspect;
pub mod rewind;
pub mod session;
pub mod subagent;
pub mod turn;
pub mod workflow;
