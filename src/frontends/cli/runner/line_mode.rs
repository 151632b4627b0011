//! Line mode: prompts from a person on a terminal, one per line or paste, until they leave.

use std::fmt::Write;
use std::path::Path;

use super::{RunRequest, SessionRunner, TurnRunOutcome, is_shown_at_prompt};
use crate::agent::harness::SessionTarget;
use crate::base::error::{Report, counted};
use crate::frontends::cli::exit::Exit;
use crate::frontends::cli::terminal::keyboard::Keyboard;
use crate::frontends::cli::terminal::prompt_reader::TypedEntry;
use crate::frontends::cli::terminal::stdin::cut_line_message;
use crate::frontends::cli::usage_error::prompt_command;
use crate::frontends::cli::{CliContext, bad_argument, typo_guard};
use crate::frontends::render::{StdioOutput, TurnView, clean, one_line};
use crate::frontends::signals::SignalListener;
use crate::model::skill::Skills;
use crate::record::event::{Canonical, ListenerItem, PermissionMode};
use crate::record::history::History;

/// The sign before the cursor.
const PROMPT_SIGN: &str = "› ";

/// How many lines of the last prompt and of the last answer are shown.
const PROMPT_LINES: usize = 4;
const ANSWER_LINES: usize = 12;

/// How much of a title is shown.
const TITLE_WIDTH: usize = 80;

/// Reads prompts and runs a Turn for each.
pub async fn run_line_mode(run_request: RunRequest, context: &CliContext) -> Result<Exit, Report> {
    let RunRequest { workspace, session, gathered, opened, attachments } = run_request;
    let skills = context.skills(&workspace)?;
    let mut keyboard = Keyboard::start_reading();
    let is_new = session == SessionTarget::New;
    let mut first = None;
    if is_new {
        let config = &opened.loaded.config;
        let mode = config.role.map(|role| role.limit_mode(&config.permission_mode));
        let mode = mode.as_ref().unwrap_or(&config.permission_mode);
        let start = start_line(&config.model, mode, &workspace);
        // The Session is created with the first prompt, not before.
        match read_first_prompt(&start, &skills, context, &mut keyboard).await {
            PromptInput::Prompt(text) => first = Some(text),
            PromptInput::Leave => return Ok(Exit::Answered),
            PromptInput::Signal => return Ok(Exit::Interrupted),
        }
    }
    let mut runner = SessionRunner::start(workspace, session, opened, context).await?;
    runner.keyboard = keyboard;
    runner.show_start_notices(&gathered.notices).await;
    if !is_new {
        runner.show_resumed_session().await;
    }
    runner.set_attachments(attachments);
    let exit = runner.run_prompts(first, &skills).await;
    runner.end().await;
    exit
}

/// Input at the prompt.
enum PromptInput {
    Prompt(String),
    /// The user left, or the input ended.
    Leave,
    Signal,
}

/// What can happen while a prompt is awaited.
enum LineModeEvent {
    Signal,
    Received(Option<ListenerItem>),
    /// An answer to the open question; `None` at the end of input.
    Answer(Option<String>),
    /// Something for the prompt; `None` at the end of input.
    Entry(Option<TypedEntry>),
}

/// What an entry means.
#[derive(Debug, PartialEq, Eq)]
enum LineRequest {
    Nothing,
    Prompt(String),
    Leave,
    /// A message for the user; nothing is sent.
    Message(String),
}

/// Parses an entry. Input that is meant for Pixir never becomes a prompt, because a prompt costs money. `command`
/// resumes this Session after the user has left.
fn parse_entry(entry: &TypedEntry, skills: &Skills, command: &str) -> LineRequest {
    let text = entry.text();
    if entry.is_cut {
        return LineRequest::Message(too_long_message(command));
    }
    if !entry.is_utf8 {
        return LineRequest::Message(not_utf8_message(command));
    }
    let first = text.split_whitespace().next().unwrap_or_default().to_lowercase();
    match (first.as_str(), first.len() == text.len()) {
        ("", _) => LineRequest::Nothing,
        ("/quit" | "/exit", _) | ("quit" | "exit", true) => LineRequest::Leave,
        ("/help", _) | ("help" | "?", true) => LineRequest::Message(help_text(skills)),
        _ if !text.starts_with('/') => LineRequest::Prompt(text),
        _ => {
            let expanded = skills.expand(&text);
            match expanded.unknown_name {
                Some(name) => {
                    LineRequest::Message(unknown_command_message(&name, &expanded.notices))
                }
                None => LineRequest::Prompt(text),
            }
        }
    }
}

