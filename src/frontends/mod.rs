//! Who shows it: the terminal, editors, and the command line.

pub mod acp;
pub mod chat;
pub mod cli;
pub mod commands;
pub mod relay;
pub mod render;
pub mod signals;
