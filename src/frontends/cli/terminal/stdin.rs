//! The prompt: words of the command line, and what is piped in.
//!
//! With words, stdin is an addition: a silent pipe is given a moment and then left alone, because
//! many programs start others with a pipe that is never written to. Without words, stdin is the
//! prompt and is waited for.

use std::fs::File;
use std::io::{self, IsTerminal, Read};
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::FileType;

use super::prompt_reader::LONGEST_LINE;
use crate::base::error::{Kind, Report};
use crate::frontends::cli::bad_argument;
use crate::host::rpc::BlockingStream;

/// How long a pipe may be silent when there is a prompt already.
const SILENT_PIPE_WAIT: Duration = Duration::from_millis(200);

/// Largest stdin that is read; no model reads more.
const LARGEST_STDIN: u64 = 8 * 1024 * 1024;

/// Where the prompts of a run come from.
#[derive(Debug, PartialEq, Eq)]
pub enum PromptSource {
    /// One Turn.
    Text(String),
    /// Typed on a terminal, line by line.
    Lines,
}

/// A prompt, and notices about how it was read.
#[derive(Debug)]
pub struct GatheredPrompt {
    pub prompt: PromptSource,
    /// All of it came through stdin.
    pub is_piped: bool,
    pub notices: Vec<String>,
}

/// Puts the prompt together from words and from this process's stdin.
pub fn gather_prompt(words: &[String], literal: &[String]) -> Result<GatheredPrompt, Report> {
    let must_read = words.iter().any(|word| word == "-");
    let spoken = join_words(words, literal);
    let mut notices = Vec::new();
    let stdin = io::stdin();
    let piped = match stdin_kind(stdin.as_fd()) {
        StdinKind::Terminal if must_read => {
            let typed = read_stdin(&mut notices)?;
            refuse_cut_line(&typed)?;
            typed
        }
        StdinKind::Terminal if spoken.is_empty() => {
            return Ok(GatheredPrompt { prompt: PromptSource::Lines, is_piped: false, notices });
        }
        StdinKind::Terminal | StdinKind::Nothing => String::new(),
        StdinKind::Pipe if !must_read && !spoken.is_empty() && !is_ready(stdin.as_fd()) => {
            notices.push(
                "stdin is open but silent, so it is not read; `-` as a word waits for it".into(),
            );
            String::new()
        }
        StdinKind::Pipe | StdinKind::File => read_stdin(&mut notices)?,
    };
    let text = join_prompt(&spoken, &piped);
    if text.is_empty() {
        return Err(no_prompt());
    }
    Ok(GatheredPrompt { prompt: PromptSource::Text(text), is_piped: spoken.is_empty(), notices })
}

impl GatheredPrompt {
    /// A lone word that came through stdin: it may be meant for Pixir instead of the model. Other piped text is always
    /// a prompt.
    pub fn lone_word(&self) -> Option<&str> {
        let PromptSource::Text(text) = &self.prompt else { return None };
        let word = Some(text.trim()).filter(|_| self.is_piped);
        word.filter(|word| !word.contains(char::is_whitespace))
    }
}

/// Error text for a line that the terminal may have cut.
pub fn cut_line_message() -> String {
    format!("nothing was sent: a line of {LONGEST_LINE} bytes or more is cut by the terminal")
}

/// Refuses text from a terminal when one of its lines may have been cut.
fn refuse_cut_line(text: &str) -> Result<(), Report> {
    if text.lines().all(|line| line.len() < LONGEST_LINE) {
        return Ok(());
    }
    Err(bad_argument(cut_line_message()).with_next_actions(vec![
        "save the text in a file and name the file in the prompt".into(),
        "or pipe it in: pixir < FILE".into(),
    ]))
}

/// The error for a missing prompt.
pub fn no_prompt() -> Report {
    Report::new(Kind::NoPrompt, "there is no prompt").with_next_actions(vec![
        "say what to do: pixir \"explain this project\"".into(),
        "or pipe it in: echo \"explain this project\" | pixir".into(),
    ])
}

fn join_words(words: &[String], literal: &[String]) -> String {
    let words = words.iter().filter(|word| *word != "-");
    words.chain(literal).map(String::as_str).collect::<Vec<_>>().join(" ").trim().to_owned()
}

