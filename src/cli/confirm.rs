//! The question before a command changes files: asked on a terminal, answered beforehand by `--yes`.

use clap::Args;

use super::Context;
use super::keyboard::says_yes;
use crate::error::{Kind, Report};
use crate::render::clean;

/// Whether the user has agreed beforehand.
#[derive(Debug, Args)]
pub struct Confirmation {
    /// Do it without asking; needed where there is no terminal to ask on
    #[arg(long, short)]
    yes: bool,
}

/// How the user agreed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Agreed {
    /// With `--yes`: what will happen has not been shown.
    Beforehand,
    /// On the terminal, after what will happen was shown.
    OnTerminal,
}

/// What is asked.
pub struct Question<'a> {
    /// What will happen, in lines.
    pub plan: &'a str,
    pub words: &'a str,
    /// The command as the user types it, without the program's name.
    pub command: &'a str,
}

impl Confirmation {
    /// Asks, unless the user has agreed beforehand; anything but a yes is a no. Without a terminal there is
    /// nobody to ask, which is a no.
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
    let message = "nothing was changed: this needs a yes, and there is no terminal to ask on";
    Report::new(Kind::PermissionDenied, message).with_next_actions(vec![
        format!("see what would happen: pixir {command} --dry-run"),
        format!("do it without a question: pixir {command} --yes"),
    ])
}
