//! The `bash` tools, with background commands.

mod background;
mod bash;
mod bash_input;
mod bash_output;
mod bash_stop;
mod git_notes;
mod handle;

pub use background::{Background, WeakBackground};
pub use bash::Bash;
pub use bash_input::BashInput;
pub use bash_output::BashOutput;
pub use bash_stop::BashStop;