/// Joins words and piped text with a blank line.
fn join_prompt(spoken: &str, piped: &str) -> String {
    let piped = piped.trim_end();
    match (spoken.is_empty(), piped.trim().is_empty()) {
        (_, true) => spoken.to_owned(),
        (true, false) => piped.to_owned(),
        (false, false) => format!("{spoken}\n\n{piped}"),
    }
}

enum StdinKind {
    Terminal,
    /// A regular file: reading it never waits for a writer.
    File,
    Pipe,
    Nothing,
}

fn stdin_kind(stdin: std::os::fd::BorrowedFd<'_>) -> StdinKind {
    if stdin.is_terminal() {
        return StdinKind::Terminal;
    }
    let Ok(facts) = rustix::fs::fstat(stdin) else { return StdinKind::Nothing };
    match FileType::from_raw_mode(facts.st_mode) {
        FileType::RegularFile | FileType::CharacterDevice | FileType::BlockDevice => {
            StdinKind::File
        }
        FileType::Directory => StdinKind::Nothing,
        _ => StdinKind::Pipe,
    }
}

fn is_ready(stdin: std::os::fd::BorrowedFd<'_>) -> bool {
    let patience = Timespec::try_from(SILENT_PIPE_WAIT).ok();
    let mut wait = [PollFd::from_borrowed_fd(stdin, PollFlags::IN)];
    poll(&mut wait, patience.as_ref()).is_ok_and(|ready| ready > 0)
}

fn read_stdin(notices: &mut Vec<String>) -> Result<String, Report> {
    let unreadable = |error: io::Error| bad_argument(format!("stdin cannot be read: {error}"));
    let file = io::stdin().as_fd().try_clone_to_owned().map(File::from).map_err(unreadable)?;
    let mut bytes = Vec::new();
    BlockingStream(file).take(LARGEST_STDIN + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > LARGEST_STDIN {
        return Err(bad_argument("stdin is larger than 8 MiB, which no model can read")
            .with_next_actions(vec!["put it into a file and name the file in the prompt".into()]));
    }
    match String::from_utf8(bytes) {
        Ok(text) => Ok(text),
        Err(error) => {
            notices.push("stdin is not UTF-8; what could not be read is replaced by U+FFFD".into());
            Ok(String::from_utf8_lossy(error.as_bytes()).into_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owned(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn words_are_joined_and_a_dash_is_not_one() {
        assert_eq!(join_words(&owned(&["fix", "-", "it"]), &[]), "fix it");
        assert_eq!(join_words(&owned(&["fix"]), &owned(&["--help", "-"])), "fix --help -");
        assert_eq!(join_words(&owned(&["  "]), &[]), "");
    }

    #[test]
    fn only_a_lone_piped_word_may_be_meant_for_pixir() {
        let word = |text: &str, is_piped| {
            let prompt = PromptSource::Text(text.to_owned());
            GatheredPrompt { prompt, is_piped, notices: Vec::new() }.lone_word().map(str::to_owned)
        };
        assert_eq!(word("exit\n", true).as_deref(), Some("exit"));
        assert_eq!(word(" /help ", true).as_deref(), Some("/help"));
        assert_eq!(word("exit codes are wrong", true), None);
        assert_eq!(word("exit\nquit", true), None);
        assert_eq!(word("/reviw\n\na diff", true), None);
        assert_eq!(word("exit", false), None);
    }

    #[test]
    fn a_line_that_the_terminal_may_have_cut_is_refused() {
        assert!(refuse_cut_line(&format!("{}\nb\n", "a".repeat(LONGEST_LINE - 1))).is_ok());
        let refused = refuse_cut_line(&format!("a\n{}\nb\n", "a".repeat(LONGEST_LINE)));
        assert_eq!(refused.unwrap_err().message, cut_line_message());
    }

    #[test]
    fn piped_text_follows_behind_a_blank_line() {
        assert_eq!(join_prompt("review", "diff\n"), "review\n\ndiff");
        assert_eq!(join_prompt("", "  prompt\n"), "  prompt");
        assert_eq!(join_prompt("review", " \n"), "review");
        assert_eq!(join_prompt("", "\n"), "");
    }
}
