//! The `bash` tools, with background commands.

mod background;
mod background_command;
mod bash;
mod bash_input;
mod bash_output;
mod bash_stop;
mod git_notes;

pub use background::{BackgroundCommands, WeakBackgroundCommands};
pub use bash::BashTool;
pub use bash_input::BashInputTool;
pub use bash_output::BashOutputTool;
pub use bash_stop::BashStopTool;