/// Refuses what line mode would not send either: a lone word, and a text that begins with an unknown `/word`.
/// `command` sends what follows it in the same Session, such as `pixir --`; it is offered with the text.
pub fn refuse_command_word(words: &[String], skills: &Skills, command: &str) -> Result<(), Report> {
    let text = words.join(" ");
    let Some(word) = text.split_whitespace().next() else { return Ok(()) };
    if word.len() < text.trim().len() && !word.starts_with('/') {
        return Ok(());
    }
    let message = match parse_entry(&TypedEntry::line(text.clone()), skills, "pixir") {
        LineRequest::Nothing | LineRequest::Prompt(_) => return Ok(()),
        LineRequest::Message(message) if !message.starts_with('/') => {
            message.lines().next().unwrap_or_default().to_owned()
        }
        LineRequest::Message(_) | LineRequest::Leave => {
            format!(
                "`{}` works only at the prompt of a running Pixir, so nothing was sent",
                one_line(word, 60)
            )
        }
    };
    let as_prompt = format!("if it is meant as a prompt: {}", prompt_command(command, text.trim()));
    Err(bad_argument(message).with_next_actions(vec!["pixir --help".to_owned(), as_prompt]))
}

fn too_long_message(command: &str) -> String {
    format!(
        "{}\n  \
         try: save the text in a file and name the file in the prompt\n  \
         try: leave with /quit, then pipe it in: {command} < FILE",
        cut_line_message()
    )
}

fn not_utf8_message(command: &str) -> String {
    format!(
        "nothing was sent: it contains bytes that are not UTF-8\n  \
         try: set the terminal to UTF-8 and type it again\n  \
         try: leave with /quit, then run: {command} --attach FILE"
    )
}

fn unknown_command_message(name: &str, notices: &[String]) -> String {
    let shown = one_line(name, 60);
    let mut text = match notices {
        [] => format!("nothing was sent: there is no command, prompt or Skill called /{shown}\n"),
        _ => format!("nothing was sent: {}\n", one_line(&notices.join("; "), 400)),
    };
    if typo_guard::is_command(name) {
        writeln!(text, "  try: leave with /quit, then run `pixir {name}`").ok();
    }
    text.push_str("  try: /help\n  try: begin with another word if it is a prompt");
    text
}

fn help_text(skills: &Skills) -> String {
    let mut text = "/help  show this\n/quit  leave; so do exit, quit and Ctrl-D\n".to_owned();
    for named in skills.list_slash_names() {
        writeln!(text, "/{}  {}", one_line(&named.name, 40), one_line(&named.description, 80)).ok();
    }
    text.push_str(
        "everything else is a prompt; what is pasted at once is one prompt; Ctrl-C stops a Turn",
    );
    text
}

/// The first line: model, mode, folder and how to leave.
fn start_line(model: &str, mode: &PermissionMode, workspace: &Path) -> String {
    let folder = one_line(&workspace.to_string_lossy(), 200);
    format!(
        "{}, mode {}, in {folder}; /quit or Ctrl-D leaves, /help shows commands",
        one_line(model, 60),
        mode.as_str().replace('_', "-")
    )
}

/// Reads the first prompt of a Session that does not exist yet.
async fn read_first_prompt(
    start: &str,
    skills: &Skills,
    context: &CliContext,
    keyboard: &mut Keyboard,
) -> PromptInput {
    let mut signals = SignalListener::listen();
    let mut view = TurnView::new(context.display_mode(), StdioOutput::stdio(signals.count()));
    view.print_notice(start);
    loop {
        view.prompt(PROMPT_SIGN);
        let entry = tokio::select! {
            entry = keyboard.entry() => entry,
            _ = signals.next() => {
                view.prompt("\n");
                return PromptInput::Signal;
            }
        };
        let Some(entry) = entry else {
            view.prompt("\n");
            return PromptInput::Leave;
        };
        match parse_entry(&entry, skills, "pixir") {
            LineRequest::Nothing => {}
            LineRequest::Prompt(text) => return PromptInput::Prompt(text),
            LineRequest::Leave => return PromptInput::Leave,
            LineRequest::Message(text) => view.print_message(&text),
        }
    }
}

