//! Who shows it: the terminal, editors, and the command line.

pub mod acp;
pub mod cli;
pub mod render;
