//! The model's side: credentials, prompt, Skills, roles and Providers.

pub mod credential;
pub mod prompt;
pub mod provider;
pub mod roles;
pub mod skill;
pub mod tool_spec;