impl SessionRunner<'_> {
    /// Shows which Session is resumed, and its last exchange.
    async fn show_resumed_session(&mut self) {
        let conversation = &self.conversation;
        let start =
            start_line(conversation.model(), &conversation.mode(), conversation.workspace());
        self.view.print_notice(&start);
        let Ok(history) = self.conversation.history().await else { return };
        let title = history.first_user_message().map(|words| one_line(&words.text, TITLE_WIDTH));
        let title = title.unwrap_or_else(|| "(no prompt yet)".to_owned());
        self.view.print_notice(&format!("Session {}: {title}", self.conversation.id()));
        self.view.print_notice(&last_exchange(&history));
    }

    /// Runs a Turn for each prompt until the person leaves.
    async fn run_prompts(
        &mut self,
        first: Option<String>,
        skills: &Skills,
    ) -> Result<Exit, Report> {
        let mut waiting = first;
        loop {
            let typed = match waiting.take() {
                Some(text) => PromptInput::Prompt(text),
                None => self.next_prompt(skills).await,
            };
            let text = match typed {
                PromptInput::Prompt(text) => text,
                PromptInput::Leave => return Ok(self.leave_session(Exit::Answered)),
                PromptInput::Signal => return Ok(self.leave_session(Exit::Interrupted)),
            };
            match self.run_turn(text).await? {
                TurnRunOutcome::Ended(ending) if self.must_end_session(&ending) => {
                    return Ok(self.finish_turn(&TurnRunOutcome::Ended(ending)));
                }
                TurnRunOutcome::Ended(_) => {}
                outcome => return Ok(self.finish_turn(&outcome)),
            }
        }
    }

    /// Reads the next prompt. Events and questions of children are shown at once, and an open question is answered
    /// first.
    async fn next_prompt(&mut self, skills: &Skills) -> PromptInput {
        let resume = format!("pixir resume {}", self.conversation.id());
        let mut is_listening = true;
        let mut is_due = true;
        self.show_question();
        loop {
            if is_due && self.questions.is_empty() {
                self.view.prompt(PROMPT_SIGN);
                is_due = false;
            }
            match self.next_input(is_listening).await {
                LineModeEvent::Signal => {
                    self.view.prompt("\n");
                    return PromptInput::Signal;
                }
                LineModeEvent::Received(None) => is_listening = false,
                LineModeEvent::Received(Some(item)) => {
                    if is_shown_at_prompt(&item) && self.questions.is_empty() {
                        self.view.prompt("\n");
                        is_due = true;
                    }
                    self.view.show(&item).ok();
                    self.track_question(&item);
                }
                LineModeEvent::Answer(line) => {
                    self.answer_question(line).await;
                    is_due = true;
                }
                LineModeEvent::Entry(None) => {
                    self.view.prompt("\n");
                    return PromptInput::Leave;
                }
                LineModeEvent::Entry(Some(entry)) => match parse_entry(&entry, skills, &resume) {
                    LineRequest::Nothing => is_due = true,
                    LineRequest::Prompt(text) => return PromptInput::Prompt(text),
                    LineRequest::Leave => return PromptInput::Leave,
                    LineRequest::Message(text) => {
                        self.view.print_message(&text);
                        is_due = true;
                    }
                },
            }
        }
    }

    async fn next_input(&mut self, is_listening: bool) -> LineModeEvent {
        let is_asking = !self.questions.is_empty();
        let typed = async {
            if is_asking {
                LineModeEvent::Answer(self.keyboard.line_after(self.question_shown_at).await)
            } else {
                LineModeEvent::Entry(self.keyboard.entry().await)
            }
        };
        tokio::select! {
            biased;
            _ = self.signals.next() => LineModeEvent::Signal,
            item = self.relay.next(), if is_listening => LineModeEvent::Received(item),
            input = typed => input,
        }
    }

    fn leave_session(&mut self, exit: Exit) -> Exit {
        self.print_resume_hint();
        exit
    }
}

/// The last prompt of a Session and its answer, for a resumed Session.
fn last_exchange(history: &History) -> String {
    let mut answer = None;
    for (_, fact) in history.live_backwards() {
        match fact {
            Canonical::AssistantMessage(message) if answer.is_none() && message.is_final() => {
                answer = Some(last_lines(&message.text, ANSWER_LINES));
            }
            Canonical::TurnFailed(failed) if answer.is_none() => {
                let why = one_line(&failed.error_message, 200);
                answer = Some(format!("({}: {why})", failed.terminal_status.as_str()));
            }
            Canonical::UserMessage(message) => {
                let prompt = first_lines(&message.text, PROMPT_LINES);
                return format!("{PROMPT_SIGN}{prompt}\n{}", answer.unwrap_or_default());
            }
            _ => {}
        }
    }
    String::new()
}

