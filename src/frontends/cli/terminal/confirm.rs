//! The question before a command changes files: asked on a terminal, answered beforehand by `--yes`.

use clap::Args;

use super::keyboard::ask_yes_no;
use crate::base::error::{Kind, Report};
use crate::frontends::cli::CliContext;
use crate::frontends::render::clean;

/// The `--yes` flag of commands that ask for confirmation.
#[derive(Debug, Args)]
pub struct Confirmation {
    /// Do not ask for confirmation; required without a terminal
    #[arg(long, short)]
    yes: bool,
}

/// How the user confirmed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConfirmedBy {
    /// With `--yes`; the plan has not been shown.
    Flag,
    /// On the terminal, after the plan was shown.
    Terminal,
}

/// A confirmation question and the plan that is shown with it.
pub struct ConfirmationPrompt<'a> {
    /// What will happen, in lines.
    pub plan: &'a str,
    pub question: &'a str,
    /// The command as the user types it, without the program's name.
    pub command: &'a str,
}

impl Confirmation {
    /// Asks the user unless `--yes` was given. Any answer but yes refuses, and so does a missing terminal.
    pub fn ask_user(
        &self,
        question: &ConfirmationPrompt<'_>,
        context: &CliContext,
    ) -> Result<ConfirmedBy, Report> {
        if self.yes {
            return Ok(ConfirmedBy::Flag);
        }
        if !context.can_ask() {
            return Err(no_terminal_error(question.command));
        }
        let ConfirmationPrompt { plan, question: words, .. } = question;
        let text = format!("{plan}  {words} [y] yes  [n] no\n  › ");
        if ask_yes_no(&clean(&text)) {
            Ok(ConfirmedBy::Terminal)
        } else {
            Err(Report::new(Kind::PermissionDenied, "nothing was changed"))
        }
    }
}

fn no_terminal_error(command: &str) -> Report {
    let message =
        "nothing was changed: confirmation is required, and there is no terminal to ask on";
    Report::new(Kind::PermissionDenied, message).with_next_actions(vec![
        format!("see what would happen: pixir {command} --dry-run"),
        format!("confirm without a question: pixir {command} --yes"),
    ])
}
