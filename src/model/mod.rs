//! The model: its prompt, its provider, and who pays.

pub mod credential;
pub mod prompt;
pub mod provider;
pub mod roles;
pub mod skill;
pub mod tool_spec;