fn first_lines(text: &str, most: usize) -> String {
    let text = clean(text);
    let mut lines: Vec<&str> = text.trim().lines().take(most + 1).collect();
    if lines.len() > most {
        lines[most] = "…";
    }
    lines.join("\n")
}

fn last_lines(text: &str, most: usize) -> String {
    let text = clean(text);
    let lines: Vec<&str> = text.trim_end().lines().collect();
    let hidden = lines.len().saturating_sub(most);
    let shown = lines[hidden..].join("\n");
    if hidden == 0 { shown } else { format!("… ({})\n{shown}", counted(hidden, "earlier line")) }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::base::paths::Home;
    use crate::model::skill::DiscoveryFolders;

    /// The command that resumes a Session.
    const RESUME: &str = "pixir resume 20260721T101112-abcdef";

    fn entry(text: &str) -> TypedEntry {
        let lines = text.lines().map(str::to_owned).collect();
        TypedEntry { lines, at: Instant::now(), is_cut: false, is_utf8: true }
    }

    #[test]
    fn what_is_meant_for_pixir_is_no_prompt() {
        let folder = tempfile::tempdir().unwrap();
        let home = Home::new(folder.path().join("home"));
        let prompts = folder.path().join("home/prompts");
        std::fs::create_dir_all(&prompts).unwrap();
        std::fs::write(prompts.join("review.md"), "Review $ARGUMENTS").unwrap();
        let workspace = folder.path().join("work");
        let skills = Skills::new(DiscoveryFolders { workspace, user: None, home });
        for text in ["", "  ", "\n\n"] {
            assert_eq!(
                parse_entry(&entry(text), &skills, RESUME),
                LineRequest::Nothing,
                "{text:?}"
            );
        }
        for text in ["exit", " Quit ", "/quit", "/exit", "/quit now"] {
            assert_eq!(parse_entry(&entry(text), &skills, RESUME), LineRequest::Leave, "{text:?}");
        }
        for text in ["/help", "/help me", "help", "?", "/reviw the diff", "/undo", "/etc"] {
            let request = parse_entry(&entry(text), &skills, RESUME);
            assert!(matches!(request, LineRequest::Message(_)), "{text:?}: {request:?}");
        }
        for text in [
            "exit the loop when done",
            "quit\nwas pasted",
            "help me",
            "/path/like this is broken",
            "/usr/bin/env: no such file",
            "/review the diff",
            "what does /etc hold?",
        ] {
            assert_eq!(
                parse_entry(&entry(text), &skills, RESUME),
                LineRequest::Prompt(text.to_owned())
            );
        }
        let cut = TypedEntry { is_cut: true, ..entry("zzzz") };
        let LineRequest::Message(text) = parse_entry(&cut, &skills, RESUME) else {
            panic!("a cut line was sent")
        };
        assert!(text.contains("nothing was sent") && text.contains("file"), "{text}");
        assert!(text.contains("pipe it in: pixir resume 20260721T101112-abcdef < FILE"), "{text}");
        let LineRequest::Message(text) = parse_entry(&cut, &skills, "pixir") else {
            panic!("sent")
        };
        assert!(text.contains("pipe it in: pixir < FILE"), "{text}");
        let bytes = TypedEntry { is_utf8: false, ..entry("caf\u{fffd}") };
        let LineRequest::Message(text) = parse_entry(&bytes, &skills, RESUME) else {
            panic!("changed text was sent")
        };
        assert!(text.contains("not UTF-8"), "{text}");
        assert!(
            text.contains("/quit, then run: pixir resume 20260721T101112-abcdef --attach FILE"),
            "{text}"
        );
        let long = format!("/{}", "x".repeat(100_000));
        let LineRequest::Message(text) = parse_entry(&entry(&long), &skills, RESUME) else {
            panic!("sent")
        };
        assert!(text.len() < 1_000, "{} bytes", text.len());
        let Err(report) = refuse_command_word(&[long], &skills, "pixir --") else { panic!("sent") };
        let text = format!("{report} {}", report.next_actions().join(" "));
        assert!(text.len() < 1_000, "{text}");
        assert!(text.contains("pixir -- '<the prompt>'"), "{text}");
    }
}
