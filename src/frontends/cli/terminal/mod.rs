//! The terminal: what a person types, questions to them, and signals.

pub mod confirm;
pub mod keyboard;
pub mod prompt_reader;
pub mod stdin;
