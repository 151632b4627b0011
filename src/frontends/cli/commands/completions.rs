//! `pixir completions`: a script for the user's shell.

use clap::Args;
use clap_complete::Shell;

use crate::base::error::Report;
use crate::frontends::cli::exit::Exit;
use crate::frontends::cli::{CliContext, command_grammar, print_stdout};

/// Print a completion script for a shell
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:\n  \
    pixir completions bash > ~/.local/share/bash-completion/completions/pixir\n  \
    pixir completions fish > ~/.config/fish/completions/pixir.fish")]
pub struct CompletionsArgs {
    /// The shell to write for
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

#[expect(clippy::unnecessary_wraps, reason = "every command can fail, in the table of commands")]
pub fn completions(args: &CompletionsArgs, _: &CliContext) -> Result<Exit, Report> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command_grammar(), "pixir", &mut script);
    print_stdout(&String::from_utf8_lossy(&script));
    Ok(Exit::Answered)
}
