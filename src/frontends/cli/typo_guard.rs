//! The typo guard: a lone word that was meant as a command never becomes a paid prompt.

use crate::base::error::Report;

use super::arguments::RUN_COMMAND;
use super::bad_argument;
use super::usage_error::prompt_command;

/// The names and aliases of the visible commands of a grammar.
fn command_names(grammar: &clap::Command) -> impl Iterator<Item = &str> {
    let visible = grammar.get_subcommands().filter(|command| !command.is_hide_set());
    let names = visible
        .flat_map(|command| std::iter::once(command.get_name()).chain(command.get_all_aliases()));
    // clap adds it while it reads the arguments.
    names.chain(["help"])
}

/// The names of all commands, so that most prompts are read without building the grammar; a test compares them with it.
const COMMAND_NAMES: &str = "resume chat sessions verify repair usage models permissions mcp skills agents workflow trust untrust acp login \
    logout doctor demo undo redo fork compact tree delegate changes merge merge_child merge-child config inspect-replay \
    diagnose export gc completions help __run";

/// Whether the first word of a command line begins a prompt: it is more than one typo away from every command.
pub fn is_surely_a_prompt(word: &str) -> bool {
    let lower = word.to_lowercase();
    !COMMAND_NAMES.split_whitespace().any(|name| is_near(&lower, name))
}

fn is_near(lower: &str, name: &str) -> bool {
    name.len().abs_diff(lower.len()) <= 1 && strsim::damerau_levenshtein(lower, name) <= 1
}

/// Whether a word is a command of this build.
pub fn is_command(word: &str) -> bool {
    word != RUN_COMMAND && COMMAND_NAMES.split_whitespace().any(|name| name == word)
}

/// Refuses a lone word that is a command, or one typo away from one.
pub fn check_prompt_words(
    words: &[String],
    literal: &[String],
    grammar: &clap::Command,
) -> Result<(), Report> {
    let ([word], []) = (words, literal) else { return Ok(()) };
    let as_prompt = format!("if it is meant as a prompt: {}", prompt_command("pixir --", word));
    let lower = word.to_lowercase();
    let Some(meant) = command_names(grammar).find(|name| is_near(&lower, name)) else {
        return Ok(());
    };
    Err(bad_argument(format!("`{word}` is not a command, did you mean `{meant}`?"))
        .with_next_actions(vec![format!("pixir {meant}"), as_prompt]))
}

#[cfg(test)]
mod tests {
    use super::super::command_grammar;
    use super::*;

    #[test]
    fn every_command_of_the_grammar_has_its_name_in_the_list() {
        let grammar = command_grammar();
        for own in grammar.get_subcommands() {
            for name in std::iter::once(own.get_name()).chain(own.get_all_aliases()) {
                assert!(COMMAND_NAMES.split_whitespace().any(|known| known == name), "{name}");
            }
        }
        for word in ["log in", " login", "merge child", "un do", "Sesions"] {
            assert!(!is_surely_a_prompt(word), "{word}");
        }
        assert!(is_surely_a_prompt("fix") && is_surely_a_prompt("fix the bug"));
    }

    #[track_caller]
    fn check_word(word: &str, expected: Option<&str>) {
        let found = check_prompt_words(&[word.to_owned()], &[], &command_grammar())
            .err()
            .map(|report| report.message);
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
        meant("merge_chil", "merge_child");
        meant("hlep", "help");
    }

    #[test]
    fn other_words_and_sentences_are_prompts() {
        for word in ["hello", "explain", "test", "login page is broken", "remove"] {
            check_word(word, None);
        }
        assert!(
            check_prompt_words(
                &["login".into(), "is".into(), "broken".into()],
                &[],
                &command_grammar()
            )
            .is_ok()
        );
        assert!(check_prompt_words(&[], &["login".into()], &command_grammar()).is_ok());
        assert!(check_prompt_words(&["sesions".into()], &["x".into()], &command_grammar()).is_ok());
    }
}
