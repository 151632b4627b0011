//! The tools that a model can call, and the permission decision for each call.

pub mod files;
pub mod mcp;
pub mod permission;
pub mod plan;
pub mod search;
pub mod shell;
pub mod skills;
#[cfg(test)]
mod tests;
pub mod tool;
pub mod toolbox;
