//! Prompts: texts with placeholders for arguments, which the user inserts by name.
//!
//! `/name words` becomes the text of `prompts/name.md`: `$ARGUMENTS` is all words, `$1` to `$9` are single
//! words, quotes group words, and `$$` is a dollar sign. Front-ends expand prompts; the agent receives only
//! the result.

use std::path::PathBuf;

use super::find::{TrustedFiles, decode_text, list_paths, read_within_boundary};
use super::front_matter::{split_front_matter, validate_name};
use super::mention::name_length;
use super::{FileDiagnostic, SearchRoot, SkillScope, yaml};
use crate::base::id::sha256;
use crate::settings::trust::TrustStore;

/// The largest prompt, in bytes.
const LARGEST: u64 = 64 * 1024;
/// How many prompts of one folder are read.
const MOST: usize = 500;

/// A prompt from a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PromptFile {
    pub name: String,
    pub description: String,
    /// A hint about the arguments.
    pub hint: String,
    pub scope: SkillScope,
    pub path: PathBuf,
    pub digest: String,
    /// Whether a person other than the user may have written the file, so that it needs trust.
    pub is_foreign: bool,
    /// Whether the prompt may be used: it is the user's own, or the user trusts it.
    pub is_trusted: bool,
    body: String,
}

/// The prompts and problems that were found.
#[derive(Debug, Clone, Default)]
pub struct FoundPrompts {
    /// Prompts by name; of several with the same name, the one that takes precedence.
    pub prompts: Vec<PromptFile>,
    /// All readable prompts.
    pub all: Vec<PromptFile>,
    pub broken: Vec<FileDiagnostic>,
}

impl PromptFile {
    /// The text with these arguments. Arguments are appended when the text has no placeholder, so that no
    /// input is lost.
    pub fn expand(&self, arguments: &str) -> String {
        let arguments = arguments.trim();
        let words = split_words(arguments);
        let (mut text, mut is_placed) = (String::new(), false);
        let mut rest = self.body.as_str();
        while let Some(place) = rest.find('$') {
            text.push_str(&rest[..place]);
            rest = &rest[place + 1..];
            if let Some(after) = rest.strip_prefix("ARGUMENTS") {
                text.push_str(arguments);
                (rest, is_placed) = (after, true);
            } else if let Some(after) = rest.strip_prefix('$') {
                text.push('$');
                rest = after;
            } else if let Some(digit) =
                rest.bytes().next().filter(|byte| (b'1'..=b'9').contains(byte))
            {
                let word = words.get(usize::from(digit - b'1'));
                text.push_str(word.map(String::as_str).unwrap_or_default());
                (rest, is_placed) = (&rest[1..], true);
            } else {
                text.push('$');
            }
        }
        text.push_str(rest);
        let mut text = text.trim().to_owned();
        if !is_placed && !arguments.is_empty() {
            text.extend(["\n\n", arguments]);
        }
        text
    }
}

/// Splits `/name words`; `None` for any other text.
pub fn parse_slash_command(text: &str) -> Option<(&str, &str)> {
    let rest = text.trim_start().strip_prefix('/')?;
    let end = name_length(rest);
    let (name, words) = rest.split_at(end);
    let is_name = end > 0 && words.chars().next().is_none_or(char::is_whitespace);
    is_name.then_some((name, words.trim()))
}

/// Splits words like a shell: quotes group them, a backslash escapes the next character.
fn split_words(text: &str) -> Vec<String> {
    let (mut words, mut word, mut quote, mut is_word) = (Vec::new(), String::new(), None, false);
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        match (quote, letter) {
            (Some(open), _) if letter == open => quote = None,
            (None, '"' | '\'') => (quote, is_word) = (Some(letter), true),
            (None | Some('"'), '\\') => {
                word.extend(letters.next());
                is_word = true;
            }
            (None, _) if letter.is_whitespace() => {
                if std::mem::take(&mut is_word) {
                    words.push(std::mem::take(&mut word));
                }
            }
            _ => {
                word.push(letter);
                is_word = true;
            }
        }
    }
    if is_word {
        words.push(word);
    }
    words
}

