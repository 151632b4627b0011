//! The question before a command changes files: asked on a terminal, answered beforehand by `--yes`.

use clap::Args;

use super::keyboard::says_yes;
use crate::base::error::{Kind, Report};
use crate::frontends::cli::Context;
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
pub enum Agreed {
    /// With `--yes`; the plan has not been shown.
    Beforehand,
    /// On the terminal, after the plan was shown.
    OnTerminal,
}

/// A confirmation question and the plan that is shown with it.
pub struct Question<'a> {
    /// What will happen, in lines.
    pub plan: &'a str,
    pub words: &'a str,
    /// The command as the user types it, without the program's name.
    pub command: &'a str,
}

impl Confirmation {
    /// Asks the user unless `--yes` was given. Any answer but yes refuses, and so does a missing terminal.
    pub fn ask(&self, question: &Question<'_>, context: &Context) -> Result<Agreed, Report> {
        if self.yes {
            return Ok(Agreed::Beforehand);
        }
        if !context.can_ask() {
            return Err(unconfirmed(question.command));
        }
        let Question { plan, words, .. } = question;
        let text = format!("{plan}  {words} [y] yes  [n] no\n  › ");
        if says_yes(&clean(&text)) {
            Ok(Agreed::OnTerminal)
        } else {
            Err(Report::new(Kind::PermissionDenied, "nothing was changed"))
        }
    }
}

fn unconfirmed(command: &str) -> Report {
    let message =
        "nothing was changed: confirmation is required, and there is no terminal to ask on";
    Report::new(Kind::PermissionDenied, message).with_next_actions(vec![
        format!("see what would happen: pixir {command} --dry-run"),
        format!("confirm without a question: pixir {command} --yes"),
    ])
}
