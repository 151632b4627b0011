//! Work on the Session beside the screen: opening it, sending prompts, and listing files.

use std::sync::Arc;

use crate::agent::conversation::{Attachment, Conversation, UserInput};
use crate::agent::harness::{Harness, StartOptions};
use crate::base::error::{Kind, Report};
use crate::frontends::chat::chat_command::CommandOutcome;
use crate::frontends::render::one_line;

/// The result of work that ran beside the screen.
pub enum WorkResult {
    Opened {
        opened: Result<Conversation, Report>,
        is_resumed: bool,
    },
    Sent {
        text: String,
        sent: Result<Vec<String>, Report>,
    },
    Files(Vec<String>),
    Command(Result<CommandOutcome, Report>),
    /// An answer or an interrupt was delivered; what it does arrives as an Event.
    Delivered,
}

/// Opens a Session.
pub async fn open_session(
    harness: Arc<Harness>,
    options: StartOptions,
) -> Result<Conversation, Report> {
    harness.start(options).await.map_err(|error| Report::describe(&error))
}

/// Sends a prompt, and gives notices about it. A name behind a slash that stands for nothing is refused.
pub async fn send_prompt(
    conversation: Conversation,
    text: String,
    attachments: Vec<Attachment>,
) -> Result<Vec<String>, Report> {
    let expanded = conversation.expand(text).await;
    if let Some(name) = expanded.unknown_name {
        let reason = match expanded.notices.as_slice() {
            [] => format!("there is no command, prompt or Skill called /{}", one_line(&name, 60)),
            notices => one_line(&notices.join("; "), 400),
        };
        let report = Report::new(Kind::InvalidArgs, format!("nothing was sent: {reason}"));
        return Err(report.with_next_actions(vec!["/help shows all commands".to_owned()]));
    }
    // The end of a Turn is told before the Session takes the next prompt.
    conversation.wait_until_idle().await.map_err(|error| Report::describe(&error))?;
    let input = UserInput { text: expanded.text };
    let sent = conversation.send_with_attachments(input, attachments).await;
    sent.map(|()| expanded.notices).map_err(|error| Report::describe(&error))
}
