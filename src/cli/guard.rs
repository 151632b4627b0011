//! The typo guard: a lone word that was meant as a command never becomes a paid prompt.

use crate::error::Report;

use super::bad_argument;
use super::usage_error::prompt_command;

/// The commands of this build.
const HERE: &[&str] = &[
    "resume",
    "sessions",
    "verify",
    "repair",
    "usage",
    "models",
    "permissions",
    "mcp",
    "skills",
    "agents",
    "workflow",
    "trust",
    "untrust",
    "acp",
    "login",
    "logout",
    "doctor",
    "demo",
    "undo",
    "redo",
    "fork",
    "compact",
    "tree",
    "delegate",
    "changes",
    "merge",
    "merge_child",
    "merge-child",
    "config",
    "inspect-replay",
    "diagnose",
    "export",
    "gc",
    "completions",
    "help",
];

/// Whether a word is a command of this build.
pub fn is_reserved(word: &str) -> bool {
    HERE.contains(&word)
}

/// Refuses a lone word that is a command, or one slip of the finger away from one.
pub fn check(words: &[String], literal: &[String]) -> Result<(), Report> {
    let ([word], []) = (words, literal) else { return Ok(()) };
    let as_prompt = format!("if it is meant as a prompt: {}", prompt_command("pixir --", word));
    let lower = word.to_lowercase();
    let near = |name: &&&str| {
        name.len().abs_diff(lower.len()) <= 1 && strsim::damerau_levenshtein(&lower, name) <= 1
    };
    let Some(meant) = HERE.iter().find(near) else { return Ok(()) };
    Err(bad_argument(format!("`{word}` is not a command, did you mean `{meant}`?"))
        .with_next_actions(vec![format!("pixir {meant}"), as_prompt]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_word(word: &str, expected: Option<&str>) {
        let found = check(&[word.to_owned()], &[]).err().map(|report| report.message);
        assert_eq!(found.as_deref(), expected, "{word}");
    }

    #[test]
    fn a_slip_of_the_finger_is_caught() {
        let meant = |word: &str, name: &str| {
            let message = format!("`{word}` is not a command, did you mean `{name}`?");
            check_word(word, Some(&message));
        };
        meant("sesions", "sessions");
        meant("ersume", "resume");
        meant("resume2", "resume");
        meant("Demo", "demo");
        meant("veryfy", "verify");
        meant("logni", "login");
        meant("docter", "doctor");
        meant("delegat", "delegate");
    }

    #[test]
    fn other_words_and_sentences_are_prompts() {
        for word in ["hello", "explain", "test", "login page is broken", "remove"] {
            check_word(word, None);
        }
        assert!(check(&["login".into(), "is".into(), "broken".into()], &[]).is_ok());
        assert!(check(&[], &["login".into()]).is_ok());
        assert!(check(&["sesions".into()], &["x".into()]).is_ok());
    }

    #[test]
    fn every_command_of_the_grammar_is_guarded() {
        let grammar = super::super::command();
        let visible = grammar.get_subcommands().filter(|command| !command.is_hide_set());
        for command in visible {
            for name in std::iter::once(command.get_name()).chain(command.get_all_aliases()) {
                assert!(HERE.contains(&name), "{name}");
            }
        }
    }
}