/// Reads all prompts in these folders.
pub(super) fn find_prompts(roots: &[SearchRoot], trust: &TrustStore) -> FoundPrompts {
    let mut found = FoundPrompts::default();
    let trusted = TrustedFiles::new(trust);
    let mut all: Vec<(usize, PromptFile)> = Vec::new();
    for (rank, root) in roots.iter().enumerate() {
        let boundary = root.boundary.as_deref();
        for path in list_paths(&root.path, boundary, (MOST, Some("md")), &mut found.broken) {
            match read_prompt(&path, root) {
                Err(flaw) => found.broken.push(flaw.in_file(&path)),
                Ok(mut prompt) => {
                    prompt.is_trusted = !prompt.is_foreign || trusted.covers(&path, &prompt.digest);
                    all.push((rank, prompt));
                }
            }
        }
    }
    all.sort_by_cached_key(|(rank, prompt)| (prompt.name.clone(), !prompt.is_trusted, *rank));
    found.all = all.iter().map(|(_, prompt)| prompt.clone()).collect();
    all.dedup_by(|(_, later), (_, earlier)| later.name == earlier.name);
    found.prompts = all.into_iter().map(|(_, prompt)| prompt).collect();
    found
}

fn read_prompt(path: &std::path::Path, root: &SearchRoot) -> Result<PromptFile, FileDiagnostic> {
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    let name = validate_name(&name, 1)?;
    let (bytes, folder) = read_within_boundary(path, root.boundary.as_deref(), LARGEST)?;
    let text = decode_text(&bytes)?;
    let (head, body) = split_front_matter(text)?;
    let head = head.map(yaml::parse).transpose().map_err(FileDiagnostic::shifted_one_line)?;
    let field_text = |key: &str| {
        let node = head.as_ref().and_then(|head| head.get(key));
        node.and_then(yaml::YamlNode::as_text).unwrap_or_default().trim().to_owned()
    };
    let first = body.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    let description = Some(field_text("description")).filter(|text| !text.is_empty());
    Ok(PromptFile {
        name,
        description: description.unwrap_or_else(|| first.chars().take(100).collect()),
        hint: field_text("argument-hint"),
        scope: root.scope,
        path: path.to_owned(),
        digest: sha256(&bytes),
        is_foreign: root.is_foreign(&folder),
        is_trusted: false,
        body: body.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn prompt(body: &str) -> PromptFile {
        PromptFile {
            name: "p".into(),
            description: String::new(),
            hint: String::new(),
            scope: SkillScope::Pixir,
            path: "/p.md".into(),
            digest: String::new(),
            is_foreign: false,
            is_trusted: true,
            body: body.into(),
        }
    }

    #[test]
    fn arguments_take_their_places_once() {
        for (body, arguments, wanted) in [
            ("Fix $1 in $2.", "bug src", "Fix bug in src."),
            ("Fix $1 in $2.", "'the bug' \"src/a b\"", "Fix the bug in src/a b."),
            ("Do: $ARGUMENTS!", " a  b ", "Do: a  b!"),
            ("$1 and $1", "$2 x", "$2 and $2"),
            ("Costs $$5, $HOME", "", "Costs $5, $HOME"),
            ("No places.", "but words", "No places.\n\nbut words"),
            ("$3|", "a b", "|"),
            ("end $", "", "end $"),
        ] {
            assert_eq!(prompt(body).expand(arguments), wanted, "{body}");
        }
    }

    #[test]
    fn only_a_leading_slash_with_a_name_is_meant() {
        assert_eq!(parse_slash_command("/review the diff "), Some(("review", "the diff")));
        assert_eq!(parse_slash_command("  /a.b"), Some(("a.b", "")));
        for text in ["/", "/usr/bin is full", "// x", "a /review", "/ x", "/é"] {
            assert_eq!(parse_slash_command(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn whatever_stands_in_a_prompt_expands(body in "[$A-Z0-9 ]{0,40}", words in "\\PC{0,30}") {
            prompt(&body).expand(&words);
        }
    }
}
